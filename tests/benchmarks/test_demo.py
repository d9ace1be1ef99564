"""The demo on WikiGold from the command line, with a tiny encoder."""

import json

import pytest

import keras_plm
from benchmarks import demo
from benchmarks.__main__ import main
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece

pytestmark = pytest.mark.backend_neutral


@pytest.mark.full
def test_demo_compares_layers_random_weights_and_fine_tuning(tmp_path, capsys):
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{x}" for x in "abcdefghijklmnopqrstuvwxyz")]
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    encoder = BERT(len(tokenizer), 2, 2, 8, 12, max_sequence_length=512)
    keras_plm.save(tmp_path / "tiny", encoder, tokenizer)
    out = tmp_path / "demo"
    flags = ["demo", "--small", "--encoder", str(tmp_path / "tiny"), "--out", str(out)]
    assert main(flags) == 0
    shown = capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    methods = [result["method"] for result in results]
    assert methods == ["features"] * 7 + ["randomly_initialised"] * 7 + ["fine_tune"]
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    names = [row.split(" | ")[0].strip("| ") for row in rows]
    assert names == [
        "layers", "embeddings", "second_to_last", "last", "mean_last_four", "elmo_mix",
        "weighted_sum_last_four", "concat_last_four", "fine-tuned",
    ]  # fmt: skip
    assert all("[" in row for row in rows[1:]) and "95 % intervals" in shown
    assert "Frozen features: use" in shown and "Fine-tuning" in shown
    assert (out / "wikigold.png").is_file() and "Frozen features: use" in (
        out / "table.md"
    ).read_text()
    # A second run recomputes nothing.
    files = {p: p.stat().st_mtime_ns for p in (out / "results").glob("**/*.json")}
    assert main(flags) == 0
    assert {p: p.stat().st_mtime_ns for p in files} == files


def test_demo_uses_own_encoder_if_package_is_missing(monkeypatch, capsys):
    def missing(name):
        raise ValueError(f"The model {name!r} is part of a Python package")

    monkeypatch.setattr(demo, "find_packaged", missing)
    assert demo.available().endswith(demo.OWN)
    assert "is part of a Python package" in capsys.readouterr().out
