"""A small BERT on every kind of task: the suite `bert_tasks`."""

import dataclasses
from pathlib import Path

import keras_plm
from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.elmo.features import shown
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.task import find_file
from keras_plm.experiments.config import Run
from keras_plm.experiments.jobs import Job
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import read_results
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.tokenizers import WordPiece
from keras_plm.training.resume import set_seed

ENCODER = WEIGHTS / "bert_mini"
# {task: most training examples; 0 takes all}
TASKS_READ = {
    "squad": 20_000,
    "squad2": 0,
    "snli": 0,
    "qnli_squad": 20_000,
    "sst2": 20_000,
    "cola": 0,
    "mrpc": 0,
    "stsb": 0,
    "rte": 0,
    "wnli": 0,
}
# Turc et al. 2019, README of google-research/bert: a tiny and a mini BERT on GLUE's test sets.
PUBLISHED = {
    "qnli_squad": ("accuracy", 81.5, 84.1),
    "sst2": ("accuracy", 83.2, 85.9),
    "cola": ("Matthews' correlation", 0.0, 0.0),
    "mrpc": ("F1", 81.1, 81.1),
    "stsb": ("Pearson's correlation", 74.3, 75.4),
    "rte": ("accuracy", 57.2, 57.9),
    "wnli": ("accuracy", 62.3, 62.3),
}


@dataclasses.dataclass(frozen=True)
class Everything:
    """The runs of the suite at a scale.

    Attributes:
        tasks: Pairs of a task and its most training examples.
        fields: Fields of every `Run`.
        tiny: Whether a BERT with random weights replaces the pre-trained one.
    """

    tasks: tuple = tuple(TASKS_READ.items())
    fields: tuple = (("learning_rates", "1e-4,3e-4"), ("epochs", 3), ("precision", "bfloat16"))
    tiny: bool = False


SCALES = {
    "small": Everything(),
    "test": Everything(
        (("squad", 8), ("rte", 8)), (("learning_rates", "1e-3"), ("epochs", 1)), tiny=True
    ),
}


def jobs_of(everything, workspace, encoder=None):
    """Returns the suite's jobs."""
    folder = Path(encoder or ENCODER)
    if everything.tiny and not encoder:
        folder = Path(workspace.features) / "bert_test"
        if not (folder / "config.json").is_file():
            set_seed(0)
            tokenizer = WordPiece.train(find_file(workspace.data, "glue/RTE/dev.tsv"), 300)
            made = BERT(len(tokenizer), **BERT_SIZES["tiny"], max_sequence_length=128)
            keras_plm.save(folder, made, tokenizer)
    fields = dict(everything.fields)
    return [
        Job(task, str(folder), Run(train_limit=limit, **fields)) for task, limit in everything.tasks
    ]


def markdown(folder):
    """Returns the suite's table: a row per task, with all metrics and the published score.

    Raises:
        ValueError: If there is no result.
    """
    found = {}
    for result in read_results(folder):
        add_seed(result, found.setdefault((result["task"], result["encoder"]), []))
    several = len({encoder for _, encoder in found}) > 1
    text = [
        "| task | training examples | score | published: tiny | mini |",
        "|---|---:|---|---:|---:|",
    ]
    order = list(TASKS_READ)
    for (task, encoder), results in sorted(found.items(), key=lambda i: order.index(i[0][0])):
        scores = [
            f"{shown([{**r, 'score': r['metrics'][name]} for r in results])} "
            f"{name.replace('_', ' ')}"
            for name in results[0]["metrics"]
        ]
        metric, *published = PUBLISHED.get(task, ("", "", ""))
        name = task + (f", {encoder}" if several else "")
        if metric:
            published = [f"{published[0]} {metric}", str(published[1])]
        count = results[0]["counts"]["train"]
        text.append(f"| {name} | {count:,} | {'; '.join(scores)} | {' | '.join(published)} |")
    return "\n".join(text) + "\n"


SUITES = {
    "bert_tasks": Suite(
        markdown,
        no_figures,
        SCALES,
        "Turc et al. 2019; Devlin et al. 2018, sections 4.1 to 4.3",
        published="2018-10",
        jobs=jobs_of,
        flags=("encoder", "features", "feature_gb"),
    ),
}
