"""Table of the GLUE tasks, one row per task.

Reference: Wang et al. 2018, arXiv 1804.07461; the columns are those of the official files.
"""

import dataclasses
import os
from collections.abc import Callable

from keras_plm import metrics
from keras_plm.data.formats.tables import read_table
from keras_plm.data.task import Example, Task, cut_dev_set, find_file
from keras_plm.heads import Classifier, Regressor

# Fraction of the train set for the dev set. The official dev set is the evaluation split.
DEV = 0.1


@dataclasses.dataclass(frozen=True)
class GlueTask(Task):
    """A task of GLUE with the requirements of its evaluation server.

    `read` returns a part of the train set as "dev", and the official dev set as "test".

    Attributes:
        read_file: `read_file(folder, part)` returns all examples of one official file: `"train"`,
            `"test"` (the official dev set) or `"unlabelled"` (the official test set).
        rows: Number of rows of the official test set.
        submission: Name of its predictions' file in a submission.
        majority: Value for missing predictions: the most frequent training label (the first of
            nearly equal ones), or the mean score.
    """

    read_file: Callable | None = None
    rows: int = 0
    submission: str = ""
    majority: str = ""


def read_unlabelled(task: GlueTask, folder: str | os.PathLike) -> list[Example]:
    """Reads the official test set of a task; its labels are not public.

    Args:
        task: A task of `GLUE`.
        folder: The data folder with a folder `glue`.

    Returns:
        A list of `Example` without labels, in the order of submissions.

    Raises:
        ValueError: If the file is missing. With file and line, if a line is malformed or the rows
            are not numbered from 0.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "glue", "CoLA", "test.tsv")
    ...     file.parent.mkdir(parents=True)
    ...     size = file.write_text(f"index{chr(9)}sentence{chr(10)}0{chr(9)}Ada sings.{chr(10)}")
    ...     [example.text for example in read_unlabelled(GLUE["cola"], folder)]
    ['Ada sings.']
    """
    return task.read_file(folder, "unlabelled")


def with_labels(examples, labels):
    """Returns the examples after a check of their labels.

    Raises:
        ValueError: If a label is not in `labels`; with file and line.
    """
    for example in examples:
        if example.label not in labels:
            raise ValueError(
                f"{example.where}: The labels of this task are {', '.join(labels)}. "
                f"Received: {example.label!r}"
            )
    return examples


def with_scores(examples, low, high):
    """Returns the examples with their labels as numbers.

    Raises:
        ValueError: If a label is not a number from `low` to `high`; with file and line.
    """
    return [dataclasses.replace(e, label=_score(e, low, high)) for e in examples]


def _score(example, low, high):
    try:
        score = float(example.label)
    except ValueError as error:
        raise ValueError(
            f"{example.where}: A score must be a number. Received: {example.label!r}"
        ) from error
    if not low <= score <= high:
        raise ValueError(
            f"{example.where}: A score lies from {low:g} to {high:g}. Received: {example.label!r}"
        )
    return score


def group_phrases(examples):
    """Groups SST-2's train phrases by sentence.

    The file mixes the phrases of all sentences and has no sentence ids. A phrase joins the group of
    the longest phrase that contains it word for word.
    """
    texts = [tuple(example.text.split()) for example in examples]
    phrases = _Phrases(texts)
    groups = [None] * len(texts)
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        groups[i] = phrases.group_of(texts[i])
        if groups[i] is None:
            groups[i] = f"phrase {i}"
            phrases.give(texts[i], groups[i])
    return [
        dataclasses.replace(example, group=group)
        for example, group in zip(examples, groups, strict=True)
    ]


