"""Translation with and without attention: runs of the suite `seq2seq`.

Multi30k's captions are short, but a fixed vector fails on long sentences. Therefore captions are
joined. In training half of them are single and half in rows of two to four. The test set is
translated as single captions and in rows of two to six, and five or six are longer than in
training.
"""

import dataclasses
import math
import shutil
import time
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from keras_plm import metrics
from keras_plm.data.formats.parallel import read_parallel
from keras_plm.data.task import find_file
from keras_plm.data.translation import translation_batches
from keras_plm.datasets.corpora import MULTI30K
from keras_plm.datasets.tasks import checksum
from keras_plm.decoding import alignment, beam_search, generate
from keras_plm.experiments.environment import environment
from keras_plm.experiments.flags import check_settings, policy, setting
from keras_plm.experiments.pretraining.resumable_fit import fit_resumed
from keras_plm.experiments.results import Record, ResultFolder, result_hash, result_name
from keras_plm.files.cache import cache_folder
from keras_plm.models import Seq2Seq, Transformer
from keras_plm.tokenizers import BytePair
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupLinearDecay

TASK = MULTI30K.name
SCORES = ("none", "dot", "scaled_dot", "bilinear", "cosine", "additive")
LONGEST_TRAINED, LONGEST_TESTED = 4, 6  # joined captions
BUCKETS = (0, 10, 20, 30, 40, 50, 60, 80)  # boundaries, in words of the source
LENGTHS = 12  # number of padded lengths; each one is compiled


@dataclasses.dataclass(frozen=True)
class Translation:
    """Settings of a translation model and its training. The defaults are those of `seq2seq`."""

    model: str = setting(
        "transformer",
        f"transformer, or an RNN's score: {', '.join(SCORES)}",
        choices=("transformer", *SCORES),
    )
    vocabulary_size: int = setting(3000, "subword tokens of both languages together")
    embedding_dim: int = setting(128, "width of the embeddings and of the Transformer")
    hidden_dim: int = setting(160, "units of the RNN, chosen for as many weights")
    num_layers: int = setting(2, "blocks of the Transformer's encoder, and of its decoder")
    num_heads: int = setting(4, "heads of the Transformer")
    dropout: float = setting(0.1, "dropout of embeddings and outputs")
    label_smoothing: float = setting(0.1, "label smoothing, as in the Transformer's paper")
    epochs: int = setting(10, "passes over the training captions")
    tokens_per_batch: int = setting(1024, "tokens of one side, including padding")
    learning_rate: float = setting(2e-3, "highest learning rate; it falls to zero")
    warmup: float = setting(0.1, "fraction of the steps in which the learning rate rises")
    precision: str = setting("float32", "'float32' or 'bfloat16' (weights stay in float32)")
    num_beams: int = setting(4, "search with N beams")
    length_penalty: float = setting(0.6, "length penalty, as in the Transformer's paper")
    limit: int = setting(0, "use at most so many captions of each split (0: all)")

    def __post_init__(self):
        check_settings(self)
        policy(self.precision)

    @property
    def name(self):
        """Name in file names: network and attention."""
        return f"{self.encoder}.{self.attention}"

    @property
    def encoder(self):
        return "transformer" if self.model == "transformer" else "rnn"

    @property
    def attention(self):
        """Score function of the attention, or "self" for the Transformer."""
        return "self" if self.model == "transformer" else self.model

    def build(self, vocabulary_size):
        """Returns a new model."""
        common = {"dropout": self.dropout, "dtype": policy(self.precision)}
        if self.model == "transformer":
            return Transformer(
                vocabulary_size,
                num_layers=self.num_layers,
                num_heads=self.num_heads,
                hidden_dim=self.embedding_dim,
                pre_norm=True,  # trains in this few steps
                **common,
            )
        return Seq2Seq(
            vocabulary_size,
            embedding_dim=self.embedding_dim,
            hidden_dim=self.hidden_dim,
            attention=None if self.model == "none" else self.model,
            share_embeddings=True,
            **common,
        )

    def compile(self, model, steps):
        """Compiles a model with its optimizer and loss for this number of steps."""
        schedule = WarmupLinearDecay(self.learning_rate, steps, math.ceil(self.warmup * steps))
        model.compile(
            BertAdamW(schedule, bias_correction=True),
            label_smoothing=self.label_smoothing,
            weighted_metrics=[],
        )


