"""Reader of examples in CSV, TSV and JSONL tables."""

import csv
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_plm.data.task import Example
from keras_plm.files.json_files import parse_json
from keras_plm.files.sequences import as_names, is_missing
from keras_plm.tokenizers.text import numbered_lines

NAN_NAMES = ("nan", "<na>")  # in lower case: how pandas writes a missing value as text
LONGEST_FIELD = 2**31 - 1  # characters; the limit of the module csv is 131,072


def table_rows(path, separator=None, quoted=None, header=None, broken=False):
    """Rows of a CSV, TSV or JSONL file, one after another.

    Args:
        path: The file, plain or .gz; its ending tells the format unless `separator` does.
        separator: `","` or a tab, to override the ending.
        quoted: Whether fields may be quoted. By default in CSV; in a file with tabs only if all of
            its quotes are those of quoted fields, as pandas writes them.
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
    if quoted is None:
        quoted = separator != "\t" or (not broken and _quotes_fields(path, separator))
    yield from _separated_rows(path, separator, quoted, header, broken)


def read_table(
    path: str | os.PathLike,
    text: str,
    label: str | None = None,
    pair: str | None = None,
    group: str | None = None,
    label_names: Sequence[str] | None = None,
    clean: bool = True,
    **options,
) -> list[Example]:
    """Reads examples from a CSV, TSV or JSONL file with named columns.

    It removes blanks around labels, tags and groups: `"yes "` is `"yes"`. Texts stay unchanged and
    must not be empty.

    Args:
        path: The file, plain or `.gz`. Its suffix is the format, unless `separator` is given.
        text, label, pair, group: Names of columns, or of keys in JSONL. An example with an empty
            group is a group of its own.
        label_names: Names of labels, or of tags, for a file with numbers from 0.
        clean: If False, keep blanks around labels, and accept empty texts and labels named NaN, as
            in some published files.
        **options: Arguments `separator`, `quoted`, `header` and `broken` of `table_rows`.

    Returns:
        A list of `Example`; a JSONL text may be a list of words, its label a list of tags.

    Raises:
        ValueError: With file and line, if a column is missing, a text or a label is empty or blank,
            a label or group is NaN, tags are numbers without `label_names`, or a line is
            malformed. If there is no example.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print("review,grade", "a fine film,good", sep="\\n", file=file, flush=True)
    ...     (example,) = read_table(file.name, text="review", label="grade")
    >>> example.text, example.label
    ('a fine film', 'good')
    """
    columns = {"text": text, "label": label, "pair": pair, "group": group}
    columns = {field: name for field, name in columns.items() if name is not None}
    examples = []
    for where, row in table_rows(path, **options):
        missing = [name for name in columns.values() if name not in row]
        if missing:
            raise ValueError(
                f"{where}: No column {missing[0]!r}. Received: columns {', '.join(row)}"
            )
        values = {part: row[name] for part, name in columns.items()}
        if clean:
            _strip(where, values, columns)
        if values.get("group") == "":
            values["group"] = None  # in a group of its own
        if label is not None:
            values["label"] = _label(where, values["label"], label, label_names)
        for part, value in values.items():
            if not _is_a(part, value):
                raise ValueError(
                    f"{where}: A {part} is a string, or a list of strings where every word has "
                    f"a tag. Received: {columns[part]}={value!r}"
                )
            if clean and part in ("text", "pair") and is_empty(value):
                raise ValueError(
                    f"{where}: A text may not be empty: leave the row out. "
                    f"Received: {columns[part]}={value!r:.60}"
                )
        examples.append(Example(**values, where=where))
    if not examples:
        raise ValueError(f"{path}: No example in this file. Received: an empty table")
    return examples


def _strip(where, values, columns):
    """Removes blanks around label and group; raises if one is named as a missing value."""
    for part, fix in (
        ("label", "leave the row out, or rename a class that has this name"),
        ("group", "leave the field empty, or rename a group that has this name"),
    ):
        if part not in values:
            continue
        values[part] = _stripped(values[part])
        if _holds(values[part], _is_nan):
            raise ValueError(
                f"{where}: A {part} may not be NaN, which is a missing value: {fix}. "
                f"Received: {columns[part]}={values[part]!r:.60}"
            )


def _label(where, value, column, names):
    """The label of a row, or its tags, with their names; raises if one is missing."""
    if _holds(value, lambda one: one in ("", None)):
        raise ValueError(
            f"{where}: Every example needs a label, and every word a tag. "
            f"Received: {column}={value!r:.60}"
        )
    if names is not None:
        return _named(value, names, where)
    if isinstance(value, list) and any(map(_is_number, value)):
        raise ValueError(
            f"{where}: Tags that are numbers need their names, in the order of the "
            f"numbers: give `label_names`. Received: {column}={value!r:.60}"
        )
    return value


def is_empty(text):
    """Whether a text, or a list of words, holds nothing but blanks."""
    return text is None or not ("".join(text) if isinstance(text, list) else text).strip()


def _stripped(value):
    """A label or group, or a list of tags, without outer blanks."""
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def _holds(value, test):
    """Whether a label, or one of a list of tags, passes a test."""
    return any(test(item) for item in (value if isinstance(value, list) else [value]))


def _is_nan(value):
    if isinstance(value, float):
        return is_missing(value)
    return isinstance(value, str) and value.lower() in NAN_NAMES


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _named(label, names, where):
    """The name of a label, or of each tag of a list."""
    if isinstance(label, list):
        return [_named(tag, names, where) for tag in label]
    number = int(label) if isinstance(label, str) and label.isdecimal() else label
    if not _is_number(number) or not 0 <= number < len(names):
        raise ValueError(
            f"{where}: A label is the number of its name, from 0 to {len(names) - 1}. "
            f"Received: {label!r}"
        )
    return names[number]


def _is_a(field, value):
    """True where a table's value is what a field of `Example` may be."""
    if isinstance(value, list):
        return field in ("text", "label") and all(isinstance(item, str) for item in value)
    return (
        isinstance(value, str)
        or (value is None and field == "group")
        or (field in ("label", "group") and isinstance(value, int | float) and _is_finite(value))
    )


