"""Text to ids and back, with offsets: each tokenizer packs a task's texts its model's way."""

import contextlib
import gzip
import io
import itertools
import json
import os
import typing
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tokenizers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def open_text(path):
    """Opens a plain or `.gz` UTF-8 text file for reading line by line.

    Raises:
        ValueError: If the file does not exist or is a folder; on reading, if it is damaged, cut
            short or no UTF-8 text.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"No file {path}. Received: {os.fspath(path)!r}")
    return _TextFile(path)


def _open_bytes(path):
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


class _TextFile(io.TextIOWrapper):
    """A text file whose errors name it, and the line."""

    def __init__(self, path):
        super().__init__(_open_bytes(path), "utf-8")
        self._path, self._line = path, 0

    def __next__(self):
        self._line += 1
        try:
            return super().__next__()
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            line = self._line
            if isinstance(error, UnicodeDecodeError):
                line, error = self._undecodable()
            raise ValueError(
                f"{self._path}:{line}: This is not a whole UTF-8 text file. Received: {error}"
            ) from error

    def _undecodable(self):
        """The first line that is no UTF-8, and why: text is decoded in blocks of many lines."""
        with _open_bytes(self._path) as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    return number, error


@dataclass
class Encoded:
    """Packed texts of unequal lengths, one after another in flat arrays.

    Attributes:
        lengths: (N,) tokens of each row, special ones included.
        token_ids, segment_ids: (sum of lengths,) int32.
        cut: (N,) tokens lost to `max_length`.
        word_ids: (sum of lengths,) int32, the word a token is part of, or -1 at special tokens;
            `None` unless asked for.
        offsets: (sum of lengths, 2) int32, characters of the original text (of the word, where
            words were given); `None` unless asked for.
    """

    lengths: np.ndarray
    token_ids: np.ndarray
    segment_ids: np.ndarray
    cut: np.ndarray
    word_ids: np.ndarray | None = None
    offsets: np.ndarray | None = None
    starts: np.ndarray = field(init=False)

    def __post_init__(self):
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    def __len__(self):
        return len(self.lengths)

    def padded(self, name, rows=None, length=None, pad=0):
        """One array (rows, length) of the flat array called `name`, filled up with `pad`."""
        rows = np.arange(len(self)) if rows is None else np.asarray(rows)
        flat = getattr(self, name)
        lengths = self.lengths[rows]
        if length is None:
            length = int(lengths.max(initial=0))
        real = np.arange(length) < lengths[:, None]  # (rows, length)
        out = np.full((len(rows), length, *flat.shape[1:]), pad, dtype=flat.dtype)
        source = self.starts[rows][:, None] + np.arange(length)
        out[real] = flat[source[real]]
        return out


class _Subwords:
    """What the tokenizers on the `tokenizers` package share."""

    _special = {}  # attribute -> special token
    _first, _last = None, None  # attributes of what stands around a text
    _has_segments = True

    def _set(self, tokenizer):
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab()
        for name, token in self._special.items():
            setattr(self, name, self._vocabulary[token])

    def save(self, path):
        """Writes one JSON file, under a temporary name first."""
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(self._to_json(), encoding="utf-8")
        os.replace(temporary, path)

    def _to_json(self):
        return self._tokenizer.to_str()

    def __len__(self):
        return len(self._vocabulary)

    @property
    def vocabulary(self):
        """The pieces in order of their ids."""
        return sorted(self._vocabulary, key=self._vocabulary.get)

    def tokenize(self, text):
        """The pieces of a text, or of a list of words, as strings."""
        words = not isinstance(text, str)
        text = list(text) if words else text
        return self._tokenizer.encode(text, is_pretokenized=words, add_special_tokens=False).tokens

    def detokenize(self, token_ids):
        """The text of token ids: pieces joined, special tokens left out."""
        return self._tokenizer.decode([int(i) for i in token_ids])

    def pack(self, texts, pairs=None, max_length=None, return_offsets=False):
        """Texts, or pairs of texts, with their special tokens as padded arrays.

        Args:
            texts: A list of N texts; a text may be given as a list of words.
            pairs: The N second texts, or `None`.
            max_length: Longest row T; the longer text of a row is cut first. See `encode` for the
                number of tokens lost.
            return_offsets: If True, add `offsets` and `word_ids`.

        Returns:
            A dict of arrays: `token_ids` and, for models that have them, `segment_ids` (N, T)
            int32, `padding_mask` (N, T) bool; on request `offsets` (N, T, 2), the characters of a
            token in its text (in its word, where words were given), and `word_ids` (N, T), -1 at
            special positions and padding.
        """
        rows = self.encode(texts, pairs, max_length, return_offsets=return_offsets)
        token_ids = rows.padded("token_ids", pad=self.pad_id)
        packed = {"token_ids": token_ids}
        if self._has_segments:
            packed["segment_ids"] = rows.padded("segment_ids")
        packed["padding_mask"] = np.arange(token_ids.shape[1]) < rows.lengths[:, None]
        if return_offsets:
            packed["offsets"] = rows.padded("offsets")
            packed["word_ids"] = rows.padded("word_ids", pad=-1)
        return packed

    def encode(self, texts, pairs=None, max_length=None, return_offsets=False):
        """What `pack` does, before padding, as an `Encoded`.

        Raises:
            ValueError: If `texts` is one string, `texts` and `pairs` differ in length, or
                `max_length` leaves no room for text.
        """
        if isinstance(texts, str) or isinstance(pairs, str):
            raise ValueError(
                "`texts` is a list of texts; put a single one in brackets. "
                f"Received: {texts if isinstance(texts, str) else pairs!r}"
            )
        texts = list(texts)
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(
                f"Every text needs one pair. Received: {len(texts)} texts and {len(pairs)} pairs"
            )
        begin = 0 if self._first is None else 1
        special = begin + (1 if pairs is None else 2)
        if max_length is not None and max_length <= special:
            raise ValueError(
                f"`max_length` must leave room for text beside {special} special "
                f"token{'s' if special > 1 else ''}. Received: max_length={max_length}"
            )
        first = _Pieces(self._encode(texts, return_offsets), return_offsets)
        if pairs is None:
            second = _Pieces([], return_offsets, rows=len(texts))
        else:
            second = _Pieces(self._encode(list(pairs), return_offsets), return_offsets)

        keep_first, keep_second = first.lengths, second.lengths
        if max_length is not None:
            room = max_length - special
            keep_first, keep_second = _cut_longer_first(keep_first, keep_second, room)
        cut = first.lengths + second.lengths - keep_first - keep_second
        lengths = keep_first + keep_second + special
        ends = np.cumsum(lengths)
        starts = ends - lengths

        total = int(lengths.sum())
        token_ids = np.full(total, getattr(self, self._last), dtype=np.int32)
        segment_ids = np.zeros(total, dtype=np.int32)
        word_ids = np.full(total, -1, dtype=np.int32) if return_offsets else None
        offsets = np.zeros((total, 2), dtype=np.int32) if return_offsets else None
        if begin:
            token_ids[starts] = getattr(self, self._first)
        starts += begin
        seconds = starts + keep_first + 1  # behind the separator
        for pieces, keep, start in ((first, keep_first, starts), (second, keep_second, seconds)):
            source = _ranges(pieces.starts, keep)
            target = _ranges(start, keep)
            token_ids[target] = pieces.token_ids[source]
            if return_offsets:
                word_ids[target] = pieces.word_ids[source]
                offsets[target] = pieces.offsets[source]
        if pairs is not None:
            segment_ids[_ranges(seconds, keep_second + 1)] = 1
        return Encoded(lengths, token_ids, segment_ids, cut, word_ids, offsets)

    def _encode(self, texts, offsets):
        """Encodings of texts or lists of words, without special tokens."""
        split = [not isinstance(text, str) for text in texts]
        if any(split) and not all(split):
            raise ValueError(
                "`texts` are all strings or all lists of words. "
                f"Received: {len(texts) - sum(split)} strings and {sum(split)} lists"
            )
        if not any(split):
            # The fast one keeps neither offsets nor word ids.
            encode_batch = self._tokenizer.encode_batch_fast
            if offsets:
                encode_batch = self._tokenizer.encode_batch
            return encode_batch(texts, add_special_tokens=False)
        texts = [list(words) for words in texts]
        rows = self._tokenizer.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        for i, row in enumerate(rows):
            if len(set(row.word_ids)) < len(texts[i]):
                rows[i] = _with_empty_words(row, len(texts[i]), self.unk_id)
        return rows

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable("keras_plm")
class WordPiece(_Subwords):
    """BERT's tokenizer: words and punctuation, each cut greedily into the longest known pieces.

    A word with no cover becomes `[UNK]`. The work is done by the `tokenizers` package, so ids
    agree with Hugging Face's BERT tokenizer; the saved JSON is that package's own format.

    Reference: Wu et al. 2016, arXiv 1609.08144, section 4.1; Devlin et al. 2018, section 3.

    Args:
        vocabulary: The pieces in order of their ids; must hold `[PAD] [UNK] [CLS] [SEP] [MASK]`.
        lowercase: If True, lower-case and strip accents first ("uncased"). By default that is
            done unless the vocabulary has upper-case pieces.

    Raises:
        ValueError: If a special token is missing or a piece stands twice.

    >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "want", "##ed", "un", "##want"]
    >>> tokenizer = WordPiece(pieces)
    >>> tokenizer.tokenize("UNwanted, wanted")
    ['un', '##want', '##ed', '[UNK]', 'want', '##ed']
    >>> tokenizer.pack(["unwanted", "want"])["token_ids"].tolist()
    [[2, 7, 8, 6, 3], [2, 5, 3, 0, 0]]
    """

    _special = {f"{token[1:-1].lower()}_id": token for token in SPECIAL_TOKENS}
    _first, _last = "cls_id", "sep_id"

    def __init__(self, vocabulary, lowercase=None):
        ids = _numbered(vocabulary, SPECIAL_TOKENS, "WordPiece")
        if lowercase is None:
            lowercase = not any(p != p.lower() for p in ids if p not in SPECIAL_TOKENS)
        model = tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100)
        self._set(_bert_tokenizer(model, lowercase))
        self.lowercase = lowercase

    @classmethod
    def train(cls, files, vocabulary_size, lowercase=True):
        """Learns a vocabulary from text files (plain or .gz).

        Args:
            files: One path or a list of paths.
            vocabulary_size: Number of pieces, special tokens included.
            lowercase: If True, lower-case and strip accents first.

        Raises:
            ValueError: If a file is missing, there is no text, or `vocabulary_size` does not hold
                the letters.
        """
        files = _paths(files)
        model = tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100)
        tokenizer = _bert_tokenizer(model, lowercase)
        limit = min(max(100, vocabulary_size // 20), 1000)
        alphabet = _alphabet(_lines(files), tokenizer.normalizer, limit)
        if not alphabet:
            raise _no_text(files)
        # The trainer numbers "##" letters in the order of a hash map, and ids break its ties:
        # without given ids no two trainings agree.
        pre_tokenize = tokenizer.pre_tokenizer.pre_tokenize_str
        inner = [letter for letter in alphabet if len(pre_tokenize("a" + letter)) == 1]
        letters = [*SPECIAL_TOKENS, *alphabet, *("##" + letter for letter in inner)]
        if len(letters) > vocabulary_size:
            raise ValueError(
                f"This text needs a vocabulary of at least {len(letters)} pieces: its letters, "
                "alone and inside words, and the special tokens. "
                f"Received: vocabulary_size={vocabulary_size}"
            )
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            special_tokens=letters,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_lines(files), trainer)
        # Rebuilt from its pieces, so that a trained and a loaded tokenizer are the same thing.
        vocabulary = tokenizer.get_vocab()
        return cls(sorted(vocabulary, key=vocabulary.get), lowercase=lowercase)

    @classmethod
    def load(cls, path, lowercase=None):
        """Reads what `save` wrote, a `tokenizer.json`, or a `vocab.txt` (one piece a line).

        Args:
            path: The file.
            lowercase: Overrides what the file says or, in a `vocab.txt`, suggests.

        Raises:
            ValueError: If the file is missing or is no WordPiece tokenizer.
        """
        with open_text(path) as file:
            text = file.read()
        if not text.lstrip().startswith("{"):
            pieces = text.split("\n")
            return cls(pieces[:-1] if pieces[-1] == "" else pieces, lowercase)
        with _naming(path, "WordPiece"):
            saved = json.loads(text)
            vocabulary = _saved_pieces(saved["model"], "WordPiece")
            if lowercase is None:
                lowercase = saved["normalizer"]["lowercase"]
        return cls(vocabulary, lowercase=lowercase)

    def get_config(self):
        return {"vocabulary": self.vocabulary, "lowercase": self.lowercase}


@keras.saving.register_keras_serializable("keras_plm")
class BytePair(_Subwords):
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
    _has_segments = False

    def __init__(self, vocabulary, merges, lowercase=False, unknown="[UNK]"):
        ids = _numbered(vocabulary, self._special.values(), "BytePair")
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
        files = _paths(files)
        tokenizer = _spaced_tokenizer(tokenizers.models.BPE(unk_token="[UNK]"), lowercase)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            min_frequency=2,  # as the authors' subword-nmt
            special_tokens=list(cls._special.values()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_lines(files), trainer)
        model = json.loads(tokenizer.to_str())["model"]
        vocabulary = _saved_pieces(model, "BPE")
        if len(vocabulary) == len(cls._special):
            raise _no_text(files)
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
        with _naming(path, "BPE"):
            saved = json.loads(text)
            model = saved["model"]
            lowercase = saved["normalizer"]["normalizers"][0]["lowercase"]
            pieces = _saved_pieces(model, "BPE")
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
        return _Row(row.ids, row.word_ids, offsets)

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


class _Pieces:
    """Encodings of the `tokenizers` package as flat arrays."""

    def __init__(self, encodings, offsets, rows=0):
        ids = [encoding.ids for encoding in encodings]
        self.lengths = np.array([len(row) for row in ids], dtype=np.int64)
        if not encodings:
            self.lengths = np.zeros(rows, dtype=np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        total = int(self.lengths.sum())
        self.token_ids = np.fromiter(itertools.chain.from_iterable(ids), np.int32, total)
        if offsets:
            word_ids = (encoding.word_ids for encoding in encodings)
            self.word_ids = np.fromiter(itertools.chain.from_iterable(word_ids), np.int32, total)
            pairs = (encoding.offsets for encoding in encodings)
            flat = itertools.chain.from_iterable(itertools.chain.from_iterable(pairs))
            self.offsets = np.fromiter(flat, np.int32, 2 * total).reshape(total, 2)


class _Row(typing.NamedTuple):
    """An encoding that was changed."""

    ids: list
    word_ids: list
    offsets: list


def _with_empty_words(row, num_words, unk_id):
    """A word that normalises to nothing (a control character, say) becomes an unknown token.

    Otherwise the tags behind it would move.
    """
    empty = set(range(num_words)) - set(row.word_ids)
    tokens = [*zip(row.word_ids, row.ids, row.offsets, strict=True)]
    tokens += [(word, unk_id, (0, 0)) for word in empty]
    word_ids, ids, offsets = zip(*sorted(tokens, key=lambda token: token[0]), strict=True)
    return _Row(ids, word_ids, offsets)


def _numbered(vocabulary, special_tokens, kind):
    """Piece -> id, after checking the pieces."""
    vocabulary = list(vocabulary)
    missing = [token for token in special_tokens if token not in vocabulary]
    if missing:
        raise ValueError(
            f"A {kind} vocabulary must hold {' '.join(special_tokens)}. "
            f"Received: {len(vocabulary)} pieces without {' '.join(missing)}"
        )
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    if len(ids) < len(vocabulary):
        double = next(p for i, p in enumerate(vocabulary) if ids[p] != i)
        raise ValueError(
            "Every piece of a vocabulary must stand once. "
            f"Received: {double!r} at line {vocabulary.index(double) + 1} "
            f"and line {ids[double] + 1}"
        )
    return ids


@contextlib.contextmanager
def _naming(path, kind):
    """Errors of a damaged or foreign JSON file name it."""
    try:
        yield
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"A saved tokenizer is a JSON file with a {kind} model. Received: {path} ({error})"
        ) from error


def _saved_pieces(model, kind):
    if model["type"] != kind:
        raise KeyError("type")
    return sorted(model["vocab"], key=model["vocab"].get)


def _paths(files):
    return [files] if isinstance(files, (str, os.PathLike)) else list(files)


def _lines(paths):
    return itertools.chain.from_iterable(open_text(path) for path in paths)


def _no_text(files):
    return ValueError(f"A vocabulary is learned from text. Received: files without any, {files}")


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


def _bert_tokenizer(model, lowercase):
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    # So that "[MASK]" in a text is the mask, as in the original.
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _alphabet(lines, normalizer, limit):
    """The most frequent characters of a text after normalising, in their code's order."""
    counts = np.zeros(0x110000, dtype=np.int64)
    lines = iter(lines)
    while batch := list(itertools.islice(lines, 10_000)):
        text = normalizer.normalize_str("".join(batch))
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
        counts += np.bincount(codes, minlength=len(counts))
    frequent = np.argsort(-counts, kind="stable")[: limit + 1]
    return [chr(i) for i in sorted(frequent[counts[frequent] > 0]) if not chr(i).isspace()][:limit]


def _cut_longer_first(first, second, room):
    """Lengths after removing tokens one by one from the longer of two texts, until they fit.

    An odd place goes to the text that was longer, to the second of equals, as in Hugging Face's
    "longest_first".
    """
    excess = np.maximum(first + second - room, 0)
    from_first = np.minimum(np.maximum(first - second, 0), excess)
    from_second = np.minimum(np.maximum(second - first, 0), excess)
    rest = excess - from_first - from_second  # of two equally long texts
    more, less = (rest + 1) // 2, rest // 2
    from_first += np.where(first > second, less, more)
    from_second += np.where(first > second, more, less)
    return first - from_first, second - from_second


def _ranges(starts, lengths):
    """The integers of all ranges `[start, start + length)`, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
