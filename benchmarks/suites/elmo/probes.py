"""The suite `elmo_intrinsic`: part of speech and sense from each layer of a biLM.

One method is the nearest average. It averages the occurrences in the training text per word and
tag, and gives a word of the test text the tag of its nearest average. The other method is a linear
probe. Parts of speech are those of English EWT. Senses come from the user's tagged text, or from
the microworld, where the same name is a person, place or firm depending on the sentence.
"""

import dataclasses
import time
from pathlib import Path

import numpy as np

from benchmarks.suites.elmo.features import OPTIONS, TEST_MATERIAL, Material, shown
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.task import Task
from keras_plm.datasets.microworld import World
from keras_plm.datasets.tasks import TASKS, task_from_file
from keras_plm.experiments.config import Run
from keras_plm.experiments.environment import environment
from keras_plm.experiments.pretraining.pretrain import pretrain
from keras_plm.experiments.pretraining.settings import Pretraining
from keras_plm.experiments.pretraining.word_vectors import Vectors, make_word_vectors
from keras_plm.experiments.progress import pretraining_line
from keras_plm.experiments.results import NoResult, Record, read_results, result_hash, result_name
from keras_plm.experiments.runner import Runner
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.writing import write_text
from keras_plm.heads import Tagger
from keras_plm.metrics import accuracy
from keras_plm.transfer.feature_store import FeatureStore

POS = "ud_english_ewt"
SENSE = "micro_sense"
NAMES = 24  # so few that training shows each name in all its senses
METHOD, BASELINE = "nearest", "most_frequent"
VERSION = 1  # version of the method of nearest averages
TIE = 1e-6
# A biLM trained for four passes over the microworld's 150,000 words, and word vectors of them.
TINY = Pretraining(
    model="elmo",
    size="tiny",
    tokens=6e5,
    vocabulary_size=1000,
    sentences="lines",
    tokens_per_batch=640,
)
TINY_VECTORS = Vectors(dim=64, epochs=5, min_count=1)


@dataclasses.dataclass(frozen=True)
class Intrinsic:
    """The settings at a scale. Sense has few sentences and needs more passes over them."""

    material: Material = Material()
    learning_rates: str = "5e-3,2.5e-2,1e-1"
    epochs: int = 5
    sense_epochs: int = 30
    limit: int = 0
    documents: int = 2500
    pretraining: Pretraining = TINY
    vectors: Vectors = TINY_VECTORS


SCALES = {
    "small": Intrinsic(),
    "test": Intrinsic(
        TEST_MATERIAL,
        learning_rates="1e-2",
        epochs=1,
        sense_epochs=1,
        limit=40,
        documents=40,
        pretraining=dataclasses.replace(
            TINY, tokens=2000, tokens_per_batch=100, vocabulary_size=200
        ),
        vectors=Vectors(dim=8, min_count=1),
    ),
}


def micro_elmo(folder, documents=2500, settings=TINY, progress=None):
    """Pre-trains a biLM on the microworld's corpus, unless it exists. This takes a minute or two.

    Args:
        folder: Folder of the encoder. The corpus file is next to it.
        documents: Number of documents of the corpus.
        settings: A `Pretraining`.
        progress: Called with a dict, see `pretrain`.

    Returns:
        `(folder of the encoder, file of the corpus)`.
    """
    folder = Path(folder)
    corpus = folder.with_name(folder.name + ".txt")
    documents = World().corpus(documents)
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    if not corpus.is_file() or corpus.read_text() != text:
        write_text(corpus, text)
    pretrain(settings, [corpus], folder, resume=True, progress=progress)
    return folder, corpus


def tagged_accuracy(y_true, y_pred):
    """Returns the accuracy on words whose true tag is not "O", in [0, 1].

    >>> tagged_accuracy([["O", "PER", "LOC"]], [["LOC", "PER", "PER"]])
    0.5
    """
    pairs = [
        pair
        for true, pred in zip(y_true, y_pred, strict=True)
        for pair in zip(true, pred, strict=True)
        if pair[0] != "O"
    ]
    return accuracy([true for true, _ in pairs], [pred for _, pred in pairs])


