"""Tables and plots from result files."""

import itertools
import json
from collections import Counter, defaultdict

import numpy as np

from keras_plm.experiments.config import METHODS, SETTINGS, label_runs, settings_of, summary
from keras_plm.experiments.recommend import intervals
from keras_plm.experiments.report.tables import cell, plot_text
from keras_plm.experiments.results import result_name
from keras_plm.files.json_files import OneOf, check_shape
from keras_plm.plots import score_by_layer
from keras_plm.transfer import LAYER_CHOICES

ORDER = ("scratch", "randomly_initialised", "features", "fine_tune")
TRAINED = ("scratch", "fine_tune")  # methods that train the encoder
# Types of the keys of a run's record that a table needs.
RUN = {"run": str, "method": OneOf(tuple(METHODS)), "score": float, "settings": SETTINGS}


def describe(result, common=("train_limit", "precision")):
    """Describes a run for the first column of a table, without the fields in `common`."""
    fields, method = result["settings"], result["method"]
    names = {
        "scratch": "random weights, all trained",
        "fine_tune": "pre-trained, fine-tuned",
        "randomly_initialised": "random weights, frozen",
        "features": "pre-trained, frozen",
    }
    words = [names[method]]
    depth = fields.get("reader_layers")
    reader = f"{fields['reader']} reader" + (f" of {depth} layers" if depth else "")
    if method not in TRAINED:
        words += [fields["layers"], reader]
        words += [f"{fields['pool']} pooling"] if fields["pool"] != "mean" else []
    elif fields["reader"] != "linear":
        words.append(reader)
    words += variant(fields)
    if "train_limit" not in common:
        count = (result.get("counts") or {}).get("train", fields["train_limit"])
        words.append(f"{count:,} training examples")
    if "precision" not in common:
        words.append(fields["precision"])
    return "; ".join(words)


def variant(fields):
    """Lists the settings of a run that differ from their defaults, in words.

    Results omit these settings at their defaults.
    """
    places = {
        "output": "features after the reader",
        "both": "features before and after the reader",
    }
    words = {
        "words": "{} word vectors",
        "placement": "{}",
        "penalty": "λ = {:g}",
        "mix_norm": "layers normalised",
        "feature_dropout": "feature dropout {:g}",
        "character_filters": "{} character filters",
        "units": "{} units",
        "schedule": "{} rate",
        "layer_decay": "rates {:g} times per lower layer",
        "unfreeze_epochs": "unfrozen from the top, epochs per layer: {}",
        "text_pool": "{} pooling",
        "language_model_weight": "auxiliary language model, λ = {:g}",
        "pretrained_layers": "layers transferred: {}",
        "lora_rank": "LoRA, rank {}",
        "bias_correction": "Adam's bias corrected",
        "document_tokens": "sentences of a document together, up to {} tokens",
    }
    fields = {**fields, "placement": places.get(fields.get("placement"))}
    fields["schedule"] = fields.get("schedule", "").replace("_", " ")
    return [text.format(fields[name]) for name, text in words.items() if fields.get(name)]


def of_runs(results):
    """Selects the results that a table of runs can show.

    It leaves out runs whose seeds have different settings, runs with the settings of another run,
    and runs with other data or weights than most runs of their task and encoder.

    Returns:
        `(results, [reason for leaving out a result])`.

    Raises:
        ValueError: If it can show no result.
    """
    runs, odd = {}, []
    for result in results:
        name = getattr(result, "where", "") or "A result"
        try:
            check_shape(dict(result), RUN, f"{name} is not a result of `run`, left out")
            first = next(iter(result["metrics"].values()), None)
            check_shape(first, float, f"{name} has no score by a metric, left out")
            if abs(result["score"]) > 1e6:
                raise ValueError(
                    f"{name} must have a score of at most 1e6, left out. "
                    f"Received: {result['score']}"
                )
            run = result["task"], result["encoder"], result["method"], result["run"]
            runs.setdefault(run, []).append(result)
        except ValueError as error:
            odd.append(str(error))
    shown, named = [], {}
    for (task, encoder, _, run), of_run in runs.items():
        seeds = []
        try:
            settings = json.dumps(of_run[0]["settings"], sort_keys=True)
            other = named.setdefault((task, encoder, settings), run)
            if other != run:
                raise ValueError(
                    f"{_where(of_run[0])}: Seeds of the same settings must be one run: remove the "
                    f"older files. Received: the runs {other!r} and {run!r}"
                )
            for result in of_run:
                add_seed(result, seeds)
            shown += seeds
        except ValueError as error:
            odd.append(str(error))
    shown, others = same_inputs(shown)
    odd += [
        f"{_where(result)}: Runs of one task and encoder must have the same data and weights: give "
        "other data a folder of results of its own. Received: other data or weights than most runs "
        f"of {result['task']}"
        for result in others
    ]
    if odd and not shown:
        raise ValueError(odd[0])
    return shown, odd


