"""Fixtures of all tests: seeds, and real data if present."""

import importlib
import os
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.training.resume import set_seed

QUICK_UNDER_TORCH = pytest.StashKey()  # whether a test is in the quick tier of torch


def pytest_addoption(parser):
    parser.addoption(
        "--split", action="store_true",
        help="run each test of the full tier under one backend",
    )  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """Assigns tests to tiers and removes tests of other backends.

    Backend-neutral tests run under torch, which starts fastest and compiles nothing.
    """
    backend = keras.backend.backend()
    for item in items:
        full = item.get_closest_marker("full") or _only_in_full(item, "torch")
        item.stash[QUICK_UNDER_TORCH] = not full
        if _only_in_full(item, backend):
            item.add_marker(pytest.mark.full)
    here = [item for item in items if _is_here(item, backend, config.option.split)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(here)])
    items[:] = here


def _only_in_full(item, backend):
    """Returns whether a test without the marker `full` is not in the quick tier."""
    in_quick, compiles = item.get_closest_marker("quick_cases"), item.get_closest_marker("compiles")
    if in_quick and item.callspec.id not in in_quick.args:
        return True
    if compiles is None or backend == "torch":
        return False
    return not compiles.args or item.callspec.id in compiles.args


def _is_here(item, backend, split):
    """Returns whether a test runs under this backend.

    Where the full tier is split, each test runs under one backend. The marker `split_to`, otherwise
    the name of the test, decides which one. Tests with the marker `each_backend` run under all.
    Tests in the quick tier of torch run there and under one of the two other backends.
    """
    if item.get_closest_marker("backend_neutral"):
        return backend == "torch"
    in_quick = item.stash[QUICK_UNDER_TORCH]
    if not split or not item.get_closest_marker("full") or (in_quick and backend == "torch"):
        return True
    chosen = item.get_closest_marker("split_to")
    if chosen:
        return backend in chosen.args
    if item.get_closest_marker("each_backend"):
        return True
    # JAX compiles each shape of each test, so it gets the fewest.
    backends = ("jax", "tensorflow", "torch", "torch")
    if in_quick:
        backends = ("jax", "tensorflow", "tensorflow")
    return backends[zlib.crc32(item.nodeid.encode()) % len(backends)] == backend


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Gives each test its own cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def seeded():
    set_seed(1)


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_end():
    """Drops compiled programs: JAX maps them into memory until the system runs out of maps."""
    yield
    if keras.backend.backend() == "jax":
        importlib.import_module("jax").clear_caches()


def _folder(variable, name):
    folder = os.environ.get(variable)
    if folder is None:
        pytest.skip(f"set {variable} to the folder that holds {name}")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


@pytest.fixture
def data():
    """`data("sst/trees/dev.txt")`: a file of real data, or a skip that names it."""
    return lambda name: _folder("KERAS_PLM_DATA", name)


@pytest.fixture
def oracles():
    """`oracles("conlleval_sample.txt")`: an output of an original, or a skip that names it."""
    return lambda name: _folder("KERAS_PLM_ORACLES", name)


@pytest.fixture
def encoder(tmp_path):
    """The folder of a BERT with random weights and letters as tokens."""
    from keras_plm.models import BERT
    from tests.helpers.small_runs import TOKENIZER

    model = BERT(13, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12)
    keras_plm.save(tmp_path / "tiny", model, TOKENIZER)
    return str(tmp_path / "tiny")


@pytest.fixture
def table(tmp_path):
    """Flags for a user's own file, with texts of letters."""
    from tests.helpers.small_runs import LETTERS

    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(LETTERS, 4)) for _ in range(60)]
    lines = ["sentence,answer", *(f"{row},{'yes' if 'a' in row else 'no'}" for row in rows)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    return ["--task-file", str(tmp_path / "mine.csv"), "--text", "sentence", "--label", "answer"]


@pytest.fixture
def run(data_folder, tmp_path, capsys):
    """`run("gpt_ablation", ...)` runs a suite at its test scale and returns its code and output.

    Each file of such tests has a fixture `data_folder` with minimal data for its suites.
    """
    from benchmarks.__main__ import main

    def call(suite, *flags, command="suite", seeds="1"):
        own = ["--scale", "test", "--results", str(tmp_path / "results")]
        if command == "suite":
            own += ["--data", str(data_folder), "--feature-cache", str(tmp_path / "f")]
            code = main(["suite", suite, *own, "--seeds", seeds, *flags])
        else:
            code = main([command, "--suite", suite, *own, *flags])
        shown = capsys.readouterr()
        lines = (shown.out + shown.err).splitlines()
        return code, "\n".join(" ".join(line.split()) for line in lines)

    return call
