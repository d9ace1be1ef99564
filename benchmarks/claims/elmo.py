"""Published orderings of ELMo, one per row.

`python -m benchmarks claims` judges each row by the results, with the rules in `judge.py`. Rows
stay whatever their verdict. Where the harness lacks the task of a paper, a row uses a similar task
and names the task of the published figures. Figures are copied from the papers. `verified` is
False where figures or ordering were not looked up.
"""

import dataclasses
import math

from benchmarks.claims.arms import (
    ELMO,
    EWT,
    tag_probe,
)
from benchmarks.claims.match import ANY, NATS, Arm
from benchmarks.claims.match import row as _row
from benchmarks.suites.elmo import features as elmo_features
from benchmarks.suites.elmo.features import ADAPTED
from benchmarks.suites.elmo.six_tasks import COREFERENCE
from benchmarks.suites.elmo.six_tasks import TASKS as PAPERS
from keras_plm.experiments.results import ResultFolder

PUBLISHED = "2018-02"  # the earliest paper


def _elmo(row, task, label, suite="elmo_layers", examples=0, **more):
    """Returns the arm of a row of `suites.elmo.features.ROWS`."""
    fields = {"method": "features", "reader": "bilstm", "units": 128, "train_limit": examples}
    own = {of.task: of.reader for of in (*elmo_features.LIMITED, COREFERENCE)}
    if task in own:
        fields |= {"reader": own[task], "units": ANY, "train_limit": ANY, "dev_limit": ANY}
        fields["reader_layers"] = ANY
    fields |= elmo_features.ROWS[row][1]
    if row != "baseline":
        fields |= {"words": "books_skip_gram", "feature_dropout": 0.5}
    encoder = "books_skip_gram" if row == "baseline" else "elmo_mini"
    return Arm(label, suite, task, encoder, fields, **more)


def _elmo_layers():
    figures = {"squad": (80.8, 84.7, 85.0, 85.2), "snli": (88.1, 89.1, 89.3, 89.5),
               "ewt_srl": (81.6, 84.1, 84.6, 84.8)}  # fmt: skip
    on = dict.fromkeys(figures, "") | {"ewt_srl": "OntoNotes F1"}
    chain = (("last", "baseline", "last layer > word vectors only"),
             ("mix_1", "last", "all layers, λ = 1 > last layer"),
             ("mix", "last", "all layers, λ = 0.001 > last layer"),
             ("mix", "mix_1", "all layers, λ = 0.001 > all layers, λ = 1"))  # fmt: skip
    for task in ("wikigold", "sst5", "snli", "squad", "ewt_srl"):
        of = dict(zip(elmo_features.LAYERS, figures.get(task, figures["squad"]), strict=True))
        for one, two, statement in chain:
            labels = statement.split(" > ")
            yield _row(
                f"elmo-t2-{one}-{two}-{task}".replace("_", ""),
                _elmo(one, task, labels[0]),
                _elmo(two, task, labels[1]),
                f"{ELMO}, table 2",
                (of[one], of[two]),
                on.get(task, "SQuAD F1"),
                conclusion=two == "last",
            )


def _elmo_places():
    both, into, out = "ELMo at input and output", "ELMo at the input", "ELMo at the output"
    for task in ("wikigold", "sst5", "ewt_srl"):
        note = "our network has no attention after the reader, like the paper's for semantic roles"
        note, on = ("", "OntoNotes F1") if task == "ewt_srl" else (note, "semantic roles F1")
        arms = {row: _elmo(row, task, label, "elmo_placement")
                 for row, label in (("mix", into), ("both", both), ("output", out))}  # fmt: skip
        for one, two, published in (("mix", "both", (84.7, 84.3)), ("mix", "output", (84.7, 80.9))):
            yield _row(f"elmo-t3-{one}-{two}-{task}", arms[one], arms[two], f"{ELMO}, table 3",
                       published, on, note=note)  # fmt: skip
    for task, figures in (("snli", (89.5, 88.9, 88.7)), ("squad", (85.6, 85.1, 84.8))):
        arms = [_elmo(row, task, label, "elmo_placement")
                 for row, label in (("both", both), ("mix", into), ("output", out))]  # fmt: skip
        for i, names in enumerate(("both-mix", "mix-output")):
            yield _row(f"elmo-t3-{names}-{task}", arms[i], arms[i + 1], f"{ELMO}, table 3",
                       figures[i : i + 2])  # fmt: skip


def _elmo_samples():
    source, suite = f"{ELMO}, figure 1", "sample_efficiency"
    for task, one_percent in (("wikigold", 12), ("sst5", 85)):
        few, whole = (
            [_elmo(row, task, label, suite, examples)
             for row, label in (("mix", "with ELMo"), ("baseline", "without"))]
            for examples in (one_percent, 0)
        )  # fmt: skip
        few, bare = (dataclasses.replace(c, label=f"{c.label}, 1 % of the examples") for c in few)
        yield _row(f"elmo-f1-few-{task}", few, bare, source, on="semantic roles")
        yield _row(
            f"elmo-f1-gain-{task}",
            dataclasses.replace(few, label="gain of ELMo with 1 % of the examples", minus=bare),
            dataclasses.replace(whole[0], label="gain with all examples", minus=whole[1]),
            source,
            on="semantic roles and SNLI",
        )


