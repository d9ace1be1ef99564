"""Ablations of GPT's fine-tuning: the suites `gpt_ablation` and `gpt_layers_transferred`.

Both share one folder of results, because both have a row for GPT as published.
"""

import dataclasses
from pathlib import Path

import numpy as np

import keras_plm
from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.elmo.features import shown
from benchmarks.suites.registry import Suite
from keras_plm.data.task import find_file
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.jobs import Job
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import NoResult, read_json, read_results
from keras_plm.models import GPT, RecurrentLM
from keras_plm.plots import lines
from keras_plm.tokenizers import BytePair
from keras_plm.training.resume import set_seed

HOME = "gpt"  # folder of results of all suites of GPT
OPTIONS = {"home": HOME, "flags": ("encoder", "features", "feature_gb")}  # of all suites of GPT
# Models to fine-tune: class, and default folder.
KINDS = {"gpt": ("GPT", WEIGHTS / "gpt_mini"), "lstm": ("RecurrentLM", WEIGHTS / "lstm_mini")}
AUXILIARY = {"language_model_weight": 0.5}
# Key: name in tables, model, fields of its `Run`.
ABLATION = {
    "full": ("Transformer, auxiliary LM", "gpt", AUXILIARY),
    "no_pretraining": ("without pre-training", "gpt", {**AUXILIARY, "method": "scratch"}),
    "no_auxiliary": ("without auxiliary LM", "gpt", {}),
    "lstm": ("LSTM, auxiliary LM", "lstm", AUXILIARY),
}
DEPTHS = {
    "no_pretraining": ("nothing", "gpt", {**AUXILIARY, "method": "scratch"}),
    **{
        f"layers_{n}": (
            "embeddings" if n == 0 else f"+ {n} layer{'s' if n > 1 else ''}",
            "gpt",
            {**AUXILIARY, "pretrained_layers": str(n)},
        )
        for n in range(4)
    },
    "full": ("all 4 layers", "gpt", AUXILIARY),
}
ROWS = ABLATION | DEPTHS
# Most training examples; 0 takes all. SNLI's file is itself a sample, of 21,605 pairs.
TASKS_READ = (
    ("cola", 0),
    ("sst2", 5_000),
    ("mrpc", 0),
    ("stsb", 2_000),
    ("rte", 0),
    ("snli", 5_000),
)
SIZES = (("snli", 1_000), ("snli", 0))
# Without STS-B, which reads pairs in both orders and is a regression.
LAYERS_READ = tuple(task for task in TASKS_READ if task[0] != "stsb")
# Radford et al. 2018, table 5, in the order of `ABLATION`; SNLI is not in it.
PUBLISHED = {
    "cola": (45.4, 18.9, 47.9, 30.3),
    "sst2": (91.3, 84.0, 92.0, 90.5),
    "mrpc": (82.3, 79.4, 84.9, 83.2),
    "stsb": (82.0, 30.9, 83.2, 71.8),
    "rte": (56.0, 53.8, 54.4, 54.6),
}
PAPERS_METRIC = {"mrpc": "f1", "qqp": "f1"}  # where it is not the task's first


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The runs of a suite at a scale.

    Attributes:
        rows: Keys of `ROWS`.
        tasks: Pairs of a task and its most training examples; 0 takes all.
        more: Further such pairs, only for the rows `more_rows`.
        fields: Fields of every `Run`.
        tiny: Whether models with random weights replace the pre-trained ones.
    """

    rows: tuple
    tasks: tuple = TASKS_READ
    more: tuple = ()
    more_rows: tuple = ("full", "no_auxiliary")
    # Three passes, schedule and bias correction as published; the rates suit a small model.
    fields: tuple = (
        ("learning_rates", "3e-4,1e-3"),
        ("epochs", 3),
        ("schedule", "gpt_linear"),
        ("bias_correction", True),
        ("precision", "bfloat16"),
    )
    tiny: bool = False

    @property
    def runs(self):
        """Yields `(task, key of the model, Run)` of each row and task."""
        asked = [(row, *task) for task in self.tasks for row in self.rows]
        asked += [(row, *task) for task in self.more for row in self.more_rows]
        for row, task, limit in asked:
            _, kind, fields = ROWS[row]
            yield task, kind, Run(**{**dict(self.fields), "train_limit": limit, **fields})


def encoder_folder(kind, given, data, features, tiny):
    """Returns the folder of a model: the given one, or the default.

    Raises:
        ValueError: If the folder holds no encoder, or one of another kind.
    """
    name, folder = KINDS[kind]
    if given:
        folder = Path(given)
    elif tiny:
        folder = Path(features) / f"{kind}_test"
        if not (folder / "config.json").is_file():
            set_seed(0)
            text = find_file(data, "glue/RTE/dev.tsv")
            tokenizer = BytePair.train(text, 300, lowercase=False, scheme="gpt")
            made = {
                "gpt": lambda size: GPT(size, 4, 2, 8, 16, max_sequence_length=512),
                "lstm": lambda size: RecurrentLM(size, 1, 8, 8),
            }
            keras_plm.save(folder, made[kind](tokenizer.text_size), tokenizer)
    if not (folder / "config.json").is_file():
        raise ValueError(
            "The suites of GPT fine-tune a pre-trained model: make one with `keras-plm "
            f"pretrain --model {kind}` and name its folder with --encoder, or put it into "
            f"{str(WEIGHTS)!r}. Received: no encoder in {str(folder)!r}"
        )
    found = read_json(folder / "config.json").get("model")
    if found != name:
        raise ValueError(
            f"The suites of GPT fine-tune a {name}. Received: {found} in {str(folder)!r}"
        )
    return str(folder)


def jobs_of(tuning, workspace, encoder=None):
    """Returns the suite's jobs. A given encoder replaces the default GPT."""
    runs = list(tuning.runs)
    folders = {
        kind: encoder_folder(
            kind,
            encoder if kind == "gpt" else None,
            workspace.data,
            workspace.features,
            tuning.tiny,
        )
        for kind in dict.fromkeys(kind for _, kind, _ in runs)
    }
    return [Job(task, folders[kind], run) for task, kind, run in runs]


