"""Tests. `keras_plm` mirrors the library's folders; `house` tests the whole repository."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
