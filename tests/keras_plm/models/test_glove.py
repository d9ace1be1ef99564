"""GloVe: counts compared with loops, the model and its steps with the formula, and batches."""

import math

import keras
import numpy as np
import pytest

from keras_plm.models.glove import GloVe, HalfSquaredError, PairScores, cooccurrences
from keras_plm.training.losses import MeanLoss
from tests.helpers.checks import assert_close, check_layer, check_learns, check_reloads, to_numpy

V, D, P = 11, 3, 7
END = 2


def some_text(length=211, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(length) < 0.15, END, rng.integers(0, V, length)).astype("int32")


def some_pairs(seed=0):
    """Returns pairs that share words; one pair has the same word twice."""
    rng = np.random.default_rng(seed)
    rows = np.array([3, 3, 5, 3, 9, 5, 4], "int32")
    columns = np.array([4, 7, 4, 3, 4, 7, 10], "int32")
    return rows, columns, rng.uniform(0.1, 30, P).astype("float32")


def counted(token_ids, window, symmetric, left_out, end_id=END):
    """Counts pairs by plain loops; returns a dict by (word, neighbour)."""
    table = {}
    sentences = [[]]
    for token in token_ids:
        if token == end_id:
            sentences.append([])
        elif token not in left_out:
            sentences[-1].append(int(token))
    for sentence in sentences:
        for t, word in enumerate(sentence):
            for s, other in enumerate(sentence):
                before, near = s < t, 0 < abs(s - t) <= window
                if near and (before or symmetric):
                    table[word, other] = table.get((word, other), 0) + 1 / abs(s - t)
    return table


@pytest.mark.backend_neutral
@pytest.mark.parametrize("left_out", [(0, 1), (), (3,)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("window", [1, 3, 29])
def test_counts_agree_with_loops_for_any_chunk_size(window, symmetric, left_out):
    text = some_text()
    expected = counted(text, window, symmetric, left_out)
    for chunk in (1, 50, 170, 600, 10**6):
        rows, columns, counts = cooccurrences(text, V, window, symmetric, END, left_out, chunk)
        assert (rows.dtype, columns.dtype, counts.dtype) == (np.int32, np.int32, np.float32)
        assert [*zip(rows, columns, strict=True)] == sorted(expected)
        np.testing.assert_allclose(counts, [expected[k] for k in sorted(expected)], rtol=1e-6)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("end_id", [0, V - 1])
def test_any_id_may_end_sentences(end_id):
    text = some_text().astype("uint8")
    rows, columns, counts = cooccurrences(text, V, 4, end_id=end_id, left_out=(end_id, 3), chunk=99)
    expected = counted(text, 4, True, (3,), end_id)
    assert [*zip(rows, columns, strict=True)] == sorted(expected)
    np.testing.assert_allclose(counts, [expected[k] for k in sorted(expected)], rtol=1e-6)


@pytest.mark.backend_neutral
def test_symmetric_counts_are_symmetric_and_sum_both_sides():
    text = some_text()
    tables = []
    for symmetric in (True, False):
        rows, columns, counts = cooccurrences(text, V, 5, symmetric)
        tables.append(np.zeros((V, V)))
        tables[-1][rows, columns] = counts
    assert_close(tables[0], tables[0].T, atol=0)
    assert_close(tables[0], tables[1] + tables[1].T)


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "1 or more. Received: 0, 100000"),
        ({"chunk": 0}, "1 or more. Received: 15, 0"),
        ({"token_ids": [3, V]}, r"must lie in \[0, .*Received: 3 to 11, vocabulary_size=11"),
        ({"token_ids": [-1, 3]}, "Received: -1 to 3"),
        ({"token_ids": [[3, 4]]}, r"flat array of one or more integers.*Received: shape \(1, 2\)"),
        ({"token_ids": [3.0, 4.0]}, "flat array of one or more integers.*dtype float64"),
        ({"token_ids": []}, r"of one or more integers. Received: shape \(0,\)"),
        ({"token_ids": [3, END, 4]}, "No two words of a text are neighbours. Received: 3 ids"),
        ({"token_ids": [3, 1, 0]}, "No two words of a text"),
        ({"end_id": V}, r"`end_id` must lie in .*Received: 11"),
        ({"left_out": [V]}, r"`left_out` must lie in \[0, .*Received: 11 to 11"),
    ],
)
def test_cooccurrences_refuses_bad_arguments(arguments, message):
    arguments = {"token_ids": [3, 4, 5], "vocabulary_size": V, **arguments}
    with pytest.raises(ValueError, match=message):
        cooccurrences(**arguments)


