"""Objectives that need no labels: inputs, targets, loss."""

from keras_plm.pretraining.auxiliary import WithLanguageModel
from keras_plm.pretraining.bilm import BiLM, Perplexity, bilm_batches
from keras_plm.pretraining.causal_lm import CausalLM, causal_lm_batches, token_losses
from keras_plm.pretraining.masked_lm import MaskedLM, MaskedTokenScores, masked_lm_batches

__all__ = [
    "BiLM",
    "CausalLM",
    "MaskedLM",
    "MaskedTokenScores",
    "Perplexity",
    "WithLanguageModel",
    "bilm_batches",
    "causal_lm_batches",
    "masked_lm_batches",
    "token_losses",
]
