"""Reading of JSON, checked against a shape; each reader states its shape.

A shape is one of these:

- a type: `str`, `bool`, `int` (a whole number), `float` (any finite number), `dict`, `list`, or
  `object` for any value; `None` for null
- `(shape, shape)`: one of several shapes
- `[shape]`: a list of values of this shape
- `{str: shape}`: an object with any keys and values of this shape
- `{"key": shape, "other?": shape}`: an object with these keys; keys that end in `?` are optional,
  and other keys are allowed
- `OneOf(values)`: one of several values; `Whole(least, most)`, `Within(least, most)`: a whole
  number, or any number, within bounds
"""

import dataclasses
import json
import math
import re
import sys

from keras_plm.files.opening import read_text

_WORDS = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number",
    dict: "an object", list: "a list", None: "null", object: "any value",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class OneOf:
    """The shape of one of several values."""

    values: tuple

    def __str__(self):
        return f"one of {', '.join(map(json.dumps, self.values))}"

    def __call__(self, value):
        return any(type(value) is type(known) and value == known for known in self.values)


@dataclasses.dataclass(frozen=True)
class Whole:
    """The shape of a whole number within bounds."""

    least: int = 0
    most: int = 2**63 - 1

    def __str__(self):
        most = "" if self.most == 2**63 - 1 else f" and at most {self.most}"
        return f"a whole number, {self.least} or more{most}"

    def __call__(self, value):
        return type(value) is int and self.least <= value <= self.most


@dataclasses.dataclass(frozen=True)
class Within:
    """The shape of a number within bounds."""

    least: float
    most: float

    def __str__(self):
        return f"a number, {self.least:g} or more and at most {self.most:g}"

    def __call__(self, value):
        return type(value) in (int, float) and self.least <= value <= self.most


def read_json(path, shape=object, most=1 << 30, description="", nan=False):
    """Reads the value of a JSON file.

    Args:
        path: The file.
        shape: Shape of the value, see this module.
        most: Largest number of bytes of the file.
        description: Description of the file, for the error if it is missing.
        nan: Whether to allow `NaN` and `Infinity`, which standard JSON does not.

    Raises:
        ValueError: If it is not a regular file, is too large, is not JSON, or has another shape.
        OSError: If there is no permission to read it.
    """
    return parse_json(read_text(path, most, description), path, shape, nan)


def parse_json(text, where, shape=object, nan=False):
    """Parses JSON text.

    Args:
        text: The text.
        where: Its file, or file and line, at the start of errors.
        shape: Shape of the value, see this module.
        nan: Whether to allow `NaN` and `Infinity`, which standard JSON does not.

    Raises:
        ValueError: If it is not JSON, or has another shape.
    """
    options = {} if nan else {"parse_constant": _no_number, "parse_float": _finite}
    try:
        value = json.loads(text, object_pairs_hook=_object, **options)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # half of a pair is not valid text
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError(f"{where} must be JSON. Received: hundreds of nested values") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} must be JSON. Received: half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} must be JSON. Received: {error.msg} at line {error.lineno}, column "
            f"{error.colno}"
        ) from error
    except ValueError as error:
        reason = "a number of thousands of digits" if "digits" in str(error) else error
        raise ValueError(f"{where} must be JSON. Received: {reason}") from error
    check_shape(value, shape, where)
    return value


def check_shape(value, shape, where):
    """Raises a ValueError that names the first misfit, unless a JSON value has a shape."""
    misfit = _misfit(value, shape, "")
    if misfit is not None:
        place, wanted, received = misfit
        place = f"`{place}` must be" if place else "it must hold"
        raise ValueError(f"{where}: {place} {wanted}. Received: {received}")


def _misfit(value, shape, place):
    """Returns `(place, expected, received)` of the first misfit, or `None`."""
    if isinstance(shape, tuple):
        if any(_misfit(value, one, place) is None for one in shape):
            return None
        # The misfit inside the shape of the same type is more specific.
        for one in shape:
            if isinstance(one, (dict, list)) and isinstance(value, type(one)):
                return _misfit(value, one, place)
        return place, " or ".join(map(_words, shape)), shown(value)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place, _words(shape), shown(value)
        parts = ((part, shape[0], f"{place}[{i}]") for i, part in enumerate(value))
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            return place, _words(shape), shown(value)
        before = f"{place}." if place else ""
        if list(shape) == [str]:
            parts = ((part, shape[str], f"{before}{key}"[:80]) for key, part in value.items())
        else:
            missing = [k for k in shape if not k.endswith("?") and k not in value]
            if missing:
                return f"{before}{missing[0]}", _words(shape[missing[0]]), "no such key"
            known = {key.removesuffix("?"): one for key, one in shape.items()}
            parts = (
                (value[key], one, f"{before}{key}") for key, one in known.items() if key in value
            )
    else:
        return None if _is(value, shape) else (place, _words(shape), shown(value))
    return next(filter(None, (_misfit(*part) for part in parts)), None)


def _is(value, kind):
    if isinstance(kind, (OneOf, Whole, Within)):
        return kind(value)
    if kind is None or kind is object:
        return kind is object or value is None
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


def _words(shape):
    if isinstance(shape, tuple):
        return " or ".join(map(_words, shape))
    if isinstance(shape, (list, dict)):
        return _WORDS[type(shape)]
    return str(shape) if isinstance(shape, (OneOf, Whole, Within)) else _WORDS[shape]


def shown(value, most=60):
    """Formats a JSON value for an error, cut to `most` characters."""
    if isinstance(value, (list, dict)):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= most else f"{text[:most]}..."


def _object(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"an object that has the key {shown(doubled)} twice")
    return value


def _no_number(name):
    raise ValueError(f"{name}, which is not a number")


def _finite(text):
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]}, which is too large")
    return number
