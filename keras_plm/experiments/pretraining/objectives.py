"""Objectives of pre-training: tokenizer, token stream, batches and model of each."""

import dataclasses
import math
from pathlib import Path

import keras
import numpy as np
from safetensors.numpy import save_file

import keras_plm
from keras_plm.data.corpus import TokenStream, check_stream
from keras_plm.experiments.flags import policy
from keras_plm.files.arrays import read_weights
from keras_plm.files.json_files import read_json
from keras_plm.files.writing import replacing
from keras_plm.layers import recompute_blocks
from keras_plm.models import (
    BERT,
    BERT_SIZES,
    ELMO_SIZES,
    GPT,
    GPT_SIZES,
    RECURRENT_LM_SIZES,
    ELMo,
    RecurrentLM,
)
from keras_plm.pretraining import BiLM, CausalLM, MaskedLM, causal_lm_batches, masked_lm_batches
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words, open_text
from keras_plm.training.distribution import Distribution
from keras_plm.training.optimizers import AdaGrad, BertAdamW, loss_scaled
from keras_plm.training.resume import set_seed
from keras_plm.training.schedules import WarmupCosineDecay, WarmupLinearDecay
from keras_plm.transfer import clone

SIZES = {"bert": BERT_SIZES, "elmo": ELMO_SIZES, "gpt": GPT_SIZES, "lstm": RECURRENT_LM_SIZES}
OBJECTIVE = "objective.safetensors"  # weights of the objective outside the encoder
WORDS = "words.json"  # the words that a biLM predicts


class _Objective:
    """Base of the objectives.

    Attributes:
        kind: Class of the encoder.
        tied: Whether all weights of the predictions belong to the encoder.
        encoder, tokenizer: The encoder in training and its tokenizer; `save` writes both.
        model: Compiled Keras model around the encoder.
    """

    tied = False

    def __init__(self, settings, corpus, work, init=None, prepared=None, distribution=None):
        self.settings, self.work, self.prepared = settings, Path(work), prepared
        self.distribution = distribution or Distribution()
        self.init = None if init is None else Path(init)
        before = None
        if init is not None:
            before, self.tokenizer = keras_plm.load(init, dtype=policy(settings.precision))
            if type(before) is not self.kind:
                raise ValueError(
                    f"`--init` must be the folder of a model of the same kind, {settings.model}. "
                    f"Received: {type(before).__name__} in {str(init)!r}"
                )
        self.work.mkdir(parents=True, exist_ok=True)
        with self.distribution.chief_first():
            self.read(corpus)
        with self.distribution.scope():
            set_seed(settings.seed)
            if before is None:
                self.encoder = self.build(policy(settings.precision))
            else:
                self.encoder = clone(before, dropout=settings.dropout)
            if settings.remat:
                recompute_blocks(self.encoder)
            self.make()
            self.restore()

    def compile(self, optimizer, rate, **options):
        """Compiles the model with an optimizer class, for the precision and the devices."""
        if self.settings.accumulation_steps > 1:
            options["gradient_accumulation_steps"] = self.settings.accumulation_steps
        optimizer = loss_scaled(optimizer(rate, **options), self.encoder)
        self.model.compile(self.distribution.optimizer(optimizer))

    def batches(self, length):
        """Returns batches of the whole text, with rows of at most `length` tokens."""
        found = self.training_batches(length).in_micro_batches(self.settings.accumulation_steps)
        return self.distribution.shard(found)

    def held_out(self, valid):
        """Returns batches of a held-out file."""
        with self.distribution.chief_first():
            found = self.held_out_batches(valid)
        return self.distribution.shard(found)

    def restore(self):
        """Loads the objective's own weights from the folder of `--init`, if it holds them."""
        path = None if self.init is None else self.init / OBJECTIVE
        if path is None or not path.is_file():
            return
        weights, own = read_weights(path), self._own()
        shapes = {name: tuple(w.shape) for name, w in own.items()}
        if shapes != {name: w.shape for name, w in weights.items()}:
            raise ValueError(
                f"{path} must fit the objective: train with the settings of its run. "
                f"Received: {sorted(weights)} instead of {sorted(own)}, or other shapes"
            )
        for name, weight in own.items():
            weight.assign(weights[name])

    def about_held_out(self, losses):
        """Returns further values for the interpretation of held-out losses."""
        return {}

    def save(self, out):
        """Writes the encoder and the objective's own weights to a folder."""
        keras_plm.save(out, self.encoder, self.tokenizer)
        weights = {name: keras.ops.convert_to_numpy(w) for name, w in self._own().items()}
        if not weights:
            return  # the encoder's embeddings predict
        path, needed = Path(out) / OBJECTIVE, sum(array.nbytes for array in weights.values())
        with replacing(path, needed=needed) as temporary:
            save_file(weights, temporary)

    def _own(self):
        of_encoder = {id(w) for w in self.encoder.weights}
        return {w.path: w for w in self.model.weights if id(w) not in of_encoder}


