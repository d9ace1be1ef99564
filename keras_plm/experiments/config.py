"""Configuration of a run: a method and its settings, without task, encoder and seed."""

import dataclasses
import math
import re
from pathlib import Path

import numpy as np

from keras_plm.experiments.flags import POLICIES, check_settings, setting
from keras_plm.heads import CRFTagger, Tagger
from keras_plm.heads.task_network import PLACES
from keras_plm.transfer import (
    SCHEDULES,
    FeatureBased,
    FineTune,
    layer_choice,
)
from keras_plm.transfer.layer_choices import choice_name

METHODS = {
    "fine_tune": "the pre-trained encoder, trained with its output layer",
    "features": "a reader of the frozen pre-trained encoder",
    "scratch": "the randomly initialised encoder, trained with its output layer",
    "randomly_initialised": "a reader of the frozen, randomly initialised encoder",
}

# Default searches of learning rates. On features of MiniLM the best rate of a linear head on one
# layer is mostly 3e-3 to 3e-2, on a learned mix of layers 1e-2 to 1e-1.
LINEAR_RATES, NETWORK_RATES = "1e-3,3e-3,1e-2,3e-2,1e-1,3e-1", "3e-4,1e-3,3e-3"
FINE_TUNING_RATES = "3e-5,1e-4,3e-4"

READER = "use this reader: 'linear' or 'bilstm'; also 'bcn' for texts, 'esim' for pairs, 'bidaf' "
READER += "for questions, 'bilstm_crf' for tagging with an encoder, 'alternating_lstm' for roles"

# Settings that `Run.to_json` always includes. It omits other settings at their defaults: a new
# setting then changes no name and no hash of existing results.
ALWAYS = ("method", "layers", "reader", "pool", "learning_rates", "epochs", "batch_size", "dropout",
          "train_limit", "precision")  # fmt: skip

# Settings that change memory and time, but not the result.
NEUTRAL = ("accumulation_steps", "remat")

CRF = "bilstm_crf"

