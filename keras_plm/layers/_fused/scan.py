"""Loops over time."""

import keras


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
    """Runs a recurrence over time and keeps the outputs of each step.

    Args:
        step: `step(state, inputs_t) -> (state, outputs_t)`, otherwise as in `scan`.
        state, inputs: As in `scan`, T at least 1.
        reverse: If True, begin at the last step; outputs keep the order of the inputs.

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

    # The first step, outside the loop, determines the shapes of the outputs.
    state, first = step(state, at(0))
    kept = [tf.TensorArray(x.dtype, count, element_shape=x.shape).write(place(0), x) for x in first]

    def body(t, state, kept):
        state, outputs = step(state, at(t))
        places = [k.write(place(t), x) for k, x in zip(kept, outputs, strict=True)]
        return t + 1, state, tuple(places)

    loop = (tf.constant(1), tuple(state), tuple(kept))
    # One step at a time: parallel steps would need the memory of all of them. XLA needs a limit.
    limits = {"parallel_iterations": 1, "maximum_iterations": count - 1}
    _, state, kept = tf.while_loop(lambda t, *_: t < count, body, loop, **limits)
    return state, tuple(array.stack() for array in kept)
