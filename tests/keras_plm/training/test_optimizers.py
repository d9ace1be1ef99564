"""The published optimizers and schedules, compared with the originals' numbers."""

import keras
import numpy as np
import pytest

from keras_plm.models import ELMo, Encoder
from keras_plm.training.optimizers import AdaGrad, BertAdamW
from keras_plm.training.schedules import (
    InverseSquareRoot,
    SlantedTriangular,
    WarmupCosineDecay,
    WarmupLinearDecay,
)
from keras_plm.transfer.layer_groups import layer_groups
from keras_plm.transfer.surgery import keep_pretrained_layers
from tests.helpers.checks import assert_close, to_numpy, waits

pytestmark = pytest.mark.each_backend

START, TARGET = np.array([0.1, -0.2, -0.1]), np.array([0.4, 0.2, -0.5])
# The problem in google-research/bert's optimization_test.py, solved in float64.
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
    optimizer = BertAdamW(0.02, weight_decay=decay, global_clipnorm=clip, bias_correction=correct)
    assert_close(run(optimizer, 7)[7], by_formula(7, 0.02, decay, clip, correct))


@pytest.mark.parametrize("name", ["bias", "gamma", "beta"])
def test_biases_and_norms_do_not_decay(name):
    optimizer = BertAdamW(0.02, weight_decay=0.1, global_clipnorm=None)
    assert_close(run(optimizer, 5, name)[5], by_formula(5, 0.02, 0.0, None, False))


def test_bias_corrected_adamw_equals_keras():
    # Keras corrects the bias outside the root, which changes the meaning of epsilon.
    options = {"learning_rate": 0.02, "weight_decay": 0.1, "epsilon": 1e-12}
    ours = run(BertAdamW(**options, bias_correction=True, global_clipnorm=None), 5)
    peer = run(keras.optimizers.AdamW(**options), 5)
    assert_close(ours[5], peer[5], atol=1e-6)


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


def test_linear_schedule_equals_the_originals():
    """Compares with polynomial_decay, and with init * step / warmup while step < warmup."""
    schedule = WarmupLinearDecay(peak=2.0, total_steps=50, warmup_steps=10)
    for step in range(60):
        expected = 2.0 * step / 10 if step < 10 else 2.0 * (1 - min(step, 50) / 50)
        assert_close(schedule(step), expected)
    assert float(WarmupLinearDecay(1.0, 10)(0)) == 1.0
    again = WarmupLinearDecay.from_config(schedule.get_config())
    assert float(again(7)) == float(schedule(7))
    with pytest.raises(ValueError, match="between 0 and `total_steps`"):
        WarmupLinearDecay(1.0, 10, 11)


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


@pytest.mark.parametrize("total, fraction, ratio", [(100, 0.1, 32), (70, 0.3, 5), (30, 0.5, 1)])
def test_slanted_triangular_equals_the_papers_formula(total, fraction, ratio):
    """Compares with Howard and Ruder 2018, equation 3."""
    schedule = SlantedTriangular(0.7, total, fraction, ratio)
    for t in range(total + 1):
        cut = int(np.floor(round(total * fraction, 9)))
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / fraction - 1))
        assert_close(schedule(t), 0.7 * (1 + p * (ratio - 1)) / ratio, atol=1e-6)
    again = SlantedTriangular.from_config(schedule.get_config())
    assert float(again(7)) == float(schedule(7))


def test_slanted_triangular_stays_in_bounds_for_any_length():
    for total in (1, 3, 19, 29):
        for fraction in (0.0, 0.1, 0.9):
            rates = [float(SlantedTriangular(3.2, total, fraction)(t)) for t in range(total + 5)]
            assert max(rates) == pytest.approx(3.2) and min(rates) >= 0.1 - 1e-6
            assert rates[total] == rates[-1] == pytest.approx(0.1, abs=1e-6)
    for wrong in ({"total_steps": 0}, {"ratio": 0.5}, {"cut_fraction": 1.0}):
        with pytest.raises(ValueError, match=r"`cut_fraction` lie in \[0, 1\). Received: "):
            SlantedTriangular(**{"peak": 1.0, "total_steps": 9, **wrong})


# The third weight is a bias, so it does not decay.
GROUPS = {"a": (0.25, 3), "bias": (0.5, 2)}
SHAPES = {"a": (2, 3), "b": (5,), "bias": (3,)}


