"""Pre-training on a GPU beside `transformers`: BERT, GPT and ELMo, in bfloat16, tokens per second.

The peer is `transformers` with torch's fused attention (`sdpa`), a fused AdamW and bfloat16, as it
comes and compiled by `torch.compile`. It runs in the same process, under JAX on the memory that
`XLA_PYTHON_CLIENT_PREALLOCATE=false` leaves it. Nothing is dropped: `sdpa` and our kernels agree on
no random numbers, and what is measured are matrix products.

Shapes: B rows, T tokens, D width.
"""

import functools
import os

import keras
import numpy as np
from keras import ops

from benchmarks.speed import bert as speed_bert
from benchmarks.speed import elmo
from benchmarks.speed import gpt as speed_gpt
from benchmarks.speed.bert import OURS_HALF, VOCABULARY
from benchmarks.speed.clock import Work
from keras_plm.models import BERT, BERT_SIZES, GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM, MaskedLM
from keras_plm.training.optimizers import BertAdamW

KINDS = ("gpu_bert", "gpu_gpt", "gpu_elmo")
EAGER, COMPILED = "transformers, sdpa", "transformers, sdpa, compiled"
SHAPES = ((128, 128), (32, 512))  # B, T: 16,384 tokens a step
SIDE = 8192  # of the square matrices whose product is the card's rate


def check():
    """Raises ValueError unless there is a GPU that the backend sees."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch is there too
    backend, found = keras.backend.backend(), 0
    if backend == "torch":
        import torch

        found = torch.cuda.device_count()
    elif backend == "jax":
        import jax

        found = sum(device.platform == "gpu" for device in jax.devices())
    if not found:
        raise ValueError(
            "These are timed on a GPU that JAX or torch sees: install its CUDA build and set "
            f"KERAS_BACKEND. Received: KERAS_BACKEND={backend}, no GPU"
        )


def works(kind, settings):
    """`{name: function that gives its `Work`}` of one kind."""
    check()
    if kind == "gpu_elmo":
        return elmo.works("bilm", settings, None)
    found = {}
    for size in settings.sizes.split(","):
        for rows, length in SHAPES:
            name, make = ("pre-train BERT", bert) if kind == "gpu_bert" else ("pre-train GPT", gpt)
            found[f"{name} {size}, {rows}x{length}"] = functools.partial(
                make, settings, size, rows, length
            )
    return found


def matrix_rates(side=None, products=20, turns=5):
    """The card's products of large square matrices per second, FLOP/s by precision, best of few."""
    import time

    side, rates = side or SIDE, {}
    for name in ("float32", "bfloat16"):
        a = ops.cast(keras.random.normal((side, side)) * side**-0.5, name)
        best = 0.0
        for turn in range(turns + 1):
            x = a
            begun = time.perf_counter()
            for _ in range(products):
                x = ops.matmul(a, x)
            float(ops.cast(x[0, 0], "float32"))  # waits
            if turn:
                best = max(best, products * 2 * side**3 / (time.perf_counter() - begun))
        rates[name] = best
    return rates


def peer_turn(model, batch, steps, compiled):
    """A turn of the peer: so many training steps on one batch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).train()
    batch = {name: torch.from_numpy(array).long().to(device) for name, array in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return lambda: [step() for _ in range(steps)][-1].item()


def _work(settings, ours, peer, batch, flops):
    rows, length = batch["input_ids"].shape
    makers = {
        EAGER: lambda: peer_turn(peer(), batch, settings.steps, False),
        COMPILED: lambda: peer_turn(peer(), batch, settings.steps, True),
        OURS_HALF: ours,
    }
    amount = rows * length * settings.steps
    beside = {OURS_HALF: (EAGER, COMPILED)}
    return Work(makers, amount, "tokens", beside, flops, half=frozenset(makers))


def bert(settings, size, rows, length):
    """Masked words alone, 15 % of the tokens."""
    import transformers

    rng = np.random.default_rng(settings.seed)
    x, words, labels = speed_bert.masked_rows(rows, length, rng)

    def ours():
        encoder = BERT(VOCABULARY, **BERT_SIZES[size], dropout=0.0, dtype="mixed_bfloat16")
        model = MaskedLM(encoder, next_sentence=False)
        model.compile(BertAdamW(1e-4), weighted_metrics=[])
        return speed_bert.our_fit(model, x, {"masked_lm": words}, settings.steps)

    def peer():
        config = speed_bert.peer_config(size)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        config._attn_implementation = "sdpa"
        return transformers.BertForMaskedLM(config)

    ids = x["token_ids"]
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
    return _work(settings, ours, peer, batch, speed_bert.matrix_work(size, length, "pretrain"))


def gpt(settings, size, rows, length):
    """The next token, of full windows."""
    vocabulary, s = speed_gpt.VOCABULARY, GPT_SIZES[size]
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, vocabulary, (rows, length + 1)).astype("int32")
    x = {"token_ids": ids[:, :-1], "padding_mask": np.ones((rows, length), bool)}
    x["target_ids"] = ids[:, 1:]

    def ours():
        encoder = GPT(vocabulary, **s, dropout=0.0, dtype="mixed_bfloat16")
        model = CausalLM(encoder)
        model.compile(BertAdamW(1e-4, bias_correction=True), weighted_metrics=[])
        return speed_bert.our_fit(model, x, ids[:, 1:], settings.steps)

    batch = {"input_ids": ids[:, :-1], "labels": ids[:, :-1]}
    width, inner = s["hidden_dim"], s["intermediate_dim"]
    # Attention looks at half of the pairs, which no kernel here makes use of in its products.
    of_block = 2 * (4 * width * width + 2 * width * inner) + 4 * length * width
    flops = 3 * (s["num_layers"] * of_block + 2 * width * vocabulary)
    return _work(settings, ours, lambda: speed_gpt.peer(size, 0.0), batch, flops)
