"""Advice on bfloat16 follows from the instructions of the device."""

import warnings
from types import SimpleNamespace

import keras
import pytest

from keras_plm.heads import Classifier
from keras_plm.training import half_precision
from keras_plm.training.half_precision import advice, has_bfloat16
from tests.helpers.small_encoders import LABELS, TOKENIZER, encoder, texts

BACKEND = keras.backend.backend()


@pytest.fixture(autouse=True)
def asked_anew():
    half_precision._warn.cache_clear()
    has_bfloat16.cache_clear()
    yield
    has_bfloat16.cache_clear()


@pytest.mark.parametrize(
    "capability, fast",
    [("7.5", False), ("8.0", True), ("9.0", True), ("12.0", True), (None, None)],
)
def test_capability_of_the_gpu_decides(capability, fast, monkeypatch):
    monkeypatch.setattr(half_precision, f"_on_{BACKEND}", lambda: capability)
    assert has_bfloat16() is fast
    assert ("float32, or float16 on a GPU" in (advice("bfloat16") or "")) == (fast is False)
    assert ("--precision bfloat16" in (advice("float32") or "")) == (fast is True)
    assert advice("float16") is None


@pytest.mark.skipif(BACKEND != "jax", reason="torch has no number for AMD's GPUs")
@pytest.mark.parametrize("name, fast", [("gfx90a", None), (None, None), ("9.0", True)])
def test_names_of_amd_gpus_are_unknown(name, fast, monkeypatch):
    import jax

    gpu = SimpleNamespace(platform="gpu", compute_capability=name)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    assert has_bfloat16() is fast


@pytest.mark.parametrize(
    "lines, fast",
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 fma\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("flags\t\t: fpu avx2 fma\n", False),
        ("model name\t: unknown\n", None),
        (None, None),
    ],
)
def test_flags_of_the_processor_decide(lines, fast, tmp_path):
    path = tmp_path / "cpuinfo"
    if lines is not None:
        path.write_text("processor\t: 0\n" + lines)
    assert half_precision._processor_has_bfloat16(path) is fast


def test_bfloat16_is_not_advised_for_xla_on_processors(monkeypatch):
    monkeypatch.setattr(half_precision, f"_on_{BACKEND}", lambda: "cpu")
    monkeypatch.setattr(half_precision, "_processor_has_bfloat16", lambda: True)
    assert (advice("float32") is None) == (BACKEND == "jax")


@pytest.mark.compiles
def test_fit_warns_once_of_slow_bfloat16(monkeypatch):
    monkeypatch.setattr(half_precision, "has_bfloat16", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        half_precision.warn_of_slow_precision(Classifier(encoder(), LABELS, tokenizer=TOKENIZER))
    model = Classifier(encoder(dtype="mixed_bfloat16"), LABELS, tokenizer=TOKENIZER)
    model.compile("sgd")
    batches = model.batches(texts(4), batch_size=4)
    with pytest.warns(UserWarning, match="no instructions for bfloat16.*Received: dtype"):
        model.fit(batches, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        half_precision.warn_of_slow_precision(model)