def three(groups, steps, split=None, **options):
    """Takes steps on three weights, two of them in groups; saves and resumes at `split`."""
    rng = np.random.default_rng(7)
    variables = [
        keras.Variable(rng.normal(size=shape).astype("float32"), name=name)
        for name, shape in SHAPES.items()
    ]
    optimizer = BertAdamW(WarmupLinearDecay(0.3, 12, 4), groups=groups, **options)
    optimizer.build(variables)
    seen = [[to_numpy(v).copy() for v in variables]]
    for step in range(steps):
        if step == split:
            saved = {}
            optimizer.save_own_variables(saved)
            optimizer = BertAdamW.from_config(optimizer.get_config())
            optimizer.build(variables)
            optimizer.load_own_variables({k: np.array(v) for k, v in saved.items()})
        gradients = [
            keras.ops.convert_to_tensor(rng.normal(size=shape).astype("float32"))
            for shape in SHAPES.values()
        ]
        optimizer.apply(gradients, variables)
        seen.append([to_numpy(v).copy() for v in variables])
    return seen, optimizer


def three_by_formula(groups, steps, clip, correct, decay):
    rng = np.random.default_rng(7)
    weights = [rng.normal(size=shape).astype("float32").astype(float) for shape in SHAPES.values()]
    means, squares = ([np.zeros(w.shape) for w in weights] for _ in range(2))
    seen = [[w.copy() for w in weights]]
    for step in range(steps):
        rate = 0.3 * (step / 4 if step < 4 else 1 - step / 12)
        gradients = [rng.normal(size=w.shape).astype("float32").astype(float) for w in weights]
        learning = [i for i, name in enumerate(SHAPES) if step >= groups.get(name, (1, 0))[1]]
        norm = np.sqrt(sum((gradients[i] ** 2).sum() for i in learning))
        for i in learning:
            name = list(SHAPES)[i]
            factor, begin = groups.get(name, (1, 0))
            gradient = gradients[i] * (min(1.0, clip / norm) if clip else 1.0)
            means[i] = 0.9 * means[i] + 0.1 * gradient
            squares[i] = 0.999 * squares[i] + 0.001 * gradient**2
            count = step + 1 - begin
            mean = means[i] / (1 - 0.9**count) if correct else means[i]
            square = squares[i] / (1 - 0.999**count) if correct else squares[i]
            shrink = 0.0 if name == "bias" else decay * weights[i]
            weights[i] = weights[i] - factor * rate * (mean / (np.sqrt(square) + 1e-6) + shrink)
        seen.append([w.copy() for w in weights])
    return seen


@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_groups_follow_the_formula(clip, correct):
    options = {"weight_decay": 0.1, "global_clipnorm": clip, "bias_correction": correct}
    seen, optimizer = three(GROUPS, 7, **options)
    for got, wanted in zip(seen, three_by_formula(GROUPS, 7, clip, correct, 0.1), strict=True):
        assert_close(got, wanted)
    for i, begin in ((0, 3), (2, 2)):  # frozen until its step, bit for bit
        for step in range(8):
            assert np.array_equal(seen[step][i], seen[0][i]) is (step <= begin), step
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again.get_config() == optimizer.get_config() and again.groups == GROUPS


def test_groups_resume_from_the_saved_state():
    whole, _ = three(GROUPS, 6)
    for split in (2, 3, 4):
        assert_close(three(GROUPS, 6, split)[0][-1], whole[-1], atol=1e-7)


def test_groups_with_full_rate_and_start_0_have_no_effect():
    plain, _ = three(None, 5)
    assert_close(three({}, 5)[0], plain, atol=0)
    assert_close(three({"a": (1.0, 0), "b": (1, 0)}, 5)[0], plain, atol=1e-6)


def test_frozen_weights_do_not_affect_means_and_clipping():
    variables = [keras.Variable(np.ones(2, "float32"), name=name) for name in ("low", "high")]
    optimizer = BertAdamW(1.0, groups={"low": (1.0, 1)}, global_clipnorm=1.0)
    gradients = [np.array([np.nan, 1e9], "float32"), np.array([0.3, 0.4], "float32")]
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], variables)
    assert_close(variables[0], np.ones(2), atol=0)
    assert_close(optimizer._means[0], np.zeros(2), atol=0)
    assert_close(optimizer._means[1], 0.1 * gradients[1])  # not clipped because of the other group


