"""Makes the generated tables of the documentation and writes them into their pages.

A table stands between the lines `<!-- NAME -->` and `<!-- end of NAME -->`. NAME is its mark.
"""

import functools
import re
from pathlib import Path

from benchmarks import README, RESULTS, ROOT, model_cards
from benchmarks.checks import devices, fine_tuning, padding, scaling, scan
from benchmarks.claims import judge, verdicts
from benchmarks.speed.registry import suites as speed_suites
from benchmarks.speed.tables import speed_tables
from benchmarks.suites import SUITES, compare_encoders, folder
from keras_plm.experiments.flags import named
from keras_plm.experiments.report import result_tables
from keras_plm.experiments.report.edge_probes import read_counts, read_records, table_of
from keras_plm.experiments.results import marked, read_results
from keras_plm.files.opening import read_text
from keras_plm.files.writing import write_text

PAGES = ROOT / "docs" / "results"
BRIEF = ".brief"  # suffix of the marks in README
# {mark of single runs: their folder}
RUNS = {"results": "first", "words": "words", "roles": "roles", "roles_depth": "roles_depth"}
EDGE_PROBING = ("minilm", "bert_mini")  # stems of result files of `keras-plm edge-probing`


def marks():
    """Returns `{mark: path of its page}`, for `docs/results/*.md` and the marks of README.

    Only marks `NAME.brief` of README count.

    Raises:
        ValueError: If a mark occurs twice or has no end.
    """
    found = {}
    for path in (*sorted(PAGES.glob("*.md")), README):
        text = read_text(path)
        for mark in re.findall(r"^<!-- ([\w.]+) -->$", text, re.MULTILINE):
            if path == README and not mark.endswith(BRIEF):
                continue
            if mark in found:
                raise ValueError(
                    "Each mark occurs once, on one page: remove one of the two. "
                    f"Received: {mark} in {found[mark]} and in {path}"
                )
            if not _between(mark).search(text):
                raise ValueError(
                    f"The line '<!-- {mark} -->' needs a line '<!-- end of {mark} -->' below it. "
                    f"Received: {path} without one"
                )
            found[mark] = path
    return found


def table(mark, results=RESULTS):
    """Returns the Markdown table of a mark.

    Args:
        mark: Name of the mark.
        results: Folder with the results of all suites.

    Raises:
        ValueError: If the mark is unknown, or its results are missing or damaged.
    """
    return named(_tables(), mark, "mark")(Path(results))


def into_page(mark, text):
    """Writes a table between the lines of its mark.

    Returns:
        True if the page changed.

    Raises:
        ValueError: If no page has the mark.
    """
    path = named(marks(), mark, "mark")
    old = read_text(path)
    new = _between(mark).sub(lambda found: found[1] + text + found[3], old)
    if new != old:
        write_text(path, new)
    return new != old


def update(mark, text):
    """Calls `into_page`; returns a line of text that states whether the page changed."""
    changed = into_page(mark, text)
    page = marks()[mark].relative_to(ROOT)
    return f"{page}, {mark}: {'a new table' if changed else 'up to date'}"


def shown(mark):
    """Returns the Markdown that the page of a mark contains."""
    return _between(mark).search(read_text(named(marks(), mark, "mark")))[2]


def _between(mark):
    name = re.escape(mark)
    return re.compile(rf"(^<!-- {name} -->\n)(.*?)(^<!-- end of {name} -->$)", re.DOTALL | re.M)


@functools.cache
def _tables():
    """Returns `{mark: function}`; each function takes the folder of all results."""
    found = {mark: functools.partial(_of_runs, name) for mark, name in RUNS.items()}
    for name, suite in SUITES.items():
        for scale in (scale for scale in suite.scales if scale != "test"):
            make = functools.partial(_of_suite, name, scale, suite.markdown)
            found[marked(name, scale)] = make
        if suite.brief:
            found[name + BRIEF] = functools.partial(_of_suite, name, None, suite.brief)
    stems = [suite.results for suite in speed_suites().values()]
    files = (Path(check.FILE).stem for check in (scaling, padding, scan, fine_tuning))
    for stem in (*stems, devices.RESULTS, *files):
        found[stem] = functools.partial(_of_speed, stem)
    for stem in EDGE_PROBING:
        found[f"edge_probing_{stem}"] = functools.partial(_of_edges, stem)
    more = {"claims": _of_claims, "encoders": compare_encoders.markdown}
    return found | more | {"model_cards": lambda results: model_cards.markdown()}


def _of_runs(name, results):
    found, odd = result_tables.of_runs(read_results(folder(results, name)))
    if odd:
        raise ValueError(odd[0])
    return result_tables.markdown(found)


def _of_suite(name, scale, make, results):
    return make(folder(results, name, scale))


def _of_edges(stem, results):
    path = results / "edge_probing" / f"{stem}.json"
    records = read_records(path)
    return table_of(records, read_counts(path, records)) + "\n"


def _of_speed(stem, results):
    return named(speed_tables(results), stem, "result file")


def _of_claims(results):
    return judge.markdown(judge.complete(verdicts(results)), brief=True)
