"""Schemes of words for `BytePair`: for translation, GPT and GPT-2."""

import dataclasses
from collections.abc import Callable

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from keras_plm.files.json_files import read_json
from keras_plm.files.opening import read_text
from keras_plm.tokenizers.tokenizer_json import VOCABULARY, saved_vocabulary, token_lines

NEWLINE = "\n</w>"  # the last token of GPT's vocabulary
# Tokens after the learned ones: those of Radford et al. 2018, section 3.3, and padding.
TASK_TOKENS = {
    "start_id": "_start_",
    "delimiter_id": "_delimiter_",
    "classify_id": "_classify_",
    "pad_id": "_pad_",
}


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A scheme that writes words as tokens.

    Attributes:
        special: Dict from attributes of the tokenizer to special tokens.
        frame: Attributes of the special tokens before a text, between two texts, and after a text.
        appended: Whether special tokens follow the learned tokens; otherwise the vocabulary has
            them.
        unknown: The token for text that no other token covers; `None` if there is no such text.
        model: Arguments of the package's BPE model and trainer.
        build: Function `(model, lowercase, clean) -> tokenizers.Tokenizer`.
        lowercase: Whether text is lower-cased by default.
        extra: Tokens of every vocabulary, also if the text does not contain them.
    """

    special: dict
    frame: tuple
    appended: bool
    unknown: str | None
    build: Callable
    model: dict = dataclasses.field(default_factory=dict)
    lowercase: bool = False
    extra: tuple = ()


def _spaces(model, lowercase, clean):
    """Splits text into words with the space before them, and single punctuation marks."""
    tokenizer = Tokenizer(model)
    kept = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=lowercase
    )
    steps = [kept, normalizers.NFC(), normalizers.Prepend(" ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words = Regex(r" ?\w+| ?[^\w\s]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "removed", invert=True)
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


# Replacements of the released code before it finds words: dashes, ellipses and accents in place of
# quotes (its `text_standardize`); curly quotes, ligatures and characters of double width (the part
# of `ftfy.fix_text` that well-encoded text needs).
CLEAN_UP = [
    ("[—–―]", "-"),
    ("…", "..."),
    ("[´‘’‚‛]", "'"),
    ("[“”„‟]", '"'),
    ("ﬁ", "fi"),
    ("ﬂ", "fl"),
    ("ﬀ", "ff"),
    ("ﬃ", "ffi"),
    ("ﬄ", "ffl"),
    ("\u3000", " "),
]
# Words of spaCy's English tokenizer after `text_standardize`: endings of contractions and runs of
# one punctuation mark are words; an abbreviation keeps its period.
_ENDINGS = r"(?i:s|m|re|ve|ll|d)"
_WORDS = "|".join(
    (
        r"\n",
        r"\b(?i:mr|mrs|ms|dr|st|jr|sr|prof|messrs|gen|gov|rev|capt|lt|col|sgt|mt|vs)\.(?!\w)",
        r"\b(?:\p{Lu}\.)+(?!\p{L})|\b(?i:a\.m|p\.m|i\.e|e\.g)\.",
        r"(?i:n't)\b|\b(?i:can)(?=(?i:not)\b)",
        rf"'(?:{_ENDINGS}|(?i:em|cause|bout|til|tis|twas))\b",
        r"\d+(?:[.:]\d+)+",
        rf"(?:(?!(?i:n't)\b)[^\W_])+(?:'(?!{_ENDINGS}\b)[^\W_]+)*",
        r"([-~!\";?+,()\\/*\[\]{}|_.])\1*",
        r"[^\w\s]",
    )
)


def _word_ends(model, lowercase, clean):
    """Splits text into words, runs of punctuation and line breaks; `</w>` ends each."""
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace(Regex(a), b) for a, b in CLEAN_UP] if clean else []
    steps += [normalizers.NFC()] + ([normalizers.Lowercase()] if lowercase else [])
    tokenizer.normalizer = normalizers.Sequence([*steps, _one_break()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True)
    joined = [  # remove spaces around punctuation, as in English
        (r" (?=[.,;:!?)\]}])", ""),
        (r"(?<=[(\[{]) ", ""),
        (r" (?=(?i:n't|'s|'m|'re|'ve|'ll|'d)\b)", ""),
        (r" *\n *", "\n"),
    ]
    steps = [decoders.BPEDecoder(suffix="</w>"), decoders.Fuse()]
    steps += [decoders.Replace(Regex(a), b) for a, b in joined]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _one_break():
    # Match from the first space of a run: from every space, the time would be quadratic.
    return normalizers.Replace(Regex(r"(?<!\s)\s*\n\s*"), "\n")


def _bytes(model, lowercase, clean):
    """Splits text into bytes, written as visible characters; a space belongs to the next word."""
    tokenizer = Tokenizer(model)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_TASK_FRAME = ("start_id", "delimiter_id", "classify_id")
SCHEMES = {
    "space": Scheme(
        {"pad_id": "[PAD]", "unk_id": "[UNK]", "start_id": "[BOS]", "end_id": "[EOS]"},
        (None, None, "end_id"),
        appended=False,
        unknown="[UNK]",
        build=_spaces,
        extra=("[PAD]", "[UNK]", "[BOS]", "[EOS]"),
    ),
    "gpt": Scheme(
        {"unk_id": "<unk>", **TASK_TOKENS},
        _TASK_FRAME,
        appended=True,
        unknown="<unk>",
        build=_word_ends,
        model={"end_of_word_suffix": "</w>"},
        lowercase=True,
        extra=("<unk>",),
    ),
    "gpt2": Scheme(TASK_TOKENS, _TASK_FRAME, appended=True, unknown=None, build=_bytes),
}


def read_vocabulary(path, merges_path):
    """Reads tokens, merges and scheme from a released JSON of ids and its list of merges.

    Raises:
        ValueError: If a file is missing, or not of this kind.
    """
    ids = read_json(path, VOCABULARY)
    tokens = saved_vocabulary(path, ids)
    merges = []
    for number, line in enumerate(token_lines(read_text(merges_path)), 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise ValueError(
                f"{merges_path}:{number}: A line must be two tokens of {path} that join to a "
                f"third: use two files of one tokenizer. Received: {line!r:.60}"
            )
        merges.append(tuple(pair))
    return tokens, merges, "gpt" if any(p.endswith("</w>") for p in tokens) else "gpt2"
