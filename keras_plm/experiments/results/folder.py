"""Folder of a suite's records, loose or packed.

A run writes loose files. `ResultFolder.pack` gathers those of a suite in two files. Readers accept
both forms; a loose file takes precedence over the packed one of its name.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import json
import os
import re
import traceback
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from keras_plm.experiments.environment import environment
from keras_plm.experiments.results.record import Record
from keras_plm.files import json_files
from keras_plm.files.disk_space import try_to_write
from keras_plm.files.json_files import parse_json, shown
from keras_plm.files.locks import one_writer
from keras_plm.files.numpy_files import NUMBERS, read_npz
from keras_plm.files.opening import (
    EXPANSION_FROM,
    MOST_EXPANSION,
    check_file,
    read_bytes,
    read_text,
)
from keras_plm.files.writing import replacing, write_json

LOCKS = ".locks"  # folder in the results
RECORDS, EXAMPLES = "results.jsonl", "examples.zip"  # the packed files of a suite
SEEDS = "*.seed*.json"  # the names of runs


class NoResult(ValueError):
    """Error for missing results: nothing was run, or the results are in another folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         read_results(folder)
    ...     except NoResult as error:
    ...         str(error).startswith("No result file")
    True
    """


class ResultFolder:
    """The result files of a suite, loose or packed.

    A name is a path in the folder, from `result_name`. Next to the record of a run, an NPZ file of
    the same stem holds the contribution of each example to its scores. `pack` moves the JSON files
    of tasks to lines of `results.jsonl`, and the NPZ files to members of `examples.zip`. A loose
    file takes precedence over a packed one.

    Args:
        path: The folder; it may be missing.

    >>> import tempfile
    >>> record = Record("films", "bert", "fine_tune", "fine_tune", {"epochs": 1}, score=0.9)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = ResultFolder(path)
    ...     folder.write("films/bert.fine_tune.seed0.json", record)
    ...     folder.names(), folder.record("films/bert.fine_tune.seed0.json").score
    (['films/bert.fine_tune.seed0.json'], 0.9)
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    # ---- reading

    def names(self, pattern: str = "*") -> list[str]:
        """Names of all JSON files that match a pattern, in the order of their paths.

        They include damaged lines of `results.jsonl` without a name, such as "results.jsonl:7".
        """
        start = len(str(self.path)) + 1
        loose = {
            os.path.join(folder, name)[start:].replace(os.sep, "/")
            for folder, _, names in os.walk(self.path)
            for name in names
            if name.endswith(".json")
        }
        found = set(fnmatch.filter(loose | self._records().keys(), pattern))
        found |= {name for name in self._records() if name.startswith(f"{RECORDS}:")}
        return sorted(found, key=lambda name: name.split("/"))

    def file(self, name: str) -> Path:
        """Path of the loose file of a name, which may be missing."""
        return self.path / name

    def where(self, name: str) -> str:
        """Place of a result, for messages."""
        if self.file(name).is_file() or name not in self._records():
            return str(self.file(name))
        return f"{self.path / RECORDS}, file {name!r},"

    def __contains__(self, name):
        return self.file(name).is_file() or name in self._records()

    def json(self, name: str) -> Any:
        """Reads the object of a JSON file.

        Raises:
            ValueError: If it is damaged or missing.
        """
        try:
            return read_json(self.file(name))
        except ValueError:
            # Another process may have packed it just now.
            if self.file(name).is_file() or name not in self._records():
                raise
        found = self._records()[name]
        if isinstance(found, ValueError):
            raise ValueError(str(found))
        return dict(found)

    def record(self, name: str) -> Record:
        """Reads the `Record` of a run.

        Raises:
            ValueError: If it is damaged, or not a record.
        """
        return self._record(name, self.json(name))

    def done(self, name: str, hash: str | None) -> Record | None:
        """Reads the `Record` of a run; `None` if there is none with this hash."""
        if name not in self:
            return None
        found = self.json(name)
        same = isinstance(found, dict) and found.get("hash") == hash
        return self._record(name, found) if same else None

    def _record(self, name, found):
        try:
            where = self.where(name).rstrip(",")
            return dataclasses.replace(Record.from_json(found), where=where)
        except ValueError as error:
            raise ValueError(f"{self.where(name)}: {error}") from error

    def has_examples(self, name: str) -> bool:
        """Whether there is a file with the contributions of examples to the scores of a result."""
        member = _of_examples(name)
        return self.file(member).is_file() or member in self._members()

    def examples(self, name: str, hash: str | None) -> dict[str, tuple[str, np.ndarray]] | None:
        """Reads the contribution of each example to the scores of a result.

        Args:
            name: Name of the result.
            hash: Hash of the result.

        Returns:
            `{metric: (kind, array (N, k))}`, see `statistics.summands`; `None` if there is no file
            with this hash.

        Raises:
            ValueError: If the file is damaged.
        """
        if not self.has_examples(name):
            return None
        member = _of_examples(name)
        loose = self.file(member)
        where = str(loose) if loose.is_file() else f"{self.path / EXAMPLES}, file {member!r}"
        found = read_npz(self._content(member), where, NUMBERS + "U")
        own = found.pop("hash", None)
        if own is None or own.dtype.kind != "U" or any(a.dtype.kind == "U" for a in found.values()):
            raise ValueError(
                f"{where} must hold a hash and numbers: remove it. "
                f"Received: the arrays {', '.join(found)!r:.80}"
            )
        if str(own) != hash:
            return None
        for key, array in found.items():
            if array.ndim != 2 or not np.isfinite(array).all():
                raise ValueError(
                    f"{where} must hold finite numbers, a row for each example: remove it. "
                    f"Received: others in {key!r:.80}, of shape {array.shape}"
                )
        split = {key: key.rpartition(".")[::2] for key in found}
        return {metric: (kind, found[key]) for key, (metric, kind) in split.items()}

    # ---- writing

    def write(
        self, name: str, record: Record, parts: Mapping[str, tuple[str, np.ndarray]] | None = None
    ) -> None:
        """Writes a `Record` to a loose file, and archives one of other settings or data.

        Args:
            name: Name of the result.
            record: A `Record`.
            parts: Contributions of examples to its scores, as from `examples`.
        """
        with self.changing():
            if self.done(name, record.hash) is None:
                self.archive(name)
            if parts is not None:
                self.write_examples(name, record.hash, parts)
            write_json(self.file(name), record.to_json())

    def changing(self) -> AbstractContextManager[Any]:
        """Lock for archiving and writing: a run has results of one version of its settings.

        Other processes wait for it. It is reentrant in a thread.
        """
        return one_writer(self.path / LOCKS / "write", wait=True)

    @contextlib.contextmanager
    def one_writer(
        self, name: str, say: Callable[[str], Any] | None = None
    ) -> AbstractContextManager[Any]:
        """Lock of a result; waits for another process that computes it.

        Args:
            name: Name of the result.
            say: Function to call with a line of text before waiting.

        Raises:
            OSError: If the folder cannot be written.
        """
        lock = self.path / LOCKS / name.replace("/", "_")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(one_writer(lock))
            except ValueError as error:
                if say is not None:
                    say(f"waiting for another process that computes this result: {error}")
                stack.enter_context(one_writer(lock, wait=True))
            yield

    def try_to_write(self, name: str) -> None:
        """Raises an OSError unless the files of a result can be written."""
        try_to_write(self.file(name).parent)

    def write_examples(
        self, name: str, hash: str | None, parts: Mapping[str, tuple[str, np.ndarray]]
    ) -> None:
        """Writes the contributions of examples to the scores of a result with this hash."""
        arrays = {f"{metric}.{kind}": array for metric, (kind, array) in parts.items()}
        with replacing(self.file(_of_examples(name)), ".npz") as temporary:
            np.savez_compressed(temporary, hash=np.array(hash), **arrays)

    def archive(self, name: str) -> Path | None:
        """Renames a result by a hash of its content; returns the path, or `None`."""
        self.unpack([name])  # otherwise a packed record would replace the loose one
        for path in (self.file(_of_examples(name)), self.file(name)):
            kept = archive(path) if path.is_file() else None
        return kept

    def pack(self) -> tuple[int, int]:
        """Moves the loose files of tasks to the packed files.

        It removes loose files after writing and checking the packed files. A stopped call can be
        repeated.

        Returns:
            The numbers of records and of files of examples.

        Raises:
            ValueError: If a loose file or a packed record is damaged. Nothing is packed then.
        """
        if not any(self.path.glob("*/*.*")):
            return 0, 0
        with self._lock():
            loose = [sorted(self.path.glob(f"*/*.{kind}")) for kind in ("json", "npz")]
            loose = [[path for path in paths if path.parent.name != LOCKS] for paths in loose]
            texts = [
                {path.relative_to(self.path).as_posix(): read_bytes(path) for path in paths}
                for paths in loose
            ]
            new = {name: read_json(self.file(name)) for name in texts[0]}
            for name, found in new.items():
                if not isinstance(found, dict) or "file" in found:
                    raise ValueError(
                        f"{self.file(name)}: A result must be an object without the key `file`. "
                        f"Received: {shown(found)}"
                    )
            if not any(texts):
                return 0, 0
            records = self._whole_records() | new
            members = self._contents() | texts[1]
            self._rewrite(records, members)
            if self._records() != records or self._contents() != members:
                raise OSError(
                    "Packed files must read back unchanged. Received: different content below "
                    f"{self.path}"
                )
            for content in texts:
                for name, text in content.items():
                    if self.file(name).read_bytes() == text:  # otherwise a run has rewritten it
                        self.file(name).unlink()
        for folder in {path.parent for paths in loose for path in paths}:
            if not any(folder.iterdir()):
                folder.rmdir()
        return len(loose[0]), len(loose[1])

    def copy(self, names: Iterable[str], path: str | os.PathLike) -> None:
        """Copies results with their examples to loose files of another folder."""
        other = ResultFolder(path)
        for name in names:
            write_json(other.file(name), self.json(name))
            if self.has_examples(name):
                member = _of_examples(name)
                with replacing(other.file(member)) as temporary:
                    temporary.write_bytes(self._content(member))

    def unpack(self, names: Iterable[str] | None = None) -> int:
        """Moves packed files back to loose files, and returns the number of records.

        Args:
            names: Names of results; by default all. Loose files stay unchanged.
        """
        if names is not None and not self._records().keys() & set(names):
            return 0
        with self._lock():
            records, members = self._whole_records(), self._contents()
            chosen = [name for name in records if names is None or name in names]
            of_chosen = {_of_examples(name) for name in chosen} if names is not None else members
            for member in [name for name in members if name in of_chosen]:
                if not self.file(member).is_file():
                    with replacing(self.file(member)) as temporary:
                        temporary.write_bytes(members[member])
            for name in chosen:
                if not self.file(name).is_file():
                    write_json(self.file(name), records[name])
            self._rewrite(
                {name: found for name, found in records.items() if name not in chosen},
                {name: content for name, content in members.items() if name not in of_chosen},
            )
        return len(chosen)

    def _rewrite(self, records, members):
        """Writes both packed files, the examples first; empty ones are removed."""
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

    def _lock(self):
        (self.path / LOCKS).mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / LOCKS / "pack.lock")

    def _records(self):
        """Returns `{name: object}` of the packed records."""
        return _read_once(_packed_records, self.path / RECORDS) or {}

    def _whole_records(self):
        """Returns `_records` for rewriting.

        Raises:
            ValueError: If one is damaged.
        """
        for found in self._records().values():
            if isinstance(found, ValueError):
                raise found
        return self._records()

    def _archive(self):
        """Returns the packed examples as a `ZipFile`, or `None`."""
        return _read_once(_opened, self.path / EXAMPLES)

    def _members(self):
        archive = self._archive()
        return () if archive is None else archive.NameToInfo

    def _content(self, member):
        loose = self.file(member)
        try:
            return read_bytes(loose)
        except (ValueError, FileNotFoundError):
            if loose.is_file() or member not in self._members():
                raise
            return self._unzipped(member)  # perhaps packed just now

    def _unzipped(self, member):
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

    def _contents(self):
        """Returns `{name: content}` of the packed examples."""
        return {name: self._unzipped(name) for name in self._members()}


