"""Optimizers that step by the gradient of the whole batch, summed over the devices."""

import keras


def reducing(optimizer, reduce, **methods):
    """The optimizer, whose class sums gradients over the devices before it clips them."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = reducing(optimizer.inner_optimizer, reduce, **methods)
        return optimizer
    kind = type(optimizer)

    def _clip_gradients(self, gradients):
        # The last thing that sees a step's gradients, accumulated ones together.
        return kind._clip_gradients(self, reduce(gradients))

    optimizer.__class__ = under_its_name(kind, {"_clip_gradients": _clip_gradients, **methods})
    return optimizer


def under_its_name(kind, methods):
    """A class of an optimizer's with other methods, that is shown and saved as the optimizer's."""
    made = type(kind.__name__, (kind,), methods)
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    package, registered, name = keras.saving.get_registered_name(kind).partition(">")
    if registered:
        for one in (made, kind):  # the last is what is loaded
            keras.saving.register_keras_serializable(package, name)(one)
    return made


def inner(optimizer):
    """The optimizer that steps, of one that scales losses."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_of(optimizer, distribution):
    """Whether an optimizer steps by the whole batch already; raises if by another distribution."""
    known = getattr(inner(optimizer), "distribution", distribution)
    if known is not distribution:
        raise ValueError(
            "An optimizer sums gradients over the devices of one distribution: make a new one. "
            f"Received: {type(optimizer).__name__} of another distribution"
        )
    return hasattr(inner(optimizer), "distribution")


def check_optimizer(distribution, model):
    """Raises unless a model was compiled with an optimizer of this distribution."""
    if getattr(inner(model.optimizer), "distribution", None) is not distribution:
        raise ValueError(
            "Each device would step by its own part of a batch: compile the model with "
            "`distribution.optimizer(...)`. "
            f"Received: {type(model.optimizer).__name__} on {distribution.num_replicas} devices"
        )
