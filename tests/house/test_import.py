"""Import of the package if Keras' backend is not installed."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

HIDDEN = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *arguments):
        hidden = name.partition(".")[0] in ("tensorflow", "jax", "jaxlib", "torch")
        return None if hidden else self.finder.find_spec(name, *arguments)

sys.meta_path[:] = [Finder(finder) if hasattr(finder, "find_spec") else finder
                    for finder in sys.meta_path]
"""


def run(code, backend, hidden=HIDDEN):
    environment = {**os.environ, "KERAS_BACKEND": backend}
    return subprocess.run(
        [sys.executable, "-c", hidden + code], env=environment, capture_output=True, text=True
    )


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_missing_backend_error_lists_the_packages_to_install(backend):
    done = run("import keras_plm", backend)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Keras is set to use {backend}, which is not installed.")
    assert all(f"pip install {name}" in last for name in ("tensorflow", "jax", "torch"))
    assert "During handling" not in done.stderr


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.parametrize("backend", ["numpy", "openvino", "Torch"])
def test_unsupported_backends_are_refused_in_one_sentence(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", "import keras_plm"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: keras_plm needs the Keras backend tensorflow, jax or torch"
    )
    assert "KERAS_BACKEND" in last and last.endswith(f"Received: {backend!r}")
    assert "During handling" not in done.stderr


@pytest.mark.full
@pytest.mark.backend_neutral
def test_benchmarks_command_prints_missing_backend_in_one_line():
    code = "import runpy; sys.argv = ['benchmarks', 'demo']; "
    done = run(code + "runpy.run_module('benchmarks', run_name='__main__')", "torch")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: Keras is set to use torch, which is not installed.")


@pytest.mark.backend_neutral
@pytest.mark.parametrize("program", ["keras-plm", "/usr/bin/keras-plm"])
def test_console_command_prints_missing_backend_in_one_line(program):
    code = f"sys.argv = [{program!r}, 'run']; import keras_plm.cli.main"
    done = run(code, "torch")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: Keras is set to use torch, which is not installed.")


@pytest.mark.full
@pytest.mark.backend_neutral
def test_import_loads_subpackages_lazily():
    code = """
import sys
import keras_plm
assert "keras" not in sys.modules and "numpy" not in sys.modules
assert keras_plm.__version__ and "layers" in dir(keras_plm) and "load" in dir(keras_plm)
assert keras_plm.metrics.accuracy([1, 0], [1, 1]) == 0.5
assert keras_plm.load is keras_plm.checkpoints.load
try:
    keras_plm.layer
except AttributeError as error:
    assert str(error) == "module 'keras_plm' has no attribute 'layer'"
"""
    done = run(code, "torch", hidden="")
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.backend_neutral
def test_import_registers_every_serializable_class():
    """`keras.saving.load_model` finds only registered classes."""
    pattern = r"@keras\.saving\.register_keras_serializable\(\"keras_plm\"\)\nclass (\w+)"
    sources = [path.read_text() for path in (ROOT / "keras_plm").rglob("*.py")]
    names = [name for source in sources for name in re.findall(pattern, source)]
    assert {"BERT", "Classifier", "TransformerBlock", "MaskedLM"} <= set(names)
    code = "import keras, keras_plm\n"
    code += (
        f"print(set({names}) - {{n.partition('>')[2] for n in keras.saving.get_custom_objects()}})"
    )
    done = run(code, "torch", hidden="")
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
