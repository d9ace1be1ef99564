"""One run: a task, an encoder, a method, a seed, to one JSON file.

Equal terms: every method gets the same grid of learning rates, each trained for the same number
of epochs, of which the best on the choosing set is kept. The grid is searched with seed 0; the
other seeds take its winner. The reported split is looked at once, by the chosen model.
"""

import dataclasses
import glob
import hashlib
import json
import os
import time
from pathlib import Path

import keras
import numpy as np

import keras_plm
from keras_plm.data.documents import join_sentences, part_sentences
from keras_plm.data.labels import label_names, tag_scheme_of
from keras_plm.experiments.config import file_name
from keras_plm.experiments.flags import policy
from keras_plm.experiments.memory import peak_memory_mb, reset_peak_memory
from keras_plm.experiments.results import (
    environment,
    set_aside,
    stored,
    write_examples,
)
from keras_plm.experiments.statistics import summands
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.writing import replacing, write_json
from keras_plm.heads.encoded import check_word_vectors
from keras_plm.training.distribution import Distribution, distribute
from keras_plm.training.resume import set_seed
from keras_plm.transfer import (
    FeatureStore,
    clone,
)
from keras_plm.transfer.feature_store import fitting


@dataclasses.dataclass
class Bench:
    """A task's examples and an encoder, read once for many runs.

    Args:
        task: A `Task`.
        data: The data folder.
        encoder: Folder of an encoder and its tokenizer.
        results: Folder for result files.
        store: Folder for features.
        feature_gb: Largest feature store, in gigabytes.
        progress: Called with a line of text when something is done.
        models: Folder for the fine-tuned models of the first seed, if they are kept.
        name: What results call the encoder, by default its folder's name.
        epoch: Called with a line of text about where training is.
        devices: On how many an encoder is trained; `None` for all.

    Raises:
        ValueError: If the backend trains on fewer devices here.
    """

    task: object
    data: str
    encoder: str
    results: str
    store: str
    feature_gb: float = 8.0
    progress: object = None
    models: str | None = None
    name: str = ""
    epoch: object = None
    devices: int | None = 1

    def __post_init__(self):
        self.distribution = _distribution(self.devices)
        self.name = self.name or Path(self.encoder).resolve().name
        self.pretrained, self.tokenizer = keras_plm.load(self.encoder, dtype="float32")
        self.examples = {
            split: self.task.read(self.data, split) for split in ("train", "dev", "test")
        }
        self._stores, self._words, self._joined, self._limited = {}, {}, {}, {}
        self.scheme = None
        if self.task.head.kind == "words":
            every = [example for part in self.examples.values() for example in part]
            self.scheme = tag_scheme_of(every)
        texts = [[_content(e) for e in part] for part in self.examples.values()]
        self._data_and_weights = fingerprint(self.pretrained, self.tokenizer, texts)

    def parts(self, run):
        """The examples of a run by split, and of sentences that were joined their words."""
        limit = run.document_tokens
        if not limit:
            return self.examples, None
        if limit not in self._joined:
            joined = {s: join_sentences(e, self.tokenizer, limit) for s, e in self.examples.items()}
            self._joined[limit] = [{s: found[i] for s, found in joined.items()} for i in (0, 1)]
        return self._joined[limit]

    def train_examples(self, run):
        """The training examples of a run, all or a fixed random part."""
        return self._at_most(run, "train", run.train_limit)

    def dev_examples(self, run):
        """The examples that choose in a run, all or a fixed random part."""
        return self._at_most(run, "dev", run.dev_limit)

    def _at_most(self, run, split, limit):
        examples = self.parts(run)[0][split]
        if not limit or limit >= len(examples):
            return examples
        key = split, limit
        if key not in self._limited:  # one list for all runs, by which their features are known
            rows = np.random.default_rng(0).permutation(len(examples))[:limit]
            self._limited[key] = [examples[row] for row in np.sort(rows)]
        return self._limited[key]

    def path(self, run, seed):
        """The result file of a run."""
        return Path(self.results) / self.task.name / file_name(self.name, run.name, seed)

    def key(self, run, seed):
        """A hash of configuration, data and encoder weights."""
        config = run.config | {"seed": seed, "task": self.task.name}
        text = json.dumps([config, self._inputs(run)])
        return hashlib.sha256(text.encode()).hexdigest()

    def _inputs(self, run):
        """A hash of data and weights, those of word vectors too."""
        if not run.words:
            return self._data_and_weights
        return fingerprint([self._data_and_weights, self._word_vectors(run)[1]])

    def _word_vectors(self, run):
        """`(encoder, hash)` of a run's word vectors, read once."""
        if run.words not in self._words:
            words, _ = keras_plm.load(run.words, dtype="float32")
            check_word_vectors(words)
            self._words[run.words] = words, fingerprint(words)
        return self._words[run.words]

    def run(self, run, seed):
        """Runs what is not done yet; returns the result, as its file holds it."""
        done, model_file = self.result(run, seed), self._model_file(run, seed)
        if done is not None and (model_file is None or model_file.is_file()):
            return done
        for name, pool in (("pool", run.pool != "mean"), ("text_pool", run.text_pool)):
            if pool and self.task.head.per_word:
                raise ValueError(
                    f"Only texts are pooled. Received: {name}={getattr(run, name)!r} on "
                    f"{self.task.name}"
                )
        if run.document_tokens and (not self.task.head.per_word or self.task.head.per_token):
            raise ValueError(
                "`document_tokens` is of tasks that tag words. "
                f"Received: document_tokens={run.document_tokens} on {self.task.name}"
            )
        train, dev, head = self.train_examples(run), self.dev_examples(run), run.head(self.task)
        if run.reads_features:
            tokenizer = fitting(self.tokenizer, self.pretrained)
            run.build(run.grid[0], seed).check(head, train, tokenizer, run.words or None)
        started = time.monotonic()
        reset_peak_memory()
        set_seed(seed)
        labels = self._labels()
        for i, example in enumerate(self.examples["test"]):  # raises for one without a label
            self.task.head.target(example, labels, training=False, number=i)
        searched = done or (self.result(run, 0) if seed else None)
        if searched:
            trials, best, log = searched["trials"], None, None
        else:
            trials, best, log = self._search(run, train, labels)
        chosen = best_trial(trials)
        rate, dev_score = chosen["learning_rate"], chosen["dev_score"]
        if seed or searched:
            best, log = self._fit(run, rate, seed, train, labels)
            dev_score = log["dev_score"]

        test = self.examples["test"]
        truth = [example.label for example in test]
        read, counts = self.parts(run)
        predicted = self._predict(run, best, seed, labels, read["test"])
        if counts is not None:
            predicted = part_sentences(predicted, counts["test"])
        scores = {name: float(m(truth, predicted)) for name, m in self.task.metrics.items()}
        if not np.isfinite(list(scores.values())).all():
            raise FloatingPointError(f"A score must be a finite number. Received: {scores}")
        mixes = best.mixing_weights() if run.reads_features else {}
        count = self.distribution.num_devices
        result = {
            "task": self.task.name,
            "encoder": self.name,
            "method": run.method,
            "run": run.name,
            "fields": run.config | {"learning_rate": rate},
            "seed": seed,
            "counts": {
                "train": len(self.examples["train"]) if run.document_tokens else len(train),
                "dev": len(self.examples["dev"]) if run.document_tokens else len(dev),
                "test": len(test),
                "labels": len(labels),
            },
            "trials": trials,
            "dev_score": dev_score,
            "score": next(iter(scores.values())),
            "metrics": scores,
            **({} if self.scheme is None else {"scheme": self.scheme}),
            **({"mixes": mixes} if mixes else {}),
            **({} if run.reads_features else {"curve": _curve(log)}),
            "seconds": round(time.monotonic() - started, 1),
            "cost": _cost(run, log),
            **environment(),
            **({} if run.reads_features or count == 1 else {"devices": count}),
            "hash": self.key(run, seed),
            "inputs": self._inputs(run),
        }
        kept = self._keep_older(run)
        if model_file is not None:
            with replacing(model_file, ".keras") as temporary:
                best.save(temporary)
            kept += f"; the model is {model_file}"
        parts = {name: summands(m, truth, predicted) for name, m in self.task.metrics.items()}
        parts = {name: part for name, part in parts.items() if part is not None}
        write_examples(self.path(run, seed), result["hash"], parts)
        write_json(self.path(run, seed), result)
        self._say(f"{run.name} seed {seed}: {result['score']:.4f} reported{kept}")
        return result

    def _labels(self):
        """The labels of the training examples; of scores the range that the task has."""
        if self.task.head.scores and self.task.labels:
            return self.task.labels
        return self.task.head.labels_of(self.examples["train"])  # a part may lack some

    def unseen_labels(self):
        """The labels that dev and test set have and training has not: they count as errors."""
        if self.task.head.scores or self.task.head.per_token:
            return []
        known, others = set(self._labels()), [*self.examples["dev"], *self.examples["test"]]
        return [name for name in label_names(others) if name not in known]

    def _model_file(self, run, seed):
        """Where the fine-tuned model is kept, if it is: of the first seed alone."""
        if self.models is None or seed:
            return None
        if run.reads_features:
            raise ValueError(
                "Kept are models that are fine-tuned whole; `FeatureBased.fit` in Python makes one "
                f"that reads features. Received: method={run.method!r} with --save-model"
            )
        name = f"{self.task.name}.{self.name}.{run.name}.keras"
        return Path(self.models) / name

    def _search(self, run, train, labels):
        """`(trials, model, log)`: what each rate gives with seed 0, and the best one's.

        A rate with which training diverges has a trial without a score, and is never the best.

        Raises:
            FloatingPointError: If training diverges with every rate.
        """
        trials, best, best_log = [], None, None
        for rate in run.grid:
            begun = time.monotonic()
            try:
                model, log = self._fit(run, rate, 0, train, labels)
            except FloatingPointError as error:
                trials.append(
                    {
                        "learning_rate": rate,
                        "dev_score": None,
                        "error": str(error),
                        "seconds": round(time.monotonic() - begun, 1),
                    }
                )
                self._say(f"{run.name} learning rate {rate:g} diverged: {error}")
                continue
            if log["dev_score"] > _best_score(trials):
                best, best_log = model, log  # of equals the first, as `max` takes
            trials.append(
                {
                    "learning_rate": rate,
                    "dev_score": log["dev_score"],
                    "best_epoch": log["best_epoch"],
                    "seconds": round(time.monotonic() - begun, 1),
                }
            )
            self._say(f"{run.name} rate {rate:g}: {log['dev_score']:.4f} on the choosing set")
        if best is None:
            raise FloatingPointError(
                "Training must converge with one learning rate at least: give lower ones with "
                f"--learning-rates. Received: {run.learning_rates}, where the first gave: "
                f"{trials[0]['error']}"
            )
        return trials, best, best_log

    def result(self, run, seed):
        """The stored result, if its configuration, data and weights are today's."""
        return stored(self.path(run, seed), self.key(run, seed))

    def _keep_older(self, run):
        """Moves results of other settings, data or weights aside, all seeds, and says so."""
        kept = ""
        for path in self.path(run, 0).parent.glob(
            f"{glob.escape(self.name)}.{glob.escape(run.name)}.seed*.json"
        ):
            if self.result(run, int(path.stem.rpartition("seed")[2])) is None:
                if (examples := path.with_suffix(".npz")).is_file():
                    set_aside(examples)
                kept += f"; the older result is kept as {set_aside(path).name}"
        return kept

    def _encoder(self, run, seed):
        """The encoder of a run: as it was loaded, with fresh weights, in its precision."""
        fresh = run.method in ("scratch", "untrained")
        dtype = "float32" if run.reads_features else policy(run.precision)
        if fresh:
            set_seed(seed)
            config = {**self.pretrained.get_config(), "dtype": dtype}
            return type(self.pretrained).from_config(config)
        if dtype == self.pretrained.dtype_policy.name:
            return self.pretrained
        return clone(self.pretrained, dtype=dtype)

    def _fit(self, run, rate, seed, train, labels):
        method = run.build(rate, seed)
        dev, metric = self.dev_examples(run), next(iter(self.task.metrics.values()))
        told = [_Told(self.epoch, f"{run.name} rate {rate:g}", run.epochs)] if self.epoch else []
        if run.reads_features:
            stores = [self._features(run, seed, part) for part in (train, dev)]
            beside = [self._words_beside(run, part) for part in (train, dev)] if run.words else None
            readout, log = method.fit_reader(
                run.head(self.task), stores, train, dev, labels, metric, told, words=beside
            )
            return readout, log | {"feature_bytes": sum(store.array.nbytes for store in stores)}
        model = method.fit(
            self._encoder(run, seed),
            run.head(self.task),
            self.tokenizer,
            train,
            dev,
            labels=labels,
            metric=metric,
            callbacks=told,
            symmetric=self.task.symmetric,
            distribution=self.distribution,
        )
        return model, model.training_log

    def _predict(self, run, model, seed, labels, examples):
        if not run.reads_features:
            return model.predict(examples)
        method = run.build(run.grid[0], seed)
        store = self._features(run, seed, examples)
        beside = self._words_beside(run, examples) if run.words else None
        return method.predict(run.head(self.task), model, store, labels, beside)

    def _features(self, run, seed, examples):
        """The features of some examples, read once for all choices of layers."""
        pool = run.build(run.grid[0], seed).store_pool(run.head(self.task))
        key = (run.method, seed if run.method == "untrained" else 0, pool, id(examples))
        if key not in self._stores:
            encoder = self._encoder(run, seed)
            self._stores[key] = (
                FeatureStore.build(
                    self.store, encoder, self.tokenizer, examples, pool, self.feature_gb
                ),
                examples,  # kept, so that its id stays its own
            )
        return self._stores[key][0]

    def _words_beside(self, run, examples):
        """The word vectors beside the features of some examples."""
        words, state = self._word_vectors(run)
        key = (state, id(examples))
        if key not in self._stores:
            pool = run.build(run.grid[0], 0).store_pool(run.head(self.task))
            store = FeatureStore.build_words(
                self.store, words, self.pretrained, self.tokenizer, examples, self.feature_gb, pool
            )
            self._stores[key] = store, examples
        return self._stores[key][0]

    def _say(self, line):
        if self.progress is not None:
            self.progress(f"{self.task.name}  {line}")


