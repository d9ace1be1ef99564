"""The neural probabilistic language model: formula, contexts, batches, scores, training."""

import math

import keras
import numpy as np
import pytest

from keras_plm.models.nnlm import BLOCK, NNLM, contexts
from tests.helpers.checks import assert_close, check_learns, check_reloads, to_numpy

V, B, N, M, H = 13, 5, 4, 3, 7  # words, rows, order, widths of vectors and hidden layer
END = 2

MODELS = {
    "direct": lambda **o: NNLM(V, N, M, H, end_id=END, **o),
    "hidden": lambda **o: NNLM(V, N, M, H, direct=False, end_id=END, **o),
    "linear": lambda **o: NNLM(V, N, M, hidden_dim=0, end_id=END, **o),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def some_inputs(seed=0):
    rng = np.random.default_rng(seed)
    return {"context_ids": rng.integers(0, V, (B, N - 1)).astype("int32")}


def some_text(length=101, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(length) < 0.3, END, rng.integers(0, V, length)).astype("int32")


def make_loud(model, seed=0):
    """Sets weights and biases so that every word matters and all probabilities differ."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape).astype("float32"))


def weights_of(model, name):
    return [to_numpy(w).astype("float64") for w in model.get_layer(name).weights]


def test_logits_agree_with_the_formula(model):
    make_loud(model)
    inputs = some_inputs()
    (table,) = weights_of(model, "token_embedding")
    kernel, bias = weights_of(model, "output")
    width = (N - 1) * M
    direct = kernel[:width] if model.direct else np.zeros((width, V))
    expected = np.zeros((B, V))
    for row, context in enumerate(inputs["context_ids"]):
        x = [table[word][i] for word in context for i in range(M)]
        hidden = []
        if model.hidden_dim:
            matrix, shift = weights_of(model, "hidden")
            for j in range(H):
                total = shift[j] + sum(x[i] * matrix[i, j] for i in range(width))
                hidden.append(math.tanh(total))
        upper = kernel[width if model.direct else 0 :]
        for word in range(V):
            expected[row, word] = bias[word]
            for i in range(width):
                expected[row, word] += x[i] * direct[i, word]
            for j, unit in enumerate(hidden):
                expected[row, word] += unit * upper[j, word]
    logits = model(inputs)
    assert tuple(logits.shape) == (B, V)
    assert_close(logits, expected)


@pytest.mark.quick_cases("hidden")
def test_model_saves_reloads_and_learns(model, tmp_path):
    inputs = some_inputs()
    loaded = check_reloads(model, inputs, tmp_path)
    text = some_text()
    assert_close(loaded.log_prob(text), model.log_prob(text), atol=1e-6)
    targets = np.random.default_rng(0).normal(size=(B, V))
    learning = keras.Model(model.input, model.output)
    check_learns(learning, inputs, targets)
    frozen = type(model).from_config({**model.get_config(), "trainable": False})
    assert not frozen.trainable_weights


@pytest.mark.full
def test_a_compiled_model_reloads_with_its_loss(tmp_path):
    model = MODELS["direct"]()
    model.compile()
    batches = model.batches(some_text(), batch_size=10)
    model.fit(batches, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    evaluation = model.batches(some_text(), batch_size=10, training=False)
    assert loaded.evaluate(evaluation, verbose=0) == pytest.approx(
        model.evaluate(evaluation, verbose=0), rel=1e-5
    )


def test_half_precision_model_returns_float32_logits():
    model = MODELS["direct"](dtype="mixed_bfloat16")
    assert model.get_config()["dtype"] == "mixed_bfloat16"
    logits = model(some_inputs())
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert model.get_layer("output").compute_dtype == "bfloat16"
    assert model.distribution([3, 4]).sum() == pytest.approx(1)


def test_dropout_drops_in_training_only():
    model = MODELS["direct"](dropout=0.5)
    make_loud(model)
    inputs = some_inputs()
    assert_close(model(inputs), model(inputs, training=False), atol=0)
    assert np.abs(to_numpy(model(inputs, training=True)) - to_numpy(model(inputs))).max() > 0.1


def contexts_by_loop(text, order, end_id):
    rows = []
    for position in range(len(text)):
        row = []
        for back in range(1, order):
            place = position - back
            over = place < 0 or end_id in text[place:position]
            row.insert(0, end_id if over else text[place])
        rows.append(row)
    return rows


@pytest.mark.backend_neutral
@pytest.mark.parametrize("order", [2, 3, 4, 7])
def test_contexts_stop_at_sentences(order):
    text = some_text()
    found = contexts(text, order, END)
    assert found.dtype == np.int32 and found.shape == (len(text), order - 1)
    assert found.tolist() == contexts_by_loop(text.tolist(), order, END)
    # The text does not contain this end token, so it is one sentence.
    assert contexts(text, order, V).tolist() == contexts_by_loop(text.tolist(), order, V)


@pytest.mark.backend_neutral
def test_contexts_do_not_depend_on_block_borders():
    text = np.resize(some_text(997).astype("uint16"), BLOCK + 1009)
    found = contexts(text, 4, END)
    tail = slice(BLOCK - 50, BLOCK + 50)
    near = text[BLOCK - 100 : BLOCK + 50].tolist()
    assert found[tail].tolist() == contexts_by_loop(near, 4, END)[50:]
    assert contexts([], 4, END).shape == (0, 3)


@pytest.mark.backend_neutral
def test_batches_contain_every_word_once_per_epoch():
    model = MODELS["direct"]()
    text = some_text(103)
    expected = sorted(zip(contexts(text, N, END).tolist(), text.tolist(), strict=True))
    orders = []
    for step in (0, 11):  # two epochs
        batches = model.batches(text, batch_size=10, seed=3)
        batches.step = step
        assert len(batches) == 11
        found = []
        for x, y, weights in batches:
            assert x["context_ids"].shape == (10, N - 1) and y.shape == (10,)
            assert x["context_ids"].dtype == np.int32 and y.dtype == np.int32
            real = weights > 0
            found += zip(x["context_ids"][real].tolist(), y[real].tolist(), strict=True)
        assert sorted(found) == expected
        again = model.batches(text, batch_size=10, seed=3)
        again.step = step
        for (x, y, _), (other_x, other_y, _) in zip(batches, again, strict=True):
            assert np.array_equal(x["context_ids"], other_x["context_ids"])
            assert np.array_equal(y, other_y)
        orders.append(found)
    other = model.batches(text, batch_size=10, seed=4)
    assert orders[0] != orders[1]
    assert not np.array_equal(other[0][1], model.batches(text, batch_size=10, seed=3)[0][1])
    still = model.batches(text, batch_size=10, training=False)
    assert np.concatenate([y for _, y, _ in still])[: len(text)].tolist() == text.tolist()


def test_log_prob_agrees_with_distribution(model):
    make_loud(model)
    text = some_text(17)
    scores = model.log_prob(text)
    assert scores.shape == (17,) and scores.dtype == np.float64
    for position, word in enumerate(text):
        shares = model.distribution(text[:position])
        assert shares.shape == (V,) and shares.sum() == pytest.approx(1, abs=1e-9)
        assert math.log(shares[word]) == pytest.approx(scores[position], abs=1e-4)
    assert model.perplexity(text) == pytest.approx(math.exp(-scores.mean()))
    assert_close(model.distribution(), model.distribution([5, END]), atol=0)
    assert_close(model.distribution([3, 4, 5]), model.distribution([7, 8, 3, 4, 5]), atol=0)


@pytest.mark.compiles
def test_log_prob_does_not_depend_on_the_batches(model):
    make_loud(model)
    text = some_text(101)
    scores = model.log_prob(text)
    for batch_size in (1, 7, 101, 128):
        assert_close(model.log_prob(text, batch_size=batch_size), scores, atol=1e-4)
    assert_close(model.log_prob(text[:1]), scores[:1], atol=1e-4)
    # `evaluate` returns the same mean, including the padded last batch.
    model.compile()
    loss = model.evaluate(model.batches(text, batch_size=16, training=False), verbose=0)
    assert math.exp(loss) == pytest.approx(model.perplexity(text), rel=1e-4)


@pytest.mark.full
def test_perplexity_uses_current_weights_during_fit():
    model = MODELS["hidden"]()
    text = some_text()
    seen = [model.perplexity(text)]

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(model.perplexity(text))

    model.compile(keras.optimizers.Adam(0.05))
    model.fit(model.batches(text, batch_size=32), epochs=3, verbose=0, callbacks=[Look()])
    assert seen[0] > seen[1] > seen[2] > seen[3]
    assert model.perplexity(text) == pytest.approx(seen[-1], rel=1e-5)


def test_a_cyclic_text_is_learned():
    # Two previous words determine each word, one does not: 5 precedes both 6 and 8.
    text = np.array([4, 5, 6, 7, 5, 8, END] * 30, "int32")
    model = NNLM(V, order=3, embedding_dim=5, hidden_dim=7, end_id=END)
    model.compile(keras.optimizers.Adam(0.05))
    model.fit(model.batches(text, batch_size=30), epochs=10, verbose=0)
    assert model.perplexity(text) < 1.1
    assert model.generate(7) == [4, 5, 6, 7, 5, 8, END]
    assert model.generate(3, context=[4, 5]) == [6, 7, 5]


@pytest.mark.full
@pytest.mark.split_to("torch")
def test_generate_draws_from_the_distribution():
    model = MODELS["direct"]()
    make_loud(model)
    text = model.generate(20, context=[3], seed=5)
    assert 1 <= len(text) <= 20 and END not in text[:-1]
    assert model.generate(20, context=[3], seed=5) == text
    assert len({tuple(model.generate(20, context=[3], seed=seed)) for seed in range(9)}) > 1
    drawn = [model.generate(1, context=[3], seed=seed)[0] for seed in range(300)]
    shares = np.bincount(drawn, minlength=V) / 300
    assert np.abs(shares - model.distribution([3])).max() < 0.1
    best = int(np.argmax(model.distribution([3])))
    cold = [model.generate(1, context=[3], seed=seed, temperature=1e-3)[0] for seed in range(5)]
    assert cold == [best] * 5
    assert model.generate(0) == []


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 1}, "`order` must be 2 or more.*Received: order=1"),
        ({"embedding_dim": 0}, "`embedding_dim` must be 1 or more.*embedding_dim=0"),
        ({"hidden_dim": -1}, "`hidden_dim` 0 or more.*hidden_dim=-1"),
        ({"hidden_dim": 0, "direct": False}, "needs the direct connections.*direct=False"),
        ({"end_id": V}, f"`end_id` must be one of.*end_id={V}"),
    ],
)
def test_bad_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NNLM(V, **options)


@pytest.mark.backend_neutral
def test_bad_texts_are_refused():
    model = MODELS["direct"]()
    with pytest.raises(ValueError, match="`order` must be 2 or more"):
        contexts([3, 4], 1, END)
    for method in (model.batches, model.log_prob, model.perplexity):
        with pytest.raises(ValueError, match=f"Received: ids from 3 to {V}, vocabulary_size={V}"):
            method([3, V])
        with pytest.raises(ValueError, match="Received: ids from -1 to 3"):
            method([3, -1])
        with pytest.raises(ValueError, match=r"at least one.*shape \(0,\)"):
            method([])
        with pytest.raises(ValueError, match=r"shape \(1, 2\)"):
            method([[3, 4]])
        with pytest.raises(ValueError, match="integers. Received: dtype=float64"):
            method([0.5])
    for method in (model.distribution, lambda context: model.generate(2, context)):
        with pytest.raises(ValueError, match=f"Received: ids from {V} to {V}"):
            method([V])
    with pytest.raises(ValueError, match="`batch_size` must be 1 or more. Received: batch_size=0"):
        model.log_prob([3], batch_size=0)
    with pytest.raises(ValueError, match="`length` must be 0 or more. Received: length=-1"):
        model.generate(-1)
    with pytest.raises(ValueError, match="`temperature` must be above 0. Received: temperature=0"):
        model.generate(2, temperature=0)
