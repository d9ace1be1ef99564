"""The recommendation of `layers`, on planted scores."""

import dataclasses
import json

import numpy as np
import pytest

from keras_plm.experiments.config import Run
from keras_plm.experiments.recommend import (
    Choice,
    edges,
    intervals,
    markdown,
    ranked,
    recommendation,
)
from keras_plm.experiments.report.answers import answers
from keras_plm.experiments.results import Record, ResultFolder, result_name

pytestmark = pytest.mark.backend_neutral

EXAMPLES, SEEDS = 400, 3


def choice(name, share, dev_score=None, seconds=10.0, seed=0, kept=True):
    """Returns a choice that is right on a fraction of the examples, mostly the same for all."""
    rng, order = np.random.default_rng(seed), np.random.default_rng(7).random(EXAMPLES)
    parts, results = [], []
    for index in range(SEEDS):
        right = (order + rng.normal(0, 0.02, EXAMPLES)) < share
        parts.append(np.stack([right, np.ones(EXAMPLES)], axis=1))
        results.append({
            "score": right.mean(), "dev_score": share if dev_score is None else dev_score,
            "seconds": seconds * (2 if index == 0 else 1), "seed": index,
            "trials": [{"learning_rate": 0.1}, {"learning_rate": 0.2}], "feature_bytes": 2e6,
            "metrics": {"accuracy": right.mean()},
        })  # fmt: skip
    if not kept:
        return Choice(name, tuple(results))
    return Choice(name, tuple(results), "mean", np.stack(parts).astype("float64"))


def test_choices_are_ranked_by_dev_score():
    choices = [choice("last", 0.8, dev_score=0.5), choice("layer_1", 0.7, dev_score=0.6)]
    assert [c.name for c in ranked(choices)] == ["layer_1", "last"]
    table = markdown(choices).splitlines()
    assert table[2].startswith("| layer_1 | 60.0 | 68.") and table[2].endswith("| 10.0 |")
    assert table[-1] == "Stored features of all layers: 2.0 MB"
    assert "-1" in table[3].split("|")[4]  # below on the test set


def test_recommendation_lists_inseparable_choices():
    far = [choice("last", 0.8), choice("embeddings", 0.5, seed=1)]
    assert "Every other choice scores lower" in recommendation(far)
    near = [choice("last", 0.8), choice("layer_2", 0.797, seed=1), choice("embeddings", 0.5)]
    words = recommendation(near)
    assert words.startswith(
        "Frozen features: use last, first on the dev set. Not separable from it: layer_2."
    )
    assert recommendation(far[:1]) == "Frozen features: use last, first on the dev set."
    one = [Choice(c.name, c.results[:1], c.kind, c.parts[:1]) for c in far]
    assert (
        "excludes zero. One seed has no spread: run two seeds or more of frozen features."
        in recommendation(one)
    )


def test_recommendation_names_choices_that_score_higher():
    choices = [choice("last", 0.7, dev_score=0.9), choice("elmo_mix", 0.85, dev_score=0.89, seed=1)]
    words = recommendation(choices)
    assert "use last, first on the dev set. On the evaluation split elmo_mix scores higher" in words
    assert "scores lower" not in words
    words = recommendation([*choices, choice("layer_1", 0.3, dev_score=0.5, seed=2)])
    assert "elmo_mix scores higher" in words and "scores lower" not in words


def test_recommendation_of_many_inseparable_choices_names_the_others():
    near = [choice("last", 0.8), *(choice(f"layer_{i}", 0.797, seed=i) for i in range(1, 5))]
    assert recommendation(near).endswith("No other choice is separable from it.")
    far = [choice("embeddings", 0.5), choice("mean_all", 0.4)]
    assert recommendation([*near, *far]).endswith(
        "Not separable from it: all but embeddings, mean_all."
    )
    assert recommendation([*near[:4], *far]).endswith("it: layer_1, layer_2, layer_3.")


