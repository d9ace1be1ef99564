"""Adapter of KerasHub's tokenizers to our contract."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from keras_plm.files.json_files import OneOf, Whole, check_shape, parse_json, read_json
from keras_plm.files.sequences import Tensor, as_text
from keras_plm.tokenizers import WordPiece
from keras_plm.tokenizers.encoded import Row
from keras_plm.tokenizers.subwords import SubwordTokenizer, one_row
from keras_plm.tokenizers.tokenizer_json import (
    ADDED_TOKEN,
    ID,
    VOCABULARY,
    check_added_ids,
    check_saved,
    naming,
    refused,
    saved_vocabulary,
)

# The shapes of files of `HubTokenizer.save`, of their settings, and of the JSON in these.
SPECIAL = {"pad_id": ID, "sep_id": ID, "cls_id?": ID, "mask_id?": ID, "unk_id?": ID}
SETTINGS = {"tokenizer_json": str, "special": SPECIAL, "between": Whole(1), "has_segments": bool}
SHAPE = {"model": {"type": OneOf(("HubTokenizer",)), "settings": SETTINGS}}
JSON = {
    "model": {"type": OneOf(("WordPiece", "BPE", "Unigram")), "dropout?": None},
    "added_tokens?": ([{**ADDED_TOKEN, "id": ID}], None),
    "truncation?": None,
    "padding?": None,
}
# The shape of a KerasHub preset's `tokenizer.json`.
PRESET = {
    "registered_name": str,
    "config?": {
        "lowercase?": (bool, None),
        "strip_accents?": (bool, None),
        "split_on_cjk?": bool,
        "suffix_indicator?": str,
        "split?": bool,
        "oov_token?": str,
    },
}
TWO_BETWEEN = ("RobertaTokenizer",)  # two texts are <s> a </s></s> b </s>
WORD_PIECE = {"suffix_indicator": "##", "split": True, "oov_token": "[UNK]"}

HIDDEN = "\0"  # before the names of special pieces, which no text contains


@keras.saving.register_keras_serializable("keras_plm")
class HubTokenizer(SubwordTokenizer):
    """A tokenizer with the vocabulary of a KerasHub tokenizer, with offsets, word ids and `pack`.

    The `tokenizers` package computes KerasHub's tokens: WordPiece, byte-level byte pairs, or
    SentencePiece's unigrams. Texts have the special tokens of the model's pre-training:
    `[CLS] a [SEP] b [SEP]`, with two separators for RoBERTa; `a <|endoftext|> b <|endoftext|>` for
    GPT-2. Create one with `HubTokenizer.of`.

    Differs from KerasHub: lower-casing WordPiece also removes accents, and `[SEP]` in a text is the
    special token, both as in the original BERT. Names of special tokens in a text of RoBERTa are
    text. SentencePiece finds the pieces that its user defined, such as `[MASK]`, after it has
    normalised a text, not before.

    Args:
        tokenizer_json: A tokenizer of the `tokenizers` package as JSON.
        special: Ids of special tokens: `pad_id`, `sep_id` and optionally `cls_id`, `mask_id`,
            `unk_id`.
        between: Number of separators between two texts.
        has_segments: If True, packed texts have `segment_ids`.

    Raises:
        ValueError: If `tokenizer_json` is not of a supported kind, or an id is not in its
            vocabulary.

    >>> import keras_hub  # doctest: +SKIP
    >>> theirs = keras_hub.tokenizers.Tokenizer.from_preset("roberta_base_en")  # doctest: +SKIP
    >>> HubTokenizer.of(theirs).tokenize("a fine film")  # doctest: +SKIP
    ['a', 'Ġfine', 'Ġfilm']
    """

    _middle, _last = "sep_id", "sep_id"

    def __init__(
        self,
        tokenizer_json: str,
        special: Mapping[str, int],
        between: int = 1,
        has_segments: bool = False,
    ):
        check_shape(special, SPECIAL, "`special`")
        self._json, self.special = tokenizer_json, dict(special)
        self._set(_rebuilt(tokenizer_json))
        self._vocabulary = {token.removeprefix(HIDDEN): i for token, i in self._vocabulary.items()}
        for name, i in self.special.items():
            if f"{name}?" not in SPECIAL and name not in SPECIAL or i >= len(self):
                raise ValueError(
                    f"`special` must hold ids below {len(self)}, the number of tokens, by the "
                    f"names {', '.join(SPECIAL).replace('?', '')}. Received: {name}={i}"
                )
        for name, i in self.special.items():
            setattr(self, name, i)
        # With bytes nothing is unknown; this id then represents empty words.
        self.unk_id = self.special.get("unk_id", self.pad_id)
        self._first = "cls_id" if "cls_id" in self.special else None
        self._between, self.has_segments = between, has_segments
        self._words = self._tokenizer
        if type(self._tokenizer.pre_tokenizer) is pre_tokenizers.ByteLevel:
            # A space precedes given words, as in a text.
            self._words = tokenizers.Tokenizer.from_str(tokenizer_json)
            self._words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)

    @property
    def _of_words(self):
        return self._words

    @property
    def starts_word(self) -> np.ndarray | None:
        """Mask of the tokens that start a word, (len,) bool; `None` for byte-level tokens."""
        saved = json.loads(self._json)
        kind, spaces = saved["model"]["type"], saved["decoder"] or {}
        if kind == "WordPiece":
            inside = [token.startswith("##") for token in self.vocabulary]
        elif kind == "Unigram" and spaces.get("prepend_scheme") == "always":
            inside = [not token.startswith("▁") for token in self.vocabulary]
        else:
            return None
        inside = np.array(inside)
        inside[[i for name, i in self.special.items() if name != "unk_id"]] = False
        return ~inside

    @classmethod
    def of(cls, tokenizer: Any, has_segments: bool = False) -> Self:
        """Creates a tokenizer with the vocabulary and special tokens of a KerasHub tokenizer.

        Args:
            tokenizer: A `keras_hub.tokenizers.Tokenizer`.
            has_segments: If True, its model has `segment_ids`.

        Raises:
            ImportError: If keras_hub is not installed.
            ValueError: If it is of another kind, or its ids do not match its vocabulary.
        """
        hub = import_keras_hub().tokenizers
        builders = {
            hub.WordPieceTokenizer: _word_piece,
            hub.BytePairTokenizer: _byte_pair,
            hub.SentencePieceTokenizer: _unigram,
        }
        build = next((b for kind, b in builders.items() if isinstance(tokenizer, kind)), None)
        if build is None:
            raise ValueError(
                "A KerasHub tokenizer must be of WordPiece, byte pairs or SentencePiece. "
                f"Received: {type(tokenizer).__name__}"
            )
        ids = {"cls": "start", "sep": "end", "pad": "pad", "mask": "mask", "unk": "unk"}
        special = {f"{ours}_id": getattr(tokenizer, f"{theirs}_token_id", None)
                   for ours, theirs in ids.items()}  # fmt: skip
        special = {name: int(i) for name, i in special.items() if i is not None}
        if "sep_id" not in special or "pad_id" not in special:
            raise ValueError(
                "A model's tokenizer needs tokens for a text's end and for padding, like "
                "`RobertaTokenizer`. "
                f"Received: {type(tokenizer).__name__} with {sorted(special) or 'neither'}"
            )
        if special.get("cls_id") == special["sep_id"] and not isinstance(
            tokenizer, hub.OPTTokenizer
        ):
            del special["cls_id"]  # GPT-2 has one mark, between texts; OPT's texts begin with it
        with refused(
            "The package `tokenizers` must support the tokens, merges and rules of a KerasHub "
            f"tokenizer. Received: {type(tokenizer).__name__} with others"
        ):
            core, unknown = build(tokenizer)
        if unknown is not None:
            special["unk_id"] = unknown
        between = 2 if type(tokenizer).__name__ in TWO_BETWEEN else 1
        return cls(core.to_str(), special, between, has_segments)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a file of `save`.

        Raises:
            ValueError: If the file is missing or malformed.
        """
        saved = read_json(path, dict)
        check_saved(saved, SHAPE, path)
        settings = saved["model"]["settings"]
        with naming(path):
            return cls(**{name: settings[name] for name in SETTINGS})

    def _to_json(self):
        model = {"type": "HubTokenizer", "settings": self.get_config()}
        return json.dumps({"model": model}, ensure_ascii=False)

    def tokenize(self, text: str | Sequence[str]) -> list[str]:
        """Splits a text, or a list of words, into tokens."""
        ids = self._encode([as_text(text)], False)[0].ids
        return [self._tokenizer.id_to_token(int(i)).removeprefix(HIDDEN) for i in ids]

    def detokenize(self, token_ids: Sequence[int] | Tensor) -> str:
        """Converts token ids to text, without special tokens."""
        marks = {i for name, i in self.special.items() if name != "unk_id"}
        ids = [i for i in one_row(token_ids) if i not in marks]
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _encode(self, texts, offsets):
        rows = super()._encode(texts, offsets)
        if offsets:
            rows = [_trim(row, text) for row, text in zip(rows, texts, strict=True)]
        return rows

    def get_config(self):
        return {
            "tokenizer_json": self._json,
            "special": self.special,
            "between": self._between,
            "has_segments": self.has_segments,
        }


