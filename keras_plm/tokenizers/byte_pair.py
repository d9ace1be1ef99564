"""Byte pair encoding, for translation."""

import json

import keras
import tokenizers

from keras_plm.tokenizers.subwords import (
    Row,
    SubwordTokenizer,
    lines,
    naming,
    no_text,
    numbered,
    paths,
    saved_pieces,
)
from keras_plm.tokenizers.text import open_text


@keras.saving.register_keras_serializable("keras_plm")
class BytePair(SubwordTokenizer):
    """Byte pair encoding: words cut into pieces by the merges learned from a text, in their order.

    For translation, where source and target share one vocabulary, and for language models. A word
    is marked by the space before it, which is the first character of its first piece:
    `detokenize` then restores a single-spaced text as it was, and a word is the same pieces with
    or without a comma behind it. Punctuation is cut off; case and accents stay. A text becomes its
    pieces and `[EOS]`. The work is done by the `tokenizers` package, and the saved JSON is in that
    package's own format.

    Reference: Sennrich et al. 2016, arXiv 1508.07909, section 3.2.
    Differs from the paper: the mark stands at the start of a word, not `</w>` at its end.

    Args:
        vocabulary: The pieces in order of their ids; must hold `[PAD] [UNK] [BOS] [EOS]`.
        merges: Pairs of pieces, in the order in which they are joined.
        lowercase: If True, lower-case first.
        unknown: `"[UNK]"`, what each character outside the vocabulary becomes, or `"error"`.

    Raises:
        ValueError: If a special token is missing, a piece stands twice, a merge is not of pieces
            in the vocabulary, or `unknown` is neither; later, with `unknown="error"`, if a text
            has an unknown character.

    >>> pieces = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *" .elorw", " l", "ow", " low", "er"]
    >>> merges = [(" ", "l"), ("o", "w"), (" l", "ow"), ("e", "r")]
    >>> tokenizer = BytePair(pieces, merges)
    >>> tokenizer.tokenize("low lower.")
    [' low', ' low', 'er', '.']
    >>> tokenizer.pack(["low lower.", "low"])["token_ids"].tolist()
    [[13, 13, 14, 5, 3], [13, 3, 0, 0, 0]]
    >>> tokenizer.detokenize([13, 13, 14, 5, 3])
    'low lower.'
    """

    _special = {"pad_id": "[PAD]", "unk_id": "[UNK]", "start_id": "[BOS]", "end_id": "[EOS]"}
    _last = "end_id"
    has_segments = False

    def __init__(self, vocabulary, merges, lowercase=False, unknown="[UNK]"):
        ids = numbered(vocabulary, self._special.values(), "BytePair")
        merges = [tuple(merge) for merge in merges]
        for i, merge in enumerate(merges):
            if len(merge) != 2 or not ids.keys() >= {*merge, "".join(merge)}:
                raise ValueError(
                    "A merge joins two pieces of the vocabulary to a third. "
                    f"Received: merges[{i}]={merge!r}"
                )
        if unknown not in ("[UNK]", "error"):
            raise ValueError(f'`unknown` must be "[UNK]" or "error". Received: {unknown!r}')
        # The model alone knows the special tokens, so that "[EOS]" in a text is only text.
        model = tokenizers.models.BPE(ids, merges, unk_token="[UNK]")
        self._set(_spaced_tokenizer(model, lowercase))
        self.merges, self.lowercase, self.unknown = merges, lowercase, unknown

    @classmethod
    def train(cls, files, vocabulary_size, lowercase=False):
        """Learns pieces and merges from text files (plain or .gz).

        The most frequent pair is merged first, of equals the one of smaller ids; pairs that occur
        once are left apart. Every character of the text becomes a piece.

        Args:
            files: One path or a list of paths; for translation both languages' files.
            vocabulary_size: Number of pieces, special tokens included; fewer where the text runs
                out of pairs.
            lowercase: If True, lower-case first.

        Raises:
            ValueError: If a file is missing, there is no text, or `vocabulary_size` does not hold
                the characters.
        """
        files = paths(files)
        tokenizer = _spaced_tokenizer(tokenizers.models.BPE(unk_token="[UNK]"), lowercase)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            min_frequency=2,  # as the authors' subword-nmt
            special_tokens=list(cls._special.values()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines(files), trainer)
        model = json.loads(tokenizer.to_str())["model"]
        vocabulary = saved_pieces(model, "BPE")
        if len(vocabulary) == len(cls._special):
            raise no_text(files)
        if len(vocabulary) > vocabulary_size:
            raise ValueError(
                f"This text needs a vocabulary of at least {len(vocabulary)} pieces: its "
                f"characters and the special tokens. Received: vocabulary_size={vocabulary_size}"
            )
        return cls(vocabulary, model["merges"], lowercase=lowercase)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote.

        Raises:
            ValueError: If the file is missing or was not written by `BytePair.save`.
        """
        with open_text(path) as file:
            text = "".join(file)  # so that a damaged line is named
        with naming(path, "BPE"):
            saved = json.loads(text)
            model = saved["model"]
            lowercase = saved["normalizer"]["normalizers"][0]["lowercase"]
            pieces = saved_pieces(model, "BPE")
            return cls(pieces, model["merges"], lowercase, unknown=model["unknown"])

    def _to_json(self):
        saved = json.loads(self._tokenizer.to_str())
        saved["model"]["unknown"] = self.unknown  # the package reads past names it does not know
        return json.dumps(saved, ensure_ascii=False)

    def tokenize(self, text):
        """The pieces of a text, or of a list of words, as strings."""
        return [self._tokenizer.id_to_token(i) for i in self._encode([text], False)[0].ids]

    def detokenize(self, token_ids):
        """The text of token ids: pieces joined, special tokens left out."""
        special = {self._vocabulary[token] for token in self._special.values()}
        return self._tokenizer.decode([int(i) for i in token_ids if i not in special])

    def encode(self, texts, pairs=None, max_length=None, return_offsets=False):
        """What `pack` does, before padding, as an `Encoded`.

        Raises:
            ValueError: If `texts` is one string, `pairs` are given, `max_length` leaves no room
                for text, or a character is unknown and that an error.
        """
        if pairs is not None:
            raise ValueError(
                "`BytePair` packs one text in a row; pack the second texts by themselves. "
                f"Received: pairs={pairs!r:.60}"
            )
        return super().encode(texts, None, max_length, return_offsets)

    def _encode(self, texts, offsets):
        rows = super()._encode(texts, offsets)
        if self.unknown == "error":
            for text, row in zip(texts, rows, strict=True):
                if self.unk_id in row.ids:
                    self._name_unknown(text)
        if offsets:
            rows = [self._trim(row, text) for row, text in zip(rows, texts, strict=True)]
        return rows

    def _trim(self, row, text):
        """Offsets without the space before a word."""
        offsets = []
        for i, (start, end), word in zip(row.ids, row.offsets, row.word_ids, strict=True):
            piece = self._tokenizer.id_to_token(i)
            if piece.startswith(" "):
                start += (text if isinstance(text, str) else text[word])[start].isspace()
                end = start if piece == " " else end
            offsets.append((start, end))
        return Row(row.ids, row.word_ids, offsets)

    def _name_unknown(self, text):
        joined = text if isinstance(text, str) else " ".join(text)
        for character in self._tokenizer.normalizer.normalize_str(joined):
            if character not in self._vocabulary:
                raise ValueError(
                    "With `unknown='error'` every character must be in the vocabulary. "
                    f"Received: {character!r} in {text!r}"
                )

    def get_config(self):
        return {
            "vocabulary": self.vocabulary,
            "merges": [list(merge) for merge in self.merges],
            "lowercase": self.lowercase,
            "unknown": self.unknown,
        }


def _spaced_tokenizer(model, lowercase):
    """Words with the space before them, and single punctuation marks; more spaces are dropped."""
    tokenizer = tokenizers.Tokenizer(model)
    clean = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=lowercase
    )
    steps = [clean, tokenizers.normalizers.NFC(), tokenizers.normalizers.Prepend(" ")]
    tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    words = tokenizers.Regex(r" ?\w+| ?[^\w\s]")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(words, "removed", invert=True)
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
