"""Sentences of a document joined into one row, for tagging in context.

Reference: Devlin et al. 2018, section 5.3, which reads named entities with "the maximal document
context provided by the data".
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_plm.data.task import Example, as_examples
from keras_plm.tokenizers.subwords import SubwordTokenizer


def join_sentences(
    examples: Sequence[Example], tokenizer: SubwordTokenizer, max_length: int
) -> tuple[list[Example], list[list[int]]]:
    """Joins consecutive sentences of a document, as many as a row of tokens holds.

    Args:
        examples: A list of `Example` of words, with or without tags. `group` is the document; a
            sentence without a group is not joined.
        tokenizer: The encoder's tokenizer.
        max_length: Largest number of tokens of a row. A longer sentence is not joined.

    Returns:
        `(joined, counts)`: a list of `Example`, and the numbers of words of the sentences of each,
        for `part_sentences`.

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
                "Sentences that are tagged are lists of words, without a pair. "
                f"Received: {example!r:.80}"
            )
    special = getattr(tokenizer, "num_special", lambda: 0)()
    if max_length <= special:
        raise ValueError(
            f"A row has {special} special tokens and must have room for more. "
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
    """Splits the tags of joined sentences into those of each sentence.

    Args:
        tags: For each joined example a list of tags, or an array of probabilities.
        counts: Numbers of words from `join_sentences`.

    Returns:
        A list with the tags, or the array, of each sentence.

    >>> part_sentences([["X", "O", "X"]], [[1, 2]])
    [['X'], ['O', 'X']]
    """
    parted = []
    for of_row, sizes in zip(tags, counts, strict=True):
        ends = np.cumsum(sizes).tolist()
        if len(of_row) != ends[-1]:
            raise ValueError(
                "There is a tag of each word that was joined. "
                f"Received: {len(of_row)} tags of {ends[-1]} words"
            )
        parted += [of_row[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return parted
