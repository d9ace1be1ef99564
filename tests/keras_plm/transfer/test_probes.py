"""Linear probes: many linear heads in one fit equal separate fits."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_plm.data import Example
from keras_plm.heads import Classifier, CRFTagger, Regressor, SpanFinder, Tagger
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import FeatureBased, FeatureStore, default_metric
from keras_plm.transfer.probing.probes import (
    Probe,
    ProbeName,
    Probes,
    can_probe,
    fit_probes,
    in_blocks,
)

LETTERS = list("abcdefgh")
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
CHOICES = ("last", "elmo_mix", "concat_last_four", "mean_all", "layer_2")
METHOD = FeatureBased(epochs=3, batch_size=8, dropout=0.0)


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(0)
    return BERT(len(TOKENIZER), 4, 2, 8, 12, max_sequence_length=24)


def texts():
    rng = np.random.default_rng(0)
    return [list(rng.choice(LETTERS, rng.integers(2, 9))) for _ in range(60)]


def nearness(y_true, y_pred):
    """A metric without near ties, unlike a correlation of values at one end of their range."""
    return -float(np.abs(np.subtract(y_true, y_pred)).mean())


def tag(letter):
    return "B-X" if letter in "abc" else "B-Y" if letter in "de" else "O"


EXAMPLES = {
    Tagger: lambda: [Example(words, [tag(word) for word in words]) for words in texts()],
    Classifier: lambda: [Example(" ".join(w), "yes" if "a" in w else "no") for w in texts()],
    Regressor: lambda: [Example(" ".join(w), float(w.count("a"))) for w in texts()],
    SpanFinder: lambda: [Example("a", [w[1]], pair=" ".join(w), starts=[2]) for w in texts()[:24]],
}


def parts(head, encoder, folder, method=METHOD):
    """`(stores, train, dev, labels, metric)` as `fit_probes` takes them."""
    examples = EXAMPLES[head]()
    train, dev = examples[: len(examples) * 3 // 4], examples[len(examples) * 3 // 4 :]
    pool = method.store_pool(head)
    stores = [FeatureStore.build(folder, encoder, TOKENIZER, some, pool) for some in (train, dev)]
    labels = head.labels_of(train)
    metric = nearness if head is Regressor else default_metric(head, labels, dev)
    return stores, train, dev, labels, metric


def fitted(method, head, found, rates, seeds):
    (one,) = fit_probes(method, head, *found, rates, seeds)
    return one


@pytest.mark.compiles("Regressor", "SpanFinder")
@pytest.mark.parametrize("head", EXAMPLES, ids=lambda head: head.__name__)
def test_probe_equals_a_separate_fit_on_the_same_batches(encoder, tmp_path, head):
    stores, train, dev, labels, metric = found = parts(head, encoder, tmp_path)
    rates = {name: [1e-3, 3e-2] for name in CHOICES}
    model, probes = fitted(METHOD, head, found, rates, [0, 5])
    untrained = Probes(head, labels, stores[0].array.shape[1:], rates, [0, 5], dropout=0.0)
    arrays, truth = untrained.weight_arrays(), [example.label for example in dev]
    assert [*probes] == model.names and len(probes) == 20
    for i, (name, probe) in enumerate(probes.items()):
        if i % 3 and name.layers != "elmo_mix":
            continue  # a third is enough
        begun = untrained.layout.of_probe(arrays, i // 10, i % 10)
        network = Probe(probe.choice, begun, {}).task_network(head, labels, 5, dropout=0.0)
        method = dataclasses.replace(METHOD, layers=name.layers, learning_rate=name.learning_rate)
        targets = head.targets(train, labels, stores[0].windows)
        source = stores[0].batches(method.layers, targets, batch_size=8, seed=0)

        def score():
            return metric(truth, method.predict(head, network, stores[1], labels))  # noqa: B023

        log = method._train(network, source, score, (), 0, head.default_loss())
        kernel, bias = network.get_layer("logits").get_weights()
        np.testing.assert_allclose(
            probe.arrays["kernel"].reshape(kernel.shape), kernel, rtol=1e-4, atol=1e-5
        )
        if head is not SpanFinder:  # its softmax over tokens does not depend on the bias
            np.testing.assert_allclose(probe.arrays["bias"], bias, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(probe.log["dev_scores"], log["dev_scores"], rtol=1e-3, atol=1e-6)
        mixes = network.mixing_weights()
        assert probe.mixing_weights().keys() == mixes.keys()
        for place, mix in mixes.items():
            own = probe.mixing_weights()[place]
            np.testing.assert_allclose(own["weights"], mix["weights"], atol=1e-4)
            np.testing.assert_allclose(own["gamma"], mix["gamma"], atol=1e-4)
        again = probe.task_network(head, labels, 5)
        (predicted,) = model.predict_labels(stores[1], labels, [name])
        alone = method.predict(head, again, stores[1], labels)
        if head is Regressor:
            np.testing.assert_allclose(predicted, alone, atol=1e-5)
        else:
            assert predicted == alone


@pytest.mark.full
def test_probe_is_independent_of_other_probes_in_its_fit(encoder, tmp_path):
    """With dropout, whose masks are a function of seed and step."""
    method = dataclasses.replace(METHOD, dropout=0.3)
    found = parts(Tagger, encoder, tmp_path, method)
    _, many = fitted(method, Tagger, found, {n: [1e-3, 3e-2] for n in CHOICES}, [0, 5])
    _, one = fitted(method, Tagger, found, {"elmo_mix": [3e-2]}, [5])
    ((name, probe),) = one.items()
    assert name == ProbeName("elmo_mix", 3e-2, 5)
    for key, array in probe.arrays.items():
        np.testing.assert_allclose(many[name].arrays[key], array, rtol=1e-2, atol=1e-3)
    other = many[name._replace(seed=0)].arrays["kernel"]
    assert not np.allclose(other, probe.arrays["kernel"])


@pytest.mark.backend_neutral
def test_diverged_probe_does_not_change_other_probes(encoder, tmp_path):
    stores, *others = parts(Classifier, encoder, tmp_path)
    _, alone = fitted(METHOD, Classifier, (stores, *others), {"last": [1e-2]}, [0])
    _, found = fitted(METHOD, Classifier, (stores, *others), {"last": [1e-2, 1e38]}, [0])
    right, wrong = found.values()
    assert wrong.log["dev_score"] is None and "training diverged" in wrong.log["error"]
    (only,) = alone.values()
    np.testing.assert_allclose(right.arrays["kernel"], only.arrays["kernel"], rtol=1e-4)
    assert right.log["dev_scores"] == only.log["dev_scores"]


@pytest.mark.backend_neutral
def test_large_fits_are_split(encoder, tmp_path):
    rates = {"last": [1, 2], "layer_1": [1, 2], "layer_2": [1]}
    blocks = [(list(block), seeds) for block, seeds in in_blocks(rates, [0, 1, 2], 10, 30, 80)]
    assert blocks == [
        (["last", "layer_1"], [0, 1]), (["layer_2"], [0, 1]),
        (["last", "layer_1", "layer_2"], [2]),
    ]  # fmt: skip


@pytest.mark.backend_neutral
def test_can_probe_refuses_unsupported_settings(encoder, tmp_path):
    stores, *_ = parts(Tagger, encoder, tmp_path)
    assert can_probe(METHOD, Tagger, ["O", "B-X"], stores[0])
    for change in ({"reader": "bilstm"}, {"feature_dropout": 0.1}):
        other = dataclasses.replace(METHOD, **change)
        assert not can_probe(other, Tagger, ["O", "B-X"], stores[0])
    mix = FeatureBased(layers="mix", penalty=0.1)
    assert not can_probe(mix, Tagger, ["O", "B-X"], stores[0])
    assert not can_probe(METHOD, SpanFinder, ["start", "end", "no answer"], stores[0])
    assert not can_probe(METHOD, CRFTagger, ["O", "B-X"], stores[0])
