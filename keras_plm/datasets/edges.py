"""Edges of the known tasks, for edge probing: five levels from part of speech to coreference."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_plm.data.formats.conll import read_conll
from keras_plm.data.task import Example, find_file
from keras_plm.datasets.tasks import TASKS
from keras_plm.metrics import roles, spans
from keras_plm.transfer.probing.edge_probing import EdgeExample

PIECE = 128  # words of a piece of a document for coreference, in whole sentences


def tag_edges(examples: Sequence[Example]) -> list[EdgeExample]:
    """Makes an edge of each word and its tag.

    Args:
        examples: Tagged sentences.

    Returns:
        A list of `EdgeExample`.

    >>> tag_edges([Example(["Ada", "sings"], ["NOUN", "VERB"])])[0].edges
    [([(0, 1)], 'NOUN'), ([(1, 2)], 'VERB')]
    """
    return [
        EdgeExample(e.text, [([(i, i + 1)], tag) for i, tag in enumerate(e.label)], e.where)
        for e in examples
    ]


def span_edges(examples: Sequence[Example]) -> list[EdgeExample]:
    """Makes an edge of each span that tags mark, and its type.

    Args:
        examples: Tagged sentences, such as those of named entities.

    Returns:
        A list of `EdgeExample`, also of sentences without a span.

    >>> span_edges([Example(["Ada", "sings"], ["B-PER", "O"])])[0].edges
    [([(0, 1)], 'PER')]
    """
    return [
        EdgeExample(e.text, [([(a, b)], kind) for kind, a, b in spans(e.label)], e.where)
        for e in examples
    ]


def role_edges(examples: Sequence[Example]) -> list[EdgeExample]:
    """Makes an edge of each predicate with one of its arguments, and the role.

    An argument in several parts has an edge for each.

    Args:
        examples: Examples of semantic roles, one per predicate; those of a sentence share a group.

    Returns:
        A list of `EdgeExample`, one per sentence.

    >>> sentence = Example(["Ada", "sings"], ["B-ARG0", "B-V"], predicate=1, group="s")
    >>> role_edges([sentence])[0].edges
    [([(1, 2), (0, 1)], 'ARG0')]
    """
    found = []
    for _, group in itertools.groupby(enumerate(examples), lambda item: _group(*item)):
        group = [example for _, example in group]
        edges = [
            ([(e.predicate, e.predicate + 1), (start, end)], role)
            for e in group
            for role, parts in roles(e.label)
            for start, end in parts
        ]
        found.append(EdgeExample(group[0].text, edges, group[0].where))
    return found


def _group(number, example):
    return number if example.group is None else example.group


def dependency_edges(
    words: Sequence[Example], heads: Sequence[Example], relations: Sequence[Example]
) -> list[EdgeExample]:
    """Makes an edge of each word with its head, and their relation.

    Args:
        words: Sentences.
        heads: The same sentences with the number of each word's head, from 1, as tags; 0 for the
            root, which has no edge.
        relations: The same sentences with the relations as tags.

    Returns:
        A list of `EdgeExample`.

    Raises:
        ValueError: If a head is not the number of a word.

    >>> words = ["Ada", "sings"]
    >>> heads, relations = Example(words, ["2", "0"]), Example(words, ["nsubj", "root"])
    >>> dependency_edges([heads], [heads], [relations])[0].edges
    [([(0, 1), (1, 2)], 'nsubj')]
    """
    found = []
    for sentence, of_heads, of_relations in zip(words, heads, relations, strict=True):
        edges = []
        for i, (head, relation) in enumerate(zip(of_heads.label, of_relations.label, strict=True)):
            if not str(head).isdecimal() or int(head) > len(sentence.text):
                raise ValueError(
                    f"{sentence.where}: The head of a word must be the number of a word, or 0. "
                    f"Received: {head!r} for word {i + 1} of {len(sentence.text)}"
                )
            if int(head):
                edges.append(([(i, i + 1), (int(head) - 1, int(head))], relation))
        found.append(EdgeExample(sentence.text, edges, sentence.where))
    return found


def coreference_edges(examples: Sequence[Example], seed: int = 0) -> list[EdgeExample]:
    """Makes edges of pairs of mentions, coreferent or not, in pieces of documents.

    A piece has whole sentences of up to 128 words. A mention with earlier mentions of its cluster
    and of others in the piece has two edges: to the nearest one of its cluster, and to a random one
    of another cluster.

    Args:
        examples: Documents with clusters.
        seed: Seed of the other mentions.

    Returns:
        A list of `EdgeExample` with the labels "coreferent" and "other".

    >>> document = Example(["Ada", "met", "Bo", "She"], [[(0, 1), (3, 4)], [(2, 3)]], sentences=[4])
    >>> coreference_edges([document])[0].edges
    [([(0, 1), (3, 4)], 'coreferent'), ([(2, 3), (3, 4)], 'other')]
    """
    rng, found = np.random.default_rng(seed), []
    for example in examples:
        cluster_of = {tuple(m): i for i, cluster in enumerate(example.label) for m in cluster}
        for begin, end in _pieces(example.sentences):
            mentions = sorted(m for m in cluster_of if begin <= m[0] and m[1] <= end)
            edges = []
            for place, mention in enumerate(mentions):
                same = [m for m in mentions[:place] if cluster_of[m] == cluster_of[mention]]
                others = [m for m in mentions[:place] if cluster_of[m] != cluster_of[mention]]
                if same and others:
                    other = others[rng.integers(len(others))]
                    for first, label in ((same[-1], "coreferent"), (other, "other")):
                        pair = [(a - begin, b - begin) for a, b in (first, mention)]
                        edges.append((pair, label))
            found.append(EdgeExample(example.text[begin:end], edges, example.where))
    return found


def _pieces(sentences):
    """Yields the first word, and the word after the last, of pieces of a document."""
    begin = end = 0
    for size in sentences:
        if end > begin and end + size - begin > PIECE:
            yield begin, end
            begin = end
        end += size
    yield begin, end


def _dependencies(folder, split):
    path = find_file(folder, f"ud_english_ewt/{split}.conllu")
    forms, heads, relations = 1, 6, 7  # columns of CoNLL-U
    return dependency_edges(
        *(read_conll(path, forms, column) for column in (forms, heads, relations))
    )


def _of_task(name, edges):
    return lambda folder, split: edges(TASKS[name].read(folder, split))


EDGE_TASKS: dict[str, Callable[[Any, str], list[EdgeExample]]] = {
    "part_of_speech": _of_task("ud_english_ewt", tag_edges),
    "dependencies": _dependencies,
    "entities": _of_task("wikigold", span_edges),
    "roles": _of_task("ewt_srl", role_edges),
    "coreference": _of_task("litbank", coreference_edges),
}
"""Functions `(folder, split)` that read edges, in the order of Tenney et al. 2019.

Dependencies need the treebank's own CoNLL-U files, `ud_english_ewt/{train,dev,test}.conllu`.
"""

FILES_OF = {
    "part_of_speech": "ud_english_ewt/train.conll",
    "dependencies": "ud_english_ewt/train.conllu",
    "entities": "wikigold/wikigold.conll.txt",
    "roles": "ewt_srl/train.jsonl",
    "coreference": "litbank/train.jsonl",
}
"""A file that each of the `EDGE_TASKS` reads."""
