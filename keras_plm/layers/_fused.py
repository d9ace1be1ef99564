"""Keras' own layers where a backend has a cheaper way: fewer passes over memory, fewer random bits.

They are used inside this library in place of Keras' and behave the same; only this file and
`training/optimizers.py` ask which backend runs.
"""

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


def _is_torch():
    return keras.backend.backend() == "torch"


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
        if not _is_torch() or plain:
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
        if not _is_torch() or not half or not last or self.rms_scaling:
            return super().call(inputs)
        import torch

        inputs, gamma, beta = (
            None if x is None else ops.convert_to_tensor(x, dtype=self.compute_dtype)
            for x in (inputs, self.gamma, self.beta)
        )
        return torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], gamma, beta, self.epsilon)


def additive_mask(mask, dtype):
    """What is added to scores before a softmax: 0 where `mask` is True, elsewhere a low floor.

    The floor is finite, because a row of -inf turns into NaN, forward and backward. A product, not
    `where`, for which torch's GPU would wait: Keras sends it both numbers as tensors.
    """
    floor = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30
    return ops.cast(ops.logical_not(mask), dtype) * floor


def float32_softmax(scores):
    """Softmax over the last axis, computed in float32, in the type of `scores`.

    In half precision the sum of many exponentials would lose its small terms. torch's kernel reads
    and writes half precision and computes in float32 by itself, in one pass.
    """
    if _is_torch():
        return ops.softmax(scores, axis=-1)
    wide = keras.backend.result_type(scores.dtype, "float32")  # float64 stays as it is
    return ops.cast(ops.softmax(ops.cast(scores, wide), axis=-1), scores.dtype)


def scaled_scores(query, key, mask=None):
    """Scaled dot-product scores, hidden positions at the floor.

    Args:
        query: (B, N, T, H).
        key: (B, N, S, H).
        mask: boolean, broadcastable to (B, N, T, S), True = look; or `None`.

    Returns:
        (B, N, T, S).
    """
    scale = query.shape[-1] ** -0.5
    if mask is not None:
        mask = additive_mask(mask, query.dtype)
    if mask is None or not _is_torch():
        query = query * ops.cast(scale, query.dtype)
        scores = ops.matmul(query, ops.swapaxes(key, 2, 3))
        return scores if mask is None else scores + mask
    import torch

    # The scale and the mask within the product: one pass over the scores instead of two.
    batch, heads, steps, width = query.shape
    if mask.shape[:2] == (1, 1):
        mask = mask[0]
    else:
        mask = mask.expand(batch, heads, -1, -1).flatten(0, 1)  # (B * N, 1 or T, S)
    query, key = query.reshape(-1, steps, width), key.reshape(-1, key.shape[2], width)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale)
    return scores.view(batch, heads, steps, -1)


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
        mask = additive_mask(mask, query.dtype)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask=mask).transpose(1, 2)


def fused_is_slow(query, key, training):
    """True where plain matrix products are the faster way: where oneDNN computes them, on a CPU.

    It does so on torch in half precision, and in float32 once `torch.set_float32_matmul_precision`
    allows less than "highest". Torch's kernel, of small blocks, then takes 1.3 to 4 times as long
    as they do up to some 256 steps, and in half precision its gradient does so beyond. Without
    oneDNN it is the kernel that is 1.1 to 1.7 times as fast, forward and backward. On JAX they are
    the only way in float16 on a CPU, for which compiled programs have no kernel.

    Args:
        query: (B, T, N, H).
        key: (B, S, N, H).
        training: Whether a gradient will be asked for.
    """
    if keras.backend.backend() == "jax" and query.dtype == "float16":
        import jax

        return jax.default_backend() == "cpu"
    if not _is_torch() or query.device.type != "cpu":
        return False
    half = query.element_size() == 2
    if not half and _full_float32():
        return False
    return (half and training) or query.shape[1] * key.shape[1] <= 256**2


def _full_float32():
    import torch

    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # another precision, set by `torch.backends.mkldnn.matmul`
        return False


def write_cache(cache, update, index):
    """Writes keys and values behind those of the steps before.

    Args:
        cache: (B, 2, S_max, N, H). On torch it is changed in place: a copy for every step would
            cost more than the step.
        update: (B, 2, T, N, H).
        index: Where the first of the T steps goes.

    Returns:
        The written cache.
    """
    update = ops.cast(update, cache.dtype)
    if not _is_torch():
        return ops.slice_update(cache, (0, 0, index, 0, 0), update)
    import torch

    cache = ops.convert_to_tensor(cache)
    with torch.no_grad():
        cache[:, :, int(index) : int(index) + update.shape[2]] = update
    return cache


