"""A linear-chain CRF: a model of tags and of transitions between neighbouring tags.

Shapes: B rows, T steps, K tags.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor, as_names
from keras_plm.layers._fused.scan import fold

FAR = -1e30  # a finite score for impossible tags
# Prefixes of a span by scheme: first, inner and last word of several, a single word.
PREFIXES = {"BIOUL": "BILU", "IOBES": "BIES", "BMES": "BMES"}
SCHEMES = ("BIO", "IOB1", *PREFIXES)
OTHER_NAMES = {"IOB2": "BIO", "BILOU": "BIOUL"}  # as in `metrics.tag_scheme`


@keras.saving.register_keras_serializable("keras_plm")
class CRF(keras.layers.Layer):
    """Scores of a linear-chain CRF: one for every pair of tags at neighbouring steps.

    One tensor holds the scores of tags, of transitions, and of the first and last tag. The score of
    a tag sequence is a sum of its elements. `crf_losses`, `viterbi` and `marginals` read it.

    Reference: Lafferty et al. 2001; for tagging Huang et al. 2015, arXiv 1508.01991.

    Args:
        boundary: If True, also learn scores of the first and the last tag.

    Call arguments:
        inputs: (B, T, K) scores of tags.
        padding_mask: (B, T), True at real steps, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.

    Returns:
        (B, T, K, K) float32, indexed by the tag of the previous step and the tag of this step.
        At the first step all K rows are the same.

    >>> import numpy as np
    >>> layer = CRF()
    >>> tuple(layer(np.ones((2, 4, 3)), padding_mask=np.ones((2, 4), bool)).shape)
    (2, 4, 3, 3)
    """

    def __init__(self, boundary: bool = True, **kwargs):
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.supports_masking = True
        self.boundary = boundary

    def build(self, inputs_shape, padding_mask_shape=None):
        count = inputs_shape[-1]
        options = {"initializer": "zeros", "autocast": False}  # scores are in float32
        self.transitions = self.add_weight((count, count), name="transitions", **options)
        if self.boundary:
            self.starts = self.add_weight((count,), name="starts", **options)
            self.ends = self.add_weight((count,), name="ends", **options)

    def call(
        self, inputs: Tensor, padding_mask: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        padding_mask = mask if padding_mask is None else padding_mask
        scores = ops.cast(inputs, "float32")
        steps = ops.arange(ops.shape(scores)[1], dtype="int32")
        first = ops.cast(steps == 0, "float32")[:, None]  # (T, 1)
        between = (1 - first)[..., None] * ops.convert_to_tensor(self.transitions)  # (T, K, K)
        if self.boundary:
            scores = scores + first * self.starts
            if padding_mask is None:
                last = ops.cast(steps == ops.shape(scores)[1] - 1, "float32")[None]
            else:
                count = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)
                last = ops.cast(steps[None] == count - 1, "float32")  # (B, T)
            scores = scores + last[..., None] * self.ends
        return scores[:, :, None, :] + between[None]

    def compute_output_spec(self, inputs, padding_mask=None, mask=None):
        return keras.KerasTensor((*inputs.shape, inputs.shape[-1]), dtype="float32")

    def get_config(self):
        return {**super().get_config(), "boundary": self.boundary}


def crf_losses(tags: Tensor, scores: Tensor) -> Tensor:
    """Computes the negative log-likelihood of tags under a CRF, -log p(tags), step by step.

    The losses of the first t steps add up to -log p of the first t tags, without the score of the
    end. Weights of 0 therefore leave out padding.

    Args:
        tags: (B, T) ids of tags.
        scores: (B, T, K, K), the output of `CRF`.

    Returns:
        (B, T) float32.

    >>> import numpy as np
    >>> from keras import ops
    >>> scores = np.zeros((1, 2, 3, 3), "float32")  # all 9 pairs of tags are equally likely
    >>> round(float(ops.sum(crf_losses(np.array([[0, 2]]), scores))), 4), round(float(np.log(9)), 4)
    (2.1972, 2.1972)
    """
    tags, scores = ops.cast(tags, "int32"), ops.cast(scores, "float32")
    count = scores.shape[-1]
    before = ops.pad(tags[:, :-1], [[0, 0], [1, 0]])  # the first step's rows are equal
    flat = ops.reshape(scores, (*ops.shape(scores)[:2], count * count))
    own = ops.take_along_axis(flat, (before * count + tags)[..., None], axis=-1)[..., 0]

    def step(state, inputs):
        found = ops.logsumexp(state[0][:, :, None] + inputs[0], axis=1)  # (B, K)
        return (found,), (ops.logsumexp(found, axis=-1),)

    one = ops.cast(ops.arange(count) == 0, "float32")
    start = (1 - one) * FAR + ops.zeros_like(scores[:, 0, 0])
    totals = fold(step, (start,), (ops.transpose(scores, (1, 0, 2, 3)),))[1][0]  # (T, B)
    totals = ops.transpose(totals)
    return totals - ops.pad(totals[:, :-1], [[0, 0], [1, 0]]) - own


@keras.saving.register_keras_serializable("keras_plm")
class CRFLoss(keras.losses.Loss):
    """Loss of tags under a `CRF`, -log p(tags), as the mean over words.

    Args:
        name: Name of the loss.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, T) ids of tags. A word with the id -1 has the loss 0, and counts as the tag 0
            before the next word.
        y_pred: (B, T, K, K), the output of `CRF`.

    Returns:
        A scalar.

    >>> import numpy as np
    >>> tags, scores = np.array([[0, 2]]), np.zeros((1, 2, 3, 3), "float32")
    >>> round(float(CRFLoss()(tags, scores)), 4)  # log 3 a word
    1.0986
    """

    def __init__(self, name: str = "crf_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, "int32")
        losses = crf_losses(ops.maximum(y_true, 0), y_pred)
        return ops.where(y_true >= 0, losses, ops.zeros_like(losses))


def viterbi(scores: np.ndarray, allowed: np.ndarray | None = None) -> tuple[list[int], float]:
    """Finds the tag sequence with the highest score for one row.

    Reference: Viterbi 1967; constraints as in AllenNLP's `ConditionalRandomField`.

    Args:
        scores: (T, K, K), one row of the output of `CRF`, without padding.
        allowed: (K + 2, K + 2) boolean, see `allowed_transitions`; `None` allows all.

    Returns:
        `(tags, score)`: a list of T ids and the sum of their scores.

    Raises:
        ValueError: If T is 0.

    >>> import numpy as np
    >>> scores = np.array([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [3.0, 0.0]]])
    >>> tags, score = viterbi(scores)
    >>> tags, float(score)
    ([1, 0], 4.0)
    """
    scores = np.asarray(scores, "float64")
    if not len(scores):
        raise ValueError("A row of tags must have a step or more. Received: no scores")
    cost = np.zeros(scores.shape)
    if allowed is not None:
        allowed = np.asarray(allowed, bool)
        forbidden = np.where(allowed, 0.0, FAR)
        cost[1:] += forbidden[:-2, :-2]
        cost[0] += forbidden[-2, :-2]
        cost[-1] += forbidden[:-2, -1]
    best, back = (scores + cost)[0, 0], []
    for step in (scores + cost)[1:]:
        sums = best[:, None] + step
        back.append(sums.argmax(axis=0))
        best = sums.max(axis=0)
    tags = [int(best.argmax())]
    for choice in reversed(back):
        tags.append(int(choice[tags[-1]]))
    tags.reverse()
    score = sum(row[a, b] for row, a, b in zip(scores, [0, *tags], tags, strict=False))
    return tags, float(score)


def marginals(scores: np.ndarray) -> np.ndarray:
    """Computes the probability of each tag at each step of one row, over all tag sequences.

    Args:
        scores: (T, K, K), one row of the output of `CRF`, without padding.

    Returns:
        (T, K). Each step sums to 1.

    >>> import numpy as np
    >>> scores = np.array([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [3.0, 0.0]]])
    >>> marginals(scores).round(3).tolist()
    [[0.034, 0.966], [0.937, 0.063]]
    """
    scores = np.asarray(scores, "float64")
    forward, backward = [scores[0, 0]], [np.zeros(scores.shape[-1])]
    for step in scores[1:]:
        forward.append(np.logaddexp.reduce(forward[-1][:, None] + step, axis=0))
    for step in scores[:0:-1]:
        backward.append(np.logaddexp.reduce(step + backward[-1][None], axis=1))
    found = np.array(forward) + np.array(backward[::-1])
    return np.exp(found - np.logaddexp.reduce(found, axis=1, keepdims=True))


def allowed_transitions(labels: Sequence[str], scheme: str) -> np.ndarray:
    """Builds the matrix of transitions that a tag scheme allows.

    Args:
        labels: The K tags, such as `"O"` and `"B-PER"`.
        scheme: `"BIO"` or `"IOB2"` (each span begins with B), `"IOB1"` (B only between two spans of
            one kind), `"BIOUL"` or `"BILOU"`, `"IOBES"` or `"BMES"`.

    Returns:
        (K + 2, K + 2) boolean, `[i, j]` True if tag j may follow tag i. Index K is the start,
        K + 1 the end.

    Raises:
        ValueError: If the scheme is unknown, or a tag does not belong to it.

    >>> allowed_transitions(["O", "B-X", "I-X"], "BIO")[0].tolist()  # after "O"
    [True, True, False, False, True]
    """
    scheme = OTHER_NAMES.get(scheme, scheme)
    if scheme not in SCHEMES:
        raise ValueError(f"Known schemes: {', '.join(SCHEMES)}. Received: {scheme!r}")
    labels = as_names(labels, "labels")
    known = PREFIXES.get(scheme, "BI")
    named = [label.partition("-")[::2] for label in labels]
    for label, (prefix, kind) in zip(labels, named, strict=True):
        if label != "O" and not (len(prefix) == 1 and prefix in known and kind):
            raise ValueError(
                f"Tags of {scheme} are 'O' and {', '.join(f'{p}-NAME' for p in known)}. "
                f"Received: {label!r}"
            )

    def may(tag, next_tag):
        (prefix, kind), (next_prefix, next_kind) = tag, next_tag
        same, outside = kind == next_kind, prefix in ("O", "START")
        if scheme == "BIO":
            return next_prefix != "I" or (same and not outside)
        if scheme == "IOB1":
            return next_prefix != "B" or (same and not outside)
        begins, inside, last, alone = known
        if prefix in (begins, inside):
            return next_prefix in (inside, last) and same
        return next_prefix in ("O", begins, alone, "END")

    every = [*named, ("START", ""), ("END", "")]
    found = np.array([[may(tag, next_tag) for next_tag in every] for tag in every])
    found[:, -2] = False  # nothing precedes the start, nothing follows the end
    found[-1] = False
    found[-2, -1] = False
    return found
