"""Task networks against their papers' formulas, text by text and word by word."""

import keras
import numpy as np
import pytest

from keras_plm.heads import Classifier, Tagger
from keras_plm.readers import BCN, BiLSTM
from keras_plm.readers.bcn import FourPools
from keras_plm.transfer import FeatureBased, FineTune
from tests.checks import assert_close, check_layer, to_numpy
from tests.test_heads import TOKENIZER, encoder, sentences, texts

FAST = {"epochs": 2, "learning_rate": 1e-2, "batch_size": 16}


def softmax(x):
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def padded(shape=(2, 5, 4), lengths=(3, 5), seed=0):
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return x, np.arange(shape[1]) < np.array(lengths)[:, None]


def test_bcn_is_that_of_mccann_et_al(tmp_path):
    x, mask = padded()
    layer = BCN(3)
    check_layer(layer, {"inputs": x, "padding_mask": mask}, tmp_path)
    output = to_numpy(layer(x, padding_mask=mask))
    kernel, bias = (to_numpy(w) for w in layer.feed_forward.weights)
    for row, length in enumerate((3, 5)):
        u = np.maximum(x[row, :length] @ kernel + bias, 0)
        h = to_numpy(layer.encoder(u[None]))[0]
        rows = []
        for t in range(length):
            shares = softmax(np.array([h[t] @ h[s] for s in range(length)]))
            c = sum(share * h[s] for s, share in enumerate(shares))
            rows.append(np.concatenate([h[t], h[t] - c, h[t] * c]))
        wanted = to_numpy(layer.integrator(np.array(rows)[None].astype("float32")))[0]
        assert_close(output[row, :length], wanted)
    assert (output[0, 3:] == 0).all()
    other = np.where(mask[..., None], x, 9).astype("float32")
    assert_close(layer(other, padding_mask=mask), output)


def test_four_pools_and_two_maxouts(tmp_path):
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


@pytest.mark.parametrize("options", [{}, {"placement": "both", "layers": "mix"}], ids=str)
def test_features_are_read_by_a_bcn(options, tmp_path):
    method = FeatureBased(**{**FAST, "epochs": 8}, reader="bcn", units=4, **options)
    fitted = method.fit(encoder(), Classifier, TOKENIZER, texts(32), texts(8, seed=1))
    found = fitted.predict(texts(5), probabilities=True)
    assert fitted.training_log["loss"][-1] < fitted.training_log["loss"][0]
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(again.predict(texts(5), probabilities=True), found)


def test_an_encoder_is_fine_tuned_under_a_bcn():
    fitted = FineTune(**FAST, reader="bcn", units=4).fit(
        encoder(), Classifier, TOKENIZER, texts(32)
    )
    assert isinstance(fitted.reader, BCN) and len(fitted.predict(texts(3))) == 3
    for method in (FineTune, FeatureBased):
        with pytest.raises(ValueError, match="BCN reads whole texts.*'bilstm'.*head=Tagger"):
            method(**FAST, reader="bcn").fit(encoder(), Tagger, TOKENIZER, sentences(8))


def test_readers_of_ones_own_are_pooled_to_their_maximum():
    class Own(keras.layers.Layer):
        def call(self, inputs, padding_mask=None):
            return inputs

    head = Classifier(encoder(), ["a", "b"], tokenizer=TOKENIZER, reader=Own(), dropout=0.0)
    assert any(layer.name == "max" for layer in head.readout.layers)
    assert BiLSTM(2).pooling().pool == "max"
