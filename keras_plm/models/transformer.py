"""The Transformer of Vaswani et al. 2017: an encoder and a decoder without recurrence."""

import functools
from typing import Any

import keras

from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import Tensor
from keras_plm.layers import (
    Dropout,
    PositionEmbedding,
    SinePositionEmbedding,
    TokenEmbedding,
    TransformerStack,
)
from keras_plm.models.encoder import Encoder
from keras_plm.models.seq2seq import EncoderDecoder

# Base and big: Vaswani et al. 2017, table 3; the smaller sizes are our own.
TRANSFORMER_SIZES = {
    name: {
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": 4 * hidden_dim,
        "dropout": dropout,
    }
    for name, (num_layers, num_heads, hidden_dim, dropout) in {
        "tiny": (2, 4, 64, 0.1),
        "small": (3, 4, 128, 0.1),
        "medium": (4, 4, 256, 0.1),
        "base": (6, 8, 512, 0.1),
        "big": (6, 16, 1024, 0.3),  # dropout 0.1 on English-French
    }.items()
}


def _embedder(embedding, positions, drop, scale):
    """Builds a function from token ids to scaled vectors plus positions, with dropout."""

    def embed(token_ids, start=0):
        x = embedding(token_ids) * scale  # (B, T, D)
        return drop(x + positions(x, start=start))

    return embed


def _positions(kind, max_sequence_length, dtype, name):
    if kind == "sine":
        return SinePositionEmbedding(dtype=dtype, name=name)
    if kind != "learned":
        raise ValueError(f"`positions` must be 'sine' or 'learned'. Received: positions={kind!r}")
    if max_sequence_length is None:
        raise ValueError(
            "Learned positions need a `max_sequence_length`. Received: max_sequence_length=None"
        )
    return PositionEmbedding(max_sequence_length, dtype=dtype, name=name)


def _stack(name, settings, **options):
    return TransformerStack(
        settings["num_layers"],
        settings["num_heads"],
        settings["hidden_dim"],
        settings["intermediate_dim"],
        dropout=settings["dropout"],
        attention_dropout=settings["attention_dropout"],
        attention_bias=False,  # as in the original code; the paper's equations have none
        pre_norm=settings["pre_norm"],
        activation="relu",
        norm_epsilon=1e-6,  # as in tensor2tensor
        dtype=settings["dtype"],
        name=name,
        **options,
    )


@keras.saving.register_keras_serializable("keras_plm")
class TransformerEncoder(Encoder):
    """The Transformer's encoder, with the output of every layer.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.

    Args:
        vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim, max_sequence_length,
        dropout, attention_dropout, positions, pre_norm, dtype, trainable, name: As in
            `Transformer`.

    Call arguments:
        inputs: A dict of `token_ids` and `padding_mask` (True at real tokens), each (B, S).

    Returns:
        A dict: `"sequence"` (B, S, D) and `"layers"`, a list of L + 1 tensors (B, S, D) with the
        embeddings first and `"sequence"` last.

    >>> import numpy as np
    >>> encoder = TransformerEncoder(13, num_layers=2, num_heads=2, hidden_dim=8)
    >>> ids = np.array([[4, 5, 6, 3]])
    >>> outputs = encoder({"token_ids": ids, "padding_mask": ids > 0})
    >>> tuple(outputs["sequence"].shape), len(outputs["layers"])
    ((1, 4, 8), 3)
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int | None = None,
        max_sequence_length: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        positions: str = "sine",
        pre_norm: bool = False,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        settings = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim or 4 * hidden_dim,
            "max_sequence_length": max_sequence_length,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "positions": positions,
            "pre_norm": pre_norm,
        }
        token_embedding = TokenEmbedding(
            vocabulary_size,
            hidden_dim,
            # As in tensor2tensor: scaled inputs have deviation 1; the tied output has no scale.
            keras.initializers.RandomNormal(stddev=hidden_dim**-0.5),
            dtype=dtype,
            name="token_embedding",
        )
        embed = _embedder(
            token_embedding,
            _positions(positions, max_sequence_length, dtype, "position_embedding"),
            Dropout(dropout, dtype=dtype, name="embedding_dropout"),
            hidden_dim**0.5,
        )
        stack = _stack("transformer", settings | {"dtype": dtype})
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        layers = stack(embed(inputs["token_ids"]), padding_mask=inputs["padding_mask"])
        outputs = {"sequence": layers[-1], "layers": layers}
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = stack.dtype_policy
        self.token_embedding = token_embedding
        self._embed, self._stack = embed, stack
        self._settings = settings
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.trainable = trainable

    def attention_weights(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Computes the attention weights of every layer: a list of L tensors (B, N, S, S)."""
        x = self._embed(inputs["token_ids"])
        return self._stack.attention_weights(x, padding_mask=inputs["padding_mask"])[0]

    def get_config(self):
        return {
            **self._settings,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
        }


