"""Multi-head attention, fused and explicit, with a cache for decoding step by step.

Shapes: B batch, T target steps, S source steps, D width, N heads, H = D / N head width.
"""

import math

import keras
from keras import ops

from keras_plm.layers._fused_attention import (
    fused_attention,
    fused_is_slow,
    scaled_scores,
    write_cache,
)
from keras_plm.layers._fused_layers import Dense, Dropout
from keras_plm.layers.attention import check_masks, combine_masks, softmax


@keras.saving.register_keras_serializable("keras_plm")
class MultiHeadAttention(keras.layers.Layer):
    """Several scaled dot-product attentions side by side, each on its own projections.

    Two paths compute the same numbers. The fused path hands everything to
    the backend's kernel; the explicit path writes out the softmax and is taken when the
    weights are asked for or must be dropped. Self-attention projects query, key and value
    with one matrix product; a layer whose first call names a `value` has three.

    To decode step by step, give a `cache` with its `cache_index`; to ask another sequence step by
    step, give what `keys_and_values` made of it as `cache`, without an index.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2.

    Args:
        num_heads: Number of heads N; must divide `hidden_dim`.
        hidden_dim: Width D of the projections and of the output.
        dropout: Share of the attention weights that is dropped in training. It forces the
            explicit path in training only.
        use_bias: If False, the projections have no biases, as in the original Transformer.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        query: (B, T, D_query).
        value: (B, S, D_value); the query itself when omitted (self-attention).
        key: (B, S, D_key); `value` when omitted.
        padding_mask: (B, S), True at real source positions.
        attention_mask: (B, T, S) or (T, S), True where query t may look at key s.
        causal: If True, query t sees keys 0 ... t only.
        cache: (B, 2, S_max, N, H), keys and values of the steps so far, for decoding. On torch it
            is written to in place.
        cache_index: Number of steps already in `cache`; the call writes behind them. When omitted,
            `cache` is read as it is, all of it.
        return_weights: If True, also return the attention weights.

    Returns:
        (B, T, D); then, each if asked for, the weights (B, N, T, S) and the written cache.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, `cache_index` comes without
            `cache`, or a mask does not fit.

    >>> import numpy as np
    >>> layer = MultiHeadAttention(num_heads=2, hidden_dim=6)
    >>> output, weights = layer(query=np.ones((1, 3, 6)), causal=True, return_weights=True)
    >>> tuple(output.shape), tuple(weights.shape), round(float(weights[0, 0, 0, 2]), 3)
    ((1, 3, 6), (1, 2, 3, 3), 0.0)
    """

    def __init__(
        self,
        num_heads,
        hidden_dim,
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        **kwargs,
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
        return [self._heads(x) for x in (query, key, value)]

    def _heads(self, x):
        """(B, S, D) -> (B, S, N, H)."""
        head_dim = self.hidden_dim // self.num_heads
        return ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, head_dim))

    def keys_and_values(self, value, key=None):
        """Another sequence as a `cache` to read: (B, S, D_value) -> (B, 2, S, N, H).

        Raises:
            ValueError: If the layer was not built with a `value`.
        """
        if not self.built or self.fused_projection:
            raise ValueError(
                "A layer that reads another sequence has projections of its own for it: build it "
                "with a first call that names a `value`. Received: a layer "
                + ("of self-attention" if self.built else "that is not built")
            )
        key = value if key is None else key
        return ops.stack([self._heads(self.key(key)), self._heads(self.value(value))], axis=1)

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
        if cache is None and cache_index is not None:
            raise ValueError(
                "`cache_index` is a place in `cache`. "
                f"Received: cache=None, cache_index={cache_index}"
            )
        if isinstance(cache_index, int):
            last = (cache.shape[2] or math.inf) - (query.shape[1] or 1)
            if not 0 <= cache_index <= last:
                raise ValueError(
                    f"A `cache` of {cache.shape[2]} places has none for {query.shape[1]} more "
                    f"behind `cache_index`. Received: cache_index={cache_index}"
                )
        if cache is not None and cache_index is None:
            query = self._heads(self.query(query))
            key, value = cache[:, 0], cache[:, 1]  # (B, S, N, H)
        else:
            value = query if value is None else value
            query, key, value = self._project(query, value, value if key is None else key)
        if cache_index is not None:
            cache = write_cache(cache, ops.stack([key, value], axis=1), cache_index)
            key, value = cache[:, 0], cache[:, 1]  # (B, S_max, N, H)
        check_masks(padding_mask, attention_mask, query.shape[0], query.shape[1], key.shape[1])
        causal_steps = None
        if causal or cache_index is not None:
            first = 0 if cache_index is None else cache_index
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

        extras = [weights] if return_weights else []
        extras += [cache] if cache_index is not None else []
        return (output, *extras) if extras else output

    def _explicit(self, query, key, value, mask, training):
        # Heads before steps: (B, N, T, H), (B, N, S, H), (B, N, S, H)
        query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        weights = softmax(scaled_scores(query, key, mask))  # (B, N, T, S)
        dropped = self.weights_dropout(weights, training=True) if training else weights
        context = ops.matmul(dropped, value)  # (B, N, T, H)
        return ops.transpose(context, (0, 2, 1, 3)), weights  # (B, T, N, H)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
