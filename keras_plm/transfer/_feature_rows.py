"""Rows that a frozen encoder reads for features of words, pooled texts or tokens.

Each kind of rows has the same members:

- `texts`: `(text, pair)` of each example; `settings`: other values that change the features.
- `windows`: the `Windows` of questions with their passages, or `None`.
- `words`: a function that returns the words of each example, or `None`.
- `pooled_pairs`: whether an example has one vector for each of two texts.
- `pack()`: `(sources, counts, parts)`: packed rows, and attributes of a `FeatureStore`.
- `split`: after `pack`, the rows of examples in several windows, see `_feature_files.Arrays.rows`.
- `sizes(source)`: number of vectors to keep of each row of a source.
- `vectors(layers, positions)`: the vectors to keep of one row. `layers` has the encoder's vectors
  at the row's real tokens, or at all tokens if words have positions.
"""

import functools

import numpy as np

from keras_plm.data.packing import PackedExamples, words_of
from keras_plm.data.passages import Windows
from keras_plm.data.task import Unlabelled

TOKENS = "tokens"  # no pooling: one vector per token of questions and their passages


def read_apart(examples, tokenizer):
    """Whether examples are pairs that the tokenizer does not pack into one row."""
    paired = any(getattr(example, "pair", None) is not None for example in examples)
    return paired and not getattr(tokenizer, "joint_pairs", True)


def feature_rows(examples, tokenizer, pool, encoder, max_length):
    """Creates the rows of examples for an encoder; arguments as in `FeatureStore.build`."""
    limit = encoder.max_sequence_length
    if pool == TOKENS:
        return TokenRows(examples, tokenizer, min(limit or max_length, max_length))
    if pool is None:
        return WordRows(examples, tokenizer, limit)
    return PooledRows(examples, tokenizer, limit, pool)


class _Rows:
    settings, windows, words, pooled_pairs, split = (), None, None, False, None

    def __init__(self, examples, tokenizer):
        self.tokenizer = tokenizer
        self.texts = [(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
        self.paired = any(pair is not None for _, pair in self.texts)
        self.apart = read_apart(examples, tokenizer)
        self.sentences = [getattr(e, "sentences", None) for e in examples]

    def _check_pairs(self):
        single = [i for i, (_, pair) in enumerate(self.texts) if pair is None]
        if self.apart and single:
            raise ValueError(
                f"Either all examples have a pair or none. Received: example {single[0]} without"
            )


class WordRows(_Rows):
    """One vector per word, that of its first token.

    The encoder reads each separate text of a pair once, also if several examples have it.
    """

    def __init__(self, examples, tokenizer, limit):
        super().__init__(examples, tokenizer)
        self._check_pairs()
        self.limit = limit
        self.settings = ("texts",) if self.paired else ()
        if any(self.sentences):  # windows end between sentences
            self.settings += (self.sentences,)
        self.words = functools.partial(words_of, examples, tokenizer, limit)

    def pack(self):
        if self.apart:
            return self._pack_apart()
        rows = [
            Unlabelled(*both, sentences=sizes)
            for both, sizes in zip(self.texts, self.sentences, strict=True)
        ]
        packed = PackedExamples(rows, self.tokenizer, max_length=self.limit, words=True)
        counts = np.bincount(packed.examples_of, packed.words).astype(np.int64)
        if len(packed.words) > len(rows) and not any(self.sentences):
            firsts = np.cumsum(packed.words) - packed.words
            firsts -= (np.cumsum(counts) - counts)[packed.examples_of]
            self.split = np.stack([packed.examples_of, firsts, packed.words], axis=1)
        if not self.paired:
            return [packed], counts, None
        sizes = packed.row_words.counts
        starts = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
        return [packed], counts, np.stack([starts, sizes], axis=-1)

    def _pack_apart(self):
        numbers = {}
        names = [[x if isinstance(x, str) else tuple(x) for x in both] for both in self.texts]
        of_rows = [[numbers.setdefault(x, len(numbers)) for x in both] for both in names]
        rows = [Unlabelled(x if isinstance(x, str) else list(x)) for x in numbers]
        packed = PackedExamples(rows, self.tokenizer, max_length=self.limit, words=True)
        sizes = np.bincount(packed.examples_of, packed.words).astype(np.int64)
        parts = _parts(sizes, np.array(of_rows))
        return [packed], parts[..., 1].sum(axis=1), parts

    def sizes(self, source):
        return source.words

    def vectors(self, layers, positions):
        return layers[positions]  # (W, L + 1, D)


class PooledRows(_Rows):
    """One vector per text, or one for each of two separate texts."""

    def __init__(self, examples, tokenizer, limit, pool):
        super().__init__(examples, tokenizer)
        self._check_pairs()
        self.limit, self.pool = limit, pool
        self.pooled_pairs = self.apart

    def pack(self):
        rows = [Unlabelled(*both) for both in self.texts]
        if self.apart:  # the two texts of an example follow one another
            rows = [Unlabelled(text) for both in self.texts for text in both]
        packed = PackedExamples(rows, self.tokenizer, max_length=self.limit, words=False)
        counts = np.full(len(self.texts), 2 if self.apart else 1, dtype=np.int64)
        return [packed], counts, None

    def sizes(self, source):
        return np.ones(len(source.lengths), dtype=np.int64)

    def vectors(self, layers, positions):
        if not len(layers):  # a text without tokens has zeros, as under `layers.Pooling`
            return np.zeros((1, *layers.shape[1:]), layers.dtype)
        if self.pool in ("cls", "last"):
            return layers[0 if self.pool == "cls" else -1][None]
        return (layers.mean(axis=0) if self.pool == "mean" else layers.max(axis=0))[None]


class TokenRows(_Rows):
    """One vector per token of questions with their passages, in windows."""

    def __init__(self, examples, tokenizer, max_length):
        super().__init__(examples, tokenizer)
        self.windows = Windows(examples, tokenizer, max_length, apart=self.apart)
        self.settings = self.windows.max_length, self.windows.stride
        self.settings += ("apart",) if self.apart else ()
        self.settings += () if self.windows.cut_to is None else (self.windows.cut_to,)

    def pack(self):
        if not self.apart:
            return [self.windows], self.windows.lengths, None
        sources, of_rows = self.windows.texts()
        sizes = np.concatenate([source.words for source in sources]).astype(np.int64)
        return sources, self.windows.lengths, _parts(sizes, of_rows)

    def sizes(self, source):
        return source.lengths if source is self.windows else source.words

    def vectors(self, layers, positions):
        return layers if positions is None else layers[positions]  # (T, L + 1, D)


def _parts(sizes, of_rows):
    """Returns the start and the number of vectors of the two texts of each row, (N, 2, 2)."""
    starts = np.cumsum(sizes) - sizes
    return np.stack([starts[of_rows], sizes[of_rows]], axis=-1)
