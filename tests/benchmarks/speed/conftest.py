"""Sizes at which the work takes no time."""

import pytest

from benchmarks.speed.measurements import elmo as speed_elmo
from benchmarks.speed.measurements import translator as speed_translator


@pytest.fixture
def small(monkeypatch):
    """Returns flags for sizes at which the work takes no time."""
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    monkeypatch.setitem(speed_translator.TRANSFORMER_SIZES, "tiny", {**size, "dropout": 0.1})
    for name, value in {"VOCABULARY": 13, "SOURCES": 3, "ROWS": 3}.items():
        monkeypatch.setattr(speed_translator, name, value)
    flags = ["--repeats", "1", "--steps", "1", "--shapes", "2x3x5x4"]
    return [*flags, "--translators", "tiny", "--written", "3"]


@pytest.fixture
def small_elmo(monkeypatch):
    size = {"units": 5, "projection_dim": 3, "filters": [[1, 2], [2, 3]], "num_highway": 1}
    for name in ("small", "original"):
        monkeypatch.setitem(speed_elmo.ELMO_SIZES, name, size)
    monkeypatch.setattr(speed_elmo, "PROJECTED", [(2, 3)])
    monkeypatch.setattr(speed_elmo, "READERS", [(2, 3, 4, 5)])
    monkeypatch.setattr(speed_elmo, "VOCABULARY", 50)
    monkeypatch.setattr(speed_elmo, "SAMPLES", 7)
