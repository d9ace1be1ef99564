"""LSTMs, compared with loops over time, and their gradients with finite differences."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.layers import LSTM, CarriedStates, LSTMStack, ProjectedLSTM, reverse_rows
from tests.helpers.checks import assert_close, check_layer, to_numpy

pytestmark = pytest.mark.each_backend

B, T, D, N, P = 3, 5, 7, 11, 2
LENGTHS = np.array([5, 3, 0])
PADDING = np.arange(T) < LENGTHS[:, None]
VIEWS = "view _unsafe_view select slice unsqueeze detach alias t transpose".split()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def loop(x, kernel, recurrent, bias, projection=None, clips=(None, None), state=None):
    """Computes one row (T, D) in float64: the output states (T, P), and the last cells."""
    n = len(bias) // 4
    m, c = (np.zeros(recurrent.shape[0]), np.zeros(n)) if state is None else state
    found = []
    for step in x:
        z = step @ kernel + m @ recurrent + bias
        c = sigmoid(z[2 * n : 3 * n]) * c + sigmoid(z[:n]) * np.tanh(z[n : 2 * n])
        c = c if clips[0] is None else np.clip(c, -clips[0], clips[0])
        m = sigmoid(z[3 * n :]) * np.tanh(c)
        m = m if projection is None else m @ projection
        m = m if clips[1] is None else np.clip(m, -clips[1], clips[1])
        found.append(m)
    return np.array(found), (m, c)


def arrays(layer):
    return {w.name: to_numpy(w).astype("float64") for w in layer.weights}


def fill(layer, scale=0.8):
    rng = np.random.default_rng(5)
    layer.set_weights([rng.normal(size=w.shape) * scale for w in layer.get_weights()])
    return layer


def test_plain_lstm_agrees_with_loop(tmp_path):
    layer, x = LSTM(N), normal(B, T, D)
    check_layer(LSTM(N), {"inputs": x}, tmp_path)
    layer.build((None, None, D))
    assert to_numpy(layer.bias).reshape(4, N).sum(axis=1).tolist() == [0, 0, N, 0]
    w = arrays(fill(layer))
    wanted = [loop(row, w["kernel"], w["recurrent_kernel"], w["bias"])[0] for row in x]
    assert_close(layer(x), np.array(wanted))


def test_forget_bias_is_1_in_a_subclassed_model():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.lstm = LSTM(N)

        def call(self, x):
            return self.lstm(x)

    model = Net()
    model(normal(B, T, D))
    assert_close(model.lstm.bias, np.repeat([0.0, 0.0, 1.0, 0.0], N))


def test_plain_lstm_equals_keras_lstm():
    layer, x = LSTM(N), normal(B, T, D)
    theirs = keras.layers.LSTM(N, return_sequences=True)
    outputs = theirs(x)
    order = [0, 2, 1, 3]  # Keras' order: i, f, j, o
    weights = [np.stack(np.split(w, 4, axis=-1))[order] for w in theirs.get_weights()]
    layer(x)
    layer.set_weights([np.concatenate(list(w), axis=-1) for w in weights])
    assert_close(layer(x), outputs)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch's kernel")
def test_torch_lstm_kernel_receives_contiguous_weights(monkeypatch):
    """cuDNN refuses a view with another order; a CPU accepts it."""
    import torch

    seen, lstm = [], torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *a: seen.append(a) or lstm(*a))
    LSTM(N)(normal(B, T, D))
    ((_, _, weights, *_),) = seen
    assert len(weights) == 4 and all(weight.is_contiguous() for weight in weights)


@pytest.mark.quick_cases("clips1")
@pytest.mark.parametrize("clips", [(0.4, 0.3), (None, None), (3.0, None)])
def test_projected_lstm_agrees_with_loop(clips, tmp_path):
    layer = ProjectedLSTM(N, P, *clips)
    x = normal(B, T, D)
    check_layer(layer, {"inputs": x, "padding_mask": PADDING}, tmp_path)
    layer = ProjectedLSTM(N, P, *clips)
    start = normal(B, P, seed=1), normal(B, N, seed=2)
    layer(x)
    w = arrays(fill(layer))
    gates = w["bias"] + np.repeat([0, 0, 1.0, 0], N)
    sequence, (m, c) = layer(x, padding_mask=PADDING, state=start, return_state=True)
    for row, length in enumerate(LENGTHS):
        wanted, (last_m, last_c) = loop(
            x[row, :length],
            w["kernel"],
            w["recurrent_kernel"],
            gates,
            w["projection"],
            clips,
            (start[0][row], start[1][row]),
        )
        if length:
            assert_close(to_numpy(sequence)[row, :length], wanted)
        assert_close(to_numpy(m)[row], last_m)
        assert_close(to_numpy(c)[row], last_c)
    assert not to_numpy(sequence)[~PADDING].any()


@pytest.mark.quick_cases("plain", "clipped")
@pytest.mark.parametrize("kind", ["plain", "clipped", "free"])
def test_gradients_equal_finite_differences(kind):
    """Compares the explicit gradients of weights and inputs with central differences."""
    clips = {"clipped": (0.3, 0.25)}.get(kind, (None, None))
    layer = LSTM(3) if kind == "plain" else ProjectedLSTM(3, 2, *clips)
    x = normal(2, 4, 5)
    inputs = keras.Input((4, 5))
    scaled = inputs * 1.0
    model = keras.Model(inputs, layer(scaled))
    fill(layer, 0.6)
    wanted = normal(2, 4, layer.units if kind == "plain" else 2, seed=4)

    def score(values):
        w = dict(zip([w.name for w in layer.weights], values, strict=True))
        bias = w["bias"] + (0 if kind == "plain" else np.repeat([0, 0, 1.0, 0], 3))
        outputs = [
            loop(row, w["kernel"], w["recurrent_kernel"], bias, w.get("projection"), clips)[0]
            for row in x.astype("float64")
        ]
        return (np.array(outputs) * wanted).sum()

    before = [w.astype("float64") for w in layer.get_weights()]
    rate = 1e-2
    model.compile(keras.optimizers.SGD(rate), loss=lambda y, p: ops.sum(p * y, axis=(1, 2)))
    model.fit(x, wanted * 2, batch_size=2, verbose=0)  # the mean over two rows
    for number, after in enumerate(layer.get_weights()):
        found = (before[number] - after) / rate
        for place in list(np.ndindex(before[number].shape))[::3]:
            up, down = ([w.copy() for w in before] for _ in range(2))
            up[number][place] += 1e-5
            down[number][place] -= 1e-5
            slope = (score(up) - score(down)) / 2e-5
            assert abs(found[place] - slope) < 2e-3 * max(1, abs(slope)), (number, place)


def test_lstm_passes_gradients_to_lower_layers():
    """A weight below two layers moves as with Keras' LSTM, which the backend differentiates."""
    x, y = normal(4, T, D), normal(4, T, N, seed=1)
    moved = []
    for make in (lambda: LSTM(N), lambda: keras.layers.LSTM(N, return_sequences=True)):
        below = keras.layers.Dense(D, use_bias=False)
        first, second = make(), make()
        inputs = keras.Input((T, D))
        model = keras.Model(inputs, second(first(below(inputs))))
        below.set_weights([normal(D, D, seed=2)])
        for layer in (first, second):
            rng = np.random.default_rng(8)
            order = [0, 1, 2, 3] if isinstance(layer, LSTM) else [0, 2, 1, 3]
            parts = [rng.normal(size=(*w.shape[:-1], 4, N)) * 0.5 for w in layer.get_weights()]
            layer.set_weights([p[..., order, :].reshape(*p.shape[:-2], -1) for p in parts])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        model.fit(x, y, batch_size=4, verbose=0)
        moved.append(below.get_weights()[0])
    assert_close(*moved)


