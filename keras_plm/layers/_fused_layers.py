"""Faster forms of Keras' layers: fewer passes over memory, fewer random bits.

Each layer holds the weights of a pure function of arrays: `dense`, `layer_norm` or `dropout`.
`TransformerBlock` calls these functions with the arrays of its layers.
"""

import functools
import inspect
import warnings
from collections.abc import Callable

import keras
from keras import ops

from keras_plm.files.sequences import Tensor

STEPS = 1 << 16  # values of the 16 random bits of an element
WIDE = 1 << 14  # outputs as wide as a vocabulary, see `add_bias`
_FAILED = set()  # functions and settings that could not be compiled, see `run_compiled`


@keras.saving.register_keras_serializable("keras_plm")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` with 16 random bits per element instead of a float.

    In BERT, dropout at 0.1 takes as much time as a layer, nearly all for random numbers. Keras
    draws a float per element (torch's CPU generator one at a time, 6 ns each; JAX 32 bits of
    threefry). Here torch fills whole 64-bit words and splits each in four, and JAX draws 16 bits
    from the `rbg` generator. TensorFlow and torch on a GPU already have cheap dropout.

    Differs from Keras: the rate is rounded to 1/65536, and the random numbers differ.

    Args:
        rate: Fraction of elements set to zero in training; the others grow by `1 / (1 - rate)`.
        seed: As in `keras.layers.Dropout`; on torch's CPU path its global generator is used.

    Call arguments:
        inputs: Any shape.
        training: If True, drop; if False, return the inputs.

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

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        if self.noise_shape is not None:
            return super().call(inputs, training=training)
        if not training or self.rate == 0:
            return inputs
        return dropout(inputs, self.rate, self.next_seed())

    def next_seed(self) -> Tensor | None:
        """Returns the seed of the next call, (2,) integers, or `None` if no seed is needed.

        On torch, a layer without a `seed` uses the global generator.
        """
        on_torch = keras.backend.backend() == "torch"
        if self.rate == 0 or (on_torch and self.seed is None):
            return None
        return self.seed_generator.next()


def dropout(inputs, rate, seed=None):
    """Computes `inputs * keep / (1 - rate)`; `keep` is 0 at a fraction `rate`, otherwise 1.

    Args:
        inputs: Any shape.
        rate: Fraction set to zero, from 0 to 1.
        seed: (2,) integers, the seed of the random numbers. On torch, `None` means the global
            generator.

    Returns:
        A tensor of the shape and type of `inputs`.
    """
    if rate == 0:
        return inputs
    if rate == 1:
        return ops.zeros_like(inputs)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _tf_dropout(inputs, rate, seed)
    dropped = min(max(round(rate * STEPS), 1), STEPS - 1)
    if backend == "jax":
        keep = _jax_keep(inputs, dropped, seed)
    elif inputs.device.type == "cpu" and not _is_compiling():
        keep = _torch_keep(inputs, dropped, seed)
    else:
        return _torch_dropout(inputs, rate, seed)
    # Two products, because 1 / (1 - rate) rounded into a half-precision mask would
    # change every output by up to 0.2 %.
    return inputs * keep * (STEPS / (STEPS - dropped))


def _is_compiling():
    import torch

    return torch.compiler.is_compiling()


def _tf_dropout(inputs, rate, seed):
    import tensorflow as tf

    # Keras holds seeds as int64, XLA needs int32; `keras.random` reduces them in the same way.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), "int32")
    return tf.nn.experimental.stateless_dropout(inputs, rate=rate, seed=seed)


def _torch_dropout(inputs, rate, seed):
    """Applies torch's dropout; with a seed it draws the numbers of `keras.random.dropout`."""
    import torch

    if seed is None or inputs.device.type == "meta":
        return torch.nn.functional.dropout(inputs, p=rate)
    generator = _torch_generator(seed, inputs.device)
    keep = torch.full(inputs.shape, 1 - rate, device=inputs.device)
    keep = torch.bernoulli(keep, generator=generator).bool()
    return torch.where(keep, inputs / (1 - rate), torch.zeros_like(inputs))


def _torch_generator(seed, device):
    """A generator of torch with the seed that `keras.random` would take."""
    import torch

    return torch.Generator(device=device).manual_seed(int(seed.sum()) & 0xFFFFFFFF)


def _torch_keep(inputs, dropped, seed=None):
    """Draws 0 or 1 for each element from 16 random bits, in the type of `inputs`."""
    import torch

    count = inputs.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64)
    generator = None if seed is None else _torch_generator(seed, inputs.device)
    words.random_(-(2**63), None, generator=generator)  # all 64 bits
    bits = words.view(torch.int16)[:count].view(inputs.shape)
    keep = torch.empty(inputs.shape, dtype=inputs.dtype)
    return torch.ge(bits, dropped - STEPS // 2, out=keep)


def _jax_keep(inputs, dropped, seed):
    import jax

    seed = ops.cast(seed, "uint32")  # (2,)
    key = jax.random.wrap_key_data(jax.numpy.concatenate([seed, seed]), impl="rbg")
    bits = jax.random.bits(key, inputs.shape, dtype="uint16")
    return (bits >= dropped).astype(inputs.dtype)


def recomputed(function, arrays):
    """Computes `function(arrays)`; its gradient keeps only the arrays and recomputes the rest.

    Args:
        function: A pure function.
        arrays: Any structure of arrays. `None` and functions in it are passed unchanged.
    """
    flat = keras.tree.flatten(arrays)
    fixed = [x is None or callable(x) for x in flat]

    def run(*kept):
        kept = iter(kept)
        values = [x if is_fixed else next(kept) for x, is_fixed in zip(flat, fixed, strict=True)]
        return function(keras.tree.pack_sequence_as(arrays, values))

    return keras.remat(run)(*(x for x, is_fixed in zip(flat, fixed, strict=True) if not is_fixed))


def check_compiles_blocks():
    """Raises a ValueError unless the backend starts each operation from Python, as torch does."""
    if keras.backend.backend() != "torch":
        raise ValueError(
            "Blocks are compiled under torch; JAX and TensorFlow compile the whole step, see "
            "`jit_compile` of `model.compile`. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )


def run_compiled(function, arrays, seeds, options, remat=False):
    """Calls the program of a pure function, or the function if it could not be compiled.

    Eager torch starts each operation from Python; a program of `torch.compile` has a few kernels.
    All blocks of a stack share it, so that a deep stack compiles as fast as a shallow one.

    Args:
        function: `function(*arrays, seeds=seeds, **options)`.
        arrays: A tuple of structures of arrays or `None`.
        seeds: A dict of seeds, or `None`.
        options: A dict of settings. Each has its own programs: one for the first shape and one for
            all others, for inputs with and without a gradient.
        remat: If True, recompute the function for the gradient.

    Raises:
        ValueError: See `check_compiles_blocks`.
    """
    check_compiles_blocks()

    def call(arrays):
        return _call_program(function, *arrays, seeds=seeds, options=options)

    return recomputed(call, arrays) if remat else call(arrays)


def _call_program(function, *arrays, seeds, options):
    import torch

    kind = function, tuple(sorted(options.items()))
    if kind in _FAILED:
        return function(*arrays, seeds=seeds, **options)
    try:
        return _program(*kind)(*arrays, seeds=seeds, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        outputs = function(*arrays, seeds=seeds, **options)  # raises the function's own errors
        _FAILED.add(kind)
        reason = str(error).strip().splitlines()
        warnings.warn(
            "Blocks run uncompiled from now on: torch could not compile them. Received: "
            f"{reason[0] if reason else type(error).__name__:.300}",
            stacklevel=2,
        )
        return outputs


@functools.cache
def _program(function, settings):
    """Compiles a function; `settings` keep the programs apart, up to torch's limit for each."""
    import torch

    alone = {"isolate_recompiles": True}
    known = alone.keys() <= inspect.signature(torch.compile).parameters.keys()
    return torch.compile(function, fullgraph=True, **(alone if known else {}))


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
        return _in_type(self.compute_dtype, weights)


def _in_type(dtype, weights):
    """Converts a dict of variables to tensors of a type."""
    return {name: ops.convert_to_tensor(x, dtype=dtype) for name, x in weights.items()}


def dense(inputs, kernel, bias=None):
    """Computes `x W + b` in the type of the kernel.

    Args:
        inputs: (..., D).
        kernel: (D, units), W.
        bias: (units,), b; zeros when omitted.

    Returns:
        (..., units).
    """
    inputs, units = ops.cast(inputs, kernel.dtype), kernel.shape[-1]
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
        return _in_type(self.compute_dtype if torch else self.variable_dtype, weights)


def layer_norm(inputs, gamma=None, beta=None, epsilon=1e-3):
    """Computes `(x - mean) / sqrt(variance + epsilon) * gamma + beta` over the last axis.

    Moments are in float32 or wider. torch's kernel reads half precision directly; Keras
    casts the whole input to float32 and the output back.

    Args:
        inputs: (..., D).
        gamma, beta: (D,); ones and zeros when omitted.
        epsilon: Added to the variance.

    Returns:
        (..., D), in the type of `inputs`; on torch in that of `gamma`, if it is given.
    """
    if keras.backend.backend() != "torch":
        outputs = ops.layer_normalization(inputs, gamma, beta, axis=-1, epsilon=epsilon)
        return ops.cast(outputs, inputs.dtype)
    import torch

    if gamma is not None:
        inputs = ops.cast(inputs, gamma.dtype)
    return torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], gamma, beta, epsilon)