def same_inputs(results):
    """Separates results whose data or weights differ from those of most comparable results.

    Returns:
        `(comparable results, other results)`.
    """

    def group(result):
        settings = result.get("settings") or {}
        read = (settings.get(name) for name in ("words", "document_tokens"))
        return tuple(map(str, (result["task"], result["encoder"], *read)))

    inputs = defaultdict(Counter)
    for result in results:
        if result.get("inputs") is not None:
            inputs[group(result)][str(result["inputs"])] += 1
    most = {name: counts.most_common(1)[0][0] for name, counts in inputs.items()}
    same = [
        result.get("inputs") is None or str(result["inputs"]) == most[group(result)]
        for result in results
    ]
    return tuple([r for r, s in zip(results, same, strict=True) if s is of] for of in (True, False))


def rows_of(results):
    """Groups results by row: `{(encoder, row): {task: [result]}}`, in the order of a table.

    A label states training examples or precision if they differ from most runs of the task.
    Different runs get different labels.
    """
    for result in results:
        if result["method"] not in ORDER or not result.get("run"):
            raise ValueError(
                f"{getattr(result, 'where', '') or 'A result'} must be that of a run with a name "
                f"and one of the methods {', '.join(ORDER)}. Received: "
                f"method={result['method']!r:.60}, run={result.get('run')!r:.60}"
            )
    usual = {}
    for task in {result["task"] for result in results}:
        of_task = [r["settings"] for r in results if r["task"] == task]
        trained = [
            r["settings"] for r in results if r["task"] == task and r["method"] in TRAINED
        ] or of_task
        usual[task] = {
            "train_limit": _most(f["train_limit"] for f in of_task),
            "precision": _most(f["precision"] for f in trained),
        }

    def label(result):
        of_task, fields = usual[result["task"]], result["settings"]
        common = [name for name in of_task if fields[name] == of_task[name]]
        if result["method"] not in TRAINED:
            common.append("precision")  # always float32
        return describe(result, common)

    rows = {}
    for words, result in label_runs(sorted(results, key=_place), label):
        row = rows.setdefault((result["encoder"], words), {})
        add_seed(result, row.setdefault(result["task"], []))
    return rows


def add_seed(result, of_cell):
    """Adds a result to the other seeds of its run.

    Raises:
        ValueError: If its settings differ, or its seed exists already.
    """
    if twice := [other for other in of_cell if other["seed"] == result["seed"]]:
        raise ValueError(
            "A run must have one result per seed: move one of the two elsewhere. "
            f"Received: {_where(twice[0])} and {_where(result)}"
        )
    if of_cell and settings_of(of_cell[0]) != settings_of(result):
        raise ValueError(
            "Seeds of one run share settings, data and encoder: remove the older files. "
            f"Received: {_where(of_cell[0])} and {_where(result)}, of different runs"
        )
    of_cell.append(result)


def file_of(result):
    """Returns the name of a result in its suite's folder."""
    return result_name(*(result[key] for key in ("task", "encoder", "run", "seed")))


def _where(result):
    """Returns the source file of a result for messages; otherwise its name."""
    return getattr(result, "where", "") or file_of(result)


def place_of_layers(layers):
    """Returns the position of a choice of layers: single layers by depth, then combinations."""
    if layers in ("", "embeddings"):  # "" for methods that train the encoder
        return 0
    number = layers.rpartition("_")[2]
    if number.isdecimal():
        return int(number)
    ends = ["second_to_last", "last"]
    names = ends + [name for name in LAYER_CHOICES if name not in ends]
    return 10_000 + (names.index(layers) if layers in names else len(names))


def _place(result):
    """Returns the position of a result in a table: choices of layers from the lowest up."""
    fields = result["settings"]
    layers = place_of_layers(fields["layers"])
    method = ORDER.index(result["method"])
    reader = fields["reader"] if result["method"] not in TRAINED else ""
    return result["encoder"], method, reader != "linear", layers, result["run"], result["seed"]


def _field(result, name):
    return result["encoder"] if name == "encoder" else result["settings"][name]


def _most(values):
    return Counter(values).most_common(1)[0][0]


def markdown(results):
    """Formats a table: a row per run, a column per task, mean ± deviation (n seeds), in points."""
    tasks = sorted({result["task"] for result in results})
    metric = {result["task"]: next(iter(result["metrics"])) for result in results}
    limited = {result["task"]: _usual_limit(results, result["task"]) for result in results}
    rows = {
        key: {task: summary(found) for task, found in row.items()}
        for key, row in rows_of(results).items()
    }
    best = {task: max(row[task][0] for row in rows.values() if task in row) for task in tasks}
    many = len({encoder for encoder, _ in rows}) > 1
    head = " | ".join(
        f"{cell(task)} ({cell(metric[task].replace('_', ' '))}{limited[task]})" for task in tasks
    )
    lines = [f"| {'encoder: ' if many else ''}run | {head} |", "|---|" + "---:|" * len(tasks)]
    for (encoder, name), row in rows.items():
        shown = []
        for task in tasks:
            if task not in row:
                shown.append("")
                continue
            mean, deviation, n = row[task]
            spread = f" ± {100 * deviation:.1f}" if n > 1 else ""
            number = f"{100 * mean:.1f}{spread} ({n})"
            shown.append(f"**{number}**" if mean == best[task] else number)
        name = cell(f"{encoder}: {name}" if many else name)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    if found := _mixed_epochs(results, tasks):
        lines += ["", found]
    return "\n".join(lines) + "\n"


