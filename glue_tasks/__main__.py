"""GLUE from the command line: `python -m glue_tasks --help`."""

import argparse
import os
import sys
from pathlib import Path

from keras_plm.cli.errors import add_debug, show_error

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VARIABLE = "KERAS_PLM_DATA"


def command_parser():
    """Builds the parser of `python -m glue_tasks`."""
    parser = argparse.ArgumentParser(
        prog="python -m glue_tasks",
        description="List GLUE's files and count their rows; "
        "`submission` packs predictions for its evaluation server.",
    )
    parser.add_argument(
        "--data",
        default=os.environ.get(VARIABLE, "data"),
        metavar="DIR",
        help=f"read the data from DIR/glue (default ${VARIABLE}, otherwise data)",
    )
    parser.set_defaults(run=run_show)
    commands = parser.add_subparsers(metavar="COMMAND")
    add_submission(commands)
    add_debug(parser, commands)
    return parser


def main(arguments=None):
    """Runs the command and returns its exit code."""
    flags = command_parser().parse_args(arguments)
    try:
        flags.run(flags)
    except BrokenPipeError:  # the reader ended, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return show_error(error, flags.debug)
    return 0


def run_show(flags):
    """Prints a table: one row per task with the number of rows of each file."""
    from glue_tasks.tasks import GLUE

    if not Path(flags.data).is_dir():
        raise ValueError(
            f"No folder {flags.data}. Name the parent folder of glue/ with --data or in "
            f"{VARIABLE}. Received: data={flags.data!r}"
        )
    found = {}  # file -> number of rows; several tasks share MNLI's train file
    print(f"{'task':9}{'train':>9}{'dev':>9}{'test':>19}  metrics")
    for task in GLUE.values():
        cells = []
        for part in ("train", "test", "unlabelled"):
            file = task.files[part]
            if file not in found:
                found[file] = _count(task, flags.data, part)
            whole = part != "unlabelled" or found[file] in (None, task.rows)
            count = "missing" if found[file] is None else f"{found[file]:,}"
            cells.append(count if whole else f"{count} of {task.rows:,}")
        train, dev, test = cells
        print(f"{task.name:9}{train:>9}{dev:>9}{test:>19}  {', '.join(task.metrics)}")
    for file in (file for file, count in found.items() if count is None):
        print(f"missing: {Path(flags.data) / file}")


def _count(task, data, part):
    """Returns the number of rows of an official file, or `None` if it is missing."""
    from keras_plm.data.task import find_file

    try:
        find_file(data, task.files[part])
    except ValueError:
        return None
    return len(task.read_file(data, part))


def add_submission(commands):
    text = "pack eleven files of predictions into one zip for GLUE's evaluation server"
    parser = commands.add_parser(
        "submission",
        help=text,
        description=f"{text}. The folder of predictions has one file per task: cola.tsv, "
        "mnli.tsv, mnli_mm.tsv ... Each file has the columns index and prediction, and one row "
        "per row of the official test file, in the same order.",
    )
    parser.add_argument("--predictions", required=True, metavar="DIR", help="read DIR/<task>.tsv")
    parser.add_argument("--out", required=True, metavar="FILE.zip", help="write this file")
    parser.add_argument(
        "--fill",
        action="store_true",
        help="fill tasks without predictions with the most frequent training label "
        "(default: require all tasks)",
    )
    parser.set_defaults(run=run_submission)


def run_submission(flags):
    from glue_tasks.submission import write_submission
    from glue_tasks.tasks import GLUE

    for name in write_submission(flags.predictions, flags.out, flags.fill):
        task = GLUE[name]
        print(
            f"WARNING: no predictions of {name}: all {task.rows:,} rows of {task.submission} are "
            f"{task.majority!r}. Neither its score nor the mean of all tasks measures a model.",
            file=sys.stderr,
        )
    print(f"{flags.out}: {', '.join(task.submission for task in GLUE.values())}")


if __name__ == "__main__":
    sys.exit(main())
