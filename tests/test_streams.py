"""Raw text to token streams."""

import gzip
import json

import numpy as np
import pytest

from keras_plm.streams import TokenStream, split_sentences
from keras_plm.tokenizers import WordPiece

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "."])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.txt").write_text("a b .\nb .\n\n\nc c c .\n")
    with gzip.open(tmp_path / "two.txt.gz", "wt") as file:
        file.write("a .\n")
    return [tmp_path / "one.txt", tmp_path / "two.txt.gz"]


def test_documents_end_at_blank_lines_and_files(files, tmp_path):
    stream = TokenStream.build(files, TOKENIZER, tmp_path / "stream", sentences="lines")
    assert stream.tokens.tolist() == [5, 6, 8, 6, 8, 7, 7, 7, 8, 5, 8]
    assert stream.sentences.tolist() == [0, 3, 5, 9, 11]
    assert stream.documents.tolist() == [0, 2, 3, 4]
    assert stream.description["tokens"] == 11 and stream.description["documents"] == 3
    assert not (tmp_path / "stream.tmp").exists()


def test_is_built_once_and_anew_when_files_change(files, tmp_path):
    folder = tmp_path / "stream"
    TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    before = (folder / "tokens.bin").stat().st_mtime_ns
    TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    assert (folder / "tokens.bin").stat().st_mtime_ns == before
    files[0].write_text("b b .\n")
    stream = TokenStream.build(files, TOKENIZER, folder, sentences="lines")
    assert stream.tokens.tolist() == [6, 6, 8, 5, 8]


def test_many_batches_give_the_same_stream(files, tmp_path, monkeypatch):
    import keras_plm.streams as module

    whole = TokenStream.build(files, TOKENIZER, tmp_path / "whole", sentences="lines")
    original = module._sentence_batches
    monkeypatch.setattr(module, "_sentence_batches", lambda f, s: original(f, s, size=1))
    parts = TokenStream.build(files, TOKENIZER, tmp_path / "parts", sentences="lines")
    for name in ("tokens", "sentences", "documents"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_paragraphs_are_split_at_real_ends():
    pytest.importorskip("sentencex")
    text = "Mr. Smith paid $3.50 to J. R. Low. He left at 5 p.m. on Monday. Why?"
    assert split_sentences(text) == [
        "Mr. Smith paid $3.50 to J. R. Low.",
        "He left at 5 p.m. on Monday.",
        "Why?",
    ]


def test_bad_input_is_explained(files, tmp_path):
    with pytest.raises(ValueError, match="'split' or 'lines'"):
        TokenStream.build(files, TOKENIZER, tmp_path / "s", sentences="words")
    for given in ([tmp_path / "none.txt"], str(tmp_path / "none.txt")):
        with pytest.raises(ValueError, match="No file .*none.txt"):
            TokenStream.build(given, TOKENIZER, tmp_path / "s")
    with pytest.raises(ValueError, match="a folder of its own"):
        TokenStream.build(files, TOKENIZER, files[0].parent)
    assert files[0].is_file()
    files[0].write_text("\n \n")
    with pytest.raises(ValueError, match="no text in these files"):
        TokenStream.build(files[:1], TOKENIZER, tmp_path / "s", sentences="lines")
    assert not (tmp_path / "s").exists() and not (tmp_path / "s.tmp").exists()


def test_an_unfinished_build_leaves_nothing_to_be_read(files, tmp_path, monkeypatch):
    def broken(files, sentences):
        yield ["a b ."]
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_plm.streams._sentence_batches", broken)
    with pytest.raises(KeyboardInterrupt):
        TokenStream.build(files, TOKENIZER, tmp_path / "stream", sentences="lines")
    assert not (tmp_path / "stream").exists()
    monkeypatch.undo()
    stream = TokenStream.build(files, TOKENIZER, tmp_path / "stream", sentences="lines")
    assert json.loads((tmp_path / "stream" / "stream.json").read_text())["sentences"] == 4
    assert len(stream.tokens) == 11
