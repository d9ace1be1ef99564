"""Losses over tokens."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused_softmax import token_cross_entropy


@keras.saving.register_keras_serializable("keras_plm")
class TokenCrossEntropy(keras.losses.Loss):
    """Cross-entropy from logits over a large vocabulary, one number per position.

    Without smoothing it is `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`, in
    float32 and without a one-hot row per position.

    Reference: label smoothing: Szegedy et al. 2016, arXiv 1512.00567, section 7.

    Args:
        label_smoothing: Share of the target that is spread evenly over all tokens.

    Call arguments:
        y_true: (...) token ids.
        y_pred: (..., V) logits.

    Returns:
        Their weighted mean.

    Raises:
        ValueError: If `label_smoothing` is no share.

    >>> import numpy as np
    >>> loss = TokenCrossEntropy(label_smoothing=0.1)
    >>> round(float(loss(np.array([[0]]), np.array([[[2.0, 0.0]]]))), 4)
    0.2269
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "token_cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` is a share from 0 to below 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return token_cross_entropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_plm")
class LogisticLoss(keras.losses.Loss):
    """Telling what is true from what is not: -log σ(score) or -log σ(-score), weighted and summed.

    Reference: Mikolov et al. 2013, arXiv 1310.4546, equation 4.

    Call arguments:
        y_true: (..., K) weights: above 0 for what is true, below 0 for what is not, 0 to leave out.
        y_pred: (..., K) scores.

    Returns:
        The sum over everything, not a mean: the steps of word2vec are one word's, not a batch's.

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
    """Cross-entropy of labels and logits; 0 for the label -1, which no output has.

    So `evaluate` can read labels that training did not have; its metrics count them as errors.

    Call arguments:
        y_true: (B,) or (B, W) ids.
        y_pred: (B, K) or (B, W, K) logits.
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
    """The mean over all positions of a loss that `fit` sums.

    Args:
        loss: A Keras loss whose `call` gives one number per position.
    """

    def __init__(self, loss: keras.losses.Loss, name: str = "mean_loss", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # by which callbacks know that less is better
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
    """The weighted mean of losses that the model itself gives, as `pretraining.CausalLM` does.

    Call arguments:
        y_true: Not read.
        y_pred: (B, ...) losses.
    """

    def __init__(self, name="given_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        return y_pred
