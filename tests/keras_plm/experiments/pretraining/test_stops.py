"""Pre-training stopped by a signal or a kill, and two runs in one folder."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import keras_plm
from benchmarks.checks.processes import kill_at_each_call
from keras_plm.cli.main import main
from keras_plm.experiments.pretraining.callbacks import Meter
from keras_plm.experiments.pretraining.prepare import prepare
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.training.stopping import Stopped, StopRequest, handling_signals, raise_stopped
from tests import ROOT

pytestmark = pytest.mark.backend_neutral

TEXT = "A cat sat.\nIt ran.\n\nWe saw a dog, a cat and a bird.\nThe end.\n\n" * 30
FLAGS = {"size": "tiny", "tokens": 384, "tokens_per_batch": 64, "max_length": 16}
# Also runs in separate processes.
SETUP = f"""
import tensorflow  # Keras imports it late, each process anew
from keras_plm.experiments.pretraining.prepare import prepare
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining

def train(resume=False, **more):
    settings = Pretraining("bert", **{{**{FLAGS}, **more}})
    pretrain(settings, [], "out", resume=resume, every_seconds=0, prepared="ready")
"""
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.fixture
def folder(tmp_path):
    """A folder with prepared text."""
    (tmp_path / "work").mkdir()
    (tmp_path / "text.txt").write_text(TEXT)
    prepare(
        [tmp_path / "text.txt"],
        tmp_path / "work" / "ready",
        vocabulary_size=70,
        sentences="lines",
    )
    return tmp_path / "work"


@pytest.fixture
def command(folder):
    flags = [part for n, v in FLAGS.items() for part in (f"--{n.replace('_', '-')}", str(v))]
    return [
        "pretrain", "--prepared", str(folder / "ready"), "--out", str(folder / "out"), *flags
    ]  # fmt: skip


def weights(out):
    return keras_plm.load(out)[0].get_weights()


def assert_whole(out, wanted, steps=6):
    """Checks that encoder, note and settings belong to one finished run."""
    for a, b in zip(weights(out), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    note = json.loads((out / "pretraining.json").read_text())
    settings = json.loads((out / "training" / "settings.json").read_text())
    assert note["steps_done"] == steps and settings.items() <= note.items()


@pytest.mark.full
@pytest.mark.parametrize("number, status", SIGNALS, ids=str)
def test_signal_stops_pretraining_after_a_full_step(
    number, status, command, folder, capsys, monkeypatch, request
):
    before = signal.signal(number, signal.default_int_handler)  # `nohup` ignores SIGHUP
    request.addfinalizer(lambda: signal.signal(number, before))
    end = Meter.on_train_batch_end

    def sent(self, batch, logs=None):
        if self.state.steps == 2:
            os.kill(os.getpid(), number)
        end(self, batch, logs)

    with monkeypatch.context() as patched:
        patched.setattr(Meter, "on_train_batch_end", sent)
        assert main(command) == status
    assert "stopped; finished work is kept" in capsys.readouterr().err
    out = folder / "out"
    assert json.loads((out / "pretraining.json").read_text())["steps_done"] == 2
    assert (out / "training" / "state-000002.safetensors").is_file()
    assert main([*command, "--resume"]) == 0
    whole = [str(folder / "whole") if flag == str(out) else flag for flag in command]
    assert main(whole) == 0
    assert_whole(out, weights(folder / "whole"))


@pytest.mark.full
def test_real_processes_end_by_signals_and_resume(command, folder):
    """A run after SIGTERM and SIGKILL equals an uninterrupted run."""
    code = """
import sys
from keras_plm.cli.main import main
from keras_plm.experiments.pretraining.callbacks import Meter

end = Meter.on_train_batch_end
def shown(self, batch, logs=None):
    end(self, batch, logs)
    print("step", self.state.steps, flush=True)
    if sys.stdin.read(1) == "":
        sys.stdin = open("/dev/null")
Meter.on_train_batch_end = shown
sys.exit(main(sys.argv[1:]))
"""
    statuses = []
    for number, last in ((signal.SIGTERM, 2), (signal.SIGKILL, 4)):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *command, *(["--resume"] if statuses else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        with process:
            for line in process.stdout:
                if line == f"step {last}\n":
                    process.send_signal(number)
                    process.stdin.close()
                    break
                if line.startswith("step"):
                    process.stdin.write("\n")
                    process.stdin.flush()
            process.stdout.read()
        statuses.append(process.returncode)
    assert statuses == [143, -signal.SIGKILL]
    assert main([*command, "--resume"]) == 0
    settings = Pretraining("bert", **FLAGS)
    pretrain(settings, [], folder / "whole", prepared=folder / "ready")
    assert_whole(folder / "out", weights(folder / "whole"))


@pytest.mark.full
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_pretraining_resumes_after_kill_at_any_rename(every, folder, tmp_path):
    copies = kill_at_each_call(
        "train(tokens=64)", folder, tmp_path / "killed", SETUP, "train(True, tokens=64)",
        every=every,
    )  # fmt: skip
    assert len(copies) > 20 // every
    wanted = weights(copies[-1] / "out")
    for copy in copies:
        assert_whole(copy / "out", wanted, steps=1)
        assert not list(copy.rglob("*.tmp"))


@pytest.mark.full
def test_prepare_resumes_after_kill_at_any_rename(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "text.txt").write_text(TEXT)
    code = 'prepare(["text.txt"], "ready", vocabulary_size=70, sentences="lines")'
    calls = ("replace", "rename", "mkdir", "rmdir")
    copies = kill_at_each_call(code, tmp_path / "work", tmp_path / "killed", SETUP, code, calls)
    assert len(copies) > 8
    whole = (copies[-1] / "ready" / "prepared.json").read_text()
    for copy in copies:
        assert (copy / "ready" / "prepared.json").read_text() == whole
        assert not [path for path in copy.rglob("*.tmp*")], copy


def test_handling_signals_leaves_ignored_signals_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handling_signals(raise_stopped):
            os.kill(os.getpid(), signal.SIGHUP)  # as under nohup
            with pytest.raises(Stopped, match="SIGTERM") as found:
                os.kill(os.getpid(), signal.SIGTERM)
        assert found.value.exit_status == 143
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_it_at_once():
    request = StopRequest()
    with pytest.raises(Stopped, match="SIGTERM"), request.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert request.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not at once")
