"""Attention maps: every layer and head compared with NumPy, and words of several tokens."""

import numpy as np
import pytest

from keras_plm.attention_maps import attention_weights, word_attention
from keras_plm.models import BERT, GPT, ELMo
from keras_plm.tokenizers import BytePair, Characters, WordPiece
from tests.helpers.checks import assert_close, to_numpy

B, T, N, H, L = 2, 5, 3, 2, 2
SIZES = {"num_layers": L, "num_heads": N, "hidden_dim": N * H, "intermediate_dim": 7}
TEXTS = ["the cat sat on a mat", "an unhappy cat, on the mat"] * 3


def from_the_paper(encoder, inputs, causal):
    """Computes section 3.2 of Vaswani et al. 2017, one query and head at a time."""
    blocks = encoder.get_layer("transformer").blocks
    layers = [to_numpy(x).astype("float64") for x in encoder(inputs)["layers"]]
    found = np.zeros((B, L, N, T, T))
    for i, block in enumerate(blocks):
        kernel, bias = (to_numpy(w) for w in block.attention.query_key_value.weights)
        for b in range(B):
            mixed = layers[i][b] @ kernel + bias  # (T, 3 N H)
            for n in range(N):
                query = mixed[:, n * H : (n + 1) * H]
                key = mixed[:, (N + n) * H : (N + n + 1) * H]
                for t in range(T):
                    seen = [s for s in range(T) if (s <= t if causal else inputs[MASK][b, s])]
                    scores = np.exp([query[t] @ key[s] / np.sqrt(H) for s in seen])
                    found[b, i, n, t, seen] = scores / scores.sum()
    return found


MASK = "padding_mask"


@pytest.mark.compiles("BERT-False")
@pytest.mark.parametrize("model, causal", [(BERT, False), (GPT, True)])
def test_weights_of_all_layers_equal_the_papers_formula(model, causal):
    encoder = model(13, **SIZES, initializer_range=0.5)
    ids = np.array([[2, 5, 6, 3, 7], [4, 9, 8, 0, 0]], "int32")
    inputs = {"token_ids": ids, MASK: ids > 0}
    if not causal:
        inputs["segment_ids"] = np.array([[0, 0, 1, 1, 1]] * B, "int32")
    weights = attention_weights(encoder, inputs)
    assert weights.shape == (B, L, N, T, T)
    wanted = from_the_paper(encoder, inputs, causal)
    assert_close(weights[0], wanted[0])
    assert_close(weights[1, :, :, :3], wanted[1, :, :, :3])  # the others are padding
    assert (weights[1, :, :, :3, 3:] == 0).all()
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 0.05


@pytest.mark.compiles
@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_word_attention_averages_queries_and_sums_keys(kind, tmp_path):
    (tmp_path / "text").write_text("\n".join(TEXTS))
    if kind == "bert":
        tokenizer = WordPiece.train([tmp_path / "text"], 30)
        encoder = BERT(len(tokenizer), **SIZES, initializer_range=0.5)
    else:
        tokenizer = BytePair.train([tmp_path / "text"], 40, scheme="gpt")
        encoder = GPT(tokenizer.text_size, **SIZES, initializer_range=0.5)
    weights, words = word_attention(encoder, tokenizer, "Unhappy, the cat")
    plain = ["Unhappy", ",", "the", "cat"]
    assert words == (["[CLS]", *plain, "[SEP]"] if kind == "bert" else plain)
    assert weights.shape == (L, N, len(words), len(words))
    assert_close(weights.sum(-1), np.ones(weights.shape[:3]))
    reader = tokenizer if kind == "bert" else tokenizer.unframed()
    packed = reader.pack(["Unhappy, the cat"], return_offsets=True)
    tokens = attention_weights(encoder, packed)[0]  # (L, N, T, T)
    ids = packed["word_ids"][0]
    assert len(ids) > len(words)  # some word has several tokens
    first = int(kind == "bert")
    of = [np.flatnonzero(ids == i) for i in range(4)]
    for i, own in enumerate(of):
        for j, others in enumerate(of):
            wanted = tokens[:, :, own][..., others].sum(-1).mean(-1)
            assert_close(weights[:, :, first + i, first + j], wanted)


@pytest.mark.backend_neutral
def test_word_attention_refuses_unsuitable_encoders_and_texts(tmp_path):
    elmo = ELMo(units=4, projection_dim=3, filters=[[1, 2]], num_highway=1)
    with pytest.raises(ValueError, match="of Transformer blocks.*Received: ELMo"):
        word_attention(elmo, Characters(), "a cat")
    (tmp_path / "text").write_text("\n".join(TEXTS))
    tokenizer = WordPiece.train([tmp_path / "text"], 40)
    encoder = BERT(len(tokenizer), **SIZES, max_sequence_length=8)
    with pytest.raises(ValueError, match="with words in it. Received: ' '"):
        word_attention(encoder, tokenizer, " ")
    with pytest.raises(ValueError, match="reads 8 tokens at most"):
        word_attention(encoder, tokenizer, "the cat " * 9)
