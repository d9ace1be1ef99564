"""Files of a feature store: atomic writing, and comparison with their manifest on opening.

The manifest holds the size and checksum of each file and the name of the store. Each opening
compares sizes and shapes. Only the first one in a process compares checksums: training reads
all features many times.
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

FEATURES, COUNTS, PARTS, ROWS = "features.npy", "counts.npy", "parts.npy", "rows.npy"
MANIFEST = "manifest.json"
SHAPE = {"store": str, "pairs": bool, "files": manifest.SHAPE}
REPAIR = "Remove the folder to recompute its features."

_checked = set()  # (folder, state of its files) with compared checksums


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Content of a folder, see `FeatureStore`.

    Attributes:
        features: (vectors, L + 1, D) float16, memory-mapped and read-only.
        counts: (N,) number of vectors of each example.
        parts: (N, 2, 2) start and number of the vectors of each text of a pair, or `None`.
        pairs: Whether an example has one vector for each of two texts.
        rows: (R, 3) example, first vector and number of vectors of each row that the encoder read,
            if it read an example in several windows; otherwise `None`.
    """

    features: np.ndarray
    counts: np.ndarray
    parts: np.ndarray | None
    pairs: bool
    rows: np.ndarray | None


def read(folder):
    """Reads the `Arrays` of a folder.

    Raises:
        ValueError: If it is not a store, has changed since it was written, or its arrays do not fit
            together.
        OSError: If it cannot be read.
    """
    folder = Path(folder)
    about = read_json(folder / MANIFEST, SHAPE, 1 << 16, "of a feature store")
    files = about["files"]
    if about["store"] != folder.name or {*files} - {PARTS, ROWS} != {FEATURES, COUNTS}:
        raise ValueError(
            f"{folder / MANIFEST} must be the manifest of this store. {REPAIR} "
            f"Received: {about['store']!r:.60} with the files {', '.join(files)!r:.80}"
        )
    state = _state(folder, files)
    manifest.check_files(folder, files, checksums=state not in _checked, repair=REPAIR)
    features = read_npy(folder / FEATURES, "f", memory_map=True)
    counts = read_npy(folder / COUNTS, "i")
    parts, rows = (
        read_npy(folder / name, "i") if name in files else None for name in (PARTS, ROWS)
    )
    _check(folder, features, counts, parts, rows)
    _checked.add(state)
    return Arrays(features, counts, parts, about["pairs"], rows)


def _check(folder, features, counts, parts, rows):
    """Raises unless the arrays of a folder fit together."""
    fits = features.dtype == np.float16 and features.ndim == 3 and counts.ndim == 1
    total = len(features) if fits else 0
    fits = fits and (counts >= 0).all()
    if parts is None:
        fits = fits and counts.sum() == total
    elif fits := fits and parts.shape == (len(counts), 2, 2):
        ends = parts.sum(axis=-1)  # the start of each part plus its length
        fits = (parts >= 0).all() and (ends <= total).all()
        # Windows of two texts also count the tokens between both.
        fits = fits and (parts[..., 1].sum(axis=1) <= counts).all()
    fits = fits and (rows is None or _cover(rows, counts))
    if not fits:
        arrays = (features, counts, parts, rows)
        shapes = [None if array is None else array.shape for array in arrays]
        raise ValueError(
            f"{folder}: features, counts, parts and rows must belong together. {REPAIR} "
            f"Received: {features.dtype} features and arrays of the shapes {shapes}"
        )


def _cover(rows, counts):
    """Whether the windows of each example follow one another and hold all of its vectors."""
    if not (rows.ndim == 2 and rows.shape[1] == 3 and len(rows) and (rows >= 0).all()):
        return False
    examples, firsts, sizes = rows.T
    if (np.diff(examples) < 0).any() or examples[-1] >= len(counts):
        return False
    starts = np.cumsum(counts) - counts
    return (
        np.array_equal(np.bincount(examples, sizes, len(counts)), counts)
        and (starts[examples] + firsts == np.cumsum(sizes) - sizes).all()
    )


@contextlib.contextmanager
def writing(folder, shape, counts, parts=None, pairs=False, rows=None):
    """Yields an array of features to fill; a block without an error creates the folder.

    Space is reserved first: a full disk then raises an error at once. Otherwise a signal would end
    the process while it fills the memory-mapped array.

    Args:
        folder: The folder; an existing one is replaced.
        shape: (vectors, L + 1, D).
        counts, parts, pairs, rows: As in `Arrays`.

    Raises:
        OSError: If there is not enough space; it names the needed space.
    """
    folder = Path(folder)
    try:
        with replacing_folder(folder) as temporary:
            whole = {COUNTS: counts, PARTS: parts, ROWS: rows}
            whole = {name: array for name, array in whole.items() if array is not None}
            for name, array in whole.items():
                _save(temporary / name, array)
            array = _reserved(temporary / FEATURES, shape)
            yield array
            if isinstance(array, np.memmap):
                array.flush()
            del array
            files = manifest.describe_files(temporary, [FEATURES, *whole])
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
    """Creates a float16 array in a new `.npy` file with reserved space."""
    with open(path, "wb") as file:
        about = {"descr": "<f2", "fortran_order": False, "shape": tuple(map(int, shape))}
        np.lib.format.write_array_header_1_0(file, about)
        file.flush()
        begin, size = file.tell(), int(np.prod(shape)) * 2
        if size == 0:  # cannot be mapped
            return np.zeros(shape, np.float16)
        reserve(file, begin + size)
    return np.memmap(path, np.float16, "r+", begin, tuple(shape))


def _save(path, array):
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array, "<i8"))
    path.write_bytes(buffer.getvalue())


def _state(folder, names):
    """Returns a state that changes with any file of a folder."""
    states = []
    for name in sorted(names):
        try:
            about = os.stat(folder / name)
            states.append((name, about.st_ino, about.st_size, about.st_mtime_ns))
        except (OSError, ValueError):  # `check_files` names the file
            states.append((name,))
    return os.path.realpath(folder), *states


def remove_dead(folder):
    """Removes temporary folders of stores that killed processes left.

    The lock of a store shows whether a process writes it, also on a shared file system.
    """
    for path in Path(folder).glob("*.tmp"):
        named = re.fullmatch(r"(.+)\.\d+\.[0-9a-f]{8}\.tmp", path.name)
        if named is not None:
            with contextlib.suppress(ValueError), one_writer(path.with_name(named[1])):
                shutil.rmtree(path, ignore_errors=True)
