"""Scores of coreference, compared with published examples and with the package scorch."""

import gzip
import json

import numpy as np
import pytest

from keras_plm import metrics
from keras_plm.metrics import coreference_scores

pytestmark = pytest.mark.backend_neutral


def scores_of(true, found, name, **options):
    scores = coreference_scores([true], [found], **options)[name]
    return [scores["recall"], scores["precision"]]


class TestPublishedExamples:
    KEY = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 12]]

    @pytest.mark.parametrize(
        "found, muc, b_cubed",
        [
            ([KEY[0], KEY[1] + KEY[2]], (1, 0.9), (1, 0.762)),
            ([KEY[0] + KEY[2], KEY[1]], (1, 0.9), (1, 0.583)),
        ],
    )
    def test_of_bagga_and_baldwin(self, found, muc, b_cubed):
        assert scores_of(self.KEY, found, "muc") == pytest.approx(muc)
        assert scores_of(self.KEY, found, "b_cubed") == pytest.approx(b_cubed, abs=5e-4)

    def test_of_moosavi_and_strube(self):
        """Figure 1: the fraction of resolved links, weighted by the size of the entity."""
        key, found = [list("abc"), list("defg")], [list("ab"), list("cd"), list("fghi")]
        recall, precision = (3 * 1 / 3 + 4 * 1 / 6) / 7, (2 * 1 + 2 * 0 + 4 * 1 / 6) / 8
        assert scores_of(key, found, "lea") == pytest.approx([recall, precision])

    def test_ceaf_by_hand(self):
        # Pairs: abc with ab (4 / 5), de with cde (4 / 5); f is left over.
        key, found = [list("abc"), list("de"), ["f"]], [list("ab"), list("cde")]
        assert scores_of(key, found, "ceaf") == pytest.approx([1.6 / 3, 1.6 / 2])

    def test_singletons_of_lea_by_hand(self):
        key, found = [["a"], ["b"], list("cd")], [["a"], list("bc"), ["d"]]
        assert scores_of(key, found, "lea") == pytest.approx([1 / 4, 1 / 4])


class TestNextToScorch:
    def compare(self, key, found):
        """Compares a document; its recall and precision are those of the corpus."""
        scorch = pytest.importorskip("scorch.scores")
        ours = coreference_scores([key], [found])
        have_links = all(any(len(cluster) > 1 for cluster in side) for side in (key, found))
        measures = {"muc": scorch.muc, "b_cubed": scorch.b_cubed, "ceaf": scorch.ceaf_e}
        for name, of_scorch in measures.items():
            if name == "muc" and not have_links:
                continue  # 0 / 0
            wanted = of_scorch([set(c) for c in key], [set(c) for c in found])
            measured = [ours[name][part] for part in ("recall", "precision", "f1")]
            np.testing.assert_allclose(measured, wanted, atol=1e-12)

    def test_random_clusters(self):
        rng = np.random.default_rng(0)
        for _ in range(60):
            sides = []
            for _ in range(2):
                mentions = rng.permutation(30)[: rng.integers(5, 28)]
                labels = rng.integers(0, rng.integers(2, 12), len(mentions))
                sides.append([mentions[labels == k].tolist() for k in np.unique(labels)])
            self.compare(*sides)

    @pytest.mark.parametrize("split", ["dev", "test"])
    def test_documents_of_litbank(self, split, data):
        """True clusters next to damaged ones: mentions move, vanish and appear."""
        rng = np.random.default_rng(1)
        with gzip.open(data(f"litbank/{split}.jsonl.gz"), "rt") as file:
            documents = [json.loads(line) for line in file]
        keys, found = [], []
        for document in documents:
            clusters = [*document["clusters"], *([m] for m in document["singletons"])]
            keys.append([[tuple(m) for m in cluster] for cluster in clusters])
            damaged = [[] for _ in clusters]
            for place, cluster in enumerate(keys[-1]):
                for mention in cluster:
                    fate = rng.random()
                    if fate < 0.8:
                        damaged[place].append(mention)
                    elif fate < 0.9:
                        damaged[rng.integers(len(damaged))].append(mention)
                    else:
                        damaged[place].append((*mention, "spurious"))
            found.append([cluster for cluster in damaged if cluster])
            self.compare(keys[-1], found[-1])
        perfect = coreference_scores(keys, keys)
        assert {score["f1"] for score in perfect.values()} == {1.0}
        assert 0.5 < metrics.conll_coreference_f1(keys, found) < 0.95
        without = coreference_scores(keys, found, singletons=False)
        assert without["muc"] == coreference_scores(keys, found)["muc"]  # they have no links
        assert without["b_cubed"] != coreference_scores(keys, found)["b_cubed"]


def test_counts_are_summed_over_documents():
    first, second = [[1, 2], [3]], [[1], [2, 3]]
    together = coreference_scores([first, first], [first, second])
    assert together["muc"]["recall"] == 1 / 2
    assert together["b_cubed"]["recall"] == (3 + 0.5 + 0.5 + 1) / 6
    nothing = coreference_scores([[]], [[]])
    assert {score["f1"] for score in nothing.values()} == {0.0}


def test_invalid_clusters_are_refused():
    for clusters, message in (
        ([[1, 2], [2, 3]], "one cluster of its document.*Received: 2 twice in document 1"),
        ([[1, 1]], "Received: 1 twice"),
        ([[1], []], "at least one mention.*document 1 of `y_pred`"),
    ):
        with pytest.raises(ValueError, match=message):
            coreference_scores([[[1, 2]], [[1, 2]]], [[[1, 2]], clusters])
    with pytest.raises(ValueError, match="1 truths and 2 predictions"):
        metrics.muc([[[1, 2]]], [[[1, 2]], []])
