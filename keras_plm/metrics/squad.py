"""Exact match and F1 of answers, by the rules of SQuAD."""

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_plm.files.sequences import as_list
from keras_plm.metrics._inputs import both


def squad_exact_match(y_true: Iterable[Any], y_pred: Iterable[Any], version: int = 1) -> float:
    """Computes the fraction of answers that equal a gold answer after `normalize_answer`.

    Reference: Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1, and 2018, arXiv 1806.03822. It
    agrees with the official scripts of SQuAD 1.1 and 2.0.

    Args:
        y_true: Gold answers of each question, a list of lists of strings; in version 2 `[]` for a
            question without an answer.
        y_pred: Answers, strings; in version 2 `""` for no answer.
        version: 1 or 2. Version 2 skips gold answers that are empty after normalisation; if none
            remains, the gold answer is `""`.

    Returns:
        The fraction, in [0, 1].

    Raises:
        ValueError: If the numbers of questions and answers differ, there are none, or they are of
            another type. In version 1: if a question has no gold answer.

    >>> squad_exact_match([["denver broncos"], ["1882", "in 1882"]], ["The Denver Broncos!", "82"])
    0.5
    """
    return float(np.mean([exact for exact, _ in squad_scores(y_true, y_pred, version)]))


def squad_f1(y_true: Iterable[Any], y_pred: Iterable[Any], version: int = 1) -> float:
    """Computes the mean F1 of the words of answers and gold answers.

    The best of several gold answers counts. If a side has no words, the F1 is 0; in version 2 it is
    1 if neither side has words.

    Reference: as `squad_exact_match`.

    Args:
        y_true, y_pred, version: As in `squad_exact_match`.

    Returns:
        The mean F1, in [0, 1].

    Raises:
        ValueError: As `squad_exact_match`.

    >>> round(squad_f1([["Santa Clara, California"]], ["Santa Clara"]), 6)
    0.8
    >>> squad_f1([["the"]], ["a"]), squad_f1([["the"]], ["a"], version=2)
    (0.0, 1.0)
    """
    return float(np.mean([f1 for _, f1 in squad_scores(y_true, y_pred, version)]))


def squad_scores(
    y_true: Iterable[Any], y_pred: Iterable[Any], version: int = 1
) -> list[tuple[float, float]]:
    """Computes exact match and F1 of each question.

    Args:
        y_true, y_pred, version: As in `squad_exact_match`.

    Returns:
        A list of `(exact match, F1)`, each in [0, 1].

    Raises:
        ValueError: As `squad_exact_match`.

    >>> [(float(exact), round(f1, 3)) for exact, f1 in squad_scores([["x y"]], ["x"])]
    [(0.0, 0.667)]
    """
    if version not in (1, 2):
        raise ValueError(f"`version` of SQuAD must be 1 or 2. Received: version={version!r}")
    y_true, y_pred = both(y_true, y_pred, complete=False)
    scores = []
    for i, (gold_answers, predicted) in enumerate(zip(y_true, y_pred, strict=True)):
        listed = not isinstance(gold_answers, str) and hasattr(gold_answers, "__iter__")
        gold_answers = as_list(gold_answers, "y_true") if listed else gold_answers
        if not listed or not all(isinstance(text, str) for text in (*gold_answers, predicted)):
            raise ValueError(
                "A question needs a list of gold answers and one answer, all strings. "
                f"Received: {gold_answers!r} and {predicted!r} as question {i}"
            )
        gold_answers = [normalize_answer(text) for text in gold_answers]
        if version == 2:
            gold_answers = [text for text in gold_answers if text] or [""]
        if not gold_answers:
            raise ValueError(
                "In version 1 every question needs a gold answer: score questions without an "
                f"answer with `version=2`. Received: no gold answer of question {i}"
            )
        predicted = normalize_answer(predicted)
        exact = max(float(text == predicted) for text in gold_answers)
        scores.append(
            (exact, max(_shared_words(text, predicted, version) for text in gold_answers))
        )
    return scores


def _shared_words(gold, predicted, version):
    """Computes the F1 of two bags of words."""
    gold, predicted = gold.split(), predicted.split()
    if version == 2 and not (gold and predicted):
        return float(gold == predicted)
    shared = (Counter(gold) & Counter(predicted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Normalises an answer like SQuAD's scripts: no case, punctuation, articles or extra spaces.

    Args:
        text: An answer.

    Returns:
        The normalised text.

    >>> normalize_answer("The 10th-11th  centuries."), normalize_answer("U.S.")
    ('10th11th centuries', 'us')
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())
