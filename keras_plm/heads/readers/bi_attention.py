"""Attention between two separately read texts, and from a text to itself."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers import masked_softmax
from keras_plm.layers._fused.attention import mask_floor
from keras_plm.layers._fused.softmax import wide_dtype


@keras.saving.register_keras_serializable("keras_plm")
class BiAttention(keras.layers.Layer):
    """Attention between two texts, for encoders that read one text at a time.

    Each pair of positions has one score, `S_ts = w . [x_t; y_s; x_t * y_s]`, for both directions.
    The output at a position of the first text, x_t, is

        a_t = sum_s softmax_s(S_ts) y_s          attention to the other text
        b   = sum_t softmax_t(max_s S_ts) x_t    attention from the other text
        g_t = [x_t; a_t; x_t * a_t; x_t * b]

    The second text uses the transposed scores. Padding has no weight. Time and memory grow with
    T · S.

    Reference: Seo et al. 2017 (BiDAF), arXiv 1611.01603, section 2, "attention flow layer",
    equations 1 and 2; between the states of a language model for two sentences: Peters et al. 2019,
    arXiv 1903.05987, section 3.

    Differs from Seo et al.: both texts have outputs g, not only the passage.

    Call arguments:
        first: (B, T, D).
        second: (B, S, D).
        first_mask: (B, T), True at real positions; by default all are real.
        second_mask: (B, S).

    Returns:
        `(first, second)`: (B, T, 4 D) and (B, S, 4 D). If the other text is empty, a is zero.

    >>> import numpy as np
    >>> first, second = BiAttention()(np.ones((2, 3, 5)), second=np.ones((2, 4, 5)))
    >>> tuple(first.shape), tuple(second.shape)
    ((2, 3, 20), (2, 4, 20))
    """

    def build(self, first_shape, second_shape=None, first_mask_shape=None, second_mask_shape=None):
        self.score_kernel = add_score_kernel(self, first_shape[-1])

    def call(
        self,
        first: Tensor,
        second: Tensor,
        first_mask: Tensor | None = None,
        second_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        masks = [
            ops.ones_like(x[..., 0], dtype="bool") if mask is None else ops.cast(mask, "bool")
            for x, mask in ((first, first_mask), (second, second_mask))
        ]
        scores = pair_scores(self.score_kernel, first, second)
        one = self._side(first, second, scores, *masks)
        return one, self._side(second, first, ops.swapaxes(scores, 1, 2), *masks[::-1])

    @staticmethod
    def _side(x, y, scores, x_mask, y_mask):
        # An empty text has equal weights at padding: the mask removes them.
        weights = masked_softmax(scores, y_mask[:, None]) * ops.cast(y_mask, x.dtype)[:, None]
        attended = ops.matmul(weights, y)  # (B, T, D)
        floor = ops.cast(mask_floor(scores.dtype), scores.dtype)
        highest = ops.max(ops.where(y_mask[:, None], scores, floor), axis=-1)  # (B, T)
        weights = masked_softmax(highest, x_mask) * ops.cast(x_mask, x.dtype)
        asked = ops.matmul(weights[:, None], x)  # (B, 1, D)
        return ops.concatenate([x, attended, x * attended, x * asked], axis=-1)

    def compute_output_spec(self, first, second, first_mask=None, second_mask=None):
        return tuple(
            keras.KerasTensor((*x.shape[:-1], 4 * x.shape[-1]), dtype=self.compute_dtype)
            for x in (first, second)
        )


@keras.saving.register_keras_serializable("keras_plm")
class SelfAttention(keras.layers.Layer):
    """Attention of each word to the other words of its text, with the score of `BiAttention`.

    Reference: Clark and Gardner 2018, arXiv 1710.10723, section 3.1, "self-attention".

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions; by default all are real.

    Returns:
        (B, T, D); zeros for the only word of a text.
    """

    def build(self, inputs_shape, padding_mask_shape=None):
        self.score_kernel = add_score_kernel(self, inputs_shape[-1])

    def call(self, inputs, padding_mask=None):
        scores = pair_scores(self.score_kernel, inputs, inputs)
        steps = ops.arange(ops.shape(inputs)[1])
        seen = (steps[:, None] != steps[None])[None]  # (1, T, T): every word but itself
        if padding_mask is not None:
            seen = ops.logical_and(seen, ops.cast(padding_mask, "bool")[:, None])
        weights = masked_softmax(scores, seen) * ops.cast(seen, scores.dtype)
        return ops.matmul(weights, inputs)

    def compute_output_spec(self, inputs, padding_mask=None):
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)


def add_score_kernel(layer, width):
    """Adds the weight w of `pair_scores`, (3, D), to a layer."""
    # Glorot's range for a matrix from [x; y; x * y] to one score.
    limit = (6 / (3 * width + 1)) ** 0.5
    initializer = keras.initializers.RandomUniform(-limit, limit)
    return layer.add_weight(name="score_kernel", shape=(3, width), initializer=initializer)


def pair_scores(kernel, first, second):
    """Computes `S_ts = w . [x_t; y_s; x_t * y_s]`, (B, T, S), from (B, T, D) and (B, S, D)."""
    of_first, of_second, of_both = ops.split(kernel, 3, axis=0)  # (1, D) each
    both = ops.matmul(first * of_both, ops.swapaxes(second, 1, 2))
    dtype = first.dtype
    # Sums need at least float32, as in a matrix product.
    wide = wide_dtype(first)
    parts = (both, first, second, of_first, of_second)
    both, first, second, of_first, of_second = (ops.cast(part, wide) for part in parts)
    scores = both + ops.sum(first * of_first, axis=-1)[:, :, None]
    scores = scores + ops.sum(second * of_second, axis=-1)[:, None, :]
    return ops.cast(scores, dtype)
