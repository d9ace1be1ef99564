"""Word vectors and n-grams next to gensim and NLTK."""

import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from keras_plm.data.corpus import read_ids
from keras_plm.data.formats.word_vectors import write_vectors
from keras_plm.data.task import find_file
from keras_plm.datasets.corpora import BOOKS
from keras_plm.datasets.microworld import World
from keras_plm.experiments.pretraining.word_vectors import (
    Sentences,
    Vectors,
    VectorTrainer,
    gensim_model,
)
from keras_plm.models import FastText, NGram, Word2Vec, WordVectors
from keras_plm.tokenizers import Words

TRAINED = ("skip_gram", "cbow", "fasttext")
ORDER, ADDED = 3, 0.01
OURS, NLTK, GENSIM = "keras_plm", "nltk.lm", "gensim"
SUITE = Suite("words", "Speed: Word vectors")


def text(settings, inputs):
    """Returns the first `settings.words` ids of a text, and the tokenizer of the whole text."""
    ids, words = inputs.folder / "ids.npy", inputs.folder / "words.json"
    if not ids.is_file():
        made, tokenizer = _books(inputs) if inputs.data else _generated(settings, inputs)
        tokenizer.save(words)
        np.save(ids, made[: settings.words])
    return np.load(ids), Words.load(words)


def _books(inputs):
    files = [find_file(inputs.data, name) for name in BOOKS.files.values()]
    return VectorTrainer(files, progress=lambda line: None).text(Vectors())


def _generated(settings, inputs):
    path = inputs.folder / "words.txt"
    documents = World().corpus(max(settings.words // 50, 20))
    path.write_text("\n".join(line for document in documents for line in document))
    tokenizer = Words.train(path, lowercase=True)
    return read_ids(path, tokenizer), tokenizer


def lists_of_words(ids, tokenizer):
    return list(Sentences(ids, tokenizer))


def count(ids, tokenizer):
    """Compares counting the trigrams of a text."""

    def ours():
        return lambda: NGram(len(tokenizer), ORDER, "add_k", tokenizer.end_id, ADDED).fit(ids)

    def nltk():
        from nltk.lm import Lidstone

        part = lists_of_words(ids[: len(ids) // 20], tokenizer)

        return lambda: Lidstone(ADDED, ORDER).fit(*_nltk_ngrams(part))

    return Comparison({OURS: ours, NLTK: nltk}, len(ids), {OURS: (NLTK,)}, fractions={NLTK: 1 / 20})


def perplexity(ids, tokenizer):
    """Compares the perplexity of a text under trigrams of another one, with add-k smoothing."""
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

        def run():
            model.perplexity(
                [g for words in part for g in ngrams(pad_both_ends(words, ORDER), ORDER)]
            )

        return run

    fractions = {NLTK: 1 / 100}
    return Comparison({OURS: ours, NLTK: nltk}, len(test), {OURS: (NLTK,)}, fractions=fractions)


@measurement(
    suite=SUITE,
    unit="words",
    cases=lambda settings: {
        "ngram count": {"work": count},
        "ngram perplexity": {"work": perplexity},
    },
    peak_memory=True,
)
def ngram(settings, inputs, work):
    """Counting the trigrams of a text, or computing perplexity with them."""
    return work(*text(settings, inputs))


def _nltk_ngrams(lists):
    from nltk.lm.preprocessing import padded_everygram_pipeline

    return padded_everygram_pipeline(ORDER, lists)


@measurement(
    suite=SUITE,
    unit="words",
    cases=lambda settings: {f"train {kind}": {"kind": kind} for kind in TRAINED},
    peak_memory=True,
)
def vectors(settings, inputs, kind):
    """One pass of training over a text; gensim uses two threads."""
    ids, tokenizer = text(settings, inputs)
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

    return Comparison({OURS: ours, GENSIM: gensim}, words, {OURS: (GENSIM,)})


@measurement(
    suite=SUITE,
    unit="MB",
    cases=lambda settings: {
        "read glove file": {"every": 1},
        "read glove file, one word in 100": {"every": 100},
    },
    peak_memory=True,
)
def vector_file(settings, inputs, every):
    """Reading a GloVe file of random vectors with 100 numbers: all words, or one in `every`."""
    path = inputs.folder / "glove.txt"
    words = [f"word{i}" for i in range(settings.rows)]
    if not path.is_file():
        vectors = np.random.default_rng(0).normal(size=(settings.rows, 100))
        write_vectors(path, words, vectors.round(5), "glove")
    kept = None if every == 1 else set(words[::every])

    def ours():
        return lambda: WordVectors.read(path, kept)

    def gensim():
        from gensim.models import KeyedVectors

        # gensim cannot select words.
        read = KeyedVectors.load_word2vec_format
        return lambda: read(path, binary=False, no_header=True)

    return Comparison({OURS: ours, GENSIM: gensim}, path.stat().st_size / 1e6, {OURS: (GENSIM,)})
