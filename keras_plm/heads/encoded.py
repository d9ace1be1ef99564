"""Inputs, layers and features of an encoder inside a head.

Shapes: B examples, P rows of an example, T tokens, W words, n layers read, D width.
"""

from typing import Any

import keras
from keras import ops

from keras_plm.files.arguments import check_one_of
from keras_plm.files.sequences import Tensor
from keras_plm.layers import POOLINGS, Pooling
from keras_plm.models.encoder import Encoder, check_encoder


@keras.saving.register_keras_serializable("keras_plm")
class Frozen(keras.layers.Layer):
    """A frozen encoder: a layer without training and without dropout.

    `trainable = False` is not enough. Keras passes the outer model's `training` to an inner model,
    so its dropout would remain active.

    Args:
        encoder: An encoder.

    Call arguments:
        inputs: The encoder's inputs.

    Returns:
        The encoder's outputs, without gradient.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> layer = Frozen(WordVectors.from_vectors(["fine", "film"], np.eye(2)))
    >>> outputs = layer(layer.encoder.tokenizer().pack(["fine film"]))
    >>> tuple(outputs["sequence"].shape), len(layer.trainable_weights)
    ((1, 2, 2), 0)
    """

    def __init__(self, encoder: Encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.encoder.trainable = False

    def call(self, inputs: dict[str, Tensor]) -> dict[str, Any]:
        outputs = self.encoder(inputs, training=False)
        return keras.tree.map_structure(ops.stop_gradient, outputs)

    def compute_output_spec(self, inputs):
        return self.encoder.compute_output_spec(inputs)

    def get_config(self):
        config = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": config}

    @classmethod
    def from_config(cls, config):
        encoder = keras.saving.deserialize_keras_object(config.pop("encoder"))
        return cls(encoder, **config)


@keras.saving.register_keras_serializable("keras_plm")
class AsRows(keras.layers.Layer):
    """Windows of documents as separate rows: (B, P, T, ...) to (B P, T, ...)."""

    def call(self, inputs):
        return ops.reshape(inputs, (-1, *ops.shape(inputs)[2:]))


@keras.saving.register_keras_serializable("keras_plm")
class FirstTokens(keras.layers.Layer):
    """Vectors of each word's first token, of one or more layers.

    Call arguments:
        layers: A list of n tensors (B, T, D), or (B P, T, D) of the windows of documents.
        word_positions: (B, W), the first token of each word, -1 at padding. In windows it counts
            all tokens of a document.

    Returns:
        (B, W, n, D).
    """

    def call(self, layers, word_positions):
        stacked = ops.stack(layers, axis=2) if len(layers) > 1 else layers[0][:, :, None]
        stacked = ops.reshape(stacked, (ops.shape(word_positions)[0], -1, *stacked.shape[2:]))
        positions = ops.maximum(word_positions, 0)[..., None, None]
        return ops.take_along_axis(stacked, positions, axis=1)


def check_word_vectors(words):
    """Raises unless `words` is an encoder of one vector per word."""
    if not callable(getattr(words, "tokenizer", None)):
        raise ValueError(
            "`words` must be an encoder of one vector per word, a `WordVectors`: create a "
            "folder for `keras_plm.load` with the command `keras-plm word-vectors`. "
            f"Received: an object of type {type(words).__name__}"
        )


def check_stateless(encoder):
    """Raises if the outputs of `encoder` depend on earlier inputs."""
    rows = encoder.carried_rows
    if rows:
        raise ValueError(
            "Sorted or shuffled texts need an encoder that carries no states between texts: build "
            "it with carried_rows=0, or call it directly, on `tokenizer.pack(texts)`, in order. "
            f"Received: carried_rows={rows}"
        )


def check_first(pool, tokenizer):
    """Raises for `pool="cls"` with a tokenizer that puts no [CLS] before a text."""
    if pool == "cls" and not getattr(tokenizer, "has_cls", True):
        raise ValueError(
            "`pool='cls'` needs a tokenizer that puts [CLS] before a text: choose 'mean' or 'max'. "
            f"Received: {type(tokenizer).__name__}"
        )


def chosen_pool(pool, encoder, tokenizer, layers, frozen, joint=True):
    """Returns the pooling of texts: the requested one, or the default for the encoder.

    Args:
        pool: Requested pooling, or `None`.
        joint: Whether an output reads a single row; allows the encoder's own pooled output.

    Raises:
        ValueError: If the encoder or the tokenizer does not support the pooling.
    """
    check_encoder(encoder, tokenizer)
    own = "pooled" in encoder.output and layers is None and joint
    if pool is None:
        pool = "mean" if joint else "max"
        if joint and layers is None and not frozen:
            pool = "pooled" if own else "last" if encoder.causal else "mean"
    allowed = ("pooled", *POOLINGS) if own else POOLINGS
    check_one_of(pool, "pool", allowed)
    check_first(pool, tokenizer)
    return pool


class Encoded:
    """Symbolic tensors of a head's graph: the rows of examples before and after the encoder.

    Args:
        encoder: Any encoder.
        layers: `LayerChoice` of the layers to read; `None` for the last layer.
        frozen: If True, the encoder has no training and no dropout.
        rows: Number of rows P of an example; `None` for any number, as of documents.

    Attributes:
        inputs: Inputs of the head, (B, T, ...), or (B, P, T, ...) for several rows.
        texts: Inputs of the encoder, (P B, T, ...): the first rows of all examples come before the
            second ones. For any number of rows (B P, T, ...): the rows of an example are together.
        outputs: Outputs of the encoder.
        layers: List of the n selected layers, each (P B, T, D).
    """

    def __init__(self, encoder, layers=None, frozen=False, rows=1):
        self.rows = rows
        self.inputs, self.texts = dict(encoder.input), dict(encoder.input)
        if rows is None:
            as_rows = AsRows(name="as_rows")
            for name, x in encoder.input.items():
                self.inputs[name] = keras.Input((None, *x.shape[1:]), dtype=x.dtype, name=name)
                self.texts[name] = as_rows(self.inputs[name])
        elif rows > 1:
            for name, x in encoder.input.items():
                x = keras.Input((rows, *x.shape[1:]), dtype=x.dtype, name=name)
                self.inputs[name] = x
                self.texts[name] = ops.concatenate([x[:, i] for i in range(rows)])
        self.outputs = (Frozen(encoder, name="frozen") if frozen else encoder)(self.texts)
        every = self.outputs["layers"]
        self.layers = (
            every[-1:] if layers is None else [every[i] for i in layers.indices(len(every))]
        )
        if self.layers[1:] and layers.combine == "mean":
            self.layers = [keras.layers.Average(name="mean_of_layers")(self.layers)]

    def tokens(self):
        """Returns `(features, mask)` of the tokens of one row: (B, T, n, D) and (B, T)."""
        return ops.stack(self.layers, axis=2), self.texts["padding_mask"]

    def tokens_by_row(self):
        """Returns `(features, mask)` of the tokens of each row: (B, P, T, n, D) and (B, P, T)."""
        features = ops.split(ops.stack(self.layers, axis=2), self.rows, axis=0)
        return ops.stack(features, axis=1), self.inputs["padding_mask"]

    def words(self):
        """Returns `(features, mask)` of the words of all rows: (B, W, n, D) and (B, W).

        Adds the input `word_positions`, (B, W): the first token of each word, -1 at padding.
        """
        positions = keras.Input((None,), dtype="int32", name="word_positions")
        self.inputs["word_positions"] = positions
        layers = self.layers
        if self.rows is not None and self.rows > 1:  # (B, P T, D)
            layers = [ops.concatenate(ops.split(x, self.rows, axis=0), axis=1) for x in layers]
        return FirstTokens(name="first_tokens")(layers, positions), positions >= 0

    def pooled(self, pool):
        """Returns `(features, mask)` of rows, one vector per row: (B, P, n, D) and (B, P)."""
        if pool == "pooled":
            vectors = [self.outputs["pooled"]]
        else:
            pooling = Pooling(pool, name="pooling")
            mask = self.texts["padding_mask"]
            vectors = [pooling(x, padding_mask=mask) for x in self.layers]
        features = ops.stack(vectors, axis=1)  # (P B, n, D)
        features = ops.stack(ops.split(features, self.rows, axis=0), axis=1)
        return features, ops.ones_like(features[:, :, 0, 0], dtype="bool")
