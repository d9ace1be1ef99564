"""Checks for every layer and every encoder."""

import os
import subprocess
import sys
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

from benchmarks.checks.resume import with_xla_flag
from keras_plm.models.encoder import Encoder, weight_depths
from keras_plm.tokenizers.characters import WIDTH
from tests import ROOT


def under_torch(*values):
    """Returns a case of `parametrize` only for torch."""
    return pytest.param(*values, marks=pytest.mark.backend_neutral)


def to_numpy(x):
    return ops.convert_to_numpy(x)


def assert_close(actual, expected, atol=1e-5):
    flat, wanted = keras.tree.flatten(actual), keras.tree.flatten(expected)
    assert len(flat) == len(wanted)
    for a, b in zip(flat, wanted, strict=True):
        np.testing.assert_allclose(to_numpy(a), to_numpy(b), atol=atol, rtol=1e-5)


def shapes(outputs):
    return [tuple(x.shape) for x in keras.tree.flatten(outputs)]


def check_elsewhere(make, inputs):
    """Checks that all computation is on the device of the inputs; torch's `meta` replaces a GPU.

    On `meta` and on a GPU, expressions of a NumPy array and a tensor fail. On the CPU they work.

    Args:
        make: Returns an unbuilt layer or a new model.
        inputs: A dict of NumPy arrays by argument name.
    """
    if keras.backend.backend() != "torch":
        return  # other backends move arrays automatically
    with keras.device("meta"):
        called = make()
        outputs = called(inputs) if isinstance(called, keras.Model) else called(**inputs)
    assert all(x.device.type == "meta" for x in keras.tree.flatten(outputs))


