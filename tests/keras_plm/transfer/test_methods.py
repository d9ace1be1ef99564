"""Fine-tuning and features: trained weights, stored features, layer choices."""

import dataclasses

import keras
import numpy as np
import pytest
from sklearn.base import clone as sklearn_clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from keras_plm.data.packing import PackedExamples
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, SemanticRoleLabeler, Tagger
from keras_plm.layers import LayerChoice
from keras_plm.models import WordVectors
from keras_plm.tokenizers import Characters
from keras_plm.transfer import (
    LAYER_CHOICES,
    FeatureBased,
    FeatureExtractor,
    FeatureStore,
    FineTune,
    clone,
    compare_layers,
    distinct_choices,
    every_choice,
    extract_features,
    layer_choice,
)
from tests.helpers.checks import assert_close, to_numpy, under_torch
from tests.helpers.small_encoders import (
    LETTERS,
    TOKENIZER,
    WORDS,
    encoder,
    sentences,
    text_pairs,
    texts,
    word_encoder,
)

FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16}


@pytest.fixture
def count_passes(monkeypatch):
    """Counts how often the encoder runs over a data set."""
    calls = []
    original = FeatureStore._fill

    def counted(array, counts, encoder, packed, *options):
        calls.append(len(packed.lengths))
        return original(array, counts, encoder, packed, *options)

    monkeypatch.setattr(FeatureStore, "_fill", staticmethod(counted))
    return calls


def layers_of(model, text):
    """Returns the vectors of all layers for a single text, (L + 1, T, D)."""
    packed = TOKENIZER.pack([text])
    return np.stack([to_numpy(layer)[0] for layer in model(packed)["layers"]])


@pytest.mark.backend_neutral
def test_named_choices_select_the_papers_layers():
    """With twelve blocks, layers are numbered from 0, the embeddings, to 12, the last block."""
    wanted = {
        "embeddings": ([0], None),
        "second_to_last": ([11], None),
        "last": ([12], None),
        "weighted_sum_last_four": ([9, 10, 11, 12], "mix"),
        "concat_last_four": ([9, 10, 11, 12], "concat"),
        "weighted_sum_all": (list(range(1, 13)), "mix"),
        "elmo_mix": (list(range(13)), "mix"),
    }
    for name, (layers, combine) in wanted.items():
        choice = LAYER_CHOICES[name]
        assert choice.indices(13) == layers
        assert combine in (None, choice.combine)
    assert layer_choice("layer_5").indices(13) == [5]
    with pytest.raises(ValueError, match="Received: 'lats'"):
        layer_choice("lats")


@pytest.mark.backend_neutral
def test_choices_of_the_same_layers_are_listed_once():
    shallow = encoder()
    assert every_choice(shallow)[-3:] == ["layer_0", "layer_1", "layer_2"]
    names = distinct_choices(shallow)
    assert "weighted_sum_all" not in names and "weighted_sum_last_four" in names
    assert "layer_0" not in names and "layer_1" not in names  # embeddings, second to last


@pytest.mark.parametrize("pool", [None, "cls", "mean", "max"])
def test_features_equal_the_encoders_layers(pool):
    model = encoder()
    rows = ["a bx c", "d", "e f g h a b"]
    choices = {"last": [2], "concat_last_four": [1, 2], "mean_all": [1, 2], "layer_1": [1]}
    for name, layers in choices.items():
        features = extract_features(model, TOKENIZER, rows, layers=name, pool=pool)
        for text, got in zip(rows, features, strict=True):
            whole = layers_of(model, text)[layers]  # (n, T, D)
            if pool is None:
                words = PackedExamples([text], TOKENIZER, words=True).row_words.positions(0)
                whole = whole[:, words]
            else:
                whole = {"cls": whole[:, 0], "mean": whole.mean(1), "max": whole.max(1)}[pool]
            wanted = whole.mean(0) if name == "mean_all" else np.concatenate(list(whole), -1)
            np.testing.assert_allclose(got, wanted, atol=4e-3)  # stored in float16
    empty = extract_features(model, TOKENIZER, [], pool=pool)
    assert len(empty) == 0