def _is_finite(value):
    return abs(value) <= sys.float_info.max  # also of whole numbers that no float holds


def _json_rows(path):
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        yield where, parse_json(line, where, dict, nan=True)  # NaN is how pandas says missing


def _separated_rows(path, separator, quoted, header, broken):
    header = None if header is None else as_names(header, "header")
    read = [0]  # numbers of lines

    def lines():
        for number, line in numbered_lines(path):
            read.append(number)
            yield line + "\n"

    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines(), delimiter=separator, quoting=quoting, strict=True)
    while True:
        first = read[-1] + 1
        try:
            row = _next_row(reader)
        except csv.Error as error:
            raise ValueError(
                f"{path}:{first}: This line is not well quoted. Received: {error}"
            ) from error
        if header is None:
            if not row:
                raise ValueError(
                    f"{path}: The first line must name the columns. Received: nothing there"
                )
            header = row
            twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
            if twice is not None:
                raise ValueError(
                    f"{path}:{first}: Every column needs a name of its own. "
                    f"Received: {twice!r} twice"
                )
            continue
        if row is None:
            return
        if not row:
            continue
        while broken and len(row) < len(header) and (more := _next_row(reader)) is not None:
            if more:
                row = [*row[:-1], f"{row[-1]} {more[0]}", *more[1:]]
        if len(row) != len(header):
            raise ValueError(
                f"{path}:{first}: Every line needs as many fields as the header, "
                f"{len(header)}. Received: {len(row)} fields"
            )
        yield f"{path}:{first}", dict(zip(header, row, strict=True))


def _next_row(reader):
    """The next row of a reader of the module csv, whose limit of a field is for all readers."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _quotes_fields(path, separator):
    """Whether a file with tabs has quoted fields, as pandas and the module csv write them.

    All quotes must be theirs: around a field that holds a tab, a quote or the end of a line, or
    around every field of the header; those inside are doubled.
    """
    field = rf'"[^"]*(?:""[^"]*)*"|[^"{separator}\n]*'
    row = re.compile(rf"(?:{field})(?:{separator}(?:{field}))*\n")
    quoted, lines, quotes, header_quoted = False, [], 0, None
    for _, line in numbered_lines(path):
        lines.append(line + "\n")
        quotes += line.count('"')
        if header_quoted is None:
            header_quoted = line.startswith('"') and line.endswith('"')
        if quotes % 2:  # a quoted field holds the end of a line
            continue
        if quotes:
            text = "".join(lines)
            if not row.fullmatch(text):
                return False
            inside = [f[1:-1] for f in re.findall(field, text) if f.startswith('"')]
            needed = [not t or any(c in t for c in (separator, "\n", '"')) for t in inside]
            if not (header_quoted or all(needed)):
                return False
            quoted = True
        lines, quotes = [], 0
    return quoted and not lines
