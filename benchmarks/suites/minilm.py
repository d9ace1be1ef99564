"""The suite `minilm`: a released encoder on thirteen tasks, frozen layer by layer and fine-tuned.

Encoder: all-MiniLM-L6-v2, 6 layers of 384 units. Rows: linear heads on each choice of frozen
layers, fine-tuning, task networks on the frozen mix of all layers and on GloVe vectors, LoRA, and
random weights. The official dev set of a GLUE task is its evaluation split; its dev set is cut from
train.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

import keras_plm
from benchmarks.suites.features_or_fine_tuning import (
    difference_of,
    interval,
    tiny_encoder,
    with_examples,
)
from benchmarks.suites.registry import Suite
from keras_plm.data.task import find_file
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.jobs import Job, Prerequisite
from keras_plm.experiments.pretraining.word_vectors import Vectors, make_word_vectors
from keras_plm.experiments.recommend import Choice, ranked, resampled_scores
from keras_plm.experiments.report.result_tables import add_seed, place_of_layers
from keras_plm.experiments.results import ResultFolder, read_results
from keras_plm.transfer import distinct_choices

ENCODER = "all-MiniLM-L6-v2"
GLOVE = "glove/glove.6B.50d.top50k.txt"
# The model card lists SNLI (with MultiNLI) and SQuAD among the data of the contrastive tuning.
SEEN = ("snli", "squad")
TITLES = {
    "wikigold": "WikiGold: names", "wnut17": "WNUT-17: names",
    "ud_english_ewt": "EWT: part of speech", "sst2": "SST-2: sentiment",
    "sst5": "SST-5: sentiment", "cr": "CR: sentiment", "subj": "SUBJ: subjectivity",
    "cola": "CoLA: acceptability", "mrpc": "MRPC: paraphrase", "rte": "RTE: entailment",
    "stsb": "STS-B: similarity", "snli": "SNLI: entailment", "squad": "SQuAD: answers",
}  # fmt: skip
READERS = {
    "wikigold": (("reader", "bilstm_crf"), ("character_filters", 64)),
    "sst5": (("reader", "bcn"),),
    "snli": (("reader", "esim"), ("train_limit", 5_000)),
    "squad": (("reader", "bidaf"), ("units", 90), ("train_limit", 2_000), ("epochs", 10)),
}
RANDOM_TASKS = ("wikigold", "sst5", "mrpc", "stsb")  # LoRA and random weights
# Learning rates. Fine-tuned taggers and span heads need larger ones than classifiers, and new
# weights the largest. A task whose best rate was the first or last of its list has the wide list.
WIDE_RATES = "1e-5,3e-5,1e-4,3e-4"
TAGGER_RATES, NEW_WEIGHTS_RATES = "3e-5,1e-4,3e-4", "1e-4,3e-4,1e-3"
LORA_RATES = NETWORK_RATES = "3e-4,1e-3,3e-3,1e-2"
# Columns and rows of the short table in README: tasks, and methods with their rows. `None` selects
# the frozen layers that are best on the dev set.
BRIEF_TASKS = {
    "wikigold": "names: WikiGold (F1)",
    "sst5": "sentiment: SST-5 (accuracy)",
    "stsb": "similarity: STS-B (Pearson)",
}
BRIEF_ROWS = {
    "embeddings, frozen": "embeddings",
    "last layer, frozen": "last",
    "best layers on the dev set, frozen": None,
    "mix of all layers, frozen": "elmo_mix",
    "fine-tuned": "fine-tuned",
    "random weights, all trained": "random weights, all trained",
}
ON_MIX, ON_GLOVE = "frozen, mix of layers, the task's network", "GloVe, the task's network"
NARROW = "GloVe, the task's network with 25 units"  # half the width of GloVe, not of MiniLM
PROBES, FINE_TUNED, NETWORKS, OTHERS = range(4)  # stages, each complete before the next


@dataclasses.dataclass(frozen=True)
class OfTask:
    """Settings of a task.

    Attributes:
        epochs: Passes of fine-tuning over the training examples.
        train_limit: Most training examples; 0 takes all.
        dev_limit: Most examples of the dev set; 0 takes all.
        probe_epochs: Passes of a linear head or task network over the features.
        rates: Learning rates of fine-tuning.
    """

    epochs: int = 3
    train_limit: int = 0
    dev_limit: int = 0
    probe_epochs: int = 10
    rates: str = "1e-5,3e-5,1e-4"


@dataclasses.dataclass(frozen=True)
class Released:
    """The runs of the suite at a scale.

    Attributes:
        tasks: Pairs `(task, OfTask)`.
        probe_rates: Learning rates of linear heads, by default those of `Run`.
        rates: Learning rates of a trained encoder, by default those of each task and method.
        precision: Precision of a trained encoder.
        probe_seeds: Number of seeds of linear heads; other rows have three.
        tiny: Whether a small BERT with random weights replaces the released encoder.
    """

    tasks: tuple = (
        ("wikigold", OfTask(5, rates=TAGGER_RATES)),
        ("wnut17", OfTask(5, rates=WIDE_RATES)),
        ("ud_english_ewt", OfTask(3, rates=TAGGER_RATES)),
        ("sst2", OfTask(2, 20_000, 2_000)),
        ("sst5", OfTask(3, rates=WIDE_RATES)),
        ("cr", OfTask(5)),
        ("subj", OfTask(3)),
        ("cola", OfTask(5)),
        ("mrpc", OfTask(5)),
        ("rte", OfTask(5)),
        ("stsb", OfTask(5)),
        ("snli", OfTask(2, 20_000, 2_000)),
        ("squad", OfTask(2, 5_000, 1_000, probe_epochs=3, rates=TAGGER_RATES)),
    )
    probe_rates: str = ""
    rates: str = ""
    precision: str = "bfloat16"
    probe_seeds: int = 5
    tiny: bool = False

    def probe(self, task, layers, method="features"):
        """Returns the `Run` of a linear head on a choice of frozen layers."""
        of_task = dict(self.tasks)[task]
        return Run(
            method,
            layers=layers,
            learning_rates=self.probe_rates,
            epochs=of_task.probe_epochs,
            train_limit=of_task.train_limit,
            dev_limit=of_task.dev_limit,
        )

    def trained(self, task, rates="", **fields):
        """Returns the `Run` that trains the encoder, by default the pre-trained one.

        Args:
            task: Name of the task.
            rates: Learning rates, by default those of the task.
            **fields: Other fields of the `Run`.
        """
        of_task = dict(self.tasks)[task]
        names = ("epochs", "train_limit", "dev_limit")
        return Run(
            learning_rates=self.rates or rates or of_task.rates,
            precision=self.precision,
            **{name: getattr(of_task, name) for name in names},
            **fields,
        )

    def network(self, task, layers, units=0):
        """Returns the `Run` of a task network on frozen layers.

        Args:
            task: Name of the task.
            layers: The choice of layers.
            units: Width of each direction of its LSTMs, unless `READERS` has one; 0 for half the
                encoder's width.
        """
        of_task = dict(self.tasks)[task]
        fields = {"train_limit": of_task.train_limit, "dev_limit": of_task.dev_limit}
        fields |= {"learning_rates": NETWORK_RATES, "epochs": of_task.probe_epochs, "units": units}
        return Run("features", layers=layers, **(fields | dict(READERS[task])))


SCALES = {
    "small": Released(),
    "test": Released(
        tasks=(("wikigold", OfTask(1, 8, 4, 1)), ("snli", OfTask(1, 8, 4, 1))),
        probe_rates="1e-2",
        rates="1e-3",
        probe_seeds=1,
        tiny=True,
    ),
}


def jobs_of(released, workspace, encoder=None):
    """Returns the suite's jobs: linear heads, fine-tuning, task networks, then the other rows.

    Args:
        released: A `Released`.
        workspace: A `Workspace`.
        encoder: Folder or name of an encoder that replaces the released one.
    """
    if released.tiny and encoder is None:
        encoder = str(tiny_encoder("bert", workspace))
    encoder = encoder or ENCODER
    model = keras_plm.load(encoder)[0]
    choices, half = distinct_choices(model), model.hidden_dim // 2
    jobs = []
    for task, _ in released.tasks:
        jobs += [
            Job(task, encoder, released.probe(task, layers), seeds=released.probe_seeds)
            for layers in choices
        ]
        jobs.append(Job(task, encoder, released.trained(task), stage=FINE_TUNED))
    if released.tiny:
        return jobs
    tasks = [task for task, _ in released.tasks]
    glove = str(Path(workspace.features) / "glove_6B_50d")
    needs = (Prerequisite("GloVe vectors", functools.partial(_read_glove, glove, workspace.data)),)
    for task in (task for task in tasks if task in READERS):
        on_mix, on_glove = released.network(task, "elmo_mix"), released.network(task, "last", half)
        jobs.append(Job(task, encoder, on_mix, stage=NETWORKS))
        jobs.append(Job(task, glove, on_glove, needs=needs, stage=NETWORKS))  # the same width
    for task in (task for task in tasks if task in RANDOM_TASKS):
        runs = [
            released.trained(task, NEW_WEIGHTS_RATES, method="scratch"),
            released.trained(task, LORA_RATES, lora_rank=8),
            released.probe(task, "elmo_mix", "randomly_initialised"),
        ]
        jobs += [Job(task, encoder, run, stage=OTHERS) for run in runs]
    return jobs


def _read_glove(folder, data, progress):
    if not (Path(folder) / "config.json").is_file():
        make_word_vectors(Vectors(), None, folder, progress, find_file(data, GLOVE))


def row_of(result):
    """Returns `(position, name)` of a result's row in tables."""
    fields, method = result["settings"], result["method"]
    if fields["reader"] != "linear":
        if not result["encoder"].startswith("glove"):
            return (2, 0), ON_MIX
        return ((2, 1), ON_GLOVE) if fields.get("units") else ((2, 2), NARROW)
    if method == "features":
        return (0, place_of_layers(fields["layers"])), fields["layers"]
    if method == "randomly_initialised":
        return (4, 0), f"random weights, frozen, {fields['layers']}"
    if method == "scratch":
        return (4, 1), "random weights, all trained"
    return ((3, 0), "LoRA, rank 8") if "lora_rank" in fields else ((1, 0), "fine-tuned")


