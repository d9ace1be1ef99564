"""Linear probes: all choices of layers, learning rates and seeds of a linear head in one fit.

A probe is a linear head on frozen features. Probes share no weight: one pass over the features
trains all of them.

Shapes: B rows, T vectors of a row, N = B T, L layers, D width, n kernels of a probe, K outputs, G
seeds, R pairs of a choice of layers and a learning rate, S = G R probes, C columns of kernels.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.task import Example
from keras_plm.files.sequences import Tensor
from keras_plm.heads import Regressor
from keras_plm.heads.head import Head
from keras_plm.heads.span_finder import NO_ANSWER
from keras_plm.heads.task_network import COMBINES, TaskNetwork
from keras_plm.layers import LayerChoice
from keras_plm.layers._fused_layers import dropout
from keras_plm.training.schedules import WarmupLinearDecay
from keras_plm.transfer.feature_based import FeatureBased, StoredRows
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.layer_choices import layer_choice

EVERY_LAYER = LayerChoice(0, -1, "concat")
ROWS = 256  # numbers of rows are multiples of it, so that backends compile few shapes


class ProbeName(NamedTuple):
    """Names a probe: the name of a choice of layers, a learning rate and a seed."""

    layers: str
    learning_rate: float
    seed: int


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


@dataclasses.dataclass
class Layout:
    """The places of the weights of all probes of a seed in a few large arrays.

    A probe has kernels of K columns: one per layer of a concatenation, otherwise one. Its output is
    a sum of terms: products of a layer, or of a mean of layers, with a kernel, times a coefficient.
    Only the coefficients of a mix are learned.

    Args:
        choices: The `LayerChoice` of each of the R probes of a seed.
        layers: Number of layers L of the encoder.
        outputs: Number of outputs K.

    Attributes:
        reads: Dict from layers, read as their mean, to the kernels that read them.
        sums: (terms, R), 1 where a term is part of a probe's output.
        coefficients: (terms,) index of each term's coefficient; the last one is 1.
        owners: Dict from a weight's name to the probe of each entry of its last axis.
        kernels: The numbers of the kernels of each probe.
        mixed: The entries of `scalars` of each probe; those of a probe without a mix are empty.
    """

    choices: Sequence[LayerChoice]
    layers: int
    outputs: int

    def __post_init__(self):
        terms = {}  # layers -> [(probe, kernel, entry of `scalars` or None)]
        self.kernels, self.mixed, count, scalars = [], [], 0, 0
        for probe, choice in enumerate(self.choices):
            indices = choice.indices(self.layers)
            keys = [tuple(indices)] if choice.combine == "mean" else [(i,) for i in indices]
            mixes = choice.combine == "mix"
            own = range(count, count + (len(indices) if choice.combine == "concat" else 1))
            entries = range(scalars, scalars + len(indices) * mixes)
            for j, key in enumerate(keys):
                term = probe, own[j if len(own) > 1 else 0], entries[j] if mixes else None
                terms.setdefault(key, []).append(term)
            self.kernels.append(own)
            self.mixed.append(entries)
            count, scalars = own.stop, entries.stop
        self.reads = {key: [kernel for _, kernel, _ in users] for key, users in terms.items()}
        flat = [term for users in terms.values() for term in users]
        self.sums = np.eye(len(self.choices), dtype="float32")[[probe for probe, _, _ in flat]]
        self.coefficients = np.array([scalars if entry is None else entry for *_, entry in flat])
        owners = np.repeat(np.arange(len(self.choices)), [len(own) for own in self.kernels])
        self.owners = {
            "kernel": np.repeat(owners, self.outputs),
            "bias": np.repeat(np.arange(len(self.choices)), self.outputs),
        }
        if scalars:
            lengths = [len(entries) for entries in self.mixed]
            self.owners["scalars"] = np.repeat(np.arange(len(self.choices)), lengths)
            self.owners["gamma"] = np.flatnonzero(lengths)

    def one_hot(self, name):
        """1 where an entry of a weight belongs to a probe: (entries, R)."""
        found = np.eye(len(self.choices), dtype="float32")[self.owners[name]]
        return ops.convert_to_tensor(found)

    def columns(self, kernels):
        """The columns of some kernels."""
        return (np.array(kernels)[:, None] * self.outputs + np.arange(self.outputs)).ravel()

    def initial(self, seeds, width, bias):
        """Initial weights by name: of kernels Glorot's, one draw per choice and seed."""
        kernel = np.zeros((len(seeds), width, len(self.owners["kernel"])), "float32")
        for own in self.kernels:
            limit = (6 / (len(own) * width + self.outputs)) ** 0.5
            for g, seed in enumerate(seeds):
                draw = np.random.default_rng(seed).uniform(
                    -limit, limit, (len(own), width, self.outputs)
                )
                kernel[g][:, self.columns(own)] = np.concatenate(list(draw), axis=-1)
        sizes = {name: (len(seeds), len(owner)) for name, owner in self.owners.items()}
        values = {"bias": bias, "scalars": 0.0, "gamma": 1.0}
        rest = {n: np.full(size, values[n], "float32") for n, size in sizes.items() if n in values}
        return {"kernel": kernel, **rest}

    def of_probe(self, arrays, seed, probe):
        """The arrays of one probe of seed number `seed`, as in `Probe`."""
        kernel = arrays["kernel"][seed][:, self.columns(self.kernels[probe])]
        shape = len(kernel), len(self.kernels[probe]), self.outputs
        own = slice(probe * self.outputs, (probe + 1) * self.outputs)
        found = {
            "kernel": kernel.reshape(shape).swapaxes(0, 1).copy(),
            "bias": arrays["bias"][seed, own].copy(),
        }
        if len(self.mixed[probe]):
            found["scalars"] = arrays["scalars"][seed, list(self.mixed[probe])]
            gamma = arrays["gamma"][seed, self.owners["gamma"] == probe]
            found["gamma"] = gamma[0]
        return found


