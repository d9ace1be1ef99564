"""The command `check`: whole runs, padding, devices, scaling, compilation, and a peer."""

from benchmarks import RESULTS


def add_check(commands):
    from keras_plm.cli.errors import add_debug_flag

    text = "check properties of training that need more than a test"
    parser = commands.add_parser("check", help=text, description=text)
    checks = parser.add_subparsers(dest="check", required=True, metavar="CHECK")
    adders = _add_resume, _add_writers, _add_probes, _add_padding
    for add in (*adders, _add_devices, _add_scaling, _add_scan, _add_fine_tuning):
        add(checks)
    for check in checks.choices.values():
        add_debug_flag(check)


def _add_resume(checks):
    text = "kill small training runs at random steps, resume them, and compare the weights"
    parser = checks.add_parser("resume", help=text, description=text)
    parser.add_argument(
        "--runs", type=int, default=20, metavar="N", help="kill so many runs (default 20)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="draw the steps with this seed (default 0)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="give the backend so many threads (default 1)",
    )
    parser.set_defaults(run=_run_resume)


def _run_resume(flags):
    from benchmarks.checks.resume import check_resume
    from keras_plm.experiments.progress import console

    check_resume(flags.out, flags.runs, flags.seed, flags.threads, console.print)


def _add_writers(checks):
    text = "let processes write each kind of folder at the same time, and check the folders"
    parser = checks.add_parser("writers", help=text, description=text)
    parser.add_argument(
        "--trials",
        type=int,
        default=200,
        metavar="N",
        help="write so many folders of each kind (default 200)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        metavar="N",
        help="let so many processes write each folder (default 2)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_writers)


def _run_writers(flags):
    from benchmarks.checks.writers import check_writers
    from keras_plm.experiments.progress import console

    check_writers(flags.out, flags.trials, flags.processes, console.print)


def _add_probes(checks):
    from keras_plm.cli.run import add_data_flags

    text = "compare linear heads that train in one fit with L-BFGS on three tasks"
    parser = checks.add_parser("probes", help=text, description=text)
    parser.add_argument(
        "--encoder", default="all-MiniLM-L6-v2", metavar="DIR",
        help="read the encoder of this folder or name (default all-MiniLM-L6-v2)",
    )  # fmt: skip
    add_data_flags(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_probes)


def _run_probes(flags):
    from benchmarks.checks.probes import check_probes
    from keras_plm.experiments.progress import console

    check_probes(
        flags.encoder, flags.data, flags.feature_cache, flags.out, console.print, flags.max_cache_gb
    )


def _add_padding(checks):
    text = "count the tokens that several kinds of padding add to the batches of tasks"
    parser = checks.add_parser("padding", help=text, description=text)
    parser.add_argument("--data", required=True, metavar="DIR", help="read tasks and books here")
    parser.add_argument(
        "--encoder", default="all-MiniLM-L6-v2", metavar="DIR",
        help="read the tokenizer of this folder or name (default all-MiniLM-L6-v2)",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_padding)


def _run_padding(flags):
    from benchmarks.checks.padding import check_padding
    from keras_plm.experiments.progress import console

    check_padding(flags.data, flags.out, flags.encoder, progress=console.print)


def _add_devices(checks):
    text = "train small BERTs on one and on several devices, and compare the loss of every step"
    parser = checks.add_parser("devices", help=text, description=text)
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N", help="train so many steps (default 50)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_devices)


def _run_devices(flags):
    from benchmarks.checks.devices import check_devices
    from keras_plm.experiments.progress import console

    check_devices(flags.out, flags.steps, progress=console.print)


def _add_scaling(checks):
    text = "estimate by formulas how BERT's pre-training scales over GPUs and TPU chips"
    parser = checks.add_parser("scaling", help=text, description=text)
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="read speed.json here and write the result here (default benchmarks/results)",
    )  # fmt: skip
    parser.set_defaults(run=_run_scaling)


def _run_scaling(flags):
    from benchmarks.checks.scaling import check_scaling

    check_scaling(flags.results)


def _add_scan(checks):
    text = "time Transformer blocks in a loop and in `jax.lax.scan` under JAX"
    parser = checks.add_parser("scan", help=text, description=text)
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_scan)


def _run_scan(flags):
    from benchmarks.checks.scan import check_scan
    from keras_plm.experiments.progress import console

    check_scan(flags.out, progress=console.print)


def _add_fine_tuning(checks):
    text = "compare fine-tuning with a plain loop over `transformers`, with five seeds on two tasks"
    parser = checks.add_parser("fine_tuning", help=text, description=text)
    parser.add_argument("--data", default="data", metavar="DIR", help="data folder (default data)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_fine_tuning)


def _run_fine_tuning(flags):
    from benchmarks.checks.fine_tuning import check_fine_tuning
    from keras_plm.experiments.progress import console

    check_fine_tuning(flags.data, flags.out, console.print)
