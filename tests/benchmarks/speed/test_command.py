"""The command `speed`: flags, result files, new and failing measurements."""

import json
import re
import runpy
import sys

import pytest

from benchmarks.__main__ import main
from benchmarks.speed import measurements, registry
from benchmarks.speed.registry import MEASUREMENTS, cases
from benchmarks.speed.settings import SpeedSettings
from benchmarks.speed.tables import speed_markdown, speed_tables
from tests import ROOT
from tests.benchmarks.speed.timing import timed


@pytest.mark.backend_neutral
@pytest.mark.parametrize(
    "flags, match",
    [
        (["--shapes", "8x12x512"], "`shapes` must be four numbers"),
        (["--shapes", "8x12x512x0"], "Received: '8x12x512x0'"),
        (["--elmos", "large"], "`elmos` must be of tiny, mini, small"),
        (["--translators", "mini"], "`translators` must be of tiny, small"),
        (["--written", "0"], "`written` must be a whole number, 1 or more"),
        (["--words", "50"], "`words` must be a whole number, 2000 or more"),
        (["--sizes", "tiny,minni"], r"`sizes` must be of .*'minni'"),
        (["--work", "train,infr"], r"`work` must be of .*'infr'"),
        (["--repeats", "0"], "`repeats` must be a whole number, 1 or more"),
        (["--length", "1024"], "`length` must be .* at most 512"),
    ],
)
def test_speed_refuses_bad_flags_before_timing(flags, match, capsys):
    assert main(["speed", *flags]) == 2
    assert re.search(match, capsys.readouterr().err)


@pytest.mark.backend_neutral
def test_speed_files_of_earlier_versions_are_read():
    old = json.loads((ROOT / "benchmarks" / "results" / "speed.json").read_text())
    assert SpeedSettings(**old["settings"]).repeats == old["settings"]["repeats"]
    assert speed_markdown(ROOT / "benchmarks" / "results" / "speed.json").count("\n") == 13


TOY = '''"""A toy measurement."""

from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement


@measurement(suite=Suite("toy", "Speed: Toys", {"repeats": 2}), unit="sums", peak_memory=True)
def toy_sums(settings, inputs):
    """Sums of numbers."""
    numbers = list(range(settings.words))

    def absent():
        raise ImportError("not installed")

    implementations = {
        "absent": absent,
        "loop": lambda: lambda: [sum([n]) for n in numbers[: len(numbers) // 2]],
        "keras_plm": lambda: lambda: sum(numbers),
    }
    peers = {"keras_plm": ("loop", "absent")}
    return Comparison(implementations, 1, peers, fractions={"loop": 1 / 2})


@measurement(
    suite=Suite("large", "Speed: Large toys", {}), unit="sums",
    cases=lambda settings: {f"toy_products of {size}": {"size": size} for size in "abc"},
)  # fmt: skip
def toy_products(settings, inputs, size):
    """Products that do not fit."""

    def large():
        raise {"a": RuntimeError, "b": MemoryError, "c": RuntimeError}[size]("out of memory\\nmore")

    if size == "c":
        large()
    others = {"loop": lambda: lambda: None} if size == "b" else {}
    return Comparison({"keras_plm": large, **others}, 1, {})
'''


@pytest.mark.full
@pytest.mark.backend_neutral
def test_measurement_is_added_by_one_file(tmp_path, monkeypatch, capsys):
    """A new file of the package is found, runs by name and suite, and appears in a table."""
    monkeypatch.setattr(registry, "MEASUREMENTS", MEASUREMENTS | {})
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(measurements, "__path__", [*measurements.__path__, str(tmp_path)])
    monkeypatch.setattr("benchmarks.speed.run.peak_of", lambda *arguments: 123.0)
    monkeypatch.setattr("benchmarks.speed.settings.MEASUREMENTS", registry.MEASUREMENTS)
    measurements.load_all()
    del sys.modules["benchmarks.speed.measurements.toy"]
    results, table = timed(tmp_path, ["--suite", "toy", "--words", "2000"])
    assert "absent left out: not installed" in capsys.readouterr().out
    rows = results["toy_sums"]["implementations"]
    assert list(rows) == ["loop", "keras_plm"] and len(rows["loop"]["seconds"]) == 2
    assert rows["keras_plm"]["ratios"].keys() == {"loop"} and rows["loop"]["peak_mb"] == 123.0
    assert "| toy_sums: sums | loop |" in table
    flags = ["speed", "--work", "toy_products,toy_sums", "--words", "2000"]
    assert main([*flags, "--out", str(tmp_path / "other.json")]) == 2
    shown = capsys.readouterr()
    assert "keras_plm left out: out of memory\n" in shown.out
    names = ("toy_products of a (keras_plm)", "toy_products of b (keras_plm)", "toy_products of c")
    assert f"Received: 3 that failed, {', '.join(names)}" in shown.err
    others = json.loads((tmp_path / "other.json").read_text())["results"]
    assert list(others) == ["toy_products of b", "toy_sums"]
    assert list(others["toy_products of b"]["implementations"]) == ["loop"]
    (tmp_path / "speed.json").rename(tmp_path / "speed_toy.torch.json")
    assert speed_tables(tmp_path) == {"speed_toy": table}
    with pytest.raises(ValueError, match="unique. Received: 'toy_sums' twice"):
        runpy.run_path(str(tmp_path / "toy.py"))


@pytest.mark.backend_neutral
def test_case_names_are_unique_across_measurements():
    """The only exception is ELMo on a GPU, which has the cases of `bilm`."""
    names = [name for name in MEASUREMENTS if name != "gpu_elmo"]
    count = sum(len(MEASUREMENTS[name].cases(SpeedSettings())) for name in names)
    assert len(cases(SpeedSettings(work=",".join(names)))) == count > len(names)
