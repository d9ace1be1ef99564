"""Regressor of a text or a pair of texts."""

import keras
import numpy as np
from keras import ops

from keras_plm.data.labels import score_range
from keras_plm.heads.classifier import Classifier
from keras_plm.layers import Dropout


@keras.saving.register_keras_serializable("keras_plm")
class SquaredError(keras.metrics.Mean):
    """Mean squared error of a `Regressor`, in the unit of its scores, squared.

    Args:
        labels: `(lowest, highest)` score, between which outputs and targets are fractions.
    """

    def __init__(self, labels=(0, 1), name="squared_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # by which callbacks know that less is better
        self.labels = list(labels)

    def update_state(self, y_true, y_pred, sample_weight=None):
        low, high = self.labels
        scores = ops.convert_to_tensor(y_pred)[..., 0]  # (B,)
        y_true = ops.reshape(ops.cast(y_true, scores.dtype), ops.shape(scores))
        super().update_state(((high - low) * (y_true - scores)) ** 2, sample_weight)

    def get_config(self):
        return {**super().get_config(), "labels": self.labels}


@keras.saving.register_keras_serializable("keras_plm")
class Regressor(Classifier):
    """A score of a text or a pair of texts, as STS-B's similarity from 0 to 5.

    A `Classifier` with one output and squared error. The output layer sees scores as a fraction of
    their range, so that it begins in its middle and the rate of learning does not depend on it.

    Reference: Radford et al. 2018, section 4.2; Devlin et al. 2018, section 4.1.

    Args:
        encoder: Any encoder; fine-tuned in place unless `frozen`.
        labels: `(lowest, highest)` score. What is predicted beyond is cut to it.
        **others: As in `Classifier`.

    Call arguments:
        inputs: As a `Classifier`'s.

    Returns:
        (B, 1) scores as fractions of their range, 0 the lowest, 1 the highest.

    Raises:
        ValueError: If the range is none; else as `Classifier`.
    """

    scores = True
    takes_class_weight = False

    def __init__(self, encoder, labels, tokenizer=None, name="regressor", **others):
        super().__init__(encoder, labels, tokenizer, name=name, **others)

    @staticmethod
    def check_labels(labels):
        if (
            len(labels) != 2
            or any(isinstance(x, str) for x in labels)
            or not -np.inf < labels[0] < labels[1] < np.inf
        ):
            raise ValueError(
                "A `Regressor` is given the lowest and the highest score, as labels=(0, 5). "
                f"Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples):
        return score_range(examples)

    @staticmethod
    def default_loss():
        return keras.losses.MeanSquaredError()

    def default_metrics(self):
        return [SquaredError(self.labels)]

    @staticmethod
    def output_of(x, num_labels, dropout, reader=None, inputs=None):
        x = Dropout(dropout, name="dropout")(x)
        bias = keras.initializers.Constant(0.5)
        dense = keras.layers.Dense(1, dtype="float32", bias_initializer=bias, name="logits")
        return dense(x)  # (B, 1)

    @staticmethod
    def decode(labels, logits, source, probabilities=False):
        """The score of each example."""
        if probabilities:
            raise ValueError("A score has no probability. Received: probabilities=True")
        low, high = labels
        fractions = np.clip(np.stack(logits)[:, 0].astype("float64"), 0, 1)
        return [float(score) for score in low + (high - low) * fractions]
