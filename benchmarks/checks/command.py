"""The command `check`: kills, several writers of one folder, several devices, and scaling."""

from benchmarks import RESULTS


def add_check(commands):
    from glue_tasks.errors import add_debug_flag

    text = "check a property of training that takes more than a test"
    parser = commands.add_parser("check", help=text, description=text)
    checks = parser.add_subparsers(dest="check", required=True, metavar="CHECK")
    for add in (_add_resume, _add_writers, _add_devices, _add_scaling):
        add(checks)
    for check in checks.choices.values():
        add_debug_flag(check)


def _add_resume(checks):
    text = "kill small training runs at random steps, resume them, and compare the weights"
    parser = checks.add_parser("resume", help=text, description=text)
    parser.add_argument(
        "--runs", type=int, default=20, metavar="N", help="number of runs (default 20)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the steps (default 0)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads of the backend (default 1)"
    )
    parser.set_defaults(run=_run_resume)


def _run_resume(flags):
    from benchmarks.checks.resume import check_resume
    from keras_plm.experiments.progress import console

    check_resume(flags.out, flags.runs, flags.seed, flags.threads, console.print)


def _add_writers(checks):
    text = "let processes write each kind of folder at the same time, and check what they leave"
    parser = checks.add_parser("writers", help=text, description=text)
    parser.add_argument(
        "--trials", type=int, default=200, metavar="N", help="folders of each kind (default 200)"
    )
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="writers of a folder (default 2)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_writers)


def _run_writers(flags):
    from benchmarks.checks.writers import check_writers
    from keras_plm.experiments.progress import console

    check_writers(flags.out, flags.trials, flags.processes, console.print)


def _add_devices(checks):
    text = "train small BERTs on one device and on several, and compare the losses of every step"
    parser = checks.add_parser("devices", help=text, description=text)
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N", help="training steps (default 50)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON file to write")
    parser.set_defaults(run=_run_devices)


def _run_devices(flags):
    from benchmarks.checks.devices import check_devices
    from keras_plm.experiments.progress import console

    check_devices(flags.out, flags.steps, progress=console.print)


def _add_scaling(checks):
    text = "compute, on paper, how far BERT's pre-training scales over GPUs and TPU chips"
    parser = checks.add_parser("scaling", help=text, description=text)
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="folder of speed.json and of the result (default benchmarks/results)",
    )  # fmt: skip
    parser.set_defaults(run=_run_scaling)


def _run_scaling(flags):
    from benchmarks.checks.scaling import check_scaling

    check_scaling(flags.results)
