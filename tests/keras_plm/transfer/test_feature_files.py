"""Files of a feature store: damage, full disks, several processes, and kills."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.checks.processes import kill_at_each_call
from keras_plm.transfer import FeatureStore, _feature_files
from tests.helpers.small_encoders import TOKENIZER, encoder

pytestmark = pytest.mark.backend_neutral
SHAPE = 5, 3, 4
COUNTS = [2, 3]


def written(folder, parts=None, rows=None):
    with _feature_files.writing(folder, SHAPE, COUNTS, parts, rows=rows) as array:
        array[:] = np.arange(60).reshape(SHAPE)
    _feature_files._checked.clear()  # like in a new process
    return folder


def replaced(folder, name, **arrays):
    """Replaces an array and its manifest entry, as in a forged or mixed store."""
    np.save(folder / name, arrays["array"])
    about = json.loads((folder / "manifest.json").read_text())
    names = list(about["files"])
    about["files"] = _feature_files.manifest.describe_files(folder, names)
    (folder / "manifest.json").write_text(json.dumps(about))


def test_written_arrays_are_read_back(tmp_path):
    parts = [[[0, 1], [1, 1]], [[2, 0], [2, 3]]]
    arrays = _feature_files.read(written(tmp_path / "a", parts))
    assert arrays.features.ravel().tolist() == list(range(60)) and not arrays.pairs
    assert arrays.counts.tolist() == COUNTS and arrays.parts.tolist() == parts
    with pytest.raises(ValueError, match="read-only"):
        arrays.features[0] = 0


def test_rows_of_windows_must_follow_one_another(tmp_path):
    rows = [[0, 0, 1], [0, 1, 1], [1, 0, 3]]
    folder = written(tmp_path / "a", rows=rows)
    assert _feature_files.read(folder).rows.tolist() == rows
    for wrong in (
        rows[:2],
        [[0, 0, 2], [1, 1, 3]],
        [[1, 0, 3], [0, 0, 2]],
        [[0, 0, 2], [2, 0, 3]],
        [[0, 0, 5]],
        [0, 1, 2],
        [],
    ):
        replaced(folder, "rows.npy", array=np.array(wrong, "i8"))
        with pytest.raises(ValueError, match="rows must belong together"):
            _feature_files.read(folder)


def flip(folder):
    path = folder / "features.npy"
    content = bytearray(path.read_bytes())
    content[-7] ^= 64
    path.write_bytes(content)


def cut(folder):
    os.truncate(folder / "features.npy", 200)


def other_order(folder):
    array = np.load(folder / "features.npy")
    replaced(folder, "features.npy", array=np.asfortranarray(array))


def other_width(folder):
    replaced(folder, "features.npy", array=np.zeros((4, 3, 4), "float16"))


def other_type(folder):
    replaced(folder, "features.npy", array=np.zeros(SHAPE, "float32"))


def other_counts(folder):
    replaced(folder, "counts.npy", array=np.array([6, -1]))


def pipe(folder):
    (folder / "counts.npy").unlink()
    os.mkfifo(folder / "counts.npy")


def no_manifest(folder):
    (folder / "manifest.json").unlink()


def other_store(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(folder.name, "x"))


DAMAGES = [flip, cut, other_order, other_width, other_type, other_counts, pipe, no_manifest]
DAMAGES += [other_store]


@pytest.mark.parametrize("damage", DAMAGES)
def test_errors_name_the_damaged_store(damage, tmp_path):
    folder = written(tmp_path / "store")
    damage(folder)
    with pytest.raises(ValueError, match=str(folder)):
        _feature_files.read(folder)


@pytest.mark.parametrize("damage", [flip, cut, other_width, pipe, no_manifest])
def test_damaged_features_are_recomputed(damage, tmp_path):
    model = encoder()
    build = lambda: FeatureStore.build(tmp_path, model, TOKENIZER, ["a b", "c"], "mean")  # noqa: E731
    right = np.array(build().array)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    damage(folder)
    _feature_files._checked.clear()
    with pytest.warns(UserWarning, match=f"recomputed: .*{folder}"):
        again = build()
    np.testing.assert_array_equal(again.array, right)
    assert np.array_equal(build().array, right) and again.counts.tolist() == [1, 1]


def test_store_with_other_contents_is_recomputed(tmp_path):
    model = encoder()
    FeatureStore.build(tmp_path, model, TOKENIZER, ["a b", "c"], "mean")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    shutil.rmtree(folder)
    written(folder)
    with pytest.warns(UserWarning, match="must hold 2 examples"):
        store = FeatureStore.build(tmp_path, model, TOKENIZER, ["a b", "c"], "mean")
    assert store.array.shape == (2, 3, model.hidden_dim)


@pytest.mark.full
def test_temporary_folders_of_killed_processes_are_removed(tmp_path):
    store, other = "0" * 24, "1" * 24
    for name in (store, other):
        (tmp_path / f"{name}.99999999.0123abcd.tmp").mkdir()
    mine = tmp_path / "of a user.tmp"
    mine.mkdir()
    with _feature_files.one_writer(tmp_path / other):
        code = (
            "from pathlib import Path; from keras_plm.transfer import _feature_files;"
            "_feature_files.remove_dead(Path('.'))"
        )
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    left = {path.name for path in tmp_path.glob("*.tmp")}
    assert left == {f"{other}.99999999.0123abcd.tmp", mine.name}  # another process is writing one


SETUP = """
import warnings
import numpy as np
from pathlib import Path
from keras_plm.transfer import _feature_files
from keras_plm.files.locks import one_writer

def build():
    folder = Path("store")
    with one_writer(folder, wait=True):
        _feature_files.remove_dead(folder.parent)
        try:
            return _feature_files.read(folder)
        except ValueError:
            with _feature_files.writing(folder, (500, 3, 4), [500]) as array:
                array[:] = np.arange(6000).reshape(array.shape) % 1000
            with open("built", "a") as file:
                file.write("once ")
            return _feature_files.read(folder)
"""
CHECK = """
found = build()
assert (found.features.ravel() == np.arange(6000) % 1000).all()
assert not list(Path(".").glob("*.tmp"))
"""


@pytest.mark.full
def test_build_killed_at_any_file_call_is_rebuilt(tmp_path):
    (tmp_path / "begin").mkdir()
    copies = tmp_path / "copies"
    copies.mkdir()
    calls = ("replace", "rename", "mkdir", "rmdir", "unlink")
    assert len(kill_at_each_call(CHECK, tmp_path / "begin", copies, SETUP, CHECK, calls)) > 3


FULL = """
import resource, sys
from keras_plm.transfer import FeatureStore
from tests.helpers.small_encoders import TOKENIZER, encoder
model = encoder()
FeatureStore._fill = None  # is never reached
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    FeatureStore.build(sys.argv[1], model, TOKENIZER, ["a b c d"] * 500)
except OSError as error:
    print(error)
"""


@pytest.mark.full
def test_full_disk_is_reported_before_the_encoder_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Features need" in done.stdout and str(tmp_path) in done.stdout
    assert "bytes free" in done.stdout and not list(tmp_path.glob("*.tmp"))
