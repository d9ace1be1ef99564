"""Environment of a measurement: backend, device, versions and commit; peak memory."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

import keras_plm


def environment():
    """Returns backend, device, versions and commit, for the record of a measurement."""
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
    """Returns the folder of the clone that this package is imported from, or `None`."""
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


def reset_peak_memory():
    """Resets the peak that `peak_memory_mb` returns, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_memory_mb():
    """Returns the peak resident size of this process, in megabytes."""
    try:
        # `getrusage` on Linux includes the process that this one was forked from.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_memory_of(module, *arguments):
    """Measures the peak memory of a new process that runs a module, with start and imports.

    Args:
        module: A module that this process can import. It prints `peak_memory_mb()` as the last
            word of its output.
        arguments: Its arguments on the command line, strings.

    Returns:
        Megabytes, rounded to one decimal.

    Raises:
        RuntimeError: If the process fails.
    """
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    if done.returncode:
        raise RuntimeError(
            f"The process that measures peak memory failed: {' '.join(command[4:7])}. "
            f"Received: {done.stderr[-500:]}"
        )
    return round(float(done.stdout.split()[-1]), 1)
