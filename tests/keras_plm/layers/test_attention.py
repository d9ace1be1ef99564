"""Attention, compared with loops written from the papers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.layers import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    CosineAttention,
    DotProductAttention,
    LocationAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    masked_softmax,
)
from tests.helpers.checks import assert_close, check_layer, to_numpy

pytestmark = pytest.mark.each_backend

B, T, S, D = 2, 3, 5, 7


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def attend(scores, values, visible):
    """Computes the softmax over visible keys and the weighted sum, pair by pair."""
    context = np.zeros((*scores.shape[:2], values.shape[-1]))
    weights = np.zeros(scores.shape)
    for b in range(scores.shape[0]):
        for t in range(scores.shape[1]):
            keys = [s for s in range(scores.shape[2]) if visible[b, t, s]]
            total = sum(np.exp(scores[b, t, s]) for s in keys)
            for s in keys:
                weights[b, t, s] = np.exp(scores[b, t, s]) / total
                context[b, t] += weights[b, t, s] * values[b, s]
    return context, weights


def by_pairs(score, query, key):
    """Computes the score of every query and key, one pair after another."""
    scores = np.zeros((B, T, S))
    for b in range(B):
        for t in range(T):
            for s in range(S):
                scores[b, t, s] = score(query[b, t].astype("float64"), key[b, s], t, s)
    return scores


def dot(q, k):
    return sum(a * b for a, b in zip(q, k, strict=True))


def formula(layer):
    """Returns the score function of a built layer by the formula of its paper."""
    weights = [to_numpy(w).astype("float64") for w in layer.weights]
    kind = type(layer)
    if kind is ScaledDotProductAttention:
        return lambda q, k, t, s: dot(q, k) / np.sqrt(len(q))
    if kind is CosineAttention:
        scale = np.exp(-weights[0]) if layer.learn_temperature else 1 / layer.temperature
        return lambda q, k, t, s: scale * dot(q, k) / np.sqrt(dot(q, q) * dot(k, k))
    if kind is BilinearAttention:
        return lambda q, k, t, s: sum(
            q[j] * weights[0][i, j] * k[i] for i in range(len(k)) for j in range(len(q))
        )
    if kind is AdditiveAttention:
        v, query_kernel, key_kernel = weights
        return lambda q, k, t, s: sum(
            v[u, 0] * np.tanh(dot(q, query_kernel[:, u]) + dot(k, key_kernel[:, u]))
            for u in range(len(v))
        )
    if kind is LocationAttention:
        return lambda q, k, t, s: dot(q, weights[0][s])
    return lambda q, k, t, s: dot(q, k)


# layer, whether queries and keys may differ in width
SCORES = {
    "dot": (DotProductAttention, False),
    "scaled_dot": (ScaledDotProductAttention, False),
    "bilinear": (BilinearAttention, True),
    "cosine": (CosineAttention, False),
    "cosine_sharp": (lambda **o: CosineAttention(temperature=0.2, **o), False),
    "cosine_learned": (
        lambda **o: CosineAttention(temperature=0.5, learn_temperature=True, **o),
        False,
    ),
    "additive": (lambda **o: AdditiveAttention(units=11, **o), True),
    "location": (lambda **o: LocationAttention(max_source_length=13, **o), True),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_agree_with_loops(name):
    make, any_width = SCORES[name]
    width = D + 4 if any_width else D
    query, key, value = normal(B, T, D), normal(B, S, width, seed=1), normal(B, S, 4, seed=2)
    padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    allowed = np.random.default_rng(3).random((B, T, S)) < 0.7
    allowed[:, :, 0] = True
    layer = make()
    context, weights = layer(
        query=query, value=value, key=key, padding_mask=padding, attention_mask=allowed
    )
    scores = by_pairs(formula(layer), query, key)
    assert_close((context, weights), attend(scores, value, allowed & padding[:, None]))
    causal = layer(query=query, value=value, key=key, causal=True)
    assert_close(causal, attend(scores, value, np.tril(np.ones((B, T, S), bool))))


@pytest.mark.quick_cases("dot", "additive")
@pytest.mark.parametrize("name", SCORES)
def test_score_layers_pass_the_checks(name, tmp_path):
    inputs = {"query": normal(B, T, D), "value": normal(B, S, D)}
    check_layer(SCORES[name][0](dropout=0.1), inputs, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", SCORES)
def test_half_precision_scores_are_near_float32_without_nan(name, policy):
    query, value = normal(B, T, D), normal(B, S, D, seed=1)
    value[0, 0] = 0  # a zero vector
    padding = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    exact = SCORES[name][0](dtype="float32")
    expected = exact(query=query, value=value, padding_mask=padding)
    half = SCORES[name][0](dtype=policy)
    half(query=query, value=value)
    half.set_weights(exact.get_weights())
    outputs = half(query=query, value=value, padding_mask=padding)
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs} == {policy[6:]}
    actual = [to_numpy(ops.cast(x, "float32")) for x in outputs]
    assert_close(actual, expected, atol=3e-2)
    np.testing.assert_allclose(actual[1][1], 1 / S, atol=1e-3)  # a text with only padding


def test_a_mask_of_numbers_is_not_added_to_scores():
    weights = masked_softmax(np.zeros((1, 3), "float32"), np.array([[1.0, 1.0, 0.0]]))
    assert_close(weights, np.array([[0.5, 0.5, 0.0]]))


def test_worked_example_of_bahdanau():
    # Equations 5 and 6 with energies (0, 0, ln 2) and annotations (1, 0), (0, 1), (1, 1).
    annotations = np.array([[[1, 0], [0, 1], [1, 1]]], "float32")
    energies = np.array([[[0, 0, np.log(2)]]], "float32")
    weights = masked_softmax(energies)
    assert_close(weights, np.array([[[0.25, 0.25, 0.5]]]))
    assert_close(ops.matmul(weights, annotations), np.array([[[0.75, 0.75]]]))


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: AdditiveAttention(units=0), "`units` must be 1 or more"),
        (lambda: CosineAttention(temperature=0), "`temperature` must be above 0"),
        (
            lambda: LocationAttention(4)(query=normal(B, T, D), value=normal(B, S, D)),
            "weights for 4 source positions",
        ),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_location_attention_takes_any_length_in_a_functional_model():
    query, value = keras.Input((None, D)), keras.Input((None, D + 1))
    model = keras.Model([query, value], LocationAttention(S)(query, value))
    context, weights = model([normal(B, T, D), normal(B, S, D + 1)])
    assert context.shape == (B, T, D + 1) and weights.shape == (B, T, S)
    with pytest.raises(ValueError, match="weights for 4 source positions"):
        LocationAttention(4)(query, keras.Input((5, D)))


@pytest.mark.backend_neutral
def test_attention_without_score_method_is_refused():
    with pytest.raises(NotImplementedError, match="must define `score"):
        Attention()(query=normal(B, T, D), value=normal(B, S, D))


def test_key_is_the_value_when_omitted():
    query, value = normal(B, T, D), normal(B, S, D, seed=1)
    layer = DotProductAttention()
    assert_close(layer(query=query, value=value), layer(query=query, value=value, key=value))


def test_widths_must_agree():
    with pytest.raises(ValueError, match="same width"):
        DotProductAttention()(query=normal(B, T, D), value=normal(B, S, D + 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_fully_masked_row_has_uniform_weights_without_nan(dtype):
    scores = ops.cast(normal(B, T, S) * 50, dtype)
    weights = to_numpy(ops.cast(masked_softmax(scores, np.zeros((1, 1, S), bool)), "float32"))
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=2e-2)
    np.testing.assert_allclose(weights, 1 / S, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_hidden_keys_get_exactly_zero(dtype):
    mask = np.array([True, True, False, True, False])
    weights = masked_softmax(ops.cast(normal(B, T, S) * 10, dtype), mask)
    assert (to_numpy(ops.cast(weights, "float32"))[..., ~mask] == 0).all()


@pytest.mark.filterwarnings("error:.*softmax:UserWarning")
def test_single_key_has_weight_one_without_warning():
    layer, one = MultiHeadAttention(2, 6), normal(2, 1, 6)
    layer(one)
    weights = layer.run(one, return_weights=True).weights
    for scores in (DotProductAttention()(query=one, value=one)[1], weights):
        assert_close(scores, np.ones(scores.shape), atol=0)


class TestMultiHead:
    heads, width = 3, 6

    def layer(self, **options):
        return MultiHeadAttention(num_heads=self.heads, hidden_dim=self.width, **options)

    def loops(self, layer, x, visible):
        """Computes Vaswani et al. 2017, section 3.2.2, head by head."""
        kernel, bias = (to_numpy(w) for w in layer.query_key_value.weights)
        query, key, value = np.split(x @ kernel + bias, 3, axis=-1)
        size = self.width // self.heads
        outputs, weights = [], []
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            scores = np.einsum("btd,bsd->bts", query[..., part], key[..., part]) / np.sqrt(size)
            context, of_head = attend(scores, value[..., part], visible)
            outputs.append(context)
            weights.append(of_head)
        kernel, bias = (to_numpy(w) for w in layer.output_projection.weights)
        return np.concatenate(outputs, -1) @ kernel + bias, np.stack(weights, 1)

    def test_agrees_with_loops_on_both_paths(self):
        x = normal(B, S, 5)
        padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
        layer = self.layer()
        fused = layer(query=x, padding_mask=padding)
        explicit, weights, _ = layer.run(query=x, padding_mask=padding, return_weights=True)
        expected = self.loops(layer, x, np.broadcast_to(padding[:, None], (B, S, S)))
        assert_close(fused, expected[0])
        assert_close((explicit, weights), expected)

    def test_causal_agrees_with_loops(self):
        x = normal(B, S, 5)
        layer = self.layer()
        visible = np.broadcast_to(np.tril(np.ones((S, S), bool)), (B, S, S))
        fused = layer(query=x, causal=True)
        assert_close(fused, self.loops(layer, x, visible)[0])

    def test_causal_outputs_do_not_depend_on_later_tokens(self):
        x = normal(1, S, 5)
        other = x.copy()
        other[0, 3:] += 1
        layer = self.layer()
        first, second = layer(query=x, causal=True), layer(query=other, causal=True)
        assert_close(to_numpy(first)[:, :3], to_numpy(second)[:, :3])

    @pytest.mark.split_to("torch")
    @pytest.mark.skipif(keras.backend.backend() != "torch", reason="only torch's kernel drops")
    def test_dropout_of_the_kernel_has_the_mean_of_the_explicit_path(self, monkeypatch):
        module = "keras_plm.layers.multi_head_attention"
        monkeypatch.setattr(f"{module}.kernel_drops", lambda query, seed: True)
        monkeypatch.setattr(f"{module}.fused_is_slow", lambda *_: False)
        layer, rows = self.layer(dropout=0.3), 4000
        x, padding = np.repeat(normal(1, S, 5), rows, axis=0), np.arange(S)[None] < 4
        plain = to_numpy(layer(query=x[:1], padding_mask=padding))
        padding = np.repeat(padding, rows, axis=0)
        dropped = to_numpy(layer(query=x, padding_mask=padding, training=True))
        deviation = dropped.std(axis=0)
        assert deviation.min() > 0.01
        # The mean of the rows is within six standard errors.
        assert (np.abs(dropped.mean(axis=0) - plain[0]) < 6 * deviation / rows**0.5).all()
        monkeypatch.undo()
        explicit = to_numpy(layer(query=x, padding_mask=padding, training=True))
        np.testing.assert_allclose(explicit.std(axis=0), deviation, rtol=0.15)

    def test_dropout_is_active_in_training_only(self):
        x = normal(B, S, 5)
        layer = self.layer(dropout=0.5)
        assert_close(layer(query=x), layer(query=x, training=False), atol=0)
        first, second = layer(query=x, training=True), layer(query=x, training=True)
        assert np.abs(to_numpy(first) - to_numpy(second)).max() > 1e-3

    def test_training_without_dropout_changes_nothing(self):
        x = normal(B, S, 5)
        layer = self.layer()
        assert_close(layer(query=x, training=True), layer(query=x, training=False))

    @pytest.mark.compiles
    def test_cross_attention_reads_another_sequence(self):
        query, value = normal(B, T, 5), normal(B, S, 4, seed=1)
        padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
        layer = self.layer()
        output = layer(query=query, value=value, padding_mask=padding)
        again, weights, _ = layer.run(
            query=query, value=value, padding_mask=padding, return_weights=True
        )
        assert tuple(output.shape) == (B, T, self.width)
        assert_close(again, output)
        assert (to_numpy(weights)[0, :, :, 3:] == 0).all()
        assert_close(to_numpy(weights).sum(-1), np.ones((B, self.heads, T)))

    def test_explicit_value_equals_self_attention(self):
        x = normal(B, S, self.width)
        layer = self.layer()
        assert_close(layer(query=x), layer(query=x, value=x.copy()))

    def test_cache_equals_no_cache(self):
        x = normal(B, S, 5)
        layer = self.layer()
        whole = layer(query=x, causal=True)
        cache = np.zeros((B, 2, S, self.heads, self.width // self.heads), "float32")
        steps = []
        for t in range(S):
            step, _, cache = layer.run(query=x[:, t : t + 1], cache=cache, cache_index=t)
            steps.append(to_numpy(step))
        assert_close(np.concatenate(steps, 1), whole)

    def test_cached_source_equals_cross_attention_without_cache(self):
        query, value = normal(B, T, 5), normal(B, S, 4, seed=1)
        padding = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
        layer = self.layer()
        whole = layer(query=query, value=value, padding_mask=padding)
        cache = layer.keys_and_values(ops.convert_to_tensor(value))
        assert tuple(cache.shape) == (B, 2, S, self.heads, self.width // self.heads)
        for t in range(T):
            step = layer.run(query=query[:, t : t + 1], cache=cache, padding_mask=padding)
            assert step.cache is None
            assert_close(step.output, to_numpy(whole)[:, t : t + 1])

    def test_without_biases_there_are_only_kernels(self):
        layer = self.layer(use_bias=False)
        layer(query=normal(B, T, 5))
        assert [w.name for w in layer.weights] == ["kernel", "kernel"]

    @pytest.mark.backend_neutral
    def test_invalid_cache_arguments_are_refused(self):
        layer = self.layer()
        for method in (layer.keys_and_values, layer.run):
            with pytest.raises(ValueError, match="that is not built"):
                method(normal(B, S, 5))
        layer(query=normal(B, S, 5))
        with pytest.raises(ValueError, match="a place in `cache`"):
            layer.run(query=normal(B, S, 5), cache_index=0)
        with pytest.raises(ValueError, match="Received: a layer of self-attention"):
            layer.keys_and_values(normal(B, S, 5))
        cache = np.zeros((B, 2, S, layer.num_heads, layer.hidden_dim // layer.num_heads))
        for index in (-1, S):
            with pytest.raises(ValueError, match=f"cache_index={index}"):
                layer.run(query=normal(B, 1, 5), cache=cache, cache_index=index)

    @pytest.mark.backend_neutral
    def test_heads_must_divide_the_width(self):
        with pytest.raises(ValueError, match="must divide `hidden_dim`"):
            MultiHeadAttention(num_heads=5, hidden_dim=64)

    @pytest.mark.quick_cases("False")
    @pytest.mark.parametrize("cross", [False, True])
    def test_passes_the_checks(self, cross, tmp_path):
        inputs = {"query": normal(B, T, 5)}
        if cross:
            inputs["value"] = normal(B, S, 4, seed=1)
        check_layer(self.layer(), inputs, tmp_path, learns=False)

    @pytest.mark.compiles("mixed_float16")
    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_half_precision_is_near_float32(self, policy):
        x = normal(B, S, 8)
        exact = self.layer()
        expected = exact(query=x)
        half = self.layer(dtype=policy)
        actual = half(query=x)
        half.set_weights(exact.get_weights())
        actual = half(query=x)
        assert keras.backend.standardize_dtype(actual.dtype) == policy.removeprefix("mixed_")
        assert_close(ops.cast(actual, "float32"), expected, atol=3e-2)
