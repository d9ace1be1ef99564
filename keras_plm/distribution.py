"""One script on one device or many, under JAX, TensorFlow and torch alike.

    distribution = distribute()  # all devices there are; one is fine
    with distribution.scope():
        model = MaskedLM(BERT(...))
        model.compile(distribution.optimizer(AdamW(1e-4)))
    model.fit(distribution.shard(batches), epochs=3)

A step reads the same examples whatever the number of devices: each takes its part of every batch,
and a batch that does not part evenly is filled up with rows of weight 0. What a backend cannot do
raises, with what can.
"""

import contextlib
import os
import re
import socket
import time
import warnings

import keras
import numpy as np

BATCH, MODEL = "batch", "model"  # names of the axes of a mesh
# Which axis of a weight lies on which axis of the mesh: our Transformers, after Shoeybi et al. 2019
# (Megatron-LM), arXiv 1909.08053, section 3: the first product of a pair by columns, the second by
# rows. The table of tokens by columns, as vocabularies divide by nothing.
LAYOUTS = {
    "transformer": {
        r"(query_key_value|query|key|value|intermediate)/kernel$": (None, MODEL),
        r"(query_key_value|query|key|value|intermediate)/bias$": (MODEL,),
        r"(attention|feed_forward)/output/kernel$": (MODEL, None),
        r"token_embedding/embeddings$": (None, MODEL),
    }
}
WAIT = 300  # seconds for the others, at the beginning and, under torch, in every step


def distribute(
    how="auto",
    mesh=None,
    layout="transformer",
    devices=None,
    coordinator=None,
    num_processes=None,
    process_id=None,
    timeout=WAIT,
):
    """Puts training on several devices.

    JAX takes all devices of this process, or of all processes of a cluster, and can lay a model's
    weights over them. TensorFlow takes the devices of one machine (`MirroredStrategy`), or a TPU.
    torch takes one device a process: begin them with `torchrun`, or name the coordinator.

    Args:
        how: `"data"`: every device has all weights and a part of each batch. `"model"`, of JAX
            alone: weights lie over devices, too. `"auto"`: `"data"`, on one device where there is
            one.
        mesh: Of `"model"`: `(data, model)`, over how many devices each batch lies, and each weight.
            By default all devices share the weights.
        layout: Of `"model"`: a name in `LAYOUTS`, or a dict from regular expressions of weights'
            paths to axes, `"model"` or `None` for each of a weight's.
        devices: How many devices of this process, the first ones; by default all.
        coordinator: `"host:port"` of process 0, where there are several that nobody has brought
            together. On a TPU pod `"auto"`: it knows its processes.
        num_processes, process_id: How many there are, and which this is.
        timeout: Seconds to wait for the others: at the beginning and, under torch, in every step,
            while the first writes files, say.

    Returns:
        A `Distribution`.

    Raises:
        ValueError: If an argument has no meaning, there are fewer devices than are asked for, or
            the backend cannot do this.
        TimeoutError: If the others do not come.
    """
    if how not in ("auto", "data", "model"):
        raise ValueError(f"`how` is 'auto', 'data' or 'model'. Received: {how!r}")
    if how != "model" and mesh is not None:
        raise ValueError(f"A `mesh` is of how='model'. Received: how={how!r}, mesh={mesh}")
    if devices is not None and devices < 1:
        raise ValueError(f"`devices` must be 1 or more. Received: {devices}")
    named = (coordinator, num_processes, process_id)
    if coordinator != "auto" and any(x is None for x in named) != all(x is None for x in named):
        raise ValueError(
            "Several processes need all three, `coordinator`, `num_processes` and `process_id`. "
            f"Received: coordinator={coordinator!r}, num_processes={num_processes}, "
            f"process_id={process_id}"
        )
    if num_processes is not None and not 0 <= process_id < num_processes:
        raise ValueError(
            "`process_id` counts from 0 to below `num_processes`. "
            f"Received: process_id={process_id}, num_processes={num_processes}"
        )
    backend = keras.backend.backend()
    if backend != "torch" and "TORCHELASTIC_RUN_ID" in os.environ:
        begun = os.environ.get("WORLD_SIZE", "1")
        if begun != "1":
            raise ValueError(
                "torchrun begins processes of torch, and others would each train a model of its "
                "own: set KERAS_BACKEND=torch, or begin one process without torchrun. "
                f"Received: {begun} processes under {backend}"
            )
    if how == "model" and backend != "jax":
        raise ValueError(
            "Only JAX lays weights over devices here: set KERAS_BACKEND=jax, or choose how='data'. "
            f"Received: how='model' under {backend}"
        )
    if backend == "jax":
        return _Jax(how, mesh, layout, devices, named, timeout)
    if backend == "tensorflow":
        return _TensorFlow(devices, coordinator)
    return _Torch(devices, named, timeout)


