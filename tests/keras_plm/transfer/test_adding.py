"""A new task, layer choice or method needs one definition each."""

import dataclasses

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.data import Example, Task, find_file, read_table
from keras_plm.heads import Classifier
from keras_plm.layers import LayerChoice
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import (
    LAYER_CHOICES,
    FeatureBased,
    FineTune,
    compare_layers,
    every_choice,
    extract_features,
)

WORDS = list("abcdefgh")
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
FAST = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-2}


def encoder():
    size = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    return BERT(len(TOKENIZER), **size, max_sequence_length=12)


def examples(count=16, seed=0):
    rng = np.random.default_rng(seed)
    rows = [" ".join(rng.choice(WORDS, 4)) for _ in range(count)]
    return [Example(row, "yes" if "a" in row else "no") for row in rows]


# A task: a reader of its files and one `Task`.
FILES = {split: f"letters/{split}.csv" for split in ("train", "dev", "test")}


def read_letters(folder, split):
    """Reads texts and labels from a CSV file."""
    return read_table(find_file(folder, FILES[split]), "text", "has_a")


LETTERS = Task("letters", read_letters, Classifier, {"accuracy": metrics.accuracy}, FILES)


@pytest.mark.backend_neutral
def test_new_task_needs_a_reader_and_one_task_entry(tmp_path):
    (tmp_path / "letters").mkdir()
    for seed, file in enumerate(FILES.values()):
        rows = [f"{example.text},{example.label}\n" for example in examples(seed=seed)]
        (tmp_path / file).write_text("text,has_a\n" + "".join(rows))
    train, dev = (LETTERS.read(tmp_path, split) for split in ("train", "dev"))
    assert train == examples() or [e.text for e in train] == [e.text for e in examples()]
    model = FineTune(**FAST).fit(encoder(), LETTERS.head, TOKENIZER, train, dev)
    truth = [example.label for example in dev]
    assert 0 <= LETTERS.metrics["accuracy"](truth, model.predict(dev)) <= 1
    parts = {split: LETTERS.read(tmp_path, split) for split in FILES}
    rows = compare_layers(
        encoder(), TOKENIZER, parts, LETTERS.head, choices=["last"], seeds=1,
        method=FeatureBased(**FAST),
    )  # fmt: skip
    assert [row["layers"] for row in rows] == ["last"]


@pytest.mark.backend_neutral
def test_new_layer_choice_needs_one_entry(monkeypatch):
    monkeypatch.setitem(LAYER_CHOICES, "first_and_last", LayerChoice(layers=(1, -1)))
    model = encoder()
    assert "first_and_last" in every_choice(model)
    texts = ["a b", "c"]
    both = extract_features(model, TOKENIZER, texts, layers="first_and_last")
    first, last = (extract_features(model, TOKENIZER, texts, layers=n) for n in (1, 3))
    for found, low, high in zip(both, first, last, strict=True):
        np.testing.assert_array_equal(found, np.concatenate([low, high], axis=-1))
    head = FeatureBased(layers="first_and_last", **FAST).fit(
        model, Classifier, TOKENIZER, examples()
    )
    assert head.layer_choice == LAYER_CHOICES["first_and_last"]


# A method: a frozen dataclass, which here overrides a single step of fine-tuning.
@dataclasses.dataclass(frozen=True, kw_only=True)
class BiasesOnly(FineTune):
    """Fine-tunes the encoder's biases and the output layer.

    Reference: Ben Zaken et al. 2022, arXiv 2106.10199.
    """

    learning_rate: float = 1e-3

    def prepare_encoder(self, encoder, tokenizer):
        encoder = super().prepare_encoder(encoder, tokenizer)
        for weight in encoder.trainable_weights:
            weight.trainable = "bias" in weight.name
        return encoder


@pytest.mark.backend_neutral
def test_new_method_needs_one_dataclass():
    method, given = BiasesOnly(**FAST), encoder()
    model = method.fit(given, Classifier, TOKENIZER, examples())
    changed = {
        new.name
        for old, new in zip(given.weights, model.encoder.weights, strict=True)
        if not np.allclose(np.array(old), np.array(new))
    }
    assert changed and all("bias" in name for name in changed)
    assert model.predict(["a b"])[0] in ("yes", "no")
    with pytest.raises(ValueError, match="`epochs` must be a whole number, 1 or more"):
        BiasesOnly(epochs=0)