def make_loud(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape).astype("float32"))


def tables_of(model):
    """Returns w, w~, b and b~ in float64."""
    scores = model.pair_scores
    tables = (scores.words, scores.contexts, scores.word_biases, scores.context_biases)
    return [to_numpy(table).astype("float64") for table in tables]


def by_formula(w, c, b_w, b_c, i, j):
    return sum(w[i, d] * c[j, d] for d in range(D)) + b_w[i] + b_c[j]


def test_scores_and_vectors_agree_with_the_formula():
    model = GloVe(V, D)
    make_loud(model)
    rows, columns, _ = some_pairs()
    tables = tables_of(model)
    expected = [by_formula(*tables, i, j) for i, j in zip(rows, columns, strict=True)]
    assert_close(model({"rows": rows, "columns": columns}), np.array(expected))
    assert_close(model.vectors, tables[0] + tables[1])
    assert model.vectors.shape == (V, D)


@pytest.mark.quick_cases("7")
@pytest.mark.parametrize("batch_size", [P, 16, 3])
def test_training_steps_equal_adagrad_on_summed_batch_loss(batch_size):
    model = GloVe(V, D)
    make_loud(model)
    tables = tables_of(model)
    rows, columns, counts = some_pairs()
    x_max, alpha, rate, start = 10.0, 0.6, 0.3, 1.5
    data = model.batches(rows, columns, counts, x_max, alpha, batch_size, seed=4)
    steps = [[int(p) for p in data.rows(i) if p >= 0] for i in range(len(data))]
    optimizer = keras.optimizers.Adagrad(rate, initial_accumulator_value=start, epsilon=0.0)
    model.compile(optimizer)
    history = model.fit(data, verbose=0).history

    squares = [np.full(table.shape, start) for table in tables]
    costs, heaviness = [], []
    for step in steps:
        gradients = [np.zeros(table.shape) for table in tables]
        costs.append(0.0)
        for p in step:
            i, j, x = rows[p], columns[p], float(counts[p])
            f = (x / x_max) ** alpha if x < x_max else 1.0
            heaviness.append(f)
            difference = by_formula(*tables, i, j) - math.log(x)
            costs[-1] += f * difference**2 / 2
            for d in range(D):
                gradients[0][i, d] += f * difference * tables[1][j, d]
                gradients[1][j, d] += f * difference * tables[0][i, d]
            gradients[2][i] += f * difference
            gradients[3][j] += f * difference
        for table, gradient, square in zip(tables, gradients, squares, strict=True):
            square += gradient**2
            table -= rate * gradient / np.sqrt(square)
    for table, expected in zip(tables_of(model), tables, strict=True):
        np.testing.assert_allclose(table, expected, rtol=1e-4, atol=1e-5)
    if len(steps) == 1:
        np.testing.assert_allclose(history["loss"][0], costs[0], rtol=1e-5)
    mean = sum(costs) / sum(heaviness)
    np.testing.assert_allclose(history["loss_per_pair"][0], mean, rtol=1e-5)


@pytest.mark.full
def test_default_optimizer_loss_and_rate():
    model = GloVe(V, D)
    model.fit(model.batches(*some_pairs()), verbose=0)
    assert isinstance(model.loss, HalfSquaredError)
    assert isinstance(model.optimizer, keras.optimizers.Adagrad)
    assert model.optimizer.initial_accumulator_value == 1.0
    np.testing.assert_allclose(float(to_numpy(model.optimizer.learning_rate)), 0.3)
    again = GloVe(V, D)
    again.compile(0.25)
    np.testing.assert_allclose(float(to_numpy(again.optimizer.learning_rate)), 0.25)
    metric = MeanLoss(HalfSquaredError())
    metric = MeanLoss.from_config(metric.get_config())
    metric.update_state(np.array([1.0, 0.0]), np.array([3.0, 9.0]), np.array([1.0, 0.0]))
    np.testing.assert_allclose(float(to_numpy(metric.result())), 2.0)


