"""Packed rows of examples, with their targets and words."""

import numpy as np

from keras_plm._arguments import check_whole
from keras_plm.data.batching import few_lengths, warn_of_cuts
from keras_plm.data.labels import check_label_kinds, check_scheme, label_ids, share_of_range
from keras_plm.data.pair_positions import TextPlaces, spans_in, words_in
from keras_plm.data.task import Unlabelled, check_labelled
from keras_plm.files.sequences import as_texts
from keras_plm.tokenizers.characters import Spelled
from keras_plm.tokenizers.subwords import check_tokenizer, encode_parts


def stack_padded(rows, length, pad=0):
    """Arrays of unequal first dimension as one, filled up with `pad`."""
    out = np.full((len(rows), length, *rows[0].shape[1:]), pad, rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class PackedExamples:
    """Examples as packed rows with their targets; long lists of tagged words as windows.

    Attributes:
        encoded: The packed rows, see `keras_plm.tokenizers.Encoded`.
        parts: A list of these: more than one where an example is several rows, its two texts apart,
            their two orders, or its choices.
        lengths: (rows,) tokens of each row, of the longest of several.
        examples_of: (rows,) the example each row came from.
        words: (rows,) number of words of each row; `None` unless asked for or given.
        words_of_texts: (rows, 2) those of the first and of the second text.
        cut: Number of tokens that were cut for `max_length`; a warning gives it.
        few_shapes: Whether the positions of two texts are padded to one of the `few_lengths`.
    """

    few_shapes = False

    def __init__(
        self,
        examples,
        tokenizer,
        labels=None,
        max_length=None,
        words=None,
        word_tokenizer=None,
        joint_pairs=None,
        both_orders=False,
        scores=False,
        spelled=False,
        text_places=False,
        training=True,
    ):
        examples = as_texts(examples, "examples")
        if tokenizer is None:
            raise ValueError("Texts need a `tokenizer`. Received: tokenizer=None")
        check_tokenizer(tokenizer)
        if max_length is not None:
            check_whole(max_length, "max_length")
        if not examples:
            raise ValueError("There is nothing to batch. Received: no examples")
        texts = [getattr(example, "text", example) for example in examples]
        pairs = _all_or_none(examples, "pair", "a pair")
        choices = _all_or_none(examples, "choices", "choices")
        self.tokenizer = tokenizer
        self.examples_of = np.arange(len(examples))
        listed = not isinstance(texts[0], str) and pairs is None
        words = (listed or word_tokenizer is not None) if words is None else words
        if word_tokenizer is not None and not words:
            raise ValueError(
                "Ids of words need words: leave `words` out. Received: words=False beside a "
                "`word_tokenizer`"
            )
        if listed and words:
            texts, self.examples_of, first_words = self._windows(texts, max_length)
        if joint_pairs is None:
            joint_pairs = getattr(tokenizer, "joint_pairs", True)
        if words and (choices is not None or (pairs is not None and both_orders)):
            what = "pairs of texts in both orders" if choices is None else "choices"
            raise ValueError(
                "Words are read one by one in a text, or in the two texts of a pair. "
                f"Received: {what} for {type(tokenizer).__name__}"
            )
        if choices is not None and not getattr(tokenizer, "joint_pairs", True):
            raise ValueError(
                "A choice stands behind its text in one row: use a tokenizer that puts two texts "
                f"in one. Received: {type(tokenizer).__name__}"
            )
        if pairs is not None and not joint_pairs:
            self.parts = [
                tokenizer.encode(part, None, max_length, return_offsets=bool(words))
                for part in (texts, pairs)
            ]
        else:
            self.parts = encode_parts(
                tokenizer, texts, pairs, max_length, words, both_orders and pairs, choices
            )
        self.encoded = self.parts[0]
        self.lengths = np.max([part.lengths for part in self.parts], axis=0)
        cut = np.sum([part.cut for part in self.parts], axis=0)  # of each row
        self.cut = int(cut.sum())
        if self.cut:
            rows = np.unique(self.examples_of[cut > 0])
            warn_of_cuts("texts", examples, rows, self.cut, max_length)
        self.words = None
        self._texts, self._pairs = texts, pairs
        if words:
            self._find_words()
        self._vector_ids = None
        if word_tokenizer is not None:
            # As lists of one word, so that none is split again.
            found = word_tokenizer.encode([[word] for word in self.spelled()])
            self._vector_ids = found.token_ids
        self._spellings = Spelled(self.spelled()) if spelled else None
        self._places = None
        if text_places:
            counts = self.words_of_texts
            begins = np.cumsum(counts, axis=1) - counts
            self._places = TextPlaces(self.lengths, begins, counts)

        found = [getattr(example, "label", None) for example in examples]
        self.targets = None
        if any(label is not None for label in found):
            check_labelled(examples)
            to_id = share_of_range if scores else label_ids
            ids = [to_id(e, labels, training, i) for i, e in enumerate(examples)]
            self.tags = np.ndim(ids[0]) > 0
            check_label_kinds(examples)
            if self.tags and not (listed and words):
                raise ValueError(
                    "A tag per word is learned by a `Tagger`; here a text has one label. "
                    f"Received: {len(ids[0])} tags for {examples[0].text!r}"
                )
            if not self.tags:
                self.targets = np.array(ids)[self.examples_of]
            else:
                check_scheme(examples, labels, training)
                self.targets = [
                    ids[e][f : f + n]
                    for e, f, n in zip(self.examples_of, first_words, self.words, strict=True)
                ]

    def _windows(self, texts, max_length):
        """Lists of words cut so that each fits; where each came from, and its first word."""
        windows, examples, first_words = [], [], []
        pieces = self.tokenizer.encode(texts, return_offsets=True)
        for i, words in enumerate(texts):
            bounds = [0]
            if max_length is not None and pieces.lengths[i] > max_length:
                ids = pieces.word_ids[pieces.starts[i] :][: pieces.lengths[i]]
                room = max_length - np.count_nonzero(ids < 0)
                sizes = np.bincount(ids[ids >= 0], minlength=len(words))
                used = 0
                for j, size in enumerate(np.minimum(sizes, room)):
                    if used + size > room:
                        bounds.append(j)
                        used = 0
                    used += size
            for first, end in zip(bounds, [*bounds[1:], len(words)], strict=True):
                windows.append(words[first:end])
                examples.append(i)
                first_words.append(first)
        return windows, np.array(examples), first_words

    def _find_words(self):
        """Positions of the first token of each word, flat, with the starts of the rows."""
        first, rows, second, ids = words_in(self.parts)
        count = len(self.encoded)
        self.words_of_texts = np.bincount(2 * rows + second, minlength=2 * count).reshape(count, 2)
        self.words = self.words_of_texts.sum(axis=1)
        self._word_positions = first.astype(np.int32)
        self._word_parts = second if len(self.parts) > 1 else 0 * second
        self._word_starts = np.concatenate([[0], np.cumsum(self.words)])
        self._word_names = rows, second, ids

    def spelled(self):
        """The words as the texts write them, all rows one after another; whole where cut."""
        names = [name.tolist() for name in self._word_names]
        spans = {}
        if any(isinstance(text, str) for text in (*self._texts[:1], *(self._pairs or ())[:1])):
            whole = self.parts
            if self.cut:
                of_parts = [(self._texts, self._pairs)]
                if len(whole) > 1:
                    of_parts = [(self._texts, None), (self._pairs, None)]
                whole = [self.tokenizer.encode(*part, return_offsets=True) for part in of_parts]
            spans = spans_in(whole)
        words = []
        for name in zip(*names, strict=True):
            row, of_pair, word = name
            text = (self._pairs if of_pair else self._texts)[row]
            if isinstance(text, str):
                begin, end = spans[name]
                words.append(text[begin:end].strip())
            else:
                words.append(text[word])
        return words

    def collate(self, rows, length, rng, epoch):
        x, *others = (self.tokenizer.arrays(part, rows, length) for part in self.parts)
        if others:
            parts = [x, *others]
            x = {name: np.stack([p[name] for p in parts], axis=1) for name in x}  # (B, P, T, ...)
        if self.words is not None:
            slices = [slice(*self._word_starts[row : row + 2]) for row in rows]
            room = length * len(self.parts)
            positions = [self._word_positions[s] + length * self._word_parts[s] for s in slices]
            x["word_positions"] = stack_padded(positions, room, -1).astype("int32")
            if self._vector_ids is not None:
                x["vector_ids"] = stack_padded([self._vector_ids[s] for s in slices], room)
            if self._spellings is not None:
                x["spellings"] = stack_padded([self._spellings[s] for s in slices], room)
            if self._places is not None:
                sizes = few_lengths(length) if self.few_shapes else None
                x.update(self._places.arrays(rows, length, sizes))
        if self.targets is None:
            return x, None, None
        if not self.tags:
            return x, self.targets[rows], None
        y = stack_padded([self.targets[row] for row in rows], length)
        weights = (np.arange(length) < self.words[rows][:, None]).astype("float32")
        return x, y, weights

    def word_positions(self, row):
        """Where each word of a row begins, in its text where two are packed apart."""
        return self._word_positions[self._word_starts[row] : self._word_starts[row + 1]]


def _all_or_none(examples, name, called):
    """What all examples have in a field, or `None`."""
    found = [getattr(example, name, None) for example in examples]
    if all(of_example is None for of_example in found):
        return None
    if None in found:
        raise ValueError(
            f"Either all examples have {called} or none. "
            f"Received: example {found.index(None)} without"
        )
    return found


def words_of(examples, tokenizer, max_length=None):
    """The words of each example that a reader of words sees, as its text writes them.

    Args:
        examples: A list of `Example`, of texts or of lists of words.
        tokenizer: The encoder's: it says what a word is.
        max_length: Longest row of the encoder in tokens, as in `batches`.

    Returns:
        A list of lists of words, one for each example.
    """
    texts = [Unlabelled(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
    packed = PackedExamples(texts, tokenizer, max_length=max_length, words=True)
    counts = np.bincount(packed.examples_of, packed.words, len(texts)).astype(int)
    ends, words = np.cumsum(counts), packed.spelled()
    return [words[end - count : end] for end, count in zip(ends, counts, strict=True)]
