"""The suite `features_or_fine_tuning`: every method, kind of encoder and kind of task.

Encoders are word vectors, a biLM, a GPT and a BERT. Methods are frozen features, fine-tuning, LoRA,
and the same encoders randomly initialised. Features of every layer choice feed linear readers and
the networks of the feature-based papers. Tasks are names (WikiGold), sentiment (SST-5), inference
(SNLI) and answers (SQuAD).
"""

import dataclasses
from pathlib import Path

import keras_plm
from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.elmo.features import TEST_MATERIAL, Material, shown
from benchmarks.suites.registry import Suite
from keras_plm.data.task import find_file
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.jobs import Job
from keras_plm.experiments.recommend import Choice, ranked, resampled_scores
from keras_plm.experiments.report.result_tables import (
    add_seed,
    place_of_layers,
)
from keras_plm.experiments.results import ResultFolder, read_results
from keras_plm.experiments.statistics import contrast_of, score_interval
from keras_plm.models import BERT, GPT, ELMo
from keras_plm.plots import score_by_layer
from keras_plm.tokenizers import BytePair, Characters, WordPiece
from keras_plm.training.resume import set_seed
from keras_plm.transfer.layer_choices import distinct_choices

KINDS = {"words": "word vectors", "elmo": "ELMo", "gpt": "GPT", "bert": "BERT"}
ATTENTION = ("gpt", "bert")  # kinds with attention, which LoRA adapts
TRAINED = ("fine_tune", "scratch", "lora")  # rows that train the encoder
MIX = {"layers": "elmo_mix"}
RANDOM = {"method": "randomly_initialised", **MIX}
# Key: name in tables, whether the row uses the network of the task, fields of its `Run`.
ROWS = {
    "fine_tune": ("fine-tuned", False, {}),
    "reader": ("frozen, mix of layers, the task's network", True, {"method": "features", **MIX}),
    "last": ("frozen, last layer, linear", False, {"method": "features", "layers": "last"}),
    "elmo_mix": ("frozen, mix of layers, linear", False, {"method": "features", **MIX}),
    "scratch": ("random weights, all trained", False, {"method": "scratch"}),
    "randomly_initialised": ("random weights, frozen, mix, linear", False, RANDOM),
    "lora": ("LoRA, rank 8", False, {"lora_rank": 8}),
    "randomly_initialised_reader": (
        "random weights, frozen, mix, the task's network", True, RANDOM,
    ),
}  # fmt: skip
# Rows of the short table: name, kind of encoder, row. `None` selects the frozen features that are
# best on the dev set.
BRIEF_ROWS = (
    ("word vectors, frozen", "words", None),
    ("ELMo, frozen", "elmo", None),
    ("GPT, fine-tuned", "gpt", "fine_tune"),
    ("BERT, frozen", "bert", None),
    ("BERT, fine-tuned", "bert", "fine_tune"),
    ("BERT from random weights, all trained", "bert", "scratch"),
)
BRIEF_TASKS = {"wikigold": "names: WikiGold (F1)", "sst5": "sentiment: SST-5 (accuracy)"}
BRIEF_NOTE = (
    "Points, with 95 % intervals over seeds and examples. Frozen: the layers and the reader "
    "that are best on the dev set.\n"
)
LAYERS = "layers"  # all other choices of layers, frozen, linear
# These rows answer the question of the suite, so they run with all seeds before the others.
FIRST = ("fine_tune", "reader", "last", "elmo_mix", LAYERS)


@dataclasses.dataclass(frozen=True)
class OfTask:
    """Settings of a task.

    Attributes:
        train_limit: Most training examples; 0 takes all.
        epochs: Passes over the training examples.
        network: Fields of a `Run` for the network of the task.
        dev_limit: Most examples of the dev set; 0 takes all.
    """

    train_limit: int
    epochs: int
    network: tuple
    dev_limit: int = 0


