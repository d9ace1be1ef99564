"""The suite `seq2seq` at a small scale, on made-up captions."""

import gzip
import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.suites import SUITES
from benchmarks.suites.seq2seq.report import markdown
from benchmarks.suites.seq2seq.step_time import Copying, StepTimes, measure, models
from benchmarks.suites.seq2seq.translation import (
    Translation,
    TranslationRunner,
    bleu_by_length,
    by_captions,
    even_rows,
    join_captions,
    token_losses,
)
from keras_plm.data.translation import translation_batches

TINY = {"vocabulary_size": 60, "embedding_dim": 8, "hidden_dim": 8, "num_layers": 1,
        "num_heads": 2, "epochs": 2, "limit": 20, "num_beams": 2,
        "tokens_per_batch": 64}  # fmt: skip


@pytest.fixture
def captions(tmp_path, monkeypatch):
    """A data folder with 40 made-up captions per split and few lengths of rows."""
    monkeypatch.setattr("benchmarks.suites.seq2seq.translation.LENGTHS", 2)
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for part in ("train", "val", "test2016"):
        rows = [rng.choice(list("abcdefgh"), rng.integers(3, 12)) for _ in range(40)]
        for language, rule in (("en", list), ("de", lambda row: [c.upper() for c in row][::-1])):
            text = "".join(" ".join(rule(row)) + "\n" for row in rows)
            with gzip.open(folder / f"{part}.{language}.gz", "wt") as file:
                file.write(text)
    return str(tmp_path / "data")


def runner(captions, tmp_path, said=None):
    said = [] if said is None else said
    return TranslationRunner(captions, tmp_path / "results", tmp_path / "runs", said.append)


@pytest.mark.backend_neutral
def test_joined_captions_include_every_caption_and_stay_aligned():
    sources = [f"s{i}" for i in range(50)]
    targets = [f"t{i}" for i in range(50)]
    joined = join_captions(sources, targets, alone=0.5, longest=4, seed=0)
    assert sorted(" ".join(joined[0]).split()) == sorted(sources)
    sizes = np.array([len(text.split()) for text in joined[0]])
    assert (sizes == 1).sum() >= 25 and set(sizes) <= {1, 2, 3, 4}
    for source, target in zip(*joined, strict=True):
        assert source.replace("s", "t") == target
    rows = [list(row) for row in even_rows(7, longest=3)]
    assert rows[:7] == [[i] for i in range(7)]
    assert rows[7:] == [[0, 1], [2, 3], [4, 5], [0, 1, 2], [3, 4, 5]]


@pytest.mark.backend_neutral
def test_bleu_is_computed_per_sentence_length_bucket():
    sources = ["a b", "a b c d e f", "a b c d e f g"]
    references = ["ein Hund läuft im Schnee"] * 3
    outputs = [references[0], "ganz etwas anderes steht hier", references[0]]
    found = bleu_by_length(sources, references, outputs, buckets=(0, 5, 7, 9, 11))
    assert [(b["from"], b["below"], b["sentences"]) for b in found] == [
        (0, 5, 1), (5, 7, 1), (7, 9, 1),
    ]  # fmt: skip
    np.testing.assert_allclose([found[0]["bleu"], found[2]["bleu"]], 100)
    assert found[1]["bleu"] < 10 and found[1]["words"] == 6


def test_losses_are_split_by_caption_position():
    rows = even_rows(2, longest=2)  # each caption single, then both joined
    losses = [np.array([1.0, 3.0, 9.0]), np.array([5.0, 9.0]), np.array([1.0, 2.0, 6.0, 9.0])]
    references = ["Ein Hund.", "Zwei.", "Ein Hund. Zwei."]
    outputs = ["Ein Hund.", "Zwei. Drei.", "Ein Hund."]
    alone, both = by_captions(rows, [2, 1], losses, references, outputs)
    assert alone["losses"] == [3.0] and both["losses"] == [1.5, 6.0]  # without end tokens
    assert (alone["rows"], alone["length"], both["length"]) == (2, 4 / 3, 2 / 3)
    assert (alone["too_few"], alone["too_many"]) == (0, 0.5)
    assert (both["too_few"], both["too_many"]) == (1, 0)


