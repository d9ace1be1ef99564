"""Embeddings, dropout, the Transformer block and the stack of blocks."""

import keras
import numpy as np
import pytest
from scipy.special import erf

from keras_plm.layers import (
    Dropout,
    FeedForward,
    PositionEmbedding,
    SinePositionEmbedding,
    TokenEmbedding,
    TransformerBlock,
    TransformerStack,
)
from keras_plm.layers.transformer_block import transformer_block
from keras_plm.training.resume import set_seed
from tests.helpers.checks import assert_close, check_layer, to_numpy

pytestmark = pytest.mark.each_backend

B, T, D = 2, 5, 6


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_token_embedding_reads_and_scores_with_one_table(tmp_path):
    ids = np.array([[3, 1, 4], [1, 5, 9]], "int32")
    layer = TokenEmbedding(vocabulary_size=11, hidden_dim=D)
    model = check_layer(layer, {"inputs": ids}, tmp_path)
    table = to_numpy(layer.embeddings)
    vectors = model({"inputs": ids})
    assert_close(vectors, table[ids])
    assert_close(layer(vectors, reverse=True), table[ids] @ table.T)
    assert len(layer.weights) == 1


def test_adagrad_squares_summed_gradient_of_a_repeated_token():
    """AdaGrad must square the sum of a token's gradients; Keras on TensorFlow squares each one."""
    ids = np.array([[3, 1, 3, 3]], "int32")
    layer = TokenEmbedding(vocabulary_size=5, hidden_dim=D)
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Model(inputs, layer(inputs))
    before, targets = to_numpy(layer.embeddings).copy(), normal(1, 4, D)
    model.compile(keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5), loss="mse")
    model.train_on_batch(ids, targets)
    expected = before.copy()
    for token in (1, 3):
        places = ids[0] == token
        gradient = (2 * (before[ids[0]] - targets[0]) / (4 * D))[places].sum(axis=0)
        expected[token] -= 0.1 * gradient / np.sqrt(0.5 + gradient**2)
    assert_close(layer.embeddings, expected)


def test_position_embedding_starts_at_given_position(tmp_path):
    layer = PositionEmbedding(max_sequence_length=7)
    check_layer(layer, {"inputs": normal(B, T, D)}, tmp_path, learns=False)
    table = to_numpy(layer.embeddings)
    assert_close(layer(normal(B, T, D)), table[:T])
    assert_close(layer(normal(B, 1, D), start=4), table[4:5])


def test_position_embedding_refuses_longer_inputs():
    with pytest.raises(ValueError, match="at most 7 positions"):
        PositionEmbedding(max_sequence_length=7)(normal(B, 8, D))


@pytest.mark.full
def test_sine_positions_agree_with_the_formula_at_any_length(tmp_path):
    # Vaswani et al. 2017, section 3.5.
    layer = SinePositionEmbedding()
    check_layer(layer, {"inputs": normal(B, T, D)}, tmp_path)
    for length, start in ((T, 0), (1, 4), (700, 0), (3, 5000)):
        expected = np.zeros((length, D))
        for row in range(length):
            for i in range(D // 2):
                angle = (start + row) / 10000 ** (2 * i / D)
                expected[row, 2 * i] = np.sin(angle)
                expected[row, 2 * i + 1] = np.cos(angle)
        assert_close(layer(normal(B, length, D), start=start), expected, atol=5e-4)
    with pytest.raises(ValueError, match="must be even"):
        SinePositionEmbedding()(normal(B, T, 5))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_has_the_given_rate_and_preserves_the_mean(rate, dtype):
    x = keras.ops.ones((200, 500), dtype=dtype)
    dropped = to_numpy(keras.ops.cast(Dropout(rate, dtype=dtype)(x, training=True), "float32"))
    kept = dropped != 0
    assert abs(kept.mean() - (1 - rate)) < 0.01  # 5 standard deviations at 100,000 draws
    np.testing.assert_allclose(dropped[kept], 1 / (1 - rate), rtol=5e-3)
    # Neighbours are independent, although four elements share one word of random bits.
    together = (kept[:, ::4] & kept[:, 1::4]).mean()
    assert abs(together - (1 - rate) ** 2) < 0.015


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dropout_in_half_precision_rounds_neither_rate_nor_scale(dtype):
    rate = 0.01
    x = keras.ops.cast(np.random.default_rng(0).uniform(1, 2, (200, 500)), dtype)
    dropped = to_numpy(keras.ops.cast(Dropout(rate, dtype=dtype)(x, training=True), "float32"))
    kept = dropped != 0
    assert abs((1 - kept.mean()) - rate) < 0.002  # 6 standard deviations
    exact = to_numpy(keras.ops.cast(x, "float32"))[kept] / (1 - rate)
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]  # of one rounding
    assert np.abs(dropped[kept] / exact - 1).max() < unit + 2e-5  # the rate has 16 bits


