"""Decoding strategies on arrays: greedy, sampling and beam search.

Shapes: B batch, K beams, U new tokens at most, V vocabulary.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_plm.decoding._loops import best_beams, greedy_rows, sampled_rows
from keras_plm.decoding._run import Decoded, check_inputs, check_stop_token_ids, run
from keras_plm.files.arguments import check_whole

__all__ = ["Decoded", "beam_search", "greedy", "sample"]


def greedy(
    model: Any,
    inputs: Mapping[str, Any],
    start_token_id: int,
    stop_token_ids: int | Sequence[int],
    max_new_tokens: int | None = None,
    pad_id: int = 0,
    cache: bool = True,
) -> Decoded:
    """Generates the most likely token at every step.

    Args:
        model: A model with `prefill` and `decode_step`.
        inputs: A dict of arrays that `model.prefill` reads; the batch is the first axis.
        start_token_id: Token before the first one; a causal model has a prompt and ignores it.
        stop_token_ids: Id, or several ids, at the end of a text.
        max_new_tokens: Largest number of new tokens of a row, including the stop token. By default
            50 more than the inputs have, for a causal model 50, or as many as its positions allow.
        pad_id: Id of the padding.
        cache: If False, recompute all steps at each step, see `keras_plm.decoding.without_cache`.
            This works for any model with `target_ids`.

    Returns:
        `Decoded`: `token_ids` (B, U), with stop tokens, and `scores` (B,), sums of
        log-probabilities.

    Raises:
        TypeError: If `inputs` is not a dict of arrays, or `max_new_tokens` or a stop token is not
            a whole number.
        ValueError: If `max_new_tokens` is less than 1 or more than the model's positions allow.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> model = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> inputs = {"token_ids": np.array([[5, 6]]), "padding_mask": np.array([[True, True]])}
    >>> decoded = greedy(model, inputs, start_token_id=0, stop_token_ids=1, max_new_tokens=3)
    >>> decoded.token_ids.shape[0], decoded.scores.shape
    (1, (1,))
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
    model: Any,
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
    """Samples a token from the model's distribution at every step.

    One uniform number per token chooses among the tokens sorted by probability: a seed gives the
    same text on every backend.

    Reference: top-k: Fan et al. 2018, arXiv 1805.04833, section 5.4; top-p: Holtzman et al. 2020,
    arXiv 1904.09751, section 3.1.

    Args:
        temperature: Divisor of the logits. Below 1 it favours likely tokens.
        top_k: Number of most likely tokens to sample from; `None` for all.
        top_p: Probability of the smallest set of most likely tokens to sample from, after `top_k`;
            `None` for all.
        seed: Seed of the random numbers, an integer or several; (B, k) integers seed each row.
        model, inputs, start_token_id, stop_token_ids, max_new_tokens, pad_id, cache: As in
            `greedy`.

    Returns:
        As `greedy`. Scores are log-probabilities at temperature 1 over all tokens.

    Raises:
        TypeError: If `top_k` or a seed is not a whole number, or as in `greedy`.
        ValueError: If `temperature` is not positive, `top_k` less than 1, `top_p` not in (0, 1], a
            seed negative, or as in `greedy`.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> model = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> inputs = {"token_ids": np.array([[5, 6]]), "padding_mask": np.array([[True, True]])}
    >>> first, second = (sample(model, inputs, 0, 1, max_new_tokens=3, seed=4) for _ in range(2))
    >>> first.token_ids.shape[0], bool((first.token_ids == second.token_ids).all())
    (1, True)
    """
    if not isinstance(temperature, numbers.Real) or not 0 < temperature < math.inf:
        raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
    if top_k is not None:
        check_whole(top_k, "top_k", least=1)
    if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
        raise ValueError(f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}")
    for number in np.ravel(seed).tolist():
        check_whole(number, "seed", least=0)
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
    """Draws (B, U) numbers; those of a row depend neither on other rows nor on U."""
    seeds = seed if np.ndim(seed) == 2 else [[*np.atleast_1d(seed), row] for row in range(batch)]
    rows = [np.random.default_rng(list(numbers)) for numbers in seeds]
    return np.stack([rng.random(steps, dtype="float32") for rng in rows])


def beam_search(
    model: Any,
    inputs: Mapping[str, Any],
    start_token_id: int,
    stop_token_ids: int | Sequence[int],
    num_beams: int = 4,
    length_penalty: float = 0.6,
    max_new_tokens: int | None = None,
    pad_id: int = 0,
    cache: bool = True,
) -> Decoded:
    """Generates text by beam search: keeps the K best partial texts of each row at every step.

    A text that ends among the K best of its step is finished; a row ends with K finished texts.
    They are sorted by `log P / ((5 + length) / 6) ** length_penalty`; without the penalty short
    texts win. One beam equals `greedy`.

    Reference: length penalty: Wu et al. 2016, arXiv 1609.08144, section 7, equation 14; 4 beams and
    0.6: Vaswani et al. 2017, section 6.1.

    Args:
        num_beams: Number of beams K.
        length_penalty: Exponent α of the length; 0 for no penalty.
        model, inputs, start_token_id, stop_token_ids, max_new_tokens, pad_id, cache: As in
            `greedy`.

    Returns:
        `Decoded`: `token_ids` (B, K, U) and `scores` (B, K), best first. Unfinished
        texts come after all finished texts.

    Raises:
        TypeError: If `num_beams` is not a whole number, or as in `greedy`.
        ValueError: If `num_beams` is less than 1, `length_penalty` is negative, or as in `greedy`.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> model = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> inputs = {"token_ids": np.array([[5, 6]]), "padding_mask": np.array([[True, True]])}
    >>> decoded = beam_search(model, inputs, 0, stop_token_ids=1, num_beams=2, max_new_tokens=3)
    >>> decoded.token_ids.shape[:2], decoded.scores.shape
    ((1, 2), (1, 2))
    """
    check_whole(num_beams, "num_beams", least=1)
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
