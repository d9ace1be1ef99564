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
from keras_plm.datasets.tasks import checksum
from keras_plm.experiments.flags import policy, setting
from keras_plm.experiments.pretraining.objectives import OBJECTIVE, OBJECTIVES, SIZES
from keras_plm.experiments.pretraining.prepare import read_prepared
from keras_plm.experiments.results import environment
from keras_plm.files.writing import write_json, write_text
from keras_plm.tokenizers import open_text
from keras_plm.tokenizers.words import SPLITS
from keras_plm.training.distribution import Distribution, begun_processes, distribute
from keras_plm.training.fit import check_loss
from keras_plm.training.resume import TrainingState, anywhere, has_state

# What suits a mini encoder on some ten million words; else, or for others, name it.
DEFAULTS = {
    "bert": {
        "tokens": 100e6,
        "vocabulary_size": 10_000,
        "tokens_per_batch": 4096,
        "learning_rate": 5e-4,  # at 1e-3 post-norm stays on its plateau
        "dropout": 0.0,  # a small model that sees little text twice needs none
    },
    "elmo": {
        "tokens": 30e6,
        "vocabulary_size": 50_000,
        "tokens_per_batch": 2560,  # 128 rows, as in the paper
        "learning_rate": 0.2,
        "dropout": 0.1,
    },
    "gpt": {
        "tokens": 100e6,
        "vocabulary_size": 10_000,
        "tokens_per_batch": 4096,
        "learning_rate": 5e-4,  # at 1e-3 post-norm stays on its plateau
        "dropout": 0.0,
    },
}
DEFAULTS["lstm"] = DEFAULTS["gpt"] | {"learning_rate": 2e-3}


# Which models have a setting.
_TEXT, _TRANSFORMERS = ("bert", "gpt", "lstm"), ("bert", "gpt")
_BERT, _ELMO = ("bert",), ("elmo",)


