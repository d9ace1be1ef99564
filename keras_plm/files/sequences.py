"""Conversion of lists, arrays and table columns that users pass."""

import itertools
from typing import Any

import keras
import numpy as np

# Type hint of a tensor of Keras or of its backend, or of a NumPy array.
Tensor = keras.KerasTensor | Any
MISSING_TYPES = ("NAType", "NaTType")  # of pandas; this library does not import it


def is_missing(value):
    """Whether a value is missing: `None`, NaN or pandas' `NA`."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in MISSING_TYPES


def plain(value):
    """Converts a NumPy scalar or an array without axes to a Python scalar; others stay."""
    if isinstance(value, np.generic) or (hasattr(value, "item") and np.ndim(value) == 0):
        return value.item()
    if hasattr(value, "__array__") and not hasattr(value, "item") and np.ndim(value) == 0:
        return np.asarray(value).item()  # a tensor of TensorFlow
    return value


def as_list(values, name, of="values"):
    """Converts a sequence to a list of Python values, in their order.

    A column of a table is read by position, not by its index.

    Args:
        values: A list, tuple, array, tensor, generator, or a column of pandas, polars, pyarrow or
            `datasets`.
        name: Name of the argument, for errors.
        of: Name of the items, for errors.

    Raises:
        ValueError: If it is a single string, has no order, or is a table of several columns.

    >>> import numpy as np
    >>> as_list(np.array([True, False]), "labels")
    [True, False]
    """
    if type(values) is list and set(map(type, values)) <= {str}:
        return list(values)
    found = values
    for convert in ("tolist", "to_pylist"):  # of arrays and columns
        if hasattr(found, convert):
            found = getattr(found, convert)()
    if hasattr(found, "numpy") and hasattr(found, "__array__"):  # tensors of TensorFlow
        found = found.numpy().tolist()
    single = isinstance(found, (str, bytes, dict, set, frozenset))
    single = single or not (hasattr(found, "__iter__") or hasattr(found, "__getitem__"))
    if single or hasattr(values, "columns"):
        raise ValueError(
            f"Give a list of {of} as `{name}`, or one column of a table; put a single one in "
            f"brackets. Received: {name}={values!r:.60} of type {type(values).__name__}"
        )
    return [item if type(item) is str else plain(item) for item in found]


def as_names(values, name):
    """Converts a sequence to a list of different names, such as labels or columns.

    Raises:
        ValueError: As `as_list`, and if a name occurs twice or is missing.

    >>> as_names(("b", "a"), "labels")
    ['b', 'a']
    """
    names, seen = as_list(values, name, "names"), set()
    for i, item in enumerate(names):
        if is_missing(item):
            raise ValueError(f"Every name in `{name}` must be given. Received: {item!r} at {i}")
        if item in seen:
            raise ValueError(
                f"Every name in `{name}` must be unique. "
                f"Received: {item!r} twice in {str(names):.200}"
            )
        seen.add(item)
    return names


def as_text(value, place="", words=True):
    """Converts a text to a string or a list of words.

    Args:
        value: The text, a string or any sequence of words.
        place: Place of the text, for errors, such as `"row 3 of `texts`"`.
        words: Whether it may be a list of words.

    Raises:
        ValueError: If it is missing or something else.
    """
    if isinstance(value, str):
        return str(value)
    where = f" in {place}" if place else ""
    if words and not isinstance(value, (bytes, dict, set)) and hasattr(value, "__iter__"):
        found = as_list(value, place or "text", "words")
        for i, word in enumerate(found):
            if not isinstance(word, str):
                raise ValueError(
                    "A word must be a string, and a text a string or a list of words. "
                    f"Received: {word!r:.60} of {type(word).__name__} as word {i}{where}"
                )
        return found
    rule = "A text must be a string or a list of words" if words else "A text must be a string"
    if is_missing(value):
        rule += ": leave rows without a text out"
    raise ValueError(f"{rule}. Received: {value!r:.60} of {type(value).__name__}{where}")


def _is_plain_text(value):
    """Whether a value is a string or a list of strings, which need no conversion."""
    return type(value) is str or (type(value) is list and all(type(word) is str for word in value))


def as_texts(values, name="texts", words=True, tuples=True):
    """Converts a sequence to a list of texts; items with a `text`, such as `Example`, stay.

    Args:
        values: A sequence of texts.
        name: Name of the argument, for errors.
        words: Whether a text may be a list of words.
        tuples: Whether words may be a tuple or a row of a 2-D array. If False, these raise: they
            may be meant as a pair of texts.

    Raises:
        ValueError: As `as_list`, and if a text is missing or something else, with its row.

    >>> import numpy as np
    >>> as_texts(np.array(["a b", "c"]))
    ['a b', 'c']
    """
    rows = as_list(values, name, "texts")
    table = len(getattr(values, "shape", ())) > 1
    for i, row in enumerate(rows):
        if not tuples and (table or (isinstance(row, tuple) and not hasattr(row, "text"))):
            raise ValueError(
                "A tuple or a row of a 2-D array may be words or a pair of texts: give second "
                "texts as `pairs`, or in `Example(text, label, pair)`; give words as a list, with "
                f"`.tolist()`. Received: {row!r:.60} in row {i} of `{name}`"
            )
        if not _is_plain_text(getattr(row, "text", row)):
            place = f"row {i} of `{name}`"
            if hasattr(row, "text") and not hasattr(row, "__iter__"):
                where = getattr(row, "where", "")
                as_text(row.text, f"{place} ({where})" if where else place, words)
            else:
                rows[i] = as_text(row, place, words)
    return rows


def as_rows(values, name):
    """Converts N rows of numbers to an array, or to a list of N arrays of unequal lengths.

    Raises:
        ValueError: As `as_list`, and if a number is missing, with its row.
    """
    if hasattr(values, "to_numpy") and not hasattr(values, "columns"):
        values = values.to_numpy()
    if hasattr(values, "detach"):  # torch's tensors, also those of a GPU
        values = values.detach().cpu()
    if isinstance(values, (list, tuple)):
        rows = list(values)  # keep the types: they decide how targets are computed
    else:
        rows = np.asarray(values) if hasattr(values, "__array__") else as_list(values, name, "rows")
    if isinstance(rows, np.ndarray) and rows.ndim and rows.dtype != object:
        missing = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(len(rows), bool)
        missing = missing.any(axis=tuple(range(1, missing.ndim)))
    else:
        rows = list(rows)
        missing = np.array([is_missing(row) for row in rows], bool)
    if missing.any():
        raise ValueError(
            f"Every row of `{name}` needs its numbers. "
            f"Received: NaN or nothing in row {int(missing.argmax())}"
        )
    return rows


def are_texts(x):
    """Returns whether the inputs of a model are texts, not arrays, and the inputs unread."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "OUT", x
    if isinstance(x, (list, tuple)) and len(x):
        array = isinstance(x[0], (np.ndarray, np.generic)) and x[0].dtype.kind in "biuf"
        numbers = array or keras.ops.is_tensor(x[0]) or hasattr(x[0], "detach")
        return not (numbers or isinstance(x[0], dict)), x
    if isinstance(x, (str, list, tuple)):
        return True, x
    if isinstance(x, (dict, keras.utils.PyDataset)) or keras.ops.is_tensor(x):
        return False, x
    if hasattr(x, "detach"):  # torch's tensors, also under another backend
        return False, x
    if any(hasattr(x, name) for name in ("tolist", "to_pylist", "columns")):
        return True, x
    if hasattr(x, "__next__"):  # a generator cannot be read twice
        start = list(itertools.islice(x, 1))
        x = (item for item in itertools.chain(start, x))
    elif hasattr(x, "__getitem__"):
        start = list(itertools.islice(iter(x), 1))
    else:  # a data set may be expensive to read
        return False, x
    first = start[0] if start else None
    words = isinstance(first, (list, tuple)) and all(isinstance(word, str) for word in first)
    return isinstance(first, str) or hasattr(first, "text") or words, x
