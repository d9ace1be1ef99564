"""Masks of attention: padding, causal and given masks as one.

Shapes: B batch, T target steps, S source steps.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor


def combine_masks(
    padding_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    causal_steps: tuple[int | Tensor, int | Tensor, int | Tensor] | None = None,
) -> Tensor | None:
    """Combines the masks of a call into one, `True` where a query may attend to a key.

    Args:
        padding_mask: (B, S), True at real source positions, or `None`.
        attention_mask: (B, T, S) or (T, S), True where query t may attend to key s, or `None`.
        causal_steps: `(first, T, S)` to let query t attend to keys 0 ... first + t, or `None`.

    Returns:
        A boolean tensor that broadcasts to (B, T, S), or `None` if nothing is masked.

    >>> import numpy as np
    >>> from keras import ops
    >>> mask = combine_masks(np.array([[True, True, False]]), causal_steps=(0, 2, 3))
    >>> ops.convert_to_numpy(mask).astype(int).tolist()
    [[[1, 0, 0], [1, 1, 0]]]
    """
    mask = None
    if padding_mask is not None:
        mask = ops.cast(padding_mask, "bool")[:, None, :]  # (B, 1, S)
    if attention_mask is not None:
        attention_mask = ops.cast(attention_mask, "bool")
        if len(attention_mask.shape) == 2:
            attention_mask = attention_mask[None]  # (1, T, S)
        mask = attention_mask if mask is None else ops.logical_and(mask, attention_mask)
    if causal_steps is not None:
        first, target_steps, source_steps = causal_steps
        rows = ops.arange(target_steps)[:, None] + first
        causal = ops.arange(source_steps)[None, :] <= rows  # (T, S)
        mask = causal[None] if mask is None else ops.logical_and(mask, causal[None])
    return mask


def given_mask(padding_mask, *attached):
    """Returns `padding_mask`, or the mask that Keras attached to the inputs, or `None`.

    Keras passes an attached mask as `mask` if the inputs are the only tensor of a call, otherwise
    under the name of the argument, such as `inputs_mask`.
    """
    return next((mask for mask in (padding_mask, *attached) if mask is not None), None)


def visible(query, key, padding_mask=None, attention_mask=None, causal=False, first=0):
    """Checks the masks of a call and combines them, `True` where a query may attend to a key.

    Args:
        query: (B, T, ...).
        key: (B, S, ...).
        padding_mask, attention_mask: As in `combine_masks`.
        causal: If True, query t attends only to keys 0 ... first + t.
        first: Position of the first query among the keys.

    Returns:
        A boolean tensor that broadcasts to (B, T, S), or `None` if nothing is masked.

    Raises:
        ValueError: If a mask has the wrong shape or type.
    """
    check_masks(padding_mask, attention_mask, query.shape[0], query.shape[1], key.shape[1])
    steps = (first, ops.shape(query)[1], ops.shape(key)[1]) if causal else None
    return combine_masks(padding_mask, attention_mask, steps)


def check_masks(padding_mask, attention_mask, batch, target_steps, source_steps):
    """Checks the shapes and types of masks; unknown dimensions are skipped.

    Raises:
        ValueError: If a mask has the wrong rank, an axis of the wrong length, or floats.
    """
    steps = {"padding_mask": "(B, S)", "attention_mask": "(B, T, S) or (T, S)"}
    wanted = {"padding_mask": (batch, source_steps)}
    wanted["attention_mask"] = (batch, target_steps, source_steps)
    for name, mask in (("padding_mask", padding_mask), ("attention_mask", attention_mask)):
        if mask is None:
            continue
        shape, expected = tuple(mask.shape), wanted[name]
        if name == "attention_mask" and len(shape) == 2:
            expected = expected[1:]
        fits = len(shape) == len(expected) and all(
            # One row may broadcast to all rows, but one key not to all keys.
            None in (have, want) or have == want or (have == 1 and axis < len(shape) - 1)
            for axis, (have, want) in enumerate(zip(shape, expected, strict=True))
        )
        if not fits:
            raise ValueError(
                f"`{name}` must have the shape {steps[name]} with B={batch}, T={target_steps} "
                f"query and S={source_steps} key positions. Received: {name}.shape={shape}"
            )
        if "float" in keras.backend.standardize_dtype(mask.dtype):
            raise ValueError(
                f"`{name}` must be True where a query may attend and False elsewhere, or 1 and 0 "
                f"as integers; it is not added to scores. Received: {name}.dtype={mask.dtype}"
            )


def window_mask(target_steps: int, source_steps: int, window: int) -> np.ndarray:
    """Mask of keys at most `window` positions from the query: Luong's monotonic local attention.

    As `attention_mask` it makes any score local.

    Reference: Luong et al. 2015, arXiv 1508.04025, section 3.2, "local-m".

    Args:
        target_steps: Number of queries T.
        source_steps: Number of keys S.
        window: Number of positions to each side.

    Returns:
        (T, S) booleans, a NumPy array.

    Raises:
        ValueError: If `window` is negative.

    >>> window_mask(2, 4, window=1).astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0]]
    """
    if window < 0:
        raise ValueError(f"`window` must be 0 or more. Received: window={window}")
    return np.abs(np.arange(source_steps) - np.arange(target_steps)[:, None]) <= window
