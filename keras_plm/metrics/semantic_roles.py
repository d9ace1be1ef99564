"""F1 of semantic roles, by the rules of the shared task CoNLL-2005."""

from collections.abc import Iterable, Sequence
from typing import Any

from keras_plm.files.sequences import as_list
from keras_plm.metrics._inputs import both
from keras_plm.metrics.conlleval import spans
from keras_plm.metrics.tag_schemes import check_marks

PREDICATE, CONTINUED = "V", "C-"
TOTAL = "all"  # row of all arguments


def roles(tags: Sequence[str]) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """Finds the arguments that the tags of a predicate mark.

    A span `C-X` continues the last argument `X` before it: both are one argument. Without such an
    argument it is an argument `X`. The predicate's own span, `V` or `C-V`, is no argument. `R-X`,
    a reference to an argument, is one of its own.

    Args:
        tags: A tag per word, such as `"B-ARG0"`, `"I-ARG0"`, `"O"`.

    Returns:
        A list of `(label, ((first word, last word + 1), ...))`.

    >>> roles(["B-ARG1", "B-V", "B-C-ARG1", "I-C-ARG1", "B-ARGM-TMP"])
    [('ARG1', ((0, 1), (2, 4))), ('ARGM-TMP', ((4, 5),))]
    """
    found = []
    for label, start, end in spans(tags):
        kind = label.removeprefix(CONTINUED)
        last = [i for i, (other, _) in enumerate(found) if other == kind]
        if label != kind and last:
            found[last[-1]] = kind, (*found[last[-1]][1], (start, end))
        elif kind != PREDICATE:
            found.append((kind, ((start, end),)))
    return found


def role_scores(y_true: Iterable[Any], y_pred: Iterable[Any]) -> dict[str, dict[str, float]]:
    """Computes precision, recall, F1 and counts of arguments, in total and by label.

    An argument is correct if its label and all its words equal those of a true argument of the
    same predicate.

    Reference: Carreras and Marquez 2005, the CoNLL-2005 shared task.

    Args:
        y_true, y_pred: Lists with an item per predicate, a list of tags of its sentence's words.

    Returns:
        A dict from `"all"` and each label to dicts with `precision`, `recall` and `f1` in [0, 1],
        `true`, `found` and `correct`.

    Raises:
        ValueError: If the numbers of predicates or words differ, tags mark no spans, or an
            argument has the label `"all"`.

    >>> scores = role_scores([["B-ARG0", "B-V", "B-ARG1"]], [["B-ARG0", "B-V", "B-ARG2"]])
    >>> scores["all"]["f1"], scores["ARG0"]["f1"]
    (0.5, 1.0)
    """
    counts = {TOTAL: [0, 0, 0]}
    for i, (gold, predicted) in enumerate(zip(*both(y_true, y_pred), strict=True)):
        gold, predicted = as_list(gold, "y_true", "tags"), as_list(predicted, "y_pred", "tags")
        if len(gold) != len(predicted):
            raise ValueError(
                "Every word needs one true and one predicted tag. "
                f"Received: {len(gold)} and {len(predicted)} tags of predicate {i}"
            )
        check_marks([gold])
        check_marks([predicted])
        true, found = set(roles(gold)), set(roles(predicted))
        for place, arguments in enumerate((true, found, true & found)):
            for label, _ in arguments:
                if label == TOTAL:
                    raise ValueError(
                        f"The label {TOTAL!r} is the row of all arguments: rename the label. "
                        f"Received: {TOTAL!r} of predicate {i}"
                    )
                counts.setdefault(label, [0, 0, 0])[place] += 1
                counts[TOTAL][place] += 1
    return {label: _of_counts(*of_label) for label, of_label in counts.items()}


def role_f1(y_true: Iterable[Any], y_pred: Iterable[Any]) -> float:
    """F1 of all arguments; see `role_scores`.

    Args:
        y_true, y_pred: As in `role_scores`.

    Returns:
        F1 in [0, 1].

    >>> role_f1([["B-ARG0", "B-V"]], [["O", "B-V"]])
    0.0
    """
    return role_scores(y_true, y_pred)[TOTAL]["f1"]


def _of_counts(true, found, correct):
    return {
        "precision": correct / found if found else 0.0,
        "recall": correct / true if true else 0.0,
        "f1": 2 * correct / (true + found) if true + found else 0.0,
        "true": true,
        "found": found,
        "correct": correct,
    }
