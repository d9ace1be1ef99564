"""Runner: trains and scores a task, an encoder, a method and a seed, for one record.

Equal terms: every method searches its learning rate, trains the same number of epochs with each
rate, and keeps the epoch that is best on the dev set. Seed 0 searches; the other seeds take its
learning rate. Only the chosen model reads the evaluation split, once.
"""

import dataclasses
import functools
import glob
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_plm
from keras_plm.checkpoints.packages import model_name
from keras_plm.data.documents import join_sentences, part_sentences
from keras_plm.data.labels import label_names, tag_scheme_of
from keras_plm.data.task import Example, Task
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.environment import environment, peak_memory_mb, reset_peak_memory
from keras_plm.experiments.results import Record, ResultFolder, result_hash, result_name
from keras_plm.experiments.runner.common_fit import CommonFit
from keras_plm.experiments.runner.costs import curve, flops
from keras_plm.experiments.runner.features import Features
from keras_plm.experiments.runner.saved_model import hash_in, save_model
from keras_plm.experiments.runner.search import EarlierSearch, search
from keras_plm.experiments.runner.trials import best_trial
from keras_plm.experiments.statistics import F1S, summands
from keras_plm.files.arguments import check_number
from keras_plm.files.disk_space import try_to_write
from keras_plm.files.fingerprint import fingerprint
from keras_plm.heads import Tagger
from keras_plm.training.distribution import Distribution, distribute
from keras_plm.training.resume import set_seed
from keras_plm.transfer.feature_store import fitting


