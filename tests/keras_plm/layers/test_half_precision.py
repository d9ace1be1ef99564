"""Sums of explicit paths in half precision, compared with float64 on the same rounded inputs.

A half-precision result is at most one rounding from the exact one, because sums are in float32.
"""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.heads.readers.bi_attention import pair_scores
from keras_plm.layers import (
    CRF,
    LayerNormalization,
    MultiHeadAttention,
    Pooling,
    SampledSoftmax,
    crf_losses,
    masked_softmax,
)
from keras_plm.layers._fused.attention import scaled_scores
from keras_plm.layers._fused.dense import dense
from keras_plm.layers._fused.softmax import token_cross_entropy
from keras_plm.layers.attention import softmax
from keras_plm.layers.multi_head_attention import split_heads
from keras_plm.layers.sampled_softmax import row_products

# Largest relative rounding error, and the smallest number to which it applies.
ROUNDING = {"bfloat16": (2.0**-8, 2.0**-126), "float16": (2.0**-11, 2.0**-14)}
half = pytest.mark.parametrize("dtype", ROUNDING)


def rounded(dtype, *shape, seed=0, scale=1.0):
    """Returns random numbers of a type, and the same numbers as float64."""
    array = np.random.default_rng(seed).normal(size=shape) * scale
    tensor = ops.cast(ops.convert_to_tensor(array.astype("float32")), dtype)
    return tensor, exact(tensor)


def exact(tensor):
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")), "float64")


def check(tensor, expected, dtype, roundings=1.0):
    """Raises unless a tensor has the type and is within `roundings` of the expected value."""
    assert keras.backend.standardize_dtype(tensor.dtype) == dtype
    unit, least = ROUNDING[dtype]
    allowed = roundings * unit * np.maximum(np.abs(expected), least) + 1e-6 * np.abs(expected)
    assert (np.abs(exact(tensor) - expected) <= allowed).all()


def softmax64(scores):
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


@half
def test_softmax(dtype):
    scores, wanted = rounded(dtype, 2, 3, 301, scale=3.0)
    check(softmax(scores), softmax64(wanted), dtype)
    seen = np.arange(301) % 3 > 0
    wanted[..., ~seen] = -np.inf
    check(masked_softmax(scores, seen), softmax64(wanted), dtype)


@half
def test_attention_weights(dtype):
    layer = MultiHeadAttention(num_heads=2, hidden_dim=10, dtype=f"mixed_{dtype}")
    x, _ = rounded(dtype, 2, 211, 7, scale=3.0)
    real = np.arange(211) < np.array([[211], [130]])
    layer(x)
    weights = layer.run(x, padding_mask=real, return_weights=True).weights
    projected = ops.split(dense(x, **layer.arrays()["query_key_value"]), 3, axis=-1)
    query, key, _ = (ops.transpose(split_heads(part, 2), (0, 2, 1, 3)) for part in projected)
    scores = exact(scaled_scores(query, key, real[:, None, None]))
    check(weights, softmax64(scores), dtype)


@half
def test_both_paths_of_attention_agree(dtype, monkeypatch):
    if keras.backend.backend() == "torch":  # on the CPU it takes the explicit path by default
        monkeypatch.setattr("keras_plm.layers.multi_head_attention.fused_is_slow", lambda *_: False)
    layer = MultiHeadAttention(num_heads=2, hidden_dim=10, dtype=f"mixed_{dtype}")
    x, _ = rounded(dtype, 2, 67, 10)
    real = np.arange(67) < np.array([[67], [40]])
    fused = layer(x, padding_mask=real, causal=True)
    explicit, *_ = layer.run(x, padding_mask=real, causal=True, return_weights=True)
    wide = MultiHeadAttention(num_heads=2, hidden_dim=10)
    wide(exact(x).astype("float32"))
    wide.set_weights(layer.get_weights())
    wanted = exact(wide(exact(x).astype("float32"), padding_mask=real, causal=True))
    unit = ROUNDING[dtype][0] * np.abs(wanted).max()
    for one, other in ((fused, explicit), (fused, wanted), (explicit, wanted)):
        one, other = (x if isinstance(x, np.ndarray) else exact(x) for x in (one, other))
        # Inputs, kernels, projections, scores, weights and outputs are each rounded.
        assert np.abs(one - other).max() < 8 * unit


@half
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}], ids=str)
def test_layer_norm(dtype, options):
    layer = LayerNormalization(epsilon=1e-6, dtype=f"mixed_{dtype}", **options)
    x, wanted = rounded(dtype, 5, 509)
    x, wanted = x + 4, exact(x + 4)
    wanted = wanted - wanted.mean(axis=-1, keepdims=True)
    wanted /= np.sqrt((wanted**2).mean(axis=-1, keepdims=True) + 1e-6)
    unit = ROUNDING[dtype][0]
    assert np.abs(exact(layer(x)) - wanted).max() < 2 * unit * np.abs(wanted).max()


