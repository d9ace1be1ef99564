"""Questions about a passage: the tasks `squad`, `squad2` and `qnli_squad`, made from SQuAD."""

import functools
import re

import numpy as np

from glue_tasks.tasks import GLUE
from keras_plm.data.corpus import split_sentences
from keras_plm.data.formats.squad import read_squad
from keras_plm.data.task import Example, Task, cut_dev_set, find_file
from keras_plm.heads import Classifier, SpanFinder
from keras_plm.metrics import accuracy, squad_exact_match, squad_f1

TRAIN, DEV, DEV2 = (f"squad/{name}.json" for name in ("train-v1.1", "dev-v1.1", "dev-v2.0"))
# Fraction of train in the dev set: about 2,200 of 87,600 questions, all scored each epoch.
DEV_FRACTION = 0.025
ARTICLES = {"train": 22, "dev": 3, "test": 10}  # of the dev file of SQuAD 2.0


def read_squad1(folder, split):
    """Reads SQuAD 1.1 with the official dev set as evaluation split; its test set is not public.

    The dev set is cut from train by article.
    """
    if split == "test":
        return read_squad(find_file(folder, DEV))
    return cut_dev_set(read_squad(find_file(folder, TRAIN)), DEV_FRACTION)[split]


def read_squad2(folder, split):
    """Reads a small SQuAD 2.0: its official dev set of 35 articles, split by article.

    10 articles are the evaluation split, 22 the training set and 3 the dev set. Its numbers are not
    comparable with those of papers: they train on 442 articles and evaluate on all 35.

    Raises:
        ValueError: If the file does not have 35 articles.
    """
    examples = read_squad(find_file(folder, DEV2))
    articles = list(dict.fromkeys(example.group for example in examples))
    if len(articles) != sum(ARTICLES.values()):
        raise ValueError(
            f"The dev file of SQuAD 2.0 must have {sum(ARTICLES.values())} articles for the "
            f"splits of this task. Received: {len(articles)} in {DEV2}"
        )
    order = np.random.default_rng(0).permutation(len(articles))
    ends = np.cumsum(list(ARTICLES.values()))
    parts = np.split(order, ends[:-1])
    chosen = dict(zip(ARTICLES, parts, strict=True))[split]
    kept = {articles[i] for i in chosen}
    return [example for example in examples if example.group in kept]


def qnli_pairs(examples, seed=0):
    """Pairs each question with a sentence of its passage, as QNLI was made from SQuAD.

    A random half of the questions is paired with the sentence that holds the answer. The others are
    paired with another sentence, the one that shares most words with the question. Questions are
    left out if their answer spans sentences, or their passage has only one.

    Reference: Wang et al. 2018, arXiv 1804.07461, section 3.3. Difference: Each question is in one
    pair here. GLUE does not state how many pairs with little overlap it left out.

    Args:
        examples: A list of `Example` from `read_squad`.
        seed: Seed of the random half.

    Returns:
        A list of `Example(question, label, pair=sentence)`, with GLUE's labels.

    >>> passage = "It rained. The cat slept on the mat."
    >>> asked = Example("Where did the cat sleep?", ["the mat"], pair=passage, starts=[28])
    >>> {pair.pair: pair.label for seed in range(9) for pair in qnli_pairs([asked], seed)}
    {'It rained.': 'not_entailment', 'The cat slept on the mat.': 'entailment'}
    """
    rng, pairs = np.random.default_rng(seed), []
    passages = {}
    for example in examples:
        draw = rng.random()
        if example.pair not in passages:
            passages[example.pair] = _sentences(example.pair)
        sentences = passages[example.pair]
        if not example.label or len(sentences) < 2:
            continue
        start, end = example.starts[0], example.starts[0] + len(example.label[0])
        holds = [begin <= start and end <= begin + len(text) for begin, text, _ in sentences]
        if not any(holds):
            continue
        if draw < 0.5:
            label, chosen = "entailment", holds.index(True)
        else:
            asked = _words(example.text)
            shared = [-1 if h else len(asked & words) for h, (*_, words) in
                      zip(holds, sentences, strict=True)]  # fmt: skip
            label, chosen = "not_entailment", int(np.argmax(shared))
        sentence = sentences[chosen][1]
        pairs.append(Example(example.text, label, pair=sentence, group=example.group))
    return pairs


def _sentences(passage):
    """Returns `(offset, sentence, set of words)` of each sentence of a passage."""
    found, place = [], 0
    for text in split_sentences(passage):
        place = passage.index(text, place)
        found.append((place, text, _words(text)))
        place += len(text)
    return found


def _words(text):
    return set(re.findall(r"\w+", text.lower()))


def read_qnli(folder, split):
    """Reads pairs made from SQuAD's train set; QNLI's official dev set is the evaluation split."""
    if split == "test":
        return GLUE["qnli"].read(folder, "test")
    return qnli_pairs(read_squad1(folder, split))


def _metrics(version):
    return {
        "f1": functools.partial(squad_f1, version=version),
        "exact_match": functools.partial(squad_exact_match, version=version),
    }


SQUAD = {
    "squad": Task(
        "squad",
        read_squad1,
        SpanFinder,
        _metrics(1),
        {"train": TRAIN, "dev": TRAIN, "test": DEV},
        "Rajpurkar et al. 2016, rajpurkar.github.io/SQuAD-explorer",
        "CC BY-SA 4.0",
    ),
    "squad2": Task(
        "squad2",
        read_squad2,
        SpanFinder,
        _metrics(2),
        dict.fromkeys(("train", "dev", "test"), DEV2),
        "Rajpurkar et al. 2018, rajpurkar.github.io/SQuAD-explorer",
        "CC BY-SA 4.0",
    ),
    # For users without QNLI's train set.
    "qnli_squad": Task(
        "qnli_squad",
        read_qnli,
        Classifier,
        {"accuracy": accuracy},
        {"train": TRAIN, "dev": TRAIN, "test": GLUE["qnli"].files["test"]},
        "Wang et al. 2018, made of SQuAD 1.1; gluebenchmark.com",
        "CC BY-SA 4.0",
    ),
}
