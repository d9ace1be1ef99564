"""One run: a task, an encoder, a method, a seed, to one JSON file.

Equal terms: every method gets the same grid of learning rates, each trained for the same number
of epochs, of which the best on the choosing set is kept. The grid is searched with seed 0; the
other seeds take its winner. The reported split is looked at once, by the chosen model.
"""

import dataclasses
import glob
import hashlib
import json
import math
import os
import time
from pathlib import Path

import keras
import numpy as np

import keras_plm
from benchmarks.records import environment, set_aside, stored, write_examples, write_json
from benchmarks.resampling import summands
from benchmarks.settings import policy, setting
from benchmarks.speed_clock import forget_peak, peak_so_far
from keras_plm.data import check_word_vectors, fingerprint
from keras_plm.documents import join_sentences, part_sentences
from keras_plm.features import choice_name, fitting
from keras_plm.heads import CRFTagger, Tagger
from keras_plm.readouts import PLACES
from keras_plm.resume import set_seed
from keras_plm.transfer import (
    SCHEDULES,
    FeatureBased,
    FeatureStore,
    FineTune,
    clone,
    layer_choice,
)

METHODS = {
    "fine_tune": "the pre-trained encoder, trained with its output layer",
    "features": "a reader of the frozen pre-trained encoder",
    "scratch": "the encoder with random weights, trained with its output layer",
    "untrained": "a reader of the frozen encoder with random weights",
}

READER = "'linear' or 'bilstm'; of texts 'bcn', of pairs 'esim', of questions 'bidaf', of tagged "
READER += "words 'bilstm_crf', behind an encoder"

# Fields of a run that came after the first results.
LATER = ("placement", "penalty", "mix_norm", "feature_dropout", "words", "units", "schedule")
LATER += ("layer_decay", "unfreeze_epochs", "text_pool", "language_model_weight", "n_transfer")
LATER += ("bias_correction", "document_tokens", "lora_rank", "character_filters")

