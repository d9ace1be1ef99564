"""Adding a suite or a claim takes one file. `speed/test_command.py` tests measurements."""

import sys

import pytest

from benchmarks import claims, suites
from keras_plm.experiments.config import Run
from keras_plm.experiments.report.sections import sections
from keras_plm.files.writing import write_json

pytestmark = pytest.mark.backend_neutral

SUITE = '''"""A toy suite."""

from benchmarks.suites.registry import Suite, no_figures
from keras_plm.files.writing import write_json

def run(runs, data, results, seeds, progress):
    write_json(results / "toy.json", runs)

def markdown(results):
    return (results / "toy.json").read_text()

SUITES = {
    "toy": Suite(markdown, no_figures, {"small": [1, 2]}, "A paper, table 1", "1999-01", run=run)
}
'''
ROWS = '''"""Toy claims."""

from benchmarks.claims.match import Arm, row

PUBLISHED = "2000-01"
FIELDS = {"method": "features", "layers": "last"}
ROWS = [
    row("toy-t1", Arm("a", "first", "sst5", "a", FIELDS), Arm("b", "first", "sst5", "b", FIELDS),
        "A toy paper, table 1", (2.0, 1.0)),
]
'''


@pytest.fixture
def add(tmp_path, monkeypatch):
    """`add(package, text)` writes a file `toy.py` into a package."""

    def write(package, text):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "toy.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "package")])
        monkeypatch.setattr(package, "toy", None, raising=False)
        found = package.load_all()
        del sys.modules[f"{package.__name__}.toy"]
        return found

    return write


def test_suite_is_added_by_one_file(add, tmp_path, monkeypatch):
    found = add(suites, SUITE)
    assert set(found) == {*suites.SUITES, "toy"} and next(iter(found)) == "toy"  # the oldest
    monkeypatch.setattr(suites, "SUITES", found)
    folder = suites.folder(tmp_path, "toy")
    found["toy"].run(found["toy"].scales["small"], None, folder, 1, print)
    (section,) = sections(tmp_path, "toy", suites=found)
    assert section.text == "[\n 1,\n 2\n]\n" and section.title == "A paper, table 1"


def test_claim_is_added_by_one_row_in_a_file(add, tmp_path, monkeypatch):
    found = add(claims, ROWS)
    assert set(found) == {*claims.CLAIMS, "toy-t1"}
    monkeypatch.setattr(claims, "CLAIMS", {"toy-t1": found["toy-t1"]})
    for name, score in (("a", 0.6), ("b", 0.5)):
        for seed in range(3):
            result = {
                "task": "sst5", "encoder": name, "method": "features", "run": "run", "seed": seed,
                "score": score, "metrics": {"accuracy": score}, "trials": [], "counts": {},
                "settings": Run(method="features", layers="last").to_json(),
            }  # fmt: skip
            write_json(tmp_path / "first" / "sst5" / f"{name}.run.seed{seed}.json", result)
    (verdict,) = claims.verdicts(tmp_path, resamples=1000)
    assert verdict["statement"] == "a > b" and verdict["effect"] == pytest.approx(10)
    assert verdict["verdict"] != "not run"