class _Phrases:
    """Phrases and their groups; one pass over a text's words finds all phrases in it.

    Reference: Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
    """

    def __init__(self, phrases):
        self._next = {}  # (node, word) -> node
        self._group = {}  # node of a phrase's end -> its group or None
        order = []  # nodes with their parents and words
        for phrase in phrases:
            node = 0
            for word in phrase:
                parent, node = node, self._next.setdefault((node, word), len(self._next) + 1)
                if node > len(order):
                    order.append((parent, word))
            if phrase:
                self._group.setdefault(node, None)
        # For each node, shortest first: the node of the longest proper suffix that starts a
        # phrase, and the node of the longest proper suffix that is a phrase.
        self._shorter, self._phrase = [0] * (len(order) + 1), [0] * (len(order) + 1)
        depths = [0] * (len(order) + 1)
        for node, (parent, _) in enumerate(order, 1):
            depths[node] = depths[parent] + 1
        for node in sorted(range(1, len(order) + 1), key=depths.__getitem__):
            parent, word = order[node - 1]
            if parent:
                self._shorter[node] = self._step(self._shorter[parent], word)
            shorter = self._shorter[node]
            self._phrase[node] = shorter if shorter in self._group else self._phrase[shorter]

    def _step(self, node, word):
        while node and (node, word) not in self._next:
            node = self._shorter[node]
        return self._next.get((node, word), 0)

    def group_of(self, phrase):
        """Returns the group of a phrase, or `None`."""
        node = 0
        for word in phrase:
            node = self._next[node, word]
        return self._group.get(node)

    def give(self, text, group):
        """Assigns `group` to the phrases in a text without a group."""
        node = 0
        for word in text:
            node = self._step(node, word)
            found = node if node in self._group else self._phrase[node]
            while found and self._group[found] is None:  # after the first group, all have one
                self._group[found] = group
                found = self._phrase[found]


def group_first_texts(examples):
    """Groups pairs by their first text; several pairs share one."""
    return [dataclasses.replace(example, group=example.text) for example in examples]


def group_shared(examples, texts=lambda example: (example.text, example.pair)):
    """Groups examples that share a text, directly or through other examples.

    Args:
        examples: A list of `Example`.
        texts: `texts(example)` returns the strings that connect examples.
    """
    parent = {}

    def root(text):
        while parent.setdefault(text, text) != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for example in examples:
        first, *others = texts(example)
        for other in others:
            parent[root(other)] = root(first)
    return [dataclasses.replace(e, group=root(texts(e)[0])) for e in examples]


def _file_reader(files, columns, labels, scores, broken):
    """Builds the `read_file` of a `GlueTask`."""

    def read_file(folder, part):
        path = find_file(folder, files[part])
        options = {"separator": "\t", "quoted": False, "broken": broken, "clean": False}
        examples = read_table(path, **columns[part], **options)
        if part == "unlabelled":
            return _in_order(examples)
        return with_scores(examples, *labels) if scores else with_labels(examples, labels)

    return read_file


def _in_order(examples):
    """Checks that the row numbers, read as groups, count from 0, and removes them."""
    for i, example in enumerate(examples):
        if example.group != str(i):
            raise ValueError(
                f"{example.where}: The rows of a test file must be numbered from 0, in order: this "
                f"one is {i}. Received: {example.group!r}"
            )
    return [dataclasses.replace(example, group=None) for example in examples]


def _splits(read_file, group):
    """Builds the `read` of a task.

    "test" is the official dev set; the labels of GLUE's test sets are not public.
    """

    def read(folder, split):
        if split == "test":
            return read_file(folder, "test")
        examples = read_file(folder, "train")
        if group is not None:
            examples = group(examples)
        return cut_dev_set(examples, DEV)[split]

    return read


def _pair(first, second, label):
    return {"text": first, "pair": second, "label": label}


