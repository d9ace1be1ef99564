"""The Transformer block and the stack of blocks that BERT and GPT are made of.

Shapes: B batch, T steps, D width, N heads, H = D / N head width, L blocks.
"""

import keras
from keras import ops

from keras_plm.layers.attention import MultiHeadAttention
from keras_plm.layers.fast import Dense, Dropout, LayerNormalization

ACTIVATIONS = {
    # Google's first BERT release and Hugging Face's "gelu"; up to 4.7e-4 from the other.
    "gelu_erf": lambda x: ops.gelu(x, approximate=False),
    # GPT, Google's BERT code since February 2019, KerasHub.
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
}


@keras.saving.register_keras_serializable("keras_plm")
class FeedForward(keras.layers.Layer):
    """Two dense layers at every position, `W2 f(W1 x + b1) + b2`.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.3, equation 2.

    Args:
        intermediate_dim: Width between the two layers (4 D in the papers).
        activation: `"gelu_erf"`, `"gelu_tanh"` or `"relu"`.
        kernel_initializer: Initializer of both kernels.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D).

    Raises:
        ValueError: If the activation is unknown.

    >>> import numpy as np
    >>> tuple(FeedForward(intermediate_dim=8)(np.ones((2, 3, 4))).shape)
    (2, 3, 4)
    """

    def __init__(
        self,
        intermediate_dim,
        activation="gelu_erf",
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"`activation` must be one of {sorted(ACTIVATIONS)}. Received: {activation!r}"
            )
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        def dense(units, name):
            initializer = self.kernel_initializer.clone()
            return Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

        self.intermediate = dense(self.intermediate_dim, "intermediate")
        self.intermediate.build(input_shape)
        self.output_projection = dense(input_shape[-1], "output")
        self.output_projection.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, inputs):
        return self.output_projection(ACTIVATIONS[self.activation](self.intermediate(inputs)))

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable("keras_plm")
class TransformerBlock(keras.layers.Layer):
    """Self-attention, then a feed-forward network, each with a residual and a layer norm.

    Post-norm, as in the papers, normalises after the residual: `LN(x + f(x))`. Pre-norm keeps
    the residual path clean: `x + f(LN(x))`; it trains with less warm-up but leaves its outputs
    unnormalised, so a stack of them ends in one more norm.

    Reference: post-norm: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; pre-norm: Xiong
    et al. 2020, arXiv 2002.04745.

    Args:
        num_heads: Number of attention heads N.
        hidden_dim: Width D.
        intermediate_dim: Width of the feed-forward network.
        dropout: Share dropped after each of the two parts.
        attention_dropout: Share of attention weights dropped; `dropout` when omitted.
        pre_norm: If True, normalise before each part instead of after.
        activation: Of the feed-forward network, see `FeedForward`.
        norm_epsilon: Added to the variance in the layer norms.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        inputs: (B, T, D).
        padding_mask, attention_mask, causal, cache, cache_index, return_weights: as in
            `MultiHeadAttention`.

    Returns:
        (B, T, D); then, each if asked for, the weights (B, N, T, T) and the updated cache.

    >>> import numpy as np
    >>> block = TransformerBlock(num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> tuple(block(np.ones((2, 3, 4))).shape)
    (2, 3, 4)
    """

    def __init__(
        self,
        num_heads,
        hidden_dim,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=None,
        pre_norm=False,
        activation="gelu_erf",
        norm_epsilon=1e-12,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = dropout if attention_dropout is None else attention_dropout
        self.pre_norm = pre_norm
        self.activation = activation
        self.norm_epsilon = norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

        options = {"dtype": self.dtype_policy}
        self.attention = MultiHeadAttention(
            num_heads,
            hidden_dim,
            dropout=self.attention_dropout,
            kernel_initializer=self.kernel_initializer,
            name="attention",
            **options,
        )
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            kernel_initializer=self.kernel_initializer,
            name="feed_forward",
            **options,
        )
        norm = {"epsilon": norm_epsilon, **options}
        self.attention_norm = LayerNormalization(name="attention_norm", **norm)
        self.feed_forward_norm = LayerNormalization(name="feed_forward_norm", **norm)
        self.attention_drop = Dropout(dropout, name="attention_drop", **options)
        self.feed_forward_drop = Dropout(dropout, name="feed_forward_drop", **options)

    def build(self, inputs_shape):
        if inputs_shape[-1] != self.hidden_dim:
            raise ValueError(
                "The residual path needs inputs as wide as `hidden_dim`. "
                f"Received: inputs.shape={tuple(inputs_shape)}, hidden_dim={self.hidden_dim}"
            )
        self.attention.build(inputs_shape)
        self.attention_norm.build(inputs_shape)
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm.build(inputs_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        causal=False,
        cache=None,
        cache_index=None,
        return_weights=False,
        training=None,
    ):
        x = inputs
        attended = self.attention(
            query=self.attention_norm(x) if self.pre_norm else x,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            causal=causal,
            cache=cache,
            cache_index=cache_index,
            return_weights=return_weights,
            training=training,
        )
        attended, *extras = attended if isinstance(attended, tuple) else (attended,)
        if training:
            attended = self.attention_drop(attended, training=True)
        x = x + attended
        if not self.pre_norm:
            x = self.attention_norm(x)
        changed = self.feed_forward(self.feed_forward_norm(x) if self.pre_norm else x)
        if training:
            changed = self.feed_forward_drop(changed, training=True)
        x = x + changed
        if not self.pre_norm:
            x = self.feed_forward_norm(x)
        return (x, *extras) if extras else x

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "pre_norm": self.pre_norm,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable("keras_plm")
class TransformerStack(keras.layers.Layer):
    """L Transformer blocks that hand back the output of every block.

    Feature-based transfer reads all layers, so the stack returns them all; unused ones cost
    nothing but the memory they hold.

    Args:
        num_layers: Number of blocks L.
        num_heads, hidden_dim, intermediate_dim, dropout, attention_dropout, pre_norm,
        activation, norm_epsilon, kernel_initializer: as in `TransformerBlock`.

    Call arguments:
        inputs: (B, T, D), the embeddings.
        padding_mask, attention_mask, causal, cache_index, return_weights: as in
            `MultiHeadAttention`.
        cache: (B, L, 2, S_max, N, H), see `initial_cache`.

    Returns:
        A list of L + 1 tensors (B, T, D), lowest first: the inputs, then each block's output. With
        `pre_norm` the last has passed the final norm. If asked for, also the attention weights,
        a list of L tensors (B, N, T, T), and the updated cache.

    >>> import numpy as np
    >>> stack = TransformerStack(num_layers=2, num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> layers = stack(np.ones((1, 3, 4)))
    >>> len(layers), tuple(layers[-1].shape)
    (3, (1, 3, 4))
    """

    def __init__(
        self,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        dropout=0.0,
        attention_dropout=None,
        pre_norm=False,
        activation="gelu_erf",
        norm_epsilon=1e-12,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.block_options = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "pre_norm": pre_norm,
            "activation": activation,
            "norm_epsilon": norm_epsilon,
            "kernel_initializer": keras.initializers.get(kernel_initializer),
        }
        self.blocks = [
            TransformerBlock(**self.block_options, dtype=self.dtype_policy, name=f"block_{i}")
            for i in range(num_layers)
        ]
        self.final_norm = None
        if pre_norm:
            self.final_norm = LayerNormalization(
                epsilon=norm_epsilon, dtype=self.dtype_policy, name="final_norm"
            )

    def build(self, inputs_shape):
        for block in self.blocks:
            block.build(inputs_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

    def initial_cache(self, batch_size, max_length):
        """An empty cache (B, L, 2, S_max, N, H) in the compute type, for step-by-step decoding."""
        heads = self.block_options["num_heads"]
        head_dim = self.block_options["hidden_dim"] // heads
        shape = (batch_size, self.num_layers, 2, max_length, heads, head_dim)
        return ops.zeros(shape, dtype=self.compute_dtype)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        causal=False,
        cache=None,
        cache_index=None,
        return_weights=False,
        training=None,
    ):
        layers, weights, caches = [inputs], [], []
        for i, block in enumerate(self.blocks):
            output = block(
                layers[-1],
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=causal,
                cache=None if cache is None else cache[:, i],
                cache_index=cache_index,
                return_weights=return_weights,
                training=training,
            )
            output, *extras = output if isinstance(output, tuple) else (output,)
            layers.append(output)
            if cache is not None:
                caches.append(extras.pop())
            if return_weights:
                weights.append(extras.pop())
        if self.final_norm is not None:
            layers[-1] = self.final_norm(layers[-1])
        extras = [weights] if return_weights else []
        extras += [ops.stack(caches, axis=1)] if cache is not None else []
        return (layers, *extras) if extras else layers

    def get_config(self):
        initializer = keras.initializers.serialize(self.block_options["kernel_initializer"])
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            **self.block_options,
            "kernel_initializer": initializer,
        }
