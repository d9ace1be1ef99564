"""The recurrent encoder and decoder, compared with loops written from Bahdanau et al."""

import keras
import numpy as np
import pytest

from keras_plm.layers import (
    AdditiveAttention,
    AttentionDecoder,
    BidirectionalGRU,
    DotProductAttention,
)
from tests.helpers.checks import assert_close, check_layer, to_numpy

B, T, S, E, N, M = 2, 3, 5, 4, 7, 11
LENGTHS = (3, 5)
PADDING = np.arange(S) < np.array(LENGTHS)[:, None]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(state, projected, gates_kernel, candidate_kernel):
    """Computes appendix A.1.1 for one vector; `projected` are the inputs of z, r and candidate."""
    n = len(state)
    update = sigmoid(projected[:n] + state @ gates_kernel[:, :n])
    reset = sigmoid(projected[n : 2 * n] + state @ gates_kernel[:, n:])
    candidate = np.tanh(projected[2 * n :] + (reset * state) @ candidate_kernel)
    return (1 - update) * state + update * candidate


def test_bidirectional_gru_agrees_with_loops_under_padding():
    x = normal(B, S, E)
    layer = BidirectionalGRU(N)
    sequence, forward, backward = layer(x, padding_mask=PADDING)
    kernel, bias = (to_numpy(w) for w in layer.input_projection.weights)
    gates, candidates = to_numpy(layer.gates_kernel), to_numpy(layer.candidate_kernel)
    for b, length in enumerate(LENGTHS):
        projected = x[b] @ kernel + bias
        states = np.zeros((2, S, N))
        for direction, steps in enumerate((range(length), reversed(range(length)))):
            state = np.zeros(N)
            part = projected[:, 3 * N * direction : 3 * N * (direction + 1)]
            for s in steps:
                state = gru(state, part[s], gates[direction], candidates[direction])
                states[direction, s] = state
        expected = np.concatenate(states, axis=-1)[:length]
        assert_close(to_numpy(sequence)[b, :length], expected)
        assert_close(to_numpy(forward)[b], states[0, length - 1])
        assert_close(to_numpy(backward)[b], states[1, 0])


def test_encoder_without_mask_reads_all():
    x = normal(B, S, E)
    layer = BidirectionalGRU(N)
    assert_close(layer(x), layer(x, padding_mask=np.ones((B, S), bool)))


def test_recurrent_kernels_begin_orthogonal():
    layer = BidirectionalGRU(N)
    layer(normal(B, S, E))
    for kernel in to_numpy(layer.gates_kernel):
        for block in np.split(kernel, 2, axis=-1):
            assert_close(block @ block.T, np.eye(N))


@pytest.mark.parametrize("attends", [True, False])
def test_decoder_agrees_with_loops(attends):
    x, state = normal(B, T, E), normal(B, N, seed=1)
    source = normal(B, S, M, seed=2) if attends else normal(B, M, seed=2)
    layer = AttentionDecoder(N, AdditiveAttention(units=6) if attends else None)
    options = {"padding_mask": PADDING} if attends else {}
    outputs = [to_numpy(part) for part in layer(x, state=state, source=source, **options)]
    kernel, bias = (to_numpy(w) for w in layer.input_projection.weights)
    (of_context,) = (to_numpy(w) for w in layer.context_projection.weights)
    for b in range(B):
        s = state[b]
        for t in range(T):
            if attends:
                v, W, U = (to_numpy(w) for w in layer.attention.weights)
                energies = [np.tanh(s @ W + h @ U) @ v[:, 0] for h in source[b, : LENGTHS[b]]]
                alpha = np.exp(energies) / np.exp(energies).sum()
                context = alpha @ source[b, : LENGTHS[b]]
                assert_close(outputs[2][b, t, : LENGTHS[b]], alpha)
                assert (outputs[2][b, t, LENGTHS[b] :] == 0).all()
            else:
                context = source[b]
            projected = x[b, t] @ kernel + bias + context @ of_context
            s = gru(s, projected, to_numpy(layer.gates_kernel), to_numpy(layer.candidate_kernel))
            assert_close(outputs[0][b, t], s)
            assert_close(outputs[1][b, t], context)


@pytest.mark.parametrize("attention", [None, DotProductAttention, lambda: AdditiveAttention(6)])
def test_stepwise_decoding_equals_one_call(attention):
    x, state = normal(B, T, E), normal(B, N, seed=1)
    source = normal(B, S, M, seed=2) if attention else normal(B, M, seed=2)
    key = normal(B, S, N, seed=3) if attention else None
    layer = AttentionDecoder(N, attention and attention())
    mask = PADDING if attention else None
    whole = layer(x, state=state, source=source, key=key, padding_mask=mask)
    memory = layer.prepare(source, key, mask)
    for t in range(T):
        step = layer(x[:, t : t + 1], state=state, memory=memory)
        assert_close(step, [to_numpy(part)[:, t : t + 1] for part in whole])
        state = step[0][:, 0]


def test_decoder_has_its_own_precision():
    layer = AttentionDecoder(N, AdditiveAttention(6, dtype="float32"), dtype="mixed_bfloat16")
    source = normal(B, S, M)
    outputs = layer(normal(B, T, E), state=normal(B, N), source=source, key=normal(B, S, N))
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs} == {"bfloat16"}


@pytest.mark.compiles
def test_layers_pass_the_checks(tmp_path):
    check_layer(BidirectionalGRU(N), {"inputs": normal(B, S, E), "padding_mask": PADDING}, tmp_path)
    inputs = {"inputs": normal(B, T, E), "state": normal(B, N), "source": normal(B, S, M)}
    check_layer(AttentionDecoder(N, AdditiveAttention(6)), inputs, tmp_path)
    inputs["source"] = normal(B, M)
    check_layer(AttentionDecoder(N), inputs, tmp_path)


@pytest.mark.backend_neutral
def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="no dropout. Received: dropout=0.1"):
        AttentionDecoder(N, DotProductAttention(dropout=0.1))
    with pytest.raises(ValueError, match="`units` must be 1 or more"):
        BidirectionalGRU(0)
