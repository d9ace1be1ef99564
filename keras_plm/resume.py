"""Repeatable and resumable training: seeds, and what `fit` needs to go on as if never stopped."""

import json
import os
import random
import time
from pathlib import Path

import keras
import numpy as np

from keras_plm.batching import StepCounter

STATE = "state.safetensors"


def set_seed(seed):
    """Seeds Python, NumPy and the backend.

    `keras.utils.set_random_seed` does the same, but loads TensorFlow under every backend where
    it is installed.
    """
    if keras.backend.backend() == "tensorflow":
        keras.utils.set_random_seed(seed)
        return
    random.seed(seed)  # Keras draws the seeds of layers from it
    np.random.seed(seed)
    if keras.backend.backend() == "torch":
        import torch

        torch.manual_seed(seed)


class TrainingState(StepCounter):
    """Saves all state of a `fit` on `Batches` as it goes, and restores it.

    Weights, optimizer slots, the state of every seed generator (and torch's own), and the
    position in the batches, as the number of finished steps. `keras.callbacks.BackupAndRestore`
    keeps neither random states nor the position within an epoch.

    One file is written under a temporary name and renamed, so that a stop at any moment leaves a
    whole one.

    Args:
        folder: Where `state.safetensors` is kept.
        batches: The `keras_plm.batching.Batches` that `fit` is given.
        every_seconds: How often to save; at the end of training in any case.
        on_save: Called with this callback after each save.
        total_steps: Where training ends, the steps before a stop included; by default where `fit`
            ends.

    Attributes:
        steps: Finished steps, those of resumed runs included.
        finished: Whether `total_steps` are done.

    Example:

        state = TrainingState("run", batches, total_steps=3 * len(batches))
        state.restore(model)  # compiled; does nothing where there is nothing
        if not state.finished:
            model.fit(batches, epochs=3, callbacks=[state])
    """

    def __init__(self, folder, batches, every_seconds=300, on_save=None, total_steps=None):
        super().__init__(batches)
        self.total_steps = total_steps
        self.folder = Path(folder)
        self.every_seconds = every_seconds
        self.on_save = on_save
        self._saved_at = time.monotonic()
        self._random = None

    @property
    def finished(self):
        return self.total_steps is not None and self.steps >= self.total_steps

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            # torch's data loader draws from the generator of dropout whenever an epoch begins,
            # and epochs begin elsewhere after a resume.
            _set_torch_random(self._random)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)
        self._random = _torch_random()
        if self.finished:
            self.model.stop_training = True
        if time.monotonic() - self._saved_at > self.every_seconds:
            self.save()

    def on_train_end(self, logs=None):
        super().on_train_end()
        self.save()

    def save(self):
        """Writes the state as it is now."""
        from safetensors.numpy import save_file

        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        arrays = {name: keras.ops.convert_to_numpy(v) for name, v in self._variables().items()}
        arrays |= self._random or _torch_random()
        note = {"steps": self.steps}
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / (STATE + ".tmp")
        arrays = {name: np.array(array, order="C") for name, array in arrays.items()}
        save_file(arrays, temporary, metadata={"state": json.dumps(note)})
        os.replace(temporary, self.folder / STATE)
        self._saved_at = time.monotonic()
        if self.on_save is not None:
            self.on_save(self)

    def restore(self, model):
        """Puts a compiled model and the batches where the saved run stopped.

        Returns:
            True if there was something to restore.

        Raises:
            ValueError: If the file is damaged or is of another model or optimizer; nothing is
                changed then.
        """
        from safetensors import SafetensorError, safe_open

        path = self.folder / STATE
        if not path.is_file():
            return False
        self.set_model(model)
        model.optimizer.build(model.trainable_variables)
        variables = self._variables()
        try:
            with safe_open(path, framework="numpy") as file:
                note = json.loads(file.metadata()["state"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole training state. Received: {error}") from error
        random = {n: arrays.pop(n) for n in list(arrays) if n.startswith("torch_random")}
        shapes = {name: array.shape for name, array in arrays.items()}
        wanted = {name: tuple(v.shape) for name, v in variables.items()}
        if shapes != wanted:
            differs = sorted(set(shapes.items()) ^ set(wanted.items()))
            raise ValueError(
                f"{path} is the state of another model or optimizer. "
                f"Received: {differs[0][0]} of shape {differs[0][1]} on one side only"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        self._random = random or None
        _set_torch_random(self._random)
        self.steps = note["steps"]
        self.batches.step = max(self.steps - self.before, 0)
        return True

    def _variables(self):
        """Everything that training changes: names that do not depend on the process."""
        # `variables`, not `weights`, which leaves out seed generators.
        metrics = {id(v) for metric in self.model.metrics for v in metric.variables}
        model = [v for v in self.model.variables if id(v) not in metrics]
        named = {f"model/{i:04d}": v for i, v in enumerate(model)}
        for i, v in enumerate(self.model.optimizer.variables):
            named[f"optimizer/{i:04d}"] = v
        return named


def _torch_random():
    """The states of torch's generators, or nothing under another backend."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    states = {"torch_random": torch.get_rng_state()}
    for i in range(torch.cuda.device_count()):
        states[f"torch_random_{i}"] = torch.cuda.get_rng_state(i)
    return {name: state.numpy() for name, state in states.items()}


def _set_torch_random(states):
    if not states or keras.backend.backend() != "torch":
        return
    import torch

    for name, state in states.items():
        state = torch.from_numpy(np.array(state))
        if name == "torch_random":
            torch.set_rng_state(state)
        elif int(name.removeprefix("torch_random_")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(name.removeprefix("torch_random_")))
