"""Pre-training on a GPU next to `transformers`: BERT, GPT and ELMo, in bfloat16.

The peer is `transformers` with torch's fused attention (`sdpa`), a fused AdamW and bfloat16, eager
and compiled by `torch.compile`. It runs in the same process. Under JAX,
`XLA_PYTHON_CLIENT_PREALLOCATE=false` leaves memory for it. Both sides have the default dropout,
also of the attention weights. Ours runs as it is, on torch also with `compile_blocks`.

Shapes: B rows, T tokens, D width.
"""

import functools
import os

import keras
import numpy as np
from keras import ops

from benchmarks.speed.clock import Comparison
from benchmarks.speed.measurements import bert as speed_bert
from benchmarks.speed.measurements import elmo as speed_elmo
from benchmarks.speed.measurements import gpt as speed_gpt
from benchmarks.speed.measurements.bert import OURS_HALF, VOCABULARY
from benchmarks.speed.registry import Suite, measurement
from keras_plm.layers import compile_blocks
from keras_plm.models import BERT, BERT_SIZES, GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM, MaskedLM
from keras_plm.training.optimizers import BertAdamW

EAGER, COMPILED = "transformers, sdpa", "transformers, sdpa, compiled"
OURS_COMPILED = f"{OURS_HALF}, compiled blocks"
DROPOUT = 0.1
SHAPES = ((128, 128), (32, 512))  # B, T: 16,384 tokens a step
SIDE = 8192  # of the square matrices for the GPU's matrix rate


def check_gpu():
    """Raises ValueError unless JAX or torch detects a GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory too
    backend, found = keras.backend.backend(), 0
    if backend == "torch":
        import torch

        found = torch.cuda.device_count()
    elif backend == "jax":
        import jax

        found = sum(device.platform == "gpu" for device in jax.devices())
    if not found:
        raise ValueError(
            "Measurements of the suite gpu need a GPU that JAX or torch detects: install the CUDA "
            f"build and set KERAS_BACKEND. Received: KERAS_BACKEND={backend}, no GPU"
        )


def matrix_rates(side=None, products=20, repeats=5):
    """Measures products of large square matrices; returns the best FLOP/s by precision."""
    import time

    side, rates = side or SIDE, {}
    for name in ("float32", "bfloat16"):
        a = ops.cast(keras.random.normal((side, side)) * side**-0.5, name)
        best = 0.0
        for repeat in range(repeats + 1):
            x = a
            start = time.perf_counter()
            for _ in range(products):
                x = ops.matmul(a, x)
            float(ops.cast(x[0, 0], "float32"))  # waits for the result
            if repeat:  # the first repeat compiles
                best = max(best, products * 2 * side**3 / (time.perf_counter() - start))
        rates[name] = best
    return rates


GPU = Suite(
    "gpu",
    "Speed: A GPU",
    {"sizes": "base", "elmos": "original", "steps": 20},
)
gpu_measurement = functools.partial(
    measurement, suite=GPU, unit="tokens", check=check_gpu, matrix_rates=matrix_rates
)


def cases_of(name, settings):
    arguments = [(s, rows, length) for s in settings.sizes.split(",") for rows, length in SHAPES]
    return {
        f"pre-train {name} {size} with dropout, {rows}x{length}": {
            "size": size, "rows": rows, "length": length,
        }
        for size, rows, length in arguments
    }  # fmt: skip


def peer_steps(model, batch, steps, compiled):
    """Returns a function that runs training steps of the peer on one batch."""
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


def _comparison(settings, ours, peer, batch, flops):
    rows, length = batch["input_ids"].shape
    implementations = {
        EAGER: lambda: peer_steps(peer(), batch, settings.steps, False),
        COMPILED: lambda: peer_steps(peer(), batch, settings.steps, True),
        OURS_HALF: ours,
    }
    peers = {OURS_HALF: (EAGER, COMPILED)}
    if keras.backend.backend() == "torch":
        implementations[OURS_COMPILED] = lambda: ours(compiled=True)
        peers[OURS_COMPILED] = (EAGER, COMPILED, OURS_HALF)
    amount = rows * length * settings.steps
    return Comparison(implementations, amount, peers, flops, frozenset(implementations))


@gpu_measurement(cases=functools.partial(cases_of, "BERT"))
def gpu_bert(settings, inputs, size, rows, length):
    """Training steps with only the loss of masked words, 15 % of the tokens."""
    import transformers

    rng = np.random.default_rng(settings.seed)
    x, words, labels = speed_bert.masked_rows(rows, length, rng)

    def ours(compiled=False):
        encoder = BERT(VOCABULARY, **BERT_SIZES[size], dropout=DROPOUT, dtype="mixed_bfloat16")
        model = MaskedLM(encoder, next_sentence=False)
        if compiled:
            compile_blocks(model)
        model.compile(BertAdamW(1e-4), weighted_metrics=[])
        return speed_bert.fit_steps(model, x, {"masked_lm": words}, settings.steps)

    def peer():
        config = speed_bert.peer_config(size)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = DROPOUT
        config._attn_implementation = "sdpa"
        return transformers.BertForMaskedLM(config)

    ids = x["token_ids"]
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
    return _comparison(
        settings, ours, peer, batch, speed_bert.matrix_work(size, length, "pretrain")
    )


@gpu_measurement(cases=functools.partial(cases_of, "GPT"))
def gpu_gpt(settings, inputs, size, rows, length):
    """Training steps on the next token of full windows, for blocks as in GPT-2."""
    import transformers

    vocabulary, s = speed_gpt.VOCABULARY, GPT_SIZES[size]
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, vocabulary, (rows, length + 1)).astype("int32")
    x = {"token_ids": ids[:, :-1], "padding_mask": np.ones((rows, length), bool)}
    x["target_ids"] = ids[:, 1:]

    def ours(compiled=False):
        encoder = GPT(vocabulary, **s, pre_norm=True, dropout=DROPOUT, dtype="mixed_bfloat16")
        model = CausalLM(encoder)
        if compiled:
            compile_blocks(model)
        model.compile(BertAdamW(1e-4, bias_correction=True), weighted_metrics=[])
        return speed_bert.fit_steps(model, x, ids[:, 1:], settings.steps)

    def peer():
        # `OpenAIGPTLMHeadModel` has no fused attention.
        config = transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=length, n_layer=s["num_layers"],
            n_head=s["num_heads"], n_embd=s["hidden_dim"], n_inner=s["intermediate_dim"],
            resid_pdrop=DROPOUT, embd_pdrop=DROPOUT, attn_pdrop=DROPOUT,
        )  # fmt: skip
        config._attn_implementation = "sdpa"
        return transformers.GPT2LMHeadModel(config)

    batch = {"input_ids": ids[:, :-1], "labels": ids[:, :-1]}
    width, inner = s["hidden_dim"], s["intermediate_dim"]
    # Causal attention needs half of the pairs, but the kernels compute all products.
    block = 2 * (4 * width * width + 2 * width * inner) + 4 * length * width
    flops = 3 * (s["num_layers"] * block + 2 * width * vocabulary)
    return _comparison(settings, ours, peer, batch, flops)


@gpu_measurement(cases=functools.partial(speed_elmo.cases_of, "pre-train ELMo"))
def gpu_elmo(settings, inputs, batch, steps, size):
    """Training steps of a whole biLM."""
    return speed_elmo.bilm(settings, inputs, batch, steps, size)
