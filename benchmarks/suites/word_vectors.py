"""Word vectors of this library and of gensim, scored on word similarity and analogies."""

import dataclasses
from pathlib import Path

from keras_plm.data.task import find_file
from keras_plm.datasets import word_similarity
from keras_plm.datasets.corpora import BOOKS
from keras_plm.experiments import results as records
from keras_plm.experiments.pretraining.word_vectors import KINDS, MAKERS, VectorTrainer


def run_vectors(runs, data, results, seeds, progress):
    """The suite `word_vectors`: trains and scores what is not done yet."""
    trainer = VectorTrainer(
        [find_file(data, name) for name in BOOKS.files.values()], progress=progress
    )
    for seed in range(seeds):
        for settings in runs:
            evaluate_run(trainer, settings, seed, data, results, progress)


def evaluate_run(trainer, settings, seed, data, results, progress):
    """One training with its scores, as one JSON file; skipped where that is there."""
    key = trainer.key(settings, seed)
    path = Path(results) / f"{settings.name}.seed{seed}.json"
    result = records.stored(path, key)
    if result is not None:
        return result
    encoder, report = trainer.train(settings, seed)
    passes = "pass" if settings.epochs == 1 else "passes"
    passes += " over pairs" if settings.kind == "glove" else ""
    scores = word_similarity.evaluate(encoder.words, encoder.vectors[3:], data)
    result = {
        "task": "word_vectors",
        "encoder": settings.name,
        "method": settings.kind,
        "name": settings.title,
        "source": f"{report['tokens'] / 1e6:.1f} M words, {settings.epochs} {passes}",
        "fields": dataclasses.asdict(settings),
        "seed": seed,
        "score": scores["similarity"]["MEN"]["spearman"],
        "metrics": {name: part["spearman"] for name, part in scores["similarity"].items()},
        "scores": scores,
        **report,
        **records.environment(),
        "hash": key,
    }
    records.store(path, result)
    trainer.finish(settings, seed)
    shown = ", ".join(f"{n} {100 * v:.1f}" for n, v in result["metrics"].items() if v is not None)
    progress(f"{settings.name} seed {seed}: {shown}; {report['words_per_second']:,} words/s")
    return result


def markdown(results):
    """The suite's tables."""
    from keras_plm.experiments.report.result_tables import read_results

    order = [(kind, maker) for kind in KINDS for maker in MAKERS]
    found = [r for r in read_results(results) if r["task"] == "word_vectors"]
    found.sort(key=lambda r: (order.index((r["method"], r["fields"]["by"])), r["seed"]))
    return word_similarity.table(found)
