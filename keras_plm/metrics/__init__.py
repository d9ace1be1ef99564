"""Scores of predictions: plain functions `(y_true, y_pred) -> float`, and `SpanF1` for `fit`."""

from keras_plm.metrics.classification import accuracy, f1, matthews_correlation, word_accuracy
from keras_plm.metrics.conlleval import SpanF1, span_f1, span_scores, spans
from keras_plm.metrics.coreference import (
    b_cubed,
    ceaf,
    conll_coreference_f1,
    coreference_counts,
    coreference_scores,
    lea,
    muc,
)
from keras_plm.metrics.correlation import pearson_correlation, spearman_correlation
from keras_plm.metrics.semantic_roles import role_f1, role_scores, roles
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
    "b_cubed",
    "bleu",
    "bleu_signature",
    "ceaf",
    "conll_coreference_f1",
    "coreference_counts",
    "coreference_scores",
    "f1",
    "lea",
    "matthews_correlation",
    "muc",
    "normalize_answer",
    "pearson_correlation",
    "role_f1",
    "role_scores",
    "roles",
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
