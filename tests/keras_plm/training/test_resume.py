"""A stopped and resumed run ends like an uninterrupted one."""

import errno
import json
import os
import shutil
import struct
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_plm.data.batching import Batches
from keras_plm.models import BERT
from keras_plm.pretraining import MaskedLM, masked_lm_batches
from keras_plm.training import resume
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import TrainingState, set_seed
from keras_plm.training.state_files import has_state
from tests.helpers.checks import assert_close
from tests.keras_plm.training.small_training import TOKENIZER, Seen, start

pytestmark = pytest.mark.each_backend


@pytest.mark.compiles
def test_resume_is_exact_with_dropout_within_an_epoch(stream, tmp_path):
    model, batches = start(stream)
    epoch = len(batches)
    total = 2 * epoch + 1
    state = TrainingState(tmp_path / "whole", batches)
    model.fit(batches, epochs=9, callbacks=[state, Seen(total)], verbose=0)
    assert batches.step == total

    stopped, batches = start(stream)
    state = TrainingState(tmp_path / "run", batches)
    assert not state.restore(stopped)
    stopped.fit(batches, epochs=9, callbacks=[state, Seen(epoch + 2)], verbose=0)
    assert state.steps == epoch + 2

    resumed, batches = start(stream, seed=99)  # the state of the new process has no effect
    state = TrainingState(tmp_path / "run", batches)
    assert state.restore(resumed)
    assert state.steps == batches.step == epoch + 2
    resumed.fit(batches, epochs=9, callbacks=[state, Seen(total - epoch - 2)], verbose=0)
    assert state.steps == total
    assert_close(resumed.get_weights(), model.get_weights(), atol=1e-6)
    for a, b in zip(resumed.optimizer.variables, model.optimizer.variables, strict=True):
        assert_close(a, b, atol=1e-6)
    assert not list((tmp_path / "run").glob("*.tmp"))


@pytest.mark.full
def test_resume_is_exact_with_averaged_weights(stream, tmp_path):
    """Keras replaces the weights by their average at the end of `fit`."""

    def run(folder, *stops):
        for stop in stops:
            model, batches = start(stream)
            model.compile(BertAdamW(1e-2, use_ema=True, ema_momentum=0.9))
            state = TrainingState(folder, batches, total_steps=7)
            state.restore(model)
            model.fit(batches, epochs=9, callbacks=[state, Seen(stop)], verbose=0)
        return model.get_weights()

    assert_close(run(tmp_path / "stopped", 3, 9), run(tmp_path / "whole", 9), atol=1e-6)
    model, batches = start(stream)
    model.compile(BertAdamW(1e-2, use_ema=True, ema_momentum=0.9))
    assert TrainingState(tmp_path / "whole", batches, total_steps=7).restore(model)
    assert_close(model.get_weights(), run(tmp_path / "again", 9), atol=1e-6)


@pytest.mark.backend_neutral
def test_state_is_saved_during_training(stream, tmp_path):
    model, batches = start(stream)
    saved = []
    state = TrainingState(
        tmp_path, batches, every_seconds=0, on_save=lambda s: saved.append(s.steps)
    )
    model.fit(batches, epochs=1, callbacks=[state, Seen(3)], verbose=0)
    assert saved == [1, 2, 3, 3]


def trained(stream, folder, steps, **options):
    """Returns the names of the saved states after this number of steps."""
    model, batches = start(stream)
    state = TrainingState(folder, batches, **{"every_steps": 1, **options})
    model.fit(batches, epochs=9, callbacks=[state, Seen(steps)], verbose=0)
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("state"))