def sense_task():
    """Returns a task: sentences with the same few names in all roles, tagged by role."""
    world = World()
    world.names = dict.fromkeys(world.names, world.names["corpus"][:NAMES])
    return Task(
        SENSE,
        lambda folder, split: world.tag_names(split),
        Tagger,
        {"tagged_accuracy": tagged_accuracy},
        source="keras_plm/datasets/microworld.py",
        licence="Apache-2.0",
    )


def own_task(path, text, label):
    """Returns the task of sense of a tagged text in columns. Words tagged "O" have no sense.

    Raises:
        ValueError: If the file does not label words.
    """
    task = task_from_file(path, text, label)
    if task.head is not Tagger:
        raise ValueError(
            "Senses need a label per word: give a text with a word and its tag on each line "
            "(.conll), or lists of words and tags (.jsonl). "
            f"Received: one label per text, in {str(path)!r}"
        )
    return dataclasses.replace(task, metrics={"tagged_accuracy": tagged_accuracy})


def run_intrinsic(
    scale,
    data,
    results,
    seeds,
    progress,
    *,
    encoder=None,
    words=None,
    features,
    feature_gb=8.0,
    task_file=None,
    text=None,
    label=None,
):
    """Does the missing measurements; linear probes have seeds, nearest averages have none."""
    if task_file is None and (text, label) != (None, None):
        raise ValueError(
            "`--text` and `--label` need a --task-file: add it or omit them. "
            f"Received: --text {text}, --label {label}"
        )
    sense = sense_task() if task_file is None else own_task(task_file, text, label)
    encoder = scale.material.encoder_folder(encoder, features)
    words = scale.material.words_folder(words, data, features, progress)
    todo = [(TASKS[POS], encoder, words)]
    if task_file is None:
        todo.append((sense, *_micro(scale, features, progress)))
    else:
        todo.append((sense, encoder, words))
    common = {"method": "features", "learning_rates": scale.learning_rates}
    common |= {"train_limit": scale.limit}
    runners = [
        (Runner(task, data, folder, results, features, feature_gb, progress), kind)
        for task, *folders in todo
        for folder, kind in zip(folders, ("biLM", "words"), strict=True)
    ]
    for runner, kind in runners:
        nearest(runner, kind, scale.limit)
    for seed in range(seeds):
        for runner, _ in runners:
            epochs = scale.epochs if runner.task.name == POS else scale.sense_epochs
            for layer in range(len(runner.pretrained.output["layers"])):
                runner.run(Run(layers=f"layer_{layer}", epochs=epochs, **common), seed)


def _micro(scale, features, progress):
    """Makes the microworld's biLM and word vectors once; returns their folders."""
    suffix = "" if scale == SCALES["small"] else "_test"
    steps = scale.pretraining.steps
    folder, corpus = micro_elmo(
        Path(features) / f"micro_elmo{suffix}",
        scale.documents,
        scale.pretraining,
        lambda entry: progress(f"micro_elmo  {pretraining_line(entry, steps)}"),
    )
    words = Path(features) / f"micro_skip_gram{suffix}"
    if not (words / "config.json").is_file():
        make_word_vectors(scale.vectors, [corpus], words, progress)
    return str(folder), str(words)


