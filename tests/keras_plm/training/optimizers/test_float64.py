"""Optimizers, losses and metrics with float64 weights."""

import keras
import numpy as np
import pytest

from keras_plm.training.optimizers import AdaGrad, BertAdamW
from keras_plm.training.schedules import (
    InverseSquareRoot,
    SlantedTriangular,
    WarmupCosineDecay,
    WarmupLinearDecay,
)
from tests.helpers.checks import to_numpy

pytestmark = pytest.mark.each_backend


@pytest.fixture
def float64():
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # Keras keeps the policy of the first `floatx`
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


@pytest.mark.full
@pytest.mark.parametrize("make", [
    lambda: BertAdamW(WarmupLinearDecay(1e-2, 10, 2)),
    lambda: BertAdamW(InverseSquareRoot(16, 4), bias_correction=True, global_clipnorm=None),
    lambda: AdaGrad(SlantedTriangular(1e-2, 10), global_clipnorm=0.1),
    lambda: BertAdamW(WarmupCosineDecay(1e-2, 10, 2), gradient_accumulation_steps=2, use_ema=True),
], ids=["linear", "square root", "triangular", "cosine"])  # fmt: skip
def test_float32_and_float64_weights_train_together(float64, make):
    """A float32 output layer over a float64 encoder shares one gradient norm."""
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(hidden))
    x = np.random.default_rng(0).normal(size=(8, 3))
    model.compile(make(), "mse")
    before = [to_numpy(w).copy() for w in model.trainable_weights]
    model.fit(x, x.sum(axis=1), batch_size=4, epochs=2, verbose=0)
    for old, new in zip(before, model.trainable_weights, strict=True):
        assert np.isfinite(to_numpy(new)).all() and (to_numpy(new) != old).any()


@pytest.mark.full
def test_losses_and_metrics_are_correct_under_float64(float64):
    from keras_plm.layers import CRFLoss
    from keras_plm.metrics import SpanF1
    from keras_plm.models.glove import HalfSquaredError
    from keras_plm.pretraining.bilm import Perplexity, SumOverTime
    from keras_plm.pretraining.causal_lm import TokenPerplexity
    from keras_plm.training.losses import GivenLoss, LogisticLoss, MeanLoss, TokenCrossEntropy

    logistic = 2 * np.log1p(np.exp(0.2)) + np.log1p(np.exp(-0.3))  # by hand
    for loss, y_true, y_pred, wanted in [
        (TokenCrossEntropy(), np.array([[1]]), np.log([[[1.0, 3.0]]]), -np.log(0.75)),
        (LogisticLoss(), np.array([[1.0, -2.0]]), np.array([[0.3, 0.2]]), logistic),
        (GivenLoss(), np.zeros(2), np.array([1.0, 2.0]), 1.5),
        (CRFLoss(), np.array([[1]]), np.log([[[[1.0, 3.0], [1.0, 3.0]]]]), -np.log(0.75)),
        (SumOverTime(), np.zeros((1, 2, 3)), np.ones((1, 2, 3)), 3.0),
        (HalfSquaredError(), np.array([1.0]), np.array([3.0]), 2.0),
    ]:
        assert float(loss(y_true, y_pred)) == pytest.approx(wanted, rel=1e-6)
    ones = np.ones((1, 2, 3))
    for metric, given, wanted in [
        (Perplexity(0), (None, ones, np.ones(1)), np.e),
        (TokenPerplexity(), (None, ones[0], ones[0]), np.e),
        (MeanLoss(LogisticLoss()), (ones[0], 0 * ones[0]), 3 * np.log(2)),
        (SpanF1(["O", "B-A"]), (np.array([[1, 0]]), np.eye(2)[None, ::-1], np.ones((1, 2))), 1.0),
    ]:
        metric.update_state(*given)
        assert float(metric.result()) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.full
def test_crf_accepts_masks_under_float64(float64):
    from keras_plm.layers import CRF

    mask = np.array([[True, True, False]])
    scores = CRF()(np.zeros((1, 3, 2)), padding_mask=mask)
    assert tuple(scores.shape) == (1, 3, 2, 2) and np.isfinite(to_numpy(scores)).all()
