"""fastText's `.bin` files: vectors of words and of their character n-grams."""

import mmap
import os
import re
import struct
from pathlib import Path

import numpy as np

from keras_plm.files.opening import check_file
from keras_plm.files.sequences import as_list
from keras_plm.files.writing import replacing
from keras_plm.tokenizers.character_ngrams import ngram_rows_of

# The layout is that of fastText's `FastText::saveModel`, little-endian and without padding.
MAGIC = struct.pack("<i", 793712314)
VERSIONS = (11, 12)  # one layout, but for supervised models
ARGUMENTS = struct.Struct("<12id")
DICTIONARY = struct.Struct("<3i2q")
ENTRY = struct.Struct("<qb")  # after a word and its zero byte: its count and type
WORD, LABEL = 0, 1
MATRIX = struct.Struct("<?2q")  # whether it is quantised, rows, columns
SUPERVISED = 3
# What a file tells of a training that did not happen here: fastText's defaults for skip-gram.
TRAINING = {"ws": 5, "epoch": 5, "minCount": 1, "neg": 5, "wordNgrams": 1, "loss": 2, "model": 2}
END_OF_SENTENCE = "</s>"  # fastText's own word, which has no n-grams
BLOCK = 1 << 12  # words, or rows of a table, at once: 5 MB where vectors have 300 numbers


