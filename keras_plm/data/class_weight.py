"""Weights of classes in the loss of training."""

import numpy as np

LEAST = 1e-30  # it changes no sum of losses in float32


def class_weights(class_weight, labels=None):
    """Converts a `class_weight` dict, by name or id, to an array indexed by class id.

    Raises:
        ValueError: If a name or id is unknown, a class is named twice, or a weight is negative or
            not finite.
    """
    if not isinstance(class_weight, dict):
        raise ValueError(
            f"`class_weight` must be a dict from classes to weights. Received: {class_weight!r:.60}"
        )
    names = {name: i for i, name in enumerate(() if labels is None else labels)}
    ids = {}
    for key, weight in class_weight.items():
        i = names.get(key, key)
        known = isinstance(i, (int, np.integer)) and not isinstance(i, bool) and i >= 0
        if not known or (names and i >= len(names)) or i in ids:
            raise ValueError(
                "The keys of `class_weight` must be names or ids of classes, each class once. "
                f"Received: {key!r}, with labels {list(names)}"
            )
        if not 0 <= weight < np.inf:
            raise ValueError(
                "A class weight must be 0 or more, and finite. "
                f"Received: class_weight={{{key!r}: {weight}}}"
            )
        # Not 0, which marks padding in metrics such as `SpanF1`.
        ids[int(i)] = max(float(weight), LEAST)
    array = np.ones(max(len(names), max(ids, default=0) + 1), "float32")
    for i, weight in ids.items():
        array[i] = weight
    return array


def weights_of(class_weight, y):
    """Returns the weight of each class id in `y`, from an array indexed by id; 1 for other ids.

    Raises:
        ValueError: If `y` is not an array of class ids.
    """
    if not np.issubdtype(getattr(y, "dtype", None) or object, np.integer):
        raise ValueError(
            "Class weights need targets that are one array of integer class ids. "
            f"Received: targets of {getattr(y, 'dtype', type(y).__name__)}"
        )
    known = (y >= 0) & (y < len(class_weight))
    return np.where(known, class_weight[np.where(known, y, 0)], 1.0).astype("float32")
