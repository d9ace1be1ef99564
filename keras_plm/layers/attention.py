"""Attention: a score for every pair of query and key, a mask, a softmax, a weighted sum.

Shapes: B batch, T target steps, S source steps, D width, N heads, H = D / N head width.
"""

import keras
from keras import ops

from keras_plm.layers.fast import (
    Dense,
    Dropout,
    additive_mask,
    fused_attention,
    fused_is_slow,
    scaled_scores,
)


def combine_masks(padding_mask=None, attention_mask=None, causal_steps=None):
    """Folds the masks of a call into one, `True` where a query may look at a key.

    Args:
        padding_mask: (B, S), True at real source positions, or `None`.
        attention_mask: (B, T, S) or (T, S), True where query t may see key s, or `None`.
        causal_steps: `(first, T, S)` to let query t see keys 0 ... first + t, or `None`.

    Returns:
        A boolean tensor that broadcasts to (B, T, S), or `None` when nothing is hidden.
    """
    mask = None
    if padding_mask is not None:
        mask = ops.cast(padding_mask, "bool")[:, None, :]  # (B, 1, S)
    if attention_mask is not None:
        attention_mask = ops.cast(attention_mask, "bool")
        if len(attention_mask.shape) == 2:
            attention_mask = attention_mask[None]  # (1, T, S)
        mask = attention_mask if mask is None else ops.logical_and(mask, attention_mask)
    if causal_steps is not None:
        first, target_steps, source_steps = causal_steps
        rows = ops.arange(target_steps)[:, None] + first
        causal = ops.arange(source_steps)[None, :] <= rows  # (T, S)
        mask = causal[None] if mask is None else ops.logical_and(mask, causal[None])
    return mask


def masked_softmax(scores, mask=None):
    """Softmax over the last axis that gives hidden positions exactly zero weight.

    Args:
        scores: (..., S) unnormalised scores.
        mask: boolean, broadcastable to `scores`, True = look; or `None`.

    Returns:
        (..., S) weights in the type of `scores`; each row sums to 1. A row with nothing to look
        at gets equal weights, never NaN.
    """
    if mask is not None:
        # Added, because the small mask broadcasts: one pass over the scores, `where` takes two.
        scores = scores + additive_mask(mask, scores.dtype)
    return ops.softmax(scores, axis=-1)


@keras.saving.register_keras_serializable("keras_plm")
class Attention(keras.layers.Layer):
    """Single-head attention around one method, `score(query, key)`.

    Every attention of the literature is this layer with another score: a subclass defines
    `score`, the rest (mask, softmax, weighted sum) is written here once.

    Args:
        dropout: Share of the weights that is dropped in training.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value), what is summed.
        key: (B, S, D_key), what is scored; `value` when omitted.
        padding_mask: (B, S), True at real source positions.
        attention_mask: (B, T, S), True where query t may look at key s.

    Returns:
        `(context, weights)`: (B, T, D_value) and (B, T, S). A fully masked row gives the mean.
    """

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.weights_dropout = Dropout(dropout, dtype=self.dtype_policy, name="weights_dropout")

    def score(self, query, key):
        """Scores (B, T, S) of queries (B, T, D_query) against keys (B, S, D_key)."""
        raise NotImplementedError(f"{type(self).__name__} must define `score(query, key)`.")

    def call(self, query, value, key=None, padding_mask=None, attention_mask=None, training=None):
        key = value if key is None else key
        mask = combine_masks(padding_mask, attention_mask)
        weights = masked_softmax(self.score(query, key), mask)  # (B, T, S)
        context = ops.matmul(self.weights_dropout(weights, training=training), value)
        return context, weights

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


@keras.saving.register_keras_serializable("keras_plm")
class DotProductAttention(Attention):
    """Attention whose score is the dot product, `score(q, k) = q · k`.

    It has no weights of its own; queries and keys must be equally wide. Use it when the
    vectors are already comparable; for wide vectors prefer `ScaledDotProductAttention`.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, "dot".

    Args:
        dropout: Share of the weights that is dropped in training.

    Call arguments and returns: as in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width.

    >>> import numpy as np
    >>> layer = DotProductAttention()
    >>> context, weights = layer(query=np.ones((2, 3, 5)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 5), (2, 3, 7))
    """

    def score(self, query, key):
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(
                "A dot-product score needs queries and keys of the same width. "
                f"Received: query.shape={tuple(query.shape)}, key.shape={tuple(key.shape)}"
            )
        return ops.matmul(query, ops.swapaxes(key, 1, 2))  # (B, T, S)


@keras.saving.register_keras_serializable("keras_plm")
class ScaledDotProductAttention(DotProductAttention):
    """Dot-product attention divided by the square root of the width, `q · k / sqrt(D)`.

    The scale keeps the variance of the scores near 1 for any width, so that the softmax does
    not saturate.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1, equation 1.

    Args:
        dropout: Share of the weights that is dropped in training.

    Call arguments and returns: as in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width.

    >>> import numpy as np
    >>> layer = ScaledDotProductAttention()
    >>> mask = np.array([[True, True, False]])
    >>> _, weights = layer(query=np.ones((1, 1, 4)), value=np.ones((1, 3, 4)), padding_mask=mask)
    >>> [round(float(w), 3) for w in weights[0, 0]]
    [0.5, 0.5, 0.0]
    """

    def score(self, query, key):
        return super().score(query, key) / query.shape[-1] ** 0.5


