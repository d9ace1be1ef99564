"""GLUE as one table: each task a row.

Reference: Wang et al. 2018, arXiv 1804.07461; the columns are those of the official files.
"""

import dataclasses

from keras_plm import metrics
from keras_plm.heads import Classifier, Regressor
from keras_plm.task import Task, find_file, read_table, split_groups

# Share of train that the choosing set takes: the official dev set is only reported.
CHOOSING = 0.1


def _read(folder_name, columns, group, scores):
    """A reader of `train.tsv` and `dev.tsv` for the splits train, dev (a slice) and test.

    GLUE's test labels are not public: the official dev set is what is scored, the choosing set
    is cut out of train.
    """

    def read(folder, split):
        file = "dev.tsv" if split == "test" else "train.tsv"
        path = find_file(folder, f"glue/{folder_name}/{file}")
        examples = read_table(path, **columns, separator="\t")
        if scores:
            examples = [_scored(example) for example in examples]
        if split == "test":
            return examples
        if group is not None:
            examples = group(examples)
        train, dev = split_groups(examples, (1 - CHOOSING, CHOOSING), seed=0)
        return train if split == "train" else dev

    return read


def group_phrases(examples):
    """SST-2's train phrases grouped by sentence: a phrase belongs to the next one that holds it.

    The file lists phrases of all sentences mixed and without ids. A phrase is put with the longest
    phrase that contains it word for word; one that stands in several sentences goes with the
    longest of them.
    """
    texts = [" ".join(example.text.split()) for example in examples]
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i].split()))
    # Every phrase that stands in a longer one met before, to that one's group.
    known, group_of, groups = set(texts), {}, [None] * len(texts)
    for i in order:
        words = texts[i].split()
        group = group_of.get(texts[i])
        if group is None:
            group = f"phrase {i}"
            for start in range(len(words)):
                for end in range(start + 1, len(words) + 1):
                    run = " ".join(words[start:end])
                    if run in known:
                        group_of.setdefault(run, group)
        groups[i] = group
    return [
        dataclasses.replace(example, group=group)
        for example, group in zip(examples, groups, strict=True)
    ]


def group_first_texts(examples):
    """Pairs grouped by their first text, which stands in several."""
    return [dataclasses.replace(example, group=example.text) for example in examples]


def _scored(example):
    """The example with its label as a number."""
    try:
        return dataclasses.replace(example, label=float(example.label))
    except ValueError as error:
        raise ValueError(
            f"{example.where}: A score is a number. Received: {example.label!r}"
        ) from error


def _pair(first, second, label):
    return {"text": first, "pair": second, "label": label}


def _task(name, folder, columns, names, group=None, head=Classifier, symmetric=False):
    files = {
        "train": f"glue/{folder}/train.tsv",
        "dev": f"glue/{folder}/train.tsv",
        "test": f"glue/{folder}/dev.tsv",
    }
    return Task(
        name,
        _read(folder, columns, group, head is Regressor),
        head,
        {metric: getattr(metrics, metric) for metric in names},
        files,
        "gluebenchmark.com",
        "see the task's own page there",
        symmetric,
    )


_COLA = {"text": "sentence", "label": "label", "header": ["source", "label", "star", "sentence"]}
_MRPC = _pair("#1 String", "#2 String", "Quality")
_OF = ("sentence1", "sentence2")
_STSB = {
    "group": group_first_texts,
    "head": Regressor,
    "symmetric": True,
}

GLUE = {
    task.name: task
    for task in (
        _task("cola", "CoLA", _COLA, ["matthews_correlation"]),
        _task("sst2", "SST-2", {"text": "sentence", "label": "label"}, ["accuracy"], group_phrases),
        _task("mrpc", "MRPC", _MRPC, ["accuracy", "f1"], group_first_texts, symmetric=True),
        _task("stsb", "STS-B", _pair(*_OF, "score"),
              ["pearson_correlation", "spearman_correlation"], **_STSB),
        _task("rte", "RTE", _pair(*_OF, "label"), ["accuracy"], group_first_texts),
    )
}  # fmt: skip
