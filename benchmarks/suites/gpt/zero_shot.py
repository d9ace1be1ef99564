"""The suite `gpt_zero_shot`: tasks that a language model solves without fine-tuning.

Heuristics derive answers from a model at several points of its pre-training: Radford et al. 2018,
section 5 and figure 2, right.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

import keras_plm
from benchmarks.suites.gpt.ablations import OPTIONS, encoder_folder
from benchmarks.suites.registry import Suite
from keras_plm import metrics
from keras_plm.data.corpus import split_sentences
from keras_plm.data.task import find_file
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import NoResult, ResultFolder, read_json
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.writing import write_json
from keras_plm.plots import lines
from keras_plm.pretraining import token_losses
from keras_plm.tokenizers import open_text
from keras_plm.training.resume import set_seed

KEPT = "zero_shot"  # subfolder of these files in the suite's results
BOOKS = "books/valid.txt"
# {task: (name in tables, metric, score of chance)}
HEURISTICS = {
    "cola": ("CoLA: mean log probability of a token, above a threshold", "Matthews' correlation",
             0.0),
    "sst2": ('SST-2: "positive" or "negative" after "very"', "accuracy", 50.0),
    "next_sentence": ("books: which of four sentences follows, by mean log probability",
                      "accuracy", 25.0),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ZeroShot:
    """Numbers of examples.

    Attributes:
        threshold_from: Training sentences of CoLA that choose the threshold.
        limit: Most scored examples of CoLA and SST-2; 0 takes all.
        questions: Sentences of the held-out book to continue.
        tiny: Whether a model with random weights replaces the pre-trained one.
    """

    threshold_from: int = 2000
    limit: int = 0
    questions: int = 500
    tiny: bool = False


def acceptability(encoder, tokenizer, train, test):
    """Computes Matthews' correlation of CoLA's labels with the mean log probability of a token.

    A threshold on the log probability decides. It is the best one on the training sentences.
    """
    found = {}
    for name, part in (("train", train), ("test", test)):
        losses = token_losses(encoder, tokenizer, [e.text for e in part])
        found[name] = np.array([-of_text.mean() for of_text in losses])
    truth = np.array([e.label == "1" for e in train])
    places = np.quantile(found["train"], np.linspace(0, 1, 101))
    scored = [metrics.matthews_correlation(truth, found["train"] > place) for place in places]
    chosen = places[int(np.argmax(scored))]
    return metrics.matthews_correlation([e.label == "1" for e in test], found["test"] > chosen)


def sentiment(encoder, tokenizer, test):
    """Computes the accuracy of the likelier of two words after the text and "very"."""
    contexts = [f"{e.text.strip()} very" for e in test]
    likely = [
        np.array([-x.sum() for x in token_losses(encoder, tokenizer, [word] * len(test), contexts)])
        for word in ("negative", "positive")
    ]
    predicted = np.where(likely[1] > likely[0], "1", "0").tolist()
    return metrics.accuracy([e.label for e in test], predicted)


def continuation(encoder, tokenizer, questions):
    """Computes the accuracy of the choice whose tokens are likeliest on average."""
    choices = [choice for _, of_question, _ in questions for choice in of_question]
    contexts = [context for context, of_question, _ in questions for _ in of_question]
    means = iter([x.mean() for x in token_losses(encoder, tokenizer, choices, contexts)])
    right = [
        int(np.argmin([next(means) for _ in of_question])) == answer
        for _, of_question, answer in questions
    ]
    return float(np.mean(right))


def book_questions(path, count, seed=0):
    """Draws tuples of a sentence, four sentences of the book, and the index of the next one."""
    pairs, sentences = [], []
    with open_text(path) as file:
        for line in file:
            found = [s for s in split_sentences(line.strip()) if 5 <= len(s.split()) <= 40]
            pairs += list(zip(found, found[1:], strict=False))
            sentences += found
    rng = np.random.default_rng(seed)
    questions = []
    for i in rng.permutation(len(pairs))[:count]:
        context, right = pairs[i]
        others = [sentences[j] for j in rng.integers(len(sentences), size=3)]
        answer = int(rng.integers(4))
        questions.append((context, [*others[:answer], right, *others[answer:]], answer))
    return questions


def run_zero_shot(
    settings,
    data,
    results,
    seeds,
    progress,
    *,
    encoder=None,
    features,
    feature_gb=8.0,
):
    """Does the missing measurements of random weights, the snapshots and the encoder itself."""
    kind = "gpt"
    if encoder and (config := Path(encoder) / "config.json").is_file():
        kind = "lstm" if read_json(config).get("model") == "RecurrentLM" else "gpt"
    folder = Path(encoder_folder(kind, encoder, data, features, settings.tiny))
    points = {int(p.name.removeprefix("step_")): p for p in folder.glob("snapshots/step_*")}
    note = folder / "pretraining.json"
    if note.is_file():
        points[read_json(note)["steps_done"]] = folder
    elif not settings.tiny:
        raise ValueError(
            f"{folder} needs a record of its pre-training: use an encoder of `keras-plm pretrain`. "
            f"Received: no pretraining.json in {str(folder)!r}"
        )
    limit = settings.limit or None
    cola, sst2 = TASKS["cola"], TASKS["sst2"]
    texts = {
        "cola train": cola.read(data, "train")[: settings.threshold_from],
        "cola": cola.read(data, "test")[:limit],
        "sst2": sst2.read(data, "test")[:limit],
    }
    questions = book_questions(find_file(data, BOOKS), settings.questions)
    counts = {"cola": len(texts["cola"]), "sst2": len(texts["sst2"]),
              "next_sentence": len(questions)}  # fmt: skip
    about = [[(e.text, e.label) for e in part] for part in texts.values()] + [questions]
    kept = ResultFolder(results)
    for step, point in [(0, None), *sorted(points.items())]:
        file = f"{KEPT}/{folder.name}.step_{step:06d}.json"
        model, tokenizer = keras_plm.load(point or folder, dtype="float32")
        if point is None:
            set_seed(0)
            model = type(model).from_config(model.get_config())
        key = fingerprint(model, tokenizer, json.dumps(about), dataclasses.asdict(settings))
        if file in kept and kept.json(file)["hash"] == key:
            continue
        scores = {
            "cola": acceptability(model, tokenizer, texts["cola train"], texts["cola"]),
            "sst2": sentiment(model, tokenizer, texts["sst2"]),
            "next_sentence": continuation(model, tokenizer, questions),
        }
        found = {"encoder": folder.name, "step": step, "scores": scores, "counts": counts}
        if note.is_file():
            found["tokens"] = step * read_json(note)["tokens_per_batch"]
        write_json(kept.file(file), found | environment() | {"hash": key})
        shown = ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items())
        progress(f"{folder.name}, step {step:,}: {shown}")


def _read(folder):
    """Returns `{encoder: [result]}`, sorted by step.

    Raises:
        ValueError: If there is no result.
    """
    kept = ResultFolder(folder)
    names = kept.names(f"{KEPT}/*")
    if not names:
        raise NoResult(
            "The folder must hold results: `python -m benchmarks suite gpt_zero_shot` writes "
            f"them. Received: {str(folder)!r}"
        )
    found = {}
    for name in names:
        result = kept.json(name)
        found.setdefault(result["encoder"], []).append(result)
    return {name: sorted(of, key=lambda r: r["step"]) for name, of in found.items()}


def markdown(folder):
    """Returns a table with a row per point of pre-training and a column per heuristic."""
    text = ["| model | pre-training tokens | " + " | ".join(
        f"{name} ({metric}; chance {chance:g})" for name, metric, chance in HEURISTICS.values()
    ) + " |"]  # fmt: skip
    text.append("|---|---:|" + "---:|" * len(HEURISTICS))
    for name, results in _read(folder).items():
        for result in results:
            scores = " | ".join(f"{100 * result['scores'][h]:.1f}" for h in HEURISTICS)
            read = f"{result['tokens'] / 1e6:.1f} M" if "tokens" in result else "?"
            text.append(f"| {name} | {read} | {scores} |")
    return "\n".join(text) + "\n"


def figures(folder):
    """Draws the scores by tokens of pre-training, a picture for each heuristic."""
    found, pictures = _read(folder), {}
    for key, (title, metric, _) in HEURISTICS.items():
        drawn = {}
        for name, results in found.items():
            known = [r for r in results if "tokens" in r]
            if known:
                x = [r["tokens"] / 1e6 for r in known]
                drawn[name] = x, [100 * r["scores"][key] for r in known], None
        if drawn:
            pictures[f"gpt_zero_shot_{key}"] = lines(
                drawn, "tokens of pre-training, in millions", f"{metric}, in points", title
            )
    return pictures


SUITES = {
    "gpt_zero_shot": Suite(
        markdown,
        figures,
        {
            "small": ZeroShot(),
            "test": ZeroShot(threshold_from=20, limit=20, questions=3, tiny=True),
        },
        "Radford et al. 2018, figure 2, right",
        published="2018-06",
        run=run_zero_shot,
        **OPTIONS,
    ),
}
