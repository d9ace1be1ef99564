"""BERTs that differ in one setting: `bert_objectives`, `bert_masking`, `bert_size`, `bert_steps`.

Each row of these suites is a BERT. All are pre-trained on the same text for the same number of
steps with the same seed, and then evaluated by the same runs. The suites share one folder of
results, so an encoder of two suites is pre-trained and evaluated once.
"""

import dataclasses
import functools
from pathlib import Path

from filelock import FileLock

import keras_plm
from benchmarks.suites.compare_encoders import TRAINING, forward_work
from benchmarks.suites.elmo.features import shown
from benchmarks.suites.registry import Suite
from keras_plm.data.task import find_file
from keras_plm.datasets.corpora import BOOKS
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.jobs import Job, Prerequisite
from keras_plm.experiments.pretraining.callbacks import snapshot_name
from keras_plm.experiments.pretraining.prepare import prepare
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.experiments.progress import pretraining_line
from keras_plm.experiments.report.result_tables import add_seed
from keras_plm.experiments.results import NoResult, ResultFolder, read_json, read_results
from keras_plm.files.writing import write_json
from keras_plm.plots import lines

HOME = "bert"  # the folder of results of these suites
MADE = "pretraining"  # the subfolder with the pre-training record of each encoder
# Percentages of the masked positions: replaced with [MASK], kept, replaced with random tokens.
MIXES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))


def _mix(mask, same, random):
    """Returns the name of the encoder with this mix."""
    return "bert" if (mask, same, random) == MIXES[0] else f"mix_{mask}_{same}_{random}"


# {name of an encoder: settings in which its `Pretraining` differs}
ENCODERS = {
    "bert": {},
    "masked": {"next_sentence": False},
    "left_to_right": {"next_sentence": False, "left_to_right": True},
    **{
        _mix(*mix): {"mask_token_rate": mix[0] / 100, "random_token_rate": mix[2] / 100}
        for mix in MIXES[1:]
    },
    # With the learning rate of "tiny" these predict only frequent words.
    "mini": {"size": "mini", "learning_rate": 5e-4},
    "small": {"size": "small", "learning_rate": 5e-4},
}
# At 1e-3 both predict only frequent words. The grid has two rates, so that there is a choice.
_LARGER = {"learning_rates": "1e-4,3e-4"}
SNLI = ("SNLI fine-tuned", "snli", {"train_limit": 10_000, "epochs": 3})
NER = ("WikiGold fine-tuned", "wikigold", {"epochs": 10})
_FEATURES = {"method": "features", "reader": "bilstm", "layers": "concat_last_four"}
FROZEN = ("WikiGold frozen", "wikigold", _FEATURES | {"epochs": 20})


@dataclasses.dataclass(frozen=True)
class Study:
    """A suite at a scale.

    Attributes:
        heads: Headings of the first columns of the table.
        rows: Tuples `(first columns, a name in ENCODERS, fields of its runs)`.
        readings: Runs of every encoder, as tuples `(name, task, fields of a Run)`.
        published: The paper's table.
        pretraining: Settings of all encoders, a `Pretraining`.
        fields: Fields of each `Run` that trains its encoder.
        frozen: Fields of each `Run` with frozen features.
        text: Files of the data folder; the last one is held out.
        points: Whether to evaluate the snapshots of pre-training too.
    """

    heads: tuple
    rows: tuple
    readings: tuple
    published: str
    pretraining: Pretraining = Pretraining(
        size="tiny",
        tokens=20e6,
        vocabulary_size=8000,
        # As for `weights/bert_mini`: a long warm-up and short rows at first end its plateau.
        learning_rate=1e-3,
        warmup=0.15,
        first_length=64,
        first_fraction=0.85,
        precision="bfloat16",
        snapshots=6,
    )
    fields: tuple = (("learning_rates", "3e-4,1e-3"), ("precision", "bfloat16"))
    frozen: tuple = (("learning_rates", "1e-3,5e-3"),)
    text: tuple = (*BOOKS.files.values(), "books/valid.txt")
    points: bool = False

    def run(self, reading, own):
        """Returns the `Run` of a reading in a row with the fields `own`."""
        fields = {**reading, **own}
        shared = dict(self.frozen if "layers" in fields else self.fields)
        return Run(**{**fields, **shared, **own})


