"""Pre-training from raw text: `python -m benchmarks pretrain`."""

import contextlib
import dataclasses
import json
import math
import signal
import threading
import time
from pathlib import Path

import keras

import keras_plm
from benchmarks.records import environment, write_json, write_text
from benchmarks.settings import policy, setting
from benchmarks.tasks import checksum
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.optimization import AdamW, WarmupLinearDecay
from keras_plm.pretraining import MaskedLM, masked_lm_batches
from keras_plm.resume import STATE, TrainingState, set_seed
from keras_plm.streams import TokenStream
from keras_plm.tokenizers import WordPiece, open_text


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How an encoder is pre-trained. The defaults suit BERT-mini on some ten million words."""

    model: str = setting("bert", "which model")
    size: str = setting("mini", f"one of {', '.join(BERT_SIZES)}")
    tokens: float = setting(100e6, "how many tokens to read, padding included")
    vocabulary_size: int = setting(10_000, "word pieces, learned from the corpus")
    lowercase: bool = setting(False, "lower-case the text; tagging names needs case")
    sentences: str = setting("split", "'split' paragraphs into sentences, or one a line: 'lines'")
    max_length: int = setting(128, "longest row")
    first_length: int = setting(0, "longest row of the first part of the steps; 0 for no such part")
    first_share: float = setting(
        0.9, "that part; the paper's nine tenths are at 128, the rest at 512"
    )
    buckets: int = setting(4, "how many row lengths; each is compiled once on JAX")
    tokens_per_batch: int = setting(4096, "rows times length of a step")
    learning_rate: float = setting(5e-4, "highest rate; at 1e-3 post-norm stays on its plateau")
    warmup: float = setting(0.04, "share of the steps in which the rate rises")
    weight_decay: float = setting(0.01, "as in the paper")
    dropout: float = setting(0.0, "a small model that sees little text twice needs none")
    pre_norm: bool = setting(False, "normalise before each part of a block, not after")
    initializer_range: float = setting(0.02, "standard deviation of initial weights")
    whole_word: bool = setting(False, "mask all pieces of a word together")
    next_sentence: bool = setting(True, "also guess whether two texts follow each other")
    precision: str = setting("float32", "'float32' or 'bfloat16' (weights stay in float32)")
    seed: int = setting(0, "of everything random")

    def __post_init__(self):
        if self.model != "bert" or self.size not in BERT_SIZES:
            raise ValueError(
                f"Known models: bert in {', '.join(BERT_SIZES)}. "
                f"Received: model={self.model!r}, size={self.size!r}"
            )
        policy(self.precision)
        longest = BERT_SIZES[self.size].get("max_sequence_length", 512)
        for name, good, rule in (
            ("sentences", self.sentences in ("split", "lines"), "'split' or 'lines'"),
            ("max_length", 8 <= self.max_length <= longest, f"8 to BERT's {longest}"),
            ("first_length", self.first_length == 0 or 8 <= self.first_length <= longest,
             f"0, or 8 to BERT's {longest}"),
            ("first_share", 0 < self.first_share < 1, "a share between 0 and 1"),
            ("buckets", self.buckets >= 1, "1 or more"),
            ("tokens_per_batch", self.tokens_per_batch >= 1, "1 or more"),
            ("tokens", self.tokens_per_batch <= self.tokens < math.inf,
             f"at least one batch, {self.tokens_per_batch}"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("warmup", 0 <= self.warmup < 1, "0 or a share below 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("dropout", 0 <= self.dropout < 1, "0 or a share below 1"),
            ("initializer_range", 0 < self.initializer_range < math.inf, "above 0"),
        ):  # fmt: skip
            if not good:
                raise ValueError(f"`{name}` must be {rule}. Received: {getattr(self, name)!r}")

    @property
    def steps(self):
        return math.ceil(self.tokens / self.tokens_per_batch)

    @property
    def phases(self):
        """`(longest row, first step, step behind the last)` of each part."""
        if not self.first_length:
            return [(self.max_length, 0, self.steps)]
        end = round(self.first_share * self.steps)
        return [(self.first_length, 0, end), (self.max_length, end, self.steps)]


def pretrain(settings, corpus, out, valid=None, resume=False, progress=None, every_seconds=300):
    """Learns a vocabulary, then an encoder, from text files.

    `out` becomes an encoder folder for `keras_plm.load`, with `pretraining.json`, which tells how
    it was made; what is needed to go on is in `out/training`.

    Args:
        settings: A `Pretraining`.
        corpus: Text files, plain or .gz: a paragraph a line, a blank line between documents.
        out: The folder.
        valid: A text file whose loss is measured at the end.
        resume: If True, go on where an earlier call with the same settings and files stopped.
        progress: Called with a dict of step, tokens, losses and speed, now and then.
        every_seconds: How often the state is saved.

    Returns:
        The encoder and its tokenizer.

    Raises:
        ValueError: If `out` holds another run or an encoder, or a file is missing or empty.
    """
    out, work = Path(out), Path(out) / "training"
    for path in [*corpus, *([] if valid is None else [valid])]:
        open_text(path).close()  # says what is missing
    described = {
        **dataclasses.asdict(settings),
        "corpus": [Path(path).name for path in corpus],
        "corpus_sha256": [checksum(path) for path in corpus],
    }
    known = work / "settings.json"
    before = json.loads(known.read_text()) if known.is_file() else {}
    if (work / STATE).is_file():
        if not resume:
            raise ValueError(
                f"{out} holds a pre-training run already: go on with --resume or name another "
                f"folder. Received: out={str(out)!r}"
            )
        changed = [k for k in described if before.get(k) != described[k]]
        if changed:
            raise ValueError(
                "A run is resumed with the settings and text it began with; for others name "
                "another folder. Received: "
                + ", ".join(f"{k}={described[k]!r} instead of {before.get(k)!r}" for k in changed)
            )
    elif (out / "config.json").exists():
        raise ValueError(
            f"{out} holds an encoder that is not of a run to go on with: name another folder. "
            f"Received: out={str(out)!r}"
        )
    elif before and before != described:  # nothing was trained with them
        (work / "tokenizer.json").unlink(missing_ok=True)

    write_json(known, described)
    tokenizer, stream = _read(settings, corpus, work)
    held_out = None if valid is None else _held_out(settings, valid, tokenizer, work)
    set_seed(settings.seed)
    encoder = BERT(
        len(tokenizer),
        **BERT_SIZES[settings.size],
        dropout=settings.dropout,
        pre_norm=settings.pre_norm,
        initializer_range=settings.initializer_range,
        dtype=policy(settings.precision),
    )
    model = MaskedLM(encoder, next_sentence=settings.next_sentence)
    schedule = WarmupLinearDecay(
        settings.learning_rate, settings.steps, int(settings.warmup * settings.steps)
    )
    model.compile(AdamW(schedule, weight_decay=settings.weight_decay))
    meter = Meter(settings, work / "log.jsonl", progress)

    def on_save(state):
        keras_plm.save(out, encoder, tokenizer)
        described_run = described | {"steps_done": state.steps, "seconds": meter.seconds()}
        write_json(out / "pretraining.json", described_run | environment())

    state = meter.state = None
    for length, first, end in settings.phases:
        batches = _batches(settings, stream, tokenizer, length)
        if state is None:
            state = meter.state = TrainingState(work, batches, every_seconds, on_save)
            state.restore(model)
            meter.go_on(state.steps)
        state.follow(batches, first)
        batches.step = state.steps - first
        if state.steps < end:
            meter.end = end  # where it stops `fit`
            with meter.stopping():
                model.fit(batches, epochs=10**6, verbose=0, callbacks=[state, meter])
    note = out / "pretraining.json"
    if not note.is_file() or json.loads(note.read_text())["steps_done"] != state.steps:
        on_save(state)  # stopped between the state and the encoder
    if held_out is not None:
        losses = model.evaluate(held_out, verbose=0, return_dict=True)
        losses = {name: float(value) for name, value in losses.items()}
        write_json(note, json.loads(note.read_text()) | {"valid": losses})
        meter.write({"step": state.steps, **{f"valid_{k}": v for k, v in losses.items()}})
    return encoder, tokenizer


def _held_out(settings, valid, tokenizer, work):
    """One drawing of pairs and masks from a held-out file."""
    stream = TokenStream.build([valid], tokenizer, work / "valid", settings.sentences)
    # One bucket, so that not only the losses but the accuracies too are means over all masks.
    settings = dataclasses.replace(settings, buckets=1)
    return _batches(settings, stream, tokenizer, settings.max_length, training=False)


def _batches(settings, stream, tokenizer, length, training=True):
    return masked_lm_batches(
        stream,
        tokenizer,
        max_length=length,
        next_sentence=settings.next_sentence,
        whole_word=settings.whole_word,
        tokens_per_batch=settings.tokens_per_batch,
        buckets=settings.buckets,
        seed=settings.seed,
        training=training,
    )


def _read(settings, corpus, work):
    """The tokenizer, learned if it is not there yet, and the corpus as its tokens."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "tokenizer.json"
    if path.is_file():
        tokenizer = WordPiece.load(path)
    else:
        tokenizer = WordPiece.train(corpus, settings.vocabulary_size, settings.lowercase)
        tokenizer.save(path)
    return tokenizer, TokenStream.build(corpus, tokenizer, work / "stream", settings.sentences)


