"""Packed results read like loose files, which hide them. A stopped packing loses nothing."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.__main__ import main
from keras_plm.experiments.results import (
    Record,
    ResultFolder,
    folders_below,
    packed,
    read_results,
    result_hash,
)
from keras_plm.experiments.results.packed import PackedFiles
from keras_plm.experiments.results.record import NAMES
from tests.keras_plm.experiments.planted_results import name_of, record

pytestmark = pytest.mark.backend_neutral


@pytest.fixture
def kept(tmp_path):
    """Three results with examples, and a file of another kind."""
    kept = ResultFolder(tmp_path / "suite")
    for seed in (0, 2, 10):
        kept.write(name_of(seed), record(seed), {"accuracy": ("mean", np.full((4, 2), seed))})
    kept.file("made").mkdir()
    kept.file("made/x.json").write_text('{"a": 1}')
    kept.file("speed.json").write_text("{}")
    return kept


def content(kept):
    """Returns everything that is read from a folder."""
    names = kept.names()
    examples = [kept.examples(n, kept.json(n).get("hash")) for n in names if ".seed" in n]
    return {n: kept.json(n) for n in names}, [found["accuracy"][1].tolist() for found in examples]


def test_packed_results_read_the_same_and_unpack(kept):
    before = content(kept)
    assert kept.names("*.seed*.json") == [name_of(seed) for seed in (0, 10, 2)]
    assert kept.pack() == (4, 3) and kept.pack() == (0, 0)
    there = {p.relative_to(kept.path).as_posix() for p in kept.path.rglob("*") if p.is_file()}
    assert {name for name in there if ".locks" not in name} == {
        "results.jsonl",
        "examples.zip",
        "speed.json",
    }
    assert content(kept) == before
    assert [r.seed for r in read_results(kept.path, "rte")] == [0, 10, 2]
    assert kept.done(name_of(2), "h2")["tokens"] == 7 and kept.done(name_of(2), "other") is None
    assert name_of(3) not in kept and not kept.has_examples(name_of(3))
    assert kept.unpack() == 4 and not (kept.path / "results.jsonl").exists()
    assert content(kept) == before and kept.file(name_of(10)).is_file()


def test_a_packed_file_opens_in_pandas(kept):
    pandas = pytest.importorskip("pandas")
    kept.pack()
    table = pandas.read_json(kept.path / "results.jsonl", lines=True)
    scores = table[table.task == "rte"].set_index("file").score
    assert scores.to_dict() == {name_of(seed): 0.5 for seed in (0, 2, 10)}
    assert table.settings.str["epochs"].dropna().tolist() == [1, 1, 1]


def test_loose_file_overrides_packed_result(kept):
    kept.pack()
    kept.write(name_of(2), record(2, 0.75, "new"), {"accuracy": ("mean", np.ones((4, 2)))})
    assert kept.record(name_of(2)).score == 0.75
    assert kept.examples(name_of(2), "new2")["accuracy"][1].max() == 1
    archived = [p.name for p in kept.path.glob("rte/*.json.*")]
    assert len(archived) == 1  # the packed one, which has another hash
    lines = (kept.path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 3 and not any(name_of(2) in line for line in lines)
    assert kept.pack() == (1, 1) and kept.record(name_of(2)).score == 0.75


@pytest.mark.parametrize("broken", ["rewrite", "contents"])
def test_interrupted_packing_loses_no_result(kept, monkeypatch, broken):
    before, original, calls = content(kept), getattr(PackedFiles, broken), []

    def stopped(self, *arguments):
        calls.append(1)
        if broken == "rewrite" or len(calls) > 1:  # before or after the packed files are written
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(PackedFiles, broken, stopped)
    with pytest.raises(KeyboardInterrupt):
        kept.pack()
    monkeypatch.undo()
    assert content(kept) == before and kept.file(name_of(0)).is_file()
    assert kept.pack() == (4, 3) and content(kept) == before


def test_damaged_files_and_packed_lines_are_refused(kept):
    kept.file(name_of(4)).write_text("{")
    with pytest.raises(ValueError, match="seed4.json is not a complete result file"):
        kept.pack()
    assert not (kept.path / "results.jsonl").exists() and kept.file(name_of(0)).is_file()
    kept.file(name_of(4)).unlink()
    kept.pack()
    with (kept.path / "results.jsonl").open("a") as file:
        file.write("{half\n")
    with pytest.raises(ValueError, match="results.jsonl:5: A line must be one result"):
        read_results(kept.path)


def test_pack_and_unpack_from_the_command_line(kept, capsys):
    flags = ["--results", str(kept.path.parent)]
    assert main(["pack", *flags]) == 0
    assert "4 records and 3 files of examples packed" in capsys.readouterr().out
    assert [folder.path for folder in folders_below(kept.path.parent)] == [kept.path]
    assert main(["unpack", "suite", *flags]) == 0 and kept.file(name_of(0)).is_file()
    assert main(["pack", "none", *flags]) == 2
    assert "A suite is a folder below" in capsys.readouterr().err


def test_record_documents_its_fields_and_round_trips_as_json():
    for name in (*NAMES, "extra"):
        assert f"\n        {name}: " in Record.__doc__, name
    made = record(3)
    again = Record.from_json(json.loads(json.dumps(made.to_json())))
    assert dict(again) == dict(made) and again.extra == {"tokens": 7} and "trials" not in made
    assert made["commit"] is None and made.get("none", 5) == 5 and {**made}["seed"] == 3
    assert dataclasses.replace(made, score=0.1)["score"] == 0.1
    with pytest.raises(ValueError, match="not the result of a run.*`encoder`.*no such key"):
        Record.from_json({"task": "rte"})
    with pytest.raises(ValueError, match="`score` must be a number or null. Received: Infinity"):
        Record.from_json(made.to_json() | {"score": float("inf")})


def test_the_hash_of_settings_does_not_depend_on_their_order():
    one = result_hash("rte", {"epochs": 1, "reader": "linear"}, 0, "data")
    assert one == result_hash("rte", {"reader": "linear", "epochs": 1}, 0, "data")
    others = [("sst2", {}, 0, "data"), ("rte", {}, 1, "data"), ("rte", {}, 0, "other")]
    assert len({one, result_hash("rte", {}, 0, "data"), *(result_hash(*o) for o in others)}) == 5


def test_unchanged_packed_records_are_parsed_once(kept, monkeypatch):
    kept.pack()
    read, original = [], packed.parse_json
    packed._read_records.cache_clear()
    monkeypatch.setattr(packed, "parse_json", lambda *a, **k: read.append(1) or original(*a, **k))
    assert kept.names() and kept.record(name_of(0)) and len(read) == 4
    assert ResultFolder(kept.path).record(name_of(2)) and len(read) == 4


def test_no_final_newline_loses_no_record(kept):
    kept.pack()
    file = kept.path / "results.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    assert len(read_results(kept.path)) == 3
    kept.write(name_of(3), record(3))
    assert kept.pack() == (1, 0) and len(read_results(kept.path)) == 4


def test_damaged_or_duplicate_line_spares_other_results(kept):
    kept.pack()
    file = kept.path / "results.jsonl"
    whole = file.read_text().splitlines()
    (number,) = [i for i, line in enumerate(whole) if name_of(10) in line]
    doubled = [*whole, whole[number]]
    cut = [line[:60] if i == number else line for i, line in enumerate(whole)]
    for lines, match in (
        (doubled, f"results.jsonl:{len(doubled)}: A result must have one line.*a second line of"),
        (cut, f"results.jsonl:{number + 1}: A line must be one result"),
    ):
        file.write_text("\n".join(lines) + "\n")
        assert name_of(10) in kept and kept.record(name_of(2)).score == 0.5
        for read in (lambda: kept.record(name_of(10)), lambda: read_results(kept.path, "rte")):
            with pytest.raises(ValueError, match=match):
                read()
        kept.write(name_of(3), record(3))
        with pytest.raises(ValueError, match=match):
            kept.pack()  # would rewrite the file
        assert file.read_text().splitlines() == lines and kept.file(name_of(3)).is_file()


def test_archived_result_is_removed_from_packed_files(kept):
    kept.pack()
    kept.write(name_of(2), record(2), {"accuracy": ("mean", np.ones((4, 2)))})  # the same hash
    assert kept.archive(name_of(2)) is not None
    assert name_of(2) not in kept and not kept.has_examples(name_of(2))
    assert [found.seed for found in read_results(kept.path, "rte")] == [0, 10]


def test_packing_refuses_non_objects_and_the_key_file(kept):
    for text in ("[1]", '{"file": "other"}'):
        kept.file("made/y.json").write_text(text)
        with pytest.raises(ValueError, match=r"y.json: A result must be an object without the key"):
            kept.pack()
        assert not (kept.path / "results.jsonl").exists()
