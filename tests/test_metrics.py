"""Scores against the originals' and the peers' numbers."""

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.metrics import span_f1, span_scores, spans

GOLD = [["B-ORG", "I-ORG"], ["O", "B-MISC", "I-MISC", "O"], ["B-PER", "B-PER", "O"]]
GUESS = [["I-ORG", "I-ORG"], ["B-MISC", "I-MISC", "I-MISC", "O"], ["I-PER", "I-PER", "O"]]


def read_sample(path):
    """The last two columns: gold and predicted tags; blank lines between sentences."""
    gold, guess = [[]], [[]]
    for line in path.read_text().splitlines():
        columns = line.split()
        if columns:
            gold[-1].append(columns[-2])
            guess[-1].append(columns[-1])
        elif gold[-1]:
            gold.append([])
            guess.append([])
    return [g for g in gold if g], [g for g in guess if g]


def test_conlleval_sample(oracles):
    gold, guess = read_sample(oracles("conlleval_sample.txt"))
    table = span_scores(gold, guess)
    total = table["all"]
    assert (total["true"], total["found"], total["correct"]) == (459, 539, 371)
    printed = [round(100 * total[name], 2) for name in ("precision", "recall", "f1")]
    assert printed == [68.83, 80.83, 74.35]
    assert round(100 * table["accuracy"], 2) == 84.08
    by_type = {
        "ADJP": (0.0, 0.0, 0.0),
        "ADVP": (45.45, 62.50, 52.63),
        "NP": (64.98, 78.63, 71.16),
        "PP": (83.18, 98.89, 90.36),
        "SBAR": (66.67, 33.33, 44.44),
        "VP": (69.00, 79.31, 73.80),
    }
    for name, expected in by_type.items():
        row = table[name]
        assert [round(100 * row[k], 2) for k in ("precision", "recall", "f1")] == list(expected)


def test_agrees_with_seqeval_and_spans_of_its_readme():
    seqeval = pytest.importorskip("seqeval.metrics")
    rng = np.random.default_rng(0)
    tags = ["O", "B-A", "I-A", "B-B", "I-B", "I-C"]
    for _ in range(50):
        lengths = rng.integers(1, 9, 4)
        gold, guess = ([rng.choice(tags, n).tolist() for n in lengths] for _ in range(2))
        assert span_f1(gold, guess) == pytest.approx(seqeval.f1_score(gold, guess, zero_division=0))
    tags = "O O O B-MISC I-MISC I-MISC O B-PER I-PER".split()
    assert spans(tags) == [("MISC", 3, 6), ("PER", 7, 9)]
    assert spans("B-A B-A I-A I-B O I-B S-B E-B".split()) == [
        ("A", 0, 1), ("A", 1, 3), ("B", 3, 4), ("B", 5, 6), ("B", 6, 7), ("B", 7, 8),
    ]  # fmt: skip


def test_iob1_and_iob2_are_read_alike():
    assert span_f1([["B-ORG", "I-ORG"]], [["I-ORG", "I-ORG"]]) == 1.0
    total = span_scores(GOLD, GUESS)["all"]
    # ORG is found; MISC begins too soon; of two PER side by side one long one is made.
    assert (total["true"], total["found"], total["correct"]) == (4, 3, 1)


def test_conll2003_figures_where_the_data_are(data):
    from keras_plm.task import read_conll

    gold = [e.label for e in read_conll(data("conll2003/eng.testb"))]
    table = span_scores(gold, [["O"] * len(tags) for tags in gold])
    assert round(100 * table["accuracy"], 2) == 82.53 and table["all"]["f1"] == 0
    plain = [[tag.replace("B-", "I-") for tag in tags] for tags in gold]
    assert round(100 * span_f1(gold, plain), 2) == 99.50
    places = [[tag.replace("ORG", "LOC") for tag in tags] for tags in gold]
    assert round(100 * span_f1(gold, places), 2) == 70.53


def test_plain_scores_agree_with_their_formulas():
    rng = np.random.default_rng(1)
    gold, guess = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    hits = [(int(a), int(b)) for a, b in zip(gold, guess, strict=True)]
    tp, tn = hits.count((1, 1)), hits.count((0, 0))
    fp, fn = hits.count((0, 1)), hits.count((1, 0))
    assert metrics.accuracy(gold, guess) == pytest.approx((tp + tn) / 40)
    assert metrics.f1(gold, guess) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    matthews = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.matthews_correlation(gold, guess) == pytest.approx(matthews)
    x, y = rng.normal(size=30), rng.normal(size=30)
    assert metrics.pearson_correlation(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    ranks = np.corrcoef(x.argsort().argsort(), y.argsort().argsort())[0, 1]
    assert metrics.spearman_correlation(x, y) == pytest.approx(ranks)


def test_bad_input_is_explained():
    for score in (metrics.accuracy, metrics.f1, metrics.span_f1, metrics.pearson_correlation):
        with pytest.raises(ValueError, match="one prediction per truth"):
            score([1], [])
    with pytest.raises(ValueError, match="2 and 1 tags in sentence 0"):
        span_f1([["O", "O"]], [["O"]])
    with pytest.raises(ValueError, match="of two classes"):
        metrics.f1([0, 1, 2], [0, 1, 2])
    with pytest.raises(ValueError, match="which is `positive`"):
        metrics.f1([0, 0], [0, 0])
    assert metrics.f1([0, 0], [0, 0], positive=1) == 0.0
