"""Comparison of all layer choices of a frozen encoder on one task."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_plm.data.task import Example, as_examples, cut_dev_set
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import as_names
from keras_plm.heads.head import Head
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.transfer._feature_rows import TOKENS
from keras_plm.transfer.feature_based import FeatureBased
from keras_plm.transfer.feature_store import FeatureStore, fitting
from keras_plm.transfer.layer_choices import choice_name, distinct_choices, layer_choice
from keras_plm.transfer.method import check_head, default_metric
from keras_plm.transfer.probing.probes import can_probe, fit_probes


def compare_layers(
    encoder: Encoder,
    tokenizer: SubwordTokenizer,
    examples: Sequence[Example] | Mapping[str, Sequence[Example]],
    head: type[Head],
    method: FeatureBased | None = None,
    choices: Sequence[str] | None = None,
    seeds: int = 3,
    metric: Callable[[Any, Any], float] | None = None,
    store: str | os.PathLike | None = None,
    progress: Callable[[dict[str, Any]], Any] | None = None,
    words: WordVectors | None = None,
) -> list[dict[str, Any]]:
    """Scores every choice of layers of a frozen encoder on one task.

    The encoder runs once over the examples. Linear heads of all choices and seeds are then trained
    in one fit, other readers one after the other.

    Args:
        encoder, tokenizer: The encoder and its tokenizer.
        examples: A dict with `"train"`, `"dev"` (chooses the best epoch) and `"test"` (gives the
            scores); or a list, which is split 70/15/15 by group.
        head: Class of the head: `Classifier`, `Regressor`, `Tagger` or `SpanFinder`.
        method: A `FeatureBased` with all other settings; by default `FeatureBased()`.
        choices: Names of choices; by default all distinct ones, see `distinct_choices`.
        seeds: Number of seeds.
        metric: `(y_true, y_pred) -> float`; by default the head's.
        store: Folder for features, kept for later calls; by default a temporary folder.
        progress: Function to call with each finished row.
        words: A `WordVectors` next to the encoder, as in `FeatureBased.fit`.

    Returns:
        A list of dicts, one per choice: `layers`, `mean`, `deviation` (between seeds) and `scores`.

    Raises:
        FloatingPointError: If training diverges; it names the choice and the seed.

    >>> import numpy as np
    >>> from keras_plm.data import Example
    >>> from keras_plm.heads import Classifier
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> examples = [Example("fine film", "good"), Example("dull film", "bad")] * 4
    >>> splits = dict.fromkeys(("train", "dev", "test"), examples)
    >>> method = FeatureBased(epochs=1)
    >>> table = compare_layers(encoder, encoder.tokenizer(), splits, Classifier, method, seeds=1)
    >>> [(row["layers"], len(row["scores"])) for row in table]
    [('embeddings', 1)]
    """
    check_head(head)
    check_encoder(encoder, tokenizer)
    check_whole(seeds, "seeds", least=1)
    if not isinstance(method, (FeatureBased, type(None))):
        raise TypeError(f"`method` must be a `FeatureBased`. Received: method={method!r:.60}")
    choices = None if choices is None else as_names(choices, "choices")
    if not isinstance(examples, dict):
        examples = cut_dev_set(as_examples(examples), 0.15, 0.15)
    missing = {"train", "dev", "test"} - examples.keys()
    if missing:
        raise ValueError(
            "`examples` must be a list, or a dict with 'train', 'dev' and 'test'. "
            f"Received: {', '.join(map(repr, examples))}"
        )
    method = method or FeatureBased()
    train, dev, test = (as_examples(examples[split], split) for split in ("train", "dev", "test"))
    tokenizer = fitting(tokenizer, encoder)
    method.check(head, train, tokenizer, words)
    labels = head.labels_of(train)
    metric = metric or default_metric(head, labels, [*dev, *test])
    for i, example in enumerate(test):
        head.target(example, labels, training=False, number=i)  # raises for one without a label
    truth = [example.label for example in test]
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = temporary if store is None else store
        pool = method.store_pool(head)
        stores = [
            FeatureStore.build(folder, encoder, tokenizer, part, pool, method.feature_gb)
            for part in (train, dev, test)
        ]
        tokens = TOKENS if head.per_token else None
        word_stores = method.word_stores(
            folder, words, encoder, tokenizer, (train, dev, test), tokens
        )
        names = [choice_name(name) for name in choices or distinct_choices(encoder)]
        parts = stores[:2], train, dev, labels, metric
        if words is None and can_probe(method, head, labels, stores[0]):
            predicted = _of_probes(method, head, parts, stores[2], names, seeds)
        else:
            predicted = _of_readers(method, head, parts, stores[2], names, seeds, word_stores)
        for name in names:
            scores = [metric(truth, predicted(name, seed)) for seed in range(seeds)]
            row = {
                "layers": name,
                "mean": float(np.mean(scores)),
                "deviation": float(np.std(scores, ddof=1)) if seeds > 1 else 0.0,
                "scores": scores,
            }
            table.append(row)
            if progress is not None:
                progress(row)
        del stores, word_stores, predicted, parts
    return table


def _of_probes(method, head, parts, test, names, seeds):
    """Returns `predicted(name, seed)` of linear heads that one fit trains."""
    rates, found = dict.fromkeys(names, [method.learning_rate]), {}
    for model, probes in fit_probes(method, head, *parts, rates, range(seeds)):
        predicted = model.predict_labels(test, parts[3])
        for (name, probe), labels in zip(probes.items(), predicted, strict=True):
            diverged = probe.log["dev_score"] is None
            found[name.layers, name.seed] = None if diverged else labels

    def predicted(name, seed):
        if found[name, seed] is None:
            raise FloatingPointError(
                f"layers={name}, seed={seed}: Outputs must be finite, and training diverged: "
                f"choose a lower learning rate. Received: learning_rate={method.learning_rate:g}"
            )
        return found[name, seed]

    return predicted


def _of_readers(method, head, parts, test, names, seeds, words):
    """Returns `predicted(name, seed)`, which trains one task network."""
    stores, train, dev, labels, metric = parts

    def predicted(name, seed):
        reader = dataclasses.replace(method, seed=seed, **_with_layers(method, name))
        try:
            network, _ = reader.fit_reader(
                head, stores, train, dev, labels, metric, words=None if words is None else words[:2]
            )
            of_test = None if words is None else words[2]
            return reader.predict(head, network, test, labels, of_test)
        except FloatingPointError as error:
            raise FloatingPointError(f"layers={name}, seed={seed}: {error}") from error

    return predicted


def _with_layers(method, name):
    """Returns the fields of a `FeatureBased` that change with the choice of layers."""
    mixes = layer_choice(name).combine == "mix"
    return {"layers": name} | ({} if mixes else {"penalty": 0.0, "mix_norm": False})
