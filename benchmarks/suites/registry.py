"""A suite: a published comparison as a list of runs, with its tables."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Suite:
    """A published comparison. Each scale but "small" has its own folder of results.

    Args:
        markdown: `markdown(results)`, the tables of its result files.
        figures: `figures(results)`, a dict of pictures by name.
        scales: Lists of runs by scale: "small" for two cores in hours, "long" for a GPU or a day,
            "test" for seconds.
        source: The tables and figures that it follows.
        published: Year and month of the first of them, "2018-02": orders the suites.
        jobs: `jobs(runs, workspace, **flags)` lists its `Job`s, for a suite that consists of them.
        run: `run(runs, data, results, seeds, progress, **flags)` does the missing runs of any other
            suite.
        home: The folder of results, where suites share one; by default the suite's own.
        flags: Names of the flags of the command line that it takes.
        brief: `brief(results)`, a short table: the mark `NAME.brief` of README.
    """

    markdown: typing.Callable
    figures: typing.Callable
    scales: dict
    source: str
    published: str
    jobs: typing.Callable | None = None
    run: typing.Callable | None = None
    home: str = ""
    flags: tuple = ()
    brief: typing.Callable | None = None


def no_figures(results):
    """The figures of a suite without any."""
    return {}
