"""Tables and pictures of results."""

import dataclasses

import numpy as np
import pytest

from benchmarks.__main__ import main
from keras_plm.experiments.config import ALWAYS, Run
from keras_plm.experiments.recommend import Choice
from keras_plm.experiments.report.result_tables import (
    layer_figure,
    markdown,
    of_runs,
    place_of_layers,
)

pytestmark = pytest.mark.backend_neutral


def result(method, task, score, seed, **fields):
    run = method + "".join(f"-{v}" for v in fields.values())
    common = {"train_limit": 0, "layers": "last", "reader": "linear", "precision": "float32"}
    common["pool"] = "mean"
    fields = common | fields
    return {
        "task": task, "encoder": "e", "method": method, "run": run, "settings": fields,
        "seed": seed, "score": score, "metrics": {"accuracy": score},
        "counts": {"train": fields["train_limit"] or 60_000}, "trials": [], "inputs": "abc",
    }  # fmt: skip


def test_tables_show_mean_deviation_and_number():
    results = [
        result("fine_tune", "t", 0.70, 0),
        result("fine_tune", "t", 0.74, 1),
        result("scratch", "t", 0.5, 0),
        result("scratch", "u", 0.4, 0),
    ]
    lines = markdown(results).splitlines()
    assert lines[0] == "| run | t (accuracy) | u (accuracy) |"
    assert lines[2] == "| random weights, all trained | 50.0 (1) | **40.0 (1)** |"
    assert lines[3] == "| pre-trained, fine-tuned | **72.0 ± 2.8 (2)** |  |"


def test_fine_tuning_variants_have_distinct_names_and_labels():
    plain = Run(method="fine_tune")
    assert plain.name == "fine_tune" and set(plain.to_json()) == set(ALWAYS)
    variants = {
        "slanted_triangular": ({"schedule": "slanted_triangular"}, "slanted triangular rate"),
        "decay0.4": ({"layer_decay": 0.4}, "rates 0.4 times per lower layer"),
        "unfreeze1": ({"unfreeze_epochs": 1}, "unfrozen from the top, epochs per layer: 1"),
        "pool_max": ({"text_pool": "max"}, "max pooling"),
    }
    for name, (fields, words) in variants.items():
        run = dataclasses.replace(plain, **fields)
        assert run.name == f"fine_tune-{name}"
        assert set(run.to_json()) - set(plain.to_json()) == set(fields)
        results = [result("fine_tune", "t", 0.4, 0) | {"settings": run.to_json()}]
        assert f"| pre-trained, fine-tuned; {words} |" in markdown(results)
    every = dict(pair for fields, _ in variants.values() for pair in fields.items())
    method = dataclasses.replace(plain, **every).build(1e-3, 0)
    assert (method.schedule, method.layer_decay) == ("slanted_triangular", 0.4)
    assert (method.unfreeze_epochs, method.pool) == (1, "max")
    assert plain.build(1e-3, 0).pool is None


def test_figures_distinguish_readers_and_encoders():
    results = [
        result("features", "t", 0.4, 0),
        result("features", "t", 0.5, 0, reader="bilstm"),
        result("features", "t", 0.8, 0) | {"encoder": "f"},
        result("fine_tune", "t", 0.9, 0),
        result("scratch", "t", 0.3, 0),
        result("randomly_initialised", "t", 0.2, 0),
        result("randomly_initialised", "t", 0.1, 0, layers="embeddings"),
    ]
    axes = layer_figure(results, "t").axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["last, e, linear", "last, e, bilstm", "last, f, linear"]
    lines = {
        line.get_label(): line.get_xdata()[0] for line in axes.lines if line.get_label()[0] != "_"
    }
    assert lines == {
        "random weights, all trained": 30.0,
        "pre-trained, fine-tuned": 90.0,
        "random weights, frozen; best layers run": 20.0,
    }


def test_tables_and_figures_distinguish_feature_variants():
    mixed = {"layers": "elmo_mix", "reader": "bilstm"}
    variants = [
        ({}, ""),
        ({"penalty": 0.001}, "λ = 0.001"),
        ({"penalty": 1.0, "mix_norm": True}, "λ = 1, layers normalised"),
        (
            {"placement": "output", "words": "glove"},
            "glove word vectors, features after the reader",
        ),
        ({"feature_dropout": 0.5, "units": 9}, "feature dropout 0.5, 9 units"),
    ]
    results = [result("features", "t", 0.4, 0, **mixed, **fields) for fields, _ in variants]
    axes = layer_figure(results, "t").axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == sorted(", ".join(filter(None, ["elmo_mix", n])) for _, n in variants)
    rows = [line.split(" | ")[0] for line in markdown(results).splitlines()[2:]]
    start = "| pre-trained, frozen; elmo_mix; bilstm reader"
    wanted = ["; ".join([start, *n.split(", ")]) if n else start for _, n in variants]
    assert sorted(rows) == sorted(wanted)


