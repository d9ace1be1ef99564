"""Training of word vectors on raw text, by this library or by gensim."""

import dataclasses
import hashlib
import json
import shutil
import time
from pathlib import Path

import numpy as np

import keras_plm
from keras_plm.data.corpus import read_ids
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.flags import check_settings, setting
from keras_plm.experiments.pretraining.resumable_fit import fit_resumed
from keras_plm.experiments.results import result_hash
from keras_plm.files.cache import cache_folder
from keras_plm.files.json_files import read_json
from keras_plm.files.manifest import SHAPE as MANIFEST_SHAPE
from keras_plm.files.manifest import check_files, describe_files
from keras_plm.files.numpy_files import read_npy
from keras_plm.files.writing import replacing_folder, write_json
from keras_plm.models.glove import cooccurrences
from keras_plm.models.word_vectors import FastText, GloVe, Word2Vec, WordVectors
from keras_plm.tokenizers import Words
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupLinearDecay

TASK = "word_vectors"
KINDS = ("skip_gram", "cbow", "skip_gram_hs", "cbow_hs", "fasttext", "glove")
MAKERS = ("keras_plm", "gensim")
NAMES = {
    "skip_gram": "skip-gram, negative sampling",
    "cbow": "CBOW, negative sampling",
    "skip_gram_hs": "skip-gram, hierarchical softmax",
    "cbow_hs": "CBOW, hierarchical softmax",
    "fasttext": "fastText",
    "glove": "GloVe",
}
UNKNOWN = 1
MANIFEST = "files.json"  # of the folder of a text as ids


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Settings of word vectors; the numbers are word2vec's unless a kind has its own."""

    kind: str = setting("skip_gram", f"train this model: {', '.join(KINDS)}", choices=KINDS)
    by: str = setting("keras_plm", f"train with this library: {', '.join(MAKERS)}", choices=MAKERS)
    dim: int = setting(100, "make vectors of this width", above=0)
    window: int = setting(
        0, "read N neighbours to each side; 0 takes the kind's: 5, GloVe 10", least=0
    )
    epochs: int = setting(
        0, "read the text N times; 0 takes the kind's: 1, GloVe 10 over its pairs", least=0
    )
    learning_rate: float = setting(
        0.0, "set the highest learning rate; 0 takes the kind's own", least=0
    )
    negatives: int = setting(5, "draw N noise words per pair", above=0)
    sample: float = setting(
        1e-3, "drop words at random if they are more frequent than this fraction", above=0
    )
    min_count: int = setting(5, "treat words with fewer occurrences as unknown", above=0)
    limit: int = setting(0, "read at most N tokens of the text; 0 takes all", least=0)
    lowercase: bool = setting(True, "lower-case the text")

    def __post_init__(self):
        check_settings(self)
        if self.by == "gensim" and self.kind == "glove":
            raise ValueError(
                "GloVe must be trained by 'keras_plm'. Received: kind='glove', by='gensim'"
            )
        glove = self.kind == "glove"
        for name, own in (("window", 10 if glove else 5), ("epochs", 10 if glove else 1)):
            if not getattr(self, name):
                object.__setattr__(self, name, own)
        if not self.learning_rate:
            object.__setattr__(self, "learning_rate", self._own_rate())

    def _own_rate(self):
        if self.by == "gensim":  # the rates of word2vec.c and fastText
            return {"cbow": 0.05, "cbow_hs": 0.05, "fasttext": 0.05}.get(self.kind, 0.025)
        if self.kind == "glove":
            return GloVe.default_rate
        kind, architecture, objective = self.model
        return kind.rates[architecture, objective]

    @property
    def model(self):
        """Class, architecture and objective, for all kinds except GloVe."""
        return (
            FastText if self.kind == "fasttext" else Word2Vec,
            "cbow" if self.kind.startswith("cbow") else "skip_gram",
            "hierarchical_softmax" if self.kind.endswith("_hs") else "negative_sampling",
        )

    @property
    def name(self):
        """Name of the training state, also in lines of progress."""
        return f"{self.kind}.{self.run}"

    @property
    def run(self):
        """Part of a file name for this run: the library and the changed settings."""
        changed = [f"{n}{value:g}".replace("_", "") for n, value in self._changed().items()]
        return ".".join([self.by, *changed])

    @property
    def title(self):
        """Name in tables, without the size of the text: it has another column."""
        maker = ["gensim"] if self.by == "gensim" else []
        changed = [
            f"{n} {value:g}".replace("_", " ")
            for n, value in self._changed().items()
            if n != "limit"
        ]
        return ", ".join([NAMES[self.kind], *maker, *changed])

    def _changed(self):
        usual = Vectors(self.kind, self.by)
        names = [field.name for field in dataclasses.fields(self)]
        return {n: getattr(self, n) for n in names if getattr(self, n) != getattr(usual, n)}


