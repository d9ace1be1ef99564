"""Machines and costs of runs: tables and plots of any folder of results."""

import json
import subprocess
from pathlib import Path

import numpy as np

from keras_plm.experiments.config import SETTINGS, summary
from keras_plm.experiments.environment import clone
from keras_plm.experiments.report.result_tables import ORDER, describe
from keras_plm.experiments.report.tables import Table, cell, plot_text
from keras_plm.experiments.results import MEASURED, ResultFolder
from keras_plm.files.json_files import Whole, check_shape, read_json
from keras_plm.plots import score_by_cost

GROUPS = {
    "scratch": "random weights, all trained",
    "randomly_initialised": "random weights, frozen",
    "features": "pre-trained, frozen",
    "fine_tune": "pre-trained, fine-tuned",
}
# Each key of a result: `(header of its column, divisor)`.
COSTS = {
    "parameters": ("M weights", 1e6),
    "learned_weights": ("M trained weights", 1e6),
    "flops": ("TFLOP", 1e12),
    "encoder_passes": ("encoder passes", 1),
    "feature_bytes": ("features on disk, MB", 1e6),
    "peak_mb": ("peak memory, MB", 1),
}


WHERE = tuple(key for key in MEASURED if key != "versions")


# Types of the keys for the machine and the duration of a measurement.
PLACE = {
    "backend": str, "device": str, "commit": (str, None), "versions?": ({str: (str, None)}, None),
    "seconds?": (float, None), "trials?": (list, None), "seed?": (Whole(), None),
}  # fmt: skip
# Types of the keys for the costs of a run.
PRICED = PLACE | {
    "task": str, "encoder": str, "method": str, "score": (float, None), "seconds": float,
    "run?": (str, None), "name?": (str, None), "settings?": (dict, None), "metrics?": (dict, None),
    "counts?": ({"train?": Whole()}, None), **{f"{key}?": (float, None) for key in COSTS},
}  # fmt: skip


def measured(folder):
    """Returns the objects of all JSON files in a folder that state where they were measured.

    `strays` returns the other files.
    """
    return [record for _, record in _files(folder) if _misfit(record, PLACE) is None]


def priced(folder):
    """Returns those of `measured` that are results of runs, with their costs.

    Returns:
        `(records, {path: reason for leaving it out})`.
    """
    kept, found, odd = ResultFolder(folder), [], {}
    for name, record in _files(folder):
        if isinstance(record, dict) and {"score", "method", *WHERE} <= record.keys():
            why = _misfit(record, PRICED)
            if why is None:
                found.append(record)
            else:
                odd[kept.file(name)] = f"its costs are left out: {why}"
    return found, odd


def strays(folder):
    """Returns `{path: reason for skipping it}` of JSON files that the harness did not write.

    Damaged files and those of seeds are left out: the readers of their suite report them.
    """
    kept, found = ResultFolder(folder), {}
    for name, record in _files(folder):
        if isinstance(record, dict) and set(WHERE) <= record.keys():
            if (why := _misfit(record, PLACE)) is not None:
                found[kept.file(name)] = f"skipped: {why}"
        elif ".seed" not in name:
            found[kept.file(name)] = f"skipped: files of the harness must state {', '.join(WHERE)}"
    return found


def _files(folder):
    kept = ResultFolder(folder)
    for name in kept.names():
        try:
            yield name, kept.json(name)
        except (ValueError, OSError):
            continue


def _misfit(record, shape):
    """Returns why an object of JSON does not have a shape, or `None`."""
    try:
        check_shape(record, shape, "another kind of file")
        if "method" in shape and record["method"] in GROUPS:
            settings = record.get("settings") or {}
            if settings.get("method") == record["method"]:
                check_shape(settings, SETTINGS, "not the settings of a run")
    except ValueError as error:
        return str(error)
    return None


def failed(folder):
    """Returns a line for each failed run below a folder, with its recorded error."""
    found = []
    for path in sorted(Path(folder).rglob("*.failed")):
        try:
            error = read_json(path, {"error": str}, nan=True)["error"]
        except (ValueError, OSError):
            error = "its record is damaged"
        found.append(f"{path.relative_to(folder.parent)}: {error}")
    return found


