"""How sure a difference of two methods is: resampling of seeds and of examples.

Every score here is a function of sums over examples, so that a score of resampled examples takes
one product of matrices and no predictions.

Shapes: S seeds, N examples, k sums, R resamples.
"""

import dataclasses
import functools

import numpy as np

from keras_plm import metrics

CHUNK = 256  # resamples at a time: (CHUNK, N) numbers


def _mean(values):
    values = np.asarray(values, "float64")
    return np.stack([values, np.ones(len(values))], axis=1)


def _equal(y_true, y_pred):
    return _mean([true == pred for true, pred in zip(y_true, y_pred, strict=True)])


def _words(y_true, y_pred):
    rows = [
        (sum(a == b for a, b in zip(true, pred, strict=True)), len(true))
        for true, pred in zip(y_true, y_pred, strict=True)
    ]
    return np.array(rows, "float64")


def _f1(y_true, y_pred):
    positive = sorted(set(y_true) | set(y_pred))[-1]  # as `metrics.f1` chooses it
    true, pred = (np.array([y == positive for y in labels]) for labels in (y_true, y_pred))
    return np.stack([true & pred, true, pred], axis=1).astype("float64")


def _spans(y_true, y_pred):
    rows = []
    for true, pred in zip(y_true, y_pred, strict=True):
        true, pred = set(metrics.spans(true)), set(metrics.spans(pred))
        rows.append((len(true & pred), len(true), len(pred)))
    return np.array(rows, "float64")


def _cells(y_true, y_pred):
    labels = sorted(set(y_true) | set(y_pred))
    count = len(labels)
    cells = [labels.index(t) * count + labels.index(p) for t, p in zip(y_true, y_pred, strict=True)]
    return np.eye(count * count)[cells]


def _products(x, y):
    x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
    x, y = x - x.mean(), y - y.mean()  # which changes no correlation
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _ranks(y_true, y_pred):
    from scipy.stats import rankdata

    return _products(rankdata(y_true), rankdata(y_pred))


def _squad(place, y_true, y_pred, version=1):
    return _mean([scores[place] for scores in metrics.squad_scores(y_true, y_pred, version)])


def _ratio(above, below):
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)


def _of_cells(sums):
    """Matthews' correlation of confusion matrices (..., K^2), Gorodkin 2004, equation 8."""
    count = round(np.sqrt(sums.shape[-1]))
    cells = sums.reshape(*sums.shape[:-1], count, count)
    true, pred = cells.sum(-1), cells.sum(-2)  # (..., K)
    hits, total = np.trace(cells, axis1=-2, axis2=-1), cells.sum((-1, -2))
    above = hits * total - (true * pred).sum(-1)
    below = (total**2 - (true**2).sum(-1)) * (total**2 - (pred**2).sum(-1))
    return _ratio(above, np.sqrt(np.maximum(below, 0)))


def _of_products(sums):
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    below = (n * xx - x * x) * (n * yy - y * y)
    return _ratio(n * xy - x * y, np.sqrt(np.maximum(below, 0)))


# Of a kind: the score of sums (..., k).
SCORES = {
    "mean": lambda sums: _ratio(sums[..., 0], sums[..., 1]),
    "f1": lambda sums: _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2]),
    "matthews": _of_cells,
    "correlation": _of_products,
}
# Of a metric: its kind, and what an example adds to its sums.
METRICS = {
    metrics.accuracy: ("mean", _equal),
    metrics.word_accuracy: ("mean", _words),
    metrics.f1: ("f1", _f1),
    metrics.span_f1: ("f1", _spans),
    metrics.matthews_correlation: ("matthews", _cells),
    metrics.pearson_correlation: ("correlation", _products),
    metrics.spearman_correlation: ("correlation", _ranks),
    metrics.squad_exact_match: ("mean", functools.partial(_squad, 0)),
    metrics.squad_f1: ("mean", functools.partial(_squad, 1)),
}


def summands(metric, y_true, y_pred):
    """What each example adds to the sums of which a metric is a function.

    Spearman's correlation is that of the ranks among all examples, also where some are left out.

    Args:
        metric: A function of `keras_plm.metrics`, or a partial one.
        y_true, y_pred: As it takes them.

    Returns:
        `(kind, parts)`: a key of `SCORES`, and an array (N, k), for which
        `SCORES[kind](parts.sum(0))` is the metric; or `None` for other functions.
    """
    partial = isinstance(metric, functools.partial)
    known = METRICS.get(metric.func if partial else metric)
    if known is None:
        return None
    kind, parts = known
    return kind, parts(y_true, y_pred, **(metric.keywords if partial else {}))


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much more one method scores than another.

    Attributes:
        mean: Of all seeds and examples.
        low, high: Where 95 of 100 resampled differences lie.
        p: Two-sided: twice the share of resampled differences on the other side of 0.
        seeds: Of each of the two.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: tuple

    def __str__(self):
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def difference(kind, first, second, resamples=10_000, seed=0):
    """The difference of two methods' scores on the same examples, by a hierarchical bootstrap.

    A resample draws examples, the same for both methods, and seeds of each, all with replacement;
    a method's score is the mean of its drawn seeds'.

    Args:
        kind: A key of `SCORES`.
        first, second: Arrays (S, N, k), see `summands`; S may differ.
        resamples: R.
        seed: Of the resampling.

    Returns:
        A `Difference`.

    Raises:
        ValueError: If the two are not of the same examples.
    """
    both = [np.asarray(parts, "float64") for parts in (first, second)]
    if (
        any(parts.ndim != 3 or not parts.size for parts in both)
        or both[0].shape[1:] != both[1].shape[1:]
    ):
        raise ValueError(
            "Two methods are compared on the same examples: give (seeds, examples, sums) of each. "
            f"Received: {both[0].shape} and {both[1].shape}"
        )
    score, rng = SCORES[kind], np.random.default_rng(seed)
    count = both[0].shape[1]
    means = [score(parts.sum(axis=1)).mean() for parts in both]
    found = []
    for begin in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - begin)
        times = rng.multinomial(count, np.full(count, 1 / count), size=size).astype("float64")
        scores = [score(np.einsum("rn,snk->rsk", times, p, optimize=True)) for p in both]
        drawn = [
            np.take_along_axis(s, rng.integers(0, s.shape[1], s.shape), axis=1).mean(axis=1)
            for s in scores
        ]
        found.append(drawn[0] - drawn[1])
    found = np.concatenate(found)
    low, high = np.quantile(found, [0.025, 0.975])
    # A resample more on each side, so that no p is 0: Davison and Hinkley 1997, section 4.2.
    sides = np.sum(found <= 0) + 1, np.sum(found >= 0) + 1
    p = min(1.0, 2 * min(sides) / (resamples + 1))
    seeds = tuple(len(parts) for parts in both)
    return Difference(float(means[0] - means[1]), float(low), float(high), float(p), seeds)


def holm(values):
    """p values adjusted for their number, Holm 1979: none below what a lower one is adjusted to."""
    values = np.asarray(values, "float64")
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    found = np.empty(len(values))
    found[order] = adjusted
    return found.tolist()
