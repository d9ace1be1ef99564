"""Tasks of two texts beyond GLUE: SciTail and the two tasks of SICK."""

from glue_tasks.tasks import with_labels, with_scores
from keras_plm import metrics
from keras_plm.data.formats.tables import read_table
from keras_plm.data.task import Task, find_file
from keras_plm.heads import Classifier, Regressor

SCITAIL_LABELS = ("entails", "neutral")
SICK_LABELS = ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")
SICK_SCORES = (1.0, 5.0)
_OFFICIAL = {"separator": "\t", "quoted": False, "clean": False}


def read_scitail(path):
    """Reads pairs of SciTail: premise, hypothesis, and whether the premise entails it.

    Args:
        path: A file of the folder tsv_format, with premise, hypothesis and label, no header.

    Raises:
        ValueError: If a line is malformed or has another label, with file and line.
    """
    columns = ["premise", "hypothesis", "label"]
    examples = read_table(path, "premise", "label", "hypothesis", header=columns, **_OFFICIAL)
    return with_labels(examples, SCITAIL_LABELS)


def read_sick(path, scores=False):
    """Reads pairs of SICK with their entailment (SICK-E) or relatedness (SICK-R).

    Args:
        path: An official file, with tabs, such as `SICK_train.txt`.
        scores: If True, labels are the relatedness, 1 to 5.

    Raises:
        ValueError: If a line is malformed or has another label, with file and line.
    """
    label = "relatedness_score" if scores else "entailment_judgment"
    examples = read_table(path, "sentence_A", label, "sentence_B", **_OFFICIAL)
    return with_scores(examples, *SICK_SCORES) if scores else with_labels(examples, SICK_LABELS)


def _read(files, reader, **options):
    return lambda folder, split: reader(find_file(folder, files[split]), **options)


_SCITAIL = {
    split: f"SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv" for split in ("train", "dev", "test")
}
_SICK = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK = {split: f"SICK/{file}" for split, file in _SICK.items()}

_OF_SICK = ("Marelli et al. 2014, SemEval-2014 task 1", "CC BY-NC-SA 3.0")

PAIR_TASKS = (
    Task(
        "scitail",
        _read(_SCITAIL, read_scitail),
        Classifier,
        {"accuracy": metrics.accuracy},
        _SCITAIL,
        "Khot et al. 2018, allenai.org/data/scitail",
        "see the page of the data",
    ),
    Task(
        "sick_e",
        _read(_SICK, read_sick),
        Classifier,
        {"accuracy": metrics.accuracy},
        _SICK,
        *_OF_SICK,
    ),
    Task(
        "sick_r",
        _read(_SICK, read_sick, scores=True),
        Regressor,
        {
            "pearson_correlation": metrics.pearson_correlation,
            "spearman_correlation": metrics.spearman_correlation,
        },
        _SICK,
        *_OF_SICK,
        symmetric=True,
        labels=SICK_SCORES,
    ),
)
