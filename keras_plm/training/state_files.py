"""Files of training states: atomic writing, search by step, checks on reading."""

import hashlib
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np

from keras_plm.files.arrays import NUMBERS, read_safetensors
from keras_plm.files.json_files import Whole, parse_json
from keras_plm.files.writing import remove_leftovers, replacing

# Format of a state's note; `TrainingState` compares its other entries with the model.
SHAPE = {"steps": Whole(), "history?": [dict]}


def has_state(folder):
    """Whether a folder holds a `TrainingState` to resume."""
    return bool(state_files(folder))


def state_files(folder):
    """Lists the states in a folder, the oldest first."""
    names = re.compile(r"state(-\d+)?\.safetensors")
    files = [path for path in Path(folder).glob("state*") if names.fullmatch(path.name)]
    return sorted(files, key=steps_of)


def steps_of(path):
    # `state.safetensors`, an older format, has no step number.
    return int(path.stem.partition("-")[2] or -1)


def write_state(path, note, arrays):
    """Writes a file of arrays and a note atomically."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    remove_leftovers(path.parent, "state*.safetensors")  # left by a killed run
    note = json.dumps(note)
    about = {"state": note, "sha256": _digest(note, arrays)}
    try:
        with replacing(path) as temporary:
            save_file(arrays, temporary, metadata=about)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        needed = sum(array.nbytes for array in arrays.values())
        free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
        raise OSError(
            f"{path} could not be written; earlier states are intact. "
            f"Received: {error}; {needed:,} bytes to write, {free:,} bytes free"
        ) from error
    if hasattr(os, "O_DIRECTORY"):  # flushes the new file name, too
        folder = os.open(path.parent, os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)


def newest_state(folder):
    """Returns `(path, note, arrays)` of the newest intact state, or `None` without a file."""
    damaged = []
    for path in reversed(state_files(folder)):
        try:
            arrays, about = read_safetensors(path, NUMBERS)
            if "state" not in about:
                raise ValueError("it holds no state")
            note = parse_json(about["state"], path, SHAPE, nan=True)
            if path.stem != "state" and about.get("sha256") != _digest(about["state"], arrays):
                raise ValueError("its checksum differs")
        except (OSError, ValueError) as error:
            damaged.append((path, error))
            continue
        if damaged:
            names = ", ".join(f"{bad} ({error})" for bad, error in damaged)
            warnings.warn(f"Damaged training state: {names}. Resuming from {path}", stacklevel=3)
        return path, note, arrays
    if damaged:
        names = ", ".join(str(path) for path, _ in damaged)
        raise ValueError(
            f"{names}: no intact training state. Remove the damaged files to start again. "
            f"Received: {damaged[0][1]}"
        )
    return None


def _digest(note, arrays):
    digest = hashlib.sha256(note.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()