STUDIES = {
    "bert_objectives": Study(
        ("",),
        (
            (("BERT",), "bert", {}),
            (("no next sentence",), "masked", {}),
            (("left to right, no next sentence",), "left_to_right", {}),
            (("+ BiLSTM",), "left_to_right", {"reader": "bilstm"}),
            (("no pre-training",), "bert", {"method": "scratch"}),
        ),
        (SNLI, NER),
        """The paper's (table 5, BERT-base, development sets):

| | MNLI-m | QNLI | MRPC | SST-2 | SQuAD F1 |
|---|---:|---:|---:|---:|---:|
| BERT | 84.4 | 88.4 | 86.7 | 92.7 | 88.5 |
| no next sentence | 83.9 | 84.9 | 86.5 | 92.6 | 87.9 |
| left to right, no next sentence | 82.1 | 84.3 | 77.5 | 92.1 | 77.8 |
| + BiLSTM | 82.1 | 84.1 | 75.7 | 91.6 | 84.9 |
""",
    ),
    "bert_masking": Study(
        ("mask", "same", "random"),
        tuple((tuple(f"{share}%" for share in mix), _mix(*mix), {}) for mix in MIXES),
        (SNLI, NER, FROZEN),
        """The paper's (table 8, BERT-base, development sets):

| mask | same | random | MNLI fine-tuned | NER fine-tuned | NER frozen |
|---|---|---|---:|---:|---:|
| 80% | 10% | 10% | 84.2 | 95.4 | 94.9 |
| 100% | 0% | 0% | 84.3 | 94.9 | 94.0 |
| 80% | 0% | 20% | 84.1 | 95.2 | 94.6 |
| 80% | 20% | 0% | 84.4 | 95.2 | 94.7 |
| 0% | 20% | 80% | 83.7 | 94.8 | 94.6 |
| 0% | 0% | 100% | 83.6 | 94.9 | 94.6 |
""",
    ),
    "bert_size": Study(
        ("layers", "width"),
        (
            (("2", "128"), "bert", {}),
            (("4", "256"), "mini", _LARGER),
            (("4", "512"), "small", _LARGER),
        ),
        (SNLI, NER),
        """The paper's (table 6, development sets; perplexity of masked words):

| layers | width | perplexity | MNLI-m | MRPC | SST-2 |
|---|---|---:|---:|---:|---:|
| 3 | 768 | 5.84 | 77.9 | 79.8 | 88.4 |
| 6 | 768 | 4.68 | 81.9 | 84.8 | 91.3 |
| 12 | 768 | 3.99 | 84.4 | 86.7 | 92.9 |
| 24 | 1024 | 3.23 | 86.6 | 87.8 | 93.7 |
""",
    ),
    "bert_steps": Study(
        ("",),
        ((("masked words",), "masked", {}), (("left to right",), "left_to_right", {})),
        (SNLI, NER),
        "The paper (figure 5, MNLI): left to right learns faster at first, masked words pass it "
        "almost at once; a million steps are 1.0 point above half a million.\n",
        points=True,
    ),
}


def scales(suite):
    """Returns `{scale: Study}` of a suite."""
    study = STUDIES[suite]
    few = {"train_limit": 16, "epochs": 1}
    return {
        "small": study,
        "test": dataclasses.replace(
            study,
            readings=tuple((name, task, fields | few) for name, task, fields in study.readings),
            pretraining=Pretraining(
                size="tiny", tokens=1024, tokens_per_batch=256, max_length=32, vocabulary_size=300,
                snapshots=1,
            ),
            fields=(("learning_rates", "1e-3"),),
            frozen=(("learning_rates", "1e-3"), ("units", 4)),
            text=("books/valid.txt", "books/valid.txt"),
        ),
    }  # fmt: skip


