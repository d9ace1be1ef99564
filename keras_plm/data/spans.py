"""Search for the best answer spans by the scores of their two ends.

Shapes: R rows, T tokens, N questions, n spans.
"""

import typing
from collections.abc import Sequence

import numpy as np

from keras_plm.data.passages import Windows

CHUNK = 512  # rows per step; the arrays of a step fit into the CPU's cache


class Span(typing.NamedTuple):
    """A span of a passage as an answer.

    Args:
        text: Text of the span; `""` for no answer.
        start: Character offset in the passage; -1 for no answer.
        score: Sum of the logits of both ends.
        probability: Probability among the returned spans.

    >>> span = Span("1882", start=7, score=3.5, probability=0.9)
    >>> span.text, span.start
    ('1882', 7)
    """

    text: str
    start: int
    score: float
    probability: float


def best_spans(
    starts: np.ndarray,
    ends: np.ndarray,
    start_mask: np.ndarray,
    end_mask: np.ndarray,
    n: int = 1,
    max_answer_length: int = 30,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the n spans (s, e) with the highest starts[s] + ends[e], e < s + max_answer_length.

    It compares all spans with s <= e; the original compares those of the 20 best starts and ends.
    At ties the span with the earlier start, then with the earlier end, wins.

    Reference: Devlin et al. 2018, section 4.2.

    Args:
        starts, ends: (R, T) logits.
        start_mask, end_mask: (R, T) True where a span may start, and end.
        n: Number of spans per row.
        max_answer_length: Largest number of tokens of a span.

    Returns:
        `(scores, first, last)`, each (R, n), best first. Missing spans have the score -inf.

    >>> import numpy as np
    >>> starts, ends = np.log([[0.4, 0.5, 0.1]]), np.log([[0.3, 0.6, 0.1]])
    >>> every = np.ones((1, 3), bool)
    >>> scores, first, last = best_spans(starts, ends, every, every)
    >>> first.tolist(), last.tolist(), np.exp(scores).round(2).tolist()
    ([[1]], [[1]], [[0.3]])
    """
    rows, length = starts.shape
    width = min(max_answer_length, length)
    starts = np.where(start_mask, starts, -np.inf)
    ends = np.pad(
        np.where(end_mask, ends, -np.inf), ((0, 0), (0, width - 1)), constant_values=-np.inf
    )
    # The n best spans begin at the n starts whose best spans score highest.
    best = ends[:, :length].copy()
    for i in range(1, width):
        np.maximum(best, ends[:, i : i + length], out=best)
    best += starts
    chosen = _highest(best, n)  # (R, m) starts
    scores = np.take_along_axis(starts, chosen, axis=1)[..., None]
    lasts = chosen[..., None] + np.arange(width)  # (R, m, width)
    scores = scores + np.take_along_axis(ends, lasts.reshape(rows, -1), axis=1).reshape(lasts.shape)
    # In ascending order of starts: at ties the earlier span wins.
    order = np.argsort(chosen, axis=1)[..., None]
    chosen = np.take_along_axis(chosen, order[..., 0], axis=1)
    scores = np.take_along_axis(scores, order, axis=1).reshape(rows, -1)
    found = _highest(scores, n)  # (R, n)
    first = np.take_along_axis(chosen, found // width, axis=1)
    scores = np.take_along_axis(scores, found, axis=1)
    return _filled(scores, n, -np.inf), _filled(first, n), _filled(first + found % width, n)


def best_answers(
    logits: Sequence[np.ndarray] | np.ndarray,
    windows: Windows,
    n: int = 1,
    max_answer_length: int = 30,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Finds the n best spans of each question over all its windows, and the score of no answer.

    A span is scored in the window with the most context for its first token. The score of no answer
    is the lowest over the windows.

    Reference: google-research/bert, run_squad.py, `write_predictions`.

    Args:
        logits: An array (2, T) for each row of `windows`: logits of the start and of the end.
        windows: The `Windows` of N questions.
        n, max_answer_length: As in `best_spans`.

    Returns:
        `(scores, first, last, null)`: (N, n) scores, -inf for missing spans, and first and last
        tokens in the passage; (N,) scores of no answer.

    >>> import numpy as np
    >>> from keras_plm.data import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"])
    >>> windows = Windows([Example("a", pair="b c d")], tokenizer)
    >>> logits = np.zeros((1, 2, 7))
    >>> logits[0, 0, 4] = logits[0, 1, 5] = 2.0  # from "c" to "d"
    >>> scores, first, last, null = best_answers(logits, windows)
    >>> scores.tolist(), first.tolist(), last.tolist(), null.tolist()
    ([[4.0]], [[1]], [[2]], [0.0])
    """
    rows = len(windows)
    scores = np.empty((rows, n))
    first, last = np.empty((2, rows, n), dtype=np.int64)
    null = np.empty(rows)
    lengths = np.array([row.shape[-1] for row in logits])
    for length in np.unique(lengths):
        of_length = np.flatnonzero(lengths == length)
        for some in np.split(of_length, range(CHUNK, len(of_length), CHUNK)):
            starts, ends = np.stack([logits[row] for row in some], axis=1)  # (rows, T) each
            masks = windows.context_mask(some, length), windows.passage_mask(some, length)
            found = best_spans(starts, ends, *masks, n, max_answer_length)
            shift = (windows.begins[some] - windows.first[some])[:, None]
            real = found[0] > -np.inf  # missing spans get token 0
            scores[some] = found[0]
            first[some], last[some] = (np.where(real, at + shift, 0) for at in found[1:])
            at = np.arange(len(some)), windows.null[some]
            null[some] = starts[at] + ends[at]

    # Sort the spans of all windows by question, best first.
    count = int(windows.examples_of[-1]) + 1
    example = np.repeat(windows.examples_of, n)
    order = np.lexsort((first.ravel(), -scores.ravel(), example))
    rank = np.arange(len(example)) - np.searchsorted(example, example)  # `example` is ascending
    kept = rank < n
    place, order = (example[kept], rank[kept]), order[kept]
    merged = []
    for values in (scores, first, last):
        merged.append(np.empty((count, n), dtype=values.dtype))
        merged[-1][place] = values.ravel()[order]
    least = np.full(count, np.inf)
    np.minimum.at(least, windows.examples_of, null)
    return (*merged, least)


def _highest(values, n):
    """Returns (R, min(n, T)) indices of the n highest per row, best first; ties in row order."""
    if n == 1:
        return values.argmax(axis=1)[:, None]
    return np.argsort(-values, axis=1, kind="stable")[:, :n]


def _filled(values, n, value=0):
    """Pads rows with `value` to (R, n)."""
    return np.pad(values, ((0, 0), (0, n - values.shape[1])), constant_values=value)
