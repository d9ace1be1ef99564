"""Base class of the tokenizers on the package `tokenizers`: packing, padding, files."""

import numbers
import os
from collections.abc import Iterable, Sequence

import numpy as np

from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import Tensor, as_list, as_text, as_texts
from keras_plm.files.writing import write_text
from keras_plm.tokenizers.encoded import (
    Encoded,
    FlatTokens,
    cut_longer_first,
    ranges,
    with_empty_words,
)


class SubwordTokenizer:
    """Base class of the tokenizers on the `tokenizers` package."""

    _special = {}  # from attribute to special token
    # Attributes of the special tokens before a text, between two texts, and after a text, if any.
    _first, _middle, _last = None, None, None
    _between = 1  # number of special tokens between two texts
    has_segments = True
    starts_word = None  # (len,) whether a token begins a word, if its id shows this
    joint_pairs = True  # whether `pack` puts two texts in one row

    @property
    def framed(self) -> tuple[bool, bool]:
        """Whether a special token precedes a text, and whether one follows it."""
        return self._first is not None, self._last is not None

    @property
    def has_cls(self) -> bool:
        """Whether a [CLS] token precedes each text."""
        return self._first == "cls_id"

    @property
    def _of_words(self):
        """The package's tokenizer for lists of words."""
        return self._tokenizer

    def _set(self, tokenizer):
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab()
        for name, token in self._special.items():
            setattr(self, name, self._vocabulary[token])

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer to one JSON file, atomically."""
        write_text(path, self._to_json())

    def _to_json(self):
        return self._tokenizer.to_str()

    def __len__(self):
        return len(self._vocabulary)

    @property
    def vocabulary(self) -> list[str]:
        """Tokens in the order of their ids."""
        return sorted(self._vocabulary, key=self._vocabulary.get)

    def tokenize(self, text: str | Sequence[str]) -> list[str]:
        """Splits a text, or a list of words, into tokens."""
        text = as_text(text)
        words = not isinstance(text, str)
        row = self._tokenizer.encode(text, is_pretokenized=words, add_special_tokens=False)
        return [self._tokenizer.id_to_token(i) for i in row.ids]

    def detokenize(self, token_ids: Sequence[int] | Tensor) -> str:
        """Converts token ids to text, without special tokens."""
        return self._tokenizer.decode(one_row(token_ids))

    def pack(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        return_offsets: bool = False,
        both_orders: bool = False,
        choices: Iterable[Sequence[str]] | None = None,
    ) -> dict[str, np.ndarray]:
        """Converts texts, or pairs of texts, to padded arrays with special tokens.

        Args:
            texts: N texts; a text may be a list of words.
            pairs: N second texts, or `None`.
            max_length: Largest length T of a row; the longer text of a row is cut first. `encode`
                returns the number of cut tokens.
            return_offsets: If True, add `offsets` and `word_ids`.
            both_orders: If True, each pair is two rows, the second with exchanged texts.
            choices: N lists of P second texts; each choice is a row after its text.

        Returns:
            A dict of arrays: `token_ids` and, for models with segments, `segment_ids` (N, T)
            int32, and `padding_mask` (N, T) bool. With `return_offsets` also `offsets` (N, T, 2),
            the characters of a token in its text or word, and `word_ids` (N, T), -1 at special
            tokens and padding. Shapes are (N, 2, T) with `both_orders`, (N, P, T) with `choices`.

        Raises:
            ValueError: As `encode`, and if texts have different numbers of choices.
        """
        texts = as_texts(texts, tuples=False)
        parts = encode_parts(self, texts, pairs, max_length, return_offsets, both_orders, choices)
        length = max(int(rows.lengths.max(initial=0)) for rows in parts)
        packed = []
        for rows in parts:
            packed.append(self.arrays(rows, length=length))
            if return_offsets:
                packed[-1]["offsets"] = rows.padded("offsets", length=length)
                packed[-1]["word_ids"] = rows.padded("word_ids", length=length, pad=-1)
        if not both_orders and choices is None:
            return packed[0]
        return {name: np.stack([part[name] for part in packed], axis=1) for name in packed[0]}

    def arrays(
        self, encoded: Encoded, rows: np.ndarray | None = None, length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Returns model inputs from rows of an `Encoded`, by default all, padded to a length."""
        arrays = {"token_ids": encoded.padded("token_ids", rows, length, pad=self.pad_id)}
        if self.has_segments:
            arrays["segment_ids"] = encoded.padded("segment_ids", rows, length)
        return {**arrays, "padding_mask": encoded.mask(rows, length)}

    def encode(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        return_offsets: bool = False,
    ) -> Encoded:
        """Encodes texts as `pack` does, without padding.

        Raises:
            ValueError: If `texts` is one string, `texts` and `pairs` differ in length, or
                `max_length` leaves no room for text.
        """
        texts = as_texts(texts)
        whole = next((i for i, text in enumerate(texts) if hasattr(text, "text")), None)
        if whole is not None:
            raise TypeError(
                "A tokenizer needs texts, not examples: use pack(texts, pairs), or `data.batches` "
                f"for examples. Received: {texts[whole]!r:.60} in row {whole} of `texts`"
            )
        if max_length is not None:
            check_whole(max_length, "max_length")
        pairs = None if pairs is None else as_texts(pairs, "pairs")
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(
                f"Every text needs one pair. Received: {len(texts)} texts and {len(pairs)} pairs"
            )
        special = self.num_special(pairs is not None)
        if max_length is not None and max_length <= special:
            raise ValueError(
                f"`max_length` must leave room for text and {special} special "
                f"token{'' if special == 1 else 's'}. Received: max_length={max_length}"
            )
        first = self.flat_tokens(texts, return_offsets)
        second = None if pairs is None else self.flat_tokens(pairs, return_offsets)
        if max_length is None:
            return self.join(first, second)
        seconds = 0 * first.lengths if second is None else second.lengths
        kept = cut_longer_first(first.lengths, seconds, max_length - special)
        parts = [x and x.part(lengths=keep) for x, keep in zip((first, second), kept, strict=True)]
        encoded = self.join(*parts)
        encoded.cut = first.lengths + seconds - kept[0] - kept[1]
        return encoded

    def num_special(self, paired: bool = False) -> int:
        """Returns the number of special tokens in a row of one text, or of two."""
        between = self._between if self._middle is not None and paired else 0
        return (self._first is not None) + between + (self._last is not None)

    def flat_tokens(
        self, texts: Iterable[str | Sequence[str]], return_offsets: bool = False
    ) -> FlatTokens:
        """Encodes texts, or lists of words, without special tokens, for `join`."""
        return FlatTokens.of(self._encode(texts, return_offsets), return_offsets)

    def join(self, first: FlatTokens, second: FlatTokens | None = None) -> Encoded:
        """Adds special tokens to texts, or to pairs of texts.

        Args:
            first: `FlatTokens` of N texts.
            second: `FlatTokens` of N second texts, or `None`.

        Returns:
            An `Encoded`, with offsets and word ids if `first` has them.
        """
        begin, end = self._first is not None, self._last is not None
        between = self._between if self._middle is not None and second is not None else 0
        seconds = 0 * first.lengths if second is None else second.lengths
        lengths = first.lengths + seconds + (begin + between + end)
        starts = np.cumsum(lengths) - lengths

        total = int(lengths.sum())
        token_ids = np.full(total, getattr(self, self._last) if end else 0, dtype=np.int32)
        if between:
            middle = ranges(starts + begin + first.lengths, np.full(len(starts), between))
            token_ids[middle] = getattr(self, self._middle)
        segment_ids = np.zeros(total, dtype=np.int32)
        return_offsets = first.offsets is not None
        word_ids = np.full(total, -1, dtype=np.int32) if return_offsets else None
        offsets = np.zeros((total, 2), dtype=np.int32) if return_offsets else None
        if begin:
            token_ids[starts] = getattr(self, self._first)
        places = [(first, starts + begin)]
        if second is not None:
            places.append((second, starts + begin + first.lengths + between))
        for tokens, start in places:
            source = ranges(tokens.starts, tokens.lengths)
            target = ranges(start, tokens.lengths)
            token_ids[target] = tokens.token_ids[source]
            if return_offsets:
                word_ids[target] = tokens.word_ids[source]
                offsets[target] = tokens.offsets[source]
        if second is not None:
            segment_ids[ranges(places[1][1], second.lengths + end)] = 1
        return Encoded(lengths, token_ids, segment_ids, 0 * lengths, word_ids, offsets, first.table)

    def _encode(self, texts, offsets):
        """Returns encodings of texts or lists of words, without special tokens."""
        split = [not isinstance(text, str) for text in texts]
        if any(split) and not all(split):
            raise ValueError(
                "`texts` must be all strings or all lists of words. "
                f"Received: {len(texts) - sum(split)} strings and {sum(split)} lists; "
                f"text {split.index(not split[0])} is the first that differs from text 0"
            )
        if not any(split):
            # The fast method keeps neither offsets nor word ids.
            encode_batch = self._tokenizer.encode_batch_fast
            if offsets:
                encode_batch = self._tokenizer.encode_batch
            return encode_batch(texts, add_special_tokens=False)
        texts = [list(words) for words in texts]
        rows = self._of_words.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        for i, row in enumerate(rows):
            if len(set(row.word_ids)) < len(texts[i]):
                rows[i] = with_empty_words(row, len(texts[i]), self.unk_id)
        return rows

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def one_row(token_ids):
    """Converts one row of token ids to a list.

    Raises:
        TypeError: If it holds anything except whole numbers.
    """
    ids = as_list(token_ids, "token_ids", "token ids")
    for i, found in enumerate(ids):
        if not isinstance(found, numbers.Integral):
            raise TypeError(
                "`token_ids` must be one row of whole numbers: call `detokenize` for each row. "
                f"Received: {found!r:.60} at {i}"
            )
    return ids


