"""Feature-based transfer: a reader trained on the layers of a frozen encoder."""

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_plm.data.passages import check_joint, check_tokens_are_words
from keras_plm.data.task import Example
from keras_plm.files.arguments import check_number, check_one_of
from keras_plm.heads import MultipleChoice
from keras_plm.heads.encoded import check_word_vectors
from keras_plm.heads.head import Head, by_row
from keras_plm.heads.readers.reading import texts_of
from keras_plm.heads.task_network import Placement, TaskNetwork
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import run_on
from keras_plm.training.resume import set_seed
from keras_plm.transfer._feature_rows import TOKENS, read_apart
from keras_plm.transfer.feature_store import FeatureStore, fitting
from keras_plm.transfer.layer_choices import layer_choice
from keras_plm.transfer.method import (
    READERS,
    Method,
    check_documents,
    check_head,
    check_reader,
    check_reads,
    compile_trained,
    labelled,
    new_reader,
    scorer,
)
from keras_plm.transfer.surgery import clone


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureBased(Method):
    """Feature-based transfer: trains a task network on features of a frozen encoder.

    The encoder runs once over the examples. A `FeatureStore` keeps its layers; several methods can
    share it.

    Reference: Devlin et al. 2018, section 5.3; Peters et al. 2018, section 3.3.

    Args:
        layers: As in `layer_choice`.
        reader: `"linear"`, only an output layer; `"bilstm"`, BERT's two-layer BiLSTM; or one of
            ELMo's networks: `"bcn"` for texts, `"esim"` for pairs of texts, `"bidaf"` for questions
            with passages, see `keras_plm.heads.readers`; `"alternating_lstm"` is the published
            reader of semantic roles. ELMo's tagger is `"bilstm"` with
            `character_filters` and the head `CRFTagger`.
        pool: Pooling of the vectors of a text for a linear reader.
        units: Width of each direction of the reader's LSTMs; by default half the encoder's width.
        reader_layers: Number of layers of the reader "bilstm", by default 2, or "alternating_lstm",
            by default 8.
        learning_rate, epochs, batch_size, warmup, weight_decay, dropout, seed: As in `FineTune`.
        feature_gb: Largest feature store, in gigabytes (10^9 bytes).
        placement: Place of the features in a reader, `"input"`, `"output"` or `"both"`, see
            `task_network.Placement`.
        penalty, mix_norm, feature_dropout: Settings of learned mixes and of the features, see
            `task_network.Placement`.
        character_filters: Number of filters of a convolution over the characters of words, next to
            their features; 0 for none.

    Raises:
        ValueError: If a setting is out of range, or settings do not fit together.

    >>> import numpy as np
    >>> from keras_plm.data import Example
    >>> from keras_plm.heads import Classifier
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> train = [Example("fine film", "good"), Example("dull film", "bad")] * 4
    >>> method = FeatureBased(epochs=1, batch_size=8)
    >>> model = method.fit(encoder, Classifier, encoder.tokenizer(), train)
    >>> model.labels, model.predict(["fine film"])[0] in model.labels
    (['bad', 'good'], True)
    """

    layers: str | LayerChoice = "last"
    reader: str = "linear"
    pool: str = "mean"
    units: int | None = None
    reader_layers: int | None = None
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
    character_filters: int = 0

    def __post_init__(self):
        super().__post_init__()
        layer_choice(self.layers)
        check_reader(self.reader, self.units, self.reader_layers)
        check_number(self.feature_gb, "feature_gb", least=0)
        check_one_of(self.pool, "pool", POOLINGS)
        self._placement.check(self._reads, "given to `fit`" if self._reads else None)
        if (self.penalty or self.mix_norm) and layer_choice(self.layers).combine != "mix":
            raise ValueError(
                "`penalty` and `mix_norm` need learned mixes: choose layers='mix', or leave them "
                f"out. Received: layers={self.layers!r}, penalty={self.penalty}, "
                f"mix_norm={self.mix_norm}"
            )

    @property
    def _placement(self):
        mix = self.penalty, self.mix_norm
        return Placement(self.placement, *mix, self.feature_dropout, self.character_filters)

    @property
    def _reads(self):
        return READERS[self.reader]

    @property
    def _asks(self):
        """Options of `FeatureStore.batches` for the inputs that the reader needs."""
        pair_positions = texts_of(self._reads) is not None
        return {"word_character_ids": self.character_filters > 0, "pair_positions": pair_positions}

    def check(
        self,
        head: type[Head],
        examples: Sequence[Example],
        tokenizer: SubwordTokenizer,
        words: WordVectors | None = None,
    ) -> None:
        """Raises unless head, reader, examples and tokenizer fit together.

        Args:
            head: Class of the head.
            examples: Training examples.
            tokenizer: The encoder's tokenizer, after `feature_store.fitting`.
            words: Word vectors next to the features, or `None`.
        """
        self._placement.check(self._reads, words)
        if issubclass(head, MultipleChoice):
            raise ValueError(
                "Choices need fine-tuning: use `FineTune`. Received: head=MultipleChoice"
            )
        check_reads(self.reader, head, examples)
        check_documents(head, self.batch_size)
        if head.marks_predicates and self._reads is None:
            raise ValueError(
                "A linear output of frozen features cannot know the predicate: choose another "
                f"reader, such as 'bilstm'. Received: reader='linear', head={head.__name__}"
            )
        if head.per_token and self.character_filters:
            raise ValueError(
                "A head of tokens reads no characters of words: leave "
                "`character_filters` out. "
                f"Received: character_filters={self.character_filters}, head={head.__name__}"
            )
        if head.per_token and words is not None:
            check_tokens_are_words(tokenizer)
        if head.per_token and self._reads is None:
            check_joint(tokenizer)
        apart = not head.per_token and read_apart(examples, tokenizer)
        if apart and self._reads is not None and texts_of(self._reads) is None:
            raise ValueError(
                "Two separate texts need reader='linear', which pools them, or reader='esim': "
                "choose one, or fine-tune with `FineTune`. "
                f"Received: reader={self.reader!r}, pairs of texts for {type(tokenizer).__name__}"
            )

    def store_pool(self, head: type[Head]) -> str | None:
        """Returns the argument `pool` of `FeatureStore.build` for this reader."""
        if head.per_token:
            return TOKENS
        return self.pool if not head.per_word and self.reader == "linear" else None

    def fit(
        self,
        encoder: Encoder,
        head: type[Head],
        tokenizer: SubwordTokenizer,
        train: Sequence[Example],
        dev: Sequence[Example] | None = None,
        labels: Iterable[Any] | None = None,
        metric: Callable[[Any, Any], float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback = (),
        verbose: int = 0,
        store: str | os.PathLike | None = None,
        words: WordVectors | None = None,
    ) -> Head:
        """Trains a task network; the encoder stays unchanged.

        If the tokenizer does not pack two texts into one row, the encoder reads them separately,
        see `pairs` of `Classifier`. An encoder without vectors for its tokenizer's special tokens,
        such as a GPT that was not fine-tuned, reads texts without them.

        Args:
            encoder, head, tokenizer, train, dev, labels, metric, callbacks, verbose: As in
                `FineTune.fit`.
            store: Folder for features, kept for later calls; by default a temporary folder.
            words: A `WordVectors` whose frozen vectors the reader reads next to the features; needs
                a reader.

        Returns:
            The head with the frozen encoder, a compiled Keras model whose `predict` takes texts.
            `training_log` has the losses, the best epoch and its score, and the learned `"mixes"`
            of layers, as `model.mixing_weights()`.

        Raises:
            ValueError: If there is no reader for `words`, or placement "output" has no `words`. If
                the head is a `MultipleChoice`, or the reader does not fit the head or the examples.
            FloatingPointError: If training diverges: its loss or its predictions are not finite.
        """
        train, dev, labels = labelled(train, dev, labels)
        check_head(head)
        check_encoder(encoder, tokenizer)
        tokenizer = fitting(tokenizer, encoder)
        self.check(head, train, tokenizer, words)
        labels = head.labels_of(train) if labels is None else labels
        pool = self.store_pool(head)
        with tempfile.TemporaryDirectory() as temporary:
            folder = temporary if store is None else store
            stores = [
                FeatureStore.build(folder, encoder, tokenizer, part, pool, self.feature_gb)
                for part in (train, dev)
                if part
            ]
            tokens = TOKENS if head.per_token else None
            word_stores = self.word_stores(folder, words, encoder, tokenizer, (train, dev), tokens)
            task_network, log = self.fit_reader(
                head, stores, train, dev, labels, metric, callbacks, verbose, word_stores
            )
            del stores, word_stores
        model = self.model(encoder, head, labels, tokenizer, task_network, train, words)
        model.training_log = log
        return model

    def model(
        self,
        encoder: Encoder,
        head: type[Head],
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer,
        task_network: TaskNetwork,
        train: Sequence[Example],
        words: WordVectors | None = None,
    ) -> Head:
        """Joins a frozen encoder and its trained task network into one model.

        Args:
            encoder, head, labels, train, words: As in `fit`.
            tokenizer: The encoder's tokenizer, after `feature_store.fitting`.
            task_network: Result of `fit_reader`.

        Returns:
            The head, a compiled Keras model whose `predict` takes texts.
        """
        options = {} if head.per_word else {"pool": self.pool}
        if not head.per_token and read_apart(train, tokenizer):
            options["pairs"] = "words" if self._asks["pair_positions"] else "pooled"
        model = head(
            clone(encoder),
            labels,
            tokenizer=tokenizer,
            layers=layer_choice(self.layers),
            reader=task_network.reader,
            dropout=self.dropout,
            frozen=True,
            task_network=task_network,
            words=None if words is None else clone(words),
            placement=self._placement,
            **options,
            **getattr(task_network, "settled", {}),
        )
        compile_trained(model, self._optimizer(self.learning_rate))
        model.trained_on_pairs = train[0].pair is not None
        return model

    def word_stores(
        self,
        folder: str | os.PathLike,
        words: WordVectors | None,
        encoder: Encoder,
        tokenizer: SubwordTokenizer,
        parts: Sequence[Any],
        pool: str | None = None,
    ) -> list[FeatureStore] | None:
        """Builds stores of word vectors for the same words; returns `None` without `words`."""
        if words is None:
            return None
        check_word_vectors(words)
        return [
            FeatureStore.build_words(folder, words, encoder, tokenizer, part, self.feature_gb, pool)
            for part in parts
            if part
        ]

    def fit_reader(
        self,
        head: type[Head],
        stores: Sequence[FeatureStore],
        train: Sequence[Example],
        dev: Sequence[Example] | None = None,
        labels: Iterable[Any] | None = None,
        metric: Callable[[Any, Any], float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback = (),
        verbose: int = 0,
        words: Sequence[FeatureStore] | None = None,
    ) -> tuple[TaskNetwork, dict[str, Any]]:
        """Trains the task network of a head on stored features.

        Args:
            head: Class of the head.
            stores: The `FeatureStore` of `train` and, if given, of `dev`.
            train, dev, labels, metric, callbacks, verbose: As in `FineTune.fit`.
            words: Stores of word vectors next to the features, see `FeatureStore.build_words`.

        Returns:
            `(task_network, log)`: the trained Keras model from features to logits, and the losses,
            the best epoch, its score and the learned mixes.

        Raises:
            ValueError: As `fit`. If the stores have different words.
        """
        set_seed(self.seed)
        labels = head.labels_of(train) if labels is None else labels
        choice = layer_choice(self.layers)
        width = stores[0].array.shape[-1]
        check_reads(self.reader, head, train)
        reader = new_reader(self, width)
        read = 1 if choice.combine == "mean" else len(choice.indices(stores[0].array.shape[1]))
        word_stores = words or (None, None)
        task_network = head.build_task_network(
            (read, width),
            len(labels),
            choice,
            reader,
            self.dropout,
            self._placement,
            None if words is None else words[0].array.shape[-1],
            **({"pairs": "pooled"} if stores[0].pairs else {}),
        )
        task_network.reader = reader
        targets = head.targets(train, labels, stores[0].windows)
        options = {"batch_size": self.batch_size, "seed": self.seed, **self._asks}
        options |= _inputs_of(head)
        source = stores[0].batches(choice, targets, words=word_stores[0], **options)
        score = scorer(
            head,
            dev,
            labels,
            metric,
            lambda: self.predict(head, task_network, stores[1], labels, word_stores[1]),
        )
        log = self._train(task_network, source, score, callbacks, verbose, head.default_loss())
        log["learned_weights"] = sum(int(np.prod(w.shape)) for w in task_network.trainable_weights)
        if dev:
            task_network.settled = head.settle(
                labels,
                dev,
                lambda: self.predict(head, task_network, stores[1], labels, word_stores[1], True),
            )
        mixes = task_network.mixing_weights()
        return task_network, log | ({"mixes": mixes} if mixes else {})

    def predict(
        self,
        head: type[Head],
        task_network: TaskNetwork,
        store: FeatureStore,
        labels: Iterable[Any],
        words: FeatureStore | None = None,
        probabilities: bool = False,
        batch_size: int | None = None,
        verbose: int = 0,
    ) -> list[Any]:
        """Predicts labels of stored examples with a trained task network.

        Args:
            head: Class of the head.
            task_network: Result of `fit_reader`.
            store: The `FeatureStore` of the examples.
            labels: The label names.
            words: Store of word vectors for the same words, or `None`.
            probabilities: If True, return probabilities of the labels.
            batch_size: Number of examples per batch; by default as many as fit into 8,192 vectors.
            verbose: As in `keras_plm.training.fit.run_on`.

        Returns:
            A list of labels or of probabilities, as from the head's `predict`.
        """
        size = {"tokens_per_batch": 8192} if batch_size is None else {"batch_size": batch_size}
        options = {"training": False, **size, **self._asks}
        options |= _inputs_of(head)
        source = store.batches(self.layers, words=words, **options)
        logits = [None] * len(store.rows)
        for rows, outputs in run_on(task_network, source, verbose):
            for row, output in by_row(rows, outputs):
                logits[row] = output
        source, settled = store.windows or StoredRows(store), getattr(task_network, "settled", {})
        return head.decode(labels, logits, source, probabilities, **settled)


def _inputs_of(head):
    """Returns options of `FeatureStore.batches` for inputs of a head other than features."""
    documents = head.reads_documents
    return {
        "predicate_marks": head.marks_predicates,
        "sentence_ids": documents,
        "in_windows": not documents,
    }


class StoredRows:
    """Rows of a store for a head's `decode`; with `whole`, each row is an example."""

    def __init__(self, store, whole=False):
        self.examples_of = np.arange(len(store)) if whole else store.rows[:, 0]
        self.words = store.counts if whole else store.rows[:, 2]