def nearest(runner, kind, limit=0):
    """Scores each layer by nearest averages, with the task, encoder and folders of `runner`.

    Writes a result for each layer, and one for the most frequent tag of each word.
    """
    parts = {
        "train": runner.train_examples(Run(train_limit=limit)),
        "test": runner.examples["test"],
    }
    layers = len(runner.pretrained.output["layers"])
    texts = [[[e.text, e.label] for e in part] for part in parts.values()]
    inputs = fingerprint(runner.pretrained, runner.tokenizer, texts)
    of_words = fingerprint(texts)
    todo = [(None, "no_encoder", BASELINE, {}, of_words)]
    for layer in range(layers):
        own = {"layers": f"layer_{layer}", "kind": kind}
        todo.append((layer, runner.name, f"{METHOD}-layer_{layer}", own, inputs))
    task, kept = runner.task.name, runner.kept
    todo = [
        (layer, encoder, run, settings, about, result_hash(task, settings, 0, [about, VERSION]))
        for layer, encoder, run, own, about in todo
        for settings in ({"train_limit": limit, **own},)
    ]
    todo = [row for row in todo if kept.done(result_name(task, *row[1:3], 0), row[-1]) is None]
    if not todo:
        return
    begun = time.monotonic()
    stores = {}
    for name, part in parts.items():
        stores[name] = FeatureStore.build(
            runner.store, runner.pretrained, runner.tokenizer, part, None, runner.feature_gb
        )
        if list(stores[name].counts) != [len(e.text) for e in part]:
            raise ValueError(
                "The suites of ELMo compare words: use a tokenizer that keeps the words of a "
                f"list. Received: {runner.name} on {runner.task.name}"
            )
    flat = {
        name: [(w, tag) for e in part for w, tag in zip(e.text, e.label, strict=True)]
        for name, part in parts.items()
    }
    counts = {f"{name} words": len(pairs) for name, pairs in flat.items()}

    for layer, encoder, run, settings, about, hash in todo:
        vectors = [None if layer is None else stores[s].array[:, layer] for s in ("train", "test")]
        scores = nearest_average(vectors[0], flat["train"], vectors[1], flat["test"])
        metrics = {name: scores.pop(name) for name in ("accuracy", "several")}
        record = Record(
            task=task,
            encoder=encoder,
            method=run.partition("-")[0],
            run=run,
            settings=settings,
            score=metrics["accuracy"],
            metrics=metrics,
            counts=counts | scores,
            seconds=round(time.monotonic() - begun, 1),
            hash=hash,
            inputs=about,
            **environment(),
        )
        kept.write(result_name(task, encoder, run, 0), record)
        numbers = ", ".join(f"{n} {100 * v:.1f}" for n, v in metrics.items() if v is not None)
        runner.say(f"{encoder} {run}: {numbers}")


def nearest_average(train_vectors, train, test_vectors, test):
    """Computes the accuracy of the nearest average per word and tag, without words tagged "O".

    Similarity is cosine. An unseen word takes the most frequent tag of the text. Among equally near
    averages, the more frequent tag of the word wins.

    Reference: Peters et al. 2018, arXiv 1802.05365, section 5.3, after Melamud et al. 2016.

    Args:
        train_vectors, test_vectors: (N, D) vectors of the words, or `None` to use only the most
            frequent tag of each word.
        train, test: Lists of N pairs of word and tag.

    Returns:
        A dict: `accuracy`; `several`, the accuracy on words with more than one tag in training, or
        `None` without such words; and the numbers of words `tested`, `tested_several`, `unseen`.
    """
    pairs = {}
    for row, (word, tag) in enumerate(train):
        if tag != "O":
            pairs.setdefault(word, {}).setdefault(tag, []).append(row)
    totals = {}
    for tags in pairs.values():
        for tag, rows in tags.items():
            totals[tag] = totals.get(tag, 0) + len(rows)
    tested = {}
    for row, (word, tag) in enumerate(test):
        if tag != "O":
            tested.setdefault(word, []).append(row)
    if not totals or not tested:
        raise ValueError(
            'Training and test words need tags other than "O": give a text with such tags. '
            f"Received: {len(pairs)} such words in training, {len(tested)} to test"
        )
    usual = max(totals, key=lambda tag: (totals[tag], tag))
    right, several = [], []
    for word, rows in tested.items():
        tags = sorted(pairs.get(word, {usual: []}).items(), key=lambda item: -len(item[1]))
        found = np.zeros(len(rows), int)
        if len(tags) > 1 and train_vectors is not None:
            averages = np.stack(
                [np.asarray(train_vectors[of_tag], "float64").mean(axis=0) for _, of_tag in tags]
            )
            cosines = _unit(np.asarray(test_vectors[rows], "float64")) @ _unit(averages).T
            best = cosines >= cosines.max(axis=1, keepdims=True) - TIE
            found = best.argmax(axis=1)  # the first one is the most frequent tag
        hits = [tags[i][0] == test[row][1] for i, row in zip(found, rows, strict=True)]
        right += hits
        several += hits if len(tags) > 1 else []
    return {
        "accuracy": float(np.mean(right)),
        "several": float(np.mean(several)) if several else None,
        "tested": len(right),
        "tested_several": len(several),
        "unseen": sum(len(rows) for word, rows in tested.items() if word not in pairs),
    }


