"""What a labelled problem is: examples, and how a task's files become examples."""

import csv
import dataclasses
import json
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_plm.tokenizers import open_text


@dataclass(frozen=True)
class Example:
    """One labelled text.

    Attributes:
        text: A string, or a list of words where labels belong to words.
        label: A class name, a number, one tag per word, the answers to a question, or `None` when
            unknown.
        pair: The second text of a pair, the passage about which `text` is a question, or `None`.
        choices: Answers or continuations of `text`, of which `label` numbers the right one from 0;
            or `None`.
        group: Examples of one group (phrases of a sentence, sentences of a document) are never
            parted by a split; `None` puts the example in a group of its own.
        where: `file:line` it was read from, for error messages.
        starts: Where each answer of `label` begins in `pair`, in characters; both are empty where
            the passage answers nothing. `None` where labels are no answers.
        id: A name among all examples, as in files of predictions; or `None`.
    """

    text: str | Sequence[str]
    label: str | float | Sequence[str] | None = None
    pair: str | None = None
    group: str | None = None
    where: str = ""
    choices: Sequence[str] | None = None
    starts: Sequence[int] | None = None
    id: str | None = None

    def __post_init__(self):
        tags, where = self.label, f"{self.where}: " if self.where else ""
        if self.starts is not None:
            self._check_answers(where)
            return
        if tags is None or isinstance(tags, (str, numbers.Number)):  # NumPy's numbers too
            return
        if isinstance(self.text, str):
            rule = "Tags belong to a list of words: split the text"
            if self.pair is not None:
                rule = "Answers need `starts`, where each begins in the passage, in characters"
            raise ValueError(f"{where}{rule}. Received: {self.text!r}, label={tags!r:.60}")
        if len(self.text) != len(tags):
            raise ValueError(
                f"{where}Every word needs one tag. "
                f"Received: {len(self.text)} words and {len(tags)} tags"
            )

    def _check_answers(self, where):
        if not isinstance(self.pair, str) or not self.pair.strip():
            raise ValueError(
                f"{where}A question has a passage, `Example(question, answers, pair=passage)`. "
                f"Received: pair={self.pair!r}"
            )
        if not isinstance(self.label, (list, tuple)) or len(self.label) != len(self.starts):
            raise ValueError(
                f"{where}`label` lists the answers, and `starts` where each begins in the passage. "
                f"Received: label={self.label!r}, starts={self.starts!r}"
            )
        for answer, start in zip(self.label, self.starts, strict=True):
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError(
                    f"{where}An answer is a text of one character or more; a question that has "
                    f"none has label=[] and starts=[]. Received: {answer!r}"
                )
            found = None
            if isinstance(start, numbers.Integral) and start >= 0:
                found = self.pair[start : start + len(answer)]
            if found != answer:
                raise ValueError(
                    f"{where}An answer stands in its passage at its offset, counted in characters "
                    f"from 0. Received: {answer!r} at {start}, where the passage has {found!r}"
                )


@dataclass(frozen=True)
class Task:
    """A labelled problem: where its examples are, which head solves it, how it is scored.

    Attributes:
        name: As on the command line.
        read: `read(folder, split)` gives the examples of `"train"`, `"dev"` or `"test"`.
        head: The class of `keras_plm.heads` that solves it.
        metrics: Names and functions `(y_true, y_pred) -> float`, the main one first.
        symmetric: Whether the two texts of a pair have no order, as in paraphrase: encoders that
            read from left to right are then given both.
        files: The files under the data folder, by split; one file may serve several. A test set
            without public labels is `"unlabelled"`.
        source: Where the data come from.
        licence: Their licence.
    """

    name: str
    read: Callable
    head: type
    metrics: Mapping[str, Callable]
    files: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    licence: str = ""
    symmetric: bool = False


def find_file(folder, name):
    """A data file, plain or .gz.

    Raises:
        ValueError: If neither is there.
    """
    path = Path(folder) / name
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise ValueError(
        f"No file {path} (nor {path.name}.gz). Name the folder that holds it with --data. "
        f"Received: data={str(folder)!r}"
    )


