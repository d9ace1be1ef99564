"""Reader of tagged sentences in CoNLL and CoNLL-U files."""

import dataclasses
import os
import re

from keras_plm.data.task import Example
from keras_plm.tokenizers.text import fields, numbered_lines

CONLLU_COLUMNS = 10
CONLLU_ID = re.compile(r"\d+([-.]\d+)?")  # of a word, a multi-word token or an empty node


def read_conll(
    path: str | os.PathLike,
    word_column: int | None = None,
    tag_column: int | None = None,
    labelled: bool = True,
) -> list[Example]:
    """Reads sentences of a CoNLL file: one word per line, a blank line after each sentence.

    Spaces or tabs separate columns. `-DOCSTART-` separates documents, the groups of the examples;
    without it each sentence is a group. Comment lines before a sentence are skipped: `# ...` with a
    space after the "#", and CoNLL-2012's `#begin document`.

    A file is CoNLL-U if its name ends in .conllu, or if its first row has 10 columns with numbers
    in the first and the seventh. Its words are the syntactic words: lines of multi-word tokens
    (`1-2`) and of empty nodes (`8.1`) are skipped.

    Every row has as many columns as the first row of the file. The number may differ between
    sentences if the columns are given, and in files of CoNLL-2012, which begin with
    `#begin document`.

    Args:
        path: The file, plain or `.gz`.
        word_column, tag_column: Columns of the word and its tag, counted from 0, or from the end if
            negative. By default the first and the last; in CoNLL-U FORM and UPOS, 1 and 3.
        labelled: If False, do not read tags.

    Returns:
        A list of `Example` with words as `text` and tags as `label`.

    Raises:
        ValueError: If a line has another number of columns than the first, with file and line. If
            there is no sentence.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     print("Ada B-PER", "sings O", "", "Hello O", sep="\\n", file=file, flush=True)
    ...     [(example.text, example.label) for example in read_conll(file.name)]
    [(['Ada', 'sings'], ['B-PER', 'O']), (['Hello'], ['O'])]
    """
    lines = list(numbered_lines(path))
    layout = _layout(path, lines, word_column, tag_column, labelled)
    sentences, document, words = [], 0, []  # sentences: [(document, [(line, columns)])]
    width = None  # (number of columns, line where they were counted)
    for number, line in lines:
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            words = []
            document += line.startswith("-DOCSTART-")
            continue
        if layout.is_comment(line, in_sentence=bool(words)):
            continue
        columns = layout.columns_of(f"{path}:{number}", line)
        if columns is None:
            continue
        if width is None or (layout.width_by_sentence and not words):
            width = len(columns), number
        if len(columns) != width[0]:
            raise ValueError(
                f"{path}:{number}: Every line of a CoNLL file must have as many columns as the "
                f"first, {width[0]} in line {width[1]}. "
                f"Received: {line!r:.80} of {len(columns)} columns"
            )
        if not words:
            sentences.append((document, words))
        words.append((number, columns))
    if not sentences:
        raise ValueError(f"{path}: No sentence in this file. Received: an empty CoNLL file")
    return [
        layout.example(path, words, group=f"{path}#{number}" if document else None)
        for number, words in sentences
    ]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Columns of the words and tags of a CoNLL file.

    Attributes:
        conllu: Whether the file is CoNLL-U.
        word, tag: Columns; `tag` is `None` if tags are not read.
        width_by_sentence: Whether the number of columns may differ between sentences.
        first: The first line that certainly holds a word.
    """

    conllu: bool
    word: int
    tag: int | None
    width_by_sentence: bool
    first: str

    def is_comment(self, line, in_sentence):
        """Whether a line is a comment."""
        if not line.startswith("#"):
            return False
        return self.conllu or (not in_sentence and _is_comment(line, self.first))

    def columns_of(self, where, line):
        """Returns the columns of a line; raises unless it has its word and tag.

        Returns `None` for lines of CoNLL-U's multi-word tokens and empty nodes.
        """
        columns = _columns(line)
        if self.conllu and not (len(columns) == CONLLU_COLUMNS and CONLLU_ID.fullmatch(columns[0])):
            raise ValueError(
                f"{where}: A line of a CoNLL-U file must have {CONLLU_COLUMNS} columns separated "
                f"by tabs, the first a number. Received: {line!r:.80}"
            )
        if self.conllu and not columns[0].isdigit():
            return None
        read = [self.word] if self.tag is None else [self.word, self.tag]
        needed = max(len(read), *(max(column + 1, -column) for column in read))
        if len(columns) < needed or not all(columns[column] for column in read):
            what = "a word in its column" if self.tag is None else "a word and its tag"
            raise ValueError(
                f"{where}: A line of a CoNLL file must hold {what}, separated by a space or "
                f"tab; the columns read are {', '.join(map(str, read))}, counted from 0. "
                f"Received: {line!r} of {len(columns)} columns"
            )
        return columns

    def example(self, path, words, group):
        """Returns the `Example` of a sentence, a list of `(line number, columns)`."""
        numbers = [number for number, _ in words]
        return Example(
            [columns[self.word] for _, columns in words],
            None if self.tag is None else [columns[self.tag] for _, columns in words],
            group=group,
            where=f"{path}:{numbers[0]}",
            lines=numbers,
        )


def _layout(path, lines, word_column, tag_column, labelled):
    """Returns the `_Layout` of a file's lines, with the columns given to `read_conll`."""
    given = word_column is not None and (tag_column is not None or not labelled)
    conll_2012 = bool(lines) and lines[0][1].startswith("#begin document")
    first = next((line for _, line in lines if _holds_a_word(line)), "")
    conllu = re.search(r"\.conllu(\.gz)?$", str(path)) is not None or _is_conllu(_columns(first))
    if word_column is None:
        word_column = 1 if conllu else 0
    if tag_column is None:
        tag_column = 3 if conllu else -1
    tag = tag_column if labelled else None
    return _Layout(conllu, word_column, tag, given or conll_2012, first)


def _columns(line):
    """Returns the columns of a line of a CoNLL file, without spaces around them."""
    return [c.strip(" ") for c in line.split("\t")] if "\t" in line else fields(line)


def _is_conllu(columns):
    """Whether a line has CoNLL-U's columns: an id in the first, a head's id in the seventh."""
    return len(columns) == CONLLU_COLUMNS and all(
        CONLLU_ID.fullmatch(column) or column == "_" for column in (columns[0], columns[6])
    )


def _holds_a_word(line):
    """Whether a line of a CoNLL file certainly holds a word."""
    return bool(line.strip(" \t")) and not line.startswith(("#", "-DOCSTART-"))


def _is_comment(line, first):
    """Whether a line that begins with "#" before a sentence is a comment.

    A word may also begin with "#": its line then has as many columns as other lines.

    Args:
        line: The line.
        first: The first line of the file that certainly holds a word, "" if there is none.
    """
    if re.match(r"# ([\w.:-]+ = |newdoc\b|newpar\b)|#(begin|end) document\b", line):
        return True
    if re.match(r"#[^\s#]", line):
        return False  # a word such as "#tag", with any number of columns
    same = ("\t" in line, len(_columns(line))) == ("\t" in first, len(_columns(first)))
    return bool(first) and len(fields(line)) > 1 and not same
