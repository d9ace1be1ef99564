"""What reading features costs: every choice of layers of one encoder pass, their store, a CRF.

`choices` reads six choices of layers from an empty store, beside one choice and the training of
five more readers alone; `features` reads all layers of a store that the system has in memory;
`crf` trains a BiLSTM tagger with a CRF and without.
"""

import functools
import tempfile

import numpy as np

import keras_plm
from benchmarks.speed.clock import Work
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, Tagger
from keras_plm.transfer import FeatureBased
from keras_plm.transfer.feature_store import FeatureStore

KINDS = ("choices", "features", "crf")
ENCODER = WEIGHTS / "bert_mini"
OURS, ONE, COPY, PLAIN = "keras_plm", "one choice, five readers", "NumPy's copy", "without CRF"
# Of BERT's table 7 those that four blocks tell apart, and ELMo's mix.
CHOICES = ("embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four",
           "elmo_mix")  # fmt: skip
TAGS = ("O", *(f"{place}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for place in "BI"))


def works(kind, settings, sentences):
    """`{name: function that gives its `Work`}` of one kind."""
    make, name = {
        "choices": (choices, f"read {len(CHOICES)} choices of layers"),
        "features": (features, "read features, all layers of BERT-mini"),
        "crf": (crf, "train tagger, BiLSTM and CRF"),
    }[kind]
    return {name: functools.partial(make, settings, sentences)}


def choices(settings, sentences):
    """Readers of six choices of layers, the encoder's pass among them; in choices per second."""
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    texts = sentences[: settings.sentences]
    train = [Example(text, "ab"[i % 2]) for i, text in enumerate(texts)]
    kept = tempfile.TemporaryDirectory()

    def read(layers, folder):
        method = FeatureBased(layers=layers, epochs=2)
        pool = method.store_pool(Classifier)
        store = FeatureStore.build(folder, encoder, tokenizer, train, pool)
        method.fit_reader(Classifier, [store], train)

    def six():
        with tempfile.TemporaryDirectory() as fresh:
            for layers in CHOICES:
                read(layers, fresh)

    def one():
        with tempfile.TemporaryDirectory() as fresh:
            read(CHOICES[0], fresh)
        for layers in CHOICES[1:]:
            read(layers, kept.name)

    return Work({ONE: lambda: one, OURS: lambda: six}, len(CHOICES), "choices", {OURS: (ONE,)})


def _store(settings, sentences, folder):
    """A store of a vector of each word, and its examples, with tags at random."""
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    rng = np.random.default_rng(settings.seed)
    words = [text.split() for text in sentences[: settings.sentences]]
    examples = [Example(row, list(rng.choice(TAGS, len(row)))) for row in words if row]
    return FeatureStore.build(folder, encoder, tokenizer, examples), examples


def features(settings, sentences):
    """All layers of all words as batches of float32, of a store in memory; in gigabytes per second.

    Counted is what is read, two bytes a number.
    """
    folder = tempfile.TemporaryDirectory()
    store, _ = _store(settings, sentences, folder.name)

    def ours():
        def turn():
            for _ in store.batches("elmo_mix", training=False, tokens_per_batch=8192):
                pass

        turn.folder = folder  # which goes with the last turn
        return turn

    def copy():
        return lambda: np.array(store.array)

    return Work({COPY: copy, OURS: ours}, store.array.nbytes / 1e9, "GB", {OURS: (COPY,)})


def crf(settings, sentences):
    """An epoch of training a BiLSTM tagger on stored features; in words per second."""
    folder = tempfile.TemporaryDirectory()
    store, examples = _store(settings, sentences, folder.name)
    labels = sorted(TAGS)
    method = FeatureBased(reader="bilstm", epochs=1)
    epochs = {}

    def maker(head):
        def turn():
            method.fit_reader(head, [store], examples, labels=labels)

        turn.folder = folder
        return lambda: turn

    epochs = {PLAIN: maker(Tagger), OURS: maker(CRFTagger)}
    return Work(epochs, int(store.counts.sum()), "words", {OURS: (PLAIN,)})
