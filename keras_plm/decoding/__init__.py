"""Decoding token by token: greedy, sampling and beam search, on arrays or on texts.

A model needs two methods for decoding, see `keras_plm.models.EncoderDecoder`:
`prefill(inputs, max_new_tokens) -> (memory, state)` and
`decode_step(token_ids, state, memory, index) -> (logits, state)`.
"""

from keras_plm.decoding.strategies import Decoded, beam_search, greedy, sample
from keras_plm.decoding.texts import alignment, generate, until_stop

__all__ = [
    "Decoded",
    "alignment",
    "beam_search",
    "generate",
    "greedy",
    "sample",
    "until_stop",
]
