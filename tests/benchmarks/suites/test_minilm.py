"""The suite `minilm`: a released encoder on thirteen tasks."""

import pytest

from benchmarks.__main__ import main
from benchmarks.suites import folder, minilm
from benchmarks.suites.minilm import FINE_TUNED, NETWORKS, OTHERS, PROBES, SCALES, jobs_of
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.jobs import Workspace, work
from keras_plm.experiments.results import ResultFolder
from tests.benchmarks.small_data import SmallData

pytestmark = pytest.mark.backend_neutral
OWN = "benchmarks/weights/bert_mini"


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A small data folder for the suite."""
    made = SmallData(tmp_path_factory.mktemp("data"))
    made.snli(train=12, dev=6, test=6)
    made.wikigold(8)
    made.books("valid")
    return made.root


@pytest.mark.parametrize("suite", ["minilm", "gpt_ablation", "gpt_layers_transferred"])
def test_another_encoder_needs_its_own_results(suite, capsys):
    assert main(["suite", suite, "--encoder", "x"]) == 2
    assert "no column for a second encoder: give `--results`" in capsys.readouterr().err


@pytest.mark.full
def test_suite_runs_at_test_scale(data_folder, run, tmp_path):
    code, shown = run("minilm")
    assert code == 0, shown
    kept = ResultFolder(folder(tmp_path / "results", "minilm", "test"))
    assert len(list(kept.names())) == 2 * (7 + 1)  # distinct choices of two layers, fine-tuning
    assert "| wikigold | 8 |" in shown and "| snli (seen) | 8 |" in shown
    assert "gain over GloVe" not in shown  # no task networks at this scale
    assert "| fine-tuned |" in shown and "| elmo_mix |" in shown
    (picture,) = minilm.figures(kept.path).values()
    assert [axes.get_title() for axes in picture.axes] == [
        "WikiGold: names\nspan f1",
        "SNLI: entailment (seen)\naccuracy",
    ]
    line = picture.axes[0].lines[0]
    assert len(line.get_xdata()) == 3  # embeddings and two layers


def test_jobs_are_ordered_by_stage(tmp_path):
    place = Workspace(str(tmp_path), str(tmp_path / "r"), str(tmp_path / "f"))
    jobs = jobs_of(SCALES["small"], place, OWN)
    tasks = [task for task, _ in SCALES["small"].tasks]
    assert set(tasks) <= set(TASKS)
    stages = [job.stage for job, _ in work(jobs)]
    assert stages == sorted(stages)
    of_stage = {stage: [job for job in jobs if job.stage == stage] for stage in range(4)}
    assert [job.task for job in of_stage[FINE_TUNED]] == tasks
    halves = {"bert_mini": 256 // 2, "glove_6B_50d": 50 // 2}
    units = {}
    for job in of_stage[NETWORKS]:
        units.setdefault(job.task, set()).add(job.run.units or halves[job.encoder_name])
    assert all(len(of_task) == 1 for of_task in units.values())
    assert {job.run.layers for job in of_stage[PROBES]} >= {"embeddings", "last", "elmo_mix"}
    assert {job.encoder_name for job in of_stage[NETWORKS]} == {"bert_mini", "glove_6B_50d"}
    methods = {job.run.name.split("-")[0] for job in of_stage[OTHERS]}
    assert methods == {"scratch", "fine_tune", "randomly_initialised"}
    paths = [place.path(job, seed) for job, seed in work(jobs)]
    assert len(set(paths)) == len(paths)


def test_linear_heads_and_fine_tuning_have_the_same_examples():
    released = SCALES["small"]
    for task, _ in released.tasks:
        probe, tuned = released.probe(task, "last"), released.trained(task)
        assert (probe.train_limit, probe.dev_limit) == (tuned.train_limit, tuned.dev_limit)


def test_report_without_results_exits_with_error(run):
    code, shown = run("minilm", command="report")
    assert code == 2 and "No result file below" in shown
