"""The six tasks of ELMo's main table: the suite `elmo_tasks`.

Word vectors and word vectors with ELMo are the rows of `elmo_layers` and `elmo_placement`, in the
same folder of results. Other encoders read the same examples: a mix of all frozen layers under the
same network, without word vectors, and fine-tuned. The suite `minilm` fine-tunes MiniLM on all
training examples; those results are read from there.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import NamedTuple

from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.elmo import features
from benchmarks.suites.elmo.features import OPTIONS, Limited, cells, shown
from benchmarks.suites.features_or_fine_tuning import difference_of, tiny_encoder
from benchmarks.suites.minilm import ENCODER as MINILM
from benchmarks.suites.minilm import SEEN, Released
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.checkpoints.packages import model_name
from keras_plm.experiments.config import Run
from keras_plm.experiments.jobs import Job
from keras_plm.experiments.recommend import Choice, resampled_scores
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import NoResult, ResultFolder, read_results


@dataclasses.dataclass(frozen=True)
class OfPaper:
    """A task of the paper's table 1.

    Attributes:
        title: Name in tables.
        row: Key of `features.ROWS`, the place of ELMo in the paper's network.
        published: The paper's scores without and with ELMo.
        epochs: Passes of fine-tuning over the training examples.
        rates: Learning rates of fine-tuning, by default those of `Run`.
        metric: The paper's metric, in a line of its own below the task's first metric; "" if the
            first one is the paper's.
    """

    title: str
    row: str
    published: tuple
    epochs: int = 3
    rates: str = ""
    metric: str = ""


TASKS = {
    "squad": OfPaper("questions: SQuAD", "both", (81.1, 85.8)),
    "snli": OfPaper("entailment: SNLI", "both", (88.0, 88.7), 5),
    "ewt_srl": OfPaper("roles: EWT", "mix", (81.4, 84.6), 8, "1e-4,3e-4"),
    "litbank": OfPaper("coreference: LitBank", "mix", (67.2, 70.4), 10, "1e-4,3e-4",
                       "without_singletons"),  # OntoNotes has no clusters of one mention
    "wikigold": OfPaper("names: WikiGold", "mix", (90.15, 92.22), 5),
    "sst5": OfPaper("sentiment: SST-5", "mix", (51.4, 54.7)),
}  # fmt: skip
# The learning rate is that of Lee et al. 2017.
COREFERENCE = Limited(
    "litbank", "bilstm", 20, 10, 8, (("batch_size", 1), ("learning_rates", "1e-3"))
)
GPT = str(WEIGHTS / "gpt_mini")
OTHERS = {
    "bert_mini": ("BERT-mini", str(WEIGHTS / "bert_mini")),
    "gpt_mini": ("GPT-mini", GPT),
    model_name(MINILM): ("MiniLM", MINILM),
}
METHODS = {"features": "frozen", "fine_tune": "fine-tuned"}
NOTE = """\
Mean ± standard deviation (number of seeds); the gain has its 95 % interval over seeds and test
examples. The paper (table 1) has other networks and test sets, and all training examples.
"""
FROZEN = """\
The same training and test examples. A frozen encoder stands under the network of its task, without
word vectors.
"""
DIFFERENCES = """\
Differences in points, with 95 % intervals over seeds and test examples. The intervals are not
corrected for the number of comparisons. + ELMo is the network on word vectors and ELMo of the first
table.
"""
MARK = " †"
SEEN_BEFORE = "† MiniLM has read the training examples of this task in its contrastive tuning.\n"


class Cell(NamedTuple):
    """Results of all seeds, and the `ResultFolder` of their examples."""

    results: list
    kept: ResultFolder

    def by(self, metric):
        """Returns the cell with scores of another metric; "" keeps the first one."""
        if not metric:
            return self
        scores = [(r, r["metrics"][metric]) for r in self.results]
        return Cell([{**r, "score": x, "metrics": {metric: x}} for r, x in scores], self.kept)


def _lines():
    """Returns `(task, metric, title)` of each line of a table; metric "" is the task's first."""
    for task, of_paper in TASKS.items():
        yield task, "", of_paper.title
        if of_paper.metric:
            yield task, of_paper.metric, f"{of_paper.title}, {of_paper.metric.replace('_', ' ')}"