def waits(call, sent=True, after_backward=False):
    """Counts GPU synchronizations of torch in a call: numbers read from tensors, or `sent` too.

    Args:
        call: Function without arguments.
        sent: Whether to count numbers that are sent.
        after_backward: Whether to count only those after a backward pass.

    Returns:
        Their number.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    # A number that is read has the second and third name in inference mode.
    names = ("_local_scalar_dense", "item", "is_nonzero", *(("lift_fresh",) if sent else ()))

    class Counted(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function.__name__.startswith(names)
            return function(*args, **(kwargs or {}))

    backward = torch.Tensor.backward

    def counted_from_here(loss, *args, **kwargs):
        backward(loss, *args, **kwargs)
        counted.count = 0

    with (
        Counted() as counted,
        mock.patch.object(
            torch.Tensor, "backward", counted_from_here if after_backward else backward
        ),
    ):
        call()
    return counted.count


def check_layer(layer, inputs, tmp_path, learns=True):
    """Checks the config round trip, symbolic shapes, saving and loading, and that weights learn.

    Args:
        layer: An unbuilt layer.
        inputs: A dict of NumPy arrays by argument name.
        tmp_path: Folder for the saved model.
        learns: False for layers whose gradients are not checked.
    """
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    check_elsewhere(lambda: type(layer).from_config(config), inputs)

    symbols = {
        name: keras.Input(array.shape[1:], dtype=array.dtype.name, name=name)
        for name, array in inputs.items()
    }
    outputs = layer(**symbols)
    model = keras.Model(symbols, outputs)
    real = model(inputs)
    symbolic = [tuple(x.shape) for x in keras.tree.flatten(outputs)]
    for shape, wanted in zip(shapes(real), symbolic, strict=True):
        assert all(w is None or s == w for s, w in zip(shape, wanted, strict=True))

    path = tmp_path / "layer.keras"
    model.save(path)
    assert_close(keras.saving.load_model(path)(inputs), real, atol=1e-6)

    if learns and layer.trainable_weights:
        first = keras.tree.flatten(outputs)[0]
        trained = keras.Model(symbols, first)
        targets = np.random.default_rng(0).normal(size=shapes(real)[0])
        check_learns(trained, inputs, targets, traced=True)
    return model


def check_learns(model, inputs, targets, untouched=(), traced=False):
    """Checks that one SGD step moves every trainable weight, except paths in `untouched`.

    TensorFlow takes the step eagerly, unless `traced` is True, which takes longer.
    """
    before = [to_numpy(w).copy() for w in model.trainable_weights]
    eager = keras.backend.backend() == "tensorflow" and not traced
    model.compile(keras.optimizers.SGD(10.0), loss="mse", run_eagerly=eager)
    model.fit(inputs, targets, epochs=1, batch_size=len(targets), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        same = np.array_equal(to_numpy(weight), old)
        assert same == any(part in weight.path for part in untouched), weight.path


def check_reloads(model, inputs, tmp_path):
    """Checks that a model gives the same outputs after rebuilding, and after saving and loading."""
    outputs = model(inputs)
    again = type(model).from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.count_params() == model.count_params()
    check_elsewhere(lambda: type(model).from_config(model.get_config()), inputs)
    again.set_weights(model.get_weights())
    assert_close(again(inputs), outputs, atol=1e-6)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert_close(loaded(inputs), outputs, atol=1e-6)
    return loaded


def check_encoder(encoder, tmp_path, vocabulary_size, length=7):
    """Checks the contract of `models.Encoder`: attributes, outputs, saving, padding, token order.

    Args:
        encoder: The encoder.
        tmp_path: Folder for the saved encoder.
        vocabulary_size: Number of tokens, or of characters if words are character ids.
        length: Length T of the rows.
    """
    rng = np.random.default_rng(3)
    ids = rng.integers(1, vocabulary_size, (5, length)).astype("int32")
    letters = rng.integers(1, vocabulary_size, (5, length, WIDTH)).astype("int32")
    mask = np.ones((5, length), bool)
    mask[1, 4:] = False
    segments = np.zeros((5, length), "int32")
    segments[:, length // 2 :] = 1
    text = "character_ids" if "character_ids" in encoder.input else "token_ids"
    arrays = {"token_ids": ids, "character_ids": letters, "segment_ids": segments}
    inputs = {name: arrays.get(name, mask) for name in encoder.input}
    check_contract(encoder, text, length)
    outputs = encoder(inputs)
    assert {"sequence", "layers"} <= set(outputs)
    assert_close(outputs["sequence"], outputs["layers"][-1], atol=0)
    assert {tuple(layer.shape) for layer in outputs["layers"]} == {(5, length, encoder.hidden_dim)}
    stacked = encoder.stacked_layers().predict_on_batch(inputs)
    stacked = [stacked[:, :, i] for i in range(len(outputs["layers"]))]
    assert_close([x[mask] for x in stacked], [to_numpy(x)[mask] for x in outputs["layers"]])
    if encoder.token_embedding is not None:
        logits = encoder.token_embedding(outputs["sequence"], reverse=True)
        assert tuple(logits.shape) == (5, length, encoder.vocabulary_size)

    check_reloads(encoder, inputs, tmp_path)

    def changed(positions):
        """Returns all layers for other tokens (B, T)."""
        wide = positions if text == "token_ids" else positions[..., None]
        other = np.where(wide, inputs[text] % (vocabulary_size - 1) + 1, inputs[text])
        return encoder({**inputs, text: other.astype("int32")})["layers"]

    # The tokens at padded positions do not change other positions.
    for a, b in zip(outputs["layers"], changed(~mask), strict=True):
        assert_close(to_numpy(a)[mask], to_numpy(b)[mask])
    # In a causal encoder, the last token of a row changes no earlier position.
    if encoder.causal:
        for a, b in zip(outputs["layers"], changed(np.arange(length) == length - 1), strict=True):
            assert_close(to_numpy(a)[:, :-1], to_numpy(b)[:, :-1])

    # More padding changes nothing, and neither does the rest of the batch.
    alone = {name: array[1:2, :4] for name, array in inputs.items()}
    assert_close(to_numpy(encoder(alone)["sequence"])[0], to_numpy(outputs["sequence"])[1, :4])
    return outputs


def check_contract(encoder, text, length):
    """Checks the attributes of `models.Encoder`."""
    assert isinstance(encoder, Encoder)
    assert encoder.num_blocks in (len(encoder.output["layers"]) - 1, 1)  # ALBERT has one block
    assert (encoder.vocabulary_size is None) == (text == "character_ids")
    assert encoder.max_sequence_length is None or encoder.max_sequence_length >= length
    assert isinstance(encoder.causal, bool) and encoder.carried_rows == 0
    config = encoder.get_config()
    assert {"dtype", "trainable", "dropout"} <= set(config)
    assert set(weight_depths(encoder).values()) <= {None, *range(encoder.num_blocks + 1)}


def on_two_devices(arguments, folder):
    """Runs `keras-plm`, under torch with torchrun, on two parts of the processor.

    Args:
        arguments: Arguments of the program.
        folder: Folder for a script.

    Returns:
        A `subprocess.CompletedProcess`.
    """
    backend = keras.backend.backend()
    start, more = ["-m", "keras_plm.cli"], {}
    if backend == "jax":
        more = with_xla_flag("--xla_force_host_platform_device_count=2")
    elif backend == "torch":
        start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *start]
    else:  # TensorFlow splits the processor only by a function call
        script = folder / "begin.py"
        script.write_text(
            "import sys\nimport tensorflow as tf\n"
            "(cpu,), part = tf.config.list_physical_devices('CPU'),"
            " tf.config.LogicalDeviceConfiguration()\n"
            "tf.config.set_logical_device_configuration(cpu, [part, part])\n"
            "from keras_plm.cli.main import main\nsys.exit(main())\n"
        )
        start = [str(script)]
    return subprocess.run(
        [sys.executable, *start, *arguments], timeout=540, cwd=ROOT, capture_output=True, text=True,
        env=os.environ | more | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
