"""Language models on WikiText-2: n-grams, the neural model of Bengio et al., and mixtures."""

import dataclasses
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.corpus import read_ids
from keras_plm.data.task import find_file
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments import results as records
from keras_plm.experiments.flags import setting
from keras_plm.experiments.pretraining.resumable_fit import fit_resumed
from keras_plm.models import NNLM, Mixture, NGram
from keras_plm.models.ngram import SMOOTHINGS
from keras_plm.tokenizers import Words
from keras_plm.training.optimizers import AdamW, WarmupLinearDecay
from keras_plm.training.resume import set_seed

TASK = "wikitext2"
FILES = {split: f"wikitext-2/wiki.{split}.tokens" for split in ("train", "valid", "test")}
SOURCE = "Merity et al. 2016, arXiv 1609.07843"
LICENCE = "CC BY-SA 3.0"
ADDED = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # k of add-k, chosen on the validation text
PARTNERS = {"interpolation 3": ("interpolation", 3), "Kneser-Ney 3": ("kneser_ney", 3),
            "Kneser-Ney 5": ("kneser_ney", 5)}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Counts:
    """An n-gram model."""

    smoothing: str = setting("kneser_ney", f"one of {', '.join(SMOOTHINGS)}")
    order: int = setting(3, "n")
    limit: int = setting(0, "at most so many tokens of the text; 0 takes all")

    @property
    def name(self):
        return f"ngram{self.order}.{self.smoothing}"


@dataclasses.dataclass(frozen=True)
class Neural:
    """The neural model; it is also mixed with n-grams."""

    order: int = setting(5, "n")
    embedding_dim: int = setting(60, "width of a word's vector")
    hidden_dim: int = setting(100, "width of the hidden layer")
    direct: bool = setting(False, "connections from the context to the output")
    dropout: float = setting(0.0, "drop this fraction of the context and the hidden layer")
    epochs: int = setting(2, "passes over the text")
    rate: float = setting(5e-3, "highest learning rate")
    batch_size: int = setting(512, "words per step")
    limit: int = setting(0, "at most so many tokens of the text; 0 takes all")

    @property
    def name(self):
        direct = "direct" if self.direct else "hidden"
        return f"nnlm{self.order}.{direct}{self.hidden_dim}"


class LanguageBench:
    """WikiText-2 as ids, read once; every line, blank ones too, ends a sentence.

    Args:
        data: The data folder.
        results: Folder for result files.
        work: Folder for unfinished training.
        progress: Called with a line of text.
    """

    def __init__(self, data, results, work=".runs", progress=print):
        self.results, self.work, self.progress = Path(results), Path(work), progress
        paths = {split: find_file(data, name) for split, name in FILES.items()}
        self.checksums = [checksum(path) for path in paths.values()]
        self.words = Words.train(paths["train"], split="spaces", unk_token="<unk>")
        self.texts = {s: read_ids(p, self.words, blank_lines=True) for s, p in paths.items()}

    def text(self, settings, split):
        return self.texts[split][: settings.limit or None]

    def path(self, settings, seed):
        return self.results / TASK / f"{settings.name}.seed{seed}.json"

    def key(self, settings, seed):
        return records.key(settings, seed, self.checksums)

    def run(self, settings, seed):
        """Trains and scores what is not done yet; returns the result."""
        path = self.path(settings, seed)
        result = records.stored(path, self.key(settings, seed))
        if result is not None:
            return result
        set_seed(seed)
        counted = isinstance(settings, Counts)
        scores, extra = (self._counts if counted else self._neural)(settings, seed)
        result = {
            "task": TASK,
            "encoder": settings.name.split(".")[0],
            "method": settings.name.split(".")[1],
            "run": settings.name,
            "fields": dataclasses.asdict(settings),
            "seed": seed,
            "score": scores["perplexity_valid"],
            "metrics": scores,
            "tokens": {split: len(self.text(settings, split)) for split in FILES},
            "vocabulary": len(self.words),
            **extra,
            **records.environment(),
            "hash": self.key(settings, seed),
        }
        records.store(path, result)
        shutil.rmtree(self._work(settings, seed), ignore_errors=True)
        shown = ["infinite" if s is None else f"{s:.1f}" for s in map(scores.get, SCORES)]
        self.progress(
            f"{settings.name} seed {seed}: perplexity {shown[0]} on the validation text, "
            f"{shown[1]} on the test text, {extra['seconds']:.0f} s"
        )
        return result

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
        # Infinity is no JSON: what thinks a word impossible has no perplexity.
        # `NNLM.log_prob` raises for NaN, so that only -inf stands for an impossible word.
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
        schedule = WarmupLinearDecay(settings.rate, steps, min(1000, steps // 10))
        model.compile(AdamW(schedule, bias_correction=True))
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
    """Cache of a model's probabilities of a text, for mixtures."""

    found: np.ndarray

    def log_prob(self, token_ids):
        return self.found


def run_models(runs, data, results, seeds, progress):
    """The suite `language_models`; counts have no seed."""
    bench = LanguageBench(data, results, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            if seed == 0 or isinstance(settings, Neural):
                bench.run(settings, seed)


NAMES = {"mle": "maximum likelihood", "add_k": "add-k", "interpolation": "deleted interpolation",
         "kneser_ney": "modified Kneser-Ney"}  # fmt: skip


def markdown(folder):
    """The suite's table: perplexities per word, a row for each model and mixture."""
    from keras_plm.experiments.report.result_tables import read_results

    rows = {}  # {name: ([validation], [test], [seconds])}
    for result in read_results(Path(folder) / TASK):
        fields = result["fields"]
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


def _cell(values, place):
    if values[0] is None:
        return "infinite" if place < 2 else ""
    if place == 2:
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
