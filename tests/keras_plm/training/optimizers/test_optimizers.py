"""The published optimizers, compared with the originals' numbers."""

import keras
import numpy as np
import pytest

from keras_plm.training.optimizers import AdaGrad, BertAdamW
from keras_plm.training.schedules import (
    WarmupLinearDecay,
)
from tests.helpers.checks import assert_close, to_numpy, waits
from tests.keras_plm.training.optimizers.quadratic import START, TARGET, by_formula, run

pytestmark = pytest.mark.each_backend

# The problem in google-research/bert's optimization_test.py, solved in float64.
TRAJECTORY = {
    1: [0.73235555, 0.43238054, -0.73238054],
    2: [0.64426232, 0.60690534, -0.90690534],
    10: [0.19068553, 0.12303245, -0.42303245],
    100: [0.40164604, 0.19782445, -0.49782445],
}


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile their steps")
@pytest.mark.parametrize("corrected", [True, False])
def test_number_of_device_waits_is_independent_of_weights(corrected):
    def counted(weights):
        start = START.astype("float32")
        variables = [keras.Variable(start) for _ in range(weights)]
        gradients = [keras.ops.convert_to_tensor(start)] * weights
        optimizer = BertAdamW(bias_correction=corrected)
        optimizer.apply(gradients, variables)
        return waits(lambda: optimizer.apply(gradients, variables))

    assert counted(2) == counted(7) <= 3


@pytest.mark.compiles
@pytest.mark.parametrize("kind", [BertAdamW, AdaGrad])
def test_accumulated_gradients_equal_one_full_step(kind):
    """Includes the rate, clipping and averaged weights; Keras' schedules count micro-batches."""

    def trained(parts):
        options = {"bias_correction": True} if kind is BertAdamW else {}
        optimizer = kind(
            WarmupLinearDecay(0.3, 9, 3), global_clipnorm=0.2, use_ema=True, ema_momentum=0.5,
            gradient_accumulation_steps=parts, **options,
        )  # fmt: skip
        variable = keras.Variable(START.astype("float32"), name="weight")
        for _ in range(9):
            gradient = (2 / 3 * (to_numpy(variable) - TARGET)).astype("float32")
            for share in (0.5, 2.5, 0.0) if parts else (1.0,):
                optimizer.apply([keras.ops.convert_to_tensor(share * gradient)], [variable])
        average = to_numpy(optimizer._model_variables_moving_average[0])
        return to_numpy(variable), average, int(optimizer.iterations)

    for parts, whole in zip(trained(3), trained(None), strict=True):
        assert_close(parts, whole, atol=1e-6)
    assert abs(whole - 9) < 1e-9
    with pytest.raises(ValueError, match="leave `ema_overwrite_frequency` out.*Received:.*=4"):
        kind(gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=4)


def test_trajectory_equals_the_originals():
    seen = run(BertAdamW(0.2, weight_decay=0.0, global_clipnorm=None), 100)
    for step, expected in TRAJECTORY.items():
        np.testing.assert_allclose(seen[step], expected, atol=2e-5)
    np.testing.assert_allclose(seen[100], TARGET, atol=1e-2)  # the original's assertion


@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_agrees_with_the_formula(correct, clip, decay):
    optimizer = BertAdamW(0.02, weight_decay=decay, global_clipnorm=clip, bias_correction=correct)
    assert_close(run(optimizer, 7)[7], by_formula(7, 0.02, decay, clip, correct))


