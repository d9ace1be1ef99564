"""Questions about passages made of letters, with tokenizers and a BERT for them."""

import numpy as np

from keras_plm.data.task import Example
from keras_plm.models import BERT
from keras_plm.tokenizers import BytePair, WordPiece

LETTERS = list("abcdefgh")
PIECES = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "##x", "##y", "."])
PAIRS = BytePair(["<unk>", *(f"{c}</w>" for c in LETTERS)], [], scheme="gpt")


def asked(rng, count=23, longest=40):
    """Returns questions about passages of pieces of one to three letters, some with an answer."""
    made = []
    for i in range(count):
        ends = rng.choice(["", "x", "xy"], longest)
        words = [a + b for a, b in zip(rng.choice(LETTERS, longest), ends, strict=True)]
        passage = "  ".join(words[: rng.integers(1, longest)])
        start = int(rng.integers(len(passage)))
        while passage[start] == " ":
            start -= 1
        end = int(rng.integers(start + 1, min(start + 12, len(passage)) + 1))
        label = [] if i % 5 == 0 else [passage[start:end]]
        question = " ".join(rng.choice(LETTERS, rng.integers(1, 6)))
        made.append(Example(question, label, passage, starts=[start] if label else []))
    return made


def encoder(**options):
    size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return BERT(len(PIECES), **size, **{"max_sequence_length": 24, "dropout": 0.0, **options})


def made_up(count=96, seed=0, unanswered=False, length=11):
    """Returns passages with one "a" and one "b"; the answer goes from "a" to "b".

    All have the same length, so that JAX compiles one step.
    """
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        words = rng.choice(LETTERS[2:], length).tolist()
        label = starts = []
        if not unanswered or i % 2:
            first = int(rng.integers(length - 2))
            last = first + int(rng.integers(1, 3))
            words[first], words[last] = "a", "b"
            label, starts = [" ".join(words[first : last + 1])], [2 * first]
        made.append(Example("c d", label, " ".join(words), starts=starts, id=str(i)))
    return made


def answers():
    """Returns questions with passages of many lengths."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(33):
        passage = " ".join(rng.choice(list("abcdefgh"), 3 + i % 20))
        made.append(Example("a b", [passage[4]], passage, starts=[4]))
    return made
