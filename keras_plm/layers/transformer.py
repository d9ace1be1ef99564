"""The Transformer block and the stack of blocks that BERT and GPT are made of.

Shapes: B batch, T steps, D width, N heads, H = D / N head width, L blocks.
"""

import functools

import keras
from keras import ops

from keras_plm.layers._fused_layers import Dense, Dropout, LayerNormalization, recomputed
from keras_plm.layers.multi_head_attention import MultiHeadAttention

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

    With `cross_attention` a third part stands between the two, which asks another sequence: the
    block of a decoder.

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
        attention_bias: If False, the attention's projections have no biases.
        cross_attention: If True, the block also attends to a `source`.
        pre_norm: If True, normalise before each part instead of after.
        activation: Of the feed-forward network, see `FeedForward`.
        norm_epsilon: Added to the variance in the layer norms.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        inputs: (B, T, D).
        source: (B, S, D_source), what cross attention asks.
        source_mask: (B, S), True at real source positions.
        source_cache: `cross_attention.keys_and_values(source)`, instead of `source`.
        padding_mask, attention_mask, causal, cache, cache_index, return_weights: as in
            `MultiHeadAttention`.

    Returns:
        (B, T, D); then, each if asked for, the weights (B, N, T, T), with cross attention its
        weights (B, N, T, S), and the written cache.

    Raises:
        ValueError: If the inputs are not `hidden_dim` wide, or a source is missing or has no use.

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
        attention_bias=True,
        cross_attention=False,
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
        self.attention_bias = attention_bias
        self.pre_norm = pre_norm
        self.activation = activation
        self.norm_epsilon = norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

        options = {"dtype": self.dtype_policy}
        norm = {"epsilon": norm_epsilon, **options}

        def attention(name):
            return MultiHeadAttention(
                num_heads,
                hidden_dim,
                dropout=self.attention_dropout,
                use_bias=attention_bias,
                kernel_initializer=self.kernel_initializer,
                name=name,
                **options,
            )

        self.attention = attention("attention")
        self.attention_norm = LayerNormalization(name="attention_norm", **norm)
        self.attention_drop = Dropout(dropout, name="attention_drop", **options)
        self.cross_attention = attention("cross_attention") if cross_attention else None
        if cross_attention:
            self.cross_norm = LayerNormalization(name="cross_norm", **norm)
            self.cross_drop = Dropout(dropout, name="cross_drop", **options)
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=activation,
            kernel_initializer=self.kernel_initializer,
            name="feed_forward",
            **options,
        )
        self.feed_forward_norm = LayerNormalization(name="feed_forward_norm", **norm)
        self.feed_forward_drop = Dropout(dropout, name="feed_forward_drop", **options)

    def build(self, inputs_shape, source_shape=None):
        if inputs_shape[-1] != self.hidden_dim:
            raise ValueError(
                "The residual path needs inputs as wide as `hidden_dim`. "
                f"Received: inputs.shape={tuple(inputs_shape)}, hidden_dim={self.hidden_dim}"
            )
        self.attention.build(inputs_shape)
        self.attention_norm.build(inputs_shape)
        if self.cross_attention is not None:
            self.cross_attention.build(inputs_shape, source_shape or inputs_shape)
            self.cross_norm.build(inputs_shape)
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
        source=None,
        source_mask=None,
        source_cache=None,
        training=None,
    ):
        sources = (source is not None) + (source_cache is not None)
        if sources != (self.cross_attention is not None):
            raise ValueError(
                "A block with `cross_attention` needs a `source` or its `source_cache`, any other "
                "takes none. Received: "
                f"cross_attention={self.cross_attention is not None}, {sources} sources"
            )

        def attend(attention, x, **options):
            output = attention(query=x, return_weights=return_weights, training=training, **options)
            return output if isinstance(output, tuple) else (output,)

        def residual(part, norm, drop, x):
            """`x + part(x)` with its norm before or after; and what else the part returns."""
            changed, *extras = part(norm(x) if self.pre_norm else x)
            x = x + (drop(changed, training=True) if training else changed)
            return (x if self.pre_norm else norm(x)), extras

        x, extras = residual(
            lambda x: attend(
                self.attention,
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=causal,
                cache=cache,
                cache_index=cache_index,
            ),
            self.attention_norm,
            self.attention_drop,
            inputs,
        )
        if self.cross_attention is not None:
            x, weights = residual(
                lambda x: attend(
                    self.cross_attention,
                    x,
                    value=source,
                    padding_mask=source_mask,
                    cache=source_cache,
                ),
                self.cross_norm,
                self.cross_drop,
                x,
            )
            at = 1 if return_weights else 0
            extras[at:at] = weights
        x, _ = residual(
            lambda x: (self.feed_forward(x),), self.feed_forward_norm, self.feed_forward_drop, x
        )
        return (x, *extras) if extras else x

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "attention_bias": self.attention_bias,
            "cross_attention": self.cross_attention is not None,
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
        num_heads, hidden_dim, intermediate_dim, dropout, attention_dropout, attention_bias,
        cross_attention, pre_norm, activation, norm_epsilon, kernel_initializer: as in
            `TransformerBlock`.

    Attributes:
        remat: If True, training keeps of each block what goes in, and makes the rest again for its
            gradient: a third more work, and memory that hardly grows with L, but on JAX's CPU,
            where next to nothing is saved. It may be set any time before training, and is not
            written to files. Chen et al. 2016, arXiv 1604.06174.

    Call arguments:
        inputs: (B, T, D), the embeddings.
        source, source_mask: as in `TransformerBlock`.
        source_cache: A list of L, see `read_source`, instead of `source`.
        padding_mask, attention_mask, causal, cache_index, return_weights: as in
            `MultiHeadAttention`.
        cache: A list of L, see `initial_cache`.

    Returns:
        A list of L + 1 tensors (B, T, D), lowest first: the inputs, then each block's output. With
        `pre_norm` the last has passed the final norm. If asked for, also the attention weights,
        a list of L tensors (B, N, T, T), with cross attention those of the source, a list of L
        tensors (B, N, T, S), and the written cache.

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
        attention_bias=True,
        cross_attention=False,
        pre_norm=False,
        activation="gelu_erf",
        norm_epsilon=1e-12,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.remat = False
        self.block_options = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "attention_bias": attention_bias,
            "cross_attention": cross_attention,
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

    def build(self, inputs_shape, source_shape=None):
        for block in self.blocks:
            block.build(inputs_shape, source_shape)
        if self.final_norm is not None:
            self.final_norm.build(inputs_shape)

    def initial_cache(self, batch_size, max_length):
        """An empty cache for decoding step by step: L tensors (B, 2, S_max, N, H)."""
        heads = self.block_options["num_heads"]
        head_dim = self.block_options["hidden_dim"] // heads
        shape = (batch_size, 2, max_length, heads, head_dim)
        return [ops.zeros(shape, dtype=self.compute_dtype) for _ in self.blocks]

    def read_source(self, source):
        """What cross attention computes of a source (B, S, D), once: L tensors (B, 2, S, N, H)."""
        return [block.cross_attention.keys_and_values(source) for block in self.blocks]

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        causal=False,
        cache=None,
        cache_index=None,
        return_weights=False,
        source=None,
        source_mask=None,
        source_cache=None,
        training=None,
    ):
        layers, extras = [inputs], []
        again = self.remat and training and cache is None and not return_weights
        for i, block in enumerate(self.blocks):
            output = (functools.partial(recomputed, block) if again else block)(
                layers[-1],
                source=source,
                source_mask=source_mask,
                source_cache=None if source_cache is None else source_cache[i],
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=causal,
                cache=None if cache is None else cache[i],
                cache_index=cache_index,
                return_weights=return_weights,
                training=training,
            )
            output, *of_block = output if isinstance(output, tuple) else (output,)
            layers.append(output)
            extras.append(of_block)
        if self.final_norm is not None:
            layers[-1] = self.final_norm(layers[-1])
        extras = [list(column) for column in zip(*extras, strict=True)]
        return (layers, *extras) if extras else layers

    def get_config(self):
        initializer = keras.initializers.serialize(self.block_options["kernel_initializer"])
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            **self.block_options,
            "kernel_initializer": initializer,
        }


def recompute_blocks(model):
    """Sets `remat` in every `TransformerStack` of a model.

    Raises:
        ValueError: If there is none.
    """
    found = [layer for layer in model._flatten_layers() if isinstance(layer, TransformerStack)]
    if not found:
        raise ValueError(
            "Only a Transformer has blocks to make again: leave `remat` out. "
            f"Received: {type(model).__name__}"
        )
    for stack in found:
        stack.remat = True
