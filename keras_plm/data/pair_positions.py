"""Positions of the words of two texts in a common row.

Shapes: R rows, B of them in a batch, T words of the first text, S of the second.
"""

import numpy as np

POSITION_INPUTS = (
    "first_positions",
    "second_positions",
)  # inputs of heads and task networks, (B, T) and (B, S)
MULTIPLE = 8  # T and S are multiples of it, to limit the number of shapes


class PairPositions:
    """Positions of two texts in their rows.

    A bucket has one shape: the positions of a text are padded to the longest text among all rows
    that fit the length of the batch.

    Args:
        lengths: (R,) lengths of the rows; they decide the buckets.
        begins, counts: (R, 2) index of the first vector of each text in its row, and the number of
            vectors.
        last: (R,) index of one more vector of the second text, after the others, or `None`.
    """

    def __init__(self, lengths, begins, counts, last=None):
        self.lengths, self.begins, self.counts, self.last = lengths, begins, counts, last

    def arrays(self, rows, length, sizes=None):
        """Returns `POSITION_INPUTS` of some rows at a padded length, -1 at padding.

        Args:
            sizes: Ascending lengths for the padded positions of a text; by default multiples of 8.
        """
        made, held = {}, self.lengths <= length
        for text, name in enumerate(POSITION_INPUTS):
            more = int(text == 1 and self.last is not None)
            longest = int(self.counts[held, text].max(initial=1)) + more
            padded = -(-longest // MULTIPLE) * MULTIPLE
            padded = next((n for n in sizes or () if n >= longest), padded)
            steps = np.arange(min(padded, length))
            counts = self.counts[rows, text][:, None]
            places = np.where(steps < counts, self.begins[rows, text][:, None] + steps, -1)
            if more:
                places = np.where(steps == counts, self.last[rows][:, None], places)
            made[name] = places.astype("int32")
        return made


def _word_runs(encoded):
    """Returns each word's first and last token in the flat ids, row, segment id and word id."""
    ids = encoded.word_ids
    row = np.repeat(np.arange(len(encoded)), encoded.lengths)
    name = np.stack([row, encoded.segment_ids, ids])
    new = np.ones(len(ids) + 1, dtype=bool)
    new[1:-1] = (name[:, 1:] != name[:, :-1]).any(axis=0)
    first = np.flatnonzero(new[:-1] & (ids >= 0))
    last = np.flatnonzero(new[1:] & (ids >= 0))
    return first, last, row[first], encoded.segment_ids[first], ids[first]


def words_in(parts):
    """Returns each word's first token in its row, row, text (0 or 1) and word id, row by row.

    Args:
        parts: One `Encoded` of all rows, or one for each text of a pair.
    """
    found = []
    for part, encoded in enumerate(parts):
        first, _, row, second, ids = _word_runs(encoded)
        found.append((first - encoded.starts[row], row, np.maximum(second, part), ids))
    found = [np.concatenate(of_parts) for of_parts in zip(*found, strict=True)]
    order = np.argsort(found[1], kind="stable")
    return [values[order] for values in found]


def spans_in(parts):
    """Returns a dict from `(row, text, word id)` of each word to its character span in its text."""
    spans = {}
    for part, encoded in enumerate(parts):
        first, last, row, second, ids = _word_runs(encoded)
        begins, ends = encoded.offsets[first, 0].tolist(), encoded.offsets[last, 1].tolist()
        names = zip(row.tolist(), np.maximum(second, part).tolist(), ids.tolist(), strict=True)
        spans.update(zip(names, zip(begins, ends, strict=True), strict=True))
    return spans
