"""Files of trained heads, and the inputs of `predict`."""

import dataclasses
import functools
import json
import tempfile
from pathlib import Path

from keras_plm.experiments.predict import open_model, predict, read_inputs
from keras_plm.heads import Classifier, CoreferenceResolver, MultipleChoice, SpanFinder, Tagger
from keras_plm.training.resume import set_seed
from tests.fuzz.cases import Reader
from tests.fuzz.readers.examples import CONLL, SQUAD, rows_of_json_lines
from tests.fuzz.readers.tokens import WORDPIECE, find
from tests.fuzz.readers.weights import bert, finite


def head(kind):
    """Returns a small trained head."""
    set_seed(0)
    options = {"tokenizer": WORDPIECE}
    if kind == "answers":
        return SpanFinder(bert(64), **options)
    if kind == "choices":
        return MultipleChoice(bert(64), labels=range(2), **options)
    if kind == "documents":
        return CoreferenceResolver(bert(64), hidden_dim=4, pair_dim=4, **options)
    if kind == "tags":
        return Tagger(bert(64), labels=["O", "B-PER"], **options)
    return Classifier(bert(64), labels=["bad", "good"], **options)


@functools.cache
def opened(kind):
    """Returns the same head, read from its file."""
    with tempfile.TemporaryDirectory() as folder:
        head(kind).save(Path(folder) / "m.keras")
        return open_model(Path(folder) / "m.keras")


def open_and_predict(folder):
    model = open_model(folder / "m.keras")
    pairs = ["we saw it"] if model.trained_on_pairs else None
    model.predict(["a good film"], pairs=pairs)
    return model


def shorter(example, most=10_000):
    """Shortens an example so that prediction is fast."""
    if getattr(example, "sentences", None):
        return example
    pair = example.pair and example.pair[:most]
    return dataclasses.replace(example, text=example.text[:most], pair=pair)


def predicting(kind, name):
    def read(folder):
        model = opened(kind)
        examples = [shorter(e) for e in read_inputs(find(folder, name), model)[:6]]
        answers, likely = kind == "answers", kind not in ("answers", "documents")
        with tempfile.TemporaryDirectory() as other:
            written = predict(model, examples, Path(other) / "out.json", likely)
        rows = json.loads(written) if answers else rows_of_json_lines(written)
        return len(examples), len({e.id for e in examples}) if answers else None, len(rows)

    return read


def as_many(folder, counts):
    examples, names, rows = counts
    if rows != (examples if names is None else names):
        return f"{rows} predictions for {examples} inputs"
    return None


INPUTS = {
    "txt": ("labels", {"x.txt": "a good film\nwe saw it\n"}, "text"),
    "csv": ("labels", {"x.csv": "text,pair\na good film,it is\nwe saw it,no\n"}, "text"),
    "jsonl": ("labels", {"x.jsonl": '{"text": "a film", "n": 1}\n{"text": "we saw"}\n'}, "jsonl"),
    "jsonl_tags": ("tags", {"x.jsonl": '{"text": ["Ann", "met"]}\n{"text": ["it"]}\n'}, "jsonl"),
    "conll": ("tags", {"x.conll": CONLL}, "text"),
    "txt_tags": ("tags", {"x.txt": "Ann met Tom\nit was\n"}, "text"),
    "jsonl_choices": ("choices", {
        "x.jsonl": '{"text": "Ann", "choices": ["a", "it"]}\n{"text": "b", "choices": ["c", "d"]}\n'
    }, "jsonl"),
    "jsonl_documents": ("documents", {
        "x.jsonl": '{"sentences": [["Ann", "met", "Tom"], ["it"]]}\n{"sentences": [["b"]]}\n'
    }, "jsonl"),
    "txt_documents": ("documents", {"x.txt": "Ann met Tom\nit was\n\nb c\n"}, "text"),
    "squad": ("answers", {"x.json": SQUAD}, "json"),
}  # fmt: skip

READERS = [
    Reader("keras_model", lambda f: head("labels").save(f / "m.keras"), open_and_predict,
           {"m.keras": "zip"}, lambda f, model: finite(model), 0.3),
    *(Reader(f"predict_{name}", files, predicting(kind, next(iter(files))),
             dict.fromkeys(files, mutation), as_many, 0.3)
      for name, (kind, files, mutation) in INPUTS.items()),
]  # fmt: skip
