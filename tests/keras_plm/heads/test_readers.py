"""Task networks, compared with their papers' formulas text by text and word by word."""

import itertools

import keras
import numpy as np
import pytest

from keras_plm.heads import Classifier, Tagger
from keras_plm.heads.readers import (
    BCN,
    ESIM,
    AlternatingLSTM,
    BiDAF,
    BiLSTM,
    BiLSTMTagger,
    HighwayLSTM,
)
from keras_plm.heads.readers.bcn import FourPools
from keras_plm.layers import crf_losses
from keras_plm.transfer import FeatureBased, FineTune
from tests.helpers.checks import assert_close, check_layer, to_numpy, under_torch
from tests.helpers.small_encoders import TOKENIZER, encoder, sentences, texts

ALONE = under_torch(0)
FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16}


def softmax(x):
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def padded(shape=(2, 5, 4), lengths=(3, 5), seed=0):
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return x, np.arange(shape[1]) < np.array(lengths)[:, None]


def read_rows(part, rows):
    """Applies a sequence layer to rows of unequal lengths in one call."""
    lengths = [len(row) for row in rows]
    x = np.zeros((len(rows), max(lengths), rows[0].shape[1]), "float32")
    for filled, row in zip(x, rows, strict=True):
        filled[: len(row)] = row
    mask = np.arange(x.shape[1]) < np.array(lengths)[:, None]
    found = to_numpy(part(x, padding_mask=mask))
    return [row[:length] for row, length in zip(found, lengths, strict=True)]


@pytest.mark.compiles
def test_alternating_lstm_equals_formulas_of_he_et_al(tmp_path):
    x, mask = padded()
    layer = AlternatingLSTM(3, num_layers=3, dropout=0.0)
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    output = to_numpy(layer(x, padding_mask=mask))

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    for row, length in enumerate((3, 5)):
        read = x[row, :length].astype("float64")
        for number, part in enumerate(layer.layers):
            kernel, bias = (to_numpy(w).astype("float64") for w in part.project.weights)
            recurrent = to_numpy(part.recurrent_kernel).astype("float64")
            h, c, found = np.zeros(3), np.zeros(3), np.zeros((length, 3))
            steps = range(length) if number % 2 == 0 else reversed(range(length))
            for t in steps:
                projected = read[t] @ kernel + bias
                i, j, f, o, r = np.split(projected[:15] + h @ recurrent, 5)
                c = sigmoid(i) * np.tanh(j) + sigmoid(f) * c
                h = sigmoid(r) * (sigmoid(o) * np.tanh(c)) + (1 - sigmoid(r)) * projected[15:]
                found[t] = h
            read = found
        assert_close(output[row, :length], read)
    assert (output[0, 3:] == 0).all()


def test_recurrent_dropout_keeps_its_units_at_all_steps():
    layer = HighwayLSTM(50, dropout=0.5)
    out = to_numpy(layer(np.ones((2, 6, 4), "float32"), training=True))
    dropped = out == 0
    assert (dropped == dropped[:, :1]).all()
    assert 0.2 < dropped.mean() < 0.8 and (dropped[0] != dropped[1]).any()
    assert not (to_numpy(layer(np.ones((2, 6, 4), "float32"))) == 0).any()


@pytest.mark.backend_neutral
def test_only_stacks_have_a_number_of_layers():
    assert FeatureBased(reader="bilstm", reader_layers=3).reader_layers == 3
    for reader in ("linear", "bcn"):
        with pytest.raises(ValueError, match="`reader_layers` needs reader='bilstm' or 'alt"):
            FineTune(reader=reader, reader_layers=2)
    with pytest.raises(ValueError, match="reader_layers"):
        FineTune(reader="bilstm", reader_layers=0)


@pytest.mark.compiles
def test_bcn_equals_formulas_of_mccann_et_al(tmp_path):
    x, mask = padded()
    layer = BCN(3)
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    output = to_numpy(layer(x, padding_mask=mask))
    kernel, bias = (to_numpy(w) for w in layer.feed_forward.weights)
    texts = [x[row, :length] for row, length in enumerate((3, 5))]
    seen = []
    for h in read_rows(layer.encoder, [np.maximum(text @ kernel + bias, 0) for text in texts]):
        rows = []
        for t in range(len(h)):
            shares = softmax(np.array([h[t] @ h[s] for s in range(len(h))]))
            c = sum(share * h[s] for s, share in enumerate(shares))
            rows.append(np.concatenate([h[t], h[t] - c, h[t] * c]))
        seen.append(np.array(rows))
    for row, wanted in enumerate(read_rows(layer.integrator, seen)):
        assert_close(output[row, : len(wanted)], wanted)
    assert (output[0, 3:] == 0).all()
    other = np.where(mask[..., None], x, 9).astype("float32")
    assert_close(layer(other, padding_mask=mask), output)


