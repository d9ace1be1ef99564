"""Scores from sums over examples, and resampling of planted differences."""

import functools

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.experiments.results import ResultFolder
from keras_plm.experiments.statistics import (
    SCORES,
    Difference,
    contrast,
    contrast_of,
    difference,
    holm,
    resampled,
    score_interval,
    summands,
)

pytestmark = pytest.mark.backend_neutral

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=50).round(1)
TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
SENTENCES = [RNG.choice(TAGS, RNG.integers(1, 9)).tolist() for _ in range(50)]
GUESSES = [[t if RNG.random() < 0.8 else "O" for t in tags] for tags in SENTENCES]
WORDS = ["the cat", "a black cat", "dogs", ""]
GOLDS = [RNG.choice(WORDS[:3], 2).tolist() if RNG.random() < 0.7 else [] for _ in range(50)]
ANSWERS = RNG.choice(WORDS, 50).tolist()


def clusters(seed):
    """Returns random clusters of some of seven mentions, for 50 documents."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(50):
        of_mention = {m: rng.integers(4) for m in range(7) if rng.random() < 0.8}
        parts = [[m for m, c in of_mention.items() if c == cluster] for cluster in range(4)]
        found.append([part for part in parts if part])
    return found


CLUSTERS, FOUND = clusters(0), clusters(1)


def labels(count, seed):
    return np.random.default_rng(seed).choice([f"label {i}" for i in range(count)], 50).tolist()


CASES = {
    "accuracy": (metrics.accuracy, labels(3, 0), labels(3, 1)),
    "f1": (metrics.f1, labels(2, 0), labels(2, 1)),
    "matthews": (metrics.matthews_correlation, labels(2, 0), labels(2, 1)),
    "matthews of three": (metrics.matthews_correlation, labels(3, 0), labels(3, 2)),
    "matthews of a constant": (metrics.matthews_correlation, labels(2, 0), ["label 1"] * 50),
    "pearson": (metrics.pearson_correlation, NUMBERS, NUMBERS + RNG.normal(size=50)),
    "spearman": (metrics.spearman_correlation, NUMBERS, NUMBERS + RNG.normal(size=50)),
    "pearson of a constant": (metrics.pearson_correlation, NUMBERS, np.ones(50)),
    "span_f1": (metrics.span_f1, SENTENCES, GUESSES),
    "role_f1": (metrics.role_f1, SENTENCES, GUESSES),
    "word_accuracy": (metrics.word_accuracy, SENTENCES, GUESSES),
    "coreference": (metrics.conll_coreference_f1, CLUSTERS, FOUND),
    "coreference without singletons": (
        functools.partial(metrics.conll_coreference_f1, singletons=False),
        CLUSTERS,
        FOUND,
    ),
    "lea": (metrics.lea, CLUSTERS, FOUND),
    "exact match": (functools.partial(metrics.squad_exact_match, version=2), GOLDS, ANSWERS),
    "squad_f1": (functools.partial(metrics.squad_f1, version=2), GOLDS, ANSWERS),
}


@pytest.mark.parametrize("name", CASES)
def test_metric_is_computed_from_sums_over_examples(name):
    metric, true, pred = CASES[name]
    kind, parts = summands(metric, true, pred)
    assert parts.shape[0] == 50
    assert SCORES[kind](parts.sum(axis=0)) == pytest.approx(metric(true, pred), abs=1e-12)
    if "spearman" in name:  # ranks are among all examples
        return
    rows = np.random.default_rng(1).integers(0, 50, 50)  # with repetitions and omissions
    drawn = ([values[i] for i in rows] for values in (true, pred))
    assert SCORES[kind](parts[rows].sum(axis=0)) == pytest.approx(metric(*drawn), abs=1e-12)


def test_summands_of_unknown_metric_are_none():
    assert summands(lambda true, pred: 0.5, [1], [1]) is None


def hits(share, count=400, seeds=3, seed=0):
    """Returns right and wrong answers of several seeds as sums per example."""
    right = np.random.default_rng(seed).random((seeds, count)) < share
    return np.stack([right, np.ones_like(right)], axis=-1).astype(float)


class TestDifference:
    def test_planted_difference_is_significant(self):
        better, worse = hits(0.8), hits(0.6, seed=1)
        found = difference("mean", better, worse, resamples=2000)
        assert found.mean == pytest.approx(better[..., 0].mean() - worse[..., 0].mean())
        assert 0 < found.low < found.mean < found.high and found.p < 0.01
        back = difference("mean", worse, better, resamples=2000)
        assert back.mean == pytest.approx(-found.mean) and back.p == pytest.approx(
            found.p, abs=0.01
        )
        assert found.seeds == (3, 3)

    def test_equal_methods_are_not_separable(self):
        found = difference("mean", hits(0.7), hits(0.7, seed=1), resamples=2000)
        assert found.low < 0 < found.high and found.p > 0.05
        assert difference("mean", hits(0.7), hits(0.7), resamples=500).mean == 0

    def test_few_of_100_equal_pairs_are_significant(self):
        ps = [
            difference("mean", hits(0.7, 100, 5, 2 * i), hits(0.7, 100, 5, 2 * i + 1), 300).p
            for i in range(100)
        ]
        assert sum(p < 0.05 for p in ps) <= 10

    def test_pairing_narrows_and_seed_spread_widens_interval(self):
        base = hits(0.5, seeds=1)
        better = base.copy()
        better[0, np.flatnonzero(base[0, :, 0] == 0)[:10], 0] = 1  # ten more right answers
        paired = difference("mean", better, base, resamples=2000)
        assert paired.low > 0
        apart = difference("mean", hits(0.525, seeds=1, seed=7), base, resamples=2000)
        assert apart.high - apart.low > 2 * (paired.high - paired.low)
        # Seeds differ by 20 points, examples do not. The interval is as wide.
        uneven = np.concatenate([hits(0.9, 2000, 1), hits(0.7, 2000, 1)])
        wide = difference("mean", uneven, hits(0.8, 2000, 2, seed=3), resamples=2000)
        assert wide.high - wide.low > 0.15

    def test_against_loops(self):
        """Compares with plain loops that draw examples and seeds and score the draws."""
        one, two = hits(0.6, 30, 2), hits(0.5, 30, 3, seed=1)
        rng, plain = np.random.default_rng(0), []
        for _ in range(4000):
            rows, scores = rng.integers(0, 30, 30), []
            for parts in (one, two):
                drawn = rng.integers(0, len(parts), len(parts))
                scores.append(np.mean([parts[s, rows, 0].mean() for s in drawn]))
            plain.append(scores[0] - scores[1])
        found = difference("mean", one, two, resamples=4000, few_seeds=False)
        assert [found.low, found.high] == pytest.approx(
            np.quantile(plain, [0.025, 0.975]).tolist(), abs=0.02
        )

    def test_few_seeds_correction_limits_false_positives(self):
        """Three seeds of equal methods with spread only between seeds: nearly Student's t."""
        significant = {True: 0, False: 0}
        for i in range(150):
            shares = np.random.default_rng(i).normal(0.7, 0.05, 6)
            seeds = [hits(share, 800, 1, seed=10 * i + j) for j, share in enumerate(shares)]
            both = np.concatenate(seeds[:3]), np.concatenate(seeds[3:])
            for few in significant:
                significant[few] += difference("mean", *both, 200, seed=i, few_seeds=few).p < 0.05
        assert significant[True] <= 12 < significant[False]  # of 150 trials; the target is 5 %

    @pytest.mark.parametrize("seeds, deviations, most", [
        ((3, 3), (1, 1), 50),
        ((3, 3), (1, 0.1), 83),  # one method decides the variance
        ((3, 10), (1, 0.3), 83),
        ((3, 5), (2, 0.6), 83),
    ])  # fmt: skip
    def test_equal_methods_that_vary_by_seed_are_rarely_separated(self, seeds, deviations, most):
        """1,000 pairs. Pooled degrees of freedom separate 10 to 16 % where spreads differ."""
        rng, significant = np.random.default_rng(0), 0
        for i in range(1000):
            drawn = [rng.normal(0, *of) for of in zip(deviations, seeds, strict=True)]
            scores = [np.tile(by_seed, (301, 1)) for by_seed in drawn]
            significant += contrast_of([(1, scores[0]), (-1, scores[1])], seed=i).p < 0.05
        assert significant <= most

    def test_contrast_of_two_gains_has_wider_interval(self):
        """Computes (0.8 - 0.6) - (0.7 - 0.65) on the same examples."""
        terms = [(1, 0.8), (-1, 0.6), (-1, 0.7), (1, 0.65)]
        terms = [(sign, hits(share, 1000, seed=i)) for i, (sign, share) in enumerate(terms)]
        found = contrast("mean", terms, 2000)
        means = [sign * parts[..., 0].mean() for sign, parts in terms]
        assert found.mean == pytest.approx(sum(means)) and found.seeds == (3, 3, 3, 3)
        assert found.low < sum(means) < found.high and found.p < 0.05
        one = difference("mean", terms[0][1], terms[1][1], 2000)
        assert found.high - found.low > one.high - one.low

    def test_other_examples_are_refused(self):
        with pytest.raises(ValueError, match="same examples.*400, 2.*300, 2"):
            difference("mean", hits(0.5), hits(0.5, 300))


