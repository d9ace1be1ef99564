"""Preparing text separately from pre-training."""

import json

import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data import corpus_writer as stream_files
from keras_plm.experiments.pretraining.prepare import prepare, read_prepared
from keras_plm.files.manifest import describe_files
from keras_plm.models import BERT_SIZES, GPT_SIZES
from keras_plm.tokenizers import BytePair, WordPiece

pytestmark = pytest.mark.backend_neutral

TINY = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "intermediate_dim": 8}


@pytest.fixture
def text(tmp_path, monkeypatch):
    for sizes in (BERT_SIZES, GPT_SIZES):
        monkeypatch.setitem(sizes, "tiny", TINY)
    path = tmp_path / "text.txt"
    path.write_text("A cat sat.\nIt ran.\n\nWe saw a dog, a cat and a bird.\nThe end.\n\n" * 30)
    return path


def preparing(text, out, *more):
    return ["prepare", "--corpus", str(text), "--out", str(out), "--vocabulary-size", "70", *more]


def pretraining(prepared, out, *more):
    return ["pretrain", "--prepared", str(prepared), "--out", str(out), "--size", "tiny",
            "--tokens", "256", "--tokens-per-batch", "64", "--max-length", "16", *more]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("model", ["bert", "gpt"])
def test_training_on_prepared_text_equals_training_on_corpus(model, text, tmp_path, capsys):
    sentences = ["--sentences", "lines"] if model == "bert" else []
    command = preparing(text, tmp_path / "ready", "--model", model, *sentences)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "tokens" in shown and "60 documents" in shown
    assert main(pretraining(tmp_path / "ready", tmp_path / "one", "--model", model)) == 0
    other = ["pretrain", "--corpus", str(text), "--vocabulary-size", "70", *sentences]
    other += pretraining("", tmp_path / "two", "--model", model)[3:]
    assert main(other) == 0
    weights = [keras_plm.load(tmp_path / name)[0].get_weights() for name in ("one", "two")]
    for a, b in zip(*weights, strict=True):
        np.testing.assert_array_equal(a, b)
    notes = [json.loads((tmp_path / n / "pretraining.json").read_text()) for n in ("one", "two")]
    assert notes[0]["corpus_sha256"] == notes[1]["corpus_sha256"]
    again = pretraining(tmp_path / "ready", tmp_path / "one", "--model", model, "--resume")
    assert main(again) == 0


def test_a_tokenizer_may_be_given(text, tmp_path):
    tokenizer = WordPiece.train([text], 60, lowercase=True)
    (tmp_path / "vocab.txt").write_text("".join(f"{p}\n" for p in tokenizer.vocabulary))
    prepare([text], tmp_path / "ready", tokenizer=tmp_path / "vocab.txt", sentences="lines")
    note, found, stream = read_prepared(tmp_path / "ready", "bert")
    assert found.vocabulary == tokenizer.vocabulary and note["vocabulary_size"] is None
    assert note["counts"]["tokens"] == len(stream.tokens)
    given = {"tokenizer": tmp_path / "vocab.txt", "sentences": "lines"}
    assert len(prepare([text], tmp_path / "ready", **given).tokens) == len(stream.tokens)
    (tmp_path / "vocab.txt").write_text("".join(f"{p}\n" for p in tokenizer.vocabulary[:-1]))
    with pytest.raises(ValueError, match="the text of another tokenizer.*unlike the kept one of"):
        prepare([text], tmp_path / "ready", **given)
    (tmp_path / "vocab.txt").unlink()
    assert len(prepare([text], tmp_path / "ready", **given).tokens) == len(stream.tokens)
    keras_plm.tokenizers.BytePair.train([text], 70, scheme="gpt").save(tmp_path / "bpe.json")
    prepare([text], tmp_path / "gpt", "lstm", tmp_path / "bpe.json")
    assert isinstance(read_prepared(tmp_path / "gpt", "gpt")[1], BytePair)


