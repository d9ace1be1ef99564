"""One unusual example does not abort training, prediction or feature extraction."""

import warnings

import numpy as np
import pytest

from keras_plm.data.packing import PackedExamples
from keras_plm.data.passages import Windows
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, MultipleChoice, Regressor, SpanFinder, Tagger
from keras_plm.metrics import word_accuracy
from keras_plm.models import BERT, WordVectors
from keras_plm.tokenizers import Characters
from keras_plm.transfer import FeatureBased, FineTune, extract_features
from tests.helpers.small_passages import PIECES
from tests.helpers.small_runs import LETTERS, TOKENIZER

pytestmark = pytest.mark.backend_neutral
FAST = {"epochs": 1, "batch_size": 8}
LONG = " ".join(LETTERS * 7)  # 56 tokens, where the encoder reads 12


def encoder():
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    return BERT(13, **size, max_sequence_length=12)


def usual(kind, count=8):
    return {
        "texts": lambda i: Example("a b", "yn"[i % 2]),
        "pairs": lambda i: Example("a b", "yn"[i % 2], pair="c d"),
        "scores": lambda i: Example("a b", float(i % 3), pair="c d"),
        "words": lambda i: Example(["a", "b"], ["X", "Y"]),
        "choices": lambda i: Example("a", i % 2, choices=["b", "c"]),
        "answers": lambda i: Example("a", ["c"], pair="b c d", starts=[2]),
    }[kind], count


ODD = {
    "texts": [Example("", "y"), Example(" ", "y"), Example(LONG, "y")],
    "pairs": [Example(*two, pair=pair) for *two, pair in
              [("", "y", "a"), ("a", "y", ""), ("", "y", ""), (LONG, "y", "a"), ("a", "y", LONG)]],
    "scores": [Example("", 1.0, pair="a"), Example("a", 1.0, pair=LONG)],
    "words": [Example([], []), Example(["a", "", "b"], ["X", "Y", "X"]),
              Example(LONG.split(), ["X"] * 56), Example([LETTERS[0] * 99], ["X"])],
    "choices": [Example("", 1, choices=["a", ""]), Example(LONG, 0, choices=[LONG, "a"])],
    "answers": [Example(LONG, ["a"], pair="a b", starts=[0]),
                Example("b", [], pair="a b", starts=[]),
                Example("b", ["a"], pair=f"a {LONG}", starts=[0])],
}  # fmt: skip
IN_FULL = (pytest.mark.full, pytest.mark.split_to("torch"))  # networks that build slowly
CASES = [
    (FineTune(**FAST), Classifier, "texts"),
    (FeatureBased(**FAST), Classifier, "texts"),
    (FeatureBased(reader="bcn", units=4, **FAST), Classifier, "texts"),
    (FineTune(**FAST), Classifier, "pairs"),
    pytest.param(FeatureBased(reader="esim", units=4, **FAST), Classifier, "pairs", marks=IN_FULL),
    (FineTune(**FAST), Regressor, "scores"),
    (FineTune(**FAST), Tagger, "words"),
    pytest.param(
        FeatureBased(reader="bilstm", units=4, character_filters=4, **FAST),
        CRFTagger,
        "words",
        marks=IN_FULL,
    ),
    (FineTune(**FAST), MultipleChoice, "choices"),
    (FineTune(**FAST), SpanFinder, "answers"),
    pytest.param(
        FeatureBased(reader="bidaf", units=4, **FAST), SpanFinder, "answers", marks=IN_FULL
    ),
]


@pytest.mark.parametrize("method, head, kind", CASES)
@pytest.mark.filterwarnings("ignore:Rows have at most")
def test_training_and_prediction_accept_odd_rows(method, head, kind):
    make, count = usual(kind)
    rows = [make(i) for i in range(count)]
    model = method.fit(encoder(), head, TOKENIZER, [*rows, *ODD[kind]], [*rows[:2], *ODD[kind]])
    predicted = model.predict([rows[0], *ODD[kind]])
    assert len(predicted) == 1 + len(ODD[kind])
    if kind == "words":
        assert [len(tags) for tags in predicted[1:]] == [len(e.text) for e in ODD[kind]]
    for example in ODD[kind]:  # one at a time
        assert len(model.predict([example])) == 1


