"""The suite `elmo_neighbours`: nearest neighbours of occurrences of words.

On English EWT, a word with several tags scores if its nearest other occurrence has the same tag.
Sentences of books show neighbours like table 4 of the paper.
"""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np

import keras_plm
from benchmarks.suites.elmo.features import OPTIONS, TEST_MATERIAL, Material
from benchmarks.suites.registry import Suite, no_figures
from keras_plm.data.corpus import split_sentences
from keras_plm.data.packing import words_of
from keras_plm.data.task import find_file
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import summary
from keras_plm.experiments.environment import environment
from keras_plm.experiments.results import (
    NoResult,
    Record,
    ResultFolder,
    read_results,
    result_hash,
    result_name,
)
from keras_plm.files.fingerprint import fingerprint
from keras_plm.tokenizers import open_text
from keras_plm.training.resume import set_seed
from keras_plm.transfer.feature_store import FeatureStore

TASK = "ud_english_ewt"
TEXT = "books/valid.txt"  # held out from the biLM and the word vectors
METHOD = "neighbours"
VERSION = 1  # version of the measurement
TIE = 1e-6  # cosines that differ by less count as equal
# Sentences with the word in two senses, written before any result was known.
SOURCES = {
    "play": ("The actors gave a new play at the theatre last night .",
             "The children went out to play in the garden ."),
    "spring": ("The birds return every spring when the snow is gone .",
               "He drank from a spring of clear water in the rocks ."),
    "bank": ("She put her money into the bank in the city .",
             "They sat on the bank of the river and fished ."),
    "present": ("Her aunt sent her a present on her birthday .",
                "At the present time there is nothing to be done ."),
    "light": ("The light of the lamp fell on his face .",
              "The bag was so light that a child could carry it ."),
    "watch": ("He took out his watch and looked at the time .",
              "We will watch the house until they come out ."),
}  # fmt: skip
SHOWN, CONTEXT = 2, 10  # neighbours of each source, and words shown on each side


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The text at a scale.

    Attributes:
        material: Word vectors and biLM.
        limit: Most sentences of EWT; 0 takes all.
        lines: Most lines of the books; 0 takes all.
    """

    material: Material = Material()
    limit: int = 0
    lines: int = 0


SCALES = {"small": Neighbours(), "test": Neighbours(TEST_MATERIAL, 60, 60)}


def nearest_of_word(vectors, words, tags, sentences):
    """Scores whether the nearest other occurrence of a word has its tag.

    An occurrence counts if other sentences have the word both with the same tag and with another
    one. Among equally near occurrences, the fraction with the tag counts.

    Args:
        vectors: (N, D) vectors of the N words of a text.
        words, tags: Lists of N strings.
        sentences: (N,) number of the sentence of each word.

    Returns:
        A dict of (M,) arrays for the M occurrences that count: `row`, their positions; `right`,
        scores in [0, 1]; and `chance`, the fraction with the same tag among all others.
    """
    places = {}
    for row, word in enumerate(words):
        places.setdefault(word, []).append(row)
    tags, sentences = np.asarray(tags), np.asarray(sentences)
    found = {"row": [], "right": [], "chance": []}
    for rows in map(np.array, places.values()):
        if len(set(tags[rows])) < 2:
            continue
        unit = np.asarray(vectors[rows], "float64")
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
        other = sentences[rows][:, None] != sentences[rows]
        same = tags[rows][:, None] == tags[rows]
        cosines = np.where(other, unit @ unit.T, -np.inf)
        best = cosines >= cosines.max(axis=1, keepdims=True) - TIE
        counts = (same & other).sum(axis=1), (~same & other).sum(axis=1)
        chosen = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
        found["row"] += rows[chosen].tolist()
        best = best & other
        found["right"] += ((best & same).sum(axis=1) / best.sum(axis=1).clip(1))[chosen].tolist()
        found["chance"] += (counts[0] / other.sum(axis=1).clip(1))[chosen].tolist()
    return {name: np.array(values) for name, values in found.items()}


def run_neighbours(
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
):
    """Does the missing measurements; only the biLM with random weights has seeds."""
    encoder = scale.material.encoder_folder(encoder, features)
    words = scale.material.words_folder(words, data, features, progress)
    examples = [e for split in ("dev", "test") for e in TASKS[TASK].read(data, split)]
    examples = examples[: scale.limit or None]
    sentences = book_sentences(find_file(data, TEXT), scale.lines)
    kept = ResultFolder(results)
    todo = [(words, "pretrained", 0), (encoder, "pretrained", 0)]
    todo += [(encoder, "randomly_initialised", seed) for seed in range(seeds)]
    for folder, weights, seed in todo:
        model, tokenizer = keras_plm.load(folder, dtype="float32")
        if weights == "randomly_initialised":
            set_seed(seed)
            model = type(model).from_config(model.get_config())
        run = METHOD if weights == "pretrained" else f"{METHOD}-{weights}"
        name = Path(folder).resolve().name
        texts = [[e.text, e.label] for e in examples]
        inputs = fingerprint(model, tokenizer, texts, sentences, SOURCES, SHOWN, CONTEXT)
        about = {"weights": weights, "splits": "dev, test"}
        key = result_hash(TASK, about, seed, [inputs, VERSION])
        file = result_name(TASK, name, run, seed)
        if kept.done(file, key) is not None:
            continue
        begun = time.monotonic()
        store = FeatureStore.build(features, model, tokenizer, examples, None, feature_gb)
        scores = measure(store, examples)
        shown = {}
        if weights == "pretrained":
            shown = show(model, tokenizer, sentences, features, feature_gb)
        last = f"layer_{store.array.shape[1] - 1}"
        record = Record(
            task=TASK,
            encoder=name,
            method=METHOD,
            run=run,
            settings=about,
            seed=seed,
            score=scores["metrics"][last],
            metrics=scores["metrics"],
            counts=scores["counts"],
            seconds=round(time.monotonic() - begun, 1),
            hash=key,
            inputs=inputs,
            extra={"noun and verb": scores["noun and verb"], "shown": shown},
            **environment(),
        )
        kept.write(file, record)
        numbers = ", ".join(f"{n} {100 * v:.1f}" for n, v in scores["metrics"].items())
        progress(f"{name}, {weights}, seed {seed}: {numbers}")


def measure(store, examples):
    """Scores each layer and chance, for all words and for words that are both noun and verb.

    Raises:
        ValueError: If the encoder's tokenizer splits the text into other words, or no word has two
            tags.
    """
    counts = [len(e.text) for e in examples]
    if list(store.counts) != counts:
        raise ValueError(
            "The suites of ELMo compare words: use a tokenizer that keeps the words of a list. "
            f"Received: {store.counts.sum()} words for {sum(counts)} of the text"
        )
    words = [word for e in examples for word in e.text]
    tags = [tag for e in examples for tag in e.label]
    sentences = np.repeat(np.arange(len(examples)), counts)
    tags_of = {}
    for word, tag in zip(words, tags, strict=True):
        tags_of.setdefault(word, set()).add(tag)
    metrics, of_both, both = {}, {}, None
    for layer in range(store.array.shape[1]):
        found = nearest_of_word(store.array[:, layer], words, tags, sentences)
        rows = found["row"]
        if not len(rows):
            raise ValueError(
                "Some word must occur twice with one tag and once with another: give more text. "
                f"Received: {len(words)} words"
            )
        both = np.array([{"NOUN", "VERB"} <= tags_of[words[row]] for row in rows])
        metrics[f"layer_{layer}"] = float(found["right"].mean())
        if both.any():
            of_both[f"layer_{layer}"] = float(found["right"][both].mean())
    metrics["chance"] = float(found["chance"].mean())
    if both.any():
        of_both["chance"] = float(found["chance"][both].mean())
    counted = {
        "occurrences": len(rows),
        "words": len({words[row] for row in rows}),
        "of noun and verb": {
            "occurrences": int(both.sum()),
            "words": len({words[row] for row in rows[both]}),
        },
    }
    return {"metrics": metrics, "noun and verb": of_both, "counts": counted}


def book_sentences(path, limit=0):
    """Returns the sentences of 5 words or more that contain a word of `SOURCES`, each once."""
    found = {}
    with open_text(path) as file:
        for number, line in enumerate(file):
            if limit and number >= limit:
                break
            if any(word in line for word in SOURCES):
                for sentence in split_sentences(line.strip()):
                    if any(word in sentence for word in SOURCES) and len(sentence.split()) >= 5:
                        found[" ".join(sentence.split())] = None
    return list(found)


def show(model, tokenizer, sentences, features, feature_gb):
    """Returns the sentences nearest to each source in the last layer; for word vectors, words."""
    if hasattr(model, "most_similar"):
        known = [word for word in SOURCES if word in model.words]
        return {word: [near for near, _ in model.most_similar(word, count=8)] for word in known}
    sources = [source for pair in SOURCES.values() for source in pair]
    texts = [*sources, *sentences]
    split = words_of(texts, tokenizer)
    store = FeatureStore.build(features, model, tokenizer, texts, None, feature_gb)
    shown = {}
    for word in SOURCES:
        rows = [
            (text, place, store.array[store.starts[text] + place, -1].astype("float64"))
            for text, found in enumerate(split)
            for place, other in enumerate(found)
            if other == word
        ]
        mine = [row for row in rows if row[0] < len(sources)]
        others = [row for row in rows if row[0] >= len(sources)]
        shown[word] = []
        for text, _, vector in mine:
            cosines = [
                float(v @ vector / np.linalg.norm(v) / np.linalg.norm(vector)) for *_, v in others
            ]
            near, seen = [], set()
            for i in np.argsort(cosines)[::-1]:  # a sentence may hold the word twice
                if others[i][0] not in seen and len(near) < SHOWN:
                    seen.add(others[i][0])
                    text_near = _around(split[others[i][0]], others[i][1])
                    near.append({"text": text_near, "cosine": round(cosines[i], 3)})
            shown[word].append({"source": sources[text], "nearest": near, "among": len(others)})
    return shown


def _around(words, position):
    """Returns the words around a position, whose word is marked."""
    first, last = max(position - CONTEXT, 0), position + CONTEXT + 1
    before = ["..."] * (first > 0) + words[first:position]
    after = words[position + 1 : last] + ["..."] * (last < len(words))
    return " ".join([*before, f"**{words[position]}**", *after])


def markdown(folder):
    """Returns the suite's tables: the scores, and the examples of neighbours."""
    found = [r for r in read_results(folder) if r["method"] == METHOD]
    if not found:
        raise NoResult(
            "The folder must hold results of neighbours: `python -m benchmarks suite "
            f"elmo_neighbours` writes them. Received: {str(folder)!r}"
        )
    if len({json.dumps(r["counts"]) for r in found}) > 1:
        raise ValueError(
            "All encoders must be scored on the same words: remove the older files. "
            f"Received: {', '.join(r['encoder'] for r in found)} on different words in {folder}"
        )
    counts = found[0]["counts"]
    chances = [part.get("chance") for part in (found[0]["metrics"], found[0]["noun and verb"])]
    chances = ["" if chance is None else f"{100 * chance:.1f}" for chance in chances]
    head = (
        f"| nearest other occurrence of the same word | all words | nouns that are verbs too |\n"
        f"|---|---:|---:|\n"
        f"| chance | {' | '.join(chances)} |\n"
    )
    rows, encoders = [], {}
    for r in sorted(found, key=lambda r: (_order(r), r["encoder"], r["seed"])):
        encoders.setdefault((_order(r), r["encoder"]), []).append(r)
    for of_row in encoders.values():
        for layer in [name for name in of_row[0]["metrics"] if name != "chance"]:
            name = _row_name(of_row[0], layer)
            cells = []
            for part in ("metrics", "noun and verb"):
                scores = [{"score": r[part][layer]} for r in of_row if layer in r[part]]
                cells.append(_cell(scores))
            rows.append(f"| {name} | {' | '.join(cells)} |")
    of_both = counts["of noun and verb"]
    text = head + "\n".join(rows) + "\n\n"
    text += (
        f"Points: how often it has the same part of speech; {counts['occurrences']:,} occurrences "
        f"of {counts['words']:,} words with several tags in EWT's dev and test sentences, "
        f"{of_both['occurrences']:,} of {of_both['words']:,} that are noun and verb.\n"
    )
    return text + "".join(_shown_table(r, found) for r in found if r["shown"] and not _is_words(r))


