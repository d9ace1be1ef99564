"""Where an example's two texts stand in its row of vectors, for readers that read each by itself.

Shapes: R rows, B of them in a batch, W vectors of a row, T of the first text, S of the second.
"""

import numpy as np

PLACES = ("first_positions", "second_positions")  # inputs of heads and readouts, (B, T) and (B, S)
MULTIPLE = 8  # of T and S, so that they are few


class TextPlaces:
    """Where each of two texts stands in rows.

    A text's positions of a batch are padded to those of the longest text in any row that the
    batch's length holds, so that a bucket has one shape.

    Args:
        lengths: (R,) by which rows are put in buckets.
        begins, counts: (R, 2) the first vector of each text in its row, and how many there are.
        last: (R,) one more vector of the second text, behind the others; `None` for none.
    """

    def __init__(self, lengths, begins, counts, last=None):
        self.lengths, self.begins, self.counts, self.last = lengths, begins, counts, last

    def arrays(self, rows, length):
        """`PLACES` of some rows at a padded length, -1 at padding."""
        made, held = {}, self.lengths <= length
        for text, name in enumerate(PLACES):
            more = int(text == 1 and self.last is not None)
            longest = int(self.counts[held, text].max(initial=1)) + more
            steps = np.arange(-(-longest // MULTIPLE) * MULTIPLE)
            counts = self.counts[rows, text][:, None]
            places = np.where(steps < counts, self.begins[rows, text][:, None] + steps, -1)
            if more:
                places = np.where(steps == counts, self.last[rows][:, None], places)
            made[name] = places.astype("int32")
        return made
