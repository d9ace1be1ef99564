"""ELMo's projected LSTMs, its pre-training and word cache, and the LSTMs of the readers.

`lstm` trains one projected layer of both directions, as one layer of a Keras model. Its peers are
`torch.nn.LSTM(proj_size=...)`, which does not clip, and a plain loop over steps, which the backend
differentiates. Our layer and torch's are also timed with products in bfloat16. torch runs in the
same process under every backend of Keras.

Shapes: B rows, T steps, n cells, P width of a direction.
"""

import functools
import itertools

import keras
import numpy as np
from keras import ops

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from keras_plm.heads.readers import BiLSTM
from keras_plm.layers import ProjectedLSTM, reverse_rows
from keras_plm.layers._fused.scan import fold
from keras_plm.models import ELMo
from keras_plm.models.elmo import ELMO_SIZES
from keras_plm.pretraining import BiLM
from keras_plm.tokenizers import Characters

ELMO = Suite("elmo", "Speed: ELMo and LSTMs")
OURS, CACHED, LOOP = "keras_plm", "keras_plm, cached words", "a loop over steps"
TORCH, KERAS = "torch.nn.LSTM", "keras.layers.LSTM"
OURS_HALF, TORCH_HALF = f"{OURS}, bfloat16", f"{TORCH}, bfloat16"
PROJECTED = [(32, 20), (32, 64)]  # B, T
READERS = [(32, 32, 256, 128), (32, 64, 300, 300)]  # B, T, width of the features, units
VOCABULARY, SAMPLES = 50_000, 8192


def cases_of(name, settings):
    """Returns a case for each size of ELMo and each shape of rows."""
    found = {}
    for size, (batch, steps) in itertools.product(settings.elmos.split(","), PROJECTED):
        units, width = (ELMO_SIZES[size][name] for name in ("units", "projection_dim"))
        found[f"{name} {units}/{width}, {batch}x{steps}"] = {
            "batch": batch, "steps": steps, "size": size,
        }  # fmt: skip
    return found


@keras.saving.register_keras_serializable("keras_plm")
class BothWays(keras.layers.Layer):
    """Two recurrent layers: one reads from the start, the other one from the end.

    Args:
        ahead, back: Layers from (B, T, D) to (B, T, P).

    Call arguments:
        inputs: (B, T, D).
    """

    def __init__(self, ahead, back, **kwargs):
        super().__init__(**kwargs)
        self.ahead, self.back = ahead, back

    def build(self, inputs_shape):
        self.ahead.build(inputs_shape)
        self.back.build(inputs_shape)

    def call(self, inputs):
        back = reverse_rows(self.back(reverse_rows(inputs)))
        return ops.concatenate([self.ahead(inputs), back], axis=-1)

    def compute_output_spec(self, inputs):
        width = 2 * self.ahead.projection_dim
        return keras.KerasTensor((*inputs.shape[:2], width), dtype=self.compute_dtype)


class LoopedLSTM(ProjectedLSTM):
    """`ProjectedLSTM` as a loop over steps, whose gradient the backend derives."""

    def call(self, inputs, padding_mask=None, state=None, return_state=False):
        bias = self.bias + ops.convert_to_tensor(self.gate_bias)
        zeros = ops.zeros_like(inputs[:, 0, :1])

        def step(state, inputs):
            m, c = state
            z = ops.matmul(inputs[0], self.kernel) + ops.matmul(m, self.recurrent_kernel) + bias
            i, j, f, o = ops.split(z, 4, axis=-1)
            c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(j)
            c = ops.clip(c, -self.cell_clip, self.cell_clip)
            m = ops.matmul(ops.sigmoid(o) * ops.tanh(c), self.projection)
            m = ops.clip(m, -self.projection_clip, self.projection_clip)
            return (m, c), (m,)

        start = ops.tile(zeros, (1, self.projection_dim)), ops.tile(zeros, (1, self.units))
        _, (ms,) = fold(step, start, (ops.transpose(inputs, (1, 0, 2)),))
        return ops.transpose(ms, (1, 0, 2))


