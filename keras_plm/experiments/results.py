"""Results: the record of a run, its name and hash, and the folder that keeps a suite's records.

A run writes its own files while it works. `ResultFolder.pack` gathers those of a suite in two
files, and everything that reads takes both; a loose file hides the packed one of its name.
"""

import collections.abc
import dataclasses
import fnmatch
import functools
import hashlib
import io
import json
import math
import os
import re
import traceback
import zipfile
from pathlib import Path

import numpy as np
from filelock import FileLock

from keras_plm.experiments.environment import environment
from keras_plm.files.writing import replacing, write_json

LOCKS = ".locks"  # a folder among the results
RECORDS, EXAMPLES = "results.jsonl", "examples.zip"  # the packed files of a suite
SEEDS = "*.seed*.json"  # the names of runs
# Where a result was measured: in every file that the harness writes.
MEASURED = ("backend", "device", "versions", "commit")


class NoResult(ValueError):
    """Nothing was run yet, or it is kept elsewhere."""


@dataclasses.dataclass(frozen=True, eq=False)
class Record(collections.abc.Mapping):
    """The record of one run with one seed, as a result file holds it.

    A record reads like its JSON object: `record["score"]`. Keys whose value is `None` are left out
    of it, but for `score` and `commit`. All records of a suite as a table:
    `pandas.read_json("benchmarks/results/elmo/results.jsonl", lines=True)`; there `file` is the
    name of the result file, and `.str` reads nested keys, as in `table.settings.str["layers"]`.

    Attributes:
        task: Name of the task.
        encoder: Name of the encoder.
        method: How the encoder was used, one of `config.METHODS`; or the kind of another model.
        run: `Run.name`: the method and what tells its variants apart.
        settings: The settings by name, see `Run.to_json`.
        seed: Seed of the run, from 0.
        learning_rate: The learning rate that the search on the dev set chose.
        trials: The search, a dict a learning rate: `learning_rate`, `dev_score` (a fraction, `None`
            if training diverged), `best_epoch` or `error`, `seconds`. All seeds repeat that of
            seed 0.
        dev_score: Score of the model on the dev set, a fraction.
        score: Score on the evaluation split by the task's first metric: a fraction, or a
            perplexity (`None`: infinite).
        metrics: Scores on the evaluation split by the name of the metric, in the same unit.
        counts: Numbers of examples, `train`, `dev` and `test`, and of `labels`.
        scheme: Scheme of the tags of spans, such as "IOB2".
        mixes: Learned weights of layers by the place where features enter the reader.
        curve: `updates` (numbers of optimizer steps) and `dev_scores` after each epoch.
        seconds: Duration of the run in seconds, its search included.
        encoder_passes: How often the encoder read the training examples.
        learned_weights: Number of weights that were trained.
        feature_bytes: Size of the stored features of the training and dev examples, in bytes.
        peak_mb: Peak memory of the process since the run began, in megabytes.
        backend: Keras backend.
        device: Processor or accelerators, in words.
        devices: Number of devices, where the encoder was trained on several.
        versions: Versions of the packages by name.
        commit: Abbreviated commit of the repository, with "+" if files were changed; `None`
            outside a clone.
        hash: `result_hash` of everything that decides the result.
        inputs: Hash of the data and of the pre-trained weights.
        extra: Further keys, which belong to one suite; they stand next to the others in JSON.
    """

    task: str
    encoder: str
    method: str
    run: str | None = None
    settings: dict = dataclasses.field(default_factory=dict)
    seed: int = 0
    learning_rate: float | None = None
    trials: list | None = None
    dev_score: float | None = None
    score: float | None = None
    metrics: dict = dataclasses.field(default_factory=dict)
    counts: dict | None = None
    scheme: str | None = None
    mixes: dict | None = None
    curve: dict | None = None
    seconds: float | None = None
    encoder_passes: int | None = None
    learned_weights: int | None = None
    feature_bytes: int | None = None
    peak_mb: float | None = None
    backend: str | None = None
    device: str | None = None
    devices: int | None = None
    versions: dict | None = None
    commit: str | None = None
    hash: str | None = None
    inputs: str | list | None = None
    extra: dict = dataclasses.field(default_factory=dict)

    def to_json(self):
        """The record as an object of JSON."""
        return dict(self._json)

    @classmethod
    def from_json(cls, found):
        """A record from an object of JSON.

        Raises:
            ValueError: If it is no record of a run, or its score is not finite.
        """
        whole = isinstance(found, dict)
        missing = [key for key in REQUIRED if not whole or key not in found]
        if missing:
            kind = "an object" if whole else f"a {type(found).__name__}"
            raise ValueError(
                "This is no result of a run: move it elsewhere. "
                f"Received: {kind} without {', '.join(missing)}"
            )
        for key, kind in REQUIRED.items():
            if not isinstance(found[key], kind):
                raise ValueError(
                    "This is no result of a run: move it elsewhere. "
                    f"Received: {key}={found[key]!r:.60}"
                )
        if isinstance(found["score"], float) and not math.isfinite(found["score"]):
            raise ValueError(
                "A result's score must be a finite number: remove the result and run again. "
                f"Received: score={found['score']}"
            )
        own = {name: found[name] for name in NAMES if name in found}
        extra = {key: value for key, value in found.items() if key not in NAMES}
        return cls(**own, extra=extra)

    @functools.cached_property
    def _json(self):
        own = {name: getattr(self, name) for name in NAMES}
        kept = {k: v for k, v in own.items() if v is not None or k in ("score", "commit")}
        return kept | self.extra

    def __getitem__(self, key):
        return self._json[key]

    def __iter__(self):
        return iter(self._json)

    def __len__(self):
        return len(self._json)