@pytest.mark.backend_neutral
def test_only_the_last_states_are_kept(stream, tmp_path):
    names = trained(stream, tmp_path / "two", 5)
    assert names == ["state-000004.safetensors", "state-000005.safetensors"]
    names = trained(stream, tmp_path / "by", 5, every_steps=2, keep=9, every_seconds=None)
    assert names == [f"state-00000{i}.safetensors" for i in (2, 4, 5)]  # step 5 is the end
    assert has_state(tmp_path / "by") and not has_state(tmp_path)
    killed = subprocess.Popen([sys.executable, "-S", "-c", ""])
    killed.wait()
    processes = (killed.pid, os.getppid())
    left, used = (f"state-000009.safetensors.{pid}.0123abcd.tmp" for pid in processes)
    for name in (left, used):
        (tmp_path / "by" / name).write_bytes(b"a part")
    assert trained(stream, tmp_path / "by", 3, keep=1) == ["state-000003.safetensors", used]


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "options, match",
    [
        (
            {"every_steps": 0},
            "`every_steps` must be a whole number, 1 or more. Received: every_steps=0",
        ),
        ({"keep": 0}, "`keep` must be a whole number, 1 or more. Received: keep=0"),
    ],
)
def test_invalid_every_steps_and_keep_are_refused(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        TrainingState(tmp_path, Batches([3] * 4, None, batch_size=2), **options)


@pytest.mark.backend_neutral
def test_damaged_state_falls_back_to_the_previous_one(stream, tmp_path):
    trained(stream, tmp_path, 2)
    before, newest = sorted(tmp_path.glob("state*"))
    whole = newest.read_bytes()
    model, batches = start(stream)

    def restored():
        state = TrainingState(tmp_path, batches)
        assert state.restore(model)
        return state.steps

    assert restored() == 2
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    note = whole.index(b"steps") + 10  # the number, in nested JSON
    places = [header, header + 4001, len(whole) - 1, note, whole.index(b"sha256") + 12]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1
        newest.write_bytes(flipped)
        with pytest.warns(UserWarning, match="state-000002.*Resuming from .*state-000001"):
            assert restored() == 1, place
    newest.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="state-000002.*Resuming from .*state-000001"):
        state = TrainingState(tmp_path, batches, every_steps=1)
        state.restore(model)
    model.fit(batches, callbacks=[state, Seen(1)], verbose=0)  # replaces it with a complete state
    assert restored() == 2


@pytest.mark.backend_neutral
def test_restore_raises_if_all_states_are_damaged(stream, tmp_path):
    trained(stream, tmp_path, 2)
    for path in tmp_path.glob("state*"):
        path.write_bytes(path.read_bytes()[:-1])
    model, batches = start(stream)
    before = model.get_weights()
    with pytest.raises(ValueError, match="state-000002.*, .*state-000001.*: no intact training"):
        TrainingState(tmp_path, batches).restore(model)
    assert_close(model.get_weights(), before, atol=0)
    assert batches.step == 0


@pytest.mark.backend_neutral
def test_full_disk_preserves_earlier_states(stream, tmp_path, monkeypatch):
    trained(stream, tmp_path, 2)
    former = {path: path.read_bytes() for path in tmp_path.glob("state*")}
    model, batches = start(stream)
    state = TrainingState(tmp_path, batches, every_steps=1)
    state.restore(model)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="state-000003.*could not be written.*No space left"):
        model.fit(batches, callbacks=[state], verbose=0)
    assert {path: path.read_bytes() for path in tmp_path.glob("state*")} == former