@measurement(suite=ELMO, unit="words", cases=functools.partial(cases_of, "train biLSTM"))
def lstm(settings, inputs, batch, steps, size):
    """Training steps of one projected layer in both directions."""
    units, width = (ELMO_SIZES[size][name] for name in ("units", "projection_dim"))
    count = max(settings.steps // (4 if size == "original" else 1), 1)
    rng = np.random.default_rng(settings.seed)
    x = rng.normal(size=(batch, steps, width)).astype("float32")
    y = rng.normal(size=(batch, steps, 2 * width)).astype("float32")

    def layer(kind, dtype="float32"):
        def prepare():
            ahead, back = (kind(units, width, dtype=dtype) for _ in range(2))
            return _training_steps(BothWays(ahead, back, dtype=dtype), x, y, count)

        return prepare

    def torch(half):
        return lambda: _torch_training_steps(width, units, x, y, count, half, proj_size=width)

    implementations = {
        TORCH: torch(half=False),
        TORCH_HALF: torch(half=True),
        LOOP: layer(LoopedLSTM),
        OURS: layer(ProjectedLSTM),
        OURS_HALF: layer(ProjectedLSTM, "mixed_bfloat16"),
    }
    peers = {OURS: (TORCH, LOOP), OURS_HALF: (TORCH, TORCH_HALF)}
    half = frozenset({OURS_HALF, TORCH_HALF})
    return Comparison(implementations, batch * steps * count, peers, half_precision=half)


def reader_cases(settings):
    return {
        f"train reader {batch}x{steps}x{units}": {
            "batch": batch, "steps": steps, "width": width, "units": units,
        }
        for batch, steps, width, units in READERS
    }  # fmt: skip


@measurement(suite=ELMO, unit="words", cases=reader_cases)
def reader(settings, inputs, batch, steps, width, units):
    """Training steps of a reader's bidirectional LSTM."""
    rng = np.random.default_rng(settings.seed)
    x = rng.normal(size=(batch, steps, width)).astype("float32")
    y = rng.normal(size=(batch, steps, 2 * units)).astype("float32")
    count = settings.steps

    def with_keras():
        layer = keras.layers.LSTM(units, return_sequences=True)
        return _training_steps(keras.layers.Bidirectional(layer), x, y, count)

    implementations = {
        TORCH: lambda: _torch_training_steps(width, units, x, y, count),
        KERAS: with_keras,
        OURS: lambda: _training_steps(BiLSTM(units, num_layers=1), x, y, count),
    }
    return Comparison(implementations, batch * steps * count, {OURS: (TORCH, KERAS)})


def _training_steps(layer, x, y, count):
    """Returns a function that runs training steps of a model with one layer."""
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(1e-3), loss="mean_squared_error")
    return lambda: [model.train_on_batch(x, y) for _ in range(count)]


def _torch_training_steps(width, units, x, y, count, half=False, **options):
    """Returns a function that runs the same steps in torch."""
    import contextlib

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.LSTM(width, units, batch_first=True, bidirectional=True, **options).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def step():
        inputs, targets = (torch.from_numpy(array).to(device) for array in (x, y))
        narrow = torch.autocast(device, torch.bfloat16) if half else contextlib.nullcontext()
        with narrow:
            outputs = layer(inputs)[0]
        loss = torch.nn.functional.mse_loss(outputs.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda: [step() for _ in range(count)]


@measurement(suite=ELMO, unit="words", cases=functools.partial(cases_of, "pre-train ELMo"))
def bilm(settings, inputs, batch, steps, size):
    """Training steps of a whole biLM, with its character layers and sampled softmax.

    Words are drawn by Zipf's law from generated spellings, so that they recur as in real text.
    """
    count = max(settings.steps // (4 if size == "original" else 1), 1)

    def ours(dtype):
        model = BiLM(ELMo(**ELMO_SIZES[size], dtype=dtype), VOCABULARY, SAMPLES, batch_size=batch)
        model.compile()
        stream, lexicon = _generated_text(settings.seed, batch * (steps + 25) * 4)
        batches = model.batches(stream, lexicon, steps)
        x, y, _ = batches[0]
        return lambda: [model.train_on_batch(x, y) for _ in range(count)]

    policies = {OURS: "float32", OURS_HALF: "mixed_bfloat16"}
    return Comparison(
        {name: functools.partial(ours, policy) for name, policy in policies.items()},
        batch * steps * count,
        {OURS_HALF: (OURS,)},
        half_precision=frozenset({OURS_HALF}),
    )


class _Stream:
    """The part of a token stream that `BiLM.batches` uses."""

    def __init__(self, tokens, length=25):
        self.tokens = tokens
        self.sentences = np.append(np.arange(0, len(tokens), length), len(tokens))


def _generated_text(seed, count):
    from keras_plm.tokenizers import Words

    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.2, count), VOCABULARY - 4)
    words = [f"w{i:x}" for i in range(VOCABULARY - 3)]
    return _Stream(ranks + 2), Words(["[PAD]", "[UNK]", "[EOS]", *words])


@measurement(
    suite=ELMO,
    unit="sentences",
    cases=lambda settings: {"encode sentences, ELMo small": {}},
    uses_sentences=True,
)
def encode_words(settings, inputs):
    """Vectors of every layer for sentences, with words from their characters or from a cache."""
    sizes = ELMO_SIZES["small"]
    count = max(settings.sentences // 4, 32)
    packed = sorted(inputs.sentences[:count], key=len)
    batches = [Characters().pack(packed[i : i + 32]) for i in range(0, len(packed), 32)]

    def from_characters():
        encoder = ELMo(**sizes)
        return lambda: [encoder.predict_on_batch(batch) for batch in batches]

    def from_cache():
        cache = ELMo(**sizes).stacked_layers()
        return lambda: [cache.predict_on_batch(batch) for batch in batches]

    implementations = {OURS: from_characters, CACHED: from_cache}
    return Comparison(implementations, len(packed), {CACHED: (OURS,)})
