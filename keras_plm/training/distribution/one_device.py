"""Interface of all distributions, with one device as the default, and their errors."""

import contextlib
import hashlib
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from keras_plm.data.batching import Batches


class Distribution:
    """Distribution of training over devices, from `distribute`; this class covers one device.

    Args:
        num_replicas: Number of devices that share each batch.
        num_devices: Number of all devices; larger if devices also share the weights.

    Attributes:
        num_processes, process_id: Number of processes, and the number of this one.
        is_chief: Whether this process writes files and messages.
        part: `(index, count)`: this process reads the index-th part of every batch.
        of_processes: Class attribute: the distribution in use over several processes, or `None`.
        is_running: Whether a `fit` or `evaluate` has entered `running`.

    >>> import keras
    >>> distribution = Distribution()
    >>> with distribution.scope():
    ...     layer = keras.layers.Dense(1)
    >>> distribution.num_replicas, distribution.is_chief, distribution.part
    (1, True, (0, 1))
    """

    num_processes, process_id = 1, 0
    of_processes = None
    is_running = False

    def __init__(self, num_replicas: int = 1, num_devices: int | None = None):
        self.num_replicas = num_replicas
        self.num_devices = num_devices or num_replicas

    @property
    def part(self) -> tuple[int, int]:
        """`(index, count)`: this process reads the index-th part of every batch."""
        return self.process_id, self.num_processes

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and messages."""
        return self.process_id == 0

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which to build and compile models."""
        return contextlib.nullcontext()

    def shard(self, batches: Batches) -> Batches:
        """`Batches` with this process's part of the same examples.

        Raises:
            ValueError: If rows of weight 0 would change a sum, see `Batches`.
        """
        return batches if type(self) is Distribution else batches.sharded(self)

    def optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """Optimizer for `compile` that uses the gradient of the whole batch.

        It sums gradients over the devices before clipping.
        """
        return optimizer

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, batches: Batches, training: bool = True
    ) -> AbstractContextManager[Any]:
        """Context of a `fit` or `evaluate`; raises for unsupported models and batches."""
        before, self.is_running = self.is_running, True
        try:
            with self._around(model, batches, training):
                yield
        finally:  # `fit` continues after a validation
            self.is_running = before

    def _around(self, model, batches, training):
        """Context in which the devices work together; `running` enters it."""
        return contextlib.nullcontext()

    def drawn(self) -> None:
        """Records that a batch was read; a timeout counts from this call."""

    def wait(self) -> None:
        """Waits for all processes."""

    @contextlib.contextmanager
    def chief_first(self) -> AbstractContextManager[Any]:
        """Context that the chief enters first, so that others find the files it writes."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()

    def close(self) -> None:
        """Ends the distribution; later models use one device."""
        Distribution.of_processes = None


def digest(batches):
    """Hashes the batches of an epoch, with the parts of all processes."""
    epoch = batches.step // len(batches) if batches.training else 0
    state = hashlib.sha256(repr((batches.seed, batches.step, batches.micro_batches)).encode())
    for length, rows in batches.plan(epoch):
        state.update(int(length).to_bytes(8, "big") + np.ascontiguousarray(rows, "int64").tobytes())
    return np.frombuffer(state.digest()[:8], "int32").copy()


def check_same(digests):
    """Raises unless the `digest` of each process is the same."""
    others = [i for i, one in enumerate(digests) if list(one) != list(digests[0])]
    if others:
        raise ValueError(
            "All processes must draw parts of the same batches: make them from the same rows, with "
            "the same sizes and the same `seed`. "
            f"Received: batches that differ from process 0's in {', '.join(map(str, others))}"
        )


def too_few(asked, there, kind, fix):
    return ValueError(
        f"`devices` must be at most the number of available devices: {fix}. "
        f"Received: devices={asked}, available: {there} ({kind})"
    )


def not_together(named, timeout, error):
    coordinator, num_processes, process_id = named
    reason = str(error).splitlines()[0]
    if coordinator == "auto" and isinstance(error, ValueError):
        return ValueError(
            "coordinator='auto' needs a cluster that knows its processes, such as a TPU pod: "
            "otherwise name `coordinator`, `num_processes` and `process_id`. "
            f"Received: coordinator='auto'; the backend reports: {reason}"
        )
    return TimeoutError(
        f"All processes must connect within {timeout} s: launch all of them with "
        f"one address, host:port, that all can reach. Received: coordinator={coordinator!r}, "
        f"num_processes={num_processes}, process_id={process_id}: {reason}"
    )