@pytest.mark.backend_neutral
def test_state_of_an_older_version_is_restored(stream, tmp_path):
    """Older versions kept one file, without a checksum and metrics."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    trained(stream, tmp_path, 3)
    with safe_open(tmp_path / "state-000003.safetensors", framework="numpy") as file:
        names = [name for name in file.keys() if not name.startswith("metric")]
        arrays = {name: file.get_tensor(name) for name in names}
    old = tmp_path / "old" / "state.safetensors"
    old.parent.mkdir()
    save_file(arrays, old, metadata={"state": json.dumps({"steps": 3})})
    model, batches = start(stream)
    state = TrainingState(old.parent, batches, every_steps=1)
    assert has_state(old.parent) and state.restore(model) and state.steps == 3
    model.fit(batches, callbacks=[state, Seen(2)], verbose=0)
    names = sorted(path.name for path in old.parent.iterdir())
    assert names == ["state-000004.safetensors", "state-000005.safetensors"]


@pytest.mark.backend_neutral
def test_a_state_of_another_run_is_refused(stream, tmp_path, monkeypatch):
    trained(stream, tmp_path, 1)
    _, batches = start(stream)

    def refused(model, match, batches=batches):
        before = model.get_weights()
        with pytest.raises(ValueError, match=match):
            TrainingState(tmp_path, batches).restore(model)
        assert_close(model.get_weights(), before, atol=0)

    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.compile(BertAdamW(), loss="mse")
    refused(other, "another model. Received: Sequential instead of MaskedLM")
    wider = MaskedLM(BERT(13, 1, 2, 10, 16, max_sequence_length=32))
    wider.compile(BertAdamW())
    refused(wider, r"another model. Received: as variable model/0000 \S+ of shape \(13, 10\)")
    headed = MaskedLM(BERT(13, 1, 1, 8, 16, dropout=0.3, max_sequence_length=32))  # same shapes
    headed.compile(BertAdamW())
    refused(headed, "build it with the same arguments. Received: other values of encoder")
    model, _ = start(stream)
    model.compile(keras.optimizers.Adam())
    refused(model, "another optimizer. Received: Adam instead of BertAdamW")
    model, _ = start(stream)
    fewer = masked_lm_batches(stream, TOKENIZER, 32, batch_size=8, buckets=2)
    refused(model, f"other batches. Received: {len(fewer)} batches per pass instead of", fewer)
    decayed, _ = start(stream)
    decayed.compile(BertAdamW(weight_decay=0.5))
    refused(decayed, "other settings of the optimizer.*another value of weight_decay")
    monkeypatch.setattr(resume, "_devices", lambda *_: 4)
    refused(model, "another number of devices.* Received: 4 instead of 1")
    monkeypatch.setattr("keras_plm.training.processes.count_processes", lambda: 2)
    monkeypatch.setattr(resume.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="each sees a part.* Received: 2 processes"):
        model.fit(batches, callbacks=[TrainingState(tmp_path, batches)], verbose=0)
    with pytest.raises(ValueError, match="each sees a part.* Received: 2 processes"):
        TrainingState(tmp_path, batches).restore(model)


@pytest.mark.backend_neutral
def test_a_state_of_other_rows_is_refused(tmp_path):
    def made(lengths=20, seed=2):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("adam", loss="mse")
        return model, Batches(np.ones(lengths, int), columns, batch_size=4, seed=seed)

    def columns(rows, length, rng, epoch):
        return np.asarray(rows, "float32")[:, None], np.asarray(rows, "float32"), None

    model, batches = made()
    state = TrainingState(tmp_path, batches)
    model.fit(batches, shuffle=False, verbose=0, callbacks=[state])
    for options in ({"seed": 3}, {"lengths": 19}):
        model, batches = made(**options)
        with pytest.raises(ValueError, match="the same `seed`. Received: other rows"):
            TrainingState(tmp_path, batches).restore(model)
    model, batches = made()
    assert TrainingState(tmp_path, batches).restore(model)


@pytest.mark.full
def test_metrics_of_resumed_runs_cover_whole_passes(tmp_path):
    """A stop may fall anywhere, with validation between Keras' epochs."""

    def collate(rows, length, rng, epoch):
        return np.asarray(rows, "float32")[:, None], np.asarray(rows, "float32"), None

    def train(folder, *stops, metrics=(["mae"],) * 3):
        for stop, of_run in zip(stops, metrics, strict=False):
            set_seed(1)
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("adam", loss="mse", metrics=of_run)
            batches = Batches(np.ones(20, int), collate, batch_size=4, seed=2)
            held_out = Batches(np.ones(6, int), collate, batch_size=3, training=False)
            state = TrainingState(folder, batches, total_steps=15)
            state.restore(model)
            fitted = model.fit(
                batches, epochs=9, initial_epoch=state.epoch, callbacks=[state, Seen(stop)],
                shuffle=False, verbose=0, validation_data=held_out,
            ).history  # fmt: skip
        assert state.epoch == 3
        return state.history, fitted

    whole, fitted = train(tmp_path / "whole", 99)
    assert len(whole) == 3 and set(whole[0]) == {"loss", "mae"}
    assert [epoch["mae"] for epoch in whole] == fitted["mae"]
    history, fitted = train(tmp_path / "stopped", 2, 6, 99)  # one stop in each pass
    assert history == whole
    assert fitted["mae"][-1] == whole[-1]["mae"]
    assert train(tmp_path / "at_an_end", 5, 99)[0] == whole
    with pytest.warns(UserWarning, match="other metrics than this run; .* from zero. Received: "):
        train(tmp_path / "others", 2, 99, metrics=([], ["mae"]))


