"""F1 of the spans that tags mark, by the rules of conlleval."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import as_list, as_names
from keras_plm.metrics._inputs import both
from keras_plm.metrics.tag_schemes import check_marks

BEGINS, ENDS = ("B", "S", "U"), ("E", "L", "S", "U")
TOTALS = {"all", "accuracy"}  # rows that are no types of spans


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Finds the spans that the tags of a sentence mark, by the rules of conlleval.

    A span starts at B, at I after O or at the start of the sentence, and at a change of the type.
    It ends before the next span or O. These rules read IOB1 and IOB2. E and L end a span, S and U
    are a span of one word, for IOBES, BILOU and BMES.

    Args:
        tags: Strings such as `"O"`, `"B-PER"`, `"I-PER"`; or `"B"` and `"I"`, with the type `""`.

    Returns:
        A list of `(type, first word, last word + 1)`.

    >>> spans(["I-PER", "I-PER", "B-PER", "O", "I-LOC"])
    [('PER', 0, 2), ('PER', 2, 3), ('LOC', 4, 5)]
    """
    found, start, open_type, ended = [], None, None, False
    for i, tag in enumerate([*as_list(tags, "tags", "tags"), "O"]):
        prefix, _, kind = tag.partition("-")
        continues = start is not None and prefix != "O" and prefix not in BEGINS
        if not (continues and kind == open_type and not ended):
            if start is not None:
                found.append((open_type, start, i))
            start, open_type = (None, None) if prefix == "O" else (i, kind)
        ended = prefix in ENDS
    return found


def span_scores(y_true: Iterable[Any], y_pred: Iterable[Any]) -> dict[str, Any]:
    """Computes precision, recall, F1 and counts of spans, in total and by type, as conlleval.

    A span is correct if its type, first and last word equal those of a true span. Results agree
    with the CoNLL-2003 script conlleval and with seqeval's default mode.

    Args:
        y_true, y_pred: True and predicted tags, lists of sentences, each a list of tags.

    Returns:
        A dict from `"all"` and each type to dicts with `precision`, `recall`, `f1` in [0, 1],
        `true`, `found` and `correct`; and `"accuracy"`, the fraction of equal tags.

    Raises:
        ValueError: If the numbers of sentences or words differ, tags mark no spans, a type has the
            name `"all"` or `"accuracy"`, or tags are of several schemes, see `tag_scheme`. Spans
            of IOBES may lack an end.

    >>> scores = span_scores([["B-A", "I-A", "O"]], [["B-A", "O", "B-A"]])
    >>> scores["all"]["true"], scores["all"]["found"], scores["all"]["correct"]
    (1, 2, 0)
    """
    y_true, y_pred = (
        [as_list(tags, f"{name}[{i}]", "tags") for i, tags in enumerate(sentences)]
        for name, sentences in zip(("y_true", "y_pred"), both(y_true, y_pred), strict=True)
    )
    for i, (gold, predicted) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(gold) != len(predicted):
            raise ValueError(
                "Every word needs one true and one predicted tag. "
                f"Received: {len(gold)} and {len(predicted)} tags in sentence {i}"
            )
    for sentences in (y_true, y_pred):
        check_marks(sentences)
    names = sorted({tag for tag in chain(*y_true, *y_pred)} - {"O"})
    types = sorted({name.partition("-")[2] for name in names})
    if taken := TOTALS.intersection(types):
        raise ValueError(
            "A type of spans must not have the name of a total, 'all' or 'accuracy': rename it. "
            f"Received: the type {min(taken)!r}"
        )
    gold, predicted = (_Chunks(sentences, names, types) for sentences in (y_true, y_pred))
    same = gold.starts & predicted.starts & (gold.kinds == predicted.kinds)
    same &= gold.ends == predicted.ends
    starts = (gold, gold.starts), (predicted, predicted.starts), (gold, same)
    counts = [np.bincount(of.kinds[some], minlength=len(types)) for of, some in starts]
    words = gold.tags >= 0
    equal = int((gold.tags == predicted.tags)[words].sum())

    def scores(true, found, correct):
        precision = correct / found if found else 0.0
        recall = correct / true if true else 0.0
        total = precision + recall
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / total if total else 0.0,
            "true": true,
            "found": found,
            "correct": correct,
        }

    table = {"all": scores(*(int(count.sum()) for count in counts))}
    for i, kind in enumerate(types):
        table[kind] = scores(*(int(count[i]) for count in counts))
    return table | {"accuracy": equal / int(words.sum()) if words.any() else 0.0}


