"""The suites of BERT: BERTs that differ in one setting, and one BERT on every kind of task."""

import json
import re

import numpy as np
import pytest

from benchmarks.suites import SUITES, folder
from benchmarks.suites.bert import ablations
from benchmarks.suites.bert.ablations import ENCODERS, MIXES, STUDIES
from benchmarks.suites.bert.tasks import PUBLISHED, TASKS_READ
from benchmarks.suites.compare_encoders import forward_work
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.models import BERT
from tests.benchmarks.small_data import SmallData

pytestmark = pytest.mark.backend_neutral


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A data folder for the suites at their test scale."""
    made = SmallData(tmp_path_factory.mktemp("data"))
    made.snli(train=40, dev=10, test=10)
    made.wikigold(12)
    made.rte(30)
    made.squad()
    made.books("valid")
    return made.root


@pytest.mark.full
def test_bert_suites_reuse_encoders_and_finished_results(run, tmp_path):
    code, shown = run("bert_steps")
    assert code == 0 and "| SNLI fine-tuned, after step | 2 | 4 |" in shown, shown
    assert "masked step 4/4" in shown
    kept = folder(tmp_path / "results", "bert_steps", "test")
    first = {p: p.stat().st_mtime_ns for p in kept.glob("**/*.seed0.json")}
    assert len(first) == 2 * 2 * 2  # encoders, points, tasks
    code, shown = run("bert_objectives")
    assert code == 0 and "per next piece" in shown and "(table 5, BERT-base" in shown
    assert "masked step" not in shown and "bert step 4/4" in shown
    for row in ("BERT", "no next sentence", "+ BiLSTM", "no pre-training"):
        (line,) = [x for x in shown.splitlines() if x.startswith(f"| {row} |") and "(1)" in x]
        assert line.count("(1)") == 2
    after = {p: p.stat().st_mtime_ns for p in kept.glob("**/*.seed0.json")}
    assert first.items() <= after.items() and len(after) == 8 + 2 * 3
    made = json.loads((kept / "pretraining" / "left_to_right.json").read_text())
    assert made["steps_done"] == 4 and made["left_to_right"] and not made["next_sentence"]
    assert run("bert_objectives")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in kept.glob("**/*.seed0.json")} == after
    pictures = tmp_path / "p"
    assert run("bert_steps", "--plots", str(pictures), command="report")[0] == 0
    names = [
        f"bert_{axis}_{task}.png" for axis in ("flop", "steps") for task in ("snli", "wikigold")
    ]
    assert sorted(p.name for p in pictures.iterdir()) == names
    code, shown = run("bert_size", command="report")
    assert code == 0 and "| 2 | 128 | 0.5 |" in shown and "| 4 | 256 | | | | |" in shown


@pytest.mark.full
def test_bert_tasks_suite_scores_each_kind_of_task(run, tmp_path):
    code, shown = run("bert_tasks")
    assert code == 0 and "| squad | 8 |" in shown and "exact match" in shown
    assert re.search(r"\| rte \| 8 \| [\d.]+ \(1\) accuracy \| 57.2 accuracy \| 57.9 \|", shown)
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "results").glob("**/*.json")}
    assert len(kept) == 2 and run("bert_tasks")[0] == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "results").glob("**/*.json")} == kept
    assert set(TASKS_READ) <= TASKS.keys() and set(PUBLISHED) <= TASKS_READ.keys()


def test_ablation_settings_match_their_row_names():
    base = STUDIES["bert_objectives"].pretraining
    settings = {name: Pretraining(**{**vars(base), **own}) for name, own in ENCODERS.items()}
    for mix in MIXES:
        found = settings[ablations._mix(*mix)]
        same = 1 - found.mask_token_rate - found.random_token_rate
        shares = (found.mask_token_rate, same, found.random_token_rate)
        assert np.allclose(shares, np.array(mix) / 100)
    assert settings["masked"].steps == settings["left_to_right"].steps == settings["small"].steps
    for suite, study in STUDIES.items():
        assert {name for _, name, _ in study.rows} <= ENCODERS.keys()
        runs = [study.run(fields, own) for *_, own in study.rows for *_, fields in study.readings]
        assert len({run.name for run in runs}) >= len(study.readings), suite
        assert SUITES[suite].home == "bert"


def test_report_without_results_exits_with_error(run):
    for suite in STUDIES:
        code, shown = run(suite, command="report")
        assert code == 2 and "keras-plm run" in shown


def test_forward_work_of_left_to_right_bert_equals_formula():
    note = {"max_length": 16, "first_length": 0}
    work = {
        causal: forward_work(BERT(50, 1, 2, 8, 16, causal=causal), note | {"left_to_right": causal})
        for causal in (False, True)
    }
    # The softmax of 50 words and width 8 at every token. At 15 % an 8 x 8 transform comes first.
    assert work[True] - work[False] == pytest.approx(2 * (50 * 8 - 0.15 * (50 * 8 + 8 * 8)))
