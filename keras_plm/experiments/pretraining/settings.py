"""Settings of a pre-training run."""

import dataclasses
import math

from keras_plm.experiments.flags import check_settings, policy, setting
from keras_plm.experiments.pretraining.objectives import SIZES
from keras_plm.files.arguments import check_number, check_whole
from keras_plm.tokenizers.words import SPLITS

# For a mini encoder and about ten million words.
DEFAULTS = {
    "bert": {
        "tokens": 100e6,
        "vocabulary_size": 10_000,
        "tokens_per_batch": 4096,
        "learning_rate": 5e-4,  # at 1e-3 post-norm stays on its plateau
        "dropout": 0.0,  # a small model needs none if it sees little text twice
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

# The models that have a setting.
_TEXT, _TRANSFORMERS = ("bert", "gpt", "lstm"), ("bert", "gpt")
_BERT, _ELMO = ("bert",), ("elmo",)


def _of_model(name, text, **rules):
    """Creates a setting whose default depends on the model."""
    values = ", ".join(f"{model} {values[name]:g}" for model, values in DEFAULTS.items())
    return setting(None, f"{text} (default {values})", **rules)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """Settings of a pre-training run.

    Raises:
        ValueError: If a setting is out of range, or the model has no such setting.
    """

    model: str = setting("bert", f"choose the model: {', '.join(SIZES)}")
    size: str = setting(
        "mini",
        "choose the size; "
        + "; ".join(f"{model}: {', '.join(sizes)}" for model, sizes in SIZES.items()),
    )
    tokens: float = _of_model("tokens", "read this many tokens in all, padding included")
    vocabulary_size: int = _of_model(
        "vocabulary_size",
        "learn this many subword tokens; elmo predicts this many words",
        least=1,
    )
    sentences: str = setting(
        "split", "'split' paragraphs into sentences, or read one sentence per line: 'lines'",
        ("bert", "elmo"), choices=("split", "lines"),
    )  # fmt: skip
    tokens_per_batch: int = _of_model("tokens_per_batch", "read at most this many tokens in a step")
    learning_rate: float = _of_model(
        "learning_rate", "set the highest learning rate of AdamW, or of ELMo's AdaGrad", above=0
    )
    dropout: float = _of_model(
        "dropout", "drop this fraction of the encoder's units", least=0, below=1
    )
    precision: str = setting(
        "float32", "compute in 'float32', 'bfloat16' or 'float16'; weights stay in float32"
    )
    accumulation_steps: int = setting(
        1, "split a step's batch into this many micro-batches, to save memory", _TEXT, least=1
    )
    remat: bool = setting(
        False, "use rematerialization of the blocks, to save memory", _TRANSFORMERS
    )
    seed: int = setting(0, "seed all random numbers", least=0)
    lowercase: bool = setting(False, "lower-case the text; tagging names needs case", _TEXT)
    max_length: int = setting(128, "limit rows to this many tokens", _TEXT)
    first_length: int = setting(
        0, "limit rows of the first phase to this many tokens; 0 for a single phase", _TEXT
    )
    first_fraction: float = setting(
        0.9,
        "train this fraction of the steps in the first phase, as the paper does",
        _TEXT,
        above=0,
        below=1,
    )
    buckets: int = setting(4, "use this many row lengths; JAX compiles each once", _BERT, least=1)
    warmup: float = setting(
        0.04, "raise the learning rate in this fraction of the steps", _TEXT, least=0, below=1
    )
    weight_decay: float = setting(0.01, "set the weight decay", _TEXT, least=0)
    pre_norm: bool = setting(
        False, "normalise before each part of a block, not after it", _TRANSFORMERS
    )
    initializer_range: float = setting(
        0.02, "set the standard deviation of initial weights", _TEXT, above=0
    )
    whole_word: bool = setting(False, "mask all subword tokens of a word together", _BERT)
    next_sentence: bool = setting(True, "also predict whether two texts are adjacent", _BERT)
    left_to_right: bool = setting(
        False, "predict the next token from the tokens before it, and mask nothing", _BERT
    )
    mask_token_rate: float = setting(
        0.8, "replace this fraction of the predicted tokens by [MASK]", _BERT, least=0, most=1
    )
    random_token_rate: float = setting(
        0.1, "replace this fraction of the predicted tokens by random ones", _BERT, least=0, most=1
    )
    split: str = setting(
        "punctuation",
        "end words at 'punctuation' and white space, or only at 'spaces'",
        _ELMO,
        choices=SPLITS,
    )
    unroll_steps: int = setting(20, "backpropagate through this many steps", _ELMO, least=1)
    snapshots: int = setting(
        0, "keep this many encoders in OUT/snapshots, each at half the steps of the next", least=0
    )
    num_sampled: int = setting(
        2048,
        "sample this many words for the loss of larger vocabularies; 0 takes all",
        _ELMO,
        least=0,
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
        for field in dataclasses.fields(self):
            models, value = field.metadata["models"], getattr(self, field.name)
            if models and self.model not in models and value != field.default:
                raise ValueError(
                    f"`{field.name}` applies only to {', '.join(models)}. "
                    f"Received: model={self.model!r}, {field.name}={value!r}"
                )
        policy(self.precision)
        self._check_lengths()
        check_settings(self)
        if self.mask_token_rate + self.random_token_rate > 1:
            raise ValueError(
                "`mask_token_rate` and `random_token_rate` must be at most 1 together. "
                f"Received: {self.mask_token_rate} and {self.random_token_rate}"
            )
        if self.left_to_right and self.next_sentence:
            raise ValueError(
                "`left_to_right` needs --no-next-sentence. "
                f"Received: left_to_right={self.left_to_right}"
            )

    def _check_lengths(self):
        """Checks bounds that depend on other settings."""
        longest = SIZES[self.model][self.size].get("max_sequence_length", 512)
        check_whole(self.max_length, "max_length", least=8, most=longest)
        shortest = 8 * bool(self.first_length)
        check_whole(self.first_length, "first_length", least=shortest, most=longest)
        row = max(self.max_length, self.first_length)
        row = self.unroll_steps if self.model == "elmo" else row
        check_whole(self.tokens_per_batch, "tokens_per_batch", least=row)
        check_number(self.tokens, "tokens", least=self.tokens_per_batch)

    @property
    def steps(self):
        return math.ceil(self.tokens / self.tokens_per_batch)

    @property
    def snapshot_steps(self):
        """Steps after which a snapshot is saved; a step has all its micro-batches."""
        return {self.steps >> i for i in range(1, self.snapshots + 1)} - {0}

    @property
    def phases(self):
        """`(longest row, first step, last step + 1)` of each phase."""
        if not self.first_length:
            return [(self.max_length, 0, self.steps)]
        end = round(self.first_fraction * self.steps)
        return [(self.first_length, 0, end), (self.max_length, end, self.steps)]
