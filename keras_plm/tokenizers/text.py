"""Text files, plain or compressed, whose errors name the line."""

import gzip
import io
import itertools
import os
import re
import zlib
from pathlib import Path

import numpy as np

from keras_plm.files.sequences import as_list


def open_text(path):
    """Opens a plain or `.gz` UTF-8 text file for reading line by line.

    A byte order mark is left out. Lines end with LF, CRLF or CR, and are given with LF.

    Raises:
        ValueError: If the file does not exist or is a folder; on reading, if it is damaged, cut
            short or no UTF-8 text.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file {path}. Received: {os.fspath(path)!r}")
    return _TextFile(path)


def numbered_lines(path):
    """Yields `(number, line without its end)` of a text file, numbered from 1."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\r\n")


def fields(line):
    r"""Fields of a line, separated by blanks or tabs.

    `str.split` also splits at U+00A0 and U+3000, which tokens may contain.

    >>> fields(" 8\u00a01/2  B-NUM\n")
    ['8\xa01/2', 'B-NUM']
    """
    return [field for field in re.split("[ \t\r\n]+", line) if field]


def _open_bytes(path):
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


class _TextFile(io.TextIOWrapper):
    """A text file whose errors name it, and the line."""

    def __init__(self, path):
        super().__init__(_open_bytes(path), "utf-8-sig")
        self._path, self._line = path, 0

    def read(self, size=-1):
        if size is None or size < 0:
            return "".join(self)  # line by line, so that errors name the line
        return super().read(size)

    def __next__(self):
        self._line += 1
        try:
            return super().__next__()
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            line = self._line
            if isinstance(error, UnicodeDecodeError):
                line, error = self._undecodable()
            raise ValueError(
                f"{self._path}:{line}: This is not a whole UTF-8 text file. Received: {error}"
            ) from error

    def _undecodable(self):
        """The first line that is no UTF-8, and why: text is decoded in blocks of many lines."""
        number = 1
        with _open_bytes(self._path) as file:
            for part in file:
                try:
                    part.decode()
                except UnicodeDecodeError as error:
                    part = part[: error.start].replace(b"\r\n", b"\n")
                    return number + len(re.findall(b"\r|\n", part)), error
                number += len(re.findall(b"\r\n|\r|\n", part))


def paths(files):
    return [files] if isinstance(files, (str, os.PathLike)) else as_list(files, "files", "paths")


def lines(paths):
    for path in paths:
        with open_text(path) as file:
            yield from file


def no_text(files):
    return ValueError(f"A vocabulary is learned from text. Received: files without any, {files}")


def frequent_characters(lines, normalizer, limit):
    """The most frequent characters of a text after normalising, in their code's order."""
    counts = np.zeros(0x110000, dtype=np.int64)
    lines = iter(lines)
    while batch := list(itertools.islice(lines, 10_000)):
        text = normalizer.normalize_str("".join(batch))
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
        counts += np.bincount(codes, minlength=len(counts))
    frequent = np.argsort(-counts, kind="stable")[: limit + 1]
    return [chr(i) for i in sorted(frequent[counts[frequent] > 0]) if not chr(i).isspace()][:limit]
