"""The commands `pack` and `unpack`: pack the results of a suite into two files, and unpack them."""

from pathlib import Path

from benchmarks import RESULTS


def add_pack(commands):
    texts = {
        "pack": "pack the result files of each suite into results.jsonl and examples.zip",
        "unpack": "unpack packed results into one file per result",
    }
    for name, text in texts.items():
        parser = commands.add_parser(name, help=text, description=text)
        parser.add_argument(
            "suites",
            nargs="*",
            metavar="SUITE",
            help=f"{name} the results of these suites (default all)",
        )
        parser.add_argument(
            "--results",
            default=RESULTS,
            metavar="DIR",
            help="read suites below this folder (default benchmarks/results)",
        )
        parser.set_defaults(run=run_pack)


def run_pack(flags):
    from benchmarks.suites import SUITES, folder
    from keras_plm.experiments.results import ResultFolder, folders_below

    root = Path(flags.results)
    kept = [
        ResultFolder(root / name if (root / name).is_dir() else folder(root, name))
        for name in flags.suites
    ]
    for name, of_suite in zip(flags.suites, kept, strict=True):
        if not of_suite.path.is_dir():
            raise ValueError(
                f"A suite is a folder below {root}, or one of {', '.join(SUITES)}. "
                f"Received: {name!r}"
            )
    kept = kept or folders_below(root)
    if not kept:
        raise ValueError(f"`--results` must hold results. Received: {flags.results!r}")
    for of_suite in kept:
        if flags.command == "pack":
            records, examples = of_suite.pack()
            print(f"{of_suite.path}: {records:,} records and {examples:,} files of examples packed")
        else:
            print(f"{of_suite.path}: {of_suite.unpack():,} records unpacked")
