"""Packed files of a suite: one file with all records, one with all contributions of examples."""

import functools
import json
import os
import re
import zipfile
from pathlib import Path

from filelock import FileLock

from keras_plm.files.json_files import parse_json
from keras_plm.files.opening import EXPANSION_FROM, MOST_EXPANSION, check_file, read_text
from keras_plm.files.writing import replacing

LOCKS = ".locks"  # folder in the results
RECORDS, EXAMPLES = "results.jsonl", "examples.zip"


class PackedFiles:
    """The two packed files of a folder: `results.jsonl` and `examples.zip`. Both may be missing.

    A line of the first is a record with its name, a member of the second an NPZ file.

    Args:
        path: The folder.
    """

    def __init__(self, path):
        self.path = Path(path)

    def lock(self):
        """Returns the lock for rewriting."""
        (self.path / LOCKS).mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / LOCKS / "pack.lock")

    def records(self):
        """Returns `{name: object}` of the records; a `ValueError` in place of a damaged one."""
        return _read_once(_read_records, self.path / RECORDS) or {}

    def whole_records(self):
        """Returns `records` for rewriting.

        Raises:
            ValueError: If one is damaged.
        """
        for found in self.records().values():
            if isinstance(found, ValueError):
                raise found
        return self.records()

    def members(self):
        """Returns the names of the files of examples."""
        archive = self._archive()
        return () if archive is None else archive.NameToInfo

    def content(self, member):
        """Reads a file of examples.

        Raises:
            ValueError: If it is damaged or expands too much.
        """
        archive, where = self._archive(), f"{self.path / EXAMPLES}, file {member!r}"
        about = archive.NameToInfo[member]
        if about.file_size > max(EXPANSION_FROM, MOST_EXPANSION * about.compress_size):
            raise ValueError(
                f"{where} must not expand to more than {MOST_EXPANSION} times its size. "
                f"Received: {about.compress_size:,} bytes that expand to {about.file_size:,}"
            )
        try:
            return archive.read(member)
        except Exception as error:  # zipfile raises many kinds of errors for damage
            raise ValueError(f"{where} is damaged: restore or remove it") from error

    def contents(self):
        """Returns `{name: content}` of the files of examples."""
        return {name: self.content(name) for name in self.members()}

    def rewrite(self, records, members):
        """Writes both files, the examples first; empty ones are removed."""
        order = functools.partial(sorted, key=lambda name: name.split("/"))
        if members:
            with replacing(self.path / EXAMPLES) as temporary:
                with zipfile.ZipFile(temporary, "w") as archive:
                    for name in order(members):  # with a fixed date: same content, same file
                        archive.writestr(zipfile.ZipInfo(name), members[name])
        if records:
            with replacing(self.path / RECORDS) as temporary:
                lines = (json.dumps({"file": name} | records[name]) for name in order(records))
                temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for content, name in ((members, EXAMPLES), (records, RECORDS)):
            if not content:
                (self.path / name).unlink(missing_ok=True)

    def _archive(self):
        return _read_once(_open_examples, self.path / EXAMPLES)


def _read_once(read, path):
    """Returns `read(path)`, cached until the file changes; `None` if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return read(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=64)
def _read_records(path, *state):
    """Returns `{name: object}`; a damaged or repeated object is replaced by a `ValueError`."""
    found, lines = {}, read_text(path).split("\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        try:
            record = parse_json(line, f"{path}:{number}", {"file": str}, nan=True)
            name = record.pop("file")
            if not is_inside(name):
                raise ValueError(f"{path}:{number}: `file` must name a file below the folder")
        except ValueError as error:
            named = re.search(r'"file": *"([^"]+)"', line)
            name = named[1] if named and is_inside(named[1]) else f"{RECORDS}:{number}"
            reason = str(error).removeprefix(f"{path}:{number}").lstrip(": ")
            record = ValueError(
                f"{path}:{number}: A line must be one result with its `file` name; {reason}. "
                f"Received: {line!r:.60}"
            )
        if name in found:
            record = ValueError(
                f"{path}:{number}: A result must have one line: keep the right one. "
                f"Received: a second line of {name!r}"
            )
        found[name] = record
    return found


@functools.lru_cache(maxsize=64)
def _open_examples(path, *state):
    file = check_file(path)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(
            f"{path} must be a whole ZIP file of examples: restore or remove it. Received: {error}"
        ) from error
    outside = next((name for name in archive.NameToInfo if not is_inside(name, ".npz")), None)
    if outside is not None:
        raise ValueError(
            f"{path} must hold .npz files below the folder only. Received: {outside!r:.80}"
        )
    return archive


def is_inside(name, suffix=".json"):
    """Returns whether a name is a path below the folder, like those of `result_name`."""
    parts = name.split("/")
    safe = not re.search(r"[\\\x00-\x1f]", name) and not re.match("[A-Za-z]:", name)
    return safe and name.endswith(suffix) and not {"", ".", ".."} & {*parts}