def test_bias_corrected_adamw_equals_keras():
    # Keras corrects the bias outside the root, which changes the meaning of epsilon.
    options = {"learning_rate": 0.02, "weight_decay": 0.1, "epsilon": 1e-12}
    ours = run(BertAdamW(**options, bias_correction=True, global_clipnorm=None), 5)
    peer = run(keras.optimizers.AdamW(**options), 5)
    assert_close(ours[5], peer[5], atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights_are_updated_in_float32(dtype):
    weight = keras.Variable(START, dtype=dtype)
    optimizer = BertAdamW(0.02, weight_decay=0.1, global_clipnorm=None, bias_correction=True)
    for _ in range(7):
        gradient = 2 / 3 * (to_numpy(keras.ops.cast(weight, "float32")) - TARGET)
        optimizer.apply([keras.ops.cast(gradient, dtype)], [weight])
    expected = by_formula(7, 0.02, 0.1, None, True)
    # Each step rounds the weight, of 0.5 at most, once.
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    assert_close(to_numpy(keras.ops.cast(weight, "float32")), expected, atol=7 * 0.5 * unit)


def test_gradients_are_clipped_by_their_global_norm():
    variables = [keras.Variable(np.zeros(2, "float32"), name=f"w{i}") for i in range(2)]
    optimizer = BertAdamW(1.0, weight_decay=0.0, global_clipnorm=1.0, epsilon=1e6)
    gradients = [np.array([3.0, 0.0], "float32"), np.array([0.0, 4.0], "float32")]
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    # The gradient is clipped to (0.6, 0.8). With a huge epsilon the step is 0.1 g / epsilon.
    assert_close(to_numpy(variables[0]) * 1e7, np.array([-0.6, 0.0]), atol=1e-4)
    assert_close(to_numpy(variables[1]) * 1e7, np.array([0.0, -0.8]), atol=1e-4)


@pytest.mark.quick_cases("{'global_clipnorm': 1000000000.0}")
@pytest.mark.parametrize("clip", [{}, {"clipnorm": 1e9}, {"global_clipnorm": 1e9}], ids=str)
def test_sparse_embedding_gradients_work_with_any_clipping(clip):
    """TensorFlow's gradient has only the looked-up rows, one of them twice."""
    model = keras.Sequential([keras.Input([3], dtype="int32"), keras.layers.Embedding(4, 1)])
    optimizer = BertAdamW(1.0, weight_decay=0.0, epsilon=1e3, **{"global_clipnorm": None} | clip)
    model.compile(optimizer, loss=lambda y, outputs: keras.ops.sum(outputs, axis=(1, 2)))
    before = to_numpy(model.trainable_variables[0]).copy()
    model.fit(np.array([[1, 2, 2]]), np.zeros([1]), verbose=0)
    moved = (before - to_numpy(model.trainable_variables[0]))[:, 0]
    # With a huge epsilon the step is 0.1 g / epsilon.
    assert_close(moved * 1e4, np.array([0.0, 1.0, 2.0, 0.0]), atol=1e-2)


def test_optimizer_state_survives_save_and_load(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(BertAdamW(WarmupLinearDecay(0.1, 20, 2)), loss="mse")
    x, y = np.ones((4, 3)), np.ones((4, 2))
    model.fit(x, y, epochs=3, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert int(again.optimizer.iterations) == 3
    for m in (model, again):
        m.fit(x, y, epochs=2, verbose=0, shuffle=False)
    assert_close(again.get_weights(), model.get_weights(), atol=1e-6)


def test_adagrad_equals_the_formula_of_duchi_et_al():
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


def test_adagrad_adds_the_repeats_of_an_embedding_row():
    ids, ones = np.array([[1, 1, 1, 1, 2]]), {"embeddings_initializer": "ones"}
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), keras.layers.Embedding(4, 1, **ones)]
    )
    model.compile(AdaGrad(1.0), loss=lambda y, outputs: keras.ops.sum(outputs, axis=(1, 2)))
    model.fit(ids, np.zeros([1]), verbose=0)
    steps = np.array([0, 4, 1, 0]) / np.sqrt(1 + np.array([0, 16, 1, 0]))
    assert_close(model.get_weights()[0][:, 0], 1 - steps)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch's kernels")
@pytest.mark.parametrize("make", [BertAdamW, AdaGrad])
def test_gradients_may_have_another_layout(make):
    import torch

    whole = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    gradients = torch.tensor(whole), torch.tensor(whole.transpose(2, 0, 1).copy()).permute(1, 2, 0)
    expanded = torch.ones(()).expand(3, 4, 5)
    found = []
    for gradient in (*gradients, torch.ones(3, 4, 5), expanded):
        variable = keras.Variable(np.zeros((3, 4, 5), "float32"), name="kernel")
        make(0.1).apply([gradient], [variable])
        found.append(to_numpy(variable))
    assert_close(found[1], found[0])
    assert_close(found[3], found[2])


@pytest.mark.backend_neutral
def test_optimizer_is_wrapped_once_by_one_distribution(monkeypatch):
    from keras_plm.training.distribution.on_torch import OnTorch

    def made():
        distribution = OnTorch.__new__(OnTorch)
        distribution.num_replicas = 2
        return distribution

    one, other = made(), made()
    optimizer = one.optimizer(BertAdamW(1e-3))
    kind = type(optimizer)
    assert one.optimizer(optimizer) is optimizer and type(optimizer) is kind
    with pytest.raises(ValueError, match="devices of one distribution"):
        other.optimizer(optimizer)
