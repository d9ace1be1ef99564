"""The demonstration `python -m benchmarks demo --synthetic`, on a generated language."""

import dataclasses
import hashlib
import json
import time
from pathlib import Path

import keras
from rich.table import Table

from benchmarks.suites.elmo.probes import TINY, TINY_VECTORS
from benchmarks.suites.seq2seq import report
from benchmarks.suites.seq2seq.translation import Translation, bleu_by_length, look
from keras_plm import metrics
from keras_plm.data.translation import translation_batches
from keras_plm.datasets.microworld import World, tasks
from keras_plm.decoding import generate, greedy
from keras_plm.experiments.config import Run
from keras_plm.experiments.environment import environment
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.experiments.pretraining.word_vectors import make_word_vectors
from keras_plm.experiments.progress import console, pretraining_line, progress_bar
from keras_plm.experiments.report.result_tables import describe, layer_figure
from keras_plm.experiments.results import Record, ResultFolder, result_name
from keras_plm.experiments.runner import Runner
from keras_plm.files.writing import replacing, write_json, write_text
from keras_plm.heads import Classifier, SpanFinder
from keras_plm.tokenizers import BytePair
from keras_plm.training.resume import set_seed

LAYERS = ("embeddings", "last", "concat_last_four", "elmo_mix", "layer_1")

# Chosen on the dev sentences. The models have similar numbers of weights and equal epochs.
SAME = {
    "vocabulary_size": 600,  # large enough for every word to be one token
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "epochs": 6,
    "num_beams": 1,
}
TRANSLATORS = [
    Translation(model="none", embedding_dim=64, hidden_dim=64, learning_rate=2e-2, **SAME),
    Translation(model="additive", embedding_dim=64, hidden_dim=64, learning_rate=2e-2, **SAME),
    Translation(model="transformer", embedding_dim=48, num_heads=2, learning_rate=1e-2, **SAME),
]
# The settings of BERT in `demo`.
TINY_GPT = Pretraining(
    model="gpt",
    size="tiny",
    tokens=1.5e6,
    vocabulary_size=800,
    max_length=40,
    tokens_per_batch=2000,
    learning_rate=1e-3,
    warmup=0.05,
    pre_norm=True,
    initializer_range=0.05,
)
ROWS, LENGTHS = 32, [20, 41]  # rows of a batch, padded lengths; each length is compiled
WORDS = {"short": (5, 10), "medium": (10, 20), "long": (20, 41)}
CURVE = (5, 8, 14, 20, 26, 41)
SHOWN = 2  # index of the first test sentence with three clauses


BEATEN = 3  # best methods shown in each task's ranking, before the last one
QUESTION_EPOCHS = 6  # BiDAF is slowest, and reaches an F1 of 100 on trained layers in 6 epochs


def demo(out, small=False, full=False):
    """Trains word vectors and a tiny BERT on the microworld and compares ways to use them.

    Args:
        out: Folder for corpus, encoders, results and plots. Work finished there is not repeated.
            By default each backend has its own folder.
        small: Whether to use sizes that take seconds but are too small for a result.
        full: Whether to add ELMo and GPT, two more tasks, and translators.

    Returns:
        A list of results, equal to the contents of their files.
    """
    started = time.monotonic()
    backend = keras.backend.backend()
    out = Path(out or f".demo/synthetic-{backend}{'-small' if small else ''}")
    world = World()
    console.print(
        f"[bold]keras_plm demo[/bold] on {backend}: "
        "word vectors and a tiny BERT on a made-up language\n",
        markup=True,
    )

    corpus = out / "corpus.txt"
    documents = world.corpus(100 if small else 2500)
    write_text(corpus, "\n\n".join("\n".join(document) for document in documents) + "\n")
    settings = Pretraining(
        size="tiny",
        tokens=2e4 if small else 1.5e6,
        vocabulary_size=800,
        sentences="lines",
        max_length=40,
        buckets=1,
        tokens_per_batch=2000,
        learning_rate=1e-3,  # at 2e-3 it predicts only frequent words
        warmup=0.05,
        pre_norm=True,
        initializer_range=0.05,  # the paper's 0.02 is small for 128 units
    )
    words, encoder = out / "tiny_words", out / "tiny_bert"
    if not (words / "config.json").is_file():
        make_word_vectors(TINY_VECTORS, [corpus], words, console.print, work=out / "runs")
    with progress_bar("1. pre-training", settings.steps) as advance:
        pretrain(
            settings,
            [corpus],
            encoder,
            resume=True,
            progress=lambda entry: advance(pretraining_line(entry, settings.steps), entry["step"]),
        )

    encoders = {"words": words, "BERT": encoder}
    if full:
        encoders |= {"ELMo": out / "tiny_elmo", "GPT": out / "tiny_gpt"}
        pretrain_other("ELMo", TINY, corpus, encoders["ELMo"], small)
        pretrain_other("GPT", TINY_GPT, corpus, encoders["GPT"], small)

    common = {"learning_rates": "1e-3" if small else "1e-3,3e-3", "epochs": 1 if small else 10}
    names = ("micro_ner",) if small else ("micro_ner", "micro_sst")
    if full:
        names += ("micro_snli", "micro_squad")
    chosen = [tasks(world)[name] for name in names]
    jobs = [
        (name, task, runs_of(name, task, common, ("last", "elmo_mix") if small else LAYERS))
        for name in encoders
        for task in chosen
    ]
    lines = sum(run.lines(seed=0) for *_, runs in jobs for run in runs)
    results, rows = [], {}
    with progress_bar("2. putting it to work", lines, unit=True) as advance:
        for name, task, runs in jobs:
            for result in put_to_work(task, encoders[name], runs, out, advance):
                results.append(result)
                rows.setdefault(f"{name}: {describe(result)}", {})[task.name] = result["score"]
    table = Table("method", *(f"{task.name} ({next(iter(task.metrics))})" for task in chosen))
    for method, scores in rows.items():
        shown = (f"{100 * scores[t.name]:.1f}" if t.name in scores else "" for t in chosen)
        table.add_row(method, *shown)
    console.print(table, markup=True)
    for line in rankings(rows, [task.name for task in chosen]):
        console.print(line, markup=True)
    of_bert = [result for result in results if result["encoder"] == encoder.name]
    plots = [
        save_plot(layer_figure(of_bert, task.name), out / f"{task.name}.png") for task in chosen
    ]
    if full:
        translations, more = translate(world, out, small)
        results += translations
        plots += more
    write_json(out / "results.json", [result.to_json() for result in results])
    console.print(
        f"One seed on a made-up language: this demo shows how to use the methods, "
        f"not which one is better.\n"
        f"This call took {time.monotonic() - started:.0f} s. Results: {out / 'results.json'}  "
        f"Plots: {', '.join(plots)}"
    )
    return results