def best_trial(trials):
    """The trial of the highest score on the dev set, the first of equals; diverged ones lose."""
    scored = [trial for trial in trials if trial["dev_score"] is not None]
    return max(scored, key=lambda trial: trial["dev_score"])


def _best_score(trials):
    return max((t["dev_score"] for t in trials if t["dev_score"] is not None), default=-np.inf)


def _distribution(devices):
    if keras.backend.backend() != "torch":
        return Distribution() if devices == 1 else distribute("data", devices=devices)
    if (devices or 1) > 1 or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError(
            "Under torch each run has one device: begin a process for each, as in "
            "`CUDA_VISIBLE_DEVICES=1 keras-plm run ...`; they share the folder of "
            f"results. Received: devices={devices}, "
            f"WORLD_SIZE={os.environ.get('WORLD_SIZE', 1)}"
        )
    return Distribution()


def _cost(run, log):
    """What a fit took beside time.

    Passes of the encoder over the training examples; weights that learned; the size of the features
    of training and choosing examples on disk; and the most memory of the process, in megabytes,
    since the run began, its search of rates among it.
    """
    return {
        "encoder_passes": 1 if run.reads_features else run.epochs,
        "learned_weights": log["learned_weights"],
        "feature_bytes": log.get("feature_bytes", 0),
        "peak_mb": round(peak_memory_mb()),
    }


class _Told(keras.callbacks.Callback):
    """Says which epoch it is."""

    def __init__(self, say, what, epochs):
        super().__init__()
        self.say, self.what, self.epochs = say, what, epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.say(f"{self.what}: epoch {epoch + 1} of {self.epochs}")


def _content(example):
    """What a result depends on; what came later only where there is some."""
    later = (example.choices, example.starts)
    lists = [list(values) for values in later if values is not None]
    return (example.text, example.pair, example.label, *lists)


def _curve(log):
    """The score on the choosing set by update."""
    updates = [log["steps_per_epoch"] * (i + 1) for i in range(len(log["dev_scores"]))]
    return {"updates": updates, "dev_scores": log["dev_scores"]}
