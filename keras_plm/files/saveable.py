"""Saving of models: in formats that load, and quantized as they are."""

import os

import numpy as np

from keras_plm.files.private_apis import every_layer

QUANTIZED = "quantization"  # in a file of weights: the mode of each layer, if any


class Saveable:
    """Lets a Keras model's file hold quantized layers, and refuses formats that do not load.

    Models are rebuilt of their constructor's arguments, which know nothing of `quantize("int8")`:
    the modes of all layers stand in the file of weights, and are restored before the weights are.
    """

    def save(self, filepath, *args, **kwargs):
        """As `keras.Model.save`, as `.keras`.

        Raises:
            ValueError: If the file's name ends in `.h5` or `.hdf5`, from which no model loads.
        """
        if os.fspath(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "A model must be saved as `.keras`: the format `.h5` does not load it again. "
                f"Weights alone go to `save_weights('name.weights.h5')`. Received: {filepath!r}"
            )
        return super().save(filepath, *args, **kwargs)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        modes = [getattr(layer, "quantization_mode", None) or "" for layer in _leaves(self)]
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
            for layer, mode in zip(_leaves(self), modes, strict=True):
                if mode and not layer.quantization_mode:
                    layer.quantize(mode, type_check=False)
            if hasattr(self, "_post_quantize"):
                self._post_quantize("int8")  # on torch, forgets the weights that went
            store = {name: store[name] for name in store.keys() if name != QUANTIZED}
        super().load_own_variables(store)


def _leaves(model):
    """The layers that hold no others, in an order that a copy of the model has too."""
    return [x for x in every_layer(model) if len(every_layer(x)) == 1]
