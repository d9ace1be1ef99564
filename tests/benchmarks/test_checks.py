"""Processes that write one folder at the same time lose and mix nothing."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.checks import writers
from benchmarks.checks.writers import KINDS, try_writers

pytestmark = pytest.mark.backend_neutral


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_each_kind_of_folder_is_whole_and_of_one_writer(processes, tmp_path):
    for name, found in try_writers(tmp_path, KINDS, 2, processes).items():
        assert found["errors"] == [], name
        assert found["wrote"] + found["refused"] == 2 * processes and found["wrote"] >= 2, name


def test_the_command_writes_what_it_finds(tmp_path, monkeypatch, capsys):
    def found(folder, names, trials, processes):
        return {name: {"wrote": trials * processes, "errors": []} for name in names}

    monkeypatch.setattr(writers, "try_writers", found)
    out = tmp_path / "found.json"
    assert main(["check", "writers", "--trials", "3", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["kinds"]["word ids"] == {"wrote": 6, "errors": []}
    assert "token stream: 3 trials, 6 wrote" in capsys.readouterr().out
    assert main(["check", "writers", "--trials", "0", "--out", str(out)]) == 2
    assert "`trials` must be 1 or more. Received: 0" in capsys.readouterr().err
