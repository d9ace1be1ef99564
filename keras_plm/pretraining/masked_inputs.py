"""Inputs of BERT's masked language model: sentence pairs, positions to predict, masking.

Each rule of the paper is a pure function of NumPy arrays and a random generator.
`keras_plm.pretraining.masked_lm_batches` applies them to a stream of tokens.

Reference: Devlin et al. 2018, arXiv 1810.04805, section 3.1 and appendix A.1-A.2;
google-research/bert, create_pretraining_data.py.

Shapes: S sentences, D documents, N pairs, B rows, T tokens, P positions to predict.
"""

import itertools

import numpy as np


def sentence_pairs(starts, documents, max_tokens, rng, short_sequence_rate=0.1):
    """Draws pairs of segments A and B: B follows A, or is random text of another document.

    Args:
        starts: (S + 1,) first token of each sentence, then the end of the last.
        documents: (D + 1,) first sentence of each document, then S. At least two documents.
        max_tokens: Length of the longest pair, without special tokens.
        rng: A NumPy `Generator`.
        short_sequence_rate: Fraction of pairs with a random smaller length.

    Returns:
        (N, 5): first token and length of A, first token and length of B, 1 where B is random.

    >>> import numpy as np
    >>> starts, documents = np.arange(0, 25, 4), np.array([0, 3, 6])  # sentences of 4 tokens
    >>> sentence_pairs(starts, documents, 16, np.random.default_rng(0))[:2].tolist()
    [[0, 8, 12, 8, 1], [8, 4, 20, 4, 1]]
    """
    starts, documents = np.asarray(starts).tolist(), np.asarray(documents).tolist()
    pairs = []
    for document, (first, end) in enumerate(itertools.pairwise(documents)):
        while first < end:
            target = _target_length(max_tokens, short_sequence_rate, rng)
            last = _filled(starts, first, end, target)
            # Segment A has a random number of the sentences that fill the target length.
            middle = first + 1 if last - first < 2 else first + int(rng.integers(1, last - first))
            segment = (starts[first], starts[middle] - starts[first])
            # Section 3.1: "50% of the time B is the actual next sentence that follows A, and 50%
            # of the time it is a random sentence from the corpus".
            if last - first == 1 or rng.random() < 0.5:
                room = target - segment[1]
                pairs.append(
                    (*segment, *_random_segment(starts, documents, document, room, rng), 1)
                )
                first = middle  # the sentences that B replaced are used in the next pair
            else:
                pairs.append((*segment, starts[middle], starts[last] - starts[middle], 0))
                first = last
    return _truncated(pairs, max_tokens, rng)


def sentence_runs(starts, documents, max_tokens, rng, short_sequence_rate=0.1):
    """Draws runs of sentences of one document, for pre-training without sentence pairs.

    Args:
        starts, documents, max_tokens, rng, short_sequence_rate: As in `sentence_pairs`.

    Returns:
        (N, 5), as `sentence_pairs` with empty segments B.
    """
    starts, documents = np.asarray(starts).tolist(), np.asarray(documents).tolist()
    runs = []
    for first, end in itertools.pairwise(documents):
        while first < end:
            target = _target_length(max_tokens, short_sequence_rate, rng)
            last = _filled(starts, first, end, target)
            runs.append((starts[first], starts[last] - starts[first], starts[last], 0, 0))
            first = last
    return _truncated(runs, max_tokens, rng)


