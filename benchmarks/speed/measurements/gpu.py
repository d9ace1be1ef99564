"""BERT, GPT and ELMo on a GPU next to `transformers`, in bfloat16.

The work is pre-training, fine-tuning and generation. The peer is `transformers` with torch's fused
attention (`sdpa`), a fused AdamW and bfloat16, eager and compiled by `torch.compile`. It runs in
the same process. Under JAX, `XLA_PYTHON_CLIENT_PREALLOCATE=false` leaves memory for it. In training
both sides have the default dropout, also of the attention weights. Ours runs as it is, on torch
also with `compile_blocks`.

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
from keras_plm.data.batching import Batches
from keras_plm.decoding import greedy
from keras_plm.heads import Classifier
from keras_plm.layers import compile_blocks
from keras_plm.models import BERT, BERT_SIZES, GPT, GPT_SIZES
from keras_plm.pretraining import CausalLM, MaskedLM
from keras_plm.training.optimizers import BertAdamW

EAGER, COMPILED = "transformers, sdpa", "transformers, sdpa, compiled"
OURS_COMPILED = f"{OURS_HALF}, compiled blocks"
DROPOUT = 0.1
SHAPES = ((128, 128), (32, 512))  # B, T: 16,384 tokens a step
BATCH, LENGTHS = 32, (8, 64)  # rows of a step of fine-tuning, and the limits of their lengths
PROMPTS = ((1, 20), (16, 20))  # B, T of generation
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
    {"sizes": "base", "elmos": "original", "steps": 20, "written": 128},
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


def peer_steps(model, batches, compiled):
    """Returns a function that runs a training step of the peer on each batch."""
    import torch

    device = _device()
    model = model.to(device).train()
    batches = [
        {name: torch.from_numpy(x).long().to(device) for name, x in batch.items()}
        for batch in batches
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model

    def step(batch):
        with torch.autocast(device, torch.bfloat16):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return lambda: [step(batch) for batch in batches][-1].item()


def _device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _pre_training(settings, ours, peer, batch, flops):
    """Returns the `Comparison` of steps on one batch."""
    amount = batch["input_ids"].size * settings.steps
    batches = [batch] * settings.steps
    return _comparison(ours, lambda compiled: peer_steps(peer(), batches, compiled), amount, flops)


def _comparison(ours, peer, amount, flops=None):
    """Returns a `Comparison`; `ours` and `peer` take whether to compile, and prepare the work."""
    implementations = {
        EAGER: functools.partial(peer, False),
        COMPILED: functools.partial(peer, True),
        OURS_HALF: functools.partial(ours, False),
    }
    peers = {OURS_HALF: (EAGER, COMPILED)}
    if keras.backend.backend() == "torch":
        implementations[OURS_COMPILED] = functools.partial(ours, True)
        peers[OURS_COMPILED] = (EAGER, COMPILED, OURS_HALF)
    return Comparison(implementations, amount, peers, flops, frozenset(implementations))


@gpu_measurement(cases=functools.partial(cases_of, "BERT"))
def gpu_bert(settings, inputs, size, rows, length):
    """Training steps with only the loss of masked words, 15 % of the tokens."""
    import transformers

    rng = np.random.default_rng(settings.seed)
    x, words, labels = speed_bert.masked_rows(rows, length, rng)

    def ours(compiled):
        encoder = BERT(VOCABULARY, **BERT_SIZES[size], dropout=DROPOUT, dtype="mixed_bfloat16")
        model = MaskedLM(encoder, next_sentence=False)
        if compiled:
            compile_blocks(model)
        model.compile(BertAdamW(1e-4), weighted_metrics=[])
        return speed_bert.fit_steps(model, x, {"masked_lm": words}, settings.steps)

    def peer():
        return transformers.BertForMaskedLM(_bert_config(size))

    ids = x["token_ids"]
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": labels}
    return _pre_training(
        settings, ours, peer, batch, speed_bert.matrix_work(size, length, "pretrain")
    )


def _bert_config(size):
    config = speed_bert.peer_config(size)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = DROPOUT
    config._attn_implementation = "sdpa"
    return config


@gpu_measurement(cases=functools.partial(cases_of, "GPT"))
def gpu_gpt(settings, inputs, size, rows, length):
    """Training steps on the next token of full windows, for blocks as in GPT-2."""
    import transformers

    vocabulary, s = speed_gpt.VOCABULARY, GPT_SIZES[size]
    rng = np.random.default_rng(settings.seed)
    ids = rng.integers(0, vocabulary, (rows, length + 1)).astype("int32")
    x = {"token_ids": ids[:, :-1], "padding_mask": np.ones((rows, length), bool)}
    x["target_ids"] = ids[:, 1:]

    def ours(compiled):
        encoder = GPT(vocabulary, **s, pre_norm=True, dropout=DROPOUT, dtype="mixed_bfloat16")
        model = CausalLM(encoder)
        if compiled:
            compile_blocks(model)
        model.compile(BertAdamW(1e-4, bias_correction=True), weighted_metrics=[])
        return speed_bert.fit_steps(model, x, ids[:, 1:], settings.steps)

    def peer():
        return transformers.GPT2LMHeadModel(speed_gpt.gpt2_config(size, length, DROPOUT))

    batch = {"input_ids": ids[:, :-1], "labels": ids[:, :-1]}
    width, inner = s["hidden_dim"], s["intermediate_dim"]
    # Causal attention needs half of the pairs, but the kernels compute all products.
    block = 2 * (4 * width * width + 2 * width * inner) + 4 * length * width
    flops = 3 * (s["num_layers"] * block + 2 * width * vocabulary)
    return _pre_training(settings, ours, peer, batch, flops)


@gpu_measurement(
    unit="rows",
    cases=lambda settings: {
        f"fine-tune BERT {size} with dropout, rows of {LENGTHS[0]} to {LENGTHS[1]} tokens": {
            "size": size
        }
        for size in settings.sizes.split(",")
    },
)
def gpu_finetune(settings, inputs, size):
    """Training steps of a classifier of rows of unequal lengths.

    The peer pads each batch to its longest row, as the `Trainer` does by default.
    """
    import transformers

    rng = np.random.default_rng(settings.seed)
    count = BATCH * settings.steps
    lengths = np.clip(rng.lognormal(3.1, 0.5, count).round(), *LENGTHS).astype(int)
    ids = rng.integers(1000, VOCABULARY, (count, LENGTHS[1])).astype("int32")
    y = rng.integers(0, 2, count).astype("int32")
    order = rng.permutation(count)  # of both peers

    def mask(rows, length):
        return np.arange(length) < lengths[rows][:, None]

    def collate(rows, length, rng, epoch):
        real = mask(rows, length)
        token_ids = ids[rows, :length] * real
        x = {"token_ids": token_ids, "segment_ids": 0 * token_ids, "padding_mask": real}
        return x, y[rows], np.ones(len(rows), "float32")

    def ours(compiled):
        encoder = BERT(VOCABULARY, **BERT_SIZES[size], dropout=DROPOUT, dtype="mixed_bfloat16")
        model = Classifier(encoder, speed_bert.LABELS)
        if compiled:
            compile_blocks(model)
        model.compile(BertAdamW(1e-4), weighted_metrics=[])
        source = Batches(lengths, collate, batch_size=BATCH)
        return lambda: model.fit(source, epochs=1, verbose=0)

    def peer(compiled):
        batches = []
        for rows in order.reshape(-1, BATCH):
            real = mask(rows, lengths[rows].max())
            token_ids = ids[rows, : real.shape[1]] * real
            batches.append({"input_ids": token_ids, "attention_mask": real, "labels": y[rows]})
        model = transformers.BertForSequenceClassification(_bert_config(size))
        return peer_steps(model, batches, compiled)

    return _comparison(ours, peer, count)


@gpu_measurement(
    cases=lambda settings: {
        f"write, GPT {size}, {rows} prompts of {length}": {
            "size": size, "rows": rows, "length": length,
        }
        for size in settings.sizes.split(",")
        for rows, length in PROMPTS
    },
)  # fmt: skip
def gpu_write(settings, inputs, size, rows, length):
    """Greedy generation after prompts, with a cache.

    The compiled peer has a cache of fixed size, which `transformers` compiles on a GPU.
    """
    import torch
    import transformers

    positions = length + settings.written
    ids = np.random.default_rng(settings.seed).integers(0, speed_gpt.VOCABULARY, (rows, length))

    def ours(compiled):
        options = GPT_SIZES[size] | {"max_sequence_length": positions}
        model = GPT(speed_gpt.VOCABULARY, **options, pre_norm=True, dtype="bfloat16")
        if compiled:
            compile_blocks(model)
        prompts = {"token_ids": ids.astype("int32"), "padding_mask": np.ones_like(ids, bool)}
        return lambda: greedy(model, prompts, 0, speed_gpt.NEVER, max_new_tokens=settings.written)

    def peer(compiled):
        model = transformers.GPT2LMHeadModel(speed_gpt.gpt2_config(size, positions, DROPOUT))
        model = model.to(_device(), torch.bfloat16).eval()
        prompts = torch.from_numpy(ids).to(_device())
        options = {"max_new_tokens": settings.written, "do_sample": False, "pad_token_id": 0}
        if compiled:
            options["cache_implementation"] = "static"

        def run():
            with torch.inference_mode():
                model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)

        return run

    return _comparison(ours, peer, rows * settings.written)


@gpu_measurement(cases=functools.partial(speed_elmo.cases_of, "pre-train ELMo"))
def gpu_elmo(settings, inputs, batch, steps, size):
    """Training steps of a whole biLM."""
    return speed_elmo.bilm(settings, inputs, batch, steps, size)