NAMES = tuple(field.name for field in dataclasses.fields(Record) if field.name != "extra")
# What every record of a run has, and its type in JSON.
REQUIRED = {"task": str, "encoder": str, "method": str, "seed": int,
            "score": (int, float, type(None)), "metrics": dict, "settings": dict}  # fmt: skip


def result_name(task, encoder, run, seed):
    """The name of a result in its folder: the path of its file."""
    return f"{task}/{encoder}.{run}.seed{seed}.json"


def result_hash(task, settings, seed, inputs):
    """The hash of everything that decides a result.

    Args:
        task: Name of the task.
        settings: The settings as an object of JSON. The order of its keys does not count.
        seed: Seed of the run.
        inputs: Hashes of the data and of the pre-trained weights.
    """
    decisive = {"task": task, "settings": settings, "seed": seed, "inputs": inputs}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


class ResultFolder:
    """The result files of a suite, loose or packed.

    Names are paths below the folder, as `result_name` gives them. Next to the record of a run, an
    NPZ file of the same stem holds what each example adds to its scores. `pack` moves the JSON
    files of tasks to lines of `results.jsonl`, and the NPZ files to members of `examples.zip`. A
    loose file hides the packed one of its name.

    Args:
        path: The folder. It may be missing.
    """

    def __init__(self, path):
        self.path = Path(path)

    # ---- reading

    def names(self, pattern="*"):
        """The names of all JSON files that fit a pattern, in the order of their paths.

        Damaged lines of `results.jsonl` that name no file are among them, as "results.jsonl:7".
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

    def file(self, name):
        """The loose file of a name, whether it is there or not."""
        return self.path / name

    def where(self, name):
        """Where a result stands, for messages."""
        if self.file(name).is_file() or name not in self._records():
            return str(self.file(name))
        return f"{self.path / RECORDS}, file {name!r},"

    def __contains__(self, name):
        return self.file(name).is_file() or name in self._records()

    def json(self, name):
        """The object that a JSON file holds.

        Raises:
            ValueError: If it is damaged.
        """
        try:
            return read_json(self.file(name))
        except FileNotFoundError:
            if name not in self._records():
                raise
            found = self._records()[name]
            if isinstance(found, ValueError):
                raise found from None
            return dict(found)

    def record(self, name):
        """The `Record` of a run.

        Raises:
            ValueError: If it is damaged, or something else.
        """
        return self._record(name, self.json(name))

    def done(self, name, hash):
        """The `Record` of a run, or `None` where there is none that was made with this hash."""
        if name not in self:
            return None
        found = self.json(name)
        same = isinstance(found, dict) and found.get("hash") == hash
        return self._record(name, found) if same else None

    def _record(self, name, found):
        try:
            return Record.from_json(found)
        except ValueError as error:
            raise ValueError(f"{self.where(name)}: {error}") from error

    def has_examples(self, name):
        """Whether there is a file of what each example adds to the scores of a result."""
        member = _of_examples(name)
        return self.file(member).is_file() or member in self._members()

    def examples(self, name, hash):
        """What each example adds to the scores of a result.

        Args:
            name: Name of the result.
            hash: The result's, by which it is known that they belong together.

        Returns:
            `{metric: (kind, array (N, k))}`, see `statistics.summands`; `None` if that is missing
            or another result's.

        Raises:
            ValueError: If the file is damaged.
        """
        member = _of_examples(name)
        loose = self.file(member)
        if not self.has_examples(name):
            return None
        try:
            with np.load(io.BytesIO(self._content(member))) as arrays:
                if str(arrays["hash"]) != hash:
                    return None
                named = [key for key in arrays if key != "hash"]
                split = {key: key.rpartition(".")[::2] for key in named}
                return {metric: (kind, arrays[key]) for key, (metric, kind) in split.items()}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            where = loose if loose.is_file() else f"{self.path / EXAMPLES}, file {member!r},"
            raise ValueError(
                f"{where} is no whole file of examples: remove it. Received: {error}"
            ) from error

    # ---- writing

    def write(self, name, record, parts=None):
        """Writes a `Record` to a loose file; one of other settings or data is archived.

        Args:
            name: Name of the result.
            record: A `Record`.
            parts: What each example adds to its scores, as `examples` gives it.
        """
        if self.done(name, record.hash) is None:
            self.archive(name)
        if parts is not None:
            self.write_examples(name, record.hash, parts)
        write_json(self.file(name), record.to_json())

    def write_examples(self, name, hash, parts):
        """Writes what each example adds to the scores of a result with this hash."""
        arrays = {f"{metric}.{kind}": array for metric, (kind, array) in parts.items()}
        with replacing(self.file(_of_examples(name)), ".npz") as temporary:
            np.savez_compressed(temporary, hash=np.array(hash), **arrays)

    def archive(self, name):
        """Keeps a result under its name and a hash of its content; gives the path, or `None`."""
        self.unpack([name])  # a packed one would count again once the loose one is away
        for path in (self.file(_of_examples(name)), self.file(name)):
            kept = archive(path) if path.is_file() else None
        return kept

    def pack(self):
        """Moves the loose files of tasks to the packed ones; gives the number of each kind.

        The packed files are written whole and read again before a loose file is removed, so that
        it may be stopped at any time and called again.

        Raises:
            ValueError: If a loose file or a packed record is damaged. Nothing is packed then.
        """
        if not any(self.path.glob("*/*.*")):
            return 0, 0
        with self._lock():
            loose = [sorted(self.path.glob(f"*/*.{kind}")) for kind in ("json", "npz")]
            loose = [[path for path in paths if path.parent.name != LOCKS] for paths in loose]
            texts = [
                {path.relative_to(self.path).as_posix(): path.read_bytes() for path in paths}
                for paths in loose
            ]
            for name in texts[0]:
                found = read_json(self.file(name))
                if not isinstance(found, dict) or "file" in found:
                    raise ValueError(
                        f"{self.file(name)}: A result is an object without the key `file`. "
                        f"Received: {found!r:.60}"
                    )
            if not any(texts):
                return 0, 0
            new = {name: json.loads(text) for name, text in texts[0].items()}
            records = self._whole_records() | new
            members = self._contents() | texts[1]
            self._rewrite(records, members)
            if self._records() != records or self._contents() != members:
                raise OSError(
                    f"Packed files must read as they were written. Received: others below "
                    f"{self.path}"
                )
            for content in texts:
                for name, text in content.items():
                    if self.file(name).read_bytes() == text:  # else a run has written it again
                        self.file(name).unlink()
        for folder in {path.parent for paths in loose for path in paths}:
            if not any(folder.iterdir()):
                folder.rmdir()
        return len(loose[0]), len(loose[1])

    def copy(self, names, path):
        """Copies results with their examples to loose files of another folder."""
        other = ResultFolder(path)
        for name in names:
            write_json(other.file(name), self.json(name))
            if self.has_examples(name):
                member = _of_examples(name)
                with replacing(other.file(member)) as temporary:
                    temporary.write_bytes(self._content(member))

    def unpack(self, names=None):
        """Moves packed files back to loose ones; gives the number of records.

        Args:
            names: Names of results, by default of all. A loose file stays as it is.
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
                    for name in order(members):  # with a fixed date, so that content decides
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
        """`{name: object}` of the packed records."""
        return _read_once(_packed_records, self.path / RECORDS) or {}

    def _whole_records(self):
        """`_records`, to write them again.

        Raises:
            ValueError: If one is damaged.
        """
        for found in self._records().values():
            if isinstance(found, ValueError):
                raise found
        return self._records()

    def _archive(self):
        """The packed examples as a `ZipFile`, or `None`."""
        return _read_once(_opened, self.path / EXAMPLES)

    def _members(self):
        archive = self._archive()
        return () if archive is None else archive.NameToInfo

    def _content(self, member):
        loose = self.file(member)
        return loose.read_bytes() if loose.is_file() else self._archive().read(member)

    def _contents(self):
        """`{name: content}` of the packed examples."""
        return {name: self._archive().read(name) for name in self._members()}