class Meter(keras.callbacks.Callback):
    """Writes and shows how pre-training goes, and stops it after its last step."""

    def __init__(self, settings, path, progress=None, every_seconds=10):
        super().__init__()
        self.settings, self.path, self.progress = settings, path, progress
        self.every_seconds = every_seconds
        self.state, self.end, self.asked = None, settings.steps, False
        self._begun, self._before = time.monotonic(), 0.0
        self._at, self._last, self._first = time.monotonic(), 0, 0

    def seconds(self):
        """Seconds of training so far, those before a resume included."""
        return round(self._before + time.monotonic() - self._begun, 1)

    def go_on(self, steps):
        """Drops log lines behind a resumed step, and the held-out losses, which come again."""
        kept = []
        if self.path.is_file():
            for line in self.path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # half a line, where the run was stopped
                if entry["step"] <= steps and "seconds" in entry:
                    kept.append(line)
                    self._before = entry.get("seconds", self._before)
        write_text(self.path, "".join(line + "\n" for line in kept))
        self._last = self._first = steps

    @contextlib.contextmanager
    def stopping(self):
        """Lets Ctrl-C end `fit` behind a whole step, which is saved; a second one at once."""

        def ask(*_):
            self.asked = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if self.asked:
            raise KeyboardInterrupt

    def on_train_begin(self, logs=None):
        self._begun = self._at = time.monotonic()

    def on_train_end(self, logs=None):
        self._before = self.seconds()
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        done = self.state.steps
        now = time.monotonic()
        if done >= self.end or self.asked:
            self.model.stop_training = True
        elif now - self._at < self.every_seconds:
            return
        if self._last < done:
            steps = done - self._last
            entry = {
                "step": done,
                "tokens": done * self.settings.tokens_per_batch,
                "seconds": self.seconds(),
                "tokens_per_second": round(
                    steps * self.settings.tokens_per_batch / max(now - self._at, 1e-9)
                ),
                **{k: round(float(v), 4) for k, v in (logs or {}).items()},
            }
            self.write(entry)
            if self.progress is not None:
                self.progress(entry)
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            self.model.reset_metrics()  # each line is about the steps since the last
            self._at, self._last = now, done

    def write(self, entry):
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")
