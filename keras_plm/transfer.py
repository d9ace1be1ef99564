"""The two ways to use a pre-trained encoder: fine-tune it, or read features from its layers."""

import dataclasses
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

import keras
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from keras_plm import metrics
from keras_plm.data import (
    Batches,
    PackedExamples,
    fingerprint,
    label_ids,
    label_names,
    run_on,
    stack_padded,
)
from keras_plm.heads import Classifier, Tagger
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.optimization import AdamW, WarmupLinearDecay
from keras_plm.readers import BiLSTM
from keras_plm.resume import set_seed
from keras_plm.task import split_groups

LAYER_CHOICES = {
    # Devlin et al. 2018, table 7. The paper does not say whether its weighted sums are learned;
    # here they are, with the reader, as ELMo's are.
    "embeddings": LayerChoice(0, 0),
    "second_to_last": LayerChoice(-2, -2),
    "last": LayerChoice(-1, -1),
    "weighted_sum_last_four": LayerChoice(-4, -1, "mix"),
    "concat_last_four": LayerChoice(-4, -1, "concat"),
    "weighted_sum_all": LayerChoice(1, -1, "mix"),
    # Plain averages, with nothing to learn.
    "mean_last_four": LayerChoice(-4, -1, "mean"),
    "mean_all": LayerChoice(1, -1, "mean"),
    # Peters et al. 2018, equation 1: the embeddings too.
    "elmo_mix": LayerChoice(0, -1, "mix"),
}


def layer_choice(choice):
    """A `LayerChoice` by its name: a row of `LAYER_CHOICES`, or `"layer_3"` for a single layer.

    Raises:
        ValueError: If the name is unknown.

    >>> layer_choice("layer_3")
    LayerChoice(first=3, last=3, combine='concat')
    """
    if isinstance(choice, LayerChoice):
        return choice
    if isinstance(choice, str) and choice in LAYER_CHOICES:
        return LAYER_CHOICES[choice]
    single = re.fullmatch(r"layer_(\d+)", str(choice))
    if not single:
        raise ValueError(
            "A choice of layers is one of "
            f"{', '.join(LAYER_CHOICES)} or layer_0, layer_1, ... Received: {choice!r}"
        )
    return LayerChoice(int(single[1]), int(single[1]))


def every_choice(encoder):
    """Names of all choices for an encoder: the rows of `LAYER_CHOICES`, then each single layer."""
    return [*LAYER_CHOICES, *(f"layer_{i}" for i in range(len(encoder.output["layers"])))]


def distinct_choices(encoder):
    """`every_choice` without those that read the same as one before them.

    In a four-block encoder "the last four" are "all": only the first name is kept.
    """
    count, seen, names = len(encoder.output["layers"]), set(), []
    for name in every_choice(encoder):
        choice = layer_choice(name)
        try:
            layers = tuple(choice.indices(count))
        except ValueError:  # a one-block encoder has no second-to-last
            continue
        read = (layers, choice.combine if len(layers) > 1 else None)
        if read not in seen:
            seen.add(read)
            names.append(name)
    return names


def clone(encoder):
    """A copy of an encoder with the same weights."""
    copy = type(encoder).from_config(encoder.get_config())
    copy.set_weights(encoder.get_weights())
    copy.trainable = True
    return copy


class KeepBest(keras.callbacks.Callback):
    """Scores the model after every epoch and ends training with the best epoch's weights.

    The score is added to the epoch's logs as `val_score`, for callbacks behind it.

    Args:
        score: A function without arguments that scores the model on the choosing set; more is
            better.
    """

    def __init__(self, score):
        super().__init__()
        self.score = score
        self.best, self.best_epoch, self._weights = -np.inf, None, None

    def on_epoch_end(self, epoch, logs=None):
        score = self.score()
        if logs is not None:
            logs["val_score"] = score
        if score > self.best:
            self.best, self.best_epoch = score, epoch + 1
            self._weights = [np.array(w) for w in self.model.get_weights()]

    def on_train_end(self, logs=None):
        if self._weights is not None:
            self.model.set_weights(self._weights)


