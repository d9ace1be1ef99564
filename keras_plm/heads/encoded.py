"""What heads take of an encoder: it frozen, its words, its way to pool, its rows of several texts.

Shapes: B examples, P rows of an example, T tokens, W words, n layers read, D width.
"""

import keras
from keras import ops

from keras_plm.data.examples import check_first
from keras_plm.layers import POOLINGS
from keras_plm.models.encoder import check_encoder


@keras.saving.register_keras_serializable("keras_plm")
class Frozen(keras.layers.Layer):
    """An encoder that neither learns nor drops, whatever the model around it does.

    `trainable = False` alone is not enough: inside a functional model Keras passes the outer
    model's `training` on, and a frozen encoder's dropout would stay at work.

    Args:
        encoder: Any encoder.

    Call arguments:
        inputs: The encoder's inputs.

    Returns:
        The encoder's outputs, without gradient.
    """

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.encoder.trainable = False

    def call(self, inputs):
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
class FirstTokens(keras.layers.Layer):
    """Vectors of each word's first token, of one or more layers.

    Call arguments:
        layers: A list of n tensors (B, T, D).
        word_positions: (B, W), the first token of each word, -1 at padding.

    Returns:
        (B, W, n, D).
    """

    def call(self, layers, word_positions):
        stacked = ops.stack(layers, axis=2) if len(layers) > 1 else layers[0][:, :, None]
        positions = ops.maximum(word_positions, 0)[..., None, None]
        return ops.take_along_axis(stacked, positions, axis=1)


def chosen_pool(pool, encoder, tokenizer, layers, frozen, joint=True):
    """How texts are pooled: as asked, or the way that suits the encoder.

    Args:
        pool: What is asked for, or `None`.
        joint: Whether a row is all that an output is of, so that the encoder's own way can be had.

    Raises:
        ValueError: If there is no such pooling here.
    """
    check_encoder(encoder, tokenizer)
    own = "pooled" in encoder.output and layers is None and joint
    if pool is None:
        pool = "mean" if joint else "max"
        if joint and layers is None and not frozen:
            pool = "pooled" if own else "last" if encoder.causal else "mean"
    allowed = ("pooled", *POOLINGS) if own else POOLINGS
    if pool not in allowed:
        raise ValueError(f"`pool` must be one of {allowed} here. Received: {pool!r}")
    check_first(pool, tokenizer)
    return pool


def flat_rows(encoder, rows):
    """Inputs (B, P, T, ...) of P rows an example, and the same as an encoder's (P B, T, ...).

    The first rows of all examples come before the second ones.
    """
    inputs = {
        name: keras.Input((rows, *x.shape[1:]), dtype=x.dtype, name=name)
        for name, x in encoder.input.items()
    }
    flat = {name: ops.concatenate([x[:, i] for i in range(rows)]) for name, x in inputs.items()}
    return inputs, flat