def test_figures_sort_layers_and_refuse_different_runs():
    results = [result("features", "t", 0.4, 0, layers=f"layer_{i}", train_limit=9) for i in (10, 2)]
    results += [result("randomly_initialised", "t", 0.1, i) for i in range(5)]  # with another limit
    axes = layer_figure(results, "t").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer_2", "layer_10"]
    results.append(result("features", "t", 0.4, 1, layers="layer_2", train_limit=9))
    results[-1]["inputs"] = "other weights"
    with pytest.raises(ValueError, match="Seeds of one run share settings"):
        layer_figure(results, "t")


def test_figures_show_intervals_and_the_best_on_the_dev_set():
    def choice_of(name, results):
        parts = np.stack([np.stack([np.full(50, r["score"]), np.ones(50)], 1) for r in results])
        return Choice(name, tuple(results), "mean", parts)

    results = [
        result("features", "t", score, seed, layers=layers) | {"dev_score": dev}
        for layers, score, dev in (("last", 0.5, 0.4), ("layer_1", 0.4, 0.6))
        for seed in range(2)
    ]
    results.append(result("fine_tune", "t", 0.7, 0))
    axes = layer_figure(results, "t", choice_of).axes[0]
    assert "bars and band: 95 % intervals; bold" in axes.get_xlabel() and len(axes.patches) == 1
    bold = [label.get_text() for label in axes.get_yticklabels() if label.get_weight() == "bold"]
    assert bold == ["layer_1"]  # not the best one on the evaluation split
    axes = layer_figure(results, "t").axes[0]
    assert "intervals" not in axes.get_xlabel() and not axes.patches
    del results[0]["dev_score"]
    assert "bold" not in layer_figure(results, "t").axes[0].get_xlabel()


def test_seeds_of_different_runs_are_not_averaged():
    results = [result("scratch", "t", 0.5, 0), result("scratch", "t", 0.6, 1)]
    results[1]["inputs"] = "other weights"
    with pytest.raises(ValueError, match="Seeds of one run share settings"):
        markdown(results)


def test_runs_with_other_data_are_left_out():
    def of(method, seed=0, inputs="abc", **fields):
        settings = Run(method=method, **fields).to_json()
        return result(method, "t", 0.5, seed) | {"inputs": inputs, "settings": settings}

    results = [of("scratch"), of("scratch", 1)]
    other = of("fine_tune", inputs="other labels")
    words = [of("features", inputs="with words", layers="last", reader="bilstm", words="w")]
    shown, odd = of_runs([*results, other, *words])
    assert shown == [*results, *words] and len(odd) == 1
    assert "Runs of one task and encoder must have the same data and weights" in odd[0]
    without = {name: value for name, value in other.items() if name != "inputs"}
    assert of_runs([*results, without]) == ([*results, without], [])


def test_row_label_shows_an_unusual_number_of_examples():
    results = [result("scratch", "t", 0.5, 0, train_limit=10)]
    results += [result("fine_tune", "t", 0.6, seed, train_limit=10) for seed in range(2)]
    results += [result("fine_tune", "t", 0.7, 0), result("fine_tune", "u", 0.8, 0)]
    lines = markdown(results).splitlines()[2:]
    assert lines == [
        "| random weights, all trained | 50.0 (1) |  |",
        "| pre-trained, fine-tuned; 60,000 training examples | **70.0 (1)** |  |",
        "| pre-trained, fine-tuned | 60.0 ± 0.0 (2) | **80.0 (1)** |",
    ]


def test_error_for_unknown_suite_suggests_a_name(tmp_path, capsys):
    assert main(["report", "--suite", "elmo_nieghbours", "--results", str(tmp_path)]) == 2
    assert "Did you mean 'elmo_neighbours'?" in capsys.readouterr().err
    (tmp_path / "local").mkdir()
    assert main(["report", "--results", str(tmp_path)]) == 2
    assert "the results to show, one of: local" in capsys.readouterr().err


