"""Encoder-decoders: numerics, causality, padding, saving and training."""

import keras
import numpy as np
import pytest

from keras_plm.data.translation import translation_batches
from keras_plm.decoding import greedy
from keras_plm.layers import BilinearAttention, MultiHeadAttention
from keras_plm.models import (
    SEQ2SEQ_SIZES,
    TRANSFORMER_SIZES,
    Seq2Seq,
    Transformer,
    TransformerEncoder,
)
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.schedules import WarmupLinearDecay
from tests.helpers.checks import (
    assert_close,
    check_encoder,
    check_learns,
    check_reloads,
    to_numpy,
    under_torch,
)

V, B, S, T = 13, 3, 7, 5
PAD, UNK, START, END = range(4)


def transformer(**options):
    return Transformer(V, num_layers=2, num_heads=2, hidden_dim=8, **options)


MODELS = {
    "none": lambda: Seq2Seq(V, 4, 6, attention=None),
    "dot": lambda: Seq2Seq(V, 4, 6, attention="dot", share_embeddings=True),
    "cosine": lambda: Seq2Seq(V, 4, 6, attention="cosine"),
    "additive": lambda: Seq2Seq(V, 4, 6, attention="additive"),
    "a_layer": lambda: Seq2Seq(V, 4, 6, attention=BilinearAttention()),
    "transformer": transformer,
    "transformer_otherwise": lambda: transformer(
        pre_norm=True, share_embeddings=False, positions="learned", max_sequence_length=11
    ),
}
USUAL = ("none", "dot", "transformer")
KINDS = [kind if kind in USUAL else under_torch(kind) for kind in MODELS]


