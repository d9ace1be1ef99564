"""What a run is, but for its task, encoder and seed: a method and its settings."""

import dataclasses
import math
from pathlib import Path

import numpy as np

from keras_plm.experiments.flags import policy, setting
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
    "scratch": "the encoder with random weights, trained with its output layer",
    "untrained": "a reader of the frozen encoder with random weights",
}

READER = "'linear' or 'bilstm'; of texts 'bcn', of pairs 'esim', of questions 'bidaf', of tagged "
READER += "words 'bilstm_crf', behind an encoder"

# Fields of a run that came after the first results.
LATER = ("placement", "penalty", "mix_norm", "feature_dropout", "words", "units", "schedule")
LATER += ("layer_decay", "unfreeze_epochs", "text_pool", "language_model_weight", "n_transfer")
LATER += ("bias_correction", "document_tokens", "lora_rank", "character_filters", "dev_limit")
LATER += ("accumulate", "remat")

# Fields of a run that change memory and time, not what is computed.
NEUTRAL = ("accumulate", "remat")

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
    dev_limit: int = setting(0, "at most so many examples that choose; 0 takes all")
    precision: str = setting(
        "float32", "of an encoder that is trained: 'float32', 'bfloat16' or 'float16'"
    )
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
    accumulate: int = setting(1, "parts in which a trained encoder reads a batch, in less memory")
    remat: bool = setting(False, "a trained Transformer computes its blocks again, in less memory")
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
            ("accumulate", self.accumulate != 1, not self.reads_features, by_training),
            ("remat", self.remat, not self.reads_features, by_training),
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
        limits = {name: getattr(self, name) for name in ("train_limit", "dev_limit")}
        for name, limit in limits.items():
            if limit < 0:
                raise ValueError(f"`{name}` must be 0 (all) or more. Received: {limit}")
        if self.document_tokens < 0 or (self.document_tokens and any(limits.values())):
            raise ValueError(
                "`document_tokens` is 0, or a number of tokens and all documents are read: leave "
                f"`train_limit` and `dev_limit` out. Received: document_tokens="
                f"{self.document_tokens}, {limits}"
            )

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
        if self.dev_limit:
            parts.append(f"dev{self.dev_limit}")
        if self.precision != "float32":
            parts.append(self.precision)
        parts += [f"accumulate{self.accumulate}"] if self.accumulate != 1 else []
        parts += ["remat"] if self.remat else []
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
            names += ("bias_correction", "remat")
            chosen = {name: getattr(self, name) for name in names} | {"reader": reader}
            chosen["accumulation_steps"] = self.accumulate
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


DEFAULTS = {field.name: field.default for field in dataclasses.fields(Run)}


def file_name(encoder, run, seed):
    """The name of a result's file in its task's folder.

    Args:
        encoder: The encoder's name.
        run: A run's name, see `Run.name`.
        seed: The run's.
    """
    return f"{encoder}.{run}.seed{seed}.json"


def settings_of(result):
    """What all seeds of a run share: settings that change its result, data and weights."""
    fields = {name: v for name, v in result["fields"].items() if name not in NEUTRAL}
    return fields, result.get("inputs")


def run_of(result):
    """The name of a result's run, without `NEUTRAL` settings, which end it."""
    fields = result["fields"]
    name = result["run"].removesuffix("-remat" if fields.get("remat") else "")
    return name.removesuffix(f"-accumulate{fields.get('accumulate')}")


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
            own = DEFAULTS | group[0]["fields"]
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
    fields = [DEFAULTS | of_group[0]["fields"] for of_group in groups]
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
