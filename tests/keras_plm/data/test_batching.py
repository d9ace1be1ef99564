"""Batches: shapes, order, weights, shards, position, and rows made from examples."""

import keras
import numpy as np
import pytest

from keras_plm.data.batching import Batches, bucket_lengths
from keras_plm.data.class_weight import class_weights
from keras_plm.data.examples import batches
from keras_plm.data.labels import label_names
from keras_plm.data.packing import PackedExamples
from keras_plm.data.task import Example
from keras_plm.files.fingerprint import fingerprint
from keras_plm.models import BERT
from keras_plm.tokenizers import Characters, WordPiece, Words
from keras_plm.training.fit import FitsBatches, run_on
from tests.keras_plm.training.small_training import Seen

WORDS = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b", "c"])
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##x"])
LENGTHS = np.random.default_rng(0).integers(2, 60, 97)


def collate(rows, length, rng, epoch):
    """Returns rows as their numbers, so that tests can trace them."""
    x = {"row": np.repeat(np.asarray(rows)[:, None], length, 1).astype("int32")}
    return x, np.asarray(rows, "float32"), None


def make(**options):
    return Batches(LENGTHS, collate, **{"tokens_per_batch": 256, "seed": 3, **options})


def rows_of(source):
    return [source.rows(i).tolist() for i in range(len(source))]


