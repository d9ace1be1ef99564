"""Batches of examples, texts and arrays."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.data.class_weight import class_weights
from keras_plm.data.packing import PackedExamples, stack_padded
from keras_plm.files.sequences import Tensor, as_names, as_rows
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.tokenizers.words import Words


def batches(
    examples: Iterable[Any] | Mapping[str, Any],
    tokenizer: SubwordTokenizer | None = None,
    labels: Iterable[Any] | None = None,
    *,
    targets: Tensor | None = None,
    words: bool | None = None,
    word_tokenizer: Words | None = None,
    joint_pairs: bool | None = None,
    both_orders: bool = False,
    word_character_ids: bool = False,
    pair_positions: bool = False,
    predicate_marks: bool = False,
    mark_segments: bool = False,
    scores: bool = False,
    max_length: int | None = None,
    training: bool = True,
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    class_weight: Mapping[Any, float] | None = None,
    inputs: Iterable[str] | None = None,
    **options,
) -> Batches:
    """Creates `Batches` of examples, texts or arrays, for `fit`, `evaluate` and `predict`.

    Args:
        examples: A list of `Example`, of texts or of lists of words; or a dict of arrays, each with
            N rows (lists of unequal arrays are padded with zeros).
        tokenizer: Tokenizer of the texts; not needed for arrays.
        labels: Label names in the order of their ids; required for labelled examples.
        targets: (N, ...) targets; only with arrays.
        words: If True, `x` also holds `word_positions` (B, T), the first token of each word, -1 at
            padding; by default True for lists of words.
        word_tokenizer: A `Words`. If given, `x` also holds `vector_ids` (B, T), the id of each word
            in its vocabulary, 0 at padding.
        joint_pairs: If False, pack the two texts of an example separately: model inputs have the
            shape (B, 2, T, ...), and `word_positions` count the second text from T. By default the
            tokenizer decides.
        both_orders: If True, pack pairs in both orders: model inputs have the shape (B, 2, T).
        word_character_ids: If True, `x` also holds `word_character_ids` (B, T, C), the characters
            of each word, see `tokenizers.characters.encode_characters`.
        pair_positions: If True, `x` also holds `first_positions` and `second_positions`, the words
            of each of two texts, see `pair_positions.PairPositions`.
        predicate_marks: If True, `x` also holds `predicate_marks` (B, T), 1 at the predicate of the
            example and 0 at its other words.
        mark_segments: If True, `segment_ids` are 1 at the tokens of the predicate and 0 elsewhere,
            where the tokenizer returns them; needs `predicate_marks`.
        scores: If True, `labels` are the lowest and highest score, and targets are fractions of
            this range. Without `training`, scores may lie outside the range.
        max_length: Largest number of tokens of a row, at most the encoder's `max_sequence_length`.
            Longer texts are cut; longer sentences of tagged words are split into windows.
        training: If True, shuffle. If False, a label that is not among `labels` has the id -1; the
            metrics of heads count it as an error.
        batch_size, tokens_per_batch: As in `Batches`; 32 rows when both are omitted.
        class_weight: Weight of each class in the training loss, by name or id.
        inputs: Names of the model's inputs; `x` then holds only these. By default it holds all
            arrays.
        **options: Other arguments of `Batches`; `fill_last` is False by default without labels.

    Returns:
        `Batches`. For tagged words `y` and the weights are (B, T), with a tag per word.

    Raises:
        ValueError: If the tokenizer does not return one of `inputs`. If only some examples have
            labels, or a training label is not among `labels`. If tags follow several schemes, see
            `tag_scheme_of`.

    >>> from keras_plm.data import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"])
    >>> examples = [Example("good film", "yes"), Example("bad", "no")]
    >>> found = batches(examples, tokenizer, labels=["no", "yes"], training=False, batch_size=2)
    >>> x, y, weights = found[0]
    >>> x["token_ids"][:, :4].tolist(), y.tolist()  # the shorter text first
    ([[2, 6, 3, 0], [2, 5, 7, 3]], [0, 1])
    """
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    labels = labels if labels is None else as_names(labels, "labels")
    if isinstance(examples, dict):
        source = _Arrays(examples, targets)
    else:
        source = PackedExamples(
            examples,
            tokenizer,
            labels,
            max_length,
            words,
            word_tokenizer,
            joint_pairs,
            both_orders,
            scores,
            word_character_ids,
            pair_positions,
            training,
            predicate_marks,
            mark_segments,
        )
        source.few_shapes = not training
    made = Batches(
        source.lengths,
        source.collate if inputs is None else OnlyInputs(source.collate, inputs),
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        vocabulary_size=None if tokenizer is None else len(tokenizer),
        **{"fill_last": source.targets is not None, **options},
    )
    made.source = source
    if class_weight is not None:
        if scores or not training:
            raise ValueError(
                "`class_weight` is for training on classes: leave it out. "
                f"Received: class_weight={class_weight}, training={training}, scores={scores}"
            )
        made.class_weight = class_weights(class_weight, labels)
    return made


class OnlyInputs:
    """A `collate` function whose `x` holds only the inputs of a model.

    If the dict has other keys, Keras assigns arrays by position, to wrong inputs.
    """

    def __init__(self, collate, names):
        self.collate, self.names = collate, tuple(names)

    def __call__(self, *arguments):
        x, *rest = self.collate(*arguments)
        missing = [name for name in self.names if name not in x]
        if missing:
            raise ValueError(
                "Encoder and tokenizer must belong together. Received: a model with the inputs "
                f"{', '.join(self.names)}, examples with the arrays {', '.join(x)}"
            )
        return {name: x[name] for name in self.names}, *rest


class _Arrays:
    """Rows of given arrays, padded to the bucket's length where they vary."""

    def __init__(self, arrays, targets):
        arrays = {name: as_rows(rows, name) for name, rows in arrays.items()}
        targets = None if targets is None else as_rows(targets, "targets")
        self.arrays, self.targets = arrays, targets
        counts = {name: len(rows) for name, rows in arrays.items()}
        if targets is not None:
            counts["targets"] = len(targets)
        if len(set(counts.values())) != 1:
            raise ValueError(f"Arrays must have equal numbers of rows. Received: {counts}")
        self.ragged = {
            name
            for name, rows in arrays.items()
            if np.ndim(rows[0]) > 0 and len({len(row) for row in rows}) > 1
        }
        count = next(iter(counts.values()))
        self.lengths = np.ones(count, dtype=np.int64)
        for name in arrays:
            if np.ndim(arrays[name][0]) > 0:
                lengths = np.array([len(row) for row in arrays[name]])
                self.lengths = np.maximum(self.lengths, lengths)

    def collate(self, rows, length, rng, epoch):
        x = {}
        for name, values in self.arrays.items():
            if name in self.ragged:
                x[name] = stack_padded([np.asarray(values[i]) for i in rows], length)
            else:
                x[name] = np.stack([np.asarray(values[i]) for i in rows])
        y = None if self.targets is None else np.stack([self.targets[i] for i in rows])
        return x, y, None
