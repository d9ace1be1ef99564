"""Rows with the sentences of a document, and rows of whole documents in windows."""

import json

import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.documents import DocumentRows, join_sentences, part_sentences
from keras_plm.data.task import Example
from keras_plm.models import BERT
from keras_plm.tokenizers import Characters, WordPiece

pytestmark = pytest.mark.backend_neutral

WORDS = "a cat sat on the mat".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]


def sentence(rng, group):
    words = [rng.choice(WORDS) + "s" * rng.integers(2) for _ in range(rng.integers(1, 6))]
    return Example(words, ["N" if word == "cat" else "O" for word in words], group=group)


@pytest.mark.parametrize("max_length", [3, 7, 12, 100])
@pytest.mark.parametrize("tokenizer", [WordPiece(PIECES), Characters()])
def test_join_sentences_fills_rows_up_to_max_length(tokenizer, max_length):
    rng = np.random.default_rng(0)
    examples = [sentence(rng, group) for group in [None, *"aabbbbbb", None, None, *"ccaaa"]]
    joined, counts = join_sentences(examples, tokenizer, max_length)

    def length(words):
        return int(tokenizer.encode([words]).lengths[0])

    again, first = [], 0
    for row, sizes in zip(joined, counts, strict=True):
        own = examples[first : first + len(sizes)]
        first += len(sizes)
        assert sizes == [len(e.text) for e in own] and len({e.group for e in own}) == 1
        assert row.text == [word for e in own for word in e.text] and row.group == own[0].group
        assert len(own) == 1 or (row.group and length(row.text) <= max_length)
        if first < len(examples) and examples[first].group == row.group is not None:
            assert length(row.text + examples[first].text) > max_length
        again.append(row.label)
    assert part_sentences(again, counts) == [e.label for e in examples]
    shares = [np.zeros((sum(sizes), 3)) for sizes in counts]
    parted = part_sentences(shares, counts)
    assert [part.shape for part in parted] == [(len(e.text), 3) for e in examples]


def test_join_and_part_sentences_refuse_bad_input():
    tokenizer, words = WordPiece(PIECES), Example(["a"], ["O"])
    for examples, length, match in (
        ([Example("a", "x")], 9, "must be a list of words"),
        ([words], 2, "must have room for more than its 2 special tokens.*max_length=2"),
    ):
        with pytest.raises(ValueError, match=match):
            join_sentences(examples, tokenizer, length)
    with pytest.raises(ValueError, match="1 tags of 2 words"):
        part_sentences([["O"]], [[1, 1]])
    assert join_sentences([], tokenizer, 9) == ([], [])
    assert join_sentences([Example(["a"])], tokenizer, 9)[0][0].label is None


@pytest.mark.full
@pytest.mark.parametrize("method, epochs", [("fine_tune", 1), ("features", 12)])
def test_harness_scores_each_sentence_of_a_document_row(method, epochs, tmp_path, capsys):
    """The meaning of a word depends on the previous sentence."""
    rng, lines = np.random.default_rng(0), []
    for i in range(60):
        kind = ["PER", "LOC"][rng.integers(2)]
        lines += ["-DOCSTART- O", "", f"{'cat' if kind == 'PER' else 'mat'} O", "", "the O",
                  f"sat I-{kind}", f"a{i} O", ""]  # fmt: skip
    (tmp_path / "wikigold").mkdir()
    (tmp_path / "wikigold" / "wikigold.conll.txt").write_text("\n".join(lines) + "\n")
    keras_plm.save(tmp_path / "e", BERT(len(PIECES), 1, 2, 16, 32, dropout=0.0), WordPiece(PIECES))
    command = ["run", "--task", "wikigold", "--data", str(tmp_path), "--encoder",
               str(tmp_path / "e"), "--results", str(tmp_path / "r"), "--feature-cache",
               str(tmp_path / "f"), "--seeds", "1", "--learning-rates", "1e-2",
               "--epochs", str(epochs), "--reader", "bilstm",
               "--dropout", "0", "--batch-size", "4", "--method", method]  # fmt: skip
    scores = {}
    for tokens in ("0", "16"):
        assert main([*command, "--document-tokens", tokens]) == 0
    for path in (tmp_path / "r").glob("**/*.seed0.json"):
        result = json.loads(path.read_text())
        scores[result["settings"].get("document_tokens", 0)] = result["score"]
        assert result["counts"]["test"] == result["counts"]["train"] * 15 // 70
    assert set(scores) == {0, 16} and (epochs == 1 or scores[16] > 0.9 > scores[0])
    capsys.readouterr()
    for limit in ("--train-limit", "--dev-limit"):
        assert main([*command, "--document-tokens", "16", limit, "5"]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert "omit `train_limit` and `dev_limit`" in shown


def document(rng, count):
    """Returns a document of `count` sentences."""
    sentences = [sentence(rng, "d").text for _ in range(count)]
    return Example(sum(sentences, []), sentences=[len(words) for words in sentences])


class TestDocumentRows:
    @pytest.mark.parametrize("max_length", [4, 7, 12, 100, None])
    def test_positions_find_the_tokens_of_all_words(self, max_length):
        rng, tokenizer = np.random.default_rng(0), WordPiece(PIECES)
        examples = [document(rng, count) for count in (1, 9, 4, 30)]
        rows = DocumentRows(examples, tokenizer, max_length)
        source = rows.batches(training=False, batch_size=2)
        for i in range(len(source)):
            (x,) = source[i]
            longest = 1 + 2 + max_length if max_length else None
            assert longest is None or x["token_ids"].shape[2] <= longest
            for b, row in enumerate(source.rows(i)):
                words = examples[row].text
                ids = x["token_ids"][b].ravel()[x["word_positions"][b, : len(words)]]
                expected = [tokenizer.encode([[word]]).token_ids[1] for word in words]
                assert ids.tolist() == expected
                assert (x["word_positions"][b, len(words) :] == -1).all()
                sizes = examples[row].sentences
                ids = np.repeat(np.arange(len(sizes)), sizes)
                assert x["sentence_ids"][b, : len(words)].tolist() == ids.tolist()

    def test_windows_end_between_sentences_that_fit(self):
        words = list("a cat a cat a cat a cat a cat a".split())
        rows = DocumentRows([Example(words, sentences=[2, 2, 6, 1])], WordPiece(PIECES), 6)
        (x,) = rows.batches(training=False)[0]
        # Four words fit next to [CLS] and [SEP]: two sentences, then parts of the long one.
        assert (x["token_ids"][0] > 3).sum(axis=1).tolist() == [4, 4, 3]
        (x,) = DocumentRows([Example(words, sentences=[2, 2, 6, 1])], Characters(), None).batches(
            training=False
        )[0]
        sizes = x["padding_mask"][0].sum(axis=1)
        assert (sizes - sizes.min()).tolist() == [1, 1, 5, 0]

    def test_a_bucket_has_one_number_of_windows(self):
        rng = np.random.default_rng(1)
        examples = [document(rng, 8) for _ in range(12)]
        source = DocumentRows(examples, WordPiece(PIECES), 9).batches(buckets=1)
        assert len({x["token_ids"].shape for (x,) in source}) == 1

    def test_documents_without_sentences_are_refused(self):
        with pytest.raises(ValueError, match="f:3: Coreference needs the sentences"):
            DocumentRows([Example(["a"], where="f:3")], WordPiece(PIECES), 9)
