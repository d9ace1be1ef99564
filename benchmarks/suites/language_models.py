"""Language models on WikiText-2: n-grams, the neural model of Bengio et al., and mixtures."""

import dataclasses
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.corpus import read_ids
from keras_plm.data.task import find_file
from keras_plm.datasets.corpora import WIKITEXT2
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.environment import environment
from keras_plm.experiments.flags import setting
from keras_plm.experiments.pretraining.resumable_fit import fit_resumed
from keras_plm.experiments.results import (
    Record,
    ResultFolder,
    read_results,
    result_hash,
    result_name,
)
from keras_plm.files.cache import cache_folder
from keras_plm.models import NNLM, Mixture, NGram
from keras_plm.models.ngram import SMOOTHINGS
from keras_plm.tokenizers import Words
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupLinearDecay

TASK, FILES = WIKITEXT2.name, WIKITEXT2.files
ADDED = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # k of add-k, chosen on the validation text
PARTNERS = {"interpolation 3": ("interpolation", 3), "Kneser-Ney 3": ("kneser_ney", 3),
            "Kneser-Ney 5": ("kneser_ney", 5)}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Counts:
    """An n-gram model."""

    smoothing: str = setting("kneser_ney", f"one of {', '.join(SMOOTHINGS)}")
    order: int = setting(3, "order of the n-grams")
    limit: int = setting(0, "use at most so many tokens of the text (0: all)")

    @property
    def name(self):
        return f"{self.encoder}.{self.method}"

    @property
    def encoder(self):
        return f"ngram{self.order}"

    @property
    def method(self):
        return self.smoothing


@dataclasses.dataclass(frozen=True)
class Neural:
    """The neural model; the suite also mixes it with n-grams."""

    order: int = setting(5, "order of the n-grams")
    embedding_dim: int = setting(60, "width of a word's vector")
    hidden_dim: int = setting(100, "width of the hidden layer")
    direct: bool = setting(False, "connections from the context to the output")
    dropout: float = setting(0.0, "drop this fraction of the context and the hidden layer")
    epochs: int = setting(2, "passes over the text")
    learning_rate: float = setting(5e-3, "highest learning rate")
    batch_size: int = setting(512, "words per step")
    limit: int = setting(0, "use at most so many tokens of the text (0: all)")

    @property
    def name(self):
        return f"{self.encoder}.{self.method}"

    @property
    def encoder(self):
        return f"nnlm{self.order}"

    @property
    def method(self):
        return f"{'direct' if self.direct else 'hidden'}{self.hidden_dim}"