def dates():
    """Returns `{commit: day}` of the repository's history; empty without a repository."""
    if (root := clone()) is None:
        return {}
    command = ["git", "-C", str(root), "log", "--all", "--format=%H %cs"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(line.split() for line in lines.splitlines())


def day_of(commit, days):
    """Returns the day of an abbreviated commit, or an empty string."""
    commit = (commit or "").removesuffix("+")
    return next((day for name, day in days.items() if commit and name.startswith(commit)), "")


def where(folders):
    """Returns a table of machines: a row for each folder, task, device and set of versions.

    Args:
        folders: `{name: folder}`.
    """
    days, rows = dates(), {}
    for name, folder in folders.items():
        for record in measured(folder):
            versions = sorted((record.get("versions") or {}).items())
            versions = ", ".join(f"{package} {version}" for package, version in versions)
            task = record.get("task") or record.get("name") or record.get("encoder") or ""
            key = name, str(task), record["backend"], record["device"], versions
            rows.setdefault(key, []).append(record)
    table = []
    for (name, task, backend, device, versions), found in rows.items():
        commits = sorted({str(record["commit"]) for record in found if record["commit"]})
        made = sorted(filter(None, {day_of(commit, days) for commit in commits}))
        seconds = sum(record.get("seconds") or 0 for record in found)
        searched = [r.get("trials") or () for r in found if not r.get("seed")]  # others copy them
        fits = sum(map(len, searched))
        table.append({
            "results": cell(name),
            "task": cell(task),
            "files": f"{len(found):,}",
            "seeds": str(len({record.get("seed") for record in found} - {None}) or ""),
            "fits in searches": f"{fits:,}" if fits else "",
            "hours": f"{seconds / 3600:.2f}" if seconds else "",
            "backend": cell(backend),
            "device": cell(device),
            "days of the commits": " to ".join(sorted({made[0], made[-1]})) if made else "",
            "commits": cell(" ".join(commits)),
            "versions": cell(versions),
        })  # fmt: skip
    return table and Table.of(table, ("files", "seeds", "fits in searches", "hours"))


def runs_of(results):
    """Groups results by run, in the order of a table: a list of lists of seeds.

    Results without costs are left out; `priced` returns the reasons.
    """
    found = {}
    for result in results:
        if _misfit(result, PRICED) is not None:
            continue
        run = result.get("run") or result.get("name") or json.dumps(result.get("settings"))
        key = result["task"], result["encoder"], result["method"], run
        found.setdefault(key, []).append(result)

    def place(item):
        task, encoder, method, run = item[0]
        return task, encoder, ORDER.index(method) if method in ORDER else len(ORDER), run

    return [of_run for _, of_run in sorted(found.items(), key=place)]


def name_of(result):
    """Describes a run in words."""
    settings = result.get("settings") or {}
    if result["method"] in GROUPS and settings.get("method") == result["method"]:
        return describe(result)
    return str(result.get("name") or result.get("run") or result["method"]).replace("_", " ")


def costs(results):
    """Returns a table of runs: score and costs, search included; `None` without results."""
    table, numeric = [], ["runs", "score", "fits of the search", "seconds"]
    known = {key for result in results for key in result}
    extra = {key: head for key, (head, _) in COSTS.items() if key in known}
    for of_run in runs_of(results):
        first = of_run[0]
        seconds = [result["seconds"] for result in of_run]
        digits = 0 if np.mean(seconds) >= 10 else 1
        spread = f" ± {np.std(seconds, ddof=1):,.{digits}f}" if len(seconds) > 1 else ""
        train = (first.get("counts") or {}).get("train")
        trials = {len(result.get("trials") or ()) for result in of_run}
        row = {
            "run": cell(name_of(first)),
            "task": cell(first["task"]),
            "encoder": cell(first["encoder"]),
            "training examples": f"{train:,}" if isinstance(train, int) else "",
            "score": _spread(of_run),
            "seconds": f"{np.mean(seconds):,.{digits}f}{spread}",
            "fits of the search": str(max(trials) or ""),
            "runs": str(len(of_run)),
        }
        for key, head in extra.items():
            values = [result[key] for result in of_run if result.get(key) is not None]
            row[head] = f"{np.mean(values) / COSTS[key][1]:,.4g}" if values else ""
        table.append(row)
    numeric += ["training examples", *extra.values()]
    return Table.of(table, numeric) if table else None


def _spread(of_run):
    """Formats scores: fractions in points, other scores such as perplexity unchanged."""
    if any(result["score"] is None for result in of_run):  # an infinite perplexity
        return ""
    mean, deviation, n = summary(of_run)
    factor = 100 if abs(mean) <= 1 else 1
    spread = f" ± {factor * deviation:.1f}" if n > 1 else ""
    return f"{factor * mean:,.1f}{spread} ({n})"


def _can_be_drawn(result):
    """Returns whether score and seconds fit on axes: plots of huge numbers take minutes."""
    score = result["score"]
    return score is not None and abs(score) < 1e6 and 0 <= result["seconds"] < 1e9


def cost_figures(results):
    """Returns `{task: figure}` of score against seconds.

    A figure shows the runs with the most frequent number of training examples. It needs at least
    four runs of the command `run`.
    """
    pictures, by_task = {}, {}
    for of_run in runs_of(results):
        first = of_run[0]
        scored = all(_can_be_drawn(result) for result in of_run)
        if scored and first["method"] in GROUPS and "train" in (first.get("counts") or {}):
            by_task.setdefault(first["task"], []).append(of_run)
    for task, runs in by_task.items():
        counts = [of_run[0]["counts"]["train"] for of_run in runs]
        count = max(set(counts), key=counts.count)
        runs = [of_run for of_run in runs if of_run[0]["counts"]["train"] == count]
        encoders = {of_run[0]["encoder"] for of_run in runs}
        points = []
        for of_run in runs:
            first = of_run[0]
            mean, deviation, n = summary(of_run)
            seconds = float(np.mean([result["seconds"] for result in of_run]))
            name = name_of(first)
            points.append({
                "name": plot_text(f"{first['encoder']}: {name}" if len(encoders) > 1 else name),
                "group": GROUPS[first["method"]],
                "score": mean,
                "deviation": deviation if n > 1 else 0.0,
                "cost": max(seconds, 0.1),
            })  # fmt: skip
        if len(points) > 3:
            metric = next(iter(runs[0][0].get("metrics") or {}), "score").replace("_", " ")
            title = f"{plot_text(task)}, {count:,} training examples"
            cost = "seconds of a run: search and training" if any(
                "trials" in of_run[0] for of_run in runs
            ) else "seconds of a run"  # fmt: skip
            pictures[task] = score_by_cost(points, title, plot_text(metric), cost)
    return pictures