class _SubwordObjective(_Objective):
    """Base of objectives over subword tokens.

    Attributes:
        tokenizer_class: Class of the tokenizer.
    """

    def read(self, corpus):
        """Sets the tokenizer and the token stream.

        The tokenizer comes from `--init`, prepared text or a stopped call; otherwise it is trained.
        """
        path = self.work / "tokenizer.json"
        if self.prepared is not None:
            tokenizer, self.stream = self.prepared
            if self.init is None:
                self.tokenizer = tokenizer
            check_stream(self.stream, self.tokenizer)
            return
        if self.init is None and path.is_file():
            self.tokenizer = self.tokenizer_class.load(path)
        elif self.init is None:
            settings = self.settings
            self.tokenizer = self.learn(corpus, settings.vocabulary_size, settings.lowercase)
            self.tokenizer.save(path)
        self.stream = self._stream(corpus, "stream")

    def _stream(self, files, name):
        return self.text_stream(files, self.tokenizer, self.work / name, self.settings.sentences)


class MaskedText(_SubwordObjective):
    """BERT's objective: predicts masked tokens, and whether two texts are adjacent."""

    kind, tokenizer_class = BERT, WordPiece

    @staticmethod
    def learn(corpus, vocabulary_size, lowercase):
        return WordPiece.train(corpus, vocabulary_size, lowercase)

    @staticmethod
    def text_stream(files, tokenizer, folder, sentences, **options):
        return TokenStream.build(files, tokenizer, folder, sentences, **options)

    def build(self, dtype):
        settings = self.settings
        return BERT(
            len(self.tokenizer),
            **BERT_SIZES[settings.size],
            dropout=settings.dropout,
            pre_norm=settings.pre_norm,
            causal=settings.left_to_right,
            initializer_range=settings.initializer_range,
            dtype=dtype,
        )

    def make(self):
        settings = self.settings
        if settings.left_to_right:
            self.model = CausalLM(self.encoder)
        else:
            self.model = MaskedLM(self.encoder, next_sentence=settings.next_sentence)
        warmup = int(settings.warmup * settings.steps)
        schedule = WarmupLinearDecay(settings.learning_rate, settings.steps, warmup)
        self.compile(BertAdamW, schedule, weight_decay=settings.weight_decay)

    def training_batches(self, length):
        return self._batches(self.settings, self.stream, length)

    def held_out_batches(self, valid):
        """Returns batches of a held-out file, with pairs and masks drawn once."""
        stream = self._stream([valid], "valid")
        # With one bucket, both losses and accuracies are means over all masks.
        settings = dataclasses.replace(self.settings, buckets=1)
        return self._batches(settings, stream, settings.max_length, training=False)

    def _batches(self, settings, stream, length, training=True):
        return masked_lm_batches(
            stream,
            self.tokenizer,
            max_length=length,
            next_sentence=settings.next_sentence,
            whole_word=settings.whole_word,
            mask_token_rate=settings.mask_token_rate,
            random_token_rate=settings.random_token_rate,
            left_to_right=settings.left_to_right,
            tokens_per_batch=settings.tokens_per_batch,
            buckets=settings.buckets,
            seed=settings.seed,
            training=training,
        )


