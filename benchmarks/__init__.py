"""Comparisons of this repository: suites, claims, speed, checks, a demo, and their results."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = str(ROOT / "benchmarks" / "results")
README = ROOT / "README.md"
