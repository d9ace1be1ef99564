"""GPT beside `transformers`: training on the next token, the memory of its loss, writing.

The peer is `transformers` as it comes: float32, eager, all logits in memory; `tuned` is bfloat16
with a fused AdamW. It runs in the same process, under whichever backend Keras has.

Shapes: B rows, T tokens, D width, V tokens of the vocabulary.
"""

import contextlib
import dataclasses
import functools
import json
import sys

import keras
import numpy as np

from benchmarks.speed.clock import Work, alone
from keras_plm.data.batching import Batches
from keras_plm.decoding import greedy
from keras_plm.experiments.flags import policy
from keras_plm.experiments.results import peak_so_far
from keras_plm.layers import TokenEmbedding
from keras_plm.models import GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM
from keras_plm.pretraining.causal_lm import TiedLoss
from keras_plm.training.optimizers import BertAdamW

KINDS = ("causal_lm", "gpt_loss", "write")
VOCABULARY, WIDTH = 40_478, 768  # the released model's
ROWS, TOKENS = 8, 512  # of the loss
LENGTHS = {"mini": ((32, 128), (8, 512)), "base": ((8, 128), (2, 512))}  # B, T of a step
PROMPTS = (16, 20)  # B, T
NEVER = -1  # an end token that no model writes
OURS, OURS_HALF = "keras_plm", "keras_plm, bfloat16"
PEER, TUNED = "transformers GPT", "transformers GPT, tuned"
CHUNKS, PLAIN, FLOOR = "keras_plm", "all logits at once", "no loss"


def works(kind, settings):
    """`{name: function that gives its `Work`}` of one kind."""
    if kind == "gpt_loss":
        return {f"loss of {ROWS}x{TOKENS}x{VOCABULARY}": functools.partial(loss, settings)}
    found = {}
    for size in settings.sizes.split(","):
        if kind == "write":
            found[f"write, GPT {size}"] = functools.partial(writing, settings, size)
            continue
        for rows, length in LENGTHS.get(size, ((8, 128),)):
            name = f"train GPT {size}, {rows}x{length}"
            found[name] = functools.partial(training, settings, size, rows, length)
    return found


def peer(size, dropout=0.1):
    """`OpenAIGPTLMHeadModel` of our size, with eager attention."""
    import transformers

    s = GPT_SIZES[size]
    config = transformers.OpenAIGPTConfig(
        vocab_size=VOCABULARY,
        n_layer=s["num_layers"],
        n_head=s["num_heads"],
        n_embd=s["hidden_dim"],
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return transformers.OpenAIGPTLMHeadModel(config)


def training(settings, size, rows, length):
    """Training steps on full windows, dropout and all; in tokens per second."""
    steps = settings.steps if size == "mini" else max(settings.steps // 4, 1)
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, VOCABULARY, (rows, length + 1)).astype("int32")

    def ours(precision):
        model = CausalLM(GPT(VOCABULARY, **GPT_SIZES[size], dtype=policy(precision)))
        model.compile(BertAdamW(1e-4, bias_correction=True), weighted_metrics=[])
        x = {"token_ids": ids[:, :-1], "padding_mask": np.ones((rows, length), bool)}
        x["target_ids"] = ids[:, 1:]

        def collate(indices, length, rng, epoch):
            return x, ids[:, 1:], np.ones((rows, length), "float32")

        count = rows * steps
        source = Batches(np.full(count, length), collate, batch_size=rows, buckets=[length])
        return lambda: model.fit(source, epochs=1, verbose=0)

    def theirs(tuned):
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = peer(size).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned or None)
        batch = torch.from_numpy(ids[:, :-1]).to(device).long()

        def step():
            narrow = torch.autocast(device, torch.bfloat16) if tuned else contextlib.nullcontext()
            with narrow:
                found = model(input_ids=batch, labels=batch).loss  # shifted by one within
            found.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return found.item()

        return lambda: [step() for _ in range(steps)]

    makers = {
        PEER: lambda: theirs(False),
        TUNED: lambda: theirs(True),
        OURS: lambda: ours("float32"),
        OURS_HALF: lambda: ours("bfloat16"),
    }
    beside = {OURS: (PEER,), OURS_HALF: (PEER, TUNED)}
    half = frozenset({OURS_HALF, TUNED})
    return Work(makers, rows * length * steps, "tokens", beside, half=half)


