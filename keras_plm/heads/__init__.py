"""Heads: the output, loss and decoding that make an encoder solve a task.

A head has two parts. The first runs the encoder and selects features: vectors of some layers,
per word or pooled over the text. The second, `head.task_network`, is a Keras model from features to
logits. Fine-tuning trains both; feature-based transfer trains the task network on stored features.
"""

from keras_plm.heads.classifier import Classifier
from keras_plm.heads.coreference import CoreferenceLoss, CoreferenceResolver, MentionLoss
from keras_plm.heads.encoded import Frozen
from keras_plm.heads.multiple_choice import MultipleChoice
from keras_plm.heads.regressor import Regressor
from keras_plm.heads.semantic_roles import SemanticRoleLabeler
from keras_plm.heads.span_finder import SpanFinder, no_answer_odds
from keras_plm.heads.span_ranking import SpanRanking
from keras_plm.heads.tagger import CRFTagger, Tagger

__all__ = [
    "CRFTagger",
    "Classifier",
    "CoreferenceLoss",
    "CoreferenceResolver",
    "Frozen",
    "MentionLoss",
    "MultipleChoice",
    "Regressor",
    "SemanticRoleLabeler",
    "SpanFinder",
    "SpanRanking",
    "Tagger",
    "no_answer_odds",
]
