"""Batches of texts and their translations."""

from collections.abc import Iterable

import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.files.sequences import as_texts
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_start


def translation_batches(
    sources: Iterable[str],
    targets: Iterable[str],
    tokenizer: SubwordTokenizer,
    *,
    max_length: int | None = None,
    training: bool = True,
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    **options,
) -> Batches:
    """Creates `Batches` of pairs of texts for an encoder-decoder.

    The longer text of a pair decides its bucket.

    Args:
        sources, targets: Two lists of N texts.
        tokenizer: A tokenizer with `start_id` and an end token after each text, such as `BytePair`.
        max_length: Largest number of tokens of a text, end token included; by default that of the
            longest text.
        training: If True, shuffle.
        batch_size, tokens_per_batch: As in `Batches`, with the tokens of one side; 32 rows when
            both are omitted.
        **options: Other arguments of `Batches`.

    Returns:
        `Batches` of `(x, y, weights)`. `x` holds the source, `token_ids` and `padding_mask` (B, T),
        and the target after a start token, `target_ids` (B, T). `y` (B, T) is the target with its
        end token.

    Raises:
        ValueError: If the numbers of sources and targets differ. If a text is empty or longer than
            `max_length`, with its index. If the tokenizer has no start token.

    >>> from keras_plm.tokenizers import BytePair
    >>> tokenizer = BytePair(["[PAD]", "[UNK]", "[BOS]", "[EOS]", " ", "a", "b"], merges=[])
    >>> x, y, weights = translation_batches(["a", "ab"], ["b", "a"], tokenizer, training=False)[0]
    >>> x["token_ids"].shape == x["target_ids"].shape == y.shape
    True
    """
    sources = as_texts(sources, "sources", words=False)
    targets = as_texts(targets, "targets", words=False)
    if len(sources) != len(targets):
        raise ValueError(
            "Every source needs one target. "
            f"Received: {len(sources)} sources and {len(targets)} targets"
        )
    check_start(tokenizer)
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    encoded = []
    for kind, texts in (("source", sources), ("target", targets)):
        empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            raise ValueError(
                f"Texts must not be empty: leave the pair out. Received: {kind} {empty} is "
                f"{texts[empty]!r}"
            )
        rows = tokenizer.encode(texts)
        if max_length is not None and len(texts) and rows.lengths.max() > max_length:
            longest = int(rows.lengths.argmax())
            raise ValueError(
                f"A text must have at most {max_length} tokens: leave the pair out, split it, or "
                f"raise `max_length`. Received: {kind} {longest} with {rows.lengths[longest]} "
                f"tokens, {texts[longest][:60]!r}"
            )
        encoded.append(rows)
    source, target = encoded

    def collate(rows, length, rng, epoch):
        steps = np.arange(length)
        y = target.padded("token_ids", rows, length, pad=tokenizer.pad_id)
        real = steps < target.lengths[rows][:, None]
        before = np.roll(y, 1, axis=1)
        before[:, 0] = tokenizer.start_id
        x = {
            "token_ids": source.padded("token_ids", rows, length, pad=tokenizer.pad_id),
            "padding_mask": steps < source.lengths[rows][:, None],
            "target_ids": np.where(real, before, tokenizer.pad_id).astype("int32"),
        }
        return x, y, real.astype("float32")

    return Batches(
        np.maximum(source.lengths, target.lengths) if sources else [],
        collate,
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        vocabulary_size=len(tokenizer),
        **options,
    )
