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
