"""Each published comparison as a list of runs: `python -m benchmarks run --suite NAME`."""

import dataclasses
import typing

from benchmarks.translation import Translation, TranslationBench

_TEST = {"vocabulary_size": 400, "embedding_dim": 16, "hidden_dim": 16, "num_layers": 1,
         "num_heads": 2, "epochs": 1, "limit": 40, "beams": 2}  # fmt: skip

# With attention and without, and the Transformer, before the other scores.
_MODELS = ("additive", "none", "transformer", "dot", "scaled_dot", "bilinear", "cosine")


@dataclasses.dataclass(frozen=True)
class Suite:
    """A published comparison.

    Args:
        open: `open(data, results, progress)` reads its data; gives what has `run(settings, seed)`.
        scales: Lists of runs by scale: "small" for two cores in hours, "test" for seconds.
        source: The tables and figures that it follows.
    """

    open: typing.Callable
    scales: dict
    source: str


SUITES = {
    "seq2seq": Suite(
        lambda data, results, progress: TranslationBench(data, results, progress=progress),
        {
            "small": [Translation(model) for model in _MODELS],
            "test": [Translation(model, **_TEST) for model in ("additive", "none", "transformer")],
        },
        "Bahdanau et al. 2015, figure 2; Vaswani et al. 2017, table 2",
    ),
}
