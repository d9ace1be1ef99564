"""Errors on the command line: one line, with `--debug` also the traceback."""

import argparse
import sys
import traceback

# The library's errors. Their messages state the rule, the fix and the received value.
EXPLAINED = (ValueError, TypeError, OSError, ImportError, FloatingPointError, MemoryError)


def add_debug(parser, commands):
    """Adds `--debug` to a parser and to each of its commands.

    Args:
        parser: An `argparse.ArgumentParser`.
        commands: The result of its `add_subparsers`, after all commands are added.
    """
    add_debug_flag(parser, default=False)
    for command in dict.fromkeys(commands.choices.values()):
        add_debug_flag(command)


def add_debug_flag(parser, default=argparse.SUPPRESS):
    """Adds `--debug` to one parser; without `default` the outer parser's value applies."""
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def show_error(error, debug):
    """Prints the message of an error, and its type if it is not `EXPLAINED` or has no message.

    Args:
        error: The exception.
        debug: Whether to print its traceback as well.

    Returns:
        The exit code, 2.
    """
    if debug:
        traceback.print_exception(error)
    text = str(error)
    if not text or not isinstance(error, EXPLAINED):
        text = f"{type(error).__name__}: {error}"
        text += "" if debug else " (--debug shows the traceback)"
    print(f"error: {text}", file=sys.stderr)
    return 2
