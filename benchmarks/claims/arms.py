"""Arms of claims that several papers share: probes, frozen and fine-tuned encoders."""

from benchmarks.claims.match import ANY, Arm
from benchmarks.suites.gpt import ablations as gpt_ablations

ELMO, GPT, BERT = "Peters et al. 2018", "Radford et al. 2018", "Devlin et al. 2018"
TUNE, LIU = "Peters, Ruder and Smith 2019", "Liu et al. 2019"
EWT = "ud_english_ewt"
# Task networks for features: Peters et al. 2018 and 2019.
READERS = {"wikigold": "bilstm", "squad": "bidaf", "sst5": "bcn", "sst2": "bcn", "cola": "bcn"}
PAIRS = ("snli", "mrpc", "stsb", "sick_e", "sick_r", "swag", "mnli")
READERS |= dict.fromkeys(PAIRS, "esim")


def tag_probe(layer, label, encoder="elmo_mini"):
    fields = {"method": "features", "layers": f"layer_{layer}"}
    return Arm(label, "elmo_intrinsic", EWT, encoder, fields)


def gpt_row(row, task, label, limit=None, suite="gpt_ablation"):
    """Returns the arm of a row of `suites.gpt.ablations.ROWS`."""
    _, kind, own = gpt_ablations.ROWS[row]
    limit = dict(gpt_ablations.TASKS_READ).get(task, ANY) if limit is None else limit
    fields = {"schedule": "gpt_linear", "bias_correction": True, "train_limit": limit, **own}
    metric = gpt_ablations.PAPERS_METRIC.get(task, "")
    return Arm(label, suite, task, f"{kind}_mini", {"method": "fine_tune", **fields}, metric)


def transferred(task, encoder, how="fine_tune", label=None):
    """Returns an arm of `features_or_fine_tuning`, with an encoder fine-tuned or frozen."""
    name = {"books_skip_gram": "word vectors"}.get(encoder, encoder.split("_")[0])
    name = {"elmo": "ELMo", "gpt": "GPT", "bert": "BERT"}.get(name, name)
    loose = ["train_limit", "dev_limit", "units", "schedule", "layer_decay", "unfreeze_epochs"]
    loose += ["text_pool", "language_model_weight", "bias_correction"]
    fields = {"method": "fine_tune"}
    if how != "fine_tune":
        loose = ["train_limit", "dev_limit", "units", "words", "feature_dropout", "penalty"]
        layers = "last" if name == "word vectors" else "elmo_mix"
        fields = {"method": "features", "reader": READERS[task], "layers": layers}
        if task == "wikigold":
            fields |= {"reader": "bilstm_crf", "character_filters": ANY}
    words = "fine-tuned" if how == "fine_tune" else "frozen"
    fields = dict.fromkeys(loose, ANY) | fields
    return Arm(label or f"{name} {words}", "features_or_fine_tuning", task, encoder, fields)


def frozen_bert(layers, label=None, reader="bilstm", task="wikigold"):
    """Returns an arm of a frozen BERT-mini, from the table in docs/results/first.md."""
    fields = {"method": "features", "layers": layers, "reader": reader}
    return Arm(label or layers, "first", task, "bert_mini", fields)


def trained_bert(method, label, task="wikigold", limit=0):
    return Arm(label, "first", task, "bert_mini", {"method": method, "train_limit": limit})
