"""Result files: damage, odd records, several processes, kills and full disks."""

import csv
import dataclasses
import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from benchmarks.checks.processes import kill_at_each_call
from keras_plm.cli.main import main
from keras_plm.experiments.report import costs
from keras_plm.experiments.report.result_tables import markdown, of_runs
from keras_plm.experiments.report.sections import section_of_runs
from keras_plm.experiments.report.tables import Table, cell, file_name
from keras_plm.experiments.results import ResultFolder, packed, read_results
from tests.keras_plm.experiments.planted_results import name_of, put, record

pytestmark = pytest.mark.backend_neutral


@pytest.fixture
def kept(tmp_path):
    kept = ResultFolder(tmp_path / "suite")
    for seed in range(2):
        kept.write(name_of(seed), record(seed), {"accuracy": ("mean", np.ones((4, 2)))})
    return kept


def change(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"score": float("nan")}, "`score` must be a number or null. Received: NaN"),
        ({"score": 10**400}, "`score` must be a number"),
        ({"seed": -1}, "`seed` must be a whole number"),
        ({"seconds": "9"}, "`seconds` must be a number or null"),
        ({"versions": ["keras"]}, "`versions` must be an object or null"),
        ({"counts": {"train": 1.5}}, "`counts.train` must be a whole number"),
        ({"inputs": 3}, "`inputs` must be text or a list or null"),
        ({"task": ["rte"]}, "`task` must be text"),
    ],
)
def test_record_with_wrong_types_is_refused(kept, keys, match):
    change(kept.file(name_of(0)), **keys)
    for read in (kept.record, lambda name: read_results(kept.path)):
        with pytest.raises(ValueError, match=f"seed0.json: .*{match}"):
            read(name_of(0))


@pytest.mark.parametrize("layers", [["last"], 3, None])
def test_settings_with_wrong_types_are_refused(tmp_path, layers):
    path = put(tmp_path, "mine", "sst2", "features", 0.8, 0)
    found = json.loads(path.read_text())
    change(path, settings=found["settings"] | {"layers": layers})
    with pytest.raises(ValueError, match="`layers` must be text"):
        read_results(tmp_path / "mine")


@pytest.mark.parametrize("content", [b"[" * 9999, b"\xff\xfe{", b'{"a": 1', b"1" * 5000])
def test_damaged_json_is_named(kept, content):
    kept.file(name_of(0)).write_bytes(content)
    with pytest.raises(ValueError, match="seed0.json is not a complete result file: remove it"):
        kept.record(name_of(0))


def test_pipes_and_links_to_devices_are_named(kept):
    kept.file(name_of(0)).unlink()
    os.mkfifo(kept.file(name_of(0)))
    with pytest.raises(ValueError, match="must be a regular file. Received: a named pipe"):
        kept.json(name_of(0))
    os.symlink("/dev/zero", kept.path / "results.jsonl")
    with pytest.raises(ValueError, match=r"results.jsonl must be a regular file"):
        kept.names()


