"""Edge probing: vectors of spans, the loss, reports, learning, edges of tasks, the command."""

import json

import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.task import Example
from keras_plm.datasets.edges import (
    EDGE_TASKS,
    FILES_OF,
    coreference_edges,
    dependency_edges,
    role_edges,
    span_edges,
    tag_edges,
)
from keras_plm.experiments.report import edge_probes
from keras_plm.plots import edge_probing
from keras_plm.transfer.probing.edge_probing import (
    EdgeExample,
    EdgeLoss,
    EdgeProbing,
    LayerReport,
    SpanPooling,
)
from tests.helpers.checks import assert_close, check_layer, to_numpy
from tests.helpers.small_encoders import TOKENIZER, encoder


def test_vectors_of_spans_equal_loops(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 7, 5)).astype("float32")
    spans = np.array([[[0, 7], [2, 3], [4, 6]], [[6, 7], [0, 2], [0, 0]]], "int32")
    layer = SpanPooling(3)
    check_layer(layer, {"inputs": x, "spans": spans}, tmp_path)
    found = to_numpy(layer(x, spans))
    kernel, bias = (to_numpy(w) for w in layer.project.weights)
    scorer = to_numpy(layer.score.kernel)[:, 0]
    for row, of_row in enumerate(spans):
        for edge, (start, end) in enumerate(of_row):
            words = x[row, start:end] @ kernel + bias
            odds = np.exp(words @ scorer - (words @ scorer).max(initial=-np.inf))
            expected = odds @ words / odds.sum() if len(words) else np.zeros(3)
            assert_close(found[row, edge], expected, atol=1e-4)


@pytest.mark.backend_neutral
def test_loss_equals_a_loop():
    rng = np.random.default_rng(1)
    logits, ids = rng.normal(size=(2, 3, 5)), np.array([[0, 4, 2], [1, -1, 3]])
    expected = []
    for of_edge, right in zip(logits.reshape(6, 5), ids.ravel(), strict=True):
        odds = 1 / (1 + np.exp(-of_edge))
        expected.append(-sum(np.log(p if k == right else 1 - p) for k, p in enumerate(odds)))
    assert float(EdgeLoss()(ids, logits.astype("float32"))) == pytest.approx(np.mean(expected))


@pytest.mark.backend_neutral
def test_expected_layer_and_centre_of_gravity_by_hand():
    report = LayerReport(["a", "b"], [0.5, 0.6, 0.7], [0.5, 0.7, 0.75], [0.2, 0.5, 0.3])
    assert report.differences == pytest.approx([0.2, 0.05])
    assert report.expected_layer == pytest.approx((1 * 0.2 + 2 * 0.05) / 0.25)
    assert report.centre_of_gravity == pytest.approx(1.1)
    assert report.row("roles")["expected_layer"] == report.expected_layer
    worse = LayerReport(["a"], [0.5], [0.5, 0.4], [1.0])
    assert np.isnan(worse.expected_layer) and worse.row("roles")["expected_layer"] is None


