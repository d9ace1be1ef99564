"""Semantic roles: PropBank over the English Web Treebank, and OntoNotes."""

import functools

from keras_plm import metrics
from keras_plm.data.formats.conll_2012 import conll_2012_roles
from keras_plm.data.formats.tables import is_empty, table_rows
from keras_plm.data.task import Example, Task, find_file
from keras_plm.files.json_files import Whole, check_shape
from keras_plm.heads import SemanticRoleLabeler

# Shape of a line: a sentence and its predicates, with [start, end, label] of each argument.
SENTENCE = {
    "id": str, "words": [str], "predicates": [{"index": Whole(), "arguments": [list]}],
}  # fmt: skip


def read_roles(path):
    """Reads predicates with their arguments, an example per predicate.

    A line of the JSONL file is `{"id": ..., "words": [...], "predicates": [{"index": 1,
    "arguments": [[0, 1, "ARG0"], [1, 2, "V"]]}]}`; an argument ends before its second number. Tags
    are in BIO. Predicates of a sentence are in one group. Sentences without a predicate are left
    out.

    Args:
        path: The file, plain or `.gz`.

    Raises:
        ValueError: If a line is malformed or has an empty word, a predicate or an argument is
            outside its sentence, two arguments of a predicate overlap, or its argument V is not
            at its index, with file and line. If there is no predicate.
    """
    examples, lines = [], 0
    for where, row in table_rows(path):
        lines += 1
        check_shape(row, SENTENCE, where)
        words = row["words"]
        if not words or any(map(is_empty, words)):
            raise ValueError(
                f"{where}: A sentence must have words, none of them empty. "
                f"Received: words={words!r:.60}"
            )
        indices = [predicate["index"] for predicate in row["predicates"]]
        for place, index in enumerate(indices):
            if index >= len(words):
                raise ValueError(
                    f"{where}: The index of a predicate must be that of a word, from 0. "
                    f"Received: index={index} of {len(words)} words"
                )
            if index in indices[:place]:
                raise ValueError(
                    f"{where}: A word must be one predicate at most: join its arguments. "
                    f"Received: two predicates at index {index}"
                )
            predicate = f"{where}, predicate {index}"
            tags = _tags(row["predicates"][place]["arguments"], len(words), predicate)
            marked = [i for i, tag in enumerate(tags) if tag == "B-V"]
            if marked and (len(marked) > 1 or not tags[index].endswith("-V")):
                raise ValueError(
                    f"{predicate}: The argument V, if there is one, must hold the word of the "
                    f"predicate, counted from 0. Received: V at {', '.join(map(str, marked))}"
                )
            examples.append(Example(words, tags, group=row["id"], where=where, predicate=index))
    if not examples:
        received = "sentences without one" if lines else "an empty file"
        raise ValueError(f"{path}: No predicate in this file. Received: {received}")
    return examples


def _tags(arguments, count, where):
    """Returns the tags of a sentence of `count` words, in BIO."""
    tags, placed = ["O"] * count, []
    for argument in arguments:
        wrong = len(argument) != 3 or any(type(place) is not int for place in argument[:2])
        if wrong or not isinstance(argument[2], str) or is_empty(argument[2]):
            raise ValueError(
                f"{where}: An argument must be [start, end, label]. Received: {argument!r:.60}"
            )
        start, end, label = argument
        if label.startswith(("B-", "I-")):
            raise ValueError(
                f"{where}: The label of an argument must be the role alone, without B- and I-. "
                f"Received: {argument!r:.60}"
            )
        if not 0 <= start < end <= count:
            raise ValueError(
                f"{where}: An argument must be a part of its sentence of {count} words. "
                f"Received: {argument!r}"
            )
        for other in placed:
            if start < other[1] and other[0] < end:
                raise ValueError(
                    f"{where}: Arguments of a predicate must not overlap. "
                    f"Received: {other!r} and {argument!r}"
                )
        placed.append(argument)
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tags


def _read(read, files, folder, split):
    return read(find_file(folder, files[split]))


_EWT = {split: f"ewt_srl/{split}.jsonl" for split in ("train", "dev", "test")}
ONTONOTES = {split: f"conll2012/{split}.conll" for split in ("train", "dev", "test")}
ONTONOTES_SOURCE = "OntoNotes 5.0 in the files of CoNLL-2012, LDC2013T19"

ROLE_TASKS = (
    Task(
        "ewt_srl",
        functools.partial(_read, read_roles, _EWT),
        SemanticRoleLabeler,
        {"role_f1": metrics.role_f1},
        _EWT,
        "PropBank release over UD_English-EWT, github.com/propbank/propbank-release",
        "CC BY-SA 4.0",
    ),
    Task(
        "conll2012_roles",
        functools.partial(_read, conll_2012_roles, ONTONOTES),
        SemanticRoleLabeler,
        {"role_f1": metrics.role_f1},
        ONTONOTES,
        ONTONOTES_SOURCE,
        "LDC",
    ),
)
