"""Saving of models, also quantized, in formats that load, and checks of their files."""

import io
import os
import zipfile
import zlib
from typing import Any

import keras
import numpy as np

from keras_plm.files.arguments import explains
from keras_plm.files.arrays import hdf5_arrays, keras_shapes, open_hdf5
from keras_plm.files.json_files import parse_json
from keras_plm.files.opening import EXPANSION_FROM, MOST_EXPANSION, check_file
from keras_plm.files.private_apis import every_layer

QUANTIZED = "quantization"  # in a file of weights: the mode of each layer, if any
# In the config of `compile`: numbers of the layers that do not train; in older files, of `leaves`.
FROZEN, FROZEN_LEAVES = "frozen_layers", "frozen"


class Saveable:
    """Saves quantized layers of a Keras model, and raises for formats that do not load.

    Models are rebuilt from the arguments of their constructor. These do not include
    `quantize("int8")`: the file of weights holds the modes of all layers, restored before the
    weights. The configuration of a compiled model holds its frozen layers, restored before the
    optimizer. A model that is not compiled keeps only its own `trainable`.

    A functional model reads only its own inputs of a dict. Keras would assign the arrays of a dict
    with further keys by position, to wrong inputs.
    """

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        if isinstance(inputs, dict) and isinstance(self.input, dict):
            if inputs.keys() > self.input.keys():
                inputs = {name: inputs[name] for name in self.input}
                mask = {name: mask[name] for name in self.input} if isinstance(mask, dict) else None
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def save(self, filepath, *args, **kwargs):
        """Saves the model as `keras.Model.save` does, as `.keras`.

        Raises:
            ValueError: If the file's name ends in `.h5` or `.hdf5`: no model loads from them.
        """
        if os.fspath(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "A model must be saved as `.keras`: the format `.h5` does not load it. "
                f"Save only weights by `save_weights('name.weights.h5')`. Received: {filepath!r}"
            )
        return super().save(filepath, *args, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        frozen = [i for i, layer in enumerate(every_layer(self)) if not layer.trainable]
        return {**config, FROZEN: frozen} if config and frozen else config

    def compile_from_config(self, config):
        super().compile_from_config(self.freeze_again(config))

    def freeze_again(self, config: dict[str, Any]) -> dict[str, Any]:
        """Freezes the layers in the configuration of `compile`; returns the other settings."""
        for key, layers in ((FROZEN, every_layer(self)), (FROZEN_LEAVES, leaves(self))):
            for i in config.get(key, ()):
                layers[i].trainable = False
        return {k: v for k, v in config.items() if k not in (FROZEN, FROZEN_LEAVES)}

    def save_own_variables(self, store):
        super().save_own_variables(store)
        modes = [getattr(layer, "quantization_mode", None) or "" for layer in leaves(self)]
        unknown = sorted(set(modes) - {"", "int8"})
        if unknown:
            raise ValueError(
                "Layers quantized to 'int8' can be saved; save the model before it is quantized "
                f"to another mode. Received: {', '.join(unknown)}"
            )
        if any(modes):
            store[QUANTIZED] = np.frombuffer(",".join(modes).encode(), "uint8")

    def load_own_variables(self, store):
        if QUANTIZED in store.keys():
            modes = np.asarray(store[QUANTIZED]).tobytes().decode().split(",")
            for layer, mode in zip(leaves(self), modes, strict=True):
                if mode and not layer.quantization_mode:
                    layer.quantize(mode, type_check=False)
            if hasattr(self, "_post_quantize"):
                self._post_quantize("int8")  # on torch, drops the replaced weights
            store = {name: store[name] for name in store.keys() if name != QUANTIZED}
        super().load_own_variables(store)


def check_model_file(path):
    """Checks that a file of Keras is complete: a model, `.keras`, or weights, `.h5`.

    It builds and runs nothing in the file.

    Args:
        path: The file.

    Returns:
        `(config, shapes)`: the configuration of a model, `None` for weights; and the shapes of all
        arrays by their paths.

    Raises:
        ValueError: If it is not a regular file, is damaged, or holds arrays of whole numbers.
    """
    path = check_file(path)
    if path.suffix == ".keras":
        return _check_archive(path)
    if path.suffix not in (".h5", ".hdf5"):
        return None, {}
    with open_hdf5(path) as file:
        return None, keras_shapes(hdf5_arrays(file, path), path)


def _check_archive(path):
    try:
        with zipfile.ZipFile(path) as archive:
            whole = sum(member.file_size for member in archive.infolist())
            if whole > max(EXPANSION_FROM, MOST_EXPANSION * path.stat().st_size):
                raise _Damaged(f"an archive that expands to {whole:,} bytes")
            for name in (CONFIG, ARRAYS):
                if name not in archive.namelist():
                    raise _Damaged(f"no {name} in it")
            described, content = archive.read(CONFIG), io.BytesIO(archive.read(ARRAYS))
            text = described.decode("utf-8")
    except OSError as error:
        raise ValueError(f"{path} could not be read. Received: {error.strerror}") from error
    except (_Damaged, zipfile.BadZipFile, zlib.error, UnicodeDecodeError) as error:
        raise _no_model(path, error) from error
    except (ValueError, EOFError, NotImplementedError, RuntimeError, OverflowError) as error:
        raise _no_model(path, "a damaged archive") from error
    shape = {"class_name": str, "config": dict}
    config = parse_json(text, f"{path}, {CONFIG}", shape, nan=True)
    with open_hdf5(f"{path}, {ARRAYS}", content) as file:
        arrays = hdf5_arrays(file, f"{path}, {ARRAYS}")
        return config, keras_shapes(arrays, f"{path}, {ARRAYS}")


CONFIG, ARRAYS = "config.json", "model.weights.h5"  # in a `.keras` file


class _Damaged(ValueError):
    """An error of this module, distinct from those of ZIP."""


def _no_model(path, received):
    return ValueError(f"{path} must be a whole file that `model.save` wrote. Received: {received}")


def described_error(error):
    """Returns the end of a message for an error that Keras raises on damaged content.

    It quotes errors in this library's form; others are useless without the code that raises them.
    """
    text = " ".join(str(error).split())
    if explains(error) and len(text) < 600:
        return text
    return f"Received: content that Keras cannot read ({type(error).__name__})"


def leaves(model):
    """Returns the layers without sublayers, in an order that a copy of the model shares."""
    return [x for x in every_layer(model) if len(every_layer(x)) == 1]


def saved_policy(model):
    """Returns the precision of a model for its configuration: a name, or a dict for a map."""
    policy = model.dtype_policy
    is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
    return keras.dtype_policies.serialize(policy) if is_map else policy.name
