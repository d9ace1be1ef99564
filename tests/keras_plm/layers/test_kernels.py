"""Attention takes the kernel where it is fast."""

import keras
import numpy as np
import pytest

from keras_plm.layers import (
    MultiHeadAttention,
    TransformerBlock,
    multi_head_attention,
)
from keras_plm.layers._fused.attention import fused_attention, fused_is_slow


@pytest.mark.compiles
@pytest.mark.parametrize("training, fused", [(False, 1), (None, 1), (True, 0)])
def test_dropout_disables_fused_attention_in_training(training, fused, monkeypatch):
    calls = []

    def spy(*arguments):
        calls.append(1)
        return fused_attention(*arguments)

    monkeypatch.setattr(multi_head_attention, "fused_attention", spy)
    x = np.ones((2, 3, 8), "float32")
    MultiHeadAttention(2, 8, dropout=0.1)(query=x, training=training)
    assert len(calls) == fused
    TransformerBlock(2, 8, 12, dropout=0.1)(x, training=training)
    assert len(calls) == 2 * fused


@pytest.mark.full
@pytest.mark.split_to("torch")
def test_fused_path_depends_on_precision_and_length(monkeypatch):
    """Full float32 is fused in training too; oneDNN's products are not."""
    torch = pytest.importorskip("torch")
    if keras.backend.backend() != "torch":
        pytest.skip("other backends have one path")
    few, many = torch.zeros(1, 128, 1, 1), torch.zeros(1, 512, 1, 1)
    if few.device.type == "cpu":
        assert not fused_is_slow(few, few, training=True)
        half = few.bfloat16()
        assert fused_is_slow(half, half, training=False)
        assert fused_is_slow(many.bfloat16(), many.bfloat16(), training=True)
        assert not fused_is_slow(many.bfloat16(), many.bfloat16(), training=False)
        torch.set_float32_matmul_precision("medium")
        try:
            assert fused_is_slow(few, few, training=True)
            assert not fused_is_slow(many, many, training=True)
        finally:
            torch.set_float32_matmul_precision("highest")
