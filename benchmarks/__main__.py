"""The comparisons of this repository: `python -m benchmarks --help`."""

import argparse
import sys


def _program():
    """Returns the parser without its commands, and the functions that add them."""
    from keras_plm.cli.main import set_environment

    set_environment()
    from benchmarks.checks.command import add_check
    from benchmarks.claims.command import add_claims
    from benchmarks.demo import add_demo
    from benchmarks.pack import add_pack
    from benchmarks.report import add_report
    from benchmarks.speed.command import add_speed
    from benchmarks.suites.command import add_encoders, add_suite

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run the comparisons of this repository. `keras-plm` has the other commands.",
    )
    adders = (add_demo, add_suite, add_encoders, add_report, add_claims, add_pack, add_speed)
    return parser, (*adders, add_check)


def command_parser():
    """Returns the parser with all commands, for the documentation."""
    from keras_plm.cli.main import add_commands

    return add_commands(*_program())


def main(arguments=None):
    """Runs one command and returns its exit code, see `keras_plm.cli.main.main`."""
    try:
        from keras_plm.cli.main import run_command

        parser, adders = _program()
    except ImportError as error:  # the backend is missing
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run_command(parser, adders, arguments)


if __name__ == "__main__":
    sys.exit(main())