@dataclasses.dataclass
class Runner:
    """Runner of one task and one encoder; it reads them once for many runs.

    Args:
        task: A `Task`.
        data: Data folder; `None` for a task that needs none.
        encoder: Folder of an encoder and its tokenizer.
        results: Folder for result files.
        store: Folder for features.
        feature_gb: Largest feature store, in gigabytes.
        progress: Called with a line of text after each piece of work.
        models: Folder for the models of seed 0; by default they are not saved.
        name: Name of the encoder in results; by default its folder's name.
        epoch: Called with a line of text about the current epoch, or the features read so far.
        devices: Number of devices to train an encoder on; `None` for all.

    Raises:
        ValueError: If the backend trains on fewer devices here.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from keras_plm.datasets.tasks import task_from_file
    >>> from keras_plm.experiments.config import Run
    >>> from keras_plm.models import WordVectors
    >>> words = WordVectors.from_vectors(["fine", "dull"], np.eye(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     film = Path(folder, "film.csv")
    ...     size = film.write_text("text,label\\n" + "fine,good\\ndull,bad\\n" * 20)
    ...     keras_plm.save(f"{folder}/words", words, words.tokenizer())
    ...     task = task_from_file(film, "text", "label")
    ...     runner = Runner(task, None, f"{folder}/words", folder, folder)
    ...     run = Run(method="features", layers="embeddings", epochs=1)
    ...     runner.run(run, seed=0).counts["train"]
    28
    """

    task: Task
    data: str | None
    encoder: str
    results: str
    store: str
    feature_gb: float = 8.0
    progress: Callable[[str], Any] | None = None
    models: str | None = None
    name: str = ""
    epoch: Callable[[str], Any] | None = None
    devices: int | None = 1

    def __post_init__(self):
        check_number(self.feature_gb, "feature_gb", least=0)
        self.distribution = _distribution(self.devices)
        self.kept = ResultFolder(self.results)
        self.name = self.name or model_name(self.encoder)
        self.pretrained, self.tokenizer = keras_plm.load(self.encoder, dtype="float32")
        self.examples = {
            split: self.task.read(self.data, split) for split in ("train", "dev", "test")
        }
        self._joined, self._limited = {}, {}
        self.features, self._common_fit = Features(self), CommonFit(self)
        self.scheme = None
        if issubclass(self.task.head, Tagger):
            every = [example for part in self.examples.values() for example in part]
            self.scheme = tag_scheme_of(every)
        texts = [[_content(e) for e in part] for part in self.examples.values()]
        self._data_and_weights = fingerprint(
            self.pretrained, self.tokenizer, texts, *_own_settings(self.task)
        )

    def parts(self, run: Run) -> tuple[dict[str, Sequence[Example]], dict | None]:
        """Returns the examples of a run by split; for joined sentences, also their words.

        Raises:
            ValueError: If the sentences of the task cannot be joined.
        """
        limit = run.document_tokens
        if not limit:
            return self.examples, None
        head = self.task.head
        if not head.per_word or head.per_token or head.marks_predicates or head.reads_documents:
            raise ValueError(
                "`document_tokens` needs a task of tagged words without predicates or clusters. "
                f"Received: document_tokens={limit} on {self.task.name}"
            )
        if limit not in self._joined:
            joined = {s: join_sentences(e, self.tokenizer, limit) for s, e in self.examples.items()}
            self._joined[limit] = [{s: found[i] for s, found in joined.items()} for i in (0, 1)]
        return self._joined[limit]

    def train_examples(self, run: Run) -> Sequence[Example]:
        """Returns the training examples of a run, all or a fixed random part."""
        return self._at_most(run, "train", run.train_limit)

    def dev_examples(self, run: Run) -> Sequence[Example]:
        """Returns the dev set of a run, all or a fixed random part."""
        return self._at_most(run, "dev", run.dev_limit)

    def all_examples(self, run: Run) -> tuple[Sequence[Example], ...]:
        """Returns the examples of a run: training, dev set and evaluation split."""
        return self.train_examples(run), self.dev_examples(run), self.parts(run)[0]["test"]

    def _at_most(self, run, split, limit):
        examples = self.parts(run)[0][split]
        if not limit or limit >= len(examples):
            return examples
        key = split, limit
        if key not in self._limited:  # one list for all runs: its id is the key of its features
            rows = np.random.default_rng(0).permutation(len(examples))[:limit]
            self._limited[key] = [examples[row] for row in np.sort(rows)]
        return self._limited[key]

    def result_name(self, run: Run, seed: int) -> str:
        """Returns the name of a run's result in the folder of results."""
        return result_name(self.task.name, self.name, run.name, seed)

    def path(self, run: Run, seed: int) -> Path:
        """Returns the path of a run's result file before packing."""
        return self.kept.file(self.result_name(run, seed))

    def key(self, run: Run, seed: int) -> str:
        """Returns the hash of configuration, data, task and encoder weights."""
        return result_hash(self.task.name, run.to_json(), seed, self._inputs(run))

    def _inputs(self, run):
        """Returns a hash of data and weights, with those of word vectors."""
        parts = [self._data_and_weights]
        if run.words:
            parts.append(self.features.word_vectors(run)[1])
        if run.document_tokens:  # the groups are the documents
            parts.append([[example.group for example in e] for e in self.examples.values()])
        return fingerprint(parts) if len(parts) > 1 else parts[0]

    def run(self, run: Run, seed: int) -> Record:
        """Runs a configuration unless its result exists, and returns the `Record`.

        Seed 0 chooses the learning rate: another seed first runs seed 0, unless its result exists.
        A saved model of other settings, data or weights is trained again, and its file kept. It
        waits for another process that computes the same result.

        Raises:
            OSError: If the results or the model cannot be written; raised before training.
        """
        name, model_file = self.result_name(run, seed), self.model_file(run, seed)

        def done():
            found = self.result(run, seed)
            saved = model_file is None or hash_in(model_file) == self.key(run, seed)
            return found if saved else None

        if (found := done()) is not None:
            return found
        self._check(run, seed)
        self.kept.try_to_write(name)
        if model_file is not None:
            size = 4 * sum(int(np.prod(w.shape)) for w in self.pretrained.weights)
            try_to_write(model_file.parent, size)
        if seed and self.result(run, 0) is None:
            self.run(run, 0)
        with self.kept.one_writer(name, self.say):
            return done() or self._run(run, seed, model_file)

    def _run(self, run, seed, model_file):
        """Runs a configuration, even if its result exists, and returns the `Record`."""
        done = self.result(run, seed)
        reset_peak_memory()
        if run.reads_features:  # before the clock, because several runs read them
            for part in self.all_examples(run):
                self.features.of(run, seed, part)
                if run.words:
                    self.features.of_words(run, part)
        started = time.monotonic()
        set_seed(seed)
        labels = self._labels
        searched = done or (self.result(run, 0) if seed else None)
        if self._common_fit.takes(run, seed, labels):
            trials, model, predicted = self._common_fit.fit(run, seed, labels, searched)
            log = model.log
        elif searched is None:
            earlier = EarlierSearch.of(self, run)
            trials, model, log = search(self, run, labels, earlier)
            if model is None and earlier.chose(trials):
                earlier.take_over(self, run, trials, seed_0=model_file is None)
                if model_file is None:
                    return self.result(run, 0)
            if model is None:
                model, log = self.fit(run, best_trial(trials)["learning_rate"], 0, labels)
            started -= earlier.seconds(trials)
            predicted = self._predict(run, model, seed, labels)
        else:
            trials, rate = searched["trials"], best_trial(searched["trials"])["learning_rate"]
            model, log = self.fit(run, rate, seed, labels)
            predicted = self._predict(run, model, seed, labels)
        truth = [example.label for example in self.examples["test"]]
        scores = {name: float(m(truth, predicted)) for name, m in self.task.metrics.items()}
        if not np.isfinite(list(scores.values())).all():
            raise FloatingPointError(f"A score must be a finite number. Received: {scores}")
        taken = time.monotonic() - started
        record = Record(
            task=self.task.name,
            encoder=self.name,
            method=run.method,
            run=run.name,
            settings=run.to_json(),
            seed=seed,
            learning_rate=best_trial(trials)["learning_rate"],
            trials=trials,
            dev_score=log["dev_score"],
            score=next(iter(scores.values())),
            metrics=scores,
            counts=self._counts(run, labels),
            scheme=self.scheme,
            seconds=done["seconds"] if done else round(taken - log.get("others_seconds", 0), 1),
            learned_weights=log["learned_weights"],
            feature_bytes=log.get("feature_bytes", 0),
            peak_mb=round(peak_memory_mb()),
            hash=self.key(run, seed),
            inputs=self._inputs(run),
            flops=flops(self, run, log["learned_weights"]),
            **self._of_method(run, model, log),
            **environment(),
        )
        saved = ""
        if model_file is not None:
            older = save_model(self, run, model, record, labels, model_file)
            size = model_file.stat().st_size / 1e6
            part = " with its frozen encoder" if run.reads_features else ""
            saved = f"; the model{part} is {model_file} ({size:,.1f} MB)"
            saved += "" if older is None else f"; the older model is kept as {older.name}"
        parts = {name: summands(m, truth, predicted) for name, m in self.task.metrics.items()}
        parts = {name: part for name, part in parts.items() if part is not None}
        with self.kept.changing():  # no other process writes a seed of other settings
            kept = self.archive_older(run)
            self.kept.write(self.result_name(run, seed), record, parts)
        nothing = ""
        if record.score < 0.01 and parts.get(next(iter(scores)), ("",))[0] in F1S:
            nothing = (
                ". Warning: it finds almost nothing right. Train it longer, on more examples, or "
                "with other learning rates"
            )
        # One line, because each line counts as a piece of work.
        score = f"{record.score:.4f} on the evaluation split"
        others = [f"{name} {record.metrics[name]:.4f}" for name in list(record.metrics)[1:]]
        score += f" ({', '.join(others)})" if others else ""
        self.say(f"{run.name} seed {seed}: {score}{kept}{saved}{nothing}")
        return record

    def seeds_in_folder(self, run: Run) -> list[int]:
        """Returns the seeds with a result of a run of this name, perhaps of other settings."""
        start = self.result_name(run, 0).removesuffix("0.json")
        names = self.kept.names(f"{glob.escape(start)}*.json")
        return [int(name.removeprefix(start).removesuffix(".json")) for name in names]

    def _check(self, run, seed):
        """Raises a ValueError unless run, task and encoder fit together."""
        for name, pool in (("pool", run.pool != "mean"), ("text_pool", run.text_pool)):
            if pool and self.task.head.per_word:
                raise ValueError(
                    f"Pooling needs a task of texts. Received: {name}={getattr(run, name)!r} on "
                    f"{self.task.name}"
                )
        self.parts(run)
        if run.reads_features:
            tokenizer, head = fitting(self.tokenizer, self.pretrained), run.head(self.task)
            method = run.build(run.grid[0], seed)
            method.check(head, self.train_examples(run), tokenizer, run.words or None)

    def _counts(self, run, labels):
        """Returns the numbers of examples by split and of labels; joined sentences count singly."""
        used = {"train": self.train_examples(run), "dev": self.dev_examples(run)}
        used = self.examples if run.document_tokens else self.examples | used
        return {split: len(part) for split, part in used.items()} | {"labels": len(labels)}

    def _of_method(self, run, model, log):
        """Returns the keys of a record that depend on whether the run trains the encoder."""
        if run.reads_features:
            return {"encoder_passes": 1, "mixes": model.mixing_weights() or None}
        count = self.distribution.num_devices
        return {
            "encoder_passes": run.epochs,
            "curve": curve(log),
            "devices": count if count > 1 else None,
        }

    @functools.cached_property
    def _labels(self):
        """The labels of the training examples; for scores, the range of the task."""
        if self.task.head.scores and self.task.labels:
            return self.task.labels
        labels = self.task.head.labels_of(self.examples["train"])  # a part may lack some
        if labels is not None and len(set(labels)) < 2:
            raise ValueError(
                f"{self.task.name}: The training examples must have two labels or more. "
                f"Received: {list(labels)}"
            )
        for i, example in enumerate(self.examples["test"]):  # raises for one without a label
            self.task.head.target(example, labels, training=False, number=i)
        return labels

    def unseen_labels(self, run: Run) -> list[Any]:
        """Returns the labels of a run's dev set and evaluation split without training examples.

        They count as errors.
        """
        head = self.task.head
        if head.scores or head.per_token or head.reads_documents:
            return []
        train, dev, test = self.all_examples(run)
        known = set(label_names(train))
        return [name for name in label_names([*dev, *test]) if name not in known]

    def model_file(self, run: Run, seed: int = 0) -> Path | None:
        """Returns the path of a run's saved model; `None` without one. Only seed 0 has one."""
        if self.models is None or seed:
            return None
        name = f"{self.task.name}.{self.name}.{run.name}.keras"
        return Path(self.models) / name

    def plan(self, todo: Iterable[tuple[Run, int]]) -> None:
        """Announces pairs of run and seed that follow, see `CommonFit`."""
        self._common_fit.plan(todo)

    def result(self, run: Run, seed: int) -> Record | None:
        """Returns the stored `Record` if its configuration, data and weights match."""
        return self.kept.done(self.result_name(run, seed), self.key(run, seed))

    def archive_older(self, run: Run) -> str:
        """Archives results of all seeds with other settings, data or weights.

        Returns:
            A description for the line of progress.
        """
        said = ""
        for seed in self.seeds_in_folder(run):
            name = self.result_name(run, seed)
            kept = self.kept.archive(name) if self.result(run, seed) is None else None
            if kept is not None:
                said += f"; the older result is kept as {kept.name}"
        return said

    def fit(self, run: Run, rate: float, seed: int, labels: Sequence[Any] | None) -> tuple:
        """Trains a run with a learning rate; returns the model and the log of its training."""
        method, metric = run.build(rate, seed), next(iter(self.task.metrics.values()))
        train, dev = self.train_examples(run), self.dev_examples(run)
        shown = (
            [_ShowEpoch(self.epoch, f"{run.name} learning rate {rate:g}", run.epochs)]
            if self.epoch
            else []
        )
        if run.reads_features:
            stores = [self.features.of(run, seed, part) for part in (train, dev)]
            word_stores = (
                [self.features.of_words(run, part) for part in (train, dev)] if run.words else None
            )
            network, log = method.fit_reader(
                run.head(self.task), stores, train, dev, labels, metric, shown, words=word_stores
            )
            return network, log | {"feature_bytes": sum(store.array.nbytes for store in stores)}
        model = method.fit(
            self.features.encoder(run, seed),
            run.head(self.task),
            self.tokenizer,
            train,
            dev,
            labels=labels,
            metric=metric,
            callbacks=shown,
            symmetric=self.task.symmetric,
            distribution=self.distribution,
        )
        return model, model.training_log

    def _predict(self, run, model, seed, labels):
        """Returns the predictions on the evaluation split."""
        read, counts = self.parts(run)
        examples = read["test"]
        if run.reads_features:
            method = run.build(run.grid[0], seed)
            store = self.features.of(run, seed, examples)
            word_stores = self.features.of_words(run, examples) if run.words else None
            predicted = method.predict(run.head(self.task), model, store, labels, word_stores)
        else:
            predicted = model.predict(examples)
        return predicted if counts is None else part_sentences(predicted, counts["test"])

    def say(self, line: str) -> None:
        """Passes a line of text to `progress`."""
        if self.progress is not None:
            self.progress(f"{self.task.name}  {line}")


