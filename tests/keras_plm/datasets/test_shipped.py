"""WikiGold ships with the package; files in a data folder have priority."""

import gzip
import hashlib
import importlib.resources

import pytest

from keras_plm.cli.main import main
from keras_plm.data import find_file
from keras_plm.data.task import SHIPPED
from keras_plm.datasets.tasks import TASKS, checksum

pytestmark = pytest.mark.backend_neutral
NAME = "wikigold/wikigold.conll.txt"
SHA256 = "c797a64d0cf73ed058363f77671486bcfd413e70fda1726ad4a6ba624455225f"


def resource(name):
    return importlib.resources.files("keras_plm") / "datasets" / "files" / name


def test_shipped_wikigold_equals_the_original(data):
    assert checksum(SHIPPED[NAME]) == checksum(data(NAME))


def test_wikigold_and_its_licence_are_package_resources():
    text = gzip.decompress(resource("wikigold.conll.txt.gz").read_bytes())
    assert hashlib.sha256(text).hexdigest() == SHA256
    licence = resource("LICENSE").read_text(encoding="utf-8")
    for part in ("Balasuriya", "2009", "CC BY 4.0", "creativecommons.org", "entity-recognition"):
        assert part in licence


def test_wikigold_task_needs_no_data_folder():
    parts = {split: TASKS["wikigold"].read(None, split) for split in ("train", "dev", "test")}
    assert [len(part) for part in parts.values()] == [1189, 245, 262]
    assert sum(len(example.text) for part in parts.values() for example in part) == 39_007


def test_data_folder_has_priority_over_shipped_file(tmp_path):
    assert find_file(tmp_path, NAME) == find_file(tmp_path / "none", NAME) == SHIPPED[NAME]
    (tmp_path / "wikigold").mkdir()
    with pytest.raises(ValueError, match="No file .*wikigold.conll.txt .*--data"):
        find_file(tmp_path, NAME)
    own = tmp_path / NAME
    own.write_text("a O\n")
    assert find_file(tmp_path, NAME) == own
    with pytest.raises(ValueError, match="No data folder for sst/trees/dev.txt.* data=None"):
        find_file(None, "sst/trees/dev.txt")


def test_data_command_lists_shipped_files(tmp_path, capsys):
    assert main(["data", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    heading, files = out[out.index("wikigold  ") :].splitlines()[:2]
    assert "CC BY 4.0" in heading
    assert "train, dev, test" in files and f"sha256 {SHA256[:16]}" in files and "shipped" in files
    text = tmp_path / "text.txt"
    command = ["data", "--data", str(tmp_path), "--task", "wikigold", "--text", str(text)]
    assert main(command) == 0 and text.read_text().count("\n") > 1000
