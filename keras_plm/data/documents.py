"""Documents: sentences joined into one row for tagging in context, and rows of whole documents.

Reference: Devlin et al. 2018, section 5.3, which reads named entities with "the maximal document
context provided by the data".

Shapes: B documents of a batch, P windows of a document, T tokens of a window, W words.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.data.examples import OnlyInputs
from keras_plm.data.packing import PackedExamples, stack_padded
from keras_plm.data.task import Example, Unlabelled, as_examples, place_of
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.tokenizers.words import Words


def join_sentences(
    examples: Sequence[Example], tokenizer: SubwordTokenizer, max_length: int
) -> tuple[list[Example], list[list[int]]]:
    """Joins consecutive sentences of a document, up to the length of a row.

    Args:
        examples: A list of `Example` of words, with or without tags. `group` is the document; a
            sentence without a group is not joined.
        tokenizer: The encoder's tokenizer.
        max_length: Largest number of tokens of a row. A longer sentence is not joined.

    Returns:
        `(joined, counts)`: `joined` is a list of `Example`. `counts` lists, for each of them, the
        numbers of words of its sentences, for `part_sentences`.

    Raises:
        ValueError: If texts are not lists of words, or `max_length` has no room for a token.

    >>> from keras_plm.data.task import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> sentences = [Example(["a"], ["X"], group="1"), Example(["b", "a"], ["O", "X"], group="1")]
    >>> (joined,), counts = join_sentences(sentences, tokenizer, 8)
    >>> joined.text, joined.label, counts
    (['a', 'b', 'a'], ['X', 'O', 'X'], [[1, 2]])
    """
    examples = as_examples(examples, labelled=False)
    for example in examples:
        if isinstance(example.text, str) or example.pair is not None:
            raise ValueError(
                f"Each sentence must be a list of words, without a pair. Received: {example!r:.80}"
            )
    special = getattr(tokenizer, "num_special", lambda: 0)()
    if max_length <= special:
        raise ValueError(
            f"A row must have room for more than its {special} special tokens: raise `max_length`. "
            f"Received: max_length={max_length}"
        )
    if not examples:
        return [], []
    lengths = tokenizer.encode([example.text for example in examples]).lengths - special
    rows, room = [], 0
    for example, length in zip(examples, lengths.tolist(), strict=True):
        same = rows and example.group is not None and rows[-1][-1].group == example.group
        if same and length <= room:
            rows[-1].append(example)
        else:
            rows.append([example])
            room = max_length - special
        room -= length
    return [_joined(row) for row in rows], [[len(e.text) for e in row] for row in rows]


def _joined(row):
    labels = [example.label for example in row]
    if any(label is None for label in labels):
        label = None
    else:
        label = list(itertools.chain.from_iterable(labels))
    words = list(itertools.chain.from_iterable(example.text for example in row))
    return dataclasses.replace(row[0], text=words, label=label, lines=None)


def part_sentences(tags: Sequence[Any], counts: Sequence[Sequence[int]]) -> list[Any]:
    """Splits the tags of joined sentences by sentence.

    Args:
        tags: A list of tags, or an array of probabilities, for each joined example.
        counts: Numbers of words from `join_sentences`.

    Returns:
        A list of the tags, or the arrays, of all sentences.

    >>> part_sentences([["X", "O", "X"]], [[1, 2]])
    [['X'], ['O', 'X']]
    """
    parted = []
    for of_row, sizes in zip(tags, counts, strict=True):
        ends = np.cumsum(sizes).tolist()
        if len(of_row) != ends[-1]:
            raise ValueError(
                f"Every joined word needs one tag. Received: {len(of_row)} tags of {ends[-1]} words"
            )
        parted += [of_row[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return parted


def sentence_ids(sentences: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Returns the index of each word's sentence, -1 at padding.

    Args:
        sentences: Number of words of each sentence, for B documents.
        length: Padded number of words W.

    Returns:
        (B, W) int32.

    >>> sentence_ids([[2, 1], [1]], 4).tolist()
    [[0, 0, 1, -1], [0, -1, -1, -1]]
    """
    ids = [np.repeat(np.arange(len(sizes), dtype="int32"), sizes) for sizes in sentences]
    return stack_padded(ids, length, -1)


