"""Attention: a score for every pair of query and key, a mask, a softmax, a weighted sum.

Shapes: B batch, T target steps, S source steps, D width.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_plm.layers._fused_layers import Dense, Dropout
from keras_plm.layers._fused_softmax import additive_mask, float32_softmax


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


def visible(query, key, padding_mask=None, attention_mask=None, causal=False, first=0):
    """The masks of a call, checked and folded into one, `True` where a query may look at a key.

    Args:
        query: (B, T, ...).
        key: (B, S, ...).
        padding_mask, attention_mask: As in `combine_masks`.
        causal: If True, query t sees keys 0 ... first + t only.
        first: Position of the first query among the keys.

    Returns:
        A boolean tensor that broadcasts to (B, T, S), or `None` when nothing is hidden.

    Raises:
        ValueError: If a mask does not fit.
    """
    check_masks(padding_mask, attention_mask, query.shape[0], query.shape[1], key.shape[1])
    steps = (first, ops.shape(query)[1], ops.shape(key)[1]) if causal else None
    return combine_masks(padding_mask, attention_mask, steps)


def masked_softmax(scores, mask=None):
    """Softmax over the last axis that gives hidden positions exactly zero weight.

    Args:
        scores: (..., S) unnormalised scores.
        mask: boolean, broadcastable to `scores`, True = look; or `None`.

    Returns:
        (..., S) weights in the type of `scores`; each row sums to 1. A row with nothing to look
        at gets equal weights, never NaN.
    """
    # In float32: half precision has no room for a floor below all scores.
    wide = ops.cast(scores, "float32")
    if mask is not None:
        # Added, because the small mask broadcasts: one pass over the scores, `where` takes two.
        wide = wide + additive_mask(mask, wide.dtype)
    return ops.cast(softmax(wide), scores.dtype)


def softmax(scores):
    """Over the last axis, in float32; the weights are in the type of `scores`.

    A single key is allowed; Keras' own softmax warns about it.
    """
    return 0 * scores + 1 if scores.shape[-1] == 1 else float32_softmax(scores)


def check_masks(padding_mask, attention_mask, batch, target_steps, source_steps):
    """Compares masks with what they mask, as far as its shape is known.

    Raises:
        ValueError: If a mask has another rank or an axis of another length, or holds fractions.
    """
    steps = {"padding_mask": "(B, S)", "attention_mask": "(B, T, S) or (T, S)"}
    wanted = {"padding_mask": (batch, source_steps)}
    wanted["attention_mask"] = (batch, target_steps, source_steps)
    for name, mask in (("padding_mask", padding_mask), ("attention_mask", attention_mask)):
        if mask is None:
            continue
        shape, expected = tuple(mask.shape), wanted[name]
        if name == "attention_mask" and len(shape) == 2:
            expected = expected[1:]
        fits = len(shape) == len(expected) and all(
            # One row may stand for all; one key for all would be a mask of another step.
            None in (have, want) or have == want or (have == 1 and axis < len(shape) - 1)
            for axis, (have, want) in enumerate(zip(shape, expected, strict=True))
        )
        if not fits:
            raise ValueError(
                f"`{name}` has the shape {steps[name]} with B={batch}, T={target_steps} query and "
                f"S={source_steps} key positions. Received: {name}.shape={shape}"
            )
        if "float" in keras.backend.standardize_dtype(mask.dtype):
            raise ValueError(
                f"`{name}` is True where to look and False elsewhere, or 1 and 0 as whole numbers, "
                f"not what is added to scores. Received: {name}.dtype={mask.dtype}"
            )


def window_mask(target_steps, source_steps, window):
    """Which keys lie at most `window` positions from the query: Luong's monotonic local attention.

    Given as `attention_mask`, it makes any score local.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.2, "local-m".

    Args:
        target_steps: Number of queries T.
        source_steps: Number of keys S.
        window: Number of positions to each side.

    Returns:
        (T, S) booleans, a NumPy array.

    Raises:
        ValueError: If `window` is negative.

    >>> window_mask(2, 4, window=1).astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0]]
    """
    if window < 0:
        raise ValueError(f"`window` must be 0 or more. Received: window={window}")
    return np.abs(np.arange(source_steps) - np.arange(target_steps)[:, None]) <= window


@keras.saving.register_keras_serializable("keras_plm")
class Attention(keras.layers.Layer):
    """Single-head attention around one method, `score(query, key)`.

    Every attention of the literature is this layer with another score: a subclass defines
    `score`, the rest (mask, softmax, weighted sum) is written here once. What a score computes of
    the keys alone goes into `prepare`, so that a decoder that asks step by step does it once.

    Args:
        dropout: Share of the weights that is dropped in training.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value), what is summed.
        key: (B, S, D_key), what is scored; `value` when omitted.
        padding_mask: (B, S), True at real source positions.
        attention_mask: (B, T, S) or (T, S), True where query t may look at key s.
        causal: If True, query t sees keys 0 ... t only.

    Returns:
        `(context, weights)`: (B, T, D_value) and (B, T, S). A fully masked row gives the mean.

    Raises:
        ValueError: If a mask does not fit.
    """

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.weights_dropout = Dropout(dropout, dtype=self.dtype_policy, name="weights_dropout")

    def build(self, query_shape, value_shape, key_shape=None):
        """Makes the weights of the score; there are none by default."""

    def prepare(self, key):
        """What `score` takes for keys: (B, S, D_key) -> (B, S, ...), computed once."""
        return key

    def score(self, query, key):
        """Scores (B, T, S) of queries (B, T, D_query) against prepared keys."""
        raise NotImplementedError(f"{type(self).__name__} must define `score(query, key)`.")

    def attend(self, query, value, key, mask=None, training=None):
        """`(context, weights)` for prepared keys and a combined mask."""
        weights = masked_softmax(self.score(query, key), mask)  # (B, T, S)
        dropped = self.weights_dropout(weights, training=True) if training else weights
        return ops.matmul(dropped, value), weights

    def call(
        self,
        query,
        value,
        key=None,
        padding_mask=None,
        attention_mask=None,
        causal=False,
        training=None,
    ):
        key = value if key is None else key
        mask = visible(query, value, padding_mask, attention_mask, causal)
        return self.attend(query, value, self.prepare(key), mask, training)

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
                "This score needs queries and keys of the same width; `BilinearAttention` and "
                "`AdditiveAttention` do not. "
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
        return super().score(query * query.shape[-1] ** -0.5, key)


@keras.saving.register_keras_serializable("keras_plm")
class BilinearAttention(Attention):
    """Attention with a learned product of query and key, `score(q, k) = qᵀ W k`.

    Luong's "general": the matrix learns which part of a key a query asks for, so the two may
    differ in width. It costs D_query · D_key weights, and a matrix product per key.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, "general".

    Args:
        dropout: Share of the weights that is dropped in training.
        kernel_initializer: Initializer of W.

    Call arguments and returns: as in `Attention`.

    >>> import numpy as np
    >>> layer = BilinearAttention()
    >>> context, _ = layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(layer.key_projection.kernel.shape)
    ((2, 3, 5), (5, 4))
    """

    def __init__(self, dropout=0.0, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(dropout, **kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        self.key_projection = Dense(
            query_shape[-1],
            use_bias=False,
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="key_projection",
        )
        self.key_projection.build(key_shape or value_shape)

    def prepare(self, key):
        return self.key_projection(key)  # (B, S, D_query)

    def score(self, query, key):
        return ops.matmul(query, ops.swapaxes(key, 1, 2))  # (B, T, S)

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "kernel_initializer": initializer}


@keras.saving.register_keras_serializable("keras_plm")
class CosineAttention(DotProductAttention):
    """Attention by the cosine of query and key, divided by a temperature.

    Only directions count, so frequent or long vectors have no advantage. Cosines lie between -1
    and 1, where a softmax over many keys is nearly flat: sharpen it with a temperature below 1, or
    have the temperature learned, as the Neural Turing Machine does with its key strength.

    Reference: Graves et al. 2014, arXiv 1410.5401, section 3.3.1, equations 5 and 6.

    Differs from the paper: the key strength is one weight, or a constant, instead of an output of
    the controller at every step.

    Args:
        temperature: What cosines are divided by; where the learned one begins.
        learn_temperature: If True, the temperature is a weight (its logarithm, so that it stays
            positive).
        dropout: Share of the weights that is dropped in training.

    Call arguments and returns: as in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width, or the temperature is not positive.

    >>> import numpy as np
    >>> query, value = np.array([[[2.0, 0.0]]]), np.array([[[5.0, 0.0], [0.0, 9.0]]])
    >>> _, weights = CosineAttention(temperature=0.5)(query=query, value=value)
    >>> [round(float(w), 3) for w in weights[0, 0]]
    [0.881, 0.119]
    """

    def __init__(self, temperature=1.0, learn_temperature=False, dropout=0.0, **kwargs):
        super().__init__(dropout, **kwargs)
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
        self.temperature = temperature
        self.learn_temperature = learn_temperature

    def build(self, query_shape, value_shape, key_shape=None):
        if self.learn_temperature:
            self.log_temperature = self.add_weight(
                name="log_temperature",
                shape=(),
                initializer=keras.initializers.Constant(math.log(self.temperature)),
            )

    def prepare(self, key):
        return _unit_length(key)

    def score(self, query, key):
        cosine = super().score(_unit_length(query), key)
        if self.learn_temperature:
            return cosine * ops.exp(-self.log_temperature)
        return cosine / self.temperature

    def get_config(self):
        config = {"temperature": self.temperature, "learn_temperature": self.learn_temperature}
        return {**super().get_config(), **config}


def _unit_length(x):
    """Vectors divided by their lengths; in float32, because half precision loses small squares."""
    wide = ops.cast(x, "float32")
    squares = ops.sum(ops.square(wide), axis=-1, keepdims=True)
    return ops.cast(wide * ops.rsqrt(ops.maximum(squares, 1e-12)), x.dtype)


@keras.saving.register_keras_serializable("keras_plm")
class AdditiveAttention(Attention):
    """Attention scored by a small network, `score(q, k) = vᵀ tanh(W q + U k)`.

    The first attention of translation, also called MLP or concat. Queries and keys may differ in
    width. It holds a vector for every pair of query and key, so it takes `units` times the memory
    of a product.

    Reference: Bahdanau et al. 2015, arXiv 1409.0473, section 3.1 and appendix A.1.2.

    Differs from the paper: kernels begin as `kernel_initializer` says, not near zero.

    Args:
        units: Width of the hidden layer.
        dropout: Share of the weights that is dropped in training.
        kernel_initializer: Initializer of W, U and v.

    Call arguments and returns: as in `Attention`.

    Raises:
        ValueError: If `units` is less than 1.

    >>> import numpy as np
    >>> layer = AdditiveAttention(units=6)
    >>> context, weights = layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 5), (2, 3, 7))
    """

    def __init__(self, units, dropout=0.0, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(dropout, **kwargs)
        if units < 1:
            raise ValueError(f"`units` must be 1 or more. Received: units={units}")
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        def dense(name):
            return Dense(
                self.units,
                use_bias=False,
                kernel_initializer=self.kernel_initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        self.query_projection = dense("query_projection")
        self.query_projection.build(query_shape)
        self.key_projection = dense("key_projection")
        self.key_projection.build(key_shape or value_shape)
        self.score_kernel = self.add_weight(
            name="score_kernel", shape=(self.units, 1), initializer=self.kernel_initializer.clone()
        )

    def prepare(self, key):
        return self.key_projection(key)  # (B, S, units)

    def score(self, query, key):
        query = self.query_projection(query)  # (B, T, units)
        hidden = ops.tanh(query[:, :, None] + key[:, None])  # (B, T, S, units)
        return ops.matmul(hidden, self.score_kernel)[..., 0]  # (B, T, S)

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "units": self.units, "kernel_initializer": initializer}


@keras.saving.register_keras_serializable("keras_plm")
class LocationAttention(Attention):
    """Attention by place: the query alone says which positions to read, `score(q, s) = (W q)_s`.

    Keys are not looked at. It cannot read beyond the length that it was made for.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, equation 8.

    Args:
        max_source_length: Number of source positions there are weights for.
        dropout: Share of the weights that is dropped in training.

    Call arguments and returns: as in `Attention`.

    Raises:
        ValueError: If there are more keys than `max_source_length`.

    >>> import numpy as np
    >>> layer = LocationAttention(max_source_length=8)
    >>> tuple(layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))[1].shape)
    (2, 3, 7)
    """

    def __init__(self, max_source_length, dropout=0.0, **kwargs):
        super().__init__(dropout, **kwargs)
        self.max_source_length = max_source_length

    def build(self, query_shape, value_shape, key_shape=None):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.max_source_length, query_shape[-1]),
            initializer="glorot_uniform",
        )

    def score(self, query, key):
        length = key.shape[1]
        if length is not None and length > self.max_source_length:
            raise ValueError(
                f"This layer has weights for {self.max_source_length} source positions. "
                f"Received: {length} keys"
            )
        # `take` of a range, because JAX cannot slice by a length it does not know.
        rows = ops.take(self.kernel, ops.arange(ops.shape(key)[1]), axis=0)  # (S, D_query)
        return ops.matmul(query, ops.transpose(rows))  # (B, T, S)

    def get_config(self):
        return {**super().get_config(), "max_source_length": self.max_source_length}
