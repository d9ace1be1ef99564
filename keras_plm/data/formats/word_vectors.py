"""Files of word vectors in the formats of word2vec, GloVe and fastText."""

import codecs
import contextlib
import gzip
import itertools
import os
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_plm.data.formats.fasttext import (
    MAGIC,
    as_set,
    check_words,
    decode,
    read_fasttext,
)
from keras_plm.files.arguments import check_one_of, check_whole
from keras_plm.files.opening import check_file, open_bytes
from keras_plm.files.sequences import as_list
from keras_plm.files.writing import replacing

FORMATS = ("word2vec", "binary", "glove")
HEAD, BLOCK = 1 << 16, 1 << 20  # bytes of the first read, to detect the format, and of others
LONGEST_LINE = 1 << 24  # bytes
WIDEST = LONGEST_LINE // 4  # numbers of a vector
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.I)
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f-\xff]")  # bytes that no number as text has


def read_vectors(
    path: str | os.PathLike,
    words: Iterable[str] | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    errors: str = "strict",
) -> tuple[list[str], np.ndarray]:
    r"""Reads word vectors from a file of any common format, plain or gzipped.

    The content decides the format: text with the header `count dim` (word2vec, fastText's `.vec`),
    text without header (GloVe), word2vec's binary, or fastText's `.bin`. In a `.bin`, the vector of
    a word is the mean of its own row and those of its n-grams. Memory grows with the rows kept.
    Text is read at 20 to 50 MB per second.

    - A row of text ends with D numbers, each after one space. The rest is the word. It may contain
      spaces, such as `. . .` in GloVe's 840B, but no number after a space. It may also be a single
      space. The header states D. Without a header, the first row decides D, with a word of one
      field. A byte order mark is skipped.
    - In word2vec's binary, words may contain spaces if each row ends with a newline. word2vec
      writes it; gensim does not.
    - A first line of two whole numbers is a header.
    - The first row of a repeated word counts; one warning gives the number of repeated rows.
    - The length of every row read is checked, and the numbers of every row kept.
    - The number of rows in the header is not checked if reading stops early: at `limit`, or when
      all `words` are found.

    Args:
        path: The file.
        words: Words to keep, in the order of the file; by default all.
        limit: Number of rows to read from the start of the file.
        dtype: Type of the numbers, a float type of NumPy.
        errors: Treatment of words that are not UTF-8, as in `bytes.decode`: `"strict"`,
            `"replace"` or `"ignore"`.

    Returns:
        `(words, vectors)`: a list and an array (N, D).

    Raises:
        ValueError: If the file is missing, empty, damaged or truncated, or its header is wrong. If
            a row does not have D numbers, a field is not a finite number, or a word is not UTF-8.
            The message names the line.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "glove.txt")
    ...     size = path.write_bytes(b"the 0.5 1\n. . . 2 3\nof -1 1e-1\n")
    ...     words, vectors = read_vectors(path, words={"of", ". . ."})
    >>> words, vectors.round(6).tolist()
    (['. . .', 'of'], [[2.0, 3.0], [-1.0, 0.10000000149011612]])
    """
    path = Path(path)
    check_file(path)
    wanted = as_set(words)
    if limit is not None:
        check_whole(limit, "limit", least=1)
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"`dtype` must be a type of floats. Received: dtype={dtype!r}")
    with contextlib.closing(_blocks(path)) as blocks:
        head = next(blocks, b"")
        while b"\n" not in head and (block := next(blocks, b"")):
            head += block
            _check_line(path, head)
        if not head:
            raise ValueError(f"{path}: This file is empty. Received: 0 bytes")
        if head.startswith(MAGIC):
            return _read_bin(path, wanted, limit, dtype, errors)
        if head.startswith(codecs.BOM_UTF8) and head[3:4] != b" ":  # before a space it is a word
            head = head[3:]
        first, _, rest = head.partition(b"\n")
        header = first.split()
        if len(header) == 2 and all(field.isdigit() for field in header):
            # More digits than a count needs; `int` refuses thousands of them.
            count, dim = (int(field) if len(field) < 19 else 0 for field in header)
            if not 0 < dim <= WIDEST or len(header[0]) > 18:
                raise ValueError(
                    f"{path}:1: A header must be the number of rows and their width, from 1 to "
                    f"{WIDEST:,}. Received: {first[:60]!r}"
                )
            read = _read_binary if _is_binary(rest, dim) else _read_text
        else:
            count, dim, rest, read = None, _width(path, first), head, _read_text
        kept = _Kept(path, wanted, dim, dtype)
        rows = read(path, itertools.chain([rest], blocks), count, kept, limit, errors)
    if None not in (count, rows) and rows != count:
        raise ValueError(
            f"{path}: The header must give the number of rows and their width. Received: "
            f"header {count} x {dim}, {rows} rows"
        )
    return kept.result()


