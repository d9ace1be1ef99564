"""Readers of results: records, examples, the report, the page, claims, plans and suites."""

import csv
import io
import json
import math
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.claims import verdicts
from benchmarks.report import page_of
from benchmarks.suites import SUITES
from keras_plm.experiments.plan import measured
from keras_plm.experiments.report import costs, edge_probes
from keras_plm.experiments.report.edge_probes import read_counts, read_records
from keras_plm.experiments.report.page import write as write_page
from keras_plm.experiments.report.result_tables import markdown, of_runs
from keras_plm.experiments.results import ResultFolder, read_results
from keras_plm.files.opening import read_bytes
from tests import ROOT
from tests.fuzz.cases import Reader, write_files

COMMITTED = ROOT / "benchmarks" / "results"
SETTINGS = {
    "method": "fine_tune", "layers": "", "reader": "linear", "pool": "mean",
    "learning_rates": "1e-4", "epochs": 1, "batch_size": 32, "dropout": 0.1, "train_limit": 0,
    "precision": "float32",
}  # fmt: skip
TRIAL = {"learning_rate": 1e-4, "dev_score": 0.8, "best_epoch": 1, "seconds": 1.0}


def record(seed=0, task="sst2", layers=""):
    """Returns the record of one run as a JSON object."""
    method = "features" if layers else "fine_tune"
    return {
        "task": task, "encoder": "bert_mini", "method": method,
        "run": f"features-linear-{layers}" if layers else method,
        "settings": SETTINGS | {"method": method, "layers": layers}, "seed": seed,
        "learning_rate": 1e-4, "trials": [TRIAL], "dev_score": 0.8, "score": 0.8 + seed / 100,
        "metrics": {"accuracy": 0.8 + seed / 100},
        "counts": {"train": 100, "dev": 10, "test": 10, "labels": 2},
        "curve": {"updates": [1], "dev_scores": [0.8]}, "seconds": 2.5, "encoder_passes": 1,
        "learned_weights": 100, "feature_bytes": 0, "peak_mb": 300, "backend": "torch",
        "device": "cpu", "versions": {"keras": "3"}, "commit": "abc", "hash": "h", "inputs": "i",
    }  # fmt: skip


RECORDS = {
    **{f"sst2/bert_mini.fine_tune.seed{i}.json": record(i) for i in range(2)},
    **{f"sst2/bert_mini.features-linear-{layers}.seed0.json": record(layers=layers)
       for layers in ("layer_0", "layer_1", "last")},
    "rte/bert_mini.fine_tune.seed0.json": record(task="rte"),
}  # fmt: skip
LOOSE = {f"mine/{name}": json.dumps(found) for name, found in RECORDS.items()}
PACKED = {
    "mine/results.jsonl": "".join(
        json.dumps({"file": name} | found) + "\n" for name, found in RECORDS.items()
    )
}
OF_LOOSE = {f"mine/{name}": "json" for name in (*list(RECORDS)[:1], *list(RECORDS)[4:5])}
OF_PACKED = {"mine/results.jsonl": "jsonl"}
EXAMPLES = {"accuracy": ("mean", np.ones((10, 2), "f4")), "f1": ("f1", np.ones((10, 3), "i4"))}

# ---- checks


def harmless(html, tables):
    """Checks that a page has no script and a table no formula."""
    if "<script>alert" in html:
        return "a script of a result in the page"
    for text in tables:
        csv.field_size_limit(1 << 30)
        for row in csv.reader(io.StringIO(text)):
            if any(re.match(r"[=@\t\r]|[+-](?![\d.]|$| |inf)", cell) for cell in row):
                return "a formula of a result in a table"
    return None


def still_shown(folder, found):
    """Checks that a damaged result leaves the other task on the page."""
    if isinstance(found, str):
        return f"a page that is not made for one damaged file: {found}"
    html, tables = found
    return harmless(html, tables) or (None if "rte" in html else "a page without the other task")


# ---- records and tables


def whole_page(folder):
    """Makes HTML, Markdown and tables of all results."""
    import matplotlib.pyplot as plt

    with tempfile.TemporaryDirectory() as other:
        out = Path(other)
        try:
            page = page_of(folder)
            write_page(page, out / "p.html", out / "p.md", out / "t")
        finally:
            plt.close("all")
        tables = [path.read_text() for path in sorted((out / "t").glob("*.csv"))]
        return (out / "p.html").read_text(), tables


