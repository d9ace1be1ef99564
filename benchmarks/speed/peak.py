"""Measures the peak memory of one implementation in a separate process.

`python -m benchmarks.speed.peak CASE IMPLEMENTATION SETTINGS FOLDER DATA` is that process. It does
the work once and prints its peak memory.
"""

import dataclasses
import json
import sys

from benchmarks.speed.inputs import Inputs
from benchmarks.speed.registry import cases
from benchmarks.speed.settings import SpeedSettings
from keras_plm.experiments.environment import peak_memory_mb, peak_memory_of


def peak_of(case, implementation, settings, inputs):
    """Returns the peak memory, in megabytes, of a process that does the work once."""
    arguments = case, implementation, json.dumps(dataclasses.asdict(settings))
    return peak_memory_of(
        "benchmarks.speed.peak", *arguments, str(inputs.folder), str(inputs.data or "")
    )


def main(case, implementation, settings, folder, data):
    settings = SpeedSettings(**json.loads(settings))
    measurement, arguments = cases(settings)[case]
    comparison = measurement.compare(settings, Inputs(folder, data or None), **arguments)
    comparison.implementations[implementation]()()
    print(peak_memory_mb())


if __name__ == "__main__":
    main(*sys.argv[1:])
