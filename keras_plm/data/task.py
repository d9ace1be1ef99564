"""Labelled examples and the tasks that they belong to."""

import numbers
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_plm.files.sequences import as_list, as_texts, is_missing, plain

# Data files of the package, by their paths in a data folder.
SHIPPED_FOLDER = Path(__file__).parents[1] / "datasets" / "files"
SHIPPED = {"wikigold/wikigold.conll.txt": SHIPPED_FOLDER / "wikigold.conll.txt.gz"}


@dataclass(frozen=True)
class Example:
    """An example of a task: a text, with or without a second text and a label.

    Args:
        text: A string, or a list of words for labels of words.
        label: A class name, a number, one tag per word, the answers to a question, the clusters of
            a document, or `None`.
        pair: The second text of a pair, the passage of a question, or `None`.
        choices: Answers or continuations of `text`; `label` is the index of the right one.
        group: Group of the example, such as a sentence of phrases or a document. Splits keep groups
            together. `None` for a group of its own.
        where: `file:line` of the example, for error messages.
        starts: Character offset of each answer of `label` in `pair`; both are empty for a question
            without an answer. `None` for other labels.
        id: Id of the example in files of predictions, or `None`.
        lines: Line of each word in the file, for error messages.
        predicate: Index of the word whose semantic roles the tags mark, or `None`.
        sentences: Number of words of each sentence of a document. `label` then lists its clusters
            of coreferent mentions; a mention is `(start, end)`, the index of its first word and of
            the word after its last. `None` for other texts.

    >>> example = Example(["Ada", "sings"], ["B-PER", "O"])
    >>> example.text, example.label, example.pair
    (['Ada', 'sings'], ['B-PER', 'O'], None)
    """

    text: str | Sequence[str]
    label: str | float | Sequence[str] | None = None
    pair: str | None = None
    group: str | None = None
    where: str = ""
    choices: Sequence[str] | None = None
    starts: Sequence[int] | None = None
    id: str | None = None
    lines: Sequence[int] | None = field(default=None, compare=False, repr=False)
    predicate: int | None = None
    sentences: Sequence[int] | None = None

    def __post_init__(self):
        for name in ("text", "label", "choices", "starts", "sentences"):
            value = plain(getattr(self, name))
            if not (isinstance(value, (str, list, tuple)) or is_missing(value)):
                if hasattr(value, "__iter__"):  # an array, or a column of a table
                    value = as_list(value, name)
            object.__setattr__(self, name, value)
        tags, where = self.label, f"{self.where}: " if self.where else ""
        self._check_predicate(where)
        if isinstance(self.choices, str):
            raise ValueError(
                f"{where}`choices` must be a list of texts. Received: {self.choices!r:.60}"
            )
        if self.starts is not None:
            self._check_answers(where)
            return
        if self.sentences is not None:
            self._check_document(where)
            return
        if is_missing(tags) or isinstance(tags, (str, numbers.Number)):
            return
        if any(isinstance(item, (list, tuple)) for item in tags):
            raise ValueError(
                f"{where}Clusters of mentions need `sentences`, the number of words of each "
                f"sentence: `Example(words, clusters, sentences=sizes)`. Received: {tags!r:.60}"
            )
        if isinstance(self.text, str):
            rule = "Tags need a list of words: split the text"
            if self.pair is not None:
                rule = "Answers need `starts`, the character offset of each in the passage"
            raise ValueError(f"{where}{rule}. Received: {self.text!r}, label={tags!r:.60}")
        if len(self.text) != len(tags):
            raise ValueError(
                f"{where}Every word needs one tag. "
                f"Received: {len(self.text)} words and {len(tags)} tags, {self.text!r:.60}"
            )

    def _check_predicate(self, where):
        if self.predicate is None:
            return
        words = None if isinstance(self.text, str) else len(self.text)
        whole = isinstance(self.predicate, numbers.Integral)
        if words is None or not whole or not 0 <= self.predicate < words:
            raise ValueError(
                f"{where}`predicate` must be the index of a word in a list of words. Received: "
                f"predicate={self.predicate!r} of "
                + (f"the text {self.text!r:.60}" if words is None else f"{words} words")
            )

    def _check_document(self, where):
        words = None if isinstance(self.text, str) else len(self.text)
        sizes, listed = self.sentences, isinstance(self.sentences, (list, tuple))
        if not (
            words
            and listed
            and all(isinstance(n, numbers.Integral) and n > 0 for n in sizes)
            and sum(sizes) == words
        ):
            raise ValueError(
                f"{where}A document must be a list of words, and `sentences` the number of words "
                f"of each of its sentences. Received: sentences={sizes!r:.60} of "
                + (f"the text {self.text!r:.60}" if words is None else f"{words} words")
            )
        if self.label is None:
            return
        sentence_of = [i for i, size in enumerate(sizes) for _ in range(size)]
        seen = set()
        for cluster in as_list(self.label, f"{where}`label`", "clusters"):
            mentions = as_list(cluster, f"{where}a cluster", "mentions")
            if not mentions:
                raise ValueError(f"{where}A cluster must have a mention. Received: {cluster!r}")
            for mention in mentions:
                self._check_mention(mention, sentence_of, seen, where)

    @staticmethod
    def _check_mention(mention, sentence_of, seen, where):
        found = tuple(mention) if isinstance(mention, (list, tuple)) else ()
        if len(found) != 2 or not all(isinstance(place, numbers.Integral) for place in found):
            raise ValueError(
                f"{where}`label` must be a list of clusters, each a list of mentions (start, end), "
                f"two indices of words. Received: {mention!r:.60} as a mention"
            )
        start, end = found
        if not 0 <= start < end <= len(sentence_of):
            raise ValueError(
                f"{where}A mention (start, end) must have words of its document of "
                f"{len(sentence_of)} words; `end` is the index after its last word. "
                f"Received: {found}"
            )
        if sentence_of[start] != sentence_of[end - 1]:
            raise ValueError(
                f"{where}A mention must be in one sentence. Received: {found}, from sentence "
                f"{sentence_of[start]} to {sentence_of[end - 1]}"
            )
        if found in seen:
            raise ValueError(
                f"{where}A mention must be in one cluster, once. Received: {found} twice"
            )
        seen.add(found)

    def _check_answers(self, where):
        if not isinstance(self.pair, str) or not self.pair.strip():
            raise ValueError(
                f"{where}A question needs a passage: `Example(question, answers, pair=passage)`. "
                f"Received: pair={self.pair!r}"
            )
        if not isinstance(self.label, (list, tuple)) or len(self.label) != len(self.starts):
            raise ValueError(
                f"{where}`label` must list the answers, and `starts` the offset of each in the "
                "passage. "
                f"Received: label={self.label!r}, starts={self.starts!r}"
            )
        for answer, start in zip(self.label, self.starts, strict=True):
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError(
                    f"{where}An answer must not be blank; a question without an answer needs "
                    f"label=[] and starts=[]. Received: {answer!r}"
                )
            found = None
            if isinstance(start, numbers.Integral) and start >= 0:
                found = self.pair[start : start + len(answer)]
            if found != answer:
                raise ValueError(
                    f"{where}The passage must have each answer at its offset, counted in "
                    f"characters from 0. Received: {answer!r} at {start}, where the passage has "
                    f"{found!r}"
                )