def test_holm():
    """Holm 1979; the values of R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_examples_are_read_by_hash_of_their_result(tmp_path):
    kept, name = ResultFolder(tmp_path), "r/x.seed0.json"
    assert kept.examples(name, "a") is None
    parts = {"f1": summands(*CASES["span_f1"]), "accuracy": summands(*CASES["accuracy"])}
    kept.write_examples(name, "a", parts)
    assert [file.name for file in (tmp_path / "r").iterdir()] == ["x.seed0.npz"]
    found = kept.examples(name, "a")
    assert {name: kind for name, (kind, _) in found.items()} == {"f1": "f1", "accuracy": "mean"}
    np.testing.assert_array_equal(found["f1"][1], parts["f1"][1])
    assert kept.examples(name, "b") is None
    (tmp_path / "r" / "x.seed0.npz").write_bytes(b"PK half")
    with pytest.raises(ValueError, match="must be a whole .npz file"):
        kept.examples(name, "a")


@pytest.mark.parametrize("name", CASES)
def test_stored_examples_give_the_same_scores(name, tmp_path):
    kind, parts = summands(*CASES[name])
    kept = ResultFolder(tmp_path)
    kept.write_examples("r/x.seed0.json", "a", {name: (kind, parts)})
    stored = np.load(tmp_path / "r" / "x.seed0.npz")[f"{name}.{kind}"]
    assert stored.dtype in ("uint16", "float32") or (parts % 1).any()
    found_kind, found = kept.examples("r/x.seed0.json", "a")[name]
    assert found_kind == kind and found.shape == parts.shape and found.dtype == "float64"
    score = SCORES[kind]
    assert score(found.sum(axis=0)) == pytest.approx(score(parts.sum(axis=0)), abs=1e-7)


def test_files_with_all_products_are_read(tmp_path):
    """Some files hold all products."""
    kind, parts = summands(*CASES["pearson"])
    (tmp_path / "r").mkdir()
    np.savez(tmp_path / "r" / "x.seed0.npz", hash=np.array("a"), **{f"m.{kind}": parts})
    found = ResultFolder(tmp_path).examples("r/x.seed0.json", "a")["m"][1]
    np.testing.assert_array_equal(found, parts)


def test_intervals_of_scores_stay_in_their_range():
    parts = np.zeros((2, 9, 2))
    parts[..., 1] = 1
    parts[0, :8, 0] = parts[1, :4, 0] = 1  # the two seeds differ much
    scores = resampled("mean", parts)
    wide = contrast_of([(1, scores)])
    assert wide.low < 0 and wide.high > 1
    found = score_interval("mean", scores)
    assert (found.low, found.high, found.mean) == (0.0, 1.0, wide.mean)
    assert score_interval("correlation", scores).low == -1.0


def test_resampled_scores_depend_on_parts_and_seed():
    parts = np.random.default_rng(0).random((2, 9, 2))
    found = resampled("mean", parts, 50)
    assert resampled("mean", parts.copy(), 50) is found and not found.flags.writeable
    assert (resampled("mean", parts + 1, 50) != found).any()
    assert (resampled("mean", parts, 50, seed=1)[1:] != found[1:]).any()
    assert len(resampled("mean", parts, 60)) == 61


def test_negated_difference_swaps_bounds_and_seeds():
    found = Difference(0.1, -0.2, 0.3, 0.5, (3, 5))
    assert -found == Difference(-0.1, -0.3, 0.2, 0.5, (5, 3))
    assert str(-Difference(0.0, -0.2, 0.3, 1.0, (3, 3))) == "+0.0 [-30.0, +20.0]"
