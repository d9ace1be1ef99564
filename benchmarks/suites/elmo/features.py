"""ELMo next to word vectors: the suites `elmo_layers` and `elmo_placement`.

A BiLSTM reads word vectors, with or without ELMo, under equal conditions: the same words, units,
grid of learning rates and number of epochs. The suites share one folder of results, so that a row
of two tables is trained once.
"""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np

import keras_plm
from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.registry import Suite
from keras_plm.data.task import find_file
from keras_plm.datasets.corpora import BOOKS
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.jobs import Job, Prerequisite
from keras_plm.experiments.pretraining.word_vectors import Vectors, make_word_vectors
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import NoResult, ResultFolder, read_json, read_results
from keras_plm.models import ELMo
from keras_plm.plots import mixing_weights
from keras_plm.tokenizers import Characters
from keras_plm.training.resume import set_seed

HOME = "elmo"  # folder of results of all suites of ELMo
OPTIONS = {
    "home": HOME,
    "flags": ("encoder", "words", "features", "feature_gb"),
}  # of all suites of ELMo
ADAPTED = ".adapted.json"  # suffix of records of further training, which only one suite shows
ENCODER = WEIGHTS / "elmo_mini"
# Key: name in tables, and settings in addition to the word vectors.
ROWS = {
    "baseline": ("word vectors only", {"layers": "last"}),
    "last": ("+ ELMo, last layer", {"layers": "last"}),
    "mix_1": ("+ ELMo, all layers, λ = 1", {"layers": "elmo_mix", "penalty": 1.0}),
    "mix": ("+ ELMo, all layers, λ = 0.001", {"layers": "elmo_mix", "penalty": 0.001}),
    "both": ("+ ELMo at input and output",
             {"layers": "elmo_mix", "penalty": 0.001, "placement": "both"}),
    "output": ("+ ELMo at the output",
               {"layers": "elmo_mix", "penalty": 0.001, "placement": "output"}),
}  # fmt: skip
# {fraction of the training examples: factor of the passes}. Few examples need more passes.
SHARES = {0.01: 5, 0.05: 3, 0.1: 2, 0.25: 1.5, 0.5: 1, 1.0: 1}


@dataclasses.dataclass(frozen=True)
class Material:
    """The default word vectors and biLM of a suite.

    Attributes:
        vectors: Settings to train word vectors on the books, unless the repository has them.
        words: Name of the folder of the word vectors.
        tiny: Whether a biLM with random weights replaces the pre-trained one.
    """

    vectors: Vectors = Vectors(limit=10_000_000)
    words: str = "books_skip_gram"
    tiny: bool = False

    def encoder_folder(self, given, features):
        """Returns the folder of the biLM: the given one, or the default.

        Raises:
            ValueError: If the folder holds no encoder, or another one than ELMo.
        """
        folder = Path(given or ENCODER)
        if self.tiny and not given:
            folder = Path(features) / "elmo_test"
            if not (folder / "config.json").is_file():
                set_seed(0)
                encoder = ELMo(units=8, projection_dim=4, filters=[[1, 4], [2, 4]], num_highway=1)
                keras_plm.save(folder, encoder, Characters())
        if not (folder / "config.json").is_file():
            raise ValueError(
                "The suites of ELMo need a pre-trained biLM: train one with `keras-plm pretrain "
                "--model elmo` and name its folder with --encoder. "
                f"Received: no encoder in {str(folder)!r}"
            )
        kind = read_json(folder / "config.json").get("model")
        if kind != "ELMo":
            raise ValueError(
                "The suites of ELMo need a biLM: use `run` or `layers` for other encoders. "
                f"Received: {kind} in {str(folder)!r}"
            )
        return str(folder)

    def words_path(self, features):
        """Returns the path of the default word vectors, in the repository or among the features."""
        kept = WEIGHTS / self.words
        return kept if kept.is_dir() else Path(features) / self.words

    def words_for(self, workspace):
        """Returns the folder of the default word vectors and the prerequisites of their jobs."""
        folder = self.words_path(workspace.features)
        make = functools.partial(self.words_folder, "", workspace.data, workspace.features)
        there = (folder / "config.json").is_file()
        return str(folder), () if there else (Prerequisite(self.words, make),)

    def words_folder(self, given, data, features, progress):
        """Returns the given folder of word vectors, or the default, which it makes if missing."""
        folder = Path(given or self.words_path(features))
        if not given and not (folder / "config.json").is_file():
            progress(f"training word vectors on the books, for all runs: {folder}")
            make_word_vectors(
                self.vectors, [find_file(data, b) for b in BOOKS.files.values()], folder, progress
            )
        config = folder / "config.json"
        kind = read_json(config).get("model") if config.is_file() else "nothing"
        if kind != "WordVectors":
            raise ValueError(
                "`--words` must be a folder that `keras-plm word-vectors` made. "
                f"Received: {kind} in {str(folder)!r}"
            )
        return str(folder)


