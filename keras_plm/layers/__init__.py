"""Layers of the models."""

from keras_plm.layers._fused.dense import Dense
from keras_plm.layers._fused.dropout import Dropout
from keras_plm.layers._fused.layer_norm import LayerNormalization
from keras_plm.layers.attention import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    CosineAttention,
    DotProductAttention,
    LocationAttention,
    ScaledDotProductAttention,
    masked_softmax,
)
from keras_plm.layers.crf import (
    CRF,
    CRFLoss,
    allowed_transitions,
    crf_losses,
    marginals,
    viterbi,
)
from keras_plm.layers.embedding import (
    CharacterEncoder,
    PositionEmbedding,
    SinePositionEmbedding,
    TokenEmbedding,
)
from keras_plm.layers.feed_forward import FeedForward
from keras_plm.layers.gru import AttentionDecoder, BidirectionalGRU
from keras_plm.layers.lstm import LSTM, CarriedStates, LSTMStack, ProjectedLSTM, reverse_rows
from keras_plm.layers.masks import combine_masks, window_mask
from keras_plm.layers.multi_head_attention import MultiHeadAttention
from keras_plm.layers.pooling import POOLINGS, LayerChoice, Pooling, ScalarMix
from keras_plm.layers.sampled_softmax import SampledSoftmax, expected_counts, log_uniform_words
from keras_plm.layers.transformer import TransformerStack, compile_blocks, recompute_blocks
from keras_plm.layers.transformer_block import TransformerBlock

__all__ = [
    "LSTM",
    "POOLINGS",
    "AdditiveAttention",
    "Attention",
    "AttentionDecoder",
    "BidirectionalGRU",
    "BilinearAttention",
    "CarriedStates",
    "CharacterEncoder",
    "CosineAttention",
    "Dense",
    "DotProductAttention",
    "Dropout",
    "FeedForward",
    "LSTMStack",
    "LayerChoice",
    "LayerNormalization",
    "LocationAttention",
    "MultiHeadAttention",
    "Pooling",
    "PositionEmbedding",
    "ProjectedLSTM",
    "SampledSoftmax",
    "ScalarMix",
    "ScaledDotProductAttention",
    "SinePositionEmbedding",
    "TokenEmbedding",
    "TransformerBlock",
    "TransformerStack",
    "combine_masks",
    "compile_blocks",
    "expected_counts",
    "log_uniform_words",
    "masked_softmax",
    "recompute_blocks",
    "reverse_rows",
    "window_mask",
    "CRF",
    "CRFLoss",
    "allowed_transitions",
    "crf_losses",
    "marginals",
    "viterbi",
]
