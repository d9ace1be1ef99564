"""Parts of which the models are made."""

from keras_plm.layers.attention import (
    Attention,
    DotProductAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    combine_masks,
    masked_softmax,
)
from keras_plm.layers.embedding import PositionEmbedding, TokenEmbedding
from keras_plm.layers.fast import Dense, Dropout, LayerNormalization
from keras_plm.layers.mixing import POOLINGS, LayerChoice, Pooling, ScalarMix
from keras_plm.layers.transformer import FeedForward, TransformerBlock, TransformerStack

__all__ = [
    "POOLINGS",
    "Attention",
    "Dense",
    "DotProductAttention",
    "Dropout",
    "FeedForward",
    "LayerChoice",
    "LayerNormalization",
    "MultiHeadAttention",
    "Pooling",
    "PositionEmbedding",
    "ScalarMix",
    "ScaledDotProductAttention",
    "TokenEmbedding",
    "TransformerBlock",
    "TransformerStack",
    "combine_masks",
    "masked_softmax",
]
