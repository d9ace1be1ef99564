"""ELMo's character ids: each word as its UTF-8 bytes."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Self

import keras
import numpy as np
import tokenizers

from keras_plm.files.json_files import OneOf, read_json
from keras_plm.files.sequences import Tensor, as_list, as_text
from keras_plm.tokenizers.encoded import Encoded, FlatTokens, Row
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.tokenizers.tokenizer_json import check_saved
from keras_plm.tokenizers.words import word_tokenizer

# A byte b has the id b + 1, because 0 marks a position without a word.
WIDTH = 50
SHAPE = {"model": {"type": OneOf(("Characters",)), "width": OneOf((WIDTH,))}}
BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PAD = 257, 258, 259, 260, 261


def encode_characters(words, width=WIDTH):
    """Returns ELMo's character ids of words.

    A word is a begin mark, the bytes of its UTF-8 form, an end mark, and padding. Bytes after the
    first `width - 2` are cut. Half of a surrogate pair has no UTF-8 form and is left out.

    Reference: Peters et al. 2018; allenai/bilm-tf, data.py.

    Args:
        words: A list of W strings.
        width: Number of characters C of a word, its marks included.

    Returns:
        (W, C) int32.

    Raises:
        ValueError: If a word is not a string.

    >>> encode_characters(["th", "café"], width=8).tolist()
    [[259, 117, 105, 260, 261, 261, 261, 261], [259, 100, 98, 103, 196, 170, 260, 261]]
    """
    words = as_list(words, "words", "words")
    found = np.full((len(words), width), PAD, np.int32)
    for row, word in zip(found, words, strict=True):
        check_word(word)
        letters = word.encode("utf-8", "ignore")[: width - 2]
        row[0], row[len(letters) + 1] = BEGIN_WORD, END_WORD
        row[1 : len(letters) + 1] = np.frombuffer(letters, np.uint8).astype(np.int32) + 1
    return found


class CharacterIds:
    """Character ids of words; each distinct word is stored once.

    Args:
        words: A list of W strings.
        width: Number of characters of a word, as in `encode_characters`.

    >>> CharacterIds(["th", "a", "th"], width=5)[1:].tolist()
    [[259, 98, 260, 261, 261], [259, 117, 105, 260, 261]]
    """

    def __init__(self, words, width=32):
        places = {}
        self._places = np.array([places.setdefault(word, len(places)) for word in words], int)
        self._table = encode_characters(list(places), width)

    def __getitem__(self, part):
        """Returns the ids (words, C) of a slice of the words."""
        return self._table[self._places[part]]


def check_word(word):
    """Raises if a word is not a string."""
    if not isinstance(word, str):
        raise ValueError(
            f"A word must be a string. Received: {word!r:.60} of {type(word).__name__}"
        )


def _alone(mark):
    """Returns the ids of a word of one mark, for the begin or end of a text."""
    row = np.full(WIDTH, PAD, np.int32)
    row[:3] = BEGIN_WORD, mark, END_WORD
    return row


# The first rows of every table of words: no word, begin of a text, end of a text.
MARKS = np.stack([np.zeros(WIDTH, np.int32), _alone(BEGIN_TEXT), _alone(END_TEXT)])


@keras.saving.register_keras_serializable("keras_plm")
class Characters(SubwordTokenizer):
    """ELMo's tokenizer: words as the bytes of their characters, without a vocabulary.

    It splits a text at white space and around punctuation; lists of words stay unchanged. Marks of
    begin and end enclose the text. Case matters. `encode_characters` describes the ids of a word.

    Reference: Peters et al. 2018, arXiv 1802.05365, section 3.4; allenai/bilm-tf, data.py.

    >>> packed = Characters().pack([["It", "said"], []])
    >>> packed["character_ids"].shape, packed["padding_mask"].sum(axis=1).tolist()
    ((2, 4, 50), [4, 2])
    >>> packed["character_ids"][0, 1, :5].tolist()  # begin, I, t, end, padding
    [259, 74, 117, 260, 261]
    """

    has_segments = False
    joint_pairs = False
    pad_id, start_id, end_id = 0, 1, 2  # rows of `MARKS`
    _first, _last = "start_id", "end_id"

    def __init__(self):
        nothing = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
        self._tokenizer = word_tokenizer(nothing, lowercase=False, split="punctuation")

    def __len__(self):
        return 262

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a file of `save`.

        Raises:
            ValueError: If the file is missing or was not written by `Characters.save`.
        """
        check_saved(read_json(path, dict), SHAPE, path)
        return cls()

    def _to_json(self):
        return json.dumps({"model": {"type": "Characters", "width": WIDTH}})

    @property
    def vocabulary(self) -> list[str]:
        """Meanings of the character ids, in their order."""
        marks = ["[BEGIN TEXT]", "[END TEXT]", "[BEGIN WORD]", "[END WORD]", "[PAD]"]
        return ["[NO WORD]", *(f"<0x{byte:02X}>" for byte in range(256)), *marks]

    def tokenize(self, text: str | Sequence[str]) -> list[str]:
        """Splits a text, or a list of words, into words."""
        return self._split([as_text(text)])[0][0]

    def detokenize(self, token_ids: Sequence[int] | Tensor) -> str:
        """Converts character ids (T, C) to text: words with spaces, without special marks."""
        words = []
        for row in np.asarray(token_ids):
            inside = row[(row > 0) & (row <= 256)] - 1
            if (row > 0).any() and not np.isin(row, (BEGIN_TEXT, END_TEXT)).any():
                words.append(inside.astype(np.uint8).tobytes().decode("utf-8", "replace"))
        return " ".join(words)

    def arrays(
        self, encoded: Encoded, rows: np.ndarray | None = None, length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Returns model inputs from rows of an `Encoded`, by default all, padded to a length."""
        words = encoded.padded("token_ids", rows, length, pad=self.pad_id)
        return {
            "character_ids": encoded.table[words],
            "padding_mask": encoded.mask(rows, length),
        }

    def encode(
        self,
        texts: Iterable[str | Sequence[str]],
        pairs: Iterable[str | Sequence[str]] | None = None,
        max_length: int | None = None,
        return_offsets: bool = False,
    ) -> Encoded:
        """Encodes texts as `pack` does, without padding.

        Returns:
            An `Encoded`. Its `token_ids` index rows of its `table` (W, C), the character ids of
            distinct words.

        Raises:
            ValueError: If `texts` is one string, a word is not a string, or `pairs` are given.
        """
        if pairs is not None:
            raise ValueError(
                "`Characters` packs one text per row; pack second texts separately. "
                f"Received: pairs={pairs!r:.60}"
            )
        return super().encode(texts, None, max_length, return_offsets)

    def flat_tokens(
        self, texts: Iterable[str | Sequence[str]], return_offsets: bool = False
    ) -> FlatTokens:
        """Encodes texts without special tokens; token ids index rows of the result's `table`."""
        places = {}
        rows = []
        for words, spans in self._split(texts):
            for word in words:
                check_word(word)
            ids = [places.setdefault(word, len(MARKS) + len(places)) for word in words]
            rows.append(Row(ids, list(range(len(ids))), spans))
        tokens = FlatTokens.of(rows, return_offsets)
        tokens.table = np.concatenate([MARKS, encode_characters(list(places))])
        return tokens

    def _split(self, texts):
        """Returns `(words, offsets)` of each text."""
        for text in texts:
            if not isinstance(text, str | list | tuple | np.ndarray):
                raise ValueError(
                    "A text must be a string or a list of words. "
                    f"Received: {text!r:.60} of {type(text).__name__}"
                )
        found = super()._encode([t for t in texts if isinstance(t, str)], True)
        if 0 < len(found) < len(texts):
            super()._encode(texts, True)  # raises for texts of both kinds
        if not found:
            return [(list(ws), [(0, len(str(w))) for w in ws]) for ws in texts]
        return [
            ([text[first:end] for first, end in row.offsets], row.offsets)
            for text, row in zip(texts, found, strict=True)
        ]

    def get_config(self):
        return {}
