"""Bidirectional LSTM, a reader and a part of most other readers."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers import LSTM, Dropout, Pooling, reverse_rows
from keras_plm.layers.masks import given_mask


@keras.saving.register_keras_serializable("keras_plm")
class BiLSTM(keras.layers.Layer):
    """A stack of bidirectional LSTMs over word vectors.

    With two layers it is the reader of BERT's feature-based experiments. The head adds the output
    layer.

    Reference: Devlin et al. 2018, section 5.3: "a randomly initialized two-layer
    768-dimensional BiLSTM". Here 768 is the width of both directions.

    Args:
        units: Width of each direction.
        num_layers: Number of bidirectional layers.
        dropout: Fraction of the input of each layer dropped in training.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.

    Returns:
        (B, T, 2 * units), zero at padding.

    >>> import numpy as np
    >>> reader = BiLSTM(units=3)
    >>> tuple(reader(np.ones((2, 4, 5)), padding_mask=np.ones((2, 4), bool)).shape)
    (2, 4, 6)
    """

    def __init__(self, units: int, num_layers: int = 2, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        self.num_layers = num_layers
        self.dropout = dropout
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        self.layers = [
            [
                LSTM(units, dtype=self.dtype_policy, name=f"{direction}_{i}")
                for direction in ("forward", "backward")
            ]
            for i in range(num_layers)
        ]

    def build(self, inputs_shape, padding_mask_shape=None):
        shape = inputs_shape
        for pair in self.layers:
            for layer in pair:
                layer.build(shape)
            shape = (*inputs_shape[:-1], 2 * self.units)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        padding_mask = given_mask(padding_mask, mask)
        x = inputs
        for forward_layer, backward_layer in self.layers:
            x = self.drop(x, training=training)
            backward = reverse_rows(backward_layer(reverse_rows(x, padding_mask)), padding_mask)
            x = ops.concatenate([forward_layer(x), backward], axis=-1)
        if padding_mask is not None:
            x = x * ops.cast(padding_mask, x.dtype)[..., None]
        return x

    def compute_output_spec(self, inputs, padding_mask=None, training=None, mask=None):
        return keras.KerasTensor((*inputs.shape[:2], 2 * self.units), dtype=self.compute_dtype)

    def pooling(self) -> keras.Layer:
        """Returns a layer that pools the outputs of a text into one vector: their maximum."""
        return Pooling("max", name="max")

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
        }
