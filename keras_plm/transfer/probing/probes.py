"""Linear probes: all choices of layers, learning rates and seeds of a linear head in one fit.

A probe is a linear head on frozen features. `_probe_model.Probes` is the model of all of them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_plm.data.task import Example
from keras_plm.heads import CRFTagger
from keras_plm.heads.head import Head
from keras_plm.heads.span_finder import NO_ANSWER
from keras_plm.heads.task_network import COMBINES, TaskNetwork
from keras_plm.layers import LayerChoice
from keras_plm.training.schedules import WarmupLinearDecay
from keras_plm.transfer.feature_based import FeatureBased
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.layer_choices import layer_choice
from keras_plm.transfer.probing._probe_model import (
    EVERY_LAYER,
    ProbeAdamW,
    ProbeLoss,
    ProbeName,
    Probes,
)


@dataclasses.dataclass
class Probe:
    """A trained probe: the weights of its best epoch.

    Attributes:
        choice: The `LayerChoice`.
        arrays: `kernel` (n, D, K) and `bias` (K,); of a mix also `scalars` (layers,) and `gamma`.
        log: `dev_scores` by epoch, `dev_score` and `best_epoch`, `steps_per_epoch` and
            `learned_weights`.
    """

    choice: LayerChoice
    arrays: dict[str, np.ndarray]
    log: dict[str, Any]

    def mixing_weights(self) -> dict[str, dict[str, Any]]:
        """The learned mix of layers, as `TaskNetwork.mixing_weights`."""
        if "scalars" not in self.arrays:
            return {}
        shares = np.exp(self.arrays["scalars"] - self.arrays["scalars"].max())
        weights = [float(share) for share in shares / shares.sum()]
        return {"input": {"weights": weights, "gamma": float(self.arrays["gamma"])}}

    def task_network(
        self, head: type[Head], labels: Sequence[Any], layers: int, dropout: float = 0.1
    ) -> TaskNetwork:
        """Builds the task network of this probe.

        Args:
            head, labels: Class and labels of the head.
            layers: Number of layers L of the encoder, the embeddings included.
            dropout: Fraction that training dropped before the output layer.

        Returns:
            A `TaskNetwork` for `FeatureBased.model`.
        """
        kernel = self.arrays["kernel"]
        count = 1 if self.choice.combine == "mean" else len(self.choice.indices(layers))
        shape = count, kernel.shape[1]
        network = head.build_task_network(shape, len(labels), self.choice, None, dropout)
        dense = network.get_layer("logits")
        dense.set_weights([kernel.reshape(-1, kernel.shape[-1]), self.arrays["bias"]])
        if "scalars" in self.arrays:
            mix = network.get_layer(COMBINES["input"]).mix
            mix.scalars.assign(self.arrays["scalars"])
            mix.gamma.assign(self.arrays["gamma"])
        network.reader = None
        return network


class BestOfEach:
    """The weights of each probe's best epoch.

    Args:
        model: The `Probes`.
    """

    def __init__(self, model):
        self.model, self.scores = model, []
        self.best = np.full(len(model.names), -np.inf)
        self.best_epoch = np.zeros(len(model.names), int)
        self.arrays = model.weight_arrays()

    def add(self, scores):
        """Adds the scores of an epoch, (S,); NaN for a probe whose outputs are not finite."""
        self.scores.append(scores)
        better = np.nan_to_num(scores, nan=-np.inf) > self.best
        self.best[better], self.best_epoch[better] = scores[better], len(self.scores)
        seeds = len(self.arrays["bias"])
        for name, array in self.model.weight_arrays().items():
            here = better.reshape(seeds, -1)[:, self.model.layout.owners[name]]  # (G, columns)
            here = here[:, None] if name == "kernel" else here
            self.arrays[name] = np.where(here, array, self.arrays[name])

    def restore(self):
        """Sets the weights of the model to the best ones."""
        for name, array in self.arrays.items():
            self.model.arrays[name].assign(array)


def can_probe(
    method: FeatureBased, head: type[Head], labels: Sequence[Any], store: FeatureStore
) -> bool:
    """Whether `fit_probes` trains the same heads as `FeatureBased.fit_reader`."""
    others = method.feature_dropout, method.penalty, method.mix_norm
    chooses_threshold = head.per_token and NO_ANSWER in labels
    other_output = chooses_threshold or head.reads_documents or issubclass(head, CRFTagger)
    return not (method.reader != "linear" or store.pairs or any(others) or other_output)


def in_blocks(
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    bytes_of_probe: int,
    bytes_of_seed: int,
    memory: int = 1 << 30,
) -> Iterator[tuple[dict[str, Sequence[float]], list[int]]]:
    """Splits probes into fits that need at most so much memory.

    Args:
        rates, seeds: As in `fit_probes`.
        bytes_of_probe: Memory of the outputs of a probe.
        bytes_of_seed: Memory of the features of a batch under the dropout of a seed.
        memory: Largest memory of a fit, in bytes.

    Yields:
        `(rates, seeds)` of each fit: at least one choice of layers and one seed.

    >>> blocks = in_blocks({"last": [1e-3]}, seeds=[0, 1, 2], bytes_of_probe=1, bytes_of_seed=400,
    ...     memory=999)
    >>> [(len(rates), seeds) for rates, seeds in blocks]
    [(1, [0, 1]), (1, [2])]
    """
    size = max(1, memory // max(bytes_of_seed, 1))
    for start in range(0, len(seeds), size):
        part = list(seeds[start : start + size])
        block = {}
        for name, values in rates.items():
            count = (sum(map(len, block.values())) + len(values)) * len(part)
            if block and count * bytes_of_probe > memory:
                yield block, part
                block = {}
            block[name] = values
        yield block, part


def _fit(method, head, stores, train, dev, labels, metric, rates, seeds, progress):
    """Trains the probes of one block, see `fit_probes`."""
    model = Probes(head, labels, stores[0].array.shape[1:], rates, seeds, method.dropout)
    targets = head.targets(train, labels, stores[0].windows)
    source = stores[0].batches(EVERY_LAYER, targets, batch_size=method.batch_size, seed=0)
    steps = len(source)
    total = steps * method.epochs
    schedule = WarmupLinearDecay(1.0, total, int(method.warmup * total))
    optimizer = ProbeAdamW(model.layout, model.rates, schedule, method.weight_decay)
    model.compile(optimizer, loss=ProbeLoss(head.default_loss(), head.scores))

    truth, best = [example.label for example in dev], BestOfEach(model)
    for epoch in range(method.epochs):
        if progress is not None:
            progress(len(model.names), epoch + 1)
        model.train_epoch(source, epoch)
        found = model.predict_labels(stores[1], labels)
        best.add(np.array([np.nan if one is None else metric(truth, one) for one in found]))
    best.restore()
    return model, _found(model, best, steps)


def fit_probes(
    method: FeatureBased,
    head: type[Head],
    stores: Sequence[FeatureStore],
    train: Sequence[Example],
    dev: Sequence[Example],
    labels: Sequence[Any],
    metric: Callable[[Any, Any], float],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int] = (0,),
    progress: Callable[[int, int], Any] | None = None,
) -> Iterator[tuple[Probes, dict[ProbeName, Probe]]]:
    """Trains the probes of all choices of layers, learning rates and seeds.

    All are trained in one fit, or in several if they would need more than a gigabyte of memory.

    A probe equals a linear task network that reads the same batches. All probes read them in one
    order; a seed sets initial weights and dropout. A probe does not depend on the other probes of
    the fit. Every probe keeps the weights of the epoch with its best score on the dev set.

    Args:
        method: A `FeatureBased` with all other settings.
        head: Class of the head.
        stores: The `FeatureStore` of `train` and of `dev`.
        train, dev: Training examples and dev set.
        labels: Labels of the head.
        metric: `(y_true, y_pred) -> float`.
        rates: Learning rates by name of a choice of layers.
        seeds: Seeds, the same for all choices.
        progress: Function to call with the number of probes in the fit and the number of each
            epoch, from 1, before the epoch begins.

    Yields:
        `(model, probes)` of each fit: the `Probes`, and each `Probe` by its name. The log of a
        probe that diverged has the `dev_score` `None`, and an `error`.
    """
    outputs = 2 if head.per_token else len(labels)
    vectors, layers, width = stores[0].array.shape
    batch = min(method.batch_size * int(stores[0].counts.max()), vectors)
    blocks = in_blocks(
        rates,
        seeds,
        bytes_of_probe=4 * outputs * len(stores[1].array),
        bytes_of_seed=4 * batch * layers * width if method.dropout else 0,
    )
    for block, some in blocks:
        yield _fit(method, head, stores, train, dev, labels, metric, block, some, progress)


def _found(model, best, steps):
    """Each `Probe` by its name."""
    scores = np.stack(best.scores, axis=1).tolist()  # by probe
    found, count = {}, len(model.rates)
    for i, name in enumerate(model.names):
        arrays = model.layout.of_probe(best.arrays, i // count, i % count)
        score = float(best.best[i])
        log = {
            "dev_score": score if np.isfinite(score) else None,
            "best_epoch": int(best.best_epoch[i]),
            "dev_scores": scores[i],
            "steps_per_epoch": steps,
            "learned_weights": sum(array.size for array in arrays.values()),
        }
        if log["dev_score"] is None:
            log["error"] = "training diverged: the outputs on the dev set must be finite"
        found[name] = Probe(layer_choice(name.layers), arrays, log)
    return found
