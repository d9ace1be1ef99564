"""Published orderings of GPT, one per row; see `claims.elmo`.

The other systems in table 3 of the paper are left out, because the harness lacks them.
"""

import dataclasses

from benchmarks.claims.arms import (
    GPT,
    gpt_row,
    transferred,
)
from benchmarks.claims.match import Arm
from benchmarks.claims.match import row as _row
from benchmarks.suites.gpt import ablations as gpt_ablations
from benchmarks.suites.gpt import zero_shot as gpt_zero_shot
from keras_plm.experiments.results import ResultFolder

PUBLISHED = "2018-06"  # the earliest paper

# Table 5, in the order of `suites.gpt.ablations.ABLATION`. SNLI has the figures of MNLI.
TABLE_5 = gpt_ablations.PUBLISHED | {
    "qqp": (70.3, 65.5, 69.8, 68.1), "mnli": (81.8, 75.7, 81.1, 73.7),
    "qnli": (88.1, 71.2, 86.9, 81.1), "snli": (81.8, 75.7, 81.1, 73.7),
}  # fmt: skip
GPT_LABELS = {"full": "GPT", "no_pretraining": "without pre-training",
              "no_auxiliary": "without auxiliary LM", "lstm": "an LSTM"}  # fmt: skip


def _gpt_ablation():
    for task, figures in TABLE_5.items():
        of = dict(zip(gpt_ablations.ABLATION, figures, strict=True))
        for row in ("no_pretraining", "no_auxiliary", "lstm"):
            one, two = ("full", row) if of["full"] > of[row] else (row, "full")
            limit = 0 if (task, row) == ("snli", "no_auxiliary") else None
            yield _row(
                f"gpt-t5-{row.replace('_', '-')}-{task}",
                gpt_row(one, task, GPT_LABELS[one], limit),
                gpt_row(two, task, GPT_LABELS[two], limit),
                f"{GPT}, table 5",
                (of[one], of[two]),
                "MNLI" if task == "snli" else "",
            )


def _gpt_depths():
    labels = ["nothing", "embeddings", *(f"{n} layers" for n in range(1, 4)), "all layers"]
    labels[2] = "1 layer"
    for task, on in (("snli", "MultiNLI"), ("race", "")):
        arms = [gpt_row(row, task, label, suite="gpt_layers_transferred")
                 for row, label in zip(gpt_ablations.DEPTHS, labels, strict=True)]  # fmt: skip
        for less, more in zip(arms, arms[1:], strict=False):
            name = f"gpt-f2-{more.label}-{less.label}-{task}".replace(" ", "")
            more = dataclasses.replace(more, label=f"transferred: {more.label}")
            yield _row(name, more, less, f"{GPT}, figure 2", on=on)


def _zero_shot(task, label, last):
    def read(folder):
        kept = ResultFolder(folder)
        names = kept.names(f"{gpt_zero_shot.KEPT}/gpt_mini.step_*.json")
        found = {r["step"]: r["scores"][task] for r in map(kept.json, names)}
        return {0: found[max(found) if last else 0]} if 0 in found and max(found) else {}

    return Arm(label, "gpt_zero_shot", task, read=read)


def _by_papers_metric(arm, task):
    return dataclasses.replace(arm, metric=gpt_ablations.PAPERS_METRIC.get(task, ""))


def _gain(limit, label):
    with_it, without = (gpt_row(row, "snli", "", limit) for row in ("full", "no_auxiliary"))
    return dataclasses.replace(with_it, label=label, minus=without)


ROWS = [
    _row("gpt-t2-snli", transferred("snli", "gpt_mini"), transferred("snli", "elmo_mini", "frozen"),
         f"{GPT}, table 2", (89.9, 89.3)),
    *(_row(f"gpt-t4-{task}", *(_by_papers_metric(arm, task) for arm in (
               transferred(task, "gpt_mini"), transferred(task, "elmo_mini", "frozen"))),
           f"{GPT}, table 4", published)
      for task, published in (("cola", (45.4, 35.0)), ("sst2", (91.3, 90.2)),
                              ("mrpc", (82.3, 80.2)), ("stsb", (82.0, 55.5)))),
    *_gpt_ablation(), *_gpt_depths(),
    _row("gpt-s5-auxiliary", _gain(0, "gain of the auxiliary LM with 21,605 examples"),
         _gain(5_000, "gain with 5,000"), f"{GPT}, section 5", on="GLUE's tasks by size"),
    *(_row(f"gpt-f2-zero-shot-{task}", _zero_shot(task, "zero-shot, pre-trained", True),
           _zero_shot(task, "zero-shot, random weights", False), f"{GPT}, figure 2")
      for task in ("cola", "sst2")),
]  # fmt: skip