@pytest.mark.backend_neutral
def test_bucket_lengths_minimize_padding():
    """Compares with all choices of three lengths, by brute force."""
    import itertools

    units = sorted({-(-int(n) // 8) for n in LENGTHS})

    def cost(chosen):
        return sum(min(c for c in chosen if c * 8 >= n) * 8 for n in LENGTHS)

    best = min(cost((*inner, units[-1])) for inner in itertools.combinations(units[:-1], 2))
    assert cost([length // 8 for length in bucket_lengths(LENGTHS, 3)]) == best
    assert bucket_lengths([3, 3], 4) == [8] and bucket_lengths([8, 9], 1) == [16]


@pytest.mark.backend_neutral
def test_epoch_has_every_row_once_in_few_shapes():
    source = make()
    seen = [row for rows in rows_of(source) for row in rows if row >= 0]
    assert sorted(seen) == list(range(97))
    shapes = {source[i][0]["row"].shape for i in range(len(source))}
    assert len(shapes) <= 4
    for rows, length in shapes:
        assert rows == 256 // length
    for i in range(len(source)):
        rows = source.rows(i)
        assert (LENGTHS[rows[rows >= 0]] <= source[i][0]["row"].shape[1]).all()


@pytest.mark.backend_neutral
def test_rows_of_a_training_batch_have_similar_lengths():
    lengths = np.random.default_rng(0).integers(3, 60, 2048)

    def padded(epoch=0, **options):
        source = Batches(lengths, collate, batch_size=16, **options)
        source.pad_to_longest = True
        return [(length, rows) for length, rows in source.plan(epoch)]

    def tokens(plan):
        return sum(length * len(rows) for length, rows in plan) / lengths.sum()

    first, second = padded(), padded(epoch=1)
    assert tokens(first) < 1.08 < 1.15 < tokens(padded(buckets=4))
    for plan in (first, second):
        np.testing.assert_array_equal(np.sort(np.concatenate([r for _, r in plan])), range(2048))
        assert all(length == lengths[rows].max() for length, rows in plan)
    partners = [{frozenset(rows.tolist()) for _, rows in plan} for plan in (first, second)]
    assert not partners[0] & partners[1]
    # Given lengths are kept.
    assert {length for length, _ in padded(buckets=[32, 64])} == {32, 64}


def test_only_torch_pads_a_training_batch_to_its_longest_row():
    drawn = []

    def noted(rows, length, rng, epoch):
        drawn.append((length, tuple(rows.tolist())))
        return {"row": np.ones((len(rows), length), "float32")}, np.ones(len(rows)), None

    source = Batches(LENGTHS, noted, batch_size=8, seed=3)
    assert source.has_targets
    drawn.clear()
    summing_model().fit(source, verbose=0)
    longest = {(max(LENGTHS[list(rows)]), rows) for _, rows in drawn}
    on_torch = keras.backend.backend() == "torch"
    assert (set(drawn) <= longest) == on_torch
    assert on_torch or {length for length, _ in drawn} <= set(source.buckets)
    assert {length for length, _ in source.plan(0)} <= set(source.buckets)  # again after `fit`


def test_only_one_batch_is_padded_and_padding_has_zero_weight():
    source = make()
    filled = [i for i in range(len(source)) if (source.rows(i) < 0).any()]
    assert len(filled) == 1
    _, _, weights = source[filled[0]]
    real = source.rows(filled[0]) >= 0
    assert (weights[~real] == 0).all()
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-6)


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "rows, count, size", [(1, 1, 1), (2, 1, 2), (3, 1, 4), (33, 1, 50), (3, 2, 4), (5, 2, 8)]
)
def test_few_rows_are_not_padded_to_a_whole_batch(rows, count, size):
    options = {"batch_size": 50, "buckets": 1, "shard": (0, count)}
    for fill_last, wanted in ((False, size), (True, 50)):
        source = Batches([7] * rows, collate, training=False, fill_last=fill_last, **options)
        assert [len(of_batch) for _, of_batch in source.plan(0)] == [wanted]


@pytest.mark.backend_neutral
def test_only_labelled_batches_are_filled_with_padding_rows():
    labelled = batches([Example("a b", "yes")], TOKENIZER, ["no", "yes"], training=False)
    assert len(labelled[0][0]["token_ids"]) == 32
    assert len(batches(["a b"], TOKENIZER, training=False)[0][0]["token_ids"]) == 1


@pytest.mark.backend_neutral
def test_order_is_a_function_of_seed_and_epoch():
    first, second = make(), make()
    assert rows_of(first) == rows_of(second)
    assert rows_of(first) != rows_of(make(seed=4))
    before = rows_of(first)
    first.step = second.step = len(first)
    assert rows_of(first) != before and rows_of(first) == rows_of(second)
    evaluated = make(training=False)
    before = rows_of(evaluated)
    evaluated.on_epoch_begin(), evaluated.on_epoch_end()
    assert rows_of(evaluated) == before


@pytest.mark.backend_neutral
def test_step_resumes_within_and_across_epochs():
    whole, rest = make(), make()
    rest.step = 3
    count = len(whole)
    after = rows_of(whole)[3:]
    for a, b in zip(keras.tree.flatten(rest[0]), keras.tree.flatten(whole[3]), strict=True):
        np.testing.assert_array_equal(a, b)
    whole.step = count
    assert rows_of(rest) == after + rows_of(whole)[:3]


class Fits(FitsBatches, keras.Model):
    pass


def summing_model():
    inputs = keras.Input((None,), name="row")
    outputs = keras.layers.Dense(1)(keras.ops.mean(inputs, axis=1, keepdims=True))
    model = Fits({"row": inputs}, outputs)
    model.compile(keras.optimizers.SGD(1e-9), loss="mse")
    return model


def test_fit_trains_on_each_batch_once_in_order_and_counts_steps():
    drawn = []

    def noted(rows, length, rng, epoch):
        drawn.append((epoch, tuple(rows.tolist())))
        return {"row": np.ones((len(rows), length), "float32")}, np.ones(len(rows)), None

    source = Batches(LENGTHS, noted, tokens_per_batch=256, seed=3)
    count = len(source)
    model = summing_model()
    model.fit(source, epochs=2, verbose=0)
    assert source.step == 2 * count
    # Keras draws some batches twice, to build or in advance. Each epoch still has all batches.
    for epoch in (0, 1):
        wanted = {tuple(np.where(r >= 0, r, r[0]).tolist()) for _, r in source.plan(epoch)}
        assert {rows for e, rows in drawn if e == epoch} == wanted
    model.fit(source, epochs=5, callbacks=[Seen(count + 2)], verbose=0)
    assert source.step == 3 * count + 2
    with pytest.raises(ValueError, match="An epoch must cover all `Batches`"):
        model.fit(source, epochs=2, steps_per_epoch=2, verbose=0)


def test_fit_resumes_from_any_step():
    """On TensorFlow, the next two batches do not predict the lengths of later ones."""

    def rows_of_ones(rows, length, rng, epoch):
        x = {"row": np.ones((len(rows), length), "float32")}
        return x, np.ones(len(rows)), None

    model = summing_model()
    source = Batches(LENGTHS, rows_of_ones, tokens_per_batch=256, seed=3)
    lengths = [length for length, _ in source.plan(0)]
    alike = [i for i in range(len(lengths) - 2) if lengths[i] == lengths[i + 1] != lengths[i + 2]]
    source.step = alike[0]
    model.fit(source, verbose=0)
    assert source.step == alike[0] + len(source)


def test_rows_of_a_later_epoch_may_be_longer():
    lengths = [np.array([9, 20]), np.array([12, 40])]
    source = Batches(lambda epoch: lengths[epoch % 2], collate, batch_size=1, longest=48)
    assert {length for length, _ in source.plan(1)} <= {16, 48}


@pytest.mark.full
def test_fit_handles_bucket_absent_from_first_epoch():
    lengths = [np.array([9, 9]), np.array([4, 9])]

    def rows_of_ones(rows, length, rng, epoch):
        return {"row": np.ones((len(rows), length), "float32")}, np.ones(len(rows)), None

    source = Batches(
        lambda epoch: lengths[epoch], rows_of_ones, batch_size=1, buckets=[4, 9], seed=1
    )
    model = summing_model()
    model.fit(source, epochs=2, verbose=0)
    assert source.step == 4


@pytest.mark.backend_neutral
@pytest.mark.parametrize("count", [2, 4])
def test_shards_partition_the_same_batches(count):
    whole = make(batch_size=8, tokens_per_batch=None)
    parts = [make(batch_size=8, tokens_per_batch=None, shard=(i, count)) for i in range(count)]
    for i in range(len(whole)):
        together = [
            np.concatenate(arrays)
            for arrays in zip(*(keras.tree.flatten(part[i]) for part in parts), strict=True)
        ]
        for a, b in zip(together, keras.tree.flatten(whole[i]), strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="divide evenly"):
        make(batch_size=9, tokens_per_batch=None, shard=(0, 2))


@pytest.mark.backend_neutral
def test_first_two_batches_differ_in_shape():
    for seed in range(20):
        source = make(seed=seed)
        assert source[0][0]["row"].shape != source[1][0]["row"].shape


def test_fit_and_evaluate_log_means_over_real_rows():
    """The loss in the logs equals the mean over real rows, in training and in evaluation."""
    targets = np.random.default_rng(1).normal(size=(97, 1)).astype("float32")

    def with_targets(rows, length, rng, epoch):
        return np.ones((len(rows), length, 1), "float32"), targets[rows], None

    inputs = keras.Input((None, 1))
    outputs = keras.layers.GlobalAveragePooling1D()(inputs)
    outputs = keras.layers.Dense(1, kernel_initializer="zeros")(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), loss="mse", weighted_metrics=["mae"])
    options = {"tokens_per_batch": 256, "seed": 3}
    held_out = Batches(LENGTHS, with_targets, training=False, **options)
    loss, mae = model.evaluate(held_out, verbose=0)
    np.testing.assert_allclose([loss, mae], [(targets**2).mean(), np.abs(targets).mean()], 1e-5)
    # One padded batch: its loss is the mean of its three rows.
    three = Batches(LENGTHS[:3], with_targets, batch_size=8, seed=3)
    history = model.fit(three, shuffle=False, verbose=0)
    np.testing.assert_allclose(history.history["loss"], (targets[:3] ** 2).mean(), rtol=1e-5)


class Plain(FitsBatches, keras.Model):
    pass


def test_metrics_in_logs_count_real_rows():
    """Trainings on arrays before and after keep their weights."""
    targets = np.arange(9, dtype="float32")[:, None]
    weights = np.linspace(0.2, 3, 9).astype("float32")

    def collate(rows, length, rng, epoch):
        return np.ones((len(rows), 1), "float32"), targets[rows], None

    inputs = keras.Input((1,))
    model = Plain(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(0.0), loss="mse", weighted_metrics=["mae"])
    source = Batches([1] * 9, collate, batch_size=4, seed=1)
    for _ in range(2):
        found = model.fit(source, verbose=0).history["mae"][0]
        np.testing.assert_allclose(found, targets.mean(), rtol=1e-5)
        x = np.ones((9, 1), "float32")
        found = model.fit(x, targets, sample_weight=weights, batch_size=4, verbose=0)
        wanted = np.average(targets[:, 0], weights=weights)
        np.testing.assert_allclose(found.history["mae"][0], wanted, rtol=1e-5)


@pytest.mark.full
def test_logged_metrics_apply_class_weights_to_real_rows():
    labels = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0])
    inputs = keras.Input((1,), name="a")
    model = Plain({"a": inputs}, keras.layers.Dense(2, kernel_initializer="zeros")(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss=loss, weighted_metrics=["accuracy"])
    source = batches({"a": np.ones((9, 1), "float32")}, targets=labels, batch_size=4)
    for weight in (1, 5, 0, 1):  # the model predicts class 0
        given = None if weight == 1 else {1: float(weight)}
        found = model.fit(source, class_weight=given, verbose=0).history["accuracy"][0]
        np.testing.assert_allclose(found, 6 / (6 + 3 * weight), rtol=1e-5)
    model.compile(
        keras.optimizers.SGD(0.0, gradient_accumulation_steps=2),
        loss,
        weighted_metrics=["accuracy"],
    )
    found = model.fit(source.in_micro_batches(2), class_weight={1: 5.0}, verbose=0).history[
        "accuracy"
    ]
    np.testing.assert_allclose(found[0], 6 / 21, rtol=1e-5)


@pytest.mark.full
def test_classes_can_be_weighted():

    inputs = keras.Input((None,), name="a")
    outputs = keras.layers.Dense(2, kernel_initializer="zeros")(
        keras.ops.mean(inputs, axis=1, keepdims=True)
    )
    model = Plain({"a": inputs}, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss=loss)
    arrays = {"a": np.ones((4, 3), "float32")}
    source = batches(arrays, targets=np.array([0, 0, 0, 1]), batch_size=4)
    plain = model.fit(source, verbose=0).history["loss"][0]
    weighted = model.fit(source, class_weight={1: 5.0}, verbose=0).history["loss"][0]
    np.testing.assert_allclose(weighted / plain, (3 + 5) / 4, rtol=1e-5)
    again = model.fit(source, verbose=0).history["loss"][0]
    np.testing.assert_allclose(again, plain, rtol=1e-5)
    assert class_weights({"no": 3}, ["yes", "no"]).tolist() == [1, 3]
    with pytest.raises(ValueError, match="Received: 'maybe'"):
        class_weights({"maybe": 3}, ["yes", "no"])


@pytest.mark.backend_neutral
@pytest.mark.parametrize("labels", [("1", 1), (1.0, "1"), ("yes", 2), (True, 1), (1, True)])
def test_labels_of_several_kinds_are_refused(labels):
    examples = [Example("a", label, where=f"f:{i}") for i, label in enumerate(labels, 1)]
    with pytest.raises(ValueError, match="^f:2: .* Received: both {!r} and {!r}".format(*labels)):
        label_names(examples)
    for equal in ([3, 2.5, 3.0], [True, False], ["1", "1.0"]):
        assert set(label_names([Example("a", label) for label in equal])) == set(equal)


@pytest.mark.backend_neutral
def test_texts_become_rows_with_label_ids():
    examples = [Example("a b", "yes"), Example("c", "no"), Example("b ax", "yes")]
    source = batches(examples, TOKENIZER, ["no", "yes"], training=False, batch_size=2)
    found = {}
    for i in range(len(source)):
        x, y, weights = source[i]
        for row, ids, label, weight in zip(source.rows(i), x["token_ids"], y, weights, strict=True):
            found[int(row)] = (ids[ids > 0].tolist(), int(label))
            assert (weight > 0) == (row >= 0)
    del found[-1]
    assert found == {0: ([2, 5, 6, 3], 1), 1: ([2, 7, 3], 0), 2: ([2, 6, 5, 8, 3], 1)}
    assert source.source.cut == 0


@pytest.mark.backend_neutral
def test_long_texts_are_cut_and_counted():
    source = PackedExamples(["a " * 9, "b"], TOKENIZER, max_length=6)
    assert source.lengths.tolist() == [6, 3] and source.cut == 5


@pytest.mark.backend_neutral
@pytest.mark.parametrize("tokenizer", [WORDS, Characters()], ids=["words", "characters"])
def test_text_pairs_are_packed_separately(tokenizer):
    examples = [Example("a b c a a", "x", pair="b"), Example("c", "y", pair="a b c a b c a")]
    source = PackedExamples(examples, tokenizer, ["x", "y"])
    alone = [tokenizer.pack([text]) for text in ("a b c a a", "b", "c", "a b c a b c a")]
    lengths = [len(packed["padding_mask"][0]) for packed in alone]
    assert source.lengths.tolist() == [max(lengths[:2]), max(lengths[2:])] and source.cut == 0
    x, y, _ = source.collate(np.array([1, 0]), 11, None, 0)
    assert y.tolist() == [1, 0] and set(x) == set(alone[0])
    for name, array in x.items():
        assert array.shape[:3] == (2, 2, 11)
        for row, side, number in [(1, 0, 0), (1, 1, 1), (0, 0, 2), (0, 1, 3)]:
            got, (wanted,) = array[row, side], alone[number][name]
            assert (got[: len(wanted)] == wanted).all() and not got[len(wanted) :].any()
    cut = PackedExamples(examples, tokenizer, ["x", "y"], max_length=4)
    assert cut.lengths.max() == 4 and cut.cut == sum(max(n - 4, 0) for n in lengths)
    with pytest.raises(ValueError, match="Words need one text.*pairs of texts in both orders for"):
        PackedExamples(examples, tokenizer, ["x", "y"], words=True, both_orders=True)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("tokenizer", [TOKENIZER, WORDS, Characters()], ids=["bert", "w", "elmo"])
@pytest.mark.parametrize("max_length", [None, 7])
def test_word_positions_separate_the_two_texts_of_a_pair(tokenizer, max_length):
    texts = [("a b c a a", "b"), ("c", "a b c a b c a"), ("a b", "c a")]
    examples = [Example(first, "x", pair=second) for first, second in texts]
    source = PackedExamples(
        examples,
        tokenizer,
        ["x"],
        max_length,
        words=True,
        word_character_ids=True,
        pair_positions=True,
    )
    x, _, _ = source.collate(np.array([2, 0, 1]), 11, None, 0)
    assert x["first_positions"].shape == x["second_positions"].shape == (3, 8)
    words = source.row_words.strings()
    for row, example in enumerate((2, 0, 1)):
        begin, end = source.row_words._starts[example : example + 2]
        positions = x["word_positions"][row][: end - begin]
        assert (x["word_positions"][row][end - begin :] == -1).all()
        for text, name in enumerate(("first_positions", "second_positions")):
            places = x[name][row][x[name][row] >= 0]
            of_text = [words[begin + place] for place in places]
            assert of_text == texts[example][text].split()[: len(of_text)] and of_text
            assert len(of_text) == source.row_words.counts[example, text]
            assert (
                x["word_character_ids"][row, places, 1] == [ord(word) + 1 for word in of_text]
            ).all()
            if tokenizer is TOKENIZER:
                ids = x["token_ids"][row][positions[places]]
            else:  # positions of both texts, one after the other
                name = "token_ids" if tokenizer is WORDS else "character_ids"
                flat = x[name][row].reshape(2 * 11, *x[name].shape[3:])
                ids = flat[positions[places]]
            wanted = tokenizer.pack([of_text])
            wanted = wanted["character_ids" if "character_ids" in wanted else "token_ids"][0]
            framed = tokenizer.framed
            wanted = wanted[int(framed[0]) : len(wanted) - int(framed[1])]
            assert (ids[..., : wanted.shape[-1]] == wanted).all()


@pytest.mark.backend_neutral
def test_tagged_words_are_split_into_windows_without_loss():
    words = ["a", "bxx", "c", "axxxxxxxxx", "b", "c", "a"]
    tags = ["O", "P", "O", "P", "O", "P", "O"]
    source = PackedExamples(
        [Example(["c"], ["O"]), Example(words, tags)], TOKENIZER, ["O", "P"], max_length=6
    )
    assert (source.lengths <= 6).all()
    # With room for four pieces: a bxx | c | axx... (truncated) | b c a
    assert source.examples_of.tolist() == [0, 1, 1, 1, 1]
    assert source.words.tolist() == [1, 2, 1, 1, 3]
    joined = np.concatenate([source.targets[r] for r in np.flatnonzero(source.examples_of == 1)])
    assert joined.tolist() == [0, 1, 0, 1, 0, 1, 0]
    x, y, weights = source.collate(np.arange(len(source.lengths)), 8, None, 0)
    for row in range(len(source.lengths)):
        positions = x["word_positions"][row][x["word_positions"][row] >= 0]
        assert len(positions) == source.words[row] == weights[row].sum()
        assert (x["token_ids"][row][positions] >= 5).all()  # the first piece of a word, not [CLS]


@pytest.mark.backend_neutral
def test_words_option_adds_word_positions_of_plain_texts():
    source = PackedExamples(["a bx", "c"], TOKENIZER, words=True)
    assert source.words.tolist() == [2, 1]
    assert [source.row_words.positions(row).tolist() for row in (0, 1)] == [[1, 2], [1]]


@pytest.mark.backend_neutral
def test_ragged_arrays_are_padded():
    rows = [np.arange(n, dtype="float32") for n in (1, 5, 3)]
    source = batches({"x": rows}, targets=np.arange(3), batch_size=3, training=False)
    x, y, _ = source[0]
    assert x["x"].shape == (3, 8) and y.tolist() == [0, 2, 1]


def test_run_on_yields_the_output_of_every_row():
    inputs = keras.Input((None,), name="row")
    model = keras.Model({"row": inputs}, inputs * 2)
    source = make(training=False)
    seen = {}
    for rows, outputs in run_on(model, source):
        for row, output in zip(rows, outputs, strict=True):
            seen[int(row)] = output[0]
    assert seen == {row: 2 * row for row in range(97)}


@pytest.mark.backend_neutral
def test_label_names_put_o_first():
    examples = [Example(["a", "b"], ["I-X", "O"]), Example(["c"], ["B-X"])]
    assert label_names(examples) == ["O", "B-X", "I-X"]


@pytest.mark.compiles
def test_fingerprint_depends_on_weights_but_not_names():
    first = BERT(13, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
    second = BERT.from_config({**first.get_config(), "name": "other", "dtype": "mixed_bfloat16"})
    assert fingerprint(first) != fingerprint(second)
    second.set_weights(first.get_weights())
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint("a", 1) == fingerprint("a", 1) != fingerprint("a", 2)


@pytest.mark.backend_neutral
def test_bad_input_is_explained():
    for wrong in ({"batch_size": 0}, {"tokens_per_batch": -4}):
        with pytest.raises(ValueError, match="must be a whole number, 1 or more"):
            Batches([3], None, **wrong)
    with pytest.raises(ValueError, match="exactly one of"):
        Batches([1], collate)
    with pytest.raises(ValueError, match="no rows"):
        Batches([], collate, batch_size=1)
    with pytest.raises(ValueError, match="longer than the last bucket"):
        len(Batches([1, 9], collate, batch_size=1, buckets=[8]))
    with pytest.raises(ValueError, match="Give a list of texts"):
        batches("a b", TOKENIZER)
    with pytest.raises(ValueError, match="needs a `Tagger`"):
        batches([Example(["a", "b"], ["x", "y"])], TOKENIZER, ["x", "y"], words=False)
    with pytest.raises(ValueError, match="no examples"):
        batches([], TOKENIZER)
    with pytest.raises(TypeError, match="`tokenizer` must be"):
        batches(["a"])
    with pytest.raises(ValueError, match="f.tsv:7: .*'maybe', known: no, yes"):
        batches([Example("a", "maybe", where="f.tsv:7")], TOKENIZER, ["no", "yes"])
    with pytest.raises(ValueError, match="Either all examples have a label or none"):
        batches([Example("a", "yes"), Example("b")], TOKENIZER, ["no", "yes"])
    with pytest.raises(
        ValueError, match="Either all examples must have a pair, or none. .*example 1 without"
    ):
        batches([Example("a", pair="b"), Example("b")], TOKENIZER)
    with pytest.raises(ValueError, match="equal numbers of rows"):
        batches({"x": np.ones((3, 2))}, targets=np.ones(2))
    with pytest.raises(IndexError, match="No batch 99"):
        make()[99]
