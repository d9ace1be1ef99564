"""The table of all readers of files in the library, `glue_tasks` and `benchmarks`."""

import importlib.util

from tests.fuzz.readers import examples, predictions, results, tokens, weights

READERS = [
    reader
    for module in (examples, predictions, tokens, weights, results)
    for reader in module.READERS
    if reader.package is None or importlib.util.find_spec(reader.package)
]
