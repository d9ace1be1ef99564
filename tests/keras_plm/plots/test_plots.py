"""Plots are figures drawn from plain numbers."""

import numpy as np
import pytest
from keras import ops
from matplotlib.colors import to_hex, to_rgb

from keras_plm.plots import attention, lines, mixing_weights, score_by_cost, score_by_layer
from keras_plm.plots._figure import CURVE_STYLES, WEIGHT_COLOURS

TABLE = [
    {"layers": "last", "mean": 0.5, "deviation": 0.02},
    {"layers": "concat_last_four", "mean": 0.6, "deviation": 0.01},
]


@pytest.mark.backend_neutral
def test_scores_by_layer(tmp_path):
    figure = score_by_layer(TABLE, "a task", "F1", baselines={"fine-tuned": 0.7})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["last", "concat_last_four"]
    points = axes.lines[0].get_xydata()
    assert points[:, 0].tolist() == [50, 60]
    for name in ("picture.png", "picture.svg"):
        figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.backend_neutral
def test_intervals_of_scores_by_layer():
    table = [row | {"interval": row["mean"] + np.array([-0.1, 0.2])} for row in TABLE]
    figure = score_by_layer(
        table, metric="F1", baselines={"fine-tuned": (0.7, 0.6, 0.8)}, best="last"
    )
    axes = figure.axes[0]
    (bars,) = axes.containers[0][2]
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[40, 70], [50, 80]])
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    np.testing.assert_allclose([band.x0, band.x1], [60, 80])
    bold = [label.get_text() for label in axes.get_yticklabels() if label.get_weight() == "bold"]
    assert bold == ["last"]
    assert axes.get_xlabel() == "F1\nbars and band: 95 % intervals; bold: best on the dev set"
    axes = score_by_layer([*table[:1], TABLE[1]]).axes[0]  # one row has no interval, and no bar
    assert axes.get_xlabel() == "score\nbars: 95 % intervals"
    ends = [segment[:, 0].tolist() for segment in axes.containers[0][2][0].get_segments()]
    np.testing.assert_allclose(ends, [[40, 70], [60, 60]])
    assert score_by_layer(TABLE).axes[0].get_xlabel() == "score\nbars: ± deviation between seeds"
    with pytest.raises(ValueError, match="among the layers.*Received: best='top'"):
        score_by_layer(table, best="top")


@pytest.mark.backend_neutral
def test_encoders_of_one_choice_have_one_row_and_own_colours():
    table = [row | {"encoder": name} for row in TABLE for name in ("gpt", "bert")][:3]
    figure = score_by_layer(table, encoders=["words", "gpt", "bert"])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["last", "concat_last_four"]
    gpt, bert = axes.containers
    assert gpt[0].get_xdata().tolist() == [50, 60] and bert[0].get_xdata().tolist() == [50]
    assert to_hex(gpt[0].get_color()) == CURVE_STYLES[1][0]
    assert gpt[0].get_ydata()[0] < bert[0].get_ydata()[0] < gpt[0].get_ydata()[1]
    with pytest.raises(ValueError, match="name all of the table.*Received: encoders=\\['gpt'\\]"):
        score_by_layer(table, encoders=["gpt"])


@pytest.mark.backend_neutral
def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        score_by_layer([])


def ticks(axes):
    return [
        [label.get_text() for label in labels]
        for labels in (axes.get_yticklabels(), axes.get_xticklabels())
    ]


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def test_attention_of_one_sentence(tmp_path):
    weights = np.random.default_rng(0).random((5, 7)).astype("float32")
    queries, keys = ["Das", "Mädchen", "läuft"], ["the", " girl", "$runs$", "off", "."]
    figure = attention(ops.convert_to_tensor(weights), queries, keys, "Übersetzung")
    (axes,) = panels(figure)
    assert ticks(axes) == [queries, ["the", "▁girl", *keys[2:]]]
    assert figure.get_suptitle() == "Übersetzung" and axes.get_title() == ""
    picture = axes.images[0]
    np.testing.assert_array_equal(picture.get_array(), weights[:3, :5])
    assert picture.get_clim() == (0, weights[:3, :5].max())
    assert to_hex(picture.cmap(0.0)) == "#ffffff"
    figure.savefig(tmp_path / "picture.png")
    # Words are above the picture; the first output word is at the top.
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert min(box.y0 for box in boxes) >= axes.get_window_extent().y1
    heights = [label.get_window_extent().y0 for label in axes.get_yticklabels()]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.backend_neutral
