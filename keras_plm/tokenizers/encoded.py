"""Encoded texts: token ids, word ids and offsets in flat arrays."""

import copy
import itertools
import typing
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Encoded:
    """Packed texts of unequal lengths, in sequence in flat arrays.

    Args:
        lengths: (N,) number of tokens of each row, special tokens included.
        token_ids, segment_ids: (sum of lengths,) int32.
        cut: (N,) number of tokens cut for `max_length`.
        word_ids: (sum of lengths,) int32, the word of each token, -1 at special tokens; `None` if
            not requested.
        offsets: (sum of lengths, 2) int32, characters of the original text, or of the word in a
            list of words; `None` if not requested.
        table: Array that `token_ids` index, for tokenizers without a vocabulary; otherwise `None`.

    >>> from keras_plm.tokenizers import Words
    >>> tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    >>> encoded = tokenizer.encode(["a b a", "b"])
    >>> encoded.lengths.tolist(), encoded.padded("token_ids").tolist()
    ([3, 1], [[3, 4, 3], [4, 0, 0]])
    """

    lengths: np.ndarray
    token_ids: np.ndarray
    segment_ids: np.ndarray
    cut: np.ndarray
    word_ids: np.ndarray | None = None
    offsets: np.ndarray | None = None
    table: np.ndarray | None = None
    starts: np.ndarray = field(init=False)

    def __post_init__(self):
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    def __len__(self):
        return len(self.lengths)

    def mask(self, rows: np.ndarray | None = None, length: int | None = None) -> np.ndarray:
        """Returns the mask of rows, by default of all: (rows, length), True at tokens."""
        lengths = self.lengths if rows is None else self.lengths[rows]
        length = int(lengths.max(initial=0)) if length is None else length
        return np.arange(length) < lengths[:, None]

    def padded(
        self, name: str, rows: np.ndarray | None = None, length: int | None = None, pad: int = 0
    ) -> np.ndarray:
        """Returns rows of the flat array `name` as an array (rows, length), padded with `pad`."""
        rows = np.arange(len(self)) if rows is None else np.asarray(rows)
        flat, real = getattr(self, name), self.mask(rows, length)  # (rows, length)
        out = np.full((*real.shape, *flat.shape[1:]), pad, dtype=flat.dtype)
        source = self.starts[rows][:, None] + np.arange(real.shape[1])
        out[real] = flat[source[real]]
        return out


class FlatTokens:
    """Tokens of texts, without special tokens, in sequence in flat arrays.

    Attributes:
        starts, lengths: (N,) index of the first token of each text, and its number of tokens.
        token_ids, word_ids, offsets: As in `Encoded`; the last two are `None` unless requested.
        table: As in `Encoded`.
    """

    word_ids = offsets = table = None

    def __init__(self, ids):
        self.lengths = np.array([len(row) for row in ids], dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        total = int(self.lengths.sum())
        self.token_ids = np.fromiter(itertools.chain.from_iterable(ids), np.int32, total)

    @classmethod
    def of(cls, encodings, offsets):
        """Converts encodings of the `tokenizers` package, optionally with offsets and word ids."""
        tokens = cls([encoding.ids for encoding in encodings])
        if offsets:
            total = len(tokens.token_ids)
            word_ids = (encoding.word_ids for encoding in encodings)
            tokens.word_ids = np.fromiter(itertools.chain.from_iterable(word_ids), np.int32, total)
            pairs = (encoding.offsets for encoding in encodings)
            flat = itertools.chain.from_iterable(itertools.chain.from_iterable(pairs))
            tokens.offsets = np.fromiter(flat, np.int32, 2 * total).reshape(total, 2)
        return tokens

    def part(self, rows=slice(None), begin=0, lengths=None):
        """Selects texts, each from token `begin` on for `lengths` tokens; copies no token."""
        some = copy.copy(self)
        some.starts = self.starts[rows] + begin
        some.lengths = self.lengths[rows] - begin if lengths is None else lengths
        return some


class Row(typing.NamedTuple):
    """A changed encoding."""

    ids: list
    word_ids: list
    offsets: list


def with_empty_words(row, num_words, unk_id):
    """Adds an unknown token for each word that normalises to nothing, such as a control character.

    Otherwise the tags after it would shift.
    """
    empty = set(range(num_words)) - set(row.word_ids)
    tokens = [*zip(row.word_ids, row.ids, row.offsets, strict=True)]
    tokens += [(word, unk_id, (0, 0)) for word in empty]
    word_ids, ids, offsets = zip(*sorted(tokens, key=lambda token: token[0]), strict=True)
    return Row(ids, word_ids, offsets)


def cut_longer_first(first, second, room):
    """Returns lengths after removing tokens one by one from the longer of two texts to fit.

    An odd place goes to the text that was longer, and at ties to the second, as in Hugging Face's
    "longest_first".
    """
    excess = np.maximum(first + second - room, 0)
    from_first = np.minimum(np.maximum(first - second, 0), excess)
    from_second = np.minimum(np.maximum(second - first, 0), excess)
    rest = excess - from_first - from_second  # of two equally long texts
    more, less = (rest + 1) // 2, rest // 2
    from_first += np.where(first > second, less, more)
    from_second += np.where(first > second, more, less)
    return first - from_first, second - from_second


def ranges(starts, lengths):
    """Returns the integers of all ranges `[start, start + length)` in sequence."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
