"""Each published comparison as a list of runs: `python -m benchmarks run --suite NAME`."""

import dataclasses
import typing
from pathlib import Path

from benchmarks import report_seq2seq
from benchmarks.sequences import Copying, StepTimes, measure
from benchmarks.translation import Translation, TranslationBench


@dataclasses.dataclass(frozen=True)
class Suite:
    """A published comparison. Each scale but "small" has its own folder of results.

    Args:
        run: `run(runs, data, results, seeds, progress)` does what is not done yet.
        markdown: `markdown(results)`, the tables of its result files.
        figures: `figures(results)`, a dict of pictures by name.
        scales: Lists of runs by scale: "small" for two cores in hours, "long" for a GPU or a day,
            "test" for seconds.
        source: The tables and figures that it follows.
    """

    run: typing.Callable
    markdown: typing.Callable
    figures: typing.Callable
    scales: dict
    source: str


def folder(results, suite, scale=None):
    """Where a suite's results at a scale are."""
    return Path(results) / (suite if scale in (None, "small") else f"{suite}_{scale}")


def _run_seq2seq(runs, data, results, seeds, progress):
    bench = TranslationBench(data, results, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            if isinstance(settings, Translation):
                bench.run(settings, seed)
    for settings in runs:
        if not isinstance(settings, Translation):
            measure(settings, results, progress)


_TEST = {"vocabulary_size": 400, "embedding_dim": 16, "hidden_dim": 16, "num_layers": 1,
         "num_heads": 2, "epochs": 1, "limit": 40, "beams": 2}  # fmt: skip

# With attention and without, and the Transformer, before the other scores.
_MODELS = ("additive", "none", "transformer", "dot", "scaled_dot", "bilinear", "cosine")

SUITES = {
    "seq2seq": Suite(
        _run_seq2seq,
        report_seq2seq.markdown,
        report_seq2seq.figures,
        {
            "small": [*(Translation(model) for model in _MODELS), StepTimes(), Copying()],
            "long": [Translation(model, epochs=30) for model in ("transformer", "additive")],
            "test": [
                *(Translation(model, **_TEST) for model in ("additive", "none", "transformer")),
                StepTimes(width=16, vocabulary_size=20, lengths=(4, 8), tokens=16, turns=1),
                Copying(width=16, symbols=3, lengths=(2, 4), steps=3, tokens=20, seeds=1, test=5),
            ],
        },
        "Bahdanau et al. 2015, table 1 and figure 2; Vaswani et al. 2017, tables 1 and 2",
    ),
}
