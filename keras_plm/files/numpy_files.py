"""Reading of NumPy's `.npy` and `.npz` files, after a check of headers and sizes."""

import io
import math
import sys
import zipfile
import zlib

import numpy as np

from keras_plm.files.opening import EXPANSION_FROM, MOST_EXPANSION, check_file

# Kinds of `numpy.dtype.kind`, never objects: pickle would read them.
NUMBERS = "fiub"


def read_npy(path, kinds=NUMBERS, memory_map=False):
    """Reads the array of an `.npy` file, in C order.

    Args:
        path: The file.
        kinds: Allowed kinds of its type, see `numpy.dtype.kind`.
        memory_map: If True, map the file into memory, read-only, instead of reading it.

    Raises:
        ValueError: If it is not a complete `.npy` file, is in Fortran order or of another kind.
        OSError: If there is no permission to read it.
    """
    path = check_file(path)
    with open(path, "rb") as file:
        shape, dtype, begin = _header(file, path.stat().st_size, kinds, path)
        if not memory_map:
            return np.fromfile(file, dtype, math.prod(shape)).reshape(shape)
    if not math.prod(shape):  # an empty array cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", begin, shape)


def read_npz(file, where, kinds=NUMBERS):
    """Reads the arrays of an `.npz` file by their names.

    Args:
        file: Its path or its bytes.
        where: Start of errors.
        kinds: As in `read_npy`.

    Raises:
        ValueError: If it is not a complete `.npz` file, or expands to more than 50 times its size.
    """
    file = io.BytesIO(file) if isinstance(file, bytes) else check_file(file)
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            packed = sum(member.compress_size for member in members)
            whole = sum(member.file_size for member in members)
            if whole > max(EXPANSION_FROM, MOST_EXPANSION * packed):
                raise ValueError(
                    f"{where} must not expand to more than {MOST_EXPANSION} times its size. "
                    f"Received: {packed:,} bytes that expand to {whole:,}"
                )
            for member in members:
                content = io.BytesIO(archive.read(member))
                name = f"{where}, {member.filename}"
                shape, dtype, _ = _header(content, member.file_size, kinds, name)
                flat = np.frombuffer(content.read(), dtype)
                _check_text(flat, name)
                arrays[member.filename.removesuffix(".npy")] = flat.reshape(shape).copy()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{where} must be a whole .npz file. Received: {error}") from error
    except ValueError as error:
        if str(where) in str(error):
            raise
        # An offset before the file, or a name that is not text.
        raise ValueError(f"{where} must be a whole .npz file. Received: {error}") from error
    except OSError as error:
        raise ValueError(f"{where} could not be read. Received: {error.strerror}") from error
    return arrays


def _check_text(flat, where):
    """Raises unless an array of text holds characters; NumPy accepts any numbers."""
    if flat.dtype.kind == "U" and flat.dtype.itemsize:
        numbers = flat.view(np.dtype("u4").newbyteorder(flat.dtype.byteorder))
        if numbers.size and numbers.max() > sys.maxunicode:
            raise ValueError(
                f"{where} must hold text. Received: a character of number {numbers.max()}"
            )


def _header(file, size, kinds, where):
    """Returns `(shape, dtype, offset of the values)` of an `.npy` file of `size` bytes."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        read = readers[np.lib.format.read_magic(file)]
        shape, fortran, dtype = read(file)
        begin = file.tell()
    except Exception as error:  # the header is Python source: its parser raises many types
        raise ValueError(
            f"{where} must be a whole .npy file. Received: a damaged header"
        ) from error
    if dtype.kind not in kinds or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(
            f"{where} must hold numbers. Received: an array of type {dtype}, shape {shape}"
        )
    if fortran and len(shape) > 1:
        raise ValueError(f"{where} must be in C order. Received: an array in Fortran order")
    wanted = begin + math.prod(shape) * dtype.itemsize
    if size != wanted:
        raise ValueError(
            f"{where} must be a whole .npy file. Received: {size:,} bytes instead of {wanted:,} "
            f"for an array of type {dtype}, shape {shape}"
        )
    return shape, dtype, begin
