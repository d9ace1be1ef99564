"""Exact resume of a training run, and its seeds."""

import contextlib
import functools
import hashlib
import json
import os
import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.files.arguments import check_whole
from keras_plm.files.private_apis import build_for_training
from keras_plm.training.callbacks import StepCounter
from keras_plm.training.processes import (
    anywhere,
    check_same_step,
    check_whole_state,
    count_processes,
    gather_states,
    process_index,
    sum_over_processes,
)
from keras_plm.training.state_files import newest_state, state_files, steps_of, write_state


def set_seed(seed: int) -> None:
    """Seeds the random generators of Python, NumPy and the backend.

    `keras.utils.set_random_seed` does the same, but also loads TensorFlow under other backends.

    Args:
        seed: The seed, 0 or more.

    >>> import numpy as np
    >>> set_seed(1)
    >>> first = np.random.rand()
    >>> set_seed(1)
    >>> bool(np.random.rand() == first)
    True
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
    """Callback that saves and restores all state of a `fit` on `Batches`.

    The state has the weights, the optimizer, all random generators, the metrics, and the number of
    finished steps. With the same versions, threads and batches, a resumed run equals an
    uninterrupted one bit for bit. `keras.callbacks.BackupAndRestore` saves neither random states
    nor the position in an epoch.

    Each file, such as `state-000123.safetensors` after step 123, is written atomically and flushed
    to the disk. It has a SHA-256 of its content. `restore` skips a damaged file and reads the
    previous one.

    Keras counts epochs from the start of `fit`. A resume within an epoch shifts its epochs, its
    `History` and validation. `history` has the metrics of whole passes
    through the batches; with `steps_per_execution` above 1 only if it divides the remaining steps
    of a pass. Under torch, this callback changes the dropout masks from the second epoch on.

    Args:
        folder: Folder of the files.
        batches: The `keras_plm.data.batching.Batches` of `fit`.
        every_seconds: Seconds between saves, or `None`; the end of training always saves.
        on_save: Function to call with this callback after each save.
        total_steps: Number of steps of the whole training; by default the end of `fit`.
        every_steps: Number of steps between saves, or `None`.
        keep: Number of files to keep, the newest ones.

    Attributes:
        steps: Number of finished steps, over all runs.
        epoch: Number of finished passes through the batches.
        finished: Whether `total_steps` are finished.
        history: A dict of metrics for each finished pass, over all runs.

    Raises:
        ValueError: If a number is below 1. In `restore` and `fit`: if JAX trains in several
            processes, each with a part of the state.

    >>> import keras
    >>> import numpy as np
    >>> import tempfile
    >>> from keras_plm.data import batches as make_batches
    >>> from keras_plm.training import FitsBatches
    >>> class Model(FitsBatches, keras.Model):
    ...     pass
    >>> x = keras.Input((2,), name="x")
    >>> model = Model({"x": x}, keras.layers.Dense(1)(x))
    >>> model.compile("sgd", "mse")
    >>> batches = make_batches({"x": np.ones((4, 2))}, targets=np.ones((4, 1)), batch_size=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     state = TrainingState(folder, batches, total_steps=2 * len(batches))
    ...     state.restore(model)  # nothing to restore
    ...     history = model.fit(
    ...         batches, epochs=2, initial_epoch=state.epoch, callbacks=[state], verbose=0
    ...     )
    ...     state.finished, state.steps, state.restore(model)
    False
    (True, 4, True)
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        batches: Batches,
        every_seconds: float | None = 300,
        on_save: Callable[..., Any] | None = None,
        total_steps: int | None = None,
        every_steps: int | None = None,
        keep: int = 2,
    ):
        super().__init__(batches)
        for name, value in (("every_steps", every_steps), ("keep", keep)):
            if value is not None:
                check_whole(value, name, least=1)
        self.total_steps = total_steps
        self.folder = Path(folder)
        self.every_seconds = every_seconds
        self.every_steps = every_steps
        self.keep = keep
        self.on_save = on_save
        self.history = []
        self._saved_at, self._saved_steps = time.monotonic(), self.steps
        self._random = None
        self._known = None, None
        self._metrics = None  # metrics of an unfinished pass, which Keras resets
        self._unaveraged = {}  # weights before Keras replaces them by their average

    @property
    def finished(self) -> bool:
        """Whether `total_steps` are finished."""
        return self.total_steps is not None and self.steps >= self.total_steps

    @property
    def epoch(self) -> int:
        """Number of finished passes through the batches."""
        return max(self.steps - self.before, 0) // len(self.batches)

    @property
    def _within_pass(self):
        return (self.steps - self.before) % len(self.batches) != 0

    def on_train_begin(self, logs=None):
        check_whole_state()

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch)
        self._unaveraged = {}
        if self._metrics is not None and self._within_pass:
            for variable, value in zip(self._metric_variables(), self._metrics, strict=True):
                variable.assign(value)
        self._metrics = None

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            # torch's data loader draws from dropout's generator at the start of each epoch, and a
            # resume shifts these starts.
            _set_torch_random(self._random)
        elif not self._within_pass:  # as Keras does when its epochs are the passes
            _sync(self.model)
            self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch)
        self._random = _torch_random()
        if not self._within_pass:
            self.history.append({name: float(value) for name, value in (logs or {}).items()})
        if self.finished:
            self.model.stop_training = True
        every, seconds = self.every_steps, self.every_seconds
        if (every is not None and self.steps // every > self._saved_steps // every) or (
            seconds is not None and anywhere(time.monotonic() - self._saved_at > seconds)
        ):
            self.save()

    def on_test_begin(self, logs=None):
        self._keep_metrics()  # validation overwrites them

    def on_epoch_end(self, epoch, logs=None):
        self._keep_metrics()
        optimizer = self.model.optimizer
        if getattr(getattr(optimizer, "inner_optimizer", optimizer), "use_ema", False):
            _sync(self.model)
            self._unaveraged = {
                name: np.array(keras.ops.convert_to_numpy(v), order="C")
                for name, v in self._variables().items()
                if name.startswith("model/") and v.trainable
            }

    def on_train_end(self, logs=None):
        super().on_train_end()
        if self.finished:  # the weights stay averaged
            self._unaveraged = {}
        self.save()
        self._unaveraged = {}

    def _keep_metrics(self):
        if self._metrics is None:
            _sync(self.model)
            found = self._metric_variables()
            self._metrics = [np.array(keras.ops.convert_to_numpy(v)) for v in found]

    def save(self) -> None:
        """Writes the current state.

        Raises:
            OSError: If the file cannot be written; earlier files stay intact.
            FloatingPointError: If the weights are not finite; earlier files stay intact.
        """
        _sync(self.model)
        metrics = self._metric_variables() if self._metrics is None else self._metrics
        metrics = sum_over_processes([np.array(keras.ops.convert_to_numpy(v)) for v in metrics])
        variables = self._variables()
        arrays = {
            name: np.array(keras.ops.convert_to_numpy(v), order="C")
            for name, v in variables.items()
        } | self._unaveraged
        for name, variable in variables.items():
            learned = name.startswith("model/") and variable.trainable
            if learned and not np.isfinite(arrays[name]).all():
                raise FloatingPointError(
                    "The state is not saved, because weights must be finite and training diverged: "
                    f"start again in another folder than {self.folder}, with a lower learning "
                    f"rate. Received: {variable.path} with a number that is not finite, "
                    f"after step {self.steps}"
                )
        arrays |= {f"metric/{i:04d}": value for i, value in enumerate(metrics)}
        arrays |= gather_states(self._random or _torch_random())
        self._saved_at, self._saved_steps = time.monotonic(), self.steps
        if process_index():
            return  # only process 0 writes
        note = {"steps": self.steps, "history": self.history, **self._about()}
        write_state(self.folder / f"state-{self.steps:06d}.safetensors", note, arrays)
        # A file of a later step is damaged or belongs to an abandoned run.
        files = state_files(self.folder)
        mine = [path for path in files if steps_of(path) <= self.steps]
        for path in set(files) - set(mine[-self.keep :]):
            path.unlink(missing_ok=True)
        if self.on_save is not None:
            self.on_save(self)

    def restore(self, model: keras.Model) -> bool:
        """Restores a compiled model and the batches from the newest intact file.

        It skips a damaged file with a warning. New metrics start from zero, with a warning.

        Args:
            model: The compiled model.

        Returns:
            True if there was a file to restore.

        Raises:
            ValueError: If all files are damaged, or the file is of another model, other settings,
                another optimizer, other batches or another split over devices. The model then stays
                unchanged.
        """
        check_whole_state()
        with _scope(model, self.batches):
            return self._restore(model)

    def _restore(self, model):
        found = newest_state(self.folder)
        check_same_step(-1 if found is None else found[1]["steps"], self.folder)
        if found is None:
            return False
        path, note, arrays = found
        self.set_model(model)
        model.optimizer.build(model.trainable_variables)
        variables = self._variables()
        torchs = {n: arrays.pop(n) for n in list(arrays) if n.startswith("torch_random")}
        torchs = {n: v for n, v in torchs.items() if "@" not in n} | {
            n.partition("@")[0]: v for n, v in torchs.items() if n.endswith(f"@{process_index()}")
        }
        metrics = [arrays.pop(n) for n in sorted(arrays) if n.startswith("metric/")]
        self._check(path, note, arrays, variables)
        if metrics:
            # TensorFlow builds metrics with the first batch, too late to restore them.
            build_for_training(model, self.batches[0])
            shapes = [tuple(v.shape) for v in self._metric_variables()]
            if shapes != [value.shape for value in metrics]:
                warnings.warn(
                    f"{path} has other metrics than this run; they start from zero. Received: "
                    f"{len(shapes)} variables of metrics instead of {len(metrics)}",
                    stacklevel=2,
                )
                metrics = []
        for name, variable in variables.items():
            variable.assign(arrays[name])
        # Sums over all processes; only process 0 keeps them.
        self._metrics = [value * (not process_index()) for value in metrics] or None
        self._random = torchs or None
        _set_torch_random(self._random)
        self.steps = self._saved_steps = note["steps"]
        self.history = note.get("history", [])
        self.batches.step = max(self.steps - self.before, 0)
        return True

    def _about(self):
        """Returns the entries that identify a run in its states."""
        return {
            "model": type(self.model).__name__,
            "optimizer": type(self.model.optimizer).__name__,
            "settings": self._settings_of(self.model),
            "devices": _devices(self.model, self.batches),
            "parts": getattr(getattr(self.batches, "distribution", None), "num_replicas", 1),
            "batches": [self.before, len(self.batches)],
            "order": self._order,
            "options": _options_of(self.model.optimizer),
        }

    @functools.cached_property
    def _order(self):
        """A hash of the rows of the first epoch's batches; `fit` may change their lengths."""
        state = hashlib.sha256(str(self.batches.seed).encode())
        for _, rows in self.batches.plan(0):
            state.update(np.asarray(rows, "int64").tobytes())
        return state.hexdigest()[:16]

    def _settings_of(self, model):
        if self._known[0] is not model:  # slow with a tokenizer
            self._known = model, _settings(model)
        return self._known[1]

    def _check(self, path, note, arrays, variables):
        """Raises an error that names the difference, unless a file belongs to this run."""
        about = self._about()
        for name in ("model", "optimizer"):
            if note.get(name, about[name]) != about[name]:
                raise ValueError(
                    f"{path} is the state of another {name}. "
                    f"Received: {about[name]} instead of {note[name]}"
                )
        if note.get("devices", about["devices"]) != about["devices"]:
            raise ValueError(
                f"{path} is of a run on another number of devices, whose sums have another order: "
                f"resume with as many. Received: {about['devices']} instead of {note['devices']}"
            )
        if note.get("parts", about["parts"]) != about["parts"]:
            raise ValueError(
                f"{path} is of a run that splits batches differently over devices: use its mesh."
                f" Received: {about['parts']} parts instead of {note['parts']}"
            )
        before, count = note.get("batches", about["batches"])
        if before == self.before and count != len(self.batches):
            raise ValueError(
                f"{path} is of a run on other batches. "
                f"Received: {len(self.batches)} batches per pass instead of {count}"
            )
        if before == self.before and note.get("order", self._order) != self._order:
            raise ValueError(
                f"{path} is of a run on other batches: make them from the same rows, with the same "
                "`seed`. Received: other rows in the batches of the first pass"
            )
        if note.get("options", about["options"]) != about["options"]:
            other = [n for n, v in about["options"].items() if note["options"].get(n) != v]
            raise ValueError(
                f"{path} is of a run with other settings of the optimizer: use the same ones. "
                f"Received: another value of {', '.join(other) or 'an unknown setting'}"
            )
        shapes = {name: array.shape for name, array in arrays.items()}
        wanted = {name: tuple(v.shape) for name, v in variables.items()}
        if shapes != wanted:
            name = min(name for name, _ in set(shapes.items()) ^ set(wanted.items()))
            here = f"{variables[name].path} of shape {wanted[name]}" if name in wanted else "none"
            there = f"shape {shapes[name]}" if name in shapes else "none"
            raise ValueError(
                f"{path} is the state of another {name.partition('/')[0]}. "
                f"Received: as variable {name} {here} instead of {there}"
            )
        if None not in (note.get("settings"), about["settings"]):
            other = sorted(
                name
                for name in note["settings"].keys() | about["settings"].keys()
                if note["settings"].get(name) != about["settings"].get(name)
            )
            if other:
                raise ValueError(
                    f"{path} is the state of another model: build it with the same arguments. "
                    f"Received: other values of {', '.join(other)}"
                )

    def _variables(self):
        """Returns what training changes, without metrics, by names that all processes share."""
        # `variables`, not `weights`, which leaves out seed generators.
        metrics = {id(v) for v in self._metric_variables()}
        model = [v for v in self.model.variables if id(v) not in metrics]
        named = {f"model/{i:04d}": v for i, v in enumerate(model)}
        for i, v in enumerate(self.model.optimizer.variables):
            named[f"optimizer/{i:04d}"] = v
        return named

    def _metric_variables(self):
        found = [v for metric in self.model.metrics for v in metric.variables]
        return list({id(v): v for v in found}.values())


