"""Whole networks, one paper each."""

from keras_plm.models.bert import BERT, BERT_SIZES

__all__ = ["BERT", "BERT_SIZES"]