@dataclass(frozen=True)
class Unlabelled:
    """A text, or a pair of texts, without a label; other fields are as in `Example`."""

    text: str | list
    pair: str | None = None
    label: None = None
    choices: list | None = None
    where: str = ""
    lines: Sequence[int] | None = None
    predicate: int | None = None
    sentences: Sequence[int] | None = None


@dataclass(frozen=True)
class Task:
    """A labelled task: its examples, its head and its metrics.

    Args:
        name: Name of the task on the command line.
        read: `read(folder, split)` returns the examples of `"train"`, `"dev"` or `"test"`.
        head: Class of `keras_plm.heads` for the task.
        metrics: Names and functions `(y_true, y_pred) -> float`, the main metric first.
        symmetric: Whether the two texts of a pair have no order, such as paraphrases. Causal
            encoders then read both orders.
        labels: Names of the classes, or the lowest and highest score; `None` if unknown.
        files: Files in the data folder, by split. A test set without public labels has the key
            `"unlabelled"`.
        source: Source of the data.
        licence: Licence of the data.

    >>> from keras_plm.heads import Classifier
    >>> from keras_plm.metrics import accuracy
    >>> def read(folder, split):
    ...     return [Example("a fine film", "good"), Example("a dull film", "bad")]
    >>> task = Task("films", read, Classifier, {"accuracy": accuracy}, labels=("bad", "good"))
    >>> len(task.read(None, "train")), list(task.metrics)
    (2, ['accuracy'])
    """

    name: str
    read: Callable
    head: type
    metrics: Mapping[str, Callable]
    files: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    licence: str = ""
    symmetric: bool = False
    labels: Sequence = ()