@pytest.mark.full
def test_four_pools_equal_their_formula(tmp_path):
    x, mask = padded()
    layer = FourPools()
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    output = to_numpy(layer(x, padding_mask=mask))
    score = to_numpy(layer.scores.weights[0])[:, 0]
    for row, length in enumerate((3, 5)):
        words = x[row, :length]
        shares = softmax(words @ score)
        found = np.concatenate([words.max(0), words.min(0), words.mean(0), shares @ words])
        for dense in layer.maxouts:
            kernel, bias = (to_numpy(w) for w in dense.weights)
            made = found @ kernel + bias
            found = np.array([made[i : i + 4].max() for i in range(0, len(made), 4)])
        assert_close(output[row], found)
    empty = layer(x, padding_mask=np.zeros((2, 5), bool))
    assert_close(empty, layer(0 * x, padding_mask=mask))


@pytest.mark.full
def test_bilstm_tagger_loss_equals_enumeration_of_paths(tmp_path):
    x, mask = padded()
    layer = BiLSTMTagger(3, units=2, num_layers=1)
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    for weight in layer.crf.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    tags = np.array([[0, 2, 1, 0, 0], [1, 1, 0, 2, 2]])
    found = to_numpy(crf_losses(tags, layer(x, padding_mask=mask)))
    kernel, bias = (to_numpy(w) for w in layer.logits.weights)
    transitions, starts, ends = (to_numpy(w) for w in layer.crf.weights)
    rows = read_rows(layer.bilstm, [x[0, :3], x[1]])
    for row, of_row, losses in zip(rows, tags, found, strict=True):
        scores = row @ kernel + bias

        def total(path, scores=scores):
            of_steps = sum(scores[t, tag] for t, tag in enumerate(path))
            between = sum(transitions[a, b] for a, b in itertools.pairwise(path))
            return of_steps + between + starts[path[0]] + ends[path[-1]]

        paths = [total(path) for path in itertools.product(range(3), repeat=len(scores))]
        wanted = np.log(np.exp(paths).sum()) - total(of_row[: len(scores)])
        assert_close(losses[: len(scores)].sum(), wanted, atol=1e-4)
    with pytest.raises(ValueError, match="2 or more. Received: num_labels=1"):
        BiLSTMTagger(1)


@pytest.mark.full
def test_bcn_trains_on_features_and_reloads(tmp_path):
    options = {**FAST, "epochs": 6, "learning_rate": 3e-3, "units": 4, "placement": "both"}
    method = FeatureBased(**options, layers="mix", reader="bcn")
    fitted = method.fit(encoder(num_layers=1), Classifier, TOKENIZER, texts(32))
    found = fitted.predict(texts(5), probabilities=True)
    assert fitted.training_log["loss"][-1] < fitted.training_log["loss"][0]
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(again.predict(texts(5), probabilities=True), found)


@pytest.mark.backend_neutral
def test_bcn_fine_tunes_classifiers_and_refuses_taggers():
    fitted = FineTune(**{**FAST, "epochs": 1}, reader="bcn", units=4).fit(
        encoder(num_layers=1), Classifier, TOKENIZER, texts(16)
    )
    assert isinstance(fitted.reader, BCN) and len(fitted.predict(texts(3))) == 3
    for method in (FineTune, FeatureBased):
        with pytest.raises(ValueError, match="BCN reads whole texts.*'bilstm'.*head=Tagger"):
            method(**FAST, reader="bcn").fit(encoder(), Tagger, TOKENIZER, sentences(8))


def test_own_readers_use_max_pooling():
    class Own(keras.layers.Layer):
        def call(self, inputs, padding_mask=None):
            return inputs

    head = Classifier(encoder(), ["a", "b"], tokenizer=TOKENIZER, reader=Own(), dropout=0.0)
    assert any(layer.name == "max" for layer in head.task_network.layers)
    assert BiLSTM(2).pooling().pool == "max"


def append(rows, features):
    """Appends the vectors of an array to those of rows of unequal lengths."""
    pairs = zip(rows, features, strict=True)
    return [np.concatenate([row, more[: len(row)]], axis=1) for row, more in pairs]


@pytest.mark.compiles
@pytest.mark.parametrize("width", [ALONE, 3], ids=["alone", "features after"])
def test_esim_equals_formulas_of_chen_et_al(width, tmp_path):
    first, first_mask = padded((2, 5, 4), (3, 5))
    second, second_mask = padded((2, 7, 4), (7, 2), seed=1)
    more = [padded((2, length, width), (1, 1), seed)[0] for length, seed in ((5, 2), (7, 3))]
    layer = ESIM(8)
    inputs = {
        "first": first, "second": second, "first_mask": first_mask, "second_mask": second_mask,
    }  # fmt: skip
    if width:
        inputs |= {"first_after": more[0], "second_after": more[1]}
    model = check_layer(layer, inputs, tmp_path)
    output = model.predict_on_batch(inputs)
    weights = [[to_numpy(w) for w in part.weights] for part in (layer.comparison, layer.hidden)]

    def compared(a, b):
        rows = []
        for x in a:
            shares = softmax(np.array([x @ y for y in b]))
            seen = sum(share * y for share, y in zip(shares, b, strict=True))
            m = np.concatenate([x, seen, x - seen, x * seen])
            rows.append(np.maximum(m @ weights[0][0] + weights[0][1], 0))
        return np.array(rows)

    lengths = ((3, 7), (5, 2))
    a = read_rows(layer.encoder, [first[row, :t] for row, (t, _) in enumerate(lengths)])
    b = read_rows(layer.encoder, [second[row, :s] for row, (_, s) in enumerate(lengths)])
    a, b = append(a, more[0]), append(b, more[1])
    made = [read_rows(layer.composition, [compared(*both) for both in zip(*texts, strict=True)])
            for texts in ((a, b), (b, a))]  # fmt: skip
    for row in range(2):
        both = [pool(axis=0) for m in made for pool in (m[row].mean, m[row].max)]
        wanted = np.concatenate(both) @ weights[1][0] + weights[1][1]
        assert_close(output[row], np.maximum(wanted, 0))
    other = {**inputs, "first": np.where(first_mask[..., None], first, 9).astype("float32")}
    assert_close(model.predict_on_batch(other), output)
    empty = model.predict_on_batch({**inputs, "second_mask": np.zeros((2, 7), bool)})
    assert np.isfinite(empty).all()