def _of_model(name, text):
    """A setting whose default is the model's."""
    values = ", ".join(f"{model} {values[name]:g}" for model, values in DEFAULTS.items())
    return setting(None, f"{text} (default {values})")


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How an encoder is pre-trained."""

    model: str = setting("bert", f"one of {', '.join(SIZES)}")
    size: str = setting(
        "mini", "; ".join(f"{model}: {', '.join(sizes)}" for model, sizes in SIZES.items())
    )
    tokens: float = _of_model("tokens", "how many tokens to read, padding included")
    vocabulary_size: int = _of_model(
        "vocabulary_size", "pieces, learned from the corpus; of elmo words that are predicted"
    )
    sentences: str = setting(
        "split", "'split' paragraphs into sentences, or one a line: 'lines'", ("bert", "elmo")
    )
    tokens_per_batch: int = _of_model("tokens_per_batch", "rows times length of a step")
    learning_rate: float = _of_model("learning_rate", "highest rate; of AdamW, of ELMo's AdaGrad")
    dropout: float = _of_model("dropout", "share dropped in the encoder")
    precision: str = setting(
        "float32", "'float32', 'bfloat16' or 'float16' (weights stay in float32)"
    )
    accumulate: int = setting(1, "parts in which a step's batch is read, in less memory", _TEXT)
    remat: bool = setting(
        False, "blocks are computed again for their gradients, in less memory", _TRANSFORMERS
    )
    seed: int = setting(0, "of everything random")
    lowercase: bool = setting(False, "lower-case the text; tagging names needs case", _TEXT)
    max_length: int = setting(128, "longest row", _TEXT)
    first_length: int = setting(
        0, "longest row of the first part of the steps; 0 for no such part", _TEXT
    )
    first_fraction: float = setting(
        0.9, "fraction of the steps with --first-length; the paper's nine tenths are at 128", _TEXT
    )
    buckets: int = setting(4, "how many row lengths; each is compiled once on JAX", _BERT)
    warmup: float = setting(0.04, "share of the steps in which the rate rises", _TEXT)
    weight_decay: float = setting(0.01, "as in the papers", _TEXT)
    pre_norm: bool = setting(
        False, "normalise before each part of a block, not after", _TRANSFORMERS
    )
    initializer_range: float = setting(0.02, "standard deviation of initial weights", _TEXT)
    whole_word: bool = setting(False, "mask all pieces of a word together", _BERT)
    next_sentence: bool = setting(True, "also guess whether two texts follow each other", _BERT)
    left_to_right: bool = setting(
        False, "sees what stands before alone and guesses the next token, masks nothing", _BERT
    )
    mask_token_rate: float = setting(0.8, "fraction of the predicted tokens shown as [MASK]", _BERT)
    random_token_rate: float = setting(0.1, "fraction of them replaced by random tokens", _BERT)
    split: str = setting(
        "punctuation", "words end at white space and 'punctuation', or at 'spaces' alone", _ELMO
    )
    unroll_steps: int = setting(20, "steps through which gradients go back", _ELMO)
    snapshots: int = setting(
        0, "encoders kept on the way in OUT/snapshots, each at half the steps of the next"
    )
    num_sampled: int = setting(
        2048, "words that stand for all in training, if there are more; 0 takes all", _ELMO
    )

    def __post_init__(self):
        if self.size not in SIZES.get(self.model, ()):
            known = "; ".join(f"{model} in {', '.join(sizes)}" for model, sizes in SIZES.items())
            raise ValueError(
                f"Known models: {known}. Received: model={self.model!r}, size={self.size!r}"
            )
        for name, value in DEFAULTS[self.model].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        policy(self.precision)
        for field in dataclasses.fields(self):
            of_models, value = field.metadata["models"], getattr(self, field.name)
            if of_models and self.model not in of_models and value != field.default:
                raise ValueError(
                    f"`{field.name}` applies only to {', '.join(of_models)}. "
                    f"Received: model={self.model!r}, {field.name}={value!r}"
                )
        longest = SIZES[self.model][self.size].get("max_sequence_length", 512)
        for name, good, rule in (
            ("sentences", self.sentences in ("split", "lines"), "'split' or 'lines'"),
            ("max_length", 8 <= self.max_length <= longest, f"8 to the model's {longest}"),
            ("first_length", self.first_length == 0 or 8 <= self.first_length <= longest,
             f"0, or 8 to the model's {longest}"),
            ("first_fraction", 0 < self.first_fraction < 1, "a fraction between 0 and 1"),
            ("buckets", self.buckets >= 1, "1 or more"),
            ("accumulate", self.accumulate >= 1, "1 or more"),
            ("left_to_right", not (self.left_to_right and self.next_sentence),
             "without the next sentence: --no-next-sentence"),
            ("mask_token_rate", 0 <= self.mask_token_rate <= 1, "a fraction from 0 to 1"),
            ("random_token_rate",
             0 <= self.random_token_rate and self.mask_token_rate + self.random_token_rate <= 1,
             "a fraction from 0 to what `mask_token_rate` leaves"),
            ("split", self.split in SPLITS, f"one of {', '.join(SPLITS)}"),
            ("unroll_steps", self.unroll_steps >= 1, "1 or more"),
            ("num_sampled", self.num_sampled >= 0, "0 or more"),
            ("snapshots", self.snapshots >= 0, "0 or more"),
            ("tokens_per_batch",
             self.tokens_per_batch >= (self.unroll_steps if self.model == "elmo" else 1),
             "1 or more, and at least a row"),
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
    def marks(self):
        """The steps behind which a snapshot is kept, each of as many parts as `accumulate` says."""
        return {self.steps >> i for i in range(1, self.snapshots + 1)} - {0}

    @property
    def phases(self):
        """`(longest row, first step, step behind the last)` of each part."""
        if not self.first_length:
            return [(self.max_length, 0, self.steps)]
        end = round(self.first_fraction * self.steps)
        return [(self.first_length, 0, end), (self.max_length, end, self.steps)]


def pretrain(
    settings,
    corpus,
    out,
    valid=None,
    resume=False,
    progress=None,
    every_seconds=300,
    init=None,
    prepared=None,
    devices=1,
):
    """Learns an encoder from text files, and first its vocabulary.

    `out` becomes an encoder folder for `keras_plm.load`, with `pretraining.json`, which tells how
    it was made, and with what its objective has beside the encoder, for `init`; what is needed to
    go on with the run is in `out/training`.

    Args:
        settings: A `Pretraining`.
        corpus: Text files, plain or .gz: a paragraph a line, a blank line between documents.
        out: The folder.
        valid: A text file whose loss is measured at the end and, with `init`, at the beginning.
        resume: If True, go on where an earlier call with the same settings and files stopped.
        progress: Called with a dict of step, tokens, losses and speed, now and then.
        every_seconds: How often the state is saved.
        init: Folder of an encoder whose training goes on, with text of another kind, say.
        prepared: A folder of `prepare`, in place of a corpus.
        devices: On how many, the first ones; `None` for all. torch has one a process, of which all
            call this, with one `out` that all see.

    Returns:
        The encoder and its tokenizer.

    Raises:
        ValueError: If `out` holds another run or an encoder, a file is missing or empty, or the
            devices cannot be had.
        FloatingPointError: If the loss or the weights are not finite. The last saved state stays.
    """
    distribution = _distribution(settings, devices)
    chief = distribution.is_chief
    out, work = Path(out), Path(out) / "training"
    for path in [*corpus, *([] if valid is None else [valid])]:
        open_text(path).close()  # says what is missing
    described = {
        **dataclasses.asdict(settings),
        "corpus": [Path(path).name for path in corpus],
        "corpus_sha256": [checksum(path) for path in corpus],
    }
    if prepared is not None:
        note, *prepared = read_prepared(prepared, settings.model)
        taken = ("corpus", "corpus_sha256", "sentences", "vocabulary_size", "lowercase")
        described |= {name: note[name] for name in taken}
        settings = dataclasses.replace(settings, sentences=note["sentences"])
    if init is not None:
        described |= {
            "init": Path(init).resolve().name,
            "init_sha256": _weights_of(init),
            "init_objective": (Path(init) / OBJECTIVE).is_file(),
            "size": None,  # both are those of `init`
            "vocabulary_size": None,
        }
    known = work / "settings.json"
    before = json.loads(known.read_text()) if known.is_file() else {}
    if has_state(work):
        if not resume:
            raise ValueError(
                f"{out} holds a pre-training run already: go on with --resume or name another "
                f"folder. Received: out={str(out)!r}"
            )
        # A setting that was not there yet had its default.
        before = dataclasses.asdict(Pretraining(settings.model, settings.size)) | before
        changed = [k for k in {**before, **described} if before.get(k) != described.get(k)]
        if changed:
            raise ValueError(
                f"The run in {out} is resumed with the settings and text it began with; for others "
                "name another folder. Received: "
                + ", ".join(
                    f"{k}={described.get(k)!r} instead of {before.get(k)!r}" for k in changed
                )
            )
    elif (out / "config.json").exists():
        raise ValueError(
            f"{out} holds an encoder that is not of a run to go on with: name another folder. "
            f"Received: out={str(out)!r}"
        )
    elif before and before != described:  # nothing was trained with them
        (work / "tokenizer.json").unlink(missing_ok=True)

    distribution.wait()  # all have looked
    if chief:
        write_json(known, described)
    objective = OBJECTIVES[settings.model](settings, corpus, work, init, prepared, distribution)
    model = objective.model
    held_out = None if valid is None else objective.held_out(valid)
    meter = Meter(settings, work / "log.jsonl", progress, chief=chief)
    measured = work / "valid_before.json"
    if held_out is not None and init is not None and not _known(measured, distribution):
        losses = _evaluate(objective, held_out)
        if chief:
            write_json(measured, losses)

    def on_save(state):
        objective.save(out)
        done = {"steps_done": state.steps // parts, "seconds": meter.seconds()}
        if distribution.num_devices > 1:
            done["devices"] = distribution.num_devices
        described_run = described | done
        if measured.is_file():
            described_run["valid_before"] = json.loads(measured.read_text())
        write_json(out / "pretraining.json", described_run | environment())

    state, parts = None, settings.accumulate
    for length, first, end in settings.phases:
        first, end = first * parts, end * parts
        batches = objective.batches(length)
        if state is None:
            state = meter.state = TrainingState(work, batches, every_seconds, on_save)
            state.restore(model)
            meter.go_on(state.steps)
        state.follow(batches, first)
        batches.step = state.steps - first
        if state.steps < end:
            meter.end = end  # where it stops `fit`
            with meter.stopping():
                kept = Snapshots(settings, state, objective, out / "snapshots")
                model.fit(batches, epochs=10**6, verbose=0, callbacks=[state, meter, kept])
    note, steps = out / "pretraining.json", state.steps // parts
    if chief and (not note.is_file() or json.loads(note.read_text())["steps_done"] != steps):
        on_save(state)  # stopped between the state and the encoder
    if held_out is not None:
        losses = _evaluate(objective, held_out)
        if chief:
            write_json(note, json.loads(note.read_text()) | {"valid": losses})
            meter.write({"step": steps, **{f"valid_{k}": v for k, v in losses.items()}})
    distribution.wait()  # the files are there
    distribution.close()
    return objective.encoder, objective.tokenizer


def _distribution(settings, devices):
    """What `devices` asks for."""
    begun = begun_processes()
    if keras.backend.backend() == "torch" and devices not in (None, begun):
        raise ValueError(
            "torch trains on one device a process: begin as many with torchrun, and say "
            f"--devices all. Received: devices={devices}, of {begun} processes"
        )
    if devices == begun == 1:
        return Distribution()
    if settings.model == "elmo":
        raise ValueError(
            "A biLM carries its states from batch to batch, on one device. "
            f"Received: model='elmo', devices={'all' if devices is None else devices}"
        )
    return distribute("data", devices=None if begun > 1 else devices)


def _known(path, distribution):
    """Whether all processes find a file that the chief writes later."""
    found = path.is_file()
    distribution.wait()
    return found


def _evaluate(objective, held_out):
    losses = objective.model.evaluate(held_out, verbose=0, return_dict=True)
    check_loss(objective.model, losses, "on the held-out text")
    losses = {name: float(value) for name, value in losses.items()}
    return losses | objective.about_held_out(losses)


def _weights_of(folder):
    path = Path(folder) / "model.safetensors"
    return checksum(path)


def snapshot_name(step):
    """The folder's name of the encoder behind a step."""
    return f"step_{step:06d}"