@pytest.mark.parametrize("name", ["../out.json", "/tmp/out.json", "a/../../out.json", "a\\b.json"])
def test_packed_names_outside_their_folder_are_refused(tmp_path, name):
    kept = ResultFolder(tmp_path / "suite")
    kept.path.mkdir()
    line = json.dumps({"file": name} | record(0).to_json())
    (kept.path / "results.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"results.jsonl:1: .*below the folder"):
        kept.unpack()
    with zipfile.ZipFile(kept.path / "examples.zip", "w") as archive:
        archive.writestr(name.replace(".json", ".npz"), b"")
    with pytest.raises(ValueError, match="below the folder only"):
        kept.has_examples(name_of(0))
    assert [path.name for path in tmp_path.iterdir()] == ["suite"]


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"nothing", "must be a whole .npz file"),
        (npz(hash=np.array("h0"))[:-30], "must be a whole .npz file"),
        (npz(**{"accuracy.mean": np.ones(3)}), "must hold a hash and numbers"),
        (npz(**{"hash": np.array("h0"), "a.mean": np.array(["x"])}), "a hash and numbers"),
        (npz(**{"hash": np.array("h0"), "a.mean": np.ones((3, 2, 1))}), "a row for each example"),
        (npz(hash=np.array("h0"), bomb=np.zeros(1 << 22)), "must not expand"),
        (npz(hash=np.array(["h0", None], object)), "must hold numbers"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_examples_are_named(kept, content, match, packed):
    path = kept.file(name_of(0)).with_suffix(".npz")
    path.write_bytes(content)
    if packed:
        kept.pack()
    with pytest.raises(ValueError, match=f"{kept.path}.*{match}"):
        kept.examples(name_of(0), "h0")


def test_a_damaged_zip_file_is_named(kept):
    kept.pack()
    path = kept.path / "examples.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"examples.zip must be a whole ZIP file"):
        kept.examples(name_of(0), "h0")
    flipped = bytearray(whole)
    flipped[len(whole) // 4] ^= 255
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"examples.zip"):
        [kept.examples(name_of(seed), f"h{seed}") for seed in range(2)]


class TestOddRecords:
    """Valid records that are not runs: an error names them, and the others are shown."""

    @pytest.fixture
    def odd(self, tmp_path):
        put(tmp_path, "mine", "sst2", "fine_tune", 0.8, 0)
        put(tmp_path, "mine", "sst2", "features", 0.7, 0)
        change(put(tmp_path, "mine", "rte", "fine_tune", 0.6, 0), score=None)
        change(put(tmp_path, "mine", "ner", "fine_tune", 0.6, 0), metrics={})
        change(put(tmp_path, "mine", "wnli", "fine_tune", 0.6, 0), method="other")
        change(put(tmp_path, "mine", "cola", "fine_tune", 0.6, 0), seconds=None, trials=None)
        return tmp_path / "mine"

    def test_tables_leave_out_odd_records(self, odd):
        shown, left_out = of_runs(read_results(odd))
        assert {r["task"] for r in shown} == {"sst2", "cola"}
        assert [why.split(" is not a result")[0].split(" has no ")[0] for why in left_out] == [
            str(odd / task / "mini.fine_tune.seed0.json") for task in ("ner", "rte", "wnli")
        ]
        assert "sst2" in markdown(shown)
        with pytest.raises(ValueError, match="rte/mini.fine_tune.seed0.json is not a result"):
            of_runs(read_results(odd, "rte"))

    def test_run_with_differing_seeds_is_left_out(self, tmp_path):
        put(tmp_path, "mine", "sst2", "fine_tune", 0.8, 0)
        put(tmp_path, "mine", "rte", "fine_tune", 0.8, 0)
        put(tmp_path, "mine", "rte", "fine_tune", 0.8, 1)
        path = put(tmp_path, "mine", "rte", "fine_tune", 0.8, 2)
        found = json.loads(path.read_text())
        change(path, settings=found["settings"] | {"epochs": 9})
        section = section_of_runs(tmp_path / "mine")
        assert "sst2" in section.text and "rte" not in section.text
        assert (
            "Seeds of one run share settings" in section.left_out and str(path) in section.left_out
        )

    def test_section_reports_odd_records(self, odd, tmp_path):
        section = section_of_runs(odd)
        assert "sst2" in section.text and all(t in section.left_out for t in ("rte", "ner", "wnli"))
        priced, unpriced = costs.priced(odd)
        assert {r["task"] for r in priced} == {"sst2", "rte", "ner", "wnli"}
        assert [path.parent.name for path in unpriced] == ["cola"]
        assert costs.costs(priced) and costs.where({"mine": odd})
        costs.cost_figures(priced)

    def test_report_command_lists_odd_records(self, odd, capsys):
        assert main(["report", "--results", str(odd)]) == 0
        shown = capsys.readouterr()
        assert "sst2" in shown.out and "rte/mini.fine_tune.seed0.json" in shown.err
        flags = ["--html", str(odd.parent / "p.html"), "--markdown", str(odd.parent / "p.md")]
        assert main(["report", "--results", str(odd), *flags]) == 0
        assert "left out" in capsys.readouterr().err


def test_seconds_of_seeds_may_differ(tmp_path):
    for seed in range(3):
        path = put(tmp_path, "mine", "sst2", "fine_tune", 0.8, seed)
        trials = [{"learning_rate": 1e-3, "dev_score": 0.5, "seconds": float(seed)}]
        change(path, seconds=seed, trials=trials, peak_mb=seed, commit=str(seed))
    assert "(3)" in markdown(read_results(tmp_path / "mine"))


FORMULAS = ["=1+1", "+SUM(A1)", "-2+cmd|' /C calc'!A0", "@x", "\t=1", "\r=1", " =1"]
NUMBERS = [
    "-27.1 [-34.1, +0.1]",
    "-6.4 (-6.4)",
    "-0.5",
    "+1.2",
    "-0.3 to +0.5",
    "-1.5 ± 0.2",
    "-2 %",
    "1",
    "",
    "a=b",
    "−3",
]


def test_csv_escapes_spreadsheet_formulas():
    texts = FORMULAS + NUMBERS
    table = Table(("=a", "+b"), tuple((text, text) for text in texts), (False, False))
    head, *rows = table.csv().split("\n", 1)
    assert head == "'=a,'+b"
    found = [row[0] for row in csv.reader(io.StringIO(rows[0], newline="")) if row]
    assert found[: len(FORMULAS)] == [f"'{text}".replace("\r", " ") for text in FORMULAS]
    assert found[len(FORMULAS) :] == NUMBERS


EVIL = "<script>alert(1)</script>|[x](javascript:alert(1))[bold]$\\frac$"


def test_report_escapes_markup_and_paths_in_names(tmp_path, capsys):
    """Tests names that are Markdown, HTML, TeX formulas or paths."""
    for method, seed in (("fine_tune", 0), ("features", 0), ("scratch", 0), ("features", 1)):
        path = put(tmp_path, "mine", "sst2", method, 0.5, seed)
        change(path, task=EVIL + "/../../x", encoder="=" + EVIL, device=EVIL)
    out = tmp_path / "out"
    flags = ["--html", str(out / "p.html"), "--markdown", str(out / "p.md")]
    flags += ["--tables", str(out / "tables"), "--plots", str(out / "plots")]
    assert main(["report", "--results", str(tmp_path / "mine"), *flags]) == 0
    capsys.readouterr()
    for name in ("p.html", "p.md"):
        text = (out / name).read_text()
        assert "<script>alert" not in text, name
    assert "](javascript" not in text.replace("\\]", "") and "x\\](" in text
    assert {path.name for path in out.iterdir()} == {"p.html", "p.md", "tables", "plots"}
    assert all(path.is_file() for path in [*(out / "plots").iterdir(), *(out / "tables").iterdir()])
    main(["report", "--results", str(tmp_path / "mine")])
    assert "[bold]" in capsys.readouterr().out.replace("\\", "")


def test_cells_and_file_names_are_escaped():
    assert cell("[x](y)<b>") == "\\[x\\](y)\\<b\\>"
    assert file_name("../a b/c") == "_a_b_c" and file_name("..") == "_"
    assert file_name("cost.mine.sst2") == "cost.mine.sst2"


def test_progress_shows_brackets_unchanged(capsys):
    from keras_plm.experiments.progress import console, progress_bar

    with progress_bar("a", 1) as advance:
        advance("folder[x]/file[/y] [bold]z")
    assert capsys.readouterr().out == "folder[x]/file[/y] [bold]z\n"
    assert not console._markup


# ---- several processes, kills, full disks

SETUP = """
import dataclasses
import numpy as np
from keras_plm.experiments.results import Record, ResultFolder, result_name
kept = ResultFolder("suite")

def record(seed, epochs, score):
    about = Record("rte", "bert", "fine_tune", "fine_tune", {"epochs": epochs}, seed)
    return dataclasses.replace(
        about, score=score, metrics={"accuracy": score}, hash=f"{epochs} {seed}"
    )

def write(seed, epochs, score):
    name = result_name("rte", "bert", "fine_tune", seed)
    parts = {"accuracy": ("mean", np.full((50, 2), score))}
    with kept.changing():
        for other in kept.names("rte/*.seed*.json"):
            if kept.json(other)["settings"] != {"epochs": epochs}:
                kept.archive(other)
        kept.write(name, record(seed, epochs, score), parts)

def check():
    found = [kept.record(name) for name in kept.names("*.seed*.json")]
    assert len({str(r.settings) for r in found}) == 1, found
    for r in found:
        name = result_name("rte", "bert", "fine_tune", r.seed)
        assert (kept.examples(name, r.hash)["accuracy"][1] == r.score).all()
"""


@pytest.mark.full
def test_results_of_killed_process_are_complete_or_missing(tmp_path):
    begin, copies = tmp_path / "begin", tmp_path / "copies"
    begin.mkdir()
    copies.mkdir()
    after = """
if kept.names("*.seed*.json"):
    found = kept.record("rte/bert.fine_tune.seed0.json")
    assert found.score in (0.5, 0.25)
    examples = kept.examples("rte/bert.fine_tune.seed0.json", found.hash)
    assert examples is None or (examples["accuracy"][1] == found.score).all()
write(0, 2, 0.25)
check()
"""
    code = "write(0, 1, 0.5); write(0, 2, 0.25)"
    assert len(kill_at_each_call(code, begin, copies, SETUP, after)) > 4


def test_writer_waits_for_another_writer_of_same_result(kept):
    """The lock of a dead process is free. A call reports the lock of a thread and waits for it."""
    import threading

    begun, end, said = threading.Event(), threading.Event(), []

    def hold():
        with kept.one_writer(name_of(0)):
            begun.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()

    def say(line):
        said.append(line)
        end.set()

    with kept.one_writer(name_of(0), say):
        pass
    thread.join()
    assert "another process that computes this result" in said[0]
    with kept.one_writer(name_of(1), pytest.fail):  # no process holds it
        pass


FULL = """
import resource, sys
from keras_plm.experiments.results import ResultFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
ResultFolder(sys.argv[1]).try_to_write("rte/x.seed0.json")
"""


@pytest.mark.full
def test_try_to_write_reports_full_disk(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "OSError" in last and f"{tmp_path / 'r' / 'rte'} must be a folder with room" in last
    assert "Nothing was computed. Received: File too large" in last


def test_unwritable_results_folder_stops_a_run_before_training(tmp_path, monkeypatch):
    from keras_plm.experiments.config import Run
    from keras_plm.experiments.runner import Runner

    (tmp_path / "results").write_text("a file")
    runner = object.__new__(Runner)
    runner.kept, runner.models = ResultFolder(tmp_path / "results"), None
    runner.say = print
    monkeypatch.setattr(Runner, "result", lambda *_: None)
    monkeypatch.setattr(Runner, "result_name", lambda *_: "rte/x.seed0.json")
    monkeypatch.setattr(Runner, "_check", lambda *_: None)
    with pytest.raises(OSError, match="must be a folder with room.*Nothing was computed"):
        runner.run(Run(), 0)


def test_nan_in_extra_fields_survives_packing(kept):
    made = dataclasses.replace(record(5), extra={"losses": [float("nan"), 1.0]})
    kept.write(name_of(5), made)
    assert str(kept.record(name_of(5))["losses"]) == "[nan, 1.0]"
    kept.pack()
    packed._read_records.cache_clear()
    assert str(kept.record(name_of(5))["losses"]) == "[nan, 1.0]"