def test_interval_of_a_choice_contains_its_score():
    found = intervals([choice("last", 0.8), choice("layer_1", 0.7, kept=False)])
    assert found[0][0] < 0.79 and found[0][1] > 0.81 and found[1] is None
    assert 0.05 < found[0][1] - found[0][0] < 0.15  # 400 examples: 4 points on each side


def test_edges_reports_learning_rate_at_edge_of_search():
    found = [choice("last", 0.8), choice("layer_1", 0.8)]
    for result in found[0].results:
        result["trials"] = [{"learning_rate": 0.001}, {"learning_rate": 0.01}]
        result["learning_rate"] = 0.01
    found[1].results[0]["trials"] = [{"learning_rate": 0.01}]
    assert edges(found) == (
        "The search chose its largest learning rate for last: give a list with larger ones to "
        "--learning-rates."
    )
    found[0].results[0]["learning_rate"] = 0.001
    assert "smallest learning rate for last: give a list with smaller" in edges(found[:1])
    tuned = dataclasses.replace(found[0], name="fine-tuned")
    assert edges([tuned]).endswith("smaller ones to --fine-tuning-rates.")
    assert edges([found[0], tuned]).endswith("to --learning-rates and --fine-tuning-rates.")
    assert not edges(found[1:])


def test_seconds_ignore_one_delayed_fit():
    held_up = choice("last", 0.8)
    held_up.results[0]["seconds"] *= 50
    assert held_up.seconds == 10.0


@pytest.mark.parametrize(
    "share, words",
    [
        (0.9, "Fine-tuning is better: +"),
        (0.8, "Fine-tuning is not separable from it: "),
        (0.6, "Fine-tuning is worse: -"),
    ],
)
def test_recommendation_compares_fine_tuning_with_features(share, words):
    frozen = [choice("last", 0.8), choice("embeddings", 0.5)]
    said = recommendation(frozen, choice("fine-tuned", share, seconds=120.0, seed=3))
    assert words in said and "takes 2 min, about 12 times as long as one frozen choice on " in said
    at_once = [choice("last", 0.8, seconds=0.0)]
    said = recommendation(at_once, choice("fine-tuned", share, seconds=4.0, seed=3))
    assert "One training takes 4 s, one frozen choice on stored features less than 0.1 s." in said
    assert "| < 0.1 |" in markdown(at_once)


def test_choices_without_examples_have_no_interval():
    frozen = [choice("last", 0.8, kept=False), choice("embeddings", 0.5)]
    said = recommendation(frozen, choice("fine-tuned", 0.9))
    assert "Without an interval: embeddings; scores" in said and "without an interval. One" in said
    assert "separable" not in said and "Every other" not in said
    kept = [choice("last", 0.8), choice("layer_1", 0.5, seed=1)]
    said = recommendation([*kept, choice("layer_2", 0.79, kept=False)])
    assert "Every other choice with an interval scores lower" in said
    assert "Without an interval: layer_2; scores of single examples" in said
    assert "| | 10.0 |" in markdown(frozen).splitlines()[3].replace("|  |", "| |")


def test_choice_reads_examples_with_matching_hashes(tmp_path):
    made, kept = choice("last", 0.8), ResultFolder(tmp_path)
    for i, part in enumerate(made.parts):
        kept.write_examples(f"t/a.seed{i}.json", f"hash {i}", {"accuracy": ("mean", part)})

    def read(*hashes):
        return [kept.examples(f"t/a.seed{i}.json", hash) for i, hash in enumerate(hashes)]

    hashes = [f"hash {i}" for i in range(SEEDS)]
    found = Choice.read("last", made.results, read(*hashes))
    np.testing.assert_array_equal(found.parts, made.parts)
    hashes[1] = "another"
    assert Choice.read("last", made.results, read(*hashes)).parts is None


