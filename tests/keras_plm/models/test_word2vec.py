"""word2vec and fastText, compared with loops over pairs."""

import heapq
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.models.fasttext import FastText, SubwordEmbedding
from keras_plm.models.word2vec import Neighbours, Word2Vec, huffman_paths
from keras_plm.tokenizers.character_ngrams import ngram_rows
from keras_plm.training.losses import LogisticLoss, MeanLoss
from tests.helpers.checks import assert_close, check_elsewhere, to_numpy

KINDS = [(a, o) for a in ("skip_gram", "cbow")
         for o in ("negative_sampling", "hierarchical_softmax")]  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[EOS]", "where", "here", "there", "was", "a", "wherever", "é"]


def text(words=400, seed=0):
    """Returns ids with unknown words (1) and sentence ends (2)."""
    return np.random.default_rng(seed).integers(1, len(VOCABULARY), words).astype("int32")


def make(architecture, objective, kind=Word2Vec):
    first = len(VOCABULARY) if kind is Word2Vec else VOCABULARY
    model = kind(first, 5, architecture, objective, window=3, row_length=11, noise_words=4)
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model


def softplus(x):
    return np.log1p(np.exp(x))


@pytest.mark.parametrize("architecture, objective", KINDS)
@pytest.mark.parametrize("kind", [Word2Vec, FastText])
def test_loss_equals_the_sum_over_all_pairs(architecture, objective, kind):
    model = make(architecture, objective, kind)
    batches = model.batches(text(), negatives=7, sample=None, tokens_per_batch=44)
    source = batches.collate.__self__
    ids, sentences, reach = source.text(0)
    real = reach > 0
    assert (ids[real] > 2).all() and set(reach[real]) == {1, 2, 3}
    assert real[: real.sum()].all() and 0 < (~real).sum() < 11  # the last row is padded
    vectors, out = model.vectors, to_numpy(model.get_layer("output").embeddings)
    nodes, turns = huffman_paths(np.bincount(ids[real], minlength=10))
    filled = next(i for i, (_, rows) in enumerate(batches.plan(0)) if (rows < 0).any())
    for number in (0, filled):
        rows = [row for row in batches.plan(0)[number][1] if row >= 0]
        x, y, weights = batches[number]
        total = 0.0
        for b, row in enumerate(rows):
            here = range(row * 11, row * 11 + 11)
            for i in here:
                context = [j for j in here if j != i and abs(j - i) <= reach[i]
                           and sentences[i] == sentences[j]]  # fmt: skip
                inputs = [vectors[ids[j]] for j in context]
                if architecture == "cbow" and inputs:
                    inputs = [np.mean(inputs, axis=0)]
                for v in inputs:
                    if objective == "negative_sampling":
                        total += softplus(-v @ out[ids[i]])
                        for noise in x["noise_ids"][b]:
                            total += 7 / 4 * softplus(v @ out[noise])
                    else:
                        for node, turn in zip(nodes[ids[i]], turns[ids[i]], strict=True):
                            total += softplus(-turn * (v @ out[node])) if turn else 0
        loss = float(LogisticLoss()(y, model(x), sample_weight=weights))
        np.testing.assert_allclose(loss, total, rtol=1e-5)
        metric = MeanLoss(LogisticLoss())
        metric.update_state(y, model(x), weights)
        assert weights.sum() == sum(real[row * 11 : row * 11 + 11].sum() for row in rows)
        np.testing.assert_allclose(float(metric.result()), total / weights.sum(), rtol=1e-5)


def test_neighbours_against_loops():
    rng = np.random.default_rng(0)
    x, query = rng.normal(size=(2, 2, 7, 5)).astype("float32")
    weights = rng.normal(size=(2, 7, 6)).astype("float32")
    layer = Neighbours(3)
    around = np.zeros((2, 7, 6, 5), "float32")
    for t in range(7):
        for i, offset in enumerate((-3, -2, -1, 1, 2, 3)):
            if 0 <= t + offset < 7:
                around[:, t, i] = x[:, t + offset]
    assert_close(layer(x), around)
    assert_close(layer(x, query=query), np.einsum("btd,btod->bto", query, around))
    assert_close(layer(x, weights=weights), np.einsum("bto,btod->btd", weights, around))
    for given in ({}, {"query": query}, {"weights": weights}):
        symbols = {n: keras.KerasTensor(a.shape) for n, a in {"inputs": x, **given}.items()}
        assert layer.compute_output_spec(**symbols).shape == layer(x, **given).shape
        check_elsewhere(lambda: Neighbours(3), {"inputs": x, **given})


