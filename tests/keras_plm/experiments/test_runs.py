"""Small single runs of the harness: files that they write, skip and read."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import time
import types

import keras
import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main as benchmarks
from benchmarks.speed.registry import MEASUREMENTS
from benchmarks.speed.tables import speed_markdown
from keras_plm.cli.main import main
from keras_plm.cli.run import describe_labels, draw_layers, fine_tuning_of
from keras_plm.data.task import Example
from keras_plm.experiments.config import ALWAYS, Run
from keras_plm.experiments.predict import open_model
from keras_plm.experiments.results import SEEDS, folders_below, result_hash, result_name
from keras_plm.experiments.runner import Runner
from keras_plm.experiments.runner.costs import flops
from keras_plm.heads import Classifier, Regressor
from keras_plm.metrics import accuracy
from keras_plm.models import BERT, WordVectors
from keras_plm.tokenizers import WordPiece
from keras_plm.training import half_precision
from keras_plm.transfer import FineTune
from keras_plm.transfer.feature_store import fitting
from keras_plm.transfer.probing._probe_model import Probes
from keras_plm.transfer.probing.probes import fit_probes
from tests import ROOT
from tests.helpers.checks import on_two_devices, under_torch
from tests.helpers.small_runs import FAST, LETTERS, common, result_files


@pytest.mark.full
@pytest.mark.backend_neutral
def test_pretrain_stops_and_resumes(tmp_path, capsys, monkeypatch):
    from keras_plm.datasets.microworld import World
    from keras_plm.experiments.pretraining.callbacks import Meter

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(d) for d in World().corpus(60)))
    flags = [
        "pretrain", "--corpus", str(corpus), "--valid", str(corpus), "--size", "tiny",
        "--tokens", "4000", "--tokens-per-batch", "512", "--vocabulary-size", "300",
        "--sentences", "lines", "--max-length", "32", "--buckets", "1", "--first-length", "16",
        "--first-fraction", "0.5",
    ]  # fmt: skip
    out = tmp_path / "enc"
    assert main([*flags, "--out", str(out), "--vocabulary-size", "3"]) == 2
    begin = Meter.on_train_begin

    def interrupted(self, logs=None):
        begin(self, logs)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Meter, "on_train_begin", interrupted)
    assert main([*flags, "--out", str(out)]) == 130  # a refused run leaves no obstacle
    monkeypatch.undo()
    assert json.loads((out / "pretraining.json").read_text())["steps_done"] == 1
    assert main([*flags, "--out", str(out), "--resume"]) == 0
    encoder, tokenizer = keras_plm.load(out)
    assert encoder.num_layers == 2 and len(tokenizer) <= 300
    note = json.loads((out / "pretraining.json").read_text())
    assert note["steps_done"] == 8 and note["size"] == "tiny" and note["valid"]["loss"] > 0
    assert {"backend", "device", "versions", "commit", "seconds"} <= set(note)
    log = [json.loads(line) for line in (out / "training" / "log.jsonl").read_text().splitlines()]
    assert log[-2]["step"] == 8 and {"loss", "tokens_per_second"} <= set(log[-2])

    assert main([*flags, "--out", str(out)]) == 2
    assert "resume it with --resume" in capsys.readouterr().err
    assert main([*flags, "--out", str(out), "--resume", "--learning-rate", "1"]) == 2
    assert "learning_rate=1.0 instead of 0.0005" in capsys.readouterr().err
    before = encoder.get_weights()
    for name in ("pretraining.json", "config.json"):  # a stop before these files were written
        (out / name).unlink()
    assert main([*flags, "--out", str(out), "--resume"]) == 0  # only these files are missing
    assert json.loads((out / "pretraining.json").read_text())["valid"] == note["valid"]
    assert len((out / "training" / "log.jsonl").read_text().splitlines()) == len(log)
    for a, b in zip(keras_plm.load(out)[0].get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.compiles
@pytest.mark.quick_cases("flags2-features-linear-last")
@pytest.mark.parametrize(
    "flags, name",
    [
        (["--method", "fine_tune", "--precision", "bfloat16"], "fine_tune-bfloat16"),
        under_torch(["--method", "scratch", "--precision", "bfloat16"], "scratch-bfloat16"),
        (["--method", "features"], "features-linear-last"),
        under_torch(
            ["--method", "randomly_initialised", "--layers", "elmo_mix"],
            "randomly_initialised-linear-elmo_mix",
        ),
    ],
)
def test_run_writes_one_file_per_seed(flags, name, encoder, table, tmp_path, capsys, monkeypatch):
    trained, original = [], FineTune.fit

    def fit(self, *args, **kwargs):
        model = original(self, *args, **kwargs)
        trained.append(model.encoder.output["sequence"].dtype)
        return model

    monkeypatch.setattr(FineTune, "fit", fit)
    monkeypatch.setattr(half_precision, "has_bfloat16", lambda: False)
    seeds = 2 if flags[1] in ("features", "randomly_initialised") else 1
    flags = ["run", *table, *common(encoder, tmp_path), *flags, "--seeds", str(seeds), *FAST]
    assert main(flags) == 0
    files = result_files(tmp_path)
    assert [f.name for f in files] == [f"tiny.{name}.seed{i}.json" for i in range(seeds)]
    result = json.loads(files[-1].read_text())
    keys = "task encoder method seed score metrics seconds backend device versions commit"
    assert set(keys.split()) <= set(result)
    assert result["counts"] == {"train": 42, "dev": 9, "test": 9, "labels": 2}
    assert [t["learning_rate"] for t in result["trials"]] == [0.01]
    assert 0 <= result["score"] <= 1 and result["settings"]["epochs"] == 1
    cost, reads = result, name.startswith(("features", "randomly_initialised"))
    # Weights of the output layer for two labels and of the mix of three layers, or of all layers.
    weights = 2 * 8 + 2 + (3 + 1 if "elmo_mix" in name else 0)
    assert cost["learned_weights"] == weights if reads else cost["learned_weights"] > 1000
    assert cost["encoder_passes"] == 1 and cost["peak_mb"] > 10
    assert (cost["feature_bytes"] > 0) == reads
    assert cost["flops"] > 2 * 3 * 42 * cost["learned_weights"] * (not reads)
    shown = capsys.readouterr().out
    assert re.search(rf"\| .* \| .*\({seeds}\)", shown)
    assert ("This device has no instructions for bfloat16" in shown) == ("bfloat16" in flags)
    assert trained == (["bfloat16"] if "bfloat16" in flags else [])


@pytest.mark.backend_neutral
def test_finished_runs_are_skipped_until_settings_change(encoder, table, tmp_path):
    flags = ["run", *table, *common(encoder, tmp_path), "--method", "features", "--seeds", "2"]
    flags += FAST
    assert main(flags) == 0
    files = result_files(tmp_path)
    times = [f.stat().st_mtime_ns for f in files]
    assert main(flags) == 0
    assert [f.stat().st_mtime_ns for f in files] == times
    old = [f.read_text() for f in files]
    assert main([*flags[:-1], "2", "--seeds", "1"]) == 0  # another number of epochs
    assert files[0].stat().st_mtime_ns != times[0] and not files[1].exists()
    kept = sorted((tmp_path / "results").glob("**/[!.]*.seed*.json.*"))
    assert [f.read_text() for f in kept] == old


@pytest.mark.backend_neutral
def test_changed_encoder_weights_cause_a_rerun(encoder, table, tmp_path):
    flags = ["run", *table, *common(encoder, tmp_path), "--method", "features", "--seeds", "1"]
    flags += FAST
    assert main(flags) == 0
    (file,) = result_files(tmp_path)
    first = json.loads(file.read_text())["hash"]
    model, tokenizer = keras_plm.load(encoder)
    model.weights[0].assign(model.weights[0] * 1.5)
    keras_plm.save(encoder, model, tokenizer)
    assert main(flags) == 0
    assert json.loads(file.read_text())["hash"] != first


@pytest.mark.backend_neutral
def test_committed_results_match_current_names_and_hashes():
    """Committed results have the hashes, names and settings of current runs."""
    checked = 0
    for kept in folders_below(ROOT / "benchmarks" / "results"):
        for name in kept.names(SEEDS):
            result = kept.record(name)
            assert name == result_name(result.task, result.encoder, result.run, result.seed)
            if not {"learning_rates", "layers"} <= set(result.settings):
                continue  # another kind of run
            run = Run.from_json(result.settings)
            assert result_hash(result.task, run.to_json(), result.seed, result.inputs) == (
                result.hash
            ), name
            assert run.name == result.run and run.to_json() == result.settings
            checked += 1
    assert checked > 1500


@pytest.mark.backend_neutral
def test_feature_variants_have_distinct_names_and_settings():
    plain = Run(method="features", reader="bilstm", layers="mix")
    assert plain.name == "features-bilstm-elmo_mix" and set(plain.to_json()) == set(ALWAYS)
    variants = {
        "both": {"placement": "both"},
        "penalty0.001": {"penalty": 0.001},
        "mix_norm": {"mix_norm": True},
        "feature_dropout0.5": {"feature_dropout": 0.5},
        "words_glove.6B": {"words": "some/where/glove.6B"},
        "units7": {"units": 7},
    }
    for name, fields in variants.items():
        run = dataclasses.replace(plain, **fields)
        assert run.name == f"{plain.name}-{name}"
        assert set(run.to_json()) - set(plain.to_json()) == set(fields)
    method = dataclasses.replace(plain, penalty=0.1, placement="both", units=7).build(1e-3, 0)
    assert (method.penalty, method.placement, method.units) == (0.1, "both", 7)
    assert plain.build(1e-3, 0).units is None
    on_top = Run(reader="bilstm", units=5)
    assert on_top.name == "fine_tune-bilstm-units5" and "reader" in on_top.to_json()
    assert (on_top.build(1e-3, 0).reader, on_top.build(1e-3, 0).units) == ("bilstm", 5)


@pytest.mark.full
def test_fine_tuning_on_two_devices_equals_one_device(encoder, table, tmp_path):
    """Several devices give the weights of one. Under torch, processes share their results."""

    def flags(suite, *more):
        tuned = [*table, *common(encoder, tmp_path), "--dropout", "0", *FAST]
        tuned[tuned.index("--results") + 1] += f"/{suite}"
        tuned += ["--save-model", str(tmp_path / suite)]
        return ["run", *tuned, "--seeds", "1", "--batch-size", "8", "--epochs", "2", *more]

    parts = "1" if keras.backend.backend() == "tensorflow" else "2"
    several = ["--accumulation-steps", parts, "--remat", "--devices", "2"]
    done = on_two_devices(flags("several", *several), tmp_path)
    if keras.backend.backend() == "torch":
        assert done.returncode and "start a process for each" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-3000:]
    assert main(flags("one")) == 0
    one, found = (json.loads(file.read_text()) for file in result_files(tmp_path))
    assert found["devices"] == 2 and "devices" not in one
    name = "fine_tune-remat" if parts == "1" else "fine_tune-accumulate2-remat"
    assert found["run"] == name and found["settings"]["remat"] is True
    assert found["curve"] == one["curve"] and found["metrics"] == one["metrics"]
    kept = [open_model(next((tmp_path / suite).iterdir())) for suite in ("one", "several")]
    weights = [model.get_weights() for model in kept]
    for alone, together in zip(*weights, strict=True):
        np.testing.assert_allclose(together, alone, atol=1e-4)
    start = keras_plm.load(encoder)[0].get_weights()[0]
    assert np.abs(weights[0][0] - start).max() > 1e-2  # a hundred times their difference


@pytest.mark.backend_neutral
def test_labels_missing_from_limited_training_set_are_known(encoder, tmp_path):
    rows = [f"{'ab'[i % 2]} c,{'yes' if i % 2 else 'no'}" for i in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    flags = ["run", "--task-file", str(tmp_path / "mine.csv"), *common(encoder, tmp_path)]
    flags += ["--method", "features", "--train-limit", "1", "--seeds", "1", *FAST]
    assert main(flags) == 0
    (file,) = result_files(tmp_path)
    assert json.loads(file.read_text())["counts"] == {"train": 1, "dev": 9, "test": 9, "labels": 2}


@pytest.mark.full
@pytest.mark.backend_neutral
def test_word_vectors_affect_name_and_hash_of_a_result(encoder, table, tmp_path, capsys):
    folder = tmp_path / "vectors"

    def keep(seed):
        vectors = np.random.default_rng(seed).normal(size=(8, 3))
        words = WordVectors.from_vectors(LETTERS, vectors)
        keras_plm.save(folder, words, words.tokenizer())

    keep(0)
    flags = ["run", *table, *common(encoder, tmp_path), "--method", "features", "--reader"]
    flags += ["bilstm", "--layers", "mix", "--placement", "both", "--words", str(folder)]
    flags += ["--units", "3", "--penalty", "0.01", "--seeds", "1", *FAST]
    assert main(flags) == 0
    (file,) = result_files(tmp_path)
    name = "features-bilstm-elmo_mix-both-penalty0.01-words_vectors-units3"
    assert file.name == f"tiny.{name}.seed0.json"
    first = json.loads(file.read_text())
    assert list(first["mixes"]) == ["input", "output"]
    for mix in first["mixes"].values():
        assert len(mix["weights"]) == 3 and sum(mix["weights"]) == pytest.approx(1)
        assert mix["gamma"] > 0
    assert first["settings"]["words"] == "vectors"
    row = "vectors word vectors; features before and after the reader; λ = 0.01; 3 units"
    assert row in re.sub(r"\s+", " ", capsys.readouterr().out)
    time = file.stat().st_mtime_ns
    assert main(flags) == 0 and file.stat().st_mtime_ns == time
    keep(1)  # other vectors make another run
    assert main(flags) == 0
    second = json.loads(file.read_text())
    assert second["hash"] != first["hash"] and second["inputs"] != first["inputs"]


@pytest.mark.backend_neutral
def test_all_seeds_use_best_learning_rate_of_seed_0(encoder, table, tmp_path):
    flags = ["run", *table, *common(encoder, tmp_path), "--method", "features", "--seeds", "2"]
    flags += ["--epochs", "1"]
    assert main([*flags, "--learning-rates", "1e-5,3e-2"]) == 0
    first, second = (json.loads(f.read_text()) for f in result_files(tmp_path))
    assert first["trials"] == second["trials"] and len(first["trials"]) == 2
    best = max(first["trials"], key=lambda t: t["dev_score"])
    assert first["learning_rate"] == best["learning_rate"]
    assert second["learning_rate"] == best["learning_rate"]
    assert first["dev_score"] == best["dev_score"]


@pytest.mark.backend_neutral
def test_first_of_equal_trials_is_selected(encoder, table, tmp_path, monkeypatch):
    flags = ["run", *table, *common(encoder, tmp_path), "--learning-rates", "1e-5,3e-2"]
    scored = []

    def fit(self, run, rate, seed, labels):
        log = {"dev_score": 0.5, "best_epoch": 1, "dev_scores": [0.5], "steps_per_epoch": 7}
        log["learned_weights"] = 3
        return rate, log

    def predict(self, run, model, seed, labels):
        scored.append(model)
        return [example.label for example in self.examples["test"]]

    monkeypatch.setattr(Runner, "fit", fit)
    monkeypatch.setattr(Runner, "_predict", predict)
    assert main([*flags, "--seeds", "1", "--train-limit", "20"]) == 0
    assert scored == [1e-5]
    (file,) = result_files(tmp_path)
    result = json.loads(file.read_text())
    assert result["counts"]["train"] == 20 and "n20" in file.name
    assert result["curve"] == {"updates": [7], "dev_scores": [0.5]}


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "name, text",
    [
        ("m.csv", "review, stars,doc\na,1,2\n"),
        ("m.tsv", "review\t stars\tdoc\na\t1\t2\n"),
        ("m.jsonl", '{"review": "a", " stars": 1, "doc": 2}\n'),
    ],
)
def test_a_missing_column_is_named_with_its_flag(encoder, tmp_path, capsys, name, text):
    (tmp_path / name).write_text(text)
    command = ["run", "--task-file", str(tmp_path / name), *common(encoder, tmp_path)]
    for flags, missing, flag in (
        ([], "text", "text"),
        (["--text", "review"], "label", "label"),
        (["--text", "review", "--label", "stars"], "stars", "label"),
        (["--text", "review", "--label", " stars", "--pair", "b"], "b", "pair"),
        (["--text", "review", "--label", " stars", "--group", "g"], "g", "group"),
    ):
        assert main([*command, *flags]) == 2
        message = f"{name}: No column {missing!r}: name the {flag} column with --{flag}. "
        message += "Received: columns 'review', ' stars', 'doc'"
        assert message in capsys.readouterr().err


@pytest.mark.backend_neutral
def test_seconds_of_a_common_fit_are_split_among_its_runs(encoder, table, tmp_path, monkeypatch):
    def slow(*arguments):
        for found in fit_probes(*arguments):
            time.sleep(0.8)
            yield found

    monkeypatch.setattr("keras_plm.experiments.runner.common_fit.fit_probes", slow)
    flags = ["layers", *table, *common(encoder, tmp_path), "--seeds", "1", *FAST, "--no-fine-tune"]
    assert main(flags) == 0
    results = [json.loads(f.read_text()) for f in result_files(tmp_path)]
    assert len(results) > 4
    for result in results:
        (trial,) = result["trials"]
        assert trial["seconds"] >= 0.8 / len(results) - 0.001
        assert result["seconds"] >= round(trial["seconds"], 1) > 0


@pytest.mark.backend_neutral
def test_plot_of_layers_has_no_results_of_other_data(tmp_path, monkeypatch):
    def record(method, inputs):
        return {"task": "t", "encoder": "e", "method": method, "inputs": inputs}

    kept = [record("features", 1), record("fine_tune", 1), record("fine_tune", 2)]
    drawn = []
    monkeypatch.setattr("keras_plm.experiments.results.read_results", lambda *_: kept)
    monkeypatch.setattr(
        "keras_plm.experiments.report.result_tables.layer_figure",
        lambda found, *_: drawn.extend(found) or types.SimpleNamespace(savefig=lambda *_, **__: 0),
    )
    flags = types.SimpleNamespace(results=str(tmp_path), plot=str(tmp_path / "p.png"))
    with contextlib.suppress(OSError):  # the picture is not drawn
        draw_layers(flags, kept[:1])
    assert drawn == kept[:2]


@pytest.mark.full
@pytest.mark.backend_neutral
def test_layers_command_runs_all_layer_choices(encoder, table, tmp_path, capsys):
    picture = tmp_path / "layers.png"
    flags = ["layers", *table, *common(encoder, tmp_path), "--seeds", "1", *FAST]
    assert main([*flags, "--plot", str(picture)]) == 0
    results = [json.loads(f.read_text()) for f in result_files(tmp_path)]
    shown = capsys.readouterr().out
    assert shown.count("Frozen features: use") == 2 == shown.count("| layers | dev set |")
    assert "\nFine-tuning, for comparison" in shown and "| fine-tuned | " in shown
    assert {r["method"] for r in results} == {"features", "fine_tune"}
    names = {result["settings"]["layers"] for result in results}
    assert {"embeddings", "last", "concat_last_four", "elmo_mix"} <= names
    assert picture.stat().st_size > 1000
    # One store per split.
    assert len(list((tmp_path / "features").glob("[!.]*"))) == 3
    assert main([*flags, "--no-fine-tune", "--dev-limit", "5"]) == 0
    shown = capsys.readouterr().out
    assert "Fine-tuning was not run" in shown and " 5 in the dev set" in shown
    assert " 2 labels (training examples, dev set, evaluation split): " in shown
    assert "the most frequent label, " in shown and "Warning" not in shown


@pytest.mark.backend_neutral
@pytest.mark.parametrize("inputs, reader", [
    (("token_ids", "padding_mask"), "bilstm"), (("token_ids", "segment_ids"), "linear"),
])  # fmt: skip
def test_layers_give_the_reader_to_a_trained_encoder_that_cannot_mark_predicates(inputs, reader):
    flags = types.SimpleNamespace(task="ewt_srl", fine_tuning_rates="1e-4")
    frozen = Run(method="features", layers="last", reader="bilstm", units=4)
    encoder = types.SimpleNamespace(input=dict.fromkeys(inputs))
    assert fine_tuning_of(flags, frozen, None, encoder).reader == reader
    flags.task = None
    assert fine_tuning_of(flags, frozen, None, encoder).reader == "linear"


@pytest.mark.backend_neutral
def test_labels_are_described_with_warnings():
    labels = ["Good"] * 9 + ["good"] * 6 + ["bad"] * 4
    examples = {
        "train": [Example("a text", label) for label in labels],
        "dev": [Example("a text", "good")],
        "test": [Example("a text", label) for label in ["Good", "bad", "bad", "good"]],
    }
    runner = types.SimpleNamespace(
        task=types.SimpleNamespace(metrics={"accuracy": accuracy}, head=Classifier),
        examples=examples,
        all_examples=lambda run: (
            examples["train"][: run.train_limit],
            *list(examples.values())[1:],
        ),
    )
    scores = {name: [Example("a", x) for x in (0.5, 4.0, 3)] for name in examples}
    regression = types.SimpleNamespace(
        task=types.SimpleNamespace(head=Regressor), all_examples=lambda run: list(scores.values())
    )
    assert describe_labels(regression, Run()) == ["training scores from 0.5 to 4, mean 2.5"]
    assert describe_labels(runner, Run(train_limit=9))[0].endswith(
        ": Good 9, 0, 1; good 0, 1, 1; bad 0, 0, 2"
    )
    assert describe_labels(runner, Run(train_limit=19)) == [
        "3 labels (training examples, dev set, evaluation split): Good 9, 0, 1; good 6, 1, 1; "
        "bad 4, 0, 2",
        "the most frequent label, 'Good', for every text of the evaluation split gives 25.0 "
        "accuracy",
        "Warning: fewer than 5 training examples of bad. The score tells little about these "
        "labels: add examples, or merge them with others",
        "Warning: labels that differ only in case or spaces count as different: 'Good' and "
        "'good'. Write them alike if they mean the same",
    ]


@pytest.mark.compiles
@pytest.mark.quick_cases("bert_mini-4")
@pytest.mark.parametrize(
    "name, layers", [("bert_mini", 4), ("elmo_mini", 2), ("gpt_mini", 4), ("lstm_mini", 1)]
)
def test_committed_encoders_load_and_are_small(name, layers):
    folder = ROOT / "benchmarks" / "weights" / name
    assert os.path.getsize(folder / "model.safetensors") <= 12 * 2**20
    encoder, tokenizer = keras_plm.load(folder)
    assert encoder.num_layers == layers and encoder.hidden_dim == 256
    assert json.loads((folder / "pretraining.json").read_text())["steps_done"] > 0
    packed = fitting(tokenizer, encoder).pack(["She walked to the window and looked out ."])
    assert np.isfinite(np.asarray(encoder.predict_on_batch(packed)["sequence"])).all()


@pytest.mark.full
@pytest.mark.backend_neutral
def test_speed_command_writes_results_for_the_table(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    rates = {"float32": 2e11, "bfloat16": 4e11}
    infer = dataclasses.replace(MEASUREMENTS["infer"], matrix_rates=lambda: rates)
    monkeypatch.setitem(MEASUREMENTS, "infer", infer)  # the original one computes large products
    tokenize = dataclasses.replace(MEASUREMENTS["tokenize"], matrix_rates=None)
    monkeypatch.setitem(MEASUREMENTS, "tokenize", tokenize)
    out = tmp_path / "speed.json"
    flags = ["--sizes", "tiny", "--work", "infer,tokenize", "--repeats", "1", "--steps", "1"]
    flags += ["--sentences", "32", "--length", "16", "--no-hub", "--out", str(out)]
    assert benchmarks(["speed", *flags]) == 0
    before = out.read_text()
    assert benchmarks(["speed", *flags]) == 0  # nothing is timed twice
    assert json.loads(out.read_text())["results"] == json.loads(before)["results"]
    table = speed_markdown(out)
    assert "| infer tiny: tokens |" in table and "| tokenize: sentences |" in table


@pytest.mark.backend_neutral
def test_tags_missing_from_training_count_as_errors(encoder, tmp_path, capsys, monkeypatch):
    """Tests a tag that occurs only in the test split, and one only in the dev split."""
    path = tmp_path / "mine.conll"
    sentences = [[("abcd"[j], "O B-X I-X O".split()[j]) for j in range(4)] for _ in range(40)]
    sentences[28][1], sentences[34][1] = ("b", "B-DEV"), ("b", "B-TEST")
    text = "\n\n".join("\n".join(map(" ".join, sentence)) for sentence in sentences)
    path.write_text(text + "\n")
    parts = lambda rows, *options: [rows[:28], rows[28:34], rows[34:]]  # noqa: E731
    monkeypatch.setattr("keras_plm.data.task.split_groups", parts)
    flags = ["--task-file", str(path), *common(encoder, tmp_path), "--method", "features"]
    found = [["O", "B-X", "I-X", "O"]] * 6
    monkeypatch.setattr(Probes, "predict_labels", lambda self, store, *arguments: [found])
    assert main(["run", *flags, *FAST, "--seeds", "1"]) == 0, capsys.readouterr().err
    assert "mine_conll: span_f1 of tags in IOB2" in capsys.readouterr().out
    (file,) = result_files(tmp_path)
    result = json.loads(file.read_text())
    assert result["scheme"] == "IOB2" and result["counts"]["labels"] == 3
    # All 6 sentences are predicted X 1-3. In one of them, TEST 1-2 and X 2-3 are true instead.
    assert result["score"] == pytest.approx(2 * 5 / (6 + 7))


@pytest.mark.backend_neutral
@pytest.mark.parametrize("tag, warns", [("O", True), ("B-X", False)])
def test_run_warns_of_a_model_that_finds_nothing(
    encoder, tmp_path, capsys, monkeypatch, tag, warns
):
    path = tmp_path / "names.conll"
    path.write_text("\n\n".join(["a O\nb B-X"] * 40) + "\n")
    flags = ["--task-file", str(path), *common(encoder, tmp_path), "--method", "features"]
    answer = lambda self, store, rows, *arguments: [[["O", tag]] * 6]  # noqa: E731
    monkeypatch.setattr(Probes, "predict_labels", answer)
    assert main(["run", *flags, *FAST, "--seeds", "1"]) == 0
    assert ("Warning: it finds almost nothing right." in capsys.readouterr().out) == warns


@pytest.mark.backend_neutral
def test_flags_name_numbered_labels(encoder, tmp_path, capsys):
    rows = [json.dumps({"tokens": ["a", "b"], "ner_tags": [0, 1]})] * 30
    (tmp_path / "n.jsonl").write_text("\n".join(rows))
    flags = ["run", "--task-file", str(tmp_path / "n.jsonl"), *common(encoder, tmp_path), *FAST]
    flags += ["--text", "tokens", "--label", "ner_tags", "--seeds", "1", "--method", "features"]
    assert main(flags) == 2
    assert "n.jsonl:1: Tags that are numbers need names" in capsys.readouterr().err
    assert main([*flags, "--label-names", "O,B-PER"]) == 0
    assert "span_f1 of tags in IOB2" in capsys.readouterr().out


@pytest.mark.backend_neutral
def test_flops_follow_from_weights_and_tokens():
    """Two operations per matrix weight and token, and three times as many in training."""
    layers, width, inner = 3, 4, 10
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
    runner = object.__new__(Runner)
    runner.tokenizer = tokenizer
    runner.pretrained = BERT(len(tokenizer), layers, 2, width, inner)
    examples = [Example("a b c", "x", pair="b"), Example(["c", "a"], ["x", "x"])]
    runner.train_examples = lambda run: examples
    tokens = sum(
        int(tokenizer.pack([text])["padding_mask"].sum()) for text in ("a b c", "b", "c a")
    )
    matrices = layers * (4 * width**2 + 2 * width * inner) + width**2  # and the pooler
    tuned, read = Run(epochs=5), Run(method="features", epochs=5)
    assert flops(runner, tuned, 999) == 2 * tokens * 3 * 5 * matrices
    assert flops(runner, read, 18) == 2 * tokens * (matrices + 3 * 5 * 18)
    lora = Run(epochs=5, lora_rank=2)
    assert flops(runner, lora, 18) == 2 * tokens * 5 * (2 * matrices + 3 * 18)
    whole = runner.pretrained.count_params()
    assert flops(runner, tuned, whole + 7) == 2 * tokens * 3 * 5 * (matrices + 7)