def some_inputs(seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(S) < np.array([[7], [4], [1]])
    return {
        "token_ids": np.where(mask, rng.integers(4, V, (B, S)), PAD).astype("int32"),
        "padding_mask": mask,
        "target_ids": np.concatenate(
            [np.full((B, 1), START), rng.integers(4, V, (B, T - 1))], axis=1
        ).astype("int32"),
    }


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def make_loud(model, times=10):
    """Enlarges the embeddings, so that every token affects the output."""
    for weight in model.trainable_variables:
        if "embedding" in weight.path:
            weight.assign(times * weight)


@pytest.mark.compiles
@pytest.mark.quick_cases("additive", "transformer")
def test_models_are_causal_and_ignore_padding(model):
    make_loud(model)
    inputs = some_inputs()
    logits = to_numpy(model(inputs))
    assert logits.shape == (B, T, V)
    later = {**inputs, "target_ids": inputs["target_ids"].copy()}
    later["target_ids"][:, 3:] = 5
    changed = to_numpy(model(later))
    assert_close(changed[:, :3], logits[:, :3])
    assert np.abs(changed - logits)[:, 3:].max() > 0.1
    other = np.where(inputs["padding_mask"], inputs["token_ids"], 7).astype("int32")
    assert_close(model({**inputs, "token_ids": other}), logits)
    # A real source token changes its row from the first step on, and no other row.
    other = inputs["token_ids"].copy()
    other[0, 5] = 4 if other[0, 5] != 4 else 5
    changed = to_numpy(model({**inputs, "token_ids": other}))
    assert (np.abs(changed - logits)[0].max(-1) > 1e-3).all()
    assert_close(changed[1:], logits[1:])
    # Checks more padding, and a single row.
    wide = {
        "token_ids": np.pad(inputs["token_ids"], ((0, 0), (0, 3))),
        "padding_mask": np.pad(inputs["padding_mask"], ((0, 0), (0, 3))),
        "target_ids": inputs["target_ids"],
    }
    assert_close(model(wide), logits)
    alone = {name: array[1:2] for name, array in inputs.items()}
    assert_close(model(alone), logits[1:2])


@pytest.mark.compiles
@pytest.mark.quick_cases("additive", "transformer")
def test_step_by_step_equals_teacher_forcing(model):
    inputs = {name: keras.ops.convert_to_tensor(x) for name, x in some_inputs().items()}
    whole = to_numpy(model(inputs))
    memory, state = model.prefill(inputs, T)
    for t in range(T):
        logits, state = model.decode_step(inputs["target_ids"][:, t], state, memory, t)
        assert_close(logits, whole[:, t])


@pytest.mark.compiles
@pytest.mark.quick_cases("dot", "transformer")
@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_models_save_reload_and_learn(model, tmp_path):
    inputs = some_inputs()
    check_reloads(model, inputs, tmp_path)
    inputs = {name: array[:2] for name, array in inputs.items()}  # one position needs no query
    learning = keras.Model(model.input, model.output)
    # The first annotations are so similar that queries hardly matter, so the targets are far apart.
    check_learns(learning, inputs, 1e3 * np.random.default_rng(0).normal(size=(2, T, V)))


@pytest.mark.compiles
@pytest.mark.quick_cases("additive", "transformer")
def test_attention_weights_sum_to_one_over_the_real_source(model):
    inputs = some_inputs()
    if getattr(model, "attention", model) is None:
        with pytest.raises(ValueError, match="need a model with attention"):
            model.attention_weights(inputs)
        return
    tensors = {name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}
    weights = model.attention_weights(tensors)
    if isinstance(weights, dict):
        assert {name: len(part) for name, part in weights.items()} == dict.fromkeys(weights, 2)
        assert tuple(weights["encoder"][0].shape) == (B, 2, S, S)
        decoder = to_numpy(weights["decoder"][0])
        assert (decoder[:, :, ~np.tril(np.ones((T, T), bool))] == 0).all()
        weights = weights["cross"][1][:, 0]
    weights = to_numpy(weights)
    assert weights.shape == (B, T, S)
    assert_close(weights.sum(-1), np.ones((B, T)))
    hidden = np.broadcast_to(~inputs["padding_mask"][:, None], weights.shape)
    assert (weights[hidden] == 0).all()


@pytest.mark.compiles
def test_initial_decoder_state_equals_its_formula():
    model = Seq2Seq(V, 4, 6, attention="additive")
    inputs = {name: keras.ops.convert_to_tensor(x) for name, x in some_inputs().items()}
    memory, state = model.prefill(inputs, T)
    kernel, bias = (to_numpy(w) for w in model.get_layer("bridge").weights)
    backward = to_numpy(memory["value"])[:, 0, 6:]  # the backward direction at the first word
    assert_close(state, np.tanh(backward @ kernel + bias))


def test_deep_output_agrees_with_its_formula():
    model = Seq2Seq(V, 4, 6, attention=None)
    inputs = {name: keras.ops.convert_to_tensor(x) for name, x in some_inputs().items()}
    memory, state = model.prefill(inputs, T)
    logits, _ = model.decode_step(inputs["target_ids"][:, 0], state, memory, 0)
    kernel, bias = (to_numpy(w) for w in model.get_layer("maxout").weights)
    embedded = to_numpy(model.get_layer("target_embedding").embeddings)[START]
    table = to_numpy(model.get_layer("output_embedding").embeddings)
    for b in range(B):
        parts = [to_numpy(state)[b], embedded, to_numpy(memory["context"])[b]]
        hidden = np.concatenate(parts) @ kernel + bias
        best = np.array([max(hidden[2 * j], hidden[2 * j + 1]) for j in range(4)])
        assert_close(to_numpy(logits)[b], table @ best)


@pytest.mark.split_to("jax")
@pytest.mark.full
def test_transformer_encoder_passes_the_checks(tmp_path):
    check_encoder(TransformerEncoder(V, 2, 2, 8), tmp_path, V)
    check_encoder(TransformerEncoder(V, 1, 2, 8, pre_norm=True), tmp_path, V)
    assert_close(len(transformer().encoder(
        {name: some_inputs()[name] for name in ("token_ids", "padding_mask")}
    )["layers"]), 3)  # fmt: skip


@pytest.mark.backend_neutral
@pytest.mark.parametrize("size, parameters", [("base", 63_045_632), ("big", 214_171_648)])
def test_parameter_counts_equal_published_counts(size, parameters):
    settings = TRANSFORMER_SIZES[size]
    wanted = {"base": (6, 8, 512, 2048, 0.1), "big": (6, 16, 1024, 4096, 0.3)}[size]
    assert tuple(settings.values()) == wanted
    # Only one block of each stack is built, because the others are equal.
    small = Transformer(37_000, **{**settings, "num_layers": 1}).count_params()
    one = small - 37_000 * settings["hidden_dim"]
    assert 37_000 * settings["hidden_dim"] + 6 * one == parameters


@pytest.mark.backend_neutral
def test_seq2seq_sizes_are_valid_arguments():
    for size in SEQ2SEQ_SIZES:
        assert set(SEQ2SEQ_SIZES[size]) == {"embedding_dim", "hidden_dim"}
    Seq2Seq(V, **SEQ2SEQ_SIZES["tiny"])


@pytest.mark.split_to("jax")
@pytest.mark.full
def test_bfloat16_is_near_float32():
    inputs = some_inputs()
    for make in (
        lambda dtype: Seq2Seq(V, 4, 6, dtype=dtype),
        lambda dtype: transformer(dtype=dtype),
    ):
        exact, half = make("float32"), make("mixed_bfloat16")
        make_loud(exact, 3)
        half.set_weights(exact.get_weights())
        expected = to_numpy(exact(inputs))
        logits = keras.ops.cast(half(inputs), "float32")
        assert_close(logits, expected, atol=0.05 * np.abs(expected).max())
        ids = greedy(half, inputs, START, END, max_new_tokens=4)[0]
        assert ids.shape == (B, 4)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others compile otherwise")
@pytest.mark.split_to("tensorflow")
@pytest.mark.compiles
@pytest.mark.parametrize("attention", [None, "additive"])
def test_loops_over_time_train_under_xla(attention):
    model = Seq2Seq(V, 4, 6, attention=attention)
    model.compile("sgd", jit_compile=True)
    ids = np.ones((B, S), "int32")
    x = {"token_ids": ids, "padding_mask": ids > 0, "target_ids": ids}
    assert np.isfinite(model.train_on_batch(x, ids)).all()


@pytest.mark.backend_neutral
def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="'additive'.*Received: attention='mlp'"):
        Seq2Seq(V, 4, 6, attention="mlp")
    with pytest.raises(ValueError, match="'sine' or 'learned'. Received: positions='rotary'"):
        transformer(positions="rotary")
    with pytest.raises(ValueError, match="need a `max_sequence_length`"):
        transformer(positions="learned")
    learned = transformer(positions="learned", max_sequence_length=5)
    with pytest.raises(ValueError, match="at most 5 positions"):
        learned(some_inputs())
    for layer in (BilinearAttention, MultiHeadAttention(1, 6), keras.layers.AdditiveAttention()):
        with pytest.raises(ValueError, match="layers.Attention`'s family"):
            Seq2Seq(V, 4, 6, attention=layer)
    with pytest.raises(ValueError, match="of the default loss.*Received: label_smoothing=0.1"):
        transformer().compile(loss="mse", label_smoothing=0.1)
    mask = {"padding_mask": np.ones((B, S + 1), bool)}
    with pytest.raises(ValueError, match="padding_mask.*S=7.*Received: .*8"):
        Seq2Seq(V, 4, 6)({**some_inputs(), **mask})


