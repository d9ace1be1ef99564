"""Low-rank adaptation: frozen weights, trained weights, merged models."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_plm.heads import Classifier, Tagger
from keras_plm.transfer import FineTune
from keras_plm.transfer.extraction import extract_features
from keras_plm.transfer.lora import adapt, merged
from keras_plm.transfer.surgery import clone
from tests.helpers.checks import assert_close, to_numpy
from tests.helpers.small_encoders import TOKENIZER, encoder, sentences, texts, word_encoder
from tests.helpers.small_gpt import TOKENIZER as PIECES
from tests.helpers.small_gpt import gpt, pairs
from tests.helpers.small_gpt import texts as gpt_texts

FAST = {"epochs": 1, "learning_rate": 1e-2, "batch_size": 16, "dropout": 0.0, "lora_rank": 2}


def arrays(model):
    return {weight.path: to_numpy(weight) for weight in model.weights}


def thin(model):
    return [weight for weight in model.weights if "lora" in weight.path]


@pytest.mark.compiles
def test_adapted_matrix_equals_weight_plus_low_rank_product():
    """Compares x (W + A B) + b with a copy that has a changed W."""
    ids = np.array([[2, 5, 6, 7, 3]], "int32")
    inputs = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids > 0}
    plain, adapted = encoder(), encoder()
    adapted.set_weights(plain.get_weights())
    adapt(adapted, 2)
    assert_close(adapted(inputs)["sequence"], plain(inputs)["sequence"], atol=1e-6)  # B is zeros
    rng = np.random.default_rng(0)
    for block in range(2):
        name = f"transformer/block_{block}/attention/query_key_value"
        (kernel,) = [w for w in plain.weights if w.path.endswith(f"{name}/kernel")]
        a, b = [w for w in thin(adapted) if f"{name}/lora" in w.path]
        assert a.shape == (16, 2) and b.shape == (2, 48)
        b.assign(rng.normal(size=b.shape))
        kernel.assign(to_numpy(kernel) + to_numpy(a) @ to_numpy(b))
    wanted = plain(inputs)["sequence"]
    assert_close(adapted(inputs)["sequence"], wanted, atol=1e-5)
    assert [w.path for w in adapted.trainable_weights] == [w.path for w in thin(adapted)]


@pytest.mark.compiles
@pytest.mark.quick_cases("float32")
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_fine_tuning_changes_only_attention_kernels(precision, tmp_path):
    layers = 2 if precision == "float32" else 1
    model = encoder(dtype=precision, num_layers=layers)
    fitted = FineTune(**FAST).fit(model, Classifier, TOKENIZER, texts(32))
    before, after = arrays(model), arrays(fitted.encoder)
    moved = {path for path in before if not np.array_equal(before[path], after[path])}
    kernels = {f"transformer/block_{i}/attention/query_key_value/kernel" for i in range(layers)}
    assert moved == kernels
    for path in kernels:
        assert np.linalg.matrix_rank(after[path] - before[path], tol=1e-5) == 2
    learned = layers * (16 * 2 + 2 * 48) + 16 * 2 + 2  # plus the output layer
    assert fitted.training_log["learned_weights"] == learned
    assert not thin(fitted) and len(fitted.trainable_weights) == len(fitted.weights)
    if layers == 1:
        return  # saving one of the two is enough
    fitted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(
        again.predict(texts(5), probabilities=True), fitted.predict(texts(5), probabilities=True)
    )


@pytest.mark.compiles
def test_merged_model_predicts_the_same():
    model = clone(encoder())
    adapt(model, 3)
    head = Tagger(model, ["O", "B-A", "I-A"], tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    for weight in thin(head):
        weight.assign(rng.normal(size=weight.shape))
    rows = sentences(8)
    found, wanted = (m.predict(rows, probabilities=True) for m in (merged(head), head))
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, atol=1e-5)


@pytest.mark.full
def test_gpt_fine_tunes_with_the_auxiliary_objective():
    model, method = gpt(), FineTune(**FAST, language_model_weight=0.5)
    fitted = method.fit(model, Classifier, PIECES, gpt_texts())
    assert len(fitted.predict(gpt_texts(5))) == 5
    after = arrays(fitted.encoder)
    for path, before in arrays(model).items():
        rows = len(before) if path.startswith("token_embedding") else None  # new tokens: last
        same = np.array_equal(before, after[path][:rows])
        assert same != path.endswith("query_key_value/kernel"), path
    fitted = FineTune(**FAST).fit(gpt(num_layers=1), Classifier, PIECES, pairs(16))
    assert len(fitted.predict(pairs(3))) == 3


@pytest.mark.full
@pytest.mark.skipif(not importlib.util.find_spec("keras_hub"), reason="keras_hub is not installed")
@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_kerashub_models_change_only_attention_kernels(kind):
    from keras_plm.checkpoints.keras_hub import HubEncoder
    from tests.keras_plm.checkpoints.hub_models import backbone

    model = HubEncoder(backbone(kind, len(TOKENIZER)))
    before = arrays(model)
    fitted = FineTune(**FAST).fit(model, Classifier, TOKENIZER, texts(16))
    after = [to_numpy(weight) for weight in fitted.encoder.weights]
    moved = [
        path for (path, old), new in zip(before.items(), after, strict=True) if (old != new).any()
    ]
    assert len(moved) == 6  # queries and values of three blocks
    assert all("query/kernel" in path or "value/kernel" in path for path in moved)


@pytest.mark.backend_neutral
def test_bad_input_is_explained():
    with pytest.raises(ValueError, match="matrices of attention.*Received: WordVectors"):
        FineTune(**FAST).fit(word_encoder(), Classifier, TOKENIZER, texts(4))
    for rank in (0, 16, 1.5):
        with pytest.raises(ValueError, match="from 1 to below.*width 16"):
            FineTune(lora_rank=rank).fit(encoder(), Classifier, TOKENIZER, texts(4))
    with pytest.raises(ValueError, match="`lora_rank` keeps all.*pretrained_layers=1"):
        FineTune(lora_rank=2, pretrained_layers=1)


@pytest.mark.compiles
def test_features_include_the_low_rank_matrices():
    """A cached traced program would return the features of the encoder without LoRA."""
    model = encoder()
    extract_features(model, TOKENIZER, ["a b c"], pool="mean", layers="last")
    for layer in model._flatten_layers():
        if hasattr(layer, "enable_lora") and layer.built and not isinstance(layer, keras.Model):
            layer.enable_lora(2)
    changed = [weight for weight in model.weights if "lora" in weight.path]
    for weight in changed:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    (found,) = extract_features(model, TOKENIZER, ["a b c"], pool="mean", layers="last")
    packed = TOKENIZER.pack(["a b c"])
    outputs = to_numpy(model({k: packed[k] for k in model.input}, training=False)["sequence"])
    assert changed
    with pytest.raises(ValueError, match="LoRA enabled cannot be copied.*Received: .*lora"):
        FineTune(learning_rate=1e-3).fit(model, Classifier, TOKENIZER, texts(8))
    assert_close(found, outputs[0, packed["padding_mask"][0]].mean(axis=0), atol=2e-3)
