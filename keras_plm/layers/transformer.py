"""The stack of Transformer blocks in BERT and GPT.

Shapes: B batch, T steps, S source steps, D width, N heads, H = D / N head width, L blocks.
"""

from typing import Any

import keras
from keras import ops

from keras_plm.files.private_apis import every_layer
from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.attention import mask_for_blocks, written_part
from keras_plm.layers._fused.layer_norm import LayerNormalization
from keras_plm.layers._fused.programs import check_compiles_blocks
from keras_plm.layers.masks import check_masks, given_mask, visible
from keras_plm.layers.multi_head_attention import check_cache
from keras_plm.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable("keras_plm")
class TransformerStack(keras.layers.Layer):
    """L Transformer blocks, with the output of every block.

    A call returns all layers, for feature-based transfer. An unused layer costs only its memory.

    Args:
        num_layers: Number of blocks L.
        num_heads, hidden_dim, intermediate_dim, dropout, attention_dropout, attention_bias,
        cross_attention, pre_norm, activation, norm_epsilon, kernel_initializer: As in
            `TransformerBlock`.

    Attributes:
        remat: If True, training keeps only the inputs of each block and recomputes the rest for
            the gradient. It takes a third more time; memory hardly grows with L, except on JAX's
            CPU. Set it before training; files do not contain it. Chen et al. 2016, arXiv
            1604.06174.
        compiled: If True, all blocks share one program of `torch.compile`, see `compile_blocks`.
            Files do not contain it.

    Call arguments:
        inputs: (B, T, D), the embeddings.
        padding_mask, attention_mask, causal: As in `MultiHeadAttention`.
        source, source_mask: As in `TransformerBlock`.

    Returns:
        A list of L + 1 tensors (B, T, D), lowest first: the inputs, then the output of each block.
        With `pre_norm` the last layer includes the final norm.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, or an input has the wrong shape.

    >>> import numpy as np
    >>> stack = TransformerStack(num_layers=2, num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> layers = stack(np.ones((1, 3, 4)))
    >>> len(layers), tuple(layers[-1].shape)
    (3, (1, 3, 4))
    """

    def __init__(
        self,
        num_layers: int,
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
        self.num_layers = num_layers
        self.remat = False
        self.compiled = False
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

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> list[Tensor]:
        padding_mask = given_mask(padding_mask, mask, inputs_mask)
        layers = [inputs]
        for block in self.blocks:
            output = block(
                layers[-1],
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=causal,
                source=source,
                source_mask=source_mask,
                remat=self.remat,
                compiled=self.compiled,
                training=training,
            )
            layers.append(output)
        return self._finish(layers)

    def compute_output_spec(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        attention_mask: keras.KerasTensor | None = None,
        causal: bool = False,
        source: keras.KerasTensor | None = None,
        source_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        mask: keras.KerasTensor | None = None,
        inputs_mask: keras.KerasTensor | None = None,
    ) -> list[keras.KerasTensor]:
        padding_mask = given_mask(padding_mask, mask, inputs_mask)
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        masks |= {"source": source, "source_mask": source_mask}
        outputs = [block.compute_output_spec(inputs, **masks) for block in self.blocks]
        return [keras.KerasTensor(inputs.shape, dtype=inputs.dtype), *outputs]

    def compute_mask(self, inputs, previous_mask):
        return [previous_mask] * (self.num_layers + 1)

    def _finish(self, layers):
        """Returns the layers, the last one normalised if the blocks are pre-norm."""
        if self.final_norm is not None:
            layers[-1] = self.final_norm(layers[-1])
        return layers

    def decode(
        self,
        inputs: Tensor,
        cache: list[Tensor],
        cache_index: int | Tensor,
        padding_mask: Tensor | None = None,
        source_cache: list[Tensor] | None = None,
        source_mask: Tensor | None = None,
        arrays: list[dict[str, Any]] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Computes the next T steps, causal, with earlier steps from a cache.

        Args:
            inputs: (B, T, D), the embeddings.
            cache: A list of L tensors, see `initial_cache`. torch writes it in place.
            cache_index: Number of steps in the cache.
            padding_mask: (B, S_max), True at real positions of the cache.
            source_cache: A list of L tensors, see `read_source`.
            source_mask: (B, S), True at real source positions.
            arrays: Result of `arrays`, for many steps with the same weights.

        Returns:
            `(layers, cache)`: the layers as in a call, and the updated cache.

        Raises:
            ValueError: If a mask has the wrong shape, the cache has too little room, or there is a
                `source_cache` without `cross_attention` or the reverse.
        """
        if not self.blocks:
            return self._finish([inputs]), cache
        self.blocks[0].check_source(None, source_cache)
        inputs = ops.convert_to_tensor(inputs, dtype=self.compute_dtype)
        check_cache(inputs, cache[0], cache_index)
        check_masks(padding_mask, None, *inputs.shape[:2], cache[0].shape[2])
        parts = cache
        if not self.compiled:  # a program has one length
            parts, cache_index = written_part(cache, cache_index, inputs.shape[1])
            check_cache(inputs, cache[0], cache_index)  # again, if it was a tensor
        keys = parts[0][:, 0]  # (B, S, N, H)
        if padding_mask is not None:
            padding_mask = padding_mask[:, : keys.shape[1]]
        mask = visible(inputs, keys, padding_mask, causal=True, first=cache_index)
        mask = mask_for_blocks(mask, self.compute_dtype)
        if source_mask is not None:
            source_mask = visible(inputs, source_cache[0][:, 0], source_mask)
            source_mask = mask_for_blocks(source_mask, self.compute_dtype)
        arrays = self.arrays() if arrays is None else arrays
        layers, written = [inputs], []
        for i, block in enumerate(self.blocks):
            sources = None if source_cache is None else source_cache[i]
            sequence, after = block.step(
                arrays[i],
                layers[-1],
                mask,
                source_mask,
                parts[i],
                cache_index,
                sources,
                compiled=self.compiled,
            )
            layers.append(sequence)
            written.append(after if parts is cache else cache[i])  # a part is a view
        return self._finish(layers), written

    def arrays(self) -> list[dict[str, Any]]:
        """Returns the `weights` of `transformer_block` of each block."""
        return [block.arrays() for block in self.blocks]

    def initial_cache(self, batch_size: int, max_length: int) -> list[Tensor]:
        """Creates an empty cache for `decode`: L tensors (B, 2, `max_length`, N, H)."""
        heads = self.block_options["num_heads"]
        head_dim = self.block_options["hidden_dim"] // heads
        shape = (batch_size, 2, max_length, heads, head_dim)
        return [ops.zeros(shape, dtype=self.compute_dtype) for _ in self.blocks]

    def read_source(self, source: Tensor) -> list[Tensor]:
        """Computes keys and values of a source (B, S, D): L tensors (B, 2, S, N, H)."""
        return [block.cross_attention.keys_and_values(source) for block in self.blocks]

    def attention_weights(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Computes the attention weights of every block, for the arguments of a call.

        Returns:
            `(weights, source_weights)`: a list of L tensors (B, N, T, T), and a list of L tensors
            (B, N, T, S), or of `None` without cross-attention.
        """
        x, outputs = inputs, []
        for block in self.blocks:
            output = block.run(
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=causal,
                source=source,
                source_mask=source_mask,
                return_weights=True,
            )
            x = output.sequence
            outputs.append(output)
        return [o.weights for o in outputs], [o.source_weights for o in outputs]

    def get_config(self):
        initializer = keras.initializers.serialize(self.block_options["kernel_initializer"])
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            **self.block_options,
            "kernel_initializer": initializer,
        }


def compile_blocks(model: keras.Model) -> None:
    """Sets `compiled` in every `TransformerStack` of a model.

    All blocks of a stack then share one program of `torch.compile`, in training, inference and
    step-by-step decoding. It has a few kernels instead of some dozens of operations that Python
    starts one by one. Results agree to rounding, except that dropout draws other random numbers.

    Each new kind of call (training, evaluation, a second shape) compiles for some seconds; after
    the second shape the program takes any shape. The program suits GPUs; on a CPU it may be slower
    than the uncompiled block. If it cannot be compiled, a warning says so and the blocks run
    uncompiled.

    Args:
        model: A model with Transformer blocks.

    Raises:
        ValueError: If the model has no `TransformerStack`; or under JAX and TensorFlow, which
            compile whole steps.

    >>> import keras
    >>> from keras_plm.layers import TransformerStack
    >>> x = keras.Input((3, 4))
    >>> stack = TransformerStack(num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> try:
    ...     compile_blocks(keras.Model(x, stack(x)))
    ... except ValueError as error:  # under JAX and TensorFlow
    ...     print(str(error)[:32])
    ... else:
    ...     print("Blocks are compiled under torch;")
    Blocks are compiled under torch;
    """
    check_compiles_blocks()
    for stack in _stacks(model, "compile"):
        stack.compiled = True


def recompute_blocks(model: keras.Model) -> None:
    """Sets `remat` in every `TransformerStack` of a model.

    Args:
        model: A model with Transformer blocks.

    Raises:
        ValueError: If the model has no `TransformerStack`.

    >>> import keras
    >>> from keras_plm.layers import TransformerStack
    >>> x = keras.Input((3, 4))
    >>> stack = TransformerStack(num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
    >>> recompute_blocks(keras.Model(x, stack(x)))
    >>> stack.remat
    True
    """
    for stack in _stacks(model, "recompute: leave `remat` out"):
        stack.remat = True


def _stacks(model, purpose):
    found = [layer for layer in every_layer(model) if isinstance(layer, TransformerStack)]
    if not found:
        raise ValueError(
            f"Only a Transformer has blocks to {purpose}. Received: {type(model).__name__}"
        )
    return found
