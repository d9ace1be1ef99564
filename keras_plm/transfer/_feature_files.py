"""Files of a feature store: written whole or not at all, compared with their manifest on opening.

The manifest holds the size and checksum of each file and the name of the store. Sizes and shapes
are compared whenever a store is opened, checksums once in a process: training reads all of the
features anyway, many times.
"""

import contextlib
import dataclasses
import io
import os
import re
import shutil
from pathlib import Path

import numpy as np

from keras_plm.files import manifest
from keras_plm.files.disk_space import FULL, reserve
from keras_plm.files.json_files import read_json
from keras_plm.files.locks import one_writer
from keras_plm.files.numpy_files import read_npy
from keras_plm.files.writing import replacing_folder, write_json

FEATURES, COUNTS, PARTS = "features.npy", "counts.npy", "parts.npy"
MANIFEST = "manifest.json"
SHAPE = {"store": str, "pairs": bool, "files": manifest.SHAPE}
REPAIR = "Remove the folder, and its features are computed again."

_checked = set()  # (folder, state of its files) whose checksums this process has compared


@dataclasses.dataclass(frozen=True)
class Arrays:
    """What a folder holds, see `FeatureStore`.

    Attributes:
        features: (vectors, L + 1, D) float16, memory-mapped and read-only.
        counts: (N,).
        parts: (N, 2, 2), or `None`.
        pairs: Whether the two vectors of an example are those of two texts.
    """

    features: np.ndarray
    counts: np.ndarray
    parts: np.ndarray | None
    pairs: bool


def read(folder):
    """The `Arrays` of a folder.

    Raises:
        ValueError: If it is no store, was changed since it was written, or its arrays do not agree.
        OSError: If it may not be read.
    """
    folder = Path(folder)
    about = read_json(folder / MANIFEST, SHAPE, 1 << 16, "of a feature store")
    files = about["files"]
    if about["store"] != folder.name or {*files} - {PARTS} != {FEATURES, COUNTS}:
        raise ValueError(
            f"{folder / MANIFEST} must be that of this store. {REPAIR} "
            f"Received: {about['store']!r:.60} with the files {', '.join(files)!r:.80}"
        )
    state = _state(folder, files)
    manifest.check_files(folder, files, checksums=state not in _checked, repair=REPAIR)
    features = read_npy(folder / FEATURES, "f", memory_map=True)
    counts = read_npy(folder / COUNTS, "i")
    parts = read_npy(folder / PARTS, "i") if PARTS in files else None
    _check(folder, features, counts, parts)
    _checked.add(state)
    return Arrays(features, counts, parts, about["pairs"])


def _check(folder, features, counts, parts):
    """Raises unless the arrays of a folder are of one store."""
    fits = features.dtype == np.float16 and features.ndim == 3 and counts.ndim == 1
    total = len(features) if fits else 0
    fits = fits and (counts >= 0).all()
    if parts is None:
        fits = fits and counts.sum() == total
    elif fits := fits and parts.shape == (len(counts), 2, 2):
        ends = parts.sum(axis=-1)  # where each part begins and its length
        fits = (parts >= 0).all() and (ends <= total).all()
        # Windows of two texts also count what stands between both.
        fits = fits and (parts[..., 1].sum(axis=1) <= counts).all()
    if not fits:
        shapes = [None if array is None else array.shape for array in (features, counts, parts)]
        raise ValueError(
            f"{folder}: features, counts and parts must belong together. {REPAIR} "
            f"Received: {features.dtype} features and arrays of the shapes {shapes}"
        )


@contextlib.contextmanager
def writing(folder, shape, counts, parts=None, pairs=False):
    """Yields an array of features to fill; the folder is there if the block ends without an error.

    Space is reserved first: a full disk is then an error at once, and not a signal that ends the
    process while the memory-mapped array is filled.

    Args:
        folder: The folder. One that is there is replaced.
        shape: (vectors, L + 1, D).
        counts, parts, pairs: As in `Arrays`.

    Raises:
        OSError: If there is no space, with how much is needed.
    """
    folder = Path(folder)
    try:
        with replacing_folder(folder) as temporary:
            _save(temporary / COUNTS, counts)
            if parts is not None:
                _save(temporary / PARTS, parts)
            array = _reserved(temporary / FEATURES, shape)
            yield array
            if isinstance(array, np.memmap):
                array.flush()
            del array
            names = [FEATURES, COUNTS, *([PARTS] if parts is not None else [])]
            files = manifest.describe_files(temporary, names)
            about = {"store": folder.name, "pairs": pairs, "files": files}
            write_json(temporary / MANIFEST, about)
    except OSError as error:
        if error.errno not in FULL:
            raise
        size = int(np.prod(shape, dtype=float)) * 2
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"Features need {size:,} bytes in {folder.parent}: free some space, or name another "
            f"folder (--feature-cache). Received: {os.strerror(error.errno)}, {free:,} bytes free",
        ) from error
    _checked.add(_state(folder, files))


def _reserved(path, shape):
    """A float16 array in a new `.npy` file whose space is reserved."""
    with open(path, "wb") as file:
        about = {"descr": "<f2", "fortran_order": False, "shape": tuple(map(int, shape))}
        np.lib.format.write_array_header_1_0(file, about)
        file.flush()
        begin, size = file.tell(), int(np.prod(shape)) * 2
        if size == 0:  # which cannot be mapped
            return np.zeros(shape, np.float16)
        reserve(file, begin + size)
    return np.memmap(path, np.float16, "r+", begin, tuple(shape))


def _save(path, array):
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array, "<i8"))
    path.write_bytes(buffer.getvalue())


def _state(folder, names):
    """What changes when a file of a folder does."""
    states = []
    for name in sorted(names):
        try:
            about = os.stat(folder / name)
            states.append((name, about.st_ino, about.st_size, about.st_mtime_ns))
        except (OSError, ValueError):  # `check_files` says which
            states.append((name,))
    return os.path.realpath(folder), *states


def remove_dead(folder):
    """Removes temporary folders of stores that no process writes: those of killed ones.

    The lock of a store tells, also on a file system that several machines share.
    """
    for path in Path(folder).glob("*.tmp"):
        named = re.fullmatch(r"(.+)\.\d+\.[0-9a-f]{8}\.tmp", path.name)
        if named is not None:
            with contextlib.suppress(ValueError), one_writer(path.with_name(named[1])):
                shutil.rmtree(path, ignore_errors=True)