def choose_positions(candidates, lengths, rng, rate=0.15, word_starts=None):
    """Chooses the tokens to predict: a fraction of each row, at least one.

    Args:
        candidates: (B, T), True at text, False at special tokens and padding.
        lengths: (B,) number of tokens of each row, including special ones.
        rng: A NumPy `Generator`.
        rate: Fraction of a row's tokens.
        word_starts: (B, T), True where a word begins: all tokens of a word are chosen together. A
            word with more than `max_positions` is cut, and chosen only if all words of its row are
            so long. `None` chooses tokens one by one.

    Returns:
        (B, T), True at the chosen tokens, at most `max_positions(T, rate)` in a row.

    >>> import numpy as np
    >>> text = np.array([[False, True, True, True, True, True, True, False]])
    >>> choose_positions(text, np.array([8]), np.random.default_rng(0), rate=0.25).nonzero()[1]
    array([2, 3])
    """
    steps = np.arange(candidates.shape[1])
    most = max_positions(candidates.shape[1], rate)
    # Section 3.1: "we mask 15% of all WordPiece tokens in each sequence at random".
    counts = np.clip(np.round(lengths * rate), 1, most)  # (B,)
    priority = rng.random(candidates.shape)
    if word_starts is None:
        order = _by_priority(priority, candidates)
    else:
        # All tokens of a word have the priority of its first token.
        word = np.maximum.accumulate(np.where(word_starts, steps, 0), axis=1)
        places = word + len(steps) * np.arange(len(word))[:, None]
        sizes = np.bincount(places[candidates], minlength=word.size)[places]
        priority = np.take_along_axis(priority, word, axis=1) + (sizes > most)
        order = _by_priority(priority, candidates)
        # Round down to the end of a word, but up if the first word is too long.
        ends = np.diff(np.take_along_axis(word, order, axis=1), axis=1, prepend=-1) != 0
        whole = np.where(ends & (steps <= counts[:, None]), steps, 0).max(axis=1)
        first_word = ends[:, 1:].argmax(axis=1) + 1
        counts = np.minimum(np.where(whole > 0, whole, first_word), most)
    chosen = np.zeros_like(candidates)
    np.put_along_axis(chosen, order, steps < counts[:, None], axis=1)
    return chosen & candidates


def mask_tokens(
    token_ids, chosen, mask_id, vocabulary_size, rng, mask_token_rate=0.8, random_token_rate=0.1
):
    """Hides the chosen tokens by the 80/10/10 rule.

    Args:
        token_ids: (B, T).
        chosen: (B, T), True at the tokens to predict.
        mask_id: Id of `[MASK]`.
        vocabulary_size: Number of tokens to draw random tokens from.
        rng: A NumPy `Generator`.
        mask_token_rate: Fraction of the chosen tokens that become `[MASK]`.
        random_token_rate: Fraction of the chosen tokens that become a random token.

    Returns:
        (B, T) the inputs of the encoder.

    >>> import numpy as np
    >>> ids, chosen = np.array([[2, 7, 8, 9, 3]]), np.array([[False, True, False, True, False]])
    >>> mask_tokens(ids, chosen, 4, 10, np.random.default_rng(0))
    array([[2, 4, 8, 4, 3]])
    """
    draw = rng.random(token_ids.shape)
    random_ids = rng.integers(0, vocabulary_size, token_ids.shape, dtype=token_ids.dtype)
    inputs = token_ids.copy()
    # Appendix A.1: "80% of the time: Replace the word with the [MASK] token".
    masked = chosen & (draw < mask_token_rate)
    inputs[masked] = mask_id
    # "10% of the time: Replace the word with a random word".
    replaced = chosen & ~masked & (draw < mask_token_rate + random_token_rate)
    inputs[replaced] = random_ids[replaced]
    # "10% of the time: Keep the word unchanged": fine-tuning never sees [MASK], so the encoder
    # must also represent the tokens that it sees.
    return inputs


def gather_chosen(token_ids, chosen, count):
    """Collects the chosen positions of each row in arrays of one width.

    Args:
        token_ids: (B, T) tokens before masking.
        chosen: (B, T), True at most P times per row.
        count: Width P.

    Returns:
        `(positions, targets, weights)`, each (B, P): int32, int32 and float32. After the chosen
        ones all are 0; before, weights are 1.

    >>> import numpy as np
    >>> ids, chosen = np.array([[2, 7, 8, 9, 3]]), np.array([[False, True, False, True, False]])
    >>> for array in gather_chosen(ids, chosen, 3):
    ...     print(array)
    [[1 3 0]]
    [[7 9 0]]
    [[1. 1. 0.]]
    """
    weights = np.arange(count) < chosen.sum(axis=1)[:, None]
    positions = np.argsort(~chosen, axis=1, kind="stable")[:, :count]
    positions = np.where(weights, positions, 0).astype(np.int32)
    targets = np.where(weights, np.take_along_axis(token_ids, positions, axis=1), 0)
    return positions, targets.astype(np.int32), weights.astype("float32")