# Each condition: a test of a run, and its description.
CONDITIONS = {
    "features": (lambda run: run.reads_features, "method 'features' or 'randomly_initialised'"),
    "linear": (
        lambda run: run.reads_features and run.reader == "linear",
        "method 'features' or 'randomly_initialised' and reader 'linear'",
    ),
    "network": (
        lambda run: run.reads_features and run.reader != "linear",
        "method 'features' or 'randomly_initialised' and a reader, for example 'bilstm'",
    ),
    "mix": (
        lambda run: run.reads_features and layer_choice(run.layers).combine == "mix",
        "method 'features' or 'randomly_initialised' and a mix of layers, for example 'elmo_mix'",
    ),
    "reader": (lambda run: run.reader != "linear", "a reader, for example 'bilstm'"),
    "training": (lambda run: not run.reads_features, "a method that trains the encoder"),
    "fine_tune": (lambda run: run.method == "fine_tune", "method 'fine_tune'"),
}
# Each setting: the condition under which it may differ from its default.
NEEDS = {
    "layers": "features",
    "pool": "linear",
    "precision": "training",
    "placement": "network",
    "penalty": "mix",
    "mix_norm": "mix",
    "feature_dropout": "features",
    "words": "network",
    "character_filters": "network",
    "units": "reader",
    "reader_layers": "reader",
    "schedule": "training",
    "layer_decay": "training",
    "unfreeze_epochs": "training",
    "text_pool": "training",
    "language_model_weight": "training",
    "pretrained_layers": "fine_tune",
    "lora_rank": "fine_tune",
    "bias_correction": "training",
    "accumulation_steps": "training",
    "remat": "training",
}
# Each setting: its part of a run's name if it differs from its default.
NAMED = {
    "pool": "{}",
    "placement": "{}",
    "penalty": "penalty{:g}",
    "mix_norm": "mix_norm",
    "feature_dropout": "feature_dropout{:g}",
    "words": "words_{}",
    "character_filters": "characters{}",
    "units": "units{}",
    "reader_layers": "depth{}",
    "schedule": "{}",
    "layer_decay": "decay{:g}",
    "unfreeze_epochs": "unfreeze{}",
    "text_pool": "pool_{}",
    "language_model_weight": "lm{:g}",
    "pretrained_layers": "layers{}",
    "lora_rank": "lora{}",
    "bias_correction": "corrected",
    "document_tokens": "documents{}",
    "train_limit": "n{}",
    "dev_limit": "dev{}",
    "precision": "{}",
    "accumulation_steps": "accumulate{}",
    "remat": "remat",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """Settings of a run; its `results.Record` holds them as `settings`.

    The help of each field states its meaning and unit. The reader "bilstm_crf" is "bilstm" with a
    CRF. In the library, the CRF is a different head. Here the name of the reader selects it,
    because a task has one head for all runs. `character_filters` adds the character ids of words
    to any reader. The tagger of Peters et al. also reads them.
    """

    method: str = setting("fine_tune", f"use this method: {', '.join(METHODS)}", choices=METHODS)
    layers: str = setting("", "read these layers of a frozen encoder, see the command `layers`")
    reader: str = setting("linear", READER)
    pool: str = setting("mean", "pool a text's vectors this way for a linear reader")
    learning_rates: str = setting(
        "",
        f"search these learning rates (default {LINEAR_RATES} for a linear head on frozen layers, "
        f"{NETWORK_RATES} for other readers, {FINE_TUNING_RATES} for an encoder)",
    )
    epochs: int = setting(10, "train each trial for N epochs and keep the best one on the dev set")
    batch_size: int = setting(32, "read N examples per step")
    dropout: float = setting(0.1, "drop this fraction in the reader and before the output layer")
    train_limit: int = setting(0, "train on at most N examples; 0 takes all", least=0)
    dev_limit: int = setting(0, "keep at most N examples of the dev set; 0 takes all", least=0)
    precision: str = setting(
        "float32", f"train an encoder in this precision: {', '.join(POLICIES)}", choices=POLICIES
    )
    placement: str = setting(
        "input", f"choose where features enter a reader: {', '.join(PLACES)}", choices=PLACES
    )
    penalty: float = setting(0.0, "weight the L2 penalty of a learned mix of layers by this")
    mix_norm: bool = setting(False, "normalise each layer of a learned mix first")
    feature_dropout: float = setting(0.0, "drop this fraction of the features before a reader")
    words: str = setting("", "also feed a reader the word vectors of this folder; '' for none")
    units: int = setting(
        0, "give each direction of a reader N units; 0 for half the encoder's width", least=0
    )
    reader_layers: int = setting(
        0, "give the reader 'bilstm' (default 2) or 'alternating_lstm' (8) N layers", least=0
    )
    schedule: str = setting(
        "linear", f"schedule a trained encoder's learning rate this way: {', '.join(SCHEDULES)}"
    )
    layer_decay: float = setting(
        1.0, "multiply the learning rate by this for each lower layer of a trained encoder"
    )
    unfreeze_epochs: int = setting(0, "unfreeze one lower layer every N epochs; 0 for all at once")
    text_pool: str = setting("", "pool a trained encoder's texts this way; '' as its head does")
    language_model_weight: float = setting(0.0, "weight GPT's auxiliary objective by this")
    pretrained_layers: str = setting(
        "all", "keep N pre-trained layers for fine-tuning; 'all', or 0 for the embeddings only"
    )
    bias_correction: bool = setting(
        False, "correct the bias of AdamW when training an encoder, as GPT does"
    )
    lora_rank: int = setting(
        0, "train only LoRA matrices of rank N next to those of attention; 0 for none", least=0
    )
    character_filters: int = setting(
        0,
        "also feed a reader character ids through N filters (AllenNLP: 128); 0 for none",
    )
    accumulation_steps: int = setting(
        1, "split each batch of a trained encoder into N micro-batches"
    )
    remat: bool = setting(False, "use rematerialization in a trained Transformer, to save memory")
    document_tokens: int = setting(
        0, "tag a document's sentences together, up to N tokens; 0 tags each sentence separately",
        least=0,
    )  # fmt: skip

    def __post_init__(self):
        check_settings(self)
        if self.reads_features:
            object.__setattr__(self, "layers", choice_name(self.layers or "last"))
            layer_choice(self.layers)
        if not self.learning_rates:
            object.__setattr__(self, "learning_rates", self._default_rates())
        for name in self._changed(NEEDS):
            holds, words = CONDITIONS[NEEDS[name]]
            if not holds(self):
                given = dict.fromkeys(("method", "reader", "layers", name))
                shown = ", ".join(f"{key}={getattr(self, key)!r}" for key in given)
                raise ValueError(f"`{name}` needs {words}. Received: {shown}")
        if self.placement == "output" and not self.words:
            raise ValueError(
                "With placement='output', the reader reads only word vectors: name their folder "
                "in `words`, or choose placement='both'. Received: words=''"
            )
        if not re.fullmatch("all|-?[0-9]+", self.pretrained_layers):
            raise ValueError(
                "`pretrained_layers` must be 'all' or a whole number. "
                f"Received: {self.pretrained_layers!r}"
            )
        if self.document_tokens and (self.train_limit or self.dev_limit):
            raise ValueError(
                "`document_tokens` reads all documents: omit `train_limit` and `dev_limit`. "
                f"Received: document_tokens={self.document_tokens}, "
                f"train_limit={self.train_limit}, dev_limit={self.dev_limit}"
            )
        self.build(self.grid[0], 0)  # checks the other fields

    def _changed(self, names):
        """Returns those of the named settings that differ from their defaults."""
        return [name for name in names if getattr(self, name) != DEFAULTS[name]]

    def _default_rates(self):
        if not self.reads_features:
            return FINE_TUNING_RATES
        return LINEAR_RATES if self.reader == "linear" else NETWORK_RATES

    @property
    def reads_features(self):
        return self.method in ("features", "randomly_initialised")

    @property
    def grid(self):
        """Learning rates of the search."""
        try:
            rates = [float(rate) for rate in self.learning_rates.split(",")]
        except ValueError:
            rates = [math.nan]
        if not all(0 < rate < math.inf for rate in rates):
            raise ValueError(
                "`learning_rates` must be numbers above 0, separated by commas. "
                f"Received: {self.learning_rates!r}"
            )
        return rates

    def lines(self, seed):
        """Returns the number of progress lines: one for each trial, and one at the end."""
        return 1 + (len(self.grid) if seed == 0 else 0)

    @property
    def name(self):
        """Part of a file name for this run: its method and the settings that distinguish it."""
        parts = [self.method]
        if self.reads_features:
            parts += [self.reader, self.layers]
        elif self.reader != "linear":
            parts.append(self.reader)
        values = {name: getattr(self, name) for name in NAMED} | {"words": self.words_name}
        parts += [NAMED[name].format(values[name]) for name in self._changed(NAMED)]
        return "-".join(parts)

    @property
    def words_name(self):
        """Name of the folder of word vectors."""
        return Path(self.words).resolve().name if self.words else ""

    def to_json(self):
        """Returns the settings for a record and its hash.

        They always include those in `ALWAYS`, and omit others at their defaults. Only the name of
        a folder of word vectors counts.
        """
        fields = dataclasses.asdict(self) | {"words": self.words_name}
        kept = {*ALWAYS, *self._changed(DEFAULTS)}
        return {name: value for name, value in fields.items() if name in kept}

    @classmethod
    def from_json(cls, settings):
        """Creates a run from the settings of a record; its `words` is the name of a folder."""
        return cls(**settings)

    def build(self, learning_rate, seed):
        """Returns the method with this learning rate and seed."""
        common = {
            "learning_rate": learning_rate,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "dropout": self.dropout,
            "seed": seed,
        }
        reader = "bilstm" if self.reader == CRF else self.reader
        if self.method in ("fine_tune", "scratch"):
            names = ("schedule", "layer_decay", "unfreeze_epochs", "language_model_weight")
            names += ("bias_correction", "remat", "accumulation_steps")
            chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
            count = None if self.pretrained_layers == "all" else int(self.pretrained_layers)
            pool = self.text_pool or None
            more = {"units": self.units or None, "lora_rank": self.lora_rank or None}
            more["reader_layers"] = self.reader_layers or None
            return FineTune(pool=pool, pretrained_layers=count, **more, **chosen, **common)
        if not self.reads_features:
            raise ValueError(f"`Run.build` must know each method. Received: {self.method!r}")
        names = ("layers", "pool", "placement", "penalty", "mix_norm", "feature_dropout")
        names += ("character_filters",)
        chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
        size = {"units": self.units or None, "reader_layers": self.reader_layers or None}
        return FeatureBased(**size, **chosen, **common)

    def head(self, task):
        """Returns the class of the head for a task and this reader."""
        if self.reader != CRF:
            return task.head
        if task.head is not Tagger:
            raise ValueError(
                f"The reader {CRF!r} needs a task of tagged words: use 'bilstm' or "
                "'alternating_lstm' for roles and coreference, 'bilstm', 'bcn' or 'esim' for "
                f"texts, 'bidaf' for questions. Received: reader={CRF!r} on {task.name}"
            )
        return CRFTagger


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Run)}
# Types of a run's settings in the JSON of its record; further keys belong to a suite.
SETTINGS = {
    field.name + ("" if field.name in ALWAYS else "?"): field.type
    for field in dataclasses.fields(Run)
}


