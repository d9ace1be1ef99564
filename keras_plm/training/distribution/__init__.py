"""Training on one device or many with the same script, under JAX, TensorFlow and torch.

    distribution = distribute()  # all available devices, one or more
    with distribution.scope():
        model = MaskedLM(BERT(...))
        model.compile(distribution.optimizer(BertAdamW(1e-4)))
    model.fit(distribution.shard(batches), epochs=3)

A step reads the same examples for any number of devices: each device takes its part of every batch.
A batch that does not divide evenly is padded with rows of weight 0. An option that a backend does
not support raises an error that names an alternative.

Security: processes on several hosts trust each other and the network between them. Neither torch
nor JAX encrypts its traffic or asks for a password. Under JAX, process 0 listens on the address of
the coordinator. If the coordinator is `"auto"`, or its address is not one of the host's (as with
network address translation), process 0 listens on all interfaces of its host. Use a
firewall to close this port, and the ports of the collective operations, to all other hosts.
"""

import os
import re
from collections.abc import Mapping, Sequence

import keras

from keras_plm.training.distribution.on_jax import LAYOUTS, OnJAX
from keras_plm.training.distribution.on_tensorflow import OnTensorFlow
from keras_plm.training.distribution.on_torch import OnTorch
from keras_plm.training.distribution.one_device import Distribution

__all__ = ["LAYOUTS", "Distribution", "begun_processes", "distribute"]

WAIT = 600  # seconds to wait for other processes, at the start and in every step


def distribute(
    how: str = "auto",
    mesh: tuple[int, int] | None = None,
    layout: str | Mapping[str, Sequence[str | None]] = "transformer",
    devices: int | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = WAIT,
) -> Distribution:
    """Distributes training over several devices.

    JAX uses all devices of this process, or of all processes of a cluster, and can split the
    weights of a model over them. TensorFlow uses the devices of one machine (`MirroredStrategy`),
    or a TPU. torch uses one device per process: launch them with `torchrun`, or name the
    coordinator.

    Args:
        how: `"data"`: every device has all weights and a part of each batch. `"model"`, only on
            JAX: devices also share the weights. `"auto"`: `"data"` on all devices.
        mesh: For `"model"`: `(data, model)`, the number of parts of a batch and of the weights. By
            default all devices share the weights.
        layout: For `"model"`: a name in `LAYOUTS`, or a dict from regular expressions of weight
            paths to axes, `"model"` or `None` for each axis of a weight.
        devices: Number of devices of this process; by default all.
        coordinator: `"host:port"` of process 0, for several processes without a launcher; see
            "Security" above. `"auto"` on a TPU pod.
        num_processes, process_id: Number of processes, and the number of this one.
        timeout: Seconds to wait for other processes, at the start and in every step, including
            compilation and writing of files. Then torch raises an error; a JAX process prints one
            and exits with status 1.

    Returns:
        A `Distribution`.

    Raises:
        ValueError: If an argument is invalid, there are too few devices, the backend does not
            support it, or the processes are unknown.
        TimeoutError: If other processes do not connect.

    >>> distribution = distribute(devices=1)
    >>> distribution.num_devices, distribution.num_processes
    (1, 1)
    """
    if how not in ("auto", "data", "model"):
        raise ValueError(f"`how` must be 'auto', 'data' or 'model'. Received: {how!r}")
    if how != "model" and mesh is not None:
        raise ValueError(
            "A `mesh` needs how='model': set it, or leave `mesh` out. "
            f"Received: how={how!r}, mesh={mesh}"
        )
    if mesh is not None and (
        not isinstance(mesh, (tuple, list)) or not all(isinstance(n, int) for n in mesh)
    ):
        raise ValueError(f"`mesh` must be two whole numbers, (data, model). Received: {mesh!r}")
    if devices is not None and (not isinstance(devices, int) or devices < 1):
        raise ValueError(
            f"`devices` must be 1 or more, or `None` for all devices. Received: {devices!r}"
        )
    if not timeout > 0:
        raise ValueError(f"`timeout` must be above 0 seconds. Received: {timeout}")
    named = (coordinator, num_processes, process_id)
    if coordinator != "auto" and any(x is None for x in named) != all(x is None for x in named):
        raise ValueError(
            "Several processes need all of `coordinator`, `num_processes` and `process_id`. "
            f"Received: coordinator={coordinator!r}, num_processes={num_processes}, "
            f"process_id={process_id}"
        )
    if coordinator not in (None, "auto"):
        address = re.fullmatch(r".+:(\d+)", coordinator)
        if address is None or not 0 < int(address[1]) < 2**16:
            raise ValueError(
                "`coordinator` must be 'auto' or 'host:port', with a port from 1 to 65535. "
                f"Received: {coordinator!r}"
            )
    if num_processes is not None and not 0 <= process_id < num_processes:
        raise ValueError(
            "`process_id` must be at least 0 and below `num_processes`. "
            f"Received: process_id={process_id}, num_processes={num_processes}"
        )
    backend = keras.backend.backend()
    begun_processes()
    if how == "model" and backend != "jax":
        raise ValueError(
            "how='model' needs the JAX backend: set KERAS_BACKEND=jax, or choose how='data'. "
            f"Received: how='model' under {backend}"
        )
    if backend == "jax":
        made = OnJAX(how, mesh, layout, devices, named, timeout)
        if made.num_devices == 1:  # a mesh of one device would compile again
            made = Distribution()
    elif backend == "tensorflow":
        made = OnTensorFlow(devices, coordinator)
    else:
        made = OnTorch(devices, named, timeout)
    if made.num_processes > 1:
        Distribution.of_processes = made
    return made


def begun_processes() -> int:
    """Counts the processes that `torchrun` launched; 1 without it.

    Returns:
        The number of processes.

    Raises:
        ValueError: If there are several processes under another backend: they cannot communicate.

    >>> begun_processes()
    1
    """
    backend, begun = keras.backend.backend(), int(os.environ.get("WORLD_SIZE", 1))
    if backend == "torch":
        return begun
    if begun > 1 and "TORCHELASTIC_RUN_ID" in os.environ:  # other launchers set WORLD_SIZE too
        raise ValueError(
            "torchrun needs the torch backend, otherwise each process trains a separate model: set "
            "KERAS_BACKEND=torch, or launch one process without torchrun. "
            f"Received: {begun} processes under {backend}"
        )
    return 1
