"""Coreference: LitBank, entities in works of fiction, and OntoNotes."""

import functools
import itertools

from keras_plm import metrics
from keras_plm.data.formats.conll_2012 import conll_2012_documents
from keras_plm.data.formats.tables import is_empty, table_rows
from keras_plm.data.task import Example, Task, find_file
from keras_plm.datasets.semantic_roles import ONTONOTES, ONTONOTES_SOURCE
from keras_plm.files.json_files import check_shape
from keras_plm.heads import CoreferenceResolver

# Shape of a line: a document, its clusters of two mentions or more, and its other mentions.
DOCUMENT = {"doc": str, "sentences": [[str]], "clusters": [list], "singletons": [list]}


def read_coreference(path):
    """Reads documents with their clusters of coreferent mentions, an example per document.

    A line of the JSONL file is `{"doc": ..., "sentences": [["Ada", "sings"], ["She", "smiles"]],
    "clusters": [[[0, 0, 1], [1, 0, 1]]], "singletons": []}`. A mention is `[sentence, start, end]`;
    it ends before its last number. `singletons` are mentions in a cluster of one.

    Args:
        path: The file, plain or `.gz`.

    Raises:
        ValueError: If a line is malformed, a document, a sentence or a word is empty, a mention is
            outside its sentence or in two clusters, or a document occurs twice, with file and line.
            If there is no document.
    """
    examples, places = [], {}  # place of each document
    for where, row in table_rows(path):
        check_shape(row, DOCUMENT, where)
        first = places.setdefault(row["doc"], where)
        if first != where:
            raise ValueError(
                f"{where}: A document must occur once. "
                f"Received: {row['doc']!r:.60}, also at {first}"
            )
        sizes = [len(sentence) for sentence in row["sentences"]]
        if not sizes or not all(sizes):
            raise ValueError(
                f"{where}: A document must have sentences, each with words. "
                f"Received: sentences of {sizes[:8]} words"
            )
        for number, sentence in enumerate(row["sentences"]):
            if any(map(is_empty, sentence)):
                raise ValueError(
                    f"{where}: A word must not be empty. "
                    f"Received: sentence {number}, {sentence!r:.60}"
                )
        every = [*row["clusters"], *([one] for one in row["singletons"])]
        clusters = [[_mention(mention, sizes, where) for mention in cluster] for cluster in every]
        words = [word for sentence in row["sentences"] for word in sentence]
        seen = set()
        for mention, place in zip(itertools.chain(*every), itertools.chain(*clusters), strict=True):
            if place in seen:
                raise ValueError(
                    f"{where}: A mention must be in one cluster or in the singletons, once. "
                    f"Received: {mention} twice, {' '.join(words[slice(*place)])!r:.60}"
                )
            seen.add(place)
        examples.append(
            Example(words, clusters, group=row["doc"], where=where, id=row["doc"], sentences=sizes)
        )
    if not examples:
        raise ValueError(f"{path}: No document in this file. Received: an empty file")
    return examples


def _mention(mention, sizes, where):
    """Returns the index of the first word of a mention, and of the word after its last."""
    if (
        not isinstance(mention, list)
        or len(mention) != 3
        or any(type(place) is not int for place in mention)
    ):
        raise ValueError(
            f"{where}: A mention must be [sentence, start, end]. Received: {mention!r:.60}"
        )
    sentence, start, end = mention
    if not 0 <= sentence < len(sizes) or not 0 <= start < end <= sizes[sentence]:
        size = f" of {sizes[sentence]} words" if 0 <= sentence < len(sizes) else ""
        raise ValueError(
            f"{where}: A mention must be a part of a sentence of its document. Received: "
            f"{mention}, sentence {sentence}{size} of {len(sizes)} sentences"
        )
    before = sum(sizes[:sentence])
    return before + start, before + end


def _read(read, files, folder, split):
    return read(find_file(folder, files[split]))


_LITBANK = {split: f"litbank/{split}.jsonl" for split in ("train", "dev", "test")}
_without_singletons = functools.partial(metrics.conll_coreference_f1, singletons=False)

COREFERENCE_TASKS = (
    Task(
        "litbank",
        functools.partial(_read, read_coreference, _LITBANK),
        CoreferenceResolver,
        {
            "coreference_f1": metrics.conll_coreference_f1,
            "without_singletons": _without_singletons,
            "lea": metrics.lea,
        },
        _LITBANK,
        "LitBank, github.com/dbamman/litbank, split 0 of github.com/dbamman/lrec2020-coref",
        "CC BY 4.0",
    ),
    Task(
        "conll2012_coreference",  # OntoNotes has no singletons
        functools.partial(_read, conll_2012_documents, ONTONOTES),
        CoreferenceResolver,
        {"coreference_f1": _without_singletons},
        ONTONOTES,
        ONTONOTES_SOURCE,
        "LDC",
    ),
)
