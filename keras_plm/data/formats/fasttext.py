"""fastText's `.bin` files: vectors of words and of their character n-grams."""

import mmap
import os
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_plm.files.opening import check_file
from keras_plm.files.sequences import as_list
from keras_plm.files.writing import replacing
from keras_plm.tokenizers.character_ngrams import ngram_rows_of

# The layout is that of fastText's `FastText::saveModel`, little-endian and without padding.
MAGIC = struct.pack("<i", 793712314)
VERSIONS = (11, 12)  # the same layout, except for supervised models
ARGUMENTS = struct.Struct("<12id")
DICTIONARY = struct.Struct("<3i2q")
ENTRY = struct.Struct("<qb")  # after a word and its zero byte: its count and type
WORD, LABEL = 0, 1
MATRIX = struct.Struct("<?2q")  # whether it is quantised, rows, columns
SUPERVISED = 3
# Training settings that a file must hold: fastText's defaults for skip-gram.
TRAINING = {"ws": 5, "epoch": 5, "minCount": 1, "neg": 5, "wordNgrams": 1, "loss": 2, "model": 2}
END_OF_SENTENCE = "</s>"  # fastText's own word, which has no n-grams
BLOCK = 1 << 12  # words, or rows of a table, per step: 5 MB for vectors of 300 numbers


