"""A text of random tokens, and n-gram models fitted to it."""

import numpy as np

from keras_plm.models import NGram

END, SIZE = 2, 11
TINY = [0, 1, 2, 0, 0, 2]  # 0 1 </s> 0 0 </s>; 3 never occurs


def text(seed, length):
    """Returns tokens of unequal frequency with many sentence ends, two of them in a row."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.geometric(0.3, length) - 1, SIZE - 2)  # the last id never occurs
    ids[[5, 6]] = END
    return ids


TRAIN, HELD_OUT, OTHER = text(0, 397), text(1, 211), text(2, 151)


def fitted(smoothing, order, **options):
    held_out = HELD_OUT if smoothing == "interpolation" else None
    return NGram(SIZE, order, smoothing, **options).fit(TRAIN, held_out)


def before(i):
    """Returns the context of a token of `OTHER`; its first token begins a sentence."""
    return [END, *OTHER[:i]]
