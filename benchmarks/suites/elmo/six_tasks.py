"""The six tasks of ELMo's main table: the suite `elmo_tasks`.

Word vectors and word vectors with ELMo are the rows of `elmo_layers` and `elmo_placement`, in the
same folder of results. Other encoders read the same examples: a mix of all frozen layers under the
same network, without word vectors, and fine-tuned.
"""

import dataclasses

from benchmarks.suites.compare_encoders import WEIGHTS
from benchmarks.suites.elmo import features
from benchmarks.suites.elmo.features import OPTIONS, Limited, cells, shown
from benchmarks.suites.features_or_fine_tuning import difference_of, tiny_encoder
from benchmarks.suites.minilm import ENCODER as MINILM
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.checkpoints.packages import model_name
from keras_plm.experiments.config import Run
from keras_plm.experiments.jobs import Job
from keras_plm.experiments.recommend import Choice, resampled_scores
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import ResultFolder, read_results


@dataclasses.dataclass(frozen=True)
class OfPaper:
    """A task of the paper's table 1.

    Attributes:
        title: Name in tables.
        row: Key of `features.ROWS`, the place of ELMo in the paper's network.
        published: The paper's scores without and with ELMo.
    """

    title: str
    row: str
    published: tuple


TASKS = {
    "squad": OfPaper("questions: SQuAD", "both", (81.1, 85.8)),
    "snli": OfPaper("entailment: SNLI", "both", (88.0, 88.7)),
    "ewt_srl": OfPaper("roles: EWT", "mix", (81.4, 84.6)),
    "litbank": OfPaper("coreference: LitBank", "mix", (67.2, 70.4)),
    "wikigold": OfPaper("names: WikiGold", "mix", (90.15, 92.22)),
    "sst5": OfPaper("sentiment: SST-5", "mix", (51.4, 54.7)),
}  # fmt: skip
# The learning rate is that of Lee et al. 2017. With 5e-3 some seeds find no mention.
COREFERENCE = Limited(
    "litbank", "bilstm", 20, 10, 8, (("batch_size", 1), ("learning_rates", "1e-3"))
)
OTHERS = {
    "bert_mini": ("BERT-mini", str(WEIGHTS / "bert_mini")),
    "gpt_mini": ("GPT-mini", str(WEIGHTS / "gpt_mini")),
    model_name(MINILM): ("MiniLM", MINILM),
}
METHODS = {"features": "frozen", "fine_tune": "fine-tuned"}
TUNING_EPOCHS = 5
NOTE = """\
Mean ± standard deviation (number of seeds); the gain has its 95 % interval over seeds and test
examples. The paper (table 1) has other networks and test sets, and all training examples.
"""
FROZEN = "The other frozen encoders stand under the network of their row, without word vectors.\n"


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
        shared = ("train_limit", "dev_limit", "batch_size", *(("learning_rates",) if tiny else ()))
        tuned = Run(
            epochs=1 if tiny else TUNING_EPOCHS, **{name: getattr(network, name) for name in shared}
        )
        jobs += of_elmo
        jobs += [Job(task, other, run, stage=1) for other in others for run in (frozen, tuned)]
    return jobs


def _other_encoders(folder):
    """Returns `{(task, encoder, method): [result of each seed]}` of the other encoders."""
    found = {}
    for r in read_results(folder):
        fields, method = r["settings"], r["method"]
        frozen = method == "features" and fields["layers"] == "elmo_mix" and "words" not in fields
        if r["task"] in TASKS and (frozen or method == "fine_tune"):
            add_seed(r, found.setdefault((r["task"], r["encoder"], method), []))
    return found


def markdown(folder):
    """Returns the table of the suite `elmo_tasks`."""
    kept, others = ResultFolder(folder), _other_encoders(folder)
    columns = sorted({key[1:] for key in others}, key=lambda key: (_place(key[0]), key[1]))
    head = [
        "task",
        "training examples",
        "word vectors",
        "+ ELMo",
        "gain",
        "the paper: + ELMo, gain",
    ]
    head += [f"{OTHERS.get(name, (name,))[0]}, {METHODS[method]}" for name, method in columns]
    text = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    found = cells(folder, ("baseline", "mix", "both"), of_part=(COREFERENCE,))
    titles = [(task, t) for task in TASKS for t in found if t.partition(",")[0] == task]
    for task, title in titles:
        of_paper = TASKS[task]
        rows = {row: results for (row, _), results in found[title].items()}
        arms = [rows.get(row, []) for row in (of_paper.row, "baseline")]
        some = next(results for results in rows.values())[0]
        metric = next(iter(some["metrics"])).replace("_", " ")
        name = of_paper.title + title.removeprefix(task)
        numbers = [f"{name} ({metric})", f"{some['counts']['train']:,}"]
        numbers += [shown(arms[1]), shown(arms[0]), _gain(arms, kept)]
        without, with_elmo = of_paper.published
        numbers.append(f"{with_elmo}, +{with_elmo - without:.1f}")
        numbers += [shown(others.get((task, *column), [])) for column in columns]
        text.append(f"| {' | '.join(numbers)} |")
    return "\n".join(text) + "\n\n" + NOTE + (FROZEN if columns else "")


def _place(encoder):
    return list(OTHERS).index(encoder) if encoder in OTHERS else len(OTHERS)


def _gain(arms, kept):
    """Formats the gain of ELMo with its interval; "" if a row is missing."""
    if not all(arms):
        return ""
    choices = [Choice.of(str(i), results, kept) for i, results in enumerate(arms)]
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