class SubwordVectors:
    """fastText's vectors of words and character n-grams: a vector for every word.

    The vector of a word is the mean of its own row, for a known word, and the rows of its n-grams.
    A hash maps n-grams to a table of `buckets` rows. `read_fasttext` reads it from a file, with
    memory-mapped rows or only the rows in use.

    Reference: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2; equal to
    `FastText::getWordVector`, bit for bit.

    Args:
        words: The known words; the first row of a repeated word counts.
        word_rows: (N, D) rows of the words.
        bucket_rows: (buckets, D) or (len(bucket_ids), D) rows of n-grams.
        counts: (N,) counts of the words in training; 1 by default.
        min_n: Length of the shortest n-gram.
        max_n: Length of the longest n-gram; 0 for no n-grams.
        buckets: Number of rows of the whole table; by default those of `bucket_rows`.
        bucket_ids: Ascending row numbers of `bucket_rows` in the whole table; other rows are zero.
            By default all rows.

    Raises:
        ValueError: If shapes are inconsistent, or `bucket_ids` are not ascending row numbers.

    >>> vectors = SubwordVectors(["a"], [[1.0, 2.0]], [[3.0, 4.0]], min_n=3, max_n=3)
    >>> vectors.vector("a").tolist(), vectors.vector("b").tolist()
    ([2.0, 3.0], [3.0, 4.0])
    """

    def __init__(
        self,
        words: Sequence[str],
        word_rows: Sequence[Any] | np.ndarray,
        bucket_rows: Sequence[Any] | np.ndarray,
        counts: Sequence[int] | np.ndarray | None = None,
        min_n: int = 3,
        max_n: int = 6,
        buckets: int | None = None,
        bucket_ids: Sequence[int] | np.ndarray | None = None,
    ):
        self.words = as_list(words, "words", "words")
        self.word_rows = np.asarray(word_rows, "float32")
        self.bucket_rows = np.asarray(bucket_rows, "float32")
        self.counts = np.ones(len(self.words), "int64")
        if counts is not None:
            self.counts = np.asarray(counts, "int64")
        self.min_n, self.max_n = min_n, max_n
        self.buckets = len(self.bucket_rows) if buckets is None else buckets
        self.bucket_ids = None if bucket_ids is None else np.asarray(bucket_ids, "int64")
        self._check()
        # A repeated word keeps its first index.
        self._index = {self.words[i]: i for i in range(len(self.words) - 1, -1, -1)}
        if self.bucket_ids is not None:
            self._ids = np.append(self.bucket_ids, -1)  # -1 for a search past the end

    def _check(self):
        shapes = self.word_rows.shape, self.bucket_rows.shape
        if {len(shape) for shape in shapes} != {2} or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                f"`word_rows` must be (N, D) and `bucket_rows` (buckets, D). Received: "
                f"shapes {shapes[0]} and {shapes[1]}"
            )
        if not len(self.words) == shapes[0][0] == self.counts.size:
            raise ValueError(
                f"Each word needs one row and one count. Received: {len(self.words)} words, "
                f"{shapes[0][0]} rows, {self.counts.size} counts"
            )
        ids = self.bucket_ids
        rows = self.buckets if ids is None else ids.size
        if shapes[1][0] != rows:
            raise ValueError(
                f"`bucket_rows` must hold a row per bucket, or per entry of `bucket_ids`. "
                f"Received: {shapes[1][0]} rows instead of {rows}"
            )
        if ids is not None and rows:
            if ids.ndim != 1 or ids[0] < 0 or ids[-1] >= self.buckets or (np.diff(ids) < 1).any():
                raise ValueError(
                    f"`bucket_ids` must ascend, from 0 to `buckets` - 1. "
                    f"Received: {ids[:5].tolist()}..., buckets={self.buckets}"
                )

    @property
    def dim(self) -> int:
        """Width D of a vector."""
        return self.word_rows.shape[1]

    def vector(self, word: str) -> np.ndarray:
        """Returns a word's vector, float32 (D,); zeros for an unknown word without n-grams."""
        return self.vectors([word])[0]

    def vectors(self, words: Iterable[str]) -> np.ndarray:
        """Returns the vectors of N words, float32 (N, D)."""
        words = as_list(words, "words", "words")
        result = np.empty((len(words), self.dim), "float32")
        for start in range(0, len(words), BLOCK):
            block = words[start : start + BLOCK]
            result[start : start + BLOCK] = self._vectors(block)
        return result

    def _vectors(self, words):
        own = np.array([self._index.get(word, -1) for word in words])  # (N,)
        rows, counts = ngram_rows_of(words, self.min_n, self.max_n, self.buckets)
        starts = np.cumsum(counts) - counts
        counts[[word == END_OF_SENTENCE for word in words]] = 0
        known = own >= 0
        total = np.zeros((len(words), self.dim), "float32")  # (N, D)
        total[known] = self.word_rows[own[known]]
        # Add the k-th n-grams of all words at once, in fastText's order of a word's n-grams.
        longest_first = np.argsort(-counts, kind="stable")
        for k in range(counts.max(initial=0)):
            having = longest_first[: np.count_nonzero(counts > k)]
            total[having] += self._ngram_rows(rows[starts[having] + k])
        return total * (1 / np.maximum(counts + known, 1)).astype("float32")[:, None]

    def _ngram_rows(self, rows):
        if self.bucket_ids is None:
            return self.bucket_rows[rows]
        places = np.searchsorted(self.bucket_ids, rows)
        kept = self._ids[places] == rows
        found = np.zeros((len(rows), self.dim), "float32")
        found[kept] = self.bucket_rows[places[kept]]
        return found

    def save(self, path: str | os.PathLike, output_rows: np.ndarray | None = None) -> None:
        """Writes a `.bin` file for fastText and gensim, with the whole table of n-grams.

        The write is atomic. The training settings in the file are fastText's defaults.

        Args:
            path: The file; an existing file is replaced.
            output_rows: (N, D) rows that predict context words, for further training; by default
                zeros.

        Raises:
            ValueError: If a word is empty, occurs twice or contains white space. If a count is
                below 1, or the shapes of `output_rows` and `word_rows` differ.
        """
        check_words(self.words)
        if output_rows is not None and np.shape(output_rows) != self.word_rows.shape:
            raise ValueError(
                f"`output_rows` must have the shape of `word_rows`, {self.word_rows.shape}. "
                f"Received: shape {np.shape(output_rows)}"
            )
        if self.counts.min(initial=1) < 1:
            rare = self.words[int(self.counts.argmin())]
            raise ValueError(
                f"Each word of a file must have a count of at least 1. Received: "
                f"{rare!r} {self.counts.min()} times"
            )
        size = len(self.words)
        t = TRAINING
        arguments = [self.dim, *(t[name] for name in ("ws", "epoch", "minCount", "neg"))]
        arguments += [t["wordNgrams"], t["loss"], t["model"], self.buckets, self.min_n, self.max_n]
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(MAGIC + struct.pack("<i", VERSIONS[-1]))
            file.write(ARGUMENTS.pack(*arguments, 100, 1e-4))  # lrUpdateRate, t: the defaults
            file.write(DICTIONARY.pack(size, size, 0, int(self.counts.sum()), -1))  # not pruned
            for word, count in zip(self.words, self.counts.tolist(), strict=True):
                file.write(word.encode() + b"\0" + ENTRY.pack(count, WORD))
            file.write(MATRIX.pack(False, size + self.buckets, self.dim))
            for start in range(0, size, BLOCK):
                file.write(self.word_rows[start : start + BLOCK].astype("<f4").tobytes())
            for start in range(0, self.buckets, BLOCK):
                rows = np.arange(start, min(start + BLOCK, self.buckets))
                file.write(self._ngram_rows(rows).astype("<f4").tobytes())
            file.write(MATRIX.pack(False, size, self.dim))
            for start in range(0, size, BLOCK):
                rows = np.zeros((min(BLOCK, size - start), self.dim), "<f4")
                if output_rows is not None:
                    rows[:] = output_rows[start : start + BLOCK]
                file.write(rows.tobytes())


