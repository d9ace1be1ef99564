"""A BERT and word vectors with random weights, and examples made of letters."""

import numpy as np

from keras_plm.data.task import Example
from keras_plm.heads import Classifier
from keras_plm.heads.readers import BiLSTM
from keras_plm.models import BERT
from keras_plm.models.word_vectors import WordVectors
from keras_plm.tokenizers import WordPiece, Words

LETTERS = list("abcdefgh")
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "##x"])
LABELS = ["no", "yes"]
TAGS = ["O", "B-A", "I-A"]


def encoder(**options):
    size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return BERT(len(TOKENIZER), **{**size, "max_sequence_length": 12, **options})


def texts(count=64, seed=0):
    """Returns texts with the label "yes" if they contain an "a"."""
    rng = np.random.default_rng(seed)
    rows = [" ".join(rng.choice(LETTERS, rng.integers(2, 8))) for _ in range(count)]
    return [Example(row, LABELS["a" in row.split()]) for row in rows]


def sentences(count=64, seed=0):
    """Returns sentences of words in which an "a" begins a chunk and a "b" continues it."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words = rng.choice(LETTERS, rng.integers(2, 9)).tolist()
        tags = []
        for word in words:
            inside = word == "b" and tags and tags[-1] != "O"
            tags.append("B-A" if word == "a" else "I-A" if inside else "O")
        made.append(Example(words, tags))
    return made


def classifier(**options):
    return Classifier(encoder(), LABELS, tokenizer=TOKENIZER, **with_reader(options))


def with_reader(options):
    """Replaces `units` with a one-layer reader, which is built with the test's seed."""
    units = options.get("units")
    others = {name: value for name, value in options.items() if name != "units"}
    return others if units is None else {**others, "reader": BiLSTM(units, num_layers=1)}


WORDS = Words(["[PAD]", "[UNK]", "[EOS]", *LETTERS])


def word_encoder():
    """Returns word vectors with random vectors of the letters."""
    vectors = np.random.default_rng(5).normal(size=(len(LETTERS), 7)).astype("float32")
    return WordVectors.from_vectors(LETTERS, vectors)


def text_pairs(count=64, seed=0):
    """Returns pairs of unequal lengths with the label "yes" if they share their first word."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        first, second = (rng.choice(LETTERS, rng.integers(1, 5)).tolist() for _ in range(2))
        if i % 2:
            second[0] = first[0]
        label = LABELS[first[0] in second]
        made.append(Example(" ".join(first), label, pair=" ".join(second)))
    return made
