"""Tests. `keras_plm` has the folders of the library; `house` tests the repository as a whole."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
