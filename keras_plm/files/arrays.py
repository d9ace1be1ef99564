"""Reading of weights in safetensors, torch and HDF5 files, after a check of their size."""

import math
import pickle
import zipfile
from pathlib import Path

import numpy as np

from keras_plm.files.json_files import Whole, check_shape, parse_json
from keras_plm.files.opening import EXPANSION_FROM, MOST_EXPANSION, check_file

# safetensors' names of types, and NumPy's. bfloat16 has no NumPy type of its own.
FLOATS = {"F16": "<f2", "BF16": "bfloat16", "F32": "<f4", "F64": "<f8"}
NUMBERS = FLOATS | {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8",
}  # fmt: skip
# Integer types of Keras' arrays: quantized kernels and the states of seeds.
NOT_FLOATS = tuple(map(np.dtype, ("int8", "uint8", "uint32")))
FORMATS = ("safetensors", "torch", "hdf5")
ENDINGS = {
    ".safetensors": "safetensors",
    **dict.fromkeys((".bin", ".pt", ".pth"), "torch"),
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
}
MOST_HEADER = 100_000_000  # bytes, the limit of the package safetensors
TENSOR = {"dtype": str, "shape": [Whole()], "data_offsets": [Whole()]}
MOST_LEVELS = 32  # of groups in an HDF5 file
INTERRUPTED = "was its copy interrupted?"


def read_weights(path, skip=None, format=None):
    """Reads the weights of a safetensors, torch or HDF5 file by their names, as float32.

    Args:
        path: The file.
        skip: Function of a name that returns True for arrays to skip; they may hold anything.
        format: One of `FORMATS`; by default from the suffix: `.safetensors`; `.bin`, `.pt` or
            `.pth` of torch; `.h5` or `.hdf5`.

    Raises:
        ImportError: If torch is needed and not installed.
        ValueError: If it is not such a file or incomplete, or a weight is not of floating type or
            not finite in float32.
        OSError: If there is no permission to read it.
    """
    path = Path(path)
    format = format or ENDINGS.get(path.suffix)
    if format not in FORMATS:
        raise ValueError(
            f"{path}: the name of a file of weights must end in {', '.join(ENDINGS)}. "
            f"Received: {path.suffix!r}"
        )
    if format == "safetensors":
        arrays, _ = read_safetensors(path, skip=skip)
    else:
        arrays = (_read_torch if format == "torch" else _read_hdf5)(path, skip)
    for name in arrays:
        arrays[name] = as_weight(arrays[name], name, path)
    return arrays


