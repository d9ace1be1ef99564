"""GPT's objective: losses equal the whole softmax, windows are contiguous text."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm.data.corpus import TokenStream
from keras_plm.layers import TokenEmbedding
from keras_plm.layers.sampled_softmax import logsumexp_of_products
from keras_plm.models import BERT, GPT
from keras_plm.pretraining import CausalLM, causal_lm_batches, token_losses
from keras_plm.pretraining.causal_lm import TiedLoss
from keras_plm.tokenizers import BytePair, WordPiece, Words
from keras_plm.training.resume import set_seed
from tests.helpers.checks import assert_close, to_numpy

TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "dropout": 0.0}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat .\nthe dog ran to the cat .\n" * 20)
    words = Words.train(path)
    return TokenStream.build(path, words, tmp_path / "stream", sentences="lines"), words


def test_tied_loss_and_gradients_equal_those_of_full_logits(monkeypatch):
    """The table has two uses: the scored tokens, and all tokens of the softmax."""
    by_fours = functools.partial(logsumexp_of_products, rows=4)
    monkeypatch.setattr("keras_plm.pretraining.causal_lm.logsumexp_of_products", by_fours)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3, 5, 7)).astype("float32")
    targets = rng.integers(0, 11, (3, 5)).astype("int32")

    class Plain(keras.layers.Layer):
        def __init__(self, token_embedding):
            super().__init__()
            self.token_embedding = token_embedding

        def call(self, hidden, target_ids):
            logs = ops.log_softmax(self.token_embedding(hidden, reverse=True))
            return -ops.take_along_axis(logs, target_ids[..., None], axis=-1)[..., 0]

    found = []
    for kind in (TiedLoss, Plain):
        inputs = {"hidden": keras.Input((5, 7)), "target_ids": keras.Input((5,), dtype="int32")}
        table, mixed = TokenEmbedding(11, 7), keras.layers.Dense(7, use_bias=False)
        table.build((None, 5))
        mixed.build((None, 5, 7))
        for layer in (table, mixed):
            seeded = np.random.default_rng(1)
            layer.set_weights([seeded.normal(size=w.shape) for w in layer.get_weights()])
        losses = kind(table)(mixed(inputs["hidden"]), inputs["target_ids"])
        model = keras.Model(inputs, losses)
        before = to_numpy(model({"hidden": hidden, "target_ids": targets}))
        model.compile(keras.optimizers.SGD(1.0), loss=lambda y_true, y_pred: ops.sum(y_pred))
        model.fit({"hidden": hidden, "target_ids": targets}, targets, batch_size=3, verbose=0)
        found.append((before, to_numpy(table.embeddings), to_numpy(mixed.kernel)))
    assert_close(*found, atol=1e-4)


@pytest.mark.compiles
def test_each_token_is_predicted_from_preceding_tokens(text):
    stream, words = text
    model = CausalLM(GPT(len(words), **TINY))
    x, y, _ = causal_lm_batches(stream, words, 6, batch_size=4, training=False)[0]
    tokens = np.asarray(stream.tokens)
    for row in range(4):
        np.testing.assert_array_equal(x["token_ids"][row], tokens[6 * row : 6 * row + 6])
        np.testing.assert_array_equal(y[row], tokens[6 * row + 1 : 6 * row + 7])
    losses = to_numpy(model(x))
    hidden = model.encoder({name: x[name] for name in model.encoder.input})["sequence"]
    logs = ops.log_softmax(model.encoder.token_embedding(hidden, reverse=True))
    wanted = -np.take_along_axis(to_numpy(logs), y[..., None], axis=-1)[..., 0]
    assert_close(losses, wanted)


@pytest.mark.backend_neutral
def test_evaluation_of_training_batches_does_not_shift_windows(text):
    stream, words = text
    batches = causal_lm_batches(stream, words, 6, batch_size=4, seed=3)
    whole = causal_lm_batches(stream, words, 6, batch_size=4, training=False)
    for (x, _, _), (other, _, _) in zip(batches.for_evaluation(), whole, strict=True):
        assert_close(x["token_ids"], other["token_ids"], atol=0)


def test_token_losses_of_a_causal_bert():
    words = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    encoder = BERT(len(words), 1, 2, 8, 16, causal=True)
    assert [len(losses) for losses in token_losses(encoder, words, ["a b", "b a b"])] == [3, 4]


@pytest.mark.backend_neutral
def test_windows_shift_between_epochs(text):
    stream, words = text
    batches = causal_lm_batches(stream, words, 6, batch_size=4)
    tokens = np.asarray(stream.tokens).tolist()
    seen = []
    for _ in range(2):
        rows = [row for x, _, _ in batches for row in x["token_ids"].tolist()]
        assert all(any(tokens[i : i + 6] == row for i in range(len(tokens))) for row in rows)
        seen.append(sorted(rows))
        batches.on_epoch_begin()
        batches.on_epoch_end()
    assert seen[0] != seen[1]
    again = causal_lm_batches(stream, words, 6, batch_size=4, training=False)
    assert_close(again[0][0]["token_ids"], again[0][0]["token_ids"], atol=0)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_memorised_text_has_low_perplexity(text, tmp_path):
    stream, words = text
    set_seed(0)
    model = CausalLM(GPT(len(words), **{**TINY, "hidden_dim": 32}))
    model.compile(keras.optimizers.Adam(3e-3))
    model.fit(causal_lm_batches(stream, words, 14, batch_size=8), epochs=90, verbose=0)
    held_out = causal_lm_batches(stream, words, 14, training=False)
    found = model.evaluate(held_out, verbose=0, return_dict=True)
    assert found["perplexity"] < 1.4  # the first token of a window is unpredictable
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-5)
    model.save(tmp_path / "lm.keras")
    again = keras.saving.load_model(tmp_path / "lm.keras")
    assert again.evaluate(held_out, verbose=0) == pytest.approx(list(found.values()), rel=1e-5)


@pytest.mark.backend_neutral
def test_evaluation_reads_all_full_windows(text):
    stream, words = text
    tokens = np.asarray(stream.tokens)
    for length in (len(tokens) - 1, len(tokens) // 2, 7):
        count = (len(tokens) - 1) // length
        found = causal_lm_batches(stream, words, length, training=False, batch_size=count)
        (x, targets, _) = found[0]
        assert (x["token_ids"].ravel() == tokens[: count * length]).all()
        assert (targets.ravel() == tokens[1 : count * length + 1]).all()
    with pytest.raises(ValueError, match="one window and the next token"):
        causal_lm_batches(stream, words, len(tokens), training=False)


@pytest.mark.backend_neutral
def test_unsuitable_encoders_and_streams_are_refused(text):
    stream, words = text
    with pytest.raises(ValueError, match="needs a causal encoder"):
        CausalLM(BERT(9, 1, 1, 4, 4))
    with pytest.raises(ValueError, match="fill two windows"):
        causal_lm_batches(stream, words, 400)
    with pytest.raises(ValueError, match="`max_length` must be a whole number, 1 or more"):
        causal_lm_batches(stream, words, 0)
    other = Words([*words.vocabulary[:-1], "elsewhere"])
    with pytest.raises(ValueError, match="the tokenizer that built it"):
        causal_lm_batches(stream, other, 6)


class TestTokenLosses:
    tokenizer = BytePair(["<unk>", *(f"{c}</w>" for c in "abcdef")], [], scheme="gpt")

    def model(self):
        encoder = GPT(self.tokenizer.text_size, 1, 2, 8, 16, max_sequence_length=8)
        rng = np.random.default_rng(0)
        encoder.set_weights([rng.normal(size=w.shape) * 0.5 for w in encoder.get_weights()])
        return encoder

    def by_hand(self, encoder, ids):
        ids = np.array([ids])
        hidden = to_numpy(encoder({"token_ids": ids, "padding_mask": ids >= 0})["sequence"])[0]
        logits = hidden @ to_numpy(encoder.token_embedding.embeddings).T
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return [-logs[t, token] for t, token in enumerate(ids[0, 1:])]

    @pytest.mark.compiles
    def test_token_losses_equal_the_models_log_probabilities(self):
        encoder = self.model()
        found = token_losses(encoder, self.tokenizer, ["a b c", "d e"])
        np.testing.assert_allclose(found[0], self.by_hand(encoder, [1, 2, 3]), atol=1e-4)
        np.testing.assert_allclose(found[1], self.by_hand(encoder, [4, 5]), atol=1e-4)
        with_context = token_losses(encoder, self.tokenizer, ["d e", "f"], contexts=["a b c", "a"])
        wanted = self.by_hand(encoder, [1, 2, 3, 4, 5])[2:]
        np.testing.assert_allclose(with_context[0], wanted, atol=1e-4)
        np.testing.assert_allclose(with_context[1], self.by_hand(encoder, [1, 6]), atol=1e-4)

    @pytest.mark.backend_neutral
    def test_invalid_texts_and_contexts_are_refused(self):
        encoder = self.model()
        for texts, contexts, match in (
            (["a b", "c"], None, "or two without a context.*Received: 'c'"),
            (["a " * 10], None, "at most the model's 8 positions"),
            (["a"], ["b", "c"], "needs one context"),
        ):
            with pytest.raises(ValueError, match=match):
                token_losses(encoder, self.tokenizer, texts, contexts)
