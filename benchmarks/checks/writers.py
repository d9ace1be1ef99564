"""Checks that processes writing one folder neither lose nor mix content: `check writers`."""

import dataclasses
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_plm
from benchmarks.checks.processes import run_together
from keras_plm.checkpoints import load_elmo, save_elmo
from keras_plm.data.corpus import TokenStream
from keras_plm.data.task import Example
from keras_plm.experiments.environment import environment
from keras_plm.experiments.pretraining.prepare import prepare, read_prepared
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.experiments.pretraining.word_vectors import Vectors, VectorTrainer
from keras_plm.experiments.results import Record, ResultFolder, result_name
from keras_plm.files.writing import write_json
from keras_plm.models import BERT, ELMo
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import FeatureStore

TEXT = "A cat sat.\nIt ran.\n\nWe saw a dog, a cat and a bird.\nThe end.\n\n" * 30
ONE_WRITER = "must have one writer at a time"
LONGEST_DELAY = 0.02  # seconds, at most, between the starts of two processes


class Kind:
    """A kind of folder that several processes write. Each trial has its own working folder.

    Attributes:
        refused: Pattern of the error that may end a process while another one writes.
    """

    refused = None

    def begin(self):
        """Writes the input of the processes."""
        Path("text.txt").write_text(TEXT)

    def write(self, number):
        """Writes the folder. Each process calls it with its number, from 0."""
        raise NotImplementedError

    def again(self):
        """Repeats a failed write as a user would."""
        self.write(0)

    def check(self):
        """Raises unless the folder is complete, from one writer, and without leftovers."""
        raise NotImplementedError


class Streams(Kind):
    refused = ONE_WRITER

    def write(self, number, folder="stream"):
        return TokenStream.build("text.txt", tokenizer(), folder, "lines", shard_tokens=99 + number)

    def check(self):
        found, alone = TokenStream("stream", verify=True), self.write(0, "alone")
        np.testing.assert_array_equal(found.tokens[:], alone.tokens[:])


class PreparedTexts(Kind):
    refused = ONE_WRITER

    def write(self, number, folder="ready"):
        return prepare(["text.txt"], folder, vocabulary_size=70, sentences="lines")

    def check(self):
        found = read_prepared(Path("ready"), "bert", verify=True)[2]
        np.testing.assert_array_equal(found.tokens[:], self.write(0, "alone").tokens[:])


class PretrainingRuns(Kind):
    """Two runs with different settings."""

    refused = f"{ONE_WRITER}|holds a pre-training run"

    def begin(self):
        super().begin()
        PreparedTexts().write(0)

    def write(self, number, folder="out", resume=False):
        run = Pretraining("bert", "tiny", tokens=128, tokens_per_batch=64, max_length=16,
                          learning_rate=1e-3 * (1 + number))  # fmt: skip
        pretrain(run, [], folder, resume=resume, every_seconds=0, prepared="ready")

    def again(self):
        self.write(0, resume=Path("out").exists())

    def check(self):
        note = json.loads(Path("out/pretraining.json").read_text())
        settings = json.loads(Path("out/training/settings.json").read_text())
        assert settings.items() <= note.items()
        self.write(round(note["learning_rate"] / 1e-3) - 1, "alone")
        assert_equal(keras_plm.load("out")[0], keras_plm.load("alone")[0])


class SavedEncoders(Kind):
    """Two writers that save repeatedly and load the folder after each save."""

    def write(self, number):
        for i in range(3):
            mark = number + 2 * i
            encoder = filled(BERT(6, 1, 1, 8, 8, max_sequence_length=8), mark)
            keras_plm.save("saved", encoder, tokenizer(f"m{mark}"))
            self.check()

    def check(self):
        encoder, saved = keras_plm.load("saved")
        assert saved.vocabulary[-1] == f"m{round(float(encoder.get_weights()[0].flat[0]))}"


class ElmoFiles(Kind):
    """Two writers of encoders of different sizes."""

    def write(self, number):
        encoder = ELMo(
            units=8 * (1 + number), projection_dim=4, num_layers=1, filters=[[1, 4]],
            character_dim=4, num_highway=1,
        )  # fmt: skip
        save_elmo("options.json", "weights.hdf5", filled(encoder, number))
        self.check()

    def check(self):
        encoder = load_elmo("options.json", "weights.hdf5")
        mark = encoder.units // 8 - 1
        assert all((weight == mark).all() for weight in encoder.get_weights())


class FeatureStores(Kind):
    """Two processes that need the same features: one computes them, the other one waits."""

    def write(self, number, folder="store"):
        keras.utils.set_random_seed(1)
        encoder = BERT(6, 2, 2, 8, 8, max_sequence_length=12)
        texts = [Example(line, "a") for line in TEXT.splitlines() if line]
        return FeatureStore.build(folder, encoder, tokenizer(), texts)

    def check(self):
        found, alone = self.write(0), self.write(0, "alone")
        assert len(list(Path("store").iterdir())) == 1
        np.testing.assert_array_equal(found.array, alone.array)