class NextToken(_SubwordObjective):
    """GPT's objective: predicts the next token."""

    kind, tokenizer_class = GPT, BytePair
    tied = True

    @staticmethod
    def learn(corpus, vocabulary_size, lowercase):
        return BytePair.train(corpus, vocabulary_size, lowercase, scheme="gpt")

    @staticmethod
    def text_stream(files, tokenizer, folder, sentences, **options):
        # Text continues after the end of a line; the end is a token.
        end_id = getattr(tokenizer, "newline_id", None)
        return TokenStream.build(files, tokenizer, folder, "lines", end_id=end_id, **options)

    def build(self, dtype):
        settings = self.settings
        return GPT(
            self.tokenizer.text_size,
            **GPT_SIZES[settings.size],
            dropout=settings.dropout,
            pre_norm=settings.pre_norm,
            initializer_range=settings.initializer_range,
            dtype=dtype,
        )

    def make(self):
        settings = self.settings
        self.model = CausalLM(self.encoder)
        warmup = int(settings.warmup * settings.steps)
        schedule = WarmupCosineDecay(settings.learning_rate, settings.steps, warmup)
        self.compile(BertAdamW, schedule, weight_decay=settings.weight_decay, bias_correction=True)

    def training_batches(self, length):
        """Returns batches of full windows of `length` tokens."""
        return self._batches(self.stream, length)

    def held_out_batches(self, valid):
        """Returns batches of consecutive windows of a held-out file."""
        stream = self._stream([valid], "valid")
        words = Words.train([valid])
        with open_text(valid) as file:
            self._words = int(words.encode([line for line in file if line.strip()]).lengths.sum())
        self._tokens = len(stream.tokens)
        return self._batches(stream, self.settings.max_length, training=False)

    def about_held_out(self, losses):
        """Returns the perplexity per word: punctuation marks are words, ends of lines are not."""
        nats = losses["loss"] * self._tokens / self._words
        counts = {"tokens": self._tokens, "words": self._words}
        return {"word_perplexity": math.exp(min(nats, 700)), **counts}

    def _batches(self, stream, length, training=True):
        rows = max(self.settings.tokens_per_batch // length, 1)
        return causal_lm_batches(
            stream, self.tokenizer, length, training, batch_size=rows, seed=self.settings.seed
        )


class NextTokenOfLSTM(NextToken):
    """GPT's objective for an LSTM instead of a Transformer."""

    kind = RecurrentLM

    def build(self, dtype):
        settings, size = self.settings, RECURRENT_LM_SIZES[self.settings.size]
        return RecurrentLM(
            self.tokenizer.text_size,
            **size,
            dropout=settings.dropout,
            initializer_range=settings.initializer_range,
            dtype=dtype,
        )


class BothWays(_Objective):
    """ELMo's objective: predicts the next word and the previous word."""

    kind = ELMo
    tokenizer = Characters()

    def read(self, corpus):
        path, known = self.work / "tokenizer.json", None
        if self.init is not None and (self.init / WORDS).is_file():
            known = Words.load(self.init / WORDS).vocabulary
        if path.is_file():
            self.lexicon = Words.load(path)
        else:
            self.lexicon = lexicon(corpus, known, self.settings.split)
            self.lexicon.save(path)
        size = self.settings.vocabulary_size if known is None else len(known)
        self.words = self.lexicon.vocabulary[:size]
        self.stream = self._stream(corpus, self.lexicon, "stream")

    def _stream(self, files, words, name):
        return TokenStream.build(files, words, self.work / name, self.settings.sentences)

    def build(self, dtype):
        sizes = ELMO_SIZES[self.settings.size]
        return ELMo(**sizes, dropout=self.settings.dropout, dtype=dtype)

    def make(self):
        settings, count = self.settings, len(self.words)
        # A smaller vocabulary needs no sampling.
        num_sampled = settings.num_sampled if settings.num_sampled < count else 0
        rows = settings.tokens_per_batch // settings.unroll_steps
        self.model = BiLM(self.encoder, count, num_sampled, rows)
        start = {"initial_accumulator_value": 1.0, "global_clipnorm": 10.0}
        self.compile(AdaGrad, settings.learning_rate, **start)

    def save(self, out):
        super().save(out)
        Words(self.words, split=self.settings.split).save(Path(out) / WORDS)

    def training_batches(self, length):
        steps, seed = self.settings.unroll_steps, self.settings.seed
        return self.model.batches(self.stream, self.lexicon, steps, seed)

    def held_out_batches(self, valid):
        """Returns batches of a held-out file.

        New words have their characters as inputs, and count as unknown in predictions.
        """
        words = lexicon([valid], self.words, self.settings.split)
        stream = self._stream([valid], words, "valid")
        self._unknown = float(np.mean(stream.tokens[:] >= len(self.words)))
        return self.model.batches(stream, words, self.settings.unroll_steps, training=False)

    def about_held_out(self, losses):
        """Returns the fraction of words that count as the unknown word in predictions."""
        return {"unknown": self._unknown}


def about_init(settings, init):
    """Yields warnings about an encoder that is trained further; the objective raises errors.

    Args:
        settings: A `Pretraining`.
        init: Folder of the encoder.
    """
    config = init / "config.json"
    kind = read_json(config, dict).get("model") if config.is_file() else None
    objective = OBJECTIVES[settings.model]
    if kind != objective.kind.__name__:
        return
    if not objective.tied and not (init / OBJECTIVE).is_file():
        yield (
            f"{init} has no {OBJECTIVE}: the layers that predict words start from random weights. "
            "The loss before training does not describe the encoder."
        )
    if settings.model == "elmo" and (init / WORDS).is_file():
        split = Words.load(init / WORDS).split
        if split != settings.split:
            yield (
                f"The words of {init} end at {split}; with --split {settings.split} some words "
                "differ, and more of them are unknown at first."
            )


def lexicon(files, first=None, split="punctuation"):
    """Creates a `Words` tokenizer: the words of `first`, then all other words of the files."""
    every = Words.train(files, split=split).vocabulary
    if first is not None:
        known = set(first)
        every = [*first, *(word for word in every if word not in known)]
    return Words(every, split=split)


OBJECTIVES = {"bert": MaskedText, "elmo": BothWays, "gpt": NextToken, "lstm": NextTokenOfLSTM}
