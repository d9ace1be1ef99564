"""The record of a run, its name and its hash."""

import collections.abc
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from keras_plm.experiments.config import METHODS, SETTINGS
from keras_plm.files.json_files import Whole, check_shape

# Keys that describe the environment of a measurement, in every file of the harness.
MEASURED = ("backend", "device", "versions", "commit")


@dataclasses.dataclass(frozen=True, eq=False)
class Record(collections.abc.Mapping):
    """The record of one run with one seed, the content of a result file.

    A record reads like its JSON object: `record["score"]`. The object leaves out keys with the
    value `None`, except `score` and `commit`. This reads all records of a suite as a table:
    `pandas.read_json("benchmarks/results/elmo/results.jsonl", lines=True)`. Its column `file` holds
    the names of the result files. `.str` reads nested keys, as in `table.settings.str["layers"]`.

    Args:
        task: Name of the task.
        encoder: Name of the encoder.
        method: Use of the encoder, one of `config.METHODS`; or the kind of another model.
        run: `Run.name`: the method and its variant.
        settings: The settings by name, see `Run.to_json`.
        seed: Seed of the run, from 0.
        learning_rate: Learning rate chosen on the dev set.
        trials: Trials of the search, a dict for each learning rate: `learning_rate`, `dev_score` (a
            fraction, `None` if training diverged), `best_epoch` or `error`, `seconds`. All seeds
            repeat those of seed 0.
        dev_score: Score of the model on the dev set, a fraction.
        score: Score on the evaluation split by the task's first metric: a fraction, or a
            perplexity (`None`: infinite).
        metrics: Scores on the evaluation split by the name of the metric, in the same unit.
        counts: Numbers of examples, `train`, `dev` and `test`, and of `labels`.
        scheme: Scheme of the tags of spans, such as "IOB2".
        mixes: Learned weights of layers by the place where features enter the reader.
        curve: `updates` (numbers of optimizer steps) and `dev_scores` after each epoch.
        seconds: Duration of the run in seconds, with its search and without the extraction of
            features. For linear readers on features, an equal part of their common fit.
        encoder_passes: Number of encoder passes over the training examples.
        learned_weights: Number of trained weights.
        flops: Estimate of the floating-point operations of one training, without the search: two
            for each weight and token, three times as many if the weight is trained, twice as many
            for the frozen weights under LoRA. It leaves out embeddings and the products of two
            sequences in attention.
        feature_bytes: Size of the stored features of the training and dev examples, in bytes.
        peak_mb: Peak memory of the process since the run began, in megabytes.
        backend: Keras backend.
        device: Processor or accelerators, in words.
        devices: Number of devices, if several.
        versions: Versions of the packages by name.
        commit: Abbreviated commit of the repository, with "+" if files were changed; `None`
            outside a clone.
        hash: `result_hash` of the result.
        inputs: Hash of the data and of the pre-trained weights.
        extra: Further keys of a suite, next to the others in JSON.
        where: Source file, for messages; not in JSON.

    >>> record = Record("films", "bert", "fine_tune", settings={"epochs": 1}, score=0.9)
    >>> record["score"], record.to_json()["settings"], "device" in record
    (0.9, {'epochs': 1}, False)
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
    flops: int | None = None
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
    where: str = dataclasses.field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        """Converts the record to an object of JSON."""
        return dict(self._json)

    @classmethod
    def from_json(cls, found: Any) -> Self:
        """Creates a record from an object of JSON.

        Raises:
            ValueError: If it is not the record of a run, or a number is not finite.
        """
        check_shape(found, SHAPE, "This is not the result of a run, move it elsewhere")
        settings = found["settings"]
        if found["method"] in METHODS and settings.get("method") == found["method"]:
            check_shape(settings, SETTINGS, "The settings of a result must be those of a run")
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


NAMES = tuple(field.name for field in dataclasses.fields(Record))[:-2]  # without extra, where
_NUMBER, _TEXT, _COUNT = (float, None), (str, None), (Whole(), None)
_COUNTS = {f"{part}?": Whole() for part in ("train", "dev", "test", "labels")}
# Types of the keys of a record in JSON.
SHAPE = {
    "task": str, "encoder": str, "method": str, "run?": _TEXT, "settings": dict, "seed": Whole(),
    "learning_rate?": _NUMBER, "trials?": ([dict], None), "dev_score?": _NUMBER, "score": _NUMBER,
    "metrics": {str: object}, "counts?": (_COUNTS, None), "scheme?": _TEXT,
    "curve?": (dict, None), "seconds?": _NUMBER, "encoder_passes?": _NUMBER,
    "learned_weights?": _COUNT, "flops?": _COUNT, "feature_bytes?": _COUNT, "peak_mb?": _NUMBER,
    "backend?": _TEXT,
    "device?": _TEXT, "devices?": _COUNT, "versions?": ({str: _TEXT}, None), "commit?": _TEXT,
    "hash?": _TEXT, "inputs?": (str, [str], None),
}  # fmt: skip


def result_name(task: str, encoder: str, run: Any, seed: int) -> str:
    """Name of a result in its folder: the path of its file.

    Args:
        task, encoder: Names of the task and the encoder.
        run: Name of the run.
        seed: Seed of the run.

    Returns:
        The path.

    >>> result_name("films", "bert", "fine_tune", 0)
    'films/bert.fine_tune.seed0.json'
    """
    return f"{task}/{encoder}.{run}.seed{seed}.json"


def result_hash(task: str, settings: Mapping[str, Any], seed: int, inputs: Any) -> str:
    """Hash of everything that determines a result.

    Args:
        task: Name of the task.
        settings: Settings as an object of JSON, with keys in any order.
        seed: Seed of the run.
        inputs: Hashes of the data and of the pre-trained weights.

    Returns:
        The hash, 64 hexadecimal digits.

    >>> first = result_hash("films", {"epochs": 1}, seed=0, inputs=None)
    >>> len(first), first == result_hash("films", {"epochs": 2}, seed=0, inputs=None)
    (64, False)
    """
    decisive = {"task": task, "settings": settings, "seed": seed, "inputs": inputs}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
