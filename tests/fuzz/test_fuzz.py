"""The fuzzer notices faults, covers every reader, and finds no failure in a short run."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.fuzz.cases import state
from tests.fuzz.outcomes import ALLOWED, of_error
from tests.fuzz.workers import chunks, damage_once, shares

pytestmark = [
    pytest.mark.backend_neutral,
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and limits of memory"),
]

SEED, CASES = 39, 500
PACKAGES = ("keras_plm", "glue_tasks", "benchmarks")
# Calls that read a file. `open` and `load` count only for some modules, or for reading.
CALLS = {"read_text", "read_bytes", "memmap", "fromfile", "safe_open", "load_file", "ZipFile",
         "load_model", "load_weights", "from_preset", "mmap"}  # fmt: skip
MODULES = {"open": {"gzip", "os"}, "load": {"np", "torch", "json"}, "File": {"h5py"}}
# Helpers that open a file of this process, a file of a writer, or a pipe for writing.
WRITING = {"_create", "_holder", "_with_reader"}
# Functions and folders that read only files of the library itself, and why they need no row.
NOT_FUZZED = {
    "benchmarks/checks/": "files of their own runs",
    "benchmarks/model_cards.py": "the encoders of the repository",
    "benchmarks/pages.py": "pages of the repository",
    "benchmarks/speed/measurements/words.py:text": "made by the same measurement",
    "benchmarks/speed/run.py:earlier_results": "what an earlier call wrote",
    "benchmarks/suites/": "encoders of their own runs, and a text that is compared with its own",
    "glue_tasks/__main__.py:main": "/dev/null",
    "keras_plm/__init__.py:_configured_backend": "Keras's own settings",
    "keras_plm/cli/main.py:run_command": "/dev/null",
    "keras_plm/cli/train.py:_check_folder_of_vectors": "the kind of what it would replace",
    "keras_plm/checkpoints/elmo.py:_write": "the hash of what it replaces",
    "keras_plm/experiments/environment.py:peak_memory_mb": "/proc",
    "keras_plm/experiments/pretraining/resumable_fit.py:__init__": "the seconds of an own run",
    "keras_plm/experiments/runner/saved_model.py:hash_in": "the hash of an own model",
    "keras_plm/files/locks.py:_holder": "who writes, for an error",
    "keras_plm/files/opening.py:__init__": "what is compressed, in other cases",
    "keras_plm/files/writing.py:_with_reader": "a pipe to write to",
    "keras_plm/tokenizers/text.py:_undecodable": "read again after an error",
    "keras_plm/training/half_precision.py:_processor_has_bfloat16": "/proc",
    "keras_plm/transfer/_feature_files.py:_reserved": "maps what it has just made",
}


def readers():
    from tests.fuzz.readers import READERS

    return READERS


def name_of(call):
    """Returns the name of the called function and of the module or object before it."""
    if isinstance(call.func, ast.Name):
        return call.func.id, None
    if isinstance(call.func, ast.Attribute):
        before = call.func.value
        return call.func.attr, before.id if isinstance(before, ast.Name) else ""
    return "", None


def reads(call, helpers):
    """Returns whether a call reads a file."""
    name, before = name_of(call)
    modes = [a.value for a in call.args[1:2] if isinstance(a, ast.Constant)]
    if name in ("open", "File", "ZipFile") and any(str(mode)[0] in "wax" for mode in modes):
        return False
    if name == "open" and before is None:
        return True
    if name in MODULES and before is not None:
        return before in MODULES[name]
    return name in CALLS or (name in helpers and before is None)


def functions(path, helpers=()):
    """Returns the names of the functions of a module that read files."""
    found = set()

    def visit(node, name):
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.Call) and name and reads(node, helpers):
            found.add(name)
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(ast.parse(path.read_text()), "")
    return found


def reading_functions():
    """Returns `"file:function"` of all functions of the product that read files.

    Callers of reading helpers in `keras_plm/files/` and `tokenizers/text.py` are included.
    """
    shared = [*(ROOT / "keras_plm" / "files").glob("*.py"), ROOT / "keras_plm/tokenizers/text.py"]
    helpers = set()
    while True:
        more = {name for path in shared for name in functions(path, helpers)} - WRITING
        if more <= helpers:
            break
        helpers |= more
    paths = [path for top in PACKAGES for path in (ROOT / top).rglob("*.py")]
    return {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for path in paths
        for name in functions(path, helpers)
    }


def command(*flags, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    line = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *map(str, flags)]
    return subprocess.Popen(line, cwd=ROOT, env=environment, text=True, **options)


def test_valid_inputs_reach_every_reading_function(tmp_path):
    called, wrong = set(), {}
    tops = tuple(f"{ROOT}/{top}/" for top in PACKAGES)

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(tops):
            called.add(f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_name}")

    for reader in readers():
        folder = tmp_path / reader.name
        reader.make(folder)
        if reader.gz == "always":
            continue
        before = state(folder)
        # Tables of suites call small functions millions of times, and read no file themselves.
        sys.settrace(None if reader.name.startswith("suite_") else note)
        try:
            found = reader.judge(folder)
        finally:
            sys.settrace(None)
        if found is not None or (state(folder) != before and not reader.leaves):
            wrong[reader.name] = found or "files changed"
    assert not wrong
    not_called = reading_functions() - called
    exempt = {name: {n for n in not_called if n.startswith(name)} for name in NOT_FUZZED}
    missing = not_called.difference(*exempt.values())
    assert not missing, "these read files: give them a row in tests/fuzz/readers"
    assert all(exempt.values()), "these need no exception"


def test_damage_depends_only_on_seed_reader_and_case(tmp_path):
    found = []
    for time_ in ("first", "second"):
        for reader in [r for r in readers() if r.name in ("csv", "own_BERT", "examples")]:
            for number in range(20):
                folder = tmp_path / time_ / f"{reader.name}{number}"
                reader.make(folder)
                how = damage_once(reader, 3, number, folder)
                files = sorted(path for path in folder.rglob("*") if path.is_file())
                plain = [path.read_bytes() for path in files if not path.is_symlink()]
                found.append((how, plain if "huge" not in how else None))
                shutil.rmtree(folder)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
    assert len({how for how, _ in found}) > 20


def test_each_case_is_run_once():
    for cases in (1, 500, 5000):
        found = [case for chunk in chunks(readers(), (39, 40), cases) for case in chunk]
        assert len(found) == 2 * max(cases, len(readers()))
        assert len({(reader.name, seed, number) for reader, seed, number in found}) == len(found)


def test_cases_are_distributed_over_all_readers():
    counts = shares(readers(), 2000)
    assert sum(counts.values()) == 2000 and min(counts.values()) >= 1
    assert counts["csv"] > counts["own_BERT"] > counts["suite_gpt"]


@pytest.mark.parametrize(
    "error, outcome",
    [
        (ValueError("/in/x.csv:3: A rule. Received: 5"), "clear"),
        (ValueError("A rule. Received: 5"), "unnamed"),
        (ValueError("/in/x.csv:3: A rule. Received: 'int' object is not iterable"), "raw"),
        (ValueError("math domain error"), "raw"),
        (KeyError("/in/x.csv"), "raw"),
        (UnicodeDecodeError("utf-8", b"x.csv", 0, 1, "x.csv"), "raw"),
        (FileNotFoundError(2, "No such file", "/in/x.csv"), "clear"),
        (OSError(22, "Invalid argument"), "raw"),
        (MemoryError(), "memory"),
        (RecursionError("/in/x.csv"), "raw"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_errors_are_classified(error, outcome):
    assert of_error(error, ["/in", "x.csv"])[0] == outcome


FAULTS = """
import os, sys, time
from pathlib import Path
from tests.fuzz import cases, workers
from tests.fuzz.cases import Reader

