"""The table of readers: all that the library, `glue_tasks` and `benchmarks` read from files."""

import importlib.util

from tests.fuzz.readers import examples, results, tokens, weights

READERS = [
    reader
    for module in (examples, tokens, weights, results)
    for reader in module.READERS
    if reader.package is None or importlib.util.find_spec(reader.package)
]
