"""Best run of each task: its interval, the runs not separable from it, and its costs."""

import collections

import numpy as np

from keras_plm.experiments.recommend import Choice, ranked, resampled_scores
from keras_plm.experiments.report.costs import COSTS, name_of, runs_of
from keras_plm.experiments.report.result_tables import same_inputs
from keras_plm.experiments.report.tables import Table, cell
from keras_plm.experiments.results import SEEDS, ResultFolder
from keras_plm.experiments.statistics import contrast_of, score_interval

SHOWN = ("flops", "learned_weights")  # keys of `COSTS`, next to seconds
RESAMPLES = 1_000
NEEDED = ("dev_score", "seconds", "trials")  # keys of a record that runs are compared by
BOUNDED = ("accuracy", "f1", "exact_match", "correlation")  # ends of names of metrics up to 1
MOST_NAMED = 2  # names of runs that are not separable from the best one


def answers(folders):
    """Returns a table of the best run of each folder and task.

    The dev set ranks the runs: the first one's score on the evaluation split is not a best of many.
    Only runs with the largest number of training examples of the task are compared, with the data
    and weights of most of them.

    Args:
        folders: `{name: folder of results}`.

    Returns:
        A `Table`, or `None` if no task has two runs.
    """
    rows = []
    for name, folder in folders.items():
        for task, choices in _choices(ResultFolder(folder)).items():
            if len(choices) > 1:
                rows.append({"task": cell(task), **_answer(choices), "results": cell(name)})
    rows.sort(key=lambda row: (row["task"], row["results"]))
    numeric = ("runs compared", "seconds", *(COSTS[key][0] for key in SHOWN))
    return Table.of(rows, numeric) if rows else None


def _choices(kept):
    """Returns `{task: [Choice]}` of the runs with the most training examples of a task."""
    examples, tasks = {}, collections.defaultdict(list)
    for name in kept.names(SEEDS):
        try:
            result = kept.record(name).to_json()
            examples[id(result)] = result, kept.examples(name, result.get("hash"))
        except ValueError:  # the section of the folder names the damaged file
            continue
    same, _ = same_inputs([result for result, _ in examples.values()])
    for of_run in runs_of(same):
        first = of_run[0]
        whole = all(r.get(name) is not None for r in of_run for name in NEEDED)
        if whole and "train" in (first.get("counts") or {}):
            tasks[first["task"]].append(of_run)
    found = {}
    for task, runs in tasks.items():
        most = max(of_run[0]["counts"]["train"] for of_run in runs)
        for of_run in runs:
            if of_run[0]["counts"]["train"] == most:
                title = f"{of_run[0]['encoder']}: {name_of(of_run[0])}"
                choice = Choice.read(title, of_run, [examples[id(r)][1] for r in of_run])
                found.setdefault(task, []).append(choice)
    return found


def _answer(choices):
    """Returns the cells of a row."""
    choices = ranked(choices)
    best, *others = choices
    scores_of_best, *scores = resampled_scores(choices, RESAMPLES)
    alike = [
        other
        for other, of_other in zip(others, scores, strict=True)
        if not _apart(best, scores_of_best, other, of_other)
    ]
    if scores_of_best is None:
        mean, low, high = _interval([(1, best)])
        metric = next(iter(best.results[0]["metrics"]), "")
        if metric.endswith(BOUNDED) and np.isfinite(low):
            low, high = max(low, -1.0 if metric.endswith("correlation") else 0.0), min(high, 1.0)
    else:
        found = score_interval(best.kind, scores_of_best)
        mean, low, high = found.mean, found.low, found.high
    first = best.results[0]
    interval = f" [{100 * low:.1f}, {100 * high:.1f}]" if np.isfinite(low) else ""
    row = {
        "score [95 % interval]": f"{100 * mean:.1f}{interval}",
        "metric": cell(next(iter(first["metrics"]), "score").replace("_", " ")),
        "best run on the dev set": cell(best.name),
        "not separable from it": _listed(alike),
        "seconds": f"{best.seconds:,.1f}",
    }
    for key in SHOWN:
        head, unit = COSTS[key]
        values = [result[key] for result in best.results if result.get(key) is not None]
        row[head] = f"{np.mean(values) / unit:,.4g}" if values else ""
    return row | {
        "training examples": f"{first['counts']['train']:,}",
        "runs compared": str(len(choices)),
        "interval over": _drawn(best, scores_of_best),
    }


def _drawn(choice, scores):
    """Returns the units of the interval of a choice; one seed has no spread."""
    seeds = ["seeds"] if len(choice.results) > 1 else []
    return ", ".join(seeds + ([] if scores is None else ["examples"]))


def _apart(best, of_best, other, of_other):
    """Returns whether the interval of the difference of two choices excludes zero.

    It is False if one of them has a single seed.
    """
    if min(len(best.results), len(other.results)) == 1:
        return False
    if of_best is None or of_other is None or best.parts.shape[1:] != other.parts.shape[1:]:
        _, low, high = _interval([(1, best), (-1, other)])
    else:
        found = contrast_of([(1, of_best), (-1, of_other)])
        low, high = found.low, found.high
    return low > 0 or high < 0


def _interval(terms):
    """Returns `(mean, low, high)` of a signed sum of scores, over seeds only (Welch 1947).

    The ends are infinite if a choice has one seed.
    """
    mean = variance = below = 0.0
    for sign, choice in terms:
        scores = [result["score"] for result in choice.results]
        mean += sign * float(np.mean(scores))
        if len(scores) < 2:
            return mean, -np.inf, np.inf
        of_mean = float(np.var(scores, ddof=1)) / len(scores)
        variance += of_mean
        below += of_mean**2 / (len(scores) - 1)
    if not variance:
        return mean, mean, mean
    from scipy.stats import t

    half = float(t.ppf(0.975, variance**2 / below)) * np.sqrt(variance)
    return mean, mean - half, mean + half


def _listed(alike):
    """Lists the names of choices, the cheapest first."""
    if not alike:
        return "none"
    alike = sorted(alike, key=lambda choice: choice.seconds)
    text = "; ".join(f"{cell(c.name)} ({c.seconds:,.1f} s)" for c in alike[:MOST_NAMED])
    more = len(alike) - MOST_NAMED
    return f"{text}; {more} more" if more > 0 else text
