"""Uncertainty of differences between methods: resampling of seeds and of examples.

Every score here is a function of sums over examples. The scores of resampled examples then take
one product of matrices and no predictions.

Shapes: S seeds, N examples, k sums, R resamples.
"""

import dataclasses
import functools
import hashlib

import numpy as np

from keras_plm import metrics

MOST_KEPT = 64  # results of `resampled`, of about a megabyte each
_RESAMPLED = {}
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


def _f1(y_true, y_pred, positive=None):
    if positive is None:
        positive = sorted(set(y_true) | set(y_pred))[-1]  # as `metrics.f1` chooses it
    true, pred = (np.array([y == positive for y in labels]) for labels in (y_true, y_pred))
    return np.stack([true & pred, true, pred], axis=1).astype("float64")


def _shared(find, y_true, y_pred):
    """Returns the numbers of shared, true and predicted items; `find` lists those of an example."""
    rows = []
    for true, pred in zip(y_true, y_pred, strict=True):
        true, pred = set(find(true)), set(find(pred))
        rows.append((len(true & pred), len(true), len(pred)))
    return np.array(rows, "float64")


def _cells(y_true, y_pred):
    labels = sorted(set(y_true) | set(y_pred))
    count = len(labels)
    cells = [labels.index(t) * count + labels.index(p) for t, p in zip(y_true, y_pred, strict=True)]
    return np.eye(count * count)[cells]


def _products(x, y):
    x, y = np.asarray(x, "float64"), np.asarray(y, "float64")
    return _products_of(x - x.mean(), y - y.mean())  # changes no correlation


def _products_of(x, y):
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def compact(kind, parts):
    """Returns the result of `summands` in few bytes, for `expanded`.

    Products are computed again from their two factors, which are rounded to float32. Whole numbers
    have two bytes.
    """
    parts = np.asarray(parts)
    if kind == "correlation" and np.abs(parts).max(initial=0) < 1e30:
        return parts[:, 1:3].astype("float32")
    with np.errstate(invalid="ignore"):  # a number outside the type is not equal below
        whole = parts.astype("uint16")
    return whole if (whole == parts).all() else parts


def expanded(kind, parts):
    """Returns the summands (N, k) of a result of `compact`, or of an array that was not compact."""
    parts = parts.astype("float64")
    return _products_of(*parts.T) if kind == "correlation" and parts.shape[1] == 2 else parts


def _ranks(y_true, y_pred):
    from scipy.stats import rankdata

    return _products(rankdata(y_true), rankdata(y_pred))


def _squad(place, y_true, y_pred, version=1):
    return _mean([scores[place] for scores in metrics.squad_scores(y_true, y_pred, version)])


def _coreference(places, y_true, y_pred, singletons=True):
    """Returns the counts of some of the measures, see `metrics.coreference_counts`."""
    counts = metrics.coreference_counts(y_true, y_pred, singletons)[:, places]
    return counts.reshape(len(counts), -1)


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


def _mean_f1(sums):
    """Mean F1 of measures, each with numerator and denominator of recall and of precision."""
    of_measures = sums.reshape(*sums.shape[:-1], -1, 4)
    recall = _ratio(of_measures[..., 0], of_measures[..., 1])
    precision = _ratio(of_measures[..., 2], of_measures[..., 3])
    return _ratio(2 * precision * recall, precision + recall).mean(axis=-1)


# Each kind: its score as a function of sums (..., k).
SCORES = {
    "mean": lambda sums: _ratio(sums[..., 0], sums[..., 1]),
    "f1": lambda sums: _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2]),
    "matthews": _of_cells,
    "correlation": _of_products,
    "mean_f1": _mean_f1,
}
F1S = ("f1", "mean_f1")  # kinds of F1
SIGNED = ("matthews", "correlation")  # kinds of scores from -1 to 1; others begin at 0
# Each metric: its kind, and a function for the terms that each example adds to its sums.
METRICS = {
    metrics.accuracy: ("mean", _equal),
    metrics.word_accuracy: ("mean", _words),
    metrics.f1: ("f1", _f1),
    metrics.span_f1: ("f1", functools.partial(_shared, metrics.spans)),
    metrics.role_f1: ("f1", functools.partial(_shared, metrics.roles)),
    metrics.conll_coreference_f1: ("mean_f1", functools.partial(_coreference, [0, 1, 2])),
    metrics.lea: ("mean_f1", functools.partial(_coreference, [3])),
    metrics.matthews_correlation: ("matthews", _cells),
    metrics.pearson_correlation: ("correlation", _products),
    metrics.spearman_correlation: ("correlation", _ranks),
    metrics.squad_exact_match: ("mean", functools.partial(_squad, 0)),
    metrics.squad_f1: ("mean", functools.partial(_squad, 1)),
}


