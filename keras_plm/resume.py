"""Repeatable and resumable training: seeds, and what `fit` needs to go on as if never stopped."""

import json
import os
import random
import time
from pathlib import Path

import keras
import numpy as np

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


class TrainingState(keras.callbacks.Callback):
    """Saves all state of a `fit` on `Batches` as it goes, and restores it.

    Weights, optimizer slots, the state of every seed generator (and torch's own), and the
    position in the batches, counted in finished steps. `keras.callbacks.BackupAndRestore` keeps
    neither random states nor the position within an epoch.

    One file is written under a temporary name and renamed, so that a stop at any moment leaves a
    whole one.

    Args:
        folder: Where `state.safetensors` is kept.
        batches: The `keras_plm.data.Batches` that `fit` is given.
        every_seconds: How often to save; at the end of training in any case.
        on_save: Called with this callback after each save.

    Attributes:
        steps: Finished steps of all runs together.

    Example:

        state = TrainingState("run", batches)
        state.restore(model)  # compiled; does nothing where there is nothing
        model.fit(batches, epochs=3, callbacks=[state])
    """

    def __init__(self, folder, batches, every_seconds=300, on_save=None):
        super().__init__()
        self.folder = Path(folder)
        self.batches = batches
        self.every_seconds = every_seconds
        self.on_save = on_save
        self.steps = 0
        self._position = None
        self._saved_at = time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        self._position = dict(self.batches.position)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self._position["step"] += 1
        if time.monotonic() - self._saved_at > self.every_seconds:
            self.save()

    def on_train_end(self, logs=None):
        self.save()

    def save(self):
        """Writes the state as it is now."""
        from safetensors.numpy import save_file

        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        arrays = {name: keras.ops.convert_to_numpy(v) for name, v in self._variables().items()}
        if keras.backend.backend() == "torch":
            import torch

            arrays["torch_random"] = torch.get_rng_state().numpy()
        note = {"steps": self.steps, "position": self._position or self.batches.position}
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / (STATE + ".tmp")
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
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
        random = arrays.pop("torch_random", None)
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
        if random is not None and keras.backend.backend() == "torch":
            import torch

            torch.set_rng_state(torch.from_numpy(random.copy()))
        self.steps = note["steps"]
        self.batches.position = note["position"]
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