def page_or_error(folder):
    try:
        return whole_page(folder)
    except (ValueError, OSError) as error:
        return str(error)


def one_record(folder):
    kept = ResultFolder(folder)
    return kept.done("t/r.json", "h"), kept.record("t/r.json")


def same_record(folder, found):
    """Checks that a record equals the content of its file."""
    path = folder / "t" / "r.json"
    text = (path if path.exists() else folder / "results.jsonl").read_bytes().decode()
    if not path.exists():  # damaged lines next to it are named and skipped
        text = next(line for line in text.split("\n") if line.startswith('{"file": "t/r.json"'))
    right = json.loads(text)
    read = found[1].to_json()
    wrong = [key for key, value in read.items() if right.get(key) != value]
    if wrong:
        return f"{wrong[0]} that is not the file's"
    score = read["score"]
    if score is not None and not math.isfinite(score):
        return f"the score {score}"
    return None


def archived(folder):
    """Writes an older record under another name."""
    before = read_bytes(folder / "t" / "r.json")
    path = ResultFolder(folder).archive("t/r.json")
    return before, path.read_bytes()


def table(folder):
    return markdown(of_runs(read_results(folder / "mine"))[0])


def plan_and_costs(folder):
    results = [found for found in costs.measured(folder) if {"score", "method"} <= found.keys()]
    costs.strays(folder)
    costs.failed(folder / "mine")
    return measured(folder), costs.where({"mine": folder / "mine"}), costs.costs(results)


FAILED = {"mine/rte/bert_mini.scratch.failed": json.dumps({"error": "ValueError: x"})}

EDGES = {
    "key": "k",
    "task": "roles",
    "random": False,
    "layers": [0.5, 0.6],
    "cumulative": [0.5, 0.6],
    "expected_layer": 1.0,
    "centre_of_gravity": 0.5,
}

COUNTS = np.array([[[1, 2, 2], [1, 2, 2]], [[1, 2, 1], [2, 3, 4]]])


def write_edges(folder):
    edge_probes.write(folder / "e.json", [EDGES], {"k": dict.fromkeys(edge_probes.PROBES, COUNTS)})


def same_scores(folder, found):
    """Checks that the counts give the scores of the record."""
    for counts in (found[key]["layers"] for key in found):
        right, true, predicted = counts.astype("float64").sum(axis=1).T
        if not np.allclose(2 * right / (true + predicted), EDGES["layers"]):
            return "counts of other scores"
    return None


TABLES = [
    Reader("edge_probing", {"e.json": json.dumps([EDGES])}, lambda f: read_records(f / "e.json"),
           {"e.json": "json"}, lambda f, found: None, 0.3),
    Reader("edge_counts", write_edges, lambda f: read_counts(f / "e.json", [EDGES]),
           {"e.npz": "zip"}, same_scores),
    Reader("record", {"t/r.json": json.dumps(record())}, one_record, {"t/r.json": "json"},
           same_record, 0.6),
    Reader("record_packed", {"results.jsonl": json.dumps({"file": "t/r.json"} | record()) + "\n"},
           one_record, {"results.jsonl": "jsonl"}, same_record, 0.6),
    Reader("archive", {"t/r.json": json.dumps(record())}, archived, {"t/r.json": "json"},
           lambda f, found: None if found[0] == found[1] else "another content", 0.2,
           leaves=("t/*",)),
    Reader("report", LOOSE, table, OF_LOOSE),
    Reader("report_packed", PACKED, table, OF_PACKED),
    Reader("page", LOOSE | FAILED, page_or_error, OF_LOOSE, still_shown, 0.1),
    Reader("page_packed", PACKED, whole_page, OF_PACKED, lambda f, found: harmless(*found), 0.1),
    Reader("plan_and_costs", LOOSE | FAILED, plan_and_costs,
           OF_LOOSE | dict.fromkeys(FAILED, "json"), None, 0.6),
]  # fmt: skip

# ---- examples


def write_examples(folder):
    write_files(folder, {"t/r.json": json.dumps(record())})
    ResultFolder(folder).write_examples("t/r.json", "h", EXAMPLES)