def test_dropout_differs_between_calls_and_follows_the_seed():
    from keras_plm.training.resume import set_seed

    x = np.ones((9, 9), "float32")
    draws = []
    for _ in range(2):
        set_seed(5)
        layer = Dropout(0.5)
        draws.append([to_numpy(layer(x, training=True)) for _ in range(2)])
    assert_close(draws[0], draws[1], atol=0)
    assert np.abs(draws[0][0] - draws[0][1]).max() > 0


def test_dropout_gradient_is_zero_at_dropped_elements(tmp_path):
    # With one weight per output and one row, exactly the weights of kept outputs move.
    inputs = keras.Input((1,))
    scaled = keras.layers.Dense(500, use_bias=False, kernel_initializer="ones")(inputs)
    model = keras.Model(inputs, Dropout(0.5)(scaled))
    model.compile(keras.optimizers.SGD(500.0), loss="mse")
    model.fit(np.ones((1, 1)), np.zeros((1, 500)), verbose=0)
    (kernel,) = model.get_weights()
    # d mean((2 w x)^2) / dw = 8 w x^2 / 500 where kept
    values, counts = np.unique(np.round(kernel, 3), return_counts=True)
    assert values.tolist() == [-7.0, 1.0] and counts.min() > 150


@pytest.mark.quick_cases("gelu_erf")
@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh", "relu"])
def test_feed_forward_agrees_with_its_formula(activation, tmp_path):
    formulas = {
        "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
    }
    x = normal(B, T, D)
    layer = FeedForward(intermediate_dim=11, activation=activation)
    model = check_layer(layer, {"inputs": x}, tmp_path)
    kernel, bias, kernel_2, bias_2 = (to_numpy(w) for w in layer.weights)
    expected = formulas[activation](x @ kernel + bias) @ kernel_2 + bias_2
    assert_close(model({"inputs": x}), expected)


@pytest.mark.backend_neutral
def test_unknown_activation_is_named():
    with pytest.raises(ValueError, match="gelu_tanh.*Received: 'swish'"):
        FeedForward(8, activation="swish")


def layer_norm(x, layer):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    gamma, beta = (to_numpy(w) for w in layer.weights)
    return (x - mean) / np.sqrt(variance + layer.epsilon) * gamma + beta


@pytest.mark.parametrize("pre_norm", [False, True])
def test_pre_norm_and_post_norm_equal_their_formula(pre_norm):
    x = normal(B, T, D)
    block = TransformerBlock(2, D, 11, pre_norm=pre_norm)
    actual = block(x)
    for norm in (block.attention_norm, block.feed_forward_norm):
        norm.gamma.assign(normal(D, seed=4))
    actual = block(x)

    def attention(x):
        return to_numpy(block.attention(query=x.astype("float32")))

    def feed_forward(x):
        return to_numpy(block.feed_forward(x.astype("float32")))

    if pre_norm:
        x = x + attention(layer_norm(x, block.attention_norm))
        expected = x + feed_forward(layer_norm(x, block.feed_forward_norm))
    else:
        x = layer_norm(x + attention(x), block.attention_norm)
        expected = layer_norm(x + feed_forward(x), block.feed_forward_norm)
    assert_close(actual, expected)


def loop_norm(x, weights, epsilon):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def loop_dense(x, weights):
    return x @ weights["kernel"] + weights["bias"]


def loop_attention(weights, query, value, visible, num_heads):
    """Computes Vaswani et al. 2017, section 3.2, step by step and head by head."""
    if "query_key_value" in weights:
        q, k, v = np.split(loop_dense(query, weights["query_key_value"]), 3, axis=-1)
    else:
        q, k, v = (
            loop_dense(x, weights[name])
            for name, x in (("query", query), ("key", value), ("value", value))
        )
    size = q.shape[-1] // num_heads
    context = np.zeros_like(q)
    for b, t in np.ndindex(*q.shape[:2]):
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = k[b, :, part] @ q[b, t, part] / np.sqrt(size)
            shares = np.exp(scores - scores.max()) * visible[b, t]
            context[b, t, part] = shares @ v[b, :, part] / shares.sum()
    return loop_dense(context, weights["output"])


