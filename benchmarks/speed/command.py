"""The command `speed`: our throughput next to that of peers."""


def add_speed(commands):
    from benchmarks.speed.run import SUITES, Speed
    from keras_plm.experiments.flags import add_flags

    text = "measure our throughput next to that of peers, in one run"
    parser = commands.add_parser("speed", help=text, description=text)
    parser.add_argument(
        "--data", metavar="DIR", help="measure on the real text of this data folder"
    )
    parser.add_argument("--out", metavar="FILE", help="write a JSON file, too")
    parser.add_argument(
        "--suite", metavar="NAME", help=f"start from the settings of one of {', '.join(SUITES)}"
    )
    add_flags(parser, Speed)
    parser.set_defaults(run=run_speed)


def run_speed(flags):
    from benchmarks.speed.run import SUITES, Speed, speed
    from keras_plm.experiments.flags import from_flags, named

    of_suite = {} if flags.suite is None else named(SUITES, flags.suite, "suite")
    for name, value in of_suite.items():
        if name not in flags:
            setattr(flags, name, value)
    sentences = None
    if flags.data is not None:
        from keras_plm.datasets.tasks import TASKS

        sentences = [example.text for example in TASKS["sst5"].read(flags.data, "train")]
    speed(from_flags(Speed, flags), sentences, flags.out, data=flags.data)
