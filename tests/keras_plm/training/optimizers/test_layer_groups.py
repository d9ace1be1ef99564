"""Learning rates and starts by group of weights."""

import keras
import numpy as np
import pytest

from keras_plm.models import ELMo, Encoder
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.schedules import (
    WarmupLinearDecay,
)
from keras_plm.transfer.layer_groups import layer_groups
from keras_plm.transfer.surgery import keep_pretrained_layers
from tests.helpers.checks import assert_close, to_numpy

pytestmark = pytest.mark.each_backend

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
