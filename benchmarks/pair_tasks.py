"""Tasks of two texts beyond GLUE: SciTail, SICK's two, and SWAG with its four endings."""

from glue_tasks.tasks import group_shared, with_labels, with_scores
from keras_plm import metrics
from keras_plm.heads import Classifier, MultipleChoice, Regressor
from keras_plm.task import Example, Task, find_file, read_table, split_groups, table_rows

# Share of SWAG's train that the choosing set takes, as of GLUE's.
CHOOSING = 0.1

SCITAIL_LABELS = ("entails", "neutral")
SICK_LABELS = ("CONTRADICTION", "ENTAILMENT", "NEUTRAL")
SWAG_ENDINGS = 4


def read_scitail(path):
    """Pairs of SciTail: a sentence, what may follow from it, and whether it does.

    Args:
        path: A file of the folder tsv_format: premise, hypothesis and label, without a header.

    Raises:
        ValueError: Naming file and line, if a line is malformed or has another label.
    """
    columns = ["premise", "hypothesis", "label"]
    examples = read_table(path, "premise", "label", "hypothesis", separator="\t", header=columns)
    return with_labels(examples, SCITAIL_LABELS)


def read_sick(path, scores=False):
    """Pairs of SICK with their entailment (SICK-E), or how related they are (SICK-R).

    Args:
        path: An official file, with tabs, as `SICK_train.txt`.
        scores: If True, labels are the relatedness, 1 to 5.

    Raises:
        ValueError: Naming file and line, if a line is malformed or has another label.
    """
    label = "relatedness_score" if scores else "entailment_judgment"
    examples = read_table(path, "sentence_A", label, "sentence_B", separator="\t")
    return with_scores(examples, 1, 5) if scores else with_labels(examples, SICK_LABELS)


def read_swag(path, gold_only=False):
    """Questions of SWAG: a sentence, and four ways in which the next may end.

    The text is the first sentence; a choice is the beginning of the second (`sent2`), a blank and
    an ending. Questions of one video, or with the same first sentence, are of one group.

    Args:
        path: `train.csv` or `val.csv`.
        gold_only: If True, questions whose right ending a language model wrote (`gold-source` not
            "gold") are left out, as published readers can; by default all are read.

    Raises:
        ValueError: Naming file and line, if a line is malformed or its label is none of 0 to 3; as
            in `test.csv`, which has no labels.
    """
    columns = ["video-id", "sent1", "sent2", "gold-source"]
    columns += [*(f"ending{i}" for i in range(SWAG_ENDINGS)), "label"]
    examples = []
    for where, row in table_rows(path):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(
                f"{where}: No column {missing[0]!r}. Received: columns {', '.join(row)}"
            )
        if row["label"] not in map(str, range(SWAG_ENDINGS)):
            raise ValueError(
                f"{where}: The label is the number of the right ending, 0 to {SWAG_ENDINGS - 1}. "
                f"Received: {row['label']!r}"
            )
        if gold_only and row["gold-source"] != "gold":
            continue
        endings = [f"{row['sent2']} {row[f'ending{i}']}" for i in range(SWAG_ENDINGS)]
        group = f"video {row['video-id']}"
        examples.append(
            Example(row["sent1"], int(row["label"]), choices=endings, group=group, where=where)
        )
    if not examples:
        raise ValueError(f"{path}: No question in this file. Received: an empty table")
    return group_shared(examples, lambda example: (example.text, example.group))


def _splits_of_swag(folder, split):
    """The test set has no labels: val is reported, the choosing set is cut out of train."""
    examples = read_swag(find_file(folder, _SWAG[split]))
    if split == "test":
        return examples
    train, dev = split_groups(examples, (1 - CHOOSING, CHOOSING), seed=0)
    return train if split == "train" else dev


def _read(files, reader, **options):
    return lambda folder, split: reader(find_file(folder, files[split]), **options)


_SCITAIL = {
    split: f"SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv" for split in ("train", "dev", "test")
}
_SICK = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK = {split: f"SICK/{file}" for split, file in _SICK.items()}
_SWAG = {"train": "swag/train.csv", "dev": "swag/train.csv", "test": "swag/val.csv"}

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
    ),
    Task(
        "swag",
        _splits_of_swag,
        MultipleChoice,
        {"accuracy": metrics.accuracy},
        _SWAG,
        "Zellers et al. 2018, github.com/rowanz/swagaf",
        "see the page of the data",
    ),
)
