"""Batches of examples, texts and arrays."""

import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.data.class_weight import class_weights
from keras_plm.data.packing import PackedExamples, stack_padded
from keras_plm.files.sequences import as_names, as_rows


def batches(
    examples,
    tokenizer=None,
    labels=None,
    *,
    targets=None,
    words=None,
    word_tokenizer=None,
    joint_pairs=None,
    both_orders=False,
    word_character_ids=False,
    pair_positions=False,
    scores=False,
    max_length=None,
    training=True,
    batch_size=None,
    tokens_per_batch=None,
    class_weight=None,
    **options,
):
    """Examples, texts or arrays as `Batches`, ready for `fit`, `evaluate` and `predict`.

    Args:
        examples: A list of `Example`, of texts or of lists of words; or a dict of arrays, each with
            N rows (lists of unequal arrays are padded with zeros).
        tokenizer: Packs the texts; not needed for arrays.
        labels: The label names in the order of their ids; required where examples have labels.
        targets: With arrays only: (N, ...) targets.
        words: If True, `x` also holds `word_positions` (B, T), where each word begins, -1 at
            padding; by default where examples are lists of words.
        word_tokenizer: A `Words`: `x` also holds `vector_ids` (B, T), the id in its vocabulary of
            each word, 0 at padding.
        joint_pairs: If False, the two texts of an example are packed apart, and every array of a
            model's inputs is (B, 2, T, ...); by default as the tokenizer does it. Words of the
            second text are then counted from T on in `word_positions`.
        both_orders: If True, pairs are packed in both orders, and every array is (B, 2, T).
        word_character_ids: If True, `x` also holds `word_character_ids` (B, T, C), the characters
            of each word, see `tokenizers.characters.encode_characters`.
        pair_positions: If True, `x` also holds `first_positions` and `second_positions`, which
            words are those of each of two texts, see `pair_positions.PairPositions`.
        scores: If True, `labels` are the lowest and highest score, and targets fractions of this
            range, 0 to 1; without `training` also beyond.
        max_length: Longest row in tokens; texts beyond are cut, sentences of tagged words go in
            windows and lose nothing. At most the encoder's `max_sequence_length`.
        training: If True, shuffle. If False, a label that is not among `labels` has the id -1, by
            which the metrics of heads count it as an error.
        batch_size, tokens_per_batch: See `Batches`; 32 rows when neither is given.
        class_weight: Weight of each class in the loss of training, by name or id.
        **options: Other arguments of `Batches`; by default `fill_last` is False where there are
            no labels.

    Returns:
        `Batches`. For tagged words `y` and the weights are (B, T), a tag per word.

    Raises:
        ValueError: If in training a label is not among `labels`, naming where it stands, or some
            examples have labels and others have none; if tags are of several schemes, see
            `tag_scheme_of`.
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
        )
        source.few_shapes = not training
    made = Batches(
        source.lengths,
        source.collate,
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
            raise ValueError(f"Arrays must have equally many rows. Received: {counts}")
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
