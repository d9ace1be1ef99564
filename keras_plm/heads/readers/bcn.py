"""Biattentive classification network (BCN), the text classifier of CoVe and ELMo."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.layers import Dense, Dropout, Pooling, masked_softmax

PIECES = 4  # values per maxout unit


@keras.saving.register_keras_serializable("keras_plm")
class BCN(keras.layers.Layer):
    """Biattentive classification network: BiLSTM, self-attention and a second BiLSTM.

        u = ReLU(W x + b)
        h = BiLSTM(u)
        c_t = sum_s softmax_s(h_t . h_s) h_s
        outputs = BiLSTM([h; h - c; h * c])

    Its `pooling` combines four poolings of the outputs into one vector.

    Reference: McCann et al. 2017 (CoVe), arXiv 1708.00107, section 5, for one text; with ELMo
    Peters et al. 2018, section 4 and supplement A.6; AllenNLP's `BiattentiveClassificationNetwork`.

    Differs from AllenNLP's: the last of three maxout layers is the head's output layer.

    Args:
        units: Width of the first layer and of each direction; 300 in the originals.
        dropout: Fraction of the input of the first BiLSTM dropped in training.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first.

    Returns:
        (B, T, 2 * units), zero at padding.

    >>> import numpy as np
    >>> tuple(BCN(units=3)(np.ones((2, 4, 5)), padding_mask=np.ones((2, 4), bool)).shape)
    (2, 4, 6)
    """

    reads = "whole texts"
    serves = ("texts",)

    def __init__(self, units: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.feed_forward = Dense(units, activation="relu", name="feed_forward", **options)
        self.drop = Dropout(dropout, name="drop", **options)
        self.encoder = BiLSTM(units, num_layers=1, name="encoder", **options)
        self.integrator = BiLSTM(units, num_layers=1, name="integrator", **options)

    def build(self, inputs_shape, padding_mask_shape=None):
        self.feed_forward.build(inputs_shape)
        self.encoder.build((*inputs_shape[:-1], self.units))
        self.integrator.build((*inputs_shape[:-1], 6 * self.units))

    def call(
        self, inputs: Tensor, padding_mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        x = self.drop(self.feed_forward(inputs), training=training)
        x = self.encoder(x, padding_mask=padding_mask, training=training)
        mask = None if padding_mask is None else ops.cast(padding_mask, "bool")[:, None]
        weights = masked_softmax(ops.matmul(x, ops.swapaxes(x, 1, 2)), mask)  # (B, T, T)
        seen = ops.matmul(weights, x)
        x = ops.concatenate([x, x - seen, x * seen], axis=-1)
        return self.integrator(x, padding_mask=padding_mask, training=training)

    def compute_output_spec(self, inputs, padding_mask=None, training=None):
        return keras.KerasTensor((*inputs.shape[:2], 2 * self.units), dtype=self.compute_dtype)

    def pooling(self) -> keras.Layer:
        """Returns a layer that pools the outputs of a text into one vector."""
        return FourPools(self.dropout, dtype=self.dtype_policy, name="pools")

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}


@keras.saving.register_keras_serializable("keras_plm")
class FourPools(keras.layers.Layer):
    """Maximum, minimum, mean and a learned mean of a text, then two maxout layers.

    Reference: as `BCN`; maxout: Goodfellow et al. 2013, arXiv 1302.4389.

    Args:
        dropout: Fraction dropped before each maxout.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions.

    Returns:
        (B, D). A row without real positions gives the same as zeros.
    """

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.drop = Dropout(dropout, name="drop", **options)
        self.highest = Pooling("max", name="max", **options)
        self.mean = Pooling("mean", name="mean", **options)

    def build(self, inputs_shape, padding_mask_shape=None):
        width, options = inputs_shape[-1], {"dtype": self.dtype_policy}
        self.scores = Dense(1, use_bias=False, name="scores", **options)
        self.scores.build(inputs_shape)
        self.maxouts = [
            Dense(PIECES * units, name=f"maxout_{i}", **options)
            for i, units in enumerate((2 * width, width))
        ]
        self.maxouts[0].build((None, 4 * width))
        self.maxouts[1].build((None, 2 * width))

    def call(self, inputs, padding_mask=None, training=None):
        weights = masked_softmax(self.scores(inputs)[..., 0], padding_mask)  # (B, T)
        if padding_mask is not None:
            weights = weights * ops.cast(padding_mask, weights.dtype)
        pools = [
            self.highest(inputs, padding_mask=padding_mask),
            -self.highest(-inputs, padding_mask=padding_mask),
            self.mean(inputs, padding_mask=padding_mask),
            ops.matmul(weights[:, None], inputs)[:, 0],
        ]
        x = ops.concatenate(pools, axis=-1)
        for layer in self.maxouts:
            x = layer(self.drop(x, training=training))
            x = ops.max(ops.reshape(x, (-1, layer.units // PIECES, PIECES)), axis=-1)
        return x

    def compute_output_spec(self, inputs, padding_mask=None, training=None):
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}
