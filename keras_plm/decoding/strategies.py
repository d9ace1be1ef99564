"""Decoding strategies on arrays: greedy, sampling and beam search.

Shapes: B batch, K beams, U new tokens at most, V vocabulary.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_plm.decoding._loops import best_beams, greedy_rows, sampled_rows
from keras_plm.decoding._run import Decoded, check_inputs, check_stop_token_ids, run

__all__ = ["Decoded", "beam_search", "greedy", "sample"]


def greedy(
    model: keras.Model,
    inputs: Mapping[str, Any],
    start_token_id: int,
    stop_token_ids: int | Sequence[int],
    max_new_tokens: int | None = None,
    pad_id: int = 0,
    cache: bool = True,
) -> Decoded:
    """Writes the likeliest token at every step.

    Args:
        model: A model with `prefill` and `decode_step`.
        inputs: A dict of arrays that `model.prefill` reads, the batch first.
        start_token_id: Token before the first; a causal model has its prompt instead.
        stop_token_ids: The id, or several, that end a text.
        max_new_tokens: Most tokens of a row, the stop token included. By default 50 more than the
            inputs have, of a causal model 50, or as many as its positions allow.
        pad_id: Fills rows after their end.
        cache: If False, everything is computed again at each step, see
            `keras_plm.decoding.without_cache`; any model of `target_ids` then serves.

    Returns:
        `Decoded`: `token_ids` (B, U) with the stop token where one was written, and `scores` (B,),
        the sum of log probabilities.

    Raises:
        TypeError: If `inputs` is not a dict of arrays, or a stop token is not a whole number.
        ValueError: If `max_new_tokens` is less than 1 or more than the model's positions allow.
    """
    inputs, max_new_tokens = check_inputs(model, inputs, max_new_tokens)
    return run(
        greedy_rows,
        model,
        inputs,
        cache=cache,
        max_new_tokens=max_new_tokens,
        start_token_id=start_token_id,
        stop_token_ids=check_stop_token_ids(stop_token_ids),
        pad_id=pad_id,
    )


def sample(
    model: keras.Model,
    inputs: Mapping[str, Any],
    start_token_id: int,
    stop_token_ids: int | Sequence[int],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    pad_id: int = 0,
    cache: bool = True,
) -> Decoded:
    """Draws a token from the model's probabilities at every step.

    One uniform number a token decides among the tokens sorted by probability, so that the same seed
    gives the same text on every backend.

    Reference: top-k: Fan et al. 2018, arXiv 1805.04833, section 5.4; top-p: Holtzman et al. 2020,
    arXiv 1904.09751, section 3.1.

    Args:
        temperature: Divides the logits: below 1 sharpens, above 1 flattens the probabilities.
        top_k: Draw from so many of the likeliest tokens, or from all if `None`.
        top_p: Draw from the fewest likeliest tokens that hold this probability (of what `top_k`
            leaves), or from all if `None`.
        seed: Seed of the random numbers: an integer, or several.
        model, inputs, start_token_id, stop_token_ids, max_new_tokens, pad_id, cache: As in
            `greedy`.

    Returns:
        As `greedy`; scores are those of the model itself, at temperature 1 over all tokens.

    Raises:
        ValueError: If `temperature` is not positive, `top_k` less than 1, `top_p` not in (0, 1], or
            as in `greedy`.
    """
    if not isinstance(temperature, numbers.Real) or not 0 < temperature < math.inf:
        raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be 1 or more. Received: top_k={top_k}")
    if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
        raise ValueError(f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}")
    inputs, max_new_tokens = check_inputs(model, inputs, max_new_tokens)
    batch = len(next(iter(inputs.values())))
    return run(
        sampled_rows,
        model,
        inputs,
        _uniform(seed, batch, max_new_tokens),
        cache=cache,
        max_new_tokens=max_new_tokens,
        start_token_id=start_token_id,
        stop_token_ids=check_stop_token_ids(stop_token_ids),
        pad_id=pad_id,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )


def _uniform(seed, batch, steps):
    """(B, U) numbers, of a row neither dependent on the other rows nor on U."""
    rows = [np.random.default_rng([*np.atleast_1d(seed), row]) for row in range(batch)]
    return np.stack([rng.random(steps, dtype="float32") for rng in rows])


def beam_search(
    model: keras.Model,
    inputs: Mapping[str, Any],
    start_token_id: int,
    stop_token_ids: int | Sequence[int],
    num_beams: int = 4,
    length_penalty: float = 0.6,
    max_new_tokens: int | None = None,
    pad_id: int = 0,
    cache: bool = True,
) -> Decoded:
    """Keeps the K best partial texts of each row at every step.

    A text that ends among the K best of its step is finished; a row is done when K are. Finished
    texts are compared by `log P / ((5 + length) / 6) ** length_penalty`; without the penalty short
    ones win. With one beam it writes what `greedy` writes.

    Reference: length penalty: Wu et al. 2016, arXiv 1609.08144, section 7, equation 14; 4 beams and
    0.6: Vaswani et al. 2017, section 6.1.

    Args:
        num_beams: Number of beams K.
        length_penalty: Exponent α; 0 compares bare log probabilities.
        model, inputs, start_token_id, stop_token_ids, max_new_tokens, pad_id, cache: As in
            `greedy`.

    Returns:
        `Decoded`: `token_ids` (B, K, U) and `scores` (B, K), best first. Texts that reached
        `max_new_tokens` unfinished come after all finished ones.

    Raises:
        ValueError: If `num_beams` is not a whole number of 1 or more, `length_penalty` is
            negative, or as in `greedy`.
    """
    if not isinstance(num_beams, int | np.integer) or num_beams < 1:
        raise ValueError(
            f"`num_beams` must be a whole number, 1 or more. Received: num_beams={num_beams}"
        )
    if not isinstance(length_penalty, numbers.Real) or not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"`length_penalty` must be 0 or more. Received: length_penalty={length_penalty}"
        )
    inputs, max_new_tokens = check_inputs(model, inputs, max_new_tokens)
    return run(
        best_beams,
        model,
        inputs,
        cache=cache,
        max_new_tokens=max_new_tokens,
        start_token_id=start_token_id,
        stop_token_ids=check_stop_token_ids(stop_token_ids),
        pad_id=pad_id,
        num_beams=num_beams,
        length_penalty=length_penalty,
    )