def test_attention_of_heads_and_layers():
    rng = np.random.default_rng(1)
    words = ["a", "b", "c"]
    heads = rng.random((7, 3, 3))
    drawn = panels(attention(heads, words, words))
    assert [axes.get_title() for axes in drawn] == [f"head {i}" for i in range(1, 8)]
    layers = rng.random((2, 3, 4, 3))
    drawn = panels(attention(layers, words, words))
    names = [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2, 3)]
    assert [axes.get_title() for axes in drawn] == names
    for i, axes in enumerate(drawn):
        np.testing.assert_allclose(axes.images[0].get_array(), layers[i // 3, i % 3, :3], 1e-6)
        assert axes.images[0].get_clim() == pytest.approx((0, layers[:, :, :3].max()))
        # Words are only at the outer left and top.
        assert ticks(axes) == [words if i % 3 == 0 else [], words if i < 3 else []]


@pytest.mark.backend_neutral
def test_attention_omits_labels_too_small_to_read():
    (axes,) = panels(attention(np.eye(170), ["w"] * 170, ["w"] * 170))
    assert ticks(axes) == [[], []]
    (axes,) = panels(
        attention(np.zeros((2, 2)), ["a", "b"], ["a", "b"])
    )  # all white, and no warning
    assert axes.images[0].get_clim() == (0, 1)


@pytest.mark.backend_neutral
def test_colours_of_weights_darken_evenly():
    rgb = np.array([to_rgb(colour) for colour in WEIGHT_COLOURS])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16  # CIE L*
    steps = -np.diff(lightness)
    assert lightness[0] == pytest.approx(100) and 9 < steps.min() and steps.max() < 14


@pytest.mark.backend_neutral
def test_bad_weights_are_explained():
    with pytest.raises(ValueError, match=r"of one sentence: \(T, S\).*shape \(2,\)"):
        attention(np.ones(2), ["a"], ["a"])
    with pytest.raises(ValueError, match=r"needs its weight.*2 query and 3 key.*\(4, 2\)"):
        attention(np.ones((4, 2)), ["a"] * 2, ["a"] * 3)
    for queries, keys in (([], ["a"]), (["a"], [])):
        with pytest.raises(ValueError, match="nothing to draw"):
            attention(np.ones((4, 4)), queries, keys)
    weights = np.ones((3, 3))
    weights[2, 2] = np.nan
    with pytest.raises(ValueError, match="numbers of at least 0.*nan"):
        attention(weights, ["a"] * 3, ["a"] * 3)
    assert attention(weights, ["a"] * 2, ["a"] * 3)  # padding may hold anything
    with pytest.raises(ValueError, match="from -1.0 to 1.0"):
        attention([[1.0, -1.0]], ["a"], ["a", "b"])


@pytest.mark.backend_neutral
def test_lines_are_labelled_at_their_ends(tmp_path):
    curves = {
        "recurrent": ([16, 32, 64], [20, 41, 80], None),
        "Transformer": ([16, 32, 64], np.array([9, 10, 14]), [1, 1, 2]),
    }
    figure = lines(curves, "length", "ms", "Step time", log_x=True, log_y=True)
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")) == (
        "length",
        "ms",
        "Step time",
    )
    assert not figure.legends
    for text, line, (name, (x, mean, _)), (colour, marker) in zip(
        axes.texts, axes.lines, curves.items(), CURVE_STYLES, strict=False
    ):
        assert (text.get_text(), text.get_color()) == (name, line.get_color())
        assert (line.get_color(), line.get_marker()) == (colour, marker)
        assert line.get_xydata().tolist() == [list(p) for p in zip(x, mean, strict=True)]
        assert text.xy == (64, mean[-1])
    (band,) = axes.collections
    box = band.get_datalim(axes.transData)
    assert (box.ymin, box.ymax) == pytest.approx((8, 16))
    assert axes.get_xscale() == axes.get_yscale() == "log"
    figure.savefig(tmp_path / "picture.svg")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "32", "64"]


