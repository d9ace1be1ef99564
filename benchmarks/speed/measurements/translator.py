"""The Transformer: decoding with and without a cache, training next to `torch.nn.Transformer`.

Shapes: B batch, S source steps, T target steps.
"""

import contextlib
import functools
import math

import keras
import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from keras_plm.data.batching import Batches
from keras_plm.decoding import beam_search, greedy
from keras_plm.experiments.flags import policy
from keras_plm.models import Transformer
from keras_plm.models.transformer import TRANSFORMER_SIZES
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed

TRANSLATOR = Suite("translator", "Speed: Attention, decoding, translation")
VOCABULARY, PAD, START = 8000, 0, 2
NEVER = -1  # an end token that no model generates, so all sources take equally many steps
SOURCES, SOURCE_LENGTH, BEAMS = 16, 20, 4
ROWS, SHORTEST, LONGEST = 64, 20, 32  # rows of a training step, limits of their lengths
CACHED, UNCACHED = "keras_plm", "keras_plm, without cache"
OURS, OURS_HALF = "keras_plm", "keras_plm, bfloat16"
TORCH, TORCH_HALF = "torch.nn.Transformer", "torch.nn.Transformer, bfloat16"


def decode_cases(settings):
    strategies = {
        "greedy": greedy,
        f"beam-{BEAMS}": functools.partial(beam_search, num_beams=BEAMS),
    }
    return {
        f"decode {name} {size}": {"size": size, "strategy": strategy}
        for size in settings.translators.split(",")
        for name, strategy in strategies.items()
    }


@measurement(suite=TRANSLATOR, unit="sentences", cases=decode_cases)
def decode(settings, inputs, size, strategy):
    """Decoding with random weights, where no text ends early."""
    set_seed(settings.seed)
    model = Transformer(VOCABULARY, **TRANSFORMER_SIZES[size])
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(4, VOCABULARY, (SOURCES, SOURCE_LENGTH)).astype("int32")  # (B, S)
    sources = {"token_ids": ids, "padding_mask": ids > PAD}

    def prepare(cache):
        def run():
            strategy(model, sources, START, NEVER, max_new_tokens=settings.written, cache=cache)

        return lambda: run

    implementations = {UNCACHED: prepare(False), CACHED: prepare(True)}
    return Comparison(implementations, SOURCES, {CACHED: (UNCACHED,)})


@measurement(
    suite=TRANSLATOR,
    unit="tokens",
    cases=lambda settings: {
        f"translate {size}": {"size": size} for size in settings.translators.split(",")
    },
)
def translate(settings, inputs, size):
    """Training steps on rows of unequal lengths; tokens of both languages count.

    All implementations use Adam and label smoothing. Padding does not count.
    """
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(4, VOCABULARY, (3, ROWS, LONGEST)).astype("int32")
    lengths = rng.integers(SHORTEST, LONGEST + 1, (2, ROWS, 1))
    lengths[:, 0] = LONGEST
    source, target, labels = ids
    source[np.arange(LONGEST) >= lengths[0]] = PAD  # (B, S)
    padding = np.arange(LONGEST) >= lengths[1]  # (B, T)
    target[padding], labels[padding] = PAD, PAD

    def ours(precision):
        model = Transformer(VOCABULARY, **TRANSFORMER_SIZES[size], dtype=policy(precision))
        # AdamW without decay is Adam.
        optimizer = BertAdamW(1e-4, weight_decay=0, bias_correction=True, global_clipnorm=None)
        model.compile(optimizer, label_smoothing=0.1, weighted_metrics=[])
        x = {"token_ids": source, "padding_mask": source > PAD, "target_ids": target}

        def collate(rows, length, rng, epoch):
            return x, labels, (labels > PAD).astype("float32")

        count = ROWS * settings.steps
        batches = Batches(np.full(count, LONGEST), collate, batch_size=ROWS, buckets=[LONGEST])
        return lambda: model.fit(batches, epochs=1, verbose=0)

    implementations = {OURS: lambda: ours("float32"), OURS_HALF: lambda: ours("bfloat16")}
    peers = {}
    if keras.backend.backend() == "torch":
        steps = functools.partial(peer_steps, size, source, target, labels, settings.steps)
        torch = {TORCH: lambda: steps(half=False), TORCH_HALF: lambda: steps(half=True)}
        implementations = torch | implementations
        peers = {OURS: (TORCH,), OURS_HALF: (TORCH_HALF,)}
    amount = int((source > PAD).sum() + (labels > PAD).sum()) * settings.steps
    half = frozenset({OURS_HALF, TORCH_HALF})
    return Comparison(implementations, amount, peers, half_precision=half)


def peer_steps(size, source, target, labels, steps, half):
    """Returns a function that runs training steps of `torch.nn.Transformer` with our embeddings.

    Its dropout within attention and feed-forward networks and its norm after each stack are
    removed, because neither the paper nor our model has them. Its attention has biases; ours does
    not.
    """
    import torch
    from torch.nn import functional

    device = keras.ops.zeros(1).device  # the device that Keras uses
    model = peer(size).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    source, target, labels = (
        torch.from_numpy(x).to(device).long() for x in (source, target, labels)
    )
    model.train()

    def precision():
        return torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext()

    def step():
        with precision():
            logits = model(source, target)
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(),
                labels.flatten(),
                ignore_index=PAD,
                label_smoothing=0.1,
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return lambda: [step() for _ in range(steps)]


def peer(size):
    """Returns `torch.nn.Transformer` with tied embeddings and sinusoids, from ids to logits."""
    import torch
    from torch import nn

    s = TRANSFORMER_SIZES[size]
    width, dropout = s["hidden_dim"], s["dropout"]

    class Peer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, width)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.transformer = nn.Transformer(
                width, s["num_heads"], s["num_layers"], s["num_layers"], s["intermediate_dim"],
                dropout, batch_first=True,
            )  # fmt: skip
            for stack in (self.transformer.encoder, self.transformer.decoder):
                stack.norm = None
                for layer in stack.layers:
                    layer.dropout = nn.Identity()
                    layer.self_attn.dropout = 0.0
            for layer in self.transformer.decoder.layers:
                layer.multihead_attn.dropout = 0.0
            angles = torch.arange(LONGEST)[:, None] * 10000.0 ** -(
                torch.arange(0, width, 2) / width
            )
            sines = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (T, D)
            self.register_buffer("positions", sines)
            ahead = nn.Transformer.generate_square_subsequent_mask(LONGEST)
            self.register_buffer("ahead", ahead.isinf())
            self.drop = nn.Dropout(dropout)

        def embed(self, ids):
            return self.drop(self.embedding(ids) * math.sqrt(width) + self.positions)

        def forward(self, source, target):
            padding = source == PAD
            states = self.transformer(
                self.embed(source),
                self.embed(target),
                tgt_mask=self.ahead,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return nn.functional.linear(states, self.embedding.weight)

    return Peer()