@pytest.mark.compiles
def test_features_of_long_sentences_join_their_windows():
    model = encoder()  # reads 12 tokens
    words = list("abcdefgh" * 4)
    assert [len(rows) for rows in extract_features(model, TOKENIZER, ["", "a b"])] == [0, 2]
    (features,) = extract_features(model, TOKENIZER, [words])
    assert features.shape == (32, 16)
    (first,) = extract_features(model, TOKENIZER, [words[:10]])
    np.testing.assert_allclose(features[:10], first, atol=4e-3)


def long_sentences(head, count=12):
    """Sentences of 25 or 3 words, where the encoder reads 10, for a head."""
    rng, made = np.random.default_rng(0), []
    for size in [25, 3] * (count // 2):
        words = rng.choice(LETTERS, size).tolist()
        label = ["O"] * (size - 1) + ["B-A"]
        if head is Classifier:
            label = "yes" if "a" in words else "no"
        predicate = size * 2 // 3 if head is SemanticRoleLabeler else None
        made.append(Example(words, label, predicate=predicate))
    return made


@pytest.mark.compiles
@pytest.mark.quick_cases("Tagger")
@pytest.mark.parametrize(
    "head", [Tagger, CRFTagger, SemanticRoleLabeler, Classifier], ids=lambda head: head.__name__
)
def test_a_reader_reads_long_sentences_in_the_windows_of_its_head(head, tmp_path):
    """The score on stored features is that of the model."""
    train, model = long_sentences(head), encoder()
    labels = head.labels_of(train)
    words = WordVectors.from_vectors(LETTERS, np.eye(len(LETTERS), dtype="float32"))
    method = FeatureBased(layers="last", reader="bilstm", units=5, **FAST)
    options = {"labels": labels, "store": tmp_path, "words": words}
    fitted = method.fit(model, head, TOKENIZER, train, train, **options)
    store = FeatureStore.build(tmp_path, model, TOKENIZER, train)
    word_store = FeatureStore.build_words(tmp_path, words, model, TOKENIZER, train)
    assert len(store) == 12 and store.counts.max() == 25 and len(store.rows) == 6 * 4
    arguments = head, fitted.task_network, store, labels, word_store
    if head is SemanticRoleLabeler:
        found = [np.concatenate(x) for x in (method.predict(*arguments), fitted.predict(train))]
        assert np.mean(found[0] == found[1]) > 0.97  # float16 features may change a near tie
        return
    stored = method.predict(*arguments, probabilities=True)
    for one, other in zip(stored, fitted.predict(train, probabilities=True), strict=True):
        np.testing.assert_allclose(one, other, atol=4e-3)  # features are stored in float16


@pytest.mark.backend_neutral
def test_a_predicate_is_marked_in_its_window_only(tmp_path):
    examples = long_sentences(SemanticRoleLabeler)
    store = FeatureStore.build(tmp_path, encoder(), TOKENIZER, examples)
    options = {"training": False, "batch_size": 24, "buckets": 1, "in_windows": True}
    source = store.batches("last", predicate_marks=True, **options)
    x, found = source[0][0], {}
    for row, marks in zip(source.rows(0), x["predicate_marks"], strict=True):
        example, first, count = store.rows[row]
        assert not marks[count:].any()
        found.setdefault(int(example), []).extend((first + np.flatnonzero(marks)).tolist())
    assert [found[i] for i in range(12)] == [[e.predicate] for e in examples]


@pytest.mark.compiles
def test_a_store_is_keyed_by_encoder_tokenizer_texts_and_pool(tmp_path, count_passes):
    model, rows = encoder(), ["a b", "c"]

    def build(model=model, rows=rows, pool="mean"):
        return FeatureStore.build(tmp_path, model, TOKENIZER, rows, pool)

    build()
    build()
    assert len(count_passes) == 1
    build(rows=["a b", "d"])
    build(pool="max")
    other = encoder()
    build(model=other)
    model.weights[0].assign(to_numpy(model.weights[0]) + 1)
    build()
    assert len(count_passes) == 5
    assert not [path for path in tmp_path.iterdir() if ".tmp" in path.name]


@pytest.mark.compiles
def test_a_store_is_keyed_by_precision(tmp_path):
    full, rows = encoder(), texts(4)
    half = clone(full, dtype="mixed_bfloat16")
    stores = [FeatureStore.build(tmp_path, e, TOKENIZER, rows, "mean") for e in (half, full)]
    assert len(list(tmp_path.glob("[!.]*"))) == 2
    assert 0 < np.abs(stores[0].array.astype(float) - stores[1].array).max() < 0.1


@pytest.mark.backend_neutral
def test_a_store_too_large_is_refused_before_the_encoder_runs(tmp_path, count_passes):
    with pytest.raises(ValueError, match=r"0.0 GB.*--max-cache-gb.*feature_gb=1e-06"):
        FeatureStore.build(tmp_path, encoder(), TOKENIZER, ["a b c"] * 50, None, 1e-6)
    assert not count_passes and not list(tmp_path.iterdir())


@pytest.mark.backend_neutral
def test_interrupted_store_build_leaves_no_files(tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(FeatureStore, "_fill", staticmethod(stop))
    with pytest.raises(KeyboardInterrupt):
        FeatureStore.build(tmp_path, encoder(), TOKENIZER, ["a"], None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.compiles
@pytest.mark.parametrize("method", [FineTune, under_torch(FeatureBased)])
def test_predict_refuses_another_input_kind_than_in_training(method, tmp_path):
    pairs, single = text_pairs(16), texts(16)
    of_pairs, of_texts = (
        method(**FAST).fit(encoder(), Classifier, TOKENIZER, train) for train in (pairs, single)
    )
    of_pairs.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(pairs) == of_pairs.predict(pairs)
    for head in (of_pairs, again):
        with pytest.raises(ValueError, match="trained only on pairs.*its pair.*example 1 without"):
            head.predict([pairs[0].text] * 2, pairs=[pairs[0].pair, None])
    with pytest.raises(
        ValueError, match="trained only on single texts.*leave.*example 0 with a pair"
    ):
        of_texts.predict(pairs)


@pytest.mark.quick_cases("Classifier-texts")
@pytest.mark.parametrize("head, examples", [under_torch(Classifier, texts), (Tagger, sentences)])
def test_fine_tuning_does_not_change_the_given_encoder(head, examples):
    model = encoder()
    before = [to_numpy(w).copy() for w in model.weights]
    method = FineTune(**{**FAST, "epochs": 8})
    fitted = method.fit(model, head, TOKENIZER, examples(96), examples(32, seed=1))
    assert_close([to_numpy(w) for w in model.weights], before, atol=0)
    assert fitted.training_log["loss"][-1] < fitted.training_log["loss"][0]
    assert fitted.optimizer is not None and isinstance(fitted, keras.Model)
    assert fitted.encoder.dropout == method.dropout
    assert len(fitted.predict(examples(3))) == 3


class TestFineTuningOfAnELMo:
    """Rates by layer, unfreezing, slanted triangular rates: Peters, Ruder and Smith 2019."""

    OPTIONS = {
        "schedule": "slanted_triangular", "layer_decay": 0.5, "unfreeze_epochs": 1, "pool": "max"
    }  # fmt: skip

    @pytest.mark.full
    def test_lower_layers_are_unfrozen_later(self, tmp_path):
        model, seen = encoder(), []

        def state(part):
            return {w.path: to_numpy(w).copy() for w in part.weights}

        class Looks(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if hasattr(self.model, "jax_state_sync"):
                    self.model.jax_state_sync()
                seen.append(state(self.model.encoder))

        before = state(model)
        fitted = FineTune(**{**FAST, "epochs": 3}, **self.OPTIONS).fit(
            model, Classifier, TOKENIZER, texts(48), texts(16, seed=1), callbacks=[Looks()]
        )
        wanted = ["transformer/block_1", "transformer/block_0", "token_embedding"]
        for epoch, after in enumerate(seen):
            moved = {path for path in before if not np.array_equal(before[path], after[path])}
            for depth, part in enumerate(wanted):
                assert any(path.startswith(part) for path in moved) is (depth <= epoch), (
                    epoch,
                    part,
                )
        assert_close(state(model), before, atol=0)
        assert fitted.pool == "max" and fitted.training_log["best_epoch"] in (1, 2, 3)
        fitted.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.predict(texts(3)) == fitted.predict(texts(3))
        assert again.optimizer.groups == fitted.optimizer.groups
        copied = clone(fitted.encoder)
        assert_close(copied.get_weights(), fitted.encoder.get_weights(), atol=0)

    @pytest.mark.full
    def test_word_encoders_read_pairs_separately(self):
        model, dev = word_encoder(), text_pairs(16, seed=1)
        method = FineTune(**FAST, **self.OPTIONS)
        fitted = method.fit(model, Classifier, WORDS, text_pairs(48), dev)
        assert fitted.pairs and len(fitted.predict(dev)) == 16
        assert not method.fit(model, Classifier, WORDS, texts(16)).pairs
        assert not method.fit(encoder(), Classifier, TOKENIZER, text_pairs(16)).pairs
        found = extract_features(model, WORDS, dev)
        alone = [extract_features(model, WORDS, [e.text, e.pair]) for e in dev]
        assert_close(found, [np.concatenate(both) for both in alone], atol=0)
        with pytest.raises(ValueError, match="`FineTune`.*pairs of texts for Words"):
            FeatureBased(**FAST, reader="bilstm").fit(model, Classifier, WORDS, text_pairs(16))

    @pytest.mark.full
    def test_frozen_word_encoders_pool_pairs_separately(self, tmp_path):
        model, train, dev = word_encoder(), text_pairs(48), text_pairs(16, seed=1)
        first = extract_features(model, WORDS, [e.text for e in dev], pool="mean")
        second = extract_features(model, WORDS, [e.pair for e in dev], pool="mean")
        both = extract_features(model, WORDS, dev, pool="mean")
        assert_close(both, np.concatenate([first, second], axis=1), atol=1e-6)
        fitted = FeatureBased(**FAST, pool="mean").fit(model, Classifier, WORDS, train, dev)
        kernel, bias = fitted.task_network.get_layer("logits").get_weights()
        u, v = first, second
        logits = np.concatenate([u, v, abs(u - v), u * v], axis=1) @ kernel + bias
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert_close(fitted.predict(dev, probabilities=True), shares, atol=1e-3)
        fitted.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        assert again.predict(dev) == fitted.predict(dev)
        with pytest.raises(ValueError, match="all examples have a pair or none"):
            extract_features(model, WORDS, [*dev, texts(1)[0]], pool="mean")

    @pytest.mark.full
    def test_tagger_accepts_all_options_except_pool(self):
        options = {name: value for name, value in self.OPTIONS.items() if name != "pool"}
        fitted = FineTune(**FAST, **options).fit(encoder(), Tagger, TOKENIZER, sentences(32))
        assert len(fitted.predict(sentences(3))) == 3

    @pytest.mark.full
    def test_default_optimizer_settings_are_those_of_bert(self):
        fitted = FineTune(**FAST).fit(encoder(), Classifier, TOKENIZER, texts(32))
        assert fitted.optimizer.groups == {}
        assert type(fitted.optimizer._learning_rate).__name__ == "WarmupLinearDecay"

    @pytest.mark.backend_neutral
    def test_bad_input_is_explained(self):
        for options, match in [
            ({"schedule": "stairs"}, "`schedule` must be one of .*'stairs'"),
            (
                {"language_model_weight": -1.0},
                "`language_model_weight` must be a number, 0 or more",
            ),
            ({"layer_decay": 0.0}, r"`layer_decay` must be a number, above 0 and at most 1"),
            ({"unfreeze_epochs": -1}, "`unfreeze_epochs` must be a whole number, 0 or more"),
            ({"pool": "sum"}, "`pool` must be one of None, .*'sum'"),
        ]:
            with pytest.raises(ValueError, match=match):
                FineTune(**options)
        with pytest.raises(TypeError, match="a whole number.* Received: unfreeze_epochs=0.5"):
            FineTune(unfreeze_epochs=0.5)
        with pytest.raises(ValueError, match="are not pooled.*head=Tagger"):
            FineTune(pool="max").fit(encoder(), Tagger, TOKENIZER, sentences(8))


@pytest.mark.compiles
def test_clone_changes_only_known_arguments():
    model = encoder()
    assert not clone(model, trainable=False).trainable_weights
    with pytest.raises(ValueError, match="no such argument.*dropuot"):
        clone(model, dropuot=0.3)


@pytest.mark.full
def test_best_epoch_is_restored_after_other_callbacks():
    model, dev = encoder(), texts(16, seed=1)

    def fit(callbacks):
        scores = iter([0.5, 0.9, 0.1, 0.2])
        return FineTune(**{**FAST, "epochs": 4}).fit(
            model, Classifier, TOKENIZER, texts(48), dev,
            metric=lambda truth, predicted: next(scores), callbacks=callbacks,
        )  # fmt: skip

    class Restores(keras.callbacks.Callback):
        """Restores its own weights at the end, like EarlyStopping."""

        def on_train_end(self, logs=None):
            self.model.set_weights([0 * w for w in self.model.get_weights()])

    alone, restored = fit([]), fit([Restores()])
    assert restored.training_log["best_epoch"] == 2
    assert_close(restored.get_weights(), alone.get_weights(), atol=1e-6)


@pytest.mark.full
def test_fine_tuning_preserves_the_precision():
    full = encoder()
    half = clone(full, dtype="mixed_bfloat16")
    assert_close(half.get_weights(), full.get_weights(), atol=0)
    fitted = FineTune(**FAST).fit(half, Classifier, TOKENIZER, texts(32))
    for model in (half, fitted.encoder):
        assert model.compute_dtype == model.output["sequence"].dtype == "bfloat16"
        assert {w.dtype for w in model.weights} == {"float32"}


@pytest.mark.compiles
def test_best_epoch_is_restored():
    scores = iter([0.3, 0.9, 0.1])
    kept = []

    def metric(truth, predicted):
        kept.append(list(predicted))
        return next(scores, None) or 0.5

    dev = texts(24, seed=1)
    method = FineTune(epochs=3, learning_rate=3e-2, batch_size=8)
    fitted = method.fit(encoder(), Classifier, TOKENIZER, texts(), dev, metric=metric)
    assert fitted.training_log["best_epoch"] == 2 and fitted.training_log["dev_score"] == 0.9
    assert fitted.predict(dev) == kept[1]


@pytest.mark.full
@pytest.mark.parametrize("head, examples", [(Classifier, texts), (Tagger, sentences)])
@pytest.mark.parametrize(
    "layers, reader", [("concat_last_four", "bilstm"), under_torch("weighted_sum_all", "linear")]
)
def test_reader_predicts_the_same_on_encoder_and_store(head, examples, reader, layers, tmp_path):
    model = encoder()
    train, dev = examples(48), examples(24, seed=1)
    method = FeatureBased(layers=layers, reader=reader, units=5, **FAST)
    labels = ["no", "yes"] if head is Classifier else ["O", "B-A", "I-A"]
    stores = [
        FeatureStore.build(tmp_path, model, TOKENIZER, part, method.store_pool(head))
        for part in (train, dev)
    ]
    task_network, log = method.fit_reader(head, stores, train, dev, labels)
    stored = method.predict(head, task_network, stores[1], labels)
    whole = method.fit(model, head, TOKENIZER, train, dev, labels=labels, store=tmp_path)
    predicted = whole.predict(dev)
    flat = (
        [np.ravel(x) for x in (stored, predicted)]
        if head is Classifier
        else [np.concatenate(x) for x in (stored, predicted)]
    )
    # float16 features may change a near tie
    assert np.mean(flat[0] == flat[1]) > 0.97
    assert whole.training_log["best_epoch"] == log["best_epoch"]
    assert model.trainable and len(whole.trainable_weights) == len(task_network.trainable_weights)


@pytest.mark.compiles
def test_encoder_runs_once_for_all_layer_choices(count_passes):
    table = compare_layers(
        encoder(),
        TOKENIZER,
        {"train": texts(32), "dev": texts(16, seed=1), "test": texts(16, seed=2)},
        Classifier,
        method=FeatureBased(**FAST),
        choices=["last", "concat_last_four", "mean_all"],
        seeds=2,
    )
    assert count_passes == [32, 16, 16]
    assert [row["layers"] for row in table] == ["last", "concat_last_four", "mean_all"]
    for row in table:
        assert row["mean"] == pytest.approx(np.mean(row["scores"])) and len(row["scores"]) == 2


@pytest.mark.compiles
def test_compare_layers_splits_a_list_of_examples():
    rows = compare_layers(
        encoder(), TOKENIZER, sentences(60), Tagger,
        method=FeatureBased(**{**FAST, "epochs": 1}), choices=["last"], seeds=1,
    )  # fmt: skip
    assert rows[0]["deviation"] == 0.0


class TestFeatureExtractor:
    @pytest.mark.full
    def test_grid_search_runs_the_encoder_once_per_pooling(self, count_passes):
        model = encoder()
        rows = [example.text for example in texts(60)]
        labels = [example.label for example in texts(60)]
        pipeline = make_pipeline(FeatureExtractor(model, TOKENIZER), LogisticRegression())
        grid = {
            "featureextractor__layers": ["last", "embeddings", "mean_all", LayerChoice(0, -1)],
            "featureextractor__pool": ["mean", "max"],
        }
        search = GridSearchCV(pipeline, grid, cv=3).fit(rows, labels)
        assert len(search.cv_results_["params"]) == 8
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert sum(count_passes) == 2 * len(set(rows))
        assert len(search.predict(["a b", "c"])) == 2

    def test_transform_returns_features_of_current_weights(self):
        model = encoder()
        extractor = FeatureExtractor(model, TOKENIZER, layers="concat_last_four", pool="max")
        wanted = extract_features(model, TOKENIZER, ["a b", "c"], "concat_last_four", "max")
        assert_close(extractor.fit_transform(["a b", "c"]), wanted)
        model.weights[0].assign(to_numpy(model.weights[0]) * 2)
        changed = extract_features(model, TOKENIZER, ["a b", "c"], "concat_last_four", "max")
        assert_close(extractor.transform(["a b", "c"]), changed)
        assert extractor.transform([]).shape == (0, 32)

    def test_a_clone_shares_the_encoder(self):
        extractor = FeatureExtractor(encoder(), TOKENIZER, layers="last")
        copy = sklearn_clone(extractor).set_params(layers="embeddings")
        assert copy.encoder is extractor.encoder and extractor.layers == "last"

    @pytest.mark.backend_neutral
    def test_bad_parameters_are_explained(self):
        model = encoder()
        for layers, pool, match in [
            ("elmo_mix", "mean", "weighted sum is learned"),
            ("layer_9", "mean", "too few layers"),
            ("last", "sum", "`pool` must be one of"),
        ]:
            with pytest.raises(ValueError, match=match):
                FeatureExtractor(model, TOKENIZER, layers, pool).fit(["a"])


@pytest.mark.backend_neutral
@pytest.mark.parametrize("method", [FineTune(epochs=1), FeatureBased(epochs=1)])
def test_a_dev_set_of_another_kind_is_refused(method):
    train, pairs = texts(4), [Example("a", "x", pair="b", where="dev.tsv:2")]
    with pytest.raises(ValueError, match="dev.tsv:2: .*a pair, and a single text in `train`"):
        method.fit(encoder(), Classifier, TOKENIZER, train, pairs)
    with pytest.raises(ValueError, match="example 0: .*a single text, and a pair in `train`"):
        method.fit(encoder(), Classifier, TOKENIZER, pairs, train)


@pytest.mark.backend_neutral
def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="one of 'linear', 'bilstm', 'bcn', 'esim', 'bidaf'"):
        FeatureBased(reader="lstm")
    with pytest.raises(ValueError, match="`pool` must be"):
        FeatureBased(pool="sum")
    for options, match in [
        ({"epochs": 0}, "`epochs` must be a whole number, 1 or more. Received: epochs=0"),
        ({"batch_size": 2.5}, "`batch_size` must be a whole number"),
        (
            {"learning_rate": "mix"},
            "`learning_rate` must be a number, above 0. Received: learning_rate='mix'",
        ),
        ({"warmup": 2.0}, "`warmup` must be a number, 0 or more and below 1"),
    ]:
        for method in (FineTune, FeatureBased):
            with pytest.raises((TypeError, ValueError), match=match):
                method(**options)
    with pytest.raises(TypeError):
        FeatureBased("mix")  # the argument would be the rate
    with pytest.raises(ValueError, match="`penalty` and `mix_norm` need learned mixes"):
        FeatureBased(layers="last", penalty=0.1)
    for method in (FineTune(), FeatureBased()):
        with pytest.raises(ValueError, match="must be examples to train on"):
            method.fit(encoder(), Classifier, TOKENIZER, [])
    for texts_given in ([None], [["a", ["b"]]]):
        with pytest.raises(ValueError, match="a string or a list of words"):
            extract_features(encoder(), TOKENIZER, texts_given)
    with pytest.raises(ValueError, match="must belong together.*character_ids"):
        extract_features(encoder(), Characters(), ["a"])
    with pytest.raises(ValueError, match="A text must be"):
        FeatureExtractor(encoder(), TOKENIZER).transform([3])
    with pytest.raises(ValueError, match="`pool` must be one of None, "):
        extract_features(encoder(), TOKENIZER, ["a"], pool="average")
    with pytest.raises(ValueError, match="Give a list of texts"):
        extract_features(encoder(), TOKENIZER, "a b")
    with pytest.raises(ValueError, match="weighted sum is learned"):
        extract_features(encoder(), TOKENIZER, ["a"], "weighted_sum_all")
    # In training, an error names a label that the head lacks; elsewhere the label counts as wrong.
    dev = [dataclasses.replace(texts(1)[0], label="maybe", where="dev.csv:3")]
    fitted = FineTune(**{**FAST, "epochs": 1}).fit(encoder(), Classifier, TOKENIZER, texts(16))
    with pytest.raises(ValueError, match="dev.csv:3: .*'maybe'"):
        fitted.batches(dev)
    source = fitted.batches(dev, training=False)
    assert fitted.evaluate(source, verbose=0, return_dict=True)["accuracy"] == 0


@pytest.mark.full
@pytest.mark.parametrize("head, rows", [(Classifier, texts), (Tagger, sentences)])
def test_a_bilstm_on_top_is_fine_tuned_with_the_encoder(head, rows, tmp_path):
    """Devlin et al. 2018, section 5.1: a BiLSTM over the last layer is trained on the task."""
    model, train = encoder(), rows()
    fitted = FineTune(**FAST, reader="bilstm", units=3).fit(model, head, TOKENIZER, train)
    assert fitted.reader.units == 3
    moved = zip(fitted.encoder.get_weights(), model.get_weights(), strict=True)
    assert any(not np.array_equal(a, b) for a, b in moved)
    fitted.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(train) == fitted.predict(train)


@pytest.mark.full
def test_bilstm_on_top_refuses_pool_and_unknown_readers():
    with pytest.raises(ValueError, match="leave `pool` out, or set reader='linear'"):
        FineTune(**FAST, reader="bilstm", pool="max").fit(encoder(), Classifier, TOKENIZER, texts())
    with pytest.raises(ValueError, match="`reader` must be one of 'linear', 'bilstm', 'bcn'"):
        FineTune(**FAST, reader="lstm")
