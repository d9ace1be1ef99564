"""Measures the time of a training step and the accuracy of copying symbols, by length.

These are two small measurements of the suite `seq2seq`, each with one JSON file. Recurrence
computes its steps one after another. Attention computes all steps at once, but for every pair of
positions. A symbol to copy passes through a state per position in an RNN, and through one product
in attention.
"""

import dataclasses
import json
import statistics
import time
from pathlib import Path

import keras
import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.decoding import greedy
from keras_plm.experiments.environment import environment
from keras_plm.experiments.flags import setting
from keras_plm.experiments.results import archive, read_json
from keras_plm.files.writing import write_json
from keras_plm.models import Seq2Seq, Transformer
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupLinearDecay

START, END, FIRST = 1, 2, 3  # ids; 0 is padding


def models(width, vocabulary_size):
    """Returns makers of two RNNs and a Transformer with about as many weights."""
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

    width: int = setting(128, "width of the Transformer; the RNN gets as many weights")
    vocabulary_size: int = setting(1000, "size of the vocabulary")
    lengths: tuple = setting((16, 32, 64, 128, 256, 512), "lengths of source and target")
    tokens: int = setting(2048, "tokens of one side per step")
    repeats: int = setting(5, "time each model so often, in turn; the median counts")
    name = "step_times"

    @property
    def parts(self):
        """Parts of the measurement, as fields of their rows."""
        return [{"length": length} for length in self.lengths]

    def run(self, part, progress):
        """Measures one length; returns rows of model, length, weights and seconds."""
        length = part["length"]
        batch = max(self.tokens // length, 1)
        rng = np.random.default_rng(0)
        ids = rng.integers(FIRST, self.vocabulary_size, (batch, length)).astype("int32")
        x = {"token_ids": ids, "padding_mask": ids > 0, "target_ids": ids}
        made = {name: make() for name, make in models(self.width, self.vocabulary_size).items()}
        del made["RNN, one vector"]
        for model in made.values():
            model.compile(BertAdamW(1e-3), weighted_metrics=[])
            model.train_on_batch(x, ids)  # compiles
            model.train_on_batch(x, ids)
        seconds = {name: [] for name in made}
        for _ in range(self.repeats):
            for name, model in made.items():
                begun = time.perf_counter()
                model.train_on_batch(x, ids)
                seconds[name].append(time.perf_counter() - begun)
        medians = {name: statistics.median(taken) for name, taken in seconds.items()}
        shown = ", ".join(f"{name} {median:.3f} s" for name, median in medians.items())
        progress(f"a step at length {length}: {shown}")
        return [
            {
                "model": name,
                **part,
                "batch": batch,
                "parameters": model.count_params(),
                "seconds": medians[name],
            }
            for name, model in made.items()
        ]


@dataclasses.dataclass(frozen=True)
class Copying:
    """Fraction of symbols copied correctly after training, by length, model and seed."""

    width: int = setting(64, "width of the Transformer; the RNN gets as many weights")
    symbols: int = setting(16, "number of different symbols")
    lengths: tuple = setting((4, 8, 16, 32, 64), "lengths of the sequences")
    steps: int = setting(1500, "training steps; the lengths take turns")
    tokens: int = setting(1024, "tokens of one side per step")
    learning_rate: float = setting(2e-3, "highest learning rate; it falls to zero")
    seeds: int = setting(3, "number of seeds of weights and sequences")
    test: int = setting(200, "score so many sequences of each length")
    name = "copying"

    @property
    def parts(self):
        """Parts of the measurement, as fields of their rows."""
        names = models(self.width, self.symbols + FIRST)
        return [{"seed": seed, "model": name} for seed in range(self.seeds) for name in names]

    def run(self, part, progress):
        """Trains one model; returns rows of model, seed, length and fraction of copied symbols."""
        set_seed(part["seed"])
        model = models(self.width, self.symbols + FIRST)[part["model"]]()
        schedule = WarmupLinearDecay(self.learning_rate, self.steps, self.steps // 10)
        model.compile(BertAdamW(schedule, bias_correction=True), weighted_metrics=[])
        model.fit(self._batches(part["seed"]), epochs=1, verbose=0)
        shares = {length: self._score(model, length) for length in self.lengths}
        shown = ", ".join(f"{share:.2f} at {length}" for length, share in shares.items())
        progress(f"copying, {part['model']}, seed {part['seed']}: {shown}")
        count = model.count_params()
        return [
            {**part, "length": length, "parameters": count, "accuracy": share}
            for length, share in shares.items()
        ]

    def _sequences(self, rng, count, length):
        return rng.integers(FIRST, self.symbols + FIRST, (count, length))

    def _batches(self, seed):
        """Returns batches with new sequences in every step; the lengths take turns."""
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
        # Each step keeps its number of tokens, because rows of a bucket come together.
        return Batches(lengths, collate, tokens_per_batch=self.tokens, buckets=buckets, seed=seed)

    def _score(self, model, length):
        rng = np.random.default_rng([length, 1])
        symbols = self._sequences(rng, self.test, length)
        ids = np.pad(symbols, ((0, 0), (0, 1)), constant_values=END).astype("int32")
        inputs = {"token_ids": ids, "padding_mask": ids > 0}
        written, _ = greedy(model, inputs, START, END, max_new_tokens=length + 1)
        return float((written[:, :length] == symbols).mean())


def measure(settings, folder, progress):
    """Runs the missing parts of one of the two measurements; returns the content of its file.

    The file is written after each part. A file of other settings is archived.
    """
    path = Path(folder) / f"{settings.name}.{keras.backend.backend()}.json"
    fields = json.loads(json.dumps(dataclasses.asdict(settings)))  # tuples become lists
    report = read_json(path) if path.is_file() else {"settings": fields, "rows": []}
    if report["settings"] != fields:
        archive(path)
        report = {"settings": fields, "rows": []}
    for part in settings.parts:
        if not any(part.items() <= row.items() for row in report["rows"]):
            rows = report["rows"] + settings.run(part, progress)
            report = {"name": settings.name, "settings": fields, "rows": rows, **environment()}
            write_json(path, report)
    return report
