"""Calls of readers by heads, with one text or two.

Shapes: B examples, W vectors of a row, T of its first text, S of its second, D width.
"""

import keras
from keras import ops

from keras_plm.data.pair_positions import POSITION_INPUTS

# Readers for each kind of heads, for error messages.
READ_BY = {
    "texts": "texts are classified with reader='bilstm' or 'bcn', pairs of texts with 'esim'",
    "words": "words are tagged by reader='bilstm'",
    "answers": "answers are found by reader='bidaf' or 'bilstm'",
}


def read(reader, x, mask, inputs, appended=None):
    """Calls a reader on the vectors of rows.

    Args:
        reader: The layer, see `keras_plm.heads.readers`.
        x: (B, W, D).
        mask: (B, W), True at real vectors.
        inputs: Inputs of a task network: `pair_positions.POSITION_INPUTS`, if the reader reads two
            texts.
        appended: (B, W, E) features to append to the reader's output at each position. A reader of
            two texts appends them to the output of its first layer.
    """
    names = texts_of(reader)
    if names is None:
        read = reader(x, padding_mask=mask)
        return read if appended is None else ops.concatenate([read, appended], axis=-1)
    texts = {}
    for name, place in zip(names, POSITION_INPUTS, strict=True):
        positions = inputs[place]
        texts[name] = Taken(name=f"{name}_taken")(x, positions)
        if appended is not None:
            texts[f"{name}_after"] = Taken(name=f"{name}_after_taken")(appended, positions)
        texts[f"{name}_mask"] = positions >= 0
    return reader(**texts)


def texts_of(reader):
    """Returns the two text arguments of a reader, layer or class; `None` for one text."""
    return getattr(reader, "texts", None)


def check_serves(reader, head):
    """Raises unless a reader, layer or class, fits a head, class or model."""
    kind = reader if isinstance(reader, type) else type(reader)
    if head.kind in getattr(kind, "serves", [head.kind]):
        return
    raise ValueError(
        f"{kind.__name__} reads {kind.reads}; {READ_BY[head.kind]}. "
        f"Received: reader={kind.__name__.lower()!r}, head={head.__name__}"
    )


@keras.saving.register_keras_serializable("keras_plm")
class Taken(keras.layers.Layer):
    """Vectors at some positions of each row.

    Call arguments:
        inputs: (B, W, D).
        positions: (B, T), -1 at padding.

    Returns:
        (B, T, D); undefined at padding.
    """

    def call(self, inputs, positions):
        return ops.take_along_axis(inputs, ops.maximum(positions, 0)[..., None], axis=1)

    def compute_output_spec(self, inputs, positions):
        return keras.KerasTensor((*positions.shape, inputs.shape[2]), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable("keras_plm")
class Spread(keras.layers.Layer):
    """Scores of a text, moved to the text's positions in its row.

    Call arguments:
        inputs: (B, E, S) scores.
        positions: (B, S) positions in the row, -1 at padding.
        padding_mask: (B, W) of the row.

    Returns:
        (B, E, W) float32, 0 at other positions.
    """

    def call(self, inputs, positions, padding_mask):
        places = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
        here = ops.cast(ops.cast(positions, "int32")[..., None] == places, "float32")  # (B, S, W)
        return ops.matmul(ops.cast(inputs, "float32"), here)

    def compute_output_spec(self, inputs, positions, padding_mask):
        return keras.KerasTensor((*inputs.shape[:2], padding_mask.shape[1]), dtype="float32")