def _mixed_epochs(results, tasks):
    """Returns a sentence on tasks whose runs have different numbers of epochs, or ""."""
    mixed = []
    for task in tasks:
        epochs = {r["settings"].get("epochs") for r in results if r["task"] == task}
        epochs = sorted(epochs - {None})
        if len(epochs) > 1:
            mixed.append(f"{cell(task)} ({', '.join(map(str, epochs))})")
    return f"Runs have different numbers of epochs on {', '.join(mixed)}." if mixed else ""


def _usual_limit(results, task):
    """Describes the usual limit of training examples of a task; empty without a limit."""
    of_task = [result for result in results if result["task"] == task]
    limit = _most(result["settings"]["train_limit"] for result in of_task)
    return f", {limit:,} training examples at most" if limit else ""


def layer_figure(results, task, choice_of=None):
    """Draws the scores of one task by choice of layers; the best on the dev set is bold.

    Args:
        results: A list of `Record`s.
        task: Name of the task.
        choice_of: `choice_of(name, results)` returns the `Choice` of a run with the contributions
            of its examples. If given, bars and bands are 95 % intervals over seeds and examples;
            otherwise bars are deviations between seeds.

    Returns:
        A matplotlib figure.
    """
    found = [result for result in results if result["task"] == task]
    drawn = [result for result in found if result["method"] == "features"]
    limit = _most(result["settings"]["train_limit"] for result in drawn or found)
    found = [result for result in found if result["settings"]["train_limit"] == limit]
    metric = next(iter(found[0]["metrics"])).replace("_", " ")

    def parts(results, *names):
        """Returns the names of fields in which results differ."""
        return [name for name in names if len({_field(r, name) for r in results}) > 1]

    rows, lines, fresh = {}, {}, {}
    read = [result for result in found if result["method"] == "features"]
    learned = [result for result in found if result["method"] in TRAINED]
    of_row = parts(read, "encoder", "reader", "pool")
    of_line = parts(learned, "encoder", "precision")

    def label(result):
        if result["method"] == "randomly_initialised":
            return result["run"]
        if result["method"] == "features":
            words = [result["settings"]["layers"], *(_field(result, name) for name in of_row)]
            return ", ".join(words + variant(result["settings"]))
        return ", ".join([describe(result), *(_field(result, name) for name in of_line)])

    for words, result in label_runs(sorted(found, key=_place), label):
        if result["method"] == "features":
            add_seed(result, rows.setdefault(words, []))
        elif result["method"] == "randomly_initialised":
            add_seed(result, fresh.setdefault((result["encoder"], words), []))
        else:
            add_seed(result, lines.setdefault(words, []))
    table = [
        {"layers": plot_text(name), "interval": interval} | _mean(of_cell)
        for (name, of_cell), interval in zip(rows.items(), _intervals(rows, choice_of), strict=True)
    ]
    means = {
        plot_text(name): (_mean(of_cell)["mean"], *(interval or ()))
        for (name, of_cell), interval in zip(
            lines.items(), _intervals(lines, choice_of), strict=True
        )
    }
    if fresh:
        best = max(summary(of_run)[0] for of_run in fresh.values())
        means["random weights, frozen; best layers run"] = best
    title = f"{plot_text(task)}: frozen features by choice of layers"
    metric = f"{plot_text(metric)} on the evaluation split"
    return score_by_layer(table, title, metric, means, best=_best_on_dev(rows))


def _mean(results):
    mean, deviation, n = summary(results)
    return {"mean": mean, "deviation": deviation if n > 1 else 0.0}


def _intervals(rows, choice_of):
    """Returns the interval of each row `{name: [result]}`, or `None` without examples."""
    if choice_of is None:
        return [None] * len(rows)
    return intervals([choice_of(name, of_row) for name, of_row in rows.items()])


def _best_on_dev(rows):
    """Returns the label of the row with the highest mean on the dev set.

    Returns `None` for less than two rows, or if a result has no score on the dev set.
    """
    scores = {name: [result.get("dev_score") for result in found] for name, found in rows.items()}
    if len(rows) < 2 or None in itertools.chain(*scores.values()):
        return None
    return plot_text(max(scores, key=lambda name: np.mean(scores[name])))