def split_groups(examples, shares, seed=0):
    """Parts examples at random without parting a group.

    The first part is for training: a group with a class, a tag, or a lowest or highest score that
    this part would lack is moved to it, with a warning.

    Args:
        examples: A list of `Example`.
        shares: The parts' shares of the examples, summing to 1.
        seed: Of the random order of groups.

    Returns:
        One list of examples per share, each in the original order.

    Raises:
        ValueError: If a part would be empty.
    """
    import numpy as np

    groups = {}
    for i, example in enumerate(examples):
        groups.setdefault(i if example.group is None else example.group, []).append(i)
    order = list(groups)
    np.random.default_rng(seed).shuffle(order)
    bounds = np.cumsum(shares) * len(examples)
    parts = [[] for _ in shares]
    done = 0
    for name in order:
        # A group goes where its middle falls, so that sizes come out near their shares.
        middle = done + len(groups[name]) / 2
        part = min(int(np.searchsorted(bounds, middle)), len(shares) - 1)
        parts[part] += groups[name]
        done += len(groups[name])
    moved = _move_rare_labels(examples, parts, groups)
    if not all(parts):
        raise ValueError(
            f"Too few groups for {len(shares)} parts, of which none may be empty while every group "
            "(in CoNLL's format a document) stays whole: give more groups, or smaller ones. "
            f"Received: {len(examples)} examples in {len(groups)} groups"
            + (f", of which labels that occur once are put first: {moved}" if moved else "")
        )
    if moved:
        warnings.warn(
            f"Training must know every label: the first part takes the groups of {moved}, which it "
            "would lack",
            stacklevel=2,
        )
    return [[examples[i] for i in sorted(part)] for part in parts]


def _move_rare_labels(examples, parts, groups):
    """Moves groups to the first part, in place, until it has every label; says which and where."""
    scores = [e.label for e in examples if isinstance(e.label, float)]
    extremes = {min(scores), max(scores)} if scores else set()

    def labels_of(i):
        label, answers = examples[i].label, getattr(examples[i], "starts", None)
        if label is None or answers is not None:
            return ()
        if isinstance(label, float) and label not in extremes:
            return ()
        return label if isinstance(label, (list, tuple)) else (label,)

    group_of = {i: name for name, rows in groups.items() for i in rows}
    known = {label for i in parts[0] for label in labels_of(i)}
    moved = {}
    for part in parts[1:]:
        for i in list(part):
            rare = [label for label in labels_of(i) if label not in known]
            if rare:
                rows = groups[group_of[i]]  # all in this part
                parts[0] += rows
                part[:] = [row for row in part if group_of[row] != group_of[i]]
                known |= {label for row in rows for label in labels_of(row)}
                where = f" ({examples[i].where})" if getattr(examples[i], "where", "") else ""
                moved |= {label: f"{label!r}{where}" for label in rare}
    shown = list(moved.values())
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _lines(path):
    """(number, line without its end) of a text file."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\r\n")


def read_conll(path, word_column=0, tag_column=-1):
    """Sentences of a CoNLL file: a word a line with its columns, a blank line between sentences.

    Columns are parted by blanks or tabs; `-DOCSTART-` parts documents, which become the examples'
    groups (without any, each sentence is its own group).

    Args:
        path: The file, plain or .gz.
        word_column, tag_column: Which columns hold the word and its tag.

    Returns:
        A list of `Example` with words as `text` and tags as `label`.

    Raises:
        ValueError: Naming file and line, if a line has too few columns, or if there is no sentence.
    """
    examples, words, tags, document, start = [], [], [], 0, 1
    needed = max(word_column + 1, tag_column + 1, -word_column, -tag_column, 2)

    def finish():
        if words:
            group = f"{path}#{document}"
            examples.append(Example(words, tags, group=group, where=f"{path}:{start}"))

    for number, line in _lines(path):
        if not line.strip() or line.startswith("-DOCSTART-"):
            finish()
            words, tags = [], []
            if line.startswith("-DOCSTART-"):
                document += 1
            continue
        columns = line.split("\t") if "\t" in line else line.split()
        if len(columns) < needed or not (
            columns[word_column].strip() and columns[tag_column].strip()
        ):
            raise ValueError(
                f"{path}:{number}: A line of a CoNLL file holds a word and its tag, parted by a "
                f"blank or tab. Received: {line!r}"
            )
        if not words:
            start = number
        words.append(columns[word_column])
        tags.append(columns[tag_column])
    finish()
    if not document:
        examples = [dataclasses.replace(example, group=None) for example in examples]
    if not examples:
        raise ValueError(f"{path}: No sentence in this file. Received: an empty CoNLL file")
    return examples


def table_rows(path, separator=None, quoted=None, header=None, broken=False):
    """Rows of a CSV, TSV or JSONL file, one after another.

    Args:
        path: The file, plain or .gz; its ending tells the format unless `separator` does.
        separator: `","` or a tab, to override the ending.
        quoted: Whether fields may be quoted; by default only in CSV (GLUE's TSV files are not).
        header: The names of the columns of a CSV or TSV whose first line does not give them.
        broken: Whether a field that is not quoted may hold the end of a line: lines with too few
            fields are then joined till they make a row.

    Yields:
        `("file:line", {column: value})`.

    Raises:
        ValueError: Naming file and line, if a line is malformed.
    """
    path = Path(path)
    ending = (path.stem if path.suffix == ".gz" else path.name).rsplit(".", 1)[-1].lower()
    if separator is None and ending in ("jsonl", "json"):
        yield from _json_rows(path)
        return
    separator = separator or ("\t" if ending in ("tsv", "txt") else ",")
    quoted = separator == "," if quoted is None else quoted
    yield from _separated_rows(path, separator, quoted, header, broken)


def read_table(path, text, label=None, pair=None, group=None, **options):
    """Examples of a CSV, TSV or JSONL file with named columns.

    Args:
        path: The file, plain or .gz; its ending tells the format unless `separator` does.
        text, label, pair, group: Names of columns (of keys, in JSONL).
        **options: `separator`, `quoted`, `header` and `broken` of `table_rows`.

    Returns:
        A list of `Example`; a JSONL text may be a list of words, its label a list of tags.

    Raises:
        ValueError: Naming file and line, if a column is missing, a label is empty, a line is
            malformed or there is no example.
    """
    columns = {"text": text, "label": label, "pair": pair, "group": group}
    columns = {field: name for field, name in columns.items() if name is not None}
    examples = []
    for where, row in table_rows(path, **options):
        missing = [name for name in columns.values() if row.get(name) is None]
        if missing:
            raise ValueError(
                f"{where}: No column {missing[0]!r}. Received: columns {', '.join(row)}"
            )
        values = {part: row[name] for part, name in columns.items()}
        if values.get("group") == "":
            values["group"] = None  # in a group of its own
        for part, value in values.items():
            if part == "label" and value == "":
                raise ValueError(
                    f"{where}: Every example needs a label. Received: {columns[part]}={value!r}"
                )
            if value is not None and not _is_a(part, value):
                raise ValueError(
                    f"{where}: A {part} is a string, or a list of strings where every word has "
                    f"a tag. Received: {columns[part]}={value!r}"
                )
        examples.append(Example(**values, where=where))
    if not examples:
        raise ValueError(f"{path}: No example in this file. Received: an empty table")
    return examples


def _is_a(field, value):
    """True where a table's value is what a field of `Example` may be."""
    if isinstance(value, list):
        return field in ("text", "label") and all(isinstance(item, str) for item in value)
    return isinstance(value, str) or (
        field in ("label", "group") and isinstance(value, int | float)
    )


def _json_rows(path):
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}:{number}: Each line of a JSONL file is one JSON object. "
                f"Received: {line[:60]!r} ({error})"
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}:{number}: Each line of a JSONL file is one JSON object. "
                f"Received: {line[:60]!r}"
            )
        yield f"{path}:{number}", row


