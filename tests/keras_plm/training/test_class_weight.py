"""`class_weight` takes label names or ids, on `Batches` and on arrays, or raises an error."""

import keras
import numpy as np
import pytest

from keras_plm.data.class_weight import class_weights
from keras_plm.data.examples import batches
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, Regressor, SpanFinder, Tagger
from tests.helpers.small_encoders import (
    LABELS,
    TAGS,
    TOKENIZER,
    classifier,
    encoder,
    sentences,
    texts,
)


def compiled(model):
    model.compile(keras.optimizers.SGD(0.0))
    return model


def losses_of(model, x, y):
    """Returns -log p of each label, from the logits."""
    found = model.predict_on_batch(x)
    logs = found - np.log(np.exp(found).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(logs, y[..., None].astype(int), -1)[..., 0]


@pytest.mark.compiles
def test_class_weight_by_label_name_applies_to_arrays():
    model = compiled(Classifier(encoder(dropout=0.0), LABELS, TOKENIZER, dropout=0.0))
    source = model.batches(texts(16), batch_size=16, buckets=1)
    x, y, _ = source[0]
    losses, weights = losses_of(model, x, y), np.where(y == 1, 2.0, 1.0)
    wanted = pytest.approx((losses * weights).mean(), rel=1e-4)
    assert losses.mean() != wanted
    options = {"class_weight": {"yes": 2.0}, "verbose": 0, "batch_size": 16}
    assert model.fit(x, y, **options).history["loss"][0] == wanted
    assert model.fit(x, y=y, **options).history["loss"][0] == wanted
    assert model.train_on_batch(x, y, class_weight={"yes": 2.0})[0] == wanted
    ones = np.ones(16, "float32")
    assert model.fit(x, y, sample_weight=ones, **options).history["loss"][0] == wanted
    assert model.fit(source, class_weight={"yes": 2.0}, verbose=0).history["loss"][0] == wanted


@pytest.mark.backend_neutral
def test_words_of_a_class_with_weight_0_count_in_span_f1():
    model = compiled(Tagger(encoder(dropout=0.0), TAGS, TOKENIZER, dropout=0.0))
    source = model.batches(sentences(8), batch_size=8, buckets=1)
    plain = model.fit(source, verbose=0).history
    zero = model.fit(source, class_weight={"O": 0.0}, verbose=0).history
    assert zero["span_f1"] == plain["span_f1"] and zero["loss"] != plain["loss"]
    weights = {name: 0.0 for name in TAGS}
    assert model.fit(source, class_weight=weights, verbose=0).history["loss"][0] < 1e-20


@pytest.mark.backend_neutral
@pytest.mark.parametrize("kind", [Tagger, CRFTagger])
def test_class_weight_applies_to_tags(kind):
    model = compiled(kind(encoder(dropout=0.0), TAGS, TOKENIZER, dropout=0.0))
    source = model.batches(sentences(8), batch_size=8, buckets=1)
    x, y, mask = source[0]
    weights = np.where(y == 1, 3.0, 1.0).astype("float32") * (mask > 0)
    options = {"verbose": 0, "batch_size": 8}
    wanted = model.fit(x, y, sample_weight=weights, **options).history["loss"][0]
    given = {"sample_weight": (mask > 0).astype("float32"), "class_weight": {"B-A": 3.0}}
    assert model.fit(x, y, **given, **options).history["loss"][0] == pytest.approx(wanted, 1e-5)
    found = model.fit(source, class_weight={"B-A": 3.0}, verbose=0).history["loss"][0]
    assert found == pytest.approx(wanted * mask.max(), 1e-5)
    assert np.isfinite(model.fit(x, y, class_weight={"B-A": 3.0}, verbose=0).history["loss"][0])
    with pytest.raises(ValueError, match="give `validation_data`"):
        model.fit(x, y, class_weight={"B-A": 3.0}, validation_split=0.5, verbose=0)
    with pytest.raises(ValueError, match="make them from the examples"):
        model.fit(iter([(x, y)]), class_weight={"B-A": 3.0}, verbose=0)


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"maybe": 2.0}, "Received: 'maybe'"),
        ({2: 2.0}, "Received: 2"),
        ({-1: 2.0}, "Received: -1"),
        ({"yes": 2.0, 1: 3.0}, "each class once. Received: 1"),
        ({"yes": -1.0}, "0 or more.*'yes': -1.0"),
        ({"yes": float("nan")}, "0 or more, and finite"),
        ([1.0, 2.0], "must be a dict"),
    ],
)
def test_invalid_class_weights_are_refused(wrong, said):
    model = compiled(classifier())
    source = model.batches(texts(4), batch_size=4)
    x, y, _ = source[0]
    for attempt in (
        lambda: model.fit(x, y, class_weight=wrong, verbose=0),
        lambda: model.train_on_batch(x, y, class_weight=wrong),
        lambda: model.fit(source, class_weight=wrong, verbose=0),
        lambda: model.batches(texts(4), class_weight=wrong),
        lambda: batches(texts(4), TOKENIZER, LABELS, class_weight=wrong),
        lambda: class_weights(wrong, LABELS),
    ):
        with pytest.raises(ValueError, match=said):
            attempt()
    assert source.class_weight is None


@pytest.mark.backend_neutral
def test_models_without_classes_refuse_class_weight():
    from keras_plm.models import GloVe
    from tests.helpers.small_passages import answers

    scored = compiled(Regressor(encoder(), [0.0, 5.0], TOKENIZER))
    rows = [Example(e.text, 2.5) for e in texts(4)]
    with pytest.raises(ValueError, match="for models whose targets are classes.*Regressor"):
        scored.fit(scored.batches(rows), class_weight={0: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="for training on classes"):
        scored.batches(rows, class_weight={0: 2.0})
    with pytest.raises(ValueError, match="for training on classes.*training=False"):
        classifier().batches(texts(4), class_weight={"yes": 2.0}, training=False)
    finder = compiled(SpanFinder(encoder(max_sequence_length=48), tokenizer=TOKENIZER))
    with pytest.raises(ValueError, match="whose targets are classes.*SpanFinder"):
        finder.fit(finder.batches(answers()), class_weight={"start": 2.0}, verbose=0)
    vectors = GloVe(6, hidden_dim=4)
    pairs = vectors.batches(np.array([3, 4]), np.array([4, 5]), np.array([2.0, 1.0]))
    with pytest.raises(ValueError, match="one array of integer class ids"):
        vectors.fit(pairs, class_weight={1: 2.0}, verbose=0)
    assert pairs.class_weight is None  # as before, even after an error