def as_examples(values, name="examples", labelled=True):
    """Returns `values` as a list of examples; by default each needs a label.

    Raises:
        TypeError: If an item is not an `Example`.
        ValueError: If `values` is not a sequence, or a text or label is missing, with its row.
    """
    examples = as_texts(values, name)
    for i, example in enumerate(examples):
        if not (hasattr(example, "text") and hasattr(example, "label")):
            raise TypeError(
                f"`{name}` must be a list of `Example`, each a text with its label: "
                "[Example(text, label) for text, label in zip(texts, labels)]. "
                f"Received: {example!r:.60} of {type(example).__name__} in row {i}"
            )
    if labelled:
        check_labelled(examples, name)
    return examples


def check_labelled(examples, name="examples"):
    """Raises if a label, or the tag of a word, is missing."""
    for i, example in enumerate(examples):
        label = example.label
        listed = label if isinstance(label, (list, tuple)) else [label]
        missing = [word for word, tag in enumerate(listed) if is_missing(tag)]
        if missing:
            where = f"{example.where}: " if getattr(example, "where", "") else ""
            word = f", word {missing[0]}" if listed is label else ""
            raise ValueError(
                f"{where}Either all examples have a label or none. "
                f"Received: {listed[missing[0]]!r} in row {i} of `{name}`{word}"
            )


def place_of(example, number, word=None):
    """Returns the start of an error message about an example, or about one of its words.

    Args:
        example: The example.
        number: Index of the example, or `None`.
        word: Index of the word; `None` for the whole example.

    >>> place_of(Example(["a", "b"], ["O", "X"]), 3, word=1)
    "example 3, word 1 ('b'): "
    """
    where, lines = getattr(example, "where", ""), getattr(example, "lines", None)
    if where and word is not None and lines is not None:
        return f"{where.rpartition(':')[0]}:{lines[word]}: "
    place = where or ("" if number is None else f"example {number}")
    if place and word is not None:
        place += f", word {word} ({example.text[word]!r})"
    return f"{place}: " if place else ""


def find_file(folder: str | os.PathLike | None, name: str) -> Path:
    """Finds a data file, plain or `.gz`, in the data folder or in the package.

    Args:
        folder: The data folder, or `None` for files of the package.
        name: Path of the file in the data folder.

    Returns:
        The path of the file.

    Raises:
        ValueError: If there is no such file.

    >>> from pathlib import Path
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "train.tsv.gz").write_bytes(b"")
    ...     find_file(folder, "train.tsv").name
    'train.tsv.gz'
    """
    shipped = SHIPPED.get(str(name))
    if folder is None:
        if shipped is None:
            raise ValueError(
                f"No data folder for {name}. Name the folder that holds it with --data. "
                "Received: data=None"
            )
        return shipped
    path = Path(folder) / name
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    if shipped is not None and not path.parent.exists():
        return shipped
    raise ValueError(
        f"No file {path} (nor {path.name}.gz). Name the folder that holds it with --data. "
        f"Received: data={str(folder)!r}"
    )