def as_weight(array, name, path):
    """Converts an array to float32; raises unless all values are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        array = array.astype("float32", copy=False)
        total = array.sum()  # finite only if all values are; three times faster than `isfinite`
    if not np.isfinite(total) and not np.isfinite(array).all():
        raise ValueError(
            f"{path}: weights must be finite in float32; did training diverge? "
            f"Received: NaN or infinity in {name!r}"
        )
    return array


def read_safetensors(path, types=FLOATS, skip=None):
    """Reads the arrays of a safetensors file in their stored types, and its metadata.

    Args:
        path: The file.
        types: Allowed types: `FLOATS` or `NUMBERS`.
        skip: As in `read_weights`.

    Returns:
        `(arrays, metadata)`, two dicts.

    Raises:
        ValueError: If it is not a regular file, is incomplete or has an array of another type.
        OSError: If there is no permission to read it.
    """
    import ml_dtypes

    path = check_file(path)
    size = path.stat().st_size
    with open(path, "rb") as file:
        begin, tensors, metadata = _safetensors_header(file, size, path)
        arrays = {}
        for name, tensor in tensors.items():
            if skip is not None and skip(name):
                continue
            if tensor["dtype"] not in types:
                raise ValueError(
                    f"{path}: {name!r} must be of type {', '.join(types)}. "
                    f"Received: {tensor['dtype'][:20]}"
                )
            stored = types[tensor["dtype"]]
            file.seek(begin + tensor["data_offsets"][0])
            count = math.prod(tensor["shape"])
            array = np.fromfile(file, "<u2" if stored == "bfloat16" else stored, count)
            if len(array) != count:  # the file became shorter in the meantime
                raise _not_whole(path, "safetensors", f"{name!r} ends early")
            array = array.view(ml_dtypes.bfloat16) if stored == "bfloat16" else array
            arrays[name] = array.reshape(tensor["shape"])
    return arrays, metadata


def _safetensors_header(file, size, path):
    """Returns `(start of the values, {name: tensor entry}, metadata)`, checked with the size."""
    length = int.from_bytes(file.read(8), "little")
    begin = 8 + length
    if size < 8 or begin > size or length > MOST_HEADER:
        raise _not_whole(path, "safetensors", f"{size:,} bytes with a header of {length:,}")
    where = f"{path}, header"
    try:
        text = file.read(length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_whole(path, "safetensors", "a header that is not UTF-8") from error
    tensors = parse_json(text, where, dict)
    metadata = tensors.pop("__metadata__", {})
    check_shape(metadata, {str: str}, f"{where}, `__metadata__`")
    check_shape(tensors, {str: TENSOR}, where)
    end = 0
    offsets = {name: tensor["data_offsets"] for name, tensor in tensors.items()}
    for name in sorted(tensors, key=lambda name: offsets[name]):
        tensor = tensors[name]
        width = np.dtype(NUMBERS.get(tensor["dtype"], "V").replace("bfloat16", "<u2")).itemsize
        wanted = end + math.prod(tensor["shape"]) * width
        known = tensor["dtype"] in NUMBERS
        if (
            len(offsets[name]) != 2
            or offsets[name][0] != end
            or known
            and offsets[name][1] != wanted
        ):
            raise _not_whole(
                path,
                "safetensors",
                f"{name!r:.80} of type {tensor['dtype']:.20}, shape {tensor['shape']!s:.60} at "
                f"{offsets[name]!s:.60}, where the one before it ends at {end}",
            )
        end = offsets[name][1]
    if begin + end != size:
        raise _not_whole(path, "safetensors", f"{size:,} bytes instead of {begin + end:,}")
    return begin, tensors, metadata


def _not_whole(path, kind, received):
    return ValueError(f"{path} is not a whole {kind} file; {INTERRUPTED} Received: {received}")


def _read_torch(path, skip):
    """Reads the arrays of a file of `torch.save`; raises for code in it and never runs it."""
    path = check_file(path)
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path} needs torch to read it, under every backend: pip install torch. Or write "
            "model.safetensors with `transformers` instead."
        ) from error
    rule = f"{path} must hold tensors by name and nothing else: code in such a file is never run."
    _check_expansion(path, rule)
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and pickle raise many types
        refused = isinstance(error, pickle.UnpicklingError)
        reason = str(error).split("\n")[0][:200] if refused else "damaged content"
        raise ValueError(f"{rule} Received: {type(error).__name__}, {reason}") from error
    if not isinstance(tensors, dict):
        what = "nothing" if tensors is None else type(tensors).__name__
        raise ValueError(f"{rule} Received: {what}")
    arrays, left = {}, 4 * path.stat().st_size  # a tensor may have several names
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            what = "nothing" if tensor is None else type(tensor).__name__
            raise ValueError(f"{rule} Received: {what} as {name!r:.80}")
        if skip is not None and skip(name):
            continue
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not plain or not tensor.is_floating_point():
            raise ValueError(
                f"{path}: {name!r:.80} must be of floating type. Received: {tensor.dtype}, "
                f"{tensor.layout}, on {tensor.device.type}"
            )
        left -= tensor.numel() * tensor.element_size()
        if left < 0:  # one stored number expands to many
            raise ValueError(
                f"{rule} Received: {name!r:.80} of shape {tuple(tensor.shape)}, more than the "
                "file holds"
            )
        tensor = tensor.detach()
        arrays[name] = (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()
    return arrays


def _check_expansion(path, rule):
    """Raises if a ZIP archive expands to more than 50 times its size."""
    try:
        if not zipfile.is_zipfile(path):
            return  # a file of torch before 1.6
        with zipfile.ZipFile(path) as archive:
            whole = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise ValueError(f"{rule} Received: a damaged archive, {error}") from error
    if whole > max(EXPANSION_FROM, MOST_EXPANSION * path.stat().st_size):
        raise ValueError(f"{rule} Received: an archive that expands to {whole:,} bytes")


def _is_bfloat16(item):
    """Whether an array of an HDF5 file is Keras' bfloat16, written as two raw bytes."""
    return item.dtype == np.dtype("V2") and item.attrs.get("dtype") == "bfloat16"


def _read_hdf5(path, skip):
    import ml_dtypes

    arrays = {}
    with open_hdf5(path) as file:
        for name, item in hdf5_arrays(file, path).items():
            if skip is not None and skip(name):
                continue
            if item.dtype.kind != "f" and not _is_bfloat16(item):
                raise ValueError(
                    f"{path}: {name!r:.80} must be of floating type. Received: {item.dtype}"
                )
            try:
                arrays[name] = item[...]
                if _is_bfloat16(item):
                    arrays[name] = arrays[name].view(ml_dtypes.bfloat16)
            except (OSError, RuntimeError, ValueError) as error:  # damaged compression
                raise _not_whole(path, "HDF5", f"{name!r:.80}, {error}") from error
    return arrays