def test_stopped_prepare_is_resumed_by_next_call(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stream_files, "BLOCK", 400)
    encode, calls = stream_files.BlockEncoder.__call__, []

    def stopping(self, lines):
        calls.append(lines)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(self, lines)

    monkeypatch.setattr(stream_files.BlockEncoder, "__call__", stopping)
    command = preparing(text, tmp_path / "ready", "--sentences", "lines")
    assert main(command) == 130
    assert main(pretraining(tmp_path / "ready", tmp_path / "bert")) == 2
    assert "must hold prepared text: finish it" in capsys.readouterr().err
    assert main(command) == 0
    assert len(calls) == 1 + len(list(stream_files.blocks([text])))
    before = (tmp_path / "ready" / "stream" / "stream.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (tmp_path / "ready" / "stream" / "stream.json").stat().st_mtime_ns == before


def test_bad_input_prints_an_error_and_exits_with_2(text, tmp_path, capsys):
    ready = tmp_path / "ready"
    assert main(preparing(text, ready, "--sentences", "lines")) == 0
    BytePair.train([text], 70, scheme="gpt").save(tmp_path / "bpe.json")
    capsys.readouterr()
    for command, match in (
        (preparing(text, ready), "sentences='split' instead of 'lines'"),
        (preparing(text, text.parent), "must be a new folder, or one to resume"),
        (preparing(tmp_path / "none", tmp_path / "x"), "No file"),
        (
            preparing(text, tmp_path / "x", "--workers", "0"),
            "`workers` must be a whole number, 1 or more",
        ),
        (
            preparing(text, tmp_path / "x", "--sentences", "line"),
            "`sentences` must be one of 'split', 'lines'",
        ),
        (
            [*preparing(text, tmp_path / "x"), "--lowercase", "--tokenizer", "any"],
            "Only a tokenizer that `prepare` trains has `--",
        ),
        (
            preparing(text, tmp_path / "y", "--model", "gpt", "--sentences", "lines"),
            "applies only to bert",
        ),
        (
            [
                "prepare",
                "--corpus",
                str(text),
                "--out",
                str(tmp_path / "z"),
                "--tokenizer",
                str(tmp_path / "bpe.json"),
            ],
            "WordPiece",
        ),
        (pretraining(ready, tmp_path / "g", "--model", "gpt"), "text for another model"),
        (pretraining(tmp_path / "no", tmp_path / "g"), "must hold prepared text: write it"),
        (pretraining(ready, tmp_path / "g", "--lowercase"), "omit --lowercase"),
        (pretraining(ready, tmp_path / "g", "--corpus", str(text)), "Received: both"),
        (
            ["pretrain", "--prepared", str(ready), "--out", str(tmp_path / "g"), "--model", "elmo"],
            "text for another model",
        ),
    ):
        assert main(command) == 2, command
        shown = capsys.readouterr().err
        assert match in shown, (match, shown)
    assert not (tmp_path / "x").exists() and not (tmp_path / "y").exists()
    with pytest.raises(ValueError, match="`model` must be one of 'bert', 'gpt', 'lstm'"):
        prepare([text], tmp_path / "x", model="elmo")


@pytest.fixture
def ready(text, tmp_path):
    prepare([text], tmp_path / "ready", vocabulary_size=70, sentences="lines")
    return tmp_path / "ready"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "stream/tokens.00000.bin", "stream/stream.json"]
)
def test_damaged_prepared_files_are_refused(name, ready, text, tmp_path, capsys):
    assert main(["prepare", "--out", str(ready), "--verify"]) == 0
    assert "60 documents" in capsys.readouterr().out
    flip(ready / name)
    match = f"{name} is not the file that was written"
    for command in (
        ["prepare", "--out", str(ready), "--verify"],
        preparing(text, ready, "--sentences", "lines"),
        pretraining(ready, tmp_path / "bert"),
    ):
        assert main(command) == 2
        assert match in capsys.readouterr().err
    assert not (tmp_path / "bert").exists()


@pytest.mark.parametrize(
    "values, match",
    [
        ({"model": "elmo"}, '`model` must be one of "bert"'),
        ({"corpus": "text.txt"}, "`corpus` must be a list"),
        ({"counts": {"tokens": 3}}, "`counts.sentences` must be a whole number"),
        ({"manifest": None}, "`manifest` must be an object"),
        ({"manifest": {"../text.txt": {"bytes": 3, "sha256": ""}}}, "in the folder itself"),
    ],
    ids=str,
)
def test_damaged_prepared_json_is_refused(values, match, ready):
    note = json.loads((ready / "prepared.json").read_text())
    (ready / "prepared.json").write_text(json.dumps(note | values))
    with pytest.raises(ValueError, match=match):
        read_prepared(ready, "bert")


def test_other_tokenizer_than_that_of_stream_is_refused(ready):
    tokenizer = WordPiece.load(ready / "tokenizer.json")
    WordPiece(tokenizer.vocabulary[::-1]).save(ready / "tokenizer.json")
    note = json.loads((ready / "prepared.json").read_text())
    note["manifest"] = describe_files(ready, ["tokenizer.json"])
    (ready / "prepared.json").write_text(json.dumps(note))
    with pytest.raises(ValueError, match="needs the tokenizer that built it"):
        read_prepared(ready, "bert")


def test_prepare_takes_either_corpus_or_verify(ready, text, capsys):
    for command in (
        ["prepare", "--out", str(ready)],
        preparing(text, ready, "--verify"),
    ):
        assert main(command) == 2
        assert "takes either --corpus or --verify" in capsys.readouterr().err


@pytest.mark.full
def test_bert_reads_from_left_to_right_on_request(text, tmp_path, capsys):
    assert main(preparing(text, tmp_path / "ready", "--sentences", "lines")) == 0
    command = pretraining(tmp_path / "ready", tmp_path / "ltr", "--left-to-right")
    command += ["--valid", str(text)]
    assert main(command) == 2
    assert "`left_to_right` needs --no-next-sentence" in capsys.readouterr().err
    assert main([*command, "--no-next-sentence"]) == 0
    assert "perplexity" in capsys.readouterr().out
    encoder, _ = keras_plm.load(tmp_path / "ltr")
    assert encoder.causal and "pooled" not in encoder.output
    mixed = ["--mask-token-rate", "0.9", "--random-token-rate", "0.2"]
    assert main(pretraining(tmp_path / "ready", tmp_path / "mix", *mixed)) == 2
    assert "must be at most 1 together" in capsys.readouterr().err
