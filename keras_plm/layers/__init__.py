"""Parts of which the models are made."""

from keras_plm.layers.attention import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    CosineAttention,
    DotProductAttention,
    LocationAttention,
    ScaledDotProductAttention,
    combine_masks,
    masked_softmax,
    window_mask,
)
from keras_plm.layers.embedding import (
    PositionEmbedding,
    SinePositionEmbedding,
    TokenEmbedding,
)
from keras_plm.layers.fast import Dense, Dropout, LayerNormalization
from keras_plm.layers.mixing import POOLINGS, LayerChoice, Pooling, ScalarMix
from keras_plm.layers.multi_head import MultiHeadAttention
from keras_plm.layers.recurrent import AttentionDecoder, BidirectionalGRU
from keras_plm.layers.transformer import FeedForward, TransformerBlock, TransformerStack

__all__ = [
    "POOLINGS",
    "AdditiveAttention",
    "Attention",
    "AttentionDecoder",
    "BidirectionalGRU",
    "BilinearAttention",
    "CosineAttention",
    "Dense",
    "DotProductAttention",
    "Dropout",
    "FeedForward",
    "LayerChoice",
    "LayerNormalization",
    "LocationAttention",
    "MultiHeadAttention",
    "Pooling",
    "PositionEmbedding",
    "ScalarMix",
    "ScaledDotProductAttention",
    "SinePositionEmbedding",
    "TokenEmbedding",
    "TransformerBlock",
    "TransformerStack",
    "combine_masks",
    "masked_softmax",
    "window_mask",
]