@pytest.mark.backend_neutral
def test_lines_with_close_ends_get_a_legend():
    x = [10, 20]
    curves = {f"model $x_${i}": (x, [30, 20 + 0.01 * i], [1, 1]) for i in range(9)}
    figure = lines(curves, "words", "BLEU")
    figure.draw_without_rendering()  # a name is no formula
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [f"model $x_${i}" for i in range(8, -1, -1)]  # in the order of curve ends
    axes = figure.axes[0]
    assert not axes.texts
    styles = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
    assert len(styles) == 9
    # A longer curve would run through the name at the end of a shorter one.
    figure = lines({"short": ([1, 2], [1, 1], None), "long": ([1, 9], [1, 1], None)}, "x", "y")
    assert figure.legends
    # Two curves from right to left, whose ends at the largest x are apart.
    figure = lines({"up": ([2, 1], [9, 1], None), "down": ([2, 1], [2, 1], None)}, "x", "y")
    assert [text.xy for text in figure.axes[0].texts] == [(2, 9), (2, 2)]


@pytest.mark.backend_neutral
def test_bad_curves_are_explained():
    with pytest.raises(ValueError, match="nothing to draw"):
        lines({}, "x", "y")
    for curve in (([1, 2], [1], None), ([1, 2], [1, 2], [1]), ([], [], None)):
        with pytest.raises(ValueError, match="as many x as means.*of 'a'"):
            lines({"a": curve}, "x", "y")
    with pytest.raises(ValueError, match="Points must be numbers.*nan.*of 'a'"):
        lines({"a": ([1, 2], [1, float("nan")], None)}, "x", "y")
    with pytest.raises(ValueError, match="positive on a logarithmic axis"):
        lines({"a": ([0, 2], [1, 2], None)}, "x", "y", log_x=True)


@pytest.mark.backend_neutral
def test_mixing_weights_have_a_hatched_panel_per_placement(tmp_path):
    rows = {
        "sst5": {
            "input": {"weights": [0.2, 0.7, 0.1], "gamma": 1.1},
            "output": {"weights": [0.3, 0.35, 0.35], "gamma": 0.9},
        },
        "NER, λ = 1": {"input": {"weights": [0.3, 0.3, 0.2, 0.2], "gamma": 1.0}},
    }
    figure = mixing_weights(rows, title="Mixes")
    before, after = panels(figure)
    assert (before.get_title(), after.get_title()) == ("input", "output")
    assert ticks(before) == [list(rows), ["0", "1", "2", "3"]]
    shown = before.images[0].get_array().filled(np.nan)
    np.testing.assert_array_equal(shown, [[0.2, 0.7, 0.1, np.nan], [0.3, 0.3, 0.2, 0.2]])
    assert before.images[0].get_clim() == (0, 1)
    assert [cell.get_hatch() for cell in before.patches] == ["--", "..", "--", *["--"] * 4]
    assert [cell.get_hatch() for cell in after.patches] == ["--", None, None]
    assert [text.get_text() for text in after.texts] == ["0.30", "0.35", "0.35"]
    figure.savefig(tmp_path / "picture.png")
    (axes,) = panels(mixing_weights({"a": rows["NER, λ = 1"]}, layers=["emb", 1, 2, 3]))
    assert ticks(axes)[1] == ["emb", "1", "2", "3"]


@pytest.mark.backend_neutral
def test_invalid_mixing_weights_are_refused():
    with pytest.raises(ValueError, match="no mix to draw. Received: 1 rows"):
        mixing_weights({"a": {}})
    with pytest.raises(ValueError, match="sum to 1.*'a', input"):
        mixing_weights({"a": {"input": {"weights": [0.5, 0.6], "gamma": 1.0}}})
    mix = {"input": {"weights": [0.5, 0.5], "gamma": 1.0}}
    with pytest.raises(ValueError, match="1 names for 2 layers"):
        mixing_weights({"a": mix}, layers=["one"])


@pytest.mark.backend_neutral
def test_score_by_cost_labels_the_pareto_front(tmp_path):
    rows = [("slow", "4 bit", 0.7, 900), ("quick", "a", 0.5, 2), ("dear", "4 bit", 0.6, 1000),
            ("worse", "a", 0.4, 3), ("middle", "a", 0.6, 40)]  # fmt: skip
    points = [
        {"name": name, "group": group, "score": score, "deviation": 0.01, "cost": cost}
        for name, group, score, cost in rows
    ]
    figure = score_by_cost(points, "a task", "F1", "seconds")
    axes = figure.axes[0]
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["4 bit", "a", "1  quick", "2  middle", "3  slow"]
    assert [text.xy for text in axes.texts] == [(2, 50), (40, 60), (900, 70)]
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "seconds"
    figure.savefig(tmp_path / "picture.svg")
    with pytest.raises(ValueError, match="Received: no points"):
        score_by_cost([])
    with pytest.raises(ValueError, match="Costs must be above 0.*'cost': 0"):
        score_by_cost([points[0] | {"cost": 0}])