class Snapshots(keras.callbacks.Callback):
    """Keeps the encoder behind some steps, each in a folder of its own."""

    def __init__(self, settings, state, objective, folder):
        super().__init__()
        self.parts, self.marks = settings.accumulate, settings.marks
        self.state, self.objective, self.folder = state, objective, folder

    def on_train_batch_end(self, batch, logs=None):
        step, part = divmod(self.state.steps, self.parts)
        if not part and step in self.marks:
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()
            if not self.objective.distribution.is_chief:
                return
            folder = self.folder / snapshot_name(step)
            keras_plm.save(folder, self.objective.encoder, self.objective.tokenizer)


class Meter(keras.callbacks.Callback):
    """Writes and shows how pre-training goes, and stops it after its last step."""

    def __init__(self, settings, path, progress=None, every_seconds=10, chief=True):
        super().__init__()
        self.settings, self.path, self.progress = settings, path, progress
        self.every_seconds, self.chief = every_seconds, chief
        self.state, self.end, self.asked = None, settings.steps, False
        self._begun, self._before = time.monotonic(), 0.0
        self._at, self._last, self._first = time.monotonic(), 0, 0

    def seconds(self):
        """Seconds of training so far, those before a resume included."""
        return round(self._before + time.monotonic() - self._begun, 1)

    def go_on(self, steps):
        """Drops log lines behind a resumed step, and the held-out losses, which come again."""
        kept, steps = [], steps // self.settings.accumulate
        if self.path.is_file():
            for line in self.path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # half a line, where the run was stopped
                if entry["step"] <= steps and "seconds" in entry:
                    kept.append(line)
                    self._before = entry.get("seconds", self._before)
        if self.chief:
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
        now, parts = time.monotonic(), self.settings.accumulate
        done, part = divmod(self.state.steps, parts)
        # One for all processes, which sum their metrics: whoever is asked, and whose time is up.
        self.asked = anywhere(self.asked)
        stops = self.state.steps >= self.end or self.asked
        if stops:
            self.model.stop_training = True
        if not (anywhere(now - self._at >= self.every_seconds) or stops) or part:
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
            check_loss(self.model, logs, f"since step {self._last}")
            if self.chief:
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
