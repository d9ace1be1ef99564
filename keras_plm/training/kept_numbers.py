"""Numbers that torch keeps on its device, so that a step does not wait for them."""

import contextlib
import functools

import keras
import numpy as np

MOST, LARGEST = 1024, 1024  # number of kept tensors, and bytes of each


def kept_numbers():
    """Returns a context in which Keras' tensors of Python numbers come from a store on the device.

    Keras makes tensors of numbers such as the 1 that it adds to the number of steps. torch copies
    each to a GPU and waits until the GPU has finished all earlier work. After the backward pass
    this wait costs most: the GPU then has no work until Python has begun the next step. In the
    context a number is copied once, and then on the device.

    Each call of torch in the context costs some microseconds: use it where there are few. It does
    nothing on a CPU and for the other backends, which compile their steps.

    Returns:
        A context manager.
    """
    if keras.backend.backend() != "torch" or not _copies_wait():
        return contextlib.nullcontext()
    import torch

    # A compiler makes constants of numbers.
    return contextlib.nullcontext() if torch.compiler.is_compiling() else _mode()()


@functools.cache
def _copies_wait():
    """Returns whether torch computes on a device other than the CPU."""
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()


@functools.cache
def _mode():
    import torch
    from torch.overrides import TorchFunctionMode

    kept = {}

    class KeptNumbers(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            key = None
            if function is torch.as_tensor and len(args) == 1:
                key = _key(args[0], kwargs)
            if key is None:
                return function(*args, **kwargs)
            if key not in kept:
                if len(kept) == MOST:
                    kept.clear()
                kept[key] = function(*args, **kwargs)
            return kept[key].clone()  # the caller may change it

    return KeptNumbers


def _key(x, options):
    """Returns what determines the tensor of numbers or of a small array, or `None` for others."""
    if isinstance(x, np.ndarray) and x.nbytes <= LARGEST and x.dtype != object:
        content = x.dtype.str, x.shape, x.tobytes()
    elif isinstance(x, (bool, int, float)) or _is_shape(x):
        content = repr(x)  # not the number: 1 equals 1.0 and True, and NaN not even itself
    else:
        return None
    return content, str(options.get("dtype")), str(options.get("device"))


def _is_shape(x):
    return isinstance(x, tuple) and len(x) < 8 and all(type(size) is int for size in x)