@pytest.mark.quick_cases(
    "skip_gram-negative_sampling-FastText", "cbow-hierarchical_softmax-Word2Vec"
)
@pytest.mark.parametrize("kind", [Word2Vec, FastText])
@pytest.mark.parametrize("architecture, objective", KINDS)
def test_model_learns_and_reloads(kind, architecture, objective, tmp_path):
    model = make(architecture, objective, kind)
    before = [w.copy() for w in model.get_weights()]
    batches = model.batches(text(), sample=None, tokens_per_batch=44)
    model.fit(batches, epochs=2, verbose=0)
    for weight, old in zip(model.weights, before, strict=True):
        assert not np.array_equal(to_numpy(weight), old), weight.path
    again = kind.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    x = batches[0][0]
    if kind is Word2Vec:  # Keras' segment_sum does not run on torch's `meta`
        check_elsewhere(lambda: kind.from_config(model.get_config()), x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), model(x))
    assert_close(loaded.vectors, model.vectors)
    history = loaded.fit(batches, verbose=0)  # loading keeps the compilation
    assert "loss_per_word" in history.history


@pytest.mark.full
def test_words_of_one_topic_get_similar_vectors():
    rng = np.random.default_rng(0)
    sentences = [[*rng.choice([3, 4, 5] if i % 2 else [6, 7, 8], 8), 2] for i in range(600)]
    for architecture, objective in KINDS:
        model = Word2Vec(9, 8, architecture, objective, window=3, row_length=16, noise_words=8)
        model.fit(model.batches(np.concatenate(sentences), sample=None, tokens_per_batch=256),
                  epochs=8, verbose=0)  # fmt: skip
        v = model.vectors[3:] / np.linalg.norm(model.vectors[3:], axis=1, keepdims=True)
        cosines = v @ v.T
        assert cosines[:3, :3].min() > cosines[:3, 3:].max() + 0.3, (architecture, objective)


@pytest.mark.full
def test_every_word_of_a_short_text_is_learned():
    ids = np.array([*[3, 4, 5, 6] * 32, *[7, 8, 9] * 2])  # 128 words fill a row
    model = Word2Vec(10, 4)
    before = model.vectors.copy()
    model.fit(model.batches(ids, sample=None), epochs=2, verbose=0)
    assert (model.vectors[3:] != before[3:]).all()


@pytest.mark.backend_neutral
@pytest.mark.parametrize("kind", [Word2Vec, FastText])
def test_batches_of_another_text_use_the_first_counts(kind, tmp_path):
    model = make("skip_gram", "hierarchical_softmax", kind)
    assert model.counts is None
    first = model.batches(text(), sample=1e-2).collate.__self__
    np.testing.assert_array_equal(model.counts, np.bincount(text(), minlength=10))
    other = np.full(90, 3)
    model.save(tmp_path / "model.keras")
    for again in (model, keras.saving.load_model(tmp_path / "model.keras")):
        found = again.batches(other, sample=1e-2).collate.__self__
        for name in ("nodes", "turns", "noise", "keep"):
            np.testing.assert_array_equal(getattr(found, name), getattr(first, name))
    fresh = kind(20 if kind is Word2Vec else [*"abcdefghijklmnopqrst"], 5, counts=[1] * 20)
    assert (fresh.batches(other).collate.__self__.keep[3:] > 0).all()


def test_default_learning_rate_depends_on_model_and_objective():
    for architecture, objective in KINDS:
        model = make(architecture, objective)
        model.compile()
        expected = 1.0 if (architecture, objective) == ("cbow", "negative_sampling") else 0.3
        assert_close(ops.convert_to_numpy(model.optimizer.learning_rate), expected)
    assert make("skip_gram", "negative_sampling", FastText).default_rate == 0.6


