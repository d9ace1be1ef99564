"""Scores of coreference: MUC, B-cubed, CEAF with phi 4, LEA, and the mean of the first three.

A document is a list of clusters, and a cluster a list of mentions: tuples such as (start, end), or
other hashable values. A mention belongs to one cluster. Counts are summed over all documents, as in
the official scorer of CoNLL-2012. Mentions of the prediction that the truth lacks cost precision.

K: a true cluster; R: a predicted cluster.
"""

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_plm.files.sequences import as_list
from keras_plm.metrics._inputs import both

Clusters = Iterable[Iterable[Iterable[Any]]]
MEASURES = ("muc", "b_cubed", "ceaf", "lea")


def coreference_scores(
    y_true: Clusters, y_pred: Clusters, singletons: bool = True
) -> dict[str, dict[str, float]]:
    """Computes precision, recall and F1 of all four measures.

    Recall of each measure; precision exchanges truth and prediction:

        MUC      sum_K (|K| - parts of K) / sum_K (|K| - 1)
        B-cubed  sum_K sum_R |K & R|^2 / |K|  /  sum_K |K|
        CEAF     max over pairings of sum 2 |K & R| / (|K| + |R|)  /  number of K
        LEA      sum_K |K| sum_R links(K & R) / links(K)  /  sum_K |K|

    The parts of K are its non-empty intersections with each R, and each mention that no R has.
    n mentions have n (n - 1) / 2 links; a cluster of one mention has a link to itself.

    References: Vilain et al. 1995; Bagga and Baldwin 1998; Luo 2005; Moosavi and Strube 2016; the
    counts of mentions as in Pradhan et al. 2014.

    Args:
        y_true, y_pred: A list of documents each, see the module.
        singletons: If False, clusters of one mention are removed on both sides first, as in
            OntoNotes, which has none. LitBank's own scores keep them.

    Returns:
        A dict from `"muc"`, `"b_cubed"`, `"ceaf"` and `"lea"` to dicts with `precision`, `recall`
        and `f1` in [0, 1]. A fraction without a denominator is 0.

    Raises:
        ValueError: If the numbers of documents differ, a cluster is empty, or a mention is in two
            clusters of a document, or twice in one.

    >>> truth, found = [[[1, 2, 3], [4, 5]]], [[[1, 2], [3, 4, 5]]]
    >>> scores = coreference_scores(truth, found)
    >>> round(scores["muc"]["recall"], 3), round(scores["b_cubed"]["precision"], 3)
    (0.667, 0.733)
    """
    totals = coreference_counts(y_true, y_pred, singletons).sum(axis=0)
    return {name: _of_counts(counts) for name, counts in zip(MEASURES, totals, strict=True)}


def muc(y_true: Clusters, y_pred: Clusters) -> float:
    """F1 of links between mentions (Vilain et al. 1995); see `coreference_scores`.

    Args:
        y_true, y_pred: As in `coreference_scores`.

    Returns:
        F1 in [0, 1].

    >>> muc([[["a", "b", "c"]]], [[["a", "b"], ["c"]]]) == 2 / 3
    True
    """
    return coreference_scores(y_true, y_pred)["muc"]["f1"]


def b_cubed(y_true: Clusters, y_pred: Clusters) -> float:
    """F1 of the clusters of each mention (Bagga and Baldwin 1998); see `coreference_scores`.

    Args:
        y_true, y_pred: As in `coreference_scores`.

    Returns:
        F1 in [0, 1].

    >>> round(b_cubed([[["a", "b", "c"]]], [[["a", "b"], ["c"]]]), 3)
    0.714
    """
    return coreference_scores(y_true, y_pred)["b_cubed"]["f1"]


def ceaf(y_true: Clusters, y_pred: Clusters) -> float:
    """F1 of the best pairing of clusters, with phi 4 of Luo 2005; see `coreference_scores`.

    Args:
        y_true, y_pred: As in `coreference_scores`.

    Returns:
        F1 in [0, 1].

    >>> round(ceaf([[["a", "b", "c"]]], [[["a", "b"], ["c"]]]), 3)
    0.533
    """
    return coreference_scores(y_true, y_pred)["ceaf"]["f1"]


def lea(y_true: Clusters, y_pred: Clusters) -> float:
    """F1 of links, weighted by the size of clusters (Moosavi and Strube 2016).

    Args:
        y_true, y_pred: As in `coreference_scores`.

    Returns:
        F1 in [0, 1].

    >>> round(lea([[["a", "b", "c"]]], [[["a", "b"], ["c"]]]), 3)
    0.444
    """
    return coreference_scores(y_true, y_pred)["lea"]["f1"]


