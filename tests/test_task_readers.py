"""The task networks of the feature-based school under their heads: stored, live, saved, learned."""

import keras
import numpy as np
import pytest

import keras_plm
from benchmarks.__main__ import main
from keras_plm.heads import Classifier, CRFTagger, Regressor, SpanFinder, Tagger
from keras_plm.models import ELMo
from keras_plm.models.word_vectors import WordVectors
from keras_plm.readers import ESIM, BiDAF, BiLSTM
from keras_plm.task import Example
from keras_plm.tokenizers import Characters
from keras_plm.transfer import FeatureBased, FeatureStore, FineTune
from tests.checks import assert_close, to_numpy
from tests.test_gpt_transfer import gpt
from tests.test_heads import (
    LABELS,
    LETTERS,
    TAGS,
    TOKENIZER,
    WORDS,
    encoder,
    sentences,
    text_pairs,
    texts,
    word_encoder,
)
from tests.test_span_finder import encoder as piece_encoder
from tests.test_span_finder import made_up
from tests.test_windows import PAIRS, PIECES

FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16, "units": 3}


def elmo():
    return ELMo(units=5, projection_dim=3, filters=[[1, 2], [2, 3]], character_dim=2)


def word_vectors(width=5):
    vectors = np.random.default_rng(4).normal(size=(6, width))
    return WordVectors.from_vectors(LETTERS[:6], vectors)


def scores_of(method, head, store, readout, words=None):
    """Logits of every row of a store, by its number."""
    asks = {**method._asks, "words": words, "training": False, "batch_size": len(store)}
    source = store.batches(method.layers, buckets=1, **asks)
    logits = to_numpy(readout(source[0][0]))
    found = [None] * len(store)
    for b, row in enumerate(source.rows(0)):
        if row >= 0:
            found[row] = logits[b]
    return found


READ = {
    "bert": (encoder, TOKENIZER),
    "elmo": (elmo, Characters()),
    "vectors": (word_encoder, WORDS),
}


@pytest.mark.parametrize(
    "kind, head, options",
    [
        ("bert", Classifier, {"layers": "mix", "penalty": 0.01, "character_filters": 3}),
        ("elmo", Classifier, {"layers": "mix", "feature_dropout": 0.2, "character_filters": 3}),
        ("vectors", Regressor, {}),
    ],
    ids=["bert", "elmo", "vectors"],
)
def test_esim_predicts_as_on_the_store_and_reloads(kind, head, options, tmp_path):
    make, tokenizer = READ[kind]
    model, words = make(), word_vectors() if options else None
    train, dev = text_pairs(32), text_pairs(9, seed=1)
    # Cut in a row of twelve, and the other text's premise once more.
    dev += [Example("a b c d e f g h a b c", "no", pair="h g f e d c b"), train[0]]
    labels = LABELS
    if head is Regressor:
        train, dev = ([Example(e.text, float(e.label == "yes"), e.pair) for e in part]
                      for part in (train, dev))  # fmt: skip
        labels = (0.0, 1.0)
    method = FeatureBased(reader="esim", **FAST, **options)
    fitted = method.fit(
        model, head, tokenizer, train, dev, labels=labels, store=tmp_path, words=words
    )
    assert isinstance(fitted.reader, ESIM) and fitted.pairs == (
        "words" if kind != "bert" else False
    )
    folders = list(tmp_path.iterdir())
    store = FeatureStore.build(tmp_path, model, tokenizer, dev)
    beside = words and FeatureStore.build_words(tmp_path, words, model, tokenizer, dev)
    assert list(tmp_path.iterdir()) == folders  # those of `fit`
    if kind != "bert":  # each text once, in how many examples it stands
        alone = {text for example in dev for text in (example.text, example.pair)}
        assert len(store.array) == sum(len(text.split()) for text in alone)

    logits = np.stack(scores_of(method, head, store, fitted.readout, beside))
    if head is Regressor:
        wanted = np.clip(logits[:, 0], 0, 1)
        found = np.array(fitted.predict(dev))
    else:
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        wanted, found = (
            shares / shares.sum(axis=1, keepdims=True),
            fitted.predict(dev, probabilities=True),
        )
    assert_close(found, wanted, atol=5e-3)  # features are kept in float16
    assert np.ptp(found) > 1e-3
    firsts, seconds = [e.text for e in dev], [e.pair for e in dev]
    assert fitted.predict(firsts, pairs=seconds) == fitted.predict(dev)
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.predict(dev) == fitted.predict(dev)
    # One of many as alone: padding of both texts has no part in it.
    alone = fitted.predict(dev[2:3], **({} if head is Regressor else {"probabilities": True}))
    assert_close(np.array(alone), found[2:3], atol=1e-4)
