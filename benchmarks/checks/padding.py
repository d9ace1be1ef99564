"""Counts the tokens that a model computes for each token of text, with several kinds of padding.

`python -m benchmarks check padding --data DATA` forms the training batches of tasks and of
pre-training with masked words. It trains nothing, so the numbers do not depend on the machine.
Packing several texts into a row could at most divide the tokens by this ratio.
"""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import TokenStream
from keras_plm.data.examples import batches
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import read_json
from keras_plm.files.writing import write_json
from keras_plm.pretraining import masked_lm_batches

FILE = "check_padding.json"
CHOSEN = ("wikigold", "wnut17", "ud_english_ewt", "sst2", "sst5", "cr", "subj", "cola", "mrpc",
          "rte", "stsb", "snli", "ewt_srl")  # fmt: skip
ROWS, LENGTH, EXAMPLES = 32, 128, 20_000
BOOKS = "books/valid.txt.gz"  # text of pre-training
KINDS = ("longest row of all", "longest row of a random batch", "four lengths", "eight lengths",
         "longest row of a batch of similar lengths")  # fmt: skip


def tokens_computed(source):
    """Counts the tokens of training batches.

    Args:
        source: `Batches` of 32 rows.

    Returns:
        A dict: the number of `rows`, their `mean_length`, and `ratios`: `{kind of padding: tokens
        per token of text}`.
    """
    lengths = np.asarray(source.row_lengths(0))
    order = np.random.default_rng(0).permutation(len(lengths))
    random = (order[first : first + ROWS] for first in range(0, len(order), ROWS))

    def planned(of, to_longest=False):
        of.pad_to_longest = to_longest
        return sum(length * len(rows) for length, rows in of.plan(0))

    eight = Batches(lengths, None, batch_size=ROWS, buckets=8, longest=LENGTH)

    counts = (
        len(lengths) * lengths.max(),
        sum(len(rows) * lengths[rows].max() for rows in random),
        planned(source),
        planned(eight),
        planned(source, to_longest=True),
    )
    ratios = (round(float(count / lengths.sum()), 3) for count in counts)
    mean = round(float(lengths.mean()), 1)
    return {
        "rows": len(lengths),
        "mean_length": mean,
        "ratios": dict(zip(KINDS, ratios, strict=True)),
    }


def of_task(name, data, tokenizer):
    """Returns the training `Batches` of a task, without its labels."""
    examples = TASKS[name].read(data, "train")[:EXAMPLES]
    texts = [dataclasses.replace(example, label=None, predicate=None) for example in examples]
    return batches(texts, tokenizer, max_length=LENGTH, batch_size=ROWS)


def of_pretraining(data, tokenizer, folder) -> Batches:
    """Returns the first epoch of masked words in pairs of segments of books."""
    stream = TokenStream.build(Path(data, BOOKS), tokenizer, Path(folder) / "stream")
    return masked_lm_batches(stream, tokenizer, max_length=LENGTH, batch_size=ROWS)


def check_padding(data, out, encoder="all-MiniLM-L6-v2", tasks=CHOSEN, progress=print):
    """Counts the tokens of tasks and of pre-training, and writes a result file.

    Args:
        data: Data folder.
        out: JSON file to write.
        encoder: Folder or name of a checkpoint with a tokenizer.
        tasks: Names of tasks.
        progress: Called with a line for each task.

    Returns:
        The content of the file.
    """
    from keras_plm.checkpoints import load

    _, tokenizer = load(encoder)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        makers = {name: lambda name=name: of_task(name, data, tokenizer) for name in tasks}
        makers["masked words, books"] = lambda: of_pretraining(data, tokenizer, folder)
        for name, make in makers.items():
            row = found[name] = tokens_computed(make())
            ratios = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"].values())
            progress(f"{name}: {row['mean_length']} tokens, {ratios}")
    settings = {"encoder": str(encoder), "batch_size": ROWS, "max_length": LENGTH}
    report = {"results": found, **settings, "examples": EXAMPLES, **environment()}
    write_json(out, report)
    progress(f"{markdown(out)}\nResult file: {out}")
    return report


def markdown(path):
    """Returns the table of a result file of `check_padding`."""
    head = ["training batches", "tokens of a row, mean", *KINDS]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, row in read_json(path)["results"].items():
        ratios = [f"{row['ratios'][kind]:.2f}" for kind in KINDS]
        lines.append(f"| {' | '.join([name, str(row['mean_length']), *ratios])} |")
    return "\n".join(lines) + "\n"