@keras.saving.register_keras_serializable("keras_plm")
class PlainLoss(TiedLoss):
    """What `TiedLoss` gives, of all logits at once."""

    def call(self, hidden, target_ids):
        logits = self.token_embedding(hidden, reverse=True)
        return keras.losses.sparse_categorical_crossentropy(target_ids, logits, from_logits=True)


@keras.saving.register_keras_serializable("keras_plm")
class NoLoss(TiedLoss):
    """One product a token, with gradients to both sides: what is there without a loss."""

    def call(self, hidden, target_ids):
        return keras.ops.sum(hidden * self.token_embedding(target_ids), axis=-1)


def loss(settings):
    """The loss of a batch and its gradient to the hidden layer and the table; in tokens."""
    rng = np.random.default_rng(settings.seed)
    hidden = rng.normal(size=(ROWS, TOKENS, WIDTH)).astype("float32") * 0.1
    ids = rng.integers(0, VOCABULARY, (ROWS, TOKENS)).astype("int32")

    def of(kind):
        inputs = keras.Input((TOKENS, WIDTH)), keras.Input((TOKENS,), dtype="int32")
        table = TokenEmbedding(VOCABULARY, WIDTH)
        table.build((None, None))
        # A scale that learns asks for the gradient to the hidden layer.
        scaled = keras.layers.EinsumDense("btd,d->btd", (TOKENS, WIDTH))(inputs[0])
        model = keras.Model(inputs, kind(table)(scaled, inputs[1]))
        model.compile(keras.optimizers.SGD(1e-3), loss=lambda y, losses: losses)
        return lambda: model.train_on_batch([hidden, ids], ids)

    makers = {FLOOR: NoLoss, PLAIN: PlainLoss, CHUNKS: TiedLoss}
    makers = {name: functools.partial(of, kind) for name, kind in makers.items()}
    return Work(makers, ROWS * TOKENS, "tokens", {CHUNKS: (PLAIN, FLOOR)})


def writing(settings, size):
    """The likeliest tokens behind prompts, from a cache; in tokens per second."""
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, VOCABULARY, PROMPTS).astype("int32")

    def ours():
        model = GPT(VOCABULARY, **GPT_SIZES[size])
        inputs = {"token_ids": ids, "padding_mask": np.ones(PROMPTS, bool)}
        return lambda: greedy(model, inputs, 0, NEVER, max_new_tokens=settings.written)

    def theirs():
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = peer(size).to(device).eval()
        prompts = torch.from_numpy(ids).to(device).long()
        options = {"max_new_tokens": settings.written, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(prompts)

        def turn():
            with torch.inference_mode():
                model.generate(prompts, attention_mask=mask, **options)

        return turn

    amount = PROMPTS[0] * settings.written
    return Work({PEER: theirs, OURS: ours}, amount, "tokens", {OURS: (PEER,)})


def peak(name, contestant, settings, data=None):
    """Megabytes at the most of a process that does one turn, with what it takes to start."""
    asked = json.dumps(dataclasses.asdict(settings))
    return alone("benchmarks.speed.gpt", name, contestant, asked)


def main(name, contestant, settings):
    from benchmarks.speed.run import Speed

    made = {
        n: make for kind in KINDS for n, make in works(kind, Speed(**json.loads(settings))).items()
    }
    made[name]().makers[contestant]()()
    print(peak_so_far())


if __name__ == "__main__":
    main(*sys.argv[1:])