@pytest.mark.compiles
def test_token_losses_equal_the_loss_of_evaluate(captions, tmp_path):
    made = runner(captions, tmp_path)
    settings = Translation("additive", **TINY)
    tokenizer = made.tokenizer(settings)
    model = settings.build(len(tokenizer))
    model.compile(weighted_metrics=[])
    sources, targets = made.part(settings, "test")
    losses = token_losses(model, tokenizer, sources, targets)
    assert [len(loss) for loss in losses] == tokenizer.encode(targets).lengths.tolist()
    batches = translation_batches(sources, targets, tokenizer, training=False)
    mean = model.evaluate(batches, verbose=0)
    np.testing.assert_allclose(np.concatenate(losses).mean(), mean, rtol=1e-4)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_finished_run_is_reused_and_result_is_complete(captions, tmp_path):
    said = []
    settings = Translation("additive", **TINY)
    result = runner(captions, tmp_path, said).run(settings, seed=0)
    path = tmp_path / "results" / "multi30k_en_de" / "rnn.additive.seed0.json"
    assert json.loads(path.read_text()) == result
    assert set(
        "task encoder method seed score metrics seconds backend device versions commit".split()
    ) <= set(result)
    assert result["score"] == result["metrics"]["bleu"] and "nrefs:1" in result["signature"]
    seen = result["attention"]
    assert np.shape(seen["weights"]) == (len(seen["output"]), len(seen["source"]))
    assert not list((tmp_path / "runs").iterdir())
    before, heard = path.stat().st_mtime_ns, len(said)
    runner(captions, tmp_path, said).run(settings, seed=0)
    assert path.stat().st_mtime_ns == before and len(said) == heard
    runner(captions, tmp_path, said).run(Translation("additive", **{**TINY, "epochs": 1}), seed=0)
    assert json.loads(path.read_text())["settings"]["epochs"] == 1
    assert len(list(path.parent.glob(path.name + ".*"))) == 1  # the older one is kept


@pytest.mark.full
@pytest.mark.backend_neutral
def test_resumed_run_equals_uninterrupted_run(captions, tmp_path, monkeypatch):
    settings = Translation("none", **TINY)
    whole = runner(captions, tmp_path).run(settings, seed=0)
    (tmp_path / "results" / "multi30k_en_de" / "rnn.none.seed0.json").unlink()
    from keras_plm.training.resume import TrainingState

    counting = TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        counting(self, batch, logs)
        if self.steps == 3:
            self.save()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingState, "on_train_batch_end", stop)
        runner(captions, tmp_path).run(settings, seed=0)
    said = []
    again = runner(captions, tmp_path, said).run(settings, seed=0)
    assert "resumes after step 3/" in said[0]
    for name in ("metrics", "dev_loss", "samples"):
        assert again[name] == whole[name]


