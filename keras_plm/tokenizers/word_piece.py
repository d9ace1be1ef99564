"""WordPiece, BERT's tokenizer."""

import itertools
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras
import numpy as np
import tokenizers

from keras_plm.files.arguments import check_whole
from keras_plm.files.json_files import parse_json
from keras_plm.files.opening import read_text
from keras_plm.files.sequences import as_list
from keras_plm.tokenizers.encoded import FlatTokens
from keras_plm.tokenizers.subwords import KnownChunks, SubwordTokenizer
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
    token_lines,
)

SHAPE = saved_shape("WordPiece", **{"special_tokens?": [str]})
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST = 100  # characters; a longer word is unknown, as in the original
SPECIAL_IDS = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")


@keras.saving.register_keras_serializable("keras_plm")
class WordPiece(SubwordTokenizer):
    """BERT's tokenizer: splits words and punctuation greedily into the longest known tokens.

    A word that no tokens cover becomes `[UNK]`. The `tokenizers` package does the work: ids agree
    with Hugging Face's BERT tokenizer, and the saved JSON has its format.

    Reference: Wu et al. 2016, arXiv 1609.08144, section 4.1; Devlin et al. 2018, section 3.

    Args:
        vocabulary: Tokens in the order of their ids, special tokens included.
        lowercase: If True, lower-case texts ("uncased"); by default True if the vocabulary has no
            upper-case tokens.
        strip_accents: If True, remove accents; by default the value of `lowercase`.
        split_on_cjk: If True, each Chinese character is a word.
        special_tokens: Names of the padding, the unknown word, the token before a text, the
            separator and the mask.
        added_tokens: Tokens to find in a text before it is split into words: strings, or dicts of
            arguments of `tokenizers.AddedToken`. New tokens get ids after the vocabulary.

    Raises:
        ValueError: If a special token is missing, or a token occurs twice.

    >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "want", "##ed", "un", "##want"]
    >>> tokenizer = WordPiece(tokens)
    >>> tokenizer.tokenize("UNwanted, wanted")
    ['un', '##want', '##ed', '[UNK]', 'want', '##ed']
    >>> tokenizer.pack(["unwanted", "want"])["token_ids"].tolist()
    [[2, 7, 8, 6, 3], [2, 5, 3, 0, 0]]
    """

    _first, _middle, _last = "cls_id", "sep_id", "sep_id"

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        split_on_cjk: bool = True,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        added_tokens: Sequence[str | dict[str, Any]] = (),
    ):
        self.special_tokens = tuple(as_list(special_tokens, "special_tokens", "names"))
        if len(set(self.special_tokens)) != len(SPECIAL_TOKENS):
            raise ValueError(
                "`special_tokens` must be five different names, in the order of "
                f"{' '.join(SPECIAL_TOKENS)}. Received: {self.special_tokens}"
            )
        self._special = dict(zip(SPECIAL_IDS, self.special_tokens, strict=True))
        # Add the special tokens: "[MASK]" in a text is the mask, as in the original.
        special, given = added_settings(self.special_tokens, True), added_settings(added_tokens)
        added = {name: token for name, token in special.items() if name not in given} | given
        unknown = self.special_tokens[1]  # always in the vocabulary: the model needs it
        needed = [token for token in special if token == unknown or token not in given]
        ids = numbered(vocabulary, needed, "WordPiece")
        if lowercase is None:
            lowercase = not any(p != p.lower() for p in ids if p not in special)
        model = tokenizers.models.WordPiece(
            ids, unk_token=unknown, max_input_chars_per_word=LONGEST
        )
        tokenizer = _bert_tokenizer(model, lowercase, strip_accents, split_on_cjk)
        tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in added.values()])
        self._set(tokenizer)
        self.lowercase = lowercase
        self.strip_accents, self.split_on_cjk = strip_accents, split_on_cjk
        more = [name for name in given if name not in ids or given[name] != special.get(name)]
        self.added_tokens = [given[name] for name in sorted(more, key=self._vocabulary.get)]
        self._num_tokens = len(ids)
        # A space ends a chunk for the model, but it may be inside an added token.
        apart = not any(token["normalized"] or " " in token["content"] for token in added.values())
        self._known = KnownChunks(self._tokenizer) if apart else None

    @classmethod
    def train(
        cls,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        vocabulary_size: int,
        lowercase: bool = True,
    ) -> Self:
        """Learns a vocabulary from text files, plain or `.gz`.

        It skips words of more than 100 characters, which are unknown in a text.

        Args:
            files: One path or a list of paths.
            vocabulary_size: Number of tokens, special tokens included.
            lowercase: If True, lower-case and strip accents first.

        Raises:
            ValueError: If a file is missing, there is no text, or `vocabulary_size` is too small
                for the letters.
        """
        files = paths(files)
        check_whole(vocabulary_size, "vocabulary_size")
        model = tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=LONGEST)
        tokenizer = _bert_tokenizer(model, lowercase)
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        limit = min(max(100, vocabulary_size // 20), 1000)
        alphabet = frequent_characters(lines(files), tokenizer.normalizer, limit)
        if not alphabet:
            raise no_text(files)
        # The trainer numbers "##" letters in the order of a hash map, and breaks ties by ids:
        # without given ids, trainings differ.
        pre_tokenize = tokenizer.pre_tokenizer.pre_tokenize_str
        inner = [letter for letter in alphabet if len(pre_tokenize("a" + letter)) == 1]
        letters = [*SPECIAL_TOKENS, *alphabet, *("##" + letter for letter in inner)]
        if len(letters) > vocabulary_size:
            raise ValueError(
                f"This text needs a vocabulary of at least {len(letters)} tokens: its letters, "
                "alone and inside words, and the special tokens. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        long = re.compile(rf"[^ \t\r\n]{{{LONGEST + 1}}}")
        if any(long.search(line) for line in lines(files)):  # checking each word takes time
            too_long = tokenizers.Regex(rf"[\s\S]{{{LONGEST + 1},}}")
            left_out = tokenizers.pre_tokenizers.Split(too_long, "removed")
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
                [tokenizer.pre_tokenizer, left_out]
            )
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            special_tokens=letters,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines(files), trainer)
        # Rebuild it from its tokens: a trained and a loaded tokenizer are then equal.
        vocabulary = tokenizer.get_vocab()
        return cls(sorted(vocabulary, key=vocabulary.get), lowercase=lowercase)

    @classmethod
    def load(cls, path: str | os.PathLike, lowercase: bool | None = None, **options) -> Self:
        """Reads a file of `save`, a `tokenizer.json`, or a `vocab.txt` with one token per line.

        Args:
            path: The file.
            lowercase: As in the class; overrides the setting of the file.
            **options: Other arguments of the class; they override settings of the file.

        Raises:
            ValueError: If the file is missing, is not a WordPiece tokenizer, has a token twice, or
                has a setting that `WordPiece` does not support.
        """
        if lowercase is not None:
            options["lowercase"] = lowercase
        text = read_text(path)
        if not text.lstrip().startswith("{"):
            tokens = _lines(path, text)
            with naming(path):
                return cls(tokens, **options)
        saved = parse_json(text, path, dict)
        check_saved(saved, SHAPE, path)
        return cls.of_saved(path, completed(path, saved), **options)

    @classmethod
    def of_saved(cls, path: str | os.PathLike, saved: dict[str, Any], **options) -> Self:
        """Creates a tokenizer from the content of a `tokenizer.json`.

        Args:
            path: The file, for error messages.
            saved: Its JSON object, of the shape `SHAPE` and `completed`.
            **options: As in `load`.

        Raises:
            ValueError: As `load`.
        """
        model, normalizer = saved["model"], saved["normalizer"] or {}
        config = {
            "vocabulary": saved_vocabulary(path, model["vocab"]),
            "lowercase": normalizer.get("lowercase"),
            "strip_accents": normalizer.get("strip_accents"),
            "split_on_cjk": normalizer.get("handle_chinese_chars", True),
            "special_tokens": model.get("special_tokens", SPECIAL_TOKENS),
            "added_tokens": saved["added_tokens"],
        }
        with naming(path):
            tokenizer = cls(**{**config, **options})
        special, ids = tokenizer.special_tokens, tokenizer._vocabulary
        built = _bert_tokenizer(
            tokenizers.models.WordPiece(
                {special[1]: 0}, unk_token=special[1], max_input_chars_per_word=LONGEST
            ),
            bool(config["lowercase"]),
            config["strip_accents"],
            config["split_on_cjk"],
        )
        check_shared(path, saved, built)
        check_component(path, saved, "decoder", None, *DECODERS)
        frame = [(token, ids[token]) for token in special[2:4]]
        of_bert = tokenizers.processors.BertProcessing(frame[1], frame[0])
        check_component(path, saved, "post_processor", None, of_bert, _template(frame))
        check_lengths(path, saved, tokenizer.pad_id)
        check_added_ids(path, saved["added_tokens"], ids)
        return tokenizer

    def _to_json(self):
        saved = json.loads(self._tokenizer.to_str())
        if self.special_tokens != SPECIAL_TOKENS:
            # The package ignores names that it does not know.
            saved["model"]["special_tokens"] = list(self.special_tokens)
        return json.dumps(saved, ensure_ascii=False)

    @property
    def starts_word(self) -> np.ndarray:
        """Mask of the tokens that start a word, (len,) bool."""
        tokens = self.vocabulary
        inside = [token.startswith("##") for token in tokens[: self._num_tokens]]
        return ~np.array(inside + [False] * (len(tokens) - len(inside)))

    def flat_tokens(
        self, texts: Iterable[str | Sequence[str]], return_offsets: bool = False
    ) -> FlatTokens:
        plain = self._known is not None and all(isinstance(text, str) for text in texts)
        if return_offsets or not plain:
            return super().flat_tokens(texts, return_offsets)
        found, chain = self._known.__getitem__, itertools.chain.from_iterable
        return FlatTokens([list(chain(map(found, text.split(" ")))) for text in texts])

    def get_config(self):
        config = {"vocabulary": self.vocabulary[: self._num_tokens], "lowercase": self.lowercase}
        # Without defaults: new options keep old fingerprints.
        return config | {
            name: list(value) if isinstance(value, tuple) else value
            for name, default in DEFAULTS.items()
            if (value := getattr(self, name)) != default
        }


DECODERS = [tokenizers.decoders.WordPiece(cleanup=cleanup) for cleanup in (True, False)]
DEFAULTS = {
    "strip_accents": None,
    "split_on_cjk": True,
    "special_tokens": SPECIAL_TOKENS,
    "added_tokens": [],
}


def _lines(path, text):
    """Returns the tokens of a `vocab.txt`, without blank lines at its end."""
    tokens = token_lines(text)
    while len(tokens) > 1 and not tokens[-1]:
        tokens.pop()
    places = {}
    for number, token in enumerate(tokens, 1):
        if not token or token in places or "\0" in token:
            what = f"a token of line {places[token]}" if token in places else "a null character"
            what = what if token else "an empty line"
            raise ValueError(
                f"{path}:{number}: Every line must hold a different token. If ids depend on this "
                f"line, give it a name that no text has, such as '[line {number}]'. Received: "
                f"{what}, {token!r:.60}"
            )
        places[token] = number
    return tokens


def _template(frame):
    """Returns the package's component that puts special tokens around one text or two."""
    (cls, _), (sep, _) = frame
    single, pair = f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"
    return tokenizers.processors.TemplateProcessing(single, pair, frame)


def _bert_tokenizer(model, lowercase, strip_accents=None, split_on_cjk=True):
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_on_cjk,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    return tokenizer
