"""Parts of which the models are made."""

from keras_plm.layers.attention import (
    Attention,
    DotProductAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    combine_masks,
    masked_softmax,
)
from keras_plm.layers.dropout import Dropout
from keras_plm.layers.embedding import PositionEmbedding, TokenEmbedding
from keras_plm.layers.mixing import POOLINGS, LayerChoice, Pooling, ScalarMix
from keras_plm.layers.transformer import FeedForward, TransformerBlock, TransformerStack

__all__ = [
    "POOLINGS",
    "Attention",
    "DotProductAttention",
    "Dropout",
    "FeedForward",
    "LayerChoice",
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
