"""Edge probing: labels of spans, and of pairs of spans, from the layers of a frozen encoder.

Shapes: B sentences, W words, E edges of a sentence, S spans of an edge (1 or 2), n layers, D width,
P width of a span's vector, K labels.
"""

import dataclasses
import functools
import numbers
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.packing import stack_padded
from keras_plm.data.task import place_of
from keras_plm.files.arguments import check_number, check_whole
from keras_plm.files.sequences import Tensor, as_list
from keras_plm.heads.task_network import Combine, TaskNetwork
from keras_plm.layers import Dropout, LayerChoice
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import run_on
from keras_plm.training.resume import set_seed
from keras_plm.transfer.feature_store import FeatureStore, fitting
from keras_plm.transfer.method import KeepBest

SPAN_DIM, HIDDEN_DIM = 256, 512  # Tenney et al. 2019, arXiv 1905.06316, appendix C; jiant


@dataclasses.dataclass(frozen=True)
class EdgeExample:
    """A sentence with labelled edges.

    Args:
        text: A list of words.
        edges: A list of `(spans, label)`; `spans` has one or two spans `(start, end)`, each the
            index of its first word and of the word after its last.
        where: Place of the sentence, for error messages.

    Raises:
        ValueError: If the text is no list of words, an edge has another form, or a span is outside
            the sentence.

    >>> EdgeExample(["Ada", "sings"], [([(1, 2), (0, 1)], "ARG0")]).edges[0][1]
    'ARG0'
    """

    text: Sequence[str]
    edges: Sequence[tuple[Sequence[tuple[int, int]], str]]
    where: str = ""

    def __post_init__(self):
        if isinstance(self.text, str) or not len(self.text):
            raise ValueError(
                f"{place_of(self, None)}A sentence must be a list of words. "
                f"Received: {self.text!r:.60}"
            )
        for edge in as_list(self.edges, "edges", "edges"):
            if not self._is_edge(edge):
                raise ValueError(
                    f"{place_of(self, None)}An edge must be `(spans, label)`, with one or two "
                    "spans `(start, end)`; `end` is the index after the last word, at most "
                    f"{len(self.text)}. Received: {edge!r:.80}"
                )

    def _is_edge(self, edge):
        listed = (list, tuple)
        if not (isinstance(edge, listed) and len(edge) == 2 and isinstance(edge[0], listed)):
            return False
        spans, label = edge
        return (
            len(spans) in (1, 2)
            and isinstance(label, str)
            and all(isinstance(span, listed) and len(span) == 2 for span in spans)
            and all(isinstance(place, numbers.Integral) for span in spans for place in span)
            and all(0 <= start < end <= len(self.text) for start, end in spans)
        )


