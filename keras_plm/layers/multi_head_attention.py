"""Multi-head attention: a pure function of arrays, and the layer that holds its weights.

Shapes: B batch, T target steps, S source steps, D width, N heads, H = D / N head width.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.attention import (
    fused_attention,
    fused_is_slow,
    kernel_drops,
    scaled_scores,
    write_cache,
)
from keras_plm.layers._fused.dense import Dense, dense
from keras_plm.layers._fused.dropout import Dropout, dropout
from keras_plm.layers.attention import softmax
from keras_plm.layers.masks import visible


class AttentionOutput(NamedTuple):
    """Result of `multi_head_attention`.

    Attributes:
        output: (B, T, D).
        weights: (B, N, T, S) before dropout, or `None` without `return_weights`.
        cache: (B, 2, S_max, N, H) with the new keys and values, or `None` without a `cache_index`.
    """

    output: Any
    weights: Any = None
    cache: Any = None


def multi_head_attention(
    weights,
    query,
    value=None,
    key=None,
    mask=None,
    *,
    num_heads,
    cache=None,
    cache_index=None,
    return_weights=False,
    dropout_rate=0.0,
    seed=None,
    training=False,
):
    """Computes scaled dot-product attention of N heads, as a pure function of arrays.

        Q = q W_Q + b_Q,  K = k W_K + b_K,  V = v W_V + b_V,  each split in N heads of width H,
        A = softmax(Q K^T / sqrt(H) + M),  M = 0 where the mask is True, else a low floor,
        output = concat_heads(dropout(A) V) W_O + b_O.

    The backend's fused kernel computes the same without A. It is used unless A is returned, has
    dropout that the kernel does not apply (see `kernel_drops`), or matrix products are faster.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.

    Args:
        weights: A dict of the arguments of `dense`: `"output"`, and `"query_key_value"` with a
            kernel (D_query, 3 D), or `"query"`, `"key"` and `"value"`. A projection may be a
            function of the inputs instead of a dict, such as a quantized layer.
        query: (B, T, D_query).
        value: (B, S, D_value); the query itself when omitted.
        key: (B, S, D_key); `value` when omitted.
        mask: Boolean, broadcastable to (B, T, S), True where query t may attend to key s.
        num_heads: Number of heads N.
        cache: (B, 2, S_max, N, H), keys and values. With a `cache_index`, those of `value` are
            written to it, on torch in place; without it, `cache` is read instead of `value`.
        cache_index: Number of steps in `cache`.
        return_weights: If True, the result has the attention weights A.
        dropout_rate: Fraction of A dropped in training.
        seed: Seed of the dropout, as in `dropout`.
        training: If True, apply dropout and expect a gradient.

    Returns:
        An `AttentionOutput`.
    """
    if cache is not None and cache_index is None:
        query = split_heads(project(weights["query"], query), num_heads)
        key, value = cache[:, 0], cache[:, 1]
    else:
        query, key, value = _project_all(weights, num_heads, query, value, key)
    if cache_index is not None:
        cache = write_cache(cache, ops.stack([key, value], axis=1), cache_index)
        key, value = cache[:, 0], cache[:, 1]  # (B, S_max, N, H)
    mask = None if mask is None else mask[:, None]  # (B, 1, T, S)
    drops = training and dropout_rate > 0
    attention = None
    explicit = return_weights or (drops and not kernel_drops(query, seed))
    if explicit or fused_is_slow(query, key, training):
        attention = attention_weights(query, key, mask)
        dropped = dropout(attention, dropout_rate, seed) if drops else attention
        context = weighted_sum(dropped, value)  # (B, T, N, H)
    else:
        context = fused_attention(query, key, value, mask, dropout_rate if drops else 0.0)
    width = num_heads * context.shape[-1]
    merged = ops.reshape(context, (-1, _steps(context), width))  # (B, T, D)
    return AttentionOutput(
        project(weights["output"], merged),
        attention if return_weights else None,
        cache if cache_index is not None else None,
    )


def project(weights, inputs):
    """Computes `x W + b`; `weights` are arguments of `dense` or a function of the inputs."""
    return dense(inputs, **weights) if isinstance(weights, dict) else weights(inputs)


def split_heads(x, num_heads):
    """Splits the width in heads: (B, S, D) -> (B, S, N, H)."""
    return ops.reshape(x, (-1, _steps(x), num_heads, x.shape[-1] // num_heads))


def _steps(x):
    """Returns the length of the second axis, a tensor if it is unknown."""
    return ops.shape(x)[1] if x.shape[1] is None else x.shape[1]


def keys_and_values(weights, value, key=None, *, num_heads):
    """Computes a `cache` of another sequence: (B, S, D_value) -> (B, 2, S, N, H)."""
    pairs = (("key", value if key is None else key), ("value", value))
    return ops.stack([split_heads(project(weights[n], x), num_heads) for n, x in pairs], axis=1)


def attention_weights(query, key, mask=None):
    """Computes softmax(Q K^T / sqrt(H) + M): (B, T, N, H) and (B, S, N, H) -> (B, N, T, S)."""
    query, key = ops.transpose(query, (0, 2, 1, 3)), ops.transpose(key, (0, 2, 1, 3))
    return softmax(scaled_scores(query, key, mask))


def weighted_sum(weights, value):
    """Computes A V: (B, N, T, S) and (B, S, N, H) -> (B, T, N, H)."""
    context = ops.matmul(weights, ops.transpose(value, (0, 2, 1, 3)))
    return ops.transpose(context, (0, 2, 1, 3))


def _project_all(weights, num_heads, query, value, key):
    """Computes queries (B, T, N, H), keys and values (B, S, N, H)."""
    if "query_key_value" not in weights:
        value = query if value is None else value
        key = value if key is None else key
        pairs = (("query", query), ("key", key), ("value", value))
        projected = [project(weights[name], x) for name, x in pairs]
    elif value is None and key is None:
        projected = project(weights["query_key_value"], query)  # (B, T, 3 D)
        width = projected.shape[-1] // (3 * num_heads)
        shape = (-1, _steps(projected), 3, num_heads, width)
        return ops.unstack(ops.reshape(projected, shape), 3, axis=2)
    else:
        value = query if value is None else value
        sequences = (query, value if key is None else key, value)
        projected = [
            ops.split(project(weights["query_key_value"], x), 3, axis=-1)[i]
            for i, x in enumerate(sequences)
        ]
    return [split_heads(x, num_heads) for x in projected]


@keras.saving.register_keras_serializable("keras_plm")
class MultiHeadAttention(keras.layers.Layer):
    """Several scaled dot-product attentions in parallel, each on its own projections.

    The layer holds the weights of `multi_head_attention`, which has the equations. Self-attention
    projects query, key and value with one matrix product; a layer whose first call has a `value`
    uses three. A call returns the output only. `run` also returns attention weights, and reads and
    writes a cache for step-by-step decoding.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.

    Args:
        num_heads: Number of heads N; must divide `hidden_dim`.
        hidden_dim: Width D of the projections and of the output.
        dropout: Fraction of the attention weights dropped in training. Training then uses the
            explicit path instead of the fused kernel, except on a GPU under torch.
        use_bias: If False, the projections have no biases, as in the original Transformer.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value); the query itself when omitted (self-attention).
        key: (B, S, D_key); `value` when omitted.
        padding_mask: (B, S), True at real source positions. When omitted, the mask that Keras
            attached to the source, if any.
        attention_mask: (B, T, S) or (T, S), True where query t may attend to key s. The output of a
            query that may attend to no key has a wrong gradient under torch: give it weight 0.
        causal: If True, query t attends only to keys 0 ... t.

    Returns:
        (B, T, D).

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, or a mask has the wrong shape.

    >>> import numpy as np
    >>> layer, x = MultiHeadAttention(num_heads=2, hidden_dim=6), np.ones((1, 3, 6))
    >>> tuple(layer(query=x, causal=True).shape)
    (1, 3, 6)
    >>> weights = layer.run(query=x, causal=True, return_weights=True).weights
    >>> tuple(weights.shape), round(float(weights[0, 0, 0, 2]), 3)
    ((1, 2, 3, 3), 0.0)
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: str | dict | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if num_heads < 1 or hidden_dim % num_heads:
            raise ValueError(
                "`num_heads` must divide `hidden_dim`. "
                f"Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
            )
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def _dense(self, units, name):
        return Dense(
            units,
            use_bias=self.use_bias,
            # A clone, because Keras warns when one initializer object makes several weights.
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

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

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
    ) -> Tensor:
        if padding_mask is None:  # Keras sets `mask` if the query is the only tensor
            own = query_mask if mask is None else mask
            padding_mask = own if value is None else value_mask
        mask = visible(
            query, query if value is None else value, padding_mask, attention_mask, causal
        )
        return multi_head_attention(
            self.arrays(), query, value, key, mask, **self._options(training)
        ).output

    def run(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        cache: Tensor | None = None,
        cache_index: int | Tensor | None = None,
        return_weights: bool = False,
    ) -> AttentionOutput:
        """Computes attention in inference, with attention weights and a cache.

        Args:
            query, value, key, padding_mask, attention_mask, causal: As in a call.
            cache: (B, 2, S_max, N, H), keys and values of earlier steps; torch writes it in
                place. Or the result of `keys_and_values` for another sequence.
            cache_index: Number of steps in `cache`; new steps are written after them. When
                omitted, all of `cache` is read and nothing is written.
            return_weights: If True, the result has the attention weights.

        Returns:
            An `AttentionOutput`.

        Raises:
            ValueError: If the layer is not built, a mask does not fit, or `cache_index` comes
                without a `cache` or lies outside it.
        """
        weights = self.arrays()
        query, value, key, cache = self._as_tensors(query, value, key, cache)
        check_cache(query, cache, cache_index)
        mask = visible(
            query,
            (query if value is None else value) if cache is None else cache[:, 0],
            padding_mask,
            attention_mask,
            causal or cache_index is not None,
            first=0 if cache_index is None else cache_index,
        )
        return multi_head_attention(
            weights,
            query,
            value,
            key,
            mask,
            cache=cache,
            cache_index=cache_index,
            return_weights=return_weights,
            **self._options(training=False),
        )

    def keys_and_values(self, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Computes a `cache` of another sequence: (B, S, D_value) -> (B, 2, S, N, H).

        Raises:
            ValueError: If the layer was not built with a `value`.
        """
        if not self.built or self.fused_projection:
            raise ValueError(
                "A layer needs separate projections to read another sequence: build it with a "
                "first call that has a `value`. Received: a layer "
                + ("of self-attention" if self.built else "that is not built")
            )
        value, key = self._as_tensors(value, key)
        return keys_and_values(self.arrays(), value, key, num_heads=self.num_heads)

    def arrays(self) -> dict[str, Any]:
        """Returns the `weights` of `multi_head_attention`, a quantized projection as its layer.

        Raises:
            ValueError: If the layer is not built.
        """
        if not self.built:
            raise ValueError(
                "The layer must be built: call it once first. Received: a layer that is not built"
            )
        names = ["query_key_value"] if self.fused_projection else ["query", "key", "value"]
        layers = {**{name: getattr(self, name) for name in names}, "output": self.output_projection}
        return {name: layer.arrays() for name, layer in layers.items()}

    def _options(self, training):
        options = {"num_heads": self.num_heads, "training": bool(training)}
        if training:
            rate, seed = self.weights_dropout.rate, self.weights_dropout.next_seed()
            options |= {"dropout_rate": rate, "seed": seed}
        return options

    def _as_tensors(self, *arrays):
        return [
            None if x is None else ops.convert_to_tensor(x, dtype=self.compute_dtype)
            for x in arrays
        ]

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def check_cache(query, cache, cache_index):
    """Raises unless a cache has room for the steps of a query.

    Args:
        query: (B, T, ...).
        cache: (B, 2, S_max, N, H), or `None`.
        cache_index: Number of steps in it, an integer or a tensor, or `None`.
    """
    if cache is None and cache_index is not None:
        raise ValueError(
            "`cache_index` must be a place in `cache`. "
            f"Received: cache=None, cache_index={cache_index}"
        )
    if isinstance(cache_index, int):
        last = (cache.shape[2] or math.inf) - (query.shape[1] or 1)
        if not 0 <= cache_index <= last:
            raise ValueError(
                f"A `cache` of {cache.shape[2]} steps must have room for {query.shape[1]} more "
                f"after `cache_index`. Received: cache_index={cache_index}"
            )
