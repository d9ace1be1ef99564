"""Whole networks, one paper each."""

from keras_plm.models.bert import BERT, BERT_SIZES
from keras_plm.models.seq2seq import SEQ2SEQ_SIZES, EncoderDecoder, Seq2Seq
from keras_plm.models.transformer import TRANSFORMER_SIZES, Transformer, TransformerEncoder

__all__ = [
    "BERT",
    "BERT_SIZES",
    "SEQ2SEQ_SIZES",
    "TRANSFORMER_SIZES",
    "EncoderDecoder",
    "Seq2Seq",
    "Transformer",
    "TransformerEncoder",
]