def _distribution(devices):
    if keras.backend.backend() != "torch":
        return Distribution() if devices == 1 else distribute("data", devices=devices)
    if (devices or 1) > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(
            "A run must have one device with torch: start a process for each device, such as "
            "`CUDA_VISIBLE_DEVICES=1 keras-plm run ...`, with a common folder of results. "
            f"Received: devices={devices}, "
            f"WORLD_SIZE={os.environ.get('WORLD_SIZE', 1)}"
        )
    return Distribution()


class _ShowEpoch(keras.callbacks.Callback):
    """Reports the current epoch."""

    def __init__(self, say, what, epochs):
        super().__init__()
        self.say, self.what, self.epochs = say, what, epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.say(f"{self.what}: epoch {epoch + 1} of {self.epochs}")


def _content(example):
    """Returns the parts of an example that determine a result; some only if it has them."""
    later = (example.choices, example.starts)
    lists = [list(values) for values in later if values is not None]
    values = [v for v in (example.predicate, example.sentences) if v is not None]
    return (example.text, example.pair, example.label, *lists, *values)


def _own_settings(task):
    """Returns what determines a result of a task, if `TASKS` has no equal task of this name."""

    def settings(of):
        return [of.head.__name__, list(of.metrics), of.symmetric, list(of.labels)]

    known = TASKS.get(task.name)
    return [] if known is not None and settings(known) == settings(task) else [settings(task)]
