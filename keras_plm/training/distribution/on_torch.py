"""Training with one torch process per device; the processes sum gradients and metrics."""

import contextlib
import os
import re

import keras

from keras_plm.training.distribution.one_device import (
    Distribution,
    check_same,
    digest,
    not_together,
    too_few,
)
from keras_plm.training.distribution.whole_batch import (
    check_optimizer,
    inner,
    is_of,
    reducing,
    under_its_name,
)


class OnTorch(Distribution):
    def __init__(self, devices, named, timeout):
        import torch
        from torch import distributed

        if devices is not None and devices > 1:
            raise ValueError(
                "torch needs one process per device: launch them with "
                f"`torchrun --nproc-per-node {devices} ...`. Received: devices={devices}"
            )
        if not distributed.is_initialized() and (named[0] or "RANK" in os.environ):
            _meet(named, timeout)
        if distributed.is_initialized():
            self.num_processes = distributed.get_world_size()
            self.process_id = distributed.get_rank()
        super().__init__(self.num_processes)
        self.timeout = timeout
        if torch.cuda.is_available() and self.num_processes > 1:
            local = int(os.environ.get("LOCAL_RANK", self.process_id))
            if local >= torch.cuda.device_count():
                fix = "launch at most one process per GPU of a machine"
                raise too_few(local + 1, torch.cuda.device_count(), "GPU", fix)
            torch.cuda.set_device(local)

    def optimizer(self, optimizer):
        if self.num_replicas == 1 or is_of(optimizer, self):
            return optimizer
        made = reducing(optimizer, self._mean)
        inner(made).distribution = self
        if made is not inner(made):
            _agree_on_finite(made, self)
        return made

    def _mean(self, gradients):
        """Averages gradients over the processes, with one message per data type."""
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
    def _around(self, model, batches, training):
        if self.num_replicas == 1:
            yield
            return
        import torch

        if training:
            check_optimizer(self, model)
            if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and not hasattr(
                model.optimizer, "agrees"
            ):
                raise ValueError(
                    "All processes must agree on whether the gradients of a step are finite: "
                    "compile with `distribution.optimizer(keras.optimizers.LossScaleOptimizer("
                    "...))`. Received: an optimizer that `compile` wrapped for mixed_float16"
                )
        with self._in_words():
            self._same_weights(model)
            check_same(self._of_all(digest(batches)))
            if not getattr(self, "_seeded", False):
                # Each process draws its own dropout masks.
                torch.manual_seed(torch.initial_seed() + self.process_id)
                self._seeded = True
            before = model.summed_over, model.parts_of_sum
            model.summed_over = self._summed
            # Gradients and losses are averaged over the processes.
            model.parts_of_sum = 1 if batches.scale_weights else self.num_replicas
            try:
                yield
            finally:  # `fit` continues after a validation
                model.summed_over, model.parts_of_sum = before

    @contextlib.contextmanager
    def _in_words(self):
        """Replaces torch's timeout error by one that names the fix."""
        try:
            yield
        except RuntimeError as error:
            if not re.search("[Tt]imed out|[Tt]imeout|by peer", str(error)):
                raise
            raise TimeoutError(
                f"Another process ended, or missed a step for {self.timeout} s: see its messages. "
                "If a step, or the work between two steps, takes longer, pass a longer `timeout` "
                f"to `distribute`. Received: process {self.process_id} of {self.num_processes}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def _of_all(self, numbers):
        """Gathers the numbers of each process."""
        import torch
        from torch import distributed

        own = torch.as_tensor(numbers, device="cuda" if torch.cuda.is_available() else "cpu")
        found = [torch.empty_like(own) for _ in range(self.num_processes)]
        distributed.all_gather(found, own)
        return [one.tolist() for one in found]

    @staticmethod
    def _same_weights(model):
        """Copies the weights of the first process to all others."""
        from torch import distributed

        for variable in model.variables:
            value = variable.value.detach().contiguous()
            distributed.broadcast(value, 0)
            variable.assign(value)

    @contextlib.contextmanager
    def _summed(self, metrics):
        """Context in which metrics cover the rows of all processes."""
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

        super().close()
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _meet(named, timeout):
    """Connects torch's processes."""
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
        raise not_together(named, timeout, error) from None


def _agree_on_finite(optimizer, distribution):
    """Makes the processes of a `LossScaleOptimizer` skip a step together or not at all."""
    import torch

    kind = type(optimizer)

    def check_finite(self, gradients):
        finite = torch.as_tensor(kind.check_finite(self, gradients)).to(torch.int32).reshape(1)
        distribution._sum(finite)
        return finite[0] == distribution.num_replicas

    optimizer.__class__ = under_its_name(kind, {"check_finite": check_finite, "agrees": True})
