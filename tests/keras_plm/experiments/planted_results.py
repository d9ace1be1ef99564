"""Result files and claims for the page of results."""

import dataclasses
import json

from keras_plm.experiments.config import Run
from keras_plm.experiments.results import Record, result_name
from tests import ROOT

RESULTS = ROOT / "benchmarks" / "results"
EVIL = "<script>alert(1)</script>"
VERDICTS = ("reproduced", "contradicted", "not separable", "not run")
CLAIMS = [
    {
        "name": f"claim_{i}", "statement": f"{EVIL} > last {i}", "task": ("ner", "sst5")[i % 2],
        "source": "Devlin et al. 2018, table 7", "verdict": VERDICTS[i % 4],
        "effect": None if i % 4 == 3 else 1.5 - i, "low": None if i % 4 == 3 else -i,
        "high": None if i % 4 == 3 else 2.0, "p": None if i % 4 == 3 else 10.0 ** -(i + 1),
        "detectable": 0.7, "seeds": (5, 3), "note": "one checkpoint & no more",
    }
    for i in range(6)
]  # fmt: skip


def put(root, suite, task, method, score, seed, encoder="mini", **fields):
    """Writes a result file."""
    run = Run(method=method, **fields)
    config = run.to_json()
    metric = "span_f1" if task == "ner" else "accuracy"
    result = {
        "task": task, "encoder": encoder, "method": method, "run": run.name, "settings": config,
        "seed": seed, "score": score, "metrics": {metric: score}, "trials": [{}, {}, {}],
        "counts": {"train": config["train_limit"] or 1000}, "inputs": "abc",
        "seconds": 100 * score + seed, "backend": "torch", "device": "A & B, 2 cores",
        "versions": {"keras": "3.15"}, "commit": "abcdef0+",
    }  # fmt: skip
    path = root / suite / task / f"{encoder}.{run.name}.seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


def name_of(seed):
    """Returns the name of a result of `record`."""
    return result_name("rte", "bert", "fine_tune", seed)


def record(seed, score=0.5, hash="h"):
    """Returns a small `Record`."""
    about = Record("rte", "bert", "fine_tune", "fine_tune", {"epochs": 1}, seed)
    scores = {"score": score, "metrics": {"accuracy": score}}
    return dataclasses.replace(about, hash=f"{hash}{seed}", extra={"tokens": 7}, **scores)