def write_packed_examples(folder):
    write_examples(folder)
    with zipfile.ZipFile(folder / "examples.zip", "w") as file:
        file.writestr(zipfile.ZipInfo("t/r.npz"), (folder / "t" / "r.npz").read_bytes())
    shutil.rmtree(folder / "t")
    line = json.dumps({"file": "t/r.json"} | record())
    write_files(folder, {"results.jsonl": f"{line}\n"})


def are_numbers(folder, found):
    """Checks arrays of finite numbers with a row for each example."""
    for metric, (_, array) in (found or {}).items():
        if array.dtype.kind not in "fiu" or array.ndim != 2:
            return f"an array of {array.ndim} dimensions of {array.dtype} for {metric}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"numbers that are not finite, for {metric}"
    return None


def pack_and_unpack(folder):
    """Packs and unpacks results; nothing may be lost."""
    kept = ResultFolder(folder / "mine")
    kept.pack()
    names = kept.names()
    kept.unpack()
    return names, read_results(folder / "mine")


def write_to_pack(folder):
    write_files(folder, LOOSE)
    name = "rte/bert_mini.fine_tune.seed0.json"
    ResultFolder(folder / "mine").write_examples(name, "h", {"accuracy": EXAMPLES["accuracy"]})


def nothing_lost(folder, found):
    return None if len(found[1]) == len(RECORDS) else f"{len(found[1])} of {len(RECORDS)} records"


ARRAYS = [
    Reader("examples", write_examples, lambda f: ResultFolder(f).examples("t/r.json", "h"),
           {"t/r.npz": "zip"}, are_numbers),
    Reader("examples_packed", write_packed_examples,
           lambda f: ResultFolder(f).examples("t/r.json", "h"), {"examples.zip": "zip"},
           are_numbers),
    Reader("pack", write_to_pack, pack_and_unpack,
           {"mine/sst2/bert_mini.fine_tune.seed0.json": "json",
            "mine/rte/bert_mini.fine_tune.seed0.npz": "zip"}, None, 0.4, leaves=("mine/*",)),
]  # fmt: skip

# ---- committed results


def copied(*names):
    """Copies committed files or folders of results, without pictures."""

    def write(folder):
        for name in names:
            if (COMMITTED / name).is_dir():
                plain = shutil.ignore_patterns("*.png", "examples.zip")
                shutil.copytree(COMMITTED / name, folder / name, ignore=plain)
            else:
                shutil.copy(COMMITTED / name, folder / name)

    return write


def shown(folder, suite=None):
    import matplotlib.pyplot as plt

    try:
        page = page_of(folder, suite)
        return page.html(), [table.csv() for table in page.tables().values()]
    finally:
        plt.close("all")


def json_files(folder):
    kinds = {".jsonl": "jsonl", ".json": "json"}
    paths = sorted((COMMITTED / folder).glob("*.json*"))
    return {path.relative_to(COMMITTED).as_posix(): kinds[path.suffix] for path in paths}


MACHINES = (
    "encoders.json", "speed.json", "speed_words.torch.json", "check_devices.torch.json",
    "check_scaling.json", "check_padding.json", "check_fine_tuning.json",
    "speed_translator.torch.json", "speed_memory.torch.json",
)  # fmt: skip


# Their tables take a second or more.
SLOW = ("bert", "elmo", "features_or_fine_tuning", "gpt", "minilm", "seq2seq")


def suite_in(folder):
    """Returns the first suite with results in a folder."""
    return next(name for name, suite in SUITES.items() if (suite.home or name) == folder)


def suite_reader(folder, weight):
    name = suite_in(folder)
    return Reader(
        f"suite_{folder}", copied(folder), lambda f: shown(f, name), json_files(folder),
        lambda f, found: harmless(*found), weight,
    )  # fmt: skip


SHOWN = [
    Reader("claims", copied("first"), lambda f: verdicts(f, 1000, 0),
           {"first/results.jsonl": "jsonl"}, None, 0.15),
    Reader("speed_and_encoders", copied(*MACHINES), shown, dict.fromkeys(MACHINES, "json"),
           lambda f, found: harmless(*found), 0.4),
    *(suite_reader(folder, 0.02 if folder in SLOW else 0.1)
      for folder in sorted({suite.home or name for name, suite in SUITES.items()})
      if (COMMITTED / folder).is_dir()),
]  # fmt: skip


READERS = [*TABLES, *ARRAYS, *SHOWN]
