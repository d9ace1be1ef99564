"""The LSTM language model, GPT's baseline: contract, causality, generation."""

import keras
import numpy as np
import pytest

from keras_plm import decoding, load, save
from keras_plm.data.task import Example
from keras_plm.heads import Classifier
from keras_plm.models import RECURRENT_LM_SIZES, RecurrentLM
from keras_plm.pretraining import CausalLM
from keras_plm.tokenizers import BytePair
from keras_plm.transfer import FineTune
from tests.helpers.checks import assert_close, check_encoder, to_numpy

TINY = {"num_layers": 2, "units": 7, "hidden_dim": 6}
TOKENIZER = BytePair(["<unk>", *(f"{c}</w>" for c in "abcdefg")], [], scheme="gpt")


def model(count=11):
    made = RecurrentLM(count, **TINY, dropout=0.0)
    rng = np.random.default_rng(0)
    made.set_weights([rng.normal(size=w.shape) * 0.7 for w in made.get_weights()])
    return made


@pytest.mark.compiles
def test_keeps_the_encoder_contract(tmp_path):
    encoder = RecurrentLM(13, **TINY)
    assert len(check_encoder(encoder, tmp_path, vocabulary_size=13)["layers"]) == 3
    save(tmp_path / "kept", RecurrentLM(TOKENIZER.text_size, **TINY), TOKENIZER)
    assert isinstance(load(tmp_path / "kept")[0], RecurrentLM)


@pytest.mark.backend_neutral
def test_base_has_the_sizes_of_the_paper():
    base = RECURRENT_LM_SIZES["base"]
    assert (base["num_layers"], base["units"], base["hidden_dim"]) == (1, 2048, 768)


def test_agrees_with_keras_lstm():
    """Reorders the gates for Keras and projects its cells by hand."""
    ours = RecurrentLM(11, num_layers=1, units=5, hidden_dim=5, dropout=0.0)
    weights = {w.path.split("/")[-1]: w for w in ours.weights}
    weights["projection"].assign(np.eye(5))  # passes the cells' outputs unchanged
    ids = np.array([[3, 4, 5, 6, 7]])
    theirs = keras.layers.LSTM(5, return_sequences=True, unit_forget_bias=False)
    x = ours.token_embedding(ids)
    theirs.build(x.shape)
    order = [0, 2, 1, 3]  # i, j, f, o there is i, f, j, o here

    def turned(name):
        parts = np.split(to_numpy(weights[name]), 4, axis=-1)
        return np.concatenate([parts[i] for i in order], axis=-1)

    bias = turned("bias") + np.repeat([0, 1, 0, 0], 5)  # 1 is added to the forget gate
    theirs.set_weights([turned("kernel"), turned("recurrent_kernel"), bias])
    wanted = theirs(x)
    assert_close(ours({"token_ids": ids, "padding_mask": ids > 0})["sequence"], wanted, atol=1e-5)


@pytest.mark.compiles
def test_batched_greedy_decoding_equals_rereading_each_text():
    lm, prompts = model(), [[3, 4, 5, 6], [7], [8, 9, 2]]
    token_ids = np.zeros((3, 5), "int32")
    for row, prompt in zip(token_ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    mask = np.arange(5) < np.array([[4], [1], [3]])
    inputs = {"token_ids": token_ids, "padding_mask": mask}
    written, _ = decoding.greedy(lm, inputs, 0, -1, max_new_tokens=6)
    plain, _ = decoding.greedy(lm, inputs, 0, -1, max_new_tokens=6, cache=False)
    for prompt, row, other in zip(prompts, written, plain, strict=True):
        text = list(prompt)
        for _ in range(6):
            ids = np.array([text])
            hidden = lm({"token_ids": ids, "padding_mask": ids >= 0})["sequence"]
            text.append(int(to_numpy(lm.token_embedding(hidden, reverse=True))[0, -1].argmax()))
        assert row.tolist() == other.tolist() == text[len(prompt) :]
    lm = model(TOKENIZER.text_size)
    texts = decoding.generate(lm, TOKENIZER, ["a b", "c"], max_new_tokens=90)
    assert all(len(text) > 60 for text in texts)


@pytest.mark.full
def test_recurrent_lm_fine_tunes_with_language_model_loss():
    examples = [Example("a b", "yes"), Example("c d e", "no")] * 8
    method = FineTune(learning_rate=1e-2, epochs=2, dropout=0.0, language_model_weight=0.5)
    fitted = method.fit(model(TOKENIZER.text_size), Classifier, TOKENIZER, examples)
    assert fitted.pool == "last" and len(fitted.predict(["a b"])) == 1
    assert CausalLM(model()).count_params() == model().count_params()


@pytest.mark.backend_neutral
def test_refuses_invalid_sizes():
    with pytest.raises(ValueError, match="units"):
        RecurrentLM(9, num_layers=1, units=0, hidden_dim=4)
