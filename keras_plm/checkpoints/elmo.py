"""Conversion of released ELMo files, `options.json` and `weights.hdf5`, and back."""

import hashlib
import io
import json
import os
from pathlib import Path

import keras
import numpy as np

from keras_plm.checkpoints.settings import check_settings_of, check_weights_of
from keras_plm.files.arrays import open_hdf5, read_weights, text_attribute
from keras_plm.files.json_files import Whole, check_shape, parse_json
from keras_plm.files.locks import one_writer
from keras_plm.files.opening import as_text, read_bytes
from keras_plm.files.writing import read_whole, replacing, write_text
from keras_plm.models import ELMo
from keras_plm.tokenizers.characters import WIDTH
from keras_plm.transfer.lora import ordinary

CHARACTERS = 262  # with 0, for padding, without a row in the file
# Attributes of the weights' file, because a process may end between two files: its options, and the
# checksum of the replaced options.
OPTIONS, REPLACED = "options", "replaced_options_sha256"
MOST_OPTIONS = 1 << 20
SHAPE = {  # of `options.json`
    "lstm": {
        "dim": Whole(1),
        "projection_dim": Whole(1),
        "n_layers": Whole(1),
        "cell_clip?": (float, None),
        "proj_clip?": (float, None),
        "use_skip_connections?": bool,
    },
    "char_cnn": {
        "filters": [[Whole(1)]],
        "embedding": {"dim": Whole(1)},
        "n_highway?": (Whole(), None),
        "activation": str,
        "n_characters": object,
        "max_characters_per_token": object,
    },
}


