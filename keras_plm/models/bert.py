"""BERT: the bidirectional Transformer encoder of Devlin et al. 2018."""

import keras

from keras_plm.files.saveable import saved_policy
from keras_plm.layers import (
    Dense,
    Dropout,
    LayerNormalization,
    PositionEmbedding,
    TokenEmbedding,
    TransformerStack,
)
from keras_plm.models.encoder import Encoder

# Base and large: Devlin et al. 2018, section 3; the smaller ones: Turc et al. 2019,
# arXiv 1908.08962. The released vocabularies hold 30,522 (uncased) and 28,996 (cased) tokens.
BERT_SIZES = {
    name: {
        "num_layers": num_layers,
        "num_heads": hidden_dim // 64,
        "hidden_dim": hidden_dim,
        "intermediate_dim": 4 * hidden_dim,
    }
    for name, (num_layers, hidden_dim) in {
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
    }.items()
}


@keras.saving.register_keras_serializable("keras_plm")
class BERT(Encoder):
    """BERT's encoder, with the output of every layer.

    Use it under a head (`keras_plm.heads`) to fine-tune, under `keras_plm.pretraining.MaskedLM`
    to pre-train, and in `keras_plm.transfer` to extract features. Time and memory grow with
    T² · D for attention and T · D² for the rest.

    Reference: Devlin et al. 2018, arXiv 1810.04805, section 3 and appendix A.2.

    Differs from the paper: nothing by default. `activation="gelu_tanh"` is Google's code since
    February 2019. `pre_norm=True` normalises before each part and once at the end; small models
    then train faster. `causal=True` is the paper's ablation "LTR" (section 5.1).

    Args:
        vocabulary_size: Number of tokens V.
        num_layers: Number of Transformer blocks L.
        num_heads: Number of attention heads.
        hidden_dim: Width D.
        intermediate_dim: Width of the feed-forward networks.
        max_sequence_length: Number of positions.
        num_segments: Number of segments (token types).
        dropout: Fraction dropped in embeddings, attention weights and both parts of a block.
        activation: `"gelu_erf"`, `"gelu_tanh"` or `"relu"`.
        pre_norm: If True, normalise before each part of a block.
        causal: If True, a token attends only to itself and earlier tokens, for
            `pretraining.CausalLM`. The outputs then have no `"pooled"`.
        initializer_range: Standard deviation of the truncated normal of all kernels and tables.
        norm_epsilon: Constant added to the variance in the layer norms.
        trainable: If False, the encoder is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `token_ids`, `segment_ids` and `padding_mask` (True at real tokens), each
            (B, T).

    Returns:
        A dict: `"sequence"` (B, T, D), `"layers"`, a list of L + 1 tensors (B, T, D) with the
        embeddings first and `"sequence"` last, and `"pooled"` (B, D), the tanh layer on [CLS].

    Raises:
        ValueError: If T is larger than `max_sequence_length`, or `num_heads` does not divide
            `hidden_dim`.

    >>> import numpy as np
    >>> encoder = BERT(13, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> ids = np.array([[2, 5, 6, 3]])
    >>> outputs = encoder(
    ...     {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
    ... )
    >>> tuple(outputs["sequence"].shape), len(outputs["layers"]), tuple(outputs["pooled"].shape)
    ((1, 4, 8), 3, (1, 8))
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        activation: str = "gelu_erf",
        pre_norm: bool = False,
        causal: bool = False,
        initializer_range: float = 0.02,
        norm_epsilon: float = 1e-12,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        def initializer():
            return keras.initializers.TruncatedNormal(stddev=initializer_range)

        token_embedding = TokenEmbedding(
            vocabulary_size, hidden_dim, initializer(), dtype=dtype, name="token_embedding"
        )
        position_embedding = PositionEmbedding(
            max_sequence_length, initializer(), dtype=dtype, name="position_embedding"
        )
        segment_embedding = TokenEmbedding(
            num_segments, hidden_dim, initializer(), dtype=dtype, name="segment_embedding"
        )
        embedding_norm = LayerNormalization(
            epsilon=norm_epsilon, dtype=dtype, name="embedding_norm"
        )
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
        pooler = Dense(
            hidden_dim,
            activation="tanh",
            kernel_initializer=initializer(),
            dtype=dtype,
            name="pooler",
        )

        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "segment_ids": keras.Input((None,), dtype="int32", name="segment_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        tokens = token_embedding(inputs["token_ids"])  # (B, T, D)
        positions = position_embedding(tokens)  # (T, D)
        x = tokens + positions + segment_embedding(inputs["segment_ids"])
        x = embedding_norm(x)
        x = Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
        layers = stack(x, padding_mask=inputs["padding_mask"], causal=causal)
        outputs = {"sequence": layers[-1], "layers": layers}
        if not causal:
            outputs["pooled"] = pooler(layers[-1][:, 0])
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = stack.dtype_policy  # a functional model takes none; copies read it

        self.token_embedding = token_embedding
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.activation = activation
        self.pre_norm = pre_norm
        self.causal = causal
        self.initializer_range = initializer_range
        self.norm_epsilon = norm_epsilon
        # Not by `super().__init__`: on TensorFlow that leaves the weights trainable.
        self.trainable = trainable

    def get_config(self):
        return {
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "activation": self.activation,
            "pre_norm": self.pre_norm,
            "initializer_range": self.initializer_range,
            "norm_epsilon": self.norm_epsilon,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
            "causal": self.causal,
        }