def conll_coreference_f1(y_true: Clusters, y_pred: Clusters, singletons: bool = True) -> float:
    """Mean F1 of MUC, B-cubed and CEAF, the score of CoNLL-2012.

    Args:
        y_true, y_pred, singletons: As in `coreference_scores`.

    Returns:
        F1 in [0, 1].

    >>> truth = [[["Ada", "she"], ["song"]]]
    >>> conll_coreference_f1(truth, truth)
    1.0
    """
    scores = coreference_scores(y_true, y_pred, singletons)
    return sum(scores[name]["f1"] for name in MEASURES[:3]) / 3


def coreference_counts(y_true: Clusters, y_pred: Clusters, singletons: bool = True) -> np.ndarray:
    """Counts the terms of the four measures in each document.

    Args:
        y_true, y_pred, singletons: As in `coreference_scores`.

    Returns:
        (documents, 4, 4): MUC, B-cubed, CEAF and LEA; numerator and denominator of recall, then of
        precision.

    >>> coreference_counts([[[1, 2, 3]]], [[[1, 2]]])[0, 0].tolist()  # MUC: 1 of 2 links, 1 of 1
    [1.0, 2.0, 1.0, 1.0]
    """
    counts = []
    for document, (true, predicted) in enumerate(zip(*both(y_true, y_pred), strict=True)):
        true = _checked(true, document, "y_true", singletons)
        counts.append(_counts(true, _checked(predicted, document, "y_pred", singletons)))
    return np.array(counts).reshape(-1, len(MEASURES), 4)


def _checked(clusters, document, name, singletons):
    """Returns the clusters of a document as lists of tuples or other hashable mentions."""
    found, seen = [], {}
    for cluster in as_list(clusters, f"{name}[{document}]", "clusters"):
        mentions = [
            tuple(m) if isinstance(m, list) else m
            for m in as_list(cluster, f"{name}[{document}]", "mentions")
        ]
        if not mentions:
            raise ValueError(
                "A cluster must have at least one mention. "
                f"Received: an empty one in document {document} of `{name}`"
            )
        for mention in mentions:
            if mention in seen:
                raise ValueError(
                    "A mention must be in one cluster of its document, once. "
                    f"Received: {mention!r} twice in document {document} of `{name}`"
                )
            seen[mention] = True
        if singletons or len(mentions) > 1:
            found.append(mentions)
    return found


def _counts(true, predicted):
    """Returns the numerators and denominators of recall and precision: (4 measures, 4)."""
    cluster_of = {mention: j for j, cluster in enumerate(predicted) for mention in cluster}
    shared = Counter(
        (i, cluster_of[mention])
        for i, cluster in enumerate(true)
        for mention in cluster
        if mention in cluster_of
    )
    pairs = np.array(list(shared), int).reshape(-1, 2)
    both_have = np.array(list(shared.values()), float)
    sizes = np.array([len(c) for c in true], float), np.array([len(c) for c in predicted], float)
    found = np.zeros((len(MEASURES), 4))
    for side in (0, 1):  # recall, precision
        own, other = sizes[side], sizes[1 - side]
        place, place_other = pairs[:, side], pairs[:, 1 - side]

        total = functools.partial(_sums, place, len(own))
        links, shared_links = own * (own - 1) / 2, both_have * (both_have - 1) / 2
        alone = (own[place] == 1) & (other[place_other] == 1)
        resolved = total(np.where(alone, 1, shared_links)) / np.where(own == 1, 1, links)
        # Parts: intersections, and mentions that the other side lacks.
        parts = total(np.ones(len(pairs))) + own - total(both_have)
        found[:, 2 * side : 2 * side + 2] = [
            (np.sum(own - parts), np.sum(own - 1)),
            (np.sum(total(both_have**2) / own), np.sum(own)),
            (_best_pairing(pairs, both_have, *sizes), len(own)),
            (np.sum(own * resolved), np.sum(own)),
        ]
    return found


def _sums(place, count, values):
    return np.bincount(place, values, count)


def _best_pairing(pairs, both_have, true, predicted):
    """Returns the largest sum of 2 |K & R| / (|K| + |R|) over one-to-one pairs of clusters."""
    from scipy.optimize import linear_sum_assignment

    similar = np.zeros((len(true), len(predicted)))
    similar[pairs[:, 0], pairs[:, 1]] = 2 * both_have / (true[pairs[:, 0]] + predicted[pairs[:, 1]])
    return similar[linear_sum_assignment(similar, maximize=True)].sum()


def _of_counts(counts):
    recall, precision = (
        above / below if below else 0.0 for above, below in (counts[:2], counts[2:])
    )
    total = precision + recall
    return {
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(2 * precision * recall / total) if total else 0.0,
    }
