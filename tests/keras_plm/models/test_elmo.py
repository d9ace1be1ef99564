"""ELMo: sizes, contract, the original's outputs, carried states, cached words."""

import json

import keras
import numpy as np
import pytest

from keras_plm.checkpoints import load_elmo
from keras_plm.heads import Classifier
from keras_plm.models import ELMO_SIZES, ELMo
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from keras_plm.transfer import extract_features
from tests.helpers.checks import assert_close, check_encoder, check_learns, shapes, to_numpy

TINY = {"units": 7, "projection_dim": 5, "filters": [[1, 3], [2, 2]], "character_dim": 2}
TEXTS = [["To", "be", ",", "or"], ["not"], []]

# REFERENCE: parameters in the files of the released models (without the row of zeros).
COUNTS = {"small": 13_593_296, "medium": 28_027_728, "original": 93_600_848}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softened(encoder, scale=1.5, seed=3):
    """Sets random weights that are large enough for clipping."""
    rng = np.random.default_rng(seed)
    encoder.set_weights([rng.normal(size=w.shape) * scale for w in encoder.get_weights()])
    return encoder


def word_vector(encoder, letters):
    """Computes the vector of one word in float64, by the formulas of bilm-tf."""
    words = encoder.token_encoder
    table = np.concatenate([np.zeros((1, encoder.character_dim)), to_numpy(words.embeddings)])
    x = table[letters]
    parts = []
    for (width, number), kernel, bias in zip(
        encoder.filters, words.kernels, words.biases, strict=True
    ):
        kernel, bias = to_numpy(kernel).astype(float), to_numpy(bias)
        best = np.full(number, -np.inf)
        for start in range(len(letters) - width + 1):
            at = sum(x[start + i] @ kernel[i] for i in range(width)) + bias
            best = np.maximum(best, at)
        parts.append(np.maximum(best, 0) if encoder.activation == "relu" else np.tanh(best))
    x = np.concatenate(parts)
    for highway in words.highways:
        carry, change = (
            x @ to_numpy(part.kernel).astype(float) + to_numpy(part.bias)
            for part in (highway["carry"], highway["transform"])
        )
        x = sigmoid(carry) * np.maximum(change, 0) + (1 - sigmoid(carry)) * x
    return x @ to_numpy(words.projection.kernel).astype(float) + to_numpy(words.projection.bias)


def run_stack(encoder, stack, x):
    """Computes one direction over (T, P) in float64; returns each layer's output (T, P)."""
    outputs = []
    for number, layer in enumerate(stack.layers):
        kernel, recurrent, bias, projection = (
            to_numpy(w).astype(float)
            for w in (layer.kernel, layer.recurrent_kernel, layer.bias, layer.projection)
        )
        n = encoder.units
        m, c, found = np.zeros(encoder.projection_dim), np.zeros(n), []
        for step in x:
            z = step @ kernel + m @ recurrent + bias
            i, j, f, o = z[:n], z[n : 2 * n], z[2 * n : 3 * n], z[3 * n :]
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
            c = np.clip(c, -encoder.cell_clip, encoder.cell_clip)
            m = (sigmoid(o) * np.tanh(c)) @ projection
            m = np.clip(m, -encoder.projection_clip, encoder.projection_clip)
            found.append(m + step if number and encoder.use_skip_connections else m)
        x = np.array(found)
        outputs.append(x)
    return outputs


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_layers_equal_their_formulas(residual, activation):
    encoder = softened(
        ELMo(
            **TINY,
            num_layers=3,
            cell_clip=0.5,
            projection_clip=0.4,
            activation=activation,
            use_skip_connections=residual,
        ),
        scale=0.8,
    )
    packed = Characters().pack(TEXTS)
    outputs = encoder(packed)
    for row, length in enumerate(packed["padding_mask"].sum(axis=1)):
        x = np.array([word_vector(encoder, ids) for ids in packed["character_ids"][row, :length]])
        ahead = run_stack(encoder, encoder.forward_lm, x)
        back = [y[::-1] for y in run_stack(encoder, encoder.backward_lm, x[::-1])]
        assert max(np.abs(y).max() for y in ahead) >= 0.4  # clipping takes effect
        wanted = [np.concatenate([x, x], -1)]
        wanted += [np.concatenate(pair, -1) for pair in zip(ahead, back, strict=True)]
        for layer, expected in zip(outputs["layers"], wanted, strict=True):
            assert_close(to_numpy(layer)[row, :length], expected, atol=2e-5)


@pytest.mark.backend_neutral
@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_equal_published_counts(size):
    s = ELMO_SIZES[size]
    n, p, total = s["units"], s["projection_dim"], sum(number for _, number in s["filters"])
    words = 261 * 16 + sum(width * 16 * number + number for width, number in s["filters"])
    words += s["num_highway"] * 2 * (total * total + total) + total * p + p
    lstms = 4 * (2 * p * 4 * n + 4 * n + n * p)
    assert words + lstms == COUNTS[size]
    if size == "small":
        assert ELMo(**s).count_params() == COUNTS[size]


