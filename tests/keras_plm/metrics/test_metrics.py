"""Metrics, compared with numbers from the originals and from peers."""

import logging
import math
import re
import sys
import warnings

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.metrics import span_f1, span_scores, spans

pytestmark = pytest.mark.backend_neutral

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


@pytest.mark.parametrize(
    "tags, wanted",
    [
        # IOB1: B only between two spans of one type; spans at both ends; a change of type.
        ("I-PER I-PER B-PER O I-LOC", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5)]),
        ("I-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        # IOB2: each span begins with B. I after O breaks the scheme and begins a span.
        ("B-PER I-PER B-PER O B-LOC", [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5)]),
        ("O I-PER I-PER B-LOC I-PER", [("PER", 1, 3), ("LOC", 3, 4), ("PER", 4, 5)]),
        ("O O O B-MISC I-MISC I-MISC O B-PER I-PER", [("MISC", 3, 6), ("PER", 7, 9)]),
        # IOBES: E without B is a span. I after E or S begins a span.
        ("B-PER I-PER E-PER S-PER O S-LOC", [("PER", 0, 3), ("PER", 3, 4), ("LOC", 5, 6)]),
        ("E-PER O E-LOC E-LOC", [("PER", 0, 1), ("LOC", 2, 3), ("LOC", 3, 4)]),
        ("B-PER E-LOC S-PER I-PER", [("PER", 0, 1), ("LOC", 1, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        # BILOU: the same with L and U.
        ("B-PER I-PER L-PER U-PER O U-LOC", [("PER", 0, 3), ("PER", 3, 4), ("LOC", 5, 6)]),
        ("L-PER O L-LOC L-LOC", [("PER", 0, 1), ("LOC", 2, 3), ("LOC", 3, 4)]),
        ("U-PER U-PER B-PER L-PER I-PER",
         [("PER", i, j) for i, j in ((0, 1), (1, 2), (2, 4), (4, 5))]),
        # Without types, and a type with a dash.
        ("B I O B B", [("", 0, 2), ("", 3, 4), ("", 4, 5)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
    ],
)  # fmt: skip
def test_spans_by_hand(tags, wanted):
    assert spans(tags.split()) == wanted


@pytest.mark.parametrize(
    "scheme, gold, guess, correct, found, true",
    [
        # Gold: PER 0-2, PER 2-3, LOC 4-5; ORG 0-1. Predicted: PER 0-3 as one, LOC 4-5; ORG 0-1.
        ("IOB1", ["I-PER I-PER B-PER O I-LOC", "I-ORG O"],
         ["I-PER I-PER I-PER O I-LOC", "I-ORG O"], 2, 3, 4),
        # Gold: PER 0-2, PER 2-3; LOC 1-2, ORG 2-3. Predicted: PER 0-3; LOC 1-3.
        ("IOB2", ["B-PER I-PER B-PER", "O B-LOC B-ORG"],
         ["B-PER I-PER I-PER", "O B-LOC I-LOC"], 0, 2, 4),
        # Gold: PER 0-2, LOC 2-3; ORG 0-3. Predicted: PER 0-2, PER 2-3; ORG 1-3.
        ("IOBES", ["B-PER E-PER S-LOC", "B-ORG I-ORG E-ORG"],
         ["B-PER E-PER S-PER", "O I-ORG E-ORG"], 1, 3, 3),
        # Gold: PER 0-2, PER 2-3, LOC 3-4. Predicted: PER 0-2, PER 2-3, PER 3-4.
        ("BILOU", ["B-PER L-PER U-PER U-LOC"], ["B-PER L-PER U-PER L-PER"], 2, 3, 3),
    ],
)  # fmt: skip
def test_micro_f1_of_a_file_by_hand(scheme, gold, guess, correct, found, true):
    gold, guess = ([tags.split() for tags in part] for part in (gold, guess))
    total = span_scores(gold, guess)["all"]
    assert (total["correct"], total["found"], total["true"]) == (correct, found, true)
    assert span_f1(gold, guess) == pytest.approx(2 * correct / (found + true))
    assert metrics.tag_scheme(gold) == scheme


def in_scheme(tags, inside, last, single):
    """Returns the tags of one sentence with other prefixes."""
    written = ["O"] * len(tags)
    for kind, start, end in spans(tags):
        prefixes = ["B", *[inside] * (end - start - 2), last] if end - start > 1 else [single]
        written[start:end] = [f"{prefix}-{kind}" for prefix in prefixes]
    return written


@pytest.mark.parametrize(
    "scheme, prefixes",
    [("IOB2", "IIB"), ("IOBES", "IES"), ("BILOU", "ILU"), ("BMES", "MES")],
)
def test_conlleval_sample_in_other_schemes(scheme, prefixes, oracles):
    parts = read_sample(oracles("conlleval_sample.txt"))
    gold, guess = ([in_scheme(tags, *prefixes) for tags in part] for part in parts)
    assert metrics.tag_scheme(gold) == scheme
    total = span_scores(gold, guess)["all"]
    assert (total["true"], total["found"], total["correct"]) == (459, 539, 371)


class TestScheme:
    @pytest.mark.parametrize(
        "sentences, scheme",
        [
            (["I-PER O", "I-PER B-PER"], "IOB1"),
            (["O I-PER"], "IOB1"),  # too few tags to tell
            (["B-PER I-PER O"], "IOB2"),
            (["B-PER O", "O"], "IOB2"),
            (["B-PER I-PER O I-PER", "B-PER O B-LOC"], "IOB2"),  # with one mistake
            (["B-PER I-PER E-PER O S-LOC"], "IOBES"),
            (["S-PER O"], "IOBES"),
            (["B-PER L-PER", "O U-LOC"], "BILOU"),
            (["U-LOC O"], "BILOU"),
            (["B-PER M-PER E-PER S-PER"], "BMES"),
            (["B I O"], "BIO without types"),
            (["O I I"], "BIO without types"),
            (["B E S", "B M E"], "BMES without types"),
            (["DET NOUN"], None),
            (["O O"], None),
            (["O NOUN I B VERB"], None),  # parts of speech of one letter, by chance
            (["N O V S A", "S N E"], None),
            (["S O"], None),
            (["S-PRO V S A-PRO A", "O S V"], None),  # Russian National Corpus
            (["-LRB- NN -RRB- NN-HL ``"], None),
        ],
    )
    def test_is_recognised(self, sentences, scheme):
        assert metrics.tag_scheme([tags.split() for tags in sentences]) == scheme

    def test_is_recognised_from_tag_names_only(self):
        assert metrics.tag_scheme(["O", "B-X", "I-X"]) == "IOB1 or IOB2"
        assert metrics.tag_scheme(["O", "I-X", "I-Y"]) == "IOB1"
        assert metrics.tag_scheme(["O", "L-X", "B-X"]) == "BILOU"
        assert metrics.tag_scheme([0, 1]) is metrics.tag_scheme([[0, 1]]) is None
        assert metrics.tag_scheme(["NOUN", "O"]) is None and metrics.tag_scheme([]) is None

    @pytest.mark.parametrize(
        "sentences, wrong, place",
        [
            (["B-PER I-PER O O", "O PER"], "PER", (1, 1)),
            (["B-PER O", "O O", "B O"], "B", (2, 0)),
            (["B-PER E-PER O S-LOC", "U-PER L-PER"], "U-PER", (1, 0)),
            (["B-PER O", "O O "], "O ", (1, 1)),
            (["B-PER I-PER", "b-PER O"], "b-PER", (1, 0)),
            (["o b-per", "o i-per"], "o", (0, 0)),
            (["O B_PER I_PER"], "B_PER", (0, 1)),
            (["B-PER O", "- O"], "-", (1, 0)),
            (["0 0 0 0 B-PER I-PER 0"], "0", (0, 0)),
        ],
    )
    def test_mixed_schemes_are_refused(self, sentences, wrong, place):
        sentences = [tags.split(" ") for tags in sentences]
        sentences = [[*tags[:-2], "O "] if tags[-1] == "" else tags for tags in sentences]
        expected = re.escape(f"Received: {wrong!r} as sentence {place[0]}, word {place[1]}") + "$"
        with pytest.raises(ValueError, match=expected):
            metrics.tag_scheme(sentences)
        with pytest.raises(ValueError, match="^f:7: .*Received: " + re.escape(repr(wrong)) + "$"):
            metrics.tag_scheme(sentences, lambda i, j: "f:7" if (i, j) == place else "wrong")

    @pytest.mark.parametrize(
        "sentences, received, place, count",
        [
            (["B-A E-A S-A", "O B-A O", "I-A O"], "'B-A' before 'O'", (1, 1), 2),
            (["B-A E-A", "O O I-A E-A"], "'I-A' after 'O'", (1, 2), 1),
            (["S-A", "E-A O"], "'E-A' at the start of a sentence", (1, 0), 1),
            (["S-A O", "O S-A B-A"], "'B-A' at the end of a sentence", (1, 2), 1),
            (["B-A I-A E-A", "B-A E-B O"], "'B-A' before 'E-B'", (1, 0), 2),
            (["B-A L-A U-A", "B-A I-A O"], "'I-A' before 'O'", (1, 1), 1),
            (["B-A L-A", "U-A L-A"], "'L-A' after 'U-A'", (1, 1), 1),
            (["B-A M-A E-A S-A", "M-A E-A"], "'M-A' at the start of a sentence", (1, 0), 1),
            (["B M E S", "B S"], "'B' before 'S'", (1, 0), 1),
        ],
    )
    def test_spans_without_an_end_are_refused(self, sentences, received, place, count):
        sentences = [tags.split() for tags in sentences]
        wanted = f"{received}, the first of {count} such tags"
        at = f" as sentence {place[0]}, word {place[1]}"
        with pytest.raises(ValueError, match=re.escape(f"Received: {wanted}{at}") + "$"):
            metrics.tag_scheme(sentences)
        with pytest.raises(ValueError, match=f"^f:7: In .*{re.escape(wanted)}$"):
            metrics.tag_scheme(sentences, lambda i, j: "f:7" if (i, j) == place else "wrong")
        # Predictions may break the scheme. conlleval reads both sides in the same way.
        assert span_f1(sentences, sentences) == 1.0

    def test_span_f1_refuses_tags_outside_a_scheme(self):
        with pytest.raises(ValueError, match="word_accuracy.*'NOUN' as sentence 0, word 1"):
            span_f1([["O", "NOUN"]], [["O", "O"]])
        with pytest.raises(ValueError, match="'U-A' as sentence 1, word 0"):
            span_f1([["B-A", "E-A"], ["U-A"]], [["O", "O"], ["O"]])
        assert span_f1([["O", "O"]], [["O", "O"]]) == 0.0


def test_iob1_and_iob2_tags_have_equal_spans():
    assert span_f1([["B-ORG", "I-ORG"]], [["I-ORG", "I-ORG"]]) == 1.0
    total = span_scores(GOLD, GUESS)["all"]
    # ORG is found. MISC begins too early. One long PER replaces two adjacent ones.
    assert (total["true"], total["found"], total["correct"]) == (4, 3, 1)


def test_span_scores_of_the_conll2003_test_set(data):
    from keras_plm.data.formats.conll import read_conll

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
    for score in (metrics.pearson_correlation, metrics.spearman_correlation):
        assert score(x, np.ones(30)) == score([2] * 30, y) == 0  # SciPy returns NaN


def test_matthews_correlation_equals_scikit_learn():
    from sklearn.metrics import matthews_corrcoef

    rng = np.random.default_rng(2)
    for labels in (1, 2, 3, 7):
        gold, guess = rng.integers(0, labels, (2, 30)).astype(str)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a single label
            assert metrics.matthews_correlation(gold, guess) == matthews_corrcoef(gold, guess)


def test_matthews_correlation_of_many_labels_needs_no_matrix():
    labels = [f"label {i}" for i in range(50_000)]  # their confusion matrix would take 20 GB
    assert metrics.matthews_correlation(labels, labels) == 1


def test_bad_input_is_explained():
    for score in (metrics.accuracy, metrics.f1, metrics.span_f1, metrics.pearson_correlation):
        with pytest.raises(ValueError, match="one prediction per truth"):
            score([1], [])
    with pytest.raises(ValueError, match="2 and 1 tags in sentence 0"):
        span_f1([["O", "O"]], [["O"]])
    for name in ("all", "accuracy"):
        with pytest.raises(ValueError, match=f"name of a total.*Received: the type '{name}'"):
            span_f1([[f"B-{name}", "B-X"]], [["O", "B-X"]])
    with pytest.raises(ValueError, match="needs two classes"):
        metrics.f1([0, 1, 2], [0, 1, 2])
    # A label that training lacks counts as an error: 1 hit, 1 miss, 1 false positive.
    assert metrics.f1(["no", "yes", "new", "yes"], ["no", "yes", "yes", "no"], "yes") == 0.5
    with pytest.raises(ValueError, match="needs `positive`"):
        metrics.f1([0, 0], [0, 0])
    assert metrics.f1([0, 0], [0, 0], positive=1) == 0.0
    for labels, positive in (([0, 1], "1"), (["no", "yes"], "Yes")):
        with pytest.raises(ValueError, match="`positive` must be written like its class"):
            metrics.f1(labels, labels, positive=positive)
    with pytest.raises(ValueError, match="`positive` must be written like its class"):
        metrics.f1(["no", "yes"], ["no", "Yes"], positive="yes")
    for score in (metrics.accuracy, metrics.f1, metrics.matthews_correlation):
        with pytest.raises(ValueError, match=r"strings on both sides.*Received: '1' and 1"):
            score(["1", "0"], [1, 0])
    assert metrics.f1(["no", "maybe"], ["maybe", "no"], positive="yes") == 0.0


def test_bleu_by_hand():
    truth = ["the cat sat on the red mat", "a dog barks at night"]
    guess = ["the cat sat on the the mat", "a dog barks"]
    # n-grams of the translations that are in their references, of all n-grams. Words: "the" counts
    # twice, as often as in the reference. Pairs: "the the" and "the mat" are missing.
    precisions = [(6 + 3) / (7 + 3), (4 + 2) / (6 + 2), (3 + 1) / (5 + 1), (2 + 0) / (4 + 0)]
    brevity = math.exp(1 - (7 + 5) / (7 + 3))
    expected = 100 * brevity * math.prod(precisions) ** (1 / 4)
    assert metrics.bleu(truth, guess) == pytest.approx(expected)
    assert metrics.bleu(truth, truth) == pytest.approx(100)
    # Longer translations only lose precision.
    longer = metrics.bleu(["a dog barks at night"], ["a dog barks at night now"])
    assert longer == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** (1 / 4))


def test_bleu_agrees_with_sacrebleu(caplog):
    sacrebleu = pytest.importorskip("sacrebleu")
    rng = np.random.default_rng(2)
    words = ["Häuser,", "das", "Kind", "3.5%", "lief", "und", "(nie)"]
    first, second, guess = (
        [" ".join(rng.choice(words, n)) + " ." for n in rng.integers(3, 9, 101)] for _ in range(3)
    )
    with caplog.at_level(logging.WARNING):
        one = metrics.bleu(first, guess)
        two = metrics.bleu([list(pair) for pair in zip(first, second, strict=True)], guess)
        # From the fortieth sentence on, there is only the first reference.
        some = metrics.bleu([*map(list, zip(first, second[:40], strict=False)), *first[40:]], guess)
    assert not caplog.records
    score = sacrebleu.corpus_bleu
    assert one == pytest.approx(score(guess, [first], force=True).score)
    assert two == pytest.approx(score(guess, [first, second], force=True).score)
    fewer = [first, second[:40] + [None] * 61]
    assert some == pytest.approx(score(guess, fewer, force=True).score)
    assert 0 < one < some < two < 100
    assert metrics.bleu(tuple(first), tuple(guess)) == one


def test_bleu_signature():
    sacrebleu = pytest.importorskip("sacrebleu")
    bleu = sacrebleu.metrics.BLEU()
    bleu.corpus_score(["a b"], [["a b"]])
    assert metrics.bleu_signature() == str(bleu.get_signature())
    assert metrics.bleu_signature(references=3).startswith("nrefs:3|")


def test_bad_translations_are_explained(monkeypatch):
    with pytest.raises(ValueError, match="1 truths and 2 predictions"):
        metrics.bleu(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="at least one"):
        metrics.bleu([], [])
    with pytest.raises(ValueError, match="`y_pred` must be a list of sentences.*y_pred='a b'"):
        metrics.bleu(["a b"], "a b")
    with pytest.raises(ValueError, match="`y_true` must be a list of sentences"):
        metrics.bleu("a b", ["a b"])
    for truth, guess in ((["a", []], ["a", "b"]), (["a", "b"], ["a", ["b"]])):
        with pytest.raises(ValueError, match="all strings.*as sentence 1"):
            metrics.bleu(truth, guess)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match="pip install sacrebleu"):
        metrics.bleu(["a"], ["a"])


class TestSquad:
    """Expected values come from the official scripts (REFERENCE 4.7)."""

    @pytest.mark.parametrize(
        "guess, gold, exact, f1, f1_of_version_2",
        [
            ("The Denver Broncos!", "denver broncos", 1, 1, 1),
            ("Santa Clara", "Santa Clara, California", 0, 0.8, 0.8),
            ("gold", "Gold themed", 0, 2 / 3, 2 / 3),
            ("10th and 11th centuries", "the 10th-11th centuries", 0, 1 / 3, 1 / 3),
            ("U.S.", "US", 1, 1, 1),
            ("a", "the", 1, 0, 1),
            ("", "", 1, 0, 1),
        ],
    )
    def test_squad_scores_of_single_answers(self, guess, gold, exact, f1, f1_of_version_2):
        for version, wanted in ((1, f1), (2, f1_of_version_2)):
            assert metrics.squad_exact_match([[gold]], [guess], version) == exact
            assert metrics.squad_f1([[gold]], [guess], version) == pytest.approx(wanted)

    def test_squad_scores_equal_allennlp(self):
        golds = [
            "Saint Bernadette Soubirous", "a golden statue of the Virgin Mary", "1882",
            "Father Julius Nieuwland", "an early wind tunnel",
        ]  # fmt: skip
        guesses = ["Saint Bernadette Soubirous", "a", "1882", "Father", "an early wind tunnel"]
        golds = [[gold] for gold in golds]
        assert metrics.squad_exact_match(golds, guesses) == pytest.approx(0.6)
        assert metrics.squad_f1(golds, guesses) == pytest.approx(0.7)

    def test_the_best_gold_answer_counts(self):
        golds = [["x y z", "x"], ["no", "u v"]]
        assert metrics.squad_exact_match(golds, ["x", "u w"]) == 0.5
        assert metrics.squad_f1(golds, ["x", "u w"]) == pytest.approx(0.75)

    def test_version_2_ignores_golds_that_normalize_to_empty_text(self):
        assert metrics.squad_f1([["the", "cat"]], [""], version=2) == 0.0
        assert metrics.squad_exact_match([["the", "cat"]], [""], version=1) == 1.0
        assert metrics.squad_f1([["the"], []], ["", ""], version=2) == 1.0
        assert metrics.squad_exact_match([[]], ["cat"], version=2) == 0.0

    def test_articles_are_removed_after_punctuation(self):
        assert metrics.normalize_answer("A.n a-n an, theory") == "theory"
        assert metrics.normalize_answer("«The» É") == "« » é"  # only ASCII punctuation is removed

    @pytest.mark.parametrize(
        "golds, guesses, options, match",
        [
            ([["a"]], [], {}, "one prediction per truth"),
            (["a"], ["a"], {}, "list of gold answers and one answer.*'a' and 'a' as question 0"),
            ([["a"]], [None], {}, "None as question 0"),
            ([[]], ["a"], {}, "every question needs a gold answer.*version=2"),
            ([["a"]], ["a"], {"version": "2.0"}, "`version` of SQuAD must be 1 or 2"),
        ],
    )
    def test_bad_input(self, golds, guesses, options, match):
        with pytest.raises(ValueError, match=match):
            metrics.squad_f1(golds, guesses, **options)
