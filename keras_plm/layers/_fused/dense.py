"""Dense layers with faster products and biases."""

import functools
from collections.abc import Callable

import keras
from keras import ops

from keras_plm.files.sequences import Tensor

WIDE = 1 << 14  # outputs as wide as a vocabulary, see `add_bias`


@keras.saving.register_keras_serializable("keras_plm")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` with faster products and biases on torch and JAX.

    On torch one operation computes the matrix product and adds the bias.
    On JAX one product of two matrices covers all positions (see `by_rows`). A bias as wide as a
    vocabulary has a custom gradient (see `add_bias`).

    Args, call arguments and returns: As in `keras.layers.Dense`.

    >>> import numpy as np
    >>> tuple(Dense(3)(np.ones((2, 5, 4))).shape)
    (2, 5, 3)
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        outputs = dense(inputs, **self.arrays())
        return outputs if self.activation is None else self.activation(outputs)

    def arrays(self) -> dict[str, Tensor] | Callable[[Tensor], Tensor]:
        """Returns the arguments of `dense`: a dict of `kernel` and, if there is one, `bias`.

        With LoRA the kernel is W + A B. A quantized layer returns itself, a function of inputs.
        """
        if self.quantization_mode is not None:
            return self
        weights = {"kernel": self.kernel}
        if self.bias is not None:
            weights["bias"] = self.bias
        return in_type(self.compute_dtype, weights)


def in_type(dtype, weights):
    """Converts a dict of variables to tensors of a type."""
    return {name: ops.convert_to_tensor(x, dtype=dtype) for name, x in weights.items()}


def as_type(x, dtype):
    """Casts a tensor unless it has the type: a call of `ops.cast` takes time even then."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def dense(inputs, kernel, bias=None):
    """Computes `x W + b` in the type of the kernel.

    Args:
        inputs: (..., D).
        kernel: (D, units), W.
        bias: (units,), b; zeros when omitted.

    Returns:
        (..., units).
    """
    inputs, units = as_type(inputs, kernel.dtype), kernel.shape[-1]
    if bias is None:
        return by_rows(lambda rows: ops.matmul(rows, kernel), inputs, units)
    if keras.backend.backend() != "torch":
        return by_rows(lambda rows: add_bias(ops.matmul(rows, kernel), bias), inputs, units)
    import torch

    outputs = torch.addmm(bias, inputs.reshape(-1, inputs.shape[-1]), kernel)
    return outputs.reshape(*inputs.shape[:-1], units)


def add_bias(outputs, bias):
    """Computes `outputs + bias` with a fast gradient for outputs as wide as a vocabulary.

    The gradient of the bias is a sum over rows. In XLA's CPU code this sum is fifty times slower
    than a product with a vector of ones (512 x 33,278: 400 ms and 8 ms).
    """
    bias = ops.cast(bias, outputs.dtype)
    if keras.backend.backend() != "jax" or bias.shape[0] < WIDE:
        return outputs + bias
    return _jax_add_bias()(outputs, bias)


@functools.cache
def _jax_add_bias():
    import jax

    @jax.custom_vjp
    def add(outputs, bias):
        return outputs + bias

    def forward(outputs, bias):
        return outputs + bias, None

    def backward(_, gradient):
        rows = gradient.reshape(-1, gradient.shape[-1])
        return gradient, jax.numpy.ones(len(rows), rows.dtype) @ rows

    add.defvjp(forward, backward)
    return add


def by_rows(function, inputs, units):
    """Applies a function of matrices (rows, D) -> (rows, units) to inputs (..., D).

    On JAX the leading axes become one: with three axes, XLA's CPU code takes a sixth longer for the
    gradient of attention. On other backends the inputs keep their axes.
    """
    if keras.backend.backend() != "jax" or len(inputs.shape) < 3:
        return function(inputs)
    rows = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(rows, (*ops.shape(inputs)[:-1], units))