@dataclasses.dataclass(frozen=True)
class Transfer:
    """The runs of the suite at a scale.

    Attributes:
        tasks: Pairs `(task, OfTask)`.
        rows: Keys of `ROWS`, and `LAYERS`, in the order of the runs.
        fields: Fields of every `Run`.
        trained: Fields of each `Run` that trains its encoder.
        frozen_seeds: Number of seeds of frozen features under a linear reader.
        material: Source of the word vectors if none are given.
        released: Whether to use released encoders, from the given folder. GPT and BERT are loaded
            by name where the folder has none.
    """

    tasks: tuple = (
        ("wikigold", OfTask(0, 10, (("reader", "bilstm_crf"), ("character_filters", 64)))),
        ("sst5", OfTask(2_000, 5, (("reader", "bcn"),))),
        ("snli", OfTask(2_000, 5, (("reader", "esim"),), dev_limit=1_000)),
        ("squad", OfTask(1_000, 3, (("reader", "bidaf"),), dev_limit=500)),
    )
    rows: tuple = (*FIRST, *(row for row in ROWS if row not in FIRST))
    # One rate for fine-tuned Transformers, one for LSTMs, one for linear readers, as chosen on
    # other tasks.
    fields: tuple = (("learning_rates", "1e-4,1e-3,1e-2"),)
    trained: tuple = (("precision", "bfloat16"),)
    frozen_seeds: int = 10
    material: Material = Material()
    released: bool = False

    def run(self, task, kind, row, layers=None):
        """Returns the `Run` of a row on a task with a kind of encoder; `LAYERS` needs `layers`."""
        of_task = dict(self.tasks)[task]
        names = ("train_limit", "dev_limit", "epochs")
        fields = {name: getattr(of_task, name) for name in names} | dict(self.fields)
        if layers is not None:
            return Run(method="features", layers=layers, **fields)
        _, network, own = ROWS[row]
        fields |= dict(of_task.network) if network else {}
        if "layers" in own and kind == "words":
            own = own | {"layers": "last"}  # word vectors have one layer
        if own.get("method") in (None, "scratch"):
            fields |= dict(self.trained)
        return Run(**fields, **own)


def fits(task, kind, row):
    """Returns whether a kind of encoder can run a row on a task.

    Without BiDAF, an encoder finds answers in rows of a question and its passage. BERT can read
    them; GPT can if it learns the marks between both texts. Word vectors have one layer. Neither
    they nor ELMo have attention, which LoRA adapts.
    """
    if row == "lora" and kind not in ATTENTION:
        return False
    if task == "squad" and not (row in ROWS and ROWS[row][1]):
        return kind == "bert" or (kind == "gpt" and row in TRAINED)
    return kind != "words" or row not in ("elmo_mix", LAYERS)


def jobs_of(transfer, workspace, encoder=None):
    """Returns the suite's jobs, in the order of the rows.

    Args:
        transfer: A `Transfer`.
        workspace: A `Workspace`.
        encoder: A folder; its subfolders `words`, `elmo`, `gpt` and `bert`, if present, replace
            the default encoders.

    Raises:
        ValueError: If an encoder is missing.
    """
    folders = {kind: _folder(transfer, kind, encoder, workspace) for kind in KINDS}
    jobs = []
    for row in transfer.rows:
        for task, _ in transfer.tasks:
            for kind, (folder, needs) in folders.items():
                if not fits(task, kind, row):
                    continue
                runs = [transfer.run(task, kind, row)] if row != LAYERS else [
                    transfer.run(task, kind, row, layers)
                    for layers in distinct_choices(keras_plm.load(folder)[0])
                    if layers not in ("last", "elmo_mix")
                ]  # fmt: skip
                linear = runs[0].method == "features" and runs[0].reader == "linear"
                more = {"seeds": transfer.frozen_seeds} if linear else {}
                more["stage"] = int(row not in FIRST)
                jobs += [Job(task, folder, run, needs=needs, **more) for run in runs]
    return jobs


