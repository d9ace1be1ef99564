"""Reader of examples in CSV, TSV and JSONL tables."""

import csv
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_plm.data.task import Example
from keras_plm.files.json_files import parse_json
from keras_plm.files.opening import plain_name
from keras_plm.files.sequences import as_names, is_missing
from keras_plm.tokenizers.text import numbered_lines

NAN_NAMES = ("nan", "<na>")  # pandas' text for a missing value, in lower case
LONGEST_FIELD = 2**31 - 1  # characters; the limit of the module csv is 131,072


def table_rows(path, separator=None, quoted=None, header=None, broken=False):
    """Yields the rows of a CSV, TSV or JSONL file.

    Args:
        path: The file, plain or .gz; its suffix decides the format, unless `separator` is given.
        separator: `","` or a tab, to override the suffix.
        quoted: Whether fields may be quoted. By default True for CSV. For a file with tabs, it is
            True only if all its quotes belong to quoted fields, as pandas writes them.
        header: Names of the columns, for a CSV or TSV without a header line.
        broken: Whether an unquoted field may hold the end of a line. Lines with too few fields are
            then joined until they form a row.

    Yields:
        `("file:line", {column: value})`.

    Raises:
        ValueError: If a line is malformed, with file and line.
    """
    path = Path(path)
    ending = plain_name(path).rsplit(".", 1)[-1]
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

    It removes white space around labels, tags and groups: `"yes "` is `"yes"`. Texts stay unchanged
    and must not be empty.

    Args:
        path: The file, plain or `.gz`. Its suffix decides the format, unless `separator` is given.
        text, label, pair, group: Names of columns, or of keys in JSONL. An example with an empty
            group is a group of its own.
        label_names: Names of labels, or of tags, for a file with numbers from 0.
        clean: If False, keep white space around labels, and accept empty texts and labels named
            NaN, for some published files.
        **options: Arguments `separator`, `quoted`, `header` and `broken` of `table_rows`.

    Returns:
        A list of `Example`. In JSONL a text may be a list of words, and its label a list of tags.

    Raises:
        ValueError: If a column is missing, a text or a label is empty or blank, or a label or group
            is NaN. If a name of `label_names` is blank or occurs twice, tags are numbers without
            names, or a line is malformed. The message names file and line. If there is no example.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     print("review,grade", "a fine film,good", sep="\\n", file=file, flush=True)
    ...     (example,) = read_table(file.name, text="review", label="grade")
    >>> example.text, example.label
    ('a fine film', 'good')
    """
    if label_names is not None:
        label_names = as_names(label_names, "label_names")
        if blank := [name for name in label_names if not str(name).strip()]:
            raise ValueError(f"A name in `label_names` must not be blank. Received: {blank[0]!r}")
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
                    f"{where}: A {part} must be a string, or a list of strings if every word has "
                    f"a tag. Received: {columns[part]}={value!r}"
                )
            words = value if isinstance(value, list) else [value]
            if clean and part in ("text", "pair") and (not words or any(map(is_empty, words))):
                raise ValueError(
                    f"{where}: A text must not be empty, and no word blank: leave the row out. "
                    f"Received: {columns[part]}={value!r:.60}"
                )
        examples.append(Example(**values, where=where))
    if not examples:
        raise ValueError(f"{path}: No example in this file. Received: an empty table")
    return examples


def _strip(where, values, columns):
    """Removes white space around label and group; raises if one is NaN."""
    for part, fix in (
        ("label", "leave the row out, or rename a class of this name"),
        ("group", "leave the field empty, or rename a group of this name"),
    ):
        if part not in values:
            continue
        values[part] = _stripped(values[part])
        if _holds(values[part], _is_nan):
            raise ValueError(
                f"{where}: A {part} must not be NaN, a missing value: {fix}. "
                f"Received: {columns[part]}={values[part]!r:.60}"
            )


def _label(where, value, column, names):
    """Returns the name of a row's label, or of its tags; raises if one is missing."""
    if _holds(value, lambda one: one in ("", None)):
        raise ValueError(
            f"{where}: Every example needs a label, and every word a tag. "
            f"Received: {column}={value!r:.60}"
        )
    if names is not None:
        return _named(value, names, where)
    if isinstance(value, list) and any(map(_is_number, value)):
        raise ValueError(
            f"{where}: Tags that are numbers need names: give `label_names` in the order of the "
            f"numbers. Received: {column}={value!r:.60}"
        )
    return value


def is_empty(text):
    """Whether a text, or a list of words, is blank."""
    return text is None or not ("".join(text) if isinstance(text, list) else text).strip()


def _stripped(value):
    """Returns a label, group or list of tags without outer white space."""
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
    """Returns the name of a label, or of each tag of a list."""
    if isinstance(label, list):
        return [_named(tag, names, where) for tag in label]
    digits = isinstance(label, str) and label.isdecimal() and len(label) < 19
    number = int(label) if digits else label
    if not _is_number(number) or not 0 <= number < len(names):
        raise ValueError(
            f"{where}: A label must be the number of its name, from 0 to {len(names) - 1}. "
            f"Received: {label!r}"
        )
    return names[number]


def _is_a(field, value):
    """Whether a table's value is valid in a field of `Example`."""
    if isinstance(value, list):
        return field in ("text", "label") and all(isinstance(item, str) for item in value)
    return (
        isinstance(value, str)
        or (value is None and field == "group")
        or (field in ("label", "group") and isinstance(value, int | float) and _is_finite(value))
    )


def _is_finite(value):
    return abs(value) <= sys.float_info.max  # also for whole numbers above all floats


def _json_rows(path):
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        yield where, parse_json(line, where, dict, nan=True)  # pandas writes NaN for missing


def _separated_rows(path, separator, quoted, header, broken):
    header = None if header is None else as_names(header, "header")
    read = [0]  # line numbers

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
                f"{path}:{first}: The quotes of a line must be valid CSV. Received: {error}"
            ) from error
        if header is None:
            if not row:
                raise ValueError(
                    f"{path}: The first line must name the columns. Received: no names"
                )
            header = row
            twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
            if twice is not None:
                raise ValueError(
                    f"{path}:{first}: Every column needs its own name. Received: {twice!r} twice"
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
    """Returns the next row of a csv reader; the module's field limit is raised only for it."""
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _quotes_fields(path, separator):
    """Whether a file with tabs has quoted fields, as pandas and the module csv write them.

    All quotes must belong to quoted fields; quotes inside are doubled. A quoted field holds a tab,
    a quote or the end of a line, unless every field of the header is quoted.
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