class Distribution:
    """How training is parted; what `distribute` gives. This class itself is one device's.

    Attributes:
        num_replicas: Over how many devices each batch lies.
        num_devices: All of them: of a model whose weights lie over some, more.
        num_processes, process_id: How many train together, and which this is.
        is_chief: Whether this process is the one that writes files and speaks.
    """

    num_processes, process_id = 1, 0

    def __init__(self, num_replicas=1, num_devices=None):
        self.num_replicas = num_replicas
        self.num_devices = num_devices or num_replicas

    @property
    def is_chief(self):
        return self.process_id == 0

    def scope(self):
        """A context in which models are built and compiled."""
        return contextlib.nullcontext()

    def shard(self, batches):
        """`Batches` of the same examples, of which this process draws its part.

        Raises:
            ValueError: If rows of weight 0 would change what is summed, see `Batches`.
        """
        return batches if type(self) is Distribution else batches.sharded(self)

    def optimizer(self, optimizer):
        """An optimizer that steps by the gradient of the whole batch: give it to `compile`.

        Gradients are summed over the devices before they are clipped.
        """
        return optimizer

    @contextlib.contextmanager
    def running(self, model, batches, training=True):
        """What `fit` and `evaluate` do around their work; raises where that would go wrong."""
        yield

    def wait(self):
        """Waits until all processes are here."""

    @contextlib.contextmanager
    def chief_first(self):
        """A context that the chief passes before the others: files that it writes, they find."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()

    def close(self):
        """Ends it: what is built afterwards is on one device again."""


def _too_few(asked, there, kind, fix):
    return ValueError(
        f"There are fewer devices than were asked for: {fix}. "
        f"Received: devices={asked}, of which there are {there} ({kind})"
    )


# ---- JAX ----------------------------------------------------------------------------------------


class _Jax(Distribution):
    def __init__(self, how, mesh, layout, devices, named, timeout):
        import jax

        if named[0] is not None:
            _meet_jax(named, timeout)
        self.num_processes, self.process_id = jax.process_count(), jax.process_index()
        found = jax.devices()
        if devices is not None:
            if self.num_processes > 1:
                raise ValueError(
                    "Several processes take all their devices. "
                    f"Received: devices={devices} in {self.num_processes} processes"
                )
            if devices > len(found):
                fix = "ask for fewer; on a CPU XLA_FLAGS=--xla_force_host_platform_device_count=N "
                raise _too_few(devices, len(found), found[0].platform, fix + "makes N of one")
            found = found[:devices]
        names = [f"{device.platform}:{device.id}" for device in found]
        self.layout = None
        if how == "model":
            mesh = tuple(mesh or (1, len(found)))
            if len(mesh) != 2 or min(mesh) < 1 or np.prod(mesh) != len(found):
                raise ValueError(
                    "`mesh` is (data, model), whose product is the number of devices. "
                    f"Received: mesh={mesh} for {len(found)} devices"
                )
            self.layout = LAYOUTS.get(layout) if isinstance(layout, str) else layout
            if self.layout is None:
                raise ValueError(
                    f"Known layouts: {', '.join(LAYOUTS)}; or give a dict. Received: {layout!r}"
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

    @contextlib.contextmanager
    def scope(self):
        try:
            with self.keras.scope():
                yield
        except ValueError as error:
            if self.model_shards == 1 or "evenly divide" not in str(error):
                raise
            raise ValueError(
                "The model axis of the mesh must divide each axis that lies on it: choose another "
                f"mesh. Received: mesh=(..., {self.model_shards}), {error}"
            ) from error

    def optimizer(self, optimizer):
        # JAX sums by itself. The mark tells `fit` that batches of one device are not parted.
        if self.num_devices > 1:
            _inner(optimizer).distribution = self
        return optimizer

    @contextlib.contextmanager
    def running(self, model, batches, training=True):
        if self.model_shards > 1:
            _check_layout(model, self.layout, self.model_shards)
        with self.keras.scope():
            yield


def _meet_jax(named, timeout):
    """Brings JAX's processes together."""
    import jax

    if jax.distributed.is_initialized():
        return
    coordinator, num_processes, process_id = named
    options = {}
    if coordinator != "auto":
        options = {
            "coordinator_address": coordinator,
            "num_processes": num_processes,
            "process_id": process_id,
        }
        if process_id:  # JAX ends a process whose coordinator does not answer
            _reach(coordinator, timeout, named)
    try:
        jax.distributed.initialize(initialization_timeout=timeout, **options)
    except Exception as error:  # XLA's own, of several types
        raise _alone(named, timeout, error) from error