def loop_block(weights, x, visible, source, source_visible, pre_norm, num_heads, epsilon):
    parts = [
        ("attention", lambda x: loop_attention(weights["attention"], x, x, visible, num_heads))
    ]
    if source is not None:
        cross = weights["cross_attention"]
        parts.append(
            ("cross", lambda x: loop_attention(cross, x, source, source_visible, num_heads))
        )

    def feed_forward(x):
        hidden = loop_dense(x, weights["feed_forward"]["intermediate"])
        return loop_dense(np.maximum(hidden, 0), weights["feed_forward"]["output"])

    for name, part in [*parts, ("feed_forward", feed_forward)]:
        norm = weights[f"{name}_norm"]
        if pre_norm:
            x = x + part(loop_norm(x, norm, epsilon))
        else:
            x = loop_norm(x + part(x), norm, epsilon)
    return x


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_block_function_equals_loops_and_layer(pre_norm, cross):
    """The function agrees with NumPy loops and with the layer that holds its weights."""
    options = {"pre_norm": pre_norm, "activation": "relu", "norm_epsilon": 1e-3}
    block = TransformerBlock(2, D, 11, cross_attention=cross, **options)
    x, source = normal(B, T, D), normal(B, 7, 8, seed=1) if cross else None
    mask, source_mask = np.arange(T) < np.array([[3], [T]]), np.arange(7) < np.array([[7], [4]])
    block.build(x.shape, None if source is None else source.shape)
    for i, weight in enumerate(block.weights):
        weight.assign(normal(*weight.shape, seed=10 + i))
    visible = np.tril(np.ones((T, T), bool)) & mask[:, None]
    source_visible = np.repeat(source_mask[:, None], T, axis=1)

    arrays = keras.tree.map_structure(to_numpy, block.arrays())
    wanted = loop_block(arrays, x, visible, source, source_visible, pre_norm, 2, 1e-3)
    given = [None if a is None else keras.ops.convert_to_tensor(a) for a in (x, visible, source)]
    given.append(keras.ops.convert_to_tensor(source_visible) if cross else None)
    output = transformer_block(block.arrays(), *given, num_heads=2, **options)
    assert_close(output.sequence, wanted, atol=1e-4)
    assert output[1:] == (None, None, None)
    options = {"source": source, "source_mask": source_mask} if cross else {}
    assert_close(block(x, padding_mask=mask, causal=True, **options), wanted, atol=1e-4)


def test_block_function_drops_the_same_elements_as_layer():
    """With the seeds of its generators, the layer drops the same elements as the function."""
    block, x = TransformerBlock(2, D, 11, dropout=0.3), keras.ops.convert_to_tensor(normal(B, T, D))
    block(x)
    set_seed(1)
    drops = {
        "attention": block.attention_drop,
        "attention_weights": block.attention.weights_dropout,
        "feed_forward": block.feed_forward_drop,
    }
    states = [drop.seed_generator.state for drop in drops.values()]
    before = [to_numpy(state).copy() for state in states]
    wanted = to_numpy(block(x, training=True))
    for state, value in zip(states, before, strict=True):
        state.assign(value)
    set_seed(1)  # torch draws from its global generator
    seeds = {name: drop.next_seed() for name, drop in drops.items()}
    rates = {"dropout_rate": 0.3, "attention_dropout": 0.3, "training": True}
    found = transformer_block(block.arrays(), x, num_heads=2, seeds=seeds, **rates).sequence
    assert_close(found, wanted, atol=1e-6)
    assert np.abs(wanted - to_numpy(block(x))).max() > 1e-2


def test_block_function_runs_in_jax_scan():
    """Stacks each weight of L blocks in one array, so that a compiler sees one body for all."""
    if keras.backend.backend() != "jax":
        pytest.skip("`jax.lax.scan`")
    import jax

    stack, x = TransformerStack(3, 2, D, 11), normal(B, T, D)
    wanted = stack(x)[-1]
    arrays = jax.tree.map(
        lambda *rows: jax.numpy.stack(rows), *(block.arrays() for block in stack.blocks)
    )

    def body(x, weights):
        return transformer_block(weights, x, num_heads=2).sequence, None

    assert_close(jax.lax.scan(body, jax.numpy.asarray(x), arrays)[0], wanted)


