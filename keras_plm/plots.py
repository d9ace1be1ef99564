"""Pictures as matplotlib figures: returned, so that the caller shows or saves them."""

import itertools


def _figure(width, height):
    # Without pyplot, so that no window system is needed and nothing stays open.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def score_by_layer(table, title="", metric="score", baselines=None):
    """Dots of the score of each choice of layers, with the deviation between seeds.

    Args:
        table: Rows with `layers`, `mean` and `deviation`, as `transfer.compare_layers` gives.
        title: Above the picture.
        metric: What the score is, under its axis.
        baselines: A dict of names and scores drawn as lines: fine-tuning, an untrained encoder.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If the table is empty.
    """
    if not table:
        raise ValueError("There is nothing to draw. Received: an empty table")
    figure = _figure(7, 1.6 + 0.32 * len(table))
    axes = figure.add_subplot()
    names = [row["layers"].replace("_", " ") for row in table]
    places = range(len(table))
    axes.errorbar(
        [100 * row["mean"] for row in table],
        places,
        xerr=[100 * row["deviation"] for row in table],
        fmt="o",
        color="#1f5a96",
        ecolor="#9db8d3",
        elinewidth=2,
        capsize=3,
        zorder=3,
    )
    colours = ("#c1481c", "#5b8c2a", "#7a4ea3", "#777777")
    lines = zip(itertools.cycle(colours), (baselines or {}).items(), strict=False)
    for colour, (name, score) in lines:
        axes.axvline(100 * score, color=colour, linestyle="--", linewidth=1.2, label=name)
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.set_xlabel(metric)
    axes.set_title(title, fontsize=11, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if baselines:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
