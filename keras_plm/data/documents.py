"""Sentences of a document joined into one row, for tagging in context.

Reference: Devlin et al. 2018, section 5.3, which reads named entities with "the maximal document
context provided by the data".
"""

import dataclasses
import itertools

import numpy as np

from keras_plm.data.task import as_examples


def join_sentences(examples, tokenizer, max_length):
    """Consecutive sentences of one document as one example, as many as have room in a row.

    Args:
        examples: A list of `Example` of words, with a tag each or without; `group` names the
            document, and a sentence without one stays alone.
        tokenizer: The encoder's.
        max_length: Longest row in tokens. A sentence beyond it stays alone.

    Returns:
        `(joined, counts)`: a list of `Example`, and of each the numbers of words of its sentences,
        for `part_sentences`.

    Raises:
        ValueError: If examples are no lists of words, or `max_length` has no room for a token.

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


def part_sentences(tags, counts):
    """The tags of each sentence, of those of joined ones.

    Args:
        tags: Of each joined example a list (or an array of probabilities), one of a word.
        counts: What `join_sentences` gave.

    Returns:
        A list of the same of each sentence, in their order.

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
