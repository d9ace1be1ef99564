"""The harness from the command line: `python -m benchmarks --help`."""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Pre-trains encoders, fine-tunes them, reads their features, keeps the numbers.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_pretrain(commands)
    flags = parser.parse_args(arguments)
    try:
        flags.run(flags)
    except (ValueError, ImportError) as error:
        # One sentence: the message of the library says the rule, the fix and what was received.
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; what was finished is kept", file=sys.stderr)
        return 130
    return 0


def add_pretrain(commands):
    from benchmarks.pretrain import Pretraining
    from benchmarks.settings import add_flags

    parser = commands.add_parser("pretrain", help="learn an encoder from raw text")
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE", help="text files")
    parser.add_argument("--valid", metavar="FILE", help="held-out text, measured at the end")
    parser.add_argument("--out", required=True, metavar="DIR", help="the encoder's folder")
    parser.add_argument("--resume", action="store_true", help="go on where --out stopped")
    add_flags(parser, Pretraining)
    parser.set_defaults(run=run_pretrain)


def run_pretrain(flags):
    from benchmarks.pretrain import Pretraining, pretrain
    from benchmarks.progress import pretraining_progress
    from benchmarks.settings import from_flags

    settings = from_flags(Pretraining, flags)
    with pretraining_progress(settings) as progress:
        pretrain(settings, flags.corpus, flags.out, flags.valid, flags.resume, progress)


if __name__ == "__main__":
    sys.exit(main())
