"""Checks of truth and predictions."""

from keras_plm.files.sequences import as_list, is_missing


def single(y_true, y_pred):
    """Returns the same as `both`, for scores of one value per row."""
    sides = list(both(y_true, y_pred))
    for side, (name, values) in enumerate(zip(("y_true", "y_pred"), sides, strict=True)):
        if all(isinstance(value, list) and len(value) == 1 for value in values):  # (N, 1)
            sides[side] = [value for (value,) in values]
            continue
        wrong = next(
            (i for i, value in enumerate(values) if isinstance(value, (list, tuple))), None
        )
        if wrong is not None:
            raise ValueError(
                "Every row needs one true and one predicted value: convert probabilities to "
                "classes with `.argmax(axis=-1)`; for lists of tags use `word_accuracy`. "
                f"Received: {values[wrong]!r:.60} in row {wrong} of `{name}`"
            )
    return sides


def both(y_true, y_pred, complete=True):
    """Returns truth and predictions as two lists of equal length.

    With `complete` it raises if a value is missing.
    """
    sides = []
    for name, values in (("y_true", y_true), ("y_pred", y_pred)):
        sides.append(as_list(values, name))
        missing = [i for i, value in enumerate(sides[-1]) if is_missing(value)]
        if missing and complete:
            raise ValueError(
                "A score needs a value on both sides of every row. "
                f"Received: {sides[-1][missing[0]]!r} in row {missing[0]} of `{name}`"
            )
    y_true, y_pred = sides
    if len(y_true) != len(y_pred) or not y_true:
        raise ValueError(
            "A score needs one prediction per truth, and at least one. "
            f"Received: {len(y_true)} truths and {len(y_pred)} predictions"
        )
    return y_true, y_pred
