"""Configuration of a run: a method and its settings, without task, encoder and seed."""

import dataclasses
import math
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

READER = "use this reader: 'linear' or 'bilstm'; for texts 'bcn', for pairs 'esim', for questions "
READER += "'bidaf', for tagged words with an encoder 'bilstm_crf'"

# The settings that `Run.to_json` always gives. It leaves others out at their defaults, so that a
# new setting changes no name and no hash of earlier results.
ALWAYS = ("method", "layers", "reader", "pool", "learning_rates", "epochs", "batch_size", "dropout",
          "train_limit", "precision")  # fmt: skip

# Settings that change memory and time, not what is computed.
NEUTRAL = ("accumulation_steps", "remat")

CRF = "bilstm_crf"

# Condition: where it holds, and in words.
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
# The condition under which a setting may differ from its default.
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
# The part of a run's name for a setting that differs from its default.
NAMED = {
    "pool": "{}",
    "placement": "{}",
    "penalty": "penalty{:g}",
    "mix_norm": "mix_norm",
    "feature_dropout": "feature_dropout{:g}",
    "words": "words_{}",
    "character_filters": "characters{}",
    "units": "units{}",
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

    The help of each field states its meaning and unit. Reader "bilstm_crf" is the reader "bilstm"
    under a CRF, which in the library is another head: a task has one head for all its runs, so the
    reader's name chooses it. The character ids of words, which the tagger of Peters et al. also
    reads, are a setting of their own, `character_filters`: any reader can take them.
    """

    method: str = setting("fine_tune", f"use this method: {', '.join(METHODS)}", choices=METHODS)
    layers: str = setting("", "read these layers of a frozen encoder, see the command `layers`")
    reader: str = setting("linear", READER)
    pool: str = setting("mean", "pool a text's vectors in this way for a linear reader")
    learning_rates: str = setting(
        "1e-4,3e-4,1e-3,3e-3", "search these learning rates, the same for every method"
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
        "input", f"let features enter a reader there: {', '.join(PLACES)}", choices=PLACES
    )
    penalty: float = setting(0.0, "weight the L2 penalty of a learned mix of layers by this")
    mix_norm: bool = setting(False, "normalise each layer of a learned mix first")
    feature_dropout: float = setting(0.0, "drop this fraction of the features before a reader")
    words: str = setting("", "let a reader also read the word vectors of this folder; '' for none")
    units: int = setting(
        0, "give each direction of a reader N units; 0 for half the encoder's width", least=0
    )
    schedule: str = setting(
        "linear", f"change a trained encoder's learning rate so: {', '.join(SCHEDULES)}"
    )
    layer_decay: float = setting(
        1.0, "multiply the learning rate by this for each lower layer of a trained encoder"
    )
    unfreeze_epochs: int = setting(0, "unfreeze one lower layer every N epochs; 0 for all at once")
    text_pool: str = setting("", "pool a trained encoder's texts in this way; '' as its head does")
    language_model_weight: float = setting(0.0, "weight GPT's auxiliary objective by this")
    pretrained_layers: str = setting(
        "all", "keep N pre-trained layers for fine-tuning; 'all', or 0 for the embeddings only"
    )
    bias_correction: bool = setting(False, "correct the bias of a trained encoder's AdamW, as GPT")
    lora_rank: int = setting(
        0, "train only added matrices of rank N next to attention's; 0 for none", least=0
    )
    character_filters: int = setting(
        0,
        "let a reader read character ids through N filters (AllenNLP: 128); 0 for none",
    )
    accumulation_steps: int = setting(
        1, "split each batch of a trained encoder into N micro-batches"
    )
    remat: bool = setting(False, "use rematerialization in a trained Transformer, to save memory")
    document_tokens: int = setting(
        0, "let a tagger read a document's sentences together, up to N tokens; 0 for one each",
        least=0,
    )  # fmt: skip

    def __post_init__(self):
        check_settings(self)
        if self.reads_features:
            object.__setattr__(self, "layers", choice_name(self.layers or "last"))
            layer_choice(self.layers)
        for name in self._changed(NEEDS):
            holds, words = CONDITIONS[NEEDS[name]]
            if not holds(self):
                raise ValueError(
                    f"`{name}` has no effect here, it needs {words}. Received: "
                    f"method={self.method!r}, reader={self.reader!r}, layers={self.layers!r}, "
                    f"{name}={getattr(self, name)!r}"
                )
        if self.placement == "output" and not self.words:
            raise ValueError(
                "With placement='output' the reader reads only word vectors: name their folder "
                "in `words`, or choose placement='both'. Received: words=''"
            )
        if self.pretrained_layers != "all" and not self.pretrained_layers.lstrip("-").isdigit():
            raise ValueError(
                "`pretrained_layers` must be 'all' or a whole number. "
                f"Received: {self.pretrained_layers!r}"
            )
        if self.document_tokens and (self.train_limit or self.dev_limit):
            raise ValueError(
                "`document_tokens` reads all documents: leave `train_limit` and `dev_limit` out. "
                f"Received: document_tokens={self.document_tokens}, "
                f"train_limit={self.train_limit}, dev_limit={self.dev_limit}"
            )
        self.build(self.grid[0], 0)  # checks the other fields

    def _changed(self, names):
        """Those of some settings that differ from their defaults."""
        return [name for name in names if getattr(self, name) != DEFAULTS[name]]

    @property
    def reads_features(self):
        return self.method in ("features", "randomly_initialised")

    @property
    def grid(self):
        """The learning rates of the search."""
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
        """The number of lines of progress that it shows: one a trial, one at the end."""
        return 1 + (len(self.grid) if seed == 0 else 0)

    @property
    def name(self):
        """The run's part of a file name: the method, and what tells its variants apart."""
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
        """The name of the folder of word vectors."""
        return Path(self.words).resolve().name if self.words else ""

    def to_json(self):
        """The settings as a record holds them and its hash takes them.

        `ALWAYS` lists what is always there; other settings are left out at their defaults. Of a
        folder of word vectors only the name counts.
        """
        fields = dataclasses.asdict(self) | {"words": self.words_name}
        kept = {*ALWAYS, *self._changed(DEFAULTS)}
        return {name: value for name, value in fields.items() if name in kept}

    @classmethod
    def from_json(cls, settings):
        """The run of a record's settings; `words` is then the name of a folder."""
        return cls(**settings)

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
        if self.method in ("fine_tune", "scratch"):
            names = ("schedule", "layer_decay", "unfreeze_epochs", "language_model_weight")
            names += ("bias_correction", "remat", "accumulation_steps")
            chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
            count = None if self.pretrained_layers == "all" else int(self.pretrained_layers)
            pool = self.text_pool or None
            more = {"units": self.units or None, "lora_rank": self.lora_rank or None}
            return FineTune(pool=pool, pretrained_layers=count, **more, **chosen, **common)
        if not self.reads_features:
            raise ValueError(f"`Run.build` must know each method. Received: {self.method!r}")
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


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Run)}
# What the settings of a run are in the JSON of its record; further keys are those of a suite.
SETTINGS = {
    field.name + ("" if field.name in ALWAYS else "?"): field.type
    for field in dataclasses.fields(Run)
}


