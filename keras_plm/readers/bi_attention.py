"""Attention in both directions between two texts that were read apart."""

import keras
from keras import ops

from keras_plm.layers import masked_softmax


@keras.saving.register_keras_serializable("keras_plm")
class BiAttention(keras.layers.Layer):
    """Two texts that were read apart look at each other: for encoders that take one text at a time.

    One score for each pair of positions, `S_ts = w . [x_t; y_s; x_t * y_s]`, serves both sides.
    A position of the one text, x_t, gets

        a_t = sum_s softmax_s(S_ts) y_s          what the other text has on it
        b   = sum_t softmax_t(max_s S_ts) x_t    what the other text asks of this one
        g_t = [x_t; a_t; x_t * a_t; x_t * b]

    and a position of the other the same, from the transposed scores. Padding has no share in any
    softmax. Time and memory are T times S.

    Reference: Seo et al. 2017 (BiDAF), arXiv 1611.01603, section 2, "attention flow layer",
    equations 1 and 2; between the states of a language model for two sentences: Peters et al. 2019,
    arXiv 1903.05987, section 3.

    Differs from Seo et al.: both texts get their g, where a question needs only that of its
    passage.

    Call arguments:
        first: (B, T, D).
        second: (B, S, D).
        first_mask: (B, T), True at real positions; all of them when omitted.
        second_mask: (B, S).

    Returns:
        `(first, second)`: (B, T, 4 D) and (B, S, 4 D). Beside a text without positions a is zero.

    >>> import numpy as np
    >>> first, second = BiAttention()(np.ones((2, 3, 5)), second=np.ones((2, 4, 5)))
    >>> tuple(first.shape), tuple(second.shape)
    ((2, 3, 20), (2, 4, 20))
    """

    def build(self, first_shape, second_shape=None, first_mask_shape=None, second_mask_shape=None):
        width = first_shape[-1]
        # As a matrix from [x; y; x * y] to one score would be drawn.
        limit = (6 / (3 * width + 1)) ** 0.5
        self.score_kernel = self.add_weight(
            name="score_kernel",
            shape=(3, width),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )

    def call(self, first, second, first_mask=None, second_mask=None):
        masks = [
            ops.ones_like(x[..., 0], dtype="bool") if mask is None else ops.cast(mask, "bool")
            for x, mask in ((first, first_mask), (second, second_mask))
        ]
        of_first, of_second, of_both = ops.split(self.score_kernel, 3, axis=0)  # (1, D) each
        scores = ops.matmul(first * of_both, ops.swapaxes(second, 1, 2))  # (B, T, S)
        scores = scores + ops.sum(first * of_first, axis=-1)[:, :, None]
        scores = scores + ops.sum(second * of_second, axis=-1)[:, None, :]
        one = self._side(first, second, scores, *masks)
        return one, self._side(second, first, ops.swapaxes(scores, 1, 2), *masks[::-1])

    @staticmethod
    def _side(x, y, scores, x_mask, y_mask):
        # A text without positions has equal weights, of padding: none of them count.
        weights = masked_softmax(scores, y_mask[:, None]) * ops.cast(y_mask, x.dtype)[:, None]
        attended = ops.matmul(weights, y)  # (B, T, D)
        floor = ops.cast(-3e4, scores.dtype)
        highest = ops.max(ops.where(y_mask[:, None], scores, floor), axis=-1)  # (B, T)
        weights = masked_softmax(highest, x_mask) * ops.cast(x_mask, x.dtype)
        asked = ops.matmul(weights[:, None], x)  # (B, 1, D)
        return ops.concatenate([x, attended, x * attended, x * asked], axis=-1)

    def compute_output_spec(self, first, second, first_mask=None, second_mask=None):
        return tuple(
            keras.KerasTensor((*x.shape[:-1], 4 * x.shape[-1]), dtype=self.compute_dtype)
            for x in (first, second)
        )