def _weights(place, pick):
    return lambda result: float(pick(result["mixes"][place]["weights"]))


def _elmo_weights():
    for task in ("wikigold", "sst5", "ewt_srl", "squad", "snli", "litbank"):
        suite = "elmo_tasks" if task == "litbank" else "elmo_placement"
        for place, row, pick, labels in (
            ("input", "mix", (lambda w: w[1], lambda w: max(w[0], w[2])),
             ("weight of layer 1 at the input", "largest other weight")),
            ("output", "output", (lambda w: (w[0] + w[1]) / 2, lambda w: w[2]),
             ("mean weight of the lower layers at the output", "weight of the last layer")),
        ):  # fmt: skip
            if (task, place) == ("litbank", "output"):
                continue  # no suite has it
            one, two = (
                _elmo(row, task, label, suite, value=_weights(place, p))
                for label, p in zip(labels, pick, strict=True)
            )
            yield _row(f"elmo-f2-{place}-{task}", one, two, f"{ELMO}, figure 2",
                       unit="hundredths of a weight", on="all tasks of the paper")  # fmt: skip


def _nearest(label, layer):
    run = "most_frequent" if layer is None else f"nearest-layer_{layer}"
    return Arm(label, "elmo_intrinsic", "semcor", where=lambda r: r.get("run") == run)


def _same_kind(label, encoder, layer):
    return Arm(
        label, "elmo_neighbours", EWT, value=lambda r: r["metrics"][f"layer_{layer}"],
        where=lambda r: (r["encoder"], r.get("run")) == (encoder, "neighbours"),
    )  # fmt: skip


def _adapted(task, label, key):
    def read(folder):
        kept = ResultFolder(folder)
        found = [kept.json(name) for name in kept.names(f"{task}/elmo_mini_on_{task}{ADAPTED}")]
        return {i: -math.log(note[key]["perplexity"]) for i, note in enumerate(found)}

    return Arm(label, "elmo_domain_adaptation", task, read=read)


WSD = "word sense disambiguation F1; here on a tagged text, --task-file semcor.conll"
ROWS = [
    _row("elmo-t1-ner", _elmo("mix", "wikigold", "with ELMo"),
         _elmo("baseline", "wikigold", "word vectors only"), f"{ELMO}, table 1", (92.22, 90.15),
         "CoNLL-2003 F1", conclusion=True),
    _row("elmo-t1-sst5", _elmo("mix", "sst5", "with ELMo"),
         _elmo("baseline", "sst5", "word vectors only"), f"{ELMO}, table 1", (54.7, 51.4),
         conclusion=True),
    _row("elmo-t1-snli", _elmo("both", "snli", "with ELMo"),
         _elmo("baseline", "snli", "word vectors only"), f"{ELMO}, table 1", (88.7, 88.0),
         conclusion=True),
    _row("elmo-t1-squad", _elmo("both", "squad", "with ELMo"),
         _elmo("baseline", "squad", "word vectors only"), f"{ELMO}, table 1", (85.8, 81.1),
         conclusion=True),
    _row("elmo-t1-srl", _elmo("mix", "ewt_srl", "with ELMo"),
         _elmo("baseline", "ewt_srl", "word vectors only"), f"{ELMO}, table 1", (84.6, 81.4),
         "OntoNotes F1", conclusion=True),
    _row("elmo-t1-coreference",
         _elmo("mix", "litbank", "with ELMo", "elmo_tasks", metric=PAPERS["litbank"].metric),
         _elmo("baseline", "litbank", "word vectors only", "elmo_tasks",
               metric=PAPERS["litbank"].metric),
         f"{ELMO}, table 1", (70.4, 67.2), "OntoNotes F1", conclusion=True),
    *_elmo_layers(), *_elmo_places(), *_elmo_samples(), *_elmo_weights(),
    _row("elmo-t4-kind", _same_kind("nearest occurrence by a biLM's last layer", "elmo_mini", 2),
         _same_kind("by word vectors", "books_skip_gram", 0), f"{ELMO}, table 4",
         on="two examples of a noun", note="how often it has the same part of speech"),
    _row("elmo-t5-layers", _nearest("senses: layer 2", 2), _nearest("layer 1", 1),
         f"{ELMO}, table 5", (69.0, 67.4), WSD, conclusion=True),
    _row("elmo-t5-first", _nearest("senses: layer 2", 2), _nearest("most frequent sense", None),
         f"{ELMO}, table 5", (69.0, 65.9), WSD),
    _row("elmo-t6-layers", tag_probe(1, "part of speech: layer 1"), tag_probe(2, "layer 2"),
         f"{ELMO}, table 6", (97.3, 96.8), "Penn Treebank accuracy", conclusion=True),
    *(_row(f"elmo-t7-{task}",
           _adapted(task, "perplexity after fine-tuning on the task's text", "valid"),
           _adapted(task, "before fine-tuning", "valid_before"), f"{ELMO}, table 7", published, on,
           verified=False, **NATS)
      for task, published, on in (("wikigold", (46.3, 103.2), "CoNLL-2003"),
                                  ("sst5", (78.6, 131.5), "SST"))),
]  # fmt: skip