cases.COMPUTING, cases.MEMORY = 3, 100 << 20
workers.ASLEEP = workers.GRACE = 2

def computing(folder):
    while True:
        pass

def held(folder):
    try:
        time.sleep(1000)
    finally:
        time.sleep(1000)

def raising(error):
    def read(folder):
        raise error
    return read

READS = {
    "ok": lambda folder: None,
    "clear": raising(ValueError("x.txt: A rule. Received: 5")),
    "raw": raising(IndexError("list index out of range")),
    "litter": lambda folder: (folder / "more").touch(),
    "changed": lambda folder: (folder / "y.txt").write_text("else"),
    "escape": lambda folder: (folder.parent / "more").touch(),
    "working": lambda folder: Path("more").touch(),
    "exec": lambda folder: os.system("touch executed"),
    "crash": lambda folder: os.abort(),
    "ended": lambda folder: os._exit(0),
    "computing": computing,
    "waiting": lambda folder: time.sleep(1000),
    "fifo": lambda folder: os.mkfifo(folder / "f") or open(folder / "f"),
    "held": held,
    "refused": lambda folder: bytearray(8 << 30),
    "much": lambda folder: bytearray(200 << 20).count(1),
    "wrong": lambda folder: 1,
}
files = {"x.txt": "text", "y.txt": "text"}
readers = [
    Reader(name, files, read, {"x.txt": "text"}, lambda folder, found: found and "wrong")
    if name == "wrong" else Reader(name, files, read, {"x.txt": "text"})
    for name, read in READS.items()
]
workers.run(readers, [1], 2 * len(readers), Path(sys.argv[1]), 4,
            lambda found: print(found["reader"], found["outcome"]))
"""
EXPECTED = {
    "ok": "ok", "clear": "clear", "raw": "raw", "litter": "litter", "changed": "litter",
    "escape": "escape", "working": "escape", "exec": "exec", "crash": "crash", "ended": "crash",
    "computing": "hang", "waiting": "hang", "fifo": "hang", "held": "hang", "refused": "memory",
    "much": "memory", "wrong": "wrong",
}  # fmt: skip


def test_workers_notice_each_outcome(tmp_path):
    line = [sys.executable, "-W", "ignore", "-c", FAULTS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert sorted(found) == sorted((name, o) for name, o in EXPECTED.items() for _ in range(2))


def test_interrupted_run_writes_its_findings(tmp_path):
    out = tmp_path / "found.json"
    flags = ("--reader", "csv,tsv", "--cases", 10**6, "--every", 0.1, "--out", out)
    process = command(*flags, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while not out.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown = process.communicate()[0]
    found = json.loads(out.read_text())
    assert process.returncode == 130
    assert found["cases"] == sum(sum(counts.values()) for counts in found["outcomes"].values()) > 0
    assert shown.startswith("reader")


def test_readers_accept_or_refuse_damaged_files(tmp_path):
    out = tmp_path / "found.json"
    flags = ("--seed", SEED, "--cases", CASES, "--out", out)
    process = command(*flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = process.communicate()
    assert out.is_file(), errors
    found = json.loads(out.read_text())
    assert found["cases"] == CASES
    failures = [
        f"{f['outcome']} {f['signature']} [{f['damage']}]\n    KERAS_BACKEND=torch python -m "
        f"tests.fuzz --reader {f['reader']} --seed {f['seed']} --case {f['case']} --show"
        for f in found["failures"]
    ]
    assert not failures, "\n".join([f"{len(failures)} failures", *failures])
    assert process.returncode == 0
    counts = [outcome for of_reader in found["outcomes"].values() for outcome in of_reader]
    assert set(counts) <= set(ALLOWED)
