"""Folder of a suite's records, loose or packed.

A run writes loose files. `ResultFolder.pack` gathers those of a suite in two files. Readers accept
both forms; a loose file takes precedence over the packed one of its name.
"""

import contextlib
import dataclasses
import fnmatch
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from keras_plm.experiments.results.packed import EXAMPLES, LOCKS, RECORDS, PackedFiles
from keras_plm.experiments.results.record import Record
from keras_plm.experiments.results.single_files import archive, read_json
from keras_plm.experiments.statistics import compact, expanded
from keras_plm.files.disk_space import try_to_write
from keras_plm.files.json_files import shown
from keras_plm.files.locks import one_writer
from keras_plm.files.numpy_files import NUMBERS, read_npz
from keras_plm.files.opening import read_bytes
from keras_plm.files.writing import replacing, write_json

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
        self._packed = PackedFiles(path)

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
        found = set(fnmatch.filter(loose | self._packed.records().keys(), pattern))
        found |= {name for name in self._packed.records() if name.startswith(f"{RECORDS}:")}
        return sorted(found, key=lambda name: name.split("/"))

    def file(self, name: str) -> Path:
        """Path of the loose file of a name, which may be missing."""
        return self.path / name

    def where(self, name: str) -> str:
        """Place of a result, for messages."""
        if self.file(name).is_file() or name not in self._packed.records():
            return str(self.file(name))
        return f"{self.path / RECORDS}, file {name!r},"

    def __contains__(self, name):
        return self.file(name).is_file() or name in self._packed.records()

    def json(self, name: str) -> Any:
        """Reads the object of a JSON file.

        Raises:
            ValueError: If it is damaged or missing.
        """
        try:
            return read_json(self.file(name))
        except ValueError:
            # Another process may have packed it just now.
            if self.file(name).is_file() or name not in self._packed.records():
                raise
        found = self._packed.records()[name]
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
        return self.file(member).is_file() or member in self._packed.members()

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
        return {metric: (kind, expanded(kind, found[key])) for key, (metric, kind) in split.items()}

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
        arrays = {
            f"{metric}.{kind}": compact(kind, array) for metric, (kind, array) in parts.items()
        }
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
        with self._packed.lock():
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
            records = self._packed.whole_records() | new
            members = self._packed.contents() | texts[1]
            self._packed.rewrite(records, members)
            if self._packed.records() != records or self._packed.contents() != members:
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
        """Copies results with their examples to a new folder, as packed files."""
        names = list(names)
        Path(path).mkdir(parents=True)
        members = [_of_examples(name) for name in names if self.has_examples(name)]
        PackedFiles(path).rewrite(
            {name: self.json(name) for name in names},
            {member: self._content(member) for member in members},
        )

    def unpack(self, names: Iterable[str] | None = None) -> int:
        """Moves packed files back to loose files, and returns the number of records.

        Args:
            names: Names of results; by default all. Loose files stay unchanged.
        """
        if names is not None and not self._packed.records().keys() & set(names):
            return 0
        with self._packed.lock():
            records, members = self._packed.whole_records(), self._packed.contents()
            chosen = [name for name in records if names is None or name in names]
            of_chosen = {_of_examples(name) for name in chosen} if names is not None else members
            for member in [name for name in members if name in of_chosen]:
                if not self.file(member).is_file():
                    with replacing(self.file(member)) as temporary:
                        temporary.write_bytes(members[member])
            for name in chosen:
                if not self.file(name).is_file():
                    write_json(self.file(name), records[name])
            self._packed.rewrite(
                {name: found for name, found in records.items() if name not in chosen},
                {name: content for name, content in members.items() if name not in of_chosen},
            )
        return len(chosen)

    def _content(self, member):
        """Reads a file of examples, loose or packed."""
        loose = self.file(member)
        try:
            return read_bytes(loose)
        except (ValueError, FileNotFoundError):
            if loose.is_file() or member not in self._packed.members():
                raise
            return self._packed.content(member)  # perhaps packed just now


def _of_examples(name):
    return name.removesuffix(".json") + ".npz"


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
