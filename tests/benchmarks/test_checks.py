"""The command `check`: several writers, probes, fine-tuning, padding and scaling."""

import gzip
import json
import shutil
import subprocess

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.checks import fine_tuning, padding, probes, scaling, writers
from benchmarks.checks.probes import reference
from benchmarks.checks.processes import run_together
from benchmarks.checks.writers import KINDS, SETUP, try_writers
from benchmarks.model_cards import WEIGHTS
from benchmarks.speed.measurements import bert as speed_bert
from benchmarks.speed.tables import speed_tables
from keras_plm.checkpoints.packages import find_packaged
from keras_plm.data.batching import Batches
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.pretraining import MaskedLM

pytestmark = pytest.mark.backend_neutral


@pytest.mark.full
@pytest.mark.parametrize("processes", [4])
def test_concurrent_writers_leave_complete_folders(processes, tmp_path):
    for name, found in try_writers(tmp_path, KINDS, 2, processes).items():
        assert found["errors"] == [], name
        assert found["wrote"] + found["refused"] == 2 * processes and found["wrote"] >= 2, name


SMALL_DISK = """
import os, re, shutil, subprocess

def resize(size):
    subprocess.run(["mount", "-o", f"remount,size={size}", os.getcwd()], check=True)

kind().begin()
refused = 0
for room in (0, 4096, 12288, 24576):
    resize(shutil.disk_usage(".").used + room)
    try:
        kind().again()
        break
    except OSError as error:
        said = "could not be written: the disk is full|must be a folder with room|Features need"
        assert re.search(said, str(error)), error
        refused += 1
assert refused
resize("64m")
kind().again()
kind().check()
"""


def test_padding_is_counted_by_hand():
    lengths = [3] * 31 + [9] + [60] * 32
    source = Batches(lengths, lambda *_: None, batch_size=32, buckets=None)
    found, text = padding.tokens_computed(source), sum(lengths)
    assert found["rows"] == 64 and found["mean_length"] == round(text / 64, 1)
    all_rows, _, four_lengths, eight_lengths, similar = found["ratios"].values()
    assert all_rows == round(64 * 60 / text, 3)
    assert four_lengths == eight_lengths == round(32 * (16 + 64) / text, 3)
    assert similar == round(32 * (9 + 60) / text, 3)


def test_padding_of_pretraining_becomes_a_table(tmp_path, capsys):
    (tmp_path / "books").mkdir()
    text = "A girl reads a book. The boy sleeps in the old house. Rain falls.\n\n" * 60
    with gzip.open(tmp_path / padding.BOOKS, "wt") as file:
        file.write(text)
    out = tmp_path / padding.FILE
    found = padding.check_padding(tmp_path, out, WEIGHTS / "bert_mini", tasks=())
    assert found["results"].keys() == {"masked words, books"}
    assert speed_tables(tmp_path) == {"check_padding": padding.markdown(out)}
    assert "| masked words, books |" in capsys.readouterr().out


@pytest.mark.full
def test_full_disk_raises_clear_errors_and_retry_succeeds(tmp_path):
    places = [tmp_path / name / "0" for name in KINDS]
    mounted = []
    try:
        for place in places:
            place.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
            if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
                pytest.skip("file systems cannot be mounted here")
            mounted.append(place)
        for place, (one,) in zip(places, run_together(SMALL_DISK, places, 1, SETUP), strict=True):
            assert one.status == 0, (place.parent.name, one)
            assert not list(place.rglob("*.tmp")), place
    finally:
        for place in mounted:
            subprocess.run(["umount", str(place)], check=True)


def test_check_writers_command_writes_its_findings(tmp_path, monkeypatch, capsys):
    def found(folder, names, trials, processes):
        return {name: {"wrote": trials * processes, "errors": []} for name in names}

    monkeypatch.setattr(writers, "try_writers", found)
    out = tmp_path / "found.json"
    assert main(["check", "writers", "--trials", "3", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["kinds"]["word ids"] == {"wrote": 6, "errors": []}
    assert "token stream: 3 trials, 6 wrote" in capsys.readouterr().out
    assert main(["check", "writers", "--trials", "0", "--out", str(out)]) == 2
    assert "`trials` must be 1 or more. Received: 0" in capsys.readouterr().err


def test_probe_reference_equals_sklearn_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 7)).astype("float32")
    targets = (features @ rng.normal(size=(7, 3)) + rng.normal(size=(200, 3))).argmax(axis=1)
    kernel, bias = reference(features, targets, 3, penalty=0.01)
    peer = LogisticRegression(C=1 / (200 * 0.01), tol=1e-8, max_iter=1000).fit(features, targets)
    shares = features @ kernel + bias
    np.testing.assert_allclose(
        shares - shares.mean(axis=1, keepdims=True), peer.decision_function(features), atol=2e-3
    )


