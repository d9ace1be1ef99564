"""The Transformer block: a pure function of arrays, and the layer that holds its weights.

Shapes: B batch, T steps, S source steps, D width, N heads, H = D / N head width.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dense import as_type
from keras_plm.layers._fused.dropout import Dropout, dropout
from keras_plm.layers._fused.layer_norm import LayerNormalization, layer_norm
from keras_plm.layers._fused.programs import recomputed, run_compiled
from keras_plm.layers.feed_forward import FeedForward, feed_forward
from keras_plm.layers.masks import check_masks, given_mask, visible
from keras_plm.layers.multi_head_attention import (
    MultiHeadAttention,
    check_cache,
    multi_head_attention,
)


class BlockOutput(NamedTuple):
    """Result of `transformer_block`; parts that were not requested are `None`.

    Attributes:
        sequence: (B, T, D).
        weights: (B, N, T, S) attention weights over the block's own steps.
        source_weights: (B, N, T, S) attention weights over the source.
        cache: (B, 2, S_max, N, H) with the new keys and values.
    """

    sequence: Any
    weights: Any = None
    source_weights: Any = None
    cache: Any = None


def transformer_block(
    weights,
    inputs,
    mask=None,
    source=None,
    source_mask=None,
    *,
    num_heads,
    activation="gelu_erf",
    pre_norm=False,
    norm_epsilon=1e-12,
    dropout_rate=0.0,
    attention_dropout=0.0,
    seeds=None,
    training=False,
    cache=None,
    cache_index=None,
    source_cache=None,
    return_weights=False,
):
    """Computes the Transformer block, as a pure function of arrays.

    Post-norm, the original:

        x = LN(x + attention(x)),  x = LN(x + cross_attention(x, source)),
        x = LN(x + W_2 f(W_1 x + b_1) + b_2).

    Pre-norm:

        x = x + attention(LN(x)),  x = x + cross_attention(LN(x), source),
        x = x + W_2 f(W_1 LN(x) + b_1) + b_2.

    Each LN has its own weights. Cross-attention applies only if its weights are given. In training,
    dropout applies to the output of each part before the sum. The function neither reads nor
    changes layers, variables or other state, except a quantized layer among the weights.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, sections 3.1 and 3.3; pre-norm: Xiong et al.
    2020, arXiv 2002.04745.

    Args:
        weights: A dict as from `TransformerBlock.arrays`, by the names of a block's layers:
            `"attention"` and optionally `"cross_attention"` (see `multi_head_attention`),
            `"feed_forward"` with `"intermediate"` and `"output"` (arguments of `dense`), and
            `"attention_norm"`, `"cross_norm"`, `"feed_forward_norm"` (`gamma` and `beta`).
        inputs: (B, T, D).
        mask: Boolean, broadcastable to (B, T, S), True where step t may attend to step s.
        source: (B, S, D_source), the sequence that cross-attention reads.
        source_mask: Boolean, broadcastable to (B, T, S).
        num_heads: Number of heads N.
        activation: f, a name of `ACTIVATIONS`.
        pre_norm: If True, normalise before each part instead of after.
        norm_epsilon: Constant added to the variance in the layer norms.
        dropout_rate: Fraction dropped of each part's output.
        attention_dropout: Fraction dropped of the attention weights.
        seeds: A dict of seeds as in `dropout`, each (2,) integers: for the outputs `"attention"`,
            `"cross_attention"` and `"feed_forward"`, and for the attention weights
            `"attention_weights"` and `"cross_attention_weights"`. On torch it may be `None`.
        training: If True, apply dropout and expect a gradient.
        cache, cache_index: For self-attention, as in `multi_head_attention`.
        source_cache: (B, 2, S, N, H), keys and values of the source, instead of `source`.
        return_weights: If True, the result has the attention weights.

    Returns:
        A `BlockOutput`.
    """
    seeds = seeds or {}
    options = {
        "num_heads": num_heads,
        "return_weights": return_weights,
        "dropout_rate": attention_dropout,
        "training": training,
    }

    def normalized(x, name):
        return layer_norm(x, **weights[name], epsilon=norm_epsilon)

    def read(x, norm):
        return normalized(x, norm) if pre_norm else x

    def add(x, part, norm, name):
        part = as_type(part, x.dtype)  # a map of policies may give another type
        x = x + (dropout(part, dropout_rate, seeds.get(name)) if training else part)
        return x if pre_norm else normalized(x, norm)

    attended = multi_head_attention(
        weights["attention"],
        read(inputs, "attention_norm"),
        mask=mask,
        cache=cache,
        cache_index=cache_index,
        seed=seeds.get("attention_weights"),
        **options,
    )
    x = add(inputs, attended.output, "attention_norm", "attention")
    source_weights = None
    if "cross_attention" in weights:
        crossed = multi_head_attention(
            weights["cross_attention"],
            read(x, "cross_norm"),
            source,
            mask=source_mask,
            cache=source_cache,
            seed=seeds.get("cross_attention_weights"),
            **options,
        )
        x = add(x, crossed.output, "cross_norm", "cross_attention")
        source_weights = crossed.weights
    changed = feed_forward(weights["feed_forward"], read(x, "feed_forward_norm"), activation)
    x = add(x, changed, "feed_forward_norm", "feed_forward")
    return BlockOutput(x, attended.weights, source_weights, attended.cache)


def block_output(weights, inputs, mask, source, source_mask, *, seeds=None, **options):
    """Computes the output of `transformer_block`, (B, T, D), from arrays by position."""
    return transformer_block(
        weights, inputs, mask, source, source_mask, seeds=seeds, **options
    ).sequence


def block_step(
    weights, inputs, mask, source_mask, cache, cache_index, source_cache, *, seeds=None, **options
):
    """Computes the output (B, T, D) and the cache of `transformer_block`, from arrays by position.

    The cache changes in place, as in `transformer_block`.
    """
    output = transformer_block(
        weights,
        inputs,
        mask,
        source_mask=source_mask,
        cache=cache,
        cache_index=cache_index,
        source_cache=source_cache,
        seeds=seeds,
        **options,
    )
    return output.sequence, output.cache


@keras.saving.register_keras_serializable("keras_plm")
class TransformerBlock(keras.layers.Layer):
    """Self-attention, then a feed-forward network, each with a residual and a layer norm.

    The layer holds the weights of `transformer_block`, which has the equations. With
    `cross_attention` a third part between the two attends to another sequence: a decoder block. A
    call returns the output only. `run` also returns attention weights, and reads and writes a
    cache for step-by-step decoding.

    Post-norm, as in the papers, normalises after the residual: `LN(x + f(x))`. Pre-norm does so
    before each part: `x + f(LN(x))`. It trains with less warm-up. A stack of pre-norm blocks ends
    in one more norm.

    Reference: post-norm: Vaswani et al. 2017, arXiv 1706.03762, section 3.1; pre-norm: Xiong
    et al. 2020, arXiv 2002.04745.

    Args:
        num_heads: Number of attention heads N.
        hidden_dim: Width D.
        intermediate_dim: Width of the feed-forward network.
        dropout: Fraction of the output of each part dropped in training.
        attention_dropout: Fraction of attention weights dropped in training; `dropout` when
            omitted.
        attention_bias: If False, the attention's projections have no biases.
        cross_attention: If True, the block also attends to a `source`.
        pre_norm: If True, normalise before each part instead of after.
        activation: Activation of the feed-forward network, see `FeedForward`.
        norm_epsilon: Constant added to the variance in the layer norms.
        kernel_initializer: Initializer of all kernels.

    Call arguments:
        inputs: (B, T, D).
        padding_mask, attention_mask, causal: As in `MultiHeadAttention`.
        source: (B, S, D_source), the sequence that cross-attention reads.
        source_mask: (B, S), True at real source positions.
        remat: If True, training keeps only the inputs and recomputes the rest for the gradient.
        compiled: If True, the block runs as a program of `torch.compile`; under torch only.

    Returns:
        (B, T, D).

    Raises:
        ValueError: If the width of the inputs is not `hidden_dim`. If a `source` is missing, or
            given without `cross_attention`.

    >>> import numpy as np
    >>> block = TransformerBlock(num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> tuple(block(np.ones((2, 3, 4))).shape)
    (2, 3, 4)
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        attention_bias: bool = True,
        cross_attention: bool = False,
        pre_norm: bool = False,
        activation: str = "gelu_erf",
        norm_epsilon: float = 1e-12,
        kernel_initializer: str | dict | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
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
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        remat: bool = False,
        compiled: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        self.check_source(source)
        padding_mask = given_mask(padding_mask, mask, inputs_mask)
        mask = visible(inputs, inputs, padding_mask, attention_mask, causal)
        source_mask = None if source is None else visible(inputs, source, source_mask)
        options, remat = self._options(training), remat and training
        if compiled:
            arrays = self.arrays(), inputs, mask, source, source_mask
            return run_compiled(block_output, arrays, options.pop("seeds", None), options, remat)

        def block(arrays):
            weights, inputs, source = arrays
            return block_output(weights, inputs, mask, source, source_mask, **options)

        arrays = self.arrays(), inputs, source
        return recomputed(block, arrays) if remat else block(arrays)

    def compute_output_spec(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        causal: bool = False,
        source: keras.KerasTensor | None = None,
        source_mask: keras.KerasTensor | None = None,
        remat: bool = False,
        compiled: bool = False,
        training: bool | None = None,
        mask: keras.KerasTensor | None = None,
        inputs_mask: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        self.check_source(source)
        padding_mask = given_mask(padding_mask, mask, inputs_mask)
        batch, steps = inputs.shape[:2]
        check_masks(padding_mask, attention_mask, batch, steps, steps)
        if source is not None:
            check_masks(source_mask, None, batch, steps, source.shape[1])
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)

    def run(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        cache: Tensor | None = None,
        cache_index: int | Tensor | None = None,
        source_cache: Tensor | None = None,
        return_weights: bool = False,
    ) -> BlockOutput:
        """Computes the block in inference, with attention weights and a cache.

        Args:
            inputs, padding_mask, attention_mask, causal, source, source_mask: As in a call.
            cache, cache_index, return_weights: As in `MultiHeadAttention.run`.
            source_cache: `cross_attention.keys_and_values(source)`, in place of `source`.

        Returns:
            A `BlockOutput`.

        Raises:
            ValueError: If the block is not built, a mask does not fit, a source is missing or not
                used, or `cache_index` has no `cache` or lies outside it.
        """
        self.check_source(source, source_cache)
        check_cache(inputs, cache, cache_index)
        first = 0 if cache_index is None else cache_index
        steps = inputs if cache is None else cache[:, 0]
        causal = causal or cache is not None
        mask = visible(inputs, steps, padding_mask, attention_mask, causal, first)
        if source_mask is not None:
            keys = source if source_cache is None else source_cache[:, 0]
            source_mask = visible(inputs, keys, source_mask)
        inputs = ops.convert_to_tensor(inputs, dtype=self.compute_dtype)
        return transformer_block(
            self.arrays(),
            inputs,
            mask,
            source,
            source_mask,
            cache=cache,
            cache_index=cache_index,
            source_cache=source_cache,
            return_weights=return_weights,
            **self._options(training=False),
        )

    def step(
        self,
        arrays: dict[str, Any],
        inputs: Tensor,
        mask: Tensor,
        source_mask: Tensor | None,
        cache: Tensor,
        cache_index: int | Tensor,
        source_cache: Tensor | None,
        compiled: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Computes the next T steps after those in a cache, for `TransformerStack.decode`.

        Args:
            arrays: Result of `arrays`.
            inputs: (B, T, D).
            mask, source_mask: As in `transformer_block`, or results of `mask_for_blocks`.
            cache, cache_index, source_cache: As in `transformer_block`.
            compiled: If True, the step runs as a program of `torch.compile`.

        Returns:
            `(sequence, cache)`: (B, T, D), and the updated cache.
        """
        given = arrays, inputs, mask, source_mask, cache, cache_index, source_cache
        options = self._options(training=False)
        if compiled:
            return run_compiled(block_step, given, None, options)
        return block_step(*given, **options)

    def arrays(self) -> dict[str, Any]:
        """Returns the `weights` of `transformer_block`."""
        names = ["attention", "attention_norm", "feed_forward", "feed_forward_norm"]
        if self.cross_attention is not None:
            names += ["cross_attention", "cross_norm"]
        return {name: getattr(self, name).arrays() for name in names}

    def _options(self, training):
        """Returns the settings of `transformer_block`, in training with new seeds."""
        options = {
            "num_heads": self.num_heads,
            "activation": self.activation,
            "pre_norm": self.pre_norm,
            "norm_epsilon": self.norm_epsilon,
            "training": bool(training),
        }
        if training:
            drops = {
                "attention": self.attention_drop,
                "attention_weights": self.attention.weights_dropout,
                "feed_forward": self.feed_forward_drop,
            }
            if self.cross_attention is not None:
                drops["cross_attention"] = self.cross_drop
                drops["cross_attention_weights"] = self.cross_attention.weights_dropout
            options |= {
                "dropout_rate": self.dropout,
                "attention_dropout": self.attention_dropout,
                "seeds": {name: drop.next_seed() for name, drop in drops.items()},
            }
        return options

    def check_source(self, source: Tensor | None, source_cache: Tensor | None = None) -> None:
        """Raises a ValueError unless cross-attention has one source, and others none."""
        sources = (source is not None) + (source_cache is not None)
        if sources != (self.cross_attention is not None):
            raise ValueError(
                "A block with `cross_attention` needs a `source` or its `source_cache`; other "
                "blocks take none. Received: "
                f"cross_attention={self.cross_attention is not None}, {sources} sources"
            )

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