def _folder(transfer, kind, given, workspace):
    """Returns `(folder, needs)` of an encoder."""
    if given is not None and (Path(given) / kind).is_dir():
        return str(Path(given) / kind), ()
    if transfer.released:
        names = {"gpt": "gpt", "bert": "bert_base_uncased"}
        if kind in names:
            return names[kind], ()
        raise ValueError(
            f"Released encoders come from --encoder DIR: put {KINDS[kind]} into DIR/{kind}. "
            "`keras-plm word-vectors --file` makes the folder of released word vectors, "
            "`keras_plm.save` that of a released ELMo. "
            f"Received: no such folder in {str(given)!r}"
        )
    if kind == "words":
        return transfer.material.words_for(workspace)
    if transfer.material.tiny:
        return str(tiny_encoder(kind, workspace)), ()
    return str(WEIGHTS / f"{kind}_mini"), ()


def tiny_encoder(kind, workspace):
    """Makes a small encoder with random weights for tests; returns its folder."""
    folder = Path(workspace.features) / f"{kind}_test"
    if not (folder / "config.json").is_file():
        set_seed(0)
        text = find_file(workspace.data, "books/valid.txt")
        if kind == "elmo":
            tokenizer = Characters()
            made = ELMo(units=8, projection_dim=4, filters=[[1, 4], [2, 4]], num_highway=1)
        elif kind == "gpt":
            tokenizer = BytePair.train(text, 300, lowercase=False, scheme="gpt")
            made = GPT(tokenizer.text_size, 2, 2, 8, 16, max_sequence_length=128)
        else:
            tokenizer = WordPiece.train(text, 300)
            made = BERT(len(tokenizer), 2, 2, 8, 16, max_sequence_length=128)
        keras_plm.save(folder, made, tokenizer)
    return folder


_FEW = (("learning_rates", "1e-3"), ("batch_size", 8))
_ONE_STEP = tuple(
    (task, OfTask(8, 1, (*of_task.network, ("units", 2)))) for task, of_task in Transfer.tasks
)
SCALES = {
    "small": Transfer(),
    "paper": Transfer(
        tasks=tuple(
            (task, dataclasses.replace(of_task, train_limit=0, dev_limit=0))
            for task, of_task in Transfer.tasks
        ),
        fields=(("learning_rates", "2e-5,5e-5,1e-3"), ("batch_size", 32)),
        released=True,
    ),
    "test": Transfer(
        tasks=tuple(task for task in _ONE_STEP if task[0] in ("wikigold", "snli")),
        rows=("fine_tune", "reader"),
        fields=_FEW,
        trained=(),
        material=TEST_MATERIAL,
    ),
}


def row_of(result):
    """Returns the name of a result's row in tables, or `None` for another kind of run."""
    fields, method = result["settings"], result["method"]
    linear = fields["reader"] == "linear"
    own = {"lora_rank": fields["lora_rank"]} if "lora_rank" in fields else {}
    own |= {"method": method} if method != "fine_tune" else {}
    if fields["layers"]:  # word vectors have one layer, which counts as their mix
        mixed = fields["layers"] == "last" and (not linear or method == "randomly_initialised")
        own["layers"] = "elmo_mix" if mixed else fields["layers"]
    for name, network, asked in ROWS.values():
        if asked == own and network != linear:
            return name
    if method == "features" and linear:
        return f"frozen, {fields['layers']}, linear"
    return None


def read(folder):
    """Returns `{task: {row: {encoder: [result of each seed]}}}`, in the order of the suite.

    Raises:
        ValueError: If there are no results of the suite.
    """
    found = {}
    for result in read_results(folder):
        row = row_of(result)
        if row is not None:
            of_row = found.setdefault(result["task"], {}).setdefault(row, {})
            add_seed(result, of_row.setdefault(result["encoder"], []))
    if not found:
        raise ValueError(
            f"No result of features_or_fine_tuning below {folder}: `python -m benchmarks "
            f"suite features_or_fine_tuning` writes them. Received: {str(folder)!r}"
        )
    names = [name for name, *_ in ROWS.values()]
    tasks = [task for task, _ in Transfer.tasks if task in found]

    def place(item):
        row, of_row = item
        layers = next(iter(of_row.values()))[0]["settings"]["layers"]
        return (names.index(row), 0) if row in names else (len(names), place_of_layers(layers))

    return {task: dict(sorted(found[task].items(), key=place)) for task in tasks}


