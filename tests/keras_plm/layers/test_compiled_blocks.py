"""Blocks that share one compiled program equal the uncompiled ones."""

import functools
import os
import shutil
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.decoding import beam_search, greedy
from keras_plm.layers import TransformerStack, compile_blocks, recompute_blocks
from keras_plm.layers._fused import programs
from keras_plm.models import BERT, GPT, Transformer
from keras_plm.pretraining import MaskedLM
from tests.helpers.checks import assert_close, to_numpy

ON_TORCH = keras.backend.backend() == "torch"
on_torch = pytest.mark.skipif(not ON_TORCH, reason="JAX and TensorFlow compile whole steps")
pytestmark = pytest.mark.split_to("torch")
RNG = np.random.default_rng(0)
X, SOURCE = RNG.normal(size=(2, 5, 8)).astype("float32"), RNG.normal(size=(2, 3, 8)).astype("f")
SUMMED = ops.convert_to_tensor(RNG.normal(size=X.shape).astype("float32"))
PADDING = np.arange(5) < np.array([[5], [3]])


@pytest.fixture(autouse=True)
def without_kernels(request, monkeypatch):
    """Traces programs but generates no code, except in tests of generated code.

    A test fails if a block could not be compiled, because it would compare uncompiled blocks.
    """
    failed = set()
    monkeypatch.setattr(programs, "_FAILED", failed)
    if ON_TORCH and "generated_code" not in request.node.name:
        import torch

        compiled = functools.partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(torch, "compile", compiled)
    program = programs._program
    program.cache_clear()
    yield
    program.cache_clear()
    assert not failed or request.cls is TestFallback


def stack_of(num_layers=3, **options):
    keras.utils.set_random_seed(1)
    return TransformerStack(num_layers, num_heads=2, hidden_dim=8, intermediate_dim=12, **options)


def gradients(stack, **inputs):
    """Returns the layers of a stack, and the gradient of a sum over them by each weight."""
    stack(**inputs)

    def loss(layers):
        return sum(ops.sum(SUMMED * layer) for layer in layers[1:])

    layers = stack(**inputs, training=True)
    stack.zero_grad()
    loss(layers).backward()
    return layers, [v.value.grad for v in stack.trainable_variables]


@on_torch
@pytest.mark.full
@pytest.mark.parametrize(
    "options, inputs, remat",
    [
        ({}, {"padding_mask": PADDING}, False),
        ({"pre_norm": True, "activation": "gelu_tanh"}, {"causal": True}, True),
        ({"cross_attention": True}, {"source": SOURCE, "causal": True}, False),
    ],
)
def test_outputs_and_gradients_equal_uncompiled_ones(options, inputs, remat):
    stack, inputs = stack_of(**options), {"inputs": X, **inputs}
    stack.remat = remat
    layers, found = gradients(stack, **inputs)
    stack.compiled = True
    compiled_layers, compiled = gradients(stack, **inputs)
    assert len(layers) == len(compiled_layers) == 4
    for a, b in zip([*layers, *found], [*compiled_layers, *compiled], strict=True):
        assert_close(b, a, 2e-5)
    plain = [to_numpy(layer) for layer in stack(**inputs)]
    stack.compiled = False
    for a, b in zip(plain, stack(**inputs), strict=True):
        assert_close(b, a, 1e-5)


@on_torch
@pytest.mark.full
def test_dropout_of_compiled_blocks():
    stack = stack_of(dropout=0.5)
    plain = to_numpy(stack(X)[-1])
    stack.compiled = True
    first, second = (to_numpy(stack(X, training=True)[-1]) for _ in range(2))
    assert np.abs(first - second).max() > 0.1 and np.abs(first - plain).max() > 0.1
    assert_close(stack(X)[-1], plain, 1e-6)


@on_torch
@pytest.mark.full
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_fit_with_generated_code_has_equal_losses():
    losses = []
    for compiled in (False, True):
        keras.utils.set_random_seed(3)
        encoder = BERT(50, 3, 2, 8, 12, dropout=0.0, max_sequence_length=8)
        model = MaskedLM(encoder, next_sentence=False)
        if compiled:
            compile_blocks(model)
            recompute_blocks(model)
        model.compile("adam", weighted_metrics=[])
        ids = np.random.default_rng(0).integers(5, 50, (8, 8)).astype("int32")
        x = {
            "token_ids": ids, "padding_mask": ids > 6, "segment_ids": np.zeros_like(ids),
            "masked_positions": np.tile(np.arange(2, dtype="int32"), (8, 1)),
        }  # fmt: skip
        found = model.fit(x, {"masked_lm": ids[:, :2]}, epochs=3, batch_size=4, shuffle=False,
                          verbose=0)  # fmt: skip
        losses.append(found.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5)


@on_torch
@pytest.mark.full
def test_blocks_share_a_program_for_any_shape():
    from torch._dynamo.utils import counters

    counts = []
    for num_layers in (2, 5):
        stack = stack_of(num_layers, dropout=0.1 * num_layers)  # no program of another test
        stack.compiled = True
        before = counters["stats"]["unique_graphs"]
        for length in (5, 4, 3, 7, 6):
            stack(RNG.normal(size=(2, length, 8)).astype("float32"), training=True)
        counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[0] == counts[1] <= 4  # one for the first shape, one for all others


def writers():
    size = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    return {"gpt": GPT(20, **size, max_sequence_length=20), "transformer": Transformer(20, **size)}


@on_torch
@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_decoded_tokens_equal_those_of_uncompiled_blocks(name):
    from torch._dynamo.utils import counters

    model = writers()[name]
    ids = RNG.integers(4, 20, (2, 5)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": PADDING}

    def decoded(count):
        found = greedy(model, inputs, 0, -1, max_new_tokens=count)
        return found, beam_search(model, inputs, 0, -1, max_new_tokens=count, num_beams=3)

    plain = {count: decoded(count) for count in (4, 6, 9)}
    compile_blocks(model)
    programs = []
    for count, wanted in plain.items():
        for result, expected in zip(decoded(count), wanted, strict=True):
            np.testing.assert_array_equal(result.token_ids, expected.token_ids)
            assert_close(result.scores, expected.scores, 1e-4)
        programs.append(counters["stats"]["unique_graphs"])
    assert programs[1] == programs[2]  # no new program for another number of tokens


@on_torch
class TestFallback:
    @pytest.fixture(autouse=True)
    def no_compiler(self, monkeypatch):
        def program(function, settings):
            def fails(*args, **kwargs):
                raise RuntimeError("no compiler found")

            return fails

        monkeypatch.setattr(programs, "_program", program)

    def test_blocks_run_uncompiled_after_one_warning(self):
        stack = stack_of()
        plain = to_numpy(stack(X)[-1])
        stack.compiled = True
        with pytest.warns(UserWarning, match="run uncompiled.*Received: no compiler found"):
            assert_close(stack(X)[-1], plain, 1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            assert_close(stack(X)[-1], plain, 1e-6)

    def test_errors_of_the_block_itself_are_raised(self):
        stack = stack_of()
        stack(X)
        stack.compiled = True
        with pytest.raises(RuntimeError, match="shape|size"):
            stack(X[..., :4])
        assert not programs._FAILED


@pytest.mark.each_backend
def test_models_without_blocks_and_other_backends_are_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    message = "blocks to compile. Received: Sequent" if ON_TORCH else "compile the whole step"
    with pytest.raises(ValueError, match=message):
        compile_blocks(model)
