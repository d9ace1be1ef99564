"""The check `scan`: blocks in a loop equal blocks in a scan."""

import functools

import keras
import numpy as np
import pytest

from benchmarks.checks import scan
from benchmarks.speed.tables import speed_tables
from keras_plm.layers import TransformerStack


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the check needs JAX")
def test_blocks_in_a_scan_equal_blocks_in_a_loop(tmp_path, monkeypatch):
    import jax

    stack = TransformerStack(3, num_heads=2, hidden_dim=8, intermediate_dim=16)
    stack.build((2, 5, 8))
    values = [variable.value for variable in stack.trainable_variables]
    inputs = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    seeds = np.zeros((3, 3, 2), "uint32")
    losses = scan.losses(stack).values()
    loop, scanned = (jax.jit(jax.value_and_grad(loss))(values, inputs, seeds) for loss in losses)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), loop, scanned
    )

    monkeypatch.setattr(scan, "measure", functools.partial(scan.measure, rows=1, length=4, width=8))
    scan.check_scan(tmp_path / scan.FILE, depths=(1, 2), repeats=1, progress=print)
    assert len(speed_tables(tmp_path)["check_scan"].splitlines()) == 4


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="about the other backends")
def test_the_scan_check_needs_jax(tmp_path):
    with pytest.raises(ValueError, match=r"needs JAX: set KERAS_BACKEND=jax. Received"):
        scan.check_scan(tmp_path / scan.FILE)
