"""Mutations of arrays and archives: false headers, invalid numbers, code, decompression bombs."""

import ast
import functools
import gzip
import io
import json
import math
import os
import pickle
import struct
import warnings
import zipfile
import zlib

import numpy as np

from tests.fuzz.text_mutations import binary, json_file, json_value, text

CANARY = "executed"  # file that code in an input would create in the working folder
ODD_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e38, 3e-39)
BOMB = 1 << 30  # bytes that an archive of a megabyte unpacks to


class Code:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {CANARY}",)


def with_odd_floats(rng, data):
    """Changes some four-byte numbers."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 3))):
        if len(data) >= 4:
            at = rng.randrange(len(data) // 4) * 4
            data[at : at + 4] = struct.pack("<f", rng.choice(ODD_FLOATS))
    return bytes(data)


# ---- safetensors

TYPES = (
    "F16",
    "BF16",
    "F64",
    "I64",
    "I32",
    "BOOL",
    "U8",
    "F8_E4M3",
    "F4",
    "C64",
    "XX",
    "",
    None,
    3,
)
NAMES = ("", "../x", "\x00", "😀", "token_embedding/embeddings", "__metadata__")


def safetensors(rng, data):
    if rng.random() < 0.25:
        return binary(rng, data)
    size = struct.unpack("<Q", data[:8])[0]
    header, payload = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = sorted(set(header) - {"__metadata__"})
    name, claimed = rng.choice(names), None
    begin, end = header[name]["data_offsets"]
    shape = header[name]["shape"]
    kind = rng.choice(
        ("size", "offsets", "dtype", "shape", "json", "name", "drop", "values", "values", "notes",
         "order", "share", "append")
    )  # fmt: skip
    if kind == "size":
        claimed = rng.choice((0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1, len(data)))
    elif kind == "offsets":
        header[name]["data_offsets"] = rng.choice(
            ([begin, end + 4], [begin - 4, end], [end, begin], [begin, begin], [0, end - begin],
             [2**63, 2**63 + end - begin], [len(payload), len(payload) + end - begin], ["0", "4"],
             [begin], None, [0, 2**64 - 1])
        )  # fmt: skip
    elif kind == "dtype":
        header[name]["dtype"] = rng.choice(TYPES)
    elif kind == "shape":
        header[name]["shape"] = rng.choice(
            (shape[::-1], [*shape, 1], [1, *shape], [], [0], [-1], [2**40, 2**40], [2**63], None,
             ["1"], [1.5], shape[:-1], [math.prod(shape)])
        )  # fmt: skip
    elif kind == "json":
        changed, _ = json_value(rng, header)
        return struct.pack("<Q", len(changed)) + changed + payload, "safetensors_json"
    elif kind == "name":
        header[rng.choice((*NAMES, f"{name}x", name.upper()))] = header.pop(name)
    elif kind == "drop":
        del header[name]
    elif kind == "values":
        payload = with_odd_floats(rng, payload)
    elif kind == "notes":
        header["__metadata__"] = rng.choice(({"a": "b"}, {"a": 1}, None, [], "x", {}))
    elif kind == "order":
        header = dict(reversed(header.items()))
    elif kind == "share":
        header[name] = dict(header[rng.choice(names)])
    else:
        payload += bytes(rng.choice((1, 4, 4096)))
    changed = json.dumps(header).encode()
    claimed = len(changed) if claimed is None else claimed
    return struct.pack("<Q", claimed) + changed + payload, f"safetensors_{kind}"


# ---- NumPy

DESCRIPTIONS = ("<f8", "<f2", "<i8", "|O", "|S4", "<U4", ">f4", "<c8", "", "x", [("a", "<f4")],
                "<M8[s]", 3, None, "|b1", "<i1000")  # fmt: skip


def npy(rng, data):
    if rng.random() < 0.3:
        return binary(rng, data)
    size = struct.unpack("<H", data[8:10])[0]
    header, payload = ast.literal_eval(data[10 : 10 + size].decode()), data[10 + size :]
    shape, claimed, version = header["shape"], None, (1, 0)
    kind = rng.choice(
        (
            "shape",
            "type",
            "order",
            "pickle",
            "nest",
            "version",
            "size",
            "values",
            "cut",
            "key",
            "code",
        )
    )
    if kind == "shape":
        header["shape"] = rng.choice(
            ((), (0,), (-1,), shape[::-1], (*shape, 1), (1, *shape), (2**40,), (2**31, 2**31),
             ("1",), None, (1.5,), shape[:-1], (True,))
        )  # fmt: skip
    elif kind == "type":
        header["descr"] = rng.choice(DESCRIPTIONS)
    elif kind == "order":
        header["fortran_order"] = rng.choice((True, 1, None, "x"))
    elif kind == "key":
        header["more"] = 1
    elif kind == "pickle":
        header["descr"], payload = "|O", pickle.dumps(Code())
    elif kind == "values":
        payload = with_odd_floats(rng, payload)
    elif kind == "cut":
        payload = rng.choice((payload[:-1], payload[: len(payload) // 2], payload + b"x", b""))
    changed = repr(header)
    if kind == "nest":
        changed = "(" * rng.choice((100, 5000)) + "1"
    elif kind == "code":
        changed = f"__import__('os').system('touch {CANARY}')"
    changed = (changed + " " * (-(len(changed) + 11) % 64) + "\n").encode("latin-1", "replace")
    claimed = len(changed)
    if kind == "size":
        claimed = rng.choice((0, 1, 65535, len(changed) + 7))
    elif kind == "version":
        version = rng.choice(((2, 0), (3, 0), (9, 9), (0, 0)))
    length = struct.pack("<H", min(claimed, 65535))
    return b"\x93NUMPY" + bytes(version) + length + changed + payload, f"npy_{kind}"


# ---- archives

FOREIGN = (
    "../../outside.txt",
    "/tmp/outside.txt",
    "..\\outside.txt",
    "a/../../outside.npy",
    "a.npy",
)


def of_member(name):
    """Returns the mutation of a member of an archive."""
    kinds = {".npy": npy, ".json": json_file, ".h5": hdf5, ".npz": archive}
    return kinds.get(os.path.splitext(name)[1], binary)


def archive(rng, data):
    """Damages a ZIP file, which includes .npz, .keras and torch's files."""
    chance = rng.random()
    if chance < 0.3:
        return binary(rng, data)
    if chance < 0.32:
        return zip_bomb(), "zip_bomb"
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name, other = rng.choice(sorted(members)), rng.choice(sorted(members))
    kind, more = (
        rng.choice(("member",) * 4 + ("drop", "name", "twice", "pickle", "swap", "lie")),
        {},
    )
    if kind == "member":
        members[name], kind = of_member(name)(rng, members[name])
    elif kind == "drop":
        del members[name]
    elif kind == "name":
        members[rng.choice((*FOREIGN, f"{name}x", name.upper(), f"x/{name}"))] = members.pop(name)
    elif kind == "twice":
        more = {name: rng.choice((members[name], b"", members[other]))}
    elif kind == "pickle":
        members[name] = pickle.dumps(Code())
    elif kind == "swap":
        members[name], members[other] = members[other], members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about duplicate names
        for key, content in [*members.items(), *more.items()]:
            file.writestr(zipfile.ZipInfo(key), content, zipfile.ZIP_DEFLATED)
    changed = bytearray(out.getvalue())
    directory = changed.find(b"PK\x01\x02")
    if kind == "lie" and directory >= 0:
        at = directory + rng.choice((8, 10, 16, 20, 24, 42))
        changed[at : at + 2] = rng.randbytes(2)
    return bytes(changed), f"zip_{kind}"


