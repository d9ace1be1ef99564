"""Losses over tokens."""

import keras
from keras import ops

from keras_plm.layers.fast import token_cross_entropy


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

    def __init__(self, label_smoothing=0.0, name="token_cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` is a share from 0 to below 1. "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        return token_cross_entropy(y_true, ops.cast(y_pred, "float32"), self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