def _of_examples(name):
    return name.removesuffix(".json") + ".npz"


def _read_once(read, path):
    """Returns `read(path)`, cached until the file changes; `None` if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return read(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=64)
def _packed_records(path, *state):
    """Returns `{name: object}`; a damaged or repeated object is replaced by a `ValueError`."""
    found, lines = {}, read_text(path).split("\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        try:
            record = parse_json(line, f"{path}:{number}", {"file": str}, nan=True)
            name = record.pop("file")
            if not _is_inside(name):
                raise ValueError(f"{path}:{number}: `file` must name a file below the folder")
        except ValueError as error:
            named = re.search(r'"file": *"([^"]+)"', line)
            name = named[1] if named and _is_inside(named[1]) else f"{RECORDS}:{number}"
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
def _opened(path, *state):
    file = check_file(path)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(
            f"{path} must be a whole ZIP file of examples: restore or remove it. Received: {error}"
        ) from error
    outside = next((name for name in archive.NameToInfo if not _is_inside(name, ".npz")), None)
    if outside is not None:
        raise ValueError(
            f"{path} must hold .npz files below the folder only. Received: {outside!r:.80}"
        )
    return archive


def _is_inside(name, suffix=".json"):
    """Returns whether a name is a path below the folder, like those of `result_name`."""
    parts = name.split("/")
    safe = not re.search(r"[\\\x00-\x1f]", name) and not re.match("[A-Za-z]:", name)
    return safe and name.endswith(suffix) and not {"", ".", ".."} & {*parts}


def folders_below(root: str | os.PathLike) -> list[ResultFolder]:
    """Finds the `ResultFolder`s of all suites below a folder.

    Args:
        root: The folder.

    Returns:
        A list of `ResultFolder`, in the order of their paths.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     record = Record("films", "bert", "fine_tune", "fine_tune", score=0.9)
    ...     ResultFolder(f"{root}/small").write("films/bert.fine_tune.seed0.json", record)
    ...     [folder.path.name for folder in folders_below(root)]
    ['small']
    """
    root = Path(root)
    found = {path.parent for path in root.rglob(RECORDS)}
    found |= {path.parents[1] for path in root.glob(f"**/*/{SEEDS}")}
    return [ResultFolder(path) for path in sorted(found)]


def read_results(folder: str | os.PathLike | ResultFolder, task: str | None = None) -> list[Record]:
    """Reads all `Record`s of runs in a folder, or those of one task.

    Args:
        folder: The folder, or a `ResultFolder`.
        task: Name of the task; by default all tasks.

    Returns:
        A list of `Record`, in the order of their names.

    Raises:
        ValueError: If there is no record, one is damaged or of another kind, or two have the same
            run and seed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = Record("films", "bert", "fine_tune", "fine_tune", score=0.9)
    ...     ResultFolder(folder).write("films/bert.fine_tune.seed0.json", record)
    ...     [record.score for record in read_results(folder, task="films")]
    [0.9]
    """
    kept, results, names = ResultFolder(folder), [], {}
    for name in kept.names(SEEDS if task is None else f"{task}/{SEEDS}"):
        result = kept.record(name)
        identity = ("task", "encoder", "method", "run", "name", "settings", "seed")
        key = json.dumps([result.get(part) for part in identity], sort_keys=True)
        if key in names:
            raise ValueError(
                f"A run must have one result per seed, but {kept.where(names[key])} and "
                f"{kept.where(name)} hold the same: keep the right one. Received: scores "
                f"{kept.record(names[key]).score} and {result.score}"
            )
        names[key] = name
        results.append(result)
    if not results:
        raise NoResult(
            f"No result file below {folder}: write one with `keras-plm run`, or name another "
            "folder with `--results`. "
            f"Received: {str(folder)!r}"
        )
    return results


def read_json(path: str | os.PathLike) -> Any:
    """Reads the value of a JSON file, which may have `NaN` for a number.

    Args:
        path: The file.

    Returns:
        The value.

    Raises:
        ValueError: If the file is damaged or missing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "result.json").write_text('{"score": NaN}')
    ...     read_json(f"{folder}/result.json")
    {'score': nan}
    """
    path = Path(path)
    try:
        return json_files.read_json(path, nan=True)
    except ValueError as error:
        if not path.is_file():
            raise
        reason = str(error).removeprefix(f"{path} ")
        raise ValueError(
            f"{path} is not a complete result file: remove it to run again. It {reason}"
        ) from error


def marked(suite: str, scale: str | None = None) -> str:
    """Name of a suite at a scale, as in the markers of pages.

    Args:
        suite: Name of the suite.
        scale: Name of the scale; `None` for the small one.

    Returns:
        The name.

    >>> marked("elmo"), marked("elmo", "large")
    ('elmo', 'elmo_large')
    """
    return suite if scale in (None, "small") else f"{suite}_{scale}"


def suite_folder(results: str | os.PathLike, home: str, scale: str | None = None) -> Path:
    """Folder of the results of suites with one `home`, at a scale.

    Args:
        results: Folder of all results.
        home: Name of the home of the suites.
        scale: Name of the scale; `None` for the small one.

    Returns:
        The path.

    >>> suite_folder("results", "elmo", "large").as_posix()
    'results/elmo_large'
    """
    return Path(results) / marked(home, scale)


def archive(path: Path) -> Path:
    """Renames a file by a hash of its content.

    Args:
        path: The file.

    Returns:
        The new path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "result.json").write_text("{}")
    ...     archive(Path(folder, "result.json")).name
    'result.json.44136fa3'
    """
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.replace(path.with_name(f"{path.name}.{mark}"))


def failure_of(path: str | os.PathLike) -> Path:
    """Path of the file with the error of a run without a result.

    Args:
        path: The result file of the run.

    Returns:
        The path, next to the result file.

    >>> failure_of("films/bert.fine_tune.seed0.json").name
    'bert.fine_tune.seed0.failed'
    """
    return Path(path).with_suffix(".failed")


def write_failure(
    path: str | os.PathLike, task: str, encoder: str, run: Any, seed: int, error: BaseException
) -> None:
    """Writes the error of a run without a result, with the current traceback.

    Args:
        path: The result file of the run.
        task, encoder: Names of the task and the encoder.
        run: A `Run`.
        seed: Seed of the run.
        error: The exception.

    >>> import tempfile
    >>> from keras_plm.experiments.config import Run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "bert.fine_tune.seed0.json")
    ...     write_failure(path, "films", "bert", Run(), 0, ValueError("no data"))
    ...     read_json(failure_of(path))["error"]
    'ValueError: no data'
    """
    record = {
        "task": task,
        "encoder": encoder,
        "run": run.name,
        "settings": run.to_json(),
        "seed": seed,
        "error": f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc(),
        **environment(),
    }
    write_json(failure_of(path), record)