@keras.saving.register_keras_serializable("keras_plm")
class SpanPooling(keras.layers.Layer):
    """Vectors of spans: a mean of the projected words of each span under learned attention.

    Reference: Tenney et al. 2019, arXiv 1905.06316, section 4; Lee et al. 2017, section 4.

    Args:
        units: Width P of the projection.

    Call arguments:
        inputs: (B, W, D).
        spans: (B, E, 2), first word and word after the last; an empty span gives zeros.

    Returns:
        (B, E, P).

    >>> import numpy as np
    >>> spans = np.array([[[0, 2], [2, 3], [0, 0]]])
    >>> tuple(SpanPooling(units=5)(np.ones((1, 3, 4)), spans).shape)
    (1, 3, 5)
    """

    def __init__(self, units: int = SPAN_DIM, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.project = keras.layers.Dense(units, dtype=self.dtype_policy, name="project")
        self.score = keras.layers.Dense(1, use_bias=False, dtype=self.dtype_policy, name="score")

    def build(self, inputs_shape, spans_shape=None):
        self.project.build(inputs_shape)
        self.score.build((*inputs_shape[:-1], self.units))

    def call(self, inputs: Tensor, spans: Tensor) -> Tensor:
        x = self.project(inputs)  # (B, W, P)
        place = ops.arange(ops.shape(x)[1], dtype="int32")
        spans = ops.cast(spans, "int32")
        inside = (place >= spans[..., :1]) & (place < spans[..., 1:])  # (B, E, W)
        scores = ops.swapaxes(self.score(x), 1, 2)  # (B, 1, W)
        weights = ops.softmax(ops.where(inside, scores, -1e9), axis=-1)
        return ops.matmul(ops.where(inside, weights, 0.0), x)

    def compute_output_spec(self, inputs, spans):
        return keras.KerasTensor((*spans.shape[:2], self.units), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("keras_plm")
class EdgeLoss(keras.losses.Loss):
    """Sum over the labels of binary cross-entropies, for each edge.

    Args:
        name: Name of the loss.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, E) label ids; -1 for a label that is not among the K.
        y_pred: (B, E, K) logits.

    Returns:
        The sum of the weighted losses over the number of positions, a scalar. `Batches` scale the
        weights in training so that it is the mean over edges.

    >>> import numpy as np
    >>> round(float(EdgeLoss()(np.array([[1]]), np.zeros((1, 1, 2), "float32"))), 4)  # 2 log 2
    1.3863
    """

    def __init__(self, name: str = "edge_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, "int32")
        right = ops.one_hot(ops.maximum(y_true, 0), y_pred.shape[-1], dtype=y_pred.dtype)
        right = right * ops.cast(y_true >= 0, y_pred.dtype)[..., None]
        return ops.sum(ops.softplus(y_pred) - right * y_pred, axis=-1)


def expected_layers(cumulative: Any) -> np.ndarray:
    """Computes `LayerReport.expected_layer` from scores of the mixes (..., n).

    Returns:
        (...), with NaN where the mix of all layers is not better than the embeddings.
    """
    gains = np.diff(np.asarray(cumulative, "float64"), axis=-1)
    total = gains.sum(axis=-1)
    found = np.full(total.shape, np.nan)
    np.divide(gains @ np.arange(1, gains.shape[-1] + 1), total, out=found, where=total > 0)
    return found


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """Scores of the edge probes of one task, by layer of an encoder.

    Args:
        labels: The labels.
        layers: Score of a probe of each layer, 0 for the embeddings.
        cumulative: Score of a probe of a learned mix of the layers up to each one.
        mixing_weights: Weights of the layers in the mix of all.
        counts: `counts[name]` (n, N, 3): numbers of right, true and predicted labels of each
            example, for intervals, of the probes of `"layers"` and of `"cumulative"`.

    >>> report = LayerReport(["a", "b"], [0.5, 0.6, 0.7], [0.5, 0.7, 0.75], [0.2, 0.5, 0.3])
    >>> round(report.expected_layer, 2), round(report.centre_of_gravity, 2)
    (1.2, 1.1)
    """

    labels: list[str]
    layers: list[float]
    cumulative: list[float]
    mixing_weights: list[float]
    counts: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, repr=False)

    def row(self, task: str, random: bool = False) -> dict[str, Any]:
        """Returns a row for `plots.edge_probing`, with values that JSON can hold.

        Args:
            task: Name of the task.
            random: Whether the encoder has random weights.
        """
        expected = self.expected_layer
        return {
            "task": task,
            "random": random,
            "layers": self.layers,
            "cumulative": self.cumulative,
            "mixing_weights": self.mixing_weights,
            "expected_layer": None if np.isnan(expected) else expected,
            "centre_of_gravity": self.centre_of_gravity,
        }

    @property
    def differences(self) -> list[float]:
        """Gain in score from each layer after the embeddings, of the cumulative mixes."""
        return np.diff(self.cumulative).tolist()

    @property
    def expected_layer(self) -> float:
        """Mean of the layers after the embeddings, weighted by their gains.

        It is NaN if the mix of all layers is not better than the embeddings. A layer may have a
        negative gain; the mean may then lie below 1 or above the last layer.

        Reference: Tenney et al. 2019, arXiv 1905.05950, equation 4.
        """
        return float(expected_layers(self.cumulative))

    @property
    def centre_of_gravity(self) -> float:
        """Mean of the layers, weighted by the mix of all of them.

        Reference: Tenney et al. 2019, arXiv 1905.05950, equation 2.
        """
        return float(np.arange(len(self.mixing_weights)) @ np.array(self.mixing_weights))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EdgeProbing:
    """Edge probing: one probe of each layer, and one of each mix of the lower layers.

    A probe projects the words, pools each span by attention, and classifies the joined vectors of
    an edge's spans with one hidden layer. It decides every label by itself; the score is F1 of all
    decisions. The encoder stays frozen and runs once over each set.

    Reference: Tenney et al. 2019, arXiv 1905.06316 and arXiv 1905.05950. Differs from the papers:
    words instead of subword tokens, from their first tokens; the sizes of the data.

    Args:
        learning_rate: Learning rate of Adam, constant.
        epochs: Number of passes over the training sentences; the best on the dev set counts.
        batch_size: Number of sentences per step.
        span_dim: Width P of the vector of a span.
        hidden_dim: Width of the hidden layer.
        dropout: Fraction of the hidden layer dropped in training.
        seed: Seed of the order of sentences, the initial weights and dropout.
        feature_gb: Largest feature store, in gigabytes.

    Raises:
        ValueError: If a setting is out of range.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["Ada", "sings"], np.eye(2))
    >>> sentence = EdgeExample(["Ada", "sings"], [([(0, 1)], "NOUN"), ([(1, 2)], "VERB")])
    >>> report = EdgeProbing(epochs=1).fit(encoder, encoder.tokenizer(), [sentence], [sentence])
    >>> report.labels, len(report.layers)
    (['NOUN', 'VERB'], 1)
    """

    learning_rate: float = 1e-3
    epochs: int = 5
    batch_size: int = 32
    span_dim: int = SPAN_DIM
    hidden_dim: int = HIDDEN_DIM
    dropout: float = 0.3
    seed: int = 0
    feature_gb: float = 8.0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "span_dim", "hidden_dim"):
            check_whole(getattr(self, name), name, least=1)
        check_whole(self.seed, "seed", least=0)
        check_number(self.learning_rate, "learning_rate", above=0)
        check_number(self.dropout, "dropout", least=0, below=1)
        check_number(self.feature_gb, "feature_gb", least=0)

    def fit(
        self,
        encoder: Encoder,
        tokenizer: SubwordTokenizer,
        train: Sequence[EdgeExample],
        dev: Sequence[EdgeExample],
        test: Sequence[EdgeExample] | None = None,
        store: str | os.PathLike | None = None,
        say: Callable[[str], Any] | None = None,
    ) -> LayerReport:
        """Trains all probes of a task.

        Args:
            encoder: A frozen encoder.
            tokenizer: The encoder's tokenizer.
            train, dev: Lists of `EdgeExample`. The dev set chooses the epoch of each probe.
            test: Examples to score; by default those of the dev set.
            store: Folder for features, kept for later calls; by default a temporary folder.
            say: Function for lines of progress.

        Returns:
            A `LayerReport`.

        Raises:
            TypeError: If an item is not an `EdgeExample`.
            ValueError: If a set has no example or no edge, the numbers of spans of edges differ,
                there are fewer than two labels, or a set has none of the labels of `train`.
        """
        check_encoder(encoder, tokenizer)
        tokenizer = fitting(tokenizer, encoder)
        parts = [list(train), list(dev), *([] if test is None else [list(test)])]
        for example in (example for part in parts for example in part):
            if not isinstance(example, EdgeExample):
                raise TypeError(
                    "Edge probing needs lists of `EdgeExample(words, edges)`. "
                    f"Received: {example!r:.60} of {type(example).__name__}"
                )
        for name, part in zip(("train", "dev", "test"), parts, strict=False):
            if not part:
                raise ValueError(
                    f"Each set of edge probing needs an example. Received: no example in `{name}`"
                )
        labels = sorted({label for example in parts[0] for _, label in example.edges})
        if len(labels) < 2:
            raise ValueError(
                f"Edge probing needs two labels or more in `train`. Received: {labels}"
            )
        with tempfile.TemporaryDirectory() as temporary:
            folder, say = (temporary if store is None else store), say or (lambda line: None)

            def read(part):
                say(f"reading {len(part):,} sentences")
                rows = FeatureStore.build(folder, encoder, tokenizer, part, None, self.feature_gb)
                return _Edges(rows, part, labels)

            parts = [read(part) for part in parts]
            if len({part.num_spans for part in parts}) > 1:
                raise ValueError(
                    "Edges of all sets must have equal numbers of spans. "
                    f"Received: {[part.num_spans for part in parts]}"
                )
            return self._fit(parts, labels, say)

    def _fit(self, parts, labels, say):
        count = parts[0].store.array.shape[1]
        layers, cumulative, weights = [], [], [1.0]
        for layer in range(count):
            layers.append(self._probe(parts, LayerChoice(layer, layer), labels)[0])
            say(f"layer {layer} of {count - 1}: {_f1(layers[-1].sum(axis=0)):.4f}")
        cumulative.append(layers[0])  # the mix of one layer
        for layer in range(1, count):
            choice = LayerChoice(0, layer, "mix")
            of_mix, weights = self._probe(parts, choice, labels)
            cumulative.append(of_mix)
            say(f"mix of layers 0 to {layer}: {_f1(of_mix.sum(axis=0)):.4f}")
        scores = [[_f1(c.sum(axis=0)) for c in of_kind] for of_kind in (layers, cumulative)]
        counts = {"layers": np.stack(layers), "cumulative": np.stack(cumulative)}
        return LayerReport(labels, *scores, weights, counts)

    def _probe(self, parts, choice, labels):
        """Trains a probe; returns the counts of the examples (N, 3), and its mix."""
        set_seed(self.seed)
        train, dev, *others = parts
        model = self.network(train, choice, len(labels))
        model.compile(keras.optimizers.Adam(self.learning_rate), loss=EdgeLoss())
        keep = KeepBest(lambda: _f1(dev.counts(model, choice).sum(axis=0)))
        source = train.batches(choice, batch_size=self.batch_size, seed=self.seed)
        model.fit(source, epochs=self.epochs, callbacks=[keep], verbose=0)
        keep.restore()
        counts = (others[0] if others else dev).counts(model, choice)
        mixes = model.mixing_weights()
        return counts, mixes.get("input", {}).get("weights", [1.0])

    def network(self, edges: Any, choice: LayerChoice, num_labels: int) -> TaskNetwork:
        """Builds the network of a probe, from features (B, W, n, D) to logits (B, E, K)."""
        _, count, width = edges.store.array.shape
        layers = len(choice.indices(count))
        inputs = {
            "features": keras.Input((None, layers, width), name="features"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
            "spans": keras.Input((None, edges.num_spans, 2), dtype="int32", name="spans"),
        }
        combine = Combine(choice.combine, name="combine")
        x = combine(inputs["features"], padding_mask=inputs["padding_mask"])
        vectors = [
            SpanPooling(self.span_dim, name=f"span_{i}")(x, inputs["spans"][:, :, i])
            for i in range(edges.num_spans)
        ]
        x = ops.concatenate(vectors, axis=-1) if vectors[1:] else vectors[0]
        x = keras.layers.Dense(self.hidden_dim, activation="tanh", name="hidden")(x)
        x = keras.layers.LayerNormalization(name="norm")(x)
        x = Dropout(self.dropout, name="dropout")(x)
        x = keras.layers.Dense(num_labels, name="logits")(x)
        return TaskNetwork(inputs, x, name="edge_probe")


class _Edges:
    """Features of sentences with their edges, as rows of `Batches`."""

    def __init__(self, store, examples, labels):
        ids = {label: i for i, label in enumerate(labels)}
        sizes = {len(spans) for example in examples for spans, _ in example.edges}
        if len(sizes) != 1:
            raise ValueError(
                "Every set needs edges, all with one span or all with two. "
                f"Received: edges of {sorted(sizes)} spans"
            )
        (self.num_spans,) = sizes
        if not any(label in ids for example in examples for _, label in example.edges):
            raise ValueError(
                "Every set needs labels of `train`. Received: a set without any of "
                f"{', '.join(labels[:8])}"
            )
        self.store = store
        self.spans = [
            np.array([spans for spans, _ in e.edges], "int32").reshape(-1, self.num_spans, 2)
            for e in examples
        ]
        self.targets = [
            np.array([ids.get(label, -1) for _, label in e.edges], "int32") for e in examples
        ]
        self._sizes = np.array([len(targets) for targets in self.targets])

    def batches(self, choice, training=True, **options):
        source = self.store.batches(choice, training=training, **options)
        return source.collated_by(functools.partial(self._collate, source.collate))

    def _collate(self, collate, rows, length, rng, epoch):
        x, *_ = collate(rows, length, rng, epoch)
        # The number of edges depends only on `length`, to limit the number of shapes.
        most = max(int(self._sizes[self.store.counts <= length].max()), 1)
        x["spans"] = stack_padded([self.spans[row] for row in rows], most)
        y = stack_padded([self.targets[row] for row in rows], most)
        weights = np.arange(most) < self._sizes[rows][:, None]
        return x, y, weights.astype("float32")

    def counts(self, model, choice):
        """Returns the numbers of right, true and predicted labels of examples, (N, 3)."""
        found = np.zeros((len(self.targets), 3))
        source = self.batches(choice, training=False, tokens_per_batch=8192)
        for rows, outputs in run_on(model, source, 0):
            for row, logits in zip(rows, outputs, strict=True):
                targets = self.targets[row]
                decided = np.asarray(logits)[: len(targets)] > 0  # (E, K)
                known = targets >= 0
                right = decided[known, targets[known]].sum()
                found[row] = right, len(targets), decided.sum()
        return found


def _f1(sums):
    right, true, predicted = sums
    return float(2 * right / (true + predicted)) if true + predicted else 0.0
