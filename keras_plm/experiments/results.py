"""Files of results: where a number was measured, and reading and writing them."""

import dataclasses
import hashlib
import json
import math
import os
import platform
import subprocess
import traceback
import zipfile
from pathlib import Path

import keras
import numpy as np

import keras_plm
from keras_plm.files.writing import replacing, write_json

# What every result of a run tells: scripts rely on it.
KEYS = ("task", "encoder", "method", "seed", "score", "metrics", "seconds", "backend", "device",
        "versions", "commit")  # fmt: skip


class NoResult(ValueError):
    """Nothing was run yet, or it is kept elsewhere."""


def environment():
    """Backend, device, versions and commit, as every result file tells them."""
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


def read_json(path):
    """What a result file holds.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:  # broken JSON, or bytes that are no text
        raise ValueError(
            f"{path} is no whole result file: remove it to run again. Received: {error}"
        ) from error


def read_result(path, keys=("task", "encoder", "method")):
    """The result of a run that a file holds.

    Args:
        path: The file.
        keys: By which it is known.

    Raises:
        ValueError: If the file is damaged or holds something else.
    """
    result = read_json(path)
    missing = [key for key in keys if key not in result] if isinstance(result, dict) else keys
    if missing:
        kind = "an object" if isinstance(result, dict) else f"a {type(result).__name__}"
        raise ValueError(
            f"{path} is no result of a run: move it elsewhere. "
            f"Received: {kind} without {', '.join(missing)}"
        )
    score = result.get("score")
    if isinstance(score, float) and not math.isfinite(score):
        raise ValueError(
            f"A result's score must be a finite number: remove {path} and run again. "
            f"Received: score={score}"
        )
    return result


def marked(suite, scale=None):
    """A suite's name at a scale, as README's marks have it."""
    return suite if scale in (None, "small") else f"{suite}_{scale}"


def suite_folder(results, home, scale=None):
    """Where the results of suites that share a `home` are, at a scale."""
    return Path(results) / marked(home, scale)


def set_aside(path):
    """Keeps an older file under its name and a hash of what it holds; gives the new name."""
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.replace(path.with_name(f"{path.name}.{mark}"))


def key(settings, seed, checksums):
    """A hash of what makes a result: settings (a dataclass), seed and data."""
    text = json.dumps([dataclasses.asdict(settings), seed, checksums])
    return hashlib.sha256(text.encode()).hexdigest()


def stored(path, hash):
    """The result in a file, or `None` where there is none that was made with this hash."""
    if not path.is_file():
        return None
    result = read_json(path)
    return result if result.get("hash") == hash else None


def failure_of(path):
    """The file that tells why a run has no result, next to where its result file would be."""
    return Path(path).with_suffix(".failed")


def write_failure(path, task, encoder, run, seed, error):
    """Writes why a run has no result, with the traceback of the error that is being handled.

    Args:
        path: Of the result file.
        task, encoder: Their names.
        run: A `Run`.
        seed: The run's.
        error: What was raised.
    """
    record = {
        "task": task,
        "encoder": encoder,
        "run": run.name,
        "fields": run.config,
        "seed": seed,
        "error": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc(),
        **environment(),
    }
    write_json(failure_of(path), record)


def store(path, result):
    """Writes a result; one of other settings or data that is there is set aside."""
    if path.is_file():
        set_aside(path)
    write_json(path, result)


def write_examples(path, hash, parts):
    """Writes beside a result file what each example adds to its scores, as `.npz`.

    Args:
        path: Of the result file.
        hash: The result's, by which `read_examples` knows that they belong together.
        parts: `{metric: (kind, array (N, k))}`, see `statistics.summands`.
    """
    arrays = {f"{name}.{kind}": array for name, (kind, array) in parts.items()}
    path = Path(path).with_suffix(".npz")
    with replacing(path, ".npz") as temporary:
        np.savez_compressed(temporary, hash=np.array(hash), **arrays)


def read_examples(path, hash):
    """What `write_examples` wrote beside a result; `None` if that is missing or another's.

    Raises:
        ValueError: If the file is damaged.
    """
    path = Path(path).with_suffix(".npz")
    if not path.is_file():
        return None
    try:
        with np.load(path) as arrays:
            if str(arrays["hash"]) != hash:
                return None
            named = [name for name in arrays if name != "hash"]
            split = {name: name.rpartition(".")[::2] for name in named}
            return {metric: (kind, arrays[name]) for name, (metric, kind) in split.items()}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is no whole file of examples: remove it. Received: {error}"
        ) from error
