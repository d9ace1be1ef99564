"""Multi-head self-attention with its projections, next to that of Keras and torch.

Each implementation is the only layer of a model. Forward passes are `predict_on_batch` and training
steps `train_on_batch`, compiled by default. On torch a layer around `scaled_dot_product_attention`
shows the overhead of Keras. There is no dropout and no mask. This favours the peers, because
`keras.layers.MultiHeadAttention` leaves its fast path with dropout.

Shapes: B batch, S steps, D width.
"""

import keras
import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.measurements.translator import TRANSLATOR
from benchmarks.speed.registry import measurement
from keras_plm.layers import MultiHeadAttention

OURS, KERAS = "keras_plm", "keras.layers.MultiHeadAttention"
TORCH = "torch scaled_dot_product_attention"


def attention_cases(settings):
    """Returns two cases per shape: inference and training."""
    return {
        f"attention {kind} {'x'.join(map(str, shape))}": {"shape": shape, "train": kind == "train"}
        for shape in settings.attention_shapes
        for kind in ("infer", "train")
    }


@measurement(suite=TRANSLATOR, unit="tokens", cases=attention_cases)
def attention(settings, inputs, shape, train):
    """Forward passes or training steps of one attention layer."""
    batch, heads, length, head_dim = shape
    width = heads * head_dim
    rng = np.random.default_rng(settings.seed)
    x, y = rng.normal(size=(2, batch, length, width)).astype("float32")  # (B, S, D)
    steps = settings.steps if train else 4 * settings.steps

    def ours():
        layer = MultiHeadAttention(heads, width)
        return keras_steps(lambda x: layer(query=x), x, y, steps, train)

    def with_keras():
        layer = keras.layers.MultiHeadAttention(heads, head_dim)
        return keras_steps(lambda x: layer(x, x), x, y, steps, train)

    def with_torch():
        return torch_steps(heads, x, y, steps, train)

    implementations, peers = {KERAS: with_keras}, (KERAS,)
    if keras.backend.backend() == "torch":
        implementations[TORCH], peers = with_torch, (KERAS, TORCH)
    implementations[OURS] = ours
    return Comparison(implementations, batch * length * steps, {OURS: peers})


def keras_steps(call, x, y, steps, train):
    """Returns a function that runs steps of a model with one layer."""
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, call(inputs))
    model.compile(keras.optimizers.SGD(1e-3), loss="mean_squared_error")
    if train:
        return lambda: [model.train_on_batch(x, y) for _ in range(steps)]
    return lambda: [model.predict_on_batch(x) for _ in range(steps)]


def torch_steps(heads, x, y, steps, train):
    """Returns a function that runs the same steps in torch, with a fused projection."""
    import torch
    from torch.nn import functional

    device = keras.ops.zeros(1).device  # the device that Keras uses
    width = x.shape[-1]
    project = torch.nn.Linear(width, 3 * width).to(device)
    output = torch.nn.Linear(width, width).to(device)
    optimizer = torch.optim.SGD([*project.parameters(), *output.parameters()], lr=1e-3)

    def forward(x):
        parts = project(x).view(*x.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        context = functional.scaled_dot_product_attention(*parts)  # (B, N, S, H)
        return output(context.transpose(1, 2).flatten(2))

    def step():
        loss = functional.mse_loss(forward(on_device(x)), on_device(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def on_device(array):
        return torch.from_numpy(array).to(device)

    def predict():
        with torch.no_grad():
            return forward(on_device(x)).cpu().numpy()

    return lambda: [step() if train else predict() for _ in range(steps)]
