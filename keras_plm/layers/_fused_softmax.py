"""Cross-entropy and softmax over a vocabulary, in few passes over the logits.

Shapes: V vocabulary, R rows.
"""

import keras
from keras import ops


def token_cross_entropy(token_ids, logits, label_smoothing=0.0):
    """Cross-entropy of each position.

    Args:
        token_ids: (...) the true tokens.
        logits: (..., V).
        label_smoothing: Share of the target that is spread evenly over all tokens.

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
    # -log p(token) is logsumexp minus the token's logit; over all tokens, minus the mean one.
    token_ids = ops.cast(token_ids, "int32")[..., None]
    wanted = ops.take_along_axis(logits, token_ids, axis=-1)[..., 0]
    if label_smoothing:
        wanted = (1 - label_smoothing) * wanted + label_smoothing * ops.mean(logits, axis=-1)
    return ops.logsumexp(logits, axis=-1) - wanted


def row_logsumexp(logits):
    """`logsumexp` of each row, in float32.

    Args:
        logits: (R, V).

    Returns:
        (R,) float32.
    """
    logits = ops.cast(logits, "float32")
    if keras.backend.backend() != "torch":
        return ops.logsumexp(logits, axis=-1)
    # Two passes over the logits instead of five; at the largest one nothing cancels.
    largest, place = logits.max(-1)
    return largest - logits.log_softmax(-1).gather(1, place[:, None])[:, 0]


def row_softmax(logits, total):
    """`softmax` of each row.

    Args:
        logits: (R, V).
        total: (R,) float32, their `row_logsumexp`.

    Returns:
        (R, V) float32; on torch of the type of `logits`, from sums in float32.
    """
    if keras.backend.backend() != "torch":
        return ops.exp(ops.cast(logits, "float32") - total[:, None])
    return logits.softmax(-1)  # one pass instead of four, and nothing of another type
