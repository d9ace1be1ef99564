"""Heads as plain Keras models: fit, callbacks, weights, predict, reload."""

import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_plm.data.examples import batches
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, Frozen, MultipleChoice, Regressor, Tagger
from keras_plm.heads.readers import BiAttention, BiLSTM
from keras_plm.layers import LayerChoice
from keras_plm.metrics import SpanF1, accuracy, span_f1
from keras_plm.models import ELMo
from keras_plm.tokenizers import Characters
from keras_plm.training.optimizers import BertAdamW
from keras_plm.transfer import FeatureBased, FineTune
from tests.helpers.checks import assert_close, check_layer, to_numpy, under_torch
from tests.helpers.small_encoders import (
    LABELS,
    TAGS,
    TOKENIZER,
    WORDS,
    classifier,
    encoder,
    sentences,
    text_pairs,
    texts,
    with_reader,
    word_encoder,
)


@pytest.mark.quick_cases("{}")
@pytest.mark.parametrize(
    "options",
    [
        {},
        under_torch({"pool": "mean"}),
        under_torch({"layers": LayerChoice(-2, -1, "concat"), "pool": "max"}),
        {"layers": LayerChoice(0, -1, "mix")},
        under_torch({"layers": LayerChoice(1, -1, "mean"), "units": 5}),
        {"frozen": True},
    ],
    ids=str,
)
def test_classifier_learns_predicts_and_reloads(options, tmp_path):
    model = classifier(dropout=0.0, **options)
    model.compile(BertAdamW(3e-3))
    train = texts()
    source = model.batches(train, batch_size=16, buckets=1)
    losses = model.fit(source, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    predicted = model.predict([example.text for example in train])
    assert set(predicted) <= set(LABELS)
    probabilities = model.predict(train, probabilities=True)
    assert probabilities.shape == (64, 2)
    assert_close(probabilities.sum(axis=1), np.ones(64))
    assert [LABELS[i] for i in probabilities.argmax(axis=1)] == predicted

    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(train) == predicted
    assert len(again.trainable_weights) == len(model.trainable_weights)
    assert_close(again.evaluate(source, verbose=0), model.evaluate(source, verbose=0), atol=1e-4)


@pytest.mark.quick_cases("{}")
@pytest.mark.compiles
@pytest.mark.parametrize(
    "options", [under_torch({}), {"units": 5}, under_torch({"frozen": True})], ids=str
)
def test_tagger_learns_predicts_and_reloads(options, tmp_path):
    model = Tagger(encoder(), TAGS, tokenizer=TOKENIZER, dropout=0.0, **with_reader(options))
    model.compile(BertAdamW(3e-3))
    train = sentences()
    source = model.batches(train, batch_size=16, buckets=1)
    history = model.fit(source, epochs=8, validation_data=source, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert {"span_f1", "val_span_f1"} <= set(history)
    predicted = model.predict([example.text for example in train])
    assert [len(tags) for tags in predicted] == [len(example.text) for example in train]

    # The streaming metric equals conlleval's F1 of the predictions.
    held_out = model.batches(train, training=False, batch_size=7)
    reported = model.evaluate(held_out, verbose=0, return_dict=True)["span_f1"]
    assert reported == pytest.approx(span_f1([e.label for e in train], predicted), abs=1e-6)

    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").predict(train) == predicted


def test_tagger_tags_every_word_of_long_sentences():
    model = Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
    words = [*"abcdefgh" * 5, "axxxxxxxxxxxxxxxxxx"]
    assert [len(tags) for tags in model.predict([words, ["a"]])] == [41, 1]
    parts = model.predict([words, ["a"]], probabilities=True)
    assert [part.shape for part in parts] == [(41, 3), (1, 3)]


@pytest.mark.compiles
def test_tagger_uses_first_token_of_each_word():
    model = Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
    inputs, *_ = model.batches([Example(["ax", "bxx", "c"])], batch_size=1)[0]
    logits = to_numpy(model(inputs))[0, :3]
    hidden = to_numpy(model.encoder({k: inputs[k] for k in model.encoder.input})["sequence"])[0]
    kernel, bias = (to_numpy(w) for w in model.task_network.get_layer("logits").weights)
    assert_close(logits, hidden[[1, 3, 6]] @ kernel + bias)


@pytest.mark.full
def test_fit_accepts_callbacks_and_class_weight(tmp_path):
    model = classifier()
    model.compile("adam")
    train, dev = texts(), texts(32, seed=1)
    callbacks = [
        keras.callbacks.EarlyStopping("val_accuracy", patience=1, restore_best_weights=True),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    history = model.fit(
        model.batches(train),
        validation_data=model.batches(dev, training=False),
        epochs=3,
        class_weight={"yes": 2.0, "no": 1.0},
        callbacks=callbacks,
        verbose=0,
    )
    assert {"accuracy", "val_accuracy", "val_loss"} <= set(history.history)
    assert len((tmp_path / "log.csv").read_text().splitlines()) >= 2


@pytest.mark.full
def test_tensorboard_callback(tmp_path):
    pytest.importorskip("tensorboard")
    if keras.backend.backend() != "tensorflow":
        pytest.importorskip("tensorflow")  # Keras writes its event files
    model = classifier()
    model.compile("adam")
    callback = keras.callbacks.TensorBoard(str(tmp_path))
    model.fit(model.batches(texts(16)), callbacks=[callback], verbose=0)
    assert list(tmp_path.glob("**/events*"))


@pytest.mark.backend_neutral
def test_labelled_validation_data_is_evaluated():
    model = classifier()
    model.compile("adam")
    made = model.batches(texts(8), batch_size=4)
    x, y, weights = made[0]
    for held_out in (made, (x, y), (x, y, weights), [x, y], (batch for batch in [made[0]])):
        log = model.fit(made, validation_data=held_out, verbose=0).history
        assert log["val_loss"][0] > 0


@pytest.mark.full
def test_compile_uses_given_loss_and_metrics():
    model = classifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, metrics=["accuracy"])
    assert model.loss is loss
    assert "accuracy" in model.fit(model.batches(texts(16)), verbose=0).history


def test_predictions_depend_on_the_pair():
    model = classifier()
    one = model.predict(["a b"], pairs=["c d"], probabilities=True)
    other = model.predict(["a b"], pairs=["h h h"], probabilities=True)
    assert np.abs(one - other).max() > 1e-7
    assert_close(model.predict([Example("a b", pair="c d")], probabilities=True), one)


def one_by_one(x, y, kernel):
    """Computes Seo et al. 2017, equations 1 and 2, for a context x (T, D) and a query y (S, D)."""
    scores = np.zeros((len(x), len(y)))
    for t, h in enumerate(x):
        for s, u in enumerate(y):
            scores[t, s] = kernel.ravel() @ np.concatenate([h, u, h * u])
    asked, total = np.zeros(x.shape[1]), np.exp(scores.max(axis=1)).sum()
    for t, h in enumerate(x):
        asked += np.exp(scores[t].max()) / total * h
    rows = []
    for t, h in enumerate(x):
        attended, total = np.zeros(x.shape[1]), np.exp(scores[t]).sum()
        for s, u in enumerate(y):
            attended += np.exp(scores[t, s]) / total * u
        rows.append(np.concatenate([h, attended, h * attended, h * asked]))
    return np.array(rows)


@pytest.mark.compiles
def test_bi_attention_equals_formulas_of_seo_et_al(tmp_path):
    rng = np.random.default_rng(3)
    lengths = ((5, 3), (2, 7))
    first, second = (rng.normal(size=(2, n, 3)).astype("float32") for n in (5, 7))
    masks = [np.arange(n) < np.array(lengths)[:, i : i + 1] for i, n in enumerate((5, 7))]
    inputs = {"first": first, "second": second, "first_mask": masks[0], "second_mask": masks[1]}
    layer = BiAttention()
    check_layer(layer, inputs, tmp_path)
    outputs = [to_numpy(x) for x in layer(**inputs)]
    kernel = to_numpy(layer.score_kernel)
    swapped = kernel[[1, 0, 2]]  # the other text's place in [x; y; x * y]
    for row, (t, s) in enumerate(lengths):
        x, y = first[row, :t], second[row, :s]
        assert_close(outputs[0][row, :t], one_by_one(x, y, kernel))
        assert_close(outputs[1][row, :s], one_by_one(y, x, swapped))
    # Padding changes nothing, and an empty text gives zeros.
    noise = {
        "first": np.where(masks[0][..., None], first, 9).astype("float32"),
        "second": np.where(masks[1][..., None], second, -9).astype("float32"),
    }
    for got, wanted, real in zip(layer(**{**inputs, **noise}), outputs, masks, strict=True):
        assert_close(to_numpy(got)[real], wanted[real])
    empty = layer(**{**inputs, "second_mask": np.zeros((2, 7), bool)})
    assert_close(to_numpy(empty[0])[..., 3:6], np.zeros((2, 5, 3)))


@pytest.mark.compiles
@pytest.mark.quick_cases("{}")
@pytest.mark.parametrize(
    "options",
    [{}, {"layers": LayerChoice(0, -1, "mix"), "pool": "mean"}, {"frozen": True}],
    ids=str,
)
def test_separately_encoded_pairs_train_predict_and_reload(options, tmp_path):
    model = Classifier(word_encoder(), LABELS, tokenizer=WORDS, pairs=True, dropout=0.0, **options)
    train = text_pairs()
    source = model.batches(train, batch_size=16)
    x = source[0][0]
    assert x["token_ids"].shape[:2] == x["padding_mask"].shape[:2] == (16, 2)
    model.compile(BertAdamW(5e-3))
    losses = model.fit(source, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert any("bi_attention" in weight.path for weight in model.trainable_weights)
    one = model.predict(["a b"], pairs=["c"], probabilities=True)
    assert np.abs(one - model.predict(["a b"], pairs=["a"], probabilities=True)).max() > 1e-4
    predicted = model.predict(train, probabilities=True)
    assert_close(model.predict([train[5]], probabilities=True)[0], predicted[5], atol=1e-4)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(again.predict(train, probabilities=True), predicted, atol=1e-5)
    assert again.pairs and again.get_config() == model.get_config()


@pytest.mark.compiles
def test_encoder_encodes_texts_of_a_pair_separately():
    """This includes BERT, which could read both in one row, as in Peters et al. 2019."""
    model = Classifier(encoder(), LABELS, tokenizer=TOKENIZER, pairs=True)
    inputs, *_ = model.batches([Example("a bx", pair="c d e")], batch_size=1)[0]
    assert (inputs["segment_ids"] == 0).all()
    features = []
    for text in ("a bx", "c d e"):
        features.append(to_numpy(model.encoder(TOKENIZER.pack([text]))["sequence"]))
    attention, (kernel, bias) = (
        model.task_network.get_layer("bi_attention"),
        (to_numpy(w) for w in model.task_network.get_layer("logits").weights),
    )
    pooled = [to_numpy(x)[0].max(axis=0) for x in attention(features[0], second=features[1])]
    assert_close(to_numpy(model(inputs))[0], np.concatenate(pooled) @ kernel + bias, atol=1e-4)


@pytest.mark.full
def test_elmo_reads_pairs():
    """ELMo's inputs have other names and an additional axis."""
    elmo = ELMo(units=5, projection_dim=3, filters=[[1, 2], [2, 3]], character_dim=2)
    model = Classifier(elmo, LABELS, tokenizer=Characters(), pairs=True)
    assert set(model.input) == {"character_ids", "padding_mask"}
    together = model.predict(["to be", "or"], pairs=["not", "to be it is"], probabilities=True)
    assert_close(model.predict(["or"], pairs=["to be it is"], probabilities=True), together[1:])


@pytest.mark.backend_neutral
def test_unsupported_pairs_are_refused():
    options = {"tokenizer": WORDS}
    with pytest.raises(ValueError, match="`Words` cannot put two texts in one row.*`pairs=True`"):
        Classifier(word_encoder(), LABELS, **options).predict(["a"], pairs=["b"])
    with pytest.raises(ValueError, match="Example.text, label, pair.*Received: example 0 without"):
        Classifier(word_encoder(), LABELS, **options, pairs=True).predict(["a"])
    with pytest.raises(ValueError, match="without a reader or word vectors"):
        Classifier(word_encoder(), LABELS, **options, pairs=True, reader=BiLSTM(3))
    with pytest.raises(ValueError, match="`pool` must be one of .*'pooled'"):
        classifier(pairs=True, pool="pooled")


@pytest.mark.compiles
def test_frozen_encoder_has_no_updates_and_no_dropout():
    inner = encoder(dropout=0.5)
    model = Classifier(inner, LABELS, tokenizer=TOKENIZER, frozen=True, dropout=0.0)
    before = [to_numpy(w).copy() for w in inner.weights]
    model.compile(BertAdamW(0.1))
    source = model.batches(texts(16), batch_size=16, buckets=1)
    x = source[0][0]
    assert_close(model(x, training=True), model(x, training=False), atol=1e-6)
    model.fit(source, epochs=2, verbose=0)
    assert_close([to_numpy(w) for w in inner.weights], before, atol=0)
    assert len(model.trainable_weights) == 2
    assert isinstance(model.get_layer("frozen"), Frozen)


def test_predict_accepts_arrays_and_empty_lists():
    model = classifier()
    packed = TOKENIZER.pack(["a b", "c"])
    assert model.predict(packed, verbose=0).shape == (2, 2)
    assert model.predict([]) == []


@pytest.mark.full
def test_bilstm_passes_the_checks_and_ignores_padding(tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    layer = BiLSTM(5, num_layers=2)
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    output = to_numpy(layer(x, padding_mask=mask))
    other = np.where(mask[..., None], x, 9).astype("float32")
    assert_close(layer(other, padding_mask=mask), output)
    assert (output[0, 2:] == 0).all()
    assert_close(to_numpy(layer(x[:1, :2], padding_mask=mask[:1, :2])), output[:1, :2])


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    "tags",
    [
        ["O", "B-A", "I-A", "B-B", "I-B", "I-C"],
        ["O", "B-A", "I-A", "E-A", "S-A", "S-B"],
        ["O", "B-A", "I-A", "L-A", "U-A", "U-B"],
        ["O", "B", "I", "L", "U"],
    ],
    ids=["iob", "iobes", "bilou", "without types"],
)
def test_streaming_span_f1_equals_span_f1(tags, weighted):
    rng = np.random.default_rng(0)
    metric = SpanF1(tags)
    gold, guess = [], []
    for _ in range(5):
        lengths = rng.integers(1, 8, 6) if weighted else np.full(6, 7)
        y_true, predicted = rng.integers(0, len(tags), (2, 6, 7))
        # Half of the words are right, so that some whole spans are found.
        predicted = np.where(rng.random((6, 7)) < 0.6, y_true, predicted)
        logits = np.eye(len(tags), dtype="float32")[predicted]
        weights = (np.arange(7) < lengths[:, None]).astype("float32") * 1.7
        metric.update_state(y_true, logits, sample_weight=weights if weighted else None)
        for t, p, n in zip(y_true, predicted, lengths, strict=True):
            gold.append([tags[i] for i in t[:n]])
            guess.append([tags[i] for i in p[:n]])
    assert 0.2 < span_f1(gold, guess) < 0.9
    assert float(metric.result()) == pytest.approx(span_f1(gold, guess), abs=1e-6)
    again = SpanF1.from_config(metric.get_config())
    assert float(again.result()) == 0.0


@pytest.mark.backend_neutral
def test_labels_of_the_other_head_are_refused():
    words, single = sentences(4), texts(4)
    for method in (FineTune(learning_rate=1e-3), FeatureBased()):
        with pytest.raises(ValueError, match="A `Tagger` learns a tag for each word; one label"):
            method.fit(encoder(), Tagger, TOKENIZER, single)
        with pytest.raises(ValueError, match="A `Tagger` learns a tag for each word; here a text"):
            method.fit(encoder(), Classifier, TOKENIZER, words)


@pytest.mark.backend_neutral
def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="two labels or more"):
        Classifier(encoder(), ["only"])
    with pytest.raises(ValueError, match="`pool` must be one of .*'sum'"):
        classifier(pool="sum")
    with pytest.raises(ValueError, match="`pool` must be one of"):
        classifier(pool="pooled", layers=LayerChoice(-1, -1))
    with pytest.raises(ValueError, match="at most the encoder's 12 positions. Received: 99"):
        classifier().batches(texts(), max_length=99)
    with pytest.raises(ValueError, match="needs its tokenizer"):
        Classifier(encoder(), LABELS).predict(["a"])
    with pytest.raises(ValueError, match="put a single one in brackets"):
        classifier().predict("a")
    with pytest.raises(ValueError, match="lists of words"):
        Tagger(encoder(), TAGS, tokenizer=TOKENIZER).predict(["a b"])


@pytest.mark.compiles
def test_long_word_lists_are_classified_once():
    words = [example.text.split() for example in texts()[:4]]
    words[2] = words[2] * 40  # exceeds the encoder's limit
    examples = [Example(w, LABELS[i % 2]) for i, w in enumerate(words)]
    source = classifier().batches(examples)
    assert sum((source[i][2] > 0).sum() for i in range(len(source))) == 4
    for options in ({}, {"units": 3}):
        model = classifier(**options)
        together = model.predict(words, probabilities=True)
        assert together.shape == (4, 2)
        assert_close(model.predict([words[1]], probabilities=True)[0], together[1], atol=1e-5)


def test_score_of_a_long_word_list_is_the_mean_of_its_windows():
    words = [example.text.split() for example in texts()[:3]]
    words[1] = words[1] * 40
    model = Regressor(encoder(), (0, 5), tokenizer=TOKENIZER, reader=BiLSTM(3))
    scores = model.predict(words)
    assert len(scores) == 3
    assert_close(model.predict(words[2:]), scores[2:], atol=1e-5)


def test_taggers_refuse_a_second_text():
    for head in (Tagger, CRFTagger):
        with pytest.raises(ValueError, match="labels the words of one text.*Received: example 0"):
            head(encoder(), TAGS, tokenizer=TOKENIZER).predict([["a"]], pairs=[["b", "c"]])


@pytest.mark.compiles
@pytest.mark.parametrize("head", [Classifier, Tagger])
def test_dropout_is_active_with_a_reader(head):
    examples, labels = (texts(4), LABELS) if head is Classifier else (sentences(4), TAGS)
    model = head(encoder(), labels, tokenizer=TOKENIZER, reader=BiLSTM(4), dropout=0.5, frozen=True)
    x = model.batches(examples, training=False)[0][0]
    first, second = (to_numpy(model(x, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    assert_close(model(x, training=False), model(x, training=False), atol=0)


@pytest.mark.backend_neutral
def test_fine_tuning_a_frozen_encoder_is_refused():
    model = encoder()
    Classifier(model, ["a", "b"], frozen=True)
    with pytest.raises(ValueError, match="encoder.trainable = True"):
        Classifier(model, ["a", "b"])


@pytest.mark.backend_neutral
def test_predict_refuses_unsupported_options():
    model = Classifier(encoder(), ["a", "b"], tokenizer=TOKENIZER)
    arrays = TOKENIZER.pack(["a b"])
    with pytest.raises(ValueError, match="`pairs`, `choices` and `probabilities` are for texts"):
        model.predict(arrays, probabilities=True)
    with pytest.raises(ValueError, match="`steps` and `callbacks` are for arrays"):
        model.predict(["a b"], steps=3)
    with pytest.raises(ValueError, match="2 texts and 1 pairs"):
        model.predict(["a", "b"], pairs=["c"])
    assert model.predict([], probabilities=True).shape == (0, 2)


def test_float16_head_uses_loss_scaling():
    model = Classifier(encoder(dtype="mixed_float16"), ["a", "b"])
    model.compile("adam")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_saved_head_loads_after_importing_keras_plm_only(tmp_path):
    model = classifier(units=2, words=word_encoder())
    model.compile(BertAdamW(1e-3))
    model.save(tmp_path / "model.keras")
    code = "import sys, keras, keras_plm; keras.saving.load_model(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path / "model.keras")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.backend_neutral
class TestUnseenLabels:
    """Labels that training lacks count as errors in `evaluate` and are excluded from the loss."""

    def test_evaluate_counts_unseen_labels_of_texts_as_errors(self):
        model = classifier()
        model.compile("sgd")
        known = texts(6)
        unseen = [Example("a b", "maybe", where="f.tsv:7"), Example("c", "never")]
        every = model.batches([*known, *unseen], training=False, batch_size=8)
        found = model.evaluate(every, verbose=0, return_dict=True)
        right = sum(a == e.label for a, e in zip(model.predict(known), known, strict=True))
        assert found["accuracy"] == pytest.approx(right / 8)
        part = model.batches(known, training=False, batch_size=6)
        loss = model.evaluate(part, verbose=0, return_dict=True)["loss"]
        assert found["loss"] == pytest.approx(6 / 8 * loss, rel=1e-5)
        with pytest.raises(ValueError, match="f.tsv:7: .*'maybe', known: no, yes"):
            model.batches(unseen)

    @pytest.mark.parametrize("head", [Tagger, CRFTagger])
    def test_evaluate_counts_unseen_tags_of_words_as_errors(self, head):
        model = head(encoder(), TAGS, tokenizer=TOKENIZER)
        model.compile("sgd")
        rows = [Example(["a", "b", "c", "d"], ["B-NEW", "O", "I-NEW", "I-NEW"])]
        rows.append(Example(["a", "b"], ["B-A", "I-A"]))
        source = model.batches(rows, training=False, batch_size=2)
        found = model.evaluate(source, verbose=0, return_dict=True)
        assert np.isfinite(found["loss"])
        if head is Tagger:
            predicted = model.predict(rows)
            expected = span_f1([e.label for e in rows], predicted)
            assert found["span_f1"] == pytest.approx(expected, abs=1e-6)
        with pytest.raises(ValueError, match="'B-NEW', known: O, B-A, I-A"):
            model.batches(rows)

    def test_evaluate_counts_unseen_choices_as_errors(self):
        model = MultipleChoice(encoder(), range(2), tokenizer=TOKENIZER)
        model.compile("sgd")
        rows = [Example("a", i, choices=["b", "c d"]) for i in (0, 1, 2)]
        source = model.batches(rows, training=False, batch_size=3)
        found = model.evaluate(source, verbose=0, return_dict=True)
        right = sum(a == e.label for a, e in zip(model.predict(rows), rows, strict=True))
        assert found["accuracy"] == pytest.approx(right / 3) and right < 3
        assert np.isfinite(found["loss"])

    @pytest.mark.backend_neutral
    @pytest.mark.parametrize("method", [FineTune, FeatureBased])
    @pytest.mark.parametrize("head", [Classifier, Tagger])
    def test_dev_set_may_contain_unseen_labels(self, method, head):
        train, dev = (texts(8), texts(4, 1)) if head is Classifier else (sentences(8), sentences(4))
        new = "new" if head is Classifier else ["B-NEW"] * len(dev[0].text)
        dev = [*dev, dataclasses.replace(dev[0], label=new)]
        fast = {"epochs": 1, "learning_rate": 1e-3, "batch_size": 8}
        fitted = method(**fast).fit(encoder(), head, TOKENIZER, train, dev)
        predicted = fitted.predict(dev)
        score = (accuracy if head is Classifier else span_f1)([e.label for e in dev], predicted)
        assert score < 1 and fitted.training_log["dev_score"] < 1
        if method is FineTune:  # the other method stores float16 features
            assert fitted.training_log["dev_score"] == pytest.approx(score)
        missing = [*dev, dataclasses.replace(dev[0], label=None)]
        with pytest.raises(ValueError, match="Either all examples have a label or none"):
            method(**fast).fit(encoder(), head, TOKENIZER, train, missing)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_tagger_refuses_mixed_tag_schemes():
    with pytest.raises(ValueError, match="one scheme.*Received: 'L-A'"):
        Tagger(encoder(), ["O", "B-A", "E-A", "S-A", "L-A"])
    rows = [*sentences(2), Example(["a", "b"], ["B-A", "PER"])]
    fast = {"epochs": 1, "learning_rate": 1e-3, "batch_size": 8}
    with pytest.raises(ValueError, match="sentence 2, word 1 .'b'.: .*Received: 'PER'"):
        FineTune(**fast).fit(encoder(), Tagger, TOKENIZER, rows)
    with pytest.raises(ValueError, match="sentence 2, word 1 .'b'.: .*Received: 'PER'"):
        FineTune(**fast).fit(encoder(), Tagger, TOKENIZER, sentences(2), rows)
    labels = ["O", "B-A", "E-A", "S-A"]
    rows = [Example(["a", "b"], ["B-A", "E-A"]), Example(["c", "d"], ["B-A", "O"], where="f:2")]
    message = "f:2, word 0 .'c'.: In IOBES .*'B-A' before 'O', the first of 1 such tags"
    for method in (FineTune(**fast), FeatureBased(**fast)):
        for given in (None, labels):
            with pytest.raises(ValueError, match=message):
                method.fit(encoder(), Tagger, TOKENIZER, rows, labels=given)
    with pytest.raises(ValueError, match=message):
        batches(rows, TOKENIZER, labels)
    batches([Example(["a", "b"], ["B-A", "X"])], TOKENIZER, ["O", "B-A", "E-A", "X"])
    released = ["O", "B-A", "I-A", "X", "[CLS]", "[SEP]"]  # labels of a released folder
    assert Tagger(encoder(), released).default_metrics()[0].name == "accuracy"
    metric = Tagger(encoder(), ["O", "B", "L", "U", "I"]).default_metrics()[0]
    assert metric.name == "span_f1"
    for labels in (["DET", "O", "B"], ["S", "O", "V"]):
        assert Tagger(encoder(), labels).default_metrics()[0].name == "accuracy"
