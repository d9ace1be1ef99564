"""Sections of a page of results: tables and plots of each suite, or why they are missing."""

import dataclasses
import tempfile
from pathlib import Path

from keras_plm.experiments.report import tables
from keras_plm.experiments.report.result_tables import layer_figure, markdown, of_runs
from keras_plm.experiments.results import (
    MEASURED,
    SEEDS,
    NoResult,
    ResultFolder,
    marked,
    read_results,
    suite_folder,
)
from keras_plm.files.arguments import explains

# Errors that suites raise for valid JSON files with unexpected content.
ODD = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError, OSError)
MOST_TRIED = 20  # records of a task that are tried, to find the one that a suite cannot read


@dataclasses.dataclass
class Section:
    """A suite's part of the page.

    Attributes:
        name: Name of suite and scale, unique on the page.
        title: Title of the section.
        folder: Folder of its results.
        text: Tables and notes as Markdown.
        pictures: `{name: matplotlib figure}`.
        left_out: Reason why the section or a part is missing; empty if it is complete.
        empty: Whether it is missing because nothing was run.
    """

    name: str
    title: str
    folder: Path
    text: str = ""
    pictures: dict = dataclasses.field(default_factory=dict)
    left_out: str = ""
    empty: bool = False


def section_of_runs(folder, title="Runs"):
    """Creates one section from a folder of results of single runs."""
    folder = Path(folder)
    return _fill(Section(folder.resolve().name, title, folder), _of_runs)


