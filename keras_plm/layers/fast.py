"""Keras' own layers where a backend has a cheaper way: fewer passes over memory, fewer random bits.

They are used inside this library in place of Keras' and behave the same; only this file and
`optimization.py` ask which backend runs.
"""

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


def _is_torch():
    return keras.backend.backend() == "torch"


@keras.saving.register_keras_serializable("keras_plm")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense` whose bias is added within the matrix product on torch.

    Args, call arguments and returns: as in `keras.layers.Dense`.

    >>> import numpy as np
    >>> tuple(Dense(3)(np.ones((2, 5, 4))).shape)
    (2, 5, 3)
    """

    def call(self, inputs, training=None):
        if not _is_torch() or not self.use_bias or self.lora_enabled:
            return super().call(inputs, training=training)
        import torch

        inputs = ops.convert_to_tensor(inputs, dtype=self.compute_dtype)
        flat = inputs.reshape(-1, inputs.shape[-1])
        # The variables become tensors of the compute type on the way.
        bias, kernel = ops.convert_to_tensor(self.bias), ops.convert_to_tensor(self.kernel)
        outputs = torch.addmm(bias, flat, kernel)
        outputs = outputs.reshape(*inputs.shape[:-1], self.units)
        return outputs if self.activation is None else self.activation(outputs)


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
        if not _is_torch() or not half or not last or self.rms_scaling:
            return super().call(inputs)
        import torch

        inputs = ops.convert_to_tensor(inputs, dtype=self.compute_dtype)
        gamma, beta = (
            None if w is None else ops.convert_to_tensor(w) for w in (self.gamma, self.beta)
        )
        return torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], gamma, beta, self.epsilon)


def fused_attention(query, key, value, mask=None):
    """Scaled dot-product attention by the backend's own kernel.

    Args:
        query: (B, T, N, H).
        key, value: (B, S, N, H).
        mask: boolean, broadcastable to (B, N, T, S), True = look; or `None`.

    Returns:
        (B, T, N, H).
    """
    if not _is_torch():
        if mask is not None:
            shape = (ops.shape(query)[0], 1, ops.shape(query)[1], ops.shape(key)[1])
            mask = ops.broadcast_to(mask, shape)
        return ops.dot_product_attention(query, key, value, mask=mask)
    import torch

    if mask is not None:
        # Keras would copy queries, keys, values and a mask of full size first.
        floor = torch.finfo(query.dtype).min / 2  # far from overflow, so that no row turns NaN
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(
            ~mask, floor
        )
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask=mask).transpose(1, 2)


def fused_gradient_is_slow(query):
    """True where plain matrix products are the faster way to train.

    The gradient of torch's CPU kernel takes three times that of plain products.
    """
    return _is_torch() and query.device.type == "cpu"
