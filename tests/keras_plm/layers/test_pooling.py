"""Mixing layers and pooling over time."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.layers import LayerChoice, Pooling, ScalarMix
from keras_plm.layers._fused.softmax import float32_softmax
from tests.helpers.checks import assert_close, check_layer, to_numpy

B, T, D, L = 2, 3, 5, 3
MASK = np.array([[True, True, False], [True, True, True]])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


# The weights in AllenNLP's test of its scalar mix.
SCALARS, GAMMA = np.array([0.1, 0.2, 0.3], "float32"), 0.5


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mix_agrees_with_the_formula(layer_norm):
    layers = [normal(B, T, D, seed=j) for j in range(L)]
    mix = ScalarMix(L, layer_norm=layer_norm)
    mix(layers)
    mix.scalars.assign(SCALARS)
    mix.gamma.assign(GAMMA)

    shares = np.exp(SCALARS) / np.exp(SCALARS).sum()
    expected = np.zeros((B, T, D))
    for share, layer in zip(shares, layers, strict=True):
        if layer_norm:  # one mean and variance over all real positions and features
            real = layer[MASK]
            layer = (layer - real.mean()) / np.sqrt(((real - real.mean()) ** 2).mean() + 1e-12)
        expected += share * layer
    actual = mix(layers, padding_mask=MASK)
    assert_close(to_numpy(actual)[MASK], GAMMA * expected[MASK])
    stacked = mix(np.stack(layers, axis=2), padding_mask=MASK)
    assert_close(stacked, actual)
    np.testing.assert_allclose(mix.mixing_weights(), shares, rtol=1e-5)


def test_mix_passes_the_checks(tmp_path):
    check_layer(ScalarMix(L), {"inputs": normal(B, T, L, D)}, tmp_path)


def test_penalty_is_the_squared_norm_of_the_scalars():
    mix = ScalarMix(L, penalty=0.001)
    mix(normal(B, T, L, D))
    mix.scalars.assign(SCALARS)
    assert_close(mix.losses, [0.001 * (SCALARS**2).sum()], atol=1e-8)


def test_gamma_can_stay_fixed():
    mix = ScalarMix(L, trainable_gamma=False)
    mix(normal(B, T, L, D))
    assert [w.name for w in mix.trainable_weights] == ["scalars"]


@pytest.mark.backend_neutral
def test_mix_needs_its_number_of_layers():
    mix = ScalarMix(L)
    with pytest.raises(ValueError, match="as many layers"):
        mix([normal(B, T, D)] * 2)


@pytest.mark.quick_cases("mean")
@pytest.mark.parametrize("pool", ["cls", "mean", "max"])
def test_pooling_reads_real_positions_only(pool, tmp_path):
    x = normal(B, T, D) - 5
    layer = Pooling(pool)
    check_layer(layer, {"inputs": x, "padding_mask": MASK}, tmp_path)
    rows = {
        "cls": [x[b, 0] for b in range(B)],
        "mean": [x[b][MASK[b]].mean(0) for b in range(B)],
        "max": [x[b][MASK[b]].max(0) for b in range(B)],
    }[pool]
    assert_close(layer(x, padding_mask=MASK), np.stack(rows))
    if pool != "cls":
        assert (to_numpy(layer(x, padding_mask=np.zeros((B, T), bool))) == 0).all()


@pytest.mark.parametrize("dtype, low", [("float32", -1e30), ("bfloat16", -1e30), ("float16", -6e4)])
def test_maximum_of_very_low_numbers(dtype, low):
    x = ops.cast(np.full((1, 3, 2), low), dtype)
    found = Pooling("max", dtype=dtype)(x, padding_mask=np.array([[True, True, False]]))
    assert_close(ops.cast(found, "float32"), ops.cast(x[:, 0], "float32"))


@pytest.mark.backend_neutral
def test_unknown_pooling_is_named():
    with pytest.raises(ValueError, match="'cls', 'mean', 'max'.*'sum'"):
        Pooling("sum")


def test_layer_choice_selects_indices_for_any_depth():
    four = LayerChoice(-4, -1, "concat")
    assert four.indices(13) == [9, 10, 11, 12]
    assert four.indices(3) == [1, 2]  # never the embeddings
    assert four.width(13, 8) == 32 and LayerChoice(-4, -1, "mix").width(13, 8) == 8
    assert LayerChoice(-2, -2).indices(13) == [11]
    assert LayerChoice(0, -1).indices(3) == [0, 1, 2]
    for choice in (LayerChoice(-2, -2), LayerChoice(5, 5)):
        with pytest.raises(ValueError, match="too few layers.*layer_0 .* to layer_1"):
            choice.indices(2)
    with pytest.raises(ValueError, match="`combine`"):
        LayerChoice(0, 1, "sum")


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 without a flag")
def test_means_and_softmax_of_float64_stay_in_float64():
    x = np.random.default_rng(0).normal(size=(2, 5, 3))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "bool")
    tensor = keras.ops.convert_to_tensor(x, "float64")
    found = Pooling("mean", dtype="float64")(tensor, mask)
    np.testing.assert_allclose(
        to_numpy(found), [x[0, :3].mean(axis=0), x[1].mean(axis=0)], atol=1e-14
    )
    shares = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(to_numpy(float32_softmax(tensor)), shares, atol=1e-14)
