"""The two ways to use a pre-trained encoder: fine-tune it, or read features from its layers."""

import dataclasses
import numbers
import tempfile

import keras
import numpy as np

from keras_plm import metrics
from keras_plm.batching import run_on
from keras_plm.cloning import clone, transferred, with_new_tokens
from keras_plm.data import check_word_vectors, label_ids, share_of_range
from keras_plm.features import (
    LAYER_CHOICES,
    FeatureExtractor,
    FeatureStore,
    choice_name,
    distinct_choices,
    every_choice,
    extract_features,
    fitting,
    layer_choice,
    read_apart,
)
from keras_plm.heads import Classifier, MultipleChoice, Regressor
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.optimization import (
    AdamW,
    SlantedTriangular,
    WarmupCosineDecay,
    WarmupLinearDecay,
    layer_groups,
)
from keras_plm.pretraining import WithLanguageModel
from keras_plm.readers import BiLSTM
from keras_plm.readouts import Placement
from keras_plm.resume import set_seed
from keras_plm.task import split_groups

__all__ = [
    "LAYER_CHOICES",
    "FeatureBased",
    "FeatureExtractor",
    "FeatureStore",
    "FineTune",
    "KeepBest",
    "clone",
    "compare_layers",
    "default_metric",
    "distinct_choices",
    "every_choice",
    "extract_features",
    "layer_choice",
    "transferred",
    "with_new_tokens",
]