def _rebuilt(text):
    """Rebuilds a tokenizer of the `tokenizers` package from JSON and checks its ids."""
    where = "`tokenizer_json`"
    saved = parse_json(text, where, JSON)
    if saved["model"]["type"] == "Unigram":
        check_shape(saved, {"model": {"vocab": [[(str, float)]]}}, where)
    else:
        check_shape(saved, {"model": {"vocab": VOCABULARY}}, where)
        saved_vocabulary(where, saved["model"]["vocab"])
    with refused(
        f"{where} must be a tokenizer of the package `tokenizers`. Received: one that it refuses"
    ):
        built = tokenizers.Tokenizer.from_str(text)
    vocabulary, unknown = built.get_vocab(), getattr(built.model, "unk_token", None)
    if unknown is not None and unknown not in built.get_vocab(with_added_tokens=False):
        raise ValueError(
            f"{where} must have its `unk_token` in its vocabulary. Received: {unknown!r:.60}"
        )
    check_added_ids(where, saved.get("added_tokens") or [], vocabulary)
    saved_vocabulary(where, vocabulary)  # a unigram may occur twice
    return built


def _trim(row, text):
    """Removes the space before a word from its offsets."""
    offsets = []
    for (start, end), word in zip(row.offsets, row.word_ids, strict=True):
        within = text if isinstance(text, str) else text[word]
        while start < end and within[start].isspace():
            start += 1
        offsets.append((start, end))
    return Row(row.ids, row.word_ids, offsets)


