"""Keras' own layers where a backend has a cheaper way: fewer passes, fewer random bits."""

import functools

import keras
from keras import ops

STEPS = 1 << 16  # of the 16 random bits that decide about one element
WIDE = 1 << 14  # outputs of a vocabulary, see `add_bias`


@keras.saving.register_keras_serializable("keras_plm")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` that draws 16 random bits per element instead of a float.

    Dropout at 0.1 costs BERT as much as a layer, nearly all of it for random numbers. Keras
    draws a float per element (torch's CPU generator one at a time, 6 ns each; JAX 32 bits of
    threefry). Here torch fills whole 64-bit words and cuts them in four, and JAX draws 16 bits
    from the `rbg` generator. TensorFlow and torch on a GPU have cheap dropout of their own.

    Differs from Keras: the rate is rounded to 1/65536 and the random numbers are others.

    Args:
        rate: Share of elements set to zero in training; the others grow by `1 / (1 - rate)`.
        seed: As in `keras.layers.Dropout`; on torch's CPU path its global generator is used.

    Call arguments:
        inputs: Any shape.
        training: True to drop, False to pass the inputs on.

    Returns:
        A tensor of the shape of `inputs`.

    Raises:
        ValueError: If `rate` is not between 0 and 1.

    >>> import numpy as np
    >>> layer = Dropout(0.5)
    >>> float(layer(np.ones((2, 3)), training=False)[0, 0])
    1.0
    >>> sorted({float(x) for x in keras.ops.ravel(layer(np.ones((9, 9)), training=True))})
    [0.0, 2.0]
    """

    def call(self, inputs, training=False):
        if not training or not 0 < self.rate < 1 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        backend = keras.backend.backend()
        if backend == "torch" and inputs.device.type == "cpu" and self.seed is None:
            keep = _torch_keep(inputs, self._dropped_of_steps())
        elif backend == "jax":
            keep = _jax_keep(inputs, self._dropped_of_steps(), self.seed_generator)
        else:
            return super().call(inputs, training=training)
        # Two products, because 1 / (1 - rate) rounded into a half-precision mask would
        # change every output by up to 0.2 %.
        return inputs * keep * (STEPS / (STEPS - self._dropped_of_steps()))

    def _dropped_of_steps(self):
        return min(max(round(self.rate * STEPS), 1), STEPS - 1)


def _torch_keep(inputs, dropped):
    """0 or 1 for each element, in the type of `inputs`, from 16 bits each."""
    import torch

    count = inputs.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64)
    words.random_(-(2**63), None)  # all 64 bits
    bits = words.view(torch.int16)[:count].view(inputs.shape)
    keep = torch.empty(inputs.shape, dtype=inputs.dtype)
    return torch.ge(bits, dropped - STEPS // 2, out=keep)


def _jax_keep(inputs, dropped, seed_generator):
    import jax

    seed = ops.cast(seed_generator.next(), "uint32")  # (2,)
    key = jax.random.wrap_key_data(jax.numpy.concatenate([seed, seed]), impl="rbg")
    bits = jax.random.bits(key, inputs.shape, dtype="uint16")
    return (bits >= dropped).astype(inputs.dtype)


def recomputed(layer, inputs, **options):
    """What a layer gives of `inputs` (B, ...), of which the gradient keeps the inputs alone.

    The layer runs without side effects, so that what it drops is the same when it runs again.
    """
    variables, changed = layer.variables, layer.non_trainable_variables

    def run(inputs, *values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))) as scope:
            outputs = layer(inputs, **options)
        return outputs, *(scope.get_current_value(variable) for variable in changed)

    values = [ops.convert_to_tensor(variable) for variable in variables]
    # Copies of the states, which torch changes in place.
    values = [ops.copy(x) if any(v is c for c in changed) else x
              for v, x in zip(variables, values, strict=True)]  # fmt: skip
    outputs, *states = keras.remat(run)(inputs, *values)
    for variable, state in zip(changed, states, strict=True):
        variable.assign(state)
    return outputs


@keras.saving.register_keras_serializable("keras_plm")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose bias is added within the matrix product on torch.

    On JAX all positions go into one product of two matrices, see `by_rows`, and the bias of a
    vocabulary has a gradient of its own, see `add_bias`.

    Args, call arguments and returns: as in `keras.layers.Dense`.

    >>> import numpy as np
    >>> tuple(Dense(3)(np.ones((2, 5, 4))).shape)
    (2, 5, 3)
    """

    def call(self, inputs, training=None):
        plain = not self.use_bias or self.lora_enabled
        if keras.backend.backend() == "jax" and self.units >= WIDE and not plain:
            kernel, bias = (
                ops.convert_to_tensor(x, dtype=self.compute_dtype) for x in (self.kernel, self.bias)
            )
            outputs = by_rows(
                lambda rows: ops.matmul(ops.cast(rows, self.compute_dtype), kernel),
                inputs,
                self.units,
            )
            outputs = add_bias(outputs, bias)
            return outputs if self.activation is None else self.activation(outputs)
        if keras.backend.backend() != "torch" or plain:
            return by_rows(super().call, inputs, self.units)
        import torch

        inputs, bias, kernel = (
            ops.convert_to_tensor(x, dtype=self.compute_dtype)
            for x in (inputs, self.bias, self.kernel)
        )
        flat = inputs.reshape(-1, inputs.shape[-1])
        outputs = torch.addmm(bias, flat, kernel)
        outputs = outputs.reshape(*inputs.shape[:-1], self.units)
        return outputs if self.activation is None else self.activation(outputs)


def add_bias(outputs, bias):
    """`outputs + bias` for outputs as wide as a vocabulary.

    XLA's CPU code sums the columns of a wide matrix, the bias's gradient, fifty times slower than
    it multiplies the matrix with a vector of ones (512 x 33,278: 400 ms and 8 ms).
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
    """A function of matrices (rows, D) -> (rows, units) for inputs (..., D).

    On JAX the leading axes become one: XLA's CPU code takes a sixth longer for the gradient of
    attention if a kernel meets three axes. Elsewhere the function takes the inputs as they are.
    """
    if keras.backend.backend() != "jax" or len(inputs.shape) < 3:
        return function(inputs)
    rows = function(ops.reshape(inputs, (-1, inputs.shape[-1])))
    return ops.reshape(rows, (*ops.shape(inputs)[:-1], units))


@keras.saving.register_keras_serializable("keras_plm")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` that reads half precision as it is on torch.

    The mean and variance are taken in float32 everywhere; Keras casts the whole input to float32
    and the output back, torch's kernel does so on the fly.

    Args, call arguments and returns: as in `keras.layers.LayerNormalization`.

    >>> import numpy as np
    >>> [round(float(x), 2) for x in LayerNormalization()(np.array([[1.0, 3.0]]))[0]]
    [-1.0, 1.0]
    """

    def call(self, inputs):
        half = self.compute_dtype in ("bfloat16", "float16")
        last = self.axis in (-1, [-1], (-1,), [len(inputs.shape) - 1])
        if keras.backend.backend() != "torch" or not half or not last or self.rms_scaling:
            return super().call(inputs)
        import torch

        inputs, gamma, beta = (
            None if x is None else ops.convert_to_tensor(x, dtype=self.compute_dtype)
            for x in (inputs, self.gamma, self.beta)
        )
        return torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], gamma, beta, self.epsilon)
