"""Training on `Batches` through `model.fit`: optimizers, schedules, losses and resume."""

from keras_plm.training.fit import FitsBatches, check_outputs, run_on
from keras_plm.training.losses import LabelLoss, LogisticLoss, MeanLoss, TokenCrossEntropy
from keras_plm.training.optimizers import AdaGrad, BertAdamW
from keras_plm.training.resume import TrainingState, set_seed
from keras_plm.training.schedules import (
    InverseSquareRoot,
    SlantedTriangular,
    WarmupCosineDecay,
    WarmupLinearDecay,
)

__all__ = [
    "AdaGrad",
    "BertAdamW",
    "FitsBatches",
    "InverseSquareRoot",
    "LabelLoss",
    "LogisticLoss",
    "MeanLoss",
    "SlantedTriangular",
    "TokenCrossEntropy",
    "TrainingState",
    "WarmupCosineDecay",
    "WarmupLinearDecay",
    "check_outputs",
    "run_on",
    "set_seed",
]