def test_block_calls_a_quantized_layer():
    block, x = TransformerBlock(2, D, 11), normal(B, T, D)
    wanted = to_numpy(block(x))
    kernel = block.feed_forward.intermediate
    kernel.quantize("int8", type_check=False)
    assert block.arrays()["feed_forward"]["intermediate"] is kernel
    assert_close(block(x), wanted, atol=0.1)
    assert np.abs(to_numpy(block(x)) - wanted).max() > 0


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("pre_norm", [False, True])
def test_block_and_stack_pass_the_checks(pre_norm, tmp_path):
    inputs = {"inputs": normal(B, T, D), "padding_mask": np.ones((B, T), bool)}
    options = {"num_heads": 2, "hidden_dim": D, "intermediate_dim": 11, "pre_norm": pre_norm}
    check_layer(TransformerBlock(**options), inputs, tmp_path, learns=False)
    check_layer(TransformerStack(num_layers=3, **options), inputs, tmp_path, learns=False)


def test_stack_returns_every_layer_and_normalises_the_last():
    x = normal(B, T, D)
    stack = TransformerStack(3, 2, D, 11, pre_norm=True)
    layers = stack(x)
    assert len(layers) == 4
    assert_close(layers[0], x, atol=0)
    last = stack.blocks[-1](layers[-2])
    assert_close(layers[-1], layer_norm(to_numpy(last), stack.final_norm))


@pytest.mark.parametrize("pre_norm", [False, True])
def test_stack_with_cache_equals_without(pre_norm):
    x = normal(B, T, D)
    stack = TransformerStack(2, 2, D, 11, pre_norm=pre_norm)
    whole = stack(x, causal=True)
    weights, source_weights = stack.attention_weights(x, causal=True)
    assert len(weights) == 2 and tuple(weights[0].shape) == (B, 2, T, T)
    assert source_weights == [None, None]
    cache = stack.initial_cache(B, T)
    for t in range(T):
        layers, cache = stack.decode(x[:, t : t + 1], cache, cache_index=t)
        assert_close(to_numpy(layers[-1])[:, 0], to_numpy(whole[-1])[:, t])


@pytest.mark.parametrize("pre_norm", [False, True])
def test_stack_with_source_cache_equals_without(pre_norm):
    x, source = normal(B, T, D), normal(B, 7, 8, seed=1)
    mask = np.arange(7) < np.array([[4], [7]])
    stack = TransformerStack(2, 2, D, 11, cross_attention=True, pre_norm=pre_norm)
    options = {"source": source, "source_mask": mask, "causal": True}
    whole = stack(x, **options)
    weights, cross = stack.attention_weights(x, **options)
    assert tuple(weights[1].shape) == (B, 2, T, T) and tuple(cross[1].shape) == (B, 2, T, 7)
    assert (to_numpy(cross[0])[0, :, :, 4:] == 0).all()
    cache = stack.initial_cache(B, T)
    source_cache = stack.read_source(keras.ops.convert_to_tensor(source))
    for t in range(T):
        layers, cache = stack.decode(
            x[:, t : t + 1],
            cache,
            cache_index=t,
            source_cache=source_cache,
            source_mask=mask,
        )
        assert_close(to_numpy(layers[-1])[:, 0], to_numpy(whole[-1])[:, t])


@pytest.mark.parametrize(
    "wrong, match",
    [
        ({"source_cache": None}, "needs a `source`"),
        ({"cache_index": 4}, "must have room"),
        *(
            ({"cache_index": keras.ops.convert_to_tensor(i, dtype="int32")}, "must have room")
            for i in ((4, -1) if keras.backend.backend() == "torch" else ())
        ),
        ({"padding_mask": np.ones((B, 5), bool)}, "must have the shape"),
        ({"source_mask": np.ones((B, 8), bool)}, "must have the shape"),
    ],
)
def test_decoding_checks_its_arguments(wrong, match):
    stack = TransformerStack(1, 2, D, 11, cross_attention=True)
    stack(normal(B, T, D), source=normal(B, 7, D))
    options = {"source_cache": stack.read_source(keras.ops.convert_to_tensor(normal(B, 7, D)))}
    options |= {"cache_index": 0, **wrong}
    with pytest.raises(ValueError, match=match):
        stack.decode(normal(B, 1, D), stack.initial_cache(B, 4), **options)


