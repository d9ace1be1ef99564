"""The model of linear probes: many linear heads on the layers of an encoder, in a few arrays.

Probes share no weight: one pass over the features trains all of them.

Shapes: B rows, T vectors of a row, N = B T, L layers, D width, n kernels of a probe, K outputs, G
seeds, R pairs of a choice of layers and a learning rate, S = G R probes, C columns of kernels.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.files.sequences import Tensor
from keras_plm.heads import Regressor
from keras_plm.heads.head import Head
from keras_plm.layers import LayerChoice
from keras_plm.layers._fused.dropout import dropout
from keras_plm.transfer.feature_based import StoredRows
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
        decoded, rows_of = [], store.windows or StoredRows(store, whole=True)
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