class LanguageModelRunner:
    """Trains and scores language models on WikiText-2, which it reads once.

    Every line ends a sentence, including blank lines.

    Args:
        data: The data folder.
        results: Folder for result files.
        work: Folder for unfinished training; by default in the user's cache folder.
        progress: Called with a line of text.
    """

    def __init__(self, data, results, work=None, progress=print):
        self.results, self.progress = ResultFolder(results), progress
        self.work = cache_folder("training") if work is None else Path(work)
        paths = {split: find_file(data, name) for split, name in FILES.items()}
        self.checksums = [checksum(path) for path in paths.values()]
        self.words = Words.train(paths["train"], split="spaces", unk_token="<unk>")
        self.texts = {s: read_ids(p, self.words, blank_lines=True) for s, p in paths.items()}

    def text(self, settings, split):
        return self.texts[split][: settings.limit or None]

    def key(self, settings, seed):
        return result_hash(TASK, dataclasses.asdict(settings), seed, self.checksums)

    def run(self, settings, seed):
        """Returns the result of a run; trains and scores the model if there is none yet."""
        name = result_name(TASK, settings.encoder, settings.method, seed)
        done = self.results.done(name, self.key(settings, seed))
        if done is not None:
            return done
        set_seed(seed)
        counted = isinstance(settings, Counts)
        scores, extra = (self._counts if counted else self._neural)(settings, seed)
        seconds = extra.pop("seconds")
        extra["tokens"] = {split: len(self.text(settings, split)) for split in FILES}
        extra["vocabulary"] = len(self.words)
        record = Record(
            task=TASK,
            encoder=settings.encoder,
            method=settings.method,
            run=settings.method,
            settings=dataclasses.asdict(settings),
            seed=seed,
            score=scores["perplexity_valid"],
            metrics=scores,
            seconds=seconds,
            hash=self.key(settings, seed),
            inputs=self.checksums,
            extra=extra,
            **environment(),
        )
        self.results.write(name, record)
        shutil.rmtree(self._work(settings, seed), ignore_errors=True)
        shown = ["infinite" if s is None else f"{s:.1f}" for s in map(scores.get, SCORES)]
        self.progress(
            f"{settings.name} seed {seed}: perplexity {shown[0]} on the validation text, "
            f"{shown[1]} on the test text, {seconds:.0f} s"
        )
        return record

    def _ngram(self, smoothing, order, settings, k=1.0):
        model = NGram(len(self.words), order, smoothing, self.words.end_id, k)
        held_out = self.text(settings, "valid") if smoothing == "interpolation" else None
        return model.fit(self.text(settings, "train"), held_out)

    def _counts(self, settings, seed):
        begun, extra = time.monotonic(), {}
        if settings.smoothing == "add_k":
            models = [self._ngram("add_k", settings.order, settings, k) for k in ADDED]
            valid = [model.perplexity(self.text(settings, "valid")) for model in models]
            model, extra["k"] = models[int(np.argmin(valid))], ADDED[int(np.argmin(valid))]
        else:
            model = self._ngram(settings.smoothing, settings.order, settings)
        seconds = time.monotonic() - begun
        scores = self._perplexities({s: model.log_prob(self.text(settings, s)) for s in FILES})
        return scores, {**extra, "ngrams": model.num_ngrams, "seconds": round(seconds, 1)}

    @staticmethod
    def _perplexities(log_probs):
        # JSON has no infinity: a model with an impossible word has no perplexity.
        # `NNLM.log_prob` raises for NaN, so a value that is not finite is an impossible word.
        found = {f"perplexity_{s}": float(np.exp(-part.mean())) for s, part in log_probs.items()}
        return {name: value if np.isfinite(value) else None for name, value in found.items()}

    def _work(self, settings, seed):
        return self.work / f"{settings.name}.seed{seed}.{self.key(settings, seed)[:8]}"

    def _neural(self, settings, seed):
        train = self.text(settings, "train")
        model = NNLM(
            len(self.words),
            settings.order,
            settings.embedding_dim,
            settings.hidden_dim,
            settings.direct,
            self.words.end_id,
            settings.dropout,
        )
        model.start_from_unigrams(train)
        batches = model.batches(train, settings.batch_size, seed)
        steps = settings.epochs * len(batches)
        schedule = WarmupLinearDecay(settings.learning_rate, steps, min(1000, steps // 10))
        model.compile(BertAdamW(schedule, bias_correction=True))
        name, work = f"{settings.name} seed {seed}", self._work(settings, seed)
        seconds, _ = fit_resumed(model, batches, settings.epochs, work, name, self.progress)
        texts = {split: self.text(settings, split) for split in ("valid", "test")}
        known = {split: _Known(model.log_prob(text)) for split, text in texts.items()}
        scores = self._perplexities({split: part.found for split, part in known.items()})
        mixtures = {}
        for name, (smoothing, order) in PARTNERS.items():
            partner = self._ngram(smoothing, order, settings)
            parts = {s: [known[s], _Known(partner.log_prob(text))] for s, text in texts.items()}
            learned = Mixture.fit_weights(parts["valid"], texts["valid"]).weights
            for kind, weights in (("half", (0.5, 0.5)), ("learned", learned)):
                found = {s: Mixture(parts[s], weights).log_prob(texts[s]) for s in texts}
                weight = round(float(weights[0]), 4)
                mixtures[f"{name}, {kind}"] = {"weight": weight, **self._perplexities(found)}
        extra = {
            "mixtures": mixtures,
            "parameters": model.count_params(),
            "seconds": round(seconds, 1),
            "words_per_second": round(settings.epochs * len(train) / max(seconds, 1e-9)),
        }
        return scores, extra


@dataclasses.dataclass(frozen=True)
class _Known:
    """A model's cached probabilities of a text, for mixtures."""

    found: np.ndarray

    def log_prob(self, token_ids):
        return self.found


def run_models(runs, data, results, seeds, progress):
    """Runs the suite `language_models`; n-gram models have no seed."""
    runner = LanguageModelRunner(data, results, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            if seed == 0 or isinstance(settings, Neural):
                runner.run(settings, seed)


NAMES = {"mle": "maximum likelihood", "add_k": "add-k", "interpolation": "deleted interpolation",
         "kneser_ney": "modified Kneser-Ney"}  # fmt: skip


def markdown(folder):
    """Returns the suite's table: perplexities per word, with a row for each model and mixture."""
    rows = {}  # {name: ([validation], [test], [seconds])}
    for result in read_results(folder, TASK):
        fields = result["settings"]
        if "smoothing" in fields:
            name = f"{fields['order']}-grams, {NAMES[fields['smoothing']]}"
            name += f" (k = {result['k']:g})" if "k" in result else ""
        else:
            direct = ", direct connections" if fields["direct"] else ""
            name = f"NNLM, {fields['order']}-grams, {fields['hidden_dim']} hidden{direct}"
        found = {name: (result["metrics"], result["seconds"])}
        for partner, scores in result.get("mixtures", {}).items():
            found[f"{name}; mixed with {partner}"] = (scores, None)
        for row, (scores, seconds) in found.items():
            columns = rows.setdefault(row, ([], [], []))
            for column, value in zip(columns, (*map(scores.get, SCORES), seconds), strict=True):
                column.append(value)
    lines = ["| perplexity per word | validation | test | seconds of training |"]
    lines.append("|---|---:|---:|---:|")
    for name, columns in sorted(rows.items(), key=lambda row: -_order(row[1][1])):
        lines.append(f"| {name} | {' | '.join(_cell(c, i) for i, c in enumerate(columns))} |")
    return "\n".join(lines) + "\n"


SCORES = ("perplexity_valid", "perplexity_test")


def _order(values):
    return float("inf") if values[0] is None else float(np.mean(values))


def _cell(values, column):
    if values[0] is None:
        return "infinite" if column < 2 else ""
    if column == 2:
        return f"{np.mean(values):,.0f}"
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):,.1f}{spread} ({len(values)})"


SUITES = {
    "language_models": Suite(
        markdown,
        no_figures,
        {
            "small": [
                *(Counts("mle", order) for order in (1, 2)),
                *(Counts("add_k", order) for order in (2, 3)),
                *(Counts("interpolation", order) for order in (2, 3)),
                *(Counts("kneser_ney", order) for order in (2, 3, 4, 5)),
                Neural(),
            ],
            "test": [
                *(Counts(kind, 2, limit=5000) for kind in ("add_k", "interpolation")),
                Neural(3, 4, 5, epochs=1, batch_size=256, limit=2000),
            ],
        },
        "Bengio et al. 2003, tables 1 and 2; Chen and Goodman 1998",
        published="2003-02",
        run=run_models,
    ),
}
