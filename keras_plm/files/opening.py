"""Opening of regular files for reading, with a bound on the expansion of compressed files."""

import difflib
import errno
import gzip
import io
import itertools
import os
import stat
from pathlib import Path

# Text compresses to a fifth, tables to a twentieth.
MOST_EXPANSION, EXPANSION_FROM = 50, 1 << 23

MOST_ENTRIES = 1_000  # of a folder that is searched for a similar name
ALIKE = 0.8  # least ratio of difflib for a suggested file or folder

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def similar(path, among=(), folders=False):
    """Returns a sentence that suggests a similar name for a missing path; "" if there is none.

    Args:
        path: A `pathlib.Path`.
        among: Other names to suggest.
        folders: Whether to suggest folders next to the path instead of files.
    """
    try:
        entries = list(itertools.islice(path.parent.iterdir(), MOST_ENTRIES))
        names = sorted(e.name for e in entries if (e.is_dir() if folders else e.is_file()))
    except (OSError, ValueError):
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=ALIKE)
    close = [str(path.parent / name) for name in near]
    close = close or difflib.get_close_matches(str(path), among, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def plain_name(path):
    """Returns the name of a file in lower case, without `.gz`; its ending names the format.

    >>> plain_name("data/Films.CSV.gz")
    'films.csv'
    """
    return Path(path).name.lower().removesuffix(".gz")


def check_file(path, description=""):
    """Raises unless `path` is a regular file, or a link to one.

    Reading from a named pipe or a device can wait forever.

    Args:
        path: The path.
        description: Description of the file for the error, such as `"written by keras_plm.save"`.

    Returns:
        The path as a `pathlib.Path`.

    Raises:
        ValueError: If the file is missing or not a regular file.
    """
    path = Path(path)
    what = f"{path} {description}".rstrip()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"No file {what}.{similar(path)} Received: {os.fspath(path)!r}") from error
    except OSError as error:  # a loop of links, or a folder without permission
        reason = "a loop of links" if error.errno == errno.ELOOP else error.strerror
        raise ValueError(f"{what} could not be opened. Received: {reason}") from error
    except ValueError as error:  # a null character
        raise ValueError(f"No file {path!r:.200}. Received: an impossible path") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise ValueError(f"{what} must be a regular file. Received: {kind}")
    return path


def open_bytes(path, packed=None):
    """Opens a regular file for reading bytes; a gzip file is unpacked.

    Args:
        path: The path.
        packed: Whether it is a gzip file; by default True if its name ends in `.gz` or `.GZ`.

    Raises:
        ValueError: If it is not a regular file. On reading, if a gzip file expands to more than 50
            times its size.
        OSError: If there is no permission to read it.
    """
    path = check_file(path)
    if not (path.suffix.lower() == ".gz" if packed is None else packed):
        return open(path, "rb")
    return io.BufferedReader(_Unpacked(path), 1 << 17)


def read_bytes(path, most=1 << 30, description=""):
    """Reads a regular file of at most `most` bytes.

    Raises:
        ValueError: If it is not a regular file, or larger.
        OSError: If there is no permission to read it.
    """
    path = check_file(path, description)
    size = path.stat().st_size
    if size > most:
        raise ValueError(
            f"{path} must have at most {most:,} bytes. Received: a file of {size:,} bytes"
        )
    return path.read_bytes()


def read_text(path, most=1 << 30, description=""):
    """Reads a UTF-8 text file of at most `most` bytes, without a byte order mark.

    Raises:
        ValueError: If it is not a regular file, larger, or not UTF-8, with the line.
        OSError: If there is no permission to read it.
    """
    return as_text(read_bytes(path, most, description), path)


def as_text(content, path):
    """Decodes bytes in UTF-8, without a byte order mark; `path` is for errors."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}:{line}: the file must be UTF-8 text. Received: {error.reason} at byte "
            f"{error.start}"
        ) from error


class _Unpacked(io.RawIOBase):
    """The bytes of a gzip file; reading raises if they are too many for its size."""

    def __init__(self, path):
        super().__init__()
        self._path, self._given = path, 0
        self._most = max(EXPANSION_FROM, MOST_EXPANSION * path.stat().st_size)
        self._file = gzip.open(path)

    def readable(self):
        return True

    def readinto(self, buffer):
        count = self._file.readinto(buffer)
        self._given += count
        if self._given > self._most:
            raise ValueError(
                f"{self._path} must not expand to more than {MOST_EXPANSION} times its size: "
                f"unpack it first if you trust it. Received: more than {self._most:,} bytes"
            )
        return count

    def close(self):
        self._file.close()
        super().close()
