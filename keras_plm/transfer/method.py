"""Base of the transfer methods: settings, training, the best epoch."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_plm import metrics
from keras_plm.data.labels import tag_scheme_of
from keras_plm.data.task import Example, as_examples, place_of
from keras_plm.files.arguments import check_number, check_one_of, check_whole
from keras_plm.files.sequences import as_names
from keras_plm.heads.head import Head
from keras_plm.heads.readers import BCN, ESIM, AlternatingLSTM, BiDAF, BiLSTM
from keras_plm.heads.readers.reading import check_serves, texts_of
from keras_plm.heads.span_finder import NO_ANSWER
from keras_plm.training.optimizers import BertAdamW, loss_scaled
from keras_plm.training.schedules import WarmupLinearDecay

MOST_DOCUMENTS = 4  # of a step: each takes the memory of all its windows and spans
READERS = {
    "linear": None,
    "bilstm": BiLSTM,
    "bcn": BCN,
    "esim": ESIM,
    "bidaf": BiDAF,
    "alternating_lstm": AlternatingLSTM,
}
STACKS = ("bilstm", "alternating_lstm")  # readers with a number of layers


class KeepBest(keras.callbacks.Callback):
    """Callback that restores the weights of the epoch with the best score.

    It adds the score to the logs of each epoch as `val_score`, for later callbacks with
    `mode="max"`.

    Args:
        score: A function without arguments that returns the model's score on the dev set. Higher is
            better; NaN is worse than any number.

    Raises:
        ValueError: At the end of training, if every score was NaN.

    >>> import keras
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> scores = iter([0.5, 0.9, 0.7])
    >>> keep = KeepBest(lambda: next(scores))
    >>> x, y = np.ones((2, 2)), np.ones((2, 1))
    >>> history = model.fit(x, y, epochs=3, callbacks=[keep], verbose=0)
    >>> keep.best, keep.best_epoch
    (0.9, 2)
    """

    def __init__(self, score: Callable[[], float]):
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
        if self.scores and self.best_epoch is None:
            raise ValueError(
                "The metric must give a number on the dev set after at least one epoch. "
                f"Received: scores {self.scores}"
            )
        self.restore()

    def restore(self) -> None:
        """Restores the weights of the best epoch."""
        if self._weights is not None:
            self.model.set_weights(self._weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float
    weight_decay: float
    dropout: float
    seed: int

    def __post_init__(self):
        check_whole(self.epochs, "epochs", least=1)
        check_whole(self.batch_size, "batch_size", least=1)
        check_whole(self.seed, "seed", least=0)
        check_number(self.learning_rate, "learning_rate", above=0)
        check_number(self.warmup, "warmup", least=0, below=1)
        check_number(self.weight_decay, "weight_decay", least=0)
        check_number(self.dropout, "dropout", least=0, below=1)

    def _schedule(self, total):
        """Returns the learning rate for `total` steps."""
        return WarmupLinearDecay(self.learning_rate, total, int(self.warmup * total))

    def _groups(self, model, steps):
        """Returns the groups of `BertAdamW` for a model and epochs of `steps` steps."""
        return None

    def _optimizer(self, rate, **options):
        return BertAdamW(rate, weight_decay=self.weight_decay, **options)

    def _train(self, model, source, score, callbacks, verbose, loss, distribution=None):
        """Compiles and fits `model` on `Batches`; keeps the epoch with the best `score()`."""
        steps = len(source) // source.micro_batches
        optimizer = self._optimizer(
            self._schedule(steps * self.epochs), groups=self._groups(model, steps)
        )
        if distribution is not None:
            encoder = getattr(model, "encoder", model)
            optimizer = distribution.optimizer(loss_scaled(optimizer, encoder))
        model.compile(optimizer, loss=loss)
        keep = KeepBest(score) if score is not None else None
        callbacks = ([keep] if keep else []) + keras.tree.flatten(callbacks)
        history = model.fit(source, epochs=self.epochs, callbacks=callbacks, verbose=verbose)
        if keep:
            keep.restore()  # again, because a callback may have restored other weights
        best = (keep.best, keep.best_epoch) if keep else (None, self.epochs)
        log = {"loss": history.history["loss"], "dev_score": best[0], "best_epoch": best[1]}
        return log | {"dev_scores": keep.scores if keep else [], "steps_per_epoch": steps}


def scorer(head, examples, labels, metric, predict):
    """Returns a function that scores `predict()` on the examples, or `None` without examples."""
    if not examples:
        return None
    for i, example in enumerate(examples):
        head.target(example, labels, training=False, number=i)  # raises for one without a label
    metric = metric or default_metric(head, labels, examples)
    if not callable(metric):
        raise TypeError(
            "`metric` must be a function `(y_true, y_pred) -> float`, as `metrics.accuracy`. "
            f"Received: metric={metric!r:.60}"
        )
    truth = [example.label for example in examples]
    return lambda: metric(truth, predict())


def labelled(train, dev=None, labels=None):
    """Returns `(train, dev, labels)` as lists; `labels` may stay `None`.

    Raises:
        TypeError: If examples are texts without labels.
        ValueError: If there is nothing to train on, a text or a label is missing, or a label name
            is repeated. If the dev set has pairs and `train` single texts, or the reverse.
    """
    train = as_examples(train, "train")
    if not train:
        raise ValueError("There must be examples to train on. Received: train=[]")
    dev = [] if dev is None else as_examples(dev, "dev")
    kinds, paired = ("a single text", "a pair"), train[0].pair is not None
    for i, example in enumerate(dev):
        if (example.pair is not None) != paired:
            raise ValueError(
                f"{place_of(example, i)}The examples of the dev set must be single texts or pairs, "
                f"as in `train`. Received: {kinds[not paired]}, and {kinds[paired]} in `train`"
            )
    return train, dev, None if labels is None else as_names(labels, "labels")


def check_head(head):
    """Raises unless `head` is a class of `keras_plm.heads`."""
    if not (isinstance(head, type) and issubclass(head, Head)):
        raise TypeError(
            "`head` must be a class of `keras_plm.heads`, as `Classifier`, and not an instance: "
            f"fit(encoder, head, tokenizer, train). Received: {head!r:.60}"
        )


def check_documents(head, batch_size):
    """Raises if a head that reads documents would read many in a step."""
    if head.reads_documents and batch_size > MOST_DOCUMENTS:
        raise ValueError(
            f"Documents are long: set `batch_size` (--batch-size) to 1, at most {MOST_DOCUMENTS} "
            f"per step. Received: batch_size={batch_size}"
        )


def check_reader(reader, units, layers=None):
    """Raises unless the name, the width and the number of layers of a reader are valid."""
    if units is not None:
        check_whole(units, "units", least=1)
    check_one_of(reader, "reader", READERS)
    if layers is not None:
        check_whole(layers, "reader_layers", least=1)
        if reader not in STACKS:
            raise ValueError(
                f"`reader_layers` needs reader={' or '.join(map(repr, STACKS))}. "
                f"Received: reader_layers={layers}, reader={reader!r}"
            )


def check_reads(reader, head, examples):
    """Raises unless the reader of a name fits a head and the examples."""
    check_serves(READERS[reader], head)
    pairs = [getattr(example, "pair", None) is not None for example in examples]
    if texts_of(READERS[reader]) is not None and not all(pairs):
        raise ValueError(
            f"This reader reads two texts: give every example a `pair`, or choose 'bilstm' or "
            f"'bcn'. Received: reader={reader!r}, example {pairs.index(False)} without a pair"
        )


def new_reader(method, width):
    """Returns a method's new reader for vectors of a width; `None` for only an output layer."""
    if method.reader == "linear":
        return None
    units = method.units or max(width // 2, 1)
    options = {} if method.reader_layers is None else {"num_layers": method.reader_layers}
    return READERS[method.reader](units, dropout=method.dropout, name=method.reader, **options)


def compile_trained(model, optimizer):
    """Compiles a head that was trained in parts."""
    model.compile(optimizer)
    model.optimizer.build(model.trainable_variables)  # a saved model needs it


def default_metric(
    head: type[Head], labels: Sequence[Any] | None, examples: Sequence[Example] = ()
) -> Callable[[Any, Any], float]:
    """Returns the default metric of a head.

    It is accuracy; Pearson's correlation for scores, F1 of spans for tags that mark spans or roles,
    SQuAD's F1 for answers from a passage, and the mean F1 of CoNLL-2012 for coreference.

    Args:
        head: Class of the head.
        labels: Labels of the head.
        examples: Examples to score; their tags show whether these mark spans.

    Returns:
        A function `(y_true, y_pred) -> float`.

    Raises:
        ValueError: If tags are of several schemes, see `data.labels.tag_scheme_of`.

    >>> from keras_plm.heads import Classifier, Tagger
    >>> default_metric(Classifier, ["a", "b"]).__name__
    'accuracy'
    >>> default_metric(Tagger, ["O", "B-PER", "I-PER"]).__name__
    'span_f1'
    """
    if head.per_token:
        return functools.partial(metrics.squad_f1, version=2 if NO_ANSWER in labels else 1)
    if head.scores:
        return metrics.pearson_correlation
    if not head.per_word:
        return metrics.accuracy
    if head.marks_predicates:
        return metrics.role_f1
    if head.reads_documents:
        return metrics.conll_coreference_f1
    scheme = tag_scheme_of(examples) or metrics.tag_scheme(labels)
    return metrics.word_accuracy if scheme is None else metrics.span_f1
