"""The demonstration `python -m benchmarks demo`: a released encoder on named entities."""

import functools
import time
from pathlib import Path

import keras
import numpy as np

from benchmarks import ROOT
from keras_plm.checkpoints.packages import find_packaged
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments import recommend
from keras_plm.experiments.config import Run, summary
from keras_plm.experiments.progress import console, now_and_then
from keras_plm.experiments.recommend import TUNED, Choice
from keras_plm.experiments.report.result_tables import layer_figure
from keras_plm.experiments.runner import Runner
from keras_plm.experiments.statistics import resampled, score_interval
from keras_plm.files.writing import replacing, write_json, write_text
from keras_plm.transfer import distinct_choices, layer_choice

RELEASED = "all-MiniLM-L6-v2"
OWN = "benchmarks/weights/bert_mini"
SEEDS = 3
FINE_TUNING_RATE = "1e-4"  # one only: a fit takes minutes
EPOCHS, FINE_TUNING_EPOCHS = 10, 3
NOTE = (
    "MiniLM is a sentence encoder: after distillation it was tuned on a billion pairs of texts. It "
    "has no masked-LM head. Its weak last layer may come from that tuning."
)


def available():
    """Returns the released encoder, or our own small one if the package is not installed."""
    try:
        find_packaged(RELEASED)
    except ValueError as error:
        console.print(f"{error}\nThe demo uses {OWN} instead.")
        return str(ROOT / OWN)
    return RELEASED


def runs_of(encoder, small):
    """Returns the runs of the demo: `{method: [Run]}`."""
    names = distinct_choices(encoder)
    names = sorted(names, key=lambda name: _depth(name, len(encoder.output["layers"])))
    heads = {"epochs": 1 if small else EPOCHS}
    limit = {"train_limit": 64} if small else {}
    found = {
        method: [Run(method, layers=name, **heads, **limit) for name in names]
        for method in ("features", "randomly_initialised")
    }
    tuning = {"learning_rates": FINE_TUNING_RATE, "epochs": 1 if small else FINE_TUNING_EPOCHS}
    return found | {"fine_tune": [Run("fine_tune", **tuning, **limit)]}


def _depth(name, layers):
    """Sorts single layers by depth, then means, mixes and concatenations."""
    choice = layer_choice(name)
    indices = choice.indices(layers)
    return (len(indices) > 1, ["mean", "mix", "concat"].index(choice.combine), indices)


def demo(out=None, encoder=None, small=False):
    """Compares the layers of a frozen encoder and fine-tuning on WikiGold.

    Args:
        out: Folder for results, features and the plot. Results that exist are not recomputed. By
            default each backend has its own folder.
        encoder: Folder or name of an encoder; by default the one of `available`.
        small: Whether to use sizes that take seconds but are too small for a result.

    Returns:
        A list of results.
    """
    started, backend = time.monotonic(), keras.backend.backend()
    out = Path(out or f".demo/{backend}{'-small' if small else ''}")
    encoder = encoder or available()
    runner = Runner(TASKS["wikigold"], None, encoder, out / "results", out / "features")
    runs = runs_of(runner.pretrained, small)
    seeds = range(1 if small else SEEDS)
    phases = {
        "features of every layer": [(run, seed) for seed in seeds for run in runs["features"]],
        "the same of random weights": [(run, 0) for run in runs["randomly_initialised"]],
        "fine-tuning": [(run, 0) for run in runs["fine_tune"]],
    }
    runner.plan([pair for todo in phases.values() for pair in todo])
    console.print(
        f"[bold]keras_plm demo[/bold] on {backend}: layers of {runner.name}, frozen and "
        f"fine-tuned, on the named entities of WikiGold ({len(runner.examples['train']):,} "
        "training sentences)\n",
        markup=True,
    )
    results, runner.epoch = {}, now_and_then(console.print)
    for number, (what, todo) in enumerate(phases.items(), 1):
        console.print(f"{number}. {what} ...")
        for run, seed in todo:
            results.setdefault(run, []).append(runner.run(run, seed))
    choices = {
        method: [
            _by_document(runner, run.layers if run.reads_features else TUNED, results[run])
            for run in of_method
        ]
        for method, of_method in runs.items()
    }
    (tuned,) = choices["fine_tune"]
    text = table(choices["features"], choices["randomly_initialised"], tuned)
    sentence = recommend.recommendation(choices["features"], tuned)
    console.print(text, sentence, sep="\n")
    if runner.name == RELEASED:
        console.print(NOTE)
    everything = [result for of_run in results.values() for result in of_run]
    write_json(out / "results.json", [result.to_json() for result in everything])
    write_text(out / "table.md", f"{text}\n{sentence}\n")
    plot = out / "wikigold.png"
    with replacing(plot, ".png") as temporary:
        choice_of = functools.partial(_by_document, runner)
        layer_figure(everything, "wikigold", choice_of).savefig(temporary, dpi=150)
    console.print(
        f"This call took {time.monotonic() - started:.0f} s. Table: {out / 'table.md'}  "
        f"Plot: {plot}  Results: {out / 'results.json'}"
    )
    return everything


