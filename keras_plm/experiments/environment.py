"""Where a result is measured: backend, device, versions and commit."""

import os
import platform
import subprocess
from pathlib import Path

import keras
import numpy as np

import keras_plm


def environment():
    """Backend, device, versions and commit: where a result was measured."""
    versions = {"keras": keras.__version__, "keras_plm": keras_plm.__version__}
    backend = keras.backend.backend()
    versions[backend] = __import__(backend).__version__
    return {
        "backend": backend,
        "device": _device(),
        "versions": versions | {"numpy": np.__version__},
        "commit": _commit(),
    }


def _device():
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join([f"{name}, {cores} cores", *_accelerators()])


def _accelerators():
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        count = torch.cuda.device_count()
        return [torch.cuda.get_device_name(i) for i in range(count)]
    if backend == "jax":
        import jax

        return [d.device_kind for d in jax.devices() if d.platform != "cpu"]
    import tensorflow as tf

    return [d.name for d in tf.config.list_physical_devices() if d.device_type != "CPU"]


def clone():
    """The folder of the clone that this package is imported from, or `None`."""
    root = Path(keras_plm.__file__).parents[1]
    return root if (root / ".git").exists() else None


def _commit():
    if (root := clone()) is None:
        return None
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")
