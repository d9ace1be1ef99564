"""Token streams from raw text."""

import gzip
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from keras_plm.data import corpus_writer as stream_files
from keras_plm.data.corpus import TokenStream, read_ids, split_sentences
from keras_plm.tokenizers import WordPiece, Words, open_text
from keras_plm.tokenizers.subwords import KnownChunks

pytestmark = pytest.mark.backend_neutral

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "."])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.txt").write_text("a b .\nb .\n\n\nc c c .\n")
    with gzip.open(tmp_path / "two.txt.gz", "wt") as file:
        file.write("a .\n")
    return [tmp_path / "one.txt", tmp_path / "two.txt.gz"]


def test_documents_end_at_blank_lines_and_files(files, tmp_path):
    stream = TokenStream.build(files, TOKENIZER, tmp_path / "stream", sentences="lines")
    assert stream.tokens[:].tolist() == [5, 6, 8, 6, 8, 7, 7, 7, 8, 5, 8]
    assert stream.sentences.tolist() == [0, 3, 5, 9, 11]
    assert stream.documents.tolist() == [0, 2, 3, 4]
    assert stream.description["tokens"] == 11 and stream.description["documents"] == 3
    assert names(tmp_path) == ["one.txt", "stream", "two.txt.gz"]


def test_stream_is_rebuilt_only_when_files_change(files, tmp_path):
    folder = tmp_path / "stream"
    TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    before = (folder / "tokens.00000.bin").stat().st_mtime_ns
    TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    assert (folder / "tokens.00000.bin").stat().st_mtime_ns == before
    files[0].write_text("b b .\n")
    stream = TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    assert stream.tokens[:].tolist() == [6, 6, 8, 5, 8]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def unfinished(folder):
    """Returns the folder that a stopped call left."""
    (found,) = folder.glob(".stream.*.tmp")
    return found


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(stream_files, "BLOCK", 3)


def assert_same(one, other):
    for name in ("tokens", "sentences", "documents"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def many(tmp_path, count=300):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abc."), rng.integers(0, 9))) for _ in range(count)]
    (tmp_path / "many.txt").write_text("\n".join(lines))
    return [tmp_path / "many.txt"]


@pytest.mark.parametrize("options", [{}, {"shard_tokens": 100}])
def test_blocks_and_shards_build_the_same_stream(options, tmp_path, monkeypatch):
    files = many(tmp_path)
    whole = TokenStream.build(files, TOKENIZER, tmp_path / "whole", "lines")
    assert len(whole.documents) > 20 and len(whole.description["shards"]) == 1
    monkeypatch.setattr(stream_files, "BLOCK", 50)
    parts = TokenStream.build(files, TOKENIZER, tmp_path / "parts", "lines", **options)
    assert (len(parts.description["shards"]) > 5) == bool(options)
    assert_same(whole, parts)
    tokens, places = np.asarray(whole.tokens), np.array([[0, 99, 100], [101, 500, -1]])
    np.testing.assert_array_equal(parts.tokens[places], tokens[places])
    np.testing.assert_array_equal(parts.tokens[90:230:3], tokens[90:230:3])
    assert len(parts.tokens) == len(tokens) and parts.tokens.dtype == tokens.dtype
    with pytest.raises(IndexError):
        parts.tokens[np.array([len(tokens)])]


@pytest.mark.full
def test_workers_build_the_same_stream(tmp_path, monkeypatch):
    files = many(tmp_path)
    whole = TokenStream.build(files, TOKENIZER, tmp_path / "whole", "lines")
    monkeypatch.setattr(stream_files, "BLOCK", 200)
    parts = TokenStream.build(files, TOKENIZER, tmp_path / "parts", "lines", workers=2)
    assert_same(whole, parts)


def test_a_full_last_shard_is_not_followed_by_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_files, "BLOCK", 4)
    tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    for count in range(1, 9):  # a last line ends with a block
        file = tmp_path / f"{count}.txt"
        file.write_text("a b\n" * count)
        build = (file, tokenizer, tmp_path / str(count), "lines")
        stream = TokenStream.build(*build, shard_tokens=1)
        assert np.asarray(stream.tokens).tolist() == [3, 4] * count


def test_paragraphs_are_split_at_sentence_ends():
    pytest.importorskip("sentencex")
    text = "Mr. Smith paid $3.50 to J. R. Low. He left at 5 p.m. on Monday. Why?"
    assert split_sentences(text) == [
        "Mr. Smith paid $3.50 to J. R. Low.",
        "He left at 5 p.m. on Monday.",
        "Why?",
    ]


