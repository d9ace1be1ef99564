"""The error of a training step that does not fit into the memory of the device."""

import contextlib

from keras_plm.training.callbacks import StepCounter

# Names and words of the errors of torch, TensorFlow and JAX.
KINDS = ("OutOfMemoryError", "ResourceExhaustedError")
WORDS = ("RESOURCE_EXHAUSTED", "can't allocate memory")


@contextlib.contextmanager
def memory_errors(counter: StepCounter):
    """Raises a `MemoryError` that names smaller batches, instead of the backend's error.

    Args:
        counter: Counter of the steps of this `fit`.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryError(_sentence(counter, error)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error of a backend means that its memory is full."""
    return type(error).__name__ in KINDS or any(words in str(error) for words in WORDS)


def _sentence(counter, error):
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if counter.validates:
        return (
            "Validation must fit into the memory of the device: make `validation_data` with a "
            "smaller `batch_size`, `tokens_per_batch` or `max_length`. "
            f"Received: an error after {counter.steps:,} training steps; {said}"
        )
    *finished, (rows, length) = _shapes(counter)
    fitted = max(finished, key=lambda shape: shape[0] * shape[1], default=None)
    received = f"a batch of {rows:,} rows of {length:,} positions"
    several = counter.batches.micro_batches
    received += f" in {several} micro-batches" if several > 1 else ""
    size = rows * length // 2
    if fitted is not None and fitted[0] * fitted[1] < rows * length:
        received += f", after a largest one of {fitted[0]:,} rows of {fitted[1]:,}"
        size = fitted[0] * fitted[1]
    if counter.batches.batch_size is None:
        choose = f"`tokens_per_batch={_power_of_two(size)}`"
    elif rows > 1:
        choose = f"`batch_size={min(_power_of_two(size // length), rows - 1)}`"
    else:
        choose = "a smaller `max_length`"
    return (
        f"A training step must fit into the memory of the device: choose {choose}, "
        f"{'more ' if several > 1 else ''}micro-batches "
        "(`in_micro_batches`, --accumulation-steps), or recomputation in the backward pass "
        f"(`layers.recompute_blocks`, --remat). Received: {received}; "
        f"{said}"
    )


def _shapes(counter):
    """Returns `(rows, positions)` of recent batches of this `fit`; the last one failed."""
    batches = counter.batches
    first, last = (
        (steps - counter.before) // batches.micro_batches
        for steps in (max(counter.first, counter.before), counter.steps)
    )
    per_epoch = len(batches) // batches.micro_batches
    shapes = []
    for number in range(max(first, last - per_epoch), last + 1):
        length, rows = batches.plan(number // per_epoch)[number % per_epoch]
        shapes.append((len(rows), length))
    return shapes


def _power_of_two(number):
    """Returns the largest power of two up to a number, at least 1."""
    return 1 << max(int(number).bit_length() - 1, 0)
