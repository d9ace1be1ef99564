"""Conversion of released ELMo files, `options.json` and `weights.hdf5`, and back."""

import json
import os
from pathlib import Path

import keras
import numpy as np

from keras_plm.files.writing import replacing, write_text
from keras_plm.models import ELMo
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.characters import WIDTH
from keras_plm.transfer.lora import ordinary

CHARACTERS = 262  # with 0, which has no row in the file


def load_elmo(options, weights, carried_rows=0, dropout=0.1, dtype=None):
    """An ELMo from the two files that allenai/bilm-tf and AllenNLP read.

    Its tokenizer is `tokenizers.Characters()`. The originals' vectors depend on what was read
    before; for the same ones give `carried_rows`, and the sentences in the same order to the
    encoder itself, `encoder(tokenizer.pack(sentences))`; `encoder.reset_states()` forgets.

    Args:
        options: Path of the options, a JSON file on this machine.
        weights: Path of the weights, an HDF5 file on this machine.
        carried_rows, dropout, dtype: As in `ELMo`.

    Returns:
        An `ELMo`.

    Raises:
        ValueError: If a file is missing or damaged, an option is one that `ELMo` has not, or a
            weight is missing, unknown or of another shape, naming it.
    """
    sizes = _read_options(options)
    encoder = ELMo(**sizes, carried_rows=carried_rows, dropout=dropout, dtype=dtype)
    arrays = _read_weights(weights)
    places = {key: parts for key, parts in _places(encoder)}
    missing, unknown = set(places) - set(arrays), set(arrays) - set(places)
    if missing or unknown:
        what = f"no {min(missing)!r}" if missing else f"{min(unknown)!r}, which is not of it"
        raise ValueError(f"{weights} must hold the weights of {options}. Received: {what}")
    for key, (_, shape) in places.items():
        if arrays[key].shape != shape:
            raise ValueError(
                f"{weights} must hold the weights of {options}. Received: {key!r} of shape "
                f"{arrays[key].shape} instead of {shape}"
            )
        if arrays[key].dtype.kind != "f":
            raise ValueError(
                f"{weights}: weights must be floats. Received: {arrays[key].dtype} in {key!r}"
            )
        with np.errstate(over="ignore"):
            arrays[key] = arrays[key].astype("float32")
        if not np.isfinite(arrays[key]).all():
            raise ValueError(
                f"{weights}: weights must be finite in float32. Received: another in {key!r}"
            )
    for key, (variables, _) in places.items():
        ends = np.cumsum([variable.shape[0] for variable in variables])[:-1]
        parts = np.split(arrays[key], ends) if len(variables) > 1 else [arrays[key]]
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
    return encoder


def save_elmo(options, weights, encoder):
    """Writes an ELMo as the two files that allenai/bilm-tf and AllenNLP read.

    Args:
        options, weights: Paths of the two files, each written under a temporary name first.
        encoder: The `ELMo`.

    Raises:
        ValueError: If `encoder` is none, or a path is a folder or that of both files.
    """
    import h5py

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
        raise ValueError(f"`options` and `weights` are paths of two files. Received: {what}")
    with replacing(weights) as temporary, h5py.File(temporary, "w") as file:
        for key, (variables, shape) in _places(encoder):
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            file[key] = np.concatenate(arrays).reshape(shape).astype("float32")
    write_text(options, json.dumps(described) + "\n")


def _places(encoder):
    """The file's names, each with our variables, one above the other, and the file's shape."""

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


def _read_options(path):
    """The arguments of `ELMo` that an options file gives."""
    with open_text(path) as file:
        text = file.read()
    try:
        options = json.loads(text)
        lstm, characters = options["lstm"], options["char_cnn"]
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
        for name, value in (("n_characters", CHARACTERS), ("max_characters_per_token", WIDTH)):
            if characters[name] != value:
                raise ValueError(
                    f"{path}: `{name}` must be {value}, as in every released ELMo; bilm-tf trains "
                    "with 261 characters and asks to write 262 before the weights are used. "
                    f"Received: {characters[name]!r}"
                )
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON. Received: {error}") from error
    except KeyError as error:
        raise ValueError(
            f"{path} must hold the options of an ELMo, `lstm` and `char_cnn`. Received: no {error}"
        ) from error
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold the options of an ELMo, objects `lstm` and `char_cnn`. "
            f"Received: {text[:60].strip()!r}"
        ) from error

    def check(name, fits, rule):
        if not fits:
            raise ValueError(f"{path}: {rule}. Received: {arguments[name]!r} as `{name}`")

    for name in ("units", "projection_dim", "num_layers", "character_dim", "num_highway"):
        check(name, type(arguments[name]) is int, "sizes must be whole numbers")
    pairs = arguments["filters"]
    whole = isinstance(pairs, list) and all(
        isinstance(pair, list) and [type(size) for size in pair] == [int, int] for pair in pairs
    )
    check("filters", whole, "filters must be pairs of whole numbers, width and number")
    for name in ("cell_clip", "projection_clip"):
        value = arguments[name]
        fits = value is None or type(value) in (int, float)
        check(name, fits, "a clip must be a number, or null for none")
    skip = arguments["use_skip_connections"]
    check("use_skip_connections", isinstance(skip, bool), "connections are true or false")
    return arguments


def _read_weights(path):
    """All arrays of an HDF5 file, by their paths in it."""
    import h5py

    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "no file"
        raise ValueError(
            f"The weights are an HDF5 file on this machine. Received: {os.fspath(path)!r}, {what}"
        )
    arrays = {}
    try:
        with h5py.File(path, "r") as file:
            file.visititems(
                lambda name, item: (
                    arrays.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None
                )
            )
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"{path} is no whole HDF5 file; was its copy interrupted? Received: {error}"
        ) from error
    return arrays