def read_fasttext(
    path: str | os.PathLike, words: Iterable[str] | None = None, errors: str = "strict"
) -> SubwordVectors:
    """Reads the `.bin` file of an unsupervised fastText model.

    Words with fastText's label prefix, `__label__`, are labels, not words.

    Args:
        path: The file, not compressed.
        words: Words to read, with the rows of their n-grams, also for words unknown to the file.
            Other words are then unknown. By default all words, with memory-mapped rows: do not
            change the file while they are in use.
        errors: Treatment of words that are not UTF-8, as in `bytes.decode`: `"strict"`,
            `"replace"` or `"ignore"`. A repaired word has other n-grams than in training.

    Returns:
        `SubwordVectors`.

    Raises:
        ValueError: If the file is missing, compressed, truncated or of another format. If the model
            is supervised, quantised or pruned, or a word is not UTF-8.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     SubwordVectors(["a"], [[1.0]], [[3.0]], max_n=3).save(f"{folder}/tiny.bin")
    ...     read_fasttext(f"{folder}/tiny.bin", words=["a"]).vector("a").tolist()
    [2.0]
    """
    path = Path(path)
    check_file(path)
    wanted = as_set(words)
    start = len(MAGIC) + 4 + ARGUMENTS.size + DICTIONARY.size
    with open(path, "rb") as file:
        head = file.read(start)
        if head[:2] == b"\x1f\x8b":
            raise ValueError(f"{path}: Unpack this file first (gunzip). Received: a .gz file")
        if head[:4] != MAGIC:
            raise ValueError(
                f"{path}: This is not a .bin file of fastText. Received: {head[:4]!r}..."
            )
        if len(head) < start:
            raise _cut_short(path, len(head))
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:  # the file is larger than the address space
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    (version,) = struct.unpack_from("<i", head, 4)
    if version not in VERSIONS:
        raise ValueError(f"{path}: The version must be 11 or 12. Received: {version}")
    arguments = ARGUMENTS.unpack_from(head, 8)
    dim, model, buckets, min_n, max_n = (arguments[i] for i in (0, 7, 8, 9, 10))
    size, num_words, num_labels, _, pruned = DICTIONARY.unpack_from(head, 8 + ARGUMENTS.size)
    if model == SUPERVISED:
        raise _unfit(path, "supervised")
    if pruned != -1:  # otherwise the number of n-grams kept
        raise _unfit(path, "pruned")
    positive, natural = (dim, num_words), (num_labels, buckets, min_n, max_n)
    if min(positive) < 1 or min(natural) < 0 or size != num_words + num_labels:
        raise ValueError(
            f"{path}: The settings of this file must be valid in fastText. Received: dim={dim}, "
            f"size={size}, nwords={num_words}, nlabels={num_labels}, bucket={buckets}, "
            f"minn={min_n}, maxn={max_n}"
        )
    names, counts, places, position = [], [], [], start
    for i in range(size):
        end = data.find(b"\0", position)
        if end < 0 or end + 1 + ENTRY.size > len(data):
            raise _cut_short(path, len(data))
        word = decode(data[position:end], f"{path}, word {i + 1}", errors)
        count, kind = ENTRY.unpack_from(data, end + 1)
        if kind != (LABEL if i >= num_words else WORD):
            raise ValueError(
                f"{path}, word {i + 1}: The header's {num_words} words must come first, then its "
                f"{num_labels} labels. Received: {word!r} of type {kind}"
            )
        if kind == WORD and (wanted is None or word in wanted):
            names.append(word)
            counts.append(count)
            places.append(i)
        position = end + 1 + ENTRY.size
    matrix, position = _matrix(path, data, position, (num_words + buckets, dim))
    _matrix(path, data, position, (num_words, dim))  # raises if the file is truncated
    if wanted is None:
        word_rows, bucket_rows, ids = matrix[:num_words], matrix[num_words:], None
    else:
        ids = np.unique(ngram_rows_of(sorted(wanted), min_n, max_n, buckets)[0])
        word_rows, bucket_rows = matrix[np.array(places, "int64")], matrix[num_words + ids]
    return SubwordVectors(names, word_rows, bucket_rows, counts, min_n, max_n, buckets, ids)


