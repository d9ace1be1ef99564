"""Rows of questions and passages, compared with explicit loops and on real passages."""

import numpy as np
import pytest

from keras_plm.data.formats.squad import read_squad
from keras_plm.data.passages import Windows
from keras_plm.data.task import Example
from keras_plm.tokenizers import BytePair, Characters, Words
from tests.helpers.small_passages import PAIRS, PIECES, asked

pytestmark = pytest.mark.backend_neutral


def expected(examples, tokenizer, max_length, stride):
    """Computes `(token ids, example, first, begin, null, target, own tokens)` of rows in loops."""
    rows = []
    for i, example in enumerate(examples):
        whole = tokenizer.encode([example.text], [example.pair], return_offsets=True)
        ids, segments = whole.token_ids.tolist(), whole.word_ids.tolist()
        specials = [t for t, word in enumerate(segments) if word < 0]
        head, tail = ids[: specials[1] + 1], ids[specials[2] :]
        passage = ids[specials[1] + 1 : specials[2]]
        offsets = whole.offsets[specials[1] + 1 : specials[2]].tolist()
        room = max_length - len(head) - len(tail)
        step = min(stride, (room + 1) // 2)
        spans, begin = [], 0
        while True:  # as in run_squad.py
            length = min(len(passage) - begin, room)
            spans.append((begin, length))
            if begin + length == len(passage):
                break
            begin += step
        null = 0 if tokenizer is PIECES else None
        for number, (begin, length) in enumerate(spans):
            row = head + passage[begin : begin + length] + tail
            at = len(row) - 1 if null is None else null
            target = (at, at)
            if example.label:
                start, end = example.starts[0], example.starts[0] + len(example.label[0])
                touched = [t for t, (a, b) in enumerate(offsets) if a < end and b > start]
                if begin <= touched[0] and touched[-1] < begin + length:
                    target = tuple(len(head) + t - begin for t in (touched[0], touched[-1]))
            own = []
            for t in range(begin, begin + length):
                best, score = None, -1.0
                for other, (b, n) in enumerate(spans):
                    if b <= t < b + n:
                        context = min(t - b, b + n - 1 - t) + 0.01 * n
                        if context > score:
                            best, score = other, context
                if best == number:
                    own.append(len(head) + t - begin)
            rows.append((row, i, len(head), begin, at, target, own))
    return rows


@pytest.mark.parametrize("max_length, stride", [(61, 128), (19, 128), (23, 5), (17, 1), (13, 3)])
@pytest.mark.parametrize("tokenizer", [PIECES, PAIRS], ids=["bert", "gpt"])
def test_window_rows_equal_explicit_loops(tokenizer, max_length, stride):
    examples = asked(np.random.default_rng(max_length))
    windows = Windows(examples, tokenizer, max_length, stride)
    wanted = expected(examples, tokenizer, max_length, stride)
    assert len(windows) == len(wanted)
    rows = np.arange(len(windows))
    x, y, weights = windows.collate(rows, max_length, None, 0)
    own = windows.context_mask(rows, max_length)
    for r, (ids, example, first, begin, null, target, tokens) in enumerate(wanted):
        assert x["token_ids"][r, x["padding_mask"][r]].tolist() == ids
        found = (windows.examples_of[r], windows.first[r], windows.begins[r], windows.null[r])
        assert found == (example, first, begin, null)
        assert tuple(y[r]) == target
        assert np.flatnonzero(own[r]).tolist() == tokens
        allowed = sorted({null, *range(first, first + windows.counts[r])})
        assert np.flatnonzero(x["answer_mask"][r]).tolist() == allowed
    if "segment_ids" in x:
        row = PIECES.pack([examples[0].text], [examples[0].pair], max_length=max_length)
        assert set(row["segment_ids"][0]) == {0, 1}
        np.testing.assert_array_equal(
            x["segment_ids"], (np.arange(max_length) >= windows.first[:, None]) & x["padding_mask"]
        )
    assert weights.shape == y.shape and (weights == 1).all()


def test_context_mask_assigns_each_token_to_one_window():
    windows = Windows(asked(np.random.default_rng(0)), PIECES, 17, 4)
    own = windows.context_mask(np.arange(len(windows)), 17)
    for i in range(windows.examples_of[-1] + 1):
        rows = np.flatnonzero(windows.examples_of == i)
        found = [
            t - windows.first[r] + windows.begins[r] for r in rows for t in np.flatnonzero(own[r])
        ]
        total = windows.begins[rows[-1]] + windows.counts[rows[-1]]
        assert found == list(range(total))


def test_batches_contain_every_row_once():
    examples = asked(np.random.default_rng(3))
    windows = Windows(examples, PIECES, 29, 7)
    source = windows.batches(training=False, batch_size=4)
    seen = []
    for i in range(len(source)):
        x, y, weights = source[i]
        rows = source.rows(i)
        seen += rows[rows >= 0].tolist()
        for b, row in enumerate(rows):
            if row >= 0:
                assert tuple(y[b]) == tuple(windows.targets[row])
                assert x["padding_mask"][b].sum() == windows.lengths[row]
    assert sorted(seen) == list(range(len(windows))) and source.source is windows
    unlabelled = Windows([Example(e.text, pair=e.pair) for e in examples], PIECES, 29, 7)
    assert unlabelled.targets is None and len(unlabelled.batches(training=False)[0]) == 1


@pytest.mark.full
def test_targets_of_real_passages_map_back_to_answers(data):
    import keras_plm.tokenizers as tokenizers

    pieces = tokenizers.WordPiece.load(data("vocabularies") / "bert_uncased_vocab.txt")
    examples = read_squad(data("squad/dev-v1.1.json.gz"))[:2000]
    windows = Windows(examples, pieces)
    answered = np.flatnonzero(windows.targets[:, 0] != windows.null)
    assert set(windows.examples_of[answered]) == set(range(2000))  # in one window at least
    tokens = windows.targets - windows.first[:, None] + windows.begins[:, None]
    begins, ends = windows.offsets(windows.examples_of, *np.maximum(tokens, 0).T)
    same = 0
    for row in answered:
        example = examples[windows.examples_of[row]]
        text = example.pair[begins[row] : ends[row]]
        assert example.label[0].strip() in text  # "gold" of "golden": a token is not split
        same += text == example.label[0]
    assert same / len(answered) > 0.99


@pytest.mark.parametrize(
    "example, options, match",
    [
        (Example("a"), {}, r"example 0: A question and its passage must be texts.*None as passage"),
        (Example("a", pair=" "), {}, r"Received: ' ' as passage"),
        (Example(" ", pair="a", where="f.json: question 7"), {}, r"f.json: question 7: .*question"),
        (Example("a b c d", pair="e"), {"max_length": 4}, r"max_length=4 .*question of 4 tokens"),
        (Example("a", pair="\u200b"), {}, r"A passage must have at least one token.*passage of 0"),
        (
            Example("a", ["\u200b"], "a \u200b b", starts=[2]),
            {},
            r"An answer must have at least one token",
        ),
        (Example("a", pair="b"), {"stride": 0}, r"`stride` must be a whole number, 1 or more"),
    ],
    ids=range(7),
)
def test_windows_refuse_bad_examples_and_options(example, options, match):
    with pytest.raises(ValueError, match=match):
        Windows([example], PIECES, **options)


def test_lists_and_labels_are_checked():
    with pytest.raises(ValueError, match="Give a list of at least one question"):
        Windows([], PIECES)
    with pytest.raises(ValueError, match="Give a list of questions .*Received: examples='a' of"):
        Windows("a", PIECES)
    with pytest.raises(TypeError, match="`tokenizer` must be"):
        Windows([Example("a", pair="b")], None)
    mixed = [Example("a", [], "b", starts=[]), Example("a", pair="b")]
    with pytest.raises(ValueError, match="by `starts=..`. Received: starts=None in example 1"):
        Windows(mixed, PIECES)


@pytest.mark.parametrize(
    "tokenizer",
    [Characters(), Words(["[PAD]", "[UNK]", "[EOS]", "a"]), PAIRS.unframed()],
    ids=["elmo", "words", "gpt"],
)
def test_tokenizers_without_pairs_are_refused(tokenizer):
    with pytest.raises(
        ValueError, match="must pack question and passage into one row.*packs one text per row"
    ):
        Windows([Example("a", pair="b")], tokenizer)


def test_tokenizer_without_no_answer_token_is_refused():
    bare = BytePair(PAIRS.vocabulary, [], scheme="gpt", special_tokens=["_delimiter_", "_pad_"])
    with pytest.raises(ValueError, match="stands for no answer.*BytePair without one"):
        Windows([Example("a", pair="b")], bare)