def _separated_rows(path, separator, quoted, header, broken):
    read = [0]  # numbers of lines

    def lines():
        for number, line in _lines(path):
            read.append(number)
            yield line + "\n"

    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines(), delimiter=separator, quoting=quoting, strict=True)
    while True:
        first = read[-1] + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}:{first}: This line is not well quoted. Received: {error}"
            ) from error
        if header is None:
            if not row:
                raise ValueError(
                    f"{path}: The first line must name the columns. Received: nothing there"
                )
            header = [row[0].removeprefix("\ufeff"), *row[1:]]
            continue
        if row is None:
            return
        if not row:
            continue
        while broken and len(row) < len(header) and (more := next(reader, None)) is not None:
            if more:
                row = [*row[:-1], f"{row[-1]} {more[0]}", *more[1:]]
        if len(row) != len(header):
            raise ValueError(
                f"{path}:{first}: Every line needs as many fields as the header, "
                f"{len(header)}. Received: {len(row)} fields"
            )
        yield f"{path}:{first}", dict(zip(header, row, strict=True))


def read_parallel(source_path, target_path):
    """A text and its translation, line by line.

    Args:
        source_path, target_path: Two text files, plain or .gz, with as many lines.

    Returns:
        `(sources, targets)`: two lists of texts.

    Raises:
        ValueError: If the files have unequally many lines, or, naming file and line, if one is
            empty.
    """
    texts = []
    for path in (source_path, target_path):
        texts.append([])
        for number, line in _lines(path):
            if not line.strip():
                raise ValueError(
                    f"{path}:{number}: Every line holds a text; leave a missing one out of both "
                    f"files. Received: {line!r}"
                )
            texts[-1].append(line.strip())
    sources, targets = texts
    if len(sources) != len(targets):
        raise ValueError(
            f"Line n of {target_path} translates line n of {source_path}. "
            f"Received: {len(sources)} lines and {len(targets)} lines"
        )
    if not sources:
        raise ValueError(f"{source_path}: No text in this file. Received: an empty file")
    return sources, targets
