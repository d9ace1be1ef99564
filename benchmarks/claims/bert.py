"""Published orderings of BERT, one per row; see `claims.elmo`."""

from benchmarks.claims.arms import BERT, frozen_bert, gpt_row, trained_bert, transferred
from benchmarks.claims.match import Arm
from benchmarks.claims.match import row as _row
from benchmarks.suites.bert import ablations as bert_ablations
from benchmarks.suites.gpt import ablations as gpt_ablations

PUBLISHED = "2018-10"  # the earliest paper


def _study(suite, encoder, reading, label, **own):
    """Returns an arm of a BERT of one of the suites in `suites.bert.ablations`."""
    _, task, fields = reading
    fields = {n: v for n, v in fields.items() if n != "epochs"} | own
    return Arm(label, suite, task, encoder, {"method": "fine_tune"} | fields)


def _bert_systems():
    """Yields rows of tables 1, 2 and 4: BERT next to GPT and next to ELMo under a task network."""
    by_gpt = {"snli": (84.6, 82.1), "sst5": (93.5, 91.3)}
    for task, on in (("snli", "MNLI"), ("sst5", "SST-2")):
        yield _row(f"bert-t1-gpt-{task}", transferred(task, "bert_mini"),
                   transferred(task, "gpt_mini"), f"{BERT}, table 1", by_gpt[task], on,
                   conclusion=True)  # fmt: skip
    for task, published in (("cola", (52.1, 45.4)), ("mrpc", (88.9, 82.3)), ("rte", (66.4, 56.0))):
        metric = gpt_ablations.PAPERS_METRIC.get(task, "")
        yield _row(
            f"bert-t1-gpt-{task}",
            Arm(
                "BERT fine-tuned", "bert_tasks", task, "bert_mini", {"method": "fine_tune"}, metric
            ),
            gpt_row("full", task, "GPT fine-tuned"),
            f"{BERT}, table 1",
            published,
            conclusion=True,
        )
    for task, published, on in (("snli", (84.6, 76.4), "MNLI"), ("sst5", (93.5, 90.4), "SST-2")):
        yield _row(f"bert-t1-elmo-{task}", transferred(task, "bert_mini"),
                   transferred(task, "elmo_mini", "frozen"), f"{BERT}, table 1", published,
                   on)  # fmt: skip
    squad = [transferred("squad", "bert_mini"), transferred("squad", "elmo_mini", "frozen")]
    yield _row("bert-t2-elmo-squad", *squad, f"{BERT}, table 2", (88.5, 85.6))
    swag = [("bert_mini", "fine_tune"), ("elmo_mini", "frozen"), ("books_skip_gram", "frozen")]
    arms = [transferred("swag", *which) for which in swag]
    for name, i, published in (("bert-elmo", 0, (81.6, 59.1)), ("elmo-words", 1, (59.1, 51.9))):
        yield _row(f"bert-t4-{name}", arms[i], arms[i + 1], f"{BERT}, table 4",
                   published)  # fmt: skip


def _bert_objectives():
    suite, source = "bert_objectives", f"{BERT}, table 5"
    masked, leftward, top = "masked words only", "left to right", "left to right, a BiLSTM on top"
    for reading, task, on, bert, no_next, ltr, bilstm in (
        (bert_ablations.SNLI, "snli", "MNLI", 84.4, 83.9, 82.1, None),
        (bert_ablations.NER, "wikigold", "SQuAD F1", 88.5, 87.9, 77.8, 84.9),
    ):
        arms = {
            "next": _study(suite, "bert", reading, "masked words and next sentence"),
            "masked": _study(suite, "masked", reading, masked),
            "left": _study(suite, "left_to_right", reading, leftward),
            "top": _study(suite, "left_to_right", reading, top, reader="bilstm"),
        }
        figures = {"next": bert, "masked": no_next, "left": ltr, "top": bilstm}
        pairs = [("next", "masked"), ("masked", "left")]
        pairs += [("top", "left"), ("masked", "top")] if bilstm else []
        for one, two in pairs:
            yield _row(f"bert-t5-{one}-{two}-{task}", arms[one], arms[two], source,
                       (figures[one], figures[two]), on, conclusion=two == "left")  # fmt: skip
        scratch = _study(suite, "bert", reading, "no pre-training", method="scratch")
        yield _row(f"bert-end-study-{task}", arms["next"], scratch, f"{BERT}, conclusion",
                   verified=False, conclusion=True)  # fmt: skip


def _bert_sizes():
    labels = {"bert": "2 layers, 128 wide", "mini": "4 layers, 256 wide",
              "small": "4 layers, 512 wide"}  # fmt: skip
    for large, less, published, on in (
        ("mini", "bert", (81.9, 77.9), "MNLI; 6 layers and 3"),
        ("small", "mini", (84.4, 81.9), "MNLI; 12 layers and 6"),
    ):
        for reading, task in ((bert_ablations.SNLI, "snli"), (bert_ablations.NER, "wikigold")):
            arms = [_study("bert_size", name, reading, labels[name]) for name in (large, less)]
            yield _row(f"bert-t6-{large}-{task}", *arms, f"{BERT}, table 6", published, on)