class _Chunks:
    """The spans of all words of some sentences, as arrays of one number per word.

    Attributes:
        tags: Ids of tags; -1 after each sentence.
        kinds: Ids of types; -1 outside of spans.
        starts: Whether a span starts.
        ends: The end of the span that a word belongs to.
    """

    def __init__(self, sentences, names, types):
        ids = {"O": len(names)} | {name: i for i, name in enumerate(names)}
        self.tags = np.array([i for tags in sentences for i in (*map(ids.get, tags), -1)])
        parts = [name.partition("-") for name in names]
        # The last two entries are of "O" and of the end of a sentence.
        kinds = np.array([*(types.index(kind) for _, _, kind in parts), -1, -1])
        begins = np.array([*(prefix in BEGINS for prefix, _, _ in parts), False, False])
        last = np.array([*(prefix in ENDS for prefix, _, _ in parts), False, False])
        self.kinds = kinds[self.tags]
        changed = np.append(True, (self.kinds[1:] != self.kinds[:-1]) | last[self.tags[:-1]])
        self.starts = (self.kinds >= 0) & (begins[self.tags] | changed)
        borders = np.flatnonzero(self.starts | (self.kinds < 0))
        after = np.searchsorted(borders, np.arange(len(self.tags)), side="right")
        self.ends = np.append(borders, len(self.tags))[after]


def span_f1(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """Computes the F1 over all spans, as conlleval.

    Args:
        y_true, y_pred: As in `span_scores`.

    Returns:
        The F1, in [0, 1].

    Raises:
        ValueError: As `span_scores`.

    >>> span_f1([["B-A", "O"]], [["I-A", "O"]])
    1.0
    """
    return span_scores(y_true, y_pred)["all"]["f1"]


@keras.saving.register_keras_serializable("keras_plm")
class SpanF1(keras.metrics.Metric):
    """F1 over spans as a Keras metric, for `fit` and callbacks.

    It counts spans like `span_f1`, with tensor operations. Words of weight 0 are padding at the end
    of a row.

    Args:
        labels: Tags in the order of their ids, of a scheme of `tag_scheme`.
        name: Name of the metric.

    Call arguments:
        y_true: (B, W) tag ids; -1 for a tag that is not among `labels`. Adjacent words with -1 are
            a span that no prediction finds.
        y_pred: (B, W, K) logits.
        sample_weight: (B, W), 0 at padding.

    Returns:
        The F1 so far, in [0, 1].

    >>> import numpy as np
    >>> metric = SpanF1(["O", "B-X", "I-X"])
    >>> ids = np.array([[1, 2, 0]])
    >>> metric.update_state(ids, np.eye(3, dtype="float32")[ids])
    >>> float(metric.result())
    1.0
    """

    def __init__(self, labels: Iterable[str], name: str = "span_f1", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "up"  # callbacks read that higher is better
        self.labels = labels = as_names(labels, "labels")
        prefixes = [label.partition("-")[0] for label in labels]
        types = sorted({label.partition("-")[2] for label in labels if label != "O"})
        types_of = [-1 if x == "O" else types.index(x.partition("-")[2]) for x in labels]
        # The last entries are for -1, a tag that is not among the labels.
        self.type_of = np.array([*types_of, len(types)], "int32")
        self.begins = np.array([*(prefix in BEGINS for prefix in prefixes), False])
        self.ends = np.array([*(prefix in ENDS for prefix in prefixes), False])
        self.counts = self.add_variable((3,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")
        y_pred = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        real = ops.ones_like(y_true, dtype="bool")
        if sample_weight is not None:
            real = sample_weight > 0
        true_start, true_end, true_type = self._chunks(y_true, real)
        start, end, kind = self._chunks(y_pred, real)
        differs = (true_start != start) | (true_end != end) | (true_type != kind)
        # A true chunk is found if no word differs between its first word and its last. Sums of
        # differences never fall, so sorting keeps the order of chunks. Segments of torch would make
        # a GPU wait.
        wrong = ops.reshape(ops.cast(differs & (true_type >= 0), "int32"), (-1,))
        until = ops.cumsum(wrong)
        no_start, no_end = (1 - ops.reshape(ops.cast(x, "int32"), (-1,))
                            for x in (true_start, true_end))  # fmt: skip
        most = ops.size(y_true) + 1
        before = ops.sort(until - wrong + most * no_start)
        after = ops.sort(until + most * no_end)
        correct = ops.sum(ops.cast((before == after) & (before < most), "float32"))
        true, found = (ops.sum(ops.cast(x, "float32")) for x in (true_start, start))
        self.counts.assign_add(ops.stack([true, found, correct]))

    def _chunks(self, tags, real):
        """Returns starts and ends of chunks and the type of each word, -1 outside; (B, W) each."""
        tags = ops.where(tags < 0, len(self.labels), tags)
        kind = ops.where(real, ops.take(ops.convert_to_tensor(self.type_of), tags), -1)
        begins = ops.take(ops.convert_to_tensor(self.begins), tags)
        ends = ops.take(ops.convert_to_tensor(self.ends), tags)
        begins = begins | ops.pad(ends[:, :-1], ((0, 0), (1, 0)), constant_values=False)
        before = ops.pad(kind[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        start = (kind >= 0) & (begins | (kind != before))
        after = ops.pad(kind[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
        next_start = ops.pad(start[:, 1:], ((0, 0), (0, 1)), constant_values=False)
        return start, (kind >= 0) & (next_start | (after != kind)), kind

    def result(self):
        true, found, correct = self.counts[0], self.counts[1], self.counts[2]
        return 2 * correct / ops.maximum(true + found, 1.0)

    def get_config(self):
        return {**super().get_config(), "labels": self.labels}
