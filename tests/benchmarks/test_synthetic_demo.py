"""The small demo from the command line."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_plm
from benchmarks import synthetic_demo as demo
from benchmarks.__main__ import main
from keras_plm.datasets.microworld import World, tasks


@pytest.mark.full
@pytest.mark.split_to("torch")
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="takes minutes to compile; other tests cover it"
)
def test_small_demo_writes_and_reuses_its_files(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--synthetic", "--small", "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert {r["task"] for r in results} == {"micro_ner"}
    assert {r["method"] for r in results} == {
        "scratch",
        "randomly_initialised",
        "features",
        "fine_tune",
    }
    assert {r["encoder"] for r in results} == {"tiny_words", "tiny_bert"}
    assert (out / "micro_ner.png").is_file() and (out / "tiny_bert" / "config.json").is_file()
    shown = capsys.readouterr().out
    assert "method" in shown and "micro_ner  " in shown and " > ... > " in shown
    # A second run recomputes nothing.
    files = {p: p.stat().st_mtime_ns for p in (out / "results").glob("**/*.json")}
    assert main(["demo", "--synthetic", "--small", "--out", str(out)]) == 0
    assert {p: p.stat().st_mtime_ns for p in files} == files


@pytest.mark.backend_neutral
def test_every_encoder_has_its_runs_on_every_task():
    common = {"learning_rates": "1e-3", "epochs": 1}
    for task in tasks(World()).values():
        for kind in ("words", "BERT", "ELMo", "GPT"):
            runs = demo.runs_of(kind, task, common, ("last",))
            assert len({run.name for run in runs}) == len(runs) > 1
            if task.name == "micro_squad":
                assert {run.reader for run in runs if run.reads_features} == {"bidaf"}
    rows = {"a": {"x": 0.5}, "b": {"x": 0.7, "y": 0.1}}
    lines = list(demo.rankings(rows, ["x", "y"]))
    assert lines[0].endswith("b 70.0 > a 50.0") and lines[1].endswith("b 10.0")


@pytest.mark.full
@pytest.mark.backend_neutral
def test_full_demo_compares_translators_and_reuses_results(tmp_path, capsys, monkeypatch):
    translator, trained, stops = demo._translator, [], [False, True]

    def stopping(settings, *arguments):
        if stops and stops.pop(0):
            raise KeyboardInterrupt
        trained.append(settings.name)
        return translator(settings, *arguments)

    monkeypatch.setattr(demo, "_translator", stopping)
    with pytest.raises(KeyboardInterrupt):
        demo.translate(World(), tmp_path, small=True)
    assert [path.name for path in tmp_path.glob("translation/*/*.json")] == ["rnn.none.seed0.json"]
    results, pictures = demo.translate(World(), tmp_path, small=True)
    assert trained == [f"{result['encoder']}.{result['run']}" for result in results]
    assert trained == ["rnn.none", "rnn.additive", "transformer.self"]
    shown = capsys.readouterr().out
    assert shown.count("RNN, one vector  epoch 1/1  loss") == 1
    assert "long" in shown and "20-40 words" in shown and "an example" in shown

    weights = [result["parameters"] for result in results]
    assert max(weights) < 1.2 * min(weights)
    sources, targets = World().translations("test")
    for result in results:
        assert set(result["bleu_of"]) == {"short", "medium", "long"}
        assert result["samples"][0]["source"] == sources[demo.SHOWN]
        assert result["samples"][0]["reference"] == targets[demo.SHOWN]
    assert results[0]["attention"] is None
    for result in results[1:]:
        seen = result["attention"]
        rows, columns = len(seen["output"]), len(seen["source"])
        assert np.shape(seen["weights"]) == (rows, columns)
        np.testing.assert_allclose(np.sum(seen["weights"], axis=1), 1, atol=0.01)
    assert len(pictures) == 3 and all(Path(path).is_file() for path in pictures)

    # A second run recomputes nothing. Other settings start a new training.
    assert demo.translate(World(), tmp_path, small=True)[0] == results
    monkeypatch.setattr(demo, "ROWS", 64)
    stops.append(True)
    with pytest.raises(KeyboardInterrupt):
        demo.translate(World(), tmp_path, small=True)
    assert len(trained) == 3


@pytest.mark.full
@pytest.mark.backend_neutral
def test_full_demo_includes_elmo(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(d) for d in World().corpus(40)))
    demo.pretrain_other("ELMo", demo.TINY, corpus, tmp_path / "tiny_elmo", small=True)
    assert keras_plm.load(tmp_path / "tiny_elmo")[0].num_layers == 2
    runs = demo.elmo_runs({"learning_rates": "1e-3", "epochs": 1, "train_limit": 16})
    few = tasks(World())
    for name, pooled in (("micro_ner", False), ("micro_sst", True)):
        task = dataclasses.replace(
            few[name], read=lambda folder, split, task=few[name]: task.read(folder, split)[:32]
        )
        assert [run.method for run in runs] == ["scratch", "features", "fine_tune"]
        tried = runs[1:] if pooled else runs[2:]
        results = demo.put_to_work(task, tmp_path / "tiny_elmo", tried, tmp_path, None)
        assert ("text_pool" in results[-1]["settings"]) == pooled
        assert results[-1]["settings"]["schedule"] == "slanted_triangular"


@pytest.mark.backend_neutral
def test_demo_passes_its_flags_on(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(demo, "demo", lambda *arguments, **flags: calls.append((arguments, flags)))
    assert (
        main(["demo", "--synthetic", "--full"]) == 0
        and main(["demo", "--synthetic", "--small", "--out", "x"]) == 0
    )
    assert calls == [
        ((None,), {"small": False, "full": True}),
        (("x",), {"small": True, "full": False}),
    ]
    assert main(["demo", "--full"]) == 2
    assert "add --synthetic. Received: --full" in capsys.readouterr().err
    assert main(["demo", "--synthetic", "--encoder", "x"]) == 2
    assert "Received: --encoder x" in capsys.readouterr().err