def _word_piece(tokenizer):
    # Its `get_config` lacks some of them.
    names = ("lowercase", "strip_accents", "split_on_cjk", *WORD_PIECE)
    options = _word_piece_options({name: getattr(tokenizer, name) for name in names})
    ours = WordPiece(tokenizer.get_vocabulary(), **options)
    return ours._tokenizer, ours.unk_id


def _word_piece_options(config):
    """Converts the configuration of a KerasHub tokenizer to arguments of `WordPiece`."""
    foreign = [name for name, value in WORD_PIECE.items() if config.get(name, value) != value]
    if foreign:
        raise ValueError(
            "Tokens inside words must begin with '##', texts must be split, and the unknown word "
            "must be [UNK]. "
            f"Received: {foreign[0]}={config[foreign[0]]!r}"
        )
    return {
        "lowercase": config.get("lowercase"),
        "strip_accents": True if config.get("strip_accents") else None,
        "split_on_cjk": config.get("split_on_cjk", True),
    }


def _byte_pair(tokenizer):
    """Converts a byte-level tokenizer, such as GPT-2's and RoBERTa's."""
    if tokenizer.get_config().get("add_prefix_space"):
        raise ValueError(
            "A byte-level tokenizer must not put a space before a text. "
            f"Received: {type(tokenizer).__name__} with add_prefix_space=True"
        )
    ids = {token: int(i) for token, i in tokenizer.vocabulary.items()}
    merges = [tuple(merge.split(" ")) for merge in tokenizer.merges]
    # Only the model has the special tokens: "</s>" in a text is plain text.
    ours = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges))
    ours.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours.decoder = decoders.ByteLevel()
    return ours, ids.get("<unk>")


