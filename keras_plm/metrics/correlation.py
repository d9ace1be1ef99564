"""Pearson's and Spearman's correlation of numbers."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_plm.metrics._inputs import single


def pearson_correlation(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes Pearson's correlation of two lists of numbers.

    Args:
        y_true, y_pred: True and predicted numbers, of equal length.

    Returns:
        The correlation, in [-1, 1]; 0 if all numbers of a list are equal.

    Raises:
        ValueError: If the lengths differ, there are no numbers, or a number is not finite.

    >>> round(pearson_correlation([1, 2, 3], [2, 4, 6]), 6)
    1.0
    """
    from scipy.stats import pearsonr

    y_true, y_pred = single(y_true, y_pred)
    _check_finite(y_true, y_pred)
    return 0.0 if _constant(y_true, y_pred) else float(pearsonr(y_true, y_pred).statistic)


def spearman_correlation(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes Spearman's rank correlation of two lists of numbers.

    Args:
        y_true, y_pred: True and predicted numbers, of equal length.

    Returns:
        The correlation, in [-1, 1]; 0 if all numbers of a list are equal.

    Raises:
        ValueError: If the lengths differ, there are no numbers, or a number is not finite.

    >>> round(spearman_correlation([1, 2, 3], [2, 4, 60]), 6)
    1.0
    """
    from scipy.stats import spearmanr

    y_true, y_pred = single(y_true, y_pred)
    _check_finite(y_true, y_pred)
    return 0.0 if _constant(y_true, y_pred) else float(spearmanr(y_true, y_pred).statistic)


def _constant(*numbers):
    """Whether all numbers of a list are equal: SciPy's correlation is then NaN."""
    return any(np.ptp(np.asarray(x, "float64")) == 0 for x in numbers)


def _check_finite(y_true, y_pred):
    """Raises unless all numbers are finite: a correlation with infinity is NaN."""
    for name, values in (("y_true", y_true), ("y_pred", y_pred)):
        finite = np.isfinite(np.asarray(values, "float64"))
        if not finite.all():
            i = int(np.argmin(finite))
            raise ValueError(
                f"Correlated numbers must be finite. Received: {name}[{i}]={values[i]}"
            )