def _of_examples(name):
    return name.removesuffix(".json") + ".npz"


def _read_once(read, path):
    """`read(path)`, kept until the file changes; `None` if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return read(os.path.abspath(path), state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=64)
def _packed_records(path, *state):
    """`{name: object}`; a `ValueError` in place of an object that is damaged or there twice."""
    found, lines = {}, Path(path).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        try:
            record = json.loads(line)
            name = str(record.pop("file"))
        except (ValueError, KeyError, TypeError, AttributeError):
            named = re.search(r'"file": *"([^"]+)"', line)
            name = named[1] if named else f"{RECORDS}:{number}"
            record = ValueError(
                f"{path}:{number}: A line is one result, with the name of its `file`. "
                f"Received: {line!r:.60}"
            )
        if name in found:
            record = ValueError(
                f"{path}:{number}: A result has one line: keep the right one. "
                f"Received: a second line of {name!r}"
            )
        found[name] = record
    return found


@functools.lru_cache(maxsize=64)
def _opened(path, *state):
    return zipfile.ZipFile(path)


def folders_below(root):
    """`ResultFolder`s of all suites below a folder, in the order of their paths."""
    root = Path(root)
    found = {path.parent for path in root.rglob(RECORDS)}
    found |= {path.parents[1] for path in root.glob(f"**/*/{SEEDS}")}
    return [ResultFolder(path) for path in sorted(found)]


def read_results(folder, task=None):
    """All `Record`s of runs in a folder, or those of one task, in the order of their names.

    Raises:
        ValueError: If there is none, one is damaged or foreign, or two are of one run and seed.
    """
    kept, results, names = ResultFolder(folder), [], {}
    for name in kept.names(SEEDS if task is None else f"{task}/{SEEDS}"):
        result = kept.record(name)
        identity = ("task", "encoder", "method", "run", "name", "settings", "seed")
        key = json.dumps([result.get(part) for part in identity], sort_keys=True)
        if key in names:
            raise ValueError(
                f"A run has one result a seed, and {kept.where(names[key])} and "
                f"{kept.where(name)} hold the same: keep the right one. Received: scores "
                f"{kept.record(names[key]).score} and {result.score}"
            )
        names[key] = name
        results.append(result)
    if not results:
        raise NoResult(
            f"No result file below {folder}: `keras-plm run` writes them; `--results` "
            "names another folder. "
            f"Received: {str(folder)!r}"
        )
    return results


def read_json(path):
    """The object that a JSON file holds.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        return json.loads(Path(path).read_text())
    except ValueError as error:  # broken JSON, or bytes that are no text
        raise ValueError(
            f"{path} is no whole result file: remove it to run again. Received: {error}"
        ) from error


def marked(suite, scale=None):
    """A suite's name at a scale, as README's marks have it."""
    return suite if scale in (None, "small") else f"{suite}_{scale}"


def suite_folder(results, home, scale=None):
    """Where the results of suites that share a `home` are, at a scale."""
    return Path(results) / marked(home, scale)


def archive(path):
    """Keeps an older file under its name and a hash of its content; gives the new path."""
    mark = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path.replace(path.with_name(f"{path.name}.{mark}"))


def failure_of(path):
    """The file that tells why a run has no result, next to where its result file would be."""
    return Path(path).with_suffix(".failed")


def write_failure(path, task, encoder, run, seed, error):
    """Writes why a run has no result, with the traceback of the error that is being handled.

    Args:
        path: Of the result file.
        task, encoder: Their names.
        run: A `Run`.
        seed: The run's.
        error: What was raised.
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
