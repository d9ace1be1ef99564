"""The class `Suite`: a published comparison as a list of runs, with its tables."""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Suite:
    """A published comparison. Each scale but "small" has its own folder of results.

    Args:
        markdown: `markdown(results)` returns the tables of a folder of results.
        figures: `figures(results)` returns a dict of pictures by name.
        scales: `{scale: runs}`. "small" takes hours on two cores, "long" a GPU or a day, "test"
            seconds.
        source: Papers, tables and figures that the suite follows.
        published: Year and month of the earliest one, such as "2018-02". Suites are sorted by it.
        jobs: `jobs(runs, workspace, **flags)` lists the `Job`s of a suite of separate runs.
        run: `run(runs, data, results, seeds, progress, **flags)` does the missing runs of a suite
            without `jobs`.
        home: Folder of results that several suites share; by default the suite has its own.
        flags: Names of the command-line flags that the suite takes.
        brief: `brief(results)` returns the short table for the mark `NAME.brief` of README.
        one_encoder: Whether a row of the tables is of one encoder, so that another encoder needs
            a folder of results of its own.
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
    one_encoder: bool = False


def no_figures(results):
    """Returns no figures, for suites without any."""
    return {}
