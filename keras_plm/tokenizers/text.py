"""Text files, plain or compressed, whose errors name the line."""

import gzip
import io
import os
import zlib
from pathlib import Path


def open_text(path):
    """Opens a plain or `.gz` UTF-8 text file for reading line by line.

    Raises:
        ValueError: If the file does not exist or is a folder; on reading, if it is damaged, cut
            short or no UTF-8 text.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file {path}. Received: {os.fspath(path)!r}")
    return _TextFile(path)


def _open_bytes(path):
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


class _TextFile(io.TextIOWrapper):
    """A text file whose errors name it, and the line."""

    def __init__(self, path):
        super().__init__(_open_bytes(path), "utf-8")
        self._path, self._line = path, 0

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
        with _open_bytes(self._path) as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    return number, error
