"""Word vectors of this library and of gensim, scored on word similarity and analogies."""

import dataclasses

from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.task import find_file
from keras_plm.datasets import word_similarity
from keras_plm.datasets.corpora import BOOKS
from keras_plm.experiments.environment import environment
from keras_plm.experiments.pretraining.word_vectors import (
    KINDS,
    MAKERS,
    TASK,
    Vectors,
    VectorTrainer,
)
from keras_plm.experiments.results import Record, ResultFolder, read_results, result_name


def run_vectors(runs, data, results, seeds, progress):
    """Runs the suite `word_vectors`: trains and scores missing word vectors."""
    texts = [find_file(data, name) for name in BOOKS.files.values()]
    trainer = VectorTrainer(texts, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            evaluate_run(trainer, settings, seed, data, results, progress)


def evaluate_run(trainer, settings, seed, data, results, progress):
    """Trains and scores word vectors and writes one JSON file, unless it exists."""
    key, kept = trainer.key(settings, seed), ResultFolder(results)
    name = result_name(TASK, settings.kind, settings.run, seed)
    done = kept.done(name, key)
    if done is not None:
        return done
    encoder, report = trainer.train(settings, seed)
    passes = "pass" if settings.epochs == 1 else "passes"
    passes += " over pairs" if settings.kind == "glove" else ""
    scores = word_similarity.evaluate(encoder.words, encoder.vectors[3:], data)
    seconds = report.pop("seconds")
    record = Record(
        task=TASK,
        encoder=settings.kind,
        method=settings.kind,
        run=settings.run,
        settings=dataclasses.asdict(settings),
        seed=seed,
        score=scores["similarity"]["MEN"]["spearman"],
        metrics={pairs: part["spearman"] for pairs, part in scores["similarity"].items()},
        seconds=seconds,
        hash=key,
        inputs=trainer.checksums,
        extra={
            "name": settings.title,
            "source": f"{report['tokens'] / 1e6:.1f} M words, {settings.epochs} {passes}",
            "scores": scores,
            **report,
        },
        **environment(),
    )
    kept.write(name, record)
    trainer.finish(settings, seed)
    shown = ", ".join(f"{n} {100 * v:.1f}" for n, v in record.metrics.items() if v is not None)
    progress(f"{settings.name} seed {seed}: {shown}; {report['words_per_second']:,} words/s")
    return record


def markdown(results):
    """Returns the suite's tables."""
    order = [(kind, maker) for kind in KINDS for maker in MAKERS]
    found = [r for r in read_results(results) if r["task"] == TASK]
    found.sort(key=lambda r: (order.index((r["method"], r["settings"]["by"])), r["seed"]))
    return word_similarity.table(found)


_VECTORS = [
    (kind, by)
    for kind in ("skip_gram", "cbow", "fasttext", "glove", "skip_gram_hs", "cbow_hs")
    for by in MAKERS
    if (kind, by) != ("glove", "gensim")
]

SUITES = {
    "word_vectors": Suite(
        markdown,
        no_figures,
        {
            "small": [
                *(Vectors(kind, by, limit=10_000_000) for kind, by in _VECTORS),
                # gensim's default learning rates are meant for many passes.
                *(
                    Vectors(kind, "gensim", learning_rate=0.1, limit=10_000_000)
                    for kind in ("skip_gram", "cbow", "fasttext")
                ),
            ],
            "long": [Vectors(kind, by) for kind, by in _VECTORS],
            "test": [
                Vectors(kind, by, dim=8, epochs=1, limit=20_000)
                for kind, by in (("skip_gram", "keras_plm"), ("glove", "keras_plm"))
            ],
        },
        "Mikolov et al. 2013, arXiv 1301.3781; Pennington et al. 2014; Bojanowski et al. 2017",
        published="2013-01",
        run=run_vectors,
    ),
}
