"""The loss over tokens, compared with its formula."""

import keras
import numpy as np
import pytest

from keras_plm.training.losses import TokenCrossEntropy
from tests.helpers.checks import assert_close, to_numpy

B, T, V = 2, 3, 7


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def by_formula(token_ids, logits, smoothing):
    """Computes cross-entropy with the target (1 - e) on the token and e / V on every token."""
    losses = np.zeros((B, T))
    for b in range(B):
        for t in range(T):
            logs = logits[b, t] - np.log(sum(np.exp(z) for z in logits[b, t]))
            target = np.full(V, smoothing / V)
            target[token_ids[b, t]] += 1 - smoothing
            losses[b, t] = -sum(p * log for p, log in zip(target, logs, strict=True))
    return losses


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradient_agree_with_the_formula(smoothing):
    logits = 3 * normal(B, T, V)
    token_ids = np.random.default_rng(1).integers(0, V, (B, T))
    weights = np.array([[1, 1, 0], [1, 0, 0]], "float32")
    loss = TokenCrossEntropy(label_smoothing=smoothing)
    each = by_formula(token_ids, logits.astype("float64"), smoothing)
    assert_close(loss.call(token_ids, keras.ops.convert_to_tensor(logits)), each)
    assert_close(loss(token_ids, logits, weights), (each * weights).sum() / (B * T))
    # With logits as weights, an SGD step shows the gradient.
    inputs = keras.Input((1,))
    scores = keras.layers.Dense(T * V, use_bias=False)(inputs)
    model = keras.Model(inputs, keras.layers.Reshape((T, V))(scores))
    model.set_weights([logits[:1].reshape(1, -1)])
    model.compile(keras.optimizers.SGD(1.0), loss=loss)
    model.train_on_batch(np.ones((1, 1)), token_ids[:1])
    (after,) = model.get_weights()
    gradient = logits[:1].reshape(-1) - after[0]
    for place in (0, V + 2, 2 * V + 5):
        shifted = [logits.astype("float64").copy() for _ in range(2)]
        for sign, array in zip((1, -1), shifted, strict=True):
            array[0].reshape(-1)[place] += sign * 1e-4
        up, down = (by_formula(token_ids, array, smoothing)[0].mean() for array in shifted)
        np.testing.assert_allclose(gradient[place], (up - down) / 2e-4, atol=1e-4)


def test_loss_without_smoothing_equals_keras():
    logits = normal(B, T, V)
    targets = np.array([[0, 6, 3], [2, 2, 5]])
    weights = np.array([[1, 0, 2], [1, 1, 0]], "float32")
    own = TokenCrossEntropy()(targets, logits, sample_weight=weights)
    peer = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert_close(own, peer(targets, logits, sample_weight=weights))


def test_half_precision_is_summed_in_float32():
    logits = keras.ops.cast(normal(B, T, 3000), "bfloat16")
    token_ids = np.zeros((B, T), "int32")
    exact = TokenCrossEntropy(0.1)(token_ids, keras.ops.cast(logits, "float32"))
    assert_close(TokenCrossEntropy(0.1)(token_ids, logits), to_numpy(exact), atol=1e-5)


def test_label_smoothing_is_validated_and_in_the_config():
    loss = TokenCrossEntropy(label_smoothing=0.2)
    assert TokenCrossEntropy.from_config(loss.get_config()).label_smoothing == 0.2
    with pytest.raises(ValueError, match=r"fraction in \[0, 1\). Received: label_smoothing=1"):
        TokenCrossEntropy(label_smoothing=1)