class Letters:
    """A tokenizer for tasks on symbols, whose words are numbers."""

    pad_id, start_id, end_id = PAD, START, END

    def __len__(self):
        return V

    def encode(self, texts):
        from keras_plm.tokenizers import Encoded

        rows = [[*map(int, text.split()), END] for text in texts]
        lengths = np.array([len(row) for row in rows])
        flat = np.concatenate(rows).astype("int32")
        return Encoded(lengths, flat, 0 * flat, 0 * lengths)


@pytest.mark.full
@pytest.mark.split_to("torch")  # compiles nothing
def test_a_small_transformer_learns_to_reverse():
    rng = np.random.default_rng(0)
    rows = [rng.integers(4, V, rng.integers(3, 7)).tolist() for _ in range(2040)]
    targets = [row[::-1] for row in rows]
    texts, answers = ([" ".join(map(str, row)) for row in part] for part in (rows, targets))
    held_out = 40
    model = Transformer(V, 2, 2, 32, dropout=0.0, pre_norm=True)
    batches = translation_batches(
        texts[held_out:], answers[held_out:], Letters(), batch_size=50, buckets=1
    )
    schedule = WarmupLinearDecay(5e-3, 25 * len(batches), warmup_steps=20)
    model.compile(BertAdamW(schedule, bias_correction=True), weighted_metrics=[])
    model.fit(batches, epochs=25, verbose=0)
    packed = Letters().encode(texts[:held_out])
    token_ids = packed.padded("token_ids")
    inputs = {"token_ids": token_ids, "padding_mask": token_ids != PAD}
    written, _ = greedy(model, inputs, START, END, max_new_tokens=8)
    expected = Letters().encode(answers[:held_out]).padded("token_ids", length=8)
    assert (written == expected).mean() == 1.0
