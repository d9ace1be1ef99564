"""GPT: the Transformer decoder of Radford et al. 2018 as an encoder, and GPT-2's."""

import functools
from typing import Any

import keras
from keras import ops

from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import Tensor
from keras_plm.layers import (
    Dropout,
    PositionEmbedding,
    TokenEmbedding,
    TransformerStack,
)
from keras_plm.models.encoder import Encoder


def _size(num_layers, hidden_dim, **others):
    return {
        "num_layers": num_layers,
        "num_heads": hidden_dim // 64,
        "hidden_dim": hidden_dim,
        "intermediate_dim": 4 * hidden_dim,
        **others,
    }


# Base is the paper's size, with 116.5 million weights for the released 40,478 tokens. The smaller
# ones have the depths and widths of BERT's sizes of the same names.
GPT_SIZES = {
    "tiny": _size(2, 128),
    "mini": _size(4, 256),
    "small": _size(4, 512),
    "base": _size(12, 768),
}
# Differences of GPT-2: Radford et al. 2019, section 2.3. Its smallest model has base's other sizes.
GPT2 = {"pre_norm": True, "max_sequence_length": 1024}


@keras.saving.register_keras_serializable("keras_plm")
class GPT(Encoder):
    """GPT: a causal Transformer, with the output of every layer.

    Each position attends to itself and earlier positions. Use it under `pretraining.CausalLM` to
    pre-train, under a head to fine-tune, in `keras_plm.transfer` to extract features, and with
    `decoding.generate` to generate text. Time and memory grow with T² · D for attention and
    T · D² for the rest.

    Reference: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training",
    section 4.1; openai/finetune-transformer-lm. `pre_norm=True` is GPT-2: Radford et al. 2019,
    section 2.3.

    Differs from the original code: dropout applies to the sum of token and position vectors, not
    to whole rows of the tables. With `pre_norm`, initial kernels before a residual sum are not
    divided by the root of the number of residual layers, as those of GPT-2 are.

    Args:
        vocabulary_size: Number of tokens V.
        num_layers: Number of Transformer blocks L.
        num_heads: Number of attention heads.
        hidden_dim: Width D.
        intermediate_dim: Width of the feed-forward networks.
        max_sequence_length: Number of positions.
        dropout: Fraction dropped in embeddings, attention weights and both parts of a block.
        activation: `"gelu_tanh"`, `"gelu_erf"` or `"relu"`.
        pre_norm: If True, normalise before each part of a block, and once at the end, as GPT-2.
        initializer_range: Standard deviation of the normal of all kernels and tables.
        norm_epsilon: Constant added to the variance in the layer norms.
        trainable: If False, the model is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `token_ids` and `padding_mask` (True at real tokens, which come first),
            each (B, T). Outputs at padding are undefined.

    Returns:
        A dict: `"sequence"` (B, T, D) and `"layers"`, a list of L + 1 tensors (B, T, D) with the
        embeddings first and `"sequence"` last. `model.token_embedding(sequence, reverse=True)`
        gives the logits of each next token.

    Raises:
        ValueError: If T is larger than `max_sequence_length`, or `num_heads` does not divide
            `hidden_dim`.

    >>> import numpy as np
    >>> model = GPT(13, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> ids = np.array([[2, 5, 6, 3]])
    >>> outputs = model({"token_ids": ids, "padding_mask": ids > 0})
    >>> tuple(outputs["sequence"].shape), len(outputs["layers"])
    ((1, 4, 8), 3)
    """

    causal = True  # a token does not see later tokens

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        max_sequence_length: int = 512,
        dropout: float = 0.1,
        activation: str = "gelu_tanh",
        pre_norm: bool = False,
        initializer_range: float = 0.02,
        norm_epsilon: float = 1e-5,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        def initializer():
            return keras.initializers.RandomNormal(stddev=initializer_range)

        token_embedding = TokenEmbedding(
            vocabulary_size, hidden_dim, initializer(), dtype=dtype, name="token_embedding"
        )
        position_embedding = PositionEmbedding(
            max_sequence_length, initializer(), dtype=dtype, name="position_embedding"
        )
        drop = Dropout(dropout, dtype=dtype, name="embedding_dropout")
        stack = TransformerStack(
            num_layers,
            num_heads,
            hidden_dim,
            intermediate_dim,
            dropout=dropout,
            pre_norm=pre_norm,
            activation=activation,
            norm_epsilon=norm_epsilon,
            kernel_initializer=initializer(),
            dtype=dtype,
            name="transformer",
        )
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        tokens = token_embedding(inputs["token_ids"])  # (B, T, D)
        x = drop(tokens + position_embedding(tokens))
        # No mask is needed: padding follows the text, and no token attends to later ones.
        layers = stack(x, causal=True)
        outputs = {"sequence": layers[-1], "layers": layers}
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = stack.dtype_policy  # a functional model takes none; copies read it

        self.token_embedding = token_embedding
        self._positions, self._stack = position_embedding, stack
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.max_sequence_length = max_sequence_length
        self.dropout = dropout
        self.activation = activation
        self.pre_norm = pre_norm
        self.initializer_range = initializer_range
        self.norm_epsilon = norm_epsilon
        # Not by `super().__init__`: on TensorFlow that leaves the weights trainable.
        self.trainable = trainable

    def prefill(
        self, inputs: dict[str, Tensor], max_new_tokens: int | None
    ) -> tuple[dict[str, Any], list[Tensor]]:
        """Reads prompts into a cache, for `keras_plm.decoding`.

        Args:
            inputs: The model's inputs: P tokens, padding after each prompt.
            max_new_tokens: Largest number of new tokens U.

        Returns:
            `(memory, state)`. `memory` is a dict of the last token and its position (B,), the mask
            of the P + U positions (B, P + U), P for each row, and two functions with the weights of
            this call. `state` is the cache, a list of L tensors.
        """
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, P)
        batch, length = mask.shape
        last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1  # (B,)
        # The first step reads the last token; the cache does not hold it before that.
        places = ops.arange(length, dtype="int32")
        before = ops.logical_and(mask, places < last[:, None])
        written = ops.ones((batch, max_new_tokens), dtype="bool")
        real = ops.concatenate([before, written], axis=1)  # (B, P + U)
        tokens = self.token_embedding(inputs["token_ids"])
        cache = self._stack.initial_cache(batch, length + max_new_tokens)
        decode = functools.partial(self._stack.decode, arrays=self._stack.arrays())
        _, cache = decode(tokens + self._positions(tokens), cache, cache_index=0, padding_mask=real)
        token_ids = ops.cast(inputs["token_ids"], "int32")
        first = ops.take_along_axis(token_ids, last[:, None], axis=1)[:, 0]
        place = ops.full((batch,), length, dtype="int32")
        memory = {"first": first, "position": last, "real": real, "place": place}
        return memory | {"decode": decode, "logits": self.token_embedding.scorer()}, cache

    def decode_step(
        self, token_ids: Tensor, state: list[Tensor], memory: dict[str, Any], index: int | Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Computes logits (B, V) after one more token of each row, and the next state.

        At `index` 0 it reads the last token of the prompt and ignores `token_ids`.
        """
        token_ids = ops.where(index == 0, memory["first"], ops.cast(token_ids, "int32"))
        tokens = self.token_embedding(token_ids[:, None])  # (B, 1, D)
        layers, state = memory["decode"](
            tokens + self._positions(tokens, start=memory["position"] + index),
            state,
            cache_index=memory["place"][0] + index,
            padding_mask=memory["real"],
        )
        return memory["logits"](layers[-1])[:, 0], state

    def get_config(self):
        names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        names += ("max_sequence_length", "dropout", "activation", "pre_norm")
        names += ("initializer_range", "norm_epsilon", "name", "trainable")
        config = {name: getattr(self, name) for name in names}
        return {**config, "dtype": saved_policy(self)}
