"""Dropout with fewer random bits."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.softmax import wide_dtype

STEPS = 1 << 16  # values of the 16 random bits of an element


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

    >>> import keras
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
    scale = STEPS / (STEPS - dropped)
    # A scale in half precision would change every output by up to 0.2 %: JAX multiplies in
    # float32, and torch's product with a number does.
    if backend == "jax":
        kept = ops.cast(_jax_keep(inputs, dropped, seed), wide_dtype(inputs)) * inputs
        return ops.cast(kept * scale, inputs.dtype)
    if inputs.device.type == "cpu" and not _is_compiling():
        return inputs * _torch_keep(inputs, dropped, seed) * scale
    return _torch_dropout(inputs, rate, seed)


def _is_compiling():
    import torch

    return torch.compiler.is_compiling()


def _tf_dropout(inputs, rate, seed):
    import tensorflow as tf

    # Keras holds seeds as int64, XLA needs int32; `keras.random` reduces them in the same way.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), "int32")
    replica = tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        # Each device has other rows, so it needs other numbers. The second seed counts calls.
        seed += tf.stack([replica.replica_id_in_sync_group * 1_000_003, 0])
    # Random numbers in bfloat16 have 128 values, too few for a rate such as 0.01.
    wide = tf.cast(inputs, wide_dtype(inputs))
    dropped = tf.nn.experimental.stateless_dropout(wide, rate=rate, seed=seed)
    return tf.cast(dropped, inputs.dtype)


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
    return bits >= dropped
