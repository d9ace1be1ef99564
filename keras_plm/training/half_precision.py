"""Whether bfloat16 is fast on the device of the backend, and advice that follows from it."""

import functools
import re
import warnings

import keras

AMPERE = 8.0  # compute capability of the first NVIDIA GPUs with bfloat16


@functools.cache
def has_bfloat16() -> bool | None:
    """Returns whether the device computes bfloat16 in hardware; `None` if this is unknown.

    The device is the first accelerator of the backend, otherwise the processor. Without such
    instructions, bfloat16 is as slow as float32 or slower.
    """
    capabilities = {"torch": _on_torch, "jax": _on_jax, "tensorflow": _on_tensorflow}
    capability = capabilities[keras.backend.backend()]()
    if capability == "cpu":
        return _processor_has_bfloat16()
    return None if capability is None else float(capability) >= AMPERE


def advice(precision: str) -> str | None:
    """Returns a sentence if another precision would train faster on this device, else `None`.

    XLA gains little from bfloat16 on processors, so there is none under JAX on a CPU.

    Args:
        precision: `"float32"`, `"bfloat16"` or `"float16"`.

    >>> advice("float16") is None
    True
    """
    fast = has_bfloat16()
    if precision == "bfloat16" and fast is False:
        return (
            "This device has no instructions for bfloat16, so training is not faster than in "
            "float32: choose float32, or float16 on a GPU"
        )
    if precision == "float32" and fast and not _is_xla_on_cpu():
        return (
            "This device has instructions for bfloat16: --precision bfloat16 trains an encoder "
            "faster, with weights in float32"
        )
    return None


def warn_of_slow_precision(model: keras.Model) -> None:
    """Warns once if a model computes in bfloat16 and the device has no instructions for it."""
    if getattr(model, "compute_dtype", None) == "bfloat16" and has_bfloat16() is False:
        _warn(advice("bfloat16"))


@functools.cache
def _warn(sentence):
    warnings.warn(f"{sentence}. Received: dtype='bfloat16'", stacklevel=3)


def _is_xla_on_cpu():
    return keras.backend.backend() == "jax" and _on_jax() == "cpu"


def _on_torch():
    """Returns the compute capability of the GPU, `"cpu"`, or `None` for another accelerator."""
    import torch

    if torch.cuda.is_available():
        if torch.version.hip is not None:
            return None
        return "{}.{}".format(*torch.cuda.get_device_capability())
    return None if torch.backends.mps.is_available() else "cpu"


def _on_jax():
    import jax

    device = jax.devices()[0]
    if device.platform == "cpu":
        return "cpu"
    # AMD's GPUs have names such as gfx90a instead of numbers.
    found = re.fullmatch(r"\d+\.\d+", str(getattr(device, "compute_capability", None)))
    return found and found[0]


def _on_tensorflow():
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None if tf.config.list_physical_devices("TPU") else "cpu"
    found = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability")
    return None if found is None else "{}.{}".format(*found)


def _processor_has_bfloat16(path="/proc/cpuinfo"):
    """Reads the processor's flags: AVX-512 or AMX (x86), BF16 (ARM). `None` if there are none."""
    try:
        with open(path) as file:
            lines = (line.partition(":") for line in file)
            flags = next(words for name, _, words in lines if name.strip() in ("flags", "Features"))
    except (OSError, StopIteration):
        return None
    known = {"avx512_bf16", "amx_bf16", "bf16"}
    return bool(known & set(flags.split()))