@pytest.mark.filterwarnings("ignore:Rows have at most")
def test_odd_texts_have_features():
    texts = [e.text for e in ODD["texts"]]
    assert np.isfinite(extract_features(encoder(), TOKENIZER, texts, pool="mean")).all()
    words = [e.text for e in ODD["words"]]
    found = extract_features(encoder(), TOKENIZER, words, pool=None)
    assert [len(rows) for rows in found] == [len(row) for row in words]


@pytest.mark.parametrize("pool", ["mean", "max", "last"])
def test_features_of_a_text_without_tokens_are_zeros(pool):
    vectors = WordVectors.from_vectors(["a", "b"], np.eye(2, dtype="float32"))
    found = extract_features(vectors, vectors.tokenizer(), ["a", "", " "], pool=pool)
    np.testing.assert_array_equal(found, [[1, 0], [0, 0], [0, 0]])


def test_word_accuracy_ignores_empty_sentences():
    assert word_accuracy([[], ["X", "Y"]], [[], ["X", "X"]]) == 0.5
    with pytest.raises(ValueError, match="Received: 1 and 0 tags in sentence 1"):
        word_accuracy([["X"], ["X"]], [["X"], []])


def test_truncated_texts_cause_a_warning():
    texts = [Example("a", where="f:1"), Example(LONG, where="f:2"), Example(LONG, where="f:3")]
    message = r"max_length=12 tokens: the texts of 2 of 3 examples were cut, by 92 .* first is f:2"
    with pytest.warns(UserWarning, match=message):  # 2 (56 - 10)
        PackedExamples(texts, TOKENIZER, max_length=12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PackedExamples(texts[:1], TOKENIZER, max_length=12)
        # Words to tag are split into windows.
        PackedExamples([Example(LONG.split(), ["X"] * 56)], TOKENIZER, ["X"], 12)


@pytest.mark.parametrize(
    "tokenizer, apart, max_length, kept",
    [(PIECES, False, 23, 10), (PIECES, False, 200, 200), (PIECES, False, 303, 64),
     (Characters(), True, 23, 10), (Characters(), True, 303, 64)],
)  # fmt: skip
def test_long_questions_are_truncated_with_a_warning(tokenizer, apart, max_length, kept):
    """Questions are truncated to 64 tokens as in run_squad.py, or to half of a row if shorter."""
    words = (LETTERS * 50)[: 150 if kept == 200 else 300]
    asked = Example(" ".join(words), ["c d"], pair="a b c d", starts=[4], where="f:7")
    others = [Example("a b", ["a"], pair="a b c d", starts=[0])]
    if kept == 200:  # the question fits
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            windows = Windows([asked], tokenizer, max_length, apart=apart)
        assert windows.cut_to is None and windows.asked.tolist() == [150]
        return
    message = rf"questions of 1 of 2 examples were cut, by {300 - kept} tokens .* first is f:7"
    with pytest.warns(UserWarning, match=message):
        windows = Windows([*others, asked], tokenizer, max_length, apart=apart)
    assert windows.asked.tolist() == [2, kept] and windows.lengths.max() <= max_length
    x, y, _ = windows.batches(training=False)[0]
    shown = Windows([Example(" ".join(words[:kept]), ["c d"], "a b c d", starts=[4])],
                    tokenizer, max_length, apart=apart)  # fmt: skip
    alone, target, _ = shown.batches(training=False)[0]
    name = "token_ids" if "token_ids" in x else "character_ids"
    (row,) = (row for row, n in enumerate(y.tolist()) if n == target[0].tolist())
    assert (x[name][row] == alone[name][0]).all()
