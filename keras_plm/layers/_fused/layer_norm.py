"""Layer normalization with a kernel for half precision."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dense import as_type, in_type


@keras.saving.register_keras_serializable("keras_plm")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` with a kernel for half precision on torch.

    Mean and variance are in float32 on every backend. Keras casts the whole input to float32 and
    the output back; torch's kernel casts each element.

    Args, call arguments and returns: As in `keras.layers.LayerNormalization`.

    >>> import numpy as np
    >>> [round(float(x), 2) for x in LayerNormalization()(np.array([[1.0, 3.0]]))[0]]
    [-1.0, 1.0]
    """

    def call(self, inputs: Tensor) -> Tensor:
        last = self.axis in (-1, [-1], (-1,), [len(inputs.shape) - 1])
        if not last or self.rms_scaling:
            return super().call(inputs)
        outputs = layer_norm(inputs, **self.arrays(), epsilon=self.epsilon)
        return ops.cast(outputs, self.compute_dtype)  # Keras does not cast the inputs of this layer

    def arrays(self) -> dict[str, Tensor]:
        """Returns the arguments of `layer_norm`: a dict of `gamma` and `beta`, each if it exists.

        They keep the type of the variables, except on torch: its kernel needs the inputs' type.
        """
        weights = {"gamma": self.gamma, "beta": self.beta}
        weights = {name: x for name, x in weights.items() if x is not None}
        torch = keras.backend.backend() == "torch"
        return in_type(self.compute_dtype if torch else self.variable_dtype, weights)


def layer_norm(inputs, gamma=None, beta=None, epsilon=1e-3):
    """Computes `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis.

    Moments are in float32 or wider. torch's kernel reads half precision directly; Keras
    casts the whole input to float32 and the output back.

    Args:
        inputs: (..., D).
        gamma, beta: (D,); ones and zeros when omitted.
        epsilon: Added to the variance.

    Returns:
        (..., D), in the type of `inputs`; on torch in that of `gamma` or `beta`, if one is given.
    """
    if keras.backend.backend() != "torch":
        outputs = ops.layer_normalization(inputs, gamma, beta, axis=-1, epsilon=epsilon)
        return ops.cast(outputs, inputs.dtype)
    import torch

    weight = beta if gamma is None else gamma
    if weight is not None:
        inputs = as_type(inputs, weight.dtype)
    return torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], gamma, beta, epsilon)