def jobs_of(study, workspace):
    """Returns the jobs of the suite. Each has its encoder as a prerequisite."""
    home = Path(workspace.features) / Path(workspace.results).name
    jobs = []
    for _, name, own in study.rows:
        prerequisite = Prerequisite(
            f"pre-train {name}", functools.partial(pretrained, study, name, workspace)
        )
        points = {name: home / name}
        if study.points:
            for step in sorted(settings_of(study, name).snapshot_steps):
                snapshot = snapshot_name(step)
                points[f"{name}_{snapshot}"] = home / name / "snapshots" / snapshot
        for point, folder in points.items():
            for _, task, fields in study.readings:
                jobs.append(Job(task, str(folder), study.run(fields, own), point, (prerequisite,)))
    return jobs


def settings_of(study, name):
    """Returns the pre-training settings of an encoder."""
    return dataclasses.replace(study.pretraining, **ENCODERS[name])


def pretrained(study, name, workspace, progress):
    """Pre-trains an encoder if necessary, and writes its pre-training record into the results."""
    settings, home = (
        settings_of(study, name),
        Path(workspace.features) / Path(workspace.results).name,
    )
    out, text = home / name, home / "text"
    *corpus, valid = (find_file(workspace.data, file) for file in study.text)
    note = out / "pretraining.json"
    made = read_json(note) if note.is_file() else {}
    asked = dataclasses.asdict(settings) | {
        "steps_done": settings.steps,
        "corpus_sha256": [checksum(path) for path in corpus],
    }
    if "valid" not in made or any(made.get(key) != value for key, value in asked.items()):
        with FileLock(home / "text.lock"):  # all encoders read it
            prepare(
                corpus,
                text,
                vocabulary_size=settings.vocabulary_size,
                sentences=settings.sentences,
                progress=lambda tokens: progress(f"text: {tokens:,} tokens"),
            )
        pretrain(
            settings,
            [],
            out,
            valid=valid,
            resume=True,
            progress=lambda entry: progress(f"{name}  {pretraining_line(entry, settings.steps)}"),
            prepared=text,
        )
        made = read_json(note)
    encoder, _ = keras_plm.load(out)
    work = TRAINING * forward_work(encoder, made) * made["tokens_per_batch"]
    about = {"encoder": name, "weights": encoder.count_params(), "flop_per_step": work, **made}
    write_json(Path(workspace.results) / MADE / f"{name}.json", about)


def _kind(fields):
    return fields.get("method", "fine_tune"), fields.get("reader", "linear")


def _read(folder):
    """Returns `({(encoder, task, kind of run): [result of each seed]}, {encoder: record})`."""
    kept = ResultFolder(folder)
    made = [kept.json(name) for name in kept.names(f"{MADE}/*")]
    found = {}
    for result in read_results(folder):
        key = result["encoder"], result["task"], _kind(result["settings"])
        add_seed(result, found.setdefault(key, []))
    return found, {about["encoder"]: about for about in made}


def markdown(suite):
    """Returns a function that makes a suite's table from its folder of results."""
    return lambda folder: _steps_table(folder) if STUDIES[suite].points else _table(suite, folder)


def _table(suite, folder):
    study, (found, made) = STUDIES[suite], _read(folder)
    rows = []
    for names, encoder, own in study.rows:
        keys = [(encoder, task, _kind({**fields, **own})) for _, task, fields in study.readings]
        rows.append((names, made.get(encoder), own, [found.get(key, []) for key in keys]))
    if not any(results for *_, of_row in rows for results in of_row):
        raise NoResult(
            f"No result of {suite} below {folder}: `python -m benchmarks suite {suite}` "
            f"writes them. Received: {str(folder)!r}"
        )
    best = [max((summary(r)[0] for r in column if r), default=None)
            for column in zip(*(of_row for *_, of_row in rows), strict=True)]  # fmt: skip
    heads = [*study.heads, "M weights", "held-out loss", *(name for name, *_ in study.readings)]
    rule = "|---" * len(study.heads) + "|---:" * (len(heads) - len(study.heads)) + "|"
    text = [f"| {' | '.join(heads)} |", rule]
    for names, about, own, of_row in rows:
        cells = [*names, *_about(about if own.get("method") != "scratch" else None)]
        for results, top in zip(of_row, best, strict=True):
            mark = "**" if results and summary(results)[0] == top else ""
            cells.append(f"{mark}{shown(results)}{mark}")
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + f"\n\n{study.published}"


