"""BERT: sizes, contract, and agreement with a peer."""

import keras
import numpy as np
import pytest

from keras_plm.models import BERT, BERT_SIZES
from tests.helpers.checks import assert_close, check_encoder, check_learns, shapes, to_numpy

TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}

# REFERENCE: the published backbones including the pooler, with the released vocabularies.
COUNTS = {
    ("tiny", 30522): 4_385_920,
    ("mini", 30522): 11_170_560,
    ("small", 30522): 28_763_648,
    ("medium", 30522): 41_373_184,
    ("base", 30522): 109_482_240,
    ("large", 30522): 335_141_888,
    ("base", 28996): 108_310_272,
    ("large", 28996): 333_579_264,
}


def count(size, vocabulary_size):
    """Counts the parameters from the shapes in the paper."""
    s = BERT_SIZES[size]
    width, inner = s["hidden_dim"], s["intermediate_dim"]
    embeddings = (vocabulary_size + 512 + 2) * width + 2 * width
    block = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    return embeddings + s["num_layers"] * block + width * width + width


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("size, vocabulary_size", COUNTS)
def test_parameter_counts_equal_published_counts(size, vocabulary_size):
    assert count(size, vocabulary_size) == COUNTS[size, vocabulary_size]
    if BERT_SIZES[size]["hidden_dim"] > 512:
        # The same formula holds for a small vocabulary, which needs less memory.
        vocabulary_size = 10
        if size == "large":
            pytest.skip("1.2 GB of weights; base has the same structure")
    encoder = BERT(vocabulary_size, **BERT_SIZES[size])
    assert encoder.count_params() == count(size, vocabulary_size)


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("pre_norm", [False, True])
def test_keeps_the_encoder_contract(pre_norm, tmp_path):
    encoder = BERT(13, **TINY, pre_norm=pre_norm, max_sequence_length=9)
    outputs = check_encoder(encoder, tmp_path, vocabulary_size=13)
    assert len(outputs["layers"]) == 3
    assert shapes(outputs["pooled"]) == [(5, 8)]


def test_every_weight_learns():

    encoder = BERT(13, **TINY, dropout=0.0, max_sequence_length=7)
    ids = np.random.default_rng(0).integers(0, 13, (9, 7)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": np.ones((9, 7), bool)}
    both = keras.layers.Concatenate()([encoder.output["pooled"], encoder.output["sequence"][:, 1]])
    check_learns(keras.Model(encoder.input, both), inputs, np.ones((9, 16)))


def test_dropout_only_in_training():
    encoder = BERT(13, **TINY, dropout=0.5)
    ids = np.ones((1, 4), "int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
    assert_close(encoder(inputs)["sequence"], encoder(inputs)["sequence"], atol=0)
    first, second = (to_numpy(encoder(inputs, training=True)["sequence"]) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_refuses_longer_inputs():
    ids = np.ones((1, 6), "int32")
    with pytest.raises(ValueError, match="at most 5 positions"):
        BERT(13, **TINY, max_sequence_length=5)(
            {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
        )


@pytest.mark.backend_neutral
def test_refuses_unknown_arguments():
    with pytest.raises(TypeError, match="num_layer"):
        BERT(13, **TINY, num_layer=5)  # Keras' functional models ignore unknown arguments


@pytest.mark.parametrize("is_map", [False, True])
def test_copy_from_config_has_the_same_precision(is_map):
    policy = "mixed_bfloat16"
    if is_map:
        policy = keras.dtype_policies.DTypePolicyMap(default_policy=policy)
    encoder = BERT(13, **TINY, dtype=policy)
    copy = BERT.from_config(encoder.get_config())
    assert copy.compute_dtype == copy.output["sequence"].dtype == "bfloat16"


@pytest.mark.full
def test_frozen_encoder_is_frozen_after_reloading(tmp_path):
    encoder = BERT(13, **TINY)
    encoder.trainable = False
    encoder.save(tmp_path / "frozen.keras")
    assert not keras.saving.load_model(tmp_path / "frozen.keras").trainable_weights
