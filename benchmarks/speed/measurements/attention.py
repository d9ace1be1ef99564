"""Multi-head self-attention, a whole layer with its projections, beside the backends' own.

Each is the only layer of a model, so that forward passes are `predict_on_batch` and training steps
`train_on_batch`, compiled as users have them. On torch a layer written by hand around
`scaled_dot_product_attention` shows what Keras costs. No dropout and no mask, which suits the peers
best: with dropout `keras.layers.MultiHeadAttention` leaves its fast path, also at inference.

Shapes: B batch, S steps, D width.
"""

import functools

import keras
import numpy as np

from benchmarks.speed.clock import Work
from keras_plm.layers import MultiHeadAttention

OURS, KERAS = "keras_plm", "keras.layers.MultiHeadAttention"
TORCH = "torch scaled_dot_product_attention"


def parse_shapes(text):
    """`"8x12x512x64,..."` as a list of (batch, heads, length, head width).

    Raises:
        ValueError: If a shape is not four positive numbers.
    """
    shapes = []
    for part in text.split(","):
        numbers = part.split("x")
        if len(numbers) != 4 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise ValueError(
                "`shapes` are four numbers with x between them: batch, heads, length and head "
                f"width, as 8x12x512x64; several are parted by commas. Received: {part!r}"
            )
        shapes.append(tuple(int(n) for n in numbers))
    return shapes


def works(settings):
    """`{name: function that gives its `Work`}`: each shape forward, and forward and backward."""
    return {
        f"attention {kind} {'x'.join(map(str, shape))}": functools.partial(
            attention, settings, shape, kind == "train"
        )
        for shape in parse_shapes(settings.shapes)
        for kind in ("infer", "train")
    }


def attention(settings, shape, train):
    """Steps of one attention layer; in tokens per second."""
    batch, heads, length, head_dim = shape
    width = heads * head_dim
    rng = np.random.default_rng(settings.seed)
    x, y = rng.normal(size=(2, batch, length, width)).astype("float32")  # (B, S, D)
    steps = settings.steps if train else 4 * settings.steps

    def ours():
        layer = MultiHeadAttention(heads, width)
        return keras_turn(lambda x: layer(query=x), x, y, steps, train)

    def of_keras():
        layer = keras.layers.MultiHeadAttention(heads, head_dim)
        return keras_turn(lambda x: layer(x, x), x, y, steps, train)

    def by_hand():
        return torch_turn(heads, x, y, steps, train)

    makers, peers = {KERAS: of_keras}, (KERAS,)
    if keras.backend.backend() == "torch":
        makers[TORCH], peers = by_hand, (KERAS, TORCH)
    makers[OURS] = ours
    return Work(makers, batch * length * steps, "tokens", {OURS: peers})


def keras_turn(call, x, y, steps, train):
    """A turn of a model that is one layer."""
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, call(inputs))
    model.compile(keras.optimizers.SGD(1e-3), loss="mean_squared_error")
    if train:
        return lambda: [model.train_on_batch(x, y) for _ in range(steps)]
    return lambda: [model.predict_on_batch(x) for _ in range(steps)]


def torch_turn(heads, x, y, steps, train):
    """The same steps as one writes them in torch: a fused projection, one optimizer."""
    import torch
    from torch.nn import functional

    device = keras.ops.zeros(1).device  # where Keras computes
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