TEST_MATERIAL = Material(Vectors(dim=8, limit=20_000), "books_skip_gram_test", tiny=True)


@dataclasses.dataclass(frozen=True)
class Limited:
    """A task with a network of its own, on a part of its examples.

    Attributes:
        task: Name of the task.
        reader: Network of the task.
        train_limit: Most training examples.
        dev_limit: Most examples of the dev set.
        epochs: Passes over the training examples.
        fields: More fields of its `Run`.
    """

    task: str
    reader: str
    train_limit: int
    dev_limit: int
    epochs: int
    fields: tuple = ()


LIMITED = (
    Limited("snli", "esim", 2_500, 1_000, 5),
    Limited("squad", "bidaf", 1_000, 500, 4),
    Limited("ewt_srl", "alternating_lstm", 4_000, 1_000, 8, (("reader_layers", 2),)),
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The runs of a suite at a scale.

    Attributes:
        rows: Keys of `ROWS`.
        shares: Fractions of the training examples, keys of `SHARES`.
        epochs: Pairs of a task and its passes over all training examples.
        fields: Fields of every `Run`.
        material: Word vectors and biLM.
        limited: Tasks with networks of their own, each a `Limited`.
    """

    rows: tuple
    shares: tuple = (1.0,)
    # Ten passes over WikiGold, of 38 steps each, are too few for the baseline.
    epochs: tuple = (("wikigold", 20), ("sst5", 10))
    fields: tuple = (("learning_rates", "1e-3,5e-3,2.5e-2"), ("units", 128))
    material: Material = Material()
    limited: tuple = ()

    def run_of_limited(self, row, task, words):
        """Returns the `Run` of a row on a `Limited` task."""
        run = self.run(row, task.epochs, 1.0, words, None)
        limits = {"train_limit": task.train_limit, "dev_limit": task.dev_limit}
        return dataclasses.replace(run, reader=task.reader, **limits, **dict(task.fields))

    def run(self, row, epochs, share, words, examples):
        """Returns the `Run` of a row on the fraction `share` of the training examples."""
        fields = {"method": "features", "reader": "bilstm", **dict(self.fields), **ROWS[row][1]}
        fields["epochs"] = round(epochs * SHARES[share])
        if row != "baseline":
            fields |= {"words": words, "feature_dropout": 0.5}  # as in the released readers
        if share < 1:
            fields["train_limit"] = max(round(share * examples), 1)
        return Run(**fields)


def jobs_of(reading, workspace, encoder=None, words=None):
    """Returns the suite's jobs. Without `words`, word vectors of the books are a prerequisite."""
    material = reading.material
    encoder = material.encoder_folder(encoder, workspace.features)
    needs = ()
    if words:
        material.words_folder(words, workspace.data, workspace.features, None)  # checks the folder
    else:
        words, needs = material.words_for(workspace)
    counts = {
        task: len(TASKS[task].read(workspace.data, "train"))
        for task, _ in reading.epochs
        if min(reading.shares) < 1
    }
    runs = [
        (row, task, reading.run(row, epochs, share, words, counts.get(task)))
        for share in sorted(reading.shares, reverse=True)
        for task, epochs in reading.epochs
        for row in reading.rows
    ]
    runs += [
        (row, task.task, reading.run_of_limited(row, task, words))
        for task in reading.limited
        for row in reading.rows
    ]
    return [
        Job(task, words if row == "baseline" else encoder, run, needs=needs)
        for row, task, run in runs
    ]


def scales(rows, shares=(1.0,)):
    """Returns `{scale: Reading}` of a suite."""
    few = {"learning_rates": "1e-2", "units": 4, "batch_size": 64}
    tiny = Reading(
        rows,
        tuple(share for share in shares if share in (0.25, 1.0)),
        (("wikigold", 1), ("sst5", 1))[: 2 if rows == LAYERS else 1],
        tuple(few.items()),
        TEST_MATERIAL,
    )
    limited = LIMITED if rows != EFFICIENCY else ()
    if rows == LAYERS:
        smallest = {"train_limit": 8, "dev_limit": 4, "epochs": 1}
        few = tuple(dataclasses.replace(task, **smallest) for task in limited)
        tiny = dataclasses.replace(tiny, limited=few)
    return {"small": Reading(rows, shares, limited=limited), "test": tiny}


LAYERS = ("baseline", "last", "mix_1", "mix")
PLACES = ("mix", "both", "output")
EFFICIENCY = ("baseline", "mix")


def row_of(result):
    """Returns the key in `ROWS` of a result, or `None` for another kind of run."""
    fields = result.get("settings", {})
    reader = {task.task: task.reader for task in LIMITED}.get(result["task"], "bilstm")
    if result["method"] != "features" or fields.get("reader") != reader:
        return None
    if "words" not in fields:
        return "baseline"
    asked = {"layers": fields["layers"]}
    asked |= {name: fields[name] for name in ("penalty", "placement") if name in fields}
    return next((key for key, (_, own) in ROWS.items() if own == asked and key != "baseline"), None)


def cells(folder, rows, limited=False, of_part=()):
    """Returns `{title: {(row, training examples): [result of each seed]}}` of a folder.

    Args:
        folder: Folder of results.
        rows: Keys of `ROWS`.
        limited: Whether to include runs on a fraction of the training examples.
        of_part: More `Limited` tasks.

    Raises:
        ValueError: If there is no such result, or seeds of one cell come from different runs.
    """
    names = ResultFolder(folder).names(f"*{ADAPTED}")
    adapted = {name.rpartition("/")[2].removesuffix(ADAPTED) for name in names}
    chosen = [(row_of(r), r) for r in read_results(folder) if r["encoder"] not in adapted]
    chosen = [(row, r) for row, r in chosen if row in rows]
    of_part = {task.task for task in (*LIMITED, *of_part)}
    chosen = [
        (row, r)
        for row, r in chosen
        if (not limited if r["task"] in of_part else limited or not r["settings"]["train_limit"])
    ]
    # Each biLM is shown next to the baseline of the word vectors that it was combined with.
    combined = {(r["task"], r["settings"]["words"], r["encoder"]) for row, r in chosen
              if row != "baseline"}  # fmt: skip
    found = {}
    for row, r in chosen:
        for task, words, encoder in sorted(combined):
            if r["task"] != task or r["encoder"] != (words if row == "baseline" else encoder):
                continue
            if row != "baseline" and r["settings"]["words"] != words:
                continue
            of_cell = found.setdefault((task, encoder, words), {}).setdefault(
                (row, r["counts"]["train"]), []
            )
            add_seed(r, of_cell)
    if not found:
        raise NoResult(
            f"The folder must hold results of {', '.join(rows)}: `python -m benchmarks suite` "
            f"writes them. Received: {str(folder)!r}"
        )
    return {_title(key, found): row for key, row in sorted(found.items(), reverse=True)}


def _title(key, keys):
    """Returns the task, with encoder and word vectors if there are several."""
    parts = [key[0]] + [key[i] for i in (1, 2) if len({k[i] for k in keys}) > 1]
    return ", ".join(parts)


def shown(results):
    """Returns "mean ± deviation between seeds (number of seeds)", in points."""
    if not results:
        return ""
    mean, deviation, n = summary(results)
    return f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if n > 1 else "") + f" ({n})"


