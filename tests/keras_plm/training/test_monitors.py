"""Callbacks know for each metric whether higher or lower is better."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_plm  # noqa: F401  (all metrics)
from keras_plm.heads.regressor import SquaredError
from keras_plm.metrics import SpanF1
from keras_plm.pretraining.bilm import Perplexity
from keras_plm.pretraining.causal_lm import TokenPerplexity
from keras_plm.training.losses import GivenLoss, MeanLoss

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
