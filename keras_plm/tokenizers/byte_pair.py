"""Byte pair encoding for translation, GPT and GPT-2."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras
import tokenizers

from keras_plm.files.arguments import check_one_of
from keras_plm.files.json_files import OneOf, check_shape, read_json
from keras_plm.files.sequences import Tensor, as_list, as_names, as_text
from keras_plm.tokenizers.byte_pair_schemes import (
    NEWLINE,
    SCHEMES,
    TASK_TOKENS,
    read_vocabulary,
)
from keras_plm.tokenizers.encoded import Encoded, Row
from keras_plm.tokenizers.subwords import SubwordTokenizer, one_row
from keras_plm.tokenizers.text import frequent_characters, lines, no_text, paths
from keras_plm.tokenizers.tokenizer_json import (
    added_settings,
    check_added_ids,
    check_component,
    check_lengths,
    check_saved,
    check_shared,
    completed,
    naming,
    numbered,
    saved_shape,
    saved_vocabulary,
)

SETTINGS = {
    "lowercase": bool,
    "scheme": OneOf(tuple(SCHEMES)),
    "clean": bool,
    "special_tokens": ([str], None),
    "add_prefix_space?": bool,
    "end_token?": (str, None),
    "pad_token?": (str, None),
}
# `unknown` and `settings` are in files of `BytePair.save`. A merge may be one text with a space.
SHAPE = saved_shape(
    "BPE", **{"merges": ([[str]], [str]), "unknown?": (str, None), "settings?": SETTINGS}
)
LONGEST = 1000  # characters of a word in training; longer words are split


@keras.saving.register_keras_serializable("keras_plm")
class BytePair(SubwordTokenizer):
    """Byte pair encoding: splits words into subword tokens by learned merges.

    The `tokenizers` package does the work, and the saved JSON has its format. Three schemes find
    and mark words:

    - `"space"`, for translation with one vocabulary for source and target. The first token of a
      word starts with the space before it: `detokenize` restores single-spaced text. Punctuation is
      separate; case and accents stay. A text becomes its tokens and `[EOS]`.
    - `"gpt"`, for GPT: the last token of a word ends in `</w>`. A regular expression finds the
      words. It agrees with spaCy, used by the released code, on nearly all English prose. A line
      break is a word. Text is lower-cased. With `clean`, dashes, ellipses, curly quotes and
      ligatures become ASCII, as in `ftfy.fix_text` and the released code.
    - `"gpt2"`, for GPT-2, works on bytes: there are no unknown characters, and `detokenize`
      restores every text.

    The last two pack the inputs of GPT's tasks: a text as `_start_ text _classify_`, two as
    `_start_ text _delimiter_ pair _classify_`. These special tokens and the padding have ids after
    the learned tokens. A pre-trained GPT has no vectors for them until `FineTune` adds them.

    Reference: Sennrich et al. 2016, arXiv 1508.07909, section 3.2; Radford et al. 2018, sections
    3.3 and 4.1; Radford et al. 2019, section 2.2.
    Difference from Sennrich et al.: The mark of `"space"` is at the start of a word.

    Args:
        vocabulary: Tokens in the order of their ids; with `[PAD] [UNK] [BOS] [EOS]` for "space",
            with `<unk>` for "gpt".
        merges: Pairs of tokens, in the order of merging.
        lowercase: If True, lower-case texts. The scheme decides the default.
        unknown: Token for characters outside the vocabulary, by default `"[UNK]"` or `"<unk>"`; or
            `"error"`.
        scheme: `"space"`, `"gpt"` or `"gpt2"`.
        clean: If True, replace typographic characters; only for "gpt".
        special_tokens: Special tokens of "gpt" and "gpt2", by default
            `_start_ _delimiter_ _classify_ _pad_`. Packing leaves out unlisted tokens.
        added_tokens: Tokens to find in a text before it is split into words, such as
            `<|endoftext|>`, for "gpt" and "gpt2": strings, or dicts of arguments of
            `tokenizers.AddedToken`. New tokens get ids after the vocabulary, before the special
            tokens.
        add_prefix_space: If True, add a space before a text that starts with none; only for "gpt2".
        end_token: Token at the end of a text, `end_id`, for "gpt" and "gpt2".
        pad_token: Token of the padding, for "gpt" and "gpt2"; by default `_pad_`, or the id 0
            without it.

    Attributes:
        text_size: Number of ids of text: for "gpt" and "gpt2" all except the special tokens.

    Raises:
        ValueError: If a special token is missing or unknown, a token occurs twice, or a merge has a
            token outside the vocabulary. If `unknown` or `scheme` is invalid, or an argument does
            not belong to the scheme. With `unknown="error"`, on encoding: if a text has an unknown
            character.

    >>> tokens = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *" .elorw", " l", "ow", " low", "er"]
    >>> merges = [(" ", "l"), ("o", "w"), (" l", "ow"), ("e", "r")]
    >>> tokenizer = BytePair(tokens, merges)
    >>> tokenizer.tokenize("low lower.")
    [' low', ' low', 'er', '.']
    >>> tokenizer.pack(["low lower.", "low"])["token_ids"].tolist()
    [[13, 13, 14, 5, 3], [13, 3, 0, 0, 0]]
    >>> tokenizer.detokenize([13, 13, 14, 5, 3])
    'low lower.'
    >>> tokens = ["<unk>", *"low", "w</w>", ".</w>", "lo", "low</w>"]
    >>> tokenizer = BytePair(tokens, [("l", "o"), ("lo", "w</w>")], scheme="gpt")
    >>> tokenizer.tokenize("Low.")
    ['low</w>', '.</w>']
    >>> tokenizer.pack(["low"], ["low."])["token_ids"].tolist()
    [[8, 7, 9, 7, 5, 10]]
    """

    has_segments = False

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[Sequence[str]],
        lowercase: bool | None = None,
        unknown: str | None = None,
        scheme: str = "space",
        clean: bool = True,
        special_tokens: Sequence[str] | None = None,
        added_tokens: Sequence[str | dict[str, Any]] = (),
        add_prefix_space: bool = False,
        end_token: str = "<|endoftext|>",
        pad_token: str | None = None,
    ):
        check_one_of(scheme, "scheme", SCHEMES)
        self._scheme = SCHEMES[scheme]
        vocabulary, special = self._parted(as_list(vocabulary, "vocabulary"), special_tokens)
        ids = numbered(vocabulary, self._scheme.extra, "BytePair")
        merges = [tuple(merge) for merge in merges]
        for i, merge in enumerate(merges):
            if len(merge) != 2 or not ids.keys() >= {*merge, "".join(merge)}:
                raise ValueError(
                    "A merge must join two tokens of the vocabulary to a third. "
                    f"Received: merges[{i}]={merge!r}"
                )
        own = self._scheme.unknown
        if unknown not in (None, own, "error"):
            raise ValueError(f"`unknown` must be {own!r} or 'error'. Received: {unknown!r:.60}")
        lowercase = self._scheme.lowercase if lowercase is None else bool(lowercase)
        added = added_settings(added_tokens)
        foreign = (added or pad_token) and not self._scheme.appended
        if foreign or (add_prefix_space and scheme != "gpt2"):
            raise ValueError(
                "`added_tokens` and `pad_token` are for the schemes 'gpt' and 'gpt2', "
                f"`add_prefix_space` for 'gpt2'. Received: scheme={scheme!r}"
            )
        # Only the model knows the other special tokens: "[EOS]" in a text is ordinary text.
        model = tokenizers.models.BPE(ids, merges, unk_token=own, **self._scheme.model)
        self._tokenizer = self._scheme.build(model, lowercase, clean)
        if add_prefix_space:
            self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
        self._tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in added.values()])
        ids = self._tokenizer.get_vocab()
        self._num_tokens, self.text_size = len(vocabulary), len(ids)
        new = [token for token in special if token not in ids]
        self._vocabulary = {**ids, **{token: len(ids) + i for i, token in enumerate(new)}}
        self.pad_id = 0  # without a token of its own
        named = {"end_id": end_token, "newline_id": NEWLINE, **self._scheme.special}
        if pad_token is not None:
            named["pad_id"] = pad_token
            numbered(list(ids), [pad_token], "BytePair")
        left_out = set(TASK_TOKENS.values()) - {*special, pad_token}
        for name, token in named.items():
            if token in self._vocabulary and token not in left_out:
                setattr(self, name, self._vocabulary[token])
        frame = (name if hasattr(self, name or "") else None for name in self._scheme.frame)
        self._first, self._middle, self._last = frame
        self.joint_pairs = self._middle is not None
        self.merges, self.lowercase, self.unknown = merges, lowercase, unknown or own
        self.scheme, self.clean, self.special_tokens = scheme, clean, tuple(special)
        self.added_tokens = [added[name] for name in sorted(added, key=ids.get)]
        self.add_prefix_space = bool(add_prefix_space)
        self.end_token, self.pad_token = end_token, pad_token

    def _parted(self, vocabulary, special_tokens):
        """Returns the learned tokens and the special tokens."""
        known = list(TASK_TOKENS.values()) if self._scheme.appended else []
        special = known if special_tokens is None else as_names(special_tokens, "special_tokens")
        if not set(special) <= set(known):
            raise ValueError(
                f"`special_tokens` must be some of {' '.join(known) or 'none here'}, each once. "
                f"Received: {special}"
            )
        while vocabulary[-1:] and vocabulary[-1] in known:
            vocabulary = vocabulary[:-1]  # from `get_config`
        return vocabulary, special

    @classmethod
    def train(
        cls,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        vocabulary_size: int,
        lowercase: bool | None = None,
        scheme: str = "space",
        clean: bool = True,
    ) -> Self:
        """Learns tokens and merges from text files, plain or `.gz`.

        It merges the most frequent pair first, and at ties the one with smaller ids. It never
        merges a pair that occurs once. Every character of the text becomes a token; for "gpt" the
        1,000 most frequent ones, within and at the end of a word. Words of more than 1,000
        characters are split.

        Args:
            files: One path or a list of paths; for translation the files of both languages.
            vocabulary_size: Number of tokens, special tokens included. The text may yield fewer.
            lowercase, scheme, clean: As in the class.

        Raises:
            ValueError: If a file is missing, there is no text, or `vocabulary_size` is too small
                for the characters.
        """
        files = paths(files)
        check_one_of(scheme, "scheme", SCHEMES)
        kind = SCHEMES[scheme]
        lowercase = kind.lowercase if lowercase is None else lowercase
        model = tokenizers.models.BPE(unk_token=kind.unknown, **kind.model)
        tokenizer = kind.build(model, lowercase, clean)
        first, options = list(kind.extra), dict(kind.model)
        reserved = len(kind.special) - 1 if scheme == "gpt" else 0
        if scheme == "gpt":
            reserved += 1  # for the line break
            alphabet = frequent_characters(lines(files), tokenizer.normalizer, 1000)
            # The trainer numbers final letters of words in the order of a hash map, and breaks ties
            # by ids: without given ids, trainings differ.
            first += [*alphabet, *(letter + "</w>" for letter in alphabet)] if alphabet else []
            options |= {"initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
        elif scheme == "gpt2":
            reserved = len(kind.special)
            options["initial_alphabet"] = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=max(vocabulary_size - reserved, 0),
            min_frequency=2,  # as in the authors' subword-nmt
            special_tokens=first,
            show_progress=False,
            **options,
        )
        text = (line.rstrip("\n") for line in lines(files)) if scheme == "gpt" else lines(files)
        parts = tokenizers.pre_tokenizers.FixedLength(LONGEST)  # time is quadratic in a length
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
            [tokenizer.pre_tokenizer, parts]
        )
        tokenizer.train_from_iterator(text, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        vocabulary = sorted(model["vocab"], key=model["vocab"].get)
        if len(vocabulary) == len(kind.extra) or (scheme == "gpt2" and not model["merges"]):
            raise no_text(files)
        if len(vocabulary) + reserved > vocabulary_size:
            raise ValueError(
                f"This text needs a vocabulary of at least {len(vocabulary) + reserved} tokens: "
                "its characters and the special tokens. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        if scheme == "gpt":
            vocabulary.append(NEWLINE)
        return cls(vocabulary, model["merges"], lowercase, scheme=scheme, clean=clean)

    @classmethod
    def load(
        cls, path: str | os.PathLike, merges: str | os.PathLike | None = None, **options
    ) -> Self:
        """Reads a file of `save`, or the released files of a GPT or GPT-2.

        Args:
            path: The file, or a `tokenizer.json` of Hugging Face's GPT or GPT-2. With `merges`: a
                JSON object of tokens and their ids, such as OpenAI's `encoder_bpe_40000.json` or
                Hugging Face's `vocab.json`.
            merges: The list of merges of these tokens: `vocab_40000.bpe` or `merges.txt`.
            **options: With `merges`, arguments of the class that the scheme does not set. With one
                file, `added_tokens`, `add_prefix_space`, `end_token` and `pad_token` override its
                settings.

        Raises:
            ValueError: If a file is missing or of another kind, or the two do not belong together.
        """
        if merges is not None:
            tokens, pairs, scheme = read_vocabulary(path, merges)
            with naming(path):
                tokenizer = cls(tokens, pairs, **{"scheme": scheme, **options})
            _check_order(path, tokens, tokenizer)
            return tokenizer
        if not options.keys() <= DEFAULTS.keys():
            raise ValueError(
                f"A saved tokenizer has its own settings: leave them out. "
                f"Received: {', '.join(options)}"
            )
        saved = read_json(path, dict)
        check_saved(saved, SHAPE, path)
        return cls.of_saved(path, completed(path, saved), **options)

    @classmethod
    def of_saved(cls, path: str | os.PathLike, saved: dict[str, Any], **options) -> Self:
        """Creates a tokenizer from the content of a `tokenizer.json`.

        Args:
            path: The file, for error messages.
            saved: Its JSON object, of the shape `SHAPE` and `completed`.
            **options: As in `load` with one file.

        Raises:
            ValueError: As `load`.
        """
        model = saved["model"]
        own = "unknown" in model
        config = _own_config(path, saved) if own else _config_of_others(path, saved)
        tokens = saved_vocabulary(path, model["vocab"])
        merges = [
            merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]
        ]
        with naming(path):
            config |= {"added_tokens": saved["added_tokens"], **options}
            tokenizer = cls(tokens, merges, **config)
        if own:
            check_shared(path, saved, tokenizer._tokenizer, expressions=False)
            for name in ("post_processor", "truncation", "padding"):
                check_component(path, saved, name, None)
        _check_order(path, tokens, tokenizer)
        check_lengths(path, saved, tokenizer.pad_id)
        check_added_ids(path, saved["added_tokens"], tokenizer._vocabulary)
        return tokenizer

    def _to_json(self):
        saved = json.loads(self._tokenizer.to_str())
        # The package ignores names that it does not know.
        saved["model"]["unknown"] = self.unknown
        saved["model"]["settings"] = {
            "lowercase": self.lowercase,
            "scheme": self.scheme,
            "clean": self.clean,
            "special_tokens": list(self.special_tokens) if self._scheme.appended else None,
            **self._not_default("add_prefix_space", "end_token", "pad_token"),
        }
        return json.dumps(saved, ensure_ascii=False)

    def unframed(self) -> "BytePair":
        """Creates a copy without the special tokens of tasks, as in pre-training.

        With the scheme "space" it returns the tokenizer itself.
        """
        if not self.special_tokens:
            return self
        tokens = self.vocabulary[: self._num_tokens]
        return type(self)(**{**self.get_config(), "vocabulary": tokens, "special_tokens": []})

    def tokenize(self, text: str | Sequence[str]) -> list[str]:
        """Splits a text, or a list of words, into tokens."""
        return [self._tokenizer.id_to_token(i) for i in self._encode([as_text(text)], False)[0].ids]

    def detokenize(self, token_ids: Sequence[int] | Tensor) -> str:
        """Converts token ids to text, without special tokens."""
        special = {self._vocabulary.get(token) for token in self._scheme.special.values()}
        special |= {getattr(self, "end_id", None), self._vocabulary.get(self.pad_token)}
        special.discard(None)
        return self._tokenizer.decode([i for i in one_row(token_ids) if i not in special])

    def encode(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        return_offsets: bool = False,
    ) -> Encoded:
        """Encodes texts as `pack` does, without padding.

        Raises:
            ValueError: If `texts` is one string, the scheme has no delimiter for `pairs`, or
                `max_length` leaves no room for text. With `unknown="error"`: if a character is
                unknown.
        """
        if pairs is not None and self._middle is None:
            raise ValueError(
                "Without a delimiter `BytePair` packs one text per row; pack second texts "
                f"separately. Received: pairs={pairs!r:.60}"
            )
        return super().encode(texts, pairs, max_length, return_offsets)

    def _encode(self, texts, offsets):
        shift = 0
        if self.scheme == "gpt2" and any(not isinstance(text, str) for text in texts):
            # Each word of a list gets the space before it that it has in a text.
            texts = [t if isinstance(t, str) else [f" {w}" for w in t] for t in texts]
            shift = 1
        rows = super()._encode(texts, offsets)
        if self.unknown == "error" and self._scheme.unknown is not None:
            for text, row in zip(texts, rows, strict=True):
                if self.unk_id in row.ids:
                    self._name_unknown(text)
        if offsets and self.scheme != "gpt":
            rows = [self._trim(row, text, shift) for row, text in zip(rows, texts, strict=True)]
        return rows

    def _trim(self, row, text, shift=0):
        """Removes the space before a word from the offsets."""
        offsets, mark = [], "Ġ" if self.scheme == "gpt2" else " "
        for i, (start, end), word in zip(row.ids, row.offsets, row.word_ids, strict=True):
            token = self._tokenizer.id_to_token(i)
            if token.startswith(mark):
                start += (text if isinstance(text, str) else text[word])[start].isspace()
                end = start if token == mark else end
            # An added token may have taken the space before its word.
            offsets.append((max(start - shift, 0), end - shift))
        return Row(row.ids, row.word_ids, offsets)

    def _name_unknown(self, text):
        joined = text if isinstance(text, str) else " ".join(text)
        for character in self._tokenizer.normalizer.normalize_str(joined):
            known = self._vocabulary.keys() & {character, character + "</w>"}
            if not known and not (character.isspace() and self.scheme == "gpt"):
                raise ValueError(
                    "With `unknown='error'` every character must be in the vocabulary. "
                    f"Received: {character!r} in {text!r}"
                )

    def get_config(self):
        return {
            "vocabulary": [*self.vocabulary[: self._num_tokens], *self.special_tokens],
            "merges": [list(merge) for merge in self.merges],
            "lowercase": self.lowercase,
            "unknown": self.unknown,
            "scheme": self.scheme,
            "clean": self.clean,
            "special_tokens": list(self.special_tokens) if self._scheme.appended else None,
            **self._not_default("added_tokens", "add_prefix_space", "end_token", "pad_token"),
        }

    def _not_default(self, *names):
        """Returns settings that are not defaults: new options keep old fingerprints."""
        return {name: value for name in names if (value := getattr(self, name)) != DEFAULTS[name]}


DEFAULTS = {
    "added_tokens": [],
    "add_prefix_space": False,
    "end_token": "<|endoftext|>",
    "pad_token": None,
}


def _check_order(path, tokens, tokenizer):
    """Raises unless tokens keep their ids: task tokens come last, in a fixed order."""
    if tokenizer.vocabulary[: len(tokens)] != tokens:
        raise ValueError(
            f"{path}: special tokens of tasks must come last, in the order "
            f"{' '.join(TASK_TOKENS.values())}. Received: {' '.join(tokens[-4:])}"
        )


def _own_config(path, saved):
    """Returns the settings of a `tokenizer.json` of `BytePair.save`."""
    check_shape(saved, {"model": {"settings": SETTINGS}}, path)
    settings = saved["model"]["settings"]
    foreign = settings.keys() - {key.removesuffix("?") for key in SETTINGS}
    if foreign:
        raise ValueError(
            f"{path}: `model.settings` must hold settings that `BytePair` has. "
            f"Received: {sorted(foreign)[0]!r:.60}"
        )
    return {**settings, "unknown": saved["model"]["unknown"]}


def _config_of_others(path, saved):
    """Returns the settings of Hugging Face's `tokenizer.json` of a GPT or GPT-2.

    Raises:
        ValueError: If one of its components does something else.
    """
    model, normalizer = saved["model"], saved["normalizer"] or {}
    bytes_of = saved["pre_tokenizer"] or {}
    if model["end_of_word_suffix"] == "</w>":
        config = {"scheme": "gpt", "lowercase": bool(normalizer.get("lowercase"))}
        built = tokenizers.Tokenizer(
            tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
        )
        # In these files it stands for spaCy's words, and `BytePair` finds those.
        built.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=config["lowercase"])
        built.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    else:
        config = {"scheme": "gpt2", "add_prefix_space": bytes_of.get("add_prefix_space", False)}
        built = tokenizers.Tokenizer(tokenizers.models.BPE())
        built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
            add_prefix_space=config["add_prefix_space"],
            trim_offsets=bytes_of.get("trim_offsets", True),  # offsets are trimmed here
        )
    check_shared(path, saved, built)
    post = saved["post_processor"] or {"type": "ByteLevel"}
    if post["type"] != "ByteLevel" and "SpecialToken" in json.dumps(post):
        raise ValueError(
            f"{path}: the component `post_processor` must put no token around a text. "
            f"Received: {json.dumps(post):.500}"
        )
    return config