def test_reverse_rows_reverses_real_steps_only():
    x = normal(B, T, D)
    turned = to_numpy(reverse_rows(x, PADDING))
    for row, length in enumerate(LENGTHS):
        assert_close(turned[row, :length], x[row, :length][::-1], atol=0)
        assert_close(turned[row, length:], x[row, length:], atol=0)
    assert_close(reverse_rows(reverse_rows(x, PADDING), PADDING), x, atol=0)
    assert_close(reverse_rows(x), x[:, ::-1], atol=0)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("backwards", [False, True])
def test_stack_adds_residuals_and_supports_backward_order(backwards, tmp_path):
    stack = LSTMStack(2, N, P, 0.9, 0.8)
    x = normal(B, T, P)
    check_layer(stack, {"inputs": x, "padding_mask": PADDING}, tmp_path, learns=False)
    stack = LSTMStack(2, N, P, 0.9, 0.8)
    first, second = (to_numpy(y) for y in stack(x, padding_mask=PADDING, go_backwards=backwards))
    for row, length in enumerate(LENGTHS[:2]):
        given = x[row, :length][::-1] if backwards else x[row, :length]
        for number, found in enumerate((first, second)):
            w = arrays(stack.layers[number])
            bias = w["bias"] + np.repeat([0, 0, 1.0, 0], N)
            kernels = w["kernel"], w["recurrent_kernel"], bias, w["projection"]
            wanted = loop(given, *kernels, (0.9, 0.8))[0] + number * given
            assert_close(found[row, :length], wanted[::-1] if backwards else wanted)
            given = wanted


