"""Files of CoNLL-2012: semantic roles and coreference of OntoNotes.

Reference: Pradhan et al. 2012, "CoNLL-2012 Shared Task", section 4.3, table 2: the columns.
"""

import dataclasses
import itertools
import os
import re

from keras_plm.data.task import Example
from keras_plm.tokenizers.text import fields, numbered_lines

NUMBER, WORD, ARGUMENTS = 2, 3, 11  # columns; the last one is coreference
LEAST = 12  # columns without a predicate
ESCAPED = {"/.": ".", "/?": "?"}  # in OntoNotes
ROLE = re.compile(r"(\((?P<label>[^()*]+))?\*(?P<end>\))?")
MENTION = re.compile(r"\((\d+)\)|\((\d+)|(\d+)\)")


@dataclasses.dataclass
class Conll2012Document:
    """A part of a document.

    Args:
        name: Name and part, as in `#begin document (name); part 000`.
        places: `file:line` of the first word of each sentence.
        sentences: Lists of words.
        predicates: `(sentence, word, tags)` of each predicate: indices, and its tags in BIO.
        clusters: Lists of mentions `(start, end)`, indices of words of the document, in the order
            of their ends.

    >>> sentences = [["Ada", "sings"]]
    >>> document = Conll2012Document("d", ["d.conll:2"], sentences, [], [[(0, 1)]])
    >>> len(document.sentences), document.clusters
    (1, [[(0, 1)]])
    """

    name: str
    places: list[str]
    sentences: list[list[str]]
    predicates: list[tuple[int, int, list[str]]]
    clusters: list[list[tuple[int, int]]]


def read_conll_2012(path: str | os.PathLike) -> list[Conll2012Document]:
    """Reads the documents of a file of CoNLL-2012.

    Lines have 12 columns or more, counted from 0: the number of the word in its sentence in column
    2, the word in column 3, the arguments of each predicate of the sentence from column 11 on, and
    the mentions in the last one. The words `/.` and `/?` of OntoNotes become `.` and `?`.

    Args:
        path: The file, plain or `.gz`.

    Returns:
        A list of `Conll2012Document`.

    Raises:
        ValueError: If a line is outside a document or has too few columns or another number, a
            bracket of an argument or a mention has no partner, an argument is inside another, a
            column of arguments does not mark one predicate by `(V*)`, or a part of a document
            occurs twice, with file and line. If there is no document.

    >>> import tempfile
    >>> rows = [("Ada", "-", "(ARG0*)", "(0)"), ("sings", "sing", "(V*)", "-")]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".conll") as file:
    ...     print("#begin document (d); part 000", file=file)
    ...     for i, (word, lemma, role, mention) in enumerate(rows):
    ...         columns = "d", 0, i, word, "X", "*", lemma, "-", "-", "-", "*", role, mention
    ...         print(*columns, file=file)
    ...     print("\\n#end document", file=file, flush=True)
    ...     (document,) = read_conll_2012(file.name)
    >>> document.sentences, document.predicates, document.clusters
    ([['Ada', 'sings']], [(0, 1, ['B-ARG0', 'B-V'])], [[(0, 1)]])
    """
    documents, rows, name, begun, places = [], [], None, "", {}
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if line.startswith("#begin document"):
            if name is not None:
                raise ValueError(
                    f"{where}: A document must end before the next. Received: {line!r}"
                )
            name, rows, begun = line.removeprefix("#begin document").strip(), [[]], where
            if places.setdefault(name, where) != where:
                raise ValueError(
                    f"{where}: A part of a document must occur once. Received: {name!r:.60}, also "
                    f"at {places[name]}"
                )
        elif line.startswith("#end document"):
            if name is None:
                raise ValueError(
                    f"{where}: A document must begin before its end. Received: {line!r}"
                )
            documents.append(_document(name, [row for row in rows if row], where))
            name = None
        elif not line.strip(" \t"):
            rows.append([])
        elif name is None:
            raise ValueError(
                f"{where}: A line must be in a document, after '#begin document'. "
                f"Received: {line!r:.60}"
            )
        else:
            rows[-1].append((where, _columns(where, line, rows[-1])))
    if name is not None:
        raise ValueError(f"{begun}: A document must end with '#end document'. Received: none")
    if not documents:
        raise ValueError(f"{path}: No document in this file. Received: a file without one")
    return documents


def _columns(where, line, sentence):
    columns = fields(line)
    expected = len(sentence[0][1]) if sentence else None
    if len(columns) < LEAST or expected not in (None, len(columns)):
        raise ValueError(
            f"{where}: A line of CoNLL-2012 must have {LEAST} columns or more, as many as the "
            f"first of its sentence. Received: {len(columns)} columns, {line!r:.60}"
        )
    if columns[NUMBER] != str(len(sentence)):
        raise ValueError(
            f"{where}: Column {NUMBER} must number the words of a sentence from 0, and an empty "
            f"line must follow each sentence. Received: {columns[NUMBER]!r:.20} instead of "
            f"{len(sentence)}, {line!r:.60}"
        )
    return columns


