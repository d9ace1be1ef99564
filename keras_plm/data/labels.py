"""Label names and their ids, ranges of scores, schemes of tags."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_plm.data.task import Example, as_examples, check_labelled, place_of
from keras_plm.metrics import tag_scheme

TYPED = re.compile("[BIESLUM]-.")  # a tag that marks a span, with its type


def check_label_kinds(examples):
    """Raises unless all examples have one label, or all have a tag for each word."""
    listed = [isinstance(example.label, (list, tuple)) for example in examples]
    for i, example in enumerate(examples):
        if listed[i] != listed[0]:
            first, other = ("tags", "a label") if listed[0] else ("a label", "tags")
            raise ValueError(
                f"{place_of(example, i)}Either every example needs one label, or every word a tag. "
                f"Received: {example.label!r:.60}, {other}, and {first} of example 0"
            )
        if listed[i] and len(example.label) != len(example.text):
            raise ValueError(
                f"{place_of(example, i)}Every word needs one tag. "
                f"Received: {len(example.text)} words and {len(example.label)} tags"
            )


def label_ids(example, labels, training=True, number=None):
    """Returns the id of an example's label, or the array of ids of its tags.

    Without `training`, a label that is not among `labels` has the id -1. `number` is the index of
    the example, for errors.
    """
    label = example.label
    if isinstance(label, float) and labels is None:
        return np.float32(label)
    if labels is None:
        raise ValueError(f"`labels` must list the label names. Received: labels=None, {label!r}")
    names = {name: i for i, name in enumerate(labels)}
    listed = label if isinstance(label, (list, tuple)) else [label]
    for i, name in enumerate(listed):
        if name not in names and training:
            word = i if listed is label else None
            raise ValueError(
                f"{place_of(example, number, word)}This label does not occur in the training "
                f"examples. Received: {name!r}, known: {', '.join(map(str, labels[:20]))}"
                + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
            )
    ids = np.array([names.get(name, -1) for name in listed], dtype=np.int32)
    return ids if listed is label else ids[0]


def fraction_of_range(example, bounds, training=True, number=None):
    """Converts a score to a fraction of its range; without `training` it may lie outside."""
    score = example.label
    low, high = bounds
    is_number = not isinstance(score, str) and np.isscalar(score) and np.isfinite(score)
    if not is_number or (training and not low <= score <= high):
        place = place_of(example, number)
        raise ValueError(f"{place}A score must be from {low} to {high}. Received: {score!r}")
    return np.float32((score - low) / (high - low))


def target_ids(examples, labels, scores=False, training=True):
    """Returns the target of each example, from `label_ids` or `fraction_of_range`.

    Args:
        examples: A list of `Example`, or of texts without labels.
        labels: The label names, or the lowest and highest score.
        scores: Whether labels are scores.
        training: If False, labels that are not among `labels` have the id -1.

    Returns:
        A list of ids, fractions or arrays of tag ids; `None` if no example has a label.

    Raises:
        ValueError: If only some examples have labels, or only some have tags. If a label is
            unknown in training.
    """
    if all(getattr(example, "label", None) is None for example in examples):
        return None
    check_labelled(examples)
    to_id = fraction_of_range if scores else label_ids
    ids = [to_id(example, labels, training, i) for i, example in enumerate(examples)]
    check_label_kinds(examples)
    if np.ndim(ids[0]):
        check_scheme(examples, labels, training)
    return ids


def score_range(examples):
    """Returns the `(lowest, highest)` score of examples.

    Raises:
        ValueError: If a label is not a number, or all are equal.
    """
    examples = as_examples(examples)
    for i, example in enumerate(examples):
        if isinstance(example.label, str) or not np.isscalar(example.label):
            raise ValueError(
                f"{place_of(example, i)}A score must be a number. Received: {example.label!r}"
            )
    scores = [float(example.label) for example in examples]
    if not min(scores) < max(scores):
        raise ValueError(f"Scores must differ. Received: all {len(scores)} are {scores[0]}")
    return min(scores), max(scores)


def label_names(examples: Sequence[Example]) -> list[Any]:
    """Returns the labels, or tags, of examples, sorted, with "O" first.

    Args:
        examples: A list of `Example`.

    Returns:
        A list of distinct labels.

    Raises:
        ValueError: If labels are of several kinds: strings, numbers, and True or False.

    >>> label_names([Example(["a", "b"], ["I-X", "O"]), Example(["c"], ["B-X"])])
    ['O', 'B-X', 'I-X']
    """
    examples = as_examples(examples)
    found, of_kind = set(), {}
    for i, example in enumerate(examples):
        listed = isinstance(example.label, (list, tuple))
        for name in example.label if listed else [example.label]:
            found.add(name)
            of_kind.setdefault(_kind(name), name)
            if len(of_kind) > 1:
                first, other = of_kind.values()
                raise ValueError(
                    f"{place_of(example, i)}A label must be a number in all examples, or a string "
                    f"in all, or True and False. Received: both {first!r} and {other!r}"
                )
    return sorted(found, key=lambda name: (name != "O", str(name)))


def _kind(name):
    if isinstance(name, (bool, np.bool_)):
        return "bool"
    return "string" if isinstance(name, str) else "number"


def tag_scheme_of(examples):
    """Returns the scheme by which tags of examples mark spans, see `metrics.tag_scheme`.

    Raises:
        ValueError: If tags follow several schemes, or a span of IOBES, BILOU or BMES is incomplete.
            The message names the file and line of the first wrong tag; without a file, the sentence
            and the word.
    """
    tagged = [example for example in examples if isinstance(example.label, (list, tuple))]

    def where(i, j):
        example, word = tagged[i], f"sentence {i}, word {j} ({tagged[i].text[j]!r})"
        if not example.where:
            return word
        if example.lines is None:
            return f"{example.where}, word {j} ({example.text[j]!r})"
        return f"{example.where.rpartition(':')[0]}:{example.lines[j]}"

    return tag_scheme([example.label for example in tagged], where)


def scheme_of_labels(labels):
    """Returns the scheme of label names; `None` if others, such as "[CLS]", are among the tags."""
    typed = [name for name in labels if isinstance(name, str) and TYPED.match(name)]
    if not typed or len(typed) == len(labels) - labels.count("O"):
        return tag_scheme(labels)
    tag_scheme(typed)  # raises for tags of several schemes
    return None


def check_scheme(examples, labels, training=True):
    """Raises like `tag_scheme_of` if a head's labels mark spans and the tags of examples do not.

    Without `training`, nothing is checked if a tag is not among the labels.
    """
    if scheme_of_labels(list(labels)) is None:
        return
    known = set(labels)
    if training or all(tag in known for example in examples for tag in example.label):
        tag_scheme_of(examples)