@pytest.mark.full
def test_probes_resume_after_a_finished_task(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(probes, "TASKS_READ", {"wikigold": 40})
    monkeypatch.setattr(probes, "LAYERS", ("embeddings", "last"))
    monkeypatch.setattr(probes, "PENALTIES", (1e-3,))
    monkeypatch.setattr(probes, "LINEAR_RATES", "1e-2")
    monkeypatch.setattr(probes, "ITERATIONS", 5)
    out = tmp_path / "found.json"
    flags = ["check", "probes", "--encoder", "benchmarks/weights/bert_mini", "--out", str(out)]
    flags += ["--feature-cache", str(tmp_path / "f")]
    assert main([*flags, "--data", str(tmp_path)]) == 0, capsys.readouterr().err
    rows = json.loads(out.read_text())["rows"]
    assert [row["layers"] for row in rows] == ["embeddings", "last"]
    assert all(
        0 <= row[key] <= 1 for row in rows for key in ("together", "without_dropout", "lbfgs")
    )
    assert main([*flags, "--data", str(tmp_path)]) == 0
    assert "has its rows" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"] == rows
    found = json.loads(out.read_text())
    del found["rows"][1]["lbfgs"]
    out.write_text(json.dumps(found))
    assert main([*flags, "--data", str(tmp_path)]) == 0
    assert "one fit" not in capsys.readouterr().out
    assert [row["lbfgs"] for row in json.loads(out.read_text())["rows"]] == [
        row["lbfgs"] for row in rows
    ]


@pytest.mark.full
def test_fine_tuning_is_compared_with_transformers_and_resumes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    try:
        find_packaged(fine_tuning.ENCODER)
    except ValueError as error:
        pytest.skip(str(error))
    settings = {"learning_rate": 1e-3, "epochs": 1}
    monkeypatch.setattr(fine_tuning, "TASKS_READ", {"wikigold": (16, settings)})
    monkeypatch.setattr(fine_tuning, "SEEDS", 2)
    out = tmp_path / fine_tuning.FILE
    flags = ["check", "fine_tuning", "--data", str(tmp_path), "--out", str(out)]
    assert main(flags) == 0, capsys.readouterr().err
    rows = json.loads(out.read_text())["rows"]
    assert [row["trained"] for row in rows] == ["keras_plm", "transformers"] * 2
    out.write_text(json.dumps({"rows": rows[:3]}))
    capsys.readouterr()
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "seed 1, transformers" in shown and "seed 0" not in shown
    assert json.loads(out.read_text())["rows"][:3] == rows[:3]
    assert speed_tables(tmp_path) == {"check_fine_tuning": fine_tuning.markdown(out)}
    assert len(fine_tuning.markdown(out).splitlines()) == 3


def test_scaling_estimate_equals_a_hand_computed_example(tmp_path, capsys):
    model = MaskedLM(BERT(scaling.VOCABULARY, **BERT_SIZES["tiny"]))
    assert scaling.weights("tiny") == sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert scaling.ring(4, 100.0, 50.0) == 3.0  # 2 * 3/4 * 100 / 50
    assert scaling.meshes("base", 8) == [(8, 1), (2, 4)]  # 12 heads
    card = scaling.Cluster(8, 1e12, 1e9, "")
    work = speed_bert.matrix_work("base", 128, "pretrain") * 256 * 128
    compute, messages = scaling.step("base", 128, (2, 4), card, 0.5)
    assert compute == pytest.approx(work / 4e12)
    of_gradients = 2 * (1 / 2) * scaling.weights("base") * 4 / 4 / 1e9
    of_blocks = 12 * 4 * 2 * (3 / 4) * (128 * 128 * 768 * 2) / 1e9
    assert messages == pytest.approx(of_gradients + of_blocks)
    with pytest.raises(ValueError, match="speed --work pretrain --sizes base"):
        scaling.check_scaling(tmp_path)
    row = {"implementations": {scaling.OURS: {"fraction_of_matrix_rate": 0.5}}}
    speed_file = {"device": "this", "backend": "torch", "results": {scaling.CASE: row}}
    (tmp_path / "speed.json").write_text(json.dumps(speed_file))
    scaling.check_scaling(tmp_path)
    assert "| BERT-large | 8 A100, NVLink | 1 x 8 |" in capsys.readouterr().out