def scales():
    """Returns `{scale: Reading}`; the rows of a task are those of `TASKS`."""
    found, few = features.scales(features.LAYERS), {"train_limit": 2, "dev_limit": 1, "epochs": 1}
    smallest = dataclasses.replace(COREFERENCE, **few)
    for scale, task in (("small", COREFERENCE), ("test", smallest)):
        limited = (*found[scale].limited, task)
        found[scale] = dataclasses.replace(found[scale], limited=limited)
    return found


def jobs_of(reading, workspace, encoder=None, words=None):
    """Returns the suite's jobs: word vectors and ELMo on each task, then the other encoders.

    Args:
        reading: A `features.Reading`.
        workspace: A `Workspace`.
        encoder, words: Folders that replace the default biLM and word vectors.
    """
    jobs, tiny = [], reading.material.tiny
    others = [str(tiny_encoder("bert", workspace))] if tiny else [of for _, of in OTHERS.values()]
    for task, of_paper in TASKS.items():
        of_task = dataclasses.replace(
            reading,
            rows=("baseline", of_paper.row),
            epochs=tuple(pair for pair in reading.epochs if pair[0] == task),
            limited=tuple(limited for limited in reading.limited if limited.task == task),
        )
        of_elmo = features.jobs_of(of_task, workspace, encoder, words)
        network = of_elmo[0].run
        frozen = dataclasses.replace(network, layers="elmo_mix", penalty=0.001)
        shared = ("train_limit", "dev_limit", "batch_size")
        tuned = Run(
            epochs=1 if tiny else of_paper.epochs,
            learning_rates=network.learning_rates if tiny else of_paper.rates,
            **{name: getattr(network, name) for name in shared},
        )
        names = ("reader", "reader_layers", "units")
        read = dataclasses.replace(tuned, **{name: getattr(network, name) for name in names})
        jobs += of_elmo
        for other in others:
            jobs.append(Job(task, other, frozen, stage=1))
            if other == GPT and task == "ewt_srl":  # a GPT has no segments to mark the predicate
                jobs.append(Job(task, other, read, stage=1))
            elif other != MINILM or network.train_limit:
                jobs.append(Job(task, other, tuned, stage=1))
    return jobs


def _other_encoders(folder):
    """Returns `{(task, encoder, method): Cell}` of the other encoders."""
    found, of_minilm, theirs = {}, [], Path(folder).parent / "minilm"
    with contextlib.suppress(NoResult):
        of_minilm = read_results(theirs)
    chosen = [r for r in read_results(folder) if _is_frozen(r) or r["method"] == "fine_tune"]
    tuned = Run(precision=Released.precision).name
    whole = [r for r in of_minilm if r["run"] == tuned and not r["settings"]["train_limit"]]
    for results, place in ((chosen, folder), (whole, theirs)):
        kept = ResultFolder(place)
        for r in results:
            if r["task"] in TASKS:
                cell = found.setdefault((r["task"], r["encoder"], r["method"]), Cell([], kept))
                add_seed(r, cell.results)
    return found


def _is_frozen(result):
    fields = result["settings"]
    mix = result["method"] == "features" and fields["layers"] == "elmo_mix"
    return mix and "words" not in fields