def open_hdf5(path, content=None):
    """Opens an HDF5 file for reading.

    Args:
        path: The file.
        content: A file object with its bytes if it is inside another file; `path` is for errors.

    Raises:
        ValueError: If it is not a regular file, or incomplete.
    """
    import h5py

    if content is None:
        content = check_file(path)
    try:
        return h5py.File(content, "r")
    except Exception as error:
        raise _not_whole(path, "HDF5", _of_hdf5(error)) from error


def hdf5_arrays(file, path):
    """Returns the arrays of an open HDF5 file by their paths in it, not yet read.

    Raises:
        ValueError: If an array is damaged, larger than the file, stored in another file, or not of
            numbers.
    """
    import h5py

    arrays, seen, expanded = {}, set(), 0
    size = file.id.get_filesize()

    def refuse(rule, received):
        raise _Refused(f"{path}: {rule}. Received: {received}")

    def visit(group, before, level):
        nonlocal expanded
        if level > MOST_LEVELS:
            refuse(f"groups must lie at most {MOST_LEVELS} deep", f"{before!r:.80}")
        for name in group:
            inner = f"{before}{name}"
            link = group.get(name, getlink=True)
            if type(link) is not h5py.HardLink:
                refuse("an array must not be a link to another", f"{inner!r:.80}")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                refuse("every array must have one name", f"{inner!r:.80}, which has two")
            seen.add(address)
            if isinstance(item, h5py.Group):
                visit(item, f"{inner}/", level + 1)
                continue
            if not isinstance(item, h5py.Dataset) or item.shape is None:
                refuse("the file must hold arrays", f"{inner!r:.80}, which is none")
            if item.external or item.is_virtual:
                refuse("arrays must be stored in the file itself", f"{inner!r:.80}")
            if item.dtype.kind not in "fiub" and not _is_bfloat16(item):
                refuse(f"{inner!r:.80} must hold numbers", item.dtype)
            bytes_, stored = item.size * item.dtype.itemsize, item.id.get_storage_size()
            filters = item.id.get_create_plist().get_nfilters()
            expanded += bytes_ if filters else 0
            fits = stored >= bytes_ if item.chunks else stored == bytes_
            if stored > size or not (fits or filters):
                refuse(
                    f"{inner!r:.80} is not whole; {INTERRUPTED[:-1]}",
                    f"{stored:,} bytes for shape {item.shape}, type {item.dtype}",
                )
            if expanded > max(EXPANSION_FROM, MOST_EXPANSION * size):
                refuse(
                    f"the file must not expand to more than {MOST_EXPANSION} times its size",
                    f"{inner!r:.80} of shape {item.shape}",
                )
            arrays[inner] = item

    try:
        visit(file, "", 0)
    except _Refused as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # HDF5 raises many types for a damaged file
        raise _not_whole(path, "HDF5", _of_hdf5(error)) from error
    return arrays


def text_attribute(file, name):
    """Reads a text attribute of fixed length from an open HDF5 file; `None` if it is missing.

    Text of variable length is in a heap: reading a damaged heap can take HDF5 forever.

    Raises:
        ValueError: If the attribute is of another type, or not UTF-8.
    """
    import h5py

    if name not in file.attrs:
        return None
    kind = h5py.h5a.open(file.id, name.encode()).dtype
    if kind.kind != "S":
        raise ValueError(f"an attribute of type {kind}")
    return file.attrs[name].decode("utf-8")


def keras_shapes(arrays, path):
    """Returns the shapes of a Keras model's arrays, by their paths.

    Scalars may be of any type: optimizers count their steps.

    Args:
        arrays: A dict from `hdf5_arrays`.
        path: The file, for errors.

    Raises:
        ValueError: If an array is neither of floats, nor quantized, nor the state of a seed.
    """
    for name, array in arrays.items():
        floats = array.dtype.kind == "f" or _is_bfloat16(array)
        if array.shape and not floats and array.dtype not in NOT_FLOATS:
            raise ValueError(
                f"{path}: weights must be floats, or int8 where they are quantized. "
                f"Received: {name!r:.80} of {array.dtype}"
            )
    return {name: array.shape for name, array in arrays.items()}


class _Refused(ValueError):
    """An error of this module, distinct from those of HDF5."""


def _of_hdf5(error):
    """Returns the message of an HDF5 error; for other errors "damaged content"."""
    known = isinstance(error, (OSError, RuntimeError, KeyError)) and error.args
    return str(error.args[0])[:200] if known else "damaged content"


def assign(variables, weights, path):
    """Sets variables after checking all of them: on an error nothing changes."""
    missing = [name for name in variables if name not in weights]
    extra = [name for name in weights if name not in variables]
    if missing or extra:
        raise ValueError(
            f"{path} does not hold the weights of this model. "
            f"Received: missing {missing[:3]}, unknown {extra[:3]}"
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != weights[name].shape:
            raise ValueError(
                f"{path} does not hold the weights of this model. Received: {name} with shape "
                f"{weights[name].shape} instead of {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(weights[name])
