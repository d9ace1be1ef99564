"""Checks of single arguments: a type, a range of numbers, one of several names."""

import math
import numbers
import operator

# The comparison of each bound, and its words in an error.
_BOUNDS = {
    "least": (operator.ge, "{} or more"),
    "above": (operator.gt, "above {}"),
    "most": (operator.le, "at most {}"),
    "below": (operator.lt, "below {}"),
}


def check_type(value, name, kind, example):
    """Raises unless `value` is of a type.

    Raises:
        TypeError: If it is not, with an `example` of a right value.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a {kind.__name__}, for example {example}. "
            f"Received: {name}={value!r:.60}"
        )


def check_whole(value, name, **bounds):
    """Raises unless an argument is a whole number within bounds, see `check_number`.

    >>> check_whole(0, "epochs", least=1)
    Traceback (most recent call last):
    ValueError: `epochs` must be a whole number, 1 or more. Received: epochs=0
    """
    _check(value, name, numbers.Integral, "a whole number", bounds)


def check_number(value, name, **bounds):
    """Raises unless an argument is a finite number within bounds.

    Args:
        value: The argument.
        name: Its name, for errors.
        **bounds: `least` or `above`, and `most` or `below`.

    Raises:
        TypeError: If it is not a number, or a bool.
        ValueError: If it is out of bounds, infinite or NaN.

    >>> check_number(1.5, "dropout", least=0, below=1)
    Traceback (most recent call last):
    ValueError: `dropout` must be a number, 0 or more and below 1. Received: dropout=1.5
    """
    _check(value, name, numbers.Real, "a number", bounds)


def _check(value, name, kind, called, bounds):
    limits = " and ".join(_BOUNDS[bound][1].format(limit) for bound, limit in bounds.items())
    rule = f"`{name}` must be {called}{f', {limits}' if limits else ''}"
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{rule}. Received: {name}={value!r:.60}")
    within = all(_BOUNDS[bound][0](value, limit) for bound, limit in bounds.items())
    if not (within and math.isfinite(value)):
        raise ValueError(f"{rule}. Received: {name}={value!r:.60}")


def check_one_of(value, name, allowed):
    """Raises unless an argument is one of several values.

    >>> check_one_of("sum", "pool", ("mean", "max"))
    Traceback (most recent call last):
    ValueError: `pool` must be one of 'mean', 'max'. Received: pool='sum'
    """
    if value not in tuple(allowed):
        known = ", ".join(map(repr, allowed))
        raise ValueError(f"`{name}` must be one of {known}. Received: {name}={value!r:.60}")


def explains(error):
    """Whether an error has the form of this library's errors, with `Received: `."""
    return isinstance(error, (ValueError, TypeError)) and "Received: " in str(error)