def markdown(folder):
    """Returns the tables of the suite `elmo_tasks`: of ELMo, and of the other encoders."""
    kept, with_elmo = ResultFolder(folder), {}
    head = ["task", "training examples", "word vectors", "+ ELMo", "gain"]
    text = _head([*head, "the paper: + ELMo, gain"])
    found = cells(folder, ("baseline", "mix", "both"), of_part=(COREFERENCE,))
    titles = [(line, t) for line in _lines() for t in found if t.partition(",")[0] == line[0]]
    for (task, metric, _), title in titles:
        of_paper = TASKS[task]
        rows = {row: results for (row, _), results in found[title].items()}
        arms = [Cell(rows.get(row, []), kept).by(metric) for row in (of_paper.row, "baseline")]
        with_elmo[task] = Cell(rows.get(of_paper.row, []), kept)
        some = next(results for results in rows.values())[0]
        name = (metric or next(iter(some["metrics"]))).replace("_", " ")
        name = f"{of_paper.title}{title.removeprefix(task)} ({name})"
        numbers = [name, f"{some['counts']['train']:,}"]
        numbers += [shown(arms[1].results), shown(arms[0].results), _difference(*arms)]
        without, published = of_paper.published
        papers = metric == of_paper.metric
        numbers.append(f"{published}, +{published - without:.1f}" if papers else "")
        text.append(f"| {' | '.join(numbers)} |")
    others = _other_encoders(folder)
    text = "\n".join(text) + "\n\n" + NOTE + _of_others(others)
    return text + _differences(others, with_elmo)


def _of_others(found):
    """Returns the table of the other encoders, with its note; "" if there are none."""
    if not found:
        return ""
    columns = sorted({key[1:] for key in found}, key=lambda key: (_place(key[0]), key[1]))
    titles = [f"{OTHERS.get(name, (name,))[0]}, {METHODS[method]}" for name, method in columns]
    text = ["", *_head(["task", *titles])]
    for task, metric, title in _lines():
        seen = [task in SEEN and name == model_name(MINILM) for name, _ in columns]
        cells_of_task = [found.get((task, *column)) for column in columns]
        scores = [shown(cell.by(metric).results) if cell else "" for cell in cells_of_task]
        scores = [x and x + MARK * mark for x, mark in zip(scores, seen, strict=True)]
        if any(scores):
            text.append(f"| {' | '.join([title, *scores])} |")
    note = FROZEN + SEEN_BEFORE * any(MARK in line for line in text)
    return "\n".join(text) + "\n\n" + note


def _differences(found, with_elmo):
    """Returns a table of fine-tuning, frozen encoders and ELMo in pairs; "" if there are none."""
    # One seed tells nothing about the variation of seeds.
    found = {key: cell for key, cell in found.items() if len(cell.results) > 1}
    encoders = sorted({encoder for _, encoder, _ in found}, key=_place)
    head, lines = ["task"], []
    for encoder in encoders:
        title = OTHERS.get(encoder, (encoder,))[0]
        head += [f"{title}: fine-tuned - frozen", f"{title}: frozen - (+ ELMo)"]
    for task, metric, title in _lines():
        numbers = []
        for encoder in encoders:
            keys = [(task, encoder, method) for method in reversed(METHODS)]
            cells_of_task = [found.get(key) for key in keys] + [with_elmo.get(task)]
            tuned, frozen, elmo = (cell and cell.by(metric) for cell in cells_of_task)
            numbers += [_difference(tuned, frozen), _difference(frozen, elmo)]
        if any(numbers):
            lines.append(f"| {' | '.join([title, *numbers])} |")
    return "\n".join(["", *_head(head), *lines, "", DIFFERENCES]) if lines else ""


def _head(titles):
    """Returns the first two lines of a table whose first column is text."""
    return [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1)]


def _place(encoder):
    return list(OTHERS).index(encoder) if encoder in OTHERS else len(OTHERS)


def _difference(one, two):
    """Formats the difference of two `Cell`s with its interval.

    Returns "" if a cell is missing or has no stored examples.
    """
    if any(cell is None or not cell.results for cell in (one, two)):
        return ""
    choices = [Choice.of(str(i), *cell) for i, cell in enumerate((one, two))]
    return difference_of(*zip(choices, resampled_scores(choices), strict=True))


SUITES = {
    "elmo_tasks": Suite(
        markdown,
        no_figures,
        scales(),
        "Peters et al. 2018, table 1",
        published="2018-02",
        jobs=jobs_of,
        **OPTIONS,
    )
}
