"""The best spans, compared with explicit loops and the originals' numbers."""

import numpy as np
import pytest

from keras_plm.data.passages import Windows
from keras_plm.data.spans import best_answers, best_spans
from keras_plm.data.task import Example
from tests.helpers.small_passages import PIECES, asked

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize(
    "starts, ends, wanted",
    [
        ([0.1, 0.3, 0.05, 0.3, 0.25], [0.65, 0.05, 0.2, 0.05, 0.05], (0, 0)),
        ([0.4, 0.5, 0.1], [0.3, 0.6, 0.1], (1, 1)),
        ([0.8, 0.1, 0.1], [0.8, 0.1, 0.1], (0, 0)),
    ],
)
def test_best_spans_equal_allennlp_examples(starts, ends, wanted):
    """REFERENCE 4.7."""
    every = np.ones((1, len(starts)), bool)
    logits = np.log([starts]), np.log([ends])
    scores, first, last = best_spans(*logits, every, every)
    assert (first[0, 0], last[0, 0]) == wanted
    s, e = wanted
    assert np.exp(scores[0, 0]) == pytest.approx(starts[s] * ends[e])


def in_loops(starts, ends, start_mask, end_mask, n, longest):
    found = []
    for s in range(len(starts)):
        for e in range(s, min(s + longest, len(ends))):
            if start_mask[s] and end_mask[e]:
                found.append((-(starts[s] + ends[e]), s, e))
    return [(-score, s, e) for score, s, e in sorted(found)[:n]]


@pytest.mark.parametrize("n, longest", [(1, 1), (1, 5), (3, 30), (7, 2), (40, 3)])
@pytest.mark.parametrize("ties", [False, True])
def test_best_spans_equal_explicit_loops(n, longest, ties):
    rng = np.random.default_rng(n)
    starts, ends = rng.normal(size=(2, 5, 13))
    if ties:  # sums of integers can be exactly equal
        starts, ends = np.round(starts), np.round(ends)
    masks = rng.random((2, 5, 13)) < 0.7
    masks[:, 4] = False  # a row without valid positions
    scores, first, last = best_spans(starts, ends, *masks, n, longest)
    assert scores.shape == first.shape == last.shape == (5, n)
    for r in range(5):
        wanted = in_loops(starts[r], ends[r], masks[0, r], masks[1, r], n, longest)
        real = scores[r] > -np.inf
        found = np.stack([scores[r], first[r], last[r]], axis=-1)[real]
        np.testing.assert_allclose(found, np.reshape(wanted, (-1, 3)), atol=1e-12)


@pytest.mark.parametrize("n", [1, 5])
def test_best_answers_rank_spans_over_all_windows(n):
    rng = np.random.default_rng(5)
    examples = asked(rng)
    windows = Windows(examples, PIECES, 19, 4)
    assert len(windows) > 2 * len(examples)
    logits = [rng.normal(size=(2, windows.lengths[r] + r % 3)) for r in range(len(windows))]
    scores, first, last, null = best_answers(logits, windows, n, 6)
    length = max(row.shape[1] for row in logits)
    own = windows.context_mask(np.arange(len(windows)), length)
    for i in range(len(examples)):
        found, nulls = [], []
        for r in np.flatnonzero(windows.examples_of == i):
            starts, ends = logits[r]
            inside = range(windows.first[r], windows.first[r] + windows.counts[r])
            shift = windows.begins[r] - windows.first[r]
            for s in inside:
                for e in range(s, min(s + 6, inside.stop)):
                    if own[r, s]:
                        found.append((starts[s] + ends[e], s + shift, e + shift))
            nulls.append(starts[windows.null[r]] + ends[windows.null[r]])
        found.sort(reverse=True)
        got = np.stack([scores[i], first[i], last[i]], axis=-1)[: len(found)]
        np.testing.assert_allclose(got, found[:n], atol=1e-12)
        assert (scores[i][len(found) :] == -np.inf).all()
        assert null[i] == pytest.approx(min(nulls))


def test_best_answers_of_10000_questions_take_under_20_s():
    import time

    passage = " ".join("abcdefgh" * 40)
    examples = [Example("a b c", pair=passage)] * 10_000
    windows = Windows(examples, PIECES)
    row = np.random.default_rng(0).normal(size=(2, windows.lengths[0])).astype("float32")
    begun = time.process_time()
    scores, *_ = best_answers([row] * len(windows), windows)
    assert scores.shape == (10_000, 1)
    assert time.process_time() - begun < 20  # one or two on a quiet machine