def _sync(model):
    """Copies the state of JAX's training step to a model's variables."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _scope(model, batches):
    """Returns the context of a model's distribution, in which to create variables."""
    distribution = getattr(batches, "distribution", None)
    if distribution is None:  # only under TensorFlow a model knows it
        distribution = getattr(model, "distribute_strategy", None)
    return contextlib.nullcontext() if distribution is None else distribution.scope()


def _devices(model, batches):
    """Returns the number of devices that share a batch or the weights."""
    if getattr(batches, "distribution", None) is not None:
        return batches.distribution.num_devices
    if keras.backend.backend() == "torch":
        return count_processes()
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy.num_replicas_in_sync
    distribution = keras.distribution.distribution()
    return 1 if distribution is None else int(np.prod(distribution.device_mesh.shape))


def _options_of(optimizer):
    """Returns digests of an optimizer's settings by name.

    The learning rate is left out: callbacks change it, and a longer run has another schedule. So
    are `groups`, whose paths may depend on earlier models of the process.
    """
    config, dropped = optimizer.get_config(), ("name", "learning_rate", "groups")
    config = config.get("inner_optimizer", {}).get("config", config)
    return {n: _digest(value, default=str) for n, value in config.items() if n not in dropped}


def _digest(value, **options):
    """Returns a hash of a value, written as JSON."""
    text = json.dumps(value, sort_keys=True, **options)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _settings(model):
    """Returns digests of a model's arguments by name, or `None` if it has no full config."""

    dropped = ("name", "trainable", "build_config", "compile_config")

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items() if key not in dropped}
        if isinstance(value, str):  # names end in a count of earlier objects
            return re.sub(r"_\d+$", "", value)
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    try:
        found = plain(keras.saving.serialize_keras_object(model)["config"])
        return {name: _digest(value) for name, value in found.items()}
    except (NotImplementedError, TypeError, KeyError, AttributeError):
        return None


def _torch_random():
    """Returns the states of torch's generators; under another backend an empty dict."""
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
