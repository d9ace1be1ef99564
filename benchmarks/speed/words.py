"""What word vectors and n-grams cost, beside gensim and NLTK, and the memory of each.

Peak memory is that of a process that does one turn of one contestant:
`python -m benchmarks.speed.words`, which `speed` calls.
"""

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.speed.clock import Work, alone
from benchmarks.suites.word_vectors import BOOKS, Sentences, Vectors, WordVectorRunner, gensim_model
from keras_plm.data.task import find_file
from keras_plm.data.word_vectors import write_vectors
from keras_plm.experiments.environment import peak_so_far
from keras_plm.models import FastText, NGram, Word2Vec, WordVectors
from keras_plm.tokenizers import Words

KINDS = ("ngram", "vectors", "vector_file")
TRAINED = ("skip_gram", "cbow", "fasttext")
ORDER, ADDED = 3, 0.01


def works(kind, settings, data=None):
    """The works of a kind by name; `data` is the folder of the books, without it made-up text."""
    if kind == "ngram":
        return {
            "ngram count": lambda: counting(settings, data),
            "ngram perplexity": lambda: scoring(settings, data),
        }
    if kind == "vectors":
        return {f"train {name}": lambda name=name: training(settings, name, data)
                for name in TRAINED}  # fmt: skip
    return {
        "read glove file": lambda: reading(settings, part=1),
        "read glove file, one word in 100": lambda: reading(settings, part=100),
    }


def text(settings, data):
    """Ids and their tokenizer: the whole books' vocabulary, the first `words` tokens.

    In a process whose memory is measured, `data` is a folder where these are ready.
    """
    if data is not None and (Path(data) / "ids.npy").is_file():
        return np.load(Path(data) / "ids.npy"), Words.load(Path(data) / "words.json")
    if data is not None:
        files = [find_file(data, name) for name in BOOKS]
        ids, tokenizer = WordVectorRunner(files, progress=lambda line: None).text(Vectors())
        return ids[: settings.words], tokenizer
    from keras_plm.datasets.microworld import World

    documents = World().corpus(max(settings.words // 50, 20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text("\n".join(line for document in documents for line in document))
        tokenizer = Words.train(path, lowercase=True)
        from keras_plm.data.corpus import read_ids

        return read_ids(path, tokenizer)[: settings.words], tokenizer


def lists_of_words(ids, tokenizer):
    return list(Sentences(ids, tokenizer))


def counting(settings, data):
    """Counting the trigrams of a text."""
    ids, tokenizer = text(settings, data)

    def ours():
        return lambda: NGram(len(tokenizer), ORDER, "add_k", tokenizer.end_id, ADDED).fit(ids)

    def nltk():
        from nltk.lm import Lidstone

        part = lists_of_words(ids[: len(ids) // 20], tokenizer)

        def turn():
            Lidstone(ADDED, ORDER).fit(*_nltk_ngrams(part))

        turn.share = 1 / 20
        return turn

    return Work({"keras_plm": ours, "nltk.lm": nltk}, len(ids), "words", BESIDE_NLTK)


def scoring(settings, data):
    """The perplexity of a text under trigrams of another, both with add-k."""
    ids, tokenizer = text(settings, data)
    half = len(ids) // 2
    train, test = ids[:half], ids[half:]

    def ours():
        model = NGram(len(tokenizer), ORDER, "add_k", tokenizer.end_id, ADDED).fit(train)
        return lambda: model.perplexity(test)

    def nltk():
        from nltk.lm import Lidstone
        from nltk.lm.preprocessing import pad_both_ends
        from nltk.util import ngrams

        model = Lidstone(ADDED, ORDER)
        model.fit(*_nltk_ngrams(lists_of_words(train[: half // 10], tokenizer)))
        part = lists_of_words(test[: half // 100], tokenizer)

        def turn():
            model.perplexity(
                [g for words in part for g in ngrams(pad_both_ends(words, ORDER), ORDER)]
            )

        turn.share = 1 / 100
        return turn

    return Work({"keras_plm": ours, "nltk.lm": nltk}, len(test), "words", BESIDE_NLTK)


BESIDE_NLTK = {"keras_plm": ("nltk.lm",)}
BESIDE_GENSIM = {"keras_plm": ("gensim",)}


def _nltk_ngrams(lists):
    from nltk.lm.preprocessing import padded_everygram_pipeline

    return padded_everygram_pipeline(ORDER, lists)


def training(settings, kind, data):
    """A pass over a text, on two threads for gensim."""
    ids, tokenizer = text(settings, data)
    words = int((ids > 2).sum())

    def ours():
        architecture = "cbow" if kind == "cbow" else "skip_gram"
        if kind == "fasttext":
            model = FastText(tokenizer.vocabulary, 100, architecture)
        else:
            model = Word2Vec(len(tokenizer), 100, architecture)
        batches = model.batches(ids)
        model.compile()
        return lambda: model.fit(batches, verbose=0)

    def gensim():
        sentences = Sentences(ids, tokenizer)
        model = gensim_model(Vectors(kind, "gensim"), 0, sentences)
        return lambda: model.train(sentences, total_examples=len(sentences), epochs=1)

    return Work({"keras_plm": ours, "gensim": gensim}, words, "words", BESIDE_GENSIM)


def reading(settings, part):
    """A GloVe file of random vectors, 100 wide: all of it, or every so many-th of its words."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "glove.txt"
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(settings.rows)]
    write_vectors(path, words, rng.normal(size=(settings.rows, 100)).round(5), "glove")
    wanted = None if part == 1 else set(words[::part])

    def ours():
        return lambda: (WordVectors.read(path, wanted), folder)  # keeps the folder

    def gensim():
        from gensim.models import KeyedVectors

        # It has no choice of words.
        read = KeyedVectors.load_word2vec_format
        return lambda: (read(path, binary=False, no_header=True), folder)

    return Work({"keras_plm": ours, "gensim": gensim}, os.path.getsize(path) / 1e6, "MB",
                BESIDE_GENSIM)  # fmt: skip


def peak(name, contestant, settings, data=None):
    """Megabytes at the most of a process that does one turn, with what it takes to start."""
    with tempfile.TemporaryDirectory() as folder:
        if name in {**works("ngram", settings), **works("vectors", settings)}:
            ids, tokenizer = text(settings, data)
            np.save(Path(folder) / "ids.npy", ids)
            tokenizer.save(Path(folder) / "words.json")
        asked = json.dumps(dataclasses.asdict(settings))
        return alone("benchmarks.speed.words", name, contestant, asked, folder)


def main(name, contestant, settings, data):
    from benchmarks.speed.run import Speed

    settings = Speed(**json.loads(settings))
    made = {n: make for kind in KINDS for n, make in works(kind, settings, data).items()}
    made[name]().makers[contestant]()()
    print(peak_so_far())


if __name__ == "__main__":
    main(*sys.argv[1:])