def summands(metric, y_true, y_pred):
    """Returns the terms that each example adds to the sums of a metric.

    Spearman's correlation uses the ranks among all examples, also in resamples.

    Args:
        metric: A function of `keras_plm.metrics`, or a partial one.
        y_true, y_pred: Arguments of the metric.

    Returns:
        `(kind, parts)`: a key of `SCORES`, and an array (N, k); `SCORES[kind](parts.sum(0))` is
        the metric. `None` for other functions.
    """
    partial = isinstance(metric, functools.partial)
    known = METRICS.get(metric.func if partial else metric)
    if known is None:
        return None
    kind, parts = known
    return kind, parts(y_true, y_pred, **(metric.keywords if partial else {}))


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference of the scores of two methods.

    Attributes:
        mean: Difference over all seeds and examples.
        low, high: Ends of the interval of 95 % of the resampled differences.
        p: Two-sided p: twice the fraction of resampled differences on the other side of 0.
        seeds: Number of seeds of each method.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: tuple

    def __neg__(self):
        """The difference of the two methods in the other order."""
        return dataclasses.replace(
            self,
            mean=0.0 - self.mean,  # never a negative zero
            low=0.0 - self.high,
            high=0.0 - self.low,
            seeds=self.seeds[::-1],
        )

    def __str__(self):
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def difference(kind, first, second, resamples=10_000, seed=0, few_seeds=True):
    """Estimates the difference of two methods on the same examples, by a hierarchical bootstrap.

    A resample draws examples, the same for both methods, and seeds of each method, all with
    replacement. The score of a method is the mean over its drawn seeds.

    Args:
        kind: A key of `SCORES`.
        first, second: Arrays (S, N, k), see `summands`; S may differ.
        resamples: R, the number of resamples.
        seed: Seed of the resampling.
        few_seeds: If True, widen the interval for few seeds, see `contrast`.

    Returns:
        A `Difference`.

    Raises:
        ValueError: If the arrays are not of the same examples.
    """
    found = contrast(kind, [(1, first), (-1, second)], resamples, seed, few_seeds)
    most = 2.0 if kind in SIGNED else 1.0  # two seeds may give wider intervals
    return dataclasses.replace(found, low=max(found.low, -most), high=min(found.high, most))


def contrast(kind, terms, resamples=10_000, seed=0, few_seeds=True):
    """Estimates a sum of several methods' scores with signs, by the bootstrap of `difference`.

    Few seeds, drawn with replacement, spread too little: S seeds lose 1/S of their variance, and
    the bootstrap treats the variance as known. Take pairs of equal methods with three seeds each,
    which differ only by seed: the plain bootstrap separates one pair in six. `few_seeds` corrects
    the part of a resample that comes from the choice of seeds. It multiplies this part by the root
    of S / (S - 1). It then divides by the root of a random variance, as in Student's t, with the
    degrees of freedom of Welch and Satterthwaite. The bootstrap then separates at most one such
    pair in twenty, and one in twelve if the methods have different numbers of seeds or vary
    unequally. It separates fewer if examples also vary (Hesterberg 2015, The American Statistician
    69, on narrow intervals). Drawing both examples and seeds is conservative (Owen 2007, The
    pigeonhole bootstrap, Annals of Applied Statistics 1).

    Args:
        terms: Pairs of a sign, 1 or -1, and an array (S, N, k).
        kind, resamples, seed, few_seeds: As in `difference`.

    Returns:
        A `Difference`; its `seeds` has a number for each term.

    Raises:
        ValueError: If the arrays are not of the same examples.
    """
    parts = [np.asarray(of_term, "float64") for _, of_term in terms]
    shapes = [of_term.shape for of_term in parts]
    if (
        any(len(shape) != 3 or 0 in shape for shape in shapes)
        or len({shape[1:] for shape in shapes}) > 1
    ):
        raise ValueError(
            "Methods must have the same examples: give an array (seeds, examples, sums) for each. "
            f"Received: {' and '.join(map(str, shapes))}"
        )
    ends = np.cumsum([len(of_term) for of_term in parts])[:-1]
    scores = np.split(resampled(kind, np.concatenate(parts), resamples, seed), ends, axis=1)
    signs = [sign for sign, _ in terms]
    return contrast_of(list(zip(signs, scores, strict=True)), seed, few_seeds)


