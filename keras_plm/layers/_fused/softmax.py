"""Softmax and cross-entropy in the fastest form of each backend.

Shapes: V vocabulary, R rows.
"""

import keras
from keras import ops


def wide_dtype(x):
    """Returns the dtype in which to sum `x`: float32, or float64 for a float64 tensor.

    Keras' `result_type` of float64 and float32 is float32.
    """
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def float32_softmax(scores):
    """Computes a softmax over the last axis in float32 and returns it in the type of `scores`.

    In half precision the sum of many exponentials would lose its small terms. torch's kernel reads
    and writes half precision but computes in float32, in one pass.
    """
    if keras.backend.backend() == "torch":
        return ops.softmax(scores, axis=-1)
    return ops.cast(ops.softmax(ops.cast(scores, wide_dtype(scores)), axis=-1), scores.dtype)


def token_cross_entropy(token_ids, logits, label_smoothing=0.0):
    """Computes the cross-entropy of each position.

    Args:
        token_ids: (...) the true tokens.
        logits: (..., V).
        label_smoothing: Fraction of the target distributed evenly over all tokens.

    Returns:
        (...) float32.
    """
    logits = ops.cast(logits, "float32")
    if keras.backend.backend() == "torch":
        import torch

        # One pass over the logits; Keras would make a one-hot row for every position.
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            ops.cast(token_ids, "int64").reshape(-1),
            reduction="none",
            label_smoothing=label_smoothing,
        )
        return loss.reshape(token_ids.shape)
    # -log p(token) is logsumexp minus the token's logit; the mean over tokens has the mean logit.
    token_ids = ops.cast(token_ids, "int32")[..., None]
    wanted = ops.take_along_axis(logits, token_ids, axis=-1)[..., 0]
    if label_smoothing:
        wanted = (1 - label_smoothing) * wanted + label_smoothing * ops.mean(logits, axis=-1)
    return ops.logsumexp(logits, axis=-1) - wanted


def row_logsumexp(logits):
    """Computes the `logsumexp` of each row in float32.

    Args:
        logits: (R, V).

    Returns:
        (R,) float32.
    """
    logits = ops.cast(logits, "float32")
    if keras.backend.backend() != "torch":
        return ops.logsumexp(logits, axis=-1)
    # Two passes over the logits instead of five; at the largest logit no digits cancel.
    largest, place = logits.max(-1)
    return largest - logits.log_softmax(-1).gather(1, place[:, None])[:, 0]


def row_softmax(logits, total):
    """Computes the softmax of each row.

    Args:
        logits: (R, V).
        total: (R,) float32, their `row_logsumexp`.

    Returns:
        (R, V) float32; on torch in the type of `logits`, with sums in float32.
    """
    if keras.backend.backend() != "torch":
        return ops.exp(ops.cast(logits, "float32") - total[:, None])
    return logits.softmax(-1)  # one pass instead of four, without a cast
