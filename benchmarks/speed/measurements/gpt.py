"""GPT next to `transformers`: training on the next token, memory of the loss, generation.

The peer is `transformers` with its defaults: float32, eager, all logits in memory. Tuned, it uses
bfloat16 and a fused AdamW. In generation the peer is its GPT-2, because its GPT has no cache. It
runs in the same process under every backend of Keras.

Shapes: B rows, T tokens, D width, V tokens of the vocabulary.
"""

import contextlib
import functools

import keras
import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from keras_plm.data.batching import Batches
from keras_plm.decoding import greedy
from keras_plm.experiments.flags import policy
from keras_plm.layers import TokenEmbedding
from keras_plm.models import GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM
from keras_plm.pretraining.causal_lm import TiedLoss
from keras_plm.training.optimizers import BertAdamW

SUITE = Suite("gpt", "Speed: GPT")
GENERATION = Suite("generation", "Speed: generation")
VOCABULARY, WIDTH = 40_478, 768  # of the released model
ROWS, TOKENS = 8, 512  # of the loss
LENGTHS = {"mini": ((32, 128), (8, 512)), "base": ((8, 128), (2, 512))}  # B, T of a step
PROMPTS = (16, 20)  # B, T
NEVER = -1  # an end token that no model generates
OURS, OURS_HALF = "keras_plm", "keras_plm, bfloat16"
PEER, TUNED = "transformers GPT", "transformers GPT, tuned"
CACHED = "transformers GPT-2"  # the peer's GPT has no cache
CACHED_HALF = f"{CACHED}, bfloat16"
CHUNKS, PLAIN, FLOOR = "keras_plm", "all logits at once", "no loss"


def peer(size, dropout=0.1):
    """Returns an `OpenAIGPTLMHeadModel` of our size, with eager attention."""
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


def gpt2_config(size, positions, dropout=0.1):
    """Returns a configuration of GPT-2 of our size, with fused attention and a cache."""
    import transformers

    s = GPT_SIZES[size]
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=positions, n_layer=s["num_layers"],
        n_head=s["num_heads"], n_embd=s["hidden_dim"], n_inner=s["intermediate_dim"],
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return config


def causal_lm_cases(settings):
    return {
        f"train GPT {size}, {rows}x{length}": {"size": size, "rows": rows, "length": length}
        for size in settings.sizes.split(",")
        for rows, length in LENGTHS.get(size, ((8, 128),))
    }


@measurement(suite=SUITE, unit="tokens", cases=causal_lm_cases)
def causal_lm(settings, inputs, size, rows, length):
    """Training steps on full windows, with dropout."""
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
                loss = model(input_ids=batch, labels=batch).loss  # it shifts the labels by one
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return lambda: [step() for _ in range(steps)]

    implementations = {
        PEER: lambda: theirs(False),
        TUNED: lambda: theirs(True),
        OURS: lambda: ours("float32"),
        OURS_HALF: lambda: ours("bfloat16"),
    }
    peers = {OURS: (PEER,), OURS_HALF: (PEER, TUNED)}
    half = frozenset({OURS_HALF, TUNED})
    return Comparison(implementations, rows * length * steps, peers, half_precision=half)


@keras.saving.register_keras_serializable("keras_plm")
class PlainLoss(TiedLoss):
    """The loss of `TiedLoss`, computed from all logits at once."""

    def call(self, hidden, target_ids):
        logits = self.token_embedding(hidden, reverse=True)
        return keras.losses.sparse_categorical_crossentropy(target_ids, logits, from_logits=True)


@keras.saving.register_keras_serializable("keras_plm")
class NoLoss(TiedLoss):
    """One product per token, with gradients to both factors: the cost without a loss."""

    def call(self, hidden, target_ids):
        return keras.ops.sum(hidden * self.token_embedding(target_ids), axis=-1)


@measurement(
    suite=SUITE,
    unit="tokens",
    cases=lambda settings: {f"loss of {ROWS}x{TOKENS}x{VOCABULARY}": {}},
    peak_memory=True,
)
def gpt_loss(settings, inputs):
    """Loss of a batch and its gradients with respect to the hidden layer and the embeddings."""
    rng = np.random.default_rng(settings.seed)
    hidden = rng.normal(size=(ROWS, TOKENS, WIDTH)).astype("float32") * 0.1
    ids = rng.integers(0, VOCABULARY, (ROWS, TOKENS)).astype("int32")

    def prepare(kind):
        states, targets = keras.Input((TOKENS, WIDTH)), keras.Input((TOKENS,), dtype="int32")
        table = TokenEmbedding(VOCABULARY, WIDTH)
        table.build((None, None))
        # A trainable scale makes the gradient reach the hidden layer.
        scaled = keras.layers.EinsumDense("btd,d->btd", (TOKENS, WIDTH))(states)
        model = keras.Model((states, targets), kind(table)(scaled, targets))
        model.compile(keras.optimizers.SGD(1e-3), loss=lambda y, losses: losses)
        return lambda: model.train_on_batch([hidden, ids], ids)

    losses = {FLOOR: NoLoss, PLAIN: PlainLoss, CHUNKS: TiedLoss}
    implementations = {name: functools.partial(prepare, kind) for name, kind in losses.items()}
    return Comparison(implementations, ROWS * TOKENS, {CHUNKS: (PLAIN, FLOOR)})


@measurement(
    suite=GENERATION,
    unit="tokens",
    cases=lambda settings: {
        f"write, GPT {size}": {"size": size} for size in settings.sizes.split(",")
    },
)
def write(settings, inputs, size):
    """Greedy generation after prompts, each with a cache of keys and values."""
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, VOCABULARY, PROMPTS).astype("int32")

    def ours(precision):
        model = GPT(VOCABULARY, **GPT_SIZES[size], dtype=policy(precision))
        prompts = {"token_ids": ids, "padding_mask": np.ones(PROMPTS, bool)}
        return lambda: greedy(model, prompts, 0, NEVER, max_new_tokens=settings.written)

    def theirs(dtype):
        import torch
        import transformers

        device = "cuda" if torch.cuda.is_available() else "cpu"
        config = gpt2_config(size, PROMPTS[1] + settings.written)
        model = transformers.GPT2LMHeadModel(config).to(device, getattr(torch, dtype)).eval()
        prompts = torch.from_numpy(ids).to(device).long()
        options = {"max_new_tokens": settings.written, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(prompts)

        def run():
            with torch.inference_mode():
                model.generate(prompts, attention_mask=mask, **options)

        return run

    amount = PROMPTS[0] * settings.written
    implementations = {
        CACHED: lambda: theirs("float32"),
        CACHED_HALF: lambda: theirs("bfloat16"),
        OURS: lambda: ours("float32"),
        OURS_HALF: lambda: ours("bfloat16"),
    }
    peers = {OURS: (CACHED,), OURS_HALF: (CACHED, CACHED_HALF)}
    half = frozenset({OURS_HALF, CACHED_HALF})
    return Comparison(implementations, amount, peers, half_precision=half)
