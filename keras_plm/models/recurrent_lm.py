"""An LSTM language model as an encoder: the Transformer's replacement in GPT's ablation."""

from typing import Any

import keras
from keras import ops

from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import Tensor
from keras_plm.layers import Dropout, LSTMStack, TokenEmbedding
from keras_plm.layers.embedding import check_counts
from keras_plm.models.encoder import Encoder

# Base is the paper's: one layer of 2,048 units at GPT's width. Mini has the width of GPT's mini.
RECURRENT_LM_SIZES = {
    "tiny": {"num_layers": 1, "units": 344, "hidden_dim": 128},
    "mini": {"num_layers": 1, "units": 680, "hidden_dim": 256},
    "base": {"num_layers": 1, "units": 2048, "hidden_dim": 768},
}


@keras.saving.register_keras_serializable("keras_plm")
class RecurrentLM(Encoder):
    """A causal language model of stacked LSTMs, with the output of every layer.

    It replaces a `GPT` under `pretraining.CausalLM`, under a head, in `keras_plm.transfer` and in
    `decoding.generate`. Each layer projects its outputs to width D. Input and output share a token
    table of this width. Time grows with T; steps run one after the other. The length of a text has
    no limit.

    Reference: Radford et al. 2018, section 5, "a single layer 2048 unit LSTM using the same
    framework"; the projection: Sak et al. 2014, arXiv 1402.1128, section 2.

    Args:
        vocabulary_size: Number of tokens V.
        num_layers: Number of stacked LSTMs L.
        units: Number of cells of each LSTM.
        hidden_dim: Width D.
        dropout: Fraction dropped in the embeddings and before each LSTM.
        initializer_range: Standard deviation of the normal of the table.
        trainable: If False, the model is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `token_ids` and `padding_mask` (True at real tokens, which come first),
            each (B, T).

    Returns:
        A dict: `"sequence"` (B, T, D) and `"layers"`, a list of L + 1 tensors (B, T, D) with the
        embeddings first and `"sequence"` last.

    Raises:
        ValueError: If a size is invalid.

    >>> import numpy as np
    >>> model = RecurrentLM(13, num_layers=1, units=7, hidden_dim=4)
    >>> ids = np.array([[2, 5, 6, 3]])
    >>> tuple(model({"token_ids": ids, "padding_mask": ids > 0})["sequence"].shape)
    (1, 4, 4)
    """

    causal = True  # a token does not see later tokens

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        units: int,
        hidden_dim: int,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        check_counts(1, num_layers=num_layers, units=units, hidden_dim=hidden_dim)
        initializer = keras.initializers.RandomNormal(stddev=initializer_range)
        token_embedding = TokenEmbedding(
            vocabulary_size, hidden_dim, initializer, dtype=dtype, name="token_embedding"
        )
        stack = LSTMStack(
            num_layers,
            units,
            hidden_dim,
            cell_clip=None,
            projection_clip=None,
            dropout=dropout,
            dtype=dtype,
            name="lstm",
        )
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        x = token_embedding(inputs["token_ids"])  # (B, T, D)
        x = Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
        layers = [x, *stack(x, padding_mask=inputs["padding_mask"])]
        super().__init__(inputs, {"sequence": layers[-1], "layers": layers}, name=name)
        self.dtype_policy = stack.dtype_policy  # a functional model takes none
        self.token_embedding = token_embedding
        self._stack = stack
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.units = units
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.trainable = trainable

    def prefill(self, inputs: dict[str, Tensor], max_new_tokens: int | None) -> tuple[Any, Any]:
        """Reads prompts, as `GPT.prefill`: returns the last tokens (B,) and the LSTM states."""
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, P)
        last = ops.sum(ops.cast(mask, "int32"), axis=1) - 1  # (B,)
        token_ids = ops.cast(inputs["token_ids"], "int32")
        first = ops.take_along_axis(token_ids, last[:, None], axis=1)[:, 0]
        # The first step reads the last token.
        before = ops.logical_and(mask, ops.arange(mask.shape[1], dtype="int32") < last[:, None])
        zeros = [
            (
                ops.zeros((mask.shape[0], self.hidden_dim), self.compute_dtype),
                ops.zeros((mask.shape[0], self.units)),
            )
            for _ in range(self.num_layers)
        ]
        tokens = self.token_embedding(token_ids)
        _, states = self._stack.run(tokens, padding_mask=before, training=False, states=zeros)
        return {"first": first}, states

    def decode_step(
        self, token_ids: Tensor, state: Any, memory: Any, index: int | Tensor
    ) -> tuple[Tensor, Any]:
        """Computes logits (B, V) after one more token of each row, and the next states."""
        token_ids = ops.where(index == 0, memory["first"], ops.cast(token_ids, "int32"))
        tokens = self.token_embedding(token_ids[:, None])  # (B, 1, D)
        layers, state = self._stack.run(tokens, training=False, states=state)
        return self.token_embedding(layers[-1], reverse=True)[:, 0], state

    def get_config(self):
        names = ("vocabulary_size", "num_layers", "units", "hidden_dim", "dropout")
        names += ("initializer_range", "name", "trainable")
        config = {name: getattr(self, name) for name in names}
        return {**config, "dtype": saved_policy(self)}
