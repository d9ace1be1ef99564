"""Helpers for tests of several devices and processes: batches, models, Python processes."""

import os
import subprocess
import sys

import keras
import numpy as np

from benchmarks.checks.resume import with_xla_flag
from keras_plm.data.batching import Batches
from keras_plm.training.distribution import Distribution
from keras_plm.training.fit import FitsBatches
from tests import ROOT


class Parted(Distribution):
    """A distribution over two processes with three devices each."""

    num_processes = 2

    def __init__(self, process_id):
        super().__init__(6)
        self.process_id = process_id


def batches(**options):
    """Returns batches of rows of three lengths; a row's number is its value."""
    lengths = np.array([3, 9, 4, 8, 5, 2, 7, 3, 9, 1, 2])

    def collate(rows, length, rng, epoch):
        noise = rng.normal(size=len(rows))  # drawn like masks
        x = {"row": rows.astype("float32"), "noise": noise.astype("float32")}
        return x, rows.astype("float32"), None

    return Batches(lengths, collate, buckets=[4, 9], **{"batch_size": 4, "seed": 3, **options})


class Plain(FitsBatches, keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["row"][:, None])


class Wide(Plain):
    """A layer with a weight that is split over two devices."""

    def __init__(self):
        super().__init__()
        self.wide = keras.layers.Dense(4, name="wide")

    def call(self, inputs):
        return self.dense(self.wide(inputs["row"][:, None]))


def begun(script, devices=1, environment=None):
    """Starts a Python process with a script, under JAX on `devices` parts of the processor."""
    flags = with_xla_flag(f"--xla_force_host_platform_device_count={devices}")
    flags |= environment or {}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], text=True, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | flags,
    )  # fmt: skip


def lines(process):
    """Returns the output of a process after its end."""
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err[-1500:]
    return out.strip().splitlines()