class DocumentRows:
    """Rows of whole documents, each read by the encoder in independent windows.

    A window has as many whole sentences as fit into `max_length`; a longer sentence is split
    between words. Without `max_length` each sentence is a window.

    Reference: Joshi et al. 2019, arXiv 1908.09091, section 3, "independent".

    Args:
        examples: A list of `Example(words, clusters, sentences=sizes)`, or without clusters.
        tokenizer: Tokenizer of the encoder.
        max_length: Largest number of tokens T of a window, or `None`.
        targets: An array (W, ...) for each document, or `None`.
        word_tokenizer, word_character_ids: As in `keras_plm.data.batches`.

    Attributes:
        lengths: (N,) number of words of each document.
        examples_of: (N,) index of the example of each row.
        words: Number of words of each row, as `Head.decode` reads it; equal to `lengths`.

    Raises:
        ValueError: If there are no examples, or an example has no `sentences`.

    >>> from keras_plm.data.task import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> document = Example(["a", "b", "b", "a"], sentences=[2, 2])
    >>> (x,) = DocumentRows([document], tokenizer, 4).batches(training=False)[0]
    >>> x["token_ids"].shape, x["word_positions"][0, :4].tolist()  # two windows of 4 tokens
    ((1, 2, 4), [1, 2, 5, 6])
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: SubwordTokenizer,
        max_length: int | None = None,
        targets: Sequence[np.ndarray] | None = None,
        word_tokenizer: Words | None = None,
        word_character_ids: bool = False,
    ):
        self.tokenizer, self.targets = tokenizer, targets
        self.sentences = [sentences_of(example, i) for i, example in enumerate(examples)]
        self._packed = PackedExamples(
            [Unlabelled(e.text, sentences=e.sentences) for e in examples],
            tokenizer,
            max_length=max_length,
            words=True,
            word_tokenizer=word_tokenizer,
            word_character_ids=word_character_ids,
        )
        windows = np.bincount(self._packed.examples_of, minlength=len(examples))
        self._ends = np.cumsum(windows)
        self._begins = self._ends - windows
        self._window_length = int(self._packed.lengths.max())
        self.examples_of = np.arange(len(examples))
        self.lengths = self.words = np.array([sum(sizes) for sizes in self.sentences])
        read = np.add.reduceat(self._packed.words, self._begins)
        if not np.array_equal(read, self.lengths):
            wrong = int(np.argmax(read != self.lengths))
            raise ValueError(
                f"{place_of(examples[wrong], wrong)}Every word of a document needs a token. "
                f"Received: tokens of {read[wrong]} of {self.lengths[wrong]} words"
            )

    def collate(
        self, rows: np.ndarray, length: int, rng: np.random.Generator | None, epoch: int
    ) -> tuple[dict[str, Any], Any, Any]:
        """Returns arrays `(x, y, weights)` of documents at a padded length, for `Batches`."""
        first, last = self._begins[rows], self._ends[rows]
        # The number of windows depends only on `length`, to limit the number of shapes.
        count = int((self._ends - self._begins)[self.lengths <= length].max())
        # Surplus windows repeat the last one; no word reads them.
        windows = np.minimum(first[:, None] + np.arange(count), last[:, None] - 1)
        arrays = self.tokenizer.arrays(self._packed.encoded, windows.ravel(), self._window_length)
        x = {name: a.reshape(len(rows), count, *a.shape[1:]) for name, a in arrays.items()}
        x |= self._packed.row_words.arrays_of_windows(first, last, length, self._window_length)
        x["sentence_ids"] = sentence_ids([self.sentences[row] for row in rows], length)
        if self.targets is None:
            return x, None, None
        return x, document_targets([self.targets[row] for row in rows], length), None

    def batches(
        self,
        training: bool = True,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        inputs: Sequence[str] | None = None,
        **options,
    ) -> Batches:
        """Creates `Batches`: `x` holds model inputs, `word_positions` and `sentence_ids`.

        `y` are the `document_targets`. By default a batch is one document. `inputs` are as in
        `keras_plm.data.batches`.
        """
        if batch_size is None and tokens_per_batch is None:
            batch_size = 1
        made = Batches(
            self.lengths,
            self.collate if inputs is None else OnlyInputs(self.collate, inputs),
            training=training,
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            vocabulary_size=len(self.tokenizer),
            **{"fill_last": self.targets is not None, **options},
        )
        made.source = self
        return made


def document_targets(targets: Sequence[np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Returns the targets of documents for both outputs of a `CoreferenceResolver`.

    Args:
        targets: (W, L) clusters of the spans of each document.
        length: Padded number of words.

    Returns:
        A dict of `links` and `mentions`, both (B, W, L).
    """
    clusters = stack_padded(targets, length)
    return {"links": clusters, "mentions": clusters}


def sentences_of(example, number):
    """Returns the sizes of the sentences of a document; raises if they are missing."""
    sizes = getattr(example, "sentences", None)
    if sizes is None:
        raise ValueError(
            f"{place_of(example, number)}Coreference needs the sentences of a document: "
            "`Example(words, clusters, sentences=sizes)`. Received: sentences=None"
        )
    return sizes