@dataclasses.dataclass(frozen=True)
class _Method:
    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float
    weight_decay: float
    dropout: float
    seed: int

    def _train(self, model, source, score, callbacks, verbose):
        """Compiles and fits `model` on `Batches`; keeps the epoch that `score()` prefers."""
        total = len(source) * self.epochs
        schedule = WarmupLinearDecay(self.learning_rate, total, int(self.warmup * total))
        model.compile(
            AdamW(schedule, weight_decay=self.weight_decay),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        keep = KeepBest(score) if score is not None else None
        callbacks = ([keep] if keep else []) + list(callbacks)
        history = model.fit(source, epochs=self.epochs, callbacks=callbacks, verbose=verbose)
        best = (keep.best, keep.best_epoch) if keep else (None, self.epochs)
        return {"loss": history.history["loss"], "dev_score": best[0], "best_epoch": best[1]}


def _scorer(head, examples, metric, predict):
    """A function that scores the labels `predict()` gives for the examples; or `None`."""
    if not examples:
        return None
    metric = metric or DEFAULT_METRICS[head]
    truth = [example.label for example in examples]
    return lambda: metric(truth, predict())


DEFAULT_METRICS = {Classifier: metrics.accuracy, Tagger: metrics.span_f1}


@dataclasses.dataclass(frozen=True)
class FineTune(_Method):
    """Trains encoder and output layer together on the task.

    Reference: Devlin et al. 2018, section 4 and appendix A.3.

    Args:
        learning_rate: Highest rate; the paper's grid for its larger models is 2e-5 to 5e-5.
        epochs: Passes over the training examples.
        batch_size: Examples per step; the paper uses 16 or 32.
        warmup: Share of the steps in which the rate rises.
        weight_decay: Of AdamW.
        dropout: Share of features dropped before the output layer.
        seed: Of the order of examples, of initial weights and of dropout.
    """

    learning_rate: float = 1e-4
    epochs: int = 3
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    dropout: float = 0.1
    seed: int = 0

    def fit(
        self,
        encoder,
        head,
        tokenizer,
        train,
        dev=None,
        labels=None,
        metric=None,
        callbacks=(),
        verbose=0,
    ):
        """Fine-tunes a copy of the encoder; the one given stays as it is.

        Args:
            encoder: A pre-trained encoder.
            head: `Classifier` or `Tagger`, the class.
            tokenizer: The encoder's.
            train: A list of `Example`.
            dev: Examples on which the best epoch is chosen; without them the last is kept.
            labels: The label names; by default those in `train`.
            metric: `(y_true, y_pred) -> float` that chooses; by default the head's.
            callbacks: More Keras callbacks.
            verbose: As in `fit`.

        Returns:
            The trained head, a compiled Keras model whose `predict` takes texts. Its `training_log`
            tells the losses, the best epoch and its score.
        """
        set_seed(self.seed)
        labels = labels or label_names(train)
        model = head(clone(encoder), labels, tokenizer=tokenizer, dropout=self.dropout)
        source = model.batches(train, batch_size=self.batch_size, seed=self.seed)
        score = _scorer(head, dev, metric, lambda: model.predict(dev))
        model.training_log = self._train(model, source, score, callbacks, verbose)
        return model


@dataclasses.dataclass(frozen=True)
class FeatureBased(_Method):
    """Trains a reader on features of the frozen encoder.

    The encoder runs once over the examples, whatever is trained on them after: its layers go
    to a `FeatureStore`, which the methods of several choices may share.

    Reference: Devlin et al. 2018, section 5.3; Peters et al. 2018, section 3.3.

    Args:
        layers: A name of `LAYER_CHOICES`, `"layer_<i>"`, or a `LayerChoice`.
        reader: `"linear"`, an output layer alone, or `"bilstm"`, the paper's two-layer BiLSTM.
        pool: How a text's vectors are pooled for a linear reader of texts.
        units: Width of each direction of the BiLSTM; by default half the encoder's.
        learning_rate, epochs, batch_size, warmup, weight_decay, dropout, seed: as in `FineTune`.
        feature_gb: Largest feature store, in gigabytes (10^9 bytes).
    """

    layers: str | LayerChoice = "last"
    reader: str = "linear"
    pool: str = "mean"
    units: int | None = None
    learning_rate: float = 1e-3
    epochs: int = 10
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    dropout: float = 0.1
    seed: int = 0
    feature_gb: float = 8.0

    def __post_init__(self):
        layer_choice(self.layers)
        if self.reader not in ("linear", "bilstm"):
            raise ValueError(f"`reader` must be 'linear' or 'bilstm'. Received: {self.reader!r}")
        if self.pool not in POOLINGS:
            raise ValueError(f"`pool` must be one of {POOLINGS}. Received: {self.pool!r}")

    def store_pool(self, head):
        """How features are stored for this reader: pooled, or `None` for one per word."""
        return self.pool if head is Classifier and self.reader == "linear" else None

    def fit(
        self,
        encoder,
        head,
        tokenizer,
        train,
        dev=None,
        labels=None,
        metric=None,
        callbacks=(),
        verbose=0,
        store=None,
    ):
        """Trains a reader; the encoder stays as it is.

        Args:
            encoder, head, tokenizer, train, dev, labels, metric, callbacks, verbose: as in
                `FineTune.fit`.
            store: Folder for features, kept for later calls; by default a temporary one.

        Returns:
            The head around the frozen encoder, a compiled Keras model whose `predict` takes texts.
            Its `training_log` tells the losses, the best epoch and its score.
        """
        labels = labels or label_names(train)
        pool = self.store_pool(head)
        with tempfile.TemporaryDirectory() as temporary:
            folder = temporary if store is None else store
            stores = [
                FeatureStore.build(folder, encoder, tokenizer, part, pool, self.feature_gb)
                for part in (train, dev)
                if part
            ]
            readout, log = self.fit_reader(
                head, stores, train, dev, labels, metric, callbacks, verbose
            )
            del stores
        model = head(
            clone(encoder),
            labels,
            tokenizer=tokenizer,
            layers=layer_choice(self.layers),
            reader=readout.reader,
            dropout=self.dropout,
            frozen=True,
            readout=readout,
            **({"pool": self.pool} if head is Classifier else {}),
        )
        model.compile(AdamW(self.learning_rate, weight_decay=self.weight_decay))
        model.training_log = log
        return model

    def fit_reader(
        self, head, stores, train, dev=None, labels=None, metric=None, callbacks=(), verbose=0
    ):
        """Trains the part of a head that reads features, from stores alone.

        Args:
            head: `Classifier` or `Tagger`, the class.
            stores: The `FeatureStore` of `train` and, if given, of `dev`.
            train, dev, labels, metric, callbacks, verbose: as in `FineTune.fit`.

        Returns:
            `(readout, log)`: the trained Keras model from features to logits, and the losses, best
            epoch and its score.
        """
        set_seed(self.seed)
        labels = labels or label_names(train)
        choice = layer_choice(self.layers)
        reader, width = None, stores[0].array.shape[-1]
        if self.reader == "bilstm":
            units = self.units or max(width // 2, 1)
            reader = BiLSTM(units, dropout=self.dropout, name="bilstm")
        read = 1 if choice.combine == "mean" else len(choice.indices(stores[0].array.shape[1]))
        readout = head.build_readout((read, width), len(labels), choice, reader, self.dropout)
        readout.reader = reader
        targets = [label_ids(example, labels) for example in train]
        source = stores[0].batches(choice, targets, batch_size=self.batch_size, seed=self.seed)
        score = _scorer(head, dev, metric, lambda: self.predict(head, readout, stores[1], labels))
        return readout, self._train(readout, source, score, callbacks, verbose)

    def predict(self, head, readout, store, labels):
        """Labels of stored examples by a trained readout, without running the encoder."""
        source = store.batches(self.layers, training=False, tokens_per_batch=8192)
        logits = [None] * len(store)
        for rows, outputs in run_on(readout, source):
            for row, output in zip(rows, outputs, strict=True):
                logits[row] = output
        return head.decode(labels, logits, _StoredRows(store))


class _StoredRows:
    """What a head's `decode` asks of its rows: here a row is an example."""

    def __init__(self, store):
        self.examples_of = np.arange(len(store))
        self.words = store.counts


class FeatureStore:
    """All layers of a frozen encoder for a list of examples, memory-mapped in float16.

    One vector per word (its first token), or one pooled vector per text, for every layer; choices
    of layers are computed on reading. The folder's name is a hash of encoder, tokenizer and
    texts, so that a stale store is never read.

    Attributes:
        counts: (N,) vectors of each example.
        array: (sum of counts, L + 1, D) float16.
    """

    def __init__(self, folder):
        folder = Path(folder)
        self.array = np.load(folder / "features.npy", mmap_mode="r")
        self.counts = np.load(folder / "counts.npy")
        self.starts = np.cumsum(self.counts) - self.counts

    def __len__(self):
        return len(self.counts)

    @classmethod
    def build(cls, folder, encoder, tokenizer, examples, pool=None, feature_gb=8.0):
        """Runs the encoder over the examples, unless `folder` holds their features already.

        Args:
            folder: Where stores are kept, one folder each.
            encoder: The frozen encoder.
            tokenizer: The encoder's.
            examples: A list of `Example`, of texts or of lists of words.
            pool: `"cls"`, `"mean"` or `"max"` for one vector per text; `None` for one per word.
            feature_gb: Largest size, in gigabytes.

        Raises:
            ValueError: If the store would be larger, with its size and what to do.
        """
        texts = [(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
        key = fingerprint(encoder, tokenizer, texts, pool)[:24]
        final = Path(folder) / key
        if (final / "features.npy").is_file():
            return cls(final)

        limit = getattr(encoder, "max_sequence_length", None)
        packed = PackedExamples(
            [_Unlabelled(*text) for text in texts], tokenizer, max_length=limit, words=pool is None
        )
        count = len(encoder.output["layers"])
        counts = np.ones(len(examples), dtype=np.int64)
        if pool is None:
            counts = np.bincount(packed.examples_of, packed.words).astype(np.int64)
        shape = (int(counts.sum()), count, encoder.hidden_dim)
        size = np.prod(shape, dtype=float) * 2 / 1e9
        if size > feature_gb:
            raise ValueError(
                f"The features of {len(examples)} examples would take {size:.1f} GB. Pool them "
                "over texts, take fewer examples, or allow more with `feature_gb` "
                f"(--feature-gb). Received: feature_gb={feature_gb:g}"
            )
        Path(folder).mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{key}.tmp", dir=folder))
        try:
            array = np.lib.format.open_memmap(
                temporary / "features.npy", mode="w+", dtype=np.float16, shape=shape
            )
            cls._fill(array, counts, encoder, packed, pool)
            array.flush()
            del array
            np.save(temporary / "counts.npy", counts)
            if final.exists():  # another process was first
                shutil.rmtree(temporary)
            else:
                os.replace(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return cls(final)

    @staticmethod
    def _fill(array, counts, encoder, packed, pool):
        source = Batches(
            packed.lengths,
            packed.collate,
            training=False,
            tokens_per_batch=8192,
            longest=getattr(encoder, "max_sequence_length", None),
        )
        model = _every_layer(encoder)
        # Windows of one example follow one another.
        sizes = np.ones(len(packed.lengths), dtype=np.int64) if pool else packed.words
        begins = np.cumsum(sizes) - sizes
        for i in range(len(source)):
            rows, x = source.rows(i), source[i][0]
            positions = x.pop("word_positions", None)
            layers = np.asarray(model.predict_on_batch({k: x[k] for k in encoder.input}))
            for b, row in enumerate(rows):
                if row < 0:
                    continue
                if pool is None:
                    vectors = layers[b][positions[b, : sizes[row]]]  # (W, L + 1, D)
                else:
                    vectors = _pool(layers[b, x["padding_mask"][b]], pool)[None]
                array[begins[row] : begins[row] + sizes[row]] = vectors

    def vectors(self, example, choice):
        """(W, n, D) features of one example under a choice of layers."""
        indices = choice.indices(self.array.shape[1])
        start = self.starts[example]
        rows = self.array[start : start + self.counts[example], indices[0] : indices[-1] + 1]
        rows = rows.astype("float32")
        return rows.mean(axis=1, keepdims=True) if choice.combine == "mean" else rows

    def batches(self, choice, targets=None, training=True, **options):
        """`Batches` of features for a head's readout."""
        choice = layer_choice(choice)

        def collate(rows, length, rng, epoch):
            features = stack_padded([self.vectors(row, choice) for row in rows], length)
            real = np.arange(length) < self.counts[rows][:, None]
            x = {"features": features, "padding_mask": real}
            if targets is None:
                return x, None, None
            if np.ndim(targets[0]) == 0:
                return x, np.array([targets[row] for row in rows]), None
            y = stack_padded([targets[row] for row in rows], length)
            return x, y, real.astype("float32")

        if self.counts.max() == 1:
            options = {"buckets": [1], **options}
        return Batches(self.counts, collate, training=training, **options)


@dataclasses.dataclass(frozen=True)
class _Unlabelled:
    text: str | list
    pair: str | None = None
    label: None = None


def _every_layer(encoder):
    """A model that gives all layers as one tensor (B, T, L + 1, D)."""
    stacked = keras.ops.stack(encoder.output["layers"], axis=2)
    return keras.Model(encoder.input, keras.ops.cast(stacked, "float32"))


def _pool(vectors, pool):
    """(L + 1, D) from the real positions (T, L + 1, D) of a text."""
    if pool == "cls":
        return vectors[0]
    return vectors.mean(axis=0) if pool == "mean" else vectors.max(axis=0)


def extract_features(encoder, tokenizer, texts, layers="last", pool=None, feature_gb=8.0):
    """Vectors of texts from chosen layers of an encoder.

    Args:
        encoder: The encoder; it runs once, without dropout.
        tokenizer: The encoder's.
        texts: A list of texts or of lists of words.
        layers: A name of `LAYER_CHOICES`, `"layer_<i>"`, or a `LayerChoice`; not one whose
            weights are learned.
        pool: `"cls"`, `"mean"` or `"max"` for one vector per text; `None` for one per word.
        feature_gb: Largest store of features while they are computed, in gigabytes.

    Returns:
        (N, D) with a `pool`; otherwise a list of N arrays (words, D). D is the encoder's width,
        times the number of layers for a concatenation.

    Raises:
        ValueError: If the choice of layers has weights to learn.
    """
    choice = layer_choice(layers)
    _refuse_learned(choice, layers)
    if not len(texts):
        width = choice.width(len(encoder.output["layers"]), encoder.hidden_dim)
        return np.zeros((0, width), "float32") if pool else []
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore.build(folder, encoder, tokenizer, list(texts), pool, feature_gb)
        rows = [store.vectors(i, choice) for i in range(len(store))]
        rows = [row.reshape(len(row), -1) for row in rows]
        del store
    return np.concatenate(rows) if pool else rows


def _refuse_learned(choice, name):
    if choice.combine == "mix":
        raise ValueError(
            "A weighted sum is learned with a reader: use `FeatureBased` or `compare_layers`, or "
            f"read a plain mean ('mean_all'). Received: layers={name!r}"
        )


# What `FeatureExtractor` has read so far, kept as long as the encoder is.
_EXTRACTED = weakref.WeakKeyDictionary()


class FeatureExtractor(TransformerMixin, BaseEstimator):
    """Features of texts as a scikit-learn transformer, for "a classifier of your choosing".

    It learns nothing, works in a `Pipeline`, and in `GridSearchCV` over `layers` and `pool` the
    encoder runs once per text: what was read is kept, all layers of it, for as long as the
    encoder lives and its weights stay the same.

    Args:
        encoder: The encoder.
        tokenizer: The encoder's.
        layers: A name of `LAYER_CHOICES`, `"layer_<i>"`, or a `LayerChoice`; not one whose
            weights are learned.
        pool: `"cls"`, `"mean"` or `"max"`.

    Raises:
        ValueError: On `transform`, if `layers` has weights to learn or `pool` is unknown.
    """

    def __init__(self, encoder, tokenizer, layers="last", pool="mean"):
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.layers = layers
        self.pool = pool

    def __sklearn_clone__(self):
        # scikit-learn would copy the encoder for every candidate of a search.
        return type(self)(**self.get_params(deep=False))

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y=None):  # noqa: N803
        """Does nothing but check the parameters."""
        choice = layer_choice(self.layers)
        _refuse_learned(choice, self.layers)
        choice.indices(len(self.encoder.output["layers"]))
        if self.pool not in POOLINGS:
            raise ValueError(f"`pool` must be one of {POOLINGS}. Received: {self.pool!r}")
        return self

    def transform(self, X):  # noqa: N803
        """(N, D) vectors of N texts."""
        self.fit(X)
        choice = layer_choice(self.layers)
        count = len(self.encoder.output["layers"])
        if not len(X):
            return np.zeros((0, choice.width(count, self.encoder.hidden_dim)), "float32")
        state = fingerprint(self.encoder, self.tokenizer)
        if _EXTRACTED.get(self.encoder, (None,))[0] != state:
            _EXTRACTED[self.encoder] = (state, {})  # forgets what earlier weights gave
        known = _EXTRACTED[self.encoder][1].setdefault(self.pool, {})
        texts = [x if isinstance(x, str) else tuple(x) for x in X]
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            every = LayerChoice(0, -1, "concat")
            lists = [text if isinstance(text, str) else list(text) for text in new]
            rows = extract_features(self.encoder, self.tokenizer, lists, every, self.pool)
            known.update(zip(new, rows.reshape(len(new), count, -1), strict=True))
        indices = choice.indices(count)
        rows = np.stack([known[text][indices] for text in texts])  # (N, n, D)
        return rows.mean(axis=1) if choice.combine == "mean" else rows.reshape(len(rows), -1)


def compare_layers(
    encoder,
    tokenizer,
    examples,
    head,
    method=None,
    choices=None,
    seeds=3,
    metric=None,
    store=None,
    progress=None,
):
    """Scores every choice of layers of a frozen encoder on one task.

    The encoder runs once over the examples; then each choice is read with each seed.

    Args:
        encoder, tokenizer: The encoder and its tokenizer.
        examples: A dict with `"train"`, `"dev"` (chooses the best epoch) and `"test"` (scored); or
            a list, parted 70/15/15 by group.
        head: `Classifier` or `Tagger`, the class.
        method: A `FeatureBased` with all that is not the choice; by default `FeatureBased()`.
        choices: Names of choices; by default all that differ, see `distinct_choices`.
        seeds: How many seeds.
        metric: `(y_true, y_pred) -> float`; by default the head's.
        store: Folder for features, kept for later calls; by default a temporary one.
        progress: Called with each row when it is done.

    Returns:
        A list of dicts, one per choice: `layers`, `mean`, `deviation` (between seeds) and `scores`.
    """
    if not isinstance(examples, dict):
        parts = split_groups(examples, (0.7, 0.15, 0.15))
        examples = dict(zip(("train", "dev", "test"), parts, strict=True))
    method = method or FeatureBased()
    metric = metric or DEFAULT_METRICS[head]
    train, dev, test = (examples[split] for split in ("train", "dev", "test"))
    truth = [example.label for example in test]
    labels = label_names(train)
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        stores = [
            FeatureStore.build(
                temporary if store is None else store,
                encoder,
                tokenizer,
                part,
                method.store_pool(head),
                method.feature_gb,
            )
            for part in (train, dev, test)
        ]
        for name in choices or distinct_choices(encoder):
            scores = []
            for seed in range(seeds):
                reader = dataclasses.replace(method, layers=name, seed=seed)
                readout, _ = reader.fit_reader(head, stores, train, dev, labels, metric)
                scores.append(metric(truth, reader.predict(head, readout, stores[2], labels)))
            row = {
                "layers": name,
                "mean": float(np.mean(scores)),
                "deviation": float(np.std(scores, ddof=1)) if seeds > 1 else 0.0,
                "scores": scores,
            }
            table.append(row)
            if progress is not None:
                progress(row)
        del stores
    return table