def load_elmo(
    options: str | os.PathLike,
    weights: str | os.PathLike,
    carried_rows: int = 0,
    dropout: float = 0.1,
    dtype: str | keras.DTypePolicy | None = None,
) -> ELMo:
    """Loads an ELMo from the two files of allenai/bilm-tf and AllenNLP.

    Its tokenizer is `tokenizers.Characters()`. The original's vectors depend on earlier sentences.
    For equal vectors use `carried_rows`, and call `encoder(tokenizer.pack(sentences))` with the
    sentences in the same order; `encoder.reset_states()` restarts.

    Args:
        options: Path of the options, a local JSON file.
        weights: Path of the weights, a local HDF5 file. A file of `save_elmo` also holds the
            options, in case the process ended between the two files.
        carried_rows, dropout, dtype: As in `ELMo`.

    Returns:
        An `ELMo`.

    Raises:
        ValueError: If a file is missing or damaged, `ELMo` lacks an option, or a weight is missing,
            unknown or of another shape.

    >>> import tempfile
    >>> encoder = ELMo(6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options, weights = f"{folder}/options.json", f"{folder}/weights.hdf5"
    ...     save_elmo(options, weights, encoder)
    ...     loaded = load_elmo(options, weights)
    >>> loaded.units, loaded.projection_dim
    (6, 4)
    """
    options, weights = Path(options), Path(weights)
    arguments, arrays = read_whole(
        weights.parent,
        [weights.absolute(), options.absolute()],
        lambda: _read(options, weights),
    )
    check_weights_of("ELMo", arguments, arrays, options)
    try:
        encoder = ELMo(**arguments, carried_rows=carried_rows, dropout=dropout, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{options}: {error}") from error
    places = {key: parts for key, parts in _places(encoder)}
    missing, unknown = set(places) - set(arrays), set(arrays) - set(places)
    if missing or unknown:
        what = f"no {min(missing)!r}" if missing else f"an unknown {min(unknown)!r}"
        raise ValueError(f"{weights} must hold the weights of {options}. Received: {what}")
    for key, (_, shape) in places.items():
        if arrays[key].shape != shape:
            raise ValueError(
                f"{weights} must hold the weights of {options}. Received: {key!r} of shape "
                f"{arrays[key].shape} instead of {shape}"
            )
    for key, (variables, _) in places.items():
        ends = np.cumsum([variable.shape[0] for variable in variables])[:-1]
        parts = np.split(arrays[key], ends) if len(variables) > 1 else [arrays[key]]
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
    return encoder


def save_elmo(options: str | os.PathLike, weights: str | os.PathLike, encoder: ELMo) -> None:
    """Writes an ELMo as the two files of allenai/bilm-tf and AllenNLP.

    Args:
        options, weights: Paths of the two files, each written atomically. The file of weights also
            holds the options.
        encoder: The `ELMo`.

    Raises:
        ValueError: If `encoder` is not an `ELMo`, a path is a folder, or both paths are equal.

    >>> import tempfile
    >>> encoder = ELMo(6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options, weights = f"{folder}/options.json", f"{folder}/weights.hdf5"
    ...     save_elmo(options, weights, encoder)
    ...     load_elmo(options, weights).hidden_dim
    8
    """
    if not isinstance(encoder, ELMo):
        raise ValueError(f"`encoder` must be an ELMo. Received: {type(encoder).__name__}")
    encoder = ordinary(encoder)
    described = {
        "lstm": {
            "cell_clip": encoder.cell_clip,
            "use_skip_connections": encoder.use_skip_connections,
            "n_layers": encoder.num_layers,
            "proj_clip": encoder.projection_clip,
            "projection_dim": encoder.projection_dim,
            "dim": encoder.units,
        },
        "char_cnn": {
            "embedding": {"dim": encoder.character_dim},
            "filters": encoder.filters,
            "n_highway": encoder.num_highway,
            "n_characters": CHARACTERS,
            "max_characters_per_token": WIDTH,
            "activation": encoder.activation,
        },
    }
    options, weights = Path(options), Path(weights)
    folder = next((path for path in (options, weights) if path.is_dir()), None)
    if folder or options.resolve() == weights.resolve():
        what = f"the folder {str(folder)!r}" if folder else f"{str(options)!r} for both"
        raise ValueError(f"`options` and `weights` must be paths of two files. Received: {what}")
    text = json.dumps(described) + "\n"
    with one_writer(weights, wait=True):
        _write(options, weights, text, encoder)


def _write(options, weights, text, encoder):
    import h5py

    before = hashlib.sha256(read_bytes(options)).hexdigest() if options.is_file() else ""
    content = io.BytesIO()  # HDF5 can crash on a full disk
    with h5py.File(content, "w") as file:
        for name, value in ((OPTIONS, text), (REPLACED, before)):
            file.attrs[name] = np.bytes_(value.encode())
        for key, (variables, shape) in _places(encoder):
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            file[key] = np.concatenate(arrays).reshape(shape).astype("float32")
    with replacing(weights, needed=len(content.getbuffer())) as temporary:
        temporary.write_bytes(content.getbuffer())
    write_text(options, text)


def _places(encoder):
    """Yields the file's names, each with our variables, to concatenate, and the file's shape."""

    def place(key, *variables, shape=None):
        if shape is None:
            shape = (sum(v.shape[0] for v in variables), *variables[0].shape[1:])
        return key, (variables, tuple(shape))

    words = encoder.token_encoder
    yield place("char_embed", words.embeddings)
    for i, (kernel, bias) in enumerate(zip(words.kernels, words.biases, strict=True)):
        yield place(f"CNN/W_cnn_{i}", kernel, shape=(1, *kernel.shape))
        yield place(f"CNN/b_cnn_{i}", bias)
    for i, highway in enumerate(words.highways):
        for part, layer in highway.items():
            yield place(f"CNN_high_{i}/W_{part}", layer.kernel)
            yield place(f"CNN_high_{i}/b_{part}", layer.bias)
    yield place("CNN_proj/W_proj", words.projection.kernel)
    yield place("CNN_proj/b_proj", words.projection.bias)
    for direction, stack in enumerate((encoder.forward_lm, encoder.backward_lm)):
        for i, layer in enumerate(stack.layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            yield place(f"{cell}/W_0", layer.kernel, layer.recurrent_kernel)
            yield place(f"{cell}/B", layer.bias)
            yield place(f"{cell}/W_P_0", layer.projection)


def _read(options, weights):
    """Reads `(arguments, arrays)` from two files."""
    content = read_bytes(options, MOST_OPTIONS)
    arguments = _arguments(parse_json(as_text(content, options), options), options)
    if not weights.is_file():
        what = "a folder" if weights.is_dir() else "no file"
        raise ValueError(
            f"The weights must be an HDF5 file on this machine. Received: {str(weights)!r}, {what}"
        )
    arrays = read_weights(weights, format="hdf5")
    inner, replaced = _attributes(weights)
    if inner and replaced == hashlib.sha256(content).hexdigest():
        where = f"{weights}, attribute {OPTIONS!r}"
        arguments = _arguments(parse_json(inner, where), where)
    return arguments, arrays


def _arguments(options, where):
    """Converts options to arguments of `ELMo`."""
    check_shape(options, SHAPE, where)
    lstm, characters = options["lstm"], options["char_cnn"]
    for name, value in (("n_characters", CHARACTERS), ("max_characters_per_token", WIDTH)):
        if characters[name] != value:
            raise ValueError(
                f"{where}: `{name}` must be {value}, as in every released ELMo; after training "
                "with 261 characters, bilm-tf requires 262 in the options for use. "
                f"Received: {characters[name]}"
            )
    arguments = {
        "units": lstm["dim"],
        "projection_dim": lstm["projection_dim"],
        "num_layers": lstm["n_layers"],
        "cell_clip": lstm.get("cell_clip"),
        "projection_clip": lstm.get("proj_clip"),
        "use_skip_connections": lstm.get("use_skip_connections", False),
        "filters": characters["filters"],
        "character_dim": characters["embedding"]["dim"],
        "num_highway": characters.get("n_highway") or 0,
        "activation": characters["activation"],
    }
    check_settings_of("ELMo", arguments, where)
    return arguments


def _attributes(path):
    """Reads the attributes of `save_elmo` in a file of weights: options, checksum of the replaced.

    Both are `None` in files of other programs.
    """
    found = []
    with open_hdf5(path) as file:
        for name in (OPTIONS, REPLACED):
            try:
                value = text_attribute(file, name)
            except Exception as error:  # HDF5 raises many types
                received = str(error) if type(error) is ValueError else "a damaged file"
                raise ValueError(
                    f"{path}: the attribute {name!r} must be text of a fixed length; "
                    f"`save_elmo` writes it. Received: {received}"
                ) from error
            found.append(value)
    return found