def _task(
    name,
    folder,
    columns,
    labels,
    rows,
    majority,
    names,
    group=group_first_texts,
    head=Classifier,
    symmetric=False,
    broken=False,
    train=None,
    dev="dev",
    test="test",
    submission=None,
    index="index",
    dev_columns=None,
):
    """Builds a row of the table.

    Args (other than the attributes of `GlueTask`):
        folder: Its folder under `glue/`.
        columns: Columns of its train file, as in `read_table`; those of other files derive from
            them.
        names: Names of its metrics.
        group: Function that groups the train examples.
        broken: As in `table_rows`.
        train, dev, test: Its files without ending; `train` includes the folder of another task.
        index: Column of the row numbers in the test file.
        dev_columns: Columns of the official dev set, if they differ.
    """
    texts = {part: columns[part] for part in ("text", "pair") if part in columns}
    train = train or f"{folder}/train"
    files = {"train": train, "dev": train, "test": f"{folder}/{dev}"}
    files = {part: f"glue/{file}.tsv" for part, file in files.items()}
    files["unlabelled"] = f"glue/{folder}/{test}.tsv"
    columns = {
        "train": columns,
        "test": dev_columns or columns,
        "unlabelled": texts | {"group": index},  # `_in_order` checks the numbers
    }
    read_file = _file_reader(files, columns, labels, head is Regressor, broken)
    return GlueTask(
        name,
        _splits(read_file, group),
        head,
        {metric: getattr(metrics, metric) for metric in names},
        files,
        "gluebenchmark.com",
        "see the task's own page there",
        symmetric,
        labels,
        read_file,
        rows,
        submission or f"{folder}.tsv",
        majority,
    )


_COLA = {"text": "sentence", "label": "label", "header": ["source", "label", "star", "sentence"]}
_SST2 = {"text": "sentence", "label": "label"}
_MRPC = _pair("#1 String", "#2 String", "Quality")
_QQP = _pair("question1", "question2", "is_duplicate")
_STSB = _pair("sentence1", "sentence2", "score")
_MNLI = _pair("sentence1", "sentence2", "gold_label")
_QNLI = _pair("question", "sentence", "label")
_RTE = _WNLI = _pair("sentence1", "sentence2", "label")
_AX = _pair("Premise", "Hypothesis", "Label")  # of diagnostic-full.tsv, the file with labels

_BINARY = ("0", "1")
_TWO = ("entailment", "not_entailment")
_THREE = ("entailment", "neutral", "contradiction")
_CORRELATIONS = ["pearson_correlation", "spearman_correlation"]
_MATTHEWS = ["matthews_correlation"]
_ACCURACY = ["accuracy"]

GLUE = {
    task.name: task
    for task in (
        _task("cola", "CoLA", _COLA, _BINARY, 1063, "1", _MATTHEWS, None),
        _task("sst2", "SST-2", _SST2, _BINARY, 1821, "1", _ACCURACY, group_phrases),
        _task("mrpc", "MRPC", _MRPC, _BINARY, 1725, "1", ["accuracy", "f1"], symmetric=True),
        # Line breaks inside some questions of QQP break their rows in train.tsv.
        _task("qqp", "QQP", _QQP, _BINARY, 390_965, "0", ["accuracy", "f1"], group_shared,
              symmetric=True, broken=True, index="id"),
        _task("stsb", "STS-B", _STSB, (0.0, 5.0), 1379, "2.701", _CORRELATIONS,
              head=Regressor, symmetric=True),
        _task("mnli", "MNLI", _MNLI, _THREE, 9796, "entailment", _ACCURACY,
              dev="dev_matched", test="test_matched", submission="MNLI-m.tsv"),
        _task("mnli_mm", "MNLI", _MNLI, _THREE, 9847, "entailment", _ACCURACY,
              dev="dev_mismatched", test="test_mismatched", submission="MNLI-mm.tsv"),
        _task("qnli", "QNLI", _QNLI, _TWO, 5463, "entailment", _ACCURACY, group_shared),
        _task("rte", "RTE", _RTE, _TWO, 3000, "entailment", _ACCURACY),
        _task("wnli", "WNLI", _WNLI, _BINARY, 146, "0", _ACCURACY, group_shared),
        # A model of MNLI predicts the diagnostic set: its train set is MNLI's.
        _task("ax", "diagnostic", _MNLI, _THREE, 1104, "entailment", _MATTHEWS,
              train="MNLI/train", dev="diagnostic-full", test="diagnostic",
              submission="AX.tsv", dev_columns=_AX),
    )
}  # fmt: skip