def _is_words(result):
    """Returns whether a result is of word vectors, which have one layer."""
    return "layer_1" not in result["metrics"]


def _order(result):
    """Returns the sort key of a row: word vectors, random biLM, pre-trained biLM."""
    if _is_words(result):
        return 0
    return 1 if result["settings"]["weights"] == "randomly_initialised" else 2


def _row_name(result, layer):
    if _is_words(result):
        return f"{result['encoder']}, word vectors"
    number = layer.rpartition("_")[2]
    what = "word without context" if number == "0" else f"layer {number}"
    weights = ", random weights" if result["settings"]["weights"] == "randomly_initialised" else ""
    return f"{result['encoder']}{weights}, {what}"


def _cell(scores):
    if not scores:
        return ""
    mean, deviation, n = summary(scores)
    return f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f} ({n})" if n > 1 else "")


def _shown_table(result, found):
    vectors = next((r["shown"] for r in found if r["shown"] and _is_words(r)), {})
    lines = ["", f"| word | {result['encoder']}: source | nearest in the books, last layer |",
             "|---|---|---|"]  # fmt: skip
    for word, sources in result["shown"].items():
        if not any(source["nearest"] for source in sources):
            continue
        if word in vectors:
            near = ", ".join(vectors[word])
            lines.append(f"| {word} | word vectors, regardless of sense | {_plain(near)} |")
        for source in sources:
            near = "<br>".join(_plain(n["text"]) for n in source["nearest"])
            lines.append(f"| {word} | {_plain(source['source'])} | {near} |")
    if len(lines) == 3:
        return ""
    lines += [
        "",
        "The sources were written for this table; what is nearest is shown, right or wrong. In the "
        "paper's two examples (table 4, the noun \"play\") it has the source's sense.",
    ]
    return "\n".join(lines) + "\n"


def _plain(text):
    return text.replace("|", "\\|")


SUITES = {
    "elmo_neighbours": Suite(
        markdown,
        no_figures,
        SCALES,
        "Peters et al. 2018, table 4",
        published="2018-02",
        run=run_neighbours,
        **OPTIONS,
    ),
}
