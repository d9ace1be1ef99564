"""The command `edge-probing`: where in an encoder the information for five tasks lies."""

from pathlib import Path


def add_edge_probing(commands):
    from keras_plm.cli.run import add_data_flags, add_import_flag

    text = "find the layers of a frozen encoder that know parts of speech, names, roles and others"
    parser = commands.add_parser("edge-probing", help=text, description=text)
    add_import_flag(parser)
    parser.add_argument(
        "--encoder", required=True, metavar="DIR", help="read the encoder of this folder or name"
    )
    parser.add_argument(
        "--tasks", default="", metavar="LIST",
        help="probe these tasks, separated by commas: part_of_speech, dependencies, entities, "
        "roles, coreference (default all whose files exist)",
    )  # fmt: skip
    add_data_flags(parser)
    numbers = (
        ("seeds", 1, "run N seeds (default 1)"),
        ("train-limit", 4_000, "train on the first N sentences (default 4000; 0 for all)"),
        ("epochs", 5, "train N epochs (default 5)"),
    )
    for name, default, meaning in numbers:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=meaning)
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, metavar="R",
        help="train the probes with this learning rate (default 0.001)",
    )  # fmt: skip
    parser.add_argument(
        "--random", action="store_true", help="also probe the randomly initialised encoder"
    )
    parser.add_argument(
        "--results", default="edge_probing.json", metavar="FILE",
        help="add the results to this file, and the counts of test examples to NAME.npz next to "
        "it; a rerun reads finished ones (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--plot", metavar="FILE", help="draw the results as a PNG or SVG file")
    parser.set_defaults(run=run_edge_probing)


def run_edge_probing(flags):
    import keras_plm
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.report.edge_probes import (
        LEGEND,
        read_counts,
        read_records,
        table_of,
        write,
    )
    from keras_plm.files.writing import replacing

    _method(flags)  # raises for bad settings before any work
    tasks = _tasks(flags)
    for argument in ("results", "plot"):
        path = getattr(flags, argument)
        if path and not Path(path).parent.is_dir():
            raise ValueError(f"`--{argument}` must be in an existing folder. Received: {path!r}")
        if path and Path(path).is_dir():
            raise ValueError(f"`--{argument}` must be a file. Received: the folder {path!r}")
    if Path(flags.results).suffix != ".json":  # the counts are in a file of the same stem
        raise ValueError(f"`--results` must be a .json file. Received: {flags.results!r}")
    if flags.plot and Path(flags.plot).suffix not in (".png", ".svg"):
        raise ValueError(f"`--plot` must be a PNG or SVG file. Received: {flags.plot!r}")
    path = Path(flags.results)
    kept = read_records(path) if path.exists() else []
    counts = read_counts(path, kept)
    encoder, tokenizer = keras_plm.load(flags.encoder)
    shown = []
    for name, read in tasks.items():
        parts = {split: read(flags.data, split) for split in ("train", "dev", "test")}
        parts["train"] = parts["train"][: flags.train_limit or None]
        for seed in range(flags.seeds):
            for random in (False, True) if flags.random else (False,):
                key = _key(flags, name, parts, seed, random, encoder, tokenizer)
                record = next((r for r in kept if r.get("key") == key), None)
                who = f"{name}, seed {seed}" + ", random encoder" * random
                if record is None:
                    record, counts[key] = _run(
                        flags, who, name, parts, seed, random, encoder, tokenizer
                    )
                    record = {"key": key, **record}
                    kept = [*kept, record]
                    write(path, kept, counts)
                else:
                    console.print(f"{who}: from {path}")
                shown.append(record)
    limit = f"the first {flags.train_limit:,}" if flags.train_limit else "all"
    console.print(
        f"\nF1 in percent; training sentences: {limit}; epochs: {flags.epochs}; "
        f"seeds: {flags.seeds}\n\n{table_of(shown, counts)}\n\n{LEGEND}"
    )
    console.print(f"Results: {path}")
    if flags.plot:
        from keras_plm.experiments.report.tables import plot_text
        from keras_plm.plots import edge_probing

        with replacing(flags.plot, Path(flags.plot).suffix) as temporary:
            figure = edge_probing(shown, title=plot_text(Path(flags.encoder).name))
            figure.savefig(temporary, dpi=150)
        console.print(f"Plot: {flags.plot}")


def _tasks(flags):
    """Returns the functions that read the tasks, by name; by default those whose files exist."""
    from keras_plm.datasets.edges import EDGE_TASKS, FILES_OF
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.progress import console

    if flags.seeds < 1:
        raise ValueError(f"`--seeds` must be 1 or more. Received: {flags.seeds}")
    if flags.train_limit < 0:
        raise ValueError(f"`--train-limit` must be 0 or more. Received: {flags.train_limit}")
    if flags.tasks:
        names = [name.strip() for name in flags.tasks.split(",")]
        return {name: named(EDGE_TASKS, name, "task") for name in names}
    from keras_plm.data.task import find_file

    found = {}
    for name, read in EDGE_TASKS.items():
        try:
            find_file(flags.data, FILES_OF[name])
        except ValueError as error:
            console.print(f"{name} is skipped. {error}")
        else:
            found[name] = read
    if not found:
        raise ValueError(f"No files of the tasks in --data. Received: {flags.data!r}")
    return found


def _method(flags, seed=0):
    from keras_plm.transfer.probing.edge_probing import EdgeProbing

    return EdgeProbing(
        learning_rate=flags.learning_rate,
        epochs=flags.epochs,
        seed=seed,
        feature_gb=flags.max_cache_gb,
    )


def _key(flags, name, parts, seed, random, encoder, tokenizer):
    """Returns a text that changes with everything that a result depends on."""
    import dataclasses

    from keras_plm.files.fingerprint import fingerprint

    settings = dataclasses.asdict(_method(flags, seed)) | {"feature_gb": 0}
    edges = [[(e.text, e.edges) for e in part] for part in parts.values()]
    values = name, random, str(sorted(settings.items())), edges
    return fingerprint(encoder, tokenizer, values)[:24]


def _run(flags, who, name, parts, seed, random, encoder, tokenizer):
    """Trains the probes of a task; returns the record of the results, and counts for `write`."""
    import time

    from keras_plm.checkpoints.packages import model_name
    from keras_plm.experiments.environment import environment
    from keras_plm.experiments.progress import console
    from keras_plm.experiments.report.edge_probes import by_place
    from keras_plm.training.resume import set_seed

    if random:
        set_seed(seed)
        encoder = type(encoder).from_config(encoder.get_config())
    begun = time.monotonic()
    report = _method(flags, seed).fit(
        encoder,
        tokenizer,
        *parts.values(),
        store=flags.feature_cache,
        say=lambda line: console.print(f"{who}: {line}"),
    )
    record = {
        **report.row(name, random),
        "encoder": model_name(flags.encoder),
        "seed": seed,
        "labels": len(report.labels),
        "counts": {
            split: {"sentences": len(part), "edges": sum(len(e.edges) for e in part)}
            for split, part in parts.items()
        },
        "learning_rate": flags.learning_rate,
        "epochs": flags.epochs,
        "seconds": round(time.monotonic() - begun, 1),
        **environment(),
    }
    return record, by_place(report.counts, parts["test"])