def _table(folder, rows, names, published):
    """Returns a table with a row per task, a column per name, and the order of the means."""
    head = "|".join(f" {name} " for name in names.values())
    text = [f"| task |{head}| order here, by mean |", "|---|" + "---:|" * len(names) + "---|"]
    for task, found in cells(folder, rows).items():
        of_row = {row: results for (row, _), results in found.items()}
        means = {row: summary(results)[0] for row, results in of_row.items()}
        metric = next(iter(next(iter(of_row.values()))[0]["metrics"])).replace("_", " ")
        best = max(means.values()) if len(set(means.values())) > 1 else math.nan
        numbers = [
            f"**{shown(of_row[row])}**" if means.get(row) == best else shown(of_row.get(row))
            for row in rows
        ]
        order = _order(means, names)
        text.append(f"| {task} ({metric}) | {' | '.join(numbers)} | {order} |")
    return "\n".join(text) + f"\n\n{published}\n"


def _order(means, names):
    """Returns the rows from worst to best, with "=" between means that are shown as equal."""
    order, before = "", None
    for row in sorted(means, key=means.get):
        sign = " = " if f"{100 * means[row]:.1f}" == before else " < "
        order, before = order + sign + names[row], f"{100 * means[row]:.1f}"
    return order[3:]


LAYER_NAMES = {"baseline": "baseline", "last": "last only", "mix_1": "all, λ = 1",
               "mix": "all, λ = 0.001"}  # fmt: skip
