"""Writing token by token: greedy, sampling and beam search over any model with a step."""

from keras_plm.decoding.strategies import (
    WithoutCache,
    alignment,
    beam_search,
    generate,
    greedy,
    sample,
    until_end,
)

__all__ = [
    "WithoutCache",
    "alignment",
    "beam_search",
    "generate",
    "greedy",
    "sample",
    "until_end",
]
