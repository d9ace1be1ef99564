"""Trials of a learning-rate search."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def trial_of(rate, log, seconds):
    """Returns the trial of a record: a learning rate and the best score of its fit on the dev set.

    Args:
        rate: The learning rate.
        log: Log of the fit; its `dev_score` is `None` if training diverged.
        seconds: Time of the fit.
    """
    names = ("dev_score", "error") if log["dev_score"] is None else ("dev_score", "best_epoch")
    return {"learning_rate": rate, **{name: log[name] for name in names}, "seconds": seconds}


def best_trial(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the trial with the highest score on the dev set; among equals, the first.

    Args:
        trials: Trials of a record: dicts with `learning_rate` and `dev_score`, which is `None` if
            training diverged.

    Returns:
        One of them.

    >>> scores = {1e-3: 0.7, 1e-2: 0.9, 1e-1: None}
    >>> trials = [{"learning_rate": r, "dev_score": score} for r, score in scores.items()]
    >>> best_trial(trials)["learning_rate"]
    0.01
    """
    scored = [trial for trial in trials if trial["dev_score"] is not None]
    return max(scored, key=lambda trial: trial["dev_score"])


def best_score(trials):
    """Returns the highest score on the dev set; minus infinity if there is none."""
    return max((t["dev_score"] for t in trials if t["dev_score"] is not None), default=-np.inf)


def line_about(run, trial):
    """Returns a line of progress about a trial."""
    words = f"{run.name} learning rate {trial['learning_rate']:g}"
    if trial["dev_score"] is None:
        return f"{words} diverged: {trial['error']}"
    return f"{words}: {trial['dev_score']:.4f} on the dev set"


def diverged(run, trials):
    """Returns the error of a run that diverges with every learning rate."""
    return FloatingPointError(
        "Training must converge with one learning rate at least: give lower ones with "
        f"--learning-rates. Received: {run.learning_rates}, where the first gave: "
        f"{trials[0].get('error', 'outputs on the evaluation split that are not finite')}"
    )
