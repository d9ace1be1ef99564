"""The published optimizer and schedule against the originals' numbers."""

import keras
import numpy as np
import pytest

from keras_plm.optimization import AdaGrad, AdamW, InverseSquareRoot, WarmupLinearDecay
from tests.checks import assert_close, to_numpy

START, TARGET = np.array([0.1, -0.2, -0.1]), np.array([0.4, 0.2, -0.5])
# The problem of google-research/bert's optimization_test.py, worked in float64.
TRAJECTORY = {
    1: [0.73235555, 0.43238054, -0.73238054],
    2: [0.64426232, 0.60690534, -0.90690534],
    10: [0.19068553, 0.12303245, -0.42303245],
    100: [0.40164604, 0.19782445, -0.49782445],
}


def run(optimizer, steps, name="weight"):
    variable = keras.Variable(START.astype("float32"), name=name)
    seen = {}
    for step in range(1, steps + 1):
        gradient = 2 / 3 * (to_numpy(variable) - TARGET)
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype("float32"))], [variable])
        seen[step] = to_numpy(variable).copy()
    return seen


def test_trajectory_of_the_original():
    seen = run(AdamW(0.2, weight_decay=0.0, global_clipnorm=None), 100)
    for step, expected in TRAJECTORY.items():
        np.testing.assert_allclose(seen[step], expected, atol=2e-5)
    np.testing.assert_allclose(seen[100], TARGET, atol=1e-2)  # what the original asserts


def by_formula(steps, rate, decay, clip, correct, weight=START):
    weight, mean, square = weight.astype(float), np.zeros(3), np.zeros(3)
    for step in range(1, steps + 1):
        gradient = 2 / 3 * (weight - TARGET)
        if clip is not None:
            gradient = gradient * min(1.0, clip / np.sqrt((gradient**2).sum()))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        m = mean / (1 - 0.9**step) if correct else mean
        v = square / (1 - 0.999**step) if correct else square
        weight = weight - rate * (m / (np.sqrt(v) + 1e-6) + decay * weight)
    return weight


@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_agrees_with_the_formula(correct, clip, decay):
    optimizer = AdamW(0.02, weight_decay=decay, global_clipnorm=clip, bias_correction=correct)
    assert_close(run(optimizer, 7)[7], by_formula(7, 0.02, decay, clip, correct))


@pytest.mark.parametrize("name", ["bias", "gamma", "beta"])
def test_biases_and_norms_do_not_decay(name):
    optimizer = AdamW(0.02, weight_decay=0.1, global_clipnorm=None)
    assert_close(run(optimizer, 5, name)[5], by_formula(5, 0.02, 0.0, None, False))


def test_corrected_is_keras_own_adamw():
    # Keras corrects the bias outside the root, which makes its epsilon another one.
    options = {"learning_rate": 0.02, "weight_decay": 0.1, "epsilon": 1e-12}
    ours = run(AdamW(**options, bias_correction=True, global_clipnorm=None), 5)
    peer = run(keras.optimizers.AdamW(**options), 5)
    assert_close(ours[5], peer[5], atol=1e-6)


def test_gradients_are_clipped_together():
    variables = [keras.Variable(np.zeros(2, "float32"), name=f"w{i}") for i in range(2)]
    optimizer = AdamW(1.0, weight_decay=0.0, global_clipnorm=1.0, epsilon=1e6)
    gradients = [np.array([3.0, 0.0], "float32"), np.array([0.0, 4.0], "float32")]
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    # Clipped to (0.6, 0.8), and with a huge epsilon the step is 0.1 g / epsilon.
    assert_close(to_numpy(variables[0]) * 1e7, np.array([-0.6, 0.0]), atol=1e-4)
    assert_close(to_numpy(variables[1]) * 1e7, np.array([0.0, -0.8]), atol=1e-4)


def test_schedule_is_the_originals():
    """polynomial_decay of the whole run, replaced by init * step / warmup while step < warmup."""
    schedule = WarmupLinearDecay(peak=2.0, total_steps=50, warmup_steps=10)
    for step in range(60):
        expected = 2.0 * step / 10 if step < 10 else 2.0 * (1 - min(step, 50) / 50)
        assert_close(schedule(step), expected)
    assert float(WarmupLinearDecay(1.0, 10)(0)) == 1.0
    again = WarmupLinearDecay.from_config(schedule.get_config())
    assert float(again(7)) == float(schedule(7))
    with pytest.raises(ValueError, match="between 0 and `total_steps`"):
        WarmupLinearDecay(1.0, 10, 11)


def test_trains_and_reloads_with_its_slots(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(AdamW(WarmupLinearDecay(0.1, 20, 2)), loss="mse")
    x, y = np.ones((4, 3)), np.ones((4, 2))
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert int(again.optimizer.iterations) == 3
    for m in (model, again):
        m.fit(x, y, epochs=2, verbose=0, shuffle=False)
    assert_close(again.get_weights(), model.get_weights(), atol=1e-6)


def test_inverse_square_root_has_the_papers_values():
    # REFERENCE: Vaswani et al. 2017, equation 3, steps counted from 1.
    base, big = InverseSquareRoot(512), InverseSquareRoot(1024)
    for schedule, step, rate in (
        (base, 1, 1.746928e-07),
        (base, 100, 1.746928e-05),
        (base, 4000, 6.987712e-04),
        (base, 100_000, 1.397542e-04),
        (big, 4000, 4.941059e-04),
    ):
        np.testing.assert_allclose(float(schedule(step - 1)), rate, rtol=1e-5)
    again = InverseSquareRoot.from_config(InverseSquareRoot(8, 10, scale=2.0).get_config())
    np.testing.assert_allclose(float(again(9)), 2 * (8 * 10) ** -0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="above 0. Received: hidden_dim=0"):
        InverseSquareRoot(0)


def test_adagrad_is_that_of_duchi_et_al():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(3, 5)).astype("float32"), rng.normal(size=7).astype("float32")
    variables = [keras.Variable(first), keras.Variable(second)]
    optimizer = AdaGrad(keras.optimizers.schedules.PolynomialDecay(0.3, 10, 0.1), 0.5)
    optimizer.build(variables)
    expected, sums = [first.copy(), second.copy()], [np.full_like(w, 0.5) for w in (first, second)]
    for step in range(4):
        gradients = [rng.normal(size=w.shape).astype("float32") for w in (first, second)]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
        for weight, total, gradient in zip(expected, sums, gradients, strict=True):
            total += gradient**2
            weight -= (0.3 - 0.02 * step) * gradient / np.sqrt(total)
    for variable, weight in zip(variables, expected, strict=True):
        assert_close(variable, weight)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert isinstance(again, AdaGrad) and again.get_config() == optimizer.get_config()