def _matrix(path, data, position, shape):
    """Returns a memory-mapped matrix of the file, and the position of its end."""
    if position + MATRIX.size > len(data):
        raise _cut_short(path, len(data))
    quantised, *found = MATRIX.unpack_from(data, position)
    if quantised:
        raise _unfit(path, "quantised")
    if tuple(found) != shape:
        raise ValueError(
            f"{path}: This file's matrices must fit its settings. Received: {tuple(found)} "
            f"instead of {shape}"
        )
    position += MATRIX.size
    end = position + 4 * shape[0] * shape[1]
    if end > len(data):
        raise _cut_short(path, len(data))
    return np.frombuffer(data, "<f4", shape[0] * shape[1], position).reshape(shape), end


def _cut_short(path, size):
    return ValueError(f"{path}: This file is cut short. Received: {size} bytes")


def _unfit(path, kind):
    return ValueError(
        f"{path}: The model must be unsupervised, not quantised and not pruned. "
        f"Received: a {kind} one"
    )


def as_set(words):
    """Returns the wanted words as a set, or `None` for all words."""
    if isinstance(words, (str, bytes)):
        raise ValueError(f"`words` must be a list or set of words. Received: words={words!r}")
    return None if words is None else frozenset(words)


def decode(raw, where, errors):
    """Decodes a word of a file."""
    if errors not in ("strict", "replace", "ignore"):
        raise ValueError(
            f"`errors` must be 'strict', 'replace' or 'ignore'. Received: errors={errors!r}"
        )
    if not raw:
        raise ValueError(f"{where}: A row must begin with a word. Received: an empty one")
    try:
        return raw.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise ValueError(
            f"{where}: A word must be UTF-8; read it anyway with errors='replace'. "
            f"Received: {raw[:40]!r}"
        ) from None


def check_words(words):
    """Raises unless a file can hold these words and distinguish them."""
    seen = set()
    for word in words:
        # White space ends a word in all formats, and the zero byte in `.bin`.
        if not word or re.search(r"[ \t\n\v\f\r\0]", word):
            raise ValueError(
                f"A word of a file must not be empty or hold white space. Received: {word!r}"
            )
        if word in seen:
            raise ValueError(f"Each word must occur once. Received: {word!r} twice")
        seen.add(word)