def test_initial_tables_are_small_and_different():
    model = GloVe(997, 4)
    tables = tables_of(model)
    for table in tables:
        assert 0.095 < np.abs(table).max() <= 0.1
    assert np.abs(tables[0] - tables[1]).mean() > 0.05


@pytest.mark.backend_neutral
def test_batches_have_log_count_targets_and_glove_weights():
    rows, columns, _ = some_pairs()
    counts = np.array([0.5, 1, 5, 9.99, 10, 11, 4000], "float32")
    data = GloVe(V, D).batches(rows, columns, counts, x_max=10, alpha=0.75)
    x, y, weights = data[0]
    order = data.rows(0)
    assert (x["rows"] == rows[order]).all() and (x["columns"] == columns[order]).all()
    assert_close(y, np.log(counts[order]))
    expected = [(float(n) / 10) ** 0.75 if n < 10 else 1.0 for n in counts[order]]
    assert_close(weights, np.array(expected))


@pytest.mark.backend_neutral
def test_each_epoch_has_every_pair_once_in_a_new_order():
    rows, columns, counts = cooccurrences(some_text(), V, window=4)
    model = GloVe(V, D)
    size = 15
    assert len(rows) % size
    data = model.batches(rows, columns, counts, batch_size=size, seed=3)
    assert len(data) == -(-len(rows) // size)
    orders = []
    for epoch in range(3):
        data.step = epoch * len(data)
        order = np.concatenate([data.rows(i) for i in range(len(data))])
        assert sorted(order[order >= 0]) == [*range(len(rows))]
        assert len(order) == size * len(data)
        weights = np.concatenate([batch[2] for batch in data])
        assert (weights[order < 0] == 0).all() and (weights[order >= 0] > 0).all()
        orders.append(order)
    assert (orders[0] != orders[1]).any() and (orders[1] != orders[2]).any()
    ordered = model.batches(rows, columns, counts, batch_size=size, shuffle=False)
    assert ordered.rows(0).tolist() == [*range(size)]
    again = model.batches(rows, columns, counts, batch_size=size, seed=3)
    again.step = 2 * len(again)
    for a, b in zip(again, data, strict=True):
        assert_close(a, b, atol=0)
    other = model.batches(rows, columns, counts, batch_size=size, seed=4)
    assert (other.rows(0) != orders[0][:size]).any()


@pytest.mark.backend_neutral
def test_shards_concatenate_to_the_batches():
    rows, columns, counts = cooccurrences(some_text(), V, window=4)
    model = GloVe(V, D)
    whole = model.batches(rows, columns, counts, batch_size=6)
    parts = [model.batches(rows, columns, counts, batch_size=6, shard=(i, 2)) for i in range(2)]
    for batches in zip(whole, *parts, strict=True):
        whole_leaves, *leaves = (keras.tree.flatten(batch) for batch in batches)
        for leaf, first, second in zip(whole_leaves, *leaves, strict=True):
            assert_close(np.concatenate([first, second]), leaf, atol=0)


@pytest.mark.full
def test_fit_is_a_function_of_the_seed():
    pairs = cooccurrences(some_text(), V, window=4)
    found = []
    for _ in range(2):
        model = GloVe(V, D)
        make_loud(model)
        model.compile(0.1)
        model.fit(model.batches(*pairs, batch_size=16), epochs=2, verbose=0)
        found.append(model.vectors)
    assert_close(found[0], found[1], atol=0)


def test_saves_reloads_and_learns(tmp_path):
    model = GloVe(V, D)
    ids = np.arange(V, dtype="int32")
    inputs = {"rows": ids, "columns": ids[::-1].copy()}
    loaded = check_reloads(model, inputs, tmp_path)
    assert_close(loaded.vectors, model.vectors, atol=0)
    check_learns(model, inputs, np.log(np.arange(1.0, V + 1)))


@pytest.mark.full
def test_pair_scores_pass_the_layer_checks(tmp_path):
    ids = np.arange(V, dtype="int32")
    check_layer(PairScores(V, D), {"rows": ids, "columns": ids[::-1].copy()}, tmp_path)


@pytest.mark.full
def test_reloaded_model_resumes_training(tmp_path):
    pairs = cooccurrences(some_text(), V, window=4)
    model = GloVe(V, D)
    model.compile(0.1)
    model.fit(model.batches(*pairs, batch_size=16), verbose=0)
    model.save(tmp_path / "glove.keras")
    loaded = keras.saving.load_model(tmp_path / "glove.keras")
    for each in (model, loaded):
        each.fit(each.batches(*pairs, batch_size=16, seed=1), verbose=0)
    assert_close(loaded.vectors, model.vectors, atol=1e-6)


@pytest.mark.full
def test_training_recovers_a_low_rank_matrix():
    rng = np.random.default_rng(0)
    size, rank = 17, 2
    w, c = rng.normal(size=(2, size, rank))
    b_w, b_c = rng.normal(size=(2, size))
    rows, columns = np.divmod(np.arange(size * size), size)
    counts = np.exp((w @ c.T + b_w[:, None] + b_c).reshape(-1))
    model = GloVe(size, 5)
    model.compile(0.3)
    data = model.batches(rows, columns, counts, x_max=5.0, batch_size=64)
    losses = model.fit(data, epochs=60, verbose=0).history["loss_per_pair"]
    assert losses[-1] < 0.002 * losses[0]
    scores = to_numpy(model({"rows": rows.astype("int32"), "columns": columns.astype("int32")}))
    assert np.corrcoef(scores, np.log(counts))[0, 1] > 0.99


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"rows": [3]},
            r"A pair needs two words and a count. Received: shapes \(1,\), \(2,\), \(2,\)",
        ),
        (
            {"rows": [], "columns": [], "counts": []},
            r"of one or more integers. Received: shape \(0,\)",
        ),
        ({"rows": [3, V]}, r"`rows` must lie in \[0, .*Received: 3 to 11, vocabulary_size=11"),
        ({"columns": [-1, 3]}, r"`columns` must lie in .*Received: -1 to 3"),
        (
            {"rows": [3.0, 4.0]},
            "`rows` must be a flat array of one or more integers.*dtype float64",
        ),
        ({"counts": [0.0, 1.0]}, "Counts must be finite and above 0.*from 0.0 to 1.0"),
        ({"counts": [2.0, math.nan]}, "Counts must be finite and above 0.*from nan to nan"),
        ({"counts": [2.0, math.inf]}, "Counts must be finite and above 0.*from 2.0 to inf"),
        ({"counts": [[2.0], [1.0]]}, r"Received: shapes \(2,\), \(2,\), \(2, 1\)"),
        ({"x_max": 0}, "`x_max` must be above 0.*Received: 0, 0.75, 65536"),
        ({"alpha": -1}, "`alpha` 0 or more.*Received: 100.0, -1, 65536"),
        ({"batch_size": 0}, "`batch_size` 1 or more. Received: 100.0, 0.75, 0"),
    ],
)
def test_batches_refuse_bad_arguments(arguments, message):
    arguments = {"rows": [3, 4], "columns": [4, 3], "counts": [1.0, 1.0], **arguments}
    with pytest.raises(ValueError, match=message):
        GloVe(V, D).batches(**arguments)


@pytest.mark.backend_neutral
def test_sizes_and_other_vocabularies_are_refused():
    with pytest.raises(
        ValueError, match="must be 1 or more. Received: vocabulary_size=11, hidden_dim=0"
    ):
        GloVe(V, 0)
    data = GloVe(V, D).batches(*some_pairs())
    with pytest.raises(ValueError, match="Received: 11 tokens, vocabulary_size=10"):
        GloVe(V - 1, D).fit(data)
