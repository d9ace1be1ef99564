"""Attention: a score for every pair of query and key, a mask, a softmax, a weighted sum.

Shapes: B batch, T target steps, S source steps, D width.
"""

import math

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.attention import additive_mask
from keras_plm.layers._fused.dense import Dense
from keras_plm.layers._fused.dropout import Dropout
from keras_plm.layers._fused.softmax import float32_softmax
from keras_plm.layers.masks import check_masks, visible


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last axis that gives masked positions a weight of exactly zero.

    Args:
        scores: (..., S) unnormalised scores.
        mask: Boolean, broadcastable to `scores`, True where a query may attend; or `None`.

    Returns:
        (..., S) weights in the type of `scores`. Each row sums to 1. A fully masked row has equal
        weights, never NaN.

    >>> import numpy as np
    >>> from keras import ops
    >>> weights = masked_softmax(np.zeros((1, 3)), np.array([[True, True, False]]))
    >>> ops.convert_to_numpy(weights).tolist()
    [[0.5, 0.5, 0.0]]
    """
    # In float32: half precision has no room for a floor below all scores.
    wide = ops.cast(scores, "float32")
    if mask is not None:
        # Added, because the small mask broadcasts: one pass over the scores, `where` takes two.
        wide = wide + additive_mask(mask, wide.dtype)
    return ops.cast(softmax(wide), scores.dtype)


def softmax(scores):
    """Computes a softmax over the last axis in float32; the weights have the type of `scores`.

    A single key is allowed; Keras' softmax warns about it.
    """
    return 0 * scores + 1 if scores.shape[-1] == 1 else float32_softmax(scores)


@keras.saving.register_keras_serializable("keras_plm")
class Attention(keras.layers.Layer):
    """Single-head attention around one method, `score(query, key)`.

    A subclass defines `score`. Mask, softmax and weighted sum are the same for all scores.
    `prepare` computes the part of a score that depends only on the keys. A decoder calls it once
    and `attend` at every step.

    Args:
        dropout: Fraction of the weights dropped in training.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value), the vectors to sum.
        key: (B, S, D_key), the vectors to score; `value` when omitted.
        padding_mask: (B, S), True at real source positions. When omitted, the mask that Keras
            attached to `value`, if any.
        attention_mask: (B, T, S) or (T, S), True where query t may attend to key s.
        causal: If True, query t attends only to keys 0 ... t.

    Returns:
        `(context, weights)`: (B, T, D_value) and (B, T, S). A fully masked row gives the mean.

    Raises:
        ValueError: If a mask has the wrong shape or type.

    >>> import numpy as np
    >>> from keras import ops
    >>> class Nearest(Attention):
    ...     def score(self, query, key):
    ...         return -ops.sum(ops.square(query[:, :, None] - key[:, None]), axis=-1)
    >>> query, value = np.array([[[9.0]]]), np.array([[[1.0], [9.0]]])
    >>> context, weights = Nearest()(query=query, value=value)
    >>> [round(float(w), 3) for w in weights[0, 0]]
    [0.0, 1.0]
    """

    def __init__(self, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout = dropout
        self.weights_dropout = Dropout(dropout, dtype=self.dtype_policy, name="weights_dropout")

    def build(self, query_shape, value_shape, key_shape=None):
        """Creates the weights of the score; by default there are none."""

    def prepare(self, key: Tensor) -> Tensor:
        """Converts keys to the form that `score` takes: (B, S, D_key) -> (B, S, ...)."""
        return key

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Computes scores (B, T, S) of queries (B, T, D_query) and prepared keys."""
        raise NotImplementedError(f"{type(self).__name__} must define `score(query, key)`.")

    def attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Computes `(context, weights)` for prepared keys and a combined mask."""
        weights = masked_softmax(self.score(query, key), mask)  # (B, T, S)
        dropped = self.weights_dropout(weights, training=True) if training else weights
        return ops.matmul(dropped, value), weights

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        training: bool | None = None,
        value_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        key = value if key is None else key
        padding_mask = value_mask if padding_mask is None else padding_mask
        mask = visible(query, value, padding_mask, attention_mask, causal)
        return self.attend(query, value, self.prepare(key), mask, training)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


@keras.saving.register_keras_serializable("keras_plm")
class DotProductAttention(Attention):
    """Attention whose score is the dot product, `score(q, k) = q · k`.

    It has no weights. Queries and keys must have the same width. Use it for vectors of one space;
    prefer `ScaledDotProductAttention` for wide vectors.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, "dot".

    Args:
        dropout: Fraction of the weights dropped in training.

    Call arguments and returns: As in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width.

    >>> import numpy as np
    >>> layer = DotProductAttention()
    >>> context, weights = layer(query=np.ones((2, 3, 5)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 5), (2, 3, 7))
    """

    def score(self, query: Tensor, key: Tensor) -> Tensor:
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

    The scale keeps the variance of the scores near 1 for any width, so the softmax does not
    saturate.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1, equation 1.

    Args:
        dropout: Fraction of the weights dropped in training.

    Call arguments and returns: As in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width.

    >>> import numpy as np
    >>> layer = ScaledDotProductAttention()
    >>> mask = np.array([[True, True, False]])
    >>> _, weights = layer(query=np.ones((1, 1, 4)), value=np.ones((1, 3, 4)), padding_mask=mask)
    >>> [round(float(w), 3) for w in weights[0, 0]]
    [0.5, 0.5, 0.0]
    """

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return super().score(query * query.shape[-1] ** -0.5, key)


