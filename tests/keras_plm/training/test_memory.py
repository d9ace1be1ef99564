"""A step that needs too much memory names a batch that fits."""

import keras
import pytest

from keras_plm.data import Example
from keras_plm.heads import Classifier
from keras_plm.training.memory import is_out_of_memory, memory_errors
from tests.helpers.small_encoders import LABELS, TOKENIZER, encoder


class OutOfMemoryError(RuntimeError):
    pass


def rows(*lengths):
    """Returns texts of so many tokens with the special ones, four of each length."""
    return [Example(" ".join("a" * (n - 2)), LABELS[i % 2]) for n in lengths for i in range(4)]


def failing(at_length, error):
    """Returns `(model, fit)`; `fit(batches)` fails before the first batch of this length."""
    model = Classifier(encoder(max_sequence_length=16), LABELS, tokenizer=TOKENIZER)
    model.compile("sgd")

    def fit(batches, **options):
        def begin(batch, logs=None):
            epoch, number, _ = batches._place(batch)
            if batches.plan(epoch)[number][0] == at_length:
                raise error

        fails = keras.callbacks.LambdaCallback(on_train_batch_begin=begin)
        model.fit(batches, callbacks=[fails], verbose=0, **options)

    return model, fit


def ordered(model, examples, **options):
    batches = model.batches(examples, buckets=[8, 16], seed=1, **options)
    batches.shuffle = False  # shorter rows first
    return batches


@pytest.mark.compiles
def test_a_smaller_batch_is_named():
    error = OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    model, fit = failing(16, error)
    with pytest.raises(MemoryError, match="choose `batch_size=2`") as found:
        fit(ordered(model, rows(8, 16), batch_size=4))
    said = "Received: a batch of 4 rows of 16 positions, after a largest one of 4 rows of 8; CUDA"
    assert said in str(found.value) and "more" not in str(found.value).partition("CUDA")[2]
    assert found.value.__cause__ is error


@pytest.mark.compiles
@pytest.mark.parametrize(
    "options, choice",
    [
        ({"batch_size": 4}, "`batch_size=2`"),
        ({"batch_size": 1}, "a smaller `max_length`"),
        ({"tokens_per_batch": 64}, "`tokens_per_batch=32`"),
    ],
)
def test_half_of_the_first_batch_is_proposed(options, choice):
    model, fit = failing(16, OutOfMemoryError("full"))
    with pytest.raises(
        MemoryError, match=f"choose {choice}, micro-batches .* of 16 positions; full"
    ):
        fit(ordered(model, rows(16), **options))


@pytest.mark.full
def test_batches_in_later_passes_and_micro_batches_are_found():
    model, fit = failing(16, OutOfMemoryError("full"))
    whole = ordered(model, rows(8, 16), batch_size=4)
    whole.step = 3  # in the second pass
    with pytest.raises(MemoryError, match="a batch of 4 rows of 16 positions; full"):
        fit(whole)
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(
        MemoryError, match="more micro-batches .* in 2 micro-batches, after a .* 4 rows of 8"
    ):
        fit(ordered(model, rows(8, 16), batch_size=4).in_micro_batches(2))


@pytest.mark.compiles
def test_validation_is_not_reported_as_training():
    model = Classifier(encoder(max_sequence_length=16), LABELS, tokenizer=TOKENIZER)
    model.compile("sgd")

    class Fails(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            raise OutOfMemoryError("full")

    batches = ordered(model, rows(8, 16), batch_size=4)
    held_out = model.batches(rows(16), batch_size=4, training=False)
    with pytest.raises(MemoryError, match="`validation_data` with .* after 2 training steps; full"):
        model.fit(batches, validation_data=held_out, callbacks=[Fails()], verbose=0)


def test_errors_of_each_backend_are_recognized():
    with pytest.raises(Exception) as found:  # noqa: B017  (each backend has its own class)
        keras.ops.convert_to_numpy(keras.ops.zeros((1 << 50,)))
    assert is_out_of_memory(found.value)
    assert not is_out_of_memory(ValueError("`batch_size` must be 1 or more"))


def test_other_errors_are_unchanged():
    with pytest.raises(KeyError, match="other"), memory_errors(None):
        raise KeyError("other")
