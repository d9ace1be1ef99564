"""Registry of speed measurements: `@measurement` adds one, `--work` names it.

A measurement is one function in one file of `benchmarks/speed/measurements/`:

    @measurement(suite=Suite("my_suite", "Speed: My subject"), unit="sentences")
    def my_work(settings, inputs):
        "A line that describes the work."
        texts = inputs.sentences[: settings.sentences]
        return Comparison({"peer": peer, "keras_plm": ours}, len(texts), {"keras_plm": ("peer",)})

`python -m benchmarks speed --work my_work` runs it, and `--suite my_suite` runs its whole suite.
"""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Suite:
    """Measurements that share result files, a table and settings.

    Args:
        name: Name for `--suite`.
        title: Heading of the table on the page of results.
        settings: `{name: value}` of `SpeedSettings`, the defaults for `--suite`.
        results: Stem of the result files and mark of the table; by default "speed_NAME".
    """

    name: str
    title: str
    settings: dict = dataclasses.field(default_factory=dict, hash=False)
    results: str = ""

    def __post_init__(self):
        object.__setattr__(self, "results", self.results or f"speed_{self.name}")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A function that compares implementations of the same work, and how to run it.

    Args:
        name: Name for `--work`.
        description: The work, in one line.
        compare: `compare(settings, inputs, **arguments)` returns a `Comparison`.
        suite: A `Suite`.
        unit: Unit of the work. Speeds are units per second.
        cases: `cases(settings)` returns `{name: arguments}`, one entry for each `Comparison`.
        peak_memory: Whether to measure peak memory, in a separate process per implementation.
        uses_sentences: Whether result files record a digest of `inputs.sentences`.
        check: `check()` raises an error if this machine cannot run the measurement.
        matrix_rates: `matrix_rates()` returns FLOP/s by precision, for a `Comparison` with `flops`.
    """

    name: str
    description: str
    compare: typing.Callable
    suite: Suite
    unit: str
    cases: typing.Callable
    peak_memory: bool = False
    uses_sentences: bool = False
    check: typing.Callable | None = None
    matrix_rates: typing.Callable | None = None


MEASUREMENTS = {}  # {name: Measurement}


def measurement(*, suite, unit, cases=None, **options):
    """Registers the decorated function under its name.

    The first line of the docstring is the description. Without `cases` there is one case, with the
    name of the function and no arguments. See `Measurement` for the other options.

    Raises:
        ValueError: If a measurement of this name exists.
    """

    def register(compare):
        name = compare.__name__
        if name in MEASUREMENTS:
            raise ValueError(f"Names of measurements must be unique. Received: {name!r} twice")
        description = compare.__doc__.splitlines()[0].rstrip(".")
        one_case = {name: {}}
        MEASUREMENTS[name] = Measurement(
            name, description, compare, suite, unit, cases or (lambda settings: one_case), **options
        )
        return compare

    return register


def suites():
    """Returns `{name: Suite}` of all measurements, sorted by the names of their result files."""
    found = {m.suite.name: m.suite for m in MEASUREMENTS.values()}
    return dict(sorted(found.items(), key=lambda item: item[1].results))


def suite_settings(name):
    """Returns the settings of `--suite NAME`: its measurements and its own defaults."""
    names = [m.name for m in MEASUREMENTS.values() if m.suite.name == name]
    return {"work": ",".join(names), **suites()[name].settings}


def chosen(settings):
    """Returns the measurements in `settings.work`, in that order."""
    return [MEASUREMENTS[name] for name in settings.work.split(",")]


def cases(settings):
    """Returns `{name of a case: (measurement, arguments)}` of the chosen measurements."""
    return {
        case: (m, arguments)
        for m in chosen(settings)
        for case, arguments in m.cases(settings).items()
    }
