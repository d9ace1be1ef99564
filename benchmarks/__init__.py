"""Running things and keeping the numbers: `python -m benchmarks`."""
