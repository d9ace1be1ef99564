"""Claims, the result files of their two arms, and the scores of these by seed."""

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

ANY = object()  # a field of any value, the same for all results of the arm
# Settings of training: they may have any value unless an arm names them.
TRAINED_BY = ("learning_rates", "learning_rate", "epochs", "batch_size", "dropout", "precision")
# What a valid record raises that is not as its suite writes it.
ODD = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError)
# Folders of results outside `SUITES`: runs of single tasks.
FOLDERS = {"first": "first", "words": "words"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm of a claim: the results of one kind of run, a score for each seed.

    By default the results are those of runs with this task, encoder and fields of a `Run`. Fields
    that are not named have their defaults, those of `TRAINED_BY` any value. `where` and `value`
    select other results of seeds, `read` reads other files.

    Attributes:
        label: Its name in the statement of a claim.
        suite: A key of `SUITES` or of `FOLDERS`.
        task: Name of a task.
        encoder: Name of an encoder.
        fields: Fields of a `Run`.
        metric: Name of a metric; by default the task's first.
        scale: Scale of the suite.
        value: `value(result)` returns a score in place of the metric: higher is better, 0.01 is a
            point.
        where: `where(result)` tells whether a result other than a run belongs to the arm.
        read: `read(folder)` returns `{seed: score}` from files without seeds in their names.
        minus: Another arm of the same task. The score is the difference to it.
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
    minus: typing.Any = None

    def folder(self, root):
        """Folder of its results."""
        if self.suite in FOLDERS:
            return Path(root) / FOLDERS[self.suite]
        return folder(root, self.suite, self.scale)

    def has(self, result):
        """Whether a result belongs to the arm."""
        if self.where is not None:
            return result["task"] == self.task and bool(self.where(result))
        fields = result["settings"]
        if result["task"] != self.task or result["encoder"] != self.encoder:
            return False
        if fields.get("method") != result["method"]:
            return False  # no run
        free = (*TRAINED_BY, *NEUTRAL)
        asked = {n: v for n, v in DEFAULTS.items() if n not in free} | self.fields
        return all(v is ANY or fields.get(n, DEFAULTS[n]) == v for n, v in asked.items())


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published ordering.

    Attributes:
        name: Unique name.
        statement: "this > that", the labels of its arms.
        task: Task that tests it here.
        better, worse: An `Arm` each.
        source: The paper and its table. Holm's correction is per source.
        published: The paper's figures of both, `None` where it prints none.
        on: Task of the figures, where that is not `task`.
        verified: Whether figures and ordering were looked up.
        conclusion: Whether the paper's conclusion repeats it.
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
    """The result files below a folder of suites; each suite is read once.

    Args:
        root: The folder.
    """

    def __init__(self, root):
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"`--results` is a folder of suites. Received: {str(root)!r}")
        self._read, self._examples, self._stacked = {}, {}, {}

    def files(self, folder):
        """`[(path, result)]` of all seeds in a folder, none if it is not there.

        The paths are those of loose files. A result that is damaged, or no result of the harness,
        is replaced by its ValueError.
        """
        if folder not in self._read:
            kept = ResultFolder(folder)
            found = [(kept.file(name), _record(kept, name)) for name in kept.names(SEEDS)]
            self._read[folder] = found
        return self._read[folder]

    def runs(self, arm):
        """`{seed: (path, result)}` of an arm.

        Raises:
            ValueError: If two of them are of one seed and differ, or of different settings, or a
                file of the task is damaged.
        """
        found = {}
        for path, result in self.files(arm.folder(self.root)):
            if isinstance(result, ValueError):
                if path.parent.name == arm.task:  # it may have been one of the arm's
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
                continue  # a seed counts once: of files in order the first, of plain settings
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
        """`{seed: score}` of an arm, the higher the better, in hundreds of points; maybe empty.

        Raises:
            ValueError: If files are damaged, are no results, or disagree.
        """
        if arm.read is not None:
            place = arm.folder(self.root)
            try:
                scores = arm.read(place)
            except ODD as error:
                raise ValueError(
                    f"A file below {place} is no result of the harness: move it elsewhere. "
                    f"Received: {error!r} reading {arm.label!r} on {arm.task}"
                ) from error
        else:
            scores = {seed: _score(arm, *found) for seed, found in self.runs(arm).items()}
        if arm.minus is not None:
            other = self.scores(arm.minus)
            scores = {s: score - other[s] for s, score in scores.items() if s in other}
        return scores

    def metric(self, arm):
        """The name of the metric by which an arm is scored; "" for other scores, or of nothing."""
        if arm.read is not None or arm.value is not None:
            return ""
        return arm.metric or next(
            (name for _, result in self.runs(arm).values() for name in result["metrics"]), ""
        )

    def terms(self, arm, sign=1):
        """What each example adds: `(kind, [(sign, (S, N, k))])`, or why there is none, a text.

        Raises:
            ValueError: If a file of examples is damaged, or tells another score than the result.
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
        if key not in self._stacked:  # one array of one arm, for many claims
            self._stacked[key] = np.stack([parts for _, parts in found]).astype("float64")
        terms = [(sign, self._stacked[key])]
        if arm.minus is not None:
            other = self.terms(arm.minus, -sign)
            if isinstance(other, str):
                return other
            terms += other[1]
        return found[0][0], terms


def paired(kind, terms):
    """Whether all terms are of the same examples, judged by their true labels."""
    first = _truth(kind, terms[0][1][0])
    return all(
        parts.shape[1:] == terms[0][1].shape[1:] and np.allclose(_truth(kind, of_seed), first)
        for _, parts in terms
        for of_seed in parts
    )


def _same_run(*results):
    """Whether results differ in settings of `NEUTRAL` at most."""
    runs = [result for result in results if "run" in result]
    return len(runs) == len(results) and len({run_of(result) for result in runs}) == 1


def _truth(kind, parts):
    """The part of each example's sums that depends only on its true label: (N, ...)."""
    if kind == "matthews":
        count = round(math.sqrt(parts.shape[1]))
        return parts.reshape(-1, count, count).sum(axis=-1)
    return parts[:, 1]


def _score(arm, path, result):
    try:
        metric = arm.metric or next(iter(result["metrics"]))
        score = result["metrics"][metric] if arm.value is None else arm.value(result)
    except (*ODD, ValueError, StopIteration):  # as the logarithm of 0
        score = None
    if not isinstance(score, (int, float)) or not abs(score) <= sys.float_info.max:
        raise ValueError(
            f"{path} has no score of {arm.label!r}, a finite number: remove it to run again. "
            f"Received: {score!r}"
        )
    return float(score)


def _has(arm, path, result):
    """As `arm.has`; a record of the task that cannot tell might be the arm's.

    Raises:
        ValueError: Naming that record.
    """
    try:
        return arm.has(result)
    except ODD as error:
        if path.parent.name != arm.task:
            return False
        raise ValueError(
            f"{path} is not as this suite writes results: move it elsewhere. "
            f"Received: content that raises a {type(error).__name__}"
        ) from error


def _record(kept, name):
    """The `Record` of a name, or the ValueError of why there is none."""
    try:
        return kept.record(name)
    except ValueError as error:
        return error


def names_of_suites():
    """Valid values of `suite` of an arm."""
    return [*SUITES, *FOLDERS]
