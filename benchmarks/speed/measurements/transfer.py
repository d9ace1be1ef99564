"""Cost of frozen features: several layer choices, the feature store, and a CRF.

`choices` trains readers of six layer choices from an empty store. Its peer does so for one choice
and then trains five more readers on stored features. `features` loads all layers of a store that
is in the system's file cache. `crf` trains a BiLSTM tagger with and without a CRF. `probes` trains
linear taggers of all layer choices and four learning rates in one fit, and one after the other.
"""

import dataclasses
import tempfile

import numpy as np

import keras_plm
from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, CRFTagger, Tagger
from keras_plm.metrics import word_accuracy
from keras_plm.transfer import FeatureBased
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.probing.probes import fit_probes

SUITE = Suite("transfer", "Speed: Frozen features")
ENCODER = WEIGHTS / "bert_mini"
OURS, ONE, COPY, PLAIN = "keras_plm", "one choice, five readers", "NumPy copy", "without CRF"
SEPARATE = "separate fits"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
# ELMo's mix and the choices of BERT's table 7 that differ for an encoder of four blocks.
CHOICES = ("embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four",
           "elmo_mix")  # fmt: skip
TAGS = ("O", *(f"{place}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for place in "BI"))


@measurement(
    suite=SUITE,
    unit="choices",
    cases=lambda settings: {f"train readers of {len(CHOICES)} layer choices": {}},
    uses_sentences=True,
)
def choices(settings, inputs):
    """Training of readers of layer choices, including the pass of the encoder."""
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    texts = inputs.sentences[: settings.sentences]
    train = [Example(text, "ab"[i % 2]) for i, text in enumerate(texts)]
    kept = inputs.folder / "choices"

    def fit(layers, folder):
        method = FeatureBased(layers=layers, epochs=2)
        pool = method.store_pool(Classifier)
        store = FeatureStore.build(folder, encoder, tokenizer, train, pool)
        method.fit_reader(Classifier, [store], train)

    def six():
        with tempfile.TemporaryDirectory() as fresh:
            for layers in CHOICES:
                fit(layers, fresh)

    def one():
        with tempfile.TemporaryDirectory() as fresh:
            fit(CHOICES[0], fresh)
        for layers in CHOICES[1:]:
            fit(layers, kept)

    return Comparison({ONE: lambda: one, OURS: lambda: six}, len(CHOICES), {OURS: (ONE,)})


@measurement(
    suite=SUITE,
    unit="linear heads",
    cases=lambda settings: {f"train {len(CHOICES) * len(RATES)} linear taggers": {}},
    uses_sentences=True,
)
def probes(settings, inputs):
    """Training of linear taggers of layer choices and learning rates on stored features."""
    store, train = _store(settings, inputs, "probes")
    labels, rates = list(TAGS), dict.fromkeys(CHOICES, RATES)
    method = FeatureBased(epochs=2)
    loaded = keras_plm.load(ENCODER, dtype="float32")
    dev = FeatureStore.build(inputs.folder / "probes_dev", *loaded, train[:32])
    parts = [store, dev], train, train[:32], labels, word_accuracy

    def together():
        for _ in fit_probes(method, Tagger, *parts, rates):
            pass

    def separately():
        for layers in CHOICES:
            for rate in RATES:
                one = dataclasses.replace(method, layers=layers, learning_rate=rate)
                one.fit_reader(Tagger, *parts)

    amount = len(CHOICES) * len(RATES)
    return Comparison(
        {SEPARATE: lambda: separately, OURS: lambda: together}, amount, {OURS: (SEPARATE,)}
    )


def _store(settings, inputs, folder):
    """Returns a store with one vector per word, and its examples, with random tags."""
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    rng = np.random.default_rng(settings.seed)
    words = [text.split() for text in inputs.sentences[: settings.sentences]]
    examples = [Example(row, list(rng.choice(TAGS, len(row)))) for row in words if row]
    return FeatureStore.build(inputs.folder / folder, encoder, tokenizer, examples), examples


@measurement(
    suite=SUITE,
    unit="GB",
    cases=lambda settings: {"stored features, all layers of BERT-mini": {}},
    uses_sentences=True,
)
def features(settings, inputs):
    """All layers of all words as batches of float32, from a store of float16 in memory.

    The amount is the size of the store.
    """
    store, _ = _store(settings, inputs, "features")

    def ours():
        def run():
            for _ in store.batches("elmo_mix", training=False, tokens_per_batch=8192):
                pass

        return run

    def copy():
        return lambda: np.array(store.array)

    return Comparison({COPY: copy, OURS: ours}, store.array.nbytes / 1e9, {OURS: (COPY,)})


@measurement(
    suite=SUITE,
    unit="words",
    cases=lambda settings: {"train tagger, BiLSTM and CRF": {}},
    uses_sentences=True,
)
def crf(settings, inputs):
    """One epoch of training a BiLSTM tagger on stored features."""
    store, examples = _store(settings, inputs, "crf")
    labels = sorted(TAGS)
    method = FeatureBased(reader="bilstm", epochs=1)

    def prepare(head):
        return lambda: lambda: method.fit_reader(head, [store], examples, labels=labels)

    implementations = {PLAIN: prepare(Tagger), OURS: prepare(CRFTagger)}
    return Comparison(implementations, int(store.counts.sum()), {OURS: (PLAIN,)})
