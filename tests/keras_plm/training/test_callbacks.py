"""Callbacks: when they read metrics, and whether higher or lower is better."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_plm  # noqa: F401  (all metrics)
from keras_plm.experiments.pretraining.callbacks import Meter, Snapshots
from keras_plm.experiments.pretraining.resumable_fit import Clock
from keras_plm.heads.regressor import SquaredError
from keras_plm.metrics import SpanF1
from keras_plm.pretraining.bilm import Perplexity
from keras_plm.pretraining.causal_lm import TokenPerplexity
from keras_plm.training import TrainingState, callbacks
from keras_plm.training.callbacks import FiniteLoss, StepCounter, UnhurriedCallbacks
from keras_plm.training.losses import GivenLoss, MeanLoss
from keras_plm.transfer.method import KeepBest
from tests.keras_plm.training.distribution.device_cases import Plain, batches

METRICS = {
    SpanF1: (lambda: SpanF1(["O", "B-A", "I-A"]), ops.greater),
    TokenPerplexity: (TokenPerplexity, ops.less),
    Perplexity: (Perplexity, ops.less),
    SquaredError: (lambda: SquaredError([0, 5]), ops.less),
    MeanLoss: (lambda: MeanLoss(GivenLoss()), ops.less),
}


def of_ours(cls=keras.metrics.Metric):
    """Returns all subclasses that this package defines."""
    for child in cls.__subclasses__():
        if child.__module__.startswith("keras_plm."):
            yield child
        yield from of_ours(child)


def test_all_metrics_of_the_package_are_covered():
    assert set(of_ours()) == set(METRICS)


@pytest.mark.full
@pytest.mark.parametrize("cls", METRICS, ids=lambda cls: cls.__name__)
def test_direction_is_inferred(cls, tmp_path):
    make, expected = METRICS[cls]
    metric = make()
    inputs = keras.Input((4, 3))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", loss=GivenLoss(), weighted_metrics=[metric])
    x, y = np.ones((2, 4, 3), "float32"), np.zeros((2, 4), "int32")
    monitor = f"val_{metric.name}"
    stop = keras.callbacks.EarlyStopping(monitor)
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras", monitor, save_best_only=True)
    again = type(metric).from_config(metric.get_config())
    assert again._direction == metric._direction
    model.fit(x, y, validation_data=(x, y), epochs=1, verbose=0, callbacks=[stop, keep])
    assert stop.monitor_op is expected and keep.monitor_op is expected


class Reader(keras.callbacks.Callback):
    """Keeps what it receives after each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs))


def fitted(*given, monkeypatch, **options):
    """Fits a small model; returns how many steps converted their metrics, and the steps."""
    counts, convert = [], callbacks._numbers
    monkeypatch.setattr(callbacks, "_numbers", lambda logs: counts.append(0) or convert(logs))
    model, data = Plain(), batches()
    model.compile("sgd", loss="mse")
    model.fit(data, epochs=2, callbacks=list(given), **options)
    return len(counts), 2 * len(data)


def test_a_step_does_not_wait_for_its_metrics(monkeypatch, tmp_path):
    quiet = keras.callbacks.EarlyStopping("loss")
    state = TrainingState(tmp_path, batches())
    assert fitted(quiet, state, monkeypatch=monkeypatch, verbose=0)[0] == 0


def test_other_callbacks_get_numbers(monkeypatch):
    reader, printed = Reader(), []
    by_lambda = keras.callbacks.LambdaCallback(on_train_batch_end=lambda i, x: printed.append(x))
    read, steps = fitted(reader, by_lambda, monkeypatch=monkeypatch, verbose=0)
    assert read == steps == len(reader.seen)
    assert [batch for batch, _ in reader.seen] == [*range(steps // 2)] * 2
    assert printed == [logs for _, logs in reader.seen]
    assert all(type(logs["loss"]) is float for logs in printed)


def test_steps_are_counted_to_the_end_of_an_epoch():
    """With two steps per execution, Keras counts past an odd number of batches."""
    source = batches(batch_size=1)
    counter, count = StepCounter(source), len(source)
    assert count % 2
    for epoch in range(2):
        counter.on_epoch_begin(epoch)
        assert source.step == epoch * count
        for batch in range(1, count + 1, 2):
            counter.on_train_batch_end(batch)
    assert counter.steps == 2 * count


def test_an_interrupted_fit_keeps_the_number_of_its_steps():
    model, source = Plain(), batches()
    model.compile("sgd", loss="mse")
    steps = len(source) + 2

    class Stops(keras.callbacks.Callback):
        reads_tensors = True

        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == steps:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(source, epochs=3, verbose=0, callbacks=[Stops()])
    assert source.step == steps


def test_the_progress_bar_reads_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(callbacks, "PERIOD", 1e9)
    assert fitted(monkeypatch=monkeypatch, verbose=1)[0] == 1
    assert "loss:" in capsys.readouterr().out


def test_own_callbacks_read_tensors():
    own = [c for c in of_ours(keras.callbacks.Callback) if c is not UnhurriedCallbacks]
    silent = {FiniteLoss, KeepBest}  # they read the metrics of an epoch
    reading = {c for c in own if getattr(c, "reads_tensors", False)}
    assert {StepCounter, TrainingState, Meter, Snapshots, Clock} <= reading
    for cls in set(own) - reading - silent:
        assert cls.on_train_batch_end is keras.callbacks.Callback.on_train_batch_end