def plant(kept, name, share, method, layers="", train=100, examples=True):
    """Writes the results of a run with their examples."""
    planted, run = choice(name, share), Run(method=method, layers=layers)
    for seed, result in enumerate(planted.results):
        record = Record(
            "sst2", "mini", method, run.name, run.to_json(), seed, dev_score=share,
            score=float(result["score"]), metrics={"accuracy": float(result["score"])},
            trials=[{}, {}], counts={"train": train}, seconds=result["seconds"], flops=3 * 10**12,
            learned_weights=2_000_000, hash=f"{run.name}{seed}", backend="torch", device="cpu",
        )  # fmt: skip
        parts = {"accuracy": ("mean", planted.parts[seed])} if examples else {}
        kept.write(result_name("sst2", "mini", run.name, seed), record, parts)


@pytest.mark.parametrize("examples, over", [(True, "seeds, examples"), (False, "seeds")])
def test_answers_report_best_run_of_each_task(tmp_path, examples, over):
    kept = ResultFolder(tmp_path / "first")
    plant(kept, "last", 0.8, "features", "last", examples=examples)
    plant(kept, "layer_1", 0.797, "features", "layer_1", examples=examples)
    plant(kept, "embeddings", 0.5, "features", "embeddings", examples=examples)
    plant(kept, "few", 0.9, "scratch", train=10, examples=examples)
    table = answers({"first": tmp_path / "first"})
    (row,) = table.rows
    found = dict(zip(table.columns, row, strict=True))
    assert found["best run on the dev set"] == "mini: pre-trained, frozen; last; linear reader"
    assert found["not separable from it"].startswith("mini: pre-trained, frozen; layer_1")
    assert "embeddings" not in found["not separable from it"]
    assert found["runs compared"] == "3" and found["interval over"] == over
    assert [found[key] for key in ("seconds", "TFLOP", "M trained weights")] == ["10.0", "3", "2"]
    low, high = found["score [95 % interval]"].partition("[")[2].rstrip("]").split(", ")
    assert float(low) < 80 < float(high) and float(high) - float(low) < 15


def test_answers_need_two_runs(tmp_path):
    plant(ResultFolder(tmp_path / "first"), "last", 0.8, "features", "last")
    assert answers({"first": tmp_path / "first"}) is None


def test_interval_without_metrics_uses_seeds_only(tmp_path):
    kept = ResultFolder(tmp_path / "first")
    for name, share in (("last", 0.8), ("layer_1", 0.79)):
        plant(kept, name, share, "features", name)
    for path in (tmp_path / "first").rglob("*-last.seed*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": {}}))
    (row,) = answers({"first": tmp_path / "first"}).rows
    assert "seeds" in row


@pytest.mark.parametrize("key", ["trials", "dev_score"])
def test_runs_without_search_are_not_compared(tmp_path, key):
    kept = ResultFolder(tmp_path / "first")
    for name, share in (("last", 0.8), ("layer_1", 0.79), ("embeddings", 0.78)):
        plant(kept, name, share, "features", name)
    path = kept.file(result_name("sst2", "mini", Run("features", layers="last").name, 0))
    record = json.loads(path.read_text())
    del record[key]
    path.write_text(json.dumps(record))
    (row,) = answers({"first": tmp_path / "first"}).rows
    assert "; last" not in " ".join(row)


def test_intervals_of_few_seeds_are_clipped_to_score_range(tmp_path):
    kept = ResultFolder(tmp_path / "first")
    plant(kept, "last", 0.98, "features", "last", examples=False)
    plant(kept, "layer_1", 0.5, "features", "layer_1", examples=False)
    paths = sorted((tmp_path / "first").rglob("*-last.seed*.json"))
    for path, score in zip(paths, (0.9, 1.0, 0.99), strict=True):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"score": score}))
    (row,) = answers({"first": tmp_path / "first"}).rows
    assert ", 100.0]" in row[1]
