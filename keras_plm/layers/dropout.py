"""Dropout at the price of its random bits."""

import keras
from keras import ops

STEPS = 1 << 16  # of the 16 random bits that decide about one element


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
    >>> sorted({float(x) for x in np.ravel(layer(np.ones((9, 9)), training=True))})
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