def split_groups(
    examples: Sequence[Example],
    fractions: Sequence[float],
    seed: int = 0,
    scores: bool = True,
) -> list[list[Example]]:
    """Splits examples at random into parts, without splitting a group.

    The first part is for training. If it lacks a class, a tag, or the lowest or highest score, a
    group with it moves to this part, with a warning.

    Args:
        examples: A list of `Example`.
        fractions: Fractions of the examples in each part; the sum is 1.
        seed: Seed of the random order of groups.
        scores: Whether labels of type float are scores. The first part then needs the lowest and
            the highest one, not every one.

    Returns:
        One list of examples per fraction, each in the original order.

    Raises:
        ValueError: If a part would be empty.

    >>> examples = [Example(str(i), "ab"[i % 2], group=str(i // 2)) for i in range(10)]
    >>> train, test = split_groups(examples, (0.8, 0.2))
    >>> len(train), len(test), {x.group for x in train} & {x.group for x in test}
    (8, 2, set())
    """
    import numpy as np

    examples = as_examples(examples, labelled=False)
    groups = {}
    for i, example in enumerate(examples):
        name = (i, None) if example.group is None else (None, example.group)
        groups.setdefault(name, []).append(i)
    order = list(groups)
    np.random.default_rng(seed).shuffle(order)
    bounds = np.cumsum(fractions) * len(examples)
    parts = [[] for _ in fractions]
    done = 0
    for name in order:
        # The middle of a group decides its part: sizes are then near their fractions.
        middle = done + len(groups[name]) / 2
        part = min(int(np.searchsorted(bounds, middle)), len(fractions) - 1)
        parts[part] += groups[name]
        done += len(groups[name])
    moved = _move_rare_labels(examples, parts, groups, scores)
    if not all(parts):
        grouped = len(groups) < len(examples)
        rule = "Examples of one group (in a CoNLL file, of one document) stay together. " * grouped
        file = getattr(examples[0], "where", "").rpartition(":")[0] if examples else ""
        raise ValueError(
            f"{f'{file}: ' if file else ''}Each of {len(fractions)} parts must get an example. "
            f"{rule}Give more "
            f"{'groups, or smaller ones' if grouped else 'examples'}. Received: {len(examples)} "
            f"examples"
            + f" in {len(groups)} groups" * grouped
            + (f"; groups moved to the first part for their labels: {moved}" if moved else "")
        )
    if moved:
        warnings.warn(
            f"The first part must have every label: groups were moved to it for {moved}",
            stacklevel=2,
        )
    return [[examples[i] for i in sorted(part)] for part in parts]


def cut_dev_set(
    examples: Sequence[Example],
    dev: float,
    test: float = 0.0,
    seed: int = 0,
    scores: bool = True,
) -> dict[str, list[Example]]:
    """Splits off a dev set, and optionally a test set, without splitting a group.

    Args:
        examples: A list of `Example`.
        dev, test: Fractions of the examples in the two sets.
        seed, scores: As in `split_groups`.

    Returns:
        A dict of the lists "train" and "dev", and "test" if its fraction is not 0.

    >>> parts = cut_dev_set([Example(str(i), "ab"[i % 2]) for i in range(20)], dev=0.1)
    >>> {split: len(part) for split, part in parts.items()}
    {'train': 18, 'dev': 2}
    """
    fractions = {"train": 1 - (dev + test), "dev": dev} | ({"test": test} if test else {})
    parts = split_groups(examples, tuple(fractions.values()), seed, scores)
    return dict(zip(fractions, parts, strict=True))


def _move_rare_labels(examples, parts, groups, are_scores):
    """Moves groups to the first part, in place, until it has every label.

    Returns:
        The labels that it lacked, with the places of their examples, as a text.
    """
    scores = [e.label for e in examples if are_scores and isinstance(e.label, float)]
    extremes = {min(scores), max(scores)} if scores else set()

    def labels_of(i):
        label, answers = examples[i].label, getattr(examples[i], "starts", None)
        if label is None or answers is not None or getattr(examples[i], "sentences", None):
            return ()
        if are_scores and isinstance(label, float) and label not in extremes:
            return ()
        return label if isinstance(label, (list, tuple)) else (label,)

    group_of = {i: name for name, rows in groups.items() for i in rows}
    known = {label for i in parts[0] for label in labels_of(i)}
    moved, taken = {}, set()
    for part in parts[1:]:
        for i in part:
            rare = [label for label in labels_of(i) if label not in known]
            if rare:  # the group is not moved yet
                rows = groups[group_of[i]]
                parts[0] += rows
                taken.add(group_of[i])
                known |= {label for row in rows for label in labels_of(row)}
                where = f" ({examples[i].where})" if getattr(examples[i], "where", "") else ""
                moved |= {label: f"{label!r}{where}" for label in rare}
        part[:] = [row for row in part if group_of[row] not in taken]
    shown = list(moved.values())
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
