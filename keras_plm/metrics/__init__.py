"""Scores of predictions: plain functions `(y_true, y_pred) -> float`, and `SpanF1` for `fit`."""

from keras_plm.metrics.classification import accuracy, f1, matthews_correlation, word_accuracy
from keras_plm.metrics.conlleval import SpanF1, span_f1, span_scores, spans
from keras_plm.metrics.correlation import pearson_correlation, spearman_correlation
from keras_plm.metrics.squad import (
    normalize_answer,
    squad_exact_match,
    squad_f1,
    squad_scores,
)
from keras_plm.metrics.tag_schemes import are_spans, tag_scheme
from keras_plm.metrics.translation import bleu, bleu_signature

__all__ = [
    "SpanF1",
    "accuracy",
    "are_spans",
    "bleu",
    "bleu_signature",
    "f1",
    "matthews_correlation",
    "normalize_answer",
    "pearson_correlation",
    "span_f1",
    "span_scores",
    "spans",
    "spearman_correlation",
    "squad_exact_match",
    "squad_f1",
    "squad_scores",
    "tag_scheme",
    "word_accuracy",
]