CRF = "bilstm_crf"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run is, but for its task, encoder and seed.

    Reader "bilstm_crf" is the reader "bilstm" under a CRF, which in the library is another head: a
    task has one head for all its runs, so that here the reader's name tells. The spelling of words
    that Peters et al.'s tagger also reads is a setting of its own, `character_filters`: features
    know much of it already, and whether it helps beside them is a question to ask of any reader.
    """

    method: str = setting("fine_tune", f"one of {', '.join(METHODS)}")
    layers: str = setting("", "which layers are read (features, untrained); see `layers`")
    reader: str = setting("linear", READER)
    pool: str = setting("mean", "how a text's vectors are pooled for a linear reader")
    learning_rates: str = setting("1e-4,3e-4,1e-3,3e-3", "the grid, the same for every method")
    epochs: int = setting(10, "of each trial; the best on the choosing set is kept")
    batch_size: int = setting(32, "examples per step")
    dropout: float = setting(0.1, "before the output layer and in the reader")
    train_limit: int = setting(0, "at most so many training examples; 0 takes all")
    precision: str = setting("float32", "of an encoder that is trained: 'float32' or 'bfloat16'")
    placement: str = setting("input", "where features enter a reader: 'input', 'output' or 'both'")
    penalty: float = setting(0.0, "L2 penalty on the weights of a learned mix of layers")
    mix_norm: bool = setting(False, "a learned mix first normalises each layer")
    feature_dropout: float = setting(0.0, "share dropped of the features before a reader")
    words: str = setting("", "folder of word vectors beside a reader's features; '' is none")
    units: int = setting(0, "of each direction of a reader; 0 is half the encoder's width")
    schedule: str = setting("linear", f"of a trained encoder's rate: {' or '.join(SCHEDULES)}")
    layer_decay: float = setting(1.0, "rate of a trained layer over that of the next higher one")
    unfreeze_epochs: int = setting(0, "after which the next lower layer learns; 0 for all at once")
    text_pool: str = setting("", "how a trained encoder's texts are pooled; '' is its head's way")
    language_model_weight: float = setting(0.0, "of GPT's auxiliary objective beside the task")
    n_transfer: str = setting(
        "all", "pre-trained layers of a fine-tuned encoder: 'all', or a number, 0 embeddings alone"
    )
    bias_correction: bool = setting(False, "of a trained encoder's AdamW, as GPT was fine-tuned")
    lora_rank: int = setting(0, "of the matrices that alone learn beside attention's; 0 for none")
    character_filters: int = setting(
        0, "width of what a reader reads of each word's spelling; 0 is none, 128 AllenNLP's tagger"
    )
    document_tokens: int = setting(
        0, "a tagger's sentences of one document together, up to so many tokens; 0 is each alone"
    )

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(
                f"Known methods: {', '.join(METHODS)}. Received: method={self.method!r}"
            )
        if self.reads_features:
            object.__setattr__(self, "layers", choice_name(self.layers or "last"))
            layer_choice(self.layers)
        elif self.layers:
            raise ValueError(
                "Only the methods features and untrained choose layers. "
                f"Received: method={self.method!r}, layers={self.layers!r}"
            )
        if self.placement not in PLACES:
            raise ValueError(f"`placement` must be one of {PLACES}. Received: {self.placement!r}")
        mixes = self.reads_features and layer_choice(self.layers).combine == "mix"
        has_reader = self.reader != "linear"
        of_words = self.reads_features and has_reader
        by_reader = "method 'features' or 'untrained' and a reader, 'bilstm' say"
        by_mix = "method 'features' or 'untrained' and a mix of layers, 'elmo_mix' say"
        by_features, by_training = "method 'features' or 'untrained'", "a method that trains all"
        for name, given, allowed, needed in (
            ("pool", self.pool != "mean", self.reads_features and self.reader == "linear",
             by_features + " and reader 'linear'"),
            ("precision", self.precision != "float32", not self.reads_features, by_training),
            ("placement", self.placement != "input", of_words, by_reader),
            ("penalty", self.penalty, mixes, by_mix),
            ("mix_norm", self.mix_norm, mixes, by_mix),
            ("feature_dropout", self.feature_dropout, self.reads_features, by_features),
            ("words", self.words, of_words, by_reader),
            ("character_filters", self.character_filters, of_words, by_reader),
            ("units", self.units, has_reader, "a reader, 'bilstm' say"),
            ("schedule", self.schedule != "linear", not self.reads_features, by_training),
            ("layer_decay", self.layer_decay != 1.0, not self.reads_features, by_training),
            ("unfreeze_epochs", self.unfreeze_epochs, not self.reads_features, by_training),
            ("text_pool", self.text_pool, not self.reads_features, by_training),
            ("language_model_weight", self.language_model_weight, not self.reads_features,
             by_training),
            ("n_transfer", self.n_transfer != "all", self.method == "fine_tune",
             "method 'fine_tune'"),
            ("lora_rank", self.lora_rank, self.method == "fine_tune", "method 'fine_tune'"),
            ("bias_correction", self.bias_correction, not self.reads_features, by_training),
        ):  # fmt: skip
            if given and not allowed:
                raise ValueError(
                    f"`{name}` has no effect here, it needs {needed}. Received: "
                    f"method={self.method!r}, reader={self.reader!r}, layers={self.layers!r}, "
                    f"{name}={getattr(self, name)!r}"
                )
        if self.placement == "output" and not self.words:
            raise ValueError(
                "With placement='output' the reader reads word vectors alone: name their folder "
                "in `words`, or choose placement='both'. Received: words=''"
            )
        if self.units < 0:
            raise ValueError(
                f"`units` must be 0 (half the encoder's) or more. Received: {self.units}"
            )
        if self.lora_rank < 0:
            raise ValueError(f"`lora_rank` must be 0 (none) or more. Received: {self.lora_rank}")
        if self.n_transfer != "all" and not self.n_transfer.lstrip("-").isdigit():
            raise ValueError(
                f"`n_transfer` is 'all' or a whole number. Received: {self.n_transfer!r}"
            )
        policy(self.precision)
        self.build(1e-3, 0)  # says which other field is wrong
        try:
            good = all(0 < rate < math.inf for rate in self.grid)
        except ValueError:
            good = False
        if not good:
            raise ValueError(
                "`learning_rates` are numbers above 0 parted by commas. "
                f"Received: {self.learning_rates!r}"
            )
        if self.document_tokens < 0 or (self.document_tokens and self.train_limit):
            raise ValueError(
                "`document_tokens` is 0, or a number of tokens and all documents are read: leave "
                f"`train_limit` out. Received: document_tokens={self.document_tokens}, "
                f"train_limit={self.train_limit}"
            )
        if self.train_limit < 0:
            raise ValueError(f"`train_limit` must be 0 (all) or more. Received: {self.train_limit}")

    @property
    def reads_features(self):
        return self.method in ("features", "untrained")

    @property
    def grid(self):
        return [float(rate) for rate in self.learning_rates.split(",")]

    def lines(self, seed):
        """How many lines of progress it shows: one a trial, one at the end."""
        return 1 + (len(self.grid) if seed == 0 else 0)

    @property
    def name(self):
        """As in file names: the method, and what tells its variants apart."""
        parts = [self.method]
        if self.reads_features:
            parts += [self.reader, self.layers] + ([self.pool] if self.pool != "mean" else [])
            parts += [self.placement] if self.placement != "input" else []
            parts += [f"penalty{self.penalty:g}"] if self.penalty else []
            parts += ["mix_norm"] if self.mix_norm else []
            parts += [f"feature_dropout{self.feature_dropout:g}"] if self.feature_dropout else []
            parts += [f"words_{self.words_name}"] if self.words else []
        elif self.reader != "linear":
            parts.append(self.reader)
        parts += [f"characters{self.character_filters}"] if self.character_filters else []
        parts += [f"units{self.units}"] if self.units else []
        parts += [self.schedule] if self.schedule != "linear" else []
        parts += [f"decay{self.layer_decay:g}"] if self.layer_decay != 1.0 else []
        parts += [f"unfreeze{self.unfreeze_epochs}"] if self.unfreeze_epochs else []
        parts += [f"pool_{self.text_pool}"] if self.text_pool else []
        parts += [f"lm{self.language_model_weight:g}"] if self.language_model_weight else []
        parts += [f"layers{self.n_transfer}"] if self.n_transfer != "all" else []
        parts += [f"lora{self.lora_rank}"] if self.lora_rank else []
        parts += ["corrected"] if self.bias_correction else []
        parts += [f"documents{self.document_tokens}"] if self.document_tokens else []
        if self.train_limit:
            parts.append(f"n{self.train_limit}")
        if self.precision != "float32":
            parts.append(self.precision)
        return "-".join(parts)

    @property
    def words_name(self):
        """The name of the folder of word vectors."""
        return Path(self.words).resolve().name if self.words else ""

    @property
    def config(self):
        """The fields, as results keep them and hashes take them.

        Fields that came after the first results are left out at their defaults, so that these
        results stay what they are; of word vectors the folder's name counts, not its place.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        fields = dataclasses.asdict(self) | {"words": self.words_name}
        return {k: v for k, v in fields.items() if k not in LATER or v != defaults[k]}

    def build(self, learning_rate, seed):
        """The method with one learning rate and seed."""
        common = {
            "learning_rate": learning_rate,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "dropout": self.dropout,
            "seed": seed,
        }
        reader = "bilstm" if self.reader == CRF else self.reader
        if not self.reads_features:
            names = ("schedule", "layer_decay", "unfreeze_epochs", "language_model_weight")
            names += ("bias_correction",)
            chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
            count = None if self.n_transfer == "all" else int(self.n_transfer)
            pool = self.text_pool or None
            more = {"units": self.units or None, "lora_rank": self.lora_rank or None}
            return FineTune(pool=pool, n_transfer=count, **more, **chosen, **common)
        names = ("layers", "pool", "placement", "penalty", "mix_norm", "feature_dropout")
        names += ("character_filters",)
        chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
        return FeatureBased(units=self.units or None, **chosen, **common)

    def head(self, task):
        """The head that solves a task under this reader."""
        if self.reader != CRF:
            return task.head
        if task.head is not Tagger:
            raise ValueError(
                "A CRF chooses the tags of words; texts are read by 'bilstm', 'bcn' or 'esim', "
                f"questions by 'bidaf'. Received: reader={CRF!r} on {task.name}"
            )
        return CRFTagger


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

    def __post_init__(self):
        self.name = self.name or Path(self.encoder).resolve().name
        self.pretrained, self.tokenizer = keras_plm.load(self.encoder, dtype="float32")
        self.examples = {
            split: self.task.read(self.data, split) for split in ("train", "dev", "test")
        }
        self._stores, self._words, self._joined = {}, {}, {}
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
        examples = self.parts(run)[0]["train"]
        if not run.train_limit or run.train_limit >= len(examples):
            return examples
        rows = np.random.default_rng(0).permutation(len(examples))[: run.train_limit]
        return [examples[row] for row in np.sort(rows)]

    def path(self, run, seed):
        """The result file of a run."""
        return Path(self.results) / self.task.name / f"{self.name}.{run.name}.seed{seed}.json"

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
        train, head = self.train_examples(run), run.head(self.task)
        if run.reads_features:
            tokenizer = fitting(self.tokenizer, self.pretrained)
            run.build(run.grid[0], seed).check(head, train, tokenizer, run.words or None)
        started = time.monotonic()
        forget_peak()
        set_seed(seed)
        labels = self.task.head.labels_of(self.examples["train"])  # a part may lack some
        for example in self.examples["test"]:
            self.task.head.target(example, labels)  # before anything is trained
        searched = done or (self.result(run, 0) if seed else None)
        if searched:
            trials, best, log = searched["trials"], None, None
        else:
            trials, best, log = self._search(run, train, labels)
        chosen = max(trials, key=lambda trial: trial["dev_score"])
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
        mixes = best.mixing_weights() if run.reads_features else {}
        result = {
            "task": self.task.name,
            "encoder": self.name,
            "method": run.method,
            "run": run.name,
            "fields": run.config | {"learning_rate": rate},
            "seed": seed,
            "counts": {
                "train": len(self.examples["train"]) if run.document_tokens else len(train),
                "dev": len(self.examples["dev"]),
                "test": len(test),
                "labels": len(labels),
            },
            "trials": trials,
            "dev_score": dev_score,
            "score": next(iter(scores.values())),
            "metrics": scores,
            **({"mixes": mixes} if mixes else {}),
            **({} if run.reads_features else {"curve": _curve(log)}),
            "seconds": round(time.monotonic() - started, 1),
            "cost": _cost(run, log),
            **environment(),
            "hash": self.key(run, seed),
            "inputs": self._inputs(run),
        }
        kept = self._keep_older(run)
        if model_file is not None:
            model_file.parent.mkdir(parents=True, exist_ok=True)
            temporary = model_file.with_suffix(".tmp.keras")
            best.save(temporary)
            os.replace(temporary, model_file)
            kept += f"; the model is {model_file}"
        parts = {name: summands(m, truth, predicted) for name, m in self.task.metrics.items()}
        parts = {name: part for name, part in parts.items() if part is not None}
        write_examples(self.path(run, seed), result["hash"], parts)
        write_json(self.path(run, seed), result)
        self._say(f"{run.name} seed {seed}: {result['score']:.4f} reported{kept}")
        return result

    def _model_file(self, run, seed):
        """Where the fine-tuned model is kept, if it is: of the first seed alone."""
        if self.models is None or seed:
            return None
        if run.reads_features:
            raise ValueError(
                "Kept are models that are fine-tuned whole; `FeatureBased.fit` in Python makes one "
                f"that reads features. Received: method={run.method!r} with --keep"
            )
        name = f"{self.task.name}.{self.name}.{run.name}.keras"
        return Path(self.models) / name

    def _search(self, run, train, labels):
        """`(trials, model, log)`: what each rate gives with seed 0, and the best one's."""
        trials, best, best_log = [], None, None
        for rate in run.grid:
            begun = time.monotonic()
            model, log = self._fit(run, rate, 0, train, labels)
            if log["dev_score"] > max((t["dev_score"] for t in trials), default=-np.inf):
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
        dev, metric = self.parts(run)[0]["dev"], next(iter(self.task.metrics.values()))
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
            store = FeatureStore.build_words(
                self.store, words, self.pretrained, self.tokenizer, examples, self.feature_gb
            )
            self._stores[key] = store, examples
        return self._stores[key][0]

    def _say(self, line):
        if self.progress is not None:
            self.progress(f"{self.task.name}  {line}")


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
        "peak_mb": round(peak_so_far()),
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


def summary(results):
    """Mean, deviation between seeds (n - 1) and number of scores."""
    scores = np.array([result["score"] for result in results])
    deviation = float(scores.std(ddof=1)) if len(scores) > 1 else float("nan")
    return float(scores.mean()), deviation, len(scores)