def _bert_masks():
    """Yields rows of table 8: the paper's mix of replacements next to other mixes."""
    frozen = dict(zip(bert_ablations.MIXES, (94.9, 94.0, 94.6, 94.7, 94.6, 94.6), strict=True))
    tuned = dict(zip(bert_ablations.MIXES, (95.4, 94.9, 95.2, 95.2, 94.8, 94.9), strict=True))
    mnli = dict(zip(bert_ablations.MIXES, (84.2, 84.3, 84.1, 84.4, 83.7, 83.6), strict=True))
    ours, suite = bert_ablations.MIXES[0], "bert_masking"
    for reading, figures, on, name in (
        (bert_ablations.FROZEN, frozen, "CoNLL-2003 F1, frozen", "frozen"),
        (bert_ablations.NER, tuned, "CoNLL-2003 F1", "ner"),
        (bert_ablations.SNLI, mnli, "MNLI", "snli"),
    ):
        for mix in list(figures)[1:]:
            words = "{} % mask, {} % same, {} % random".format(*mix)
            kept = "80 % mask, 10 % same, 10 % random"
            arms = [
                (figures[ours], _study(suite, "bert", reading, f"{kept}; {reading[0]}")),
                (figures[mix], _study(suite, "mix_{}_{}_{}".format(*mix), reading, words)),
            ]
            published, sides = zip(*sorted(arms, key=lambda arm: -arm[0]), strict=True)
            number = "-".join(map(str, mix))
            yield _row(f"bert-t8-{name}-{number}", *sides, f"{BERT}, table 8", published, on)


def _bert_steps():
    steps, source = bert_ablations.STUDIES["bert_steps"].pretraining.steps, f"{BERT}, figure 5"

    def at(encoder, halvings, label):
        point = encoder if halvings == 0 else f"{encoder}_step_{steps >> halvings:06d}"
        return _study("bert_steps", point, bert_ablations.SNLI, label)

    masked, left = "masked words", "left to right"
    yield _row("bert-f5-longer", at("masked", 0, f"{masked}, all steps"),
               at("masked", 1, f"{masked}, half of the steps"), source, on="MNLI")  # fmt: skip
    yield _row("bert-f5-early", at("left_to_right", 6, f"{left}, the first 64th of the steps"),
               at("masked", 6, f"{masked}, as many steps"), source, on="MNLI")  # fmt: skip
    yield _row("bert-f5-half", at("masked", 1, f"{masked}, half of the steps"),
               at("left_to_right", 1, f"{left}, as many steps"), source, on="MNLI")  # fmt: skip


T7 = f"{BERT}, table 7"
FOUR = "all four blocks are the last four"
ROWS = [
    *_bert_systems(), *_bert_objectives(), *_bert_sizes(),
    *(_row(f"bert-t7-{one}-{two}".replace("_", ""), frozen_bert(one), frozen_bert(two), T7,
           published, "CoNLL-2003 F1", note=FOUR if "four" in one + two else "")
      for one, two, published in (
          ("concat_last_four", "weighted_sum_last_four", (96.1, 95.9)),
          ("concat_last_four", "last", (96.1, 94.9)),
          ("weighted_sum_last_four", "second_to_last", (95.9, 95.6)),
          ("second_to_last", "last", (95.6, 94.9)),
          ("last", "embeddings", (94.9, 91.0)))),
    _row("bert-t7-finetune-concat", trained_bert("fine_tune", "fine-tuned"),
         frozen_bert("concat_last_four"), T7, (96.4, 96.1), "CoNLL-2003 F1", note=FOUR),
    _row("bert-t7-elmo", transferred("wikigold", "bert_mini"),
         transferred("wikigold", "elmo_mini", "frozen"), T7, (92.4, 92.2), "CoNLL-2003 test F1"),
    *_bert_masks(), *_bert_steps(),
    *(_row(f"bert-end-{task}", trained_bert("fine_tune", "pre-trained, fine-tuned", task, limit),
           trained_bert("scratch", "random weights, all trained", task, limit),
           f"{BERT}, conclusion", verified=False, conclusion=True)
      for task, limit in (("wikigold", 0), ("sst5", 0), ("sst2", 10_000))),
    *(_row(f"bert-end-few-{task}", gpt_row("full", task, "few examples: GPT pre-trained"),
           gpt_row("no_pretraining", task, "random weights"), f"{BERT}, conclusion", verified=False,
           conclusion=True)
      for task in ("rte", "mrpc")),
]  # fmt: skip
