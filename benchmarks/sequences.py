"""The other half of the story: what a step costs by length, and how far a symbol can be carried.

Two small measurements of the suite `seq2seq`, each to one JSON file. Recurrence takes its steps one
after another, attention all at once but every pair of positions; and a symbol that is to be copied
passes through as many states as the sequence is long, or through one look.
"""

import dataclasses
import statistics
import time
from pathlib import Path

import keras
import numpy as np

from benchmarks.records import environment, write_json
from benchmarks.settings import setting
from keras_plm.batching import Batches
from keras_plm.decoding import greedy
from keras_plm.models import Seq2Seq, Transformer
from keras_plm.optimization import AdamW, WarmupLinearDecay
from keras_plm.resume import set_seed

START, END, FIRST = 1, 2, 3  # ids; 0 is padding


def models(width, vocabulary_size):
    """The RNN with one vector, with attention, and a Transformer of about as many weights."""
    transformer = Transformer(
        vocabulary_size, 2, 4, width, dropout=0.0, pre_norm=True, name="transformer"
    )
    units = width

    def recurrent(attention, units):
        return Seq2Seq(vocabulary_size, width, units, attention, share_embeddings=True)

    while recurrent("additive", units + 8).count_params() <= transformer.count_params():
        units += 8
    return {
        "RNN, one vector": lambda: recurrent(None, units),
        "RNN, attention": lambda: recurrent("additive", units),
        "Transformer": lambda: Transformer(
            vocabulary_size, 2, 4, width, dropout=0.0, pre_norm=True
        ),
    }


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds of a training step by length, at equal weights and tokens per step."""

    width: int = setting(128, "of the Transformer; the RNN gets as many weights")
    vocabulary_size: int = setting(1000, "tokens")
    lengths: tuple = setting((16, 32, 64, 128, 256, 512), "of source and target")
    tokens: int = setting(2048, "of one side in a step")
    turns: int = setting(5, "how often each is timed, in turns; the median counts")
    name = "step_times"

    def run(self, progress):
        """Rows of model, length, weights and seconds."""
        rng = np.random.default_rng(0)
        rows = []
        for length in self.lengths:
            batch = max(self.tokens // length, 1)
            ids = rng.integers(FIRST, self.vocabulary_size, (batch, length)).astype("int32")
            x = {"token_ids": ids, "padding_mask": ids > 0, "target_ids": ids}
            seconds, made = {}, {}
            for name, make in models(self.width, self.vocabulary_size).items():
                if name == "RNN, one vector":
                    continue
                made[name] = make()
                made[name].compile(AdamW(1e-3), weighted_metrics=[])
                made[name].train_on_batch(x, ids)  # compiles
                made[name].train_on_batch(x, ids)
                seconds[name] = []
            for _ in range(self.turns):
                for name, model in made.items():
                    begun = time.perf_counter()
                    model.train_on_batch(x, ids)
                    seconds[name].append(time.perf_counter() - begun)
            for name, model in made.items():
                rows.append({
                    "model": name, "length": length, "batch": batch,
                    "parameters": model.count_params(), "seconds": statistics.median(seconds[name]),
                })  # fmt: skip
            progress(f"a step at length {length}: " + ", ".join(
                f"{name} {statistics.median(s):.3f} s" for name, s in seconds.items()
            ))  # fmt: skip
        return rows


@dataclasses.dataclass(frozen=True)
class Copying:
    """Symbols copied right after training at each length, by model and seed."""

    width: int = setting(64, "of the Transformer; the RNN gets as many weights")
    symbols: int = setting(16, "different symbols")
    lengths: tuple = setting((4, 8, 16, 32, 64), "of the sequences: how far a symbol is carried")
    steps: int = setting(1500, "of training, each at all lengths up to the longest")
    tokens: int = setting(1024, "of one side in a step")
    learning_rate: float = setting(2e-3, "highest rate; it falls to zero")
    seeds: int = setting(3, "of weights and sequences")
    test: int = setting(200, "sequences of each length to score")
    name = "copying"

    def run(self, progress):
        """Rows of model, seed, length and the share of symbols copied to their places."""
        rows = []
        for seed in range(self.seeds):
            for name, make in models(self.width, self.symbols + FIRST).items():
                set_seed(seed)
                model = make()
                batches = self._batches(seed)
                schedule = WarmupLinearDecay(self.learning_rate, self.steps, self.steps // 10)
                model.compile(AdamW(schedule, bias_correction=True), weighted_metrics=[])
                model.fit(batches, epochs=1, verbose=0)
                for length in self.lengths:
                    rows.append({
                        "model": name, "seed": seed, "length": length,
                        "parameters": model.count_params(), "accuracy": self._score(model, length),
                    })  # fmt: skip
                shares = ", ".join(f"{r['accuracy']:.2f}" for r in rows[-len(self.lengths) :])
                progress(f"copying, {name}, seed {seed}: {shares} at lengths {self.lengths}")
        return rows

    def _sequences(self, rng, count, length):
        return rng.integers(FIRST, self.symbols + FIRST, (count, length))

    def _batches(self, seed):
        """Fresh sequences in every step, each step of one of the lengths in turn."""
        sizes = {length: max(self.tokens // (length + 1), 1) for length in self.lengths}
        turns = [self.lengths[step % len(self.lengths)] for step in range(self.steps)]
        lengths = np.concatenate([np.full(sizes[length], length + 1) for length in turns])

        def collate(rows, length, rng, epoch):
            symbols = self._sequences(rng, len(rows), length - 1)
            y = np.pad(symbols, ((0, 0), (0, 1)), constant_values=END).astype("int32")
            before = np.pad(symbols, ((0, 0), (1, 0)), constant_values=START).astype("int32")
            x = {"token_ids": y, "padding_mask": y > 0, "target_ids": before}
            return x, y, np.ones(y.shape)

        buckets = [length + 1 for length in self.lengths]
        # Keeps tokens a step even though rows of a bucket come together.
        return Batches(lengths, collate, tokens_per_batch=self.tokens, buckets=buckets, seed=seed)

    def _score(self, model, length):
        rng = np.random.default_rng([length, 1])
        symbols = self._sequences(rng, self.test, length)
        ids = np.pad(symbols, ((0, 0), (0, 1)), constant_values=END).astype("int32")
        inputs = {"token_ids": ids, "padding_mask": ids > 0}
        written, _ = greedy(model, inputs, START, END, max_length=length + 1)
        return float((written[:, :length] == symbols).mean())


def measure(settings, folder, progress):
    """Runs one of the two unless its file holds the same settings; returns what the file holds."""
    import json

    path = Path(folder) / f"{settings.name}.{keras.backend.backend()}.json"
    fields = {k: list(v) if isinstance(v, tuple) else v
              for k, v in dataclasses.asdict(settings).items()}  # fmt: skip
    if path.is_file():
        report = json.loads(path.read_text())
        if report["fields"] == fields:
            return report
    rows = settings.run(progress)
    report = {"name": settings.name, "fields": fields, "rows": rows, **environment()}
    write_json(path, report)
    return report