def scales(rows, tasks=TASKS_READ, more=()):
    """Returns `{scale: Tuning}` of a suite."""
    tiny = Tuning(
        tuple(rows),
        (("rte", 32), ("stsb", 32)),
        fields=(("learning_rates", "1e-3"), ("epochs", 1)),
        tiny=True,
    )
    return {"small": Tuning(tuple(rows), tasks, more), "test": tiny}


def row_of(result, rows=ROWS):
    """Returns the key in `rows` of a result, or `None` for another kind of run."""
    fields = result["settings"]
    asked = {name: fields[name] for name in ("language_model_weight", "pretrained_layers")
             if name in fields}  # fmt: skip
    asked |= {"method": "scratch"} if fields["method"] == "scratch" else {}
    for key, (_, kind, own) in rows.items():
        if own == asked and (kind == "lstm") == result["encoder"].startswith("lstm"):
            return key
    return None


def cells(folder, rows):
    """Returns `{(task, training examples): {row: [result of each seed]}}` of a folder.

    Raises:
        ValueError: If there is no such result, or seeds of one cell come from different runs.
    """
    found = {}
    for result in read_results(folder):
        row = row_of(result, rows) if result["method"] in ("fine_tune", "scratch") else None
        if row is not None:
            of_task = found.setdefault((result["task"], result["counts"]["train"]), {})
            add_seed(result, of_task.setdefault(row, []))
    if not found:
        raise NoResult(
            f"The folder must hold results of {', '.join(rows)}: `python -m benchmarks suite` "
            f"writes them. Received: {str(folder)!r}"
        )
    order = [task for task, _ in TASKS_READ]
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1])))


def _in_papers_metric(results, task):
    """Returns the paper's metric, and the results with it as their score."""
    name = PAPERS_METRIC.get(task) or next(iter(results[0]["metrics"]))
    return name, [{**result, "score": result["metrics"][name]} for result in results]


