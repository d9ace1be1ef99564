"""The library's checks of the backend and uses of private functions, and their fallbacks."""

import ast

import keras
import numpy as np
import pytest

from keras_plm.files.private_apis import (
    PRIVATE_APIS,
    VERSIONS,
    adagrad_step,
    adamw_step,
    build_for_training,
    every_layer,
    norms,
)
from keras_plm.layers import TransformerStack
from tests import ROOT
from tests.helpers.checks import assert_close, to_numpy

LIBRARY = sorted((ROOT / "keras_plm").rglob("*.py"))
ASKS_FOR_THE_BACKEND = (
    "keras_plm/layers/_fused/",
    "keras_plm/training/",
    "keras_plm/checkpoints/saved_model.py",
    "keras_plm/experiments/",  # records the backend, chooses devices
    "keras_plm/__init__.py",  # refuses other backends
)
KINDS = (
    keras.Model,
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.LayerNormalization,
    keras.metrics.Metric,
    keras.losses.Loss,
    keras.optimizers.AdamW,
    keras.optimizers.Adagrad,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.utils.PyDataset,
)
PYTHONS = {"_asdict", "_exit", "_getframe"}  # documented functions with such names


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.backend_neutral
def test_only_listed_files_query_the_backend():
    for path in LIBRARY:
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if "backend.backend()" in text or "config.backend()" in text:
            assert name.startswith(ASKS_FOR_THE_BACKEND), name


@pytest.mark.backend_neutral
def test_private_names_of_other_packages_are_listed():
    """Private names count if Keras' classes define them or nothing in the library does."""
    of_keras = {
        name
        for kind in KINDS
        for parent in kind.__mro__
        if parent.__module__.startswith("keras.src")
        for name in vars(parent)
        if is_private(name)
    }
    used, defined, texts = set(), set(), ""
    for path in LIBRARY:
        if path.name == "private_apis.py":
            texts += path.read_text().partition("def every_layer")[2]
        else:
            texts += path.read_text()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                used.add(node.attr)
                if isinstance(node.ctx, ast.Store):
                    defined.add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and is_private(node.name):
                defined.add(node.name)
    foreign = ((used | defined) & of_keras) | (used - defined)
    assert foreign - PYTHONS <= set(PRIVATE_APIS)
    assert [name for name in PRIVATE_APIS if name not in texts] == []
    assert all(len(entry) == 3 and all(entry) for entry in PRIVATE_APIS.values())


@pytest.mark.backend_neutral
def test_private_api_list_matches_installed_keras_version():
    assert keras.__version__.startswith(VERSIONS["keras"] + "."), (
        "check each entry of `keras_plm.files.private_apis` on this version, then raise it there"
    )


def test_every_layer_works_without_flatten_layers(monkeypatch):
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, TransformerStack(2, 2, 8, 16)(inputs)[-1])
    wanted = every_layer(model)
    monkeypatch.delattr(keras.Layer, "_flatten_layers")
    found = every_layer(model)
    assert found[0] is model and {layer.path for layer in found} == {x.path for x in wanted}
    assert len(found) == len(wanted)


def test_build_for_training_works_without_private_keras_api(monkeypatch):
    def built():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile(keras.optimizers.Adam(), loss="mse", metrics=["mae"])
        build_for_training(model, (np.ones((2, 3), "float32"), np.ones((2, 2), "float32")))
        variables = [*model.optimizer.variables, *model.metrics_variables]
        return sorted((tuple(v.shape), float(np.sum(to_numpy(v)))) for v in variables)

    wanted = built()
    # Keras calls the function, so it cannot be removed.
    monkeypatch.setattr("keras_plm.files.private_apis.hasattr", lambda *_: False, raising=False)
    assert built() == wanted


def steps_of(scale):
    """Returns weights and slots after two steps of each optimizer, from the same start."""
    import torch

    rng = np.random.default_rng(0)

    def tensors():
        return [torch.from_numpy(rng.normal(size=n).astype("float32")) for n in (5, 7)]

    weights, gradients, means, squares = (tensors() for _ in range(4))
    squares = [x.square() for x in squares]
    options = {"beta1": 0.9, "beta2": 0.99, "decay": 0.01, "eps": 1e-6}
    for step in (torch.tensor(3.0), torch.tensor(1e9)):
        adamw_step(
            weights,
            [g.clone() for g in gradients],
            means,
            squares,
            step=step,
            lr=torch.tensor(0.1),
            scale=None if scale is None else torch.tensor(scale),
            **options,
        )
    others, sums = tensors(), [x.square() for x in tensors()]
    adagrad_step(others, gradients, sums, lr=0.3, eps=1e-7)
    arrays = [*weights, *means, *squares, *others, *sums, *norms(gradients)]
    return [x.numpy() for x in arrays]


@pytest.mark.parametrize("scale", [None, 2.5])
def test_fallbacks_equal_fused_torch_kernels(scale, monkeypatch):
    torch = pytest.importorskip("torch")
    if keras.backend.backend() != "torch":
        pytest.skip("torch's kernels")
    wanted = steps_of(scale)
    for name in ("_fused_adamw_", "_fused_adagrad_", "_foreach_norm"):
        monkeypatch.delattr(torch, name)
    for found, value in zip(steps_of(scale), wanted, strict=True):
        assert_close(found, value, atol=1e-6)