def letters(count, seed=0):
    """Sentences of letters; the label of a pair of spans is the letter of the second one."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        words = rng.choice(list("abcdef"), rng.integers(4, 9)).tolist()
        edges = []
        for _ in range(3):
            first, second = (int(place) for place in rng.integers(0, len(words), 2))
            edges.append(([(first, first + 1), (second, second + 1)], words[second]))
        found.append(EdgeExample(words, edges))
    return found


@pytest.mark.full
@pytest.mark.compiles
def test_probes_of_all_layers_learn_pairs_of_spans():
    method = EdgeProbing(
        epochs=25, learning_rate=1e-2, batch_size=8, span_dim=8, hidden_dim=16, dropout=0.0
    )
    lines = []
    report = method.fit(
        encoder(), TOKENIZER, letters(80), letters(20, 1), letters(20, 2), say=lines.append
    )
    assert report.labels == list("abcdef")
    assert len(report.layers) == len(report.cumulative) == len(report.mixing_weights) == 3
    assert min(report.layers + report.cumulative) > 0.9
    assert report.cumulative[0] == report.layers[0] and len(lines) == 3 + 5
    assert sum(report.mixing_weights) == pytest.approx(1)
    for name in ("layers", "cumulative"):
        right, true, predicted = report.counts[name].sum(axis=1).T
        assert 2 * right / (true + predicted) == pytest.approx(getattr(report, name))
        assert set(true) == {60}


@pytest.mark.full
def test_unsuitable_edges_are_refused():
    method = EdgeProbing(epochs=1)
    one = EdgeExample(["a", "b"], [([(0, 1)], "x"), ([(1, 2)], "y")])
    pair = EdgeExample(["a"], [([(0, 1), (0, 1)], "x")])
    with pytest.raises(ValueError, match="two labels or more.*Received: \\['x'\\]"):
        method.fit(encoder(), TOKENIZER, [pair], [pair])
    with pytest.raises(ValueError, match=r"all with one span or all with two.*\[1, 2\]"):
        method.fit(encoder(), TOKENIZER, [one, pair], [one])
    with pytest.raises(ValueError, match=r"equal numbers of spans.*\[1, 2\]"):
        method.fit(encoder(), TOKENIZER, [one], [pair])
    with pytest.raises(ValueError, match="no example in `dev`"):
        method.fit(encoder(), TOKENIZER, [one], [])
    with pytest.raises(ValueError, match=r"Every set needs edges.*\[\]"):
        method.fit(encoder(), TOKENIZER, [one], [EdgeExample(["a"], [])])
    for spans, label in (([], "x"), ([(0, 3)], "x"), ([(1, 1)], "x"), ([(0, 1)], 3)):
        with pytest.raises(ValueError, match="f:2: An edge must be `\\(spans, label\\)`"):
            EdgeExample(["a", "b"], [(spans, label)], where="f:2")
    for edge in (([(0, 1)],), ((0, 1), "x"), ([(0, 1, 2)], "x"), ([(0.0, 1)], "x"), "x"):
        with pytest.raises(ValueError, match="An edge must be"):
            EdgeExample(["a", "b"], [edge])
    for text in ("a b", []):
        with pytest.raises(ValueError, match="must be a list of words"):
            EdgeExample(text, [])
    with pytest.raises(TypeError, match="lists of `EdgeExample.*Received: Example"):
        method.fit(encoder(), TOKENIZER, [Example(["a"])], [one])
    other = EdgeExample(["a"], [([(0, 1)], "z")])
    with pytest.raises(ValueError, match="a set without any of x, y"):
        method.fit(encoder(), TOKENIZER, [one], [other])
    with pytest.raises(ValueError, match="feature_gb"):
        EdgeProbing(feature_gb=-1)
    with pytest.raises(ValueError, match="learning_rate"):
        EdgeProbing(learning_rate=0)


@pytest.mark.backend_neutral
class TestEdges:
    def test_of_words_and_entities(self):
        example = Example(["Ada", "King", "sings"], ["B-PER", "I-PER", "O"])
        assert tag_edges([example])[0].edges[1] == ([(1, 2)], "I-PER")
        assert span_edges([example])[0].edges == [([(0, 2)], "PER")]

    def test_of_the_predicates_of_a_sentence(self):
        words = ["Ada", "sings", "and", "runs"]
        first = Example(words, ["B-ARG0", "B-V", "O", "O"], predicate=1, group="s")
        second = Example(words, ["B-ARG0", "O", "B-C-ARG0", "B-V"], predicate=3, group="s")
        other = Example(["Run"], ["B-V"], predicate=0, group="t")
        both, last = role_edges([first, second, other])
        assert both.edges == [
            ([(1, 2), (0, 1)], "ARG0"),
            ([(3, 4), (0, 1)], "ARG0"),
            ([(3, 4), (2, 3)], "ARG0"),
        ]
        assert last.edges == []

    def test_of_dependencies(self):
        words = ["Ada", "sings", "songs"]
        heads, relations = (Example(words, tags.split()) for tags in ("2 0 2", "nsubj root obj"))
        (found,) = dependency_edges([heads], [heads], [relations])
        assert found.edges == [([(0, 1), (1, 2)], "nsubj"), ([(2, 3), (1, 2)], "obj")]
        for head in ("4", "x", "-1"):
            wrong = Example(words, ["2", "0", head], where="f:9")
            with pytest.raises(ValueError, match="f:9: The head of a word must be"):
                dependency_edges([wrong], [wrong], [relations])

    def test_of_coreference_pairs_mentions_within_pieces(self):
        words = list("abcdef") * 40  # two sentences of 120 words: two pieces
        clusters = [[(0, 1), (6, 7), (126, 127)], [(3, 4)], [(121, 122), (130, 131)]]
        first, second = coreference_edges([Example(words, clusters, sentences=[120, 120])])
        assert len(first.text) == len(second.text) == 120
        assert first.edges == [([(0, 1), (6, 7)], "coreferent"), ([(3, 4), (6, 7)], "other")]
        assert second.edges == [([(1, 2), (10, 11)], "coreferent"), ([(6, 7), (10, 11)], "other")]

    def test_dependencies_are_read_from_conllu(self, tmp_path):
        (tmp_path / "ud_english_ewt").mkdir()
        rows = [(1, "Ada", 2, "nsubj"), (2, "sings", 0, "root")]
        lines = [f"{i}\t{word}\t_\tX\t_\t_\t{head}\t{rel}\t_\t_" for i, word, head, rel in rows]
        (tmp_path / FILES_OF["dependencies"]).write_text("\n".join(lines) + "\n\n")
        (found,) = EDGE_TASKS["dependencies"](tmp_path, "train")
        assert (found.text, found.edges) == (["Ada", "sings"], [([(0, 1), (1, 2)], "nsubj")])

    def test_real_data(self, data):
        folder = data("litbank").parent
        for name, count in (("roles", 9563), ("coreference", 3184)):
            edges = [edge for e in EDGE_TASKS[name](folder, "dev") for edge in e.edges]
            assert len(edges) == count


@pytest.mark.backend_neutral
@pytest.mark.full
class TestCommand:
    def flags(self, tmp_path):
        keras_plm.save(tmp_path / "bert", encoder(), TOKENIZER)
        (tmp_path / "litbank").mkdir()
        row = {"sentences": [list("abc"), list("abd")], "singletons": [],
               "clusters": [[[0, 0, 1], [1, 0, 1]], [[0, 1, 2], [1, 1, 2]]]}  # fmt: skip
        for split in ("train", "dev", "test"):
            lines = [json.dumps({"doc": f"d{i}", **row}) + "\n" for i in range(4)]
            (tmp_path / "litbank" / f"{split}.jsonl").write_text("".join(lines))
        return ["edge-probing", "--encoder", str(tmp_path / "bert"), "--data", str(tmp_path),
                "--epochs", "1", "--feature-cache", str(tmp_path / "features"), "--random",
                "--results", str(tmp_path / "r.json"),
                "--plot", str(tmp_path / "r.png")]  # fmt: skip

    def test_results_are_kept_and_shown(self, tmp_path, capsys):
        flags = self.flags(tmp_path)
        assert main(flags) == 0
        out = capsys.readouterr().out
        assert "coreference, seed 0: reading 4 sentences" in out
        assert "roles is skipped. No file" in out and "| coreference, random encoder |" in out
        assert "Bold: not separable from the best layer" in out
        records = json.loads((tmp_path / "r.json").read_text())
        names = "entities", "coreference"  # WikiGold is part of the package
        pairs = [(name, random) for name in names for random in (False, True)]
        assert [(r["task"], r["random"]) for r in records] == pairs
        records = records[2:]
        assert records[0]["counts"]["train"] == {"sentences": 4, "edges": 16}
        assert len(records[0]["layers"]) == 3 and "backend" in records[0]
        assert (tmp_path / "r.png").stat().st_size > 10_000 and (tmp_path / "r.npz").exists()
        flags += ["--tasks", "coreference"]
        before = (tmp_path / "r.json").read_bytes()
        assert main(flags) == 0  # nothing is trained again
        out = capsys.readouterr().out
        assert "layer 0 of 2" not in out and "coreference, seed 0: from " in out
        assert (tmp_path / "r.json").read_bytes() == before
        assert main([*flags, "--learning-rate", "1e-2"]) == 0
        assert len(json.loads((tmp_path / "r.json").read_text())) == 6
        changed = (tmp_path / "litbank" / "test.jsonl").read_text().replace('"c"', '"d"')
        (tmp_path / "litbank" / "test.jsonl").write_text(changed)
        assert main(flags) == 0  # other data are other results
        assert len(json.loads((tmp_path / "r.json").read_text())) == 8

    @pytest.mark.parametrize(
        "more, message",
        [
            (["--tasks", "rols"], "Unknown task 'rols'. Did you mean 'roles'?"),
            (["--tasks", "roles"], "No file"),
            (["--seeds", "0"], "`--seeds` must be 1 or more"),
            (["--train-limit", "-1"], "`--train-limit` must be 0 or more"),
            (["--plot", "x.txt"], "`--plot` must be a PNG or SVG file"),
            (["--results", "none/r.json"], "`--results` must be in an existing folder"),
            (["--results", "r.npz"], "`--results` must be a .json file"),
            (["--plot", "."], "`--plot` must be a file"),
        ],
    )
    def test_bad_flags_are_refused(self, more, message, tmp_path, capsys):
        assert main([*self.flags(tmp_path), *more]) == 2
        assert message in capsys.readouterr().err


def counted(key, *of_layers):
    """A record and its counts; each layer and mix has a list of right edges of 10 per example."""
    right = np.array(of_layers)
    counts = np.stack([right, np.full(right.shape, 10), np.full(right.shape, 10)], axis=-1)
    report = LayerReport(["a", "b"], *[(right.mean(axis=1) / 10).tolist()] * 2, [0.5, 0.3, 0.2])
    return {"key": key, **report.row("roles")}, dict.fromkeys(edge_probes.PROBES, counts)


@pytest.mark.backend_neutral
class TestIntervals:
    def test_are_shown_next_to_the_expected_layer(self, tmp_path):
        rng = np.random.default_rng(0)
        first = rng.integers(2, 5, 200)
        layers = [first, first + 3, first + 3 - (np.arange(200) < 2)]
        (record, counts), path = counted("k", *layers), tmp_path / "r.json"
        edge_probes.write(path, [record], {"k": counts})
        kept = edge_probes.read_counts(path, edge_probes.read_records(path))
        assert np.array_equal(kept["k"]["layers"], counts["layers"])
        *_, row = edge_probes.table_of([record], kept).splitlines()
        # Layer 1 gains 3 in each example. Layer 2 loses 1 in two of 200: (3 - 0.02) / 2.99.
        assert row.count("**") == 4 and "| 1.00 [0.99, 1.00] |" in row
        assert edge_probes.table_of([record]).splitlines()[-1].count("**") == 0
        assert "[" not in edge_probes.table_of([record])

    def test_contain_the_truth_in_most_samples(self):
        rng, hits = np.random.default_rng(1), 0
        for _ in range(40):  # gains of 3 and 1, so the expected layer is 1.25
            first = rng.binomial(10, 0.3, 300)
            layers = [first, rng.binomial(10, 0.6, 300), rng.binomial(10, 0.7, 300)]
            record, counts = counted("k", *layers)
            cell = edge_probes.table_of([record], {"k": counts}).split(" | ")[-2]
            low, high = (float(x) for x in cell.split("[")[1].strip("]").split(","))
            hits += low <= 1.25 <= high
        assert hits >= 35

    def test_are_left_out_where_the_gain_may_be_zero(self):
        first = np.arange(40) % 7
        record, counts = counted("k", first, first, np.where(np.arange(40) < 2, first + 1, first))
        row = edge_probes.table_of([record], {"k": counts}).splitlines()[-1]
        assert "| 2.00 [none] |" in row and row.count("**") == 6

    def test_pieces_of_a_document_count_together(self):
        words, edges = ["a", "b"], [([(0, 1)], "x")]
        examples = [EdgeExample(words, edges, where) for where in ("f:1", "f:2", "f:1", "", "")]
        counts = {"layers": np.arange(30).reshape(2, 5, 3)}
        found = edge_probes.by_place(counts, examples)["layers"]
        of = counts["layers"]
        expected = [of[:, 0] + of[:, 2], of[:, 1], of[:, 3], of[:, 4]]
        assert np.array_equal(found, np.stack(expected, axis=1))

    def test_other_counts_are_refused(self, tmp_path):
        (record, counts), path = counted("k", [3, 4], [5, 6]), tmp_path / "r.json"
        edge_probes.write(path, [record], {"k": counts})
        assert edge_probes.read_counts(path, [{**record, "key": "other"}]) == {}
        with pytest.raises(ValueError, match="gives other scores than the results.*k.layers"):
            edge_probes.read_counts(path, [{**record, "layers": [0.3, 0.5]}])
        (tmp_path / "r.npz").write_bytes((tmp_path / "r.npz").read_bytes()[:100])
        with pytest.raises(ValueError, match=r"r\.npz"):
            edge_probes.read_counts(path, [record])


@pytest.mark.backend_neutral
def test_plot_shows_an_expected_layer_that_is_undefined_for_a_seed():
    row = {"task": "a", "layers": [0.5, 0.6], "cumulative": [0.5, 0.6], "centre_of_gravity": 0.4}
    rows = [{**row, "expected_layer": 1.0}, {**row, "expected_layer": None}]
    (left, right) = edge_probing(rows).axes
    labels = right.get_legend_handles_labels()[1]
    assert "expected layer: none" in labels and "centre of gravity 0.4" in labels
    assert "expected layer 1.0" in edge_probing(rows[:1]).axes[1].get_legend_handles_labels()[1]


@pytest.mark.backend_neutral
def test_plot_refuses_unequal_rows():
    row = {"task": "a", "layers": [0.5], "cumulative": [0.5], "centre_of_gravity": 0.0}
    row["expected_layer"] = None
    assert len(edge_probing([row, {**row, "task": "b", "random": True}]).axes) == 4
    for table in ([], [row, {**row, "layers": [0.5, 0.6]}]):
        with pytest.raises(ValueError, match="rows of equal numbers of layers"):
            edge_probing(table)
