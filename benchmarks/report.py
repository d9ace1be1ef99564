"""The page of all results: suites, claims, speed and our encoders next to single runs."""

from pathlib import Path

from benchmarks.claims import verdicts
from benchmarks.speed.registry import suites
from benchmarks.speed.tables import speed_tables
from benchmarks.suites import SUITES, compare_encoders
from keras_plm.experiments.report import sections as of_results
from keras_plm.experiments.report.page import Page, looks_of

CHECKS = {
    "check_devices": "Several devices next to one",
    "check_scaling": "Many devices, by formulas",
}


def sections(root, suite=None, scale=None):
    """The suites below a folder of results, see `report.sections.sections`."""
    return of_results.sections(root, suite, scale, SUITES)


def claims_of(root):
    """The verdicts of `benchmarks.claims`; a string where they fail, `None` where none was run."""
    try:
        found = verdicts(root)
        return found if any(row["verdict"] != "not run" for row in found) else None
    except (ValueError, OSError) as error:
        return str(error)


def more_of(root):
    """`more` and `more_left_out` of a `Page`: the encoders' table and those of speed."""
    root, more, left_out = Path(root), {}, {}
    try:
        more["encoders", "Our own encoders"] = compare_encoders.markdown(root)
    except (ValueError, KeyError, TypeError) as error:
        if (root / compare_encoders.FILE).is_file():
            left_out["encoders"] = of_results.reason(root, compare_encoders.FILE, error)
    try:
        titles = {suite.results: suite.title for suite in suites().values()} | CHECKS
        for mark, text in speed_tables(root).items():
            more[mark, titles[mark]] = text
    except (ValueError, KeyError, TypeError) as error:
        left_out["speed"] = of_results.reason(root, "speed*.json", error)
    return more, left_out


def page_of(root, suite=None, scale=None, attention=None):
    """The page of a folder of results.

    Args:
        root, suite, scale: As of `sections`; without `suite`, of all, with claims and speed.
        attention: `(folder of an encoder, text)`, or `None`.

    Raises:
        ValueError: If nothing can be shown, or the encoder or its text cannot.
    """
    looked = None if attention is None else looks_of(*attention)
    if suite is not None:
        return Page(root, sections(root, suite, scale), None, looked)
    return Page(root, sections(root, suite, scale), claims_of(root), looked, *more_of(root))
