"""Published orderings of fine-tuning and frozen layers, and of layers; see `claims.elmo`."""

import itertools
from pathlib import Path

from benchmarks.claims.arms import (
    BERT,
    LIU,
    TUNE,
    frozen_bert,
    tag_probe,
    trained_bert,
    transferred,
)
from benchmarks.claims.match import ANY, Arm
from benchmarks.claims.match import row as _row
from keras_plm.experiments.report.edge_probes import read_counts, read_records, resampled_layers

PUBLISHED = "2019-03"  # the earliest paper


def _tune():
    """Yields rows of fine-tuning against a frozen encoder with a mix of all layers."""
    source = f"{TUNE}, features and fine-tuning"
    elmo = {"wikigold": ("NER", 91.7, 91.9), "sst5": ("SST-2", 91.8, 91.2),
            "snli": ("MNLI", 79.6, 76.4), "sick_r": ("", 86.1, 83.3), "mrpc": ("", 76.0, 74.7),
            "stsb": ("", 75.9, 75.5)}  # fmt: skip
    bert = {"wikigold": ("NER", 92.2, 92.4), "sst5": ("SST-2", 93.0, 93.5),
            "sick_e": ("", 84.8, 85.8), "sick_r": ("", 86.4, 88.7), "mrpc": ("", 78.1, 84.8),
            "stsb": ("", 82.9, 87.1)}  # fmt: skip
    for encoder, table in (("elmo", elmo), ("bert", bert)):
        for task, (on, *figures) in table.items():
            arms = [transferred(task, f"{encoder}_mini", how) for how in ("frozen", "fine_tune")]
            if figures[0] < figures[1]:
                arms, figures = arms[::-1], figures[::-1]
            yield _row(f"tune-{encoder}-{task}".replace("_", ""), *arms, source, tuple(figures),
                       on, verified=False)  # fmt: skip
    yield _row("tune-bert-first", trained_bert("fine_tune", "BERT fine-tuned"),
               frozen_bert("elmo_mix", "mix of its frozen layers under a BiLSTM"), source,
               (92.4, 92.2), "CoNLL-2003 F1", verified=False, note="no CRF")  # fmt: skip


def _minilm(task, label, **fields):
    """Returns an arm of the suite `minilm`."""
    free = dict.fromkeys(("train_limit", "dev_limit"), ANY)
    return Arm(label, "minilm", task, "all-MiniLM-L6-v2", free | fields)


def _released():
    """Yields rows of a released encoder, on tasks whose data it has not seen.

    No row compares its layers: its last layer was tuned to give vectors of sentences.
    """
    figures = {"wikigold": ("NER", 92.4, 92.2), "sst5": ("SST-2", 93.5, 93.0),
               "mrpc": ("", 84.8, 78.1), "stsb": ("", 87.1, 82.9)}  # fmt: skip
    for task, (on, *published) in figures.items():
        tuned = _minilm(task, "MiniLM fine-tuned", method="fine_tune")
        frozen = _minilm(task, "a linear head on its mix of frozen layers", method="features",
                         layers="elmo_mix")  # fmt: skip
        scratch = _minilm(task, "random weights, all trained", method="scratch")
        yield _row(f"tune-minilm-{task}", tuned, frozen, f"{TUNE}, features and fine-tuning",
                   tuple(published), on, verified=False,
                   note="no task network over the frozen layers")  # fmt: skip
        yield _row(f"bert-end-minilm-{task}", tuned, scratch, f"{BERT}, conclusion",
                   verified=False, conclusion=True)  # fmt: skip


EDGES = ("part_of_speech", "dependencies", "entities", "roles", "coreference")


def _edges(kind):
    """Returns the arm of the expected layer of a task of edge probing, in BERT-mini."""

    def records(folder):
        path = Path(folder) / "bert_mini.json"
        found = read_records(path) if path.exists() else []
        return path, [r for r in found if r["task"] == kind and not r["random"]]

    def read(folder):
        own = records(folder)[1]
        return {r["seed"]: r["expected_layer"] for r in own if r["expected_layer"] is not None}

    def draws(folder):
        path, own = records(folder)
        kept = [read_counts(path, own).get(r["key"]) for r in own]
        return resampled_layers(kept, EDGES.index(kind)) if kept and None not in kept else None

    label = f"expected layer of {kind.replace('_', ' ')}"
    return Arm(label, "edge_probing", "edges", read=read, draws=draws)


def _pipeline():
    """Yields the order of expected layers, each task above the one before it.

    Entities and part of speech are compared too, because dependencies need other data.
    """
    for lower, higher in (*itertools.pairwise(EDGES), ("part_of_speech", "entities")):
        yield _row(f"tenney-{lower}-{higher}".replace("_", ""), _edges(higher), _edges(lower),
                   "Tenney, Das and Pavlick 2019, order of tasks", unit="hundredths of a layer",
                   verified=False, conclusion=True)  # fmt: skip


MIDDLE, LSTM = f"{LIU}, layers of Transformers", f"{LIU}, layers of LSTMs"
ROWS = [
    *_tune(), *_released(), *_pipeline(),
    _row("liu-lstm-higher", tag_probe(1, "part of speech: a biLM's layer 1"),
         tag_probe(2, "layer 2"), LSTM),
    _row("liu-lstm-lower", tag_probe(1, "part of speech: a biLM's layer 1"),
         tag_probe(0, "layer 0"), LSTM),
    _row("liu-middle-last", frozen_bert("layer_2", "names: BERT's middle layer", "linear"),
         frozen_bert("last", "last layer", "linear"), MIDDLE),
    _row("liu-middle-first", frozen_bert("layer_2", "names: BERT's middle layer", "linear"),
         frozen_bert("embeddings", "embeddings", "linear"), MIDDLE),
    _row("liu-t1-ewt", tag_probe(1, "part of speech: a biLM's layer 1"),
         tag_probe(0, "word vectors", "books_skip_gram"), f"{LIU}, table 1", (95.61, 83.93),
         verified=False),
    _row("liu-t1-ner", frozen_bert("layer_2", "names: BERT's middle layer", "linear"),
         Arm("word vectors", "words", "wikigold", "books_skip_gram",
              {"method": "features", "layers": "last"}), f"{LIU}, table 1", (82.71, 53.22),
         "CoNLL-2003 F1", verified=False),
]  # fmt: skip
