"""The CRF, compared with an enumeration of all tag sequences and with AllenNLP's values."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm import metrics
from keras_plm.data.task import Example
from keras_plm.heads import CRFTagger
from keras_plm.layers import CRF, CRFLoss, allowed_transitions, crf_losses, marginals, viterbi
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import FeatureBased, FineTune
from tests.helpers.checks import assert_close, to_numpy, under_torch

pytestmark = pytest.mark.each_backend

# AllenNLP v0.8.4, conditional_random_field_test.py.
LOGITS = np.array(
    [
        [[0, 0, 0.5, 0.5, 0.2], [0, 0, 0.3, 0.3, 0.1], [0, 0, 0.9, 10, 1]],
        [[0, 0, 0.2, 0.5, 0.2], [0, 0, 3, 0.3, 0.1], [0, 0, 0.9, 1, 1]],
    ]
)
TAGS = np.array([[2, 3, 4], [3, 2, 2]])
TRANSITIONS = [
    [0.1, 0.2, 0.3, 0.4, 0.5],
    [0.8, 0.3, 0.1, 0.7, 0.9],
    [-0.3, 2.1, -5.6, 3.4, 4.0],
    [0.2, 0.4, 0.6, -0.3, -0.4],
    [1.0, 1.0, 1.0, 1.0, 1.0],
]
STARTS, ENDS = [0.1, 0.2, 0.3, 0.4, 0.6], [-0.1, -0.2, 0.3, -0.4, -0.4]
MASK = np.array([[1, 1, 1], [1, 1, 0]], bool)


def fixed(boundary=True):
    layer = CRF(boundary)
    layer.build(LOGITS.shape)
    for weight in layer.weights:
        named = {"transitions": TRANSITIONS, "starts": STARTS, "ends": ENDS}
        weight.assign(np.array(named[weight.name]))
    return layer


def score(logits, tags, boundary=True):
    """Computes the formula term by term."""
    total = sum(row[tag] for row, tag in zip(logits, tags, strict=True))
    total += sum(TRANSITIONS[a][b] for a, b in itertools.pairwise(tags))
    return total + (STARTS[tags[0]] + ENDS[tags[-1]] if boundary else 0)


def log_likelihood(logits, tags, boundary=True):
    every = [
        score(logits, other, boundary)
        for other in itertools.product(range(logits.shape[-1]), repeat=len(logits))
    ]
    return score(logits, tags, boundary) - np.logaddexp.reduce(every)


@pytest.mark.parametrize("mask, total", [(np.ones((2, 3), bool), -22.57864775),
                                         (MASK, -13.37957394)])  # fmt: skip
def test_likelihood_equals_allennlp(mask, total):
    losses = to_numpy(crf_losses(TAGS, fixed()(LOGITS, padding_mask=mask)))
    assert -(losses * mask).sum() == pytest.approx(total, abs=1e-4)
    for row, tags, length, of_row in zip(LOGITS, TAGS, mask.sum(1), losses, strict=True):
        expected = log_likelihood(row[:length], tags[:length])
        assert -of_row[:length].sum() == pytest.approx(expected, abs=1e-4)


def test_losses_of_first_steps_sum_to_the_loss_of_a_prefix():
    losses = to_numpy(crf_losses(TAGS, fixed(boundary=False)(LOGITS)))
    for row, tags, of_row in zip(LOGITS, TAGS, losses, strict=True):
        for count in (1, 2, 3):
            expected = log_likelihood(row[:count], tags[:count], boundary=False)
            assert -of_row[:count].sum() == pytest.approx(expected, abs=1e-4)


def test_viterbi_equals_allennlp():
    scores = to_numpy(fixed()(LOGITS, padding_mask=MASK))
    found = [viterbi(row[:count]) for row, count in zip(scores, (3, 2), strict=True)]
    assert [tags for tags, _ in found] == [[2, 4, 3], [4, 2]]
    assert [value for _, value in found] == pytest.approx([15.5, 5.1], abs=1e-4)
    chain = {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (4, 0)}
    allowed = np.zeros((7, 7), bool)
    for pair in chain:
        allowed[pair] = True
    allowed[5, :5] = allowed[:5, 6] = True
    found = [viterbi(row[:n], allowed)[0] for row, n in zip(scores, (3, 2), strict=True)]
    assert found == [[2, 3, 3], [2, 3]]
    with pytest.raises(ValueError, match="a step or more"):
        viterbi(np.zeros((0, 2, 2)))


def test_viterbi_and_marginals_equal_enumeration():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 3, 3)) * 2
    scores[0] = scores[0, :1]
    labels = ["O", "B-X", "I-X"]
    allowed = allowed_transitions(labels, "BIO")
    every = {
        tags: sum(row[a, b] for row, a, b in zip(scores, (0, *tags), tags, strict=False))
        for tags in itertools.product(range(3), repeat=4)
    }
    best = max(every, key=every.get)
    assert viterbi(scores) == (list(best), pytest.approx(every[best]))
    legal = {t: s for t, s in every.items()
             if all(allowed[pair] for pair in itertools.pairwise((3, *t, 4)))}  # fmt: skip
    best = max(legal, key=legal.get)
    assert len(legal) < len(every) and viterbi(scores, allowed)[0] == list(best)
    total = np.logaddexp.reduce(list(every.values()))
    shares = np.zeros((4, 3))
    for tags, value in every.items():
        for step, tag in enumerate(tags):
            shares[step, tag] += np.exp(value - total)
    assert_close(marginals(scores), shares)
    assert_close(marginals(scores[:1]).sum(axis=1), [1.0])


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("boundary", [True, False])
def test_crf_layer_learns_transitions_and_reloads(boundary, tmp_path):
    rng = np.random.default_rng(0)
    # Tag 1 always follows tag 0. The words do not predict the tags.
    tags = np.tile([0, 1], (32, 3))
    words = rng.normal(size=(32, 6, 2)).astype("float32")
    x = keras.Input((None, 2))
    mask = keras.Input((None,), dtype="bool")
    layer = CRF(boundary)
    assert CRF.from_config(layer.get_config()).boundary is boundary
    outputs = layer(keras.layers.Dense(2)(x), padding_mask=mask)
    assert outputs.shape == (None, None, 2, 2)
    model = keras.Model([x, mask], outputs)
    model.compile(keras.optimizers.Adam(0.1), loss=CRFLoss())
    inputs, weights = [words, np.ones((32, 6), bool)], np.ones((32, 6), "float32")
    history = model.fit(inputs, tags, sample_weight=weights, epochs=30, verbose=0).history["loss"]
    # Without a start score both orders are equally good.
    assert history[-1] < (0.1 if boundary else 0.2) < history[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(again.predict(inputs, verbose=0), model.predict(inputs, verbose=0))


def test_long_rows_and_large_scores_stay_finite():
    logits = np.random.default_rng(0).normal(size=(1, 500, 9)) * 30
    layer = CRF(dtype="float32")
    losses = to_numpy(crf_losses(np.zeros((1, 500), int), layer(ops.convert_to_tensor(logits))))
    assert np.isfinite(losses).all()
    scores = to_numpy(layer(logits))[0]
    assert viterbi(scores)[0] == logits[0].argmax(axis=-1).tolist()  # nothing learned yet
    assert np.isfinite(marginals(scores)).all()


def test_allowed_transitions_equal_allennlp():
    labels = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    bio = {0: "0 1 3 6", 1: "0 1 2 3 6", 2: "0 1 2 3 6", 3: "0 1 3 4 6", 4: "0 1 3 4 6",
           5: "0 1 3"}  # fmt: skip
    iob1 = {0: "0 2 4 6", 1: "0 1 2 4 6", 2: "0 1 2 4 6", 3: "0 2 3 4 6", 4: "0 2 3 4 6",
            5: "0 2 4"}  # fmt: skip
    bioul = {0: "0 1 4 5 8 10", 1: "2 3", 2: "2 3", 3: "0 1 4 5 8 10", 4: "0 1 4 5 8 10",
             5: "6 7", 6: "6 7", 7: "0 1 4 5 8 10", 8: "0 1 4 5 8 10", 9: "0 1 4 5 8"}  # fmt: skip
    bmes = {0: "1 2", 1: "1 2", 2: "0 3 4 7 9", 3: "0 3 4 7 9", 4: "5 6", 5: "5 6",
            6: "0 3 4 7 9", 7: "0 3 4 7 9", 8: "0 3 4 7"}  # fmt: skip
    of_scheme = {
        "BIO": (labels, bio),
        "IOB1": (labels, iob1),
        "BIOUL": (["O", *(f"{p}-{kind}" for kind in "XY" for p in "BILU")], bioul),
        "IOBES": (["O", *(f"{p}-{kind}" for kind in "XY" for p in "BIES")], bioul),
        "BMES": ([f"{p}-{kind}" for kind in "XY" for p in "BMES"], bmes),
    }
    for scheme, (names, expected) in of_scheme.items():
        found = allowed_transitions(names, scheme)
        rows = {i: " ".join(map(str, np.flatnonzero(row))) for i, row in enumerate(found)}
        assert rows == expected | {len(names) + 1: ""}, scheme
    with pytest.raises(ValueError, match="Known schemes: BIO.*'allennlp'"):
        allowed_transitions(labels, "allennlp")
    with pytest.raises(ValueError, match="Tags of BIO are 'O' and B-NAME, I-NAME. .*'L-X'"):
        allowed_transitions(["O", "L-X"], "BIO")


PIECES = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde"])
TAGGED = ["O", "B-X", "I-X"]


def sentences(count, seed=0):
    """Returns sentences with spans of two or three words. Only their first word is "b"."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(count):
        words, tags = [], []
        for _ in range(rng.integers(1, 4)):
            length = rng.integers(2, 4)
            plain = rng.integers(1, 3)
            words += [*"a" * plain, "b", *rng.choice(list("ac"), length - 1)]
            tags += [*["O"] * plain, "B-X", *["I-X"] * (length - 1)]
        made.append(Example(words, tags))
    return made