def put_to_work(task, encoder, runs, out, advance):
    """Returns the results of runs of one encoder on one task."""
    runner = Runner(task, None, encoder, out / "results", out / "features", progress=advance)
    if task.head is not Classifier:  # nothing is pooled
        runs = [dataclasses.replace(run, text_pool="") for run in runs]
    return [runner.run(run, seed=0) for run in runs]


def pretrain_other(name, settings, corpus, folder, small):
    """Pre-trains another tiny encoder on BERT's corpus, unless it exists."""
    if small:
        settings = dataclasses.replace(settings, tokens=2000, tokens_per_batch=200)
    with progress_bar(f"1. pre-training of {name}", settings.steps) as advance:
        pretrain(
            settings,
            [corpus],
            folder,
            resume=True,
            progress=lambda entry: advance(pretraining_line(entry, settings.steps), entry["step"]),
        )


def rankings(rows, tasks):
    """Yields a line for each task: its best methods, the best first, and the last one.

    Args:
        rows: `{method: {task: score}}`.
        tasks: Names of tasks.
    """
    for task in tasks:
        ranked = sorted(
            ((scores[task], method) for method, scores in rows.items() if task in scores),
            reverse=True,
        )
        ways = [f"{method} {100 * score:.1f}" for score, method in ranked]
        ways = ways if len(ways) <= BEATEN + 1 else [*ways[:BEATEN], "...", ways[-1]]
        yield f"[bold]{task}[/bold]  {' > '.join(ways)}"


def runs_of(kind, task, common, layers):
    """Returns the runs of a kind of encoder on a task."""
    if task.head is SpanFinder:
        common = common | {"epochs": min(common["epochs"], QUESTION_EPOCHS)}
        bidaf = {"reader": "bidaf", "layers": "last" if kind == "words" else "elmo_mix", **common}
        runs = [Run("randomly_initialised", **bidaf), Run("features", **bidaf)]
        tuned = [Run("scratch", **common), Run("fine_tune", **common)]
        # The other encoders read question and passage separately.
        return [*runs, *tuned] if kind in ("BERT", "GPT") else runs
    if kind == "ELMo":
        return elmo_runs(common)
    if kind == "GPT":
        return gpt_runs(common)
    if kind == "words":
        return [Run("features", layers="last", **common), Run("fine_tune", **common)]
    runs = [Run("scratch", **common), Run("randomly_initialised", layers="elmo_mix", **common)]
    runs += [Run("features", layers=name, **common) for name in layers]
    return [*runs, Run("fine_tune", **common)]


def elmo_runs(common):
    """Returns runs of ELMo as features and fine-tuned: Peters et al. 2019, arXiv 1903.05987."""
    means = {"schedule": "slanted_triangular", "text_pool": "max"}
    return [
        Run("scratch", **means, **common),
        Run("features", layers="elmo_mix", **common),
        Run("fine_tune", **means, **common),
    ]