def encoders_of(found):
    """Returns the names of the encoders, in the order of the kinds that their names contain."""
    names = {key for rows in found.values() for of_row in rows.values() for key in of_row}
    kinds = list(KINDS)[1:]  # word vectors come first; their names contain no kind

    def place(name):
        return next((i for i, kind in enumerate(kinds, 1) if kind in name), 0), name

    return sorted(names, key=place)


def markdown(folder):
    """Returns the suite's tables: a summary, a table for each task, and the costs."""
    found = read(folder)
    names = encoders_of(found)
    text, heads = [_summary(found, names, folder)], " | ".join(names)
    for task, rows in found.items():
        first = next(result for of_row in rows.values() for r in of_row.values() for result in r)
        metric = next(iter(first["metrics"])).replace("_", " ")
        text += [f"{task} ({metric}), {first['counts']['train']:,} training examples:", ""]
        text += [f"| | {heads} |", "|---|" + "---:|" * len(names)]
        best = {
            key: max((summary(r[key])[0] for r in rows.values() if key in r), default=None)
            for key in names
        }
        for row, of_row in rows.items():
            cells = []
            for key in names:
                results = of_row.get(key, [])
                mark = "**" if results and summary(results)[0] == best[key] else ""
                cells.append(f"{mark}{shown(results)}{mark}")
            text.append(f"| {row} | {' | '.join(cells)} |")
        text.append("")
    return "\n".join(text) + "\n" + _costs(found, names)


def figures(folder):
    """Draws a picture for each task: the scores of all methods and layer choices by encoder."""
    found, pictures = read(folder), {}
    names = encoders_of(found)
    for task, rows in found.items():
        table = []
        for row, of_row in rows.items():
            for key in names:
                if key in of_row:
                    mean, deviation, n = summary(of_row[key])
                    deviation = deviation if n > 1 else 0.0
                    more = {"encoder": key, "mean": mean, "deviation": deviation}
                    table.append({"layers": row, **more})
        first = next(iter(next(iter(rows.values())).values()))[0]
        metric = next(iter(first["metrics"])).replace("_", " ")
        title = f"{task}: all encoders and methods"
        pictures[f"features_or_fine_tuning_{task}"] = score_by_layer(
            table, title, metric, encoders=names
        )
    return pictures


def with_examples(choice, kept):
    """Returns a choice with its examples, read from a `ResultFolder`."""
    return Choice.of(choice.name, choice.results, kept)


def _tuned(rows, key):
    """Returns the `Choice` of the fine-tuned encoder, or `None`."""
    results = rows.get(ROWS["fine_tune"][0], {}).get(key)
    return Choice("fine-tuned", tuple(results)) if results else None


def _best_frozen(rows, key):
    """Returns the `Choice` of frozen features that is best on the dev set, or `None`."""
    frozen = [
        Choice(row, tuple(of_row[key]))
        for row, of_row in rows.items()
        if key in of_row and of_row[key][0]["method"] == "features"
    ]
    return ranked(frozen)[0] if frozen else None


def difference_of(one, two):
    """Formats the difference of two choices with its interval; "" for one choice, or without one.

    Args:
        one, two: Pairs of a `Choice` of the same task and its part of `resampled_scores`.
    """
    choices, scores = zip(one, two, strict=True)
    if any(of is None for of in scores) or choices[0].name == choices[1].name:
        return ""
    if choices[0].parts.shape[1:] != choices[1].parts.shape[1:]:
        return ""
    return str(contrast_of([(1, scores[0]), (-1, scores[1])]))


