"""Enhanced sequential inference model (ESIM), for pairs of sentences."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.layers import Dense, Dropout, Pooling, masked_softmax


@keras.saving.register_keras_serializable("keras_plm")
class ESIM(keras.layers.Layer):
    """ESIM: BiLSTM, alignment, comparison and a second BiLSTM over two texts, to one vector.

        a = BiLSTM(first), b = BiLSTM(second)                  one BiLSTM for both
        a~_t = sum_s softmax_s(a_t . b_s) b_s                  attention to the second text
        m = BiLSTM(ReLU(W [a; a~; a - a~; a * a~] + v))        same for the second text
        outputs = ReLU(W' [mean(m_a); max(m_a); mean(m_b); max(m_b)] + v')

    Reference: Chen et al. 2017, arXiv 1609.06038, section 3; ELMo's version, AllenNLP's `ESIM`,
    has ReLU in the last layer where the paper has tanh.

    Args:
        units: Width of each direction and of the layers between; 300 in the originals.
        dropout: Fraction of the input of each BiLSTM dropped in training, the same features at all
            words ("variational"), and before the last layer; 0.5 in the originals.

    Call arguments:
        first: (B, T, D).
        second: (B, S, D).
        first_mask: (B, T), True at real positions, which come first; by default all are real.
        second_mask: (B, S).
        first_after, second_after: (B, T, E) and (B, S, E), or `None`: features to append to a
            and b ("ELMo at the output"; Peters et al. 2018, section 5.2).

    Returns:
        (B, units).

    >>> import numpy as np
    >>> tuple(ESIM(units=3)(np.ones((2, 4, 5)), second=np.ones((2, 6, 5))).shape)
    (2, 3)
    """

    reads = "pairs of texts"
    serves = ("texts",)
    texts = ("first", "second")

    def __init__(self, units: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.drop_words = keras.layers.SpatialDropout1D(dropout, name="drop_words", **options)
        self.drop = Dropout(dropout, name="drop", **options)
        self.encoder = BiLSTM(units, num_layers=1, name="encoder", **options)
        self.comparison = Dense(units, activation="relu", name="comparison", **options)
        self.composition = BiLSTM(units, num_layers=1, name="composition", **options)
        self.hidden = Dense(units, activation="relu", name="hidden", **options)
        self.mean = Pooling("mean", name="mean", **options)
        self.highest = Pooling("max", name="max", **options)

    def build(
        self,
        first_shape,
        second_shape=None,
        first_mask_shape=None,
        second_mask_shape=None,
        first_after_shape=None,
        second_after_shape=None,
    ):
        self.encoder.build(first_shape)
        width = 2 * self.units + (first_after_shape[-1] if first_after_shape else 0)
        self.comparison.build((*first_shape[:-1], 4 * width))
        self.composition.build((*first_shape[:-1], self.units))
        self.hidden.build((None, 8 * self.units))

    def call(
        self,
        first: Tensor,
        second: Tensor,
        first_mask: Tensor | None = None,
        second_mask: Tensor | None = None,
        first_after: Tensor | None = None,
        second_after: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        masks = [
            ops.ones_like(x[..., 0], dtype="bool") if mask is None else ops.cast(mask, "bool")
            for x, mask in ((first, first_mask), (second, second_mask))
        ]
        a, b = (
            self.encoder(self.drop_words(x, training=training), padding_mask=mask)
            for x, mask in zip((first, second), masks, strict=True)
        )
        if first_after is not None:
            a = ops.concatenate([a, first_after], axis=-1)
            b = ops.concatenate([b, second_after], axis=-1)
        scores = ops.matmul(a, ops.swapaxes(b, 1, 2))  # (B, T, S)
        pools = [
            *self._composed(a, b, scores, *masks, training),
            *self._composed(b, a, ops.swapaxes(scores, 1, 2), *masks[::-1], training),
        ]
        return self.hidden(self.drop(ops.concatenate(pools, axis=-1), training=training))

    def _composed(self, x, y, scores, x_mask, y_mask, training):
        """Compares a text with the other one; returns the mean and the maximum of its words."""
        # An empty text has equal weights at padding: the mask removes them.
        weights = masked_softmax(scores, y_mask[:, None]) * ops.cast(y_mask, x.dtype)[:, None]
        seen = ops.matmul(weights, y)  # (B, T, 2 units + E)
        compared = self.comparison(ops.concatenate([x, seen, x - seen, x * seen], axis=-1))
        m = self.composition(self.drop_words(compared, training=training), padding_mask=x_mask)
        return self.mean(m, padding_mask=x_mask), self.highest(m, padding_mask=x_mask)

    def compute_output_spec(
        self,
        first,
        second,
        first_mask=None,
        second_mask=None,
        first_after=None,
        second_after=None,
        training=None,
    ):
        return keras.KerasTensor((first.shape[0], self.units), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}