@pytest.mark.full
@pytest.mark.backend_neutral
def test_suite_runs_at_test_scale_and_draws_plots(captions, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--scale", "test", "--results", str(tmp_path / "results")]
    assert main(["suite", "seq2seq", *flags, "--data", captions, "--seeds", "1"]) == 0
    table = capsys.readouterr().out
    for name in ("RNN, additive", "RNN, one vector", "Transformer"):
        assert f"| {name} |" in table
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["seq2seq_test"]
    flags += ["--suite", "seq2seq", "--plots", str(tmp_path / "pictures")]
    assert main(["report", *flags]) == 0
    names = {path.stem.rpartition("_")[0] for path in (tmp_path / "pictures").iterdir()}
    assert names == {"bleu_by", "attention", "step_times", "copying"}

    def rows(name):
        (path,) = (tmp_path / "results").rglob(f"{name}.*.json")
        return json.loads(path.read_text())["rows"]

    times = rows("step_times")  # of 16 tokens
    assert [(row["length"], row["batch"]) for row in times[::2]] == [(4, 4), (8, 2)]
    assert len(rows("copying")) == 6
    assert all(0 <= row["accuracy"] <= 1 for row in rows("copying"))


@pytest.mark.full
@pytest.mark.backend_neutral
def test_measurements_resume_after_a_stop_without_repeats(tmp_path, monkeypatch):
    taken = []

    def run(self, part, progress):
        taken.append(part["length"])
        if len(taken) == 2:
            raise KeyboardInterrupt
        return [{**part, "seconds": 1.0}]

    monkeypatch.setattr(StepTimes, "run", run)
    times = StepTimes(lengths=(4, 6))
    with pytest.raises(KeyboardInterrupt):
        measure(times, tmp_path, print)
    report = measure(times, tmp_path, print)
    assert taken == [4, 6, 6] and [row["length"] for row in report["rows"]] == [4, 6]
    assert measure(times, tmp_path, print) == report and len(taken) == 3
    assert len(measure(StepTimes(lengths=(5,)), tmp_path, print)["rows"]) == 1
    assert len(list(tmp_path.iterdir())) == 2  # the older one is kept


@pytest.mark.full
def test_measured_models_have_similar_parameter_counts():
    counts = {name: make().count_params() for name, make in models(32, 20).items()}
    assert 0.8 < counts["RNN, attention"] / counts["Transformer"] <= 1


@pytest.mark.backend_neutral
def test_copying_task_decoder_inputs_are_shifted_labels():
    batches = Copying(lengths=(3, 5), steps=6, tokens=24)._batches(seed=0)
    assert len(batches) == 6 and batches.buckets == [4, 6]
    for i in range(6):
        x, y, _ = batches[i]
        assert (x["token_ids"] == y).all() and (y[:, -1] == 2).all()
        assert (x["target_ids"][:, 1:] == y[:, :-1]).all() and (x["target_ids"][:, 0] == 1).all()


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "flags, match",
    [
        (["seq2seq", "--task", "sst5"], "seq2seq sets its own.*--task sst5"),
        (["seq2seq", "--encoder", "x"], "seq2seq sets its own.*--encoder x"),
        (["seq2seq", "--scale", "huge"], "Unknown scale 'huge'.*small, long, test"),
        (["seq2seq", "--seeds", "0"], "`--seeds` must be 1 or more"),
        (["seq2seq", "--data", "nowhere"], "nowhere"),
        (["seq2sq"], "Unknown suite 'seq2sq'. Did you mean 'seq2seq'?"),
    ],
)
def test_bad_flags_exit_with_an_error_message(flags, match, capsys):
    import re

    assert main(["suite", *flags]) == 2
    assert re.search(match, capsys.readouterr().err)


@pytest.mark.backend_neutral
def test_report_refuses_wrong_scales_and_missing_results(tmp_path, capsys):
    assert main(["report", "--suite", "seq2seq", "--scale", "huge"]) == 2
    assert "small, long, test" in capsys.readouterr().err
    assert main(["report", "--scale", "long"]) == 2
    error = capsys.readouterr().err
    assert "Only a whole --suite has scales: " in error and "seq2seq" in error
    assert main(["report", "--suite", "seq2seq", "--results", str(tmp_path)]) == 2
    assert str(tmp_path / "seq2seq") in capsys.readouterr().err


@pytest.mark.backend_neutral
def test_unknown_model_and_mixed_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must be one of 'transformer', 'none'.*'mlp'"):
        Translation("mlp")
    folder = tmp_path / "results" / "multi30k_en_de"
    folder.mkdir(parents=True)
    for seed, epochs in ((0, 2), (1, 3)):
        result = {"task": "multi30k_en_de", "encoder": "rnn", "method": "none", "run": "none"}
        result |= {"seed": seed, "settings": {"epochs": epochs}, "score": 0.1, "metrics": {}}
        (folder / f"rnn.none.seed{seed}.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="share their settings.*rnn.none"):
        markdown(tmp_path / "results")


@pytest.mark.backend_neutral
def test_small_scale_starts_with_seven_different_models():
    assert len({run.model for run in SUITES["seq2seq"].scales["small"][:7]}) == 7
