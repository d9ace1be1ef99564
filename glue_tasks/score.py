"""The GLUE score: nine tasks' results as one number."""

from collections.abc import Mapping
from numbers import Number
from typing import Any

from glue_tasks.tasks import GLUE

# MNLI counts once; the diagnostic set does not count.
COUNTED = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


def glue_score(scores: Mapping[str, Any]) -> float:
    """Score of GLUE's leaderboard: the mean over nine tasks.

    A task with two metrics counts with their mean, MNLI with the mean of matched and mismatched.
    The mean in BERT's table 1 differs: eight tasks without WNLI, F1 for MRPC and QQP, Spearman's
    correlation for STS-B, and both parts of MNLI.

    Reference: Wang et al. 2018, arXiv 1804.07461, section 3.4 and table 4.

    Args:
        scores: A dict with the tasks `cola sst2 mrpc qqp stsb mnli mnli_mm qnli rte wnli`. Each
            value is a number, a pair of numbers, or a dict of numbers by metric, such as the
            `metrics` of a result. All are in points, or all are fractions. `ax` is ignored.

    Returns:
        The mean, in the unit of the scores.

    Raises:
        ValueError: If a task or one of its metrics is missing, or a name is unknown.

    >>> ones = dict.fromkeys("cola sst2 mnli mnli_mm qnli rte wnli".split(), 1.0)
    >>> round(glue_score(ones | {"mrpc": (1, 1), "qqp": (1, 1), "stsb": (0.5, 0.6)}), 6)
    0.95
    """
    unknown = [name for name in scores if name not in GLUE]
    missing = [name for name in (*COUNTED, "mnli_mm") if name not in scores]
    if unknown or missing:
        raise ValueError(
            f"The GLUE score needs the tasks {', '.join((*COUNTED, 'mnli_mm'))}; "
            f"{f'{unknown[0]!r} is none of them' if unknown else f'{missing[0]!r} is missing'}. "
            f"Received: {', '.join(scores) or 'no score'}"
        )
    means = {name: _mean(GLUE[name], scores[name]) for name in (*COUNTED, "mnli_mm")}
    means["mnli"] = (means["mnli"] + means.pop("mnli_mm")) / 2
    return sum(means.values()) / len(means)


def _mean(task, score):
    """Returns the mean of a task's metrics."""
    if isinstance(score, Mapping):
        found = dict(score)
    else:
        values = [score] if isinstance(score, Number) else list(score)
        same = len(values) == len(task.metrics)
        found = dict(zip(task.metrics, values, strict=True)) if same else {}
    if set(found) != set(task.metrics):
        raise ValueError(
            f"The score of {task.name} must be {' and '.join(task.metrics)}. Received: {score!r}"
        )
    return sum(float(value) for value in found.values()) / len(found)