class Results(Kind):
    """Two writers of seeds with different settings: each archives the other's seeds."""

    def write(self, number):
        kept = ResultFolder("suite")
        for seed in range(3):
            record = dataclasses.replace(
                Record("rte", "bert", "fine_tune", "fine_tune", {"epochs": number}, seed),
                score=number / 8, metrics={"accuracy": number / 8}, hash=f"{number} {seed}",
            )  # fmt: skip
            parts = {"accuracy": ("mean", np.full((50, 2), record.score))}
            with kept.changing():
                for other in kept.names("rte/*.seed*.json"):
                    if kept.json(other)["settings"] != record.settings:
                        kept.archive(other)
                kept.write(result_name("rte", "bert", "fine_tune", seed), record, parts)

    def check(self):
        kept = ResultFolder("suite")
        found = [kept.record(name) for name in kept.names("*.seed*.json")]
        assert found and len({str(record.settings) for record in found}) == 1, found
        for record in found:
            name = result_name("rte", "bert", "fine_tune", record.seed)
            assert (kept.examples(name, record.hash)["accuracy"][1] == record.score).all()


class WordIds(Kind):
    """The file of word ids that training of word vectors keeps."""

    def write(self, number, folder="work"):
        trainer = VectorTrainer(["text.txt"], folder, progress=lambda line: None)
        ids, words = trainer.text(Vectors(dim=4, min_count=1))
        return np.array(ids), words.vocabulary

    def check(self):
        (ids, words), (right_ids, right_words) = self.write(0), self.write(0, "alone")
        np.testing.assert_array_equal(ids, right_ids)
        assert words == right_words


KINDS = {
    "token stream": Streams(),
    "prepared text": PreparedTexts(),
    "pre-training run": PretrainingRuns(),
    "saved encoder": SavedEncoders(),
    "ELMo files": ElmoFiles(),
    "feature store": FeatureStores(),
    "results": Results(),
    "word ids": WordIds(),
}
# Runs before the fork. TensorFlow is imported first, because Keras imports it late if installed.
SETUP = """
try:
    import tensorflow
except ImportError:
    pass
from benchmarks.checks.writers import kind
"""


def tokenizer(word="cat"):
    return WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", word])


def filled(encoder, value):
    """Sets all weights of an encoder to one number; returns the encoder."""
    encoder.set_weights([np.full(weight.shape, value) for weight in encoder.weights])
    return encoder


def assert_equal(encoder, other):
    for a, b in zip(encoder.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def kind():
    """Returns the `Kind` of the working folder."""
    return KINDS[Path.cwd().parent.name]


def try_writers(folder, names, trials, processes=2):
    """Lets processes write the same folders at the same time.

    Args:
        folder: An empty folder for the trials.
        names: Names in `KINDS`.
        trials: Number of folders of each kind.
        processes: Number of processes that write each folder.

    Returns:
        A dict of counts for each name: processes that `wrote`, were `refused` or `failed`, and
        trials whose folder `lost_or_mixed` content or kept temporary files. `errors` lists the
        errors of the last two.
    """
    places = [Path(folder) / name / str(i) for name in names for i in range(trials)]
    for place in places:
        place.mkdir(parents=True)
    zeros = {"wrote": 0, "refused": 0, "failed": 0, "lost_or_mixed": 0}
    found = {name: {**zeros, "errors": []} for name in names}
    all_outcomes = run_together(
        "kind().write(number)", places, processes, SETUP, "kind().begin()", "kind().check()",
        LONGEST_DELAY,
    )  # fmt: skip
    for place, (*outcomes, checked) in zip(places, all_outcomes, strict=True):
        counts, refused = found[place.parent.name], KINDS[place.parent.name].refused
        for one in outcomes:
            known = one.status and refused and re.search(refused, one.error)
            outcome = "refused" if known else "failed" if one.status else "wrote"
            counts[outcome] += 1
            counts["errors"] += [one.error] * (outcome == "failed")
        left = [path.name for path in place.rglob("*.tmp")]
        error = checked.error if checked.status else f"left {left}" if left else ""
        counts["lost_or_mixed"] += bool(error)
        counts["errors"] += [error] * bool(error)
    return found


def check_writers(out, trials=200, processes=2, progress=print):
    """Lets processes write each kind of folder at the same time, and checks the folders.

    Args:
        out: JSON file to write after each kind.
        trials: Number of folders of each kind.
        processes: Number of processes that write each folder.
        progress: Called with a line of text for each kind.

    Returns:
        The content of the file.

    Raises:
        ValueError: If `trials` is less than 1, or `processes` less than 2.
        RuntimeError: If the system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise RuntimeError(
            "`check writers` needs a system that can fork processes, such as Linux. "
            f"Received: {sys.platform}"
        )
    for name, value, least in (("trials", trials, 1), ("processes", processes, 2)):
        if value < least:
            raise ValueError(f"`{name}` must be {least} or more. Received: {value}")
    result = {"task": "check_writers", "trials": trials, "processes": processes,
              "kinds": {}, **environment()}  # fmt: skip
    for name in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            result["kinds"] |= try_writers(folder, [name], trials, processes)
        write_json(out, result)
        counts = result["kinds"][name].items()
        counts = ", ".join(f"{value} {key}" for key, value in counts if key != "errors")
        progress(f"{name}: {trials} trials, {counts.replace('_', ' ')}")
    return result