class VectorTrainer:
    """Trains word vectors several times on one text, which it reads once.

    Args:
        files: Files of the text.
        work: Folder for the text as ids and for unfinished training; by default in the user's
            cache folder.
        progress: Called with a line of text.
    """

    def __init__(self, files, work=None, progress=print):
        self.files, self.progress = list(files), progress
        self.work = cache_folder("training") if work is None else Path(work)
        self.checksums = [checksum(path) for path in self.files]
        self._texts = {}

    def text(self, settings):
        """Returns `(ids, tokenizer)` of the text; words rarer than `min_count` are unknown."""
        key = settings.lowercase, settings.limit, settings.min_count
        if key not in self._texts:
            stem = hashlib.sha256(json.dumps([self.checksums, settings.lowercase]).encode())
            path = self.work / f"words-{stem.hexdigest()[:12]}"
            if not self._is_whole(path):
                self.progress(f"reading {len(self.files)} files")
                words = Words.train(self.files, lowercase=settings.lowercase)
                ids = read_ids(self.files, words)
                with replacing_folder(path) as temporary:
                    words.save(temporary / "words.json")
                    np.save(temporary / "ids.npy", ids)
                    names = ["words.json", "ids.npy"]
                    write_json(temporary / MANIFEST, describe_files(temporary, names))
            words = Words.load(path / "words.json")
            ids = read_npy(path / "ids.npy", "i", memory_map=True)[: settings.limit or None]
            self._texts = {key: self._without_rare(np.asarray(ids), words, settings)}
        return self._texts[key]

    @staticmethod
    def _is_whole(path):
        """Returns whether a folder holds the undamaged text of an earlier call."""
        try:
            check_files(path, read_json(path / MANIFEST, MANIFEST_SHAPE), checksums=True)
        except ValueError:
            return False
        return True

    @staticmethod
    def _without_rare(ids, words, settings):
        counts = np.bincount(ids, minlength=len(words))
        kept = (counts >= settings.min_count) | (np.arange(len(words)) < 3)
        if kept.sum() == 3:
            raise ValueError(
                "`min_count` must be at most the count of the most frequent word. Received: "
                f"min_count={settings.min_count}, {len(ids)} tokens"
            )
        new = np.where(kept, np.cumsum(kept) - 1, UNKNOWN).astype(np.int32)
        vocabulary = [word for word, keep in zip(words.vocabulary, kept, strict=True) if keep]
        return new[ids], Words(vocabulary, settings.lowercase)

    def key(self, settings, seed):
        return result_hash(TASK, dataclasses.asdict(settings), seed, self.checksums)

    def state(self, settings, seed):
        """Returns the folder of unfinished training with these settings on this text."""
        return self.work / f"{settings.name}.seed{seed}.{self.key(settings, seed)[:8]}"

    def train(self, settings, seed):
        """Trains vectors, and resumes after a stop; call `finish` after saving them.

        Returns:
            `(encoder, report)`: a `WordVectors` of the words that occur, most frequent first, and
            a dict of `seconds`, `tokens`, `words_per_second` and `loss`.
        """
        ids, tokenizer = self.text(settings)
        set_seed(seed)
        tokens = int((ids > UNKNOWN + 1).sum())  # words, without unknown ones and ends
        if settings.by == "gensim":
            words, vectors, seconds = train_gensim(settings, seed, ids, tokenizer)
            extra = {}
        else:
            words = tokenizer.vocabulary[3:]
            vectors, seconds, extra = self._train(settings, seed, ids, tokenizer)
        report = {
            "seconds": round(seconds, 1),
            "tokens": tokens,
            "words_per_second": round(tokens * settings.epochs / max(seconds, 1e-9)),
            **extra,
        }
        return WordVectors.from_vectors(words, vectors), report

    def finish(self, settings, seed):
        """Deletes the state of a training after its result is saved."""
        shutil.rmtree(self.state(settings, seed), ignore_errors=True)

    def _train(self, settings, seed, ids, tokenizer):
        begun = time.monotonic()
        if settings.kind == "glove":
            model = GloVe(len(tokenizer), settings.dim)
            pairs = cooccurrences(ids, len(tokenizer), settings.window)
            counting = time.monotonic() - begun
            # The demo of the released program, on a text of this size, uses 10; the paper uses 100.
            batches = model.batches(*pairs, x_max=10.0, seed=seed)
            extra = {"pairs": len(pairs[0]), "counting_seconds": round(counting, 1)}
            model.compile(settings.learning_rate)
        else:
            kind, architecture, objective = settings.model
            first = tokenizer.vocabulary if kind is FastText else len(tokenizer)
            model = kind(first, settings.dim, architecture, objective, settings.window)
            batches = model.batches(ids, settings.negatives, settings.sample, seed=seed)
            counting, extra = 0.0, {}
            model.compile(WarmupLinearDecay(settings.learning_rate, settings.epochs * len(batches)))
        name = f"{settings.name} seed {seed}"
        work = self.state(settings, seed)
        seconds, history = fit_resumed(model, batches, settings.epochs, work, name, self.progress)
        for losses in (v for k, v in history.items() if k.startswith("loss_per")):
            extra["losses"] = [round(float(loss), 4) for loss in losses]
        extra["parameters"] = model.count_params()
        return model.vectors[3:], seconds + counting, extra


