"""SQuAD's files of questions and predictions, and their evaluation."""

import os
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from keras_plm.data.task import Example
from keras_plm.files.json_files import parse_json
from keras_plm.files.sequences import as_list
from keras_plm.files.writing import write_json
from keras_plm.metrics import squad_scores
from keras_plm.tokenizers import open_text


def read_squad(path: str | os.PathLike, labelled: bool = True) -> list[Example]:
    """Reads questions with passages and answers from a file in SQuAD's layout, 1.1 or 2.0.

    Reference: Rajpurkar et al. 2016, arXiv 1606.05250, and 2018, arXiv 1806.03822.

    Args:
        path: The JSON file, plain or `.gz`.
        labelled: If False, do not read answers.

    Returns:
        A list of `Example` with the question as `text`, its passage as `pair`, the answers as
        `label` and `starts` (both empty without an answer), `id`, and the article as `group`.

    Raises:
        ValueError: If a part is missing or has the wrong type, or two questions have one id. If an
            answer is not at its offset, or a question without an answer is not marked impossible.
            The message names file and question.

    >>> import json, tempfile
    >>> answers = [{"text": "1882", "answer_start": 7}]
    >>> question = {"id": "a", "question": "When?", "answers": answers}
    >>> passage = {"context": "It was 1882.", "qas": [question]}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     json.dump({"data": [{"title": "Time", "paragraphs": [passage]}]}, file)
    ...     file.flush()
    ...     (example,) = read_squad(file.name)
    >>> example.text, example.pair, example.label, example.starts
    ('When?', 'It was 1882.', ['1882'], [7])
    """
    data = _load(path)
    examples, seen = [], {}
    for i, article in enumerate(_part(data, "data", list, str(path))):
        of_article = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_part(article, "paragraphs", list, of_article)):
            of_paragraph = f"{of_article}.paragraphs[{j}]"
            questions = _part(paragraph, "qas", list, of_paragraph)
            for k, question in enumerate(questions):
                name = _id(question, f"{of_paragraph}.qas[{k}]")
                where = f"{path}: question {name}"
                if name in seen:
                    raise ValueError(
                        f"{where}: Every question needs its own id. Received: the id of "
                        f"{seen[name]} again in {of_paragraph}"
                    )
                seen[name] = of_paragraph
                passage = _part(paragraph, "context", str, where)
                if not passage.strip():
                    raise ValueError(f"{where}: A question needs a passage. Received: {passage!r}")
                label = starts = None
                if labelled:
                    label, starts = _answers(question, where)
                examples.append(
                    Example(
                        _part(question, "question", str, where),
                        label,
                        pair=passage,
                        group=f"{path}#{i}",
                        where=where,
                        starts=starts,
                        id=name,
                    )
                )
    if not examples:
        raise ValueError(f"{path}: No question in this file. Received: an empty SQuAD file")
    return examples


def _load(path, shape=object):
    with open_text(path) as file:
        text = file.read()
    return parse_json(text, path, shape)


