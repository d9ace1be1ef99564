"""Training that resumes after a stop, for the suites."""

import time

import keras

from keras_plm.files.json_files import read_json
from keras_plm.files.writing import write_json
from keras_plm.training.resume import TrainingState
from keras_plm.training.stopping import StopRequest


def fit_resumed(model, batches, epochs, work, name, progress):
    """Fits a compiled model on `Batches`, and resumes after a stop.

    A signal stops training after a whole, saved step.

    Args:
        model: A compiled model.
        batches: The `Batches` to fit.
        epochs: Number of passes in all.
        work: Folder for the state, saved every minute.
        name: Name of the run, for `progress`.
        progress: Called with a line of text.

    Returns:
        `(seconds, losses)`: the seconds of training, without steps that a stop lost; and the values
        of each metric by epoch, with those before a stop.
    """
    steps = epochs * len(batches)
    state = TrainingState(work, batches, every_seconds=60, total_steps=steps)
    clock = Clock(work / "seconds.json", name, steps, progress)
    state.on_save = lambda _: clock.write()
    clock.state = state
    if state.restore(model):
        progress(f"{name}: resumes after step {state.steps}/{steps}")
    if not state.finished:
        left = epochs - state.steps // len(batches)
        with clock.stop.listening():
            model.fit(batches, epochs=left, verbose=0, callbacks=[state, clock])
    names = state.history[-1] if state.history else ()
    return clock.seconds(), {name: [epoch[name] for epoch in state.history] for name in names}


class Clock(keras.callbacks.Callback):
    """Counts the seconds of training across stops, and shows its progress."""

    reads_tensors = True

    def __init__(self, path, name, steps, progress, every_seconds=30):
        super().__init__()
        self.path, self.name, self.steps, self.progress = path, name, steps, progress
        self.every_seconds, self.state, self.stop = every_seconds, None, StopRequest()
        self._before = read_json(path, float) if path.is_file() else 0.0
        self._begun, self._shown = None, time.monotonic()

    def seconds(self):
        running = 0.0 if self._begun is None else time.monotonic() - self._begun
        return self._before + running

    def write(self):
        write_json(self.path, self.seconds())

    def on_train_begin(self, logs=None):
        self._begun = time.monotonic()

    def on_train_end(self, logs=None):
        self._before, self._begun = self.seconds(), None

    def on_train_batch_end(self, batch, logs=None):
        if self.stop.number is not None:
            self.model.stop_training = True
        if time.monotonic() - self._shown > self.every_seconds:
            self._shown = time.monotonic()
            loss = float((logs or {}).get("loss", float("nan")))
            self.progress(f"{self.name}  step {self.state.steps}/{self.steps}  loss {loss:.3f}")
