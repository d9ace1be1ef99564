"""Transfer of a pre-trained encoder to a task: fine-tuning, or features of its layers."""

from keras_plm.transfer.comparison import compare_layers
from keras_plm.transfer.extraction import FeatureExtractor, extract_features
from keras_plm.transfer.feature_based import FeatureBased
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.fine_tune import FEW_EXAMPLES_SETTINGS, GPT_SETTINGS, SCHEDULES, FineTune
from keras_plm.transfer.layer_choices import (
    LAYER_CHOICES,
    distinct_choices,
    every_choice,
    layer_choice,
)
from keras_plm.transfer.layer_groups import layer_groups
from keras_plm.transfer.method import KeepBest, default_metric
from keras_plm.transfer.probing.edge_probing import EdgeExample, EdgeProbing, LayerReport
from keras_plm.transfer.surgery import clone, keep_pretrained_layers, resize_token_embeddings

__all__ = [
    "FEW_EXAMPLES_SETTINGS",
    "GPT_SETTINGS",
    "LAYER_CHOICES",
    "SCHEDULES",
    "EdgeExample",
    "EdgeProbing",
    "FeatureBased",
    "FeatureExtractor",
    "FeatureStore",
    "FineTune",
    "KeepBest",
    "LayerReport",
    "clone",
    "compare_layers",
    "default_metric",
    "distinct_choices",
    "every_choice",
    "extract_features",
    "layer_choice",
    "layer_groups",
    "keep_pretrained_layers",
    "resize_token_embeddings",
]
