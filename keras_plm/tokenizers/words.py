"""Tokenizer of whole words, for n-gram models, neural language models and word vectors."""

import os
from collections.abc import Iterable, Sequence
from typing import Self

import keras
import tokenizers

from keras_plm.files.arguments import check_one_of, check_whole
from keras_plm.files.json_files import OneOf, read_json
from keras_plm.files.sequences import Tensor, as_text
from keras_plm.tokenizers.encoded import Encoded, Row
from keras_plm.tokenizers.subwords import SubwordTokenizer, one_row
from keras_plm.tokenizers.text import lines, no_text, paths
from keras_plm.tokenizers.tokenizer_json import (
    check_component,
    check_saved,
    check_shared,
    completed,
    naming,
    numbered,
    saved_shape,
    saved_vocabulary,
)

SPLITS = ("punctuation", "spaces")
SHAPE = saved_shape("WordLevel", unk_token=str) | {
    "normalizer": {"type": OneOf(("BertNormalizer",)), "lowercase": bool},
    "pre_tokenizer": {"type": OneOf(("BertPreTokenizer", "WhitespaceSplit"))},
}


@keras.saving.register_keras_serializable("keras_plm")
class Words(SubwordTokenizer):
    """A tokenizer of whole words with a vocabulary.

    Use it for n-gram models, the neural language model of Bengio et al. and word vectors. It
    splits a text at white space and around punctuation, or only at white space for tokenised
    text. Lists of words stay unchanged. It adds no special tokens; `read_ids` adds `[EOS]` after
    each line.

    Args:
        vocabulary: Words in the order of their ids, with `[PAD]`, `[EOS]` and `unk_token`.
        lowercase: If True, lower-case texts.
        split: `"punctuation"`, or `"spaces"` for tokenised text.
        unk_token: Name of the unknown word, as written in the text.

    Raises:
        ValueError: If a special token is missing, a word occurs twice, or `split` is unknown.

    >>> tokenizer = Words(["[PAD]", "[UNK]", "[EOS]", "low", "er", "."])
    >>> tokenizer.tokenize("low, low.")
    ['low', '[UNK]', 'low', '.']
    >>> tokenizer.pack([["low", "er"], ["low."]])["token_ids"].tolist()
    [[3, 4], [1, 0]]
    """

    has_segments = False
    joint_pairs = False

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool = False,
        split: str = "punctuation",
        unk_token: str = "[UNK]",
    ):
        check_one_of(split, "split", SPLITS)
        if lowercase and unk_token not in ("[UNK]", unk_token.lower()):
            raise ValueError(
                "With `lowercase`, the unknown word of the text must be in lower case: "
                f"`unk_token={unk_token.lower()!r}`. Received: {unk_token!r}"
            )
        self._special = {"pad_id": "[PAD]", "unk_id": unk_token, "end_id": "[EOS]"}
        ids = numbered(vocabulary, self._special.values(), "Words")
        model = tokenizers.models.WordLevel(ids, unk_token=unk_token)
        self._set(word_tokenizer(model, lowercase, split))
        self.lowercase, self.split, self.unk_token = lowercase, split, unk_token

    @classmethod
    def train(
        cls,
        files: str | os.PathLike | Sequence[str | os.PathLike],
        vocabulary_size: int | None = None,
        lowercase: bool = False,
        split: str = "punctuation",
        unk_token: str = "[UNK]",
        min_count: int = 1,
    ) -> Self:
        """Creates a vocabulary of the most frequent words of text files, plain or `.gz`.

        `[PAD]`, the unknown word and `[EOS]` have the ids 0, 1 and 2. Words of equal frequency
        follow the order of their code points.

        Args:
            files: One path or a list of paths.
            vocabulary_size: Number of words, the three special ones included; by default all.
            lowercase, split, unk_token: As in the class.
            min_count: Smallest number of occurrences of a word.

        Raises:
            ValueError: If a file is missing, there is no text, or an argument leaves no word.
        """
        files = paths(files)
        special = ["[PAD]", unk_token, "[EOS]"]
        if vocabulary_size is not None and vocabulary_size <= len(special):
            raise ValueError(
                f"`vocabulary_size` must be above the number of special words, {len(special)}. "
                f"Received: {vocabulary_size}"
            )
        check_whole(min_count, "min_count", least=1)
        check_one_of(split, "split", SPLITS)
        model = tokenizers.models.WordLevel(unk_token=unk_token)
        tokenizer = word_tokenizer(model, lowercase, split)
        trainer = tokenizers.trainers.WordLevelTrainer(
            # Room for special words that also occur in the text.
            vocab_size=2**31 if vocabulary_size is None else vocabulary_size + len(special),
            min_frequency=min_count,
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines(files), trainer)
        found = tokenizer.get_vocab()
        words = [word for word in sorted(found, key=found.get) if word not in special]
        vocabulary = [*special, *words][:vocabulary_size]
        if not words:
            if min_count > 1:
                raise ValueError(
                    f"A word of the files must occur `min_count` times: lower it. "
                    f"Received: min_count={min_count}"
                )
            raise no_text(files)
        return cls(vocabulary, lowercase, split, unk_token)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a file of `save`.

        Raises:
            ValueError: If the file is missing or was not written by `Words.save`.
        """
        saved = read_json(path, dict)
        check_saved(saved, SHAPE, path)
        saved = completed(path, saved)
        split = "spaces" if saved["pre_tokenizer"]["type"] == "WhitespaceSplit" else SPLITS[0]
        tokens = saved_vocabulary(path, saved["model"]["vocab"])
        with naming(path):
            lowercase, unk_token = saved["normalizer"]["lowercase"], saved["model"]["unk_token"]
            tokenizer = cls(tokens, lowercase, split, unk_token)
        check_shared(path, saved, tokenizer._tokenizer)
        for name in ("post_processor", "truncation", "padding"):
            check_component(path, saved, name, None)
        if saved["added_tokens"]:
            raise ValueError(
                f"{path}: `added_tokens` must be empty for `Words`. "
                f"Received: {saved['added_tokens'][0]['content']!r:.60}"
            )
        return tokenizer

    def detokenize(self, token_ids: Sequence[int] | Tensor) -> str:
        """Converts token ids to words with spaces, without padding and `[EOS]`."""
        left_out, vocabulary = {self.pad_id, self.end_id}, self.vocabulary
        token_ids = one_row(token_ids)
        wrong = [i for i in token_ids if not 0 <= i < len(vocabulary)]
        if wrong:
            raise ValueError(f"Token ids must be in [0, {len(vocabulary)}). Received: {wrong[0]}")
        return " ".join(vocabulary[i] for i in token_ids if i not in left_out)

    def tokenize(self, text: str | Sequence[str]) -> list[str]:
        """Splits a text, or a list of words, into words of the vocabulary."""
        return [self._tokenizer.id_to_token(i) for i in self._encode([as_text(text)], False)[0].ids]

    def encode(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        return_offsets: bool = False,
    ) -> Encoded:
        """Encodes texts as `pack` does, without padding.

        Raises:
            ValueError: If `texts` is one string, or `pairs` are given.
        """
        if pairs is not None:
            raise ValueError(
                "`Words` packs one text per row; pack second texts separately. "
                f"Received: pairs={pairs!r:.60}"
            )
        return super().encode(texts, None, max_length, return_offsets)

    def _encode(self, texts, offsets):
        if not texts or isinstance(texts[0], str):
            return super()._encode(texts, offsets)
        if any(isinstance(words, str) for words in texts):
            return super()._encode(texts, offsets)  # raises for texts of both kinds
        normalize, find = self._tokenizer.normalizer.normalize_str, self._vocabulary.get
        rows = []
        for words in texts:
            ids = [find(normalize(word), self.unk_id) for word in words]
            rows.append(Row(ids, list(range(len(ids))), [(0, len(word)) for word in words]))
        return rows

    def get_config(self):
        return {
            "vocabulary": self.vocabulary,
            "lowercase": self.lowercase,
            "split": self.split,
            "unk_token": self.unk_token,
        }


def word_tokenizer(model, lowercase, split):
    """Returns the package's tokenizer that splits texts into words for `model`."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=lowercase
    )
    if split == "spaces":
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer
