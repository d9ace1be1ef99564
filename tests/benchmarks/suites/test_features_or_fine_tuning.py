"""The suite `features_or_fine_tuning`: every encoder, method and kind of task."""

import dataclasses
import json

import numpy as np
import pytest

import keras_plm
from benchmarks.suites import SUITES, features_or_fine_tuning, folder
from benchmarks.suites.features_or_fine_tuning import (
    KINDS,
    LAYERS,
    ROWS,
    SCALES,
    OfTask,
    fits,
    jobs_of,
)
from keras_plm.checkpoints import save_bert, save_gpt
from keras_plm.experiments.jobs import Workspace, run_jobs
from keras_plm.models import BERT, GPT, ELMo, WordVectors
from keras_plm.tokenizers import BytePair, Characters, WordPiece
from tests.benchmarks.small_data import WORDS, SmallData

pytestmark = pytest.mark.backend_neutral


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A small data folder for the suite."""
    made = SmallData(tmp_path_factory.mktemp("data"))
    made.snli(train=12, dev=6, test=6)
    made.wikigold(8)
    made.sst()
    made.squad()
    made.books("valid", "train-0", "train-1", "train-2", "train-3")
    return made.root


@pytest.fixture(scope="module")
def released(data_folder, tmp_path_factory):
    """Encoders with random weights in the layout of released ones."""
    root, text = tmp_path_factory.mktemp("released"), data_folder / "books" / "valid.txt"
    vocabulary = WordPiece.train(text, 100)
    save_bert(
        root / "bert", BERT(len(vocabulary), 2, 2, 12, 16, max_sequence_length=64), vocabulary
    )
    pieces = BytePair.train(text, 100, lowercase=False, scheme="gpt")
    save_gpt(root / "gpt", GPT(pieces.text_size, 2, 2, 12, 48, max_sequence_length=64), pieces)
    elmo = ELMo(units=8, projection_dim=4, filters=[[1, 4], [2, 4]], num_highway=1)
    keras_plm.save(root / "elmo", elmo, Characters())
    rng = np.random.default_rng(0)
    words = WordVectors.from_vectors(WORDS, rng.normal(size=(len(WORDS), 8)).astype("float32"))
    keras_plm.save(root / "words", words, words.tokenizer())
    return root


def small(scale):
    """A scale with eight examples and one pass."""
    tasks = tuple(
        (task, OfTask(8, 1, tuple({**dict(of_task.network), "units": 2}.items()), dev_limit=3))
        for task, of_task in scale.tasks
    )
    fields = (("learning_rates", "1e-3"), ("batch_size", 8))
    return dataclasses.replace(scale, tasks=tasks, fields=fields, trained=())


def of_a_single_choice(run):
    """Returns whether a run is one of the many layer choices, which only one task tests."""
    linear = run.method == "features" and run.reader == "linear"
    return linear and run.layers not in ("last", "elmo_mix")


@pytest.mark.full
def test_every_run_of_the_paper_scale_trains_and_is_reported(data_folder, released, tmp_path):
    place = Workspace(str(data_folder), str(tmp_path / "r"), str(tmp_path / "f"))
    scale = small(SCALES["paper"])
    cells = jobs_of(scale, place, str(released))
    asked = {(cell.task, cell.encoder_name) for cell in cells}
    assert asked == {(task, kind) for task, _ in scale.tasks for kind in KINDS}
    assert len({place.path(cell, 0) for cell in cells}) == len(cells)
    cells = [cell for cell in cells if cell.task == "sst5" or not of_a_single_choice(cell.run)]
    failed = run_jobs(cells, place, 1, lambda line: None)
    assert {cell.title(seed): str(error) for (cell, seed), error in failed.items()} == {}
    text = features_or_fine_tuning.markdown(place.results)
    for name, *_ in ROWS.values():
        assert f"| {name} |" in text, name
    assert "| snli | bert |" in text and "frozen, second_to_last, linear" in text
    pictures = features_or_fine_tuning.figures(place.results)
    assert list(pictures) == [f"features_or_fine_tuning_{task}" for task, _ in scale.tasks]
    axes = pictures["features_or_fine_tuning_sst5"].axes[0]
    drawn = [label.get_text() for label in axes.get_yticklabels()]
    assert drawn[:3] == [name for name, *_ in ROWS.values()][:3]
    assert drawn[-2:] == [f"frozen, {how}_last_four, linear" for how in ("concat", "mean")]
    results = [json.loads(p.read_text()) for p in (tmp_path / "r").glob("**/*.seed0.json")]
    assert len(results) == len(cells)
    assert all(r["learned_weights"] > 0 for r in results)
    assert max(r["counts"]["train"] for r in results) == 8
    assert max(r["counts"]["dev"] for r in results) == 3
    of_bert = {
        r["method"]: r
        for r in results
        if (r["task"], r["encoder"]) == ("sst5", "bert") and "lora_rank" not in r["settings"]
    }
    assert of_bert["features"]["learned_weights"] < of_bert["fine_tune"]["learned_weights"]
    assert of_bert["features"]["encoder_passes"] == 1 and of_bert["features"]["feature_bytes"] > 0


@pytest.mark.full
def test_suite_runs_at_test_scale(data_folder, run, tmp_path):
    code, shown = run("features_or_fine_tuning")
    assert code == 0, shown
    kept = folder(tmp_path / "results", "features_or_fine_tuning", "test")
    assert len(list(kept.glob("**/*.seed0.json"))) == 2 * 2 * 4  # rows, tasks, encoders
    assert "gain of fine-tuning" in shown and "| wikigold | bert_test |" in shown


def test_small_scale_has_valid_rows_with_equal_settings():
    scale = SCALES["small"]
    for task, _ in scale.tasks:
        for kind in KINDS:
            assert fits(task, kind, "reader") and fits(task, kind, "randomly_initialised_reader")
    assert not fits("squad", "elmo", "fine_tune") and fits("squad", "bert", "fine_tune")
    assert not fits("snli", "elmo", "lora") and not fits("snli", "words", LAYERS)
    rows = [row for row in scale.rows if row != LAYERS]
    assert sorted(rows) == sorted(ROWS) and rows[:2] == ["fine_tune", "reader"]
    run = scale.run("snli", "bert", "reader")
    assert (run.reader, run.layers, run.train_limit) == ("esim", "elmo_mix", 2_000)
    assert scale.run("snli", "words", "reader").layers == "last"
    assert scale.run("squad", "gpt", "lora").precision == "bfloat16"
    # Conditions are equal: all rows of a task have the same grid and number of passes.
    runs = [scale.run("sst5", "bert", row) for row in rows]
    assert len({(run.learning_rates, run.epochs, run.train_limit) for run in runs}) == 1


def test_error_names_missing_released_encoders(tmp_path):
    place = Workspace(str(tmp_path), str(tmp_path / "r"), str(tmp_path / "f"))
    with pytest.raises(ValueError, match="put word vectors into DIR/words"):
        jobs_of(SCALES["paper"], place)


def test_report_without_results_exits_with_error(run):
    code, shown = run("features_or_fine_tuning", command="report")
    assert code == 2 and "No result file below" in shown
    assert SUITES["features_or_fine_tuning"].jobs is jobs_of
