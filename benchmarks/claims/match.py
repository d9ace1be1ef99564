"""Claims, the result files of their two arms, and their scores by seed."""

import dataclasses
import math
import sys
import typing
from pathlib import Path

import numpy as np

from benchmarks.suites import SUITES, folder
from keras_plm.experiments.config import DEFAULTS, NEUTRAL, run_of, settings_of
from keras_plm.experiments.results import SEEDS, ResultFolder
from keras_plm.experiments.statistics import SCORES

ANY = object()  # matches any value of a field; all results of an arm share the value
# Settings of training. They may have any value unless an arm names them.
TRAINED_BY = ("learning_rates", "learning_rate", "epochs", "batch_size", "dropout", "precision")
# Errors from a valid record whose layout differs from that of its suite.
ODD = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError)
# Folders of results outside `SUITES`: runs of single tasks.
FOLDERS = {"first": "first", "words": "words", "edge_probing": "edge_probing"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm of a claim: the results of one kind of run, a score for each seed.

    By default an arm has the results of runs with this task, encoder and fields of a `Run`. Other
    fields have their defaults, except that fields in `TRAINED_BY` may have any value. `where` and
    `value` select other results of seeds, `read` reads other files.

    Attributes:
        label: Name in the statement of a claim.
        suite: A key of `SUITES` or of `FOLDERS`.
        task: Name of a task.
        encoder: Name of an encoder.
        fields: Fields of a `Run`.
        metric: Name of a metric; by default the task's first.
        scale: Scale of the suite.
        value: `value(result)` returns a score that replaces the metric. Higher is better; 0.01 is
            one point.
        where: `where(result)` returns whether a result belongs to the arm, for results that are
            not of a `Run`.
        read: `read(folder)` returns `{seed: score}` from files without seeds in their names.
        draws: `draws(folder)` returns the scores (1 + R, S) of all examples and of R resamples, see
            `statistics.resampled`, or `None`. The sides of a claim then have other examples.
        minus: Another arm of the same task, whose score is subtracted.
    """

    label: str
    suite: str
    task: str
    encoder: str = ""
    fields: dict = dataclasses.field(default_factory=dict)
    metric: str = ""
    scale: str | None = None
    value: typing.Callable | None = None
    where: typing.Callable | None = None
    read: typing.Callable | None = None
    draws: typing.Callable | None = None
    minus: typing.Any = None

    def folder(self, root):
        """Returns the folder of the arm's results."""
        if self.suite in FOLDERS:
            return Path(root) / FOLDERS[self.suite]
        return folder(root, self.suite, self.scale)

    def has(self, result):
        """Returns whether a result belongs to the arm."""
        if self.where is not None:
            return result["task"] == self.task and bool(self.where(result))
        fields = result["settings"]
        if result["task"] != self.task or result["encoder"] != self.encoder:
            return False
        if fields.get("method") != result["method"]:
            return False  # not the result of a run
        free = (*TRAINED_BY, *NEUTRAL)
        asked = {n: v for n, v in DEFAULTS.items() if n not in free} | self.fields
        return all(v is ANY or fields.get(n, DEFAULTS[n]) == v for n, v in asked.items())


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published ordering.

    Attributes:
        name: Unique name.
        statement: "this > that", with the labels of the arms.
        task: Task of the runs here.
        better, worse: The two `Arm`s.
        source: The paper and its table. Holm's correction is per source.
        published: The paper's figures for both arms, or `None` if it prints none.
        on: Task of the published figures, if it differs from `task`.
        verified: Whether figures and ordering were looked up.
        conclusion: Whether the paper's conclusion repeats the claim.
        lower: Whether the lower figure is better.
        unit: Unit of the effect.
        note: Difference between the paper and the runs here.
    """

    name: str
    statement: str
    task: str
    better: Arm
    worse: Arm
    source: str
    published: tuple | None = None
    on: str = ""
    verified: bool = True
    conclusion: bool = False
    lower: bool = False
    unit: str = "points"
    note: str = ""


def row(name, better, worse, source, published=None, on="", **more):
    statement = f"{better.label} > {worse.label}"
    return Claim(name, statement, better.task, better, worse, source, published, on, **more)


NATS = {"unit": "hundredths of a nat per word", "lower": True}  # of perplexities


class Results:
    """The result files of all suites below a folder. Each suite is read once.

    Args:
        root: Folder of the suites.
    """

    def __init__(self, root):
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"`--results` must be a folder of suites. Received: {str(root)!r}")
        self._read, self._examples, self._stacked = {}, {}, {}

    def files(self, folder):
        """Returns `[(path, result)]` of all seeds in a folder, or an empty list without a folder.

        Paths are those of unpacked files. A ValueError stands for a result that is damaged or not
        from the harness.
        """
        if folder not in self._read:
            kept = ResultFolder(folder)
            found = [(kept.file(name), _record(kept, name)) for name in kept.names(SEEDS)]
            self._read[folder] = found
        return self._read[folder]

    def runs(self, arm):
        """Returns `{seed: (path, result)}` of an arm.

        Raises:
            ValueError: If two results of one seed differ, if results differ in settings, or if a
                file of the task is damaged.
        """
        found = {}
        for path, result in self.files(arm.folder(self.root)):
            if isinstance(result, ValueError):
                if path.parent.name == arm.task:  # the file may belong to the arm
                    raise result
                continue
            if not _has(arm, path, result):
                continue
            earlier, first = found.get(result["seed"]), next(iter(found.values()), None)
            if (
                earlier
                and earlier[1].get("run") != result.get("run")
                and _same_run(earlier[1], result)
            ):
                continue  # a seed counts once: the first file, which has the plain settings
            for other, differ, rule in (
                (earlier, earlier and _score(arm, *earlier) != _score(arm, path, result),
                 "Two results of one run and seed disagree: remove one"),
                (first, first and settings_of(first[1]) != settings_of(result),
                 "Seeds of one run share settings, data and encoder: remove the older files"),
            ):  # fmt: skip
                if differ:
                    raise ValueError(
                        f"{rule}. Received: of {arm.label!r} on {arm.task} {other[0]} and {path}"
                    )
            found.setdefault(result["seed"], (path, result))
        return dict(sorted(found.items()))

    def scores(self, arm):
        """Returns `{seed: score}` of an arm, or an empty dict. Higher is better; 0.01 is one point.

        Raises:
            ValueError: If files are damaged, are not results, or disagree.
        """
        if arm.read is not None:
            place = arm.folder(self.root)
            try:
                scores = arm.read(place)
            except ODD as error:
                raise ValueError(
                    f"Files below {place} must be results of the harness: move others elsewhere. "
                    f"Received: {error!r} while reading {arm.label!r} on {arm.task}"
                ) from error
        else:
            scores = {seed: _score(arm, *found) for seed, found in self.runs(arm).items()}
        if arm.minus is not None:
            other = self.scores(arm.minus)
            scores = {s: score - other[s] for s, score in scores.items() if s in other}
        return scores

    def metric(self, arm):
        """Returns the name of an arm's metric, or "" if it has other scores or no results."""
        if arm.read is not None or arm.value is not None:
            return ""
        return arm.metric or next(
            (name for _, result in self.runs(arm).values() for name in result["metrics"]), ""
        )

    def draws(self, arm):
        """Returns the resampled scores (1 + R, S) of an arm with `draws`, or `None`."""
        return arm.draws(arm.folder(self.root)) if arm.draws else None

    def terms(self, arm, sign=1):
        """Returns the sums of each example, `(kind, [(sign, (S, N, k))])`, or a reason without any.

        Raises:
            ValueError: If a file of examples is damaged or contradicts the score of the result.
        """
        if arm.read is not None or arm.value is not None:
            return "not scored by example"
        found, runs = [], self.runs(arm)
        metric, kept = self.metric(arm), ResultFolder(arm.folder(self.root))
        names = {path: path.relative_to(kept.path).as_posix() for path, _ in runs.values()}
        for path, result in runs.values():
            if path not in self._examples:
                self._examples[path] = kept.examples(names[path], result.get("hash")) or {}
            if metric not in self._examples[path]:
                lacking = sum(not kept.has_examples(name) for name in names.values())
                if lacking == len(runs):
                    return "examples were not kept"
                if lacking:
                    return f"examples of {lacking} of {len(runs)} seeds of {arm.label} not kept"
                return f"the examples next to {path.name} are another run's"
            kind, parts = self._examples[path][metric]
            score = float(SCORES[kind](parts.sum(axis=0)))
            if not math.isclose(score, result["metrics"][metric], abs_tol=1e-6):
                raise ValueError(
                    f"{path.with_suffix('.npz')} gives another {metric} than the result next "
                    f"to it: remove it. Received: {score:.6f} and {result['metrics'][metric]:.6f}"
                )
            found.append((kind, parts))
        if len({(kind, parts.shape) for kind, parts in found}) > 1:
            return f"results of {arm.label} are of different examples"
        key = metric, tuple(path for path, _ in runs.values())
        if key not in self._stacked:  # many claims share the array of an arm
            self._stacked[key] = np.stack([parts for _, parts in found]).astype("float64")
        terms = [(sign, self._stacked[key])]
        if arm.minus is not None:
            other = self.terms(arm.minus, -sign)
            if isinstance(other, str):
                return other
            terms += other[1]
        return found[0][0], terms


def paired(kind, terms):
    """Returns whether all terms have the same examples, judged by their true labels."""
    first = _truth(kind, terms[0][1][0])
    return all(
        parts.shape[1:] == terms[0][1].shape[1:] and np.allclose(_truth(kind, of_seed), first)
        for _, parts in terms
        for of_seed in parts
    )


def _same_run(*results):
    """Returns whether results differ only in settings of `NEUTRAL`."""
    runs = [result for result in results if "run" in result]
    return len(runs) == len(results) and len({run_of(result) for result in runs}) == 1


def _truth(kind, parts):
    """Returns the part of each example's sums that depends only on its true label, (N, ...)."""
    if kind == "matthews":
        count = round(math.sqrt(parts.shape[1]))
        return parts.reshape(-1, count, count).sum(axis=-1)
    return parts[:, 1]


def _score(arm, path, result):
    try:
        metric = arm.metric or next(iter(result["metrics"]))
        score = result["metrics"][metric] if arm.value is None else arm.value(result)
    except (*ODD, ValueError, StopIteration):  # ValueError: the logarithm of 0
        score = None
    if not isinstance(score, (int, float)) or not abs(score) <= sys.float_info.max:
        raise ValueError(
            f"{path} must hold a finite score of {arm.label!r}: remove the file and rerun. "
            f"Received: {score!r}"
        )
    return float(score)


def _has(arm, path, result):
    """Returns `arm.has(result)`.

    Raises:
        ValueError: If a record of the arm's task has an unknown layout.
    """
    try:
        return arm.has(result)
    except ODD as error:
        if path.parent.name != arm.task:
            return False
        raise ValueError(
            f"{path} must have the layout of this suite's results: move other files elsewhere. "
            f"Received: content that raises {type(error).__name__}"
        ) from error


def _record(kept, name):
    """Returns the `Record` of a name, or the ValueError from reading it."""
    try:
        return kept.record(name)
    except ValueError as error:
        return error


def names_of_suites():
    """Returns the valid values of an arm's `suite`."""
    return [*SUITES, *FOLDERS]