def max_positions(length, rate):
    """Returns P, the largest number of positions to predict in a row of T tokens."""
    return max(1, round(length * rate))


def pack_segments(tokens, pairs, length, tokenizer, two_segments=True):
    """Frames segments of a stream: `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`.

    Args:
        tokens: The tokens of the stream.
        pairs: (B, 5), from `sentence_pairs`.
        length: Length T, at least that of the longest row.
        tokenizer: A tokenizer with `cls_id`, `sep_id` and `pad_id`.
        two_segments: If False, segments B are empty and have no `[SEP]`.

    Returns:
        `(inputs, text)`: a dict of `token_ids`, `segment_ids` and `padding_mask`, each (B, T); and
        a mask (B, T), True at tokens of A and B.
    """
    steps = np.arange(length)
    start_a, length_a, start_b, length_b = (pairs[:, i : i + 1] for i in range(4))  # (B, 1)
    first_b = length_a + 2  # position of B's first token
    in_a = (steps >= 1) & (steps < length_a + 1)
    in_b = (steps >= first_b) & (steps < first_b + length_b)
    token_ids = np.full((len(pairs), length), tokenizer.pad_id, dtype=np.int32)
    token_ids[in_a] = tokens[(start_a + steps - 1)[in_a]]
    token_ids[in_b] = tokens[(start_b + steps - first_b)[in_b]]
    token_ids[:, 0] = tokenizer.cls_id
    token_ids[steps == length_a + 1] = tokenizer.sep_id
    end = first_b
    if two_segments:
        token_ids[steps == first_b + length_b] = tokenizer.sep_id
        end = first_b + length_b + 1
    inputs = {
        "token_ids": token_ids,
        "segment_ids": ((steps >= first_b) & (steps < end)).astype(np.int32),
        "padding_mask": steps < end,
    }
    return inputs, in_a | in_b


def _target_length(max_tokens, short_sequence_rate, rng):
    # Short sequences lessen the mismatch with fine-tuning, whose texts have any length.
    if rng.random() < short_sequence_rate:
        return int(rng.integers(2, max_tokens + 1))
    return max_tokens


def _filled(starts, first, end, target):
    """Returns the end of the sentences from `first` that fill a length, at most `end`."""
    last = first + 1
    while last < end and starts[last] - starts[first] < target:
        last += 1
    return last


def _random_segment(starts, documents, document, room, rng):
    """Draws the first token and the length of sentences in another document."""
    other = int(rng.integers(len(documents) - 2))
    other += other >= document
    first = int(rng.integers(documents[other], documents[other + 1]))
    last = _filled(starts, first, documents[other + 1], room)
    return starts[first], starts[last] - starts[first]


def _truncated(pairs, max_tokens, rng):
    """Cuts pairs (N, 5) to `max_tokens`: the longer segment loses tokens at random ends.

    `truncate_seq_pair` of the original removes tokens one by one: the number from the front of a
    segment is binomial.
    """
    pairs = np.array(pairs, dtype=np.int64).reshape(-1, 5)
    pairs = pairs[pairs[:, 1] > 0]
    a, b = pairs[:, 1].copy(), pairs[:, 3].copy()
    excess = np.maximum(a + b - max_tokens, 0)
    from_a = np.minimum(np.maximum(a - b, 0), excess)
    from_b = np.minimum(np.maximum(b - a, 0), excess)
    rest = excess - from_a - from_b
    from_a, from_b = from_a + rest // 2, from_b + (rest + 1) // 2
    pairs[:, 0] += rng.binomial(from_a, 0.5)
    pairs[:, 1] -= from_a
    pairs[:, 2] += rng.binomial(from_b, 0.5)
    pairs[:, 3] -= from_b
    return pairs


def _by_priority(priority, candidates):
    """Sorts the positions (B, T) of each row: candidates of the lowest number first."""
    return np.argsort(np.where(candidates, priority, 2.0), axis=1, kind="stable")