@pytest.mark.full
@pytest.mark.split_to("torch")  # `python -m benchmarks check resume` kills runs of each backend
def test_killed_runs_resume_bit_for_bit(tmp_path):
    """Sends SIGKILL at any moment of a step or a write; the check command does so many times."""
    from benchmarks.checks.resume import STEPS, differences, run

    assert run(tmp_path / "whole") == (STEPS, False)
    assert run(tmp_path / "killed", 11, 0.003)[1]
    assert run(tmp_path / "killed") == (STEPS, False)
    assert differences(tmp_path / "whole", tmp_path / "killed") == []
    shutil.copytree(tmp_path / "killed", tmp_path / "other")
    path = tmp_path / "other" / f"state-{STEPS:06d}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert len(differences(tmp_path / "whole", tmp_path / "other")) == 1


@pytest.mark.full
@pytest.mark.backend_neutral
def test_check_resume_command_reports_differences(tmp_path, monkeypatch, capsys):
    from benchmarks.__main__ import main
    from benchmarks.checks import resume as resume_check

    def run(folder, kill_at=None, delay=0.0, threads=1):
        (folder / "state-000003.safetensors").mkdir(parents=True, exist_ok=True)
        return kill_at or resume_check.STEPS, kill_at is not None

    found = [["model/0001"], []]
    monkeypatch.setattr(resume_check, "run", run)
    monkeypatch.setattr(resume_check, "differences", lambda *_: found.pop())
    out = tmp_path / "kills.json"
    assert main(["check", "resume", "--runs", "2", "--out", str(out)]) == 0
    assert "2 kills, 1 differences in 1 runs" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["differences"] == result["different_runs"] == 1 and result["kills"] == 2
    assert result["threads"] == 1 and result["runs"][0]["resumed_after_step"] == 3
    assert {"backend", "versions", "commit"} <= set(result)
    assert main(["check", "resume", "--runs", "0", "--out", str(out)]) == 2
    assert "`runs` must be 1 or more. Received: 0" in capsys.readouterr().err


@pytest.mark.full
def test_works_with_any_keras_model(tmp_path):
    def start():
        set_seed(1)
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        )
        model.compile("adam", loss="mse")

        def collate(rows, length, rng, epoch):
            return np.asarray(rows, "float32")[:, None], np.asarray(rows, "float32"), None

        return model, Batches(np.ones(20, int), collate, batch_size=4, seed=2)

    model, batches = start()
    count = TrainingState(tmp_path / "a", batches)
    model.fit(batches, epochs=2, callbacks=[count], shuffle=False, verbose=0)
    again, batches = start()
    state = TrainingState(tmp_path / "b", batches)
    again.fit(batches, epochs=9, callbacks=[state, Seen(7)], shuffle=False, verbose=0)
    again, batches = start()
    state = TrainingState(tmp_path / "b", batches)
    state.restore(again)
    again.fit(batches, epochs=9, callbacks=[state, Seen(3)], shuffle=False, verbose=0)
    assert state.steps == count.steps == 10
    assert_close(again.get_weights(), model.get_weights(), atol=1e-6)


@pytest.mark.backend_neutral
def test_resumed_run_ends_at_total_steps(stream, tmp_path):
    def train(stop=None):
        model, batches = start(stream)
        state = TrainingState(tmp_path / "run", batches, total_steps=7)
        state.restore(model)
        if not state.finished:
            callbacks = [state] + ([Seen(stop)] if stop else [])
            model.fit(batches, epochs=9, callbacks=callbacks, verbose=0)
        return state.steps

    assert [train(stop=3), train(), train()] == [3, 7, 7]
