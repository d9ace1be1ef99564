"""Optimizers that use the gradient of the whole batch, summed over the devices."""

import keras


def reducing(optimizer, reduce, **methods):
    """Changes an optimizer's class to sum gradients over the devices before it clips them."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = reducing(optimizer.inner_optimizer, reduce, **methods)
        return optimizer
    kind = type(optimizer)

    def _clip_gradients(self, gradients):
        # The last method to see a step's gradients; it gets the sum of accumulated ones.
        return kind._clip_gradients(self, reduce(gradients))

    optimizer.__class__ = under_its_name(kind, {"_clip_gradients": _clip_gradients, **methods})
    return optimizer


def under_its_name(kind, methods):
    """Returns a subclass with other methods that is shown and saved under the name of `kind`."""
    made = type(kind.__name__, (kind,), methods)
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    package, registered, name = keras.saving.get_registered_name(kind).partition(">")
    if registered:
        for one in (made, kind):  # loading uses the last one
            keras.saving.register_keras_serializable(package, name)(one)
    return made


def inner(optimizer):
    """Returns the optimizer inside a loss-scaling one, otherwise the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_of(optimizer, distribution):
    """Whether an optimizer belongs to a distribution; raises if it belongs to another."""
    known = getattr(inner(optimizer), "distribution", distribution)
    if known is not distribution:
        raise ValueError(
            "An optimizer must sum gradients over the devices of one distribution: make a new one. "
            f"Received: {type(optimizer).__name__} of another distribution"
        )
    return hasattr(inner(optimizer), "distribution")


def check_optimizer(distribution, model):
    """Raises unless a model was compiled with an optimizer of this distribution."""
    if getattr(inner(model.optimizer), "distribution", None) is not distribution:
        raise ValueError(
            "All devices must use the gradient of the whole batch: compile the model with "
            "`distribution.optimizer(...)`. "
            f"Received: {type(model.optimizer).__name__} on {distribution.num_replicas} devices"
        )