@functools.cache
def zip_bomb():
    """Returns a ZIP file of a megabyte that holds an array of a gigabyte, named like examples."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (BOMB // 8,)}
    )
    block, packer = bytes(1 << 24), zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = packer.compress(head.getvalue()) + packer.flush(zlib.Z_FULL_FLUSH)
    middle = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = begin + middle * (BOMB // len(block)) + packer.flush()
    check, size = zlib.crc32(head.getvalue()), len(head.getvalue()) + BOMB
    for _ in range(BOMB // len(block)):
        check = zlib.crc32(block, check)
    name = b"accuracy.mean.npy"
    about = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, check, len(packed), size, len(name), 0)
    file = b"PK\x03\x04" + about + name + packed
    entry = (
        b"PK\x01\x02" + struct.pack("<H", 20) + about + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    )
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(file), 0)
    return file + entry + end


@functools.cache
def gzip_bomb(part):
    """Returns a .gz file that unpacks to a thousand times its size.

    It holds one word of a gigabyte, or lines with less text. A reader may read fifty times the size
    of the file, and training on that much text takes seconds.
    """
    block = part * ((1 << 24) // len(part))
    return gzip.compress(block, mtime=0) * ((BOMB if len(part) == 1 else BOMB // 16) // len(block))


GZIP = ("flip", "flip", "cut", "cut", "check", "size", "plain", "twice", "append", "head", "empty",
        "name")  # fmt: skip


def gzipped(inner):
    """Returns a mutation that turns a plain file into a damaged .gz file."""

    def mutate(rng, data):
        if rng.random() < 0.015:
            return gzip_bomb(rng.choice((b"a", b"good word " * 20 + b"\n"))), "gz_bomb"
        kind = rng.choice(("inner",) * 6 + GZIP)
        if kind == "inner":
            changed, name = inner(rng, data)
            return gzip.compress(changed, mtime=0), f"gz_{name}"
        packed = bytearray(gzip.compress(data, mtime=0))
        if kind == "flip":
            packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del packed[rng.randrange(len(packed)) :]
        elif kind == "check":
            packed[-8:-4] = b"abcd"
        elif kind == "size":
            packed[-4:] = b"\xff\xff\xff\x7f"
        elif kind == "plain":
            packed = data
        elif kind == "twice":
            packed = packed + packed
        elif kind == "append":
            packed += rng.choice((bytes(20), b"junk", b"\x1f\x8b"))
        elif kind == "head":
            packed[:10] = rng.randbytes(10)
        elif kind == "empty":
            packed = rng.choice((b"", gzip.compress(b"")))
        else:
            packed[3:10] = b"\x08\0\0\0\0\0\xff../../outside.txt\0"
        return bytes(packed), f"gz_{kind}"

    return mutate


# ---- HDF5

HDF5_TYPES = ("f2", "f8", "i4", "u1", "?", "c8", ">f4")


def hdf5(rng, data):
    """Damages an HDF5 file, mostly in its first kilobytes, or replaces one of its arrays."""
    import h5py

    if rng.random() < 0.5:
        if rng.random() < 0.5:
            return binary(rng, data)
        data = bytearray(data)
        at = rng.randrange(min(len(data), 2500))
        data[at : at + rng.choice((1, 8))] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\x7f"))
        return bytes(data), "hdf5_head"
    out = io.BytesIO(data)
    with h5py.File(out, "r+") as file:
        names = []
        file.visititems(lambda n, item: names.append(n) if hasattr(item, "dtype") else None)
        name = rng.choice(sorted(names))
        array = file[name][...]
        del file[name]
        kind = rng.choice(sorted(REPLACEMENTS))
        REPLACEMENTS[kind](rng, h5py, file, name, array)
    return out.getvalue(), f"hdf5_{kind}"


def _with_nan(rng, h5py, file, name, array):
    array = np.array(array, "f4")
    array.flat[0] = rng.choice((np.nan, np.inf))
    file[name] = array


def _other_shape(rng, h5py, file, name, array):
    file[name] = rng.choice((array.ravel(), array[..., None], np.zeros((0,), "f4"), array.T))


def _virtual(rng, h5py, file, name, array):
    layout = h5py.VirtualLayout(array.shape or (1,), "f4")
    layout[...] = h5py.VirtualSource("nothing.h5", "x", array.shape or (1,))
    file.create_virtual_dataset(name, layout)


def _huge(rng, h5py, file, name, array):
    shape = rng.choice(((2**33, 2**10), (2**18, 2**12)))
    file.create_dataset(name, shape=shape, dtype="f4", chunks=(1024, 1024))


def _set(value):
    return lambda rng, h5py, file, name, array: file.__setitem__(name, value(rng, h5py, array))


def _create(options):
    return lambda rng, h5py, file, name, array: file.create_dataset(name, **options(h5py, array))


REPLACEMENTS = {
    "nan": _with_nan,
    "shape": _other_shape,
    "virtual": _virtual,
    "huge": _huge,
    "dtype": _set(lambda rng, h5py, array: array.astype(rng.choice(HDF5_TYPES))),
    "string": _set(lambda rng, h5py, array: "text"),
    "group": lambda rng, h5py, file, name, array: file.create_group(name),
    "absent": lambda rng, h5py, file, name, array: None,
    "other_file": _set(lambda rng, h5py, array: h5py.ExternalLink("/etc/passwd", "/x")),
    "link": _set(lambda rng, h5py, array: h5py.SoftLink("/nowhere")),
    "loop": lambda rng, h5py, file, name, array: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
    "empty": _create(lambda h5py, array: {"data": h5py.Empty("f4")}),
    "fields": _create(lambda h5py, array: {"data": np.zeros(array.shape, [("a", "f4")])}),
    "other_bytes": _create(
        lambda h5py, array: {"shape": (64,), "dtype": "u1", "external": [("/etc/passwd", 0, 64)]}
    ),
    "strings": _create(lambda h5py, array: {"data": [b"x", b"yy"], "dtype": h5py.string_dtype()}),
    "references": _create(
        lambda h5py, array: {"shape": (2,), "dtype": h5py.special_dtype(ref=h5py.Reference)}
    ),
}

# ---- torch


def torch_file(rng, data):
    """Damages a file of `torch.save`."""
    import torch

    chance = rng.random()
    if chance < 0.5:
        return archive(rng, data) if chance < 0.3 else binary(rng, data)
    kind = rng.choice(
        ("pickle", "code", "list", "nested", "module", "numpy", "string", "number", "sparse",
         "meta", "complex", "key", "none", "legacy", "nan", "bool")
    )  # fmt: skip
    if kind == "pickle":
        return pickle.dumps(Code()), "torch_pickle"
    state = torch.load(io.BytesIO(data), weights_only=True)
    name, out = rng.choice(sorted(state)), io.BytesIO()
    tensor = state[name]
    values = {
        "code": Code, "numpy": tensor.numpy, "string": lambda: "x", "number": lambda: 1.5,
        "sparse": lambda: torch.zeros(3, 3).to_sparse(), "none": lambda: None,
        "meta": lambda: torch.empty(3, device="meta"), "nan": lambda: tensor * float("nan"),
        "complex": lambda: torch.zeros(3, dtype=torch.complex64), "bool": lambda: tensor > 0,
    }  # fmt: skip
    if kind in values:
        state[name] = values[kind]()
    elif kind == "list":
        state = list(state.values())
    elif kind == "nested":
        state = {"state_dict": state}
    elif kind == "module":
        state = torch.nn.Linear(2, 2)
    elif kind == "key":
        state[rng.choice((1, None, ("a",), b"x"))] = state.pop(name)
    torch.save(state, out, _use_new_zipfile_serialization=kind != "legacy")
    return out.getvalue(), f"torch_{kind}"


# ---- fastText


def fasttext(rng, data):
    """Damages a fastText model: integers of its header, or bytes."""
    if rng.random() < 0.5:
        return binary(rng, data)
    at = rng.randrange(min(len(data) - 4, 110)) // 4 * 4
    value = rng.choice((-1, 0, 1, 2, 3, 65536, 10**6, 10**9, 2**31 - 1, -(2**31)))
    return data[:at] + struct.pack("<i", value) + data[at + 4 :], "fasttext_head"


KINDS = {
    "text": text,
    "json": json_file,
    "bytes": binary,
    "safetensors": safetensors,
    "npy": npy,
    "zip": archive,
    "hdf5": hdf5,
    "torch": torch_file,
    "fasttext": fasttext,
}