@keras.saving.register_keras_serializable("keras_plm")
class MultiHeadAttention(keras.layers.Layer):
    """Several scaled dot-product attentions side by side, each on its own projections.

    Two paths compute the same numbers. The fused path hands everything to
    the backend's kernel; the explicit path writes out the softmax and is taken when the
    weights are asked for or must be dropped. Self-attention projects query, key and value
    with one matrix product; a layer whose first call names a `value` has three.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.

    Args:
        num_heads: Number of heads N; must divide `hidden_dim`.
        hidden_dim: Width D of the projections and of the output.
        dropout: Share of the attention weights that is dropped in training. It forces the
            explicit path in training only.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value); the query itself when omitted (self-attention).
        key: (B, S, D_key); `value` when omitted.
        padding_mask: (B, S), True at real source positions.
        attention_mask: (B, T, S), True where query t may look at key s.
        causal: If True, query t sees keys 0 ... t only.
        cache: (B, 2, S_max, N, H), keys and values of the steps so far, for decoding.
        cache_index: Number of steps already in `cache`; the call writes behind them.
        return_weights: If True, also return the attention weights.

    Returns:
        (B, T, D); then, each if asked for, the weights (B, N, T, S) and the updated cache.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, or `cache` comes without
            `cache_index`.

    >>> import numpy as np
    >>> layer = MultiHeadAttention(num_heads=2, hidden_dim=6)
    >>> output, weights = layer(query=np.ones((1, 3, 6)), causal=True, return_weights=True)
    >>> tuple(output.shape), tuple(weights.shape), round(float(weights[0, 0, 0, 2]), 3)
    ((1, 3, 6), (1, 2, 3, 3), 0.0)
    """

    def __init__(
        self, num_heads, hidden_dim, dropout=0.0, kernel_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        if num_heads < 1 or hidden_dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `hidden_dim`. "
                f"Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
            )
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _dense(self, units, name):
        # A clone, because Keras warns when one initializer object makes several weights.
        initializer = self.kernel_initializer.clone()
        return Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

    def build(self, query_shape, value_shape=None, key_shape=None):
        self.fused_projection = value_shape is None
        if self.fused_projection:
            self.query_key_value = self._dense(3 * self.hidden_dim, "query_key_value")
            self.query_key_value.build(query_shape)
        else:
            self.query = self._dense(self.hidden_dim, "query")
            self.query.build(query_shape)
            self.key = self._dense(self.hidden_dim, "key")
            self.key.build(key_shape or value_shape)
            self.value = self._dense(self.hidden_dim, "value")
            self.value.build(value_shape)
        self.output_projection = self._dense(self.hidden_dim, "output")
        self.output_projection.build((*query_shape[:-1], self.hidden_dim))
        self.weights_dropout = Dropout(
            self.dropout, dtype=self.dtype_policy, name="weights_dropout"
        )

    def _project(self, query, value, key):
        """Queries (B, T, N, H), keys and values (B, S, N, H)."""
        width = self.hidden_dim
        if not self.fused_projection:
            query, key, value = self.query(query), self.key(key), self.value(value)
        elif query is value and key is value:
            query, key, value = ops.split(self.query_key_value(query), 3, axis=-1)
        else:
            query = self.query_key_value(query)[..., :width]
            key = self.query_key_value(key)[..., width : 2 * width]
            value = self.query_key_value(value)[..., 2 * width :]
        head_dim = width // self.num_heads
        return [
            ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, head_dim))
            for x in (query, key, value)
        ]

    def call(
        self,
        query,
        value=None,
        key=None,
        padding_mask=None,
        attention_mask=None,
        causal=False,
        cache=None,
        cache_index=None,
        return_weights=False,
        training=None,
    ):
        if (cache is None) != (cache_index is None):
            raise ValueError(
                "`cache` and `cache_index` go together. "
                f"Received: cache={'given' if cache is not None else None}, "
                f"cache_index={cache_index}"
            )
        value = query if value is None else value
        key = value if key is None else key
        query, key, value = self._project(query, value, key)

        first = 0
        if cache is not None:
            first = cache_index
            update = ops.cast(ops.stack([key, value], axis=1), cache.dtype)  # (B, 2, T, N, H)
            cache = ops.slice_update(cache, (0, 0, cache_index, 0, 0), update)
            key, value = cache[:, 0], cache[:, 1]  # (B, S_max, N, H)
        causal_steps = None
        if causal or cache is not None:
            causal_steps = (first, ops.shape(query)[1], ops.shape(key)[1])
        mask = combine_masks(padding_mask, attention_mask, causal_steps)
        mask = None if mask is None else mask[:, None]  # (B, 1, T, S)

        explicit = return_weights or (training and self.dropout > 0)
        if explicit or fused_is_slow(query, key, training):
            output, weights = self._explicit(query, key, value, mask, training)
        else:
            output, weights = fused_attention(query, key, value, mask), None
        output = ops.reshape(output, (-1, ops.shape(output)[1], self.hidden_dim))
        output = self.output_projection(output)  # (B, T, D)

        extras = ([weights] if return_weights else []) + ([cache] if cache is not None else [])
        return (output, *extras) if extras else output

    def _explicit(self, query, key, value, mask, training):
        # Heads before steps: (B, N, T, H), (B, N, S, H), (B, N, S, H)
        query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        weights = ops.softmax(scaled_scores(query, key, mask), axis=-1)  # (B, N, T, S)
        dropped = self.weights_dropout(weights, training=True) if training else weights
        context = ops.matmul(dropped, value)  # (B, N, T, H)
        return ops.transpose(context, (0, 2, 1, 3)), weights  # (B, T, N, H)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