def trilinear(kernel, x, y):
    """Computes S = w . [x; y; x * y] for each pair of words."""
    return np.array([[kernel.reshape(-1) @ np.concatenate([a, b, a * b]) for b in y] for a in x])


@pytest.mark.quick_cases("alone")
@pytest.mark.compiles
@pytest.mark.parametrize("width", [ALONE, 5], ids=["alone", "features after"])
def test_bidaf_equals_formulas_of_clark_and_gardner(width, tmp_path):
    passage, passage_mask = padded((2, 6, 4), (4, 6))
    question, question_mask = padded((2, 3, 4), (3, 2), seed=1)
    more = [padded((2, length, width), (1, 1), seed)[0] for length, seed in ((6, 2), (3, 3))]
    layer = BiDAF(3)
    inputs = {
        "passage": passage, "question": question,
        "passage_mask": passage_mask, "question_mask": question_mask,
    }  # fmt: skip
    if width:
        inputs |= {"passage_after": more[0], "question_after": more[1]}
    model = check_layer(layer, inputs, tmp_path)
    output = model.predict_on_batch(inputs)

    def dense(part, x, activate=True):
        kernel, bias = (to_numpy(w) for w in part.weights)
        return np.maximum(x @ kernel + bias, 0) if activate else x @ kernel + bias

    lengths = ((4, 3), (6, 2))
    p = read_rows(layer.encoder, [passage[row, :t] for row, (t, _) in enumerate(lengths)])
    q = read_rows(layer.encoder, [question[row, :s] for row, (_, s) in enumerate(lengths)])
    p, q = append(p, more[0]), append(q, more[1])
    x = []
    for of_p, of_q in zip(p, q, strict=True):
        scores = trilinear(to_numpy(layer.bi_attention.score_kernel), of_p, of_q)
        asked = softmax(scores.max(axis=1)) @ of_p
        rows = []
        for word, of_word in zip(of_p, scores, strict=True):
            attended = softmax(of_word) @ of_q
            rows.append(np.concatenate([word, attended, word * attended, word * asked]))
        x.append(dense(layer.attended, np.array(rows)))
    for row, h in enumerate(read_rows(layer.reader, x)):
        scores = trilinear(to_numpy(layer.self_attention.score_kernel), h, h)
        rows = []
        for i in range(len(h)):
            others = [j for j in range(len(h)) if j != i]
            seen = softmax(scores[i, others]) @ h[others]
            rows.append(np.concatenate([h[i], seen, h[i] * seen]))
        x[row] = x[row] + dense(layer.self_attended, np.array(rows))
    begins = read_rows(layer.begins, x)
    both = [np.concatenate(parts, axis=1) for parts in zip(x, begins, strict=True)]
    ends = read_rows(layer.ends, both)
    for row, (t, _) in enumerate(lengths):
        wanted = [
            dense(layer.begin_scores, begins[row], False)[:, 0],
            dense(layer.end_scores, ends[row], False)[:, 0],
        ]
        assert_close(output[row][:, :t], np.array(wanted))
    noise = {"passage": np.where(passage_mask[..., None], passage, 9).astype("float32")}
    noise["question"] = np.where(question_mask[..., None], question, 9).astype("float32")
    real = np.repeat(passage_mask[:, None], 2, axis=1)
    assert_close(model.predict_on_batch({**inputs, **noise})[real], output[real])
    alone = layer.self_attention(np.ones((1, 3, 6)), padding_mask=np.array([[True, False, False]]))
    assert (to_numpy(alone)[0, 0] == 0).all()


@pytest.mark.compiles
@pytest.mark.parametrize("reader", [ESIM, BiDAF])
def test_dropout_mask_is_the_same_for_all_words(reader):
    layer = reader(3, dropout=0.5)
    drop = layer.drop_words if reader is ESIM else layer.drop
    found = to_numpy(drop(np.ones((2, 5, 8), "float32"), training=True))
    assert set(np.unique(found)) == {0.0, 2.0} and (found == found[:, :1]).all()
