"""The command `report`: tables and pages of suites, claims, speed, our encoders and single runs."""

import functools
from pathlib import Path

from benchmarks import RESULTS, pages
from benchmarks.claims import judge, verdicts
from benchmarks.claims.command import update_docs
from benchmarks.speed.registry import suites
from benchmarks.speed.tables import speed_tables
from benchmarks.suites import SUITES, compare_encoders, folder
from keras_plm.cli.report import check_page_flags, print_odd, print_strays, write_page, write_plots
from keras_plm.experiments.flags import named
from keras_plm.experiments.progress import progress_bar, silence_ahead
from keras_plm.experiments.recommend import Choice
from keras_plm.experiments.report import sections as of_results
from keras_plm.experiments.report.page import Page, looks_of
from keras_plm.experiments.report.result_tables import layer_figure, markdown, of_runs
from keras_plm.experiments.report.tables import blocks
from keras_plm.experiments.results import ResultFolder, marked, read_results

CHECKS = {
    "check_fine_tuning": "Fine-tuning next to transformers",
    "check_devices": "Several devices next to one",
    "check_padding": "Padding of training batches",
    "check_scaling": "Many devices, by formulas",
    "check_scan": "Blocks in a loop and in a scan",
}


RUNS = {
    "first": "Features or fine-tuning: choices of layers, each single layer, readers",
    "words": "Word vectors under the same tasks",
    "roles": "Semantic roles with all training examples",
    "roles_depth": "Semantic roles with eight layers of LSTM",
    "local": "Your own runs",
}


def sections(root, suite=None, scale=None):
    """Returns the suites below a folder of results, see `report.sections.sections`."""
    return of_results.sections(root, suite, scale, SUITES, RUNS)


def claims_of(root):
    """Returns the verdicts of `benchmarks.claims`.

    Returns the text of the error if they fail, and `None` if no claim was run.
    """
    try:
        found = verdicts(root)
        return found if any(row["verdict"] != "not run" for row in found) else None
    except (ValueError, OSError) as error:
        return str(error)
    except of_results.ODD as error:
        return of_results.reason(Path(root), "*", error)


def checked(text):
    """Returns a table in Markdown; raises a ValueError if a row has more cells than its header."""
    blocks(text)
    return text


def more_of(root):
    """Returns `more` and `more_left_out` of a `Page`: the tables of encoders and speed."""
    root, more, left_out = Path(root), {}, {}
    try:
        more["encoders", "Our own encoders"] = checked(compare_encoders.markdown(root))
    except (ValueError, *of_results.ODD) as error:
        if (root / compare_encoders.FILE).is_file():
            left_out["encoders"] = of_results.reason(root, compare_encoders.FILE, error)
    try:
        titles = {suite.results: suite.title for suite in suites().values()} | CHECKS
        for mark, text in speed_tables(root).items():
            more[mark, titles[mark]] = checked(text)
    except (ValueError, *of_results.ODD) as error:
        left_out["speed"] = of_results.reason(root, "speed*.json", error)
    return more, left_out


def page_of(root, suite=None, scale=None, attention=None):
    """Returns the page of a folder of results.

    Args:
        root, suite, scale: See `sections`. Without `suite` the page shows all suites, claims and
            speed.
        attention: `(folder of an encoder, text)`, or `None`.

    Raises:
        ValueError: If there is nothing to show, or the encoder or the text is invalid.
    """
    looked = None if attention is None else looks_of(*attention)
    if suite is not None:
        return Page(root, sections(root, suite, scale), None, looked)
    return Page(root, sections(root, suite, scale), claims_of(root), looked, *more_of(root))