def join_captions(sources, targets, alone, longest, seed):
    """Joins pairs of texts in rows of 2 to `longest`, except for a fraction of single pairs.

    Args:
        sources, targets: Lists of texts.
        alone: Fraction of single texts.
        longest: Most texts in a row.
        seed: Seed of the order and of the numbers of texts.

    Returns:
        `(sources, targets)`, with every text once.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sources))
    joined, done = [], 0
    while done < len(order):
        count = 1 if done < alone * len(order) else int(rng.integers(2, longest + 1))
        joined.append(order[done : done + count])
        done += count
    return _join(sources, joined), _join(targets, joined)


def _join(texts, rows):
    return [" ".join(texts[i] for i in row) for row in rows]


def even_rows(number, longest):
    """Returns rows of indices: all texts single, then in rows of 2, of 3, up to `longest`."""
    return [
        range(first, first + count)
        for count in range(1, longest + 1)
        for first in range(0, number - count + 1, count)
    ]


def bleu_by_length(sources, references, outputs, buckets=BUCKETS):
    """Computes BLEU by number of source words, for each bucket."""
    words = np.array([len(source.split()) for source in sources])
    found = []
    for low, high in zip(buckets[:-1], buckets[1:], strict=True):
        rows = np.flatnonzero((words >= low) & (words < high))
        if len(rows):
            score = metrics.bleu([references[i] for i in rows], [outputs[i] for i in rows])
            found.append({
                "from": low, "below": high, "sentences": len(rows),
                "words": float(words[rows].mean()), "bleu": score,
            })  # fmt: skip
    return found


def by_captions(rows, lengths, losses, references, outputs):
    """Scores the translations by the number of joined captions, and by position in a row.

    Args:
        rows: Captions of each row, from `even_rows`.
        lengths: Number of target tokens of each caption, without the end token.
        losses: `-log P` of every target token, for each row.
        references, outputs: A text for each row.

    Returns:
        A dict for each number of captions: `rows`; `bleu`; `length`, words of the outputs per word
        of the references; `too_few` and `too_many`, the fractions of rows with fewer or more full
        stops than the reference; and `losses`, the mean loss of a token at each position.
    """
    found = []
    for count in sorted({len(row) for row in rows}):
        chosen = [i for i, row in enumerate(rows) if len(row) == count]
        wanted, written = [references[i] for i in chosen], [outputs[i] for i in chosen]
        stops = np.array([[text.count(".") for text in texts] for texts in (wanted, written)])
        of_place = [[] for _ in range(count)]
        for i in chosen:
            ends = np.cumsum([lengths[caption] for caption in rows[i]])
            for place, part in enumerate(np.split(losses[i], ends)[:count]):
                of_place[place].append(part)
        found.append({
            "captions": count,
            "rows": len(chosen),
            "bleu": metrics.bleu(wanted, written),
            "length": len(" ".join(written).split()) / len(" ".join(wanted).split()),
            "too_few": float((stops[1] < stops[0]).mean()),
            "too_many": float((stops[1] > stops[0]).mean()),
            "losses": [float(np.concatenate(parts).mean()) for parts in of_place],
        })  # fmt: skip
    return found


def token_losses(model, tokenizer, sources, targets):
    """Computes `-log P` of the target tokens, given those before, for each pair of texts."""
    batches = translation_batches(
        sources, targets, tokenizer, training=False, tokens_per_batch=4096, buckets=LENGTHS
    )
    losses = [None] * len(sources)
    for i in range(len(batches)):
        x, y, weights = batches[i]
        logs = log_softmax(model.predict_on_batch(x), axis=-1)  # (B, T, V)
        logs = np.take_along_axis(logs, y[..., None], axis=-1)[..., 0]
        for row, log, weight in zip(batches.rows(i), logs, weights, strict=True):
            if row >= 0:
                losses[row] = -log[weight > 0]
    return losses


class TranslationRunner:
    """Trains and scores translators on Multi30k, which it reads once.

    Args:
        data: The data folder.
        results: Folder for result files.
        work: Folder for unfinished training, by default in the user's cache folder. Finished runs
            leave nothing there.
        progress: Called with a line of text.
    """

    def __init__(self, data, results, work=None, progress=print):
        self.data, self.results, self.progress = data, ResultFolder(results), progress
        self.work = cache_folder("training") if work is None else Path(work)
        self.paths = {
            split: [
                find_file(data, MULTI30K.files[f"{split}, {language}"]) for language in ("en", "de")
            ]
            for split in ("train", "dev", "test")
        }
        self.texts = {split: read_parallel(*paths) for split, paths in self.paths.items()}
        self.checksums = [checksum(path) for paths in self.paths.values() for path in paths]
        self._tokenizers = {}

    def tokenizer(self, settings):
        size = settings.vocabulary_size
        if size not in self._tokenizers:
            self._tokenizers[size] = BytePair.train(self.paths["train"], size)
        return self._tokenizers[size]

    def part(self, settings, split):
        sources, targets = self.texts[split]
        count = settings.limit or len(sources)
        return sources[:count], targets[:count]

    def result_name(self, settings, seed):
        return result_name(TASK, settings.encoder, settings.attention, seed)

    def key(self, settings, seed):
        return result_hash(TASK, dataclasses.asdict(settings), seed, self.checksums)

    def done(self, settings, seed):
        """Returns the stored result if it has the same settings and data, or `None`."""
        return self.results.done(self.result_name(settings, seed), self.key(settings, seed))

    def run(self, settings, seed):
        """Returns the result of a run; trains, translates and scores if there is none yet."""
        done = self.done(settings, seed)
        if done is not None:
            return done
        set_seed(seed)
        tokenizer = self.tokenizer(settings)
        model = settings.build(len(tokenizer))
        seconds, tokens = self._train(settings, seed, model, tokenizer)
        dev_loss = self._dev_loss(settings, model, tokenizer)
        options = {"num_beams": settings.num_beams, "length_penalty": settings.length_penalty}
        sources, references = self.part(settings, "test")
        alone = len(sources)
        rows = even_rows(alone, LONGEST_TESTED)
        lengths = tokenizer.encode(references).lengths - 1
        sources, references = _join(sources, rows), _join(references, rows)
        begun = time.monotonic()
        outputs = generate(model, tokenizer, sources, beam_search, batch_size=256, **options)
        decoding_seconds = time.monotonic() - begun
        losses = token_losses(model, tokenizer, sources, references)
        bleu = metrics.bleu(references[:alone], outputs[:alone])
        extra = {
            "by_length": bleu_by_length(sources, references, outputs),
            "by_captions": by_captions(rows, lengths, losses, references, outputs),
            "dev_loss": dev_loss,
            "signature": metrics.bleu_signature(),
            "parameters": model.count_params(),
            "target_tokens": tokens,
            "decoding_seconds": round(decoding_seconds, 1),
            "samples": [
                {"source": sources[i], "reference": references[i], "output": outputs[i]}
                for i in range(3)
            ],
            "attention": look(model, tokenizer, sources[:200], options),
        }
        record = Record(
            task=TASK,
            encoder=settings.encoder,
            method=settings.attention,
            run=settings.attention,
            settings=dataclasses.asdict(settings),
            seed=seed,
            score=bleu / 100,
            metrics={
                "bleu": bleu / 100,
                "bleu_joined": metrics.bleu(references[alone:], outputs[alone:]) / 100,
            },
            seconds=round(seconds, 1),
            hash=self.key(settings, seed),
            inputs=self.checksums,
            extra=extra,
            **environment(),
        )
        self.results.write(self.result_name(settings, seed), record)
        shutil.rmtree(self._work(settings, seed), ignore_errors=True)
        self.progress(
            f"{settings.name} seed {seed}: BLEU {bleu:.1f}, joined "
            f"{100 * record.metrics['bleu_joined']:.1f}, {seconds:.0f} s"
        )
        return record

    def _work(self, settings, seed):
        return self.work / f"{settings.name}.seed{seed}.{self.key(settings, seed)[:8]}"

    def _train(self, settings, seed, model, tokenizer):
        """Trains a model or resumes; returns the seconds and the target tokens of an epoch."""
        sources, targets = join_captions(
            *self.part(settings, "train"), alone=0.5, longest=LONGEST_TRAINED, seed=0
        )
        batches = translation_batches(
            sources,
            targets,
            tokenizer,
            tokens_per_batch=settings.tokens_per_batch,
            buckets=LENGTHS,
            seed=seed,
        )
        settings.compile(model, settings.epochs * len(batches))
        name, work = f"{settings.name} seed {seed}", self._work(settings, seed)
        seconds, _ = fit_resumed(model, batches, settings.epochs, work, name, self.progress)
        return seconds, int(tokenizer.encode(targets).lengths.sum())

    def _dev_loss(self, settings, model, tokenizer):
        """Returns the mean loss of a target token, including label smoothing."""
        batches = translation_batches(
            *self.part(settings, "dev"),
            tokenizer,
            training=False,
            tokens_per_batch=settings.tokens_per_batch,
            buckets=1,
        )
        return float(model.evaluate(batches, verbose=0))


def look(model, tokenizer, sources, options):
    """Returns the attention of a model while it translates the first source of 9 to 12 words.

    Returns:
        A dict with the tokens of source and output, and weights (T, S). They are means over the
        heads of the Transformer's last layer. `None` for a model without attention.
    """
    if getattr(model, "attention", model) is None:
        return None
    source = next((s for s in sources if 9 <= len(s.split()) <= 12), sources[0])
    weights, written, read = alignment(model, tokenizer, source, **options)
    if weights.ndim == 4:
        weights = weights[-1].mean(axis=0)
    rounded = np.round(weights.astype("float64"), 4)
    return {"source": read, "output": written, "weights": rounded.tolist()}
