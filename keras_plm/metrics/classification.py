"""Accuracy, F1 and Matthews' correlation of classes."""

import math
import operator
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from keras_plm.files.sequences import as_list
from keras_plm.metrics._inputs import both, single


def accuracy(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes the fraction of predictions that equal the true labels.

    Args:
        y_true, y_pred: True and predicted labels, of equal length.

    Returns:
        The accuracy, in [0, 1].

    Raises:
        ValueError: If the lengths differ, there are no labels, a prediction is an array, or some
            labels are strings and others not.

    >>> accuracy(["a", "b", "b"], ["a", "b", "a"])
    0.6666666666666666
    """
    y_true, y_pred = _classes(y_true, y_pred)
    hits = [true == pred for true, pred in zip(y_true, y_pred, strict=True)]
    return float(np.mean(hits))


def f1(y_true: Iterable[Any], y_pred: Iterable[Any], positive: Any = None) -> float:
    """Computes the F1 of the positive one of two classes.

    Args:
        y_true, y_pred: True and predicted labels, of equal length.
        positive: The positive class; by default the last of the sorted classes.

    Returns:
        The F1, in [0, 1].

    Raises:
        ValueError: As `accuracy`. If a class differs from `positive` only in case or type. Without
            `positive`: if there are not exactly two classes.

    >>> f1([0, 1, 1], [1, 1, 0])
    0.5
    """
    from sklearn.metrics import f1_score

    y_true, y_pred = _classes(y_true, y_pred)
    if positive is None:
        labels = sorted(set(y_true) | set(y_pred))
        if len(labels) > 2:
            raise ValueError(f"`f1` needs two classes. Received: {labels}")
        if len(labels) < 2:
            raise ValueError(f"With a single class, `f1` needs `positive`. Received: {labels}")
        positive = labels[-1]
    others = {*y_true, *y_pred} - {positive}
    alike = [label for label in others if str(label).casefold() == str(positive).casefold()]
    if alike:
        raise ValueError(
            "`positive` must be written like its class. "
            f"Received: positive={positive!r}, class {alike[0]!r}"
        )
    true = [label == positive for label in y_true]
    return float(f1_score(true, [label == positive for label in y_pred], zero_division=0.0))


def _classes(y_true, y_pred):
    """Returns truth and predictions as two lists of labels, all strings or none."""
    y_true, y_pred = single(y_true, y_pred)
    text = next((label for label in chain(y_true, y_pred) if isinstance(label, str)), None)
    other = next((label for label in chain(y_true, y_pred) if not isinstance(label, str)), None)
    if text is not None and other is not None:
        raise ValueError(
            "Labels must be strings on both sides, or on neither: a number never equals a string. "
            f"Received: {text!r} and {other!r}"
        )
    return y_true, y_pred


def matthews_correlation(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes Matthews' correlation of two labelings.

    Reference: Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", 2004.

    Args:
        y_true, y_pred: True and predicted labels, of equal length.

    Returns:
        The correlation, in [-1, 1]; 0 if one labeling has a single class.

    Raises:
        ValueError: As `accuracy`.

    >>> matthews_correlation([0, 1, 1, 0], [0, 1, 1, 0])
    1.0
    """
    y_true, y_pred = _classes(y_true, y_pred)
    # By counts, because a confusion matrix grows with the square of the number of labels.
    rows, hits = len(y_true), sum(map(operator.eq, y_true, y_pred))
    true, pred = Counter(y_true), Counter(y_pred)
    both = hits * rows - sum(count * pred[label] for label, count in true.items())
    spread_true, spread_pred = (
        rows**2 - sum(count**2 for count in side.values()) for side in (true, pred)
    )
    if not spread_true * spread_pred:
        return 0.0
    return both / math.sqrt(float(spread_true) * float(spread_pred))


def word_accuracy(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes the fraction of words with the true tag.

    Args:
        y_true, y_pred: True and predicted tags, lists of sentences of equal length.

    Returns:
        The accuracy, in [0, 1].

    Raises:
        ValueError: If the numbers of sentences or words differ, or there are no words.

    >>> word_accuracy([["DET", "NOUN"], ["VERB", "NOUN"]], [["DET", "VERB"], ["VERB", "NOUN"]])
    0.75
    """
    y_true, y_pred = both(y_true, y_pred)
    y_true, y_pred = [[as_list(tags, "tags", "tags") for tags in side] for side in (y_true, y_pred)]
    for i, (true, pred) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(true) != len(pred):
            raise ValueError(
                "Every word needs one true and one predicted tag. "
                f"Received: {len(true)} and {len(pred)} tags in sentence {i}"
            )
    return accuracy(list(chain.from_iterable(y_true)), list(chain.from_iterable(y_pred)))
