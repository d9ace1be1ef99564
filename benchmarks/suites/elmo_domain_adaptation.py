"""The suite `domain_transfer`: a biLM continues training on the text of a task, without labels.

It compares the perplexity of the dev set's text, and the score of the reader, before and after. The
adapted biLMs are kept in the folder of features. Results are next to those of the other suites of
ELMo, so that shared runs are done once.
"""

import dataclasses
import functools
from pathlib import Path

from benchmarks.suites.elmo_features import ADAPTED, EFFICIENCY, OPTIONS, Reading, row_of, shown
from benchmarks.suites.elmo_features import cells_of as reading_cells
from benchmarks.suites.elmo_features import scales as reading_scales
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.datasets.tasks import TASKS, write_text_of
from keras_plm.experiments import results as records
from keras_plm.experiments.jobs import Making
from keras_plm.experiments.pretraining.objectives import OBJECTIVE
from keras_plm.experiments.pretraining.pretrain import Pretraining, pretrain
from keras_plm.experiments.progress import pretraining_line
from keras_plm.experiments.report.result_tables import add_seed, read_results
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
        passes: Over the task's training text.
        pretraining: A `Pretraining` but for its tokens.
    """

    reading: Reading
    passes: int = 3
    pretraining: Pretraining = Pretraining(
        model="elmo", sentences="lines", split="spaces", tokens_per_batch=640
    )


def scales():
    """The suite at each scale."""
    of_scale = {name: dataclasses.replace(reading, rows=(ROW,)) for name, reading
                in reading_scales(EFFICIENCY).items()}  # fmt: skip
    few = Pretraining(
        model="elmo", sentences="lines", split="spaces", tokens_per_batch=40, vocabulary_size=50
    )
    return {
        "small": Adaptation(of_scale["small"]),
        "test": Adaptation(of_scale["test"], passes=2, pretraining=few),
    }


def cells_of(adaptation, place, encoder=None, words=None):
    """Cells of the suite: each task with the original biLM, and with the adapted one.

    Raises:
        ValueError: If the softmax of the biLM was not kept.
    """
    reading, features = adaptation.reading, Path(place.features)
    made_up = reading.material.tiny and encoder is None
    encoder = Path(reading.material.encoder_folder(encoder, features))
    if not (encoder / OBJECTIVE).is_file() and not made_up:
        raise ValueError(
            "Further training needs the softmax of the biLM, which `python -m benchmarks pretrain` "
            f"keeps next to it. Received: no {OBJECTIVE} in {str(encoder)!r}"
        )
    cells = []
    for task, epochs in reading.epochs:
        of_task = dataclasses.replace(reading, epochs=((task, epochs),))
        found = reading_cells(of_task, place, encoder, words)
        adapted = features / f"{encoder.name}_on_{task}"
        make = functools.partial(_adapt, adaptation, task, place, encoder, adapted)
        making = Making(adapted.name, make)
        cells += found
        cells += [
            dataclasses.replace(cell, encoder=str(adapted), needs=(*cell.needs, making))
            for cell in found
        ]
    return cells


def _adapt(adaptation, task, place, encoder, out, progress):
    """Trains what is not trained yet; the results tell perplexities before and after, and how."""
    files = {}
    for split in ("train", "dev"):
        files[split] = out.with_name(f"{task}.{split}.txt")
        write_text_of(TASKS[task], place.data, files[split], split)
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
    note = records.read_json(out / "pretraining.json")
    record = {"task": task, "encoder": out.name, "passes": adaptation.passes, **note}
    write_json(Path(place.results) / task / f"{out.name}{ADAPTED}", record)


def markdown(folder):
    """The suite's table.

    Raises:
        ValueError: If there is no adapted biLM.
    """
    adapted = [records.read_json(path) for path in sorted(Path(folder).glob(f"**/*{ADAPTED}"))]
    if not adapted:
        raise records.NoResult(
            f"No adapted biLM below {folder}: `python -m benchmarks run --suite domain_transfer` "
            f"makes them. Received: {str(folder)!r}"
        )
    results = [result for result in read_results(folder) if row_of(result) == ROW]
    results = [result for result in results if not result["fields"]["train_limit"]]
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
    "domain_transfer": Suite(
        markdown,
        no_figures,
        scales(),
        "Peters et al. 2018, table 7",
        published="2018-02",
        cells=cells_of,
        **OPTIONS,
    ),
}