SCHEDULES = ("linear", "slanted_triangular", "gpt_linear", "cosine")
# How GPT was fine-tuned: Radford et al. 2018, section 4.1, and its released code.
GPT_SETTINGS = {
    "learning_rate": 6.25e-5,
    "epochs": 3,
    "batch_size": 32,
    "warmup": 0.002,
    "schedule": "gpt_linear",
    "bias_correction": True,
    "language_model_weight": 0.5,
}


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
        self.scores = []  # of all epochs

    def on_epoch_end(self, epoch, logs=None):
        score = self.score()
        self.scores.append(float(score))
        if logs is not None:
            logs["val_score"] = score
        if score > self.best:
            self.best, self.best_epoch = score, epoch + 1
            self._weights = [np.array(w) for w in self.model.get_weights()]

    def on_train_end(self, logs=None):
        self.restore()

    def restore(self):
        """Puts the best epoch's weights into the model."""
        if self._weights is not None:
            self.model.set_weights(self._weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Method:
    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float
    weight_decay: float
    dropout: float
    seed: int

    def __post_init__(self):
        whole, real = numbers.Integral, numbers.Real
        for name, kind, good, rule in (
            ("epochs", whole, lambda x: x >= 1, "a whole number, 1 or more"),
            ("batch_size", whole, lambda x: x >= 1, "a whole number, 1 or more"),
            ("learning_rate", real, lambda x: 0 < x < np.inf, "a number above 0"),
            ("warmup", real, lambda x: 0 <= x < 1, "a share in [0, 1)"),
            ("weight_decay", real, lambda x: 0 <= x < np.inf, "a number, 0 or more"),
            ("dropout", real, lambda x: 0 <= x < 1, "a share in [0, 1)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind) or not good(value):
                raise ValueError(f"`{name}` must be {rule}. Received: {value!r}")

    def _schedule(self, total):
        """The learning rate of so many steps."""
        return WarmupLinearDecay(self.learning_rate, total, int(self.warmup * total))

    def _groups(self, model, steps):
        """`AdamW`'s groups for a model and epochs of so many steps."""
        return None

    def _optimizer(self, rate, **options):
        return AdamW(rate, weight_decay=self.weight_decay, **options)

    def _train(self, model, source, score, callbacks, verbose, loss):
        """Compiles and fits `model` on `Batches`; keeps the epoch that `score()` prefers."""
        schedule = self._schedule(len(source) * self.epochs)
        groups = self._groups(model, len(source))
        model.compile(self._optimizer(schedule, groups=groups), loss=loss)
        keep = KeepBest(score) if score is not None else None
        callbacks = ([keep] if keep else []) + list(callbacks)
        history = model.fit(source, epochs=self.epochs, callbacks=callbacks, verbose=verbose)
        if keep:
            keep.restore()  # again, if a callback restored weights of its own
        best = (keep.best, keep.best_epoch) if keep else (None, self.epochs)
        log = {"loss": history.history["loss"], "dev_score": best[0], "best_epoch": best[1]}
        return log | {"dev_scores": keep.scores if keep else [], "steps_per_epoch": len(source)}


def _scorer(head, examples, labels, metric, predict):
    """A function that scores the labels `predict()` gives for the examples; or `None`."""
    if not examples:
        return None
    to_id = _to_id(head)
    for example in examples:
        to_id(example, labels)  # an unknown label is a mistake, not a miss
    metric = metric or default_metric(head, labels)
    truth = [example.label for example in examples]
    return lambda: metric(truth, predict())


def _to_id(head):
    return share_of_range if issubclass(head, Regressor) else label_ids


def _check_examples(train):
    if not len(train):
        raise ValueError("There must be examples to train on. Received: train=[]")


def _with_layers(method, name):
    """The fields of a `FeatureBased` that differ with another choice of layers."""
    mixes = layer_choice(name).combine == "mix"
    return {"layers": name} | ({} if mixes else {"penalty": 0.0, "mix_norm": False})


def default_metric(head, labels):
    """How a head's labels are scored.

    By accuracy; scores by Pearson's correlation, tags that mark spans by F1 of spans.
    """
    if issubclass(head, Regressor):
        return metrics.pearson_correlation
    if not head.per_word:
        return metrics.accuracy
    return metrics.span_f1 if metrics.are_spans(labels) else metrics.word_accuracy


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTune(_Method):
    """Trains encoder and output layer together on the task.

    The defaults are BERT's way. An ELMo is better fine-tuned with `schedule="slanted_triangular"`,
    a `layer_decay`, `pool="max"` and, where it still forgets, `unfreeze_epochs=1`. A GPT's way is
    `FineTune(**GPT_SETTINGS)`; where its tokenizer has special tokens that the encoder does not
    know, they get new vectors, see `with_new_tokens`.

    Reference: Devlin et al. 2018, section 4 and appendix A.3; Radford et al. 2018, section 3.2 and
    4.1; for an ELMo Peters et al. 2019,
    arXiv 1903.05987, section 3, with the means of Howard and Ruder 2018, arXiv 1801.06146.

    Args:
        learning_rate: Highest rate; the paper's grid for its larger models is 2e-5 to 5e-5.
        epochs: Passes over the training examples.
        batch_size: Examples per step; the paper uses 16 or 32.
        warmup: Share of the steps in which the rate rises.
        weight_decay: Of AdamW.
        dropout: Share dropped in the encoder, whatever it was pre-trained with, and before the
            output layer.
        seed: Of the order of examples, of initial weights and of dropout.
        schedule: `"linear"` (`optimization.WarmupLinearDecay`), `"gpt_linear"` (the same with
            `decay_in_warmup`), `"cosine"` (`optimization.WarmupCosineDecay`) or
            `"slanted_triangular"` (`optimization.SlantedTriangular`); all rise for `warmup`.
        layer_decay: Rate of a layer over that of the next higher one, see
            `optimization.layer_groups`; ULMFiT's is 1 / 2.6.
        unfreeze_epochs: Epochs after which the next lower layer starts to learn, beginning with
            the last and the output layer; 0 for all at once. With more layers than epochs the
            lowest never learn.
        pool: How a `Classifier` pools a text's vectors; by default its own choice.
        bias_correction: Of AdamW; BERT was trained without, GPT with it.
        language_model_weight: λ of the language model that is trained beside the task, on the
            task's texts, see `pretraining.WithLanguageModel`; 0 for none.
        n_transfer: How many layers are taken from pre-training, see `transferred`; by default all.
    """

    learning_rate: float = 1e-4
    epochs: int = 3
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    dropout: float = 0.1
    seed: int = 0
    schedule: str = "linear"
    layer_decay: float = 1.0
    unfreeze_epochs: int = 0
    pool: str | None = None
    bias_correction: bool = False
    language_model_weight: float = 0.0
    n_transfer: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.schedule not in SCHEDULES:
            raise ValueError(f"`schedule` must be one of {SCHEDULES}. Received: {self.schedule!r}")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"`layer_decay` must lie in (0, 1]. Received: {self.layer_decay}")
        if not isinstance(self.unfreeze_epochs, numbers.Integral) or self.unfreeze_epochs < 0:
            raise ValueError(
                "`unfreeze_epochs` must be a whole number, 0 or more. "
                f"Received: {self.unfreeze_epochs!r}"
            )
        if not 0 <= self.language_model_weight < np.inf:
            raise ValueError(
                "`language_model_weight` must be 0 or more. "
                f"Received: {self.language_model_weight!r}"
            )
        allowed = ("pooled", *POOLINGS)
        if self.pool is not None and self.pool not in allowed:
            raise ValueError(f"`pool` must be None or one of {allowed}. Received: {self.pool!r}")

    def _schedule(self, total):
        if self.schedule == "slanted_triangular":
            return SlantedTriangular(self.learning_rate, total, self.warmup)
        rise = int(self.warmup * total)
        if self.schedule == "cosine":
            return WarmupCosineDecay(self.learning_rate, total, rise)
        falls = self.schedule == "gpt_linear"
        return WarmupLinearDecay(self.learning_rate, total, rise, decay_in_warmup=falls)

    def _optimizer(self, rate, **options):
        return super()._optimizer(rate, bias_correction=self.bias_correction, **options)

    def _groups(self, model, steps):
        return layer_groups(model, self.layer_decay, self.unfreeze_epochs * steps)

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
        symmetric=False,
    ):
        """Fine-tunes all of a copy of the encoder; the one given stays as it is.

        Pairs of texts that the tokenizer puts in no one row are read apart: `Classifier`'s `pairs`.

        Args:
            encoder: A pre-trained encoder.
            head: `Classifier`, `Regressor`, `Tagger` or `MultipleChoice`, the class.
            tokenizer: The encoder's.
            train: A list of `Example`.
            dev: Examples on which the best epoch is chosen; without them the last is kept.
            labels: The label names, of a `Regressor` the lowest and highest score; by default those
                in `train`.
            metric: `(y_true, y_pred) -> float` that chooses; by default the head's.
            callbacks: More Keras callbacks.
            verbose: As in `fit`.
            symmetric: Whether the two texts of a pair have no order: an encoder that reads from
                left to right is then given both orders.

        Returns:
            The trained head, a compiled Keras model whose `predict` takes texts. Its `training_log`
            tells the losses, the best epoch and its score.

        Raises:
            ValueError: If there are no examples, or the head, encoder and settings do not go
                together.
        """
        set_seed(self.seed)
        _check_examples(train)
        labels = labels or head.labels_of(train)
        options = {} if self.pool is None else {"pool": self.pool}
        if options and head.per_word:
            raise ValueError(
                "Of words nothing is pooled; leave `pool=None` for a `Tagger`. "
                f"Received: pool={self.pool!r}, head={head.__name__}"
            )
        if self.n_transfer is not None:
            encoder = transferred(encoder, self.n_transfer)
        dropout = {"dropout": self.dropout} if "dropout" in encoder.get_config() else {}
        known = getattr(encoder, "vocabulary_size", None)
        if known is not None and known == getattr(tokenizer, "text_size", None) < len(tokenizer):
            encoder = with_new_tokens(encoder, len(tokenizer), self.seed)
        copy = clone(encoder, **dropout)
        paired = any(example.pair is not None for example in train)
        if paired and issubclass(head, Classifier):
            if not getattr(tokenizer, "joint_pairs", True):
                options["pairs"] = True
            elif symmetric and getattr(encoder, "causal", False):
                options["pairs"] = "both_orders"
        model = head(copy, labels, tokenizer=tokenizer, dropout=self.dropout, **options)
        source = model.batches(train, batch_size=self.batch_size, seed=self.seed)
        score = _scorer(head, dev, labels, metric, lambda: model.predict(dev))
        trained, loss = model, model.default_loss()
        if self.language_model_weight:
            trained = WithLanguageModel(model, self.language_model_weight)
            source = trained.batches(source)
        log = self._train(trained, source, score, callbacks, verbose, loss)
        if trained is not model:
            _compile_trained(model, self._optimizer(self.learning_rate))
        model.training_log = log
        return model


def _compile_trained(model, optimizer):
    """Compiles a head that was trained in parts."""
    model.compile(optimizer)
    model.optimizer.build(model.trainable_variables)  # which a saved model asks for


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureBased(_Method):
    """Trains a reader on features of the frozen encoder.

    The encoder runs once over the examples, whatever is trained on them after: its layers go
    to a `FeatureStore`, which the methods of several choices may share.

    Reference: Devlin et al. 2018, section 5.3; Peters et al. 2018, section 3.3.

    Args:
        layers: As `layer_choice` takes it.
        reader: `"linear"`, an output layer alone, or `"bilstm"`, the paper's two-layer BiLSTM.
        pool: How a text's vectors are pooled for a linear reader of texts.
        units: Width of each direction of the BiLSTM; by default half the encoder's.
        learning_rate, epochs, batch_size, warmup, weight_decay, dropout, seed: as in `FineTune`.
        feature_gb: Largest feature store, in gigabytes (10^9 bytes).
        placement: `"input"`, `"output"` or `"both"`: where the features enter a BiLSTM, see
            `readouts.Placement`.
        penalty, mix_norm, feature_dropout: Of learned mixes and of the features, see there.
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
    placement: str = "input"
    penalty: float = 0.0
    mix_norm: bool = False
    feature_dropout: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        layer_choice(self.layers)
        if self.units is not None and self.units < 1:
            raise ValueError(f"`units` must be 1 or more, or None. Received: units={self.units}")
        if self.reader not in ("linear", "bilstm"):
            raise ValueError(f"`reader` must be 'linear' or 'bilstm'. Received: {self.reader!r}")
        if self.pool not in POOLINGS:
            raise ValueError(f"`pool` must be one of {POOLINGS}. Received: {self.pool!r}")
        if self._placement.place != "input":
            self._placement.check(self._reads, "given to `fit`")
        if (self.penalty or self.mix_norm) and layer_choice(self.layers).combine != "mix":
            raise ValueError(
                "`penalty` and `mix_norm` are of learned mixes: choose layers='mix', or leave them "
                f"out. Received: layers={self.layers!r}, penalty={self.penalty}, "
                f"mix_norm={self.mix_norm}"
            )

    @property
    def _placement(self):
        return Placement(self.placement, self.penalty, self.mix_norm, self.feature_dropout)

    @property
    def _reads(self):
        return None if self.reader == "linear" else self.reader

    def store_pool(self, head):
        """How features are stored for this reader: pooled, or `None` for one per word."""
        return self.pool if not head.per_word and self.reader == "linear" else None

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
        words=None,
        symmetric=False,
    ):
        """Trains a reader; the encoder stays as it is.

        Two texts that the tokenizer puts in no one row are read apart and pooled, see
        `Classifier`'s `pairs="pooled"`. An encoder that does not know its tokenizer's special
        tokens, as a GPT that was not fine-tuned, reads texts without them.

        Args:
            encoder, head, tokenizer, train, dev, labels, metric, callbacks, verbose: as in
                `FineTune.fit`.
            symmetric: Without meaning here.
            store: Folder for features, kept for later calls; by default a temporary one.
            words: A `WordVectors` whose vectors the reader reads beside the features, of the same
                words; needs a reader. It stays as it is.

        Returns:
            The head around the frozen encoder, a compiled Keras model whose `predict` takes texts.
            Its `training_log` tells the losses, the best epoch and its score, and the learned
            `"mixes"` of layers, where there are any, as `model.mixing_weights()`.

        Raises:
            ValueError: If there is no reader for `words`, or placement "output" has no `words`.
        """
        self._placement.check(self._reads, words)
        _check_examples(train)
        if issubclass(head, MultipleChoice):
            raise ValueError(
                "Choices are fine-tuned: use `FineTune`. Received: head=MultipleChoice"
            )
        labels = labels or head.labels_of(train)
        tokenizer = fitting(tokenizer, encoder)
        pool = self.store_pool(head)
        with tempfile.TemporaryDirectory() as temporary:
            folder = temporary if store is None else store
            stores = [
                FeatureStore.build(folder, encoder, tokenizer, part, pool, self.feature_gb)
                for part in (train, dev)
                if part
            ]
            beside = self.word_stores(folder, words, encoder, tokenizer, (train, dev))
            readout, log = self.fit_reader(
                head, stores, train, dev, labels, metric, callbacks, verbose, beside
            )
            del stores, beside
        options = {} if head.per_word else {"pool": self.pool}
        if read_apart(train, tokenizer):
            options["pairs"] = "pooled"
        model = head(
            clone(encoder),
            labels,
            tokenizer=tokenizer,
            layers=layer_choice(self.layers),
            reader=readout.reader,
            dropout=self.dropout,
            frozen=True,
            readout=readout,
            words=None if words is None else clone(words),
            placement=self._placement,
            **options,
        )
        _compile_trained(model, self._optimizer(self.learning_rate))
        model.training_log = log
        return model

    def word_stores(self, folder, words, encoder, tokenizer, parts):
        """The stores of word vectors beside those of an encoder; `None` without `words`."""
        if words is None:
            return None
        check_word_vectors(words)
        return [
            FeatureStore.build_words(folder, words, encoder, tokenizer, part, self.feature_gb)
            for part in parts
            if part
        ]

    def fit_reader(
        self,
        head,
        stores,
        train,
        dev=None,
        labels=None,
        metric=None,
        callbacks=(),
        verbose=0,
        words=None,
    ):
        """Trains the part of a head that reads features, from stores alone.

        Args:
            head: `Classifier`, `Regressor` or `Tagger`, the class.
            stores: The `FeatureStore` of `train` and, if given, of `dev`.
            train, dev, labels, metric, callbacks, verbose: as in `FineTune.fit`.
            words: The stores of word vectors beside them, see `FeatureStore.build_words`.

        Returns:
            `(readout, log)`: the trained Keras model from features to logits, and the losses, best
            epoch, its score and the learned mixes.

        Raises:
            ValueError: As `fit`; and if the stores are not of the same words.
        """
        set_seed(self.seed)
        labels = labels or head.labels_of(train)
        choice = layer_choice(self.layers)
        reader, width = None, stores[0].array.shape[-1]
        if self.reader == "bilstm":
            units = self.units or max(width // 2, 1)
            reader = BiLSTM(units, dropout=self.dropout, name="bilstm")
        read = 1 if choice.combine == "mean" else len(choice.indices(stores[0].array.shape[1]))
        beside = words or (None, None)
        readout = head.build_readout(
            (read, width),
            len(labels),
            choice,
            reader,
            self.dropout,
            self._placement,
            None if words is None else words[0].array.shape[-1],
            **({"pairs": "pooled"} if stores[0].pairs else {}),
        )
        readout.reader = reader
        to_id = _to_id(head)
        targets = [to_id(example, labels) for example in train]
        source = stores[0].batches(
            choice, targets, words=beside[0], batch_size=self.batch_size, seed=self.seed
        )
        score = _scorer(
            head,
            dev,
            labels,
            metric,
            lambda: self.predict(head, readout, stores[1], labels, beside[1]),
        )
        log = self._train(readout, source, score, callbacks, verbose, head.default_loss())
        mixes = readout.mixing_weights()
        return readout, log | ({"mixes": mixes} if mixes else {})

    def predict(self, head, readout, store, labels, words=None):
        """Labels of stored examples by a trained readout, without running the encoder."""
        source = store.batches(self.layers, training=False, words=words, tokens_per_batch=8192)
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
    words=None,
):
    """Scores every choice of layers of a frozen encoder on one task.

    The encoder runs once over the examples; then each choice is read with each seed.

    Args:
        encoder, tokenizer: The encoder and its tokenizer.
        examples: A dict with `"train"`, `"dev"` (chooses the best epoch) and `"test"` (scored); or
            a list, parted 70/15/15 by group.
        head: `Classifier`, `Regressor` or `Tagger`, the class.
        method: A `FeatureBased` with all that is not the choice; by default `FeatureBased()`.
        choices: Names of choices; by default all that differ, see `distinct_choices`.
        seeds: How many seeds.
        metric: `(y_true, y_pred) -> float`; by default the head's.
        store: Folder for features, kept for later calls; by default a temporary one.
        progress: Called with each row when it is done.
        words: A `WordVectors` beside the encoder, as in `FeatureBased.fit`.

    Returns:
        A list of dicts, one per choice: `layers`, `mean`, `deviation` (between seeds) and `scores`.
    """
    if not isinstance(examples, dict):
        parts = split_groups(examples, (0.7, 0.15, 0.15))
        examples = dict(zip(("train", "dev", "test"), parts, strict=True))
    method = method or FeatureBased()
    method._placement.check(method._reads, words)
    train, dev, test = (examples[split] for split in ("train", "dev", "test"))
    labels = head.labels_of(train)
    tokenizer = fitting(tokenizer, encoder)
    metric = metric or default_metric(head, labels)
    to_id = _to_id(head)
    for example in test:
        to_id(example, labels)
    truth = [example.label for example in test]
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = temporary if store is None else store
        pool = method.store_pool(head)
        stores = [
            FeatureStore.build(folder, encoder, tokenizer, part, pool, method.feature_gb)
            for part in (train, dev, test)
        ]
        beside = method.word_stores(folder, words, encoder, tokenizer, (train, dev, test))
        of_test = None if beside is None else beside[2]
        for name in choices or distinct_choices(encoder):
            scores = []
            for seed in range(seeds):
                reader = dataclasses.replace(method, seed=seed, **_with_layers(method, name))
                readout, _ = reader.fit_reader(
                    head, stores, train, dev, labels, metric, words=beside
                )
                predicted = reader.predict(head, readout, stores[2], labels, of_test)
                scores.append(metric(truth, predicted))
            row = {
                "layers": choice_name(name),
                "mean": float(np.mean(scores)),
                "deviation": float(np.std(scores, ddof=1)) if seeds > 1 else 0.0,
                "scores": scores,
            }
            table.append(row)
            if progress is not None:
                progress(row)
        del stores, beside, of_test
    return table