def test_carried_states_are_variables_but_not_weights():
    stack = LSTMStack(2, N, P)
    carried = CarriedStates(stack, rows=4)
    carried(normal(B, T, P))
    assert len(carried.weights) == len(stack.weights) == 8
    assert len(carried.variables) - len(carried.weights) >= 4
    assert all(not v.trainable for pair in carried.states for v in pair)
    with pytest.raises(ValueError, match="A batch must have at most"):
        carried(normal(5, T, P))
    with pytest.raises(ValueError, match="`rows` must be 1"):
        CarriedStates(stack, rows=0)


@pytest.mark.full
def test_states_are_carried_through_fit():
    """Two batches in `fit` and `predict` form one long text; gradients stop between them."""
    stack = LSTMStack(1, N, P)
    inputs = keras.Input((T, P), batch_size=2)
    model = keras.Model(inputs, CarriedStates(stack, rows=2)(inputs)[-1])
    x = normal(4, T, P)
    model.compile(keras.optimizers.SGD(0.0), loss="mse")
    model.fit(x, np.zeros((4, T, P)), batch_size=2, shuffle=False, verbose=0)
    last = model.predict(x[:2], batch_size=2, verbose=0)
    whole = np.concatenate([x[:2], x[2:], x[:2]], axis=1)
    assert_close(last, to_numpy(stack(whole)[0])[:, 2 * T :])


def test_bfloat16_is_near_float32():
    layer = ProjectedLSTM(N, P, dtype="mixed_bfloat16")
    x = normal(B, T, D)
    half = layer(x)
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"
    whole = ProjectedLSTM(N, P)
    whole(x)
    whole.set_weights(layer.get_weights())
    assert_close(ops.cast(half, "float32"), whole(x), atol=0.02)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_recurrent_kernels_are_orthogonal_in_any_precision(dtype):
    layer = LSTM(N, dtype=dtype)
    layer.build((B, T, D))
    kernel = to_numpy(ops.cast(layer.recurrent_kernel, "float64"))
    near = {"bfloat16": 0.02, "float64": 1e-6}[dtype]
    assert_close(kernel @ kernel.T, np.eye(N), atol=near)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("sizes", [{"units": 0}, {"projection_dim": 0}, {"projection_clip": -1.0}])
def test_refuses_invalid_sizes(sizes):
    with pytest.raises(ValueError, match="must be above 0"):
        ProjectedLSTM(**{"units": 3, "projection_dim": 2, **sizes})


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile the loop")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_step_of_the_backward_pass_has_few_kernels(dtype):
    """On a GPU the number of kernels decides the time of a step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function.__name__.partition(".")[0] not in VIEWS
            return function(*args, **(kwargs or {}))

    layer = ProjectedLSTM(N, P, dtype=dtype)

    def kernels(steps):
        output = layer(ops.convert_to_tensor(normal(B, steps, D)))
        loss = ops.sum(output[0] if isinstance(output, tuple) else output)
        with Counted() as counted:
            loss.backward()
        return counted.count

    assert (kernels(19) - kernels(9)) / 10 <= 8
