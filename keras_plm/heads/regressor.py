"""Regressor of a text or a pair of texts."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.labels import score_range
from keras_plm.data.task import Example
from keras_plm.files.sequences import Tensor
from keras_plm.heads.classifier import Classifier
from keras_plm.layers import Dropout
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer


@keras.saving.register_keras_serializable("keras_plm")
class SquaredError(keras.metrics.Mean):
    """Mean squared error of a `Regressor`, in squared units of its scores.

    Args:
        labels: `(lowest, highest)` score; outputs and targets are fractions of this range.
    """

    def __init__(self, labels=(0, 1), name="squared_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # callbacks read that lower is better
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
    """Regression head: a score of a text or a pair of texts, such as STS-B's similarity.

    It is a `Classifier` with one output and squared error. Targets are fractions of the range of
    scores, so initial outputs are in its middle and the learning rate does not depend on it.

    Reference: Radford et al. 2018, section 4.2; Devlin et al. 2018, section 4.1.

    Args:
        encoder: An encoder; it is trained in place unless `frozen`.
        labels: `(lowest, highest)` score; predictions are clipped to it.
        tokenizer: The encoder's tokenizer; needed for texts.
        **others: As in `Classifier`.

    Call arguments:
        inputs: As in `Classifier`.

    Returns:
        (B, 1) scores as fractions of their range, 0 the lowest, 1 the highest.

    Raises:
        ValueError: If `labels` is not a range. Otherwise as `Classifier`.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> model = Regressor(encoder, labels=(0, 5), tokenizer=encoder.tokenizer())
    >>> [0 <= score <= 5 for score in model.predict(["fine film", "dull"])]
    [True, True]
    """

    scores = True
    takes_class_weight = False

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer | None = None,
        name: str = "regressor",
        **others,
    ):
        super().__init__(encoder, labels, tokenizer, name=name, **others)

    @staticmethod
    def check_labels(labels: Iterable[Any]) -> None:
        if (
            len(labels) != 2
            or any(isinstance(x, str) for x in labels)
            or not -np.inf < labels[0] < labels[1] < np.inf
        ):
            raise ValueError(
                "A `Regressor` needs the lowest and the highest score, as labels=(0, 5). "
                f"Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> list[Any]:
        return score_range(examples)

    @staticmethod
    def default_loss() -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`."""
        return [SquaredError(self.labels)]

    @staticmethod
    def output_of(
        x: Tensor,
        num_labels: int,
        dropout: float,
        reader: keras.Layer | None = None,
        inputs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        x = Dropout(dropout, name="dropout")(x)
        bias = keras.initializers.Constant(0.5)
        dense = keras.layers.Dense(1, dtype=wide_dtype(x), bias_initializer=bias, name="logits")
        return dense(x)  # (B, 1)

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any]:
        """Returns the score of each example, the mean of its windows."""
        if probabilities:
            raise ValueError(
                "Scores have no `probabilities`: omit the argument. Received: probabilities=True"
            )
        low, high = labels
        rows, windows = np.stack(logits)[:, 0], np.bincount(source.examples_of)
        fractions = np.clip(np.bincount(source.examples_of, rows) / windows, 0, 1)
        return [float(score) for score in low + (high - low) * fractions]
