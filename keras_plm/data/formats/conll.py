"""Reader of tagged sentences in CoNLL and CoNLL-U files."""

import re

from keras_plm.data.task import Example
from keras_plm.tokenizers.text import fields, numbered_lines

CONLLU_COLUMNS = 10
CONLLU_ID = re.compile(r"\d+([-.]\d+)?")  # of a word, of a multi-word token, of an empty node


def read_conll(path, word_column=None, tag_column=None, labelled=True):
    """Sentences of a CoNLL file: a word a line with its columns, a blank line between sentences.

    Columns are separated by blanks or tabs. `-DOCSTART-` separates documents, which become the
    examples' groups; without any, each sentence is its own group. Comment lines before a sentence
    are left out: `# ...` with a blank after the "#", and CoNLL-2012's `#begin document`.

    A file is CoNLL-U if its name ends in .conllu, or if its first row has 10 columns with numbers
    in the first and the seventh. Its words are the syntactic words: lines of multi-word tokens
    (`1-2`) and of empty nodes (`8.1`) are left out.

    Every row has as many columns as the file's first. The number may differ between sentences, as
    where each predicate has a column, if the columns are given, and in files of CoNLL-2012, which
    begin with `#begin document`.

    Args:
        path: The file, plain or .gz.
        word_column, tag_column: Columns of the word and its tag, from 0, or from the end if
            negative. By default the first and the last; in CoNLL-U FORM and UPOS, 1 and 3.
        labelled: If False, tags are neither asked for nor read.

    Returns:
        A list of `Example` with words as `text` and tags as `label`.

    Raises:
        ValueError: Naming file and line, if a line has too few columns, or more or fewer than the
            first; or if there is no sentence.
    """
    lines = list(numbered_lines(path))
    by_sentence = word_column is not None and (tag_column is not None or not labelled)
    by_sentence |= bool(lines) and lines[0][1].startswith("#begin document")
    first = next((line for _, line in lines if _holds_a_word(line)), "")
    conllu = re.search(r"\.conllu(\.gz)?$", str(path)) is not None or _is_conllu(_columns(first))
    word_column = (1 if conllu else 0) if word_column is None else word_column
    tag_column = (3 if conllu else -1) if tag_column is None else tag_column
    asked = [word_column, tag_column] if labelled else [word_column]
    needed = max(max(column + 1, -column) for column in asked)
    if labelled:
        needed = max(needed, 2)
    sentences, document, words = [], 0, []  # of each sentence (document, [(line, word, tag)])
    width = None  # (number of columns, line they were counted in)
    for number, line in lines:
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            words = []
            document += line.startswith("-DOCSTART-")
            continue
        if line.startswith("#") and (conllu or (not words and _is_comment(line, first))):
            continue
        columns = _columns(line)
        if conllu and not (len(columns) == CONLLU_COLUMNS and CONLLU_ID.fullmatch(columns[0])):
            raise ValueError(
                f"{path}:{number}: A line of a CoNLL-U file has {CONLLU_COLUMNS} columns separated "
                f"by tabs, the first a number. Received: {line!r:.80}"
            )
        if conllu and not columns[0].isdigit():
            continue
        if len(columns) < needed or not all(columns[column] for column in asked):
            what = "a word in its column" if not labelled else "a word and its tag"
            raise ValueError(
                f"{path}:{number}: A line of a CoNLL file holds {what}, separated by a blank or "
                f"tab; read are the columns {', '.join(map(str, asked))}, counted from 0. "
                f"Received: {line!r} of {len(columns)} columns"
            )
        if width is None or (by_sentence and not words):
            width = len(columns), number
        if len(columns) != width[0]:
            raise ValueError(
                f"{path}:{number}: Every line of a CoNLL file has as many columns as the first, "
                f"{width[0]} in line {width[1]}. Received: {line!r:.80} of {len(columns)} columns"
            )
        if not words:
            sentences.append((document, words))
        words.append((number, columns[word_column], columns[tag_column] if labelled else None))
    if not sentences:
        raise ValueError(f"{path}: No sentence in this file. Received: an empty CoNLL file")
    examples = []
    for document_of, words in sentences:
        numbers_of, texts, tags = map(list, zip(*words, strict=True))
        group = f"{path}#{document_of}" if document else None
        examples.append(
            Example(
                texts,
                tags if labelled else None,
                group=group,
                where=f"{path}:{numbers_of[0]}",
                lines=numbers_of,
            )
        )
    return examples


def _columns(line):
    """The columns of a line of a CoNLL file. Blanks around a column are no part of it."""
    return [c.strip(" ") for c in line.split("\t")] if "\t" in line else fields(line)


def _is_conllu(columns):
    """Whether a line of these columns has an id and, in its place, the id of a head."""
    return len(columns) == CONLLU_COLUMNS and all(
        CONLLU_ID.fullmatch(column) or column == "_" for column in (columns[0], columns[6])
    )


def _holds_a_word(line):
    """Whether a line of a CoNLL file holds a word for sure."""
    return bool(line.strip(" \t")) and not line.startswith(("#", "-DOCSTART-"))


def _is_comment(line, first):
    """Whether a line that begins with "#" and stands before a sentence holds no word.

    A word may begin with "#" too: its line then has the columns of the other lines.

    Args:
        line: The line.
        first: The first line of the file that holds a word for sure, "" if there is none.
    """
    if re.match(r"# ([\w.:-]+ = |newdoc\b|newpar\b)|#(begin|end) document\b", line):
        return True
    if re.match(r"#[^\s#]", line):
        return False  # a word as "#tag", whatever the number of columns
    same = ("\t" in line, len(_columns(line))) == ("\t" in first, len(_columns(first)))
    return bool(first) and len(fields(line)) > 1 and not same