def _unigram(tokenizer):
    """Converts SentencePiece's unigrams, such as DeBERTa's and ALBERT's."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(bytes(tokenizer.proto))
    kind = proto.trainer_spec.model_type
    tokens = [entry.piece for entry in proto.pieces]
    known = list(tokenizer.get_vocabulary())
    if kind != proto.trainer_spec.UNIGRAM or proto.trainer_spec.byte_fallback:
        raise ValueError(
            "A SentencePiece model must have unigrams, like DeBERTa's and ALBERT's, without byte "
            f"fallback. Received: {type(tokenizer).__name__}, model_type={kind}"
        )
    if known[: len(tokens)] != tokens:
        raise ValueError(
            "The ids of a SentencePiece model must be the model's own. "
            f"Received: {type(tokenizer).__name__} with other ids"
        )
    if (
        proto.trainer_spec.treat_whitespace_as_suffix
        or not proto.normalizer_spec.escape_whitespaces
    ):
        raise ValueError(
            "A SentencePiece model must mark the space before a word. "
            f"Received: {type(tokenizer).__name__} with treat_whitespace_as_suffix="
            f"{proto.trainer_spec.treat_whitespace_as_suffix}, escape_whitespaces="
            f"{proto.normalizer_spec.escape_whitespaces}"
        )
    names = proto.SentencePiece
    hidden = (names.CONTROL, names.UNUSED, names.UNKNOWN)  # their names in a text are text
    scores = [(HIDDEN * (e.type in hidden) + e.piece, e.score) for e in proto.pieces]
    unknown = next((i for i, entry in enumerate(proto.pieces) if entry.type == entry.UNKNOWN), None)
    if unknown is None:
        raise ValueError(
            "A SentencePiece model must have an unknown token. "
            f"Received: {type(tokenizer).__name__} with {len(tokens)} tokens and none"
        )
    ours = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unknown, byte_fallback=False))
    rules = proto.normalizer_spec
    steps = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    prepend = before = "always" if rules.add_dummy_prefix else "never"
    if rules.add_dummy_prefix and not rules.remove_extra_whitespaces:
        steps.append(normalizers.Prepend(" "))  # also before a space
        before = "never"
    ours.normalizer = normalizers.Sequence(steps)
    ours.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=before)
    ours.decoder = decoders.Metaspace(prepend_scheme=prepend)
    ours.add_tokens(known[len(tokens) :])  # DeBERTa's [MASK]
    return ours, unknown


def load_preset_tokenizer(folder):
    """Loads the `WordPiece` of a KerasHub preset of a BERT, without KerasHub.

    Raises:
        ValueError: If the preset has another kind of tokenizer, or a file is damaged.
    """
    settings = read_json(folder / "tokenizer.json", PRESET)
    kind = settings["registered_name"]
    if kind != "keras_hub>BertTokenizer":
        raise ValueError(
            f"{folder / 'tokenizer.json'} must be that of a BertTokenizer; load other presets "
            "completely, with `keras_plm.load` or `keras_plm.checkpoints.load_hub`. "
            f"Received: {kind!r}"
        )
    with naming(folder / "tokenizer.json"):
        options = _word_piece_options(settings.get("config", {}))
    return WordPiece.load(folder / "assets" / "tokenizer" / "vocabulary.txt", **options)


def import_keras_hub():
    """Imports KerasHub, an optional package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            f"KerasHub's models need the package keras_hub: pip install keras-hub. ({error})"
        ) from error
    return keras_hub
