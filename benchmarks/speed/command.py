"""The command `speed`: measures our throughput next to that of peers."""


def add_speed(commands):
    from benchmarks.speed.registry import suites
    from benchmarks.speed.settings import SpeedSettings
    from keras_plm.experiments.flags import add_flags

    text = "measure our speed next to that of peers, in one process"
    parser = commands.add_parser("speed", help=text, description=text)
    parser.add_argument(
        "--data", metavar="DIR",
        help="read sst/trees and books from this folder (default: generated text)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="also write a JSON file")
    parser.add_argument(
        "--suite", metavar="NAME", help=f"run all measurements of a suite: {', '.join(suites())}"
    )
    add_flags(parser, SpeedSettings)
    parser.set_defaults(run=run_speed)


def run_speed(flags):
    from benchmarks.speed.registry import suite_settings, suites
    from benchmarks.speed.run import speed
    from benchmarks.speed.settings import SpeedSettings
    from keras_plm.experiments.flags import from_flags, named

    if flags.suite is not None:
        named(suites(), flags.suite, "suite")
        for name, value in suite_settings(flags.suite).items():
            if name not in flags:
                setattr(flags, name, value)
    speed(from_flags(SpeedSettings, flags), flags.data, flags.out)