def settings_of(result):
    """Returns what all seeds of a run share: settings, learning rate and inputs.

    `NEUTRAL` settings may differ.
    """
    settings = {name: v for name, v in result["settings"].items() if name not in NEUTRAL}
    return settings, result.get("learning_rate"), result.get("inputs")


def run_of(result):
    """Returns the name of a result's run without its last part, the `NEUTRAL` settings."""
    fields = result["settings"]
    name = result["run"].removesuffix("-remat" if fields.get("remat") else "")
    return name.removesuffix(f"-accumulate{fields.get('accumulation_steps')}")


def label_runs(results, label):
    """Labels results to distinguish their runs.

    Args:
        results: A list of results.
        label: `label(result)` describes the run of a result; several runs may share it.

    Returns:
        `[(label, result)]`. All results of one label, task and encoder are seeds of one run, each
        seed once. If runs of one task share a description, their labels add the settings that
        differ. Runs with this description on other tasks add the same settings.
    """
    found, labels = {}, {}
    for result in results:
        found.setdefault((result["task"], result["encoder"], label(result)), []).append(result)
    runs = {key: _runs(same) for key, same in found.items()}
    differing = {}  # by encoder and label: the settings in which runs of one task differ
    for (_, *words), groups in runs.items():
        names = differing.setdefault(tuple(words), {})
        names |= dict.fromkeys(_differing(groups))
    for (_, encoder, text), groups in runs.items():
        names = differing[encoder, text]
        if len(groups) == 1:  # seeds of one run may differ in `NEUTRAL` settings
            names = [name for name in names if name not in NEUTRAL]
        for group in groups:
            own = DEFAULTS | group[0]["settings"]
            said = ", ".join(f"{name.replace('_', ' ')} {own.get(name)}" for name in names)
            labels |= {id(result): f"{text}; {said}" if said else text for result in group}
    return [(labels[id(result)], result) for result in results]


def _runs(results):
    """Groups results of one label, task and encoder by run; a group holds each seed once."""
    runs, groups = {}, []
    for result in results:
        runs.setdefault(run_of(result), {}).setdefault(result["run"], []).append(result)
    for variants in runs.values():  # variants of one run, by `NEUTRAL` settings
        together = [result for variant in variants.values() for result in variant]
        once = len({result["seed"] for result in together}) == len(together)
        groups += [together] if once else variants.values()
    return groups


def _differing(groups):
    """Returns the names of the settings in which several runs differ."""
    fields = [DEFAULTS | of_group[0]["settings"] for of_group in groups]
    return [
        name
        for name in dict.fromkeys(name for of_run in fields for name in of_run)
        if name not in ("learning_rate", "method")  # found by search; already in the label
        and len({str(of_run.get(name)) for of_run in fields}) > 1
    ]


def summary(results):
    """Returns mean, standard deviation between seeds (n - 1) and number of scores."""
    scores = np.array([result["score"] for result in results])
    deviation = float(scores.std(ddof=1)) if len(scores) > 1 else float("nan")
    return float(scores.mean()), deviation, len(scores)
