"""What every distribution offers, as one device does it, and the errors of several."""

import contextlib
import hashlib
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from keras_plm.data.batching import Batches


class Distribution:
    """How training is parted; what `distribute` gives. This class itself is one device's.

    Attributes:
        num_replicas: Over how many devices each batch lies.
        num_devices: All of them: of a model whose weights lie over some, more.
        num_processes, process_id: How many train together, and which this is.
        is_chief: Whether this process is the one that writes files and speaks.
        part: `(index, count)`: this process draws the index-th part of every batch.
        of_processes: Of the class: the one by which this process and others train together now,
            or `None`.
    """

    num_processes, process_id = 1, 0
    of_processes = None

    def __init__(self, num_replicas: int = 1, num_devices: int | None = None):
        self.num_replicas = num_replicas
        self.num_devices = num_devices or num_replicas

    @property
    def part(self) -> tuple[int, int]:
        return self.process_id, self.num_processes

    @property
    def is_chief(self) -> bool:
        return self.process_id == 0

    def scope(self) -> AbstractContextManager[Any]:
        """A context in which models are built and compiled."""
        return contextlib.nullcontext()

    def shard(self, batches: Batches) -> Batches:
        """`Batches` of the same examples, of which this process draws its part.

        Raises:
            ValueError: If rows of weight 0 would change what is summed, see `Batches`.
        """
        return batches if type(self) is Distribution else batches.sharded(self)

    def optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """An optimizer that steps by the gradient of the whole batch: give it to `compile`.

        Gradients are summed over the devices before they are clipped.
        """
        return optimizer

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, batches: Batches, training: bool = True
    ) -> AbstractContextManager[Any]:
        """What `fit` and `evaluate` do around their work; raises where that would go wrong."""
        yield

    def drawn(self) -> None:
        """Takes note that a batch is drawn: training goes on."""

    def wait(self) -> None:
        """Waits until all processes are here."""

    @contextlib.contextmanager
    def chief_first(self) -> AbstractContextManager[Any]:
        """A context that the chief passes before the others: files that it writes, they find."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()

    def close(self) -> None:
        """Ends it: what is built afterwards is on one device again."""
        Distribution.of_processes = None


def digest(batches):
    """Numbers that tell the batches of an epoch, the parts of all processes, from others."""
    epoch = batches.step // len(batches) if batches.training else 0
    state = hashlib.sha256(repr((batches.seed, batches.step, batches.micro_batches)).encode())
    for length, rows in batches.plan(epoch):
        state.update(int(length).to_bytes(8, "big") + np.ascontiguousarray(rows, "int64").tobytes())
    return np.frombuffer(state.digest()[:8], "int32").copy()


def check_same(digests):
    """Raises unless all processes draw parts of the same batches: a `digest` of each."""
    others = [i for i, one in enumerate(digests) if list(one) != list(digests[0])]
    if others:
        raise ValueError(
            "All processes draw their parts of the same batches: make them of the same rows, in "
            "the same sizes and with the same `seed` in each. "
            f"Received: others than process 0's in {', '.join(map(str, others))}"
        )


def too_few(asked, there, kind, fix):
    return ValueError(
        f"There are fewer devices than were asked for: {fix}. "
        f"Received: devices={asked}, of which there are {there} ({kind})"
    )


def not_together(named, timeout, error):
    coordinator, num_processes, process_id = named
    reason = str(error).splitlines()[0]
    if coordinator == "auto" and isinstance(error, ValueError):
        return ValueError(
            "coordinator='auto' is for clusters that know their processes, such as a TPU pod: "
            "elsewhere name `coordinator`, `num_processes` and `process_id`. "
            f"Received: coordinator='auto', of which the backend says {reason}"
        )
    return TimeoutError(
        f"The processes did not come together within {timeout} s: begin all of them, with one "
        f"address, host:port, that all can reach. Received: coordinator={coordinator!r}, "
        f"num_processes={num_processes}, process_id={process_id}: {reason}"
    )