def _about(about):
    """Returns the size of an encoder and its loss on held-out text."""
    if about is None:
        return ["", ""]
    loss = about["valid"].get("masked_lm_loss", about["valid"]["loss"])
    kind = "next piece" if about["left_to_right"] else "masked piece"
    return [f"{about['weights'] / 1e6:.1f}", f"{loss:.2f} per {kind}"]


def _curves(folder):
    """Returns `{(reading, row): [(step, FLOP, results)]}` of the suite `bert_steps`."""
    study, (found, made) = STUDIES["bert_steps"], _read(folder)
    curves = {}
    for (row,), encoder, own in study.rows:
        for name, task, fields in study.readings:
            for (point, of_task, kind), results in found.items():
                if not (of_task == task and kind == _kind({**fields, **own}) and encoder in made):
                    continue
                head, _, step = point.partition("_step_")
                if head == encoder:
                    about = made[encoder]
                    step = int(step or about["steps_done"])
                    points = curves.setdefault((name, row), [])
                    points.append((step, step * about["flop_per_step"], results))
    return {key: sorted(points, key=lambda point: point[0]) for key, points in curves.items()}


def _steps_table(folder):
    curves = _curves(folder)
    if not curves:
        raise NoResult(
            f"No result of bert_steps below {folder}: `python -m benchmarks suite "
            f"bert_steps` writes them. Received: {str(folder)!r}"
        )
    steps = sorted({step for points in curves.values() for step, *_ in points})
    rows = list(dict.fromkeys(row for _, row in curves))
    text = []
    for reading in dict.fromkeys(reading for reading, _ in curves):
        text += [f"| {reading}, after step | {' | '.join(f'{step:,}' for step in steps)} |"]
        text += ["|---|" + "---:|" * len(steps)]
        for row in rows:
            at = {step: results for step, _, results in curves.get((reading, row), [])}
            text.append(f"| {row} | {' | '.join(shown(at.get(step, [])) for step in steps)} |")
        text.append("")
    return "\n".join(text) + f"\n{STUDIES['bert_steps'].published}"


def figures(suite):
    """Returns a function that draws a suite's pictures from its folder of results."""
    return _steps_figures if STUDIES[suite].points else lambda folder: {}


def _steps_figures(folder):
    """Draws the score by step and by FLOP of pre-training."""
    curves, pictures = _curves(folder), {}
    for reading, task, _ in STUDIES["bert_steps"].readings:
        for axis, label in enumerate(("steps of pre-training", "FLOP of pre-training")):
            drawn = {}
            for (of_reading, row), points in curves.items():
                if of_reading == reading:
                    found = [summary(results) for *_, results in points]
                    means, spread = ([100 * point[i] for point in found] for i in (0, 1))
                    spread = spread if min(n for *_, n in found) > 1 else None
                    drawn[row] = [point[axis] for point in points], means, spread
            if drawn:
                name = f"bert_steps_{task}" if axis == 0 else f"bert_flop_{task}"
                pictures[name] = lines(drawn, label, "score, in points", title=reading, log_x=True)
    return pictures


SUITES = {
    name: Suite(
        markdown(name),
        figures(name),
        scales(name),
        source,
        published="2018-10",
        jobs=jobs_of,
        home=HOME,
        flags=("features", "feature_gb"),
    )
    for name, source in {
        "bert_objectives": "Devlin et al. 2018, table 5",
        "bert_masking": "Devlin et al. 2018, table 8",
        "bert_size": "Devlin et al. 2018, table 6",
        "bert_steps": "Devlin et al. 2018, figure 5",
    }.items()
}