def token_cross_entropy(token_ids, logits, label_smoothing=0.0):
    """Cross-entropy of each position.

    Args:
        token_ids: (...) the true tokens.
        logits: (..., V).
        label_smoothing: Share of the target that is spread evenly over all tokens.

    Returns:
        (...) float32.
    """
    logits = ops.cast(logits, "float32")
    if _is_torch():
        import torch

        # One pass over the logits; Keras would make a one-hot row for every position.
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            ops.cast(token_ids, "int64").reshape(-1),
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return loss.reshape(token_ids.shape)
    # -log p(token) is logsumexp minus the token's logit; over all tokens, minus the mean one.
    token_ids = ops.cast(token_ids, "int32")[..., None]
    wanted = ops.take_along_axis(logits, token_ids, axis=-1)[..., 0]
    if label_smoothing:
        wanted = (1 - label_smoothing) * wanted + label_smoothing * ops.mean(logits, axis=-1)
    return ops.logsumexp(logits, axis=-1) - wanted


def row_logsumexp(logits):
    """`logsumexp` of each row, in float32.

    Args:
        logits: (R, V).

    Returns:
        (R,) float32.
    """
    logits = ops.cast(logits, "float32")
    if not _is_torch():
        return ops.logsumexp(logits, axis=-1)
    # Two passes over the logits instead of five; at the largest one nothing cancels.
    largest, place = logits.max(-1)
    return largest - logits.log_softmax(-1).gather(1, place[:, None])[:, 0]


def row_softmax(logits, total):
    """`softmax` of each row.

    Args:
        logits: (R, V).
        total: (R,) float32, their `row_logsumexp`.

    Returns:
        (R, V) float32; on torch of the type of `logits`, from sums in float32.
    """
    if not _is_torch():
        return ops.exp(ops.cast(logits, "float32") - total[:, None])
    return logits.softmax(-1)  # one pass instead of four, and nothing of another type


def scan(step, state, inputs):
    """Runs a recurrence over time and keeps every state.

    Args:
        step: `step(state, inputs_t) -> state`, on tuples of tensors. It may read other tensors; it
            must not draw random numbers.
        state: The first state, a tuple of tensors.
        inputs: A tuple of tensors (T, ...).

    Returns:
        The states after each step, a tuple of tensors (T, ...).
    """

    def keep(state, inputs):
        state = step(state, inputs)
        return state, state

    return fold(keep, state, inputs)[1]


def fold(step, state, inputs, reverse=False):
    """Runs a recurrence over time and keeps what each step gives.

    Args:
        step: `step(state, inputs_t) -> (state, outputs_t)`, otherwise as in `scan`.
        state, inputs: As in `scan`, T at least 1.
        reverse: If True, begin at the last step; outputs stand where their inputs do.

    Returns:
        `(state, outputs)`: the last state, and the outputs of each step, a tuple of tensors
        (T, ...).
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.lax.scan(step, state, inputs, reverse=reverse)
    if backend == "tensorflow":
        return _tf_fold(step, state, inputs, reverse)
    import torch

    kept = []
    places = range(len(inputs[0]))
    steps = [x.unbind(0) for x in inputs]
    for t in reversed(places) if reverse else places:
        state, outputs = step(state, tuple(x[t] for x in steps))
        kept.append(outputs)
    columns = zip(*(reversed(kept) if reverse else kept), strict=True)
    return state, tuple(torch.stack(column) for column in columns)


def _tf_fold(step, state, inputs, reverse):
    import tensorflow as tf

    count = tf.shape(inputs[0])[0]
    arrays = [tf.TensorArray(x.dtype, count, element_shape=x.shape[1:]).unstack(x) for x in inputs]

    def place(t):
        return count - 1 - t if reverse else t

    def at(t):
        return tuple(array.read(place(t)) for array in arrays)

    # The first step outside of the loop tells what there is to keep.
    state, first = step(state, at(0))
    kept = [tf.TensorArray(x.dtype, count, element_shape=x.shape).write(place(0), x) for x in first]

    def body(t, state, kept):
        state, outputs = step(state, at(t))
        places = [k.write(place(t), x) for k, x in zip(kept, outputs, strict=True)]
        return t + 1, state, tuple(places)

    loop = (tf.constant(1), tuple(state), tuple(kept))
    # One step at a time: several at once would hold the memory of several.
    _, state, kept = tf.while_loop(lambda t, *_: t < count, body, loop, parallel_iterations=1)
    return state, tuple(array.stack() for array in kept)


def compiled(function, variables):
    """A function of tensors that reads `variables`, compiled where the backend compiles.

    Args:
        function: Takes and gives structures of tensors; changes no variable.
        variables: Every Keras variable that it reads.

    Returns:
        A function of NumPy arrays or tensors.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        @jax.jit
        def pure(values, *arguments):
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
                return function(*arguments)

        return lambda *arguments: pure([v.value for v in variables], *arguments)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    import torch

    return torch.no_grad()(function)
