"""Outcomes of reading a damaged input."""

import re
import traceback

from tests import ROOT

OUTCOMES = {
    "ok": "read right",
    "clear": "refused by an error that names the file and quotes no internals of Python",
    "unnamed": "refused by an error that states a rule and not the file",
    "raw": "an internal error, or one that quotes such an error",
    "wrong": "wrong content taken for right",
    "litter": "files of the input's folder added, removed or changed",
    "memory": "more than 1 GB of memory",
    "hang": "more than 10 seconds of computing, or waiting without an end",
    "crash": "the process ended",
    "exec": "code in the input was run",
    "escape": "files written outside the input's folder",
}
ALLOWED = ("ok", "clear")

# Messages of Python, NumPy and Keras about values that keras_plm did not check.
INTERNALS = re.compile(
    r"object is not (subscriptable|iterable|callable)|object does not support|has no attribute"
    r"|has no len|unexpected keyword|positional argument|multiple values for|index out of range"
    r"|out of bounds for"
    r"|indices must be|invalid literal for|could not (convert|broadcast)|NoneType|unhashable type"
    r"|must be str, |cannot be interpreted as|unsupported operand|not supported between"
    r"|values to unpack|recursion depth|can only concatenate|os\.PathLike|embedded null"
    r"|Unable to revive|can't be (cast|converted)|ordinal not in|too large to convert"
)


class Hang(BaseException):
    """Raised in a case that takes too long. Readers do not catch it as an error of their input."""


def of_error(error, names):
    """Returns the outcome and the signature of an error.

    Args:
        error: Exception that a reader raised.
        names: The path of the input's folder and the names of its files.
    """
    text, kind = str(error), type(error)
    signature = f"{kind.__name__} in {place(error)}: {pattern(text, names[0])}"
    if isinstance(error, Hang):
        return "hang", f"in {place(error)}"
    if isinstance(error, MemoryError):
        return "memory", signature
    own = kind in (ValueError, TypeError) or kind.__module__.startswith(("keras_plm", "glue_tasks"))
    if not own and not isinstance(error, OSError):
        return "raw", signature
    if INTERNALS.search(text):
        return "raw", signature
    if any(name in text for name in names):
        return "clear", signature
    return ("unnamed" if own and "Received:" in text else "raw"), signature


def place(error):
    """Returns the file and function of the product that raised an error."""
    found = "no function of ours"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if any(
            path.startswith(f"{ROOT}/{top}/") for top in ("keras_plm", "glue_tasks", "benchmarks")
        ):
            found = f"{path.removeprefix(f'{ROOT}/')}:{frame.f_code.co_name}"
    return found


def pattern(text, folder=""):
    """Removes the parts of a message that differ between cases with the same cause."""
    text = text.replace(folder, "") if folder else text
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text)
    return re.sub(r"\d+", "#", text)[:70]
