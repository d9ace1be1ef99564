"""`evaluate`, validation and `predict` on `Batches` return the true means, or raise an error."""

import keras
import numpy as np
import pytest

from keras_plm.data.batching import Batches
from keras_plm.data.task import Example
from keras_plm.data.translation import translation_batches
from keras_plm.heads import Classifier, MultipleChoice, Regressor, SpanFinder, Tagger
from keras_plm.heads.readers import ESIM
from keras_plm.models import BERT, GPT, NNLM, Seq2Seq, Transformer, Word2Vec
from keras_plm.pretraining import CausalLM, MaskedLM, causal_lm_batches, masked_lm_batches
from keras_plm.tokenizers import BytePair
from keras_plm.training.fit import FitsBatches, run_on
from tests.helpers.small_encoders import (
    LABELS,
    TAGS,
    TOKENIZER,
    classifier,
    encoder,
    sentences,
    texts,
)
from tests.helpers.small_passages import answers

SMALL = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}


def choices():
    rows = [" ".join("abcdefgh"[: 1 + i % 8]) for i in range(33)]
    return [Example("a", i % 3, choices=[row, "b", "c d"]) for i, row in enumerate(rows)]


def cases():
    """Returns models and their training batches, from 33 rows of many lengths."""
    reads = {"max_sequence_length": 48}
    yield "classifier", lambda: (m := classifier(), m.batches(texts(33)))
    yield "tagger", lambda: (
        m := Tagger(encoder(**reads), TAGS, TOKENIZER),
        m.batches([Example(e.text * (1 + i % 5), e.label * (1 + i % 5))
                   for i, e in enumerate(sentences(33))], batch_size=8),
    )  # fmt: skip
    scores = [Example(e.text, float(i % 6)) for i, e in enumerate(texts(33))]
    yield "regressor", lambda: (
        m := Regressor(encoder(), [0.0, 5.0], TOKENIZER), m.batches(scores)
    )  # fmt: skip
    yield "multiple choice", lambda: (
        m := MultipleChoice(encoder(**reads), [0, 1, 2], TOKENIZER), m.batches(choices())
    )  # fmt: skip
    yield "span finder", lambda: (
        m := SpanFinder(encoder(**reads), tokenizer=TOKENIZER), m.batches(answers(), batch_size=8)
    )  # fmt: skip
    yield (
        "next word",
        lambda: (
            m := NNLM(7, order=3, embedding_dim=4, hidden_dim=5),
            m.batches(np.random.default_rng(0).integers(2, 7, 33), batch_size=32),
        ),
    )
    text = ["a b c d e f g h", "b a", "d c b a d e", "a c"] * 8 + ["g h"]
    pieces = BytePair(["[PAD]", "[UNK]", "[BOS]", "[EOS]", " ", *"abcdefgh"], [])
    yield (
        "recurrent translator",
        lambda: (
            Seq2Seq(len(pieces), embedding_dim=4, hidden_dim=6),
            translation_batches(text, text[::-1], pieces, batch_size=16),
        ),
    )
    yield (
        "transformer",
        lambda: (
            Transformer(len(pieces), **SMALL, max_sequence_length=64),
            translation_batches(text, text[::-1], pieces, batch_size=16),
        ),
    )


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            make, id=name, marks=[] if name == "next word" else pytest.mark.backend_neutral
        )
        for name, make in cases()
    ],
)
def test_evaluate_on_training_batches_returns_true_means(make):
    """Loss and metric are means over real rows and words of the model's outputs."""
    model, source = make()
    model.compile("sgd")
    losses, hits = [], []
    for number in range(len(source)):
        _, rows = source.plan(0)[number]
        x, y, weights = source.collate(rows[rows >= 0], source.plan(0)[number][0],
                                       np.random.default_rng(0), 0)  # fmt: skip
        found = model.predict_on_batch(x)
        real = np.ones(np.shape(y), bool) if weights is None else weights > 0
        if isinstance(model, Regressor):
            losses += np.square(np.reshape(found, -1) - np.reshape(y, -1))[np.ravel(real)].tolist()
            continue
        found = found - found.max(axis=-1, keepdims=True)
        logs = found - np.log(np.exp(found).sum(axis=-1, keepdims=True))
        of_labels = np.take_along_axis(logs, y[..., None].astype(int), -1)[..., 0]
        losses += (-of_labels[real]).tolist()
        hits += (logs.argmax(axis=-1) == y)[real].tolist()
    for given in (source, source.for_evaluation()):
        before = given.step
        reported = model.evaluate(given, verbose=0, return_dict=True)
        assert reported["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        if "accuracy" in reported:
            assert reported["accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)
        if "squared_error" in reported:  # scores are from 0 to 5, but the loss is on fractions
            assert reported["squared_error"] == pytest.approx(25 * np.mean(losses), rel=1e-4)
        assert given.step == before
    trained = model.fit(source, validation_data=source, epochs=1, verbose=0).history
    after = model.evaluate(source, verbose=0, return_dict=True)
    for name, value in after.items():
        assert trained[f"val_{name}"][0] == pytest.approx(value, rel=1e-5), name


@pytest.mark.backend_neutral
@pytest.mark.parametrize("seed", range(5))
def test_evaluated_accuracy_equals_that_of_the_predictions(seed):
    keras.utils.set_random_seed(seed)
    model, dev = classifier(), texts(33, seed)
    model.compile("sgd")
    right = np.mean([a == e.label for a, e in zip(model.predict(dev), dev, strict=True)])
    _, accuracy = model.evaluate(model.batches(dev, seed=seed), verbose=0)
    assert accuracy == pytest.approx(right, abs=1e-6)


@pytest.mark.full
def test_shapes_of_text_positions_may_vary_between_batches():
    """TensorFlow would derive the signature from the first two batches."""
    model = Classifier(encoder(max_sequence_length=64), LABELS, TOKENIZER, reader=ESIM(3))
    model.compile("sgd")
    sizes = [(2, 10)] * 8 + [(12, 12)] * 8 + [(40, 2)] * 8
    dev = [Example(" ".join("a" * n), LABELS[n % 2], " ".join("b" * m)) for n, m in sizes]
    source = model.batches(dev, training=False, batch_size=8)
    shapes = [source[i][0]["first_positions"].shape for i in range(len(source))]
    assert shapes[0] == shapes[1] != shapes[2]
    _, accuracy = model.evaluate(source, verbose=0)
    right = np.mean([a == e.label for a, e in zip(model.predict(dev), dev, strict=True)])
    assert accuracy == pytest.approx(right, abs=1e-6)
    history = model.fit(model.batches(dev), validation_data=source, verbose=0).history
    assert np.isfinite(history["val_loss"][0])


@pytest.mark.backend_neutral
def test_evaluate_of_pretraining_returns_true_means(tmp_path):
    from keras_plm.data.corpus import TokenStream

    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 9))) for _ in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(x if i % 5 else "\n" for i, x in enumerate(lines)))
    stream = TokenStream.build([tmp_path / "text.txt"], TOKENIZER, tmp_path / "s", "lines")
    bert = BERT(len(TOKENIZER), **SMALL, max_sequence_length=32)
    model = MaskedLM(bert)
    model.compile("sgd")
    source = masked_lm_batches(stream, TOKENIZER, 32, batch_size=16, short_sequence_rate=0.5)
    assert len(source.buckets) > 1  # otherwise all words have the same weight anyway
    hits = []
    for i in range(len(held := source.for_evaluation())):
        x, y, weights = held[i]
        guesses = model.predict_on_batch(x)["masked_lm"].argmax(axis=-1)
        hits += (guesses == y["masked_lm"])[weights["masked_lm"] > 0].tolist()
    found = model.evaluate(source, verbose=0, return_dict=True)
    assert found["masked_lm_accuracy"] == pytest.approx(np.mean(hits), abs=1e-6)

    model = CausalLM(GPT(len(TOKENIZER), **SMALL, max_sequence_length=8))
    model.compile("sgd")
    source = causal_lm_batches(stream, TOKENIZER, 8, batch_size=32)
    losses = [x for rows, x in run_on(model, source)]
    found = model.evaluate(source, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(np.concatenate(losses).mean(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-5)


def plain_model():
    inputs = keras.Input((None,), name="row")
    mean = keras.ops.mean(inputs, axis=1, keepdims=True)
    model = keras.Model({"row": inputs}, keras.layers.Dense(1)(mean))
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    return model


def numbered(lengths, **options):
    """Returns batches that contain only row numbers."""

    def collate(rows, length, rng, epoch):
        x = {"row": np.repeat(rows[:, None], length, 1).astype("float32")}
        return x, rows.astype("int32"), None

    return Batches(lengths, collate, **{"batch_size": 4, **options})


def test_plain_keras_models_refuse_to_evaluate_training_batches():
    model, lengths = plain_model(), [3, 9, 4, 2, 5]
    training, held_out = numbered(lengths), numbered(lengths, training=False)
    with pytest.raises(ValueError, match="create these batches with `training=False`"):
        model.evaluate(training, verbose=0)
    with pytest.raises(ValueError, match="create these batches with `training=False`"):
        model.fit(training, validation_data=training, shuffle=False, verbose=0)
    held_out.class_weight = np.ones(5)
    with pytest.raises(ValueError, match="without `class_weight`"):
        model.evaluate(held_out, verbose=0)
    held_out.class_weight = None
    model.fit(training, validation_data=held_out, shuffle=False, verbose=0)
    weights, bias = (float(w.item()) for w in model.get_weights())
    errors = np.arange(5) * (weights - 1) + bias
    loss, mae = model.evaluate(held_out, verbose=0)
    assert loss == pytest.approx(np.mean(errors**2), rel=1e-5)
    assert mae == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)


class Fits(FitsBatches, keras.Model):
    pass


@pytest.mark.backend_neutral
def test_predict_returns_rows_in_order_or_raises():
    for kind in (keras.Model, Fits):
        model = plain_model()
        model = kind(model.input, model.output)
        for wrong in (
            numbered([9, 3, 4, 2]),  # shuffled, and sorted by length
            numbered([9, 3, 4, 2], training=False),
            numbered([3, 3, 3, 3, 3], training=False),  # padded
        ):
            with pytest.raises(ValueError, match="in the order of the rows"):
                model.predict(wrong, verbose=0)
        held_out = numbered([3] * 5, training=False, fill_last=False)
        wanted = model.predict({"row": np.arange(5.0)[:, None]}, verbose=0)
        np.testing.assert_allclose(model.predict(held_out, verbose=0), wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="give the examples themselves"):
        classifier().predict(classifier().batches(texts(3)))
    # `run_on` returns the rows that it read: each once, even if training is within an epoch.
    source = numbered([9, 3, 4, 2, 5, 6])
    source.step = 1
    rows = np.concatenate([rows for rows, _ in run_on(model, source)])
    assert sorted(rows.tolist()) == list(range(6))


@pytest.mark.backend_neutral
def test_callbacks_receive_the_true_validation_accuracy():
    class Noted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found = self.model.predict(dev)
            right = np.mean([a == e.label for a, e in zip(found, dev, strict=True)])
            assert logs["val_accuracy"] == pytest.approx(right, abs=1e-6)

    model, dev = classifier(dropout=0.0), texts(33, seed=5)
    model.compile(keras.optimizers.Adam(1e-2))
    source = model.batches(texts(33), class_weight={"yes": 3.0})
    model.fit(source, validation_data=model.batches(dev), epochs=3, callbacks=[Noted()], verbose=0)
    assert isinstance(model, Classifier) and model.labels == LABELS
    model = Word2Vec(6, hidden_dim=4, window=2, row_length=8, noise_words=2)
    model.compile()
    source = model.batches(np.array([3, 4, 5, 2] * 50), tokens_per_batch=32, sample=None)
    assert model.evaluate(source, verbose=0) == model.evaluate(source.for_evaluation(), verbose=0)