@half
def test_cross_entropy_and_products(dtype):
    logits, wanted = rounded(dtype, 3, 5, 997, scale=2.0)
    ids = np.arange(15).reshape(3, 5).astype("int32")
    losses = token_cross_entropy(ops.convert_to_tensor(ids), logits)
    assert keras.backend.standardize_dtype(losses.dtype) == "float32"
    own = np.take_along_axis(np.log(softmax64(wanted)), ids[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(exact(losses), -own, rtol=1e-5)
    (x, x64), (rows, rows64) = rounded(dtype, 11, 601), rounded(dtype, 11, 601, seed=1)
    found = row_products(x, ops.cast(rows, "float32"))
    np.testing.assert_allclose(exact(found), (x64 * rows64).sum(-1), atol=1e-4)


@half
def test_sampled_softmax(dtype):
    layer = SampledSoftmax(vocabulary_size=401, dtype=f"mixed_{dtype}")
    x, x64 = rounded(dtype, 7, 31)
    ids = np.arange(7).astype("int32")
    losses = layer(x, target_ids=ids)
    kernel = exact(ops.cast(ops.convert_to_tensor(layer.kernel), dtype))
    logits = x64 @ kernel.T
    wanted = -np.log(softmax64(logits))[np.arange(7), ids]
    assert keras.backend.standardize_dtype(losses.dtype) == "float32"
    # The products are rounded; the sum of exponentials is not.
    unit = ROUNDING[dtype][0] * np.abs(logits).max()
    assert np.abs(exact(losses) - wanted).max() < 0.5 * unit


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("sampled", [False, True])
def test_sampled_softmax_with_weights_of_another_type(dtype, sampled):
    ids, samples = np.arange(10).reshape(2, 5) % 7, {}
    if sampled:
        drawn = np.array([3, 8, 20], "int32")
        samples = {
            "sample_ids": drawn,
            "sample_counts": np.full(3, 0.5, "float32"),
            "target_counts": np.full((1, 5), 0.5, "float32"),
            "target_sampled": np.isin(np.arange(5)[None], drawn),
        }
        ids = np.arange(5)[None].repeat(2, 0)
    layer = SampledSoftmax(vocabulary_size=401, dtype=dtype)

    class Model(keras.Model):
        def __init__(self):
            super().__init__(dtype=dtype)
            self.layer, self.dense = layer, keras.layers.Dense(31, dtype=dtype)

        def call(self, inputs):
            given = {
                name: ops.repeat(value, 2, 0) if "target" in name else value
                for name, value in samples.items()
            }
            return self.layer(self.dense(inputs), target_ids=ids, **given)

    model = Model()
    model.compile("sgd", lambda _, losses: losses)
    inputs = np.random.default_rng(0).normal(size=(2, 5, 31))
    before = model(inputs)
    assert keras.backend.standardize_dtype(before.dtype) == "float32"
    kernel = exact(layer.kernel).copy()
    options = {"shuffle": False, "verbose": 0}  # the layer's words belong to rows
    history = model.fit(inputs, np.zeros((2, 5)), epochs=2, **options).history
    assert history["loss"][1] < history["loss"][0] and (exact(layer.kernel) != kernel).any()


@half
def test_crf(dtype):
    scores, wide = rounded(dtype, 2, 4, 3, scale=2.0)
    layer = CRF(dtype=f"mixed_{dtype}")
    rows = layer(scores)
    assert keras.backend.standardize_dtype(rows.dtype) == "float32"
    layer.transitions.assign(np.random.default_rng(2).normal(size=(3, 3)))
    between = exact(layer.transitions)
    tags = np.array([[0, 1, 2, 0], [2, 2, 1, 0]], "int32")

    def total(row, names):
        return sum(row[t, k] for t, k in enumerate(names)) + sum(
            between[a, b] for a, b in itertools.pairwise(names)
        )

    for row, names, losses in zip(wide, tags, exact(crf_losses(tags, layer(scores))), strict=True):
        every = [total(row, other) for other in itertools.product(range(3), repeat=4)]
        wanted = np.log(np.exp(every).sum()) - total(row, names)
        np.testing.assert_allclose(losses.sum(), wanted, rtol=1e-5)
    assert keras.backend.standardize_dtype(crf_losses(tags, ops.cast(rows, dtype)).dtype) == (
        "float32"
    )


@half
def test_means_of_long_texts(dtype):
    x, wide = rounded(dtype, 2, 611, 3)
    x, wide = x + 1, exact(x + 1)
    real = np.arange(611) < np.array([[611], [301]])
    layer = Pooling("mean", dtype=f"mixed_{dtype}")
    wanted = np.stack([row[here].mean(axis=0) for row, here in zip(wide, real, strict=True)])
    check(layer(x, padding_mask=real), wanted, dtype)
    check(layer(x), wide.mean(axis=1), dtype)


@half
def test_pair_scores_of_bi_attention(dtype):
    (x, x64), (y, y64) = rounded(dtype, 2, 3, 401), rounded(dtype, 2, 5, 401, seed=1)
    kernel, kernel64 = rounded(dtype, 3, 401, seed=2, scale=0.1)
    kernel64 = np.stack([kernel64[0], kernel64[1], 0 * kernel64[2]])  # only sums
    zero = ops.concatenate([kernel[:2], 0 * kernel[2:]], axis=0)
    wanted = (x64 @ kernel64[0])[:, :, None] + (y64 @ kernel64[1])[:, None]
    check(pair_scores(zero, x, y), wanted, dtype, roundings=1.01)


def test_layer_norm_equals_keras():
    """Its weights stay in float32; torch's kernel takes them in the type of its inputs."""
    rng = np.random.default_rng(0)
    ours, theirs = (
        kind(dtype="mixed_bfloat16", epsilon=1e-6)
        for kind in (LayerNormalization, keras.layers.LayerNormalization)
    )
    x = rng.normal(size=(3, 5, 16)).astype("float32")
    for layer in (ours, theirs):
        layer.build(x.shape)
        layer.set_weights(list(np.random.default_rng(1).normal(1, 0.3, (2, 16))))
    found, expected = (
        ops.convert_to_numpy(ops.cast(layer(x), "float32")) for layer in (ours, theirs)
    )
    torch = keras.backend.backend() == "torch"
    np.testing.assert_allclose(found, expected, atol=0.05 if torch else 0)
    assert ours(x).dtype == theirs(x).dtype