def _document(name, sentences, end):
    if not sentences:
        raise ValueError(f"{end}: A document must have words. Received: {name!r} without")
    predicates, lines = [], []
    for number, rows in enumerate(sentences):
        for column in range(ARGUMENTS, len(rows[0][1]) - 1):
            cells = [(where, columns[column]) for where, columns in rows]
            if all(cell == "-" for _, cell in cells):
                continue  # files without roles
            tags = _tags(cells)
            if tags.count("B-V") != 1:
                raise ValueError(
                    f"{rows[0][0]}: A column of arguments must mark one predicate, by (V*). "
                    f"Received: {[tag for tag in tags if tag != 'O'][:6]}"
                )
            predicates.append((number, tags.index("B-V"), tags))
        lines += [(where, columns[-1]) for where, columns in rows]
    return Conll2012Document(
        name,
        [rows[0][0] for rows in sentences],
        [[ESCAPED.get(c[WORD], c[WORD]) for _, c in rows] for rows in sentences],
        predicates,
        _clusters(lines),
    )


def _tags(cells):
    """Returns the tags in BIO of one column of arguments, `(where, cell)` of each word."""
    tags, label, begun = [], None, ""  # label and place of the open argument
    for where, cell in cells:
        found = ROLE.fullmatch(cell)
        begins, ends = (found["label"], found["end"]) if found else (None, None)
        if found is None:
            raise ValueError(f"{where}: An argument must be (LABEL*, * or *). Received: {cell!r}")
        if begins and label:
            raise ValueError(
                f"{where}: An argument must end, by *), before the next begins. "
                f"Received: {cell!r} in ({label}* of {begun}"
            )
        if ends and not (begins or label):
            raise ValueError(
                f"{where}: An argument must begin, by (LABEL*, before it ends. Received: {cell!r}"
            )
        label, begun = begins or label, where if begins else begun
        tags.append(f"B-{label}" if begins else f"I-{label}" if label else "O")
        label = None if ends else label
    if label:
        raise ValueError(
            f"{cells[-1][0]}: An argument must end in its sentence. Received: ({label}* without *)"
        )
    return tags


def _clusters(lines):
    """Returns the clusters of a document from the last column, `(where, cell)` of each word."""
    clusters, opened = {}, {}
    for place, (where, cell) in enumerate(lines):
        if cell in ("-", "_"):
            continue
        for part in cell.split("|"):
            found = MENTION.fullmatch(part)
            if found is None:
                raise ValueError(
                    f"{where}: A mention must be (N, N) or (N) with the number of its cluster. "
                    f"Received: {cell!r}"
                )
            whole, begin, end = found.groups()
            if begin is not None:
                opened.setdefault(begin, []).append((place, where))
                continue
            if end is not None and not opened.get(end):
                raise ValueError(
                    f"{where}: A mention must begin before its end. Received: {cell!r}"
                )
            start = place if whole is not None else opened[end].pop()[0]
            clusters.setdefault(whole or end, []).append((start, place + 1))
    for number, places in opened.items():
        if places:
            raise ValueError(
                f"{places[0][1]}: A mention must end in its document. "
                f"Received: ({number}, without {number})"
            )
    return [clusters[number] for number in sorted(clusters, key=int)]


def conll_2012_roles(path: str | os.PathLike) -> list[Example]:
    """Reads the semantic roles of a file of CoNLL-2012, an example per predicate.

    Args:
        path: As in `read_conll_2012`.

    Raises:
        ValueError: As `read_conll_2012`; if there is no predicate.
    """
    examples = []
    for document in read_conll_2012(path):
        for sentence, word, tags in document.predicates:
            words, where = document.sentences[sentence], document.places[sentence]
            group = f"{document.name}#{sentence}"
            examples.append(Example(words, tags, group=group, where=where, predicate=word))
    if not examples:
        raise ValueError(f"{path}: No predicate in this file. Received: documents without one")
    return examples


def conll_2012_documents(path: str | os.PathLike) -> list[Example]:
    """Reads the clusters of mentions of a file of CoNLL-2012, an example per document.

    Args:
        path: As in `read_conll_2012`.

    Raises:
        ValueError: As `read_conll_2012`; if a mention is in two clusters or in two sentences.
    """
    examples = []
    for document in read_conll_2012(path):
        _check_mentions(document)
        examples.append(
            Example(
                [word for sentence in document.sentences for word in sentence],
                document.clusters,
                group=document.name,
                where=document.places[0],
                id=document.name,
                sentences=[len(sentence) for sentence in document.sentences],
            )
        )
    return examples


def _check_mentions(document):
    """Raises for a mention in two clusters or two sentences, with the line of its sentence."""
    text, sentence_of, seen = [], [], set()
    for number, words in enumerate(document.sentences):
        text += words
        sentence_of += [number] * len(words)
    for start, end in itertools.chain.from_iterable(document.clusters):
        last = sentence_of[end - 1]
        words = text[start:end]
        if sentence_of[start] != last:
            raise ValueError(
                f"{document.places[last]}: A mention must be in one sentence. "
                f"Received: {' '.join(words)!r:.60}"
            )
        if (start, end) in seen:
            raise ValueError(
                f"{document.places[last]}: A mention must be in one cluster, once. "
                f"Received: {' '.join(words)!r:.60} twice"
            )
        seen.add((start, end))