def _summary(found, names, folder):
    """Returns a table of fine-tuning next to the frozen features that are best on the dev set."""
    text = [
        "| task | encoder | fine-tuned | frozen, best on the dev set | gain of fine-tuning "
        "| scratch | time, fine-tuned : frozen |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    kept, scratch_row = ResultFolder(folder), ROWS["scratch"][0]
    for task, rows in found.items():
        best = {key: choice for key in names if (choice := _best_frozen(rows, key))}
        tuned = {key: choice for key in best if (choice := _tuned(rows, key))}
        pairs = {key: (with_examples(tuned[key], kept), with_examples(best[key], kept))
                 for key in tuned}  # fmt: skip
        scores = resampled_scores([choice for pair in pairs.values() for choice in pair])
        scores = iter(scores)
        gains = {key: difference_of(*[(choice, next(scores)) for choice in pair])
                 for key, pair in pairs.items()}  # fmt: skip
        for key, frozen in best.items():
            cells = [shown(tuned[key].results if key in tuned else [])]
            cells += [f"{shown(frozen.results)}, {frozen.name}", gains.get(key, "")]
            cells.append(shown(rows.get(scratch_row, {}).get(key, [])))
            timed = key in tuned and frozen.seconds
            cells.append(f"{tuned[key].seconds / frozen.seconds:.1f}" if timed else "")
            text.append(f"| {task} | {key} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def brief(folder):
    """Returns the short table for README: scores of two tasks with their 95 % intervals."""
    kept, found = ResultFolder(folder), read(folder)
    names = encoders_of(found)
    text = [
        f"| | {' | '.join(BRIEF_TASKS.values())} |",
        "|---|" + "---:|" * len(BRIEF_TASKS),
    ]
    columns = []
    for task in BRIEF_TASKS:
        rows = found.get(task, {})
        chosen = [_brief_choice(rows, names, kind, row) for _, kind, row in BRIEF_ROWS]
        read_in = [choice and with_examples(choice, kept) for choice in chosen]
        scores = iter(resampled_scores([choice for choice in read_in if choice]))
        columns.append([interval(choice, next(scores)) if choice else "" for choice in read_in])
    for (name, *_), *cells in zip(BRIEF_ROWS, *columns, strict=True):
        text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n\n" + BRIEF_NOTE


def _brief_choice(rows, names, kind, row):
    """Returns the `Choice` of a row of `BRIEF_ROWS`, or `None` if it was not run."""
    key = next((name for name in names if _kind(name) == kind), None)
    if row is None:
        return _best_frozen(rows, key)
    results = rows.get(ROWS[row][0], {}).get(key)
    return Choice(row, tuple(results)) if results else None


def _kind(name):
    """Returns the kind of an encoder by its name; any other name means word vectors."""
    return next((kind for kind in list(KINDS)[1:] if kind in name), "words")


def interval(choice, scores):
    """Formats the mean score of a `Choice` with its interval over seeds and test examples."""
    if scores is None:
        return shown(choice.results)
    found = score_interval(choice.kind, scores)
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _costs(found, names):
    """Returns a table of costs, with a row for each task and method."""
    text = [
        "| task | | seconds per fit: " + " | ".join(names)
        + " | M trained weights: " + " | ".join(names)
        + " | encoder passes |",
        "|---|---|" + "---:|" * (2 * len(names) + 1),
    ]  # fmt: skip
    for task, rows in found.items():
        for row, of_row in rows.items():
            if row not in {name for name, *_ in ROWS.values()}:
                continue
            of_key = {key: Choice(row, tuple(of_row[key])) for key in of_row}
            costs = {key: of_row[key][0] for key in of_row}
            cells = [f"{of_key[key].seconds:,.0f}" if key in of_key else "" for key in names]
            cells += [
                f"{costs[key]['learned_weights'] / 1e6:.2f}"
                if "learned_weights" in costs.get(key, ())
                else ""
                for key in names
            ]
            passes = {cost.get("encoder_passes", "") for cost in costs.values()}
            text.append(f"| {task} | {row} | {' | '.join(cells)} | {max(passes, key=str)} |")
    return "\n".join(text) + "\n"


SUITES = {
    "features_or_fine_tuning": Suite(
        markdown,
        figures,
        SCALES,
        "Peters, Ruder and Smith 2019; Devlin et al. 2018, section 5.3; Peters et al. 2018",
        published="2019-03",
        jobs=jobs_of,
        flags=("encoder", "features", "feature_gb"),
        brief=brief,
    ),
}