class _Kept:
    """The rows kept, in a growing array."""

    def __init__(self, path, wanted, dim, dtype):
        self.path, self.wanted, self.dim = path, wanted, dim
        self.seen = {}  # word -> None, in the file's order
        self.duplicates, self.size = 0, 0
        self.array = np.empty((0, dim), dtype)

    @property
    def complete(self):
        return self.wanted is not None and len(self.seen) == len(self.wanted)

    def wants(self, word):
        """Whether to keep the row of this word; the caller must then add it."""
        if self.wanted is not None and word not in self.wanted:
            return False
        if word in self.seen:
            self.duplicates += 1
            return False
        self.seen[word] = None
        return True

    def add(self, numbers, lines=None):
        """Adds rows; `lines` are their line numbers in a text file."""
        end = self.size + len(numbers)
        if end > len(self.array):
            # In place, if the system can move pages: a list of blocks would double peak memory.
            rows = max(end, len(self.array) * 5 // 4)
            if self.wanted is not None:
                rows = min(rows, len(self.wanted))
            self.array.resize((rows, self.dim), refcheck=False)
        with np.errstate(over="ignore"):  # the next check names the word
            self.array[self.size : end] = numbers
        finite = np.isfinite(self.array[self.size : end]).all(1)
        if not finite.all():
            row = int(finite.argmin())
            word, place = list(self.seen)[self.size + row], f":{lines[row]}" if lines else ""
            value = numbers[row][~np.isfinite(self.array[self.size + row])][0]
            raise ValueError(
                f"{self.path}{place}: Vectors must be finite{_in(self.array.dtype)}. "
                f"Received: {value:g} in the vector of {word!r}"
            )
        self.size = end

    def result(self):
        if self.duplicates:
            warnings.warn(
                f"{self.path}: {self.duplicates} rows repeat earlier words and were left out",
                stacklevel=3,
            )
        self.array.resize((self.size, self.dim), refcheck=False)
        return list(self.seen), self.array


def _in(dtype):
    return f" as {dtype}" if dtype.itemsize < 8 else ""


def _blocks(path):
    """Yields the bytes of a file, unpacked."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with open_bytes(path, packed) as file:
        try:
            size = HEAD
            while block := file.read(size):
                yield block
                size = BLOCK
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(
                f"{path}: This file is damaged or cut short. Received: {error}"
            ) from error


def _is_binary(rest, dim):
    """Whether raw floats follow a header; otherwise it is text, possibly malformed."""
    line = rest.partition(b"\n")[0].rstrip()
    for fields in (line.split(b" "), line.rsplit(b" ", dim)):  # the word may hold spaces
        if len(fields) > 1 and all(NUMBER.fullmatch(field) for field in fields[1:]):
            return False
    start = rest.find(b" ") + 1
    return CONTROL.search(rest, start, start + 4 * dim) is not None


def _width(path, line):
    """Returns D of a file without a header."""
    fields = line.rstrip().split(b" ")
    if len(fields) < 2:
        raise ValueError(
            f"{path}:1: The first line must be a header `count dim`, or a word and its numbers. "
            f"Received: {line[:40]!r}"
        )
    _numbers([(1, b" ".join(fields[1:]))], len(fields) - 1, path)
    return len(fields) - 1


def _read_text(path, blocks, count, kept, limit, errors):
    """Keeps rows of text; returns the number of rows, or `None` if it did not read them all."""
    dim, header = kept.dim, int(count is not None)
    line_number = header
    for lines in _lines(path, blocks):
        if limit is not None:
            lines = lines[: limit + header - line_number]
        rows = []  # (line, its numbers) of those to keep
        for line in lines:
            if kept.complete:
                break
            line_number += 1
            line = line.rstrip()  # the original programs leave a space at the end
            word, _, numbers = line.partition(b" ")
            if not word or line.count(b" ") != dim:
                word, numbers = _spaced_word(line, dim, f"{path}:{line_number}", count)
            if kept.wants(decode(word, f"{path}:{line_number}", errors)):
                rows.append((line_number, numbers))
        kept.add(_numbers(rows, dim, path), [number for number, _ in rows])
        if kept.complete or line_number - header == limit:
            return None
    return line_number - header


def _lines(path, blocks):
    """Yields lists of whole lines, one list per block."""
    rest = b""
    for block in blocks:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        _check_line(path, rest)
        yield lines
    if rest:
        yield [rest]


def _check_line(path, line):
    if len(line) > LONGEST_LINE:
        raise ValueError(
            f"{path}: a line must have at most {LONGEST_LINE:,} bytes. Received: a longer one, "
            f"which begins with {line[:40]!r}"
        )


def _spaced_word(line, dim, where, count):
    """Splits a row of more fields than usual: the last `dim` are the numbers."""
    word, *numbers = line.rsplit(b" ", dim)
    if len(numbers) == dim:
        last = word.split(b" ")[-1]
        if not NUMBER.fullmatch(last) or last.isalpha():  # "nan" and "inf" are also words
            return word.strip(b" ") or word, b" ".join(numbers)
    like = "the first row has" if count is None else "the header says"
    raise ValueError(
        f"{where}: A row must hold a word and {dim} numbers, as {like}. "
        f"Received: {line.count(b' ') + bool(line)} fields"
    )


def _numbers(rows, dim, path):
    """Returns the numbers of `(line, text)` rows, (R, D)."""
    text = b" ".join([row for _, row in rows])
    # NumPy reads two spaces as one. Without double spaces, each field that it can read yields at
    # least one number: if the total is right, each row is right.
    if b"  " not in text:
        with contextlib.suppress(ValueError):
            numbers = np.fromstring(text, sep=" ")
            if numbers.size == len(rows) * dim:
                return numbers.reshape(-1, dim)
    values = []
    for line_number, row in rows:
        fields = row.split(b" ")
        wrong = [field for field in fields if not NUMBER.fullmatch(field)]
        if wrong:
            raise ValueError(
                f"{path}:{line_number}: The {dim} fields after the word must be numbers with one "
                f"space before each. Received: {wrong[0][:40]!r}"
            )
        values.append([float(field) for field in fields])
    return np.array(values).reshape(-1, dim)


def _read_binary(path, blocks, count, kept, limit, errors):
    """Keeps rows of word2vec's binary; returns their number, or `None` if it did not read all."""
    width = 4 * kept.dim
    data, position, row, newlines = b"", 0, 0, None
    for block in itertools.chain(blocks, [b""]):
        data, position = data[position:] + block, 0
        blocks, words = [], []
        while row != limit and not kept.complete:
            where = f"{path}, row {row + 1} of {count} x {kept.dim}"
            space = _space_of_row(data, position, width, newlines, not block, where)
            if space < 0:
                break
            end = space + 1 + width
            if newlines is None:
                newlines = data[end : end + 1] == b"\n"
            row += 1
            word = decode(data[position:space].lstrip(b"\n"), where, errors)
            if kept.wants(word):
                blocks.append(data[space + 1 : end])
                words.append((row, word))
            position = end
        numbers = np.frombuffer(b"".join(blocks), "<f4").reshape(-1, kept.dim)
        if not newlines:
            _check_first_numbers(path, words, numbers)
        kept.add(numbers)
        if row == limit or kept.complete:
            return None
        if len(data) - position > LONGEST_LINE + width:
            raise ValueError(
                f"{path}, row {row + 1} of {count} x {kept.dim}: a word must have at most "
                f"{LONGEST_LINE:,} bytes. Received: a longer one, which begins with "
                f"{data[position : position + 40]!r}"
            )
    left = data[position:].strip(b"\n")
    if left:
        raise ValueError(
            f"{path}: The header must give the number of rows and their width. Received: "
            f"header {count} x {kept.dim}, {row} rows and {len(left)} more bytes"
        )
    return row


def _space_of_row(data, position, width, newlines, whole, where):
    """Returns the position of the space between a word and its numbers; -1 if not yet read.

    If rows end with a newline, a word may hold spaces. The first space with a newline after its
    numbers then counts.

    Args:
        data, position: Bytes of word2vec's binary, and the position where the row begins.
        width: Number of bytes of its numbers.
        newlines: Whether rows end with a newline; `None` for the first row.
        whole: Whether `data` goes to the end of the file.
        where: Place of the row, for errors.
    """
    first = space = data.find(b" ", position)
    if first < 0 or first + 1 + width + (not whole) > len(data):
        return -1
    if newlines is False:
        return first
    while space >= 0 and (space == first or _is_text(data[position:space])):
        end = space + 1 + width
        if data[end : end + 1] == b"\n" or (newlines and whole and end == len(data)):
            return space
        if end >= len(data) and not whole:
            return -1
        space = data.find(b" ", space + 1)
    if newlines:
        raise ValueError(
            f"{where}: A row must be a word, a space, {width // 4} numbers and, like the first "
            f"row, a newline. Received: {data[position : position + 40]!r}..."
        )
    return first


def _is_text(raw):
    """Whether bytes are a word that may hold spaces."""
    try:
        return raw.lstrip(b"\n").decode().isprintable()
    except UnicodeDecodeError:
        return False


def _check_first_numbers(path, words, numbers):
    """Raises if the first number of a row is probably the rest of a word with a space."""
    sizes = np.abs(numbers[:, 0])
    odd = ((sizes > 1e10) & np.isfinite(sizes)) | ((sizes > 0) & (sizes < 1e-10))
    for i in np.flatnonzero(odd):
        (row, word), size, raw = words[i], sizes[i], numbers[i, 0].tobytes()
        if size > 1 or (raw.isascii() and raw.decode().isprintable()):
            raise ValueError(
                f"{path}, row {row}: Words of word2vec's binary may hold spaces only if each row "
                "ends with a newline: write the file as text, or replace the spaces. "
                f"Received: {size:.2g} after the word {word!r}, from the bytes {raw!r}"
            )


def _read_bin(path, wanted, limit, dtype, errors):
    """Reads the word vectors of fastText's `.bin`."""
    subwords = read_fasttext(path, wanted if limit is None else None, errors)
    kept = _Kept(path, wanted, subwords.dim, dtype)
    words = [word for word in subwords.words[:limit] if kept.wants(word)]
    step = max(BLOCK // (4 * subwords.dim), 1)
    for start in range(0, len(words), step):
        kept.add(subwords.vectors(words[start : start + step]))
    return kept.result()


def write_vectors(
    path: str | os.PathLike,
    words: Sequence[str],
    vectors: Sequence[Any] | np.ndarray,
    format: str = "word2vec",
) -> None:
    """Writes word vectors as float32, without loss, for `read_vectors` and other programs.

    The write is atomic. A name that ends in `.gz` gives a gzipped file.

    Args:
        path: The file, such as `vectors.txt.gz`; an existing file is replaced.
        words: N words.
        vectors: (N, D) vectors, an array or memory-mapped.
        format: `"word2vec"`: text with a header, also fastText's `.vec`; `"binary"`: word2vec's,
            the smallest and fastest; `"glove"`: text without a header.

    Raises:
        ValueError: If the format is unknown, or the numbers of words and vectors differ. If a word
            is empty, occurs twice or contains white space, or a value is not finite as float32.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_vectors(f"{folder}/tiny.vec", ["a", "b"], [[1, 0.25], [-3, 4]])
    ...     Path(folder, "tiny.vec").read_text()
    '2 2\\na 1 0.25\\nb -3 4\\n'
    """
    path, words = Path(path), as_list(words, "words", "words")
    vectors = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
    check_one_of(format, "format", FORMATS)
    if vectors.ndim != 2 or len(vectors) != len(words) or not vectors.size:
        raise ValueError(
            f"`vectors` must be (N, D), a row per word and at least one. "
            f"Received: {len(words)} words, shape {vectors.shape}"
        )
    check_words(words)
    dim = vectors.shape[1]
    step = max(BLOCK // (4 * dim), 1)
    # 9 significant digits distinguish any two float32.
    row_format = "%s " + " ".join(["%.9g"] * dim) + "\n"
    with replacing(path) as temporary, contextlib.ExitStack() as stack:
        file = stack.enter_context(open(temporary, "wb"))
        if path.suffix == ".gz":  # without name and time: equal vectors give equal files
            file = stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        if format != "glove":
            file.write(b"%d %d\n" % (len(words), dim))
        for start in range(0, len(words), step):
            names = words[start : start + step]
            with np.errstate(over="ignore"):
                block = vectors[start : start + step].astype("<f4")
            finite = np.isfinite(block).all(1)
            if not finite.all():
                raise ValueError(
                    f"Vectors must be finite as float32. Received: another number in the vector of "
                    f"{names[int(finite.argmin())]!r}"
                )
            if format == "binary":
                rows = zip(names, block, strict=True)
                file.write(b"".join([b"%s %s\n" % (n.encode(), r.tobytes()) for n, r in rows]))
            else:
                rows = zip(names, block.tolist(), strict=True)
                file.write("".join([row_format % (name, *row) for name, row in rows]).encode())
