"""Jobs of suites run once, with one process or many, even after failures and kills."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.__main__ import main
from benchmarks.suites import SUITES
from keras_plm import save
from keras_plm.experiments import jobs, plan
from keras_plm.experiments.config import Run
from keras_plm.experiments.jobs import Job, Prerequisite, Worker, Workspace, check, run_jobs
from keras_plm.experiments.ray import run_on_ray
from keras_plm.models import GPT
from keras_plm.tokenizers import BytePair
from tests import ROOT
from tests.benchmarks.small_data import SmallData

pytestmark = pytest.mark.backend_neutral


@pytest.fixture
def workspace(tmp_path):
    return Workspace(str(tmp_path), str(tmp_path / "results"), str(tmp_path / "f"))


class Recorded:
    """Replaces a `Runner`. A result is a line, and the run named "bad" fails."""

    def __init__(self, workspace, job, done):
        self.workspace, self.job, self.done = workspace, job, done

    def result(self, run, seed):
        path = self.workspace.path(self.job, seed)
        return json.loads(path.read_text()) if path.is_file() else None

    def run(self, run, seed):
        if self.result(run, seed) is not None:
            return
        self.done.append((self.job.task, self.job.run.epochs, seed))
        if self.job.run.epochs == 99:
            raise RuntimeError("out of memory")
        path = self.workspace.path(self.job, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seed": seed}))


@pytest.fixture
def done(monkeypatch):
    """Returns the runs that the runners did."""
    asked = []
    monkeypatch.setattr(Worker, "runner", lambda self, job: Recorded(self.workspace, job, asked))
    monkeypatch.setattr(jobs, "WAIT", 0.05)
    return asked


def job(task="rte", epochs=1, needs=()):
    return Job(task, "some/bert", Run(epochs=epochs), needs=needs)


def test_jobs_run_seed_by_seed_and_only_once(workspace, done):
    asked, finished = [job("rte"), job("cola")], []
    assert run_jobs(asked, workspace, 2, print, finished=finished.append) == {}
    assert done == [("rte", 1, 0), ("cola", 1, 0), ("rte", 1, 1), ("cola", 1, 1)]
    assert finished == [1, 2, 3, 4]
    assert run_jobs(asked, workspace, 3, print) == {}
    assert done[4:] == [("rte", 1, 2), ("cola", 1, 2)]
    asked[1] = dataclasses.replace(asked[1], seeds=5)  # and three of the second job
    assert run_jobs(asked, workspace, None, print) == {}
    assert done[6:] == [("cola", 1, 3), ("cola", 1, 4)]
    later = dataclasses.replace(asked[0], stage=1)
    assert [(c.task, seed) for c, seed in jobs.work([later, asked[1]], 2)] == [
        ("cola", 0), ("cola", 1), ("rte", 0), ("rte", 1),
    ]  # fmt: skip


def test_failed_job_is_recorded_and_other_jobs_run(workspace, done):
    said = []
    asked = [job("rte", 99), job("cola")]
    failed = run_jobs(asked, workspace, 2, said.append)
    assert list(failed) == [(asked[0], 0), (asked[0], 1)]  # seed 1 needs seed 0's rate
    assert done == [("rte", 99, 0), ("cola", 1, 0), ("cola", 1, 1)]
    kept = json.loads(workspace.failure(asked[0], 0).read_text())
    assert kept["error"] == "RuntimeError: out of memory" and "Traceback" in kept["traceback"]
    assert kept["task"] == "rte" and kept["settings"]["epochs"] == 99 and "backend" in kept
    assert any("failed: out of memory" in line for line in said)
    with pytest.raises(ValueError, match=r"2 of 4 jobs failed .*\.failed.* out of memory"):
        check(failed, 4)
    with pytest.raises(RuntimeError, match="out of memory"):
        check(failed, 2)  # all jobs failed: raises the error itself
    check({}, 4)


def test_success_removes_record_of_an_earlier_failure(workspace, done):
    (asked,) = [job()]
    path = workspace.failure(asked, 0)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert run_jobs([asked], workspace, 1, print) == {} and not path.exists()


def test_a_full_disk_stops_all(workspace, done, monkeypatch):
    def full(self, run, seed):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Recorded, "run", full)
    with pytest.raises(OSError, match="No space left"):
        run_jobs([job("rte"), job("cola")], workspace, 1, print)
    assert not list(Path(workspace.results).glob("**/*.failed"))


def test_job_locked_by_another_process_is_not_run(workspace, done):
    asked = [job("rte"), job("cola")]
    lock = FileLock(workspace.lock_job(asked[0], 0).lock_file)
    lock.acquire()
    holder = [lock]

    def finished(count):
        if count == 2:  # cola with both seeds, while the other process runs rte
            assert done == [("cola", 1, 0), ("cola", 1, 1)]
            workspace.path(asked[0], 0).parent.mkdir(parents=True, exist_ok=True)
            workspace.path(asked[0], 0).write_text(json.dumps({"seed": 0}))
            holder.pop().release()

    assert run_jobs(asked, workspace, 2, print, finished=finished) == {}
    assert done[2:] == [("rte", 1, 1)]  # the other process did the first seed


def test_prerequisite_runs_once_before_its_jobs(workspace, done):
    made = []
    prerequisite = Prerequisite("vectors", lambda progress: made.append(len(done)))
    run_jobs(
        [job("rte", needs=(prerequisite,)), job("cola", needs=(prerequisite,))], workspace, 1, print
    )
    assert made == [0]


def test_failed_prerequisite_fails_its_jobs(workspace, done):
    def make(progress):
        raise ValueError("no books")

    asked = [job("rte", needs=(Prerequisite("vectors", make),)), job("cola")]
    failed = run_jobs(asked, workspace, 1, print)
    assert list(failed) == [(asked[0], 0)] and "no books" in str(failed[asked[0], 0])


def test_workspace_paths_equal_runner_paths(tmp_path, corpus_files):
    data, encoder = corpus_files
    workspace = Workspace(str(data), str(tmp_path / "results"), str(tmp_path / "f"))
    for name in ("", "other"):
        asked = Job("rte", str(encoder), Run(epochs=3, train_limit=5), name)
        runner = Worker(workspace, print).runner(asked)
        assert runner.path(asked.run, 2) == workspace.path(asked, 2)


@pytest.fixture(scope="module")
def corpus_files(tmp_path_factory):
    """A made-up RTE and a small GPT."""
    made = SmallData(tmp_path_factory.mktemp("data"))
    made.rte(30)
    root = made.root
    folder = root / "gpt"
    text = root / "glue" / "RTE" / "dev.tsv"
    tokenizer = BytePair.train(text, 300, lowercase=False, scheme="gpt")
    save(folder, GPT(tokenizer.text_size, 4, 2, 8, 16, max_sequence_length=64), tokenizer)
    return root, folder


def suite(data, encoder, tmp_path, *flags):
    return [
        "suite", "gpt_ablation", "--scale", "test", "--data", str(data),
        "--encoder", str(encoder), "--results", str(tmp_path / "r"), "--feature-cache",
        str(tmp_path / "f"), *flags,
    ]  # fmt: skip


@pytest.mark.full
def test_dry_run_and_run_of_suite_report_missing_data(corpus_files, tmp_path, capsys):
    data, encoder = corpus_files
    assert main(suite(data, encoder, tmp_path, "--dry-run", "--seeds", "2")) == 0
    shown = capsys.readouterr().out
    assert "8 jobs, 2 seeds each: 0 results exist, 16 to do" in shown
    assert shown.count("No file") == 1 and "? of 2" in shown and "cannot be read" in shown
    assert "stsb cannot be read, its results are not known: No file" in shown
    assert not list((tmp_path / "r").glob("**/*.json"))
    assert main(suite(data, encoder, tmp_path, "--seeds", "1")) == 2
    out, error = capsys.readouterr()
    assert "4 of 8 jobs failed" in error and "STS-B" in error and "Transformer" in out
    kept = sorted(p.name for p in (tmp_path / "r").glob("**/*.failed"))
    assert len(kept) == 4 and len(list((tmp_path / "r").glob("**/rte/*.seed0.json"))) == 4
    assert main(suite(data, encoder, tmp_path, "--dry-run", "--seeds", "1")) == 0
    assert "4 results exist, 4 to do" in capsys.readouterr().out
    assert main(suite(data, encoder, tmp_path, "--dry-run", "--task", "rte")) == 0
    assert "4 jobs, 3 seeds each: 4 results exist, 8 to do" in capsys.readouterr().out
    assert main(suite(data, encoder, tmp_path, "--seeds", "0")) == 2


def test_dry_run_reports_missing_data_before_the_encoder_exists(tmp_path):
    workspace = Workspace(str(tmp_path), str(tmp_path / "results"), str(tmp_path / "f"))
    needs = (Prerequisite("an encoder", lambda progress: None),)
    _, words = plan.plan([Job("rte", str(tmp_path / "none"), Run(), needs=needs)], workspace, 1, {})
    assert "rte cannot be read" in words and "No file" in words


def test_dry_run_needs_a_suite_of_jobs(tmp_path, capsys):
    assert main(["suite", "seq2seq", "--dry-run"]) == 2
    assert "gpt_ablation" in capsys.readouterr().err


@pytest.mark.full
def test_killed_suite_loses_only_the_running_job(corpus_files, tmp_path):
    data, encoder = corpus_files
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks"]
    command += suite(data, encoder, tmp_path, "--seeds", "2")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL,
               "stderr": subprocess.DEVNULL}  # fmt: skip
    results = tmp_path / "r"

    def there():
        return {p: p.stat().st_mtime_ns for p in results.glob("**/*.seed*.json")}

    process = subprocess.Popen(command, **options)
    until = time.monotonic() + 240
    while len(there()) < 3 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = there()
    assert 3 <= len(first) < 8
    for path in first:
        json.loads(path.read_text())
    subprocess.run(command, **options, timeout=300)
    after = there()
    assert first.items() <= after.items() and len(after) == 8  # RTE's; STS-B is missing
    assert not list(results.glob("**/*.tmp*"))


def test_estimated_seconds_use_the_most_similar_results(tmp_path):
    def result(task, encoder, seconds, seed=0, trials=2):
        (tmp_path / task).mkdir(exist_ok=True)
        path = tmp_path / task / f"{encoder}.fine_tune.seed{seed}.json"
        path.write_text(json.dumps({
            "task": task, "encoder": encoder, "method": "fine_tune", "seed": seed,
            "settings": {"epochs": 5, "reader": "linear"}, "trials": [{}] * trials,
            "counts": {"train": 10}, "seconds": seconds,
        }))  # fmt: skip

    result("rte", "bert", 200.0)  # 2 fits of 5 passes over 10 examples: 2 seconds an example
    result("rte", "bert", 100.0, seed=1)
    result("rte", "gpt", 600.0)
    (tmp_path / "broken.seed0.json").write_text("{")
    known = plan.measured(tmp_path)
    run = Run(epochs=3, learning_rates="1e-3,1e-2")
    asked = [Job(task, encoder, run) for task, encoder in (("rte", "bert"), ("rte", "elmo"))]
    assert plan.seconds_of(asked[0], 0, 7, known) == pytest.approx(2 * 2 * 3 * 7)
    assert plan.seconds_of(asked[0], 1, 7, known) == pytest.approx(2 * 3 * 7)
    assert plan.seconds_of(asked[1], 1, 7, known) == pytest.approx(2 * 3 * 7)  # of 2, 2 and 6
    frozen = Job("rte", "bert", Run(method="features"))
    assert plan.seconds_of(frozen, 0, 7, known) is None
    assert [plan.duration(s) for s in (5, 600, 8000)] == ["5 s", "10 min", "2 h 13 min"]


@pytest.mark.full
def test_jobs_run_on_a_ray_cluster(corpus_files, tmp_path, capsys):
    pytest.importorskip("ray", reason="pip install ray")
    data, encoder = corpus_files
    flags = ["--seeds", "2", "--ray", "local", "--ray-cpus", "0.5"]
    assert main(suite(data, encoder, tmp_path, *flags)) == 2  # STS-B is missing
    out, error = capsys.readouterr()
    assert "8 of 16 jobs failed" in error and "seed 1" in out
    kept = list((tmp_path / "r").glob("**/rte/*.seed*.json"))
    assert len(kept) == 8
    assert main(suite(data, encoder, tmp_path, "--seeds", "2")) == 2
    assert {p: p.stat().st_mtime_ns for p in kept}.items() == {
        p: p.stat().st_mtime_ns for p in (tmp_path / "r").glob("**/rte/*.seed*.json")
    }.items()


class Reference:
    """Replaces a reference to the result of a Ray task."""

    def __init__(self, value):
        self.value = value


class RemoteFunction:
    """Replaces a function of a Ray cluster: runs it at once."""

    def __init__(self, function):
        self.function = function

    def options(self, **options):
        return self

    def remote(self, *arguments):
        return Reference(self.function(*(getattr(a, "value", a) for a in arguments)))


@pytest.fixture
def fake_ray(monkeypatch):
    """Replaces Ray: each task runs when it is submitted."""
    ray = types.SimpleNamespace(
        remote=RemoteFunction,
        init=lambda *arguments, **options: None,
        get=lambda reference: reference.value,
        wait=lambda left: (left[:1], left[1:]),
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)


def test_ray_gets_the_jobs_stage_by_stage(workspace, done, fake_ray):
    late = dataclasses.replace(job("cola"), stage=1)
    assert run_on_ray([late, job("rte")], workspace, 2, lambda line: None) == {}
    assert done == [("rte", 1, 0), ("rte", 1, 1), ("cola", 1, 0), ("cola", 1, 1)]


def test_failed_prerequisite_on_ray_fails_only_its_jobs(workspace, done, fake_ray):
    def make(progress):
        raise ValueError("No file books/train.txt")

    needing = job("mrpc", needs=(Prerequisite("word vectors", make),))
    failed = run_on_ray([needing, job("rte")], workspace, 2, lambda line: None)
    assert {asked: str(error) for asked, error in failed.items()} == {
        (needing, seed): "No file books/train.txt" for seed in (0, 1)
    }
    assert done == [("rte", 1, 0), ("rte", 1, 1)]


def test_each_suite_has_either_jobs_or_a_run_function():
    for name, suite in SUITES.items():
        assert (suite.jobs is None) != (suite.run is None), name