def _reach(coordinator, timeout, named):
    """Waits until something answers at an address."""
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=timeout).close()
            return
        except (OSError, ValueError) as error:
            if time.monotonic() > until or isinstance(error, ValueError):
                raise _alone(named, timeout, error) from error
            time.sleep(0.2)


def _alone(named, timeout, error):
    coordinator, num_processes, process_id = named
    return TimeoutError(
        f"The processes did not come together within {timeout} s: begin all of them, with one "
        f"address, host:port, that all can reach. Received: coordinator={coordinator!r}, "
        f"num_processes={num_processes}, process_id={process_id}: {str(error).splitlines()[0]}"
    )


def _check_layout(model, layout, shards):
    """Raises unless a model's heads and weights part evenly."""
    for layer in model._flatten_layers():
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
                    "The model axis of the mesh must divide each axis that lies on it. "
                    f"Received: {weight.path} of shape {tuple(weight.shape)}, mesh=(..., {shards})"
                )
    if not found:
        raise ValueError(
            "The layout names none of this model's weights, all of which would lie on every device:"
            " give a dict as `layout`, or choose how='data'. "
            f"Received: weights such as {model.trainable_weights[0].path}"
        )


# ---- What TensorFlow and torch share ------------------------------------------------------------


def _reducing(optimizer, reduce, **methods):
    """The optimizer, whose class sums gradients over the devices before it clips them."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = _reducing(optimizer.inner_optimizer, reduce, **methods)
        return optimizer
    kind = type(optimizer)

    def _clip_gradients(self, gradients):
        # The last thing that sees a step's gradients, accumulated ones together.
        return kind._clip_gradients(self, reduce(gradients))

    optimizer.__class__ = _under_its_name(kind, {"_clip_gradients": _clip_gradients, **methods})
    return optimizer


def _under_its_name(kind, methods):
    """A class of an optimizer's with other methods, that is shown and saved as the optimizer's."""
    made = type(kind.__name__, (kind,), methods)
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    package, registered, name = keras.saving.get_registered_name(kind).partition(">")
    if registered:
        for one in (made, kind):  # the last is what is loaded
            keras.saving.register_keras_serializable(package, name)(one)
    return made


def _inner(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)


def _check_optimizer(distribution, model):
    if getattr(_inner(model.optimizer), "distribution", None) is not distribution:
        raise ValueError(
            "Each device would step by its own part of a batch: compile the model with "
            "`distribution.optimizer(...)`. "
            f"Received: {type(model.optimizer).__name__} on {distribution.num_replicas} devices"
        )


# ---- TensorFlow ---------------------------------------------------------------------------------


class _TensorFlow(Distribution):
    def __init__(self, devices, coordinator):
        import tensorflow as tf

        if coordinator not in (None, "auto"):
            raise ValueError(
                "TensorFlow trains on one machine, or one TPU, here: for several set "
                f"KERAS_BACKEND=jax or torch. Received: coordinator={coordinator!r}"
            )
        if coordinator == "auto" or "TPU_NAME" in os.environ:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            self.strategy = tf.distribute.TPUStrategy(resolver)
        else:
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            found = [device.name for device in tf.config.list_logical_devices(kind)]
            if devices is not None and devices > len(found):
                fix = "ask for fewer; tf.config.set_logical_device_configuration parts one"
                raise _too_few(devices, len(found), kind, fix)
            found = found[:devices]
            one = len(found) == 1
            self.strategy = tf.distribute.get_strategy() if one else _mirrored(found)
        super().__init__(self.strategy.num_replicas_in_sync)

    def scope(self):
        return self.strategy.scope()

    def optimizer(self, optimizer):
        import tensorflow as tf

        if self.num_replicas == 1:
            return optimizer
        if optimizer.gradient_accumulation_steps or optimizer.use_ema:
            raise ValueError(
                "Under TensorFlow several devices neither accumulate gradients nor average weights:"
                " set KERAS_BACKEND=jax or torch, which do, or leave that out. Received: "
                f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}, "
                f"use_ema={optimizer.use_ema}"
            )

        def reduce(gradients):
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        def _all_reduce_sum_gradients(self, grads_and_vars):
            return grads_and_vars  # done already

        made = _reducing(optimizer, reduce, _all_reduce_sum_gradients=_all_reduce_sum_gradients)
        _inner(made).distribution = self
        return made

    @contextlib.contextmanager
    def running(self, model, batches, training=True):
        if self.num_replicas > 1:
            if model.distribute_strategy is not self.strategy:
                raise ValueError(
                    "The model lies on one device: build it `with distribution.scope():`. "
                    f"Received: {type(model).__name__}, {self.num_replicas} devices"
                )
            if training:
                _check_optimizer(self, model)
                if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
                    raise ValueError(
                        "Under TensorFlow several devices do not scale losses alike: choose "
                        "'mixed_bfloat16', or KERAS_BACKEND=jax. Received: mixed_float16"
                    )
            with self.strategy.scope():
                model._symbolic_build(data_batch=batches[0])
        # Keras would do it with the mean of the devices' parts of a batch, masks as well.
        name = "_maybe_symbolic_build"
        ours = self.num_replicas > 1 and name not in model.__dict__
        if ours:
            model.__dict__[name] = lambda *_, **__: None
        try:
            yield
        finally:  # `fit` goes on behind a validation
            if ours:
                del model.__dict__[name]


def _mirrored(devices):
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.distribute.MirroredStrategy(devices)


# ---- torch --------------------------------------------------------------------------------------


class _Torch(Distribution):
    def __init__(self, devices, named, timeout):
        import torch
        from torch import distributed

        if devices is not None and devices > 1:
            raise ValueError(
                "torch trains on one device a process: begin as many with "
                f"`torchrun --nproc-per-node {devices} ...`. Received: devices={devices}"
            )
        if not distributed.is_initialized() and (named[0] or "RANK" in os.environ):
            _meet_torch(named, timeout)
        if distributed.is_initialized():
            self.num_processes = distributed.get_world_size()
            self.process_id = distributed.get_rank()
        super().__init__(self.num_processes)
        if torch.cuda.is_available() and self.num_processes > 1:
            local = int(os.environ.get("LOCAL_RANK", self.process_id))
            if local >= torch.cuda.device_count():
                fix = "begin no more processes on a machine than it has GPUs"
                raise _too_few(local + 1, torch.cuda.device_count(), "GPU", fix)
            torch.cuda.set_device(local)

    def optimizer(self, optimizer):
        if self.num_replicas == 1:
            return optimizer
        made = _reducing(optimizer, self._mean)
        _inner(made).distribution = self
        if made is not _inner(made):
            _agree_on_finite(made, self)
        return made

    def _mean(self, gradients):
        """Gradients averaged over the processes, all of them in one message for each type."""
        import torch

        kinds, out = {}, list(gradients)
        for i, gradient in enumerate(gradients):
            kinds.setdefault(gradient.dtype, []).append(i)
        for numbers in kinds.values():
            flat = torch.cat([gradients[i].reshape(-1) for i in numbers])
            self._sum(flat)
            flat /= self.num_replicas
            parts = flat.split([gradients[i].numel() for i in numbers])
            for i, part in zip(numbers, parts, strict=True):
                out[i] = part.view_as(gradients[i])
        return out

    @staticmethod
    def _sum(tensor):
        from torch import distributed

        distributed.all_reduce(tensor)

    @contextlib.contextmanager
    def running(self, model, batches, training=True):
        if self.num_replicas == 1:
            yield
            return
        import torch

        if training:
            _check_optimizer(self, model)
            if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and not hasattr(
                model.optimizer, "agrees"
            ):
                raise ValueError(
                    "Whether a step's gradients are finite is asked of all processes together: "
                    "compile with `distribution.optimizer(keras.optimizers.LossScaleOptimizer("
                    "...))`. Received: an optimizer that `compile` wrapped for mixed_float16"
                )
        self._same_weights(model)
        if not getattr(self, "_seeded", False):
            # Each process drops units of its own.
            torch.manual_seed(torch.initial_seed() + self.process_id)
            self._seeded = True
        before, model.summed_over = model.summed_over, self._summed
        try:
            yield
        finally:  # `fit` goes on behind a validation
            model.summed_over = before

    @staticmethod
    def _same_weights(model):
        """All processes begin with the weights of the first."""
        from torch import distributed

        for variable in model.variables:
            value = variable.value.detach().contiguous()
            distributed.broadcast(value, 0)
            variable.assign(value)

    @contextlib.contextmanager
    def _summed(self, metrics):
        """Metrics over the rows of all processes, for as long as they are asked."""
        import torch

        variables = [v for metric in metrics for v in metric.variables]
        if not variables:
            yield
            return
        own = [v.value.detach().clone() for v in variables]
        flat = torch.cat([value.reshape(-1).double() for value in own])
        self._sum(flat)
        sums = flat.split([value.numel() for value in own])
        for variable, value, total in zip(variables, own, sums, strict=True):
            variable.assign(total.view_as(value).to(value.dtype))
        try:
            yield
        finally:
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)

    def wait(self):
        import torch

        if self.num_replicas > 1:
            self._sum(torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu"))

    def close(self):
        from torch import distributed

        if distributed.is_initialized():
            distributed.destroy_process_group()


def _meet_torch(named, timeout):
    """Brings torch's processes together."""
    import datetime

    import torch
    from torch import distributed

    coordinator, num_processes, process_id = named
    options = {}
    if coordinator not in (None, "auto"):
        options = {
            "init_method": f"tcp://{coordinator}",
            "world_size": num_processes,
            "rank": process_id,
        }
    try:
        distributed.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            timeout=datetime.timedelta(seconds=timeout),
            **options,
        )
    except (RuntimeError, ValueError) as error:
        raise _alone(named, timeout, error) from error


def _agree_on_finite(optimizer, distribution):
    """A `LossScaleOptimizer` whose processes skip a step together or not at all."""
    import torch

    kind = type(optimizer)

    def check_finite(self, gradients):
        finite = torch.as_tensor(kind.check_finite(self, gradients)).to(torch.int32).reshape(1)
        distribution._sum(finite)
        return finite[0] == distribution.num_replicas

    optimizer.__class__ = _under_its_name(kind, {"check_finite": check_finite, "agrees": True})
