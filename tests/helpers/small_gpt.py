"""A GPT with random weights, and texts and pairs made of letters."""

import numpy as np

from keras_plm.data.task import Example
from keras_plm.models import GPT
from keras_plm.tokenizers import BytePair

LETTERS = "abcdefgh"
TOKENIZER = BytePair(["<unk>", *(f"{c}</w>" for c in LETTERS)], [], scheme="gpt")
SIZE = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 20}


def gpt(count=TOKENIZER.text_size, **options):
    model = GPT(count, **{**SIZE, "max_sequence_length": 24, "dropout": 0.0, **options})
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) * 0.3 for w in model.get_weights()])
    return model


def words(rng, least=1):
    return " ".join(rng.choice(list(LETTERS), rng.integers(least, 6)))


def texts(count=48, seed=0):
    rng = np.random.default_rng(seed)
    rows = [words(rng) for _ in range(count)]
    return [Example(row, "yes" if "a" in row else "no") for row in rows]


def pairs(count=48, seed=0):
    rng = np.random.default_rng(seed)
    rows = [(words(rng), words(rng)) for _ in range(count)]
    return [Example(a, "same" if a[0] == b[0] else "other", b) for a, b in rows]