def small_model():
    """Returns an "encoder" of embeddings, two blocks, a norm and a pooler, under a layer."""
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(7, 4, name="token_embedding")(inputs)
    for i in range(2):
        x = keras.layers.Dense(4, name=f"block_{i}")(x)
    x = keras.layers.LayerNormalization(name="final_norm")(x)
    part = keras.Model(inputs, keras.layers.Dense(4, name="pooler")(x))
    model = keras.Model(inputs, keras.layers.Dense(2, name="logits")(part(inputs)))
    model.encoder = part
    return model


def test_layer_groups_depend_on_depth():
    model = small_model()
    wanted = {
        "token_embedding/embeddings": (0.25, 20),
        "block_0/kernel": (0.5, 10),
        "block_0/bias": (0.5, 10),
    }
    for part in (model, model.encoder):
        assert layer_groups(part, layer_decay=0.5, unfreeze_steps=10) == wanted
        assert layer_groups(part) == {}
    assert layer_groups(model, 0.5)["block_0/bias"] == (0.5, 0)
    model.encoder.trainable = False
    assert layer_groups(model, 0.5) == {}
    for wrong in ({"layer_decay": 0.0}, {"layer_decay": 1.5}, {"unfreeze_steps": -1}):
        with pytest.raises(ValueError, match="`layer_decay` must lie in"):
            layer_groups(model, **wrong)


def named_encoder(*names):
    """Returns an encoder of dense blocks with these names."""
    x = keras.Input((3, 4), name="vectors")
    inputs = {"vectors": x, "padding_mask": keras.Input((3,), dtype="bool", name="padding_mask")}
    layers = [x]
    for name in names:
        x = keras.layers.Dense(4, name=name)(x)
        layers.append(x)
    return Encoder(inputs, {"sequence": x, "layers": layers})


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "names",
    [("stage_0", "stage_1"), ("block_0", "top"), ("block_1", "block_2"), ("block_0", "block_2")],
    ids=str,
)
def test_blocks_of_other_names_are_refused(names):
    """Otherwise all rates would be equal, and all layers transferred, despite the settings."""
    model = named_encoder(*names)
    assert layer_groups(model) == {}
    for options in ({"layer_decay": 0.5}, {"unfreeze_steps": 2}):
        with pytest.raises(ValueError, match=f"block_0.*Received: blocks .*{names[1]}"):
            layer_groups(model, **options)
    for count in (-1, 0, 1):
        with pytest.raises(ValueError, match=f"block_0.*Received: blocks .*{names[1]}"):
            keep_pretrained_layers(model, count)
    for a, b in zip(
        keep_pretrained_layers(model, 2).get_weights(), model.get_weights(), strict=True
    ):
        assert np.array_equal(a, b)


@pytest.mark.backend_neutral
def test_blocks_of_known_names_are_found():
    for prefix in ("block", "layer", "transformer_layer", "f_net_layer"):
        model = named_encoder(f"{prefix}_0", f"{prefix}_1")
        groups = layer_groups(model, layer_decay=0.5)
        assert groups == {f"{prefix}_0/kernel": (0.5, 0), f"{prefix}_0/bias": (0.5, 0)}


def test_layer_groups_of_elmo_decay_by_layer():
    """Howard and Ruder 2018: rates fall by the factor 2.6 per layer, here in both directions."""
    elmo = ELMo(units=5, projection_dim=3, filters=[[1, 2]], character_dim=2, num_layers=3)
    groups = layer_groups(elmo, layer_decay=1 / 2.6, unfreeze_steps=7)
    for weight in elmo.trainable_weights:
        part, layer = weight.path.split("/")[:2]
        height = 0 if part == "token_encoder" else int(layer.removeprefix("layer_")) + 1
        factor, start = groups.get(weight.path, (1, 0))
        assert factor == pytest.approx(2.6 ** (height - 3)) and start == 7 * (3 - height)


