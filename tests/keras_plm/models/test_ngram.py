"""N-grams, compared with values by hand, loops over dicts and NLTK."""

import collections
import json
import math
from fractions import Fraction

import numpy as np
import pytest

from keras_plm.models import ngram
from keras_plm.models.ngram import SMOOTHINGS, NGram, estimate_discounts
from tests.keras_plm.models.small_ngrams import (
    END,
    HELD_OUT,
    OTHER,
    SIZE,
    TINY,
    TRAIN,
    before,
    fitted,
)

pytestmark = pytest.mark.backend_neutral


class Loops:
    """The definitions of n-gram models, one probability at a time."""

    def __init__(self, smoothing, order, k=1.0):
        self.smoothing, self.order, self.k = smoothing, order, k
        self.raw = collections.Counter()
        for i, word in enumerate(TRAIN.tolist()):
            context = self.context(TRAIN, i)
            for m in range(len(context) + 1):
                self.raw[(*context[len(context) - m :], word)] += 1
        self.counts = dict(self.raw)
        if smoothing == "kneser_ney":
            for gram in self.raw:
                if len(gram) < order and (len(gram) == 1 or gram[0] != END):
                    self.counts[gram] = len({g[0] for g in self.raw if g[1:] == gram})
            self.discounts = {m: self.discounts_of(m) for m in range(1, order + 1)}
        if smoothing == "interpolation":
            self.weights = self.expectation_maximization()

    def context(self, words, i):
        found = []
        while len(found) < self.order - 1 and END not in found:
            i -= 1
            found.insert(0, int(words[i]) if i >= 0 else END)
        return tuple(found)

    def total(self, context):
        return sum(self.counts.get((*context, word), 0) for word in range(SIZE))

    def discounts_of(self, m):
        n = [sum(len(g) == m and c == r for g, c in self.counts.items()) for r in range(5)]
        if not all(n[1:]):
            return [0, 0.5, 1, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        found = [0, 1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
        return found if all(0 <= found[r] <= r for r in range(4)) else [0, 0.5, 1, 1.5]

    def shortened(self, word, context):
        total = self.total(context)
        if not total:
            return self.shortened(word, context[1:])
        return self.counts.get((*context, word), 0) / total

    def continued(self, word, context):
        shorter = self.continued(word, context[1:]) if context else 1 / SIZE
        total = self.total(context)
        if not total:
            return shorter
        counts = [self.counts.get((*context, w), 0) for w in range(SIZE)]
        taken = [self.discounts[len(context) + 1][min(count, 3)] for count in counts]
        return (counts[word] - taken[word]) / total + sum(taken) / total * shorter

    def orders(self, word, context):
        """Returns 1 / V, then the estimates of orders 1 to n."""
        found = [1 / SIZE]
        for j in range(self.order):
            found.append(self.shortened(word, context[max(len(context) - j, 0) :]))
        return found

    def bucket(self, context):
        return max(math.ceil(-math.log((1 + self.total(context)) / len(TRAIN))), 0)

    def expectation_maximization(self):
        count = self.order + 1
        seen = [(int(word), self.context(HELD_OUT, i)) for i, word in enumerate(HELD_OUT)]
        seen = [(self.bucket(context), self.orders(word, context)) for word, context in seen]
        weights = [[1 / count] * count for _ in range(math.ceil(math.log(len(TRAIN))) + 1)]
        for _ in range(ngram.ITERATIONS):
            sums = [[1.0] * count for _ in weights]
            for q, estimates in seen:
                whole = sum(w * p for w, p in zip(weights[q], estimates, strict=True))
                for j in range(count):
                    sums[q][j] += weights[q][j] * estimates[j] / whole
            weights = [[s / sum(row) for s in row] for row in sums]
        return weights

    def probability(self, word, context):
        if self.smoothing == "mle":
            return self.shortened(word, context)
        if self.smoothing == "kneser_ney":
            return self.continued(word, context)
        if self.smoothing == "add_k":
            count = self.counts.get((*context, word), 0)
            return (count + self.k) / (self.total(context) + SIZE * self.k)
        weights, estimates = self.weights[self.bucket(context)], self.orders(word, context)
        return sum(w * p for w, p in zip(weights, estimates, strict=True))


@pytest.mark.parametrize(
    "smoothing, wanted",
    [
        ("mle", ["1", "1/3", "1", "1", "1/3", "1/3"]),
        ("add_k", ["1/2", "2/7", "2/5", "1/2", "2/7", "2/7"]),
        ("interpolation", ["1/2", "1/4", "31/48", "1/2", "1/3", "7/24"]),
        ("kneser_ney", ["53/80", "67/240", "53/80", "53/80", "79/240", "79/240"]),
    ],
)
def test_bigrams_by_hand(smoothing, wanted):
    held_out = TINY if smoothing == "interpolation" else None
    model = NGram(4, 2, smoothing).fit(TINY, held_out)
    assert model.num_ngrams == [3, 5]
    if smoothing == "interpolation":
        # Buckets: ceil(-log(3/6)) = ceil(-log(4/6)) = 1 after </s> and 0, ceil(-log(2/6)) = 2
        # after 1; p = 1/2 · 1/4 + 1/4 · c(w)/6 + 1/4 · c(h w)/c(h), say.
        assert model.weights.shape == (3, 3)
        model.weights = np.array([[1, 0, 0], [1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2]])
    found = np.exp(model.log_prob(TINY))
    np.testing.assert_allclose(found, [float(Fraction(p)) for p in wanted], rtol=1e-12)
    perplexity = math.prod(float(Fraction(p)) for p in wanted) ** (-1 / 6)
    assert model.perplexity(TINY) == pytest.approx(perplexity)


def test_unknown_contexts_by_hand():
    distributions = {
        "mle": ["1/2", "1/6", "1/3", "0"],  # unigrams
        "add_k": ["1/4", "1/4", "1/4", "1/4"],
        "kneser_ney": ["13/40", "9/40", "13/40", "5/40"],  # 2, 1, 2, 0 different words before
    }
    for smoothing, wanted in distributions.items():
        found = NGram(4, 2, smoothing).fit(TINY).distribution([3])
        np.testing.assert_allclose(found, [float(Fraction(p)) for p in wanted], rtol=1e-12)


def test_discounts_by_hand():
    """n1..n4 = 10, 4, 2, 1, so Y = 10 / 18."""
    counts = [1] * 10 + [2] * 4 + [3] * 2 + [4] + [9] * 5
    np.testing.assert_allclose(estimate_discounts(counts), (5 / 9, 7 / 6, 17 / 9))
    # n = 1, 9, 9, 1: D1 = 1 - 2 · 1/19 · 9 is above 0, D2 too; n = 9, 1, 9, 1: D2 is not.
    assert estimate_discounts([1] + [2] * 9 + [3] * 9 + [4])[0] == pytest.approx(1 / 19)
    assert estimate_discounts([1] * 9 + [2] + [3] * 9 + [4]) == (0.5, 1.0, 1.5)


def test_training_text_has_estimated_and_fallback_discounts():
    """The test text has both orders with too few n-grams for discounts and orders with enough."""
    fallback = [tuple(row) == (0.5, 1, 1.5) for row in fitted("kneser_ney", 4).discounts]
    assert any(fallback) and not all(fallback)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_every_smoothing_agrees_with_loops(smoothing, order):
    model, loops = fitted(smoothing, order, k=0.3), Loops(smoothing, order, k=0.3)
    for m, found in enumerate(model.num_ngrams, start=1):
        assert found == sum(len(gram) == m for gram in loops.raw)
    for ids in (TRAIN, OTHER):
        contexts = [loops.context(ids, i) for i in range(len(ids))]
        wanted = [loops.probability(int(w), h) for w, h in zip(ids, contexts, strict=True)]
        np.testing.assert_allclose(np.exp(model.log_prob(ids)), wanted, rtol=1e-9)
        if 0 not in wanted:
            mean = sum(math.log(p) for p in wanted) / len(wanted)
            assert model.perplexity(ids) == pytest.approx(math.exp(-mean))
    if smoothing == "interpolation":
        np.testing.assert_allclose(model.weights, loops.weights, rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_distribution_sums_to_one_and_agrees_with_log_prob(smoothing, order):
    model = fitted(smoothing, order)
    never, rare = SIZE - 1, SIZE - 2
    contexts = [(), (0,), (0, 1), (1, 0, 0, 0), (END,), (0, END), (END, 0), (1, END, 1, 0)]
    contexts += [(never,), (0, never), (never, 0), (never, never, never), (rare, rare, 0)]
    for context in contexts:
        found = model.distribution(context)
        assert found.shape == (SIZE,) and (found >= 0).all()
        assert found.sum() == pytest.approx(1, abs=1e-12)
    with np.errstate(divide="ignore"):
        along = [np.log(model.distribution(before(i))[OTHER[i]]) for i in range(len(OTHER))]
    np.testing.assert_allclose(model.log_prob(OTHER), along, rtol=1e-12)


def test_contexts_stop_at_sentence_ends():
    model = fitted("kneser_ney", 4)
    assert (model.distribution([0, 1, END, 3]) == model.distribution([END, 3])).all()
    # A context begins a sentence, as the text of `log_prob` does.
    assert (model.distribution([END, 3]) == model.distribution([3])).all()
    assert (model.distribution([]) == model.distribution([0, END])).all()
    with_context = model.log_prob([0, 1, END, 3, 1, 0])[3:]
    np.testing.assert_array_equal(with_context, model.log_prob([3, 1, 0]))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_log_prob_does_not_depend_on_block_size(smoothing, monkeypatch):
    whole = fitted(smoothing, 4)
    wanted = whole.log_prob(OTHER)
    for size in (1, 2, 13):
        monkeypatch.setattr(ngram, "BLOCK", size)
        np.testing.assert_allclose(whole.log_prob(OTHER), wanted, rtol=1e-12)
        np.testing.assert_allclose(fitted(smoothing, 4).log_prob(OTHER), wanted, rtol=1e-9)


def test_fit_and_log_prob_accept_any_integer_type():
    assert OTHER[-1] != END
    wanted = NGram(SIZE).fit(OTHER).log_prob(TRAIN)
    for kind in (np.uint8, np.int16, np.uint64):
        found = NGram(SIZE).fit(OTHER.astype(kind)).log_prob(TRAIN.astype(kind))
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(NGram(SIZE).fit(OTHER.tolist()).log_prob(TRAIN.tolist()), wanted)


def test_unigram_perplexity_is_the_entropy():
    shares = np.unique(TRAIN, return_counts=True)[1] / len(TRAIN)
    entropy = -(shares * np.log(shares)).sum()
    assert fitted("mle", 1).perplexity(TRAIN) == pytest.approx(math.exp(entropy))


def test_smoothing_helps_on_new_text():
    assert fitted("mle", 3).perplexity(OTHER) == math.inf
    # The tokens are independent, so no order is better than unigrams.
    best = fitted("add_k", 1).perplexity(OTHER)
    assert best < fitted("interpolation", 3).perplexity(OTHER) < 1.1 * best
    assert best < fitted("kneser_ney", 3).perplexity(OTHER) < 1.4 * best < SIZE


def test_interpolation_prefers_reliable_long_contexts():
    """In a repetitive text, two words determine the third, but one word does not."""
    ids = [0, 1, 3, 1, 0, 3, 4] * 60
    model = NGram(5, 3, "interpolation").fit(ids, ids[:200])
    assert model.weights.argmax(axis=1)[model._bucket(60)] == 3
    assert model.perplexity(ids) < 1.2
    np.testing.assert_allclose(model.weights[-1], 1 / 4)  # the held-out text has no unknown context


def test_generate_draws_only_possible_sentences():
    model = NGram(7, 3, "mle").fit([3, 4, 2, 5, 3, 6, 2] * 5)
    drawn = {tuple(model.generate(5, seed=seed)) for seed in range(60)}
    assert drawn == {(3, 4, 2), (5, 3, 6, 2)}
    assert all(np.isfinite(model.perplexity(ids)) for ids in drawn)


def test_settings_accept_numpy_integers_and_refuse_floats(tmp_path):
    ids = np.array([3, 4, 2, 3])
    NGram(ids.max() + 1, np.int64(2)).fit(ids).save(tmp_path / "x")
    assert NGram.load(tmp_path / "x").order == 2
    NGram(5, 2, "add_k", k=np.float32(0.5)).fit(ids).save(tmp_path / "y")
    assert NGram.load(tmp_path / "y").k == 0.5
    for wrong in ({"order": 2.0}, {"end_id": 2.5}, {"vocabulary_size": "5"}):
        with pytest.raises(ValueError, match="must be whole numbers"):
            NGram(**{"vocabulary_size": 5, **wrong})
    with pytest.raises(ValueError, match="`length` must be 0 or more"):
        NGram(5).fit(ids).generate(-1)


def test_generate_is_a_function_of_the_seed():
    model = fitted("kneser_ney", 3)
    texts = [model.generate(20, seed=seed) for seed in range(20)]
    assert texts == [model.generate(20, seed=seed) for seed in range(20)]
    assert len({tuple(ids) for ids in texts}) > 10
    for ids in texts:
        assert END not in ids[:-1] and (len(ids) == 20 or ids[-1] == END)
        assert all(type(i) is int for i in ids)
    assert model.generate(0) == []


def test_generate_draws_only_seen_ngrams():
    model, loops = fitted("mle", 3), Loops("mle", 3)
    for seed in range(20):
        ids = model.generate(30, context=[0, 1], seed=seed)
        before = [0, 1, *ids]
        for i in range(2, len(before)):
            assert loops.probability(before[i], loops.context(before, i)) > 0


def test_generate_follows_temperature_and_distribution():
    model = fitted("kneser_ney", 2)
    best = int(model.distribution([4]).argmax())
    assert {model.generate(1, [4], seed, temperature=1e-3)[0] for seed in range(9)} == {best}
    drawn = [model.generate(1, [4], seed)[0] for seed in range(2000)]
    shares = np.bincount(drawn, minlength=SIZE) / 2000
    np.testing.assert_allclose(shares, model.distribution([4]), atol=0.04)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loaded_model_equals_saved_model(smoothing, tmp_path):
    model = fitted(smoothing, 3, k=0.1)
    model.save(tmp_path / "model.safetensors")
    loaded = NGram.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.log_prob(OTHER), model.log_prob(OTHER))
    assert (loaded.num_ngrams, loaded.k) == (model.num_ngrams, 0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_load_refuses_files_that_are_no_model(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match=r"No file .*model\.safetensors\. Received"):
        NGram.load(path)
    fitted("mle", 3).save(path)
    whole = path.read_bytes()
    message = r"model\.safetensors is not a whole file that `NGram\.save` wrote"
    for part in (b"", b"text\n" * 50, whole[:100], whole[:-1]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="model.safetensors is not a whole safetensors file"):
            NGram.load(path)
    save_file({"keys_0": np.arange(3)}, path)
    with pytest.raises(ValueError, match=message):
        NGram.load(path)
    settings = '{"vocabulary_size": 3, "order": 2, "smoothing": "mle", "end_id": 2, "k": 1.0}'
    save_file({"keys_0": np.arange(3)}, path, metadata={"ngram": settings})
    with pytest.raises(ValueError, match=message):
        NGram.load(path)


@pytest.mark.parametrize("smoothing", ["mle", "kneser_ney", "interpolation"])
def test_load_refuses_invalid_counts_and_settings(smoothing, tmp_path):
    from safetensors.numpy import load_file, save_file

    from keras_plm.files.arrays import NUMBERS, read_safetensors

    path = tmp_path / "n.safetensors"
    text = np.random.default_rng(0).integers(0, 5, 90)
    held_out = text[:40] if smoothing == "interpolation" else None
    model = NGram(5, 3, smoothing).fit(text, held_out)
    model.save(path)
    assert NGram.load(path).perplexity(text) == model.perplexity(text)
    arrays, (_, metadata) = load_file(path), read_safetensors(path, NUMBERS)
    changes = {
        "keys_1": arrays["keys_1"] + 10**15,
        "keys_2": arrays["keys_2"][::-1].copy(),
        "keys_0": np.zeros(5, "int64"),
        "counts_2": arrays["counts_2"].astype("int32"),
        "counts_1": arrays["counts_1"][1:],
        "weights": np.full((2, 2), np.nan),
    }
    for name, array in changes.items():
        save_file({**arrays, name: array}, path, metadata=metadata)
        with pytest.raises(ValueError, match=r"n\.safetensors is not a whole file that `NGram"):
            NGram.load(path)
    for change in ({"order": 10**9}, {"vocabulary_size": 2**60}):
        settings = json.dumps({**json.loads(metadata["ngram"]), **change})
        save_file(arrays, path, metadata={"ngram": settings})
        with pytest.raises(ValueError, match=r"n\.safetensors"):
            NGram.load(path)
    for change in ({"order": 0}, {"smoothing": "x"}, {"k": "1"}, {"end_id": -1}):
        settings = json.dumps({**json.loads(metadata["ngram"]), **change})
        save_file(arrays, path, metadata={"ngram": settings})
        with pytest.raises(ValueError, match=r"n\.safetensors, settings"):
            NGram.load(path)


def test_agrees_with_nltk():
    """With one mark at both ends, NLTK has our contexts, except the empty one."""
    lm = pytest.importorskip("nltk.lm")
    sentences, sentence = [], []
    for token in TRAIN[: np.flatnonzero(TRAIN == END)[-1] + 1].tolist():
        sentence.append(token)
        if token == END:
            sentences.append([END, *sentence])
            sentence = []
    grams = [
        [tuple(words[i : i + m]) for m in (1, 2, 3) for i in range(m == 1, len(words) - m + 1)]
        for words in sentences
    ]
    # NLTK's vocabulary has an additional unknown word; ours has a word that never occurs.
    words = [*range(SIZE - 1)]
    flat = [token for sentence in sentences for token in sentence[1:]]
    for theirs, smoothing, k in (
        (lm.MLE(3), "mle", 1.0),
        (lm.Laplace(3), "add_k", 1.0),
        (lm.Lidstone(0.3, 3), "add_k", 0.3),
    ):
        theirs.fit([[tuple(map(str, gram)) for gram in some] for some in grams], map(str, words))
        assert len(theirs.vocab) == SIZE
        ours = NGram(SIZE, 3, smoothing, k=k).fit(flat)
        compared = 0
        for context in [(END,), *((a, b) for a in words for b in words if b != END)]:
            known = [str(word) for word in context]
            if smoothing == "mle" and not theirs.context_counts(tuple(known)).N():
                continue  # NLTK gives 0 there
            found = ours.distribution(context)
            wanted = [theirs.score(str(word), known) for word in words]
            np.testing.assert_allclose(found[: SIZE - 1], wanted, rtol=1e-12)
            compared += 1
        assert compared > 20


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"vocabulary_size": 1}, "`vocabulary_size` must be at least 2. Received: voc.*=1"),
        ({"order": 0}, "`order` must be at least 1. Received: order=0"),
        ({"smoothing": "katz"}, "Unknown smoothing 'katz'. Known: mle, add_k, interpolation, kn"),
        ({"end_id": 5}, r"`end_id` must lie in \[0, `vocabulary_size`\). Received: end_id=5"),
        ({"end_id": -1}, r"`end_id` must lie in .* Received: end_id=-1"),
        ({"k": 0}, "`k` must be a number above 0. Received: k=0"),
        ({"k": math.nan}, "`k` must be a number above 0. Received: k=nan"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        NGram(**{"vocabulary_size": 5, **arguments})


@pytest.mark.parametrize(
    "token_ids, message",
    [
        ([], "A text must have at least one token. Received: no token ids"),
        ([[0, 1]], r"A text must be one flat array .* Received: shape \(1, 2\)"),
        ([0.0, 1.0], "Token ids must be integers. Received: dtype float64"),
        ([0, 1, 5, 7], "Token ids must lie in .* Received: id 5 at position 2, vocabulary_size=5"),
        ([0, -1], "Token ids must lie in .* Received: id -1 at position 1"),
    ],
)
def test_bad_text(token_ids, message):
    model = NGram(5, 2, "mle").fit([0, 1])
    with pytest.raises(ValueError, match=message):
        NGram(5, 2).fit(token_ids)
    with pytest.raises(ValueError, match=message):
        NGram(5, 2, "interpolation").fit([0, 1], token_ids)
    with pytest.raises(ValueError, match=message):
        model.log_prob(token_ids)
    if token_ids:  # an empty context is the start of a sentence
        with pytest.raises(ValueError, match=message):
            model.distribution(token_ids)


def test_bad_calls(tmp_path):
    message = "No sentence is long enough: the longest n-gram has 4 words.* Received: order=5, 5"
    with pytest.raises(ValueError, match=message):
        NGram(4, 5).fit([0, 2, 0, 1, 2])
    assert NGram(4, 4).fit([0, 2, 0, 1, 2]).num_ngrams == [3, 4, 3, 1]
    message = "fits the weights of .*interpolation.* Received: smoothing='interpolation'.*None"
    with pytest.raises(ValueError, match=message):
        NGram(4, 2, "interpolation").fit(TINY)
    with pytest.raises(
        ValueError, match="there and only there. Received: smoothing='mle', held_out=a text"
    ):
        NGram(4, 2, "mle").fit(TINY, TINY)
    for size, count in ((2**32, 3), (4, 2**32)):
        ids = np.broadcast_to(np.int8(1), (count,))
        with pytest.raises(ValueError, match=f"must fit 63 bits.*={size}, {count} tokens"):
            NGram(size, 2).fit(ids)
    unfitted = NGram(4)
    for call in (
        lambda: unfitted.log_prob(TINY),
        lambda: unfitted.perplexity(TINY),
        lambda: unfitted.distribution(),
        lambda: unfitted.generate(3),
        lambda: unfitted.save(tmp_path / "model.safetensors"),
        lambda: unfitted.num_ngrams,
    ):
        with pytest.raises(ValueError, match="Call `fit` first. Received: an `NGram`"):
            call()
    with pytest.raises(ValueError, match="`temperature` must be above 0. Received: temperature=0"):
        NGram(4, 2).fit(TINY).generate(3, temperature=0)