def read(folder):
    """Returns `{task: {row: Choice}}`, in the order of the suite.

    Raises:
        ValueError: If there are no results of the suite.
    """
    found, order = {}, {}
    for result in read_results(folder):
        order[result["task"], row_of(result)[1]] = row_of(result)[0]
        add_seed(result, found.setdefault((result["task"], row_of(result)[1]), []))
    if not found:
        raise ValueError(
            f"No result of minilm below {folder}: `python -m benchmarks suite minilm` writes them. "
            f"Received: {str(folder)!r}"
        )
    tasks = {task: {} for task, _ in Released.tasks if any(t == task for t, _ in found)}
    for task, row in sorted(found, key=lambda key: order[key]):
        tasks[task][row] = Choice(row, tuple(found[task, row]))
    return tasks


def _frozen(rows):
    """Returns the choices of frozen layers under a linear head, the best on the dev set first."""
    return ranked([c for c in rows.values() if row_of(c.results[0])[0][0] == 0])


def markdown(folder):
    """Returns the suite's tables: a summary of all tasks, task networks, and all scores."""
    found, kept = read(folder), ResultFolder(folder)
    tables = _summary(found, kept), _networks(found, kept), _scores(found)
    return "\n".join(table for table in tables if table)


def _summary(found, kept):
    heads = ["training examples", "best frozen layers on the dev set", "score"]
    heads += ["minus last layer", "minus embeddings"]
    any_tuned = any("fine-tuned" in rows for rows in found.values())
    if any_tuned:
        heads += ["fine-tuned", "gain of fine-tuning", "time, fine-tuned : frozen"]
    text = [f"| task | {' | '.join(heads)} |", "|---|---:|---|" + "---:|" * (len(heads) - 2)]
    for task, rows in found.items():
        best, tuned = _frozen(rows)[0], rows.get("fine-tuned")
        chosen = [best, rows.get("last"), rows.get("embeddings"), tuned]
        chosen = [choice and with_examples(choice, kept) for choice in chosen]
        scores = resampled_scores([choice for choice in chosen if choice])
        scored = [(choice, scores.pop(0) if choice else None) for choice in chosen]
        of_best, of_last, of_embeddings, of_tuned = scored
        cells = [f"{best.results[0]['counts']['train']:,}", best.name, interval(*of_best)]
        cells += [difference_of(of_best, of_last), difference_of(of_best, of_embeddings)]
        if tuned is not None:
            cells += [interval(*of_tuned), difference_of(of_tuned, of_best)]
            cells.append(f"{tuned.seconds / max(best.seconds, 0.1):,.0f}")
        cells += [""] * (len(heads) - len(cells))
        seen = " (seen)" if task in SEEN else ""
        text.append(f"| {task}{seen} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def _networks(found, kept):
    """Returns the table of task networks, next to a linear head and fine-tuning; may be empty."""
    heads = [
        ON_MIX,
        ON_GLOVE,
        "gain over GloVe",
        "gain over a linear head",
        "gain over fine-tuning",
    ]
    text = [f"| task | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for task, rows in found.items():
        if ON_MIX not in rows:
            continue
        chosen = [rows[ON_MIX], rows.get(ON_GLOVE), rows.get("elmo_mix"), rows.get("fine-tuned")]
        chosen = [choice and with_examples(choice, kept) for choice in chosen]
        scores = resampled_scores([choice for choice in chosen if choice])
        scored = [(choice, scores.pop(0) if choice else None) for choice in chosen]
        on_mix, on_glove, linear, tuned = scored
        cells = [interval(*on_mix), interval(*on_glove) if on_glove[0] else ""]
        cells += [difference_of(on_mix, other) for other in (on_glove, linear, tuned)]
        seen = " (seen)" if task in SEEN else ""
        text.append(f"| {task}{seen} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n" if len(text) > 2 else ""


def brief(folder):
    """Returns the short table for README: the complete rows, with their 95 % intervals."""
    found, kept = read(folder), ResultFolder(folder)
    text = [f"| | {' | '.join(BRIEF_TASKS.values())} |", "|---|" + "---:|" * len(BRIEF_TASKS)]
    for name, row in BRIEF_ROWS.items():
        cells = []
        for task in BRIEF_TASKS:
            rows = found.get(task, {})
            choice = _frozen(rows)[0] if rows and row is None else rows.get(row)
            if choice is None:
                cells.append("")
                continue
            choice = with_examples(choice, kept)
            note = f" ({choice.name})" if row is None else ""
            cells.append(interval(choice, *resampled_scores([choice])) + note)
        if all(cells):
            text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def _scores(found):
    tasks = list(found)
    heads = []
    for task in tasks:
        first = next(iter(found[task].values())).results[0]
        heads.append(f"{task} ({next(iter(first['metrics'])).replace('_', ' ')})")
    text = [f"| | seeds | {' | '.join(heads)} |", "|---|" + "---:|" * (1 + len(tasks))]
    rows = {name: row_of(c.results[0])[0] for of in found.values() for name, c in of.items()}
    best = {t: max(summary(c.results)[0] for c in _frozen(rs)) for t, rs in found.items()}
    deepest = sum(name.startswith("layer_") for name in rows) + 2
    numbers = {"second_to_last": f" (layer {deepest - 1})", "last": f" (layer {deepest})"}
    for name in sorted(rows, key=rows.get):
        choices = [found[task].get(name) for task in tasks]
        cells = [_score(c, best[t]) if c else "" for t, c in zip(tasks, choices, strict=True)]
        seeds = sorted({len(choice.results) for choice in choices if choice})
        cells.insert(0, " to ".join(map(str, seeds[:1] + seeds[1:][-1:])))
        text.append(f"| {name}{numbers.get(name, '')} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def _score(choice, best):
    """Returns "mean ± deviation between seeds" in points, bold for the best mean."""
    mean, deviation, n = summary(choice.results)
    mark = "**" if mean == best else ""
    return f"{mark}{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if n > 1 else "") + mark


def figures(folder):
    """Draws the score of each layer under a linear head, a panel per task.

    Lines show the frozen layers that are best on the dev set, and fine-tuning.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    found = read(folder)
    # Five or four in a row, whichever leaves fewer places empty.
    columns = min((5, 4), key=lambda n: -len(found) % n) if len(found) > 5 else len(found)
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.2 * columns, 1.9 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    lines = {}
    for axes, (task, of_task) in zip(grid.flat, found.items(), strict=False):
        best = _frozen(of_task)[0]
        layers = _single_layers(of_task)
        means, deviations, _ = np.array([summary(c.results) for c in layers]).T * 100
        (drawn,) = axes.plot(means, marker="o", markersize=4, color="#0072b2")
        axes.fill_between(
            range(len(means)), means - deviations, means + deviations, alpha=0.15, linewidth=0
        )
        lines["each frozen layer"] = drawn
        for name, choice, colour, dash in (
            ("best frozen layers on the dev set", best, "#009e73", "--"),
            ("fine-tuned", of_task.get("fine-tuned"), "#d55e00", "-"),
        ):
            if choice is not None:
                height = 100 * summary(choice.results)[0]
                lines[name] = axes.axhline(height, color=colour, linestyle=dash, linewidth=1.4)
        metric = next(iter(best.results[0]["metrics"])).replace("_", " ")
        seen = " (seen)" if task in SEEN else ""
        axes.set_title(f"{TITLES[task]}{seen}\n{metric}", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#e4e4e4", linewidth=0.8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in grid.flat[len(found) :]:
        axes.remove()
    figure.supxlabel("layer (0: embeddings)", fontsize=8)
    figure.legend(
        lines.values(), lines, loc="outside upper left", ncols=3, fontsize=8, frameon=False
    )
    return {"minilm": figure}


def _single_layers(rows):
    """Returns the `Choice`s of single layers, from the embeddings to the last."""
    last = [rows["second_to_last"], rows["last"]] if "last" in rows else []
    inner = [name for name in rows if name.startswith("layer_")]
    inner.sort(key=lambda name: int(name.removeprefix("layer_")))
    return [rows["embeddings"], *(rows[name] for name in inner), *last]


SUITES = {
    "minilm": Suite(
        markdown,
        figures,
        SCALES,
        "Devlin et al. 2018, section 5.3; Peters et al. 2018; Peters, Ruder and Smith 2019",
        published="2019-03",
        jobs=jobs_of,
        one_encoder=True,
        flags=("encoder", "features", "feature_gb"),
        brief=brief,
    ),
}