def test_bad_input_is_explained(files, tmp_path):
    with pytest.raises(ValueError, match="one of 'split', 'lines'"):
        TokenStream.build(files, TOKENIZER, tmp_path / "s", sentences="words")
    with pytest.raises(
        ValueError, match="`workers` must be a whole number, 1 or more. Received: workers=0"
    ):
        TokenStream.build(files, TOKENIZER, tmp_path / "s", workers=0)
    for given in ([tmp_path / "none.txt"], str(tmp_path / "none.txt")):
        with pytest.raises(ValueError, match="No file .*none.txt"):
            TokenStream.build(given, TOKENIZER, tmp_path / "s")
    with pytest.raises(ValueError, match="its own folder"):
        TokenStream.build(files, TOKENIZER, files[0].parent)
    assert files[0].is_file()
    files[0].write_text("\n \n")
    with pytest.raises(ValueError, match="no text in these files"):
        TokenStream.build(files[:1], TOKENIZER, tmp_path / "s", sentences="lines")
    assert names(tmp_path) == ["one.txt", "two.txt.gz"]


def test_read_ids_needs_tokenizer_with_end_token(files):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    with pytest.raises(ValueError, match="with an end token: use `Words`. Received: WordPiece"):
        read_ids(files, WordPiece(pieces))


@pytest.mark.parametrize("stopped_at", range(4))
def test_stopped_build_resumes(stopped_at, files, tmp_path, monkeypatch, small_blocks):
    whole = TokenStream.build(files, TOKENIZER, tmp_path / "whole", "lines", shard_tokens=4)
    encoded, encode = [], stream_files.BlockEncoder.__call__

    def stopping(self, lines):
        if len(encoded) == stopped_at:
            encoded.append(None)
            raise KeyboardInterrupt
        encoded.append(lines)
        return encode(self, lines)

    monkeypatch.setattr(stream_files.BlockEncoder, "__call__", stopping)
    arguments = (files, TOKENIZER, tmp_path / "stream", "lines")
    with pytest.raises(KeyboardInterrupt):
        TokenStream.build(*arguments, shard_tokens=4)
    assert not (tmp_path / "stream").exists()
    # Bytes after the last recorded position may be partial.
    with open(unfinished(tmp_path) / "sentences.bin", "ab") as file:
        file.write(b"12345")
    killed = subprocess.Popen([sys.executable, "-S", "-c", ""])
    killed.wait()
    (unfinished(tmp_path) / f"progress.json.{killed.pid}.0123abcd.tmp").write_text("{")
    stream = TokenStream.build(*arguments, shard_tokens=4)
    assert_same(whole, stream)
    done = [lines for lines in encoded if lines is not None]
    assert done == list(stream_files.blocks(files)) and len(done) > 3
    assert not list(tmp_path.rglob("*.tmp"))
    assert json.loads((tmp_path / "stream" / "stream.json").read_text())["sentences"] == 4


def test_incomplete_files_restart_the_build(files, tmp_path, monkeypatch, small_blocks):
    def broken(self, block):
        if any("c" in line for line in block.lines):
            raise KeyboardInterrupt
        return encode(self, block)

    encode = stream_files.BlockEncoder.__call__
    monkeypatch.setattr(stream_files.BlockEncoder, "__call__", broken)
    arguments = (files, TOKENIZER, tmp_path / "stream", "lines")
    with pytest.raises(KeyboardInterrupt):
        TokenStream.build(*arguments)
    monkeypatch.undo()
    (unfinished(tmp_path) / "tokens.00000.bin").write_bytes(b"")
    stream = TokenStream.build(*arguments)
    assert stream.tokens[:].tolist() == [5, 6, 8, 6, 8, 7, 7, 7, 8, 5, 8]


@pytest.mark.full
def test_cached_word_ids_equal_ids_of_whole_texts(data):
    """Encoding each word once gives the ids of whole texts."""
    tokenizer = WordPiece.load(data("vocabularies/bert_uncased_vocab.txt"))
    texts = [
        "a\x1cb\u00a0c  [MASK] x\u0301[SEP]y",
        "",
        " ",
        "İstanbul ΣΑΣ 北京 naïve-ly " + "z" * 120,
    ]
    with open_text(data("books/valid.txt.gz")) as file:
        texts += [line for _, line in zip(range(2000), file, strict=False)]
    for _ in range(2):  # unknown at first, then known
        found = tokenizer.encode(texts)
        wanted = tokenizer.encode(texts, return_offsets=True)
        np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
        np.testing.assert_array_equal(found.lengths, wanted.lengths)


def test_known_chunks_are_bounded(monkeypatch):
    known = KnownChunks(TOKENIZER._tokenizer)
    monkeypatch.setattr("keras_plm.tokenizers.subwords.KNOWN", 3)
    for text in ("a", "b", "c", "a.", "b."):
        assert known[text] == TOKENIZER._tokenizer.encode(text, add_special_tokens=False).ids
    assert len(known) == 2 and len(pickle.loads(pickle.dumps(known))) == 0
    assert known["a" * 51] == [1] and "a" * 51 not in known