@pytest.mark.compiles
def test_keeps_the_encoder_contract(tmp_path):
    encoder = softened(ELMo(**TINY), scale=0.5)
    packed = Characters().pack(TEXTS)
    outputs = encoder(packed)
    assert shapes(outputs["layers"]) == [(3, 6, 10)] * 3 and encoder.hidden_dim == 10
    assert_close(outputs["sequence"], outputs["layers"][-1], atol=0)
    check_encoder(encoder, tmp_path, vocabulary_size=262)

    # Padding, other rows and earlier batches change nothing.
    mask = packed["padding_mask"]
    noise = np.random.default_rng(0).integers(0, 262, packed["character_ids"].shape)
    other = {**packed, "character_ids": np.where(mask[..., None], packed["character_ids"], noise)}
    again = encoder(other)
    for a, b in zip(outputs["layers"], again["layers"], strict=True):
        assert_close(to_numpy(a)[mask], to_numpy(b)[mask])
    alone = encoder(Characters().pack(TEXTS[1:2]))
    assert_close(to_numpy(alone["sequence"])[0], to_numpy(outputs["sequence"])[1, :3])
    assert np.abs(to_numpy(outputs["sequence"])[~mask]).max() == 0


def test_every_weight_learns():
    encoder = softened(ELMo(**TINY, dropout=0.0), scale=0.3)
    packed = Characters().pack(["To be or not to be"] * 3)
    top = keras.Model(encoder.input, encoder.output["sequence"])
    check_learns(top, packed, np.ones((3, 8, 10)))


def test_dropout_only_in_training():
    encoder = ELMo(**TINY, dropout=0.5)
    packed = Characters().pack(TEXTS)
    assert_close(encoder(packed)["sequence"], encoder(packed)["sequence"], atol=0)
    first, second = (to_numpy(encoder(packed, training=True)["sequence"]) for _ in range(2))
    assert np.abs(first - second).max() > 1e-4


def original(oracles, **options):
    return load_elmo(oracles("bilm/options.json"), oracles("bilm/lm_weights.hdf5"), **options)


@pytest.mark.compiles
def test_top_layer_equals_original_bilm(oracles):
    """The top layer agrees to 1e-6 on all sentences in file order with carried states."""
    import h5py

    encoder = original(oracles, carried_rows=4)
    sentences = json.loads(oracles("bilm/lm_embeddings_sentences.json").read_text())
    for number in range(10):
        rows = [sentences[row][number].split() for row in range(3)]
        packed = Characters().pack(rows)
        # Rows have one length, so that one shape is compiled. Padding changes nothing, see above.
        for name, x in packed.items():
            more = 55 - x.shape[1]
            packed[name] = np.pad(x, [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2))
        top = to_numpy(encoder(packed)["sequence"])
        for row, words in enumerate(rows):
            with h5py.File(oracles(f"bilm/lm_embeddings_{row}.hdf5")) as file:
                wanted = np.concatenate(list(file[str(number)][...]), axis=-1)
            np.testing.assert_allclose(top[row, 1 : len(words) + 1], wanted, atol=1e-6, rtol=1e-5)
    states = [v for r in encoder.layers if hasattr(r, "states") for pair in r.states for v in pair]
    assert len(states) == 8 and all(np.abs(to_numpy(v)[3]).max() == 0 for v in states)