@pytest.mark.full
def test_groups_work_in_fit_and_after_a_reload(tmp_path):
    """Freezing and unfreezing need one compilation, also with TensorFlow's sparse gradients."""
    x = np.random.default_rng(0).integers(0, 7, (8, 3))
    y = np.ones((8, 3, 2))

    def weights(model):
        return {w.path: to_numpy(w).copy() for w in model.trainable_weights}

    model = small_model()
    model.compile(
        BertAdamW(0.01, groups=layer_groups(model, 0.5, 2), global_clipnorm=1.0), loss="mse"
    )
    before = weights(model)
    model.fit(x, y, batch_size=4, verbose=0)  # two steps
    after = weights(model)
    moved = {path for path in before if not np.array_equal(before[path], after[path])}
    assert not moved & {"token_embedding/embeddings", "block_0/kernel", "block_0/bias"}
    assert {"block_1/kernel", "final_norm/gamma", "pooler/kernel", "logits/kernel"} <= moved
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.optimizer.groups == model.optimizer.groups
    for m in (model, again):
        m.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    assert_close(again.get_weights(), model.get_weights(), atol=1e-6)
    assert all(not np.array_equal(before[path], w) for path, w in weights(model).items())


@pytest.mark.backend_neutral
def test_bad_groups_are_explained():
    with pytest.raises(ValueError, match=r"both 0 or more. Received: \(1.0, -1\) for 'a'"):
        BertAdamW(groups={"a": (1.0, -1)})
    with pytest.raises(ValueError, match="one trainable weight. Received: 'c', the path of 0"):
        three({"c": (0.5, 0)}, 1)


@pytest.fixture
def float64():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


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


@pytest.mark.parametrize("name", ["scalars", "log_temperature", "transitions", "scale", "norm/w"])
def test_scales_and_additive_scores_do_not_decay(name):
    optimizer = BertAdamW(0.02, weight_decay=0.1, global_clipnorm=None)
    variable = keras.Variable(START.astype("float32"), name=name.split("/")[-1])
    if "/" in name:
        variable._path = name
    optimizer.build([variable])
    for _ in range(5):
        gradient = 2 / 3 * (to_numpy(variable) - TARGET)
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype("float32"))], [variable])
    assert_close(variable, by_formula(5, 0.02, 0.0, None, False))


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "path, decays",
    [
        ("unbiased_head/kernel", True),
        ("my_beta_model/block_0/kernel", True),
        ("classifier_normalized/kernel", True),
        ("block_0/attention_norm/gamma", False),
        ("layer_normalization_3/scale", False),
        ("transformer_layer_0_layer_norm/beta", False),
        ("dense/bias", False),
        ("bias", False),
        ("crf/transitions", False),
    ],
)
def test_layer_names_do_not_exclude_kernels_from_decay(path, decays):
    from keras_plm.training.optimizers import NOT_DECAYED

    assert (NOT_DECAYED.search(path) is None) is decays


@pytest.mark.backend_neutral
def test_only_kernels_embeddings_and_projections_decay():
    """BERT's rule excludes biases and norms, and the biases and scales of other models."""
    from keras_plm.heads import CRFTagger, Tagger
    from keras_plm.heads.readers import BiLSTM
    from keras_plm.heads.task_network import Placement
    from keras_plm.layers import LayerChoice
    from keras_plm.models import BERT, GPT, NNLM, Seq2Seq, Transformer
    from keras_plm.pretraining import BiLM, CausalLM, MaskedLM

    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    elmo = ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    mix = {"layers": LayerChoice(0, -1, "mix"), "reader": BiLSTM(4)}
    models = [
        MaskedLM(BERT(13, **size)), CausalLM(GPT(13, **size)),
        BiLM(elmo, 20, num_sampled=5, batch_size=2),
        NNLM(7), Transformer(9, 1, 2, 8),
        *(Seq2Seq(9, 4, 6, attention=name) for name in (None, "dot", "cosine", "additive")),
        CRFTagger(BERT(13, **size), ["a", "b"], **mix),
        Tagger(BERT(13, **size), ["a", "b"], reader=BiLSTM(4),
               placement=Placement(character_filters=4)),
    ]  # fmt: skip
    found = {True: set(), False: set()}
    for model in models:
        optimizer = BertAdamW()
        optimizer.build(model.trainable_variables)
        for variable in model.trainable_variables:
            found[optimizer._use_weight_decay(variable)].add(variable.name)
    kernels = ["kernel", "recurrent_kernel", "gates_kernel", "candidate_kernel", "score_kernel"]
    spelling = ["width_1_kernel", "width_2_kernel", "width_3_kernel"]
    assert found[True] == {*kernels, *spelling, "embeddings", "projection"}
    scales = {"gamma", "scalars", "log_temperature"}
    scores = {"bias", "beta", "width_1_bias", "width_2_bias", "width_3_bias"}
    assert found[False] == scales | scores | {"transitions", "starts", "ends"}


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