def encode_parts(
    tokenizer,
    texts,
    pairs=None,
    max_length=None,
    return_offsets=False,
    both_orders=False,
    choices=None,
    joint_pairs=True,
):
    """Encodes texts to a list of `Encoded`: one, or one per text or order of pairs, or per choice.

    Without `joint_pairs`, the two texts of a pair are in separate rows.

    Raises:
        ValueError: If `both_orders` has no pairs, choices are given with pairs, or texts differ in
            their number of choices.
    """
    options = {"max_length": max_length, "return_offsets": bool(return_offsets)}
    if choices is None:
        if pairs is not None and not joint_pairs:
            return [tokenizer.encode(part, **options) for part in (texts, pairs)]
        if not both_orders:
            return [tokenizer.encode(texts, pairs, **options)]
        if pairs is None:
            raise ValueError("`both_orders` needs pairs. Received: pairs=None")
        return [tokenizer.encode(*both, **options) for both in ((texts, pairs), (pairs, texts))]
    if pairs is not None or both_orders:
        raise ValueError(
            "Choices replace second texts: leave pairs out. "
            f"Received: choices, pairs={pairs!r:.60}, both_orders={both_orders}"
        )
    texts, choices = as_texts(texts), as_list(choices, "choices", "lists of choices")
    choices = [as_texts(of_text, f"choices[{i}]") for i, of_text in enumerate(choices)]
    counts = sorted({len(of_text) for of_text in choices})
    if len(choices) != len(texts) or len(counts) > 1 or counts[:1] in ([], [0]):
        raise ValueError(
            "Every text needs the same number of choices. "
            f"Received: {len(texts)} texts and {len(choices)} lists of {counts} choices"
        )
    return [tokenizer.encode(texts, list(part), **options) for part in zip(*choices, strict=True)]