def _by_document(runner, name, results):
    """Returns a `Choice` whose intervals resample documents instead of sentences."""
    choice = Choice.of(name, results, runner.kept)
    groups = [example.group for example in runner.examples["test"]]
    _, starts = np.unique(np.array(groups, "str"), return_inverse=True)
    parts = np.zeros((len(choice.parts), starts.max() + 1, choice.parts.shape[2]))
    np.add.at(parts, (slice(None), starts), choice.parts)
    return Choice(name, choice.results, choice.kind, parts)


def table(frozen, fresh, tuned):
    """Formats the scores of all layers, of the same layers of random weights, and fine-tuning."""
    lines = [
        "| layers | frozen | random weights, frozen | learning rate |",
        "|---|---:|---:|---:|",
    ]
    for choice, untrained in zip(frozen, fresh, strict=True):
        lines.append(
            f"| {choice.name} | {_score(choice)} | {_score(untrained)} | {_rate(choice)} |"
        )
    lines.append(f"| fine-tuned | {_score(tuned)} | | {_rate(tuned)} |")
    metric = next(iter(tuned.results[0].metrics)).replace("_", " ")
    seeds = len(frozen[0].results)
    lines.append(
        f"\nWikiGold, {metric} on the evaluation split, with 95 % intervals over its "
        f"{tuned.parts.shape[1]} documents; {seeds} seed{'s' * (seeds > 1)} of the frozen encoder, "
        "one of the others"
    )
    return "\n".join(lines)


def _score(choice):
    mean = summary(choice.results)[0]
    found = score_interval(choice.kind, resampled(choice.kind, choice.parts))
    return f"{100 * mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _rate(choice):
    return f"{choice.results[0]['learning_rate']:g}"


def add_demo(commands):
    from keras_plm.cli.run import add_import_flag

    text = "compare the layers of a released encoder, frozen and fine-tuned, on named entities"
    parser = commands.add_parser("demo", help=text, description=text)
    parser.add_argument("--out", metavar="DIR", help="write to this folder (default .demo/BACKEND)")
    parser.add_argument(
        "--encoder",
        metavar="DIR",
        help=f"use the encoder of this folder or name (default {RELEASED}, else {OWN})",
    )
    add_import_flag(parser)
    parser.add_argument(
        "--synthetic",
        action="store_true",
        help="pre-train word vectors and a tiny BERT on a made-up language instead",
    )
    parser.add_argument(
        "--small", action="store_true", help="train on sizes that are too small for a result"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="with --synthetic: add a tiny ELMo, a tiny GPT, two more tasks, and translators",
    )
    parser.set_defaults(run=run_demo)


def run_demo(flags):
    if flags.full and not flags.synthetic:
        raise ValueError("`--full` extends the synthetic demo: add --synthetic. Received: --full")
    if not flags.synthetic:
        demo(flags.out, flags.encoder, flags.small)
        return
    if flags.encoder:
        raise ValueError(
            "The synthetic demo pre-trains its encoders: leave `--encoder` out. "
            f"Received: --encoder {flags.encoder}"
        )
    from benchmarks import synthetic_demo

    synthetic_demo.demo(flags.out, small=flags.small, full=flags.full)