class SubwordVectors:
    """Vectors of words and of their character n-grams: every word has one, seen or not.

    The vector of a word is the mean over its own row, if it is a known word, and the rows of its
    n-grams, which share a table of `buckets` rows by their hash. `read_fasttext` makes these from
    a file; the rows then stay in it, memory-mapped, or only those in use are kept.

    Reference: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2; `FastText::getWordVector`,
    whose sums these are, number by number.

    Args:
        words: The known words. Of one that comes twice, the first row counts.
        word_rows: Their own rows, (N, D).
        bucket_rows: Rows of n-grams, (buckets, D), or (len(bucket_ids), D).
        counts: How often each word was seen in training, (N,); by default once.
        min_n: Length of the shortest n-gram.
        max_n: Length of the longest; 0 for words alone.
        buckets: Rows of the whole table; by default as many as `bucket_rows` has.
        bucket_ids: Which rows of the whole table `bucket_rows` are, ascending; all other rows
            count as zeros. By default it is the whole table.

    Raises:
        ValueError: If the shapes do not fit each other, or `bucket_ids` are no ascending rows.

    >>> vectors = SubwordVectors(["a"], [[1.0, 2.0]], [[3.0, 4.0]], min_n=3, max_n=3)
    >>> vectors.vector("a").tolist(), vectors.vector("b").tolist()
    ([2.0, 3.0], [3.0, 4.0])
    """

    def __init__(
        self,
        words,
        word_rows,
        bucket_rows,
        counts=None,
        min_n=3,
        max_n=6,
        buckets=None,
        bucket_ids=None,
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
        # Of a word that comes twice, the first place stays.
        self._index = {self.words[i]: i for i in range(len(self.words) - 1, -1, -1)}
        if self.bucket_ids is not None:
            self._ids = np.append(self.bucket_ids, -1)  # what a search past the end meets

    def _check(self):
        shapes = self.word_rows.shape, self.bucket_rows.shape
        if {len(shape) for shape in shapes} != {2} or shapes[0][1] != shapes[1][1]:
            raise ValueError(
                f"`word_rows` must be (N, D) and `bucket_rows` (buckets, D). Received: "
                f"shapes {shapes[0]} and {shapes[1]}"
            )
        if not len(self.words) == shapes[0][0] == self.counts.size:
            raise ValueError(
                f"Each word has one row and one count. Received: {len(self.words)} words, "
                f"{shapes[0][0]} rows, {self.counts.size} counts"
            )
        ids = self.bucket_ids
        rows = self.buckets if ids is None else ids.size
        if shapes[1][0] != rows:
            raise ValueError(
                f"`bucket_rows` must hold a row per bucket, or per one of `bucket_ids`. "
                f"Received: {shapes[1][0]} rows instead of {rows}"
            )
        if ids is not None and rows:
            if ids.ndim != 1 or ids[0] < 0 or ids[-1] >= self.buckets or (np.diff(ids) < 1).any():
                raise ValueError(
                    f"`bucket_ids` must ascend, from 0 to `buckets` - 1. "
                    f"Received: {ids[:5].tolist()}..., buckets={self.buckets}"
                )

    @property
    def dim(self):
        """Numbers in a vector, D."""
        return self.word_rows.shape[1]

    def vector(self, word):
        """The vector of one word, float32 (D,); zeros for an unknown one without an n-gram."""
        return self.vectors([word])[0]

    def vectors(self, words):
        """The vectors of many words, float32 (N, D), each that of `vector`."""
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
        # The k-th n-gram of all words at once: the order in which fastText adds up a word's.
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

    def save(self, path, output_rows=None):
        """Writes a `.bin` file that fastText and gensim read, with the whole table of n-grams.

        It is written under a temporary name and then put in place. Settings of the training are
        fastText's defaults.

        Args:
            path: Where to; an earlier file there is replaced.
            output_rows: Rows that predict context words, (N, D), which only further training needs;
                by default zeros.

        Raises:
            ValueError: If a word is empty, comes twice or holds white space, a count is below 1,
                or `output_rows` has another shape than `word_rows`.
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
                f"Each word of a file was seen at least once. Received: "
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


def read_fasttext(path, words=None, errors="strict"):
    """Reads the `.bin` file of an unsupervised fastText model.

    Words that begin with the file's label prefix, `__label__`, are labels to fastText: they have
    no row of their own, and are no words here either.

    Args:
        path: The file, unpacked.
        words: Only these words and the rows of their n-grams are read, also of words that the file
            does not know; any other word then counts as unknown, and its n-grams as zeros. By
            default all words, with rows that stay in the file, memory-mapped: do not change it
            while they are in use.
        errors: For words that are not UTF-8, as of `bytes.decode`: `"strict"`, `"replace"` or
            `"ignore"`. The n-grams of a word so repaired are not those it was trained with.

    Returns:
        `SubwordVectors`.

    Raises:
        ValueError: If the file is missing, compressed, cut short or no such file, if its model is
            supervised, quantised or pruned, or a word is not UTF-8.

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
            raise ValueError(f"{path}: This is no .bin file of fastText. Received: {head[:4]!r}...")
        if len(head) < start:
            raise _cut_short(path, len(head))
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:  # of a file larger than the address space
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    (version,) = struct.unpack_from("<i", head, 4)
    if version not in VERSIONS:
        raise ValueError(f"{path}: The version must be 11 or 12. Received: {version}")
    arguments = ARGUMENTS.unpack_from(head, 8)
    dim, model, buckets, min_n, max_n = (arguments[i] for i in (0, 7, 8, 9, 10))
    size, num_words, num_labels, _, pruned = DICTIONARY.unpack_from(head, 8 + ARGUMENTS.size)
    if model == SUPERVISED:
        raise _unfit(path, "supervised")
    if pruned != -1:  # the size of a table of n-grams that were kept
        raise _unfit(path, "pruned")
    positive, natural = (dim, num_words), (num_labels, buckets, min_n, max_n)
    if min(positive) < 1 or min(natural) < 0 or size != num_words + num_labels:
        raise ValueError(
            f"{path}: The settings of this file are none of fastText's. Received: dim={dim}, "
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
                f"{path}, word {i + 1}: The {num_words} words come first, then the {num_labels} "
                f"labels, as the header says. Received: {word!r} of type {kind}"
            )
        if kind == WORD and (wanted is None or word in wanted):
            names.append(word)
            counts.append(count)
            places.append(i)
        position = end + 1 + ENTRY.size
    matrix, position = _matrix(path, data, position, (num_words + buckets, dim))
    _matrix(path, data, position, (num_words, dim))  # that it is there: the file is whole
    if wanted is None:
        word_rows, bucket_rows, ids = matrix[:num_words], matrix[num_words:], None
    else:
        ids = np.unique(ngram_rows_of(sorted(wanted), min_n, max_n, buckets)[0])
        word_rows, bucket_rows = matrix[np.array(places, "int64")], matrix[num_words + ids]
    return SubwordVectors(names, word_rows, bucket_rows, counts, min_n, max_n, buckets, ids)


def _matrix(path, data, position, shape):
    """An array on the file itself, and where it ends there."""
    if position + MATRIX.size > len(data):
        raise _cut_short(path, len(data))
    quantised, *found = MATRIX.unpack_from(data, position)
    if quantised:
        raise _unfit(path, "quantised")
    if tuple(found) != shape:
        raise ValueError(
            f"{path}: This file's matrices do not fit its settings. Received: {tuple(found)} "
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
        f"{path}: Only models of words that are neither supervised, quantised nor pruned can be "
        f"read. Received: a {kind} one"
    )


def as_set(words):
    """Wanted words as a set; None for all."""
    if isinstance(words, (str, bytes)):
        raise ValueError(f"`words` must be a list or set of words. Received: words={words!r}")
    return None if words is None else frozenset(words)


def decode(raw, where, errors):
    """A word of a file."""
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
            f"{where}: The word is not UTF-8; read it all the same with errors='replace'. "
            f"Received: {raw[:40]!r}"
        ) from None


def check_words(words):
    """That a file can hold these words and tell them apart."""
    seen = set()
    for word in words:
        # White space that ends a word in all formats, and the zero byte that does in `.bin`.
        if not word or re.search(r"[ \t\n\v\f\r\0]", word):
            raise ValueError(
                f"A word of a file must not be empty or hold white space. Received: {word!r}"
            )
        if word in seen:
            raise ValueError(f"Each word must be there once. Received: {word!r} twice")
        seen.add(word)