def test_cross_attention_precedes_the_feed_forward_part():
    x, source = normal(B, T, D), normal(B, 7, D, seed=1)
    block = TransformerBlock(2, D, 11, cross_attention=True)
    actual = block(x, source=source)
    x = layer_norm(x + to_numpy(block.attention(query=x)), block.attention_norm)
    asked = to_numpy(block.cross_attention(query=x.astype("float32"), value=source))
    x = layer_norm(x + asked, block.cross_norm)
    changed = to_numpy(block.feed_forward(x.astype("float32")))
    assert_close(actual, layer_norm(x + changed, block.feed_forward_norm))


@pytest.mark.backend_neutral
def test_source_and_cross_attention_require_each_other():
    with pytest.raises(ValueError, match="cross_attention=True, 0 sources"):
        TransformerBlock(2, D, 11, cross_attention=True)(normal(B, T, D))
    with pytest.raises(ValueError, match="cross_attention=False, 1 sources"):
        TransformerBlock(2, D, 11)(normal(B, T, D), source=normal(B, T, D))


@pytest.mark.backend_neutral
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("cross", [False, True])
def test_symbolic_outputs_match_shapes_and_dtypes_of_a_call(cross, dtype):
    x, source = normal(B, T, D), normal(B, T + 2, D)
    given = {"padding_mask": np.ones((B, T), bool), "attention_mask": np.ones((T, T), bool)}
    given |= {"source": source, "source_mask": np.ones((B, T + 2), bool)} if cross else {}
    symbols = {n: keras.KerasTensor(v.shape, keras.backend.standardize_dtype(v.dtype))
               for n, v in given.items()}  # fmt: skip
    stack = TransformerStack(2, 2, D, 3, cross_attention=cross, pre_norm=True, dtype=dtype)
    found, wanted = stack(keras.KerasTensor(x.shape), **symbols), stack(x, **given)
    for symbol, real in zip(found, wanted, strict=True):
        assert tuple(symbol.shape) == tuple(real.shape)
        assert symbol.dtype == keras.backend.standardize_dtype(real.dtype)
    long = keras.KerasTensor((B, T + 1), "bool")
    with pytest.raises(ValueError, match="padding_mask"):
        stack(keras.KerasTensor(x.shape), **symbols | {"padding_mask": long})
    if cross:
        with pytest.raises(ValueError, match="padding_mask"):
            stack(keras.KerasTensor(x.shape), **symbols | {"source_mask": long})


def test_block_refuses_another_width():
    with pytest.raises(ValueError, match="as wide as `hidden_dim`"):
        TransformerBlock(2, D, 11)(normal(B, T, D + 2))


@pytest.mark.full
def test_training_with_remat_equals_training_without():
    def learned(remat):
        set_seed(0)
        inputs = keras.Input((5, 8))
        stack = TransformerStack(2, 2, 8, 16, dropout=0.2)
        stack.remat = remat
        model = keras.Model(inputs, stack(inputs)[-1])
        model.compile(keras.optimizers.SGD(0.3), loss="mse")
        rng = np.random.default_rng(0)
        x, y = (rng.normal(size=(8, 5, 8)).astype("float32") for _ in "xy")
        losses = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
        return losses, [to_numpy(weight) for weight in model.weights]

    (losses, weights), (again, same) = learned(False), learned(True)
    assert_close(again, losses)
    for one, other in zip(weights, same, strict=True):
        assert_close(other, one)
    assert losses[-1] < losses[0]


def test_dtype_policy_map_is_restored_from_saved_model(tmp_path):
    """A `DTypePolicyMap` gives some sublayers another precision, also in a saved model."""
    half, full = map(keras.dtype_policies.get, ("mixed_bfloat16", "float32"))
    paths = ["block/feed_forward/intermediate", "block/feed_forward/output"]
    policies = keras.dtype_policies.DTypePolicyMap(full, dict.fromkeys(paths, half))
    block = TransformerBlock(2, 8, 16, dtype=policies, name="block")
    inputs = keras.Input((3, 8))
    keras.Model(inputs, block(inputs)).save(tmp_path / "block.keras")
    loaded = keras.saving.load_model(tmp_path / "block.keras").get_layer("block")
    for found in (block, loaded):
        assert found.feed_forward.intermediate.compute_dtype == "bfloat16"
        assert found.attention.output_projection.compute_dtype == "float32"
    assert loaded.get_config() == block.get_config()