def train_gensim(settings, seed, ids, tokenizer):
    """Trains vectors with gensim on two threads; returns `(words, vectors, seconds)`."""
    sentences = Sentences(ids, tokenizer)
    model = gensim_model(settings, seed, sentences)
    begun = time.monotonic()
    model.train(sentences, total_examples=len(sentences), epochs=settings.epochs)
    return model.wv.index_to_key, model.wv.vectors, time.monotonic() - begun


def gensim_model(settings, seed, sentences):
    """Creates an untrained gensim model with the vocabulary of the sentences."""
    from gensim.models import FastText as GensimFastText
    from gensim.models import Word2Vec as GensimWord2Vec

    options = {
        "vector_size": settings.dim,
        "window": settings.window,
        "min_count": 1,  # rare words are unknown already
        "sg": int(not settings.kind.startswith("cbow")),
        "hs": int(settings.kind.endswith("_hs")),
        "negative": 0 if settings.kind.endswith("_hs") else settings.negatives,
        "sample": settings.sample,
        "alpha": settings.learning_rate,
        "seed": seed + 1,
        "workers": 2,
    }
    if settings.kind == "fasttext":
        model = GensimFastText(**options, min_n=3, max_n=6, bucket=2_000_000)
    else:
        model = GensimWord2Vec(**options)
    model.build_vocab(sentences)
    return model


class Sentences:
    """Sentences as lists of words, for gensim, built before training is timed."""

    def __init__(self, ids, tokenizer):
        words = np.array(tokenizer.vocabulary, dtype=object)
        ends = np.flatnonzero(ids == tokenizer.end_id)
        known = ids > UNKNOWN + 1
        bounds = np.concatenate([[0], np.cumsum(known)[ends], [known.sum()]])
        flat = words[ids[known]]
        self._lists = [
            list(flat[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True) if b > a
        ]

    def __len__(self):
        return len(self._lists)

    def __iter__(self):
        return iter(self._lists)


def make_word_vectors(
    settings, corpus, out, progress=print, file=None, max_words=None, seed=0, filters=0, work=None
):
    """Trains vectors, or reads them from a file, and writes them as an encoder's folder.

    Args:
        settings: A `Vectors`.
        corpus: Text files to train on. With `file`, only their words are kept (`None` for all).
        out: Folder of the encoder.
        progress: Called with a line of text.
        file: File of vectors.
        max_words: Number of words to read from the file, at most.
        seed: Seed of training.
        filters: Number of filters of a convolution over the characters of a word; a task trains
            it. All words of the corpus are then kept, for their characters.
        work: As in `VectorTrainer`.
    """
    words, trainer = [], None
    if corpus and (file or filters):
        found = Words.train(corpus, min_count=1).vocabulary[3:]
        words = list(dict.fromkeys(form for word in found for form in (word, word.lower())))
    if file is None:
        trainer = VectorTrainer(corpus, work, progress)
        encoder, _ = trainer.train(settings, seed)
    else:
        encoder = WordVectors.read(file, set(words) or None, max_words)
    if filters:
        encoder = encoder.with_words(words, character_filters=filters)
    keras_plm.save(out, encoder, encoder.tokenizer())
    if trainer is not None:
        trainer.finish(settings, seed)
    progress(f"{len(encoder.words):,} words, {encoder.hidden_dim} wide: {out}")
    return encoder