KNOWN = 2**20  # largest number of chunks in the cache


class KnownChunks(dict):
    """Cache of the ids of chunks of text between spaces; most words repeat.

    It needs a tokenizer for which a space only ends a word.
    """

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, chunk):
        ids = self.tokenizer.encode(chunk, add_special_tokens=False).ids
        if len(chunk) <= 50:  # longer chunks rarely repeat
            if len(self) >= KNOWN:
                self.clear()
            self[chunk] = ids
        return ids

    def __reduce__(self):
        return KnownChunks, (self.tokenizer,)


def check_tokenizer(tokenizer):
    """Raises unless `tokenizer` encodes texts.

    Raises:
        TypeError: If it is something else.
    """
    encodes = callable(getattr(tokenizer, "encode", None))
    if not encodes or isinstance(tokenizer, (type, str)):
        raise TypeError(
            "`tokenizer` must be a tokenizer of keras_plm, such as `WordPiece`, or have its "
            "methods; `encoder, tokenizer = keras_plm.load(folder)` returns one. "
            f"Received: tokenizer={tokenizer!r:.60} of type {type(tokenizer).__name__}"
        )


def check_start(tokenizer):
    """Raises unless a tokenizer has the start and end tokens of a target."""
    check_special(
        tokenizer,
        ("start_id", "end_id"),
        "Generation needs a tokenizer with a start and an end token: use `BytePair`.",
    )


def check_special(tokenizer, names, rule):
    """Raises an error with `rule` unless a tokenizer has the ids of these special tokens."""
    missing = [name for name in names if not hasattr(tokenizer, name)]
    if missing:
        raise ValueError(f"{rule} Received: {type(tokenizer).__name__} without {missing[0]}")