@pytest.mark.backend_neutral
def test_frequent_words_are_subsampled_as_in_word2vec_c():
    ids = np.concatenate([np.full(9000, 3), np.full(900, 4), np.full(100, 5), [2] * 50])
    ids = np.random.default_rng(0).permutation(ids)
    source = Word2Vec(6, 4, row_length=4).batches(ids, sample=1e-2).collate.__self__
    # word2vec.c keeps the fraction (sqrt(f / t) + 1) t / f.
    expected = [min((np.sqrt(f / 1e-2) + 1) * 1e-2 / f, 1.0) for f in (0.9, 0.09, 0.01)]
    assert_close(source.keep[3:], np.array(expected))
    kept = [np.bincount(source.text(epoch)[0], minlength=6)[3:] for epoch in range(20)]
    assert_close(np.mean(kept, axis=0) / [9000, 900, 100], np.array(expected), atol=0.01)
    assert not np.array_equal(kept[0], kept[1])
    everything = Word2Vec(6, 4, row_length=4).batches(ids, sample=None).collate.__self__
    assert (everything.text(0)[0] == ids[ids != 2]).all()
    # Noise words are drawn in proportion to counts to the power of 3/4.
    share = np.diff(source.noise, prepend=0)[3:] / source.noise[-1]
    assert_close(share, np.array([9000, 900, 100]) ** 0.75 / sum(np.array([9e3, 900, 100]) ** 0.75))
    model = Word2Vec(6, 4, row_length=4, noise_words=64)
    batches = model.batches(ids, sample=None, tokens_per_batch=64)
    drawn = np.concatenate([x["noise_ids"].ravel() for x, *_ in batches])
    assert_close(np.bincount(drawn, minlength=6)[3:] / len(drawn), share, atol=0.01)


@pytest.mark.backend_neutral
def test_equal_seeds_create_equal_batches():
    model = make("skip_gram", "negative_sampling")
    first, second, other = (
        model.batches(text(), sample=None, tokens_per_batch=44, seed=s) for s in (3, 3, 4)
    )
    assert_close(list(first), list(second), atol=0)
    assert not np.array_equal(first[0][0]["token_ids"], other[0][0]["token_ids"])
    assert len({b[0]["token_ids"].tobytes() for b in first}) == len(first)


def test_huffman_codes_are_shortest_and_define_probabilities():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, 31) * (rng.random(31) > 0.2)
    nodes, turns = huffman_paths(counts)
    lengths = (turns != 0).sum(axis=1)
    assert ((lengths > 0) == (counts > 0)).all() and ((nodes >= 0) == (turns != 0)).all()
    heap, cost = [c for c in counts if c], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    assert (lengths * counts).sum() == cost  # no code is shorter on average
    scores = rng.normal(size=nodes.max() + 1)
    probabilities = [
        np.prod([1 / (1 + np.exp(-t * scores[n])) for n, t in zip(way, turn, strict=True) if t])
        for way, turn, count in zip(nodes, turns, counts, strict=True)
        if count
    ]
    np.testing.assert_allclose(sum(probabilities), 1, rtol=1e-12)


def test_fasttext_vectors_are_means_of_word_and_ngram_vectors():
    model = FastText(VOCABULARY, 4, row_length=6, window=2, min_n=2, max_n=4, buckets=53)
    table = to_numpy(model.embedding.embeddings)
    used = {int(bucket): i for i, bucket in enumerate(model.bucket_ids)}
    for i, word in enumerate(VOCABULARY):
        parts = [table[i], *(table[10 + used[int(r)]] for r in ngram_rows(word, 2, 4, 53))]
        assert_close(model.vectors[i], np.mean(parts, axis=0))
    ids = np.array([[3, 4, 3, 8, 9, 3], [5, 5, 6, 7, 8, 4]])
    x = model.words_of(ids)
    read = model.embedding(x["word_numbers"], x["part_rows"], x["part_words"])
    assert_close(read, model.vectors[ids])
    vectors = model.subword_vectors()
    assert vectors.words == VOCABULARY[3:]
    assert_close(vectors.vectors(VOCABULARY[3:]), model.vectors[3:])
    ends = FastText(["[PAD]", "[UNK]", "[EOS]", "</s>", "where"], 4, buckets=53)
    exported = ends.subword_vectors()
    assert_close(exported.vectors(exported.words), ends.vectors[3:])
    unseen = [table[10 + used[r]] for r in ngram_rows("wheres", 2, 4, 53).tolist() if r in used]
    assert_close(vectors.vector("wheres"), np.sum(unseen, axis=0) / len(ngram_rows("wheres", 2, 4)))
    layer = SubwordEmbedding(7, 3)
    layer(np.array([[0, 1]]), np.array([1, 2, 0]), np.array([0, 1, -1]))
    assert SubwordEmbedding.from_config(layer.get_config()).get_config() == layer.get_config()