def _unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def markdown(folder):
    """Returns a table per task, with the most frequent tag, word vectors and layers of biLMs."""
    every = read_results(folder)
    tasks = [r["task"] for r in every if r["method"] == METHOD]
    if not tasks:
        raise NoResult(
            "The folder must hold results of nearest averages: `python -m benchmarks suite "
            f"elmo_intrinsic` writes them. Received: {str(folder)!r}"
        )
    order = sorted(set(tasks), key=lambda task: (task != POS, task))
    tables = [_table(task, [r for r in every if r["task"] == task]) for task in order]
    said = (
        "The paper found part of speech best in layer 1 (table 6, a linear probe: 97.3 and 96.8 of "
        "100 on the Penn Treebank) and sense best in layer 2 (table 5, nearest averages), above "
        "the most frequent sense."
    )
    return "\n".join(tables) + f"\n{said}\n"


def _table(task, results):
    encoders = {r["encoder"]: r["settings"]["kind"] for r in results if r["method"] == METHOD}
    baseline = [r for r in results if r["method"] == BASELINE]
    tested = (baseline or [r for r in results if r["method"] == METHOD])[0]["counts"]
    head = ["nearest average", "of words with several tags", "linear probe"]
    lines = [f"| {task} | {' | '.join(head)} |", "|---|---:|---:|---:|"]
    rows = [("most frequent tag of the word", baseline, [])]
    for encoder, kind in sorted(encoders.items(), key=lambda item: (item[1] != "words", item[0])):
        of_encoder = [r for r in results if r["encoder"] == encoder]
        layers = sorted({r["settings"]["layers"] for r in of_encoder if r["method"] == METHOD})
        for layer in layers:
            of_layer = [r for r in of_encoder if r["settings"].get("layers") == layer]
            number = layer.rpartition("_")[2]
            name = "word vectors" if kind == "words" else f"layer {number}"
            name += ", word without context" if kind != "words" and number == "0" else ""
            near = [r for r in of_layer if r["method"] == METHOD]
            probes = [r for r in of_layer if r["run"].startswith(f"features-linear-{layer}")]
            rows.append((f"{encoder}, {name}", near, probes))
    values = [
        (_points(near, "accuracy"), _points(near, "several"), _points(probes, None))
        for _, near, probes in rows
    ]
    columns = zip(*values, strict=True)
    best = [max((v for v in column if v is not None), default=None) for column in columns]
    for (name, _, probes), of_row in zip(rows, values, strict=True):
        texts = ["" if v is None else f"{v:.1f}" for v in of_row[:2]] + [shown(probes)]
        cells = [
            f"**{text}**" if value is not None and value == top else text
            for text, value, top in zip(texts, of_row, best, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(
        f"\nAccuracy in points on {tested['tested']:,} words, {tested['tested_several']:,} of them "
        f"with several tags in training and {tested['unseen']:,} unseen there.\n"
    )
    return "\n".join(lines)


def _points(results, metric):
    """Returns the mean of a metric, or of the scores, in points; `None` without values."""
    found = [r["score"] if metric is None else r["metrics"][metric] for r in results]
    found = [value for value in found if value is not None]
    return 100 * float(np.mean(found)) if found else None


SUITES = {
    "elmo_intrinsic": Suite(
        markdown,
        no_figures,
        SCALES,
        "Peters et al. 2018, tables 5 and 6",
        published="2018-02",
        run=run_intrinsic,
        home=OPTIONS["home"],
        flags=(*OPTIONS["flags"], "task_file", "text", "label"),
    ),
}
