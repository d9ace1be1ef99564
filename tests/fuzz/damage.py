"""Damage to one file of an input: a mutation of its kind, or a replacement of the file."""

import os
import sys
from pathlib import Path

from tests.fuzz.binary_mutations import KINDS, gzipped
from tests.fuzz.text_mutations import binary, json_lines

MUTATIONS = KINDS | {"jsonl": json_lines}
BINARY = ("bytes", "safetensors", "npy", "fasttext")  # kinds that may be memory-mapped
PLACES = (
    "folder",
    "gone",
    "loop",
    "fifo",
    "endless",
    "empty",
    "dangling",
    "program",
    "other",
    "huge",
)


def damage(reader, rng, folder):
    """Damages the input of a reader; returns the names of the file and the mutation."""
    name = rng.choice(sorted(reader.files))
    path, kind = folder / name, reader.files[name]
    if rng.random() < 0.04:
        return f"{name} {replace(reader, rng, path, kind)}"
    data, mutate = path.read_bytes(), kind if callable(kind) else MUTATIONS[kind]
    if reader.gz == "always" or (reader.gz and rng.random() < 0.3):
        path.unlink()
        path = Path(f"{path}.gz")
        data, mutation = gzipped(mutate)(rng, data)
    else:
        data, mutation = mutate(rng, data)
        if rng.random() < 0.15:
            data, second = binary(rng, data)
            mutation += f"+{second}"
    path.write_bytes(data)
    return f"{path.relative_to(folder)} {mutation}"


def replace(reader, rng, path, kind):
    """Replaces a file with something else; returns the name of the replacement."""
    place = rng.choice(PLACES)
    other = path.parent / Path(rng.choice(sorted(reader.files))).name
    others = other.read_bytes() if other.is_file() else b"{}"
    own = path.read_bytes()
    path.unlink()
    if place == "folder":
        path.mkdir()
    elif place == "loop":
        path.symlink_to(path.name)
    elif place == "fifo":
        os.mkfifo(path)
    elif place == "endless":
        path.symlink_to("/dev/zero")
    elif place == "empty":
        path.symlink_to("/dev/null")
    elif place == "dangling":
        path.symlink_to("/nowhere/at/all")
    elif place == "program":
        with open(sys.executable, "rb") as file:
            path.write_bytes(file.read(4096))
    elif place == "other":
        path.write_bytes(others)
    elif place == "huge":  # a sparse file
        path.write_bytes(own)
        os.truncate(path, 1 << 33 if kind in BINARY else 1 << 25)
    return place
