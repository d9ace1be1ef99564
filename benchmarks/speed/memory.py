"""What saves memory in pre-training a BERT, and what it costs: precision, remat, accumulation.

Every contestant takes the same steps on the same batch; the memory of each is the most that a
process of its own held which did one turn. The chunked loss is in `speed_gpt`, `gpt_loss`.
"""

import dataclasses
import functools
import json
import sys

import keras
import numpy as np

from benchmarks.speed.bert import VOCABULARY, masked_rows
from benchmarks.speed.clock import Work, alone
from keras_plm.data.batching import Batches
from keras_plm.experiments.flags import policy
from keras_plm.experiments.results import peak_so_far
from keras_plm.layers import recompute_blocks
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.pretraining import MaskedLM
from keras_plm.training.optimizers import BertAdamW, loss_scaled

KINDS = ("memory",)
SIZE, ROWS, LENGTH = "medium", 16, 256
PLAIN, FLOOR = "float32", "float32, a quarter of the batch"
PARTS = 4
# Name: precision, whether blocks are made again, parts of a batch.
WAYS = {
    FLOOR: ("float32", False, 1),
    PLAIN: ("float32", False, 1),
    "keras_plm, bfloat16": ("bfloat16", False, 1),
    "keras_plm, remat": ("float32", True, 1),
    f"keras_plm, {PARTS} parts": ("float32", False, PARTS),
    f"keras_plm, {PARTS} parts, remat": ("float32", True, PARTS),
    f"keras_plm, bfloat16, {PARTS} parts, remat": ("bfloat16", True, PARTS),
}


def works(kind, settings):
    """`{name: function that gives its `Work`}`."""
    name = f"pre-train BERT {SIZE}, {ROWS}x{LENGTH}"
    return {name: functools.partial(pretraining, settings)}


def pretraining(settings):
    """Steps on masked words; in tokens per second."""
    steps = settings.steps

    def turn(way):
        precision, again, parts = WAYS[way]
        encoder = BERT(VOCABULARY, **BERT_SIZES[SIZE], dtype=policy(precision))
        if again:
            recompute_blocks(encoder)
        model = MaskedLM(encoder, next_sentence=False)
        more = {"gradient_accumulation_steps": parts} if parts > 1 else {}
        model.compile(loss_scaled(BertAdamW(1e-4, **more), encoder), weighted_metrics=[])
        rows = ROWS // PARTS if way == FLOOR else ROWS
        x, words, _ = masked_rows(rows, LENGTH, np.random.default_rng(settings.seed))
        y = {"masked_lm": words}

        def collate(indices, length, rng, epoch):
            return x, y, keras.tree.map_structure(lambda leaf: np.ones(leaf.shape), y)

        source = Batches(np.full(rows * steps, LENGTH), collate, batch_size=rows, buckets=[LENGTH])
        source = source.accumulated(parts)

        def run():
            model.fit(source, epochs=1, verbose=0)

        run.share = rows / ROWS
        return run

    makers = {way: functools.partial(turn, way) for way in WAYS}
    beside = {way: (PLAIN,) for way in WAYS if way != PLAIN}
    half = frozenset(way for way in WAYS if WAYS[way][0] == "bfloat16")
    return Work(makers, ROWS * LENGTH * steps, "tokens", beside, half=half)


def peak(name, contestant, settings, data=None):
    """Megabytes at the most of a process that does one turn, with what it takes to start."""
    return alone("benchmarks.speed.memory", contestant, json.dumps(dataclasses.asdict(settings)))


def main(contestant, settings):
    from benchmarks.speed.run import Speed

    pretraining(Speed(**json.loads(settings))).makers[contestant]()()
    print(peak_so_far())


if __name__ == "__main__":
    main(*sys.argv[1:])
