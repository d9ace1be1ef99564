"""Tables and plots of the suite `seq2seq`, from its result files."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.suites.registry import Suite
from benchmarks.suites.seq2seq.step_time import Copying, StepTimes, measure
from benchmarks.suites.seq2seq.translation import (
    LONGEST_TESTED,
    LONGEST_TRAINED,
    Translation,
    TranslationRunner,
)
from keras_plm.experiments.results import read_json, read_results
from keras_plm.plots import attention, lines

NAMES = {
    "transformer.self": "Transformer",
    "rnn.additive": "RNN, additive",
    "rnn.bilinear": "RNN, bilinear",
    "rnn.dot": "RNN, dot",
    "rnn.scaled_dot": "RNN, scaled dot",
    "rnn.cosine": "RNN, cosine",
    "rnn.none": "RNN, one vector",
}


def read(folder):
    """Returns `{run: results of all seeds}`, in the order of the table.

    Raises:
        ValueError: If seeds of one run differ in settings.
    """
    runs = defaultdict(list)
    for result in read_results(folder):
        runs[f"{result['encoder']}.{result['run']}"].append(result)
    for name, results in runs.items():
        if len({json.dumps(result["settings"], sort_keys=True) for result in results}) > 1:
            raise ValueError(
                "Seeds of one run share their settings: remove the older files. "
                f"Received: {name} of different settings in {folder}"
            )
    return {name: runs[name] for name in NAMES if name in runs}


def _spread(values, digits=1):
    shown = f"{np.mean(values):.{digits}f}"
    return shown + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "")


def markdown(folder):
    """Returns a row per model: weights, BLEU of single and joined captions and by source length."""
    runs = read(folder)
    buckets = [b["from"] for b in next(iter(runs.values()))[0]["by_length"]]
    words = [f"{low}-" for low in buckets]
    head = ["weights", "BLEU: captions", "captions joined", *words]
    table = [f"| model | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for name, results in runs.items():
        cells = [
            f"{results[0]['parameters'] / 1e6:.2f} M",
            f"{_spread([100 * r['metrics']['bleu'] for r in results])} ({len(results)})",
            _spread([100 * r["metrics"]["bleu_joined"] for r in results]),
        ]
        cells += [
            f"{np.mean([r['by_length'][i]['bleu'] for r in results]):.1f}"
            for i in range(len(buckets))
        ]
        table.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(table) + "\n" + _markdown_of_rows(runs)


def _markdown_of_rows(runs):
    """Returns a row per model: BLEU by joined captions, missing text, loss by position."""
    # Older files have no such part.
    runs = {n: [r for r in results if "by_captions" in r] for n, results in runs.items()}
    runs = {name: results for name, results in runs.items() if results}
    if not runs:
        return ""
    trained = f"2 to {LONGEST_TRAINED}"
    beyond = range(LONGEST_TRAINED + 1, LONGEST_TESTED + 1)
    head = [f"BLEU: {count} joined" for count in range(1, LONGEST_TESTED + 1)]
    head += [f"{trained}: words", "missing full stops", "extra full stops"]
    head += [f"loss at positions 1 to {LONGEST_TRAINED}", *(f"at {place}" for place in beyond)]
    table = ["", f"| model | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    for name, results in runs.items():
        counts = zip(*(r["by_captions"] for r in results), strict=True)
        cells = [_spread([part["bleu"] for part in parts]) for parts in counts]
        cells[0] += f" ({len(results)})"
        parts = [part for r in results for part in r["by_captions"][1:LONGEST_TRAINED]]
        rows = [part["rows"] for part in parts]
        for key in ("length", "too_few", "too_many"):
            cells.append(f"{np.average([part[key] for part in parts], weights=rows):.0%}")
        losses = np.mean([r["by_captions"][-1]["losses"] for r in results], axis=0)
        losses = [losses[:LONGEST_TRAINED].mean(), *losses[LONGEST_TRAINED:]]
        cells += [f"{loss:.2f}" for loss in losses]
        table.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(table) + "\n"


def figures(folder):
    """Draws BLEU by length, an attention map of each kind, step times and copying."""
    runs = read(folder)
    pictures = {"bleu_by_length": _bleu_by_length(runs)}
    for name, title in (("rnn.additive", "RNN, additive"), ("transformer.self", "Transformer")):
        first = min(runs.get(name, ()), key=lambda result: result["seed"], default=None)
        if first is not None:
            seen = first["attention"]
            pictures[f"attention_{name.split('.')[0]}"] = attention(
                seen["weights"], seen["output"], seen["source"], title
            )
    for path in sorted(Path(folder).glob("step_times.*.json")):
        pictures[path.stem.replace(".", "_")] = _step_times(read_json(path))
    for path in sorted(Path(folder).glob("copying.*.json")):
        pictures[path.stem.replace(".", "_")] = _copying(read_json(path))
    return pictures


def _bleu_by_length(runs):
    curves = {}
    for name, results in runs.items():
        buckets = [[b["bleu"] for b in result["by_length"]] for result in results]
        words = [bucket["words"] for bucket in results[0]["by_length"]]
        several = len(results) > 1
        deviation = np.std(buckets, axis=0, ddof=1) if several else None
        curves[NAMES[name]] = (words, np.mean(buckets, axis=0), deviation)
    return lines(curves, "words of the source", "BLEU", "Translating longer and longer sources")


def _step_times(report):
    curves = {}
    for row in report["rows"]:
        curves.setdefault(row["model"], []).append((row["length"], row["seconds"]))
    curves = {name: (*zip(*points, strict=True), None) for name, points in curves.items()}
    tokens = report["settings"]["tokens"]
    return lines(
        curves,
        "length of source and target",
        "seconds",
        f"A training step of {tokens:,} target tokens ({report['backend']})",
        log_x=True,
        log_y=True,
    )


def _copying(report):
    cells = defaultdict(lambda: defaultdict(list))
    for row in report["rows"]:
        cells[row["model"]][row["length"]].append(100 * row["accuracy"])
    curves = {}
    for name, of_length in cells.items():
        means = [np.mean(values) for values in of_length.values()]
        several = len(next(iter(of_length.values()))) > 1
        deviations = [np.std(values, ddof=1) if several else 0 for values in of_length.values()]
        curves[name] = (list(of_length), means, deviations if several else None)
    return lines(
        curves,
        "steps that a symbol is carried",
        "% of symbols copied",
        "Copying a sequence",
        log_x=True,
    )


def _run_seq2seq(runs, data, results, seeds, progress):
    runner = TranslationRunner(data, results, progress=progress)
    for seed in range(seeds):
        for settings in runs:
            if isinstance(settings, Translation):
                runner.run(settings, seed)
    for settings in runs:
        if not isinstance(settings, Translation):
            measure(settings, results, progress)


_TEST = {"vocabulary_size": 400, "embedding_dim": 16, "hidden_dim": 16, "num_layers": 1,
         "num_heads": 2, "epochs": 1, "limit": 40, "num_beams": 2}  # fmt: skip

# The main comparison comes first: an RNN with and without attention, and the Transformer.
_MODELS = ("additive", "none", "transformer", "dot", "scaled_dot", "bilinear", "cosine")

SUITES = {
    "seq2seq": Suite(
        markdown,
        figures,
        {
            "small": [*(Translation(model) for model in _MODELS), StepTimes(), Copying()],
            "long": [Translation(model, epochs=30) for model in ("transformer", "additive")],
            "test": [
                *(Translation(model, **_TEST) for model in ("additive", "none", "transformer")),
                StepTimes(width=16, vocabulary_size=20, lengths=(4, 8), tokens=16, repeats=1),
                Copying(width=16, symbols=3, lengths=(2, 4), steps=3, tokens=20, seeds=1, test=5),
            ],
        },
        "Bahdanau et al. 2015, table 1 and figure 2; Vaswani et al. 2017, tables 1 and 2",
        published="2014-09",
        run=_run_seq2seq,
    ),
}