def _part(of, key, kind, where):
    """Returns `of[key]`; raises unless it is of type `kind`."""
    value = of.get(key) if isinstance(of, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        what = {list: "a list", str: "a string", int: "a whole number"}[kind]
        raise ValueError(
            f"{where}: SQuAD's layout must have {what} at {key!r} here. "
            f"Received: {value!r:.60}" + ("" if isinstance(of, dict) else f" in {of!r:.60}")
        )
    return value


def _id(question, where):
    """Returns a question's id as a string; GermanQuAD's ids are numbers."""
    if isinstance(question, dict) and isinstance(question.get("id"), int):
        return str(_part(question, "id", int, where))
    return _part(question, "id", str, where)


def _answers(question, where):
    """Returns `(texts, starts)` of a question's answers."""
    answers = _part(question, "answers", list, where)
    impossible = question.get("is_impossible", False)
    if bool(impossible) == bool(answers):
        raise ValueError(
            f"{where}: A question needs answers, or none and is_impossible=true. "
            f"Received: {len(answers)} answers, is_impossible={impossible}"
        )
    texts = [_part(answer, "text", str, where) for answer in answers]
    return texts, [_part(answer, "answer_start", int, where) for answer in answers]


def write_predictions(
    path: str | os.PathLike, examples: Sequence[Example], answers: Sequence[str]
) -> None:
    """Writes predictions in the official format, `{id: text}`, atomically.

    Args:
        path: The JSON file.
        examples: Questions with an `id`.
        answers: Their answers, in the same order.

    Raises:
        ValueError: If the numbers of questions and answers differ, an id is missing or occurs
            twice, or an answer is not a string.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_predictions(f"{folder}/answers.json", [Example("When?", id="a")], ["1882"])
    ...     read_predictions(f"{folder}/answers.json")
    {'a': '1882'}
    """
    examples, answers = as_list(examples, "examples"), as_list(answers, "answers")
    if len(examples) != len(answers):
        raise ValueError(
            "Every question needs one answer. "
            f"Received: {len(examples)} questions and {len(answers)} answers"
        )
    predictions = {}
    for example, answer in zip(examples, answers, strict=True):
        if example.id is None or example.id in predictions or not isinstance(answer, str):
            raise ValueError(
                "A prediction must be a string, for a question with its own id. "
                f"Received: id={example.id!r}, answer={answer!r:.60}"
            )
        predictions[example.id] = answer
    write_json(path, predictions)


def read_predictions(path: str | os.PathLike) -> dict[str, str]:
    """Reads a file of `write_predictions`.

    Args:
        path: The JSON file.

    Returns:
        A dict from ids to answers.

    Raises:
        ValueError: If the file is missing or malformed.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     print('{"a": "1882"}', file=file, flush=True)
    ...     read_predictions(file.name)
    {'a': '1882'}
    """
    return _load(path, {str: str})


def evaluate_squad(
    examples: Sequence[Example],
    predictions: Mapping[str, str],
    version: int = 2,
    odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Computes the results of the official evaluation script, in percent.

    Reference: the scripts evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar/SQuAD-explorer.

    Difference: For questions with or without answer, it also skips questions without a prediction;
    evaluate-v2.0.py stops there.

    Args:
        examples: Labelled questions with an `id`.
        predictions: A dict from ids to answers.
        version: 1 or 2. A question without a prediction scores 0 in version 1 and is skipped in
            version 2; both warn.
        odds: For version 2: a dict from ids to numbers that increase with the probability of no
            answer. `heads.no_answer_odds` returns `predictions` and `odds` in the order of the
            questions.
        threshold: Value of `odds` above which the prediction is no answer.

    Returns:
        A dict. In version 1: `exact_match` and `f1`. In version 2: `exact`, `f1` and `total`, the
        same for questions with and without answer, such as `HasAns_exact` and `NoAns_exact`, and
        with `odds` the scores of the best threshold, `best_exact`, `best_exact_thresh`, `best_f1`
        and `best_f1_thresh`.

    Raises:
        ValueError: If `predictions` or `odds` is not a dict, no question has a prediction, or
            `odds` lacks a question.

    >>> passage = "It was 1882."
    >>> examples = [Example("When?", ["1882"], passage, starts=[7], id="a")]
    >>> examples.append(Example("Who?", [], passage, starts=[], id="b"))
    >>> report = evaluate_squad(examples, {"a": "in 1882", "b": ""})
    >>> report["exact"], round(report["HasAns_f1"], 2), report["NoAns_f1"]
    (50.0, 66.67, 100.0)
    """
    for name, value in (("predictions", predictions), ("odds", odds)):
        if not isinstance(value, dict) and not (name == "odds" and value is None):
            raise ValueError(
                f"`{name}` must be a dict by question id: `dict(zip([e.id for e in examples], "
                f"{name}))`. Received: a {type(value).__name__}"
            )
    known = [example for example in examples if example.id in predictions]
    if len(known) < len(examples):
        missing = next(example.id for example in examples if example.id not in predictions)
        warnings.warn(
            f"{len(examples) - len(known)} questions have no prediction; the first is {missing!r}",
            stacklevel=2,
        )
    texts = [predictions[example.id] for example in known]
    scores = np.array(squad_scores([example.label for example in known], texts, version))
    if version == 1:
        exact, f1 = 100.0 * scores.sum(axis=0) / len(examples)
        return {"exact_match": float(exact), "f1": float(f1)}

    answered = np.array([len(example.label) > 0 for example in known])
    counted = scores
    if odds is not None:
        lacking = [example.id for example in known if example.id not in odds]
        if lacking:
            raise ValueError(
                f"`odds` must have a number for every prediction. Received: none for {lacking[0]!r}"
            )
        odds = np.array([odds[example.id] for example in known])
        counted = np.where((odds > threshold)[:, None], ~answered[:, None], scores)
    report = {}
    parts = (("", answered | True), ("HasAns_", answered), ("NoAns_", ~answered))
    for name, part in parts:
        if part.any():
            exact, f1 = 100.0 * counted[part].mean(axis=0)
            report |= {f"{name}exact": float(exact), f"{name}f1": float(f1)}
            report[f"{name}total"] = int(part.sum())
    if odds is not None:
        for i, name in enumerate(("exact", "f1")):
            best, at = best_threshold(scores[:, i], texts, answered, odds)
            report |= {f"best_{name}": 100.0 * best, f"best_{name}_thresh": at}
    return report


def best_threshold(
    scores: Sequence[float] | np.ndarray,
    texts: Sequence[str],
    answered: Sequence[bool] | np.ndarray,
    odds: Sequence[float] | np.ndarray,
) -> tuple[float, float]:
    """Finds the threshold on the odds of no answer with the highest score.

    It follows `find_best_thresh` of evaluate-v2.0.py: a question with odds above the threshold has
    no answer. Like the script it splits questions of equal odds, and the score may be too high.

    Args:
        scores: (N,) scores of the predictions, in [0, 1].
        texts: The N predictions.
        answered: (N,) True for questions with an answer.
        odds: (N,) numbers that increase with the probability of no answer.

    Returns:
        `(score, threshold)`: the mean score and its threshold; the threshold is 0.0 if no answer
        for all questions is best.

    >>> best_threshold([1.0, 0.0, 0.5], ["a", "b", "c"], [True, False, True], [-2.0, 3.0, 1.0])
    (0.8333333333333334, 1.0)
    """
    answered = np.asarray(answered, dtype=bool)
    # Gain of answering instead of refusing; a loss if the question has no answer.
    refused = np.array([text == "" for text in texts])
    gains = np.where(answered, scores, np.where(refused, 0.0, -1.0))
    order = np.argsort(odds, kind="stable")
    unanswered = float((~answered).sum())
    totals = unanswered + np.cumsum(gains[order])
    best = int(totals.argmax())
    if totals[best] <= unanswered:
        return unanswered / len(gains), 0.0
    return float(totals[best] / len(gains)), float(np.asarray(odds)[order[best]])