PLACE_NAMES = {"mix": "input", "both": "both", "output": "output"}


def layers_markdown(folder):
    """Returns the table of the suite `elmo_layers`."""
    return _table(
        folder,
        LAYERS,
        LAYER_NAMES,
        "The paper's order (table 2; SQuAD, SNLI and SRL): baseline < last only < all, λ = 1 < "
        "all, λ = 0.001.",
    )


def placement_markdown(folder):
    """Returns the table of the suite `elmo_placement`."""
    return _table(
        folder,
        PLACES,
        PLACE_NAMES,
        "The paper's order (table 3): output < input < both for SQuAD and SNLI, output < both < "
        "input for SRL. The networks for SQuAD and SNLI have attention after the reader.",
    )


def _picture(folder, rows, names, title):
    drawn, seeds = {}, set()
    for task, found in cells(folder, rows).items():
        for row in rows:
            results = [r for (of_row, _), rs in found.items() if of_row == row for r in rs]
            if not results or "mixes" not in results[0]:
                continue
            seeds.add(len(results))
            drawn[f"{task}, {names[row]}"] = {
                place: {"weights": np.mean([r["mixes"][place]["weights"] for r in results], axis=0)}
                for place in results[0]["mixes"]
            }
    if not drawn:
        return {}
    number = "-".join(str(n) for n in sorted({min(seeds), max(seeds)}))
    mean = f", mean of {number} seeds" if max(seeds) > 1 else ""
    return {title: mixing_weights(drawn, title=f"Learned mixes of layers{mean}")}


def layers_figures(folder):
    """Draws the learned mixes with both penalties."""
    return _picture(folder, LAYERS, LAYER_NAMES, "elmo_layers_mixes")


def placement_figures(folder):
    """Draws the learned mixes at the reader's input and output, like figure 2 of the paper."""
    return _picture(folder, PLACES, PLACE_NAMES, "elmo_placement_mixes")


SUITES = {
    "elmo_layers": Suite(
        layers_markdown,
        layers_figures,
        scales(LAYERS),
        "Peters et al. 2018, table 2",
        published="2018-02",
        jobs=jobs_of,
        **OPTIONS,
    ),
    "elmo_placement": Suite(
        placement_markdown,
        placement_figures,
        scales(PLACES),
        "Peters et al. 2018, table 3 and figure 2",
        published="2018-02",
        jobs=jobs_of,
        **OPTIONS,
    ),
}
