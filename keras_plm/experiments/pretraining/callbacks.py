"""Callbacks of a pre-training run: log, stop and snapshots of the encoder."""

import json
import signal
import time

import keras

import keras_plm
from keras_plm.files.json_files import Whole, parse_json
from keras_plm.files.opening import read_text
from keras_plm.files.writing import explaining_no_room, write_text
from keras_plm.training.callbacks import check_loss
from keras_plm.training.processes import anywhere
from keras_plm.training.stopping import StopRequest


def snapshot_name(step):
    """Returns the name of the folder that holds the encoder after a step."""
    return f"step_{step:06d}"


class Snapshots(keras.callbacks.Callback):
    """Saves the encoder after chosen steps, each time to a new folder."""

    reads_tensors = True

    def __init__(self, settings, state, objective, folder):
        super().__init__()
        self.micro_batches, self.steps = settings.accumulation_steps, settings.snapshot_steps
        self.state, self.objective, self.folder = state, objective, folder

    def on_train_batch_end(self, batch, logs=None):
        step, micro_batch = divmod(self.state.steps, self.micro_batches)
        if not micro_batch and step in self.steps:
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            if not self.objective.distribution.is_chief:
                return
            folder = self.folder / snapshot_name(step)
            keras_plm.save(folder, self.objective.encoder, self.objective.tokenizer)


class Meter(keras.callbacks.Callback):
    """Logs losses and speed of pre-training, and stops it after its last step."""

    reads_tensors = True
    shape = {"step": Whole(), "seconds?": float}  # of a log line

    def __init__(self, settings, path, progress=None, every_seconds=10, chief=True):
        super().__init__()
        self.settings, self.path, self.progress = settings, path, progress
        self.every_seconds, self.chief = every_seconds, chief
        self.state, self.end, self.stop = None, settings.steps, StopRequest()
        self._begun, self._before = time.monotonic(), 0.0
        self._at, self._last, self._first = time.monotonic(), 0, 0

    def seconds(self):
        """Returns the seconds of training so far, with those before a resume."""
        return round(self._before + time.monotonic() - self._begun, 1)

    def resume(self, steps):
        """Drops the log lines after the resumed step, and those of held-out losses."""
        kept, steps = [], steps // self.settings.accumulation_steps
        if self.path.is_file():
            for line in read_text(self.path).splitlines():
                try:
                    entry = parse_json(line, self.path, self.shape)
                except ValueError:
                    continue  # half a line, from a stop
                if entry["step"] <= steps and "seconds" in entry:
                    kept.append(line)
                    self._before = entry["seconds"]
        if self.chief:
            write_text(self.path, "".join(line + "\n" for line in kept))
        self._last = self._first = steps

    def stopping(self):
        """Returns a context in which a signal stops `fit` after a whole, saved step."""
        return self.stop.listening()

    def on_train_begin(self, logs=None):
        self._begun = self._at = time.monotonic()

    def on_train_end(self, logs=None):
        self._before = self.seconds()
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        done, micro_batch = divmod(self.state.steps, self.settings.accumulation_steps)
        # All processes stop and log at the same step, because they sum their metrics.
        if anywhere(self.stop.number is not None) and self.stop.number is None:
            self.stop.number = signal.SIGINT
        stops = self.state.steps >= self.end or self.stop.number is not None
        if stops:
            self.model.stop_training = True
        if not (anywhere(now - self._at >= self.every_seconds) or stops) or micro_batch:
            return
        if self._last < done:
            steps = done - self._last
            entry = {
                "step": done,
                "tokens": done * self.settings.tokens_per_batch,
                "seconds": self.seconds(),
                "tokens_per_second": round(
                    steps * self.settings.tokens_per_batch / max(now - self._at, 1e-9)
                ),
                **{k: round(float(v), 4) for k, v in (logs or {}).items()},
            }
            check_loss(self.model, logs, f"since step {self._last}")
            if self.chief:
                self.write(entry)
                if self.progress is not None:
                    self.progress(entry)
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            self.model.reset_metrics()  # a line covers the steps since the previous one
            self._at, self._last = now, done

    def write(self, entry):
        with explaining_no_room(self.path), open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")