def settings_of(result):
    """Settings that all seeds of a run share: those that change its result, data and weights."""
    settings = {name: v for name, v in result["settings"].items() if name not in NEUTRAL}
    return settings, result.get("learning_rate"), result.get("inputs")


def run_of(result):
    """The name of a result's run, without `NEUTRAL` settings, which end it."""
    fields = result["settings"]
    name = result["run"].removesuffix("-remat" if fields.get("remat") else "")
    return name.removesuffix(f"-accumulate{fields.get('accumulation_steps')}")


def label_runs(results, label):
    """Results with labels that tell runs apart.

    Args:
        results: A list of results.
        label: `label(result)`, words on a run that others may share.

    Returns:
        `[(label, result)]`. All results of one label, task and encoder are seeds of one run, each
        seed once. Runs of one label and task get words on the settings in which they differ; the
        runs of that label on other tasks get words on the same settings.
    """
    found, labels = {}, {}
    for result in results:
        found.setdefault((result["task"], result["encoder"], label(result)), []).append(result)
    runs = {key: _runs(same) for key, same in found.items()}
    differing = {}  # of each encoder and label the settings in which runs of one task differ
    for (_, *words), groups in runs.items():
        names = differing.setdefault(tuple(words), {})
        names |= dict.fromkeys(_differing(groups))
    for (_, encoder, text), groups in runs.items():
        names = differing[encoder, text]
        if len(groups) == 1:  # whose seeds may differ in these
            names = [name for name in names if name not in NEUTRAL]
        for group in groups:
            own = DEFAULTS | group[0]["settings"]
            said = ", ".join(f"{name.replace('_', ' ')} {own.get(name)}" for name in names)
            labels |= {id(result): f"{text}; {said}" if said else text for result in group}
    return [(labels[id(result)], result) for result in results]


def _runs(results):
    """Results of one label, task and encoder by run: a list of lists, each seed once in a list."""
    runs, groups = {}, []
    for result in results:
        runs.setdefault(run_of(result), {}).setdefault(result["run"], []).append(result)
    for variants in runs.values():  # of one run, by `NEUTRAL` settings
        together = [result for variant in variants.values() for result in variant]
        once = len({result["seed"] for result in together}) == len(together)
        groups += [together] if once else variants.values()
    return groups


def _differing(groups):
    """Names of the settings in which several runs differ."""
    fields = [DEFAULTS | of_group[0]["settings"] for of_group in groups]
    return [
        name
        for name in dict.fromkeys(name for of_run in fields for name in of_run)
        if name not in ("learning_rate", "method")  # found by search; said already
        and len({str(of_run.get(name)) for of_run in fields}) > 1
    ]


def summary(results):
    """Mean, deviation between seeds (n - 1) and number of scores."""
    scores = np.array([result["score"] for result in results])
    deviation = float(scores.std(ddof=1)) if len(scores) > 1 else float("nan")
    return float(scores.mean()), deviation, len(scores)
