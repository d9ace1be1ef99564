"""The feed-forward network of a Transformer block."""

from typing import Any

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dense import Dense
from keras_plm.layers.multi_head_attention import project

ACTIVATIONS = {
    # Google's first BERT release and Hugging Face's "gelu"; up to 4.7e-4 from the other.
    "gelu_erf": lambda x: ops.gelu(x, approximate=False),
    # GPT, Google's BERT code since February 2019, KerasHub.
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
}


def feed_forward(weights, inputs, activation):
    """Computes `W_2 f(W_1 x + b_1) + b_2`, (B, T, D) -> (B, T, D), as a pure function of arrays.

    Args:
        weights: A dict of the arguments of `dense`: `"intermediate"` and `"output"`.
        inputs: (B, T, D).
        activation: f, a name of `ACTIVATIONS`.
    """
    return project(
        weights["output"], ACTIVATIONS[activation](project(weights["intermediate"], inputs))
    )


@keras.saving.register_keras_serializable("keras_plm")
class FeedForward(keras.layers.Layer):
    """Two dense layers at every position, `W2 f(W1 x + b1) + b2`.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.3, equation 2.

    Args:
        intermediate_dim: Width between the two layers (4 D in the papers).
        activation: `"gelu_erf"`, `"gelu_tanh"` or `"relu"`.
        kernel_initializer: Initializer of both kernels.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D).

    Raises:
        ValueError: If the activation is unknown.

    >>> import numpy as np
    >>> tuple(FeedForward(intermediate_dim=8)(np.ones((2, 3, 4))).shape)
    (2, 3, 4)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str = "gelu_erf",
        kernel_initializer: str | dict | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"`activation` must be one of {sorted(ACTIVATIONS)}. Received: {activation!r}"
            )
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        def dense(units, name):
            initializer = self.kernel_initializer.clone()
            return Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

        self.intermediate = dense(self.intermediate_dim, "intermediate")
        self.intermediate.build(input_shape)
        self.output_projection = dense(input_shape[-1], "output")
        self.output_projection.build((*input_shape[:-1], self.intermediate_dim))

    def call(self, inputs: Tensor) -> Tensor:
        return feed_forward(self.arrays(), inputs, self.activation)

    def arrays(self) -> dict[str, Any]:
        """Returns the `weights` of `feed_forward`."""
        return {
            "intermediate": self.intermediate.arrays(),
            "output": self.output_projection.arrays(),
        }

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