def add_report(commands):
    from keras_plm.cli.report import add_page_flags

    text = "make the tables and plots of one suite, or one page with all suites, claims and speed"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument(
        "--suite", metavar="NAME", help="show this suite (default first; on a page, all)"
    )
    parser.add_argument("--scale", metavar="NAME", help="show this scale of the suite")
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="read the results of all suites from this folder (default benchmarks/results)",
    )  # fmt: skip
    parser.add_argument(
        "--docs", action="store_true",
        help="update the tables in docs/results: all of them, or those of --suite",
    )  # fmt: skip
    add_page_flags(parser)
    parser.set_defaults(run=run_report)


def run_report(flags):
    root, tables, page = Path(flags.results), {}, check_page_flags(flags)
    if flags.docs and page:
        raise ValueError("`--docs` takes no page: omit --html, --markdown and --tables")
    if flags.docs and flags.suite is None:
        return _update_all(flags)
    if page and flags.suite is None:
        return _run_page(flags)
    there = [path.name for path in sorted(root.glob("[!.]*/"))]
    if flags.suite is None and there and "first" not in there:
        raise ValueError(
            f"Set --suite to the results to show, one of: {', '.join(there)}. Received: no --suite"
        )
    flags.suite = flags.suite or "first"
    if flags.scale is not None:
        if flags.suite not in SUITES:
            raise ValueError(
                f"Only a whole --suite has scales: {', '.join(SUITES)}. "
                f"Received: --suite {flags.suite} --scale {flags.scale}"
            )
        named(SUITES[flags.suite].scales, flags.scale, "scale")
    kept = folder(root, flags.suite, flags.scale)
    shown = dict.fromkeys((*pages.RUNS.values(), *SUITES))
    if not kept.is_dir():
        named(shown | dict.fromkeys(there), flags.suite, "suite")
    if flags.docs:
        named(shown, flags.suite, "suite of docs/results")
    if page:
        return _run_page(flags)
    silence_ahead(f"Reading and comparing the results in {kept}; this can take minutes")
    print_strays(kept)
    if flags.suite in SUITES:
        try:
            tables[marked(flags.suite, flags.scale)] = SUITES[flags.suite].markdown(kept)
        except of_results.ODD as error:
            raise ValueError(of_results.blame(kept, error)) from error
    else:
        results, odd = of_runs(read_results(kept))
        print_odd(odd)
        mark = next((mark for mark, name in pages.RUNS.items() if name == flags.suite), "")
        tables[mark] = markdown(results)
    if flags.scale == "test":
        print("Scale test: the models are tiny, so their numbers mean nothing.\n")
    for mark, table in tables.items():
        print(pages.update(mark, table) if flags.docs else table)
    if flags.docs and (brief := f"{flags.suite}{pages.BRIEF}") in pages.marks():
        print(pages.update(brief, pages.table(brief, root)))
    if flags.plots:
        if flags.suite in SUITES:
            plots = SUITES[flags.suite].figures(kept)
        else:
            read = sorted({r["task"] for r in results if r["method"] == "features"})
            choice_of = functools.partial(Choice.of, folder=ResultFolder(kept))
            plots = {task: layer_figure(results, task, choice_of) for task in read}
        write_plots(plots, flags.plots, flags.plot_type)


def _update_all(flags):
    """Updates the tables of all pages and prints a line for each."""
    if flags.scale is not None or flags.plots:
        raise ValueError(
            "`--docs` takes --scale and --plots only with a --suite. Received: no --suite"
        )
    marks = pages.marks()
    silence_ahead(f"Making {len(marks)} tables; this can take minutes")
    with progress_bar("tables", len(marks), unit=True) as advance:
        for mark in marks:
            if mark == "claims":
                advance(update_docs(judge.complete(verdicts(flags.results)), flags.results))
            else:
                advance(pages.update(mark, pages.table(mark, flags.results)))


def _run_page(flags):
    """Writes the page of a folder of results."""
    silence_ahead("Reading and comparing all results and drawing plots; this takes minutes")
    attention = None if flags.attention is None else (flags.attention, flags.text)
    write_page(page_of(flags.results, flags.suite, flags.scale, attention), flags)
