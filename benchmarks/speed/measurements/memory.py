"""Memory and speed of pre-training a BERT: precision, rematerialization, gradient accumulation.

Every implementation takes the same steps on the same batch. `gpt_loss` in `gpt.py` measures the
chunked loss.
"""

import functools

import keras
import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.measurements.bert import VOCABULARY, masked_rows
from benchmarks.speed.registry import Suite, measurement
from keras_plm.data.batching import Batches
from keras_plm.experiments.flags import policy
from keras_plm.layers import recompute_blocks
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.pretraining import MaskedLM
from keras_plm.training.optimizers import BertAdamW, loss_scaled

SIZE, ROWS, LENGTH = "medium", 16, 256
PLAIN, FLOOR = "float32", "float32, a quarter of the batch"
MICRO_BATCHES = 4
# {name: (precision, whether blocks are rematerialized, micro-batches per batch)}
VARIANTS = {
    FLOOR: ("float32", False, 1),
    PLAIN: ("float32", False, 1),
    "keras_plm, bfloat16": ("bfloat16", False, 1),
    "keras_plm, remat": ("float32", True, 1),
    f"keras_plm, {MICRO_BATCHES} micro-batches": ("float32", False, MICRO_BATCHES),
    f"keras_plm, {MICRO_BATCHES} micro-batches, remat": ("float32", True, MICRO_BATCHES),
    f"keras_plm, bfloat16, {MICRO_BATCHES} micro-batches, remat": ("bfloat16", True, MICRO_BATCHES),
}


def memory_cases(settings):
    return {f"pre-train BERT {SIZE}, {ROWS}x{LENGTH}": {}}


@measurement(
    suite=Suite("memory", "Speed: Memory"), unit="tokens", cases=memory_cases, peak_memory=True
)
def memory(settings, inputs):
    """Masked-LM training steps, with ways to save memory."""
    steps = settings.steps

    def prepare(variant):
        precision, remat, micro_batches = VARIANTS[variant]
        encoder = BERT(VOCABULARY, **BERT_SIZES[SIZE], dtype=policy(precision))
        if remat:
            recompute_blocks(encoder)
        model = MaskedLM(encoder, next_sentence=False)
        more = {"gradient_accumulation_steps": micro_batches} if micro_batches > 1 else {}
        model.compile(loss_scaled(BertAdamW(1e-4, **more), encoder), weighted_metrics=[])
        rows = ROWS // MICRO_BATCHES if variant == FLOOR else ROWS
        x, words, _ = masked_rows(rows, LENGTH, np.random.default_rng(settings.seed))
        y = {"masked_lm": words}

        def collate(indices, length, rng, epoch):
            return x, y, keras.tree.map_structure(lambda leaf: np.ones(leaf.shape), y)

        source = Batches(np.full(rows * steps, LENGTH), collate, batch_size=rows, buckets=[LENGTH])
        source = source.in_micro_batches(micro_batches)
        return lambda: model.fit(source, epochs=1, verbose=0)

    implementations = {variant: functools.partial(prepare, variant) for variant in VARIANTS}
    return Comparison(
        implementations,
        ROWS * LENGTH * steps,
        {variant: (PLAIN,) for variant in VARIANTS if variant != PLAIN},
        half_precision=frozenset(v for v in VARIANTS if VARIANTS[v][0] == "bfloat16"),
        fractions={FLOOR: (ROWS // MICRO_BATCHES) / ROWS},
    )