@pytest.mark.full
@pytest.mark.parametrize("method", [FineTune, under_torch(FeatureBased)])
def test_crf_tagger_learns_legal_tags_and_reloads(method, tmp_path):
    train = sentences(64)
    encoder = BERT(len(PIECES), 1, 2, 16, 32, max_sequence_length=12, dropout=0.0)
    fast = {"learning_rate": 1e-2, "epochs": 8, "batch_size": 16, "dropout": 0.0}
    options = {"reader": "bilstm", "units": 8} if method is FeatureBased else {}
    model = method(**fast, **options).fit(encoder, CRFTagger, PIECES, train, train[:8], TAGGED)
    losses = model.training_log["loss"]
    assert losses[-1] < 0.7 * losses[0]
    test = sentences(12, seed=1)
    model.scheme = "BIO"
    found, shares = model.predict(test), model.predict(test, probabilities=True)
    legal = allowed_transitions(TAGGED, "BIO")
    for example, tags, share in zip(test, found, shares, strict=True):
        assert len(tags) == len(example.text) and share.shape == (len(tags), 3)
        assert_close(share.sum(axis=1), np.ones(len(tags)))
        if len(tags) <= 10:  # one window
            ids = [3, *(TAGGED.index(tag) for tag in tags), 4]
            assert all(legal[pair] for pair in itertools.pairwise(ids))
    assert metrics.span_f1([e.label for e in test], found) > 0.5
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.scheme == "BIO" and again.predict(test) == found


@pytest.mark.backend_neutral
def test_a_scheme_that_does_not_fit_is_refused():
    encoder = BERT(len(PIECES), 1, 2, 16, 32)
    with pytest.raises(ValueError, match="Tags of BIOUL are"):
        CRFTagger(encoder, ["O", "S-X"], scheme="BIOUL")
    assert CRFTagger(encoder, ["O", "S-X"]).scheme is None


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "sentence, name",
    [("O B-X I-X", "BIO"), ("O I-X B-X", "IOB1"), ("B-X I-X L-X O U-X", "BIOUL"),
     ("B-X I-X E-X O S-X", "IOBES"), ("B-X M-X E-X O S-X", "BMES")],
)  # fmt: skip
def test_recognised_schemes_have_allowed_transitions(sentence, name):
    labels = sorted(set(sentence.split()))
    found = allowed_transitions(labels, metrics.tag_scheme([sentence.split()]))
    np.testing.assert_array_equal(found, allowed_transitions(labels, name))
