"""Loops of decoding, only on tensors: every backend can compile them.

Shapes: B batch, K beams, C candidates, U new tokens at most, V vocabulary.
"""

import keras
from keras import ops

IMPOSSIBLE = -1e30  # a score below all others, and finite


def greedy_rows(model, inputs, **options):
    """Writes the most likely token at every step: (B, U) ids and (B,) scores."""
    return _write_rows(model, inputs, lambda logits, index: ops.argmax(logits, axis=-1), **options)


def sampled_rows(model, inputs, uniform, temperature, top_k, top_p, **options):
    """Writes a random token at every step, from uniform numbers (B, U): as `greedy_rows`."""

    def choose(logits, index):
        return _draw(logits, ops.take(uniform, index, axis=1), temperature, top_k, top_p)

    return _write_rows(model, inputs, choose, **options)


def _write_rows(model, inputs, choose, max_new_tokens, start_token_id, stop_token_ids, pad_id):
    memory, state = model.prefill(inputs, max_new_tokens)
    batch = _batch_size(inputs)

    def unfinished(index, last, done, token_ids, scores, state):
        return ops.logical_and(index < max_new_tokens, ops.logical_not(ops.all(done)))

    def write(index, last, done, token_ids, scores, state):
        logits, state = model.decode_step(last, state, memory, index)
        logits = ops.cast(logits, "float32")  # (B, V)
        chosen = ops.cast(choose(logits, index), "int32")  # (B,)
        gained = ops.take_along_axis(ops.log_softmax(logits), chosen[:, None], axis=-1)[:, 0]
        scores = scores + ops.where(done, 0.0, gained)
        chosen = ops.where(done, pad_id, chosen)
        token_ids = ops.slice_update(token_ids, (0, index), chosen[:, None])
        done = ops.logical_or(done, _is_stop(chosen, stop_token_ids))
        return index + 1, chosen, done, token_ids, scores, state

    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        ops.full((batch,), start_token_id, dtype="int32"),
        ops.zeros((batch,), dtype="bool"),
        ops.full((batch, max_new_tokens), pad_id, dtype="int32"),
        ops.zeros((batch,), dtype="float32"),
        state,
    )
    _, _, _, token_ids, scores, _ = ops.while_loop(unfinished, write, start)
    return token_ids, scores


def _draw(logits, uniform, temperature, top_k, top_p):
    """Draws a token of each row: (B, V) logits and (B,) numbers in [0, 1) to (B,) ids."""
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    best, ids = ops.top_k(logits / temperature, count)  # (B, count), most likely first
    ends = ops.cumsum(ops.softmax(best, axis=-1), axis=-1)  # end of each token's interval
    last, kept = count - 1, ends[:, -1]
    if top_p is not None:
        # The fewest tokens with this probability: their intervals begin below it.
        last = ops.sum(ops.cast(ends[:, :-1] < top_p, "int32"), axis=-1)  # (B,)
        kept = ops.take_along_axis(ends, last[:, None], axis=-1)[:, 0]
    place = ops.sum(ops.cast(ends <= (uniform * kept)[:, None], "int32"), axis=-1)
    return ops.take_along_axis(ids, ops.minimum(place, last)[:, None], axis=-1)[:, 0]


