"""Plots as matplotlib figures, for the caller to show or save."""

from keras_plm.plots.attention_weights import attention
from keras_plm.plots.curves import lines, score_by_cost
from keras_plm.plots.layers import edge_probing, mixing_weights, score_by_layer

__all__ = [
    "attention",
    "edge_probing",
    "lines",
    "mixing_weights",
    "score_by_cost",
    "score_by_layer",
]
