"""One run: trains and scores a task, an encoder, a method and a seed."""

from keras_plm.experiments.runner.runner import Runner
from keras_plm.experiments.runner.trials import best_trial

__all__ = ["Runner", "best_trial"]