def best_beams(
    model,
    inputs,
    max_new_tokens,
    start_token_id,
    stop_token_ids,
    pad_id,
    num_beams,
    length_penalty,
):
    """Searches the K best texts of each row, finished ones first: (B, K, U) ids, (B, K) scores."""
    batch = _batch_size(inputs)
    # The model reads the source once; the beams of a row are adjacent: (B K, ...).
    memory, state = _rows(
        model.prefill(inputs, max_new_tokens), ops.arange(batch * num_beams) // num_beams
    )
    first_beam = ops.arange(batch, dtype="int32")[:, None] * num_beams  # (B, 1)

    def normalized(scores, length):
        return scores / ((5 + ops.cast(length, "float32")) / 6) ** length_penalty

    def unfinished(index, scores, texts, done_scores, done_texts, num_done, state):
        return ops.logical_and(index < max_new_tokens, ops.any(num_done < num_beams))

    def search(index, scores, texts, done_scores, done_texts, num_done, state):
        last = ops.take(texts, ops.maximum(index - 1, 0), axis=2)  # (B, K)
        last = ops.reshape(ops.where(index == 0, start_token_id, last), (-1,))
        logits, state = model.decode_step(last, state, memory, index)
        # Enough candidates for K unfinished texts, even if all of the best ones end here.
        scores, texts, parents, tokens = _extended(
            scores, texts, logits, index, max(2, 1 + len(stop_token_ids))
        )
        ended = _is_stop(tokens, stop_token_ids)  # (B, C)
        # A text that ends among the K best of its step is done, if its row has fewer than K.
        among_best = ops.arange(ended.shape[-1]) < num_beams
        finishes = ended & among_best & (scores > IMPOSSIBLE / 2) & (num_done < num_beams)[:, None]
        num_done = num_done + ops.sum(ops.cast(finishes, "int32"), axis=-1)
        done_scores, done_texts = _best(
            num_beams,
            [done_scores, ops.where(finishes, normalized(scores, index + 1), IMPOSSIBLE)],
            [done_texts, texts],
        )
        scores, texts, parents = _best(
            num_beams, [ops.where(ended, IMPOSSIBLE, scores)], [texts], [parents]
        )
        state = _rows(state, ops.reshape(first_beam + parents, (-1,)))
        return index + 1, scores, texts, done_scores, done_texts, num_done, state

    empty = ops.full((batch, num_beams, max_new_tokens), pad_id, dtype="int32")
    nothing = ops.full((batch, num_beams), IMPOSSIBLE, dtype="float32")
    # Only one beam at first: K equal beams would stay equal.
    one = ops.concatenate([ops.zeros((batch, 1)), nothing[:, 1:]], axis=1)
    num_done, index = ops.zeros((batch,), "int32"), ops.convert_to_tensor(0, dtype="int32")
    index, scores, texts, done_scores, done_texts, num_done, _ = ops.while_loop(
        unfinished, search, (index, one, empty, nothing, empty, num_done, state)
    )
    # Both kinds are sorted. The done texts come first, then as many others as fit.
    place, num_done = ops.arange(num_beams, dtype="int32"), num_done[:, None]
    order = ops.where(place < num_done, place, num_beams + place - num_done)  # (B, K)
    scores = ops.concatenate([done_scores, normalized(scores, index)], axis=1)
    texts = ops.concatenate([done_texts, texts], axis=1)
    return (
        ops.take_along_axis(texts, order[..., None], axis=1),
        ops.take_along_axis(scores, order, axis=1),
    )


def _extended(scores, texts, logits, index, per_beam):
    """Finds the best continuations of all beams of a row by one token.

    Returns:
        `(scores, texts, parents, tokens)`: (B, C) scores, best first; (B, C, U) texts; (B, C)
        numbers of the continued beams; (B, C) tokens at `index`.
    """
    batch, beams, _ = texts.shape
    gained = ops.log_softmax(ops.cast(logits, "float32"))  # (B K, V)
    vocabulary = gained.shape[-1]
    totals = scores[..., None] + ops.reshape(gained, (batch, beams, vocabulary))
    count = min(per_beam, vocabulary) * beams
    scores, flat = ops.top_k(ops.reshape(totals, (batch, -1)), count)  # (B, C)
    flat = ops.cast(flat, "int32")
    parents, tokens = flat // vocabulary, flat % vocabulary
    texts = ops.take_along_axis(texts, parents[..., None], axis=1)  # (B, C, U)
    texts = ops.slice_update(texts, (0, 0, index), tokens[..., None])
    return scores, texts, parents, tokens


def _best(count, scores, *columns):
    """Selects the `count` highest scores of each row, and the columns at their places.

    Args:
        count: Number N.
        scores: Tensors (B, n) to concatenate.
        *columns: Lists of as many tensors, each (B, n) or (B, n, U).

    Returns:
        (B, N) scores, best first, then each column, (B, N) or (B, N, U).
    """
    scores, places = ops.top_k(ops.concatenate(scores, axis=1), count)
    columns = [ops.concatenate(column, axis=1) for column in columns]
    return scores, *(
        ops.take_along_axis(c, places if len(c.shape) == 2 else places[..., None], axis=1)
        for c in columns
    )


def _rows(structure, rows):
    """Selects rows of all tensors of a structure; functions stay."""
    return keras.tree.map_structure(
        lambda x: x if callable(x) else ops.take(x, rows, axis=0), structure
    )


def _is_stop(token_ids, stop_token_ids):
    """Returns True where a token ends a text."""
    found = ops.zeros_like(token_ids, dtype="bool")
    for stop in stop_token_ids:
        found = ops.logical_or(found, token_ids == stop)
    return found


def _batch_size(inputs):
    return keras.tree.flatten(inputs)[0].shape[0]