def _table(found, rows):
    """Returns a table with a column for each task that has three rows or more.

    Other tasks are named below the table.
    """
    head, columns, few = [], [], []
    for (task, count), of_task in found.items():
        if len(of_task) < min(3, len(rows)):
            few.append(f"{task}, {count:,}")
            continue
        results = {row: _in_papers_metric(of_task[row], task) for row in rows if row in of_task}
        metric = next(iter(results.values()))[0].replace("_", " ")
        head.append(f"{task}, {count:,} ({metric})")
        means = {row: summary(of_row)[0] for row, (_, of_row) in results.items()}
        best = max(means.values())
        columns.append({
            row: f"**{shown(of_row)}**" if means[row] == best else shown(of_row)
            for row, (_, of_row) in results.items()
        })  # fmt: skip
    text = [f"| | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for row, (name, *_) in rows.items():
        text.append(f"| {name} | {' | '.join(column.get(row, '') for column in columns)} |")
    if few:
        text += ["", f"Not shown, with fewer rows: {'; '.join(few)} training examples."]
    return "\n".join(text) + "\n"


def ablation_markdown(folder):
    """Returns the tables of `gpt_ablation`, by task and by number of training examples."""
    found = cells(folder, ABLATION)
    names = [name for name, *_ in ABLATION.values()]
    text = [_table(found, ABLATION), "The paper's (table 5, test sets, its larger model):\n"]
    text += [f"| | {' | '.join(PUBLISHED)} |", "|---|" + "---:|" * len(PUBLISHED)]
    for i, name in enumerate(names):
        text.append(f"| {name} | {' | '.join(str(row[i]) for row in PUBLISHED.values())} |")
    return "\n".join(text) + "\n\n" + _by_size(found)


def _by_size(found):
    """Returns a table of the gain of the auxiliary objective by number of training examples."""
    rows = []
    for (task, count), of_task in found.items():
        if {"full", "no_auxiliary"} <= of_task.keys():
            pairs = []
            for key in ("full", "no_auxiliary"):
                _, results = _in_papers_metric(of_task[key], task)
                pairs.append({r["seed"]: r["score"] for r in results})
            seeds = sorted(pairs[0].keys() & pairs[1].keys())
            gains = [100 * (pairs[0][s] - pairs[1][s]) for s in seeds]
            first = [_first_epoch(of_task[key]) for key in ("full", "no_auxiliary")]
            rows.append((count, task, gains, first))
    text = [
        "| training examples | task | gain of the auxiliary LM (each seed) "
        "| on the dev set after the first epoch: with, without |",
        "|---:|---|---:|---:|",
    ]
    for count, task, gains, (first, without) in sorted(rows):
        each = ", ".join(f"{gain:+.1f}" for gain in gains)
        text.append(f"| {count:,} | {task} | {np.mean(gains):+.1f} ({each}) "
                    f"| {100 * first:.1f}, {100 * without:.1f} |")  # fmt: skip
    return "\n".join(text) + "\n"


def _first_epoch(results):
    return float(np.mean([result["curve"]["dev_scores"][0] for result in results]))


def ablation_figures(folder):
    """Draws the score on the dev set by update, for each row of the ablation."""
    pictures = {}
    for (task, count), of_task in cells(folder, ABLATION).items():
        if not {"full", "no_auxiliary"} <= of_task.keys():
            continue
        drawn = {}
        for key in ABLATION.keys() & of_task.keys():
            scores = np.array([r["curve"]["dev_scores"] for r in of_task[key]])
            updates = of_task[key][0]["curve"]["updates"]
            spread = 100 * scores.std(axis=0, ddof=1) if len(scores) > 1 else None
            drawn[ABLATION[key][0]] = updates, 100 * scores.mean(axis=0), spread
        order = [name for name, *_ in ABLATION.values() if name in drawn]
        pictures[f"gpt_ablation_{task}_{count}"] = lines(
            {name: drawn[name] for name in order},
            title=f"{task}, {count:,} training examples",
            xlabel="update",
            ylabel="score on the dev set, in points",
        )
    return pictures


def layers_markdown(folder):
    """Returns the table of the suite `gpt_layers_transferred`."""
    published = (
        "The paper (figure 2, left; MultiNLI and RACE): the embeddings help, each further layer "
        "helps, on MultiNLI up to 9 points for all.\n"
    )
    return f"{_table(cells(folder, DEPTHS), DEPTHS)}\n{published}"


def layers_figures(folder):
    """Draws the score by number of transferred layers."""
    drawn = {}
    for (task, count), of_task in cells(folder, DEPTHS).items():
        if set(of_task) >= set(DEPTHS):
            points = [summary(_in_papers_metric(of_task[row], task)[1]) for row in DEPTHS]
            means, spread = ([100 * point[i] for point in points] for i in (0, 1))
            spread = None if min(n for *_, n in points) < 2 else spread
            drawn[f"{task}, {count:,}"] = range(-1, len(DEPTHS) - 1), means, spread
    title = "GPT: layers transferred (-1: nothing, 0: embeddings)"
    return {"gpt_layers_transferred": lines(drawn, title=title, xlabel="layers", ylabel="score")}


SUITES = {
    "gpt_ablation": Suite(
        ablation_markdown,
        ablation_figures,
        scales(ABLATION, more=SIZES),
        "Radford et al. 2018, table 5",
        published="2018-06",
        jobs=jobs_of,
        one_encoder=True,
        **OPTIONS,
    ),
    "gpt_layers_transferred": Suite(
        layers_markdown,
        layers_figures,
        scales(DEPTHS, LAYERS_READ),
        "Radford et al. 2018, figure 2, left",
        published="2018-06",
        jobs=jobs_of,
        one_encoder=True,
        **OPTIONS,
    ),
}
