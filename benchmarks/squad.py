"""Answers from a passage: the tasks `squad` and `squad2`."""

import functools

import numpy as np

from keras_plm.heads import SpanFinder
from keras_plm.metrics import squad_exact_match, squad_f1
from keras_plm.squad import read_squad
from keras_plm.task import Task, find_file, split_groups

TRAIN, DEV, DEV2 = (f"squad/{name}.json" for name in ("train-v1.1", "dev-v1.1", "dev-v2.0"))
# Share of train that chooses: about 2,200 of 87,600 questions, as all are answered every epoch.
CHOOSING = 0.025
ARTICLES = {"train": 22, "dev": 3, "test": 10}  # of the dev file of SQuAD 2.0


def read_squad1(folder, split):
    """SQuAD 1.1: the official dev set is reported, as its test set is not public.

    What chooses is cut out of train by article.
    """
    if split == "test":
        return read_squad(find_file(folder, DEV))
    parts = split_groups(read_squad(find_file(folder, TRAIN)), (1 - CHOOSING, CHOOSING), seed=0)
    return parts[0 if split == "train" else 1]


def read_squad2(folder, split):
    """SQuAD 2.0 in small: its official dev set of 35 articles, parted by article.

    10 articles are reported; of the other 25, 22 are trained on and 3 choose. So its numbers are
    not those of papers, which train on 442 articles and report all of these.

    Raises:
        ValueError: If the file has other than 35 articles.
    """
    examples = read_squad(find_file(folder, DEV2))
    articles = list(dict.fromkeys(example.group for example in examples))
    if len(articles) != sum(ARTICLES.values()):
        raise ValueError(
            f"The dev file of SQuAD 2.0 has {sum(ARTICLES.values())} articles, which this task "
            f"parts. Received: {len(articles)} in {DEV2}"
        )
    order = np.random.default_rng(0).permutation(len(articles))
    ends = np.cumsum(list(ARTICLES.values()))
    parts = np.split(order, ends[:-1])
    chosen = dict(zip(ARTICLES, parts, strict=True))[split]
    kept = {articles[i] for i in chosen}
    return [example for example in examples if example.group in kept]


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
}