class TestRunsThatDifferInOneSetting:
    """Two results in one table may differ in a setting that `describe` omits."""

    def rows(self, results):
        return [line[2:].split(" | ") for line in markdown(results).splitlines()[2:]]

    def of(self, score, seed, **fields):
        """Returns a result in the format of `Runner`."""
        run = Run(method="fine_tune", **fields)
        fields = {name: value for name, value in run.to_json().items() if name != "method"}
        made = result("fine_tune", "t", score, seed, **fields)
        return made | {"run": run.name, "trials": [{"seconds": score}]}

    def test_reader_and_its_depth_are_named(self):
        options = {"reader": "alternating_lstm", "reader_layers": 8, "units": 128}
        ((text, *_),) = self.rows([self.of(0.9, 0, **options)])
        assert text == "pre-trained, fine-tuned; alternating_lstm reader of 8 layers; 128 units"

    def test_settings_that_affect_results_have_separate_rows(self):
        results = [self.of(0.5, seed) for seed in range(2)]
        results += [self.of(0.6, seed, dev_limit=100) for seed in range(2)]
        results += [self.of(0.7, seed, reader="bilstm") for seed in range(2)]
        rows = self.rows(results)
        assert [row[0] for row in rows] == [
            "pre-trained, fine-tuned; dev limit 0",
            "pre-trained, fine-tuned; bilstm reader",
            "pre-trained, fine-tuned; dev limit 100",
        ]
        assert [row[1] for row in rows] == ["50.0 ± 0.0 (2) |", "**70.0 ± 0.0 (2)** |",
                                            "60.0 ± 0.0 (2) |"]  # fmt: skip
        read = [
            result("features", "t", score, 0) | {"run": f"features{limit}"}
            for score, limit in ((0.3, 0), (0.4, 100))
        ]
        read[1]["settings"]["dev_limit"] = 100
        axes = layer_figure(results + read, "t").axes[0]
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert sorted(names) == ["last; dev limit 0", "last; dev limit 100"]

    def test_a_run_has_one_row_over_several_tasks(self):
        """Only one task has results of another setting."""
        results = [self.of(0.5, 0), self.of(0.6, 0, dev_limit=100)]
        results += [self.of(0.7, 0) | {"task": "u"}, self.of(0.8, 0, epochs=4) | {"task": "v"}]
        assert self.rows(results) == [
            ["pre-trained, fine-tuned; dev limit 0", "50.0 (1)", "**70.0 (1)**", "**80.0 (1)** |"],
            ["pre-trained, fine-tuned; dev limit 100", "**60.0 (1)**", "", " |"],
        ]
        assert [row[0] for row in self.rows(results[1:])] == ["pre-trained, fine-tuned"]

    @pytest.mark.parametrize("neutral", [{"accumulation_steps": 2}, {"remat": True},
                                         {"accumulation_steps": 4, "remat": True}])  # fmt: skip
    def test_memory_settings_do_not_separate_runs(self, neutral):
        results = [self.of(0.5, 0), self.of(0.7, 1, **neutral)]
        assert self.rows(results) == [["pre-trained, fine-tuned", "**60.0 ± 14.1 (2)** |"]]
        results.append(self.of(0.9, 0, **neutral))  # each seed counts once in a row
        rows = self.rows(results)
        assert [row[1] for row in rows] == ["50.0 (1) |", "**80.0 ± 14.1 (2)** |"]
        assert all(name.replace("_", " ") in rows[1][0] for name in neutral)

    def test_seconds_of_the_search_are_not_compared(self):
        results = [self.of(0.5, 0), self.of(0.7, 1)]
        assert results[0]["trials"] != results[1]["trials"]
        assert self.rows(results) == [["pre-trained, fine-tuned", "**60.0 ± 14.1 (2)** |"]]

    def test_duplicate_seeds_are_refused(self):
        with pytest.raises(ValueError, match="one result per seed.*e.fine_tune.seed0.json and"):
            markdown([self.of(0.5, 0), self.of(0.7, 0)])


def test_layers_are_sorted_by_depth():
    names = ["last", "elmo_mix", "layer_10", "embeddings", "layer_2", "second_to_last", "mean_all"]
    assert sorted(names, key=place_of_layers) == [
        "embeddings", "layer_2", "layer_10", "second_to_last", "last", "mean_all", "elmo_mix"
    ]  # fmt: skip


def test_table_notes_different_numbers_of_epochs():
    of = [result("features", "t", 0.5, 0, epochs=3), result("fine_tune", "t", 0.6, 0, epochs=3)]
    assert "epochs" not in markdown(of)
    of.append(result("scratch", "t", 0.4, 0, epochs=10))
    assert "\n\nRuns have different numbers of epochs on t (3, 10).\n" in markdown(of)
