"""Plots of scores as curves: over the cost of methods, and over any number."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_plm.plots._figure import CURVE_STYLES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_by_cost(
    points: Sequence[Mapping[str, Any]],
    title: str = "",
    metric: str = "score",
    cost: str = "seconds",
) -> "Figure":
    """Plots scores against costs, with the names of the points on the Pareto front.

    Args:
        points: Rows with `name`, `group` (a colour and a marker), `score` and `deviation` in
            [0, 1], and `cost` above 0.
        title: Title of the plot.
        metric: Label of the score axis.
        cost: Label of the cost axis, which is logarithmic.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If there is no point, or a cost is not larger than 0.

    >>> points = [
    ...     {"name": "frozen", "group": "BERT", "score": 0.8, "deviation": 0.01, "cost": 10.0},
    ...     {"name": "fine-tuned", "group": "BERT", "score": 0.9, "deviation": 0.01, "cost": 100.0},
    ... ]
    >>> score_by_cost(points, cost="seconds").axes[0].get_xscale()
    'log'
    """
    from matplotlib.ticker import LogLocator

    if not points:
        raise ValueError("There is nothing to draw. Received: no points")
    if min(point["cost"] for point in points) <= 0:
        raise ValueError(
            "Costs must be above 0 on a logarithmic axis. "
            f"Received: {min(points, key=lambda point: point['cost'])}"
        )
    front = []
    for point in sorted(points, key=lambda point: (point["cost"], -point["score"])):
        if not front or point["score"] > front[-1]["score"]:
            front.append(point)
    groups = list(dict.fromkeys(point["group"] for point in points))
    names = [textwrap.fill(point["name"], 95) for point in front]
    named = sum(name.count("\n") + 1 for name in names) + len(groups)
    figure = new_figure(7, 3.4 + 0.21 * named)
    axes = figure.add_subplot()
    drawn = []  # groups, then the numbered names
    for i, group in enumerate(groups):
        colour, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        own = [point for point in points if point["group"] == group]
        points_of_group = axes.errorbar(
            [point["cost"] for point in own],
            [100 * point["score"] for point in own],
            yerr=[100 * point["deviation"] for point in own],
            fmt=marker,
            color=colour,
            elinewidth=0.8,
            markersize=5,
            alpha=0.85,
        )
        drawn.append((points_of_group, group))
    places = [(point["cost"], 100 * point["score"]) for point in front]
    axes.plot(*zip(*places, strict=True), color="#777777", linewidth=1, linestyle=":", zorder=1)
    for i, (place, name) in enumerate(zip(places, names, strict=True), 1):
        axes.annotate(
            str(i), place, xytext=(-4, 5), textcoords="offset points", ha="right", fontsize=9
        )
        drawn += [(line, f"{i}  {name}") for line in axes.plot([], [], " ")]
    _style_curves(axes, range(99), True, False)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.margins(x=0.05)
    axes.set_xlabel(cost)
    axes.set_ylabel(metric)
    axes.set_title(title, fontsize=11, loc="left")
    figure.legend(
        *zip(*drawn, strict=True),
        loc="outside lower left",
        frameon=False,
        fontsize=9,
        handletextpad=0.4,
    )
    return figure


def lines(
    curves: Mapping[str, tuple[Any, Any, Any]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
) -> "Figure":
    """Plots curves with markers and a band of the deviation, with names at their right ends.

    If names would overlap, a legend replaces them. Colour and marker follow the position in
    `curves`.

    Args:
        curves: A dict from a name to `(x, mean, deviation)`; the deviation may be `None`.
        xlabel, ylabel: Labels of the axes.
        title: Title of the plot.
        log_x, log_y: If True, the axis is logarithmic.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If there is no curve or no point, lengths differ, or a number is missing or not
            positive on a logarithmic axis.

    >>> figure = lines({"BERT": ([1, 2], [0.5, 0.7], None)}, xlabel="epochs", ylabel="accuracy")
    >>> figure.axes[0].get_xlabel()
    'epochs'
    """
    if not curves:
        raise ValueError("There is nothing to draw. Received: no curves")
    figure = new_figure(6.5, 4)
    axes = figure.add_subplot()
    drawn = {}
    for i, (name, (x, mean, deviation)) in enumerate(curves.items()):
        band = np.zeros(len(mean)) if deviation is None else deviation
        x, mean, band = (np.asarray(values, "float64") for values in (x, mean, band))
        if not len(x) == len(mean) == len(band) or not len(x):
            raise ValueError(
                "A curve must have as many x as means and deviations, and at least one. "
                f"Received: {len(x)}, {len(mean)} and {len(band)} of {name!r}"
            )
        for values, logarithmic in ((x, log_x), (mean, log_y), (band, False)):
            if not np.isfinite(values).all() or (logarithmic and values.min() <= 0):
                raise ValueError(
                    "Points must be numbers, positive on a logarithmic axis; leave out others. "
                    f"Received: {values.tolist()} of {name!r}"
                )
        colour, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        dash = ("-", "--", ":")[i // len(CURVE_STYLES) % 3]
        style = dict(color=colour, marker=marker, linestyle=dash)
        (drawn[name],) = axes.plot(
            x,
            mean,
            **style,
            linewidth=1.6,
            markersize=5,
            markeredgecolor="white",
            markeredgewidth=0.6,
        )
        if deviation is not None:
            axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.1, linewidth=0)
    all_x = sorted({float(value) for x, _, _ in curves.values() for value in x})
    _style_curves(axes, all_x, log_x, log_y)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=11, loc="left")
    _name_curves(figure, axes, drawn)
    return figure


def _style_curves(axes, all_x, log_x, log_y):
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    if log_x:
        axes.set_xscale("log")
        if len(all_x) <= 12:  # lengths such as 16, 32, 64 rather than powers of ten
            axes.set_xticks(all_x)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.margins(x=0.02)  # names begin at the end of the grid
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _name_curves(figure, axes, drawn):
    labels = {
        name: axes.annotate(
            name,
            max(line.get_xydata(), key=lambda point: point[0]),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            fontsize=9,
            annotation_clip=False,
            parse_math=False,
        )
        for name, line in drawn.items()
    }
    figure.draw_without_rendering()  # computes all positions and boxes
    boxes = {name: label.get_window_extent() for name, label in labels.items()}
    collide = any(a.overlaps(b) for a, b in itertools.combinations(boxes.values(), 2)) or any(
        line.get_path().transformed(line.get_transform()).intersects_bbox(box, filled=False)
        for name, box in boxes.items()
        for other, line in drawn.items()
        if other != name
    )
    if not collide:
        return
    for label in labels.values():
        label.remove()
    names = sorted(drawn, key=lambda name: -labels[name].xy[1])
    legend = figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
