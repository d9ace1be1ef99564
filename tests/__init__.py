"""Tests. The folders are those of the library; `house` is about the repository as a whole."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
