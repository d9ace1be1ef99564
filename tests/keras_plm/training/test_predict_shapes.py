"""Prediction, evaluation and feature extraction use few shapes, because JAX compiles each."""

import gc
import weakref

import numpy as np
import pytest

from keras_plm.data.batching import Batches, few_lengths
from keras_plm.data.examples import batches
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, MultipleChoice, Regressor, SpanFinder, Tagger
from keras_plm.heads.readers import ESIM
from keras_plm.models import BERT, ELMo
from keras_plm.tokenizers import Characters
from keras_plm.training.fit import run_on
from keras_plm.transfer.extraction import extract_features
from keras_plm.transfer.feature_store import _EVERY_LAYER, FeatureStore
from tests.helpers.checks import assert_close
from tests.helpers.small_encoders import LABELS, TAGS, TOKENIZER

pytestmark = pytest.mark.backend_neutral
COUNTS = range(3, 107, 8)  # words of a text: 13 lengths


def text(count):
    return " ".join("abcdefgh"[i % 8] for i in range(count))


def encoder():
    return BERT(len(TOKENIZER), 1, 2, 8, 12, max_sequence_length=160)


def elmo():
    return ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)


HEADS = {
    "classifier": (lambda: Classifier(encoder(), LABELS, TOKENIZER), text, {}),
    "elmo": (lambda: Classifier(elmo(), LABELS, Characters()), text, {}),
    "regressor": (lambda: Regressor(encoder(), [0, 5], TOKENIZER), text, {}),
    "tagger": (lambda: Tagger(encoder(), TAGS, TOKENIZER), lambda n: text(n).split(), {}),
    "choices": (
        lambda: MultipleChoice(encoder(), [0, 1], TOKENIZER),
        text,
        {"choices": [["a", "b c"]]},
    ),
    "spans": (
        lambda: SpanFinder(encoder(), tokenizer=TOKENIZER, max_length=160),
        lambda n: "a",
        {"pairs": text},
    ),
    "two texts": (
        lambda: Classifier(encoder(), LABELS, TOKENIZER, reader=ESIM(3)),
        lambda n: text(n // 2),
        {"pairs": lambda n: text(n // 2 + 1)},
    ),
}


def watched(model, monkeypatch):
    """Records the shapes of a model's inputs, in order."""
    seen, reads = [], model.predict_on_batch

    def predict_on_batch(x):
        seen.append(tuple(sorted((name, np.shape(array)) for name, array in x.items())))
        return reads(x)

    monkeypatch.setattr(model, "predict_on_batch", predict_on_batch)
    return seen


@pytest.mark.parametrize("name", HEADS)
def test_predict_uses_few_shapes_for_many_lengths(name, monkeypatch):
    make, text_of, more = HEADS[name]
    model = make()
    seen, score = watched(model, monkeypatch), name != "regressor"
    found = []
    for count in COUNTS:  # a call for each
        others = {k: [v(count)] if callable(v) else v for k, v in more.items()}
        found.append(model.predict([text_of(count)], probabilities=score, **others)[0])
    assert len(set(seen)) <= 6
    # All texts at once, without a limit on shapes.
    many = {k: [v(n) for n in COUNTS] if callable(v) else v * 13 for k, v in more.items()}
    together = model.predict([text_of(n) for n in COUNTS], probabilities=score, **many)
    exact = list(range(4, 161))
    examples = model._as_examples([text_of(n) for n in COUNTS], many.get("pairs"),
                                  many.get("choices"))  # fmt: skip
    source = model.batches(examples, training=False, batch_size=1, buckets=exact)
    logits = [None] * 13
    for rows, outputs in run_on(model, source):
        for row, output in zip(rows, outputs, strict=True):
            logits[row] = output
    alone = model.decode(model.labels, logits, source.source, score, **model.decode_options)
    for one, two, three in zip(found, together, alone, strict=True):
        if name == "spans":
            one, two, three = (
                [(s.text, s.start) for s in spans[:3]] for spans in (one, two, three)
            )
            assert one == two == three
        else:
            assert_close(one, three, atol=1e-5)
            assert_close(two, three, atol=1e-5)


@pytest.mark.quick_cases("None-encoder")
@pytest.mark.parametrize("kind", [encoder, elmo])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_extract_features_uses_few_shapes_for_many_lengths(kind, pool, monkeypatch):
    model = kind()
    tokenizer = TOKENIZER if kind is encoder else Characters()
    extract_features(model, tokenizer, [text(3)], pool=pool)
    _, reader = _EVERY_LAYER[model]
    seen = watched(reader, monkeypatch)
    for count in COUNTS:
        (found,) = extract_features(model, tokenizer, [text(count)], pool=pool)
        packed = tokenizer.pack([text(count)])
        outputs = np.asarray(
            model.predict_on_batch({k: packed[k] for k in model.input})["sequence"]
        )
        real = packed["padding_mask"][0]
        words = outputs[0, real][1:-1] if pool is None else outputs[0, real].mean(axis=0)
        assert_close(found, words, atol=2e-3)  # float16
    assert len(set(seen)) <= 6 and len(seen) == len(COUNTS)
    assert _EVERY_LAYER[model][1] is reader  # all calls share the compiled function


def test_features_depend_on_the_current_weights():
    for kind, tokenizer in ((encoder, TOKENIZER), (elmo, Characters())):
        model = kind()
        before = extract_features(model, tokenizer, ["a b c"], pool="mean")
        model.set_weights([weight * 1.5 for weight in model.get_weights()])
        after = extract_features(model, tokenizer, ["a b c"], pool="mean")
        again = kind()
        again.set_weights(model.get_weights())
        assert np.abs(after - before).max() > 1e-4
        assert_close(after, extract_features(again, tokenizer, ["a b c"], pool="mean"))
        gone = weakref.ref(again)
        del again
        gc.collect()
        assert gone() is None  # cached models do not keep the encoder alive


def test_feature_store_uses_few_shapes_for_many_lengths(tmp_path):
    model, shapes = encoder(), set()
    for count in COUNTS:
        store = FeatureStore.build(tmp_path, model, TOKENIZER, [text(count)])
        source = store.batches("last", training=False, tokens_per_batch=8192)
        shapes |= {source[i][0]["features"].shape for i in range(len(source))}
        pooled = FeatureStore.build(tmp_path, model, TOKENIZER, [text(count)], "mean")
        source = pooled.batches("last", training=False, batch_size=1)
        assert source[0][0]["features"].shape[1] == 1
    assert len(shapes) <= 6


def test_evaluation_batches_have_little_padding():
    assert few_lengths(512) == [16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    rng = np.random.default_rng(0)
    for lengths, most in ((rng.integers(100, 513, 2000), 1.25), (np.full(1000, 40), 1.03)):
        shapes = set()
        for part in np.split(lengths, 2):
            source = Batches(part, None, training=False, tokens_per_batch=4096, longest=512,
                             fill_last=False)  # fmt: skip
            plan = source.plan(0)
            shapes |= {(length, len(rows)) for length, rows in plan}
            assert sum(length * len(rows) for length, rows in plan) < most * part.sum()
            for length, rows in plan:
                assert part[rows[rows >= 0]].max() <= length <= 512
        assert len(shapes) <= 8
    # 55 rows of 72 tokens. A batch of length 96 has room for 42 of them.
    (only,) = Batches([72] * 55, None, training=False, tokens_per_batch=4096).plan(0)
    assert (only[0], len(only[1])) == (72, 56)


def test_evaluation_of_labelled_texts_has_few_shapes():
    shapes = set()
    for count in COUNTS:
        source = batches([Example(text(count), "no")], TOKENIZER, LABELS, training=False)
        shapes |= {source[i][0]["token_ids"].shape for i in range(len(source))}
    assert shapes <= {(32, length) for length in few_lengths(128)}
