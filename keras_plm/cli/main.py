"""Entry point of the console command: `keras-plm --help`."""

import argparse
import importlib
import logging
import os
import sys
import warnings

import keras_plm
from keras_plm.cli import data, infer, probe, report, run, train
from keras_plm.cli.errors import add_debug, show_error
from keras_plm.files.cache import cache_folder

COMMANDS = (
    train.add_prepare,
    train.add_pretrain,
    train.add_word_vectors,
    run.add_run,
    run.add_layers,
    probe.add_edge_probing,
    infer.add_predict,
    infer.add_export,
    infer.add_generate,
    report.add_report,
    data.add_data,
)


def main(arguments=None):
    """Runs one command of `keras-plm`.

    Args:
        arguments: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code: 0; 2 after an error, 1 after a broken pipe, 130 after an interrupt. Commands
        that train on raw text return 143 after SIGTERM and 129 after SIGHUP.
    """
    parser = _program()
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        parser.parse_args(["--version"])  # before the commands load Keras
    return run_command(parser, COMMANDS, arguments)


def _program():
    parser = argparse.ArgumentParser(
        prog="keras-plm",
        description="Pre-train, fine-tune and compare language models, and extract their features.",
    )
    version = f"keras_plm {keras_plm.__version__}"
    parser.add_argument("--version", action="version", version=version, help="show the version")
    return parser


def command_parser():
    """Returns the parser of `keras-plm` with all its commands, for the documentation."""
    return add_commands(_program(), COMMANDS)


def add_commands(parser, adders):
    """Adds commands to a parser and returns it; see `run_command` for the arguments."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in adders:
        add(commands)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    add_debug(parser, commands)
    return parser


def run_command(parser, adders, arguments=None):
    """Adds commands to a parser, parses the arguments and runs the command that they name.

    Args:
        parser: An `argparse.ArgumentParser`.
        adders: Functions that each add one command to the object of `parser.add_subparsers`. The
            default `run` of a command takes the parsed flags.
        arguments: As in `main`.

    Returns:
        The exit code of `main`.
    """
    set_environment()
    debug, formatted = False, warnings.formatwarning
    warnings.formatwarning = lambda message, *about, **more: f"Warning: {message}\n"
    try:
        flags, unknown = add_commands(parser, adders).parse_known_args(arguments)
        if unknown:  # with the usage of the command
            flags.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        debug = flags.debug
        if debug:
            warnings.formatwarning = formatted
        import_modules(getattr(flags, "modules", ()))
        flags.run(flags)
    except BrokenPipeError:  # the reader of a pipe has ended, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return show_error(error, debug)
    except KeyboardInterrupt as error:
        print("\nstopped; finished work is kept", file=sys.stderr)
        return getattr(error, "exit_status", 130)
    finally:
        warnings.formatwarning = formatted
    return 0


def import_modules(names):
    """Imports modules by their names, also from the current folder; they may add tasks."""
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        importlib.import_module(name)


def set_environment():
    """Silences TensorFlow, and sets one cache of compiled steps for all runs under JAX."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Each length of a batch is traced on purpose, without a warning.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder("compiled")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


if __name__ == "__main__":
    sys.exit(main())