@pytest.mark.compiles
def test_lower_layers_equal_original_bilm(oracles):
    """The values come from a float64 port that agrees with the original's top layer."""
    encoder = original(oracles)
    sentences = json.loads(oracles("bilm/lm_embeddings_sentences.json").read_text())
    outputs = encoder(Characters().pack([sentences[1][0].split()]))
    word, first, top = (to_numpy(layer)[0, 1] for layer in outputs["layers"])
    assert_close(word[16:], word[:16], atol=0)
    for found, wanted in (
        (word[:4], [0.207087, 0.1782257, 0.247428, -0.0959864]),
        (first[:4], [0.203961, -0.073116, -0.08669, 0.055419]),
        (first[16:20], [-0.095804, -0.631341, 0.129414, -0.055342]),
        (top[:4], [0.0261563, -0.4130681, -0.3886448, 0.1939636]),
        (top[16:20], [0.0454584, 0.0331256, -0.7047636, 0.6984424]),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.compiles
def test_carried_rows_pass_states_to_the_next_batch():
    encoder = softened(ELMo(**TINY, carried_rows=3), scale=0.7)
    plain = ELMo(**TINY)
    plain.set_weights(encoder.get_weights())
    assert encoder.count_params() == plain.count_params()
    packed = Characters().pack([["a", "b"], ["c"]])
    first, second = (to_numpy(encoder(packed)["sequence"]) for _ in range(2))
    assert_close(first, plain(packed)["sequence"])
    assert np.abs(first - second).max() > 1e-3

    # In the forward direction, two texts in a row form one text.
    long = {name: np.concatenate([a[:1]] * 2, axis=1) for name, a in packed.items()}
    width = TINY["projection_dim"]
    wanted = to_numpy(plain(long)["sequence"])[0, 4:, :width]
    assert_close(second[0, :, :width], wanted)

    # A row that is missing in a batch keeps its state.
    states = [r.states[0][1] for r in encoder.layers if hasattr(r, "states")]
    before = [to_numpy(v).copy() for v in states]
    encoder({name: a[:1] for name, a in packed.items()})
    for old, state in zip(before, states, strict=True):
        assert np.abs(to_numpy(state)[0] - old[0]).max() > 1e-4
        assert_close(to_numpy(state)[1:], old[1:], atol=0)
    encoder.reset_states()
    assert_close(encoder(packed)["sequence"], first)
    encoder.reset_states()
    assert_close(encoder.predict(packed, verbose=0)["sequence"], first)
    assert np.abs(encoder.predict(packed, verbose=0)["sequence"] - first).max() > 1e-3


@pytest.mark.full
def test_saved_model_excludes_carried_states(tmp_path):
    encoder = softened(ELMo(**TINY, carried_rows=2), scale=0.7)
    packed = Characters().pack([["a", "b"], ["c"]])
    first = to_numpy(encoder(packed)["sequence"])
    encoder.save(tmp_path / "carried.keras")
    again = keras.saving.load_model(tmp_path / "carried.keras")
    assert_close(again(packed)["sequence"], first)
    assert again.carried_rows == 2


@pytest.mark.backend_neutral
def test_refuses_more_rows_than_are_carried():
    encoder = ELMo(**TINY, carried_rows=1)
    with pytest.raises(ValueError, match="A batch must have at most"):
        encoder(Characters().pack([["a"], ["b"]]))


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "change, message",
    [
        ({"activation": "gelu"}, "'relu' or 'tanh'"),
        ({"filters": []}, "one or more pairs"),
        ({"num_layers": 0}, "`num_layers` must be a whole number of 1"),
        ({"cell_clip": 0.0}, "`cell_clip` must be above 0"),
        ({"units": 4.5}, "`units` must be a whole number of 1"),
        ({"character_dim": 0}, "`character_dim` must be a whole number of 1"),
        ({"num_highway": -1}, "`num_highway` must be a whole number of 0"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\)"),
        ({"filters": [[51, 2]]}, "at most 50 characters wide"),
    ],
)
def test_refuses_invalid_sizes(change, message):
    with pytest.raises(ValueError, match=message):
        ELMo(**{**TINY, **change})


@pytest.mark.compiles
def test_word_cache_equals_encoder_layers():
    encoder = softened(ELMo(**TINY), scale=0.5)
    cache = encoder.stacked_layers()
    words = ["be", "To", "a" * 60, "é"]
    for texts in (TEXTS, [words, TEXTS[0]], [words * 9]):
        packed = Characters().pack(texts)
        wanted = np.stack([to_numpy(x) for x in encoder(packed)["layers"]], axis=2)
        mask = packed["padding_mask"]
        assert_close(cache.predict_on_batch(packed)[mask], wanted[mask])
    assert len(cache) == 3 + 5 + 2  # padding, begin, end; To be , or not; two more


@pytest.mark.backend_neutral
def test_features_beyond_float16_are_refused():
    encoder = ELMo(**TINY)
    encoder.token_encoder.projection.bias.assign(np.full(5, 1e6))
    with pytest.raises(ValueError, match="float16.*as large as 1e"):
        extract_features(encoder, Characters(), ["To be"], "layer_0")


@pytest.mark.backend_neutral
def test_cls_pooling_and_mix_features_are_refused():
    encoder = ELMo(**TINY)
    with pytest.raises(ValueError, match=r"puts \[CLS\] before a text.*Received: Characters"):
        extract_features(encoder, Characters(), ["To be"], pool="cls")
    with pytest.raises(ValueError, match="puts .CLS. before a text"):
        Classifier(encoder, ["a", "b"], tokenizer=Characters(), pool="cls")
    kinds = (BytePair, Characters, WordPiece, Words)
    assert [kind for kind in kinds if kind.has_cls.fget(kind)] == [WordPiece]
    with pytest.raises(ValueError, match="LayerChoice.0, -1, 'mean'"):
        extract_features(encoder, Characters(), ["To be"], "mix")


@pytest.mark.full
def test_extracted_features_equal_encoder_layers():
    encoder = softened(ELMo(**TINY), scale=0.5)
    texts = ["To be, or not to be", "be", "that"]
    found = extract_features(encoder, Characters(), texts, "layer_1")
    assert [x.shape for x in found] == [(7, 10), (1, 10), (1, 10)]
    layer = to_numpy(encoder(Characters().pack(texts))["layers"][1])
    assert_close(found[0], layer[0, 1:8], atol=2e-3)  # the store has float16
