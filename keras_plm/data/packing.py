"""Packed rows of examples, with their targets and words."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_plm.data.batching import few_lengths, warn_of_cuts
from keras_plm.data.labels import target_ids
from keras_plm.data.pair_positions import PairPositions, spans_in, words_in
from keras_plm.data.task import Unlabelled
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import as_texts
from keras_plm.tokenizers.characters import CharacterIds
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_tokenizer, encode_parts
from keras_plm.tokenizers.words import Words


def stack_padded(rows: Sequence[np.ndarray], length: int, pad: float = 0) -> np.ndarray:
    """Stacks arrays of unequal first dimension into one array, padded with `pad`.

    Args:
        rows: R arrays (n, ...), with n at most `length`.
        length: Length T of the result.
        pad: Value of the padding.

    Returns:
        (R, T, ...), in the type of the rows.

    >>> import numpy as np
    >>> stack_padded([np.array([1, 2]), np.array([3])], length=3).tolist()
    [[1, 2, 0], [3, 0, 0]]
    """
    out = np.full((len(rows), length, *rows[0].shape[1:]), pad, rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class PackedExamples:
    """Packed rows of examples, with targets; long lists of words are split into windows.

    `batches` creates `Batches` from it.

    Args:
        examples: A list of `Example`, of texts or of lists of words.
        tokenizer, labels, max_length, words, word_tokenizer, joint_pairs, both_orders, scores,
        word_character_ids, pair_positions, predicate_marks, mark_segments: As in `batches`.
        training: If False, labels that are not among `labels` have the id -1.

    Attributes:
        encoded: The packed rows, see `keras_plm.tokenizers.Encoded`.
        parts: A list of packed rows; several if an example has several rows: its two texts, both
            orders, or its choices.
        lengths: (rows,) number of tokens of each row, the largest of its parts.
        examples_of: (rows,) index of the example of each row.
        row_words: The `RowWords`, or `None`.
        words: (rows,) number of words of each row; `None` without `row_words`.
        targets: Label id of each row, or an array of tag ids; `None` without labels.
        tags: Whether targets are tags.
        cut: Number of tokens cut for `max_length`; a warning states it.
        few_shapes: Whether the positions of two texts are padded to one of the `few_lengths`.

    >>> from keras_plm.data import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> rows = PackedExamples([Example("a b", "x"), Example("b", "y")], tokenizer, ["x", "y"])
    >>> rows.lengths.tolist(), [int(target) for target in rows.targets]
    ([4, 3], [0, 1])
    """

    few_shapes = False

    def __init__(
        self,
        examples: Iterable[Any],
        tokenizer: SubwordTokenizer,
        labels: Iterable[Any] | None = None,
        max_length: int | None = None,
        words: bool | None = None,
        word_tokenizer: Words | None = None,
        joint_pairs: bool | None = None,
        both_orders: bool = False,
        scores: bool = False,
        word_character_ids: bool = False,
        pair_positions: bool = False,
        training: bool = True,
        predicate_marks: bool = False,
        mark_segments: bool = False,
    ):
        examples = as_texts(examples, "examples")
        if not examples:
            raise ValueError("There is nothing to batch. Received: no examples")
        check_tokenizer(tokenizer)
        if max_length is not None:
            check_whole(max_length, "max_length")
        self.tokenizer = tokenizer
        texts = [getattr(example, "text", example) for example in examples]
        sentences = [getattr(example, "sentences", None) for example in examples]
        pairs = _all_or_none(examples, "pair", "a pair")
        choices = _all_or_none(examples, "choices", "choices")
        lists = pairs is None and not isinstance(texts[0], str)
        words = (lists or word_tokenizer is not None) if words is None else words
        both_orders = both_orders and pairs is not None
        _check_rows(tokenizer, words, word_tokenizer, both_orders, choices)
        if joint_pairs is None:
            joint_pairs = getattr(tokenizer, "joint_pairs", True)

        self.examples_of, first_words = np.arange(len(examples)), None
        if lists and words:
            texts, self.examples_of, first_words = _windows(texts, tokenizer, max_length, sentences)
        self.parts = encode_parts(
            tokenizer, texts, pairs, max_length, words, both_orders, choices, joint_pairs
        )
        self.encoded = self.parts[0]
        self.lengths = np.max([part.lengths for part in self.parts], axis=0)
        self.cut = self._warn_of_cuts(examples, max_length)
        self.row_words = self.words = self._pair_positions = None
        if words:
            self.row_words = RowWords(
                tokenizer, self.parts, texts, pairs, word_tokenizer, word_character_ids
            )
            self.words = self.row_words.counts.sum(axis=1)
        if pair_positions:
            self._pair_positions = self.row_words.pair_positions(self.lengths)
        self._predicates, self._mark_segments = None, mark_segments
        if predicate_marks:
            found = _predicates(examples)[self.examples_of] - np.array(first_words)
            self._predicates = np.where((found >= 0) & (found < self.words), found, -1)
        self.targets, self.tags = None, False
        ids = target_ids(examples, labels, scores, training)
        if ids is not None:
            self._set_targets(ids, first_words)

    def _warn_of_cuts(self, examples, max_length):
        """Returns the number of tokens that were cut, and warns if there are any."""
        of_rows = np.sum([part.cut for part in self.parts], axis=0)
        cut = int(of_rows.sum())
        if cut:
            rows = np.unique(self.examples_of[of_rows > 0])
            warn_of_cuts("texts", examples, rows, cut, max_length)
        return cut

    def _set_targets(self, ids, first_words):
        """Sets targets of rows from those of examples, by the `first_words` of windows."""
        self.tags = np.ndim(ids[0]) > 0
        if not self.tags:
            self.targets = np.array(ids)[self.examples_of]
            return
        if first_words is None:
            raise ValueError(
                "A tag per word needs a `Tagger`; otherwise a text has one label. "
                f"Received: {len(ids[0])} tags of the first example"
            )
        windows = zip(self.examples_of, first_words, self.words, strict=True)
        self.targets = [ids[e][first : first + count] for e, first, count in windows]

    def collate(
        self, rows: np.ndarray, length: int, rng: np.random.Generator | None, epoch: int
    ) -> tuple[dict[str, Any], Any, Any]:
        """Returns arrays `(x, y, weights)` of rows at a padded length, for `Batches`."""
        x, *others = (self.tokenizer.arrays(part, rows, length) for part in self.parts)
        if others:
            parts = [x, *others]
            x = {name: np.stack([p[name] for p in parts], axis=1) for name in x}  # (B, P, T, ...)
        if self.row_words is not None:
            x |= self.row_words.arrays(rows, length)
        if self._predicates is not None:
            x |= self._marks(x, rows, length)
        if self._pair_positions is not None:
            sizes = few_lengths(length) if self.few_shapes else None
            x |= self._pair_positions.arrays(rows, length, sizes)
        if self.targets is None:
            return x, None, None
        if not self.tags:
            return x, self.targets[rows], None
        y = stack_padded([self.targets[row] for row in rows], length)
        weights = (np.arange(length) < self.words[rows][:, None]).astype("float32")
        return x, y, weights

    def _marks(self, x, rows, length):
        """Returns `predicate_marks`, and `segment_ids` with 1 at the predicate if requested."""
        predicates = self._predicates[rows][:, None]  # -1 if another window has it
        marks = {"predicate_marks": (np.arange(length) == predicates).astype("int32")}
        if self._mark_segments and "segment_ids" in x:
            first = self.encoded.starts[rows]
            words = [
                self.encoded.word_ids[begin : begin + count]
                for begin, count in zip(first, self.lengths[rows], strict=True)
            ]
            of_predicate = stack_padded(words, length, -1) == predicates
            of_predicate &= predicates >= 0
            marks["segment_ids"] = of_predicate.astype(x["segment_ids"].dtype)
        return marks


class RowWords:
    """Words of packed rows: their positions, their ids in a vocabulary and their characters.

    Args:
        tokenizer: The tokenizer that packed the rows.
        parts: One `Encoded` of all rows, or one for each text of a pair.
        texts, pairs: The texts of the rows; `pairs` may be `None`.
        word_tokenizer: A `Words` to keep the ids of words in its vocabulary, or `None`.
        word_character_ids: Whether to keep the characters of words.

    Attributes:
        counts: (rows, 2) numbers of words of the first and of the second text.
    """

    def __init__(
        self, tokenizer, parts, texts, pairs=None, word_tokenizer=None, word_character_ids=False
    ):
        self.tokenizer, self.parts = tokenizer, parts
        self.texts, self.pairs = texts, pairs
        first, row, second, ids = words_in(parts)
        count = len(parts[0])
        self.counts = np.bincount(2 * row + second, minlength=2 * count).reshape(count, 2)
        self._names = row, second, ids
        self._positions = first.astype(np.int32)
        self._part = second if len(parts) > 1 else 0 * second
        self._starts = np.concatenate([[0], np.cumsum(self.counts.sum(axis=1))])
        self._vector_ids = self._character_ids = None
        if word_tokenizer is not None:
            # Lists of one word each are not split again.
            self._vector_ids = word_tokenizer.encode([[word] for word in self.strings()]).token_ids
        if word_character_ids:
            self._character_ids = CharacterIds(self.strings())

    def positions(self, row):
        """Returns the first token of each word of a row, within its text if texts are apart."""
        return self._positions[self._starts[row] : self._starts[row + 1]]

    def pair_positions(self, lengths):
        """Returns the `PairPositions` of the two texts, for rows of these lengths."""
        return PairPositions(lengths, np.cumsum(self.counts, axis=1) - self.counts, self.counts)

    def arrays(self, rows, length):
        """Returns the arrays of some rows at a padded length, see `batches`."""
        slices, room = [slice(*self._starts[r : r + 2]) for r in rows], length * len(self.parts)
        positions = [self._positions[s] + length * self._part[s] for s in slices]
        x = {"word_positions": stack_padded(positions, room, -1).astype("int32")}
        return x | self._ids(slices, room)

    def arrays_of_windows(self, first, last, length, window_length):
        """Returns the arrays of documents, each from window `first` to `last` - 1.

        `length` is the padded number of words, `window_length` the padded number of tokens of a
        window. Positions count the tokens of all windows of a document.
        """
        slices = [slice(*self._starts[[a, b]]) for a, b in zip(first, last, strict=True)]
        words, positions = np.diff(self._starts), []
        for a, b, of_document in zip(first, last, slices, strict=True):
            begins = np.repeat(np.arange(b - a) * window_length, words[a:b])
            positions.append(self._positions[of_document] + begins)
        x = {"word_positions": stack_padded(positions, length, -1).astype("int32")}
        return x | self._ids(slices, length)

    def _ids(self, slices, room):
        x = {}
        if self._vector_ids is not None:
            x["vector_ids"] = stack_padded([self._vector_ids[s] for s in slices], room)
        if self._character_ids is not None:
            x["word_character_ids"] = stack_padded([self._character_ids[s] for s in slices], room)
        return x

    def strings(self):
        """Returns the words as written in the texts, row by row; also cut words are whole."""
        spans = self._spans() if self._any_strings() else {}
        words = []
        for name in zip(*(of_words.tolist() for of_words in self._names), strict=True):
            row, of_pair, word = name
            text = (self.pairs if of_pair else self.texts)[row]
            if isinstance(text, str):
                begin, end = spans[name]
                words.append(text[begin:end].strip())
            else:
                words.append(text[word])
        return words

    def _any_strings(self):
        firsts = [texts[0] for texts in (self.texts, self.pairs) if texts]
        return any(isinstance(text, str) for text in firsts)

    def _spans(self):
        """Returns a dict from each word to its character span in its text, see `spans_in`."""
        whole = self.parts
        if any(part.cut.any() for part in whole):
            apart = [(self.texts, None), (self.pairs, None)]
            of_parts = apart if len(whole) > 1 else [(self.texts, self.pairs)]
            whole = [self.tokenizer.encode(*part, return_offsets=True) for part in of_parts]
        return spans_in(whole)


def _check_rows(tokenizer, words, word_tokenizer, both_orders, choices):
    """Raises if rows cannot hold the requested words or choices."""
    if word_tokenizer is not None and not words:
        raise ValueError(
            "A `word_tokenizer` needs words: omit `words`. "
            "Received: words=False with a `word_tokenizer`"
        )
    if words and (choices is not None or both_orders):
        what = "pairs of texts in both orders" if choices is None else "choices"
        raise ValueError(
            "Words need one text, or a pair of texts in one order. "
            f"Received: {what} for {type(tokenizer).__name__}"
        )
    if choices is not None and not getattr(tokenizer, "joint_pairs", True):
        raise ValueError(
            "A text and its choice must be in one row: use a tokenizer that packs pairs of texts. "
            f"Received: {type(tokenizer).__name__}"
        )


def _windows(texts, tokenizer, max_length, sentences):
    """Splits lists of words into windows that fit into a row.

    A document is split between `sentences`, where they fit; into sentences without `max_length`.

    Returns:
        `(windows, examples_of, first_words)`: lists of words, and for each the index of its text
        and the index of its first word there.
    """
    windows, examples, first_words = [], [], []
    encoded = tokenizer.encode(texts, return_offsets=True)
    for i, words in enumerate(texts):
        bounds, ends = [0], np.cumsum(sentences[i] or [], dtype=int)
        if max_length is None:
            bounds += ends[:-1].tolist()
        elif encoded.lengths[i] > max_length:
            ids = encoded.word_ids[encoded.starts[i] :][: encoded.lengths[i]]
            room = max_length - np.count_nonzero(ids < 0)
            sizes = np.bincount(ids[ids >= 0], minlength=len(words))
            until = np.cumsum([0, *np.minimum(sizes, room)])  # tokens before each word
            for j in range(len(words)):
                while until[j + 1] - until[bounds[-1]] > room:
                    whole = ends[(ends > bounds[-1]) & (ends <= j)]
                    bounds.append(int(whole[-1]) if len(whole) else j)
        for first, end in zip(bounds, [*bounds[1:], len(words)], strict=True):
            windows.append(words[first:end])
            examples.append(i)
            first_words.append(first)
    return windows, np.array(examples), first_words


def _all_or_none(examples, name, called):
    """Returns the values of a field, or `None` if no example has it."""
    found = [getattr(example, name, None) for example in examples]
    if all(of_example is None for of_example in found):
        return None
    if None in found:
        raise ValueError(
            f"Either all examples must have {called}, or none. "
            f"Received: example {found.index(None)} without"
        )
    return found


def _predicates(examples):
    """Returns the index of the predicate of each example; raises if one has none."""
    found = [getattr(example, "predicate", None) for example in examples]
    if None in found or isinstance(examples[0].text, str):
        raise ValueError(
            "Roles belong to a predicate: give `Example(words, tags, predicate=index)`. "
            f"Received: example {found.index(None) if None in found else 0} without"
        )
    return np.array(found)


def words_of(examples, tokenizer, max_length=None):
    """Returns the words that a model reads of each example, as written in its text.

    Args:
        examples: A list of `Example`, of texts or of lists of words.
        tokenizer: Tokenizer of the encoder; it decides where words begin and end.
        max_length: Longest row of the encoder in tokens, as in `batches`.

    Returns:
        A list of words for each example.
    """
    texts = [Unlabelled(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
    packed = PackedExamples(texts, tokenizer, max_length=max_length, words=True)
    counts = np.bincount(packed.examples_of, packed.words, len(texts)).astype(int)
    ends, words = np.cumsum(counts), packed.row_words.strings()
    return [words[end - count : end] for end, count in zip(ends, counts, strict=True)]
