"""The embedded default: `python -m benchmarks demo`, on a language made up for it."""

import time
from pathlib import Path

import keras
from rich.table import Table

from benchmarks.microworld import World, tasks
from benchmarks.pretrain import Pretraining, pretrain
from benchmarks.progress import console, pretraining_line, progress_bar
from benchmarks.records import write_json, write_text
from benchmarks.report import describe, layer_figure
from benchmarks.run import Bench, Run

LAYERS = ("embeddings", "last", "concat_last_four", "elmo_mix", "layer_1")


def demo(out, small=False):
    """Pre-trains a tiny BERT on the microworld and compares the ways to use it.

    Args:
        out: Folder for corpus, encoder, results and pictures, what is done there is not done again;
            by default one of the backend's own.
        small: If True, so little of everything that it takes seconds and shows nothing.

    Returns:
        The results, as their files hold them.
    """
    started = time.monotonic()
    backend = keras.backend.backend()
    out, world = Path(out or f".demo/{backend}{'-small' if small else ''}"), World()
    console.print(f"[bold]keras_plm demo[/bold] on {backend}: a tiny BERT and a made-up language\n")

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
        learning_rate=1e-3,  # at 2e-3 it stays at guessing frequent words
        warmup=0.05,
        pre_norm=True,
        initializer_range=0.05,  # 128 units are few for the paper's 0.02
    )
    encoder = out / "tiny_bert"
    with progress_bar("1. pre-training", settings.steps) as advance:
        pretrain(
            settings,
            [corpus],
            encoder,
            resume=True,
            progress=lambda entry: advance(pretraining_line(entry, settings.steps), entry["step"]),
        )

    common = {"learning_rates": "1e-3" if small else "1e-3,3e-3", "epochs": 1 if small else 10}
    runs = [Run("scratch", **common), Run("untrained", layers="elmo_mix", **common)]
    chosen_layers = ("last", "elmo_mix") if small else LAYERS
    runs += [Run("features", layers=layers, **common) for layers in chosen_layers]
    runs += [Run("fine_tune", **common)]
    results = []
    names = ("micro_ner",) if small else ("micro_ner", "micro_sst")
    chosen = [tasks(world)[name] for name in names]
    fits = len(chosen) * sum(run.lines(seed=0) for run in runs)
    with progress_bar("2. putting it to work", fits, unit=True) as advance:
        for task in chosen:
            bench = Bench(task, None, encoder, out / "results", out / "features", progress=advance)
            results += [bench.run(run, seed=0) for run in runs]

    table = Table("what learns", *(f"{task.name} ({next(iter(task.metrics))})" for task in chosen))
    for run in runs:
        of_run = [r for r in results if r["run"] == run.name]
        table.add_row(describe(of_run[0]), *(f"{100 * r['score']:.1f}" for r in of_run))
    console.print(table)
    pictures = []
    for task in chosen:
        path = out / f"{task.name}.png"
        layer_figure(results, task.name).savefig(path, dpi=150)
        pictures.append(str(path))
    write_json(out / "results.json", results)
    console.print(
        f"One seed of a made-up language: it shows how things work, not which is better.\n"
        f"{time.monotonic() - started:.0f} s, this call. Results: {out / 'results.json'}  "
        f"Pictures: {', '.join(pictures)}"
    )
    return results