@keras.saving.register_keras_serializable("keras_plm")
class Transformer(EncoderDecoder):
    """The Transformer: an encoder and a decoder of attention and feed-forward networks.

    Training computes all positions in parallel. Time and memory grow with the square of the
    length.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3; label smoothing, schedule and
    checkpoint averaging of sections 5 and 6.1 are `compile(label_smoothing=0.1)`,
    `keras_plm.training.InverseSquareRoot` and `keras_plm.checkpoints.average_weights`.

    Differs from the paper: nothing by default. As in its code, attention has no biases. The base
    model with 37,000 tokens has 63.0 million weights.

    Args:
        vocabulary_size: Number of tokens V of both languages.
        num_layers: Number of blocks L of the encoder, and of the decoder.
        num_heads: Number of attention heads.
        hidden_dim: Width D.
        intermediate_dim: Width of the feed-forward networks; 4 D when omitted.
        max_sequence_length: Number of learned positions, the largest length of source and target;
            not needed for sines.
        dropout: Fraction dropped of embeddings and of the output of every part of a block.
        attention_dropout: Fraction of attention weights dropped.
        positions: `"sine"` or `"learned"`.
        share_embeddings: If True, source, target and output share one table of tokens.
        pre_norm: If True, normalise before each part of a block; training is then faster.
        trainable: If False, the model is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments and returns: As in `EncoderDecoder`.

    Raises:
        ValueError: If `num_heads` does not divide `hidden_dim`, or learned positions have no
            `max_sequence_length`.

    >>> import numpy as np
    >>> model = Transformer(13, num_layers=2, num_heads=2, hidden_dim=8)
    >>> source, target = np.array([[4, 5, 6, 3]]), np.array([[2, 7, 8]])
    >>> inputs = {"token_ids": source, "padding_mask": source > 0, "target_ids": target}
    >>> tuple(model(inputs).shape)
    (1, 3, 13)
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int | None = None,
        max_sequence_length: int | None = None,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        positions: str = "sine",
        share_embeddings: bool = True,
        pre_norm: bool = False,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        encoder = TransformerEncoder(
            vocabulary_size,
            num_layers,
            num_heads,
            hidden_dim,
            intermediate_dim,
            max_sequence_length,
            dropout,
            attention_dropout,
            positions,
            pre_norm,
            dtype=dtype,
            name="encoder",
        )

        def embedding(name):
            if share_embeddings:
                return encoder.token_embedding
            initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
            return TokenEmbedding(vocabulary_size, hidden_dim, initializer, dtype=dtype, name=name)

        embed = _embedder(
            embedding("target_embedding"),
            _positions(positions, max_sequence_length, dtype, "target_positions"),
            Dropout(dropout, dtype=dtype, name="target_dropout"),
            hidden_dim**0.5,
        )
        output_embedding = embedding("output_embedding")
        stack = _stack("decoder", encoder.get_config() | {"dtype": dtype}, cross_attention=True)

        inputs = self.make_inputs()
        read = {name: inputs[name] for name in encoder.input}
        layers = stack(
            embed(inputs["target_ids"]),
            source=encoder(read)["sequence"],
            source_mask=inputs["padding_mask"],
            causal=True,
        )
        logits = output_embedding(layers[-1], reverse=True)
        super().__init__(inputs=inputs, outputs=logits, name=name)
        self.dtype_policy = stack.dtype_policy

        self.encoder, self._decoder = encoder, stack
        self._embed, self._output = embed, output_embedding
        self.vocabulary_size = vocabulary_size
        self.max_sequence_length = max_sequence_length
        self.share_embeddings = share_embeddings
        self.trainable = trainable

    def prefill(self, inputs: dict[str, Tensor], max_new_tokens: int | None) -> tuple[Any, Any]:
        """See `EncoderDecoder`."""
        sequence = self._encode(inputs)
        memory = {
            "source_cache": self._decoder.read_source(sequence),
            "padding_mask": inputs["padding_mask"],
            "decode": functools.partial(self._decoder.decode, arrays=self._decoder.arrays()),
            "logits": self._output.scorer(),
        }
        return memory, self._decoder.initial_cache(sequence.shape[0], max_new_tokens)

    def decode_step(
        self, token_ids: Tensor, state: Any, memory: Any, index: int | Tensor
    ) -> tuple[Tensor, Any]:
        """See `EncoderDecoder`."""
        layers, state = memory["decode"](
            self._embed(token_ids[:, None], start=index),
            state,
            cache_index=index,
            source_cache=memory["source_cache"],
            source_mask=memory["padding_mask"],
        )
        return memory["logits"](layers[-1])[:, 0], state

    def _encode(self, inputs):
        return self.encoder({name: inputs[name] for name in self.encoder.input})["sequence"]

    def attention_weights(self, inputs: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        """Computes the attention weights of every layer, with teacher forcing.

        Returns:
            A dict of lists of L tensors: `"encoder"` (B, N, S, S), `"decoder"` (B, N, T, T) and
            `"cross"` (B, N, T, S).
        """
        read = {name: inputs[name] for name in self.encoder.input}
        decoder, cross = self._decoder.attention_weights(
            self._embed(inputs["target_ids"]),
            source=self._encode(inputs),
            source_mask=inputs["padding_mask"],
            causal=True,
        )
        encoder = self.encoder.attention_weights(read)
        return {"encoder": encoder, "decoder": decoder, "cross": cross}

    def get_config(self):
        return {
            **self.encoder.get_config(),
            "share_embeddings": self.share_embeddings,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
        }