def test_compile_with_a_learning_rate_uses_adagrad():
    model = make("skip_gram", "negative_sampling")
    model.compile(0.25)
    assert_close(ops.convert_to_numpy(model.optimizer.learning_rate), 0.25)
    assert isinstance(model.optimizer, keras.optimizers.Adagrad)
    model.compile("sgd")
    assert isinstance(model.optimizer, keras.optimizers.SGD)


@pytest.mark.backend_neutral
@pytest.mark.backend_neutral
def test_an_epoch_of_a_very_short_text_has_words():
    model = Word2Vec(6, hidden_dim=4, window=2, row_length=8, noise_words=2)
    batches = model.batches(np.array([3, 4, 5, 2] * 6))
    assert all(len(batches.row_lengths(epoch)) for epoch in range(200))


@pytest.mark.backend_neutral
def test_batches_of_fasttext_need_one_device():
    vocabulary = ["[PAD]", "[UNK]", "[EOS]", *(f"word{i}" for i in range(20))]
    model = FastText(vocabulary, hidden_dim=4, row_length=8, noise_words=2, buckets=100)
    text = np.arange(3, 23).repeat(3)
    with pytest.raises(ValueError, match="one array: use one device"):
        model.batches(text, tokens_per_batch=16, shard=(0, 2))
    several = types.SimpleNamespace(num_replicas=2, part=(0, 2))
    with pytest.raises(ValueError, match="need one device.*Received: 2 devices"):
        model.batches(text, tokens_per_batch=16).sharded(several)


def test_bad_input():
    with pytest.raises(ValueError, match="`architecture` must be one of"):
        Word2Vec(9, architecture="skipgram")
    with pytest.raises(ValueError, match="`objective` must be one of"):
        Word2Vec(9, objective="softmax")
    for name in ("vocabulary_size", "hidden_dim", "window", "row_length", "noise_words"):
        with pytest.raises(ValueError, match=f"`{name}` must be 1 or more"):
            Word2Vec(**{"vocabulary_size": 9, name: 0})
    model = Word2Vec(9, 4, row_length=8)
    for ids, options in (([2, 2, 1, 2], {}), ([3, 4, 2] * 50, {"shard": (0, 3)})):
        with pytest.raises(ValueError):
            model.batches(np.array(ids), **options)
    assert model.counts is None  # the first accepted text sets them
    with pytest.raises(ValueError, match=r"lie in \[0, `vocabulary_size`\)"):
        model.batches(np.array([3, 9]))
    with pytest.raises(ValueError, match="at least one. Received: 0 ids"):
        model.batches(np.zeros(0, int))
    for ids in (np.ones((3, 4), int), np.ones(30)):
        with pytest.raises(ValueError, match="one flat array of integer ids"):
            model.batches(ids)
    with pytest.raises(ValueError, match="no words: all are left out"):
        model.batches(np.array([0, 1, 2]))
    for options in ({"negatives": 0}, {"sample": 0}, {"negatives": np.nan}, {"sample": np.inf}):
        with pytest.raises(ValueError, match="must be numbers above 0"):
            model.batches(np.full(90, 3), **options)
    for options in ({"end_id": 9}, {"end_id": -1}, {"left_out": (-1,)}, {"left_out": (0.5,)}):
        with pytest.raises(ValueError, match="must be ids in"):
            model.batches(np.full(90, 3), **options)
    with pytest.raises(ValueError, match="`tokens_per_batch` must be 1 or more"):
        model.batches(np.full(90, 3), tokens_per_batch=-4)
    for counts in (np.ones(8, int), np.ones(9), -np.ones(9, int)):
        with pytest.raises(ValueError, match="`counts`"):
            Word2Vec(9, counts=counts)
    for words, match in (("the cat", "list of names"), (["a", "b", "a"], "must be unique")):
        with pytest.raises(ValueError, match=match):
            FastText(words)
    for sizes in ({"min_n": 5, "max_n": 3}, {"min_n": 0}):
        with pytest.raises(ValueError, match="n-grams must have from `min_n` to `max_n`"):
            FastText(VOCABULARY, **sizes)
    with pytest.raises(ValueError, match="two words or more"):
        huffman_paths([0, 4, 0])
    batches = Word2Vec(20, 4, row_length=8).batches(np.full(90, 19), sample=None)
    with pytest.raises(ValueError, match="know every id"):
        model.fit(batches)