def sections(root, suite=None, scale=None, suites=None, titles=None):
    """Creates the sections of all suites below a folder of results, also of unreadable ones.

    Args:
        root: The folder.
        suite: Only this one: a name in `suites`, or the name of a folder.
        scale: Scale of the suite; by default all scales except "test".
        suites: `{name: suite}` of whole comparisons. A suite has `source`, `scales`, `home` (see
            `suite_folder`), and the functions `markdown` and `figures` of a folder. Other folders
            hold single runs.
        titles: `{folder: title}` of folders of single runs, in the order of the page.

    Raises:
        ValueError: If the folder is missing.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(
            "`--results` must be a folder of suites. "
            f"Received: {str(root)!r}, which is not a folder"
        )
    found, taken = [], set()
    for name, about in (suites or {}).items():
        for at in about.scales:
            kept = suite_folder(root, about.home or name, at)
            taken.add(kept.name)
            wanted = (at != "test" and (suite is None or scale is None)) or at == scale
            if suite not in (None, name) or not wanted:
                continue
            title = about.source if at == "small" else f"{about.source}; scale {at}"
            if at == "test":
                title += ": tiny models, numbers without meaning"
            section = Section(marked(name, at), title, kept)
            if kept.is_dir() or at == "small":
                found.append(_fill(section, lambda kept, about=about: _of_suite(about, kept)))
    plain = [
        path
        for path in sorted(root.glob("*/"))
        if path.name not in taken and ResultFolder(path).names(SEEDS)
    ]
    titles = titles or {}
    plain.sort(key=lambda path: (path.name not in titles, path.name))
    of_plain = [
        section_of_runs(path, titles.get(path.name, "Runs of this folder"))
        for path in plain
        if suite == path.name or (suite is None and scale is None)
    ]
    return of_plain + found


def _of_suite(suite, kept):
    """Returns text, plots and what is left out of a suite, like `_of_runs`."""
    try:
        return suite.markdown(kept), suite.figures(kept), ""
    except NoResult:
        raise
    except (ValueError, *ODD) as error:
        if explains(error):
            whole, damaged = _tasks(kept)
            if not whole or not damaged:
                raise
            results = ResultFolder(kept)
            names = [name for task in whole for name in results.names(f"{task}/*")]
            found = _only(suite, kept, names)
            if found is None:
                raise
            return *found, str(error)
        results = ResultFolder(kept)
        of_tasks = {}
        for name in results.names("*/*"):
            of_tasks.setdefault(name.split("/")[0], []).append(name)
        everything = [name for names in of_tasks.values() for name in names]

        def without(odd):
            return _only(suite, kept, [name for name in everything if name not in odd])

        # The suite cannot read a valid record. First try tasks that it cannot read by themselves.
        unread = {task for task, names in of_tasks.items() if _only(suite, kept, names) is None}
        for task in sorted(of_tasks, key=lambda task: task not in unread):
            if (found := without({*of_tasks[task]})) is None:
                continue
            # Try to leave out only one record.
            for odd in of_tasks[task][:MOST_TRIED]:
                of_task = [name for name in of_tasks[task] if name != odd]
                if _only(suite, kept, of_task) and (more := without({odd})) is not None:
                    where = results.where(odd).rstrip(",")
                    return *more, f"{where} is left out: {blame(kept, error)}"
            return *found, f"{task} is left out: {blame(kept, error)}"
        raise


def _only(suite, kept, names):
    """Returns text and plots of a suite for some results; `None` if it cannot read them."""
    with tempfile.TemporaryDirectory() as folder:
        only = Path(folder) / kept.name
        try:
            ResultFolder(kept).copy(names, only)
            return suite.markdown(only), suite.figures(only)
        except (ValueError, *ODD):
            return None


def _of_runs(kept):
    """Returns text, plots and what is left out; a damaged file leaves out only its task."""
    left_out = ""
    try:
        results = read_results(kept)
    except NoResult:
        raise
    except ValueError as error:
        whole, damaged = _tasks(kept)
        if not whole or not damaged:  # the error does not come from single tasks
            raise
        results, left_out = [r for task in whole for r in read_results(kept, task)], str(error)
    results, odd = of_runs(results)
    left_out = "; ".join(filter(None, (left_out, *odd)))
    read = sorted({r["task"] for r in results if r["method"] == "features"})
    pictures = {f"{task}_by_layer": layer_figure(results, task) for task in read}
    return markdown(results), pictures, left_out


def _tasks(kept):
    """Returns `(whole, damaged)`: the tasks with readable results, and the others."""
    whole, damaged = [], []
    names = ResultFolder(kept).names("*/*")
    for task in dict.fromkeys(name.split("/")[0] for name in names):
        try:
            read_results(kept, task)
        except NoResult:
            continue
        except ValueError:
            damaged.append(task)
        else:
            whole.append(task)
    return whole, damaged


def _fill(section, read):
    """Fills a section from its files, or states why it is missing."""
    try:
        text, pictures, left_out = read(section.folder)
        tables.blocks(text)
        section.text, section.pictures, section.left_out = text, pictures, left_out
    except NoResult as error:
        section.left_out, section.empty = str(error), True
    except (ValueError, *ODD) as error:
        section.left_out = str(error) if explains(error) else blame(section.folder, error)
    return section


def blame(kept, error):
    """Returns a message about the file of a folder that a suite cannot read."""
    results = ResultFolder(kept)
    for name in results.names():
        try:
            found = results.record(name) if ".seed" in name else results.json(name)
            if not hasattr(found, "keys"):
                raise ValueError(
                    f"{results.where(name)} is not a result file: move it elsewhere. "
                    f"Received: a {type(found).__name__}"
                )
            missing = [key for key in MEASURED if ".seed" in name and key not in found]
            if missing:
                raise ValueError(
                    f"{results.where(name)} is not the result of a run: move it elsewhere. "
                    f"Received: an object without {', '.join(missing)}"
                )
        except (ValueError, OSError) as named:
            return str(named)
    return (
        f"A file below {kept} has unexpected content: run the suite again into another folder. "
        f"Received: content that raises a {type(error).__name__}"
    )


def reason(root, files, error):
    """Returns the reason why files next to the suites cannot be shown."""
    if explains(error):
        return str(error)
    return (
        f"{root / files} has unexpected content: move it elsewhere. "
        f"Received: content that raises a {type(error).__name__}"
    )