@keras.saving.register_keras_serializable("keras_plm")
class BilinearAttention(Attention):
    """Attention with a learned product of query and key, `score(q, k) = qᵀ W k`.

    Luong's "general" score. Queries and keys may differ in width. It has D_query · D_key weights
    and takes one matrix product per key.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, "general".

    Args:
        dropout: Fraction of the weights dropped in training.
        kernel_initializer: Initializer of W.

    Call arguments and returns: As in `Attention`.

    >>> import numpy as np
    >>> layer = BilinearAttention()
    >>> context, _ = layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(layer.key_projection.kernel.shape)
    ((2, 3, 5), (5, 4))
    """

    def __init__(
        self,
        dropout: float = 0.0,
        kernel_initializer: str | dict | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
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

    def prepare(self, key: Tensor) -> Tensor:
        return self.key_projection(key)  # (B, S, D_query)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return ops.matmul(query, ops.swapaxes(key, 1, 2))  # (B, T, S)

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "kernel_initializer": initializer}


@keras.saving.register_keras_serializable("keras_plm")
class CosineAttention(DotProductAttention):
    """Attention by the cosine of query and key, divided by a temperature.

    The score depends only on directions, not on the lengths of vectors. Cosines lie between -1
    and 1, so a softmax over many keys is nearly flat. A temperature below 1, fixed or learned,
    sharpens it; the Neural Turing Machine learns its inverse, the key strength.

    Reference: Graves et al. 2014, arXiv 1410.5401, section 3.3.1, equations 5 and 6.

    Differs from the paper: the key strength is one weight or a constant, not an output of the
    controller at every step.

    Args:
        temperature: Divisor of the cosines; the initial value of a learned temperature.
        learn_temperature: If True, the logarithm of the temperature is a weight.
        dropout: Fraction of the weights dropped in training.

    Call arguments and returns: As in `Attention`.

    Raises:
        ValueError: If queries and keys differ in width, or the temperature is not positive.

    >>> import numpy as np
    >>> query, value = np.array([[[2.0, 0.0]]]), np.array([[[5.0, 0.0], [0.0, 9.0]]])
    >>> _, weights = CosineAttention(temperature=0.5)(query=query, value=value)
    >>> [round(float(w), 3) for w in weights[0, 0]]
    [0.881, 0.119]
    """

    def __init__(
        self,
        temperature: float = 1.0,
        learn_temperature: bool = False,
        dropout: float = 0.0,
        **kwargs,
    ):
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

    def prepare(self, key: Tensor) -> Tensor:
        return _unit_length(key)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
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
    width. It computes a vector for every pair of query and key: `units` times the memory of a
    product.

    Reference: Bahdanau et al. 2015, arXiv 1409.0473, section 3.1 and appendix A.1.2.

    Differs from the paper: `kernel_initializer` sets the initial kernels, not values near zero.

    Args:
        units: Width of the hidden layer.
        dropout: Fraction of the weights dropped in training.
        kernel_initializer: Initializer of W, U and v.

    Call arguments and returns: As in `Attention`.

    Raises:
        ValueError: If `units` is less than 1.

    >>> import numpy as np
    >>> layer = AdditiveAttention(units=6)
    >>> context, weights = layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 3, 5), (2, 3, 7))
    """

    def __init__(
        self,
        units: int,
        dropout: float = 0.0,
        kernel_initializer: str | dict | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
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

    def prepare(self, key: Tensor) -> Tensor:
        return self.key_projection(key)  # (B, S, units)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        query = self.query_projection(query)  # (B, T, units)
        hidden = ops.tanh(query[:, :, None] + key[:, None])  # (B, T, S, units)
        rows = ops.reshape(hidden, (-1, self.units))  # XLA has no gradient of a product with 4 axes
        return ops.reshape(ops.matmul(rows, self.score_kernel), ops.shape(hidden)[:3])  # (B, T, S)

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "units": self.units, "kernel_initializer": initializer}


@keras.saving.register_keras_serializable("keras_plm")
class LocationAttention(Attention):
    """Attention by position: a score of the query only, `score(q, s) = (W q)_s`.

    The values of the keys have no effect. The number of source positions is limited.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.1, equation 8.

    Args:
        max_source_length: Largest number of source positions S.
        dropout: Fraction of the weights dropped in training.

    Call arguments and returns: As in `Attention`.

    Raises:
        ValueError: If there are more keys than `max_source_length`.

    >>> import numpy as np
    >>> layer = LocationAttention(max_source_length=8)
    >>> tuple(layer(query=np.ones((2, 3, 4)), value=np.ones((2, 7, 5)))[1].shape)
    (2, 3, 7)
    """

    def __init__(self, max_source_length: int, dropout: float = 0.0, **kwargs):
        super().__init__(dropout, **kwargs)
        self.max_source_length = max_source_length

    def build(self, query_shape, value_shape, key_shape=None):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.max_source_length, query_shape[-1]),
            initializer="glorot_uniform",
        )

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        self._check_length(key)
        # `take` of a range, because JAX cannot slice by an unknown length.
        rows = ops.take(self.kernel, ops.arange(ops.shape(key)[1]), axis=0)  # (S, D_query)
        return ops.matmul(query, ops.transpose(rows))  # (B, T, S)

    def _check_length(self, key):
        length = key.shape[1]
        if length is not None and length > self.max_source_length:
            raise ValueError(
                f"This layer has weights for {self.max_source_length} source positions. "
                f"Received: {length} keys"
            )

    def compute_output_spec(
        self,
        query: keras.KerasTensor,
        value: keras.KerasTensor,
        key: keras.KerasTensor | None = None,
        padding_mask: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        causal: bool = False,
        training: bool | None = None,
        value_mask: keras.KerasTensor | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        self._check_length(value if key is None else key)
        (batch, steps, _), (_, length, width) = query.shape, value.shape
        padding_mask = value_mask if padding_mask is None else padding_mask
        check_masks(padding_mask, attention_mask, batch, steps, length)
        shapes = (batch, steps, width), (batch, steps, length)
        return tuple(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)

    def get_config(self):
        return {**super().get_config(), "max_source_length": self.max_source_length}