class ProbeAdamW(keras.optimizers.Optimizer):
    """`BertAdamW` for probes: each has its own learning rate and its own clipped norm.

    Args:
        layout: The `Layout` of the weights.
        rates: (R,) learning rates of the probes.
        schedule: Schedule that multiplies all learning rates.
        weight_decay, beta_1, beta_2, epsilon: As in `BertAdamW`.
        clipnorm_of_probe: Largest norm of all gradients of a probe.
    """

    def __init__(
        self,
        layout: Layout,
        rates: Sequence[float],
        schedule: keras.optimizers.schedules.LearningRateSchedule,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clipnorm_of_probe: float = 1.0,
    ):
        super().__init__(schedule, name="probe_adamw")
        self.layout, self.rates = layout, np.array(rates, "float32")
        self.decay = weight_decay
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.clipnorm_of_probe = clipnorm_of_probe

    def build(self, variables):
        if self.built:
            return
        self._names = [variable.name for variable in variables]
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["mean", "square"])

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is not None:
            self.build(trainable_variables)
        total = 0.0
        for gradient, name in zip(grads, self._names, strict=True):
            square = ops.square(gradient)
            square = _finite(ops.sum(square, axis=1) if name == "kernel" else square)
            total = total + ops.matmul(square, self.layout.one_hot(name))  # (G, R)
        scale = 1.0 / ops.maximum(ops.sqrt(total) / self.clipnorm_of_probe, 1.0)
        clipped = []
        for gradient, name in zip(grads, self._names, strict=True):
            scales = ops.take(scale, self.layout.owners[name], axis=1)
            clipped.append(gradient * (scales[:, None] if name == "kernel" else scales))
        super().apply(clipped, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        i = self._get_variable_index(variable)
        name, mean, square = self._names[i], self._means[i], self._squares[i]
        rates = learning_rate * ops.convert_to_tensor(self.rates[self.layout.owners[name]])
        self.assign(mean, self.beta_1 * mean + (1.0 - self.beta_1) * gradient)
        self.assign(square, self.beta_2 * square + (1.0 - self.beta_2) * ops.square(gradient))
        step = mean / (ops.sqrt(square) + self.epsilon)
        if name == "kernel" and self.decay:
            step = step + self.decay * variable
        self.assign_sub(variable, rates * step)


class ProbeLoss(keras.losses.Loss):
    """The sum of the losses of all probes.

    Args:
        loss: The loss of one head.
        scores: Whether targets are numbers, as those of a `Regressor`.

    Call arguments:
        y_true: (B, ...) targets.
        y_pred: (B, ..., S, K) outputs.
    """

    def __init__(self, loss, scores=False):
        super().__init__(name="probe_loss")
        self.loss, self.scores = loss, scores

    def call(self, y_true, y_pred):
        y_true = ops.broadcast_to(y_true[..., None], ops.shape(y_pred)[:-1])
        losses = self.loss.call(y_true[..., None] if self.scores else y_true, y_pred)
        return ops.sum(losses, axis=-1)


class Probes(keras.Model):
    """All probes of a head: a model from the layers of an encoder to the outputs of S probes.

    Args:
        head: Class of the head.
        labels: Labels of the head.
        shape: (L, D), number of layers and their width.
        rates: Learning rates by name of a choice of layers.
        seeds: Seeds of the initial weights and of dropout.
        dropout: Fraction dropped before the output layer in training. All layers drop the same
            units.

    Call arguments:
        inputs: `features` (B, T, L, D) of all layers; for questions also `answer_mask` (B, T).
            Words are rows of one vector each.

    Returns:
        (B, S, K); for questions (B, 2, S, T).
    """

    def __init__(
        self,
        head: type[Head],
        labels: Sequence[Any],
        shape: tuple[int, int],
        rates: Mapping[str, Sequence[float]],
        seeds: Sequence[int],
        dropout: float = 0.1,
    ):
        super().__init__(name="probes")
        self.head, self.dropout = head, dropout
        scores = issubclass(head, Regressor)
        outputs = 1 if scores else 2 if head.per_token else len(labels)
        each = [(name, rate) for name in rates for rate in rates[name]]
        self.layout = Layout([layer_choice(name) for name, _ in each], shape[0], outputs)
        self.rates = [rate for _, rate in each]
        self.names = [ProbeName(*one, seed) for seed in seeds for one in each]
        initial = self.layout.initial(seeds, shape[1], 0.5 if scores else 0.0)
        self.arrays = {}
        for name, array in initial.items():
            weight = self.add_weight(array.shape, "zeros", dtype="float32", name=name)
            weight.assign(array)
            self.arrays[name] = weight
        self.seeds = [keras.random.SeedGenerator(seed) for seed in seeds] if dropout else []
        self.built = True

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        features = ops.cast(inputs["features"], "float32")  # (B, T, L, D)
        length, (count, width) = ops.shape(features)[1], features.shape[2:]
        rows = ops.reshape(features, (-1, count, width))
        keep = None
        if training and self.dropout:
            ones = ops.ones_like(rows[:, 0])
            draws = [dropout(ones, self.dropout, seed.next()) for seed in self.seeds]
            keep = ops.stack(draws)  # (G, N, D)
        products = []
        for layers, kernels in self.layout.reads.items():
            x = sum(rows[:, i] for i in layers) / len(layers)
            x = x if keep is None else x * keep
            kernel = ops.take(self.arrays["kernel"], self.layout.columns(kernels), axis=2)
            products.append(_product(x, kernel))
        x = ops.concatenate(products, axis=2)  # (N, G, terms K)
        seeds, outputs = x.shape[1], self.layout.outputs
        x = ops.reshape(x, (-1, seeds, x.shape[2] // outputs, outputs))
        x = _finite(x)  # a probe that diverges would change all sums: 0 * NaN is NaN
        x = ops.einsum("ngtk,gtr->ngrk", x, self._coefficients())
        x = _finite(x + ops.reshape(self.arrays["bias"], (1, seeds, -1, outputs)))
        if not training:
            x = ops.where(self._diverged()[None, :, :, None], np.nan, x)
        x = ops.reshape(x, (-1, length, len(self.names), outputs))  # (B, T, S, K)
        if self.is_flat:
            return x[:, 0]
        x = ops.transpose(x, (0, 3, 2, 1))  # (B, K, S, T)
        return ops.where(inputs["answer_mask"][:, None, None], x, -1e9)

    def _diverged(self):
        """Whether a probe has weights that are not finite: (G, R)."""
        wrong = 0.0
        for name, weight in self.arrays.items():
            entries = ops.cast(~ops.isfinite(weight), "float32")
            entries = ops.max(entries, axis=1) if name == "kernel" else entries
            wrong = wrong + ops.matmul(entries, self.layout.one_hot(name))
        return wrong > 0

    def _coefficients(self):
        """The coefficients of the sums of terms: (G, terms, R)."""
        ones = ops.ones((self.arrays["kernel"].shape[0], 1))
        parts = []
        for i, probe in enumerate(self.layout.owners.get("gamma", ())):
            entries = self.layout.mixed[probe]
            scalars = self.arrays["scalars"][:, entries.start : entries.stop]
            parts.append(self.arrays["gamma"][:, i : i + 1] * ops.softmax(scalars))
        found = ops.concatenate([*parts, ones], axis=1)
        found = _finite(ops.take(found, self.layout.coefficients, axis=1))  # (G, terms)
        return found[..., None] * ops.convert_to_tensor(self.layout.sums)

    def weight_arrays(self) -> dict[str, np.ndarray]:
        """Copies of the weights by name."""
        return {n: np.array(ops.convert_to_numpy(weight)) for n, weight in self.arrays.items()}

    def train_epoch(self, source: Batches, epoch: int) -> None:
        """Trains on all batches of an epoch."""
        source.step = epoch * len(source)
        for i in range(len(source)):
            x, y, weights = source[i]
            if self.is_flat:
                x, y, weights = _flat(x, y, weights)
            self.train_on_batch(x, y, sample_weight=weights)

    @property
    def is_flat(self) -> bool:
        """Whether a row of a batch is one vector, so that words need no padding."""
        return not self.head.per_token

    def predict_labels(
        self,
        store: FeatureStore,
        labels: Sequence[Any],
        names: Sequence[ProbeName] | None = None,
        batch_size: int = 32,
    ) -> list[list[Any] | None]:
        """Predicts the labels of stored examples, with one pass over their features.

        Args:
            store: The `FeatureStore` of the examples.
            labels: Labels of the head.
            names: Names of the probes that predict; by default all.
            batch_size: Number of examples per batch.

        Returns:
            A list of labels for each name; `None` for a probe whose outputs are not finite.
        """
        numbers = [self.names.index(name) for name in (self.names if names is None else names)]
        source = store.batches(EVERY_LAYER, training=False, batch_size=batch_size)
        by_row = [None] * len(store)  # (S, ...) each
        for i in range(len(source)):
            x, rows = source[i][0], source.rows(i)
            if self.is_flat:
                outputs = np.asarray(self.predict_on_batch(_flat(x)[0]))[:, numbers]
                ends = np.cumsum(x["padding_mask"].sum(axis=1))
                parts = [part.swapaxes(0, 1) for part in np.split(outputs, ends)]
                parts = parts if self.head.per_word else [part[:, 0] for part in parts[:-1]]
            else:
                parts = np.asarray(self.predict_on_batch(x))[:, :, numbers].swapaxes(1, 2)
            for row, part in zip(rows, parts, strict=False):
                if row >= 0:
                    by_row[row] = part
        decoded, rows_of = [], store.windows or StoredRows(store)
        for s in range(len(numbers)):
            outputs = [row[s] for row in by_row]
            finite = all(np.isfinite(output).all() for output in outputs)
            decoded.append(self.head.decode(labels, outputs, rows_of) if finite else None)
        return decoded


def _flat(x, y=None, weights=None):
    """The real vectors of a batch as rows, and rows of weight 0 up to a multiple of `ROWS`."""
    real = x["padding_mask"]
    count = int(real.sum())
    filled = -count % ROWS

    def rows(array):
        return np.pad(array, ((0, filled), *[(0, 0)] * (array.ndim - 1)))

    x = {"features": rows(x["features"][real])[:, None]}
    if y is None:
        return x, None, None
    if np.ndim(y) < np.ndim(real):  # one target of a row with one vector
        return x, rows(y), rows(weights) * ((count + filled) / max(weights.sum(), 1e-9))
    weights = weights[real]
    return x, rows(y[real]), rows(weights) * ((count + filled) / max(weights.sum(), 1e-9))


def _finite(x):
    """x with 0 where it is not finite."""
    return ops.where(ops.isfinite(x), x, ops.zeros_like(x))


def _product(x, kernel):
    """x (N, D), or (G, N, D) if each seed has its own dropout, times (G, D, C): (N, G, C)."""
    if len(x.shape) == 3:
        return ops.transpose(ops.matmul(x, kernel), (1, 0, 2))
    seeds, width, columns = kernel.shape
    product = ops.matmul(x, ops.reshape(ops.transpose(kernel, (1, 0, 2)), (width, -1)))
    return ops.reshape(product, (-1, seeds, columns))


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
    return not (method.reader != "linear" or store.pairs or any(others) or chooses_threshold)


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


def _fit(
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
) -> tuple[Probes, dict[ProbeName, Probe]]:
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
