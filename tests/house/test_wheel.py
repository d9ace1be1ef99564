"""The wheel contains all files that the library needs without a clone."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests import ROOT

CODE = """
from pathlib import Path

import keras_plm
from keras_plm.data.task import SHIPPED_FOLDER
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.report.page import TEMPLATE
from keras_plm.experiments.environment import environment

assert "<!-- body -->" in TEMPLATE.read_text(encoding="utf-8")
assert Path(keras_plm.__file__).with_name("py.typed").is_file()
assert len(TASKS["wikigold"].read(None, "test")) > 100
assert "CC BY 4.0" in SHIPPED_FOLDER.joinpath("LICENSE").read_text(encoding="utf-8")
assert environment()["commit"] is None  # of the user's repository, in which it runs
print(keras_plm.__file__, keras_plm.__version__)
"""


@pytest.mark.full
@pytest.mark.backend_neutral
def test_installed_wheel_has_data_files_and_no_commit(tmp_path):
    pytest.importorskip("setuptools")
    source, installed = tmp_path / "source", tmp_path / "work" / "installed"
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("keras_plm", "glue_tasks"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", tmp_path], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert not (installed / "benchmarks").exists() and not (installed / "tests").exists()
    subprocess.run(["git", "init", "-q", tmp_path / "work"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path / "work",
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(installed / "keras_plm" / "__init__.py")
