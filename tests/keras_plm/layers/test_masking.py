"""Keras' implicit masks: layers use them without a `padding_mask`, and propagate them."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_plm import layers
from keras_plm.heads import readers

IDS = np.array([[4, 2, 7, 0, 0], [1, 3, 0, 0, 0], [5, 6, 2, 8, 9]])
REAL = IDS != 0
LAYERS = {
    "block": lambda: layers.TransformerBlock(num_heads=2, hidden_dim=4, intermediate_dim=8),
    "stack": lambda: layers.TransformerStack(2, num_heads=2, hidden_dim=4, intermediate_dim=8),
    "multi-head": lambda: layers.MultiHeadAttention(num_heads=2, hidden_dim=4),
    "gru": lambda: layers.BidirectionalGRU(units=2),
    "projected": lambda: layers.ProjectedLSTM(units=3, projection_dim=4),
    "lstms": lambda: layers.LSTMStack(2, units=3, projection_dim=4),
    "carried": lambda: layers.CarriedStates(layers.LSTMStack(1, units=3, projection_dim=4), rows=3),
    "crf": lambda: layers.CRF(),
    "bilstm": lambda: readers.BiLSTM(units=2, num_layers=1),
    "highway lstms": lambda: readers.AlternatingLSTM(units=2, num_layers=2, dropout=0.0),
    "bilstm, crf": lambda: readers.BiLSTMTagger(num_labels=2, units=2, num_layers=1),
    "mean": lambda: layers.Pooling("mean"),
    "last": lambda: layers.Pooling("last"),
}


def embedded():
    """Returns vectors (B, T, 4) with the mask of `IDS`."""
    keras.utils.set_random_seed(0)
    return keras.layers.Embedding(10, 4, mask_zero=True)(IDS)


def first(outputs):
    return keras.tree.flatten(outputs)[-1]


@pytest.fixture(autouse=True)
def no_lost_masks():
    """Turns Keras' warnings about lost masks into errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*does not support masking.*")
        yield


@pytest.mark.compiles(
    "stack", "gru", "projected", "lstms", "carried", "crf", "bilstm", "highway lstms", "bilstm, crf"
)
@pytest.mark.parametrize("name", LAYERS)
def test_keras_mask_equals_padding_mask(name):
    layer, x = LAYERS[name](), embedded()
    bare = ops.convert_to_tensor(ops.convert_to_numpy(x))
    layer(bare)
    for weight in layer.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, seed=1))
    if name == "carried":
        layer.reset()
    implicit = first(layer(x))
    if name == "carried":
        layer.reset()
    given = first(layer(bare, padding_mask=REAL))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (implicit, given)))
    for other in (layer(bare), layer(x, padding_mask=np.ones_like(REAL))):
        assert not np.allclose(*map(ops.convert_to_numpy, (given, first(other))))


@pytest.mark.parametrize("name", ["block", "stack", "multi-head", "projected"])
def test_keras_mask_is_used_next_to_other_tensors(name):
    layer, x = LAYERS[name](), embedded()
    bare = ops.convert_to_tensor(ops.convert_to_numpy(x))
    other = {"attention_mask": np.ones((5, 5), bool)}
    if name == "projected":
        other = {"state": (ops.ones((3, 4)), ops.ones((3, 3)))}
    implicit, given = first(layer(x, **other)), first(layer(bare, padding_mask=REAL, **other))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (implicit, given)))


def test_decoder_block_uses_the_mask_of_its_inputs():
    x, source = embedded(), ops.ones((3, 2, 4))
    bare = ops.convert_to_tensor(ops.convert_to_numpy(x))
    block = layers.TransformerBlock(2, 4, 8, cross_attention=True)
    implicit, given = block(x, source=source), block(bare, padding_mask=REAL, source=source)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (implicit, given)))
    ids = keras.Input((None,), dtype="int32")
    inputs = keras.layers.Embedding(10, 4, mask_zero=True)(ids)
    model = keras.Model(ids, block(inputs, source=inputs))
    assert model(IDS).shape == (3, 5, 4)


def test_attention_takes_the_mask_of_its_value():
    x, query = embedded(), ops.ones((3, 2, 4))
    bare = ops.convert_to_tensor(ops.convert_to_numpy(x))
    for layer in (layers.ScaledDotProductAttention(), layers.MultiHeadAttention(2, 4)):
        for implicit, given in zip(
            keras.tree.flatten(layer(query, x)),
            keras.tree.flatten(layer(query, bare, padding_mask=REAL)),
            strict=True,
        ):
            np.testing.assert_array_equal(*map(ops.convert_to_numpy, (implicit, given)))


@pytest.mark.compiles
def test_a_recurrent_decoder_takes_the_mask_of_its_source():
    source, inputs, state = embedded(), ops.ones((3, 2, 4)), ops.ones((3, 5))
    bare = ops.convert_to_tensor(ops.convert_to_numpy(source))
    decoder = layers.AttentionDecoder(5, layers.AdditiveAttention(3))
    implicit = decoder(inputs, state=state, source=source)[2]
    given = decoder(inputs, state=state, source=bare, padding_mask=REAL)[2]
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (implicit, given)))
    assert (ops.convert_to_numpy(implicit)[:, :, 0] > 0).all()
    assert (ops.convert_to_numpy(implicit)[~np.broadcast_to(REAL[:, None], (3, 2, 5))] == 0).all()


def test_a_mix_normalises_over_the_positions_of_the_mask():
    x = embedded()
    bare = ops.convert_to_tensor(ops.convert_to_numpy(x))
    mix = layers.ScalarMix(2, layer_norm=True)
    given = mix([bare, 2 * bare], padding_mask=REAL)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (mix([x, x]), given)))


@pytest.mark.compiles
@pytest.mark.parametrize(
    "steps",
    [
        [LAYERS["block"], LAYERS["block"]],
        [LAYERS["projected"], LAYERS["multi-head"]],
        [lambda: layers.FeedForward(8), lambda: layers.Dropout(0.1)],
        [lambda: layers.Dense(4), layers.LayerNormalization, lambda: layers.LSTM(4)],
    ],
    ids=["blocks", "lstm, attention", "feed-forward", "dense, norm, lstm"],
)
def test_masks_reach_the_pooling_of_a_functional_model(steps):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(ids)
    for step in steps:
        x = step()(x)
    model = keras.Model(ids, [x, layers.Pooling("mean")(x)])
    sequence, pooled = model.predict(IDS, verbose=0)
    means = [row[real].mean(axis=0) for row, real in zip(sequence, REAL, strict=True)]
    np.testing.assert_allclose(pooled, np.stack(means), rtol=1e-5, atol=1e-6)


@pytest.mark.compiles
def test_stack_propagates_mask_to_all_outputs():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(ids)
    outputs = LAYERS["stack"]()(x)
    model = keras.Model(ids, [*outputs, *[layers.Pooling("mean")(y) for y in outputs]])
    *sequences, a, b, c = model.predict(IDS, verbose=0)
    for sequence, pooled in zip(sequences, (a, b, c), strict=True):
        means = [row[real].mean(axis=0) for row, real in zip(sequence, REAL, strict=True)]
        np.testing.assert_allclose(pooled, np.stack(means), rtol=1e-5, atol=1e-6)


def test_position_embeddings_do_not_propagate_masks():
    x = embedded()
    for layer in (layers.PositionEmbedding(5), layers.SinePositionEmbedding()):
        pooled = layers.Pooling("mean")(layer(x)[None])
        assert tuple(pooled.shape) == (1, 4)
