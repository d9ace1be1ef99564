"""Losses over tokens."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.softmax import token_cross_entropy


@keras.saving.register_keras_serializable("keras_plm")
class TokenCrossEntropy(keras.losses.Loss):
    """Cross-entropy of tokens from logits over a large vocabulary.

    Without smoothing it equals `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`, in
    float32 and without a one-hot row per position.

    Reference: label smoothing: Szegedy et al. 2016, arXiv 1512.00567, section 7.

    Args:
        label_smoothing: Fraction of the target spread evenly over all tokens.
        name: Name of the loss.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (...) token ids.
        y_pred: (..., V) logits.

    Returns:
        The weighted mean over positions, a scalar.

    Raises:
        ValueError: If `label_smoothing` is not in [0, 1).

    >>> import numpy as np
    >>> loss = TokenCrossEntropy(label_smoothing=0.1)
    >>> round(float(loss(np.array([[0]]), np.array([[[2.0, 0.0]]]))), 4)
    0.2269
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "token_cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be a fraction in [0, 1). "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_plm")
class LogisticLoss(keras.losses.Loss):
    """Weighted sum of logistic losses: -log σ(score) of true pairs, -log σ(-score) of others.

    Reference: Mikolov et al. 2013, arXiv 1310.4546, equation 4.

    Args:
        name: Name of the loss.
        reduction: Reduction of `keras.losses.Loss`. The default is the
            sum, because word2vec takes steps of single words.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (..., K) weights: above 0 for true pairs, below 0 for others, 0 to ignore a pair.
        y_pred: (..., K) scores.

    Returns:
        The sum over all pairs, a scalar.

    >>> import numpy as np
    >>> loss = LogisticLoss()
    >>> round(float(loss(np.array([[1.0, -2.0, 0.0]]), np.array([[0.0, 0.0, 5.0]]))), 4)  # 3 log 2
    2.0794
    """

    def __init__(self, name: str = "logistic_loss", reduction: str = "sum", **kwargs):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        losses = ops.abs(y_true) * ops.softplus(ops.where(y_true > 0, -y_pred, y_pred))
        return ops.sum(losses, axis=-1)


@keras.saving.register_keras_serializable("keras_plm")
class LabelLoss(keras.losses.SparseCategoricalCrossentropy):
    """Cross-entropy of labels from logits, with the loss 0 for the label -1.

    `evaluate` reads labels that do not occur in training as -1; metrics count them as errors.

    Args:
        from_logits: As in `keras.losses.SparseCategoricalCrossentropy`.
        name: Name of the loss.
        **kwargs: Other arguments of that class.

    Call arguments:
        y_true: (B,) or (B, W) ids.
        y_pred: (B, K) or (B, W, K) logits.

    Returns:
        The weighted mean, a scalar.

    >>> import numpy as np
    >>> round(float(LabelLoss()(np.array([1, -1]), np.zeros((2, 2), "float32"))), 4)  # log(2) / 2
    0.3466
    """

    def __init__(self, from_logits: bool = True, name: str = "label_loss", **kwargs):
        super().__init__(from_logits=from_logits, name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, "int32")
        losses = super().call(ops.maximum(y_true, 0), y_pred)
        known = ops.reshape(y_true >= 0, ops.shape(losses))
        return ops.where(known, losses, ops.zeros_like(losses))


@keras.saving.register_keras_serializable("keras_plm")
class MeanLoss(keras.metrics.Mean):
    """Metric of the mean over all positions, for a loss that `fit` sums.

    Args:
        loss: A Keras loss whose `call` returns one number per position.
        name: Name of the metric.
        **kwargs: Other arguments of `keras.metrics.Mean`.

    Call arguments:
        y_true, y_pred, sample_weight: As in a call of the loss.

    Returns:
        The mean so far, a scalar.

    >>> import keras
    >>> import numpy as np
    >>> metric = MeanLoss(keras.losses.MeanSquaredError(reduction="sum"))
    >>> metric.update_state(np.array([[1.0], [3.0]]), np.zeros((2, 1)))
    >>> float(metric.result())
    5.0
    """

    def __init__(self, loss: keras.losses.Loss, name: str = "mean_loss", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # callbacks read that lower is better
        self.loss = loss

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(self.loss.call(y_true, y_pred), sample_weight)

    def get_config(self):
        return {**super().get_config(), "loss": keras.saving.serialize_keras_object(self.loss)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})


@keras.saving.register_keras_serializable("keras_plm")
class GivenLoss(keras.losses.Loss):
    """Weighted mean of losses that the model itself computes, such as `pretraining.CausalLM`.

    Call arguments:
        y_true: Unused.
        y_pred: (B, ...) losses.
    """

    def __init__(self, name="given_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        return y_pred
