"""Callbacks of `fit`, and their list, which does not make each step wait for the device."""

import math
import time

import keras

from keras_plm.data.batching import Batches

PERIOD = 0.1  # seconds between updates of a progress bar


class UnhurriedCallbacks(keras.callbacks.CallbackList):
    """Callbacks that read the metrics of a step only when they need them.

    Keras converts the metrics of each step to numbers if any callback has `on_train_batch_end`, so
    that each step waits for the device. Here, callbacks with `reads_tensors = True` get tensors,
    and the progress bar reads ten times a second. The others get numbers, as from Keras, and make
    the step wait.

    Args:
        callbacks: A list of callbacks.
        **kwargs: Other arguments of `keras.callbacks.CallbackList`.
    """

    def __init__(self, callbacks, **kwargs):
        super().__init__(callbacks, **kwargs)
        self._shown_at = -math.inf

    def on_train_batch_end(self, batch, logs=None):
        numbers = None
        for callback in self.callbacks:
            if _ignores_batches(callback) or self._is_early(callback):
                continue
            if getattr(callback, "reads_tensors", False):
                callback.on_train_batch_end(batch, logs)
                continue
            if numbers is None:
                numbers = _numbers(logs)
            callback.on_train_batch_end(batch, numbers)

    def _is_early(self, callback):
        """Returns whether a callback is a progress bar that was updated a moment ago."""
        if not isinstance(callback, keras.callbacks.ProgbarLogger):
            return False
        early = time.monotonic() - self._shown_at < PERIOD
        if not early:
            self._shown_at = time.monotonic()
        return early


def _ignores_batches(callback):
    """Returns whether a callback has neither `on_train_batch_end` nor `on_batch_end`."""
    default = keras.callbacks.Callback
    own = (getattr(x, "__func__", x) for x in (callback.on_train_batch_end, callback.on_batch_end))
    return tuple(own) == (default.on_train_batch_end, default.on_batch_end)


def _numbers(logs):
    """Converts metrics to numbers, for which `float` waits for the device."""
    return {name: float(value) for name, value in (logs or {}).items()}


class StepCounter(keras.callbacks.Callback):
    """Keeps `batches.step` equal to the number of trained steps.

    Keras draws batches ahead, draws one to build a model, and may stop within an epoch.

    Args:
        batches: The `Batches` passed to `fit`.
        before: Number of earlier steps on other batches.

    Attributes:
        steps: Number of finished steps, including those before this `fit`.
        first: Value of `steps` at the start.
        validates: Whether a validation has begun and not ended.
    """

    reads_tensors = True
    validates = False

    def __init__(self, batches: Batches, before: int = 0):
        super().__init__()
        self.first = self.steps = batches.step + before
        self.follow(batches, before)

    def follow(self, batches: Batches, before: int = 0) -> None:
        """Continues with other batches; their step 0 is step `before`."""
        self.batches, self.before = batches, before
        self._begun = self.steps

    def on_epoch_begin(self, epoch, logs=None):
        self._begun = self.steps
        self.batches.step = self.steps - self.before

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution`, Keras counts past the end of an epoch.
        self.steps = self._begun + min(batch + 1, len(self.batches))

    def on_test_begin(self, logs=None):
        self.validates = True

    def on_test_end(self, logs=None):
        self.validates = False

    def on_train_end(self, logs=None):
        self.batches.step = self.steps - self.before


class FiniteLoss(keras.callbacks.Callback):
    """Ends training with an error after an epoch whose loss is not finite.

    It reads the mean that `fit` reports after each epoch, so that no step waits for the device.
    """

    def on_epoch_end(self, epoch, logs=None):
        check_loss(self.model, logs, f"in epoch {epoch + 1}")


def check_loss(model, logs, when):
    """Raises if the loss that `fit` or `evaluate` reports is not finite.

    Args:
        model: The compiled model.
        logs: Metrics from Keras: a dict, or `None`.
        when: Place for the error message, such as `"in epoch 2"`.

    Raises:
        FloatingPointError: If the loss is not finite; it names the step and the learning rate.
    """
    loss = (logs or {}).get("loss")
    if loss is None or math.isfinite(loss := float(loss)):
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    rate = optimizer.get_config()["learning_rate"]
    if isinstance(rate, dict):  # a schedule
        rate = rate["config"].get("peak", float(optimizer.learning_rate))
    raise FloatingPointError(
        "The loss must be finite, but training diverged: choose a lower learning rate, clip the "
        "gradients, or train in float32 instead of float16. "
        f"Received: loss={loss} {when}, after step {int(optimizer.iterations)}, "
        f"learning_rate={float(rate):g}"
    )
