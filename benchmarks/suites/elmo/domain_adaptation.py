"""The suite `elmo_domain_adaptation`: further training of a biLM on the text of a task.

It compares the perplexity of the dev set's text and the score of the reader, before and after. The
adapted biLMs are kept in the folder of features. All suites of ELMo share one folder of results, so
that shared runs are done once.
"""

import dataclasses
import functools
from pathlib import Path

from benchmarks.suites.elmo.features import ADAPTED, EFFICIENCY, OPTIONS, Reading, row_of, shown
from benchmarks.suites.elmo.features import jobs_of as jobs_of_features
from benchmarks.suites.elmo.features import scales as reading_scales
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.datasets.tasks import TASKS, write_text_of
from keras_plm.experiments.jobs import Prerequisite
from keras_plm.experiments.pretraining.objectives import OBJECTIVE
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.experiments.progress import pretraining_line
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import NoResult, ResultFolder, read_json, read_results
from keras_plm.files.writing import write_json

ROW = "mix"
PAPER = (
    "The paper (table 7): perplexity falls by half or more, CoNLL-2003 103.2 to 46.3, SST 131.5 to "
    "78.6; whether scores rise depends on the task."
)


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """Settings of further training on the text of a task, and of the runs after it.

    Attributes:
        reading: A `Reading` of one row.
        passes: Passes over the task's training text.
        pretraining: A `Pretraining`; its `tokens` are replaced.
    """

    reading: Reading
    passes: int = 3
    pretraining: Pretraining = Pretraining(
        model="elmo", sentences="lines", split="spaces", tokens_per_batch=640
    )


def scales():
    """Returns `{scale: Adaptation}`."""
    of_scale = {name: dataclasses.replace(reading, rows=(ROW,)) for name, reading
                in reading_scales(EFFICIENCY).items()}  # fmt: skip
    few = Pretraining(
        model="elmo", sentences="lines", split="spaces", tokens_per_batch=40, vocabulary_size=50
    )
    return {
        "small": Adaptation(of_scale["small"]),
        "test": Adaptation(of_scale["test"], passes=2, pretraining=few),
    }


def jobs_of(adaptation, workspace, encoder=None, words=None):
    """Returns the jobs of the suite: each task with the original and with the adapted biLM.

    Raises:
        ValueError: If the folder of the biLM lacks its softmax.
    """
    reading, features = adaptation.reading, Path(workspace.features)
    made_up = reading.material.tiny and encoder is None
    encoder = Path(reading.material.encoder_folder(encoder, features))
    if not (encoder / OBJECTIVE).is_file() and not made_up:
        raise ValueError(
            "Further training needs the softmax of the biLM: `keras-plm pretrain` saves it "
            f"next to the biLM. Received: no {OBJECTIVE} in {str(encoder)!r}"
        )
    jobs = []
    for task, epochs in reading.epochs:
        of_task = dataclasses.replace(reading, epochs=((task, epochs),))
        found = jobs_of_features(of_task, workspace, encoder, words)
        adapted = features / f"{encoder.name}_on_{task}"
        make = functools.partial(_adapt, adaptation, task, workspace, encoder, adapted)
        prerequisite = Prerequisite(adapted.name, make)
        jobs += found
        jobs += [
            dataclasses.replace(job, encoder=str(adapted), needs=(*job.needs, prerequisite))
            for job in found
        ]
    return jobs


def _adapt(adaptation, task, workspace, encoder, out, progress):
    """Trains a biLM further, if necessary; writes settings and perplexities into the results."""
    files = {}
    for split in ("train", "dev"):
        files[split] = out.with_name(f"{task}.{split}.txt")
        write_text_of(TASKS[task], workspace.data, files[split], split)
    count = sum(len(line.split()) + 1 for line in files["train"].open() if line.strip())
    settings = dataclasses.replace(adaptation.pretraining, tokens=adaptation.passes * count)
    pretrain(
        settings,
        [files["train"]],
        out,
        valid=files["dev"],
        resume=True,
        init=encoder,
        progress=lambda entry: progress(f"{task}  {pretraining_line(entry, settings.steps)}"),
    )
    note = read_json(out / "pretraining.json")
    record = {"task": task, "encoder": out.name, "passes": adaptation.passes, **note}
    write_json(Path(workspace.results) / task / f"{out.name}{ADAPTED}", record)


def markdown(folder):
    """Returns the suite's table.

    Raises:
        ValueError: If there is no adapted biLM.
    """
    kept = ResultFolder(folder)
    adapted = [kept.json(name) for name in kept.names(f"*{ADAPTED}")]
    if not adapted:
        raise NoResult(
            "The folder of results must hold an adapted biLM: `python -m benchmarks suite "
            f"elmo_domain_adaptation` makes them. Received: {str(folder)!r}"
        )
    results = [result for result in read_results(folder) if row_of(result) == ROW]
    results = [result for result in results if not result["settings"]["train_limit"]]
    several = len({record["init"] for record in adapted}) > 1
    text = [
        "| task | perplexity of its dev set: before | after | unknown words "
        "| score: before | after |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for record in adapted:
        perplexities = [record[key]["perplexity"] for key in ("valid_before", "valid")]
        scores, metric = [], ""
        for name in (record["init"], record["encoder"]):
            found = []
            for result in results:
                if (result["task"], result["encoder"]) == (record["task"], name):
                    add_seed(result, found)
            scores.append(shown(found))
            metric = f" ({next(iter(found[0]['metrics'])).replace('_', ' ')})" if found else metric
        numbers = [f"{p:.1f}" for p in perplexities] + [f"{record['valid']['unknown']:.1%}"]
        name = record["task"] + (f", {record['init']}" if several else "")
        text.append(f"| {name}{metric} | {' | '.join(numbers + scores)} |")
    return "\n".join(text) + f"\n\n{PAPER}\n"


SUITES = {
    "elmo_domain_adaptation": Suite(
        markdown,
        no_figures,
        scales(),
        "Peters et al. 2018, table 7",
        published="2018-02",
        jobs=jobs_of,
        **OPTIONS,
    ),
}
