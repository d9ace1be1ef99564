"""Training on several JAX devices: a mesh splits the batches and, optionally, the weights."""

import contextlib
import faulthandler
import math
import os
import random
import re
import socket
import sys
import threading
import time

import keras
import numpy as np

from keras_plm.files.private_apis import build_for_training, every_layer
from keras_plm.training.distribution.one_device import (
    Distribution,
    check_same,
    digest,
    not_together,
    too_few,
)
from keras_plm.training.distribution.whole_batch import inner

BATCH, MODEL = "batch", "model"  # names of the axes of a mesh
HERE = b"."  # reply of process 0 when all processes are connected
# Mesh axis of each axis of a weight, for the Transformers of this library. Shoeybi et al. 2019
# (Megatron-LM), arXiv 1909.08053, section 3: the first product of a pair is split by columns, the
# second by rows. The token table is split by columns: vocabulary sizes rarely divide evenly.
LAYOUTS = {
    "transformer": {
        r"(query_key_value|query|key|value|intermediate)/kernel$": (None, MODEL),
        r"(query_key_value|query|key|value|intermediate)/bias$": (MODEL,),
        r"(attention|feed_forward)/output/kernel$": (MODEL, None),
        r"token_embedding/embeddings$": (None, MODEL),
    }
}


class OnJAX(Distribution):
    def __init__(self, how, mesh, layout, devices, named, timeout):
        import jax

        if named[0] is not None:
            _meet(named, timeout)
        self.num_processes, self.process_id = jax.process_count(), jax.process_index()
        if self.num_processes > 1:
            _draw_alike(self.process_id)
        found = jax.devices()
        if devices is not None:
            if self.num_processes > 1:
                raise ValueError(
                    "Several processes must use all their devices: leave `devices` out. "
                    f"Received: devices={devices} in {self.num_processes} processes"
                )
            if devices > len(found):
                fix = "request fewer; XLA_FLAGS=--xla_force_host_platform_device_count=N makes "
                raise too_few(devices, len(found), found[0].platform, fix + "N devices of a CPU")
            found = found[:devices]
        names = [f"{device.platform}:{device.id}" for device in found]
        self.layout = None
        if how == "model":
            mesh = (1, len(found)) if mesh is None else tuple(mesh)
            if len(mesh) != 2 or min(mesh) < 1 or np.prod(mesh) != len(found):
                count = len(found)
                able = [(n, count // n) for n in range(1, count + 1) if count % n == 0]
                raise ValueError(
                    "`mesh`, (data, model), must multiply to the number of devices: choose "
                    f"one of {', '.join(map(str, able))}, or as many `devices` as the product. "
                    f"Received: mesh={mesh} for {count} devices"
                )
            self.layout = LAYOUTS.get(layout) if isinstance(layout, str) else layout
            if self.layout is None:
                raise ValueError(
                    f"`layout` must be a dict or one of: {', '.join(LAYOUTS)}. Received: {layout!r}"
                )
            grid = keras.distribution.DeviceMesh(mesh, (BATCH, MODEL), names)
            of_paths = keras.distribution.LayoutMap(grid)
            for path, axes in self.layout.items():
                of_paths[path] = axes
            self.keras = keras.distribution.ModelParallel(
                layout_map=of_paths, batch_dim_name=BATCH, auto_shard_dataset=False
            )
            super().__init__(mesh[0], len(found))
            self.model_shards = mesh[1]
        else:
            grid = keras.distribution.DeviceMesh((len(found),), (BATCH,), names)
            self.keras = keras.distribution.DataParallel(device_mesh=grid, auto_shard_dataset=False)
            super().__init__(len(found))
            self.model_shards = 1
        self._part = _part([d.process_index for d in found], self.model_shards, self.process_id)
        self.timeout, self._came = timeout, time.monotonic()

    @property
    def part(self):
        return self._part

    @contextlib.contextmanager
    def scope(self):
        try:
            with self.keras.scope(), self._alike():
                yield
        except ValueError as error:
            if self.model_shards == 1 or "evenly divide" not in str(error):
                raise
            shape = re.search(r"full shape: (\([\d, ]*\))", str(error))
            raise ValueError(
                "The model axis of the mesh must divide each weight axis that it splits: choose "
                f"another mesh. Received: mesh=(..., {self.model_shards}), "
                + (f"a weight of shape {shape[1]}" if shape else str(error))
            ) from error

    def optimizer(self, optimizer):
        # JAX sums the gradients itself. The mark lets `fit` reject batches that are not sharded.
        if self.num_devices > 1:
            inner(optimizer).distribution = self
        return optimizer

    @contextlib.contextmanager
    def _around(self, model, batches, training):
        if self.model_shards > 1:
            if not model.built:
                with self.scope():
                    build_for_training(model, batches[0])
            check_layout(model, self.layout, self.model_shards)
        kept = [*model.variables, *getattr(getattr(model, "optimizer", None), "variables", [])]
        for variable in kept:
            count = len(variable.value.sharding.device_set)
            if count != self.num_devices:
                raise ValueError(
                    "The model must lie on all devices: build and compile it "
                    f"`with distribution.scope():`. Received: {variable.path} on {count} of "
                    f"{self.num_devices}"
                )
        with self.keras.scope(), self._alike(), self._watched():
            if self.num_processes > 1:
                from jax.experimental import multihost_utils

                all_of_them = multihost_utils.process_allgather(digest(batches))
                check_same(all_of_them.reshape(self.num_processes, -1))
            yield

    @contextlib.contextmanager
    def _alike(self):
        """Replaces JAX's error on unequal weights, pages of numbers, by one sentence."""
        try:
            yield
        except (AssertionError, RuntimeError) as error:  # from a weight; from Keras while it builds
            if "is not the same on each process" not in str(error):
                raise
            raise ValueError(
                "All processes must start with the same weights: call `set_seed` with one seed in "
                "each, then build the same model. "
                f"Received: other weights in process {self.process_id} of {self.num_processes}"
            ) from None

    def drawn(self):
        self._came = time.monotonic()

    @contextlib.contextmanager
    def _watched(self):
        """Ends this process if it draws no batch within `timeout` seconds.

        XLA waits without a limit for a process that runs but does not reach the step. A thread that
        waits there cannot raise an exception.
        """
        if self.num_processes == 1:
            yield
            return
        ended = threading.Event()

        def watch():
            while not ended.wait(min(self.timeout, 10) / 10):
                if time.monotonic() - self._came > self.timeout:
                    print(
                        f"A step must end within {self.timeout} s, so this process exits: see its "
                        "traceback below and the messages of the other processes. If a step with "
                        "its compilation, or the work between two steps, takes longer, pass a "
                        "longer `timeout` to `distribute`. Otherwise another process did not reach "
                        "the step. "
                        f"Received: process {self.process_id} of {self.num_processes}",
                        file=sys.stderr,
                    )
                    faulthandler.dump_traceback()
                    os._exit(1)

        self.drawn()
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def _part(processes, model_shards, process_id):
    """Returns the index of the part of each batch that a process draws, and the number of parts.

    Processes that share the weights, but not a batch, draw the same rows.

    Args:
        processes: Process of each device, in the order of the mesh.
        model_shards: Number of devices that share each weight.
        process_id: Number of the process.
    """
    lines = {}
    for i, process in enumerate(processes):
        lines.setdefault(process, set()).add(i // model_shards)
    parts = sorted({tuple(sorted(held)) for held in lines.values()})
    if len({len(part) for part in parts}) > 1 or len(set().union(*parts)) < sum(map(len, parts)):
        raise ValueError(
            "Each process must hold whole rows of the mesh, or a part of one: choose a model axis "
            f"that divides the devices per process, or is a multiple of them. Received: "
            f"mesh=({len(processes) // model_shards}, {model_shards}) over devices of the "
            f"processes {processes}"
        )
    return parts.index(tuple(sorted(lines[process_id]))), len(parts)


def _meet(named, timeout):
    """Connects JAX's processes."""
    import jax

    if jax.distributed.is_initialized():
        return
    coordinator, num_processes, process_id = named
    options = {}
    try:
        if coordinator != "auto":
            # Waits before JAX does: JAX ends the process when its own wait times out.
            _gather(*named, until=time.monotonic() + timeout)
            options = {
                "coordinator_address": coordinator,
                "num_processes": num_processes,
                "process_id": process_id,
            }
            if process_id == 0:
                options["coordinator_bind_address"] = _bind_address(coordinator)
        jax.distributed.initialize(initialization_timeout=math.ceil(timeout), **options)
    except Exception as error:  # XLA raises several types
        raise not_together(named, timeout, error) from None


def _draw_alike(process_id):
    """Gives all processes the random state of the first; Keras draws initial weights from it."""
    from jax.experimental import multihost_utils

    version, state, _ = random.getstate()
    state = multihost_utils.broadcast_one_to_all(np.array(state, "uint32"))
    if process_id:  # the first one continues as on one device
        random.setstate((version, tuple(int(number) for number in state), None))


def _gather(coordinator, num_processes, process_id, until):
    """Waits until all processes are connected: each sends its number, and process 0 replies.

    Raises:
        OSError: If a process is missing at the time `until`, as of `time.monotonic`.
    """
    host, _, port = coordinator.rpartition(":")
    if process_id == 0:
        _await_others(_bind_address(coordinator), num_processes, until)
        return
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _left(until)) as to_first:
                to_first.sendall(process_id.to_bytes(4, "big"))
                to_first.settimeout(_left(until))
                if to_first.recv(1) == HERE:
                    return
                raise ConnectionError("the reply is not from process 0")
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _bind_address(coordinator):
    """Returns the address that process 0 listens on: the given one if it is of this machine.

    Otherwise, as with network address translation, it is `[::]`, all interfaces.
    """
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_server((host, 0), family=_family(host)) as server:
            bound = server.getsockname()[0]
    except OSError:
        return f"[::]:{port}"
    # Some systems give their own name the address 127.0.1.1, which no other machine reaches.
    hidden = bound.startswith("127.") and host not in ("localhost", bound)
    return f"[::]:{port}" if hidden else coordinator


def _family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _await_others(address, num_processes, until):
    host, _, port = address.rpartition(":")
    host, port, options = host.strip("[]"), int(port), {"family": _family(host)}
    if host == "::":
        both = socket.has_dualstack_ipv6()
        host, options = "", {"family": socket.AF_INET6, "dualstack_ipv6": True} if both else {}
    waiting = {}
    with socket.create_server((host, port), **options) as server:
        while len(waiting) < num_processes - 1:
            server.settimeout(_left(until))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise TimeoutError(f"{len(waiting) + 1} of {num_processes} connected") from None
            connection.settimeout(1)
            try:
                number = int.from_bytes(connection.recv(4), "big")
            except OSError:
                number = 0
            if 0 < number < num_processes:  # ignores other clients
                waiting[number] = connection
        for connection in waiting.values():
            connection.sendall(HERE)
            connection.close()


def _left(until):
    return max(until - time.monotonic(), 0.01)


def check_layout(model, layout, shards):
    """Raises unless a model's heads and weights split evenly."""
    for layer in every_layer(model):
        heads = getattr(layer, "num_heads", None)
        if isinstance(heads, int) and heads % shards:
            raise ValueError(
                "The model axis of the mesh must divide the number of heads. "
                f"Received: {layer.path} of num_heads={heads}, mesh=(..., {shards})"
            )
    found = 0
    for weight in model.trainable_weights:
        axes = next((a for path, a in layout.items() if re.search(path, weight.path)), ())
        found += bool(axes)
        for size, axis in zip(weight.shape, axes, strict=False):
            if axis is not None and size % shards:
                raise ValueError(
                    "The model axis of the mesh must divide each weight axis that it splits. "
                    f"Received: {weight.path} of shape {tuple(weight.shape)}, mesh=(..., {shards})"
                )
    if not found:
        raise ValueError(
            "The layout must name weights of this model, otherwise each device holds all of them: "
            "pass a dict as `layout`, or choose how='data'. "
            f"Received: weights such as {model.trainable_weights[0].path}"
        )
