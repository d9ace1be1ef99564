"""Masks of attention: how they combine, and which are refused."""

import numpy as np
import pytest

from keras_plm.layers import DotProductAttention, MultiHeadAttention, combine_masks, window_mask
from tests.helpers.checks import to_numpy

pytestmark = pytest.mark.each_backend

B, T, S, D = 2, 3, 5, 7


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_masks_combine():
    padding = np.array([[True, True, False]])
    allowed = np.array([[True, False, True], [True, True, True]])
    mask = to_numpy(combine_masks(padding, allowed, causal_steps=(0, 2, 3)))
    assert mask.tolist() == [[[True, False, False], [True, True, False]]]
    assert combine_masks() is None


def test_window_mask_hides_distant_keys():
    mask = window_mask(T, S, window=1)
    expected = [[abs(s - t) <= 1 for s in range(S)] for t in range(T)]
    assert mask.tolist() == expected
    query, value = normal(B, T, D), normal(B, S, D, seed=1)
    _, weights = DotProductAttention()(query=query, value=value, attention_mask=mask)
    assert ((to_numpy(weights) > 0) == mask).all()
    with pytest.raises(ValueError, match="0 or more.*Received: window=-1"):
        window_mask(2, 2, -1)


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "masks, message",
    [
        ({"padding_mask": np.ones((B, S + 1), bool)}, r"padding_mask.shape=\(2, 6\)"),
        ({"padding_mask": np.ones((B, 1), bool)}, r"padding_mask.shape=\(2, 1\)"),
        ({"padding_mask": np.ones((B, S), "float32")}, "True where a query may attend.*float32"),
        ({"padding_mask": np.ones((B, T, S), bool)}, r"padding_mask.shape=\(2, 3, 5\)"),
        ({"attention_mask": np.ones((B, S, T), bool)}, r"attention_mask.shape=\(2, 5, 3\)"),
        ({"attention_mask": np.ones(S, bool)}, r"attention_mask.shape=\(5,\)"),
    ],
)
@pytest.mark.parametrize("multi_head", [False, True])
def test_masks_of_the_wrong_shape_are_refused(masks, message, multi_head):
    layer = MultiHeadAttention(1, D) if multi_head else DotProductAttention()
    with pytest.raises(ValueError, match=message):
        layer(query=normal(B, T, D), value=normal(B, S, D), **masks)