def resampled(kind, parts, resamples=10_000, seed=0):
    """Computes the scores of all examples, then of resampled examples.

    The draws are the same for any number of seeds or methods.

    Args:
        kind: A key of `SCORES`.
        parts: (S, N, k), see `summands`.
        resamples: R, the number of resamples.
        seed: Seed of the resampling.

    Returns:
        (1 + R, S), read-only: a repeated call returns the same array.
    """
    parts = np.ascontiguousarray(parts)
    digest = hashlib.sha256(parts).digest()
    key = kind, parts.shape, parts.dtype.str, digest, resamples, seed
    if key not in _RESAMPLED:
        if len(_RESAMPLED) >= MOST_KEPT:
            del _RESAMPLED[next(iter(_RESAMPLED))]
        _RESAMPLED[key] = _resample(kind, parts, resamples, seed)
        _RESAMPLED[key].setflags(write=False)
    return _RESAMPLED[key]


def _resample(kind, parts, resamples, seed):
    score, rng = SCORES[kind], np.random.default_rng([seed, 0])
    count = parts.shape[1]
    scores = [score(parts.sum(axis=1))[None]]
    for begin in range(0, resamples, CHUNK):
        size = min(CHUNK, resamples - begin)
        rows = rng.integers(0, count, (size, count), dtype="uint32").astype(np.intp)
        rows += count * np.arange(size)[:, None]
        times = np.bincount(rows.ravel(), minlength=size * count).reshape(size, count)
        times = times.astype("float64")  # (R, N): how often each example was drawn
        scores.append(score(np.einsum("rn,snk->rsk", times, parts, optimize=True)))
    return np.concatenate(scores)


def contrast_of(terms, seed=0, few_seeds=True):
    """Computes a `contrast` from pairs of a sign and a result of `resampled`.

    All results must come from the same examples.
    """
    rng = np.random.default_rng([seed, 1])
    seeds, resamples = [scores.shape[1] for _, scores in terms], len(terms[0][1]) - 1
    wide = np.ones(resamples)
    if few_seeds and (free := _degrees_of_freedom([scores[0] for _, scores in terms])):
        wide = np.sqrt(free / rng.chisquare(free, resamples))
    mean, found = 0.0, np.zeros(resamples)
    for (sign, scores), s in zip(terms, seeds, strict=True):
        mean, scores = mean + sign * scores[0].mean(), scores[1:]
        middle = scores.mean(axis=1)
        of_seeds = np.take_along_axis(scores, rng.integers(0, s, scores.shape), axis=1)
        deviation = of_seeds.mean(axis=1) - middle  # what the choice of seeds adds
        if few_seeds and s > 1:
            deviation *= wide * np.sqrt(s / (s - 1))
        found += sign * (middle + deviation)
    low, high = np.quantile(found, [0.025, 0.975])
    # One more resample on each side keeps p above 0: Davison and Hinkley 1997, section 4.2.
    sides = np.sum(found <= 0) + 1, np.sum(found >= 0) + 1
    p = min(1.0, 2 * min(sides) / (resamples + 1))
    return Difference(float(mean), float(low), float(high), float(p), tuple(seeds))


def _degrees_of_freedom(by_seed):
    """Returns those of a sum of means (Welch 1947), or 0 if no method varies between seeds."""
    by_seed = [scores for scores in by_seed if len(scores) > 1]
    parts = np.array([scores.var(ddof=1) / len(scores) for scores in by_seed])
    if not parts.sum() > 0:
        return 0
    shares = parts / parts.sum()  # their squares cannot underflow together
    return 1 / sum(share**2 / (len(s) - 1) for share, s in zip(shares, by_seed, strict=True))


def score_interval(kind, scores):
    """Computes the interval of one score, within the range of the score.

    With two seeds the interval of `contrast_of` may exceed it.

    Args:
        kind: A key of `SCORES`.
        scores: Result of `resampled`.

    Returns:
        A `Difference` from 0.
    """
    found, least = contrast_of([(1, scores)]), -1.0 if kind in SIGNED else 0.0
    return dataclasses.replace(found, low=max(found.low, least), high=min(found.high, 1.0))


def holm(values):
    """Adjusts p values for multiple comparisons (Holm 1979), and keeps their order."""
    values = np.asarray(values, "float64")
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    found = np.empty(len(values))
    found[order] = adjusted
    return found.tolist()
