"""Pictures are figures, drawn from plain numbers."""

import pytest

from keras_plm.plots import score_by_layer

TABLE = [
    {"layers": "last", "mean": 0.5, "deviation": 0.02},
    {"layers": "concat_last_four", "mean": 0.6, "deviation": 0.01},
]


def test_scores_by_layer(tmp_path):
    figure = score_by_layer(TABLE, "a task", "F1", baselines={"fine-tuned": 0.7})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["last", "concat last four"]
    points = axes.lines[0].get_xydata()
    assert points[:, 0].tolist() == [50, 60]
    for name in ("picture.png", "picture.svg"):
        figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        score_by_layer([])