def gpt_runs(common):
    """Returns runs of GPT as features, and fine-tuned with and without its auxiliary objective."""
    return [
        Run("scratch", **common),
        Run("features", layers="elmo_mix", **common),
        Run("fine_tune", **common),
        Run("fine_tune", language_model_weight=0.5, **common),
    ]


def translate(world, out, small):
    """Trains three translators into the microworld's second language.

    Returns:
        The results, with BLEU by source length, and the paths of the plots.
    """
    texts = {split: world.translations(split) for split in ("train", "test")}
    if small:
        texts = {split: (s[:64], t[:64]) for split, (s, t) in texts.items()}
    corpus, folder = out / "translation.txt", out / "translation"
    write_text(corpus, "".join(f"{line}\n" for side in texts["train"] for line in side))
    runs, lengths = TRANSLATORS, LENGTHS
    if small:
        runs, lengths = [dataclasses.replace(run, epochs=1) for run in runs], lengths[-1:]
    tokenizer = BytePair.train(corpus, SAME["vocabulary_size"])
    kept, results, done = ResultFolder(folder), [], 0
    with progress_bar("3. translation", sum(run.epochs for run in runs)) as advance:
        for run in runs:
            name = result_name("micro_translation", run.encoder, run.attention, 0)
            key = json.dumps([dataclasses.asdict(run), ROWS, lengths, texts])
            key = hashlib.sha256(key.encode()).hexdigest()
            result = kept.done(name, key)
            if result is None:
                result = _translator(run, tokenizer, texts, lengths, advance, done, key)
                kept.write(name, result)
            results.append(result)
            done += run.epochs

    kinds = [f"{name}\n{low}-{below - 1} words" for name, (low, below) in WORDS.items()]
    table = Table("BLEU on new sentences", "weights", "seconds", *kinds)
    example = results[0]["samples"][0]
    examples = Table("an example", example["source"])
    examples.add_row("reference", _word_for_word(world, example["reference"]))
    for result in results:
        name = report.NAMES[f"{result.encoder}.{result.run}"]
        weights = f"{result['parameters']:,}"
        scores = [f"{score:.1f}" for score in result["bleu_of"].values()]
        table.add_row(name, weights, f"{result['seconds']:.0f}", *scores)
        examples.add_row(name, _word_for_word(world, result["samples"][0]["output"]))
    console.print(table, markup=True)
    console.print(examples, markup=True)
    figures = report.figures(folder)
    plots = [save_plot(f, out / f"translation_{name}.png") for name, f in figures.items()]
    return results, plots


def save_plot(figure, path):
    """Writes a plot atomically and returns its path as text."""
    with replacing(path, path.suffix) as temporary:
        figure.savefig(temporary, dpi=150)
    return str(path)


def _word_for_word(world, text):
    """Returns a text of the second language, above the same words in English."""
    words = {other: word for word, other in world.other_words.items()}
    return f"{text}\n[dim]{' '.join(words.get(word, word) for word in text.split())}[/dim]"


def _translator(settings, tokenizer, texts, lengths, advance, done, hash):
    """Trains one model; returns its result in the format of the suite `seq2seq`."""
    set_seed(0)
    started, name = time.monotonic(), report.NAMES[settings.name]
    model = settings.build(len(tokenizer))
    batches = translation_batches(*texts["train"], tokenizer, batch_size=ROWS, buckets=lengths)
    steps = settings.epochs * len(batches)
    settings.compile(model, steps)

    def show(epoch, logs):
        line = f"{name}  epoch {epoch + 1}/{settings.epochs}  loss {logs['loss']:.3f}"
        advance(line, done + epoch + 1)

    shows = keras.callbacks.LambdaCallback(on_epoch_end=show)
    model.fit(batches, epochs=settings.epochs, verbose=0, callbacks=[shows])
    seconds = time.monotonic() - started
    sources, references = texts["test"]
    outputs = generate(model, tokenizer, sources, greedy, batch_size=len(sources))
    bleu = metrics.bleu(references, outputs)
    by_name = {
        name: bleu_by_length(sources, references, outputs, bounds)[0]["bleu"]
        for name, bounds in WORDS.items()
    }
    return Record(
        task="micro_translation",
        encoder=settings.encoder,
        method=settings.attention,
        run=settings.attention,
        settings=dataclasses.asdict(settings),
        seed=0,
        score=bleu / 100,
        metrics={"bleu": bleu / 100},
        seconds=round(seconds, 1),
        hash=hash,
        extra={
            "bleu_of": by_name,
            "by_length": bleu_by_length(sources, references, outputs, CURVE),
            "signature": metrics.bleu_signature(),
            "parameters": model.count_params(),
            "samples": [
                {"source": sources[i], "reference": references[i], "output": outputs[i]}
                for i in (SHOWN,)
            ],
            "attention": look(model, tokenizer, sources[SHOWN : SHOWN + 1], {"num_beams": 1}),
        },
        **environment(),
    )
