"""Text files, plain or compressed, with errors that name the line."""

import io
import os
import re
import zlib
from typing import TextIO

import numpy as np

from keras_plm.files.opening import open_bytes
from keras_plm.files.sequences import as_list

_CUT = re.compile(r"(?<=\S)[ \t]")  # before a run of spaces or tabs
PART = 1 << 16  # characters of a long line per read
LONGEST_WORD = 1 << 23  # characters without a space or tab


def open_text(path: str | os.PathLike) -> TextIO:
    """Opens a plain or `.gz` UTF-8 text file for reading line by line.

    It skips a byte order mark. Lines may end with LF, CRLF or CR; the result has LF.

    Args:
        path: The file.

    Returns:
        A text file, to close or to use in a `with` block.

    Raises:
        ValueError: If `path` is not a regular file. On reading: if the file is damaged, truncated
            or not UTF-8.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".txt") as file:
    ...     file.write(b"one\\r\\ntwo") and file.flush()
    ...     with open_text(file.name) as lines:
    ...         list(lines)
    ['one\\n', 'two']
    """
    return _TextFile(path)


def line_parts(path, most=PART):
    """Yields `(part, ends)` of a text file; lines of more than `most` characters are cut.

    A line is cut before a run of spaces or tabs: a token of every tokenizer begins there, and the
    parts have the tokens of the line. `ends` is True if the part ends its line.

    Raises:
        ValueError: As `open_text`, and if a word has more than 8,388,608 characters.
    """
    with open_text(path) as file:
        begun, file.line, read = "", 1, file.part
        while found := read(most):
            part = begun + found if begun else found
            if found[-1] == "\n" or len(found) < most:  # the end of the line, or of the file
                yield part, True
                begun = ""
                file.line += 1
                continue
            cut = 0
            for blank in _CUT.finditer(part, len(begun)):
                cut = blank.start()
            if len(part) - cut > LONGEST_WORD:
                raise ValueError(
                    f"{path}:{file.line}: a word must have at most {LONGEST_WORD:,} characters, "
                    f"spaces before it included. Received: one of {len(part) - cut:,} or more"
                )
            if cut:
                yield part[:cut], False
            begun = part[cut:]
        if begun:
            yield begun, True


def numbered_lines(path):
    """Yields `(number, line without its end)` of a text file, numbered from 1."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\r\n")


def fields(line):
    r"""Splits a line into fields at spaces or tabs.

    `str.split` also splits at U+00A0 and U+3000, but tokens may contain them.

    >>> fields(" 8\u00a01/2  B-NUM\n")
    ['8\xa01/2', 'B-NUM']
    """
    return [field for field in re.split("[ \t\r\n]+", line) if field]


_DAMAGE = (EOFError, OSError, zlib.error, UnicodeDecodeError)


class _TextFile(io.TextIOWrapper):
    """A text file with errors that name the file and the line."""

    def __init__(self, path):
        super().__init__(open_bytes(path), "utf-8-sig")
        self._path, self.line = path, 0

    def read(self, size=-1):
        if size is not None and size >= 0:
            return super().read(size)
        try:
            return super().read()
        except _DAMAGE as error:
            for _ in open_text(self._path):  # raises with the line
                pass
            raise self._explained(error) from error

    def __next__(self):
        self.line += 1
        try:
            return super().__next__()
        except _DAMAGE as error:
            raise self._explained(error) from error

    def part(self, size):
        """Reads the rest of a line, at most `size` characters; an empty string at the end."""
        try:
            return self.readline(size)
        except _DAMAGE as error:
            raise self._explained(error) from error

    def _explained(self, error):
        line = self.line
        if isinstance(error, UnicodeDecodeError):
            line, error = self._undecodable()
        return ValueError(
            f"{self._path}:{line}: This is not a whole UTF-8 text file. Received: {error}"
        )

    def _undecodable(self):
        """Returns the first line that is not UTF-8, and the error.

        Blocks of many lines are decoded together, and the error does not show the line.
        """
        number = 1
        with open_bytes(self._path) as file:
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
    """Yields the lines of text files, long ones in parts, see `line_parts`."""
    for path in paths:
        for part, _ in line_parts(path):
            yield part


def batches_of(lines, count=20_000, size=1 << 21, length=len):
    """Yields lists of lines; a list ends at `count` lines, or once it has `size` characters."""
    batch, characters = [], 0
    for line in lines:
        batch.append(line)
        characters += length(line)
        if len(batch) == count or characters >= size:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def no_text(files):
    return ValueError(f"A vocabulary needs text. Received: files without any, {files}")


def frequent_characters(lines, normalizer, limit):
    """Returns the most frequent characters of a normalised text, in the order of their codes."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for batch in batches_of(lines):
        text = normalizer.normalize_str("".join(batch))
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
        counts += np.bincount(codes, minlength=len(counts))
    frequent = np.argsort(-counts, kind="stable")[: limit + 1]
    return [chr(i) for i in sorted(frequent[counts[frequent] > 0]) if not chr(i).isspace()][:limit]
