"""Plots of what the layers of an encoder hold: scores, edge probes and learned mixes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_plm.files.sequences import as_names
from keras_plm.plots._figure import CURVE_STYLES, WEIGHT_COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_by_layer(
    table: Sequence[Mapping[str, Any]],
    title: str = "",
    metric: str = "score",
    baselines: Mapping[str, float | tuple[float, float, float]] | None = None,
    encoders: Sequence[str] | None = None,
    best: str | None = None,
) -> "Figure":
    """Plots the score of each choice of layers, with its interval or the deviation between seeds.

    Args:
        table: Rows with `layers`, `mean` and `deviation`, as from `transfer.compare_layers`. Rows
            with the same layers and different values of `encoder` share a line. A row may have an
            `interval`, the ends of a 95 % interval. Bars then show it; rows without one have none.
        title: Title of the plot.
        metric: Label of the score axis.
        baselines: A dict from names to scores to draw as lines, such as fine-tuning. A tuple of a
            score and the ends of its interval is a line in a band.
        encoders: All encoders in the order of their colours, for the same colours in several plots;
            by default those of the table.
        best: `layers` of the row that is best on the dev set, to set in bold.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If the table is empty, has no row `best`, or has an encoder that is not among
            `encoders`.

    >>> table = [{"layers": "last", "mean": 0.8, "deviation": 0.01, "scores": [0.79, 0.81]}]
    >>> figure = score_by_layer(table, metric="accuracy")
    >>> figure.axes[0].get_xlabel()
    'accuracy\\nbars: ± deviation between seeds'
    """
    if not table:
        raise ValueError("There is nothing to draw. Received: an empty table")
    found = list(dict.fromkeys(row.get("encoder", "") for row in table))
    encoders = None if encoders is None else as_names(encoders, "encoders")
    if not set(found) <= set(encoders or found):
        raise ValueError(
            f"`encoders` must name all of the table, {found}. Received: encoders={list(encoders)}"
        )
    encoders = found if encoders is None else encoders
    lines = list(dict.fromkeys(row["layers"] for row in table))
    if best is not None and best not in lines:
        raise ValueError(f"`best` must be among the layers {lines}. Received: best={best!r}")
    intervals = any(row.get("interval") is not None for row in table)
    figure = new_figure(7, 1.6 + max(0.32, 0.12 * len(encoders)) * len(lines))
    axes = figure.add_subplot()
    for i, encoder in enumerate(encoders):
        own = [row for row in table if row.get("encoder", "") == encoder]
        apart = 0.16 * (i - (len(encoders) - 1) / 2)
        colour, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        if own:
            axes.errorbar(
                [100 * row["mean"] for row in own],
                [lines.index(row["layers"]) + apart for row in own],
                xerr=100 * np.array([_bar(row, intervals) for row in own]).T,
                fmt=marker,
                color=colour,
                elinewidth=1.4,
                markersize=5,
                label=encoder or None,
            )
    colours = itertools.cycle(("#c1481c", "#5b8c2a", "#7a4ea3", "#777777"))
    for name, score in (baselines or {}).items():
        score, *ends = np.ravel(score)
        line = axes.axvline(
            100 * score, color=next(colours), linestyle="--", linewidth=1.2, label=name, zorder=1
        )
        if ends:
            axes.axvspan(*(100 * np.array(ends)), color=line.get_color(), alpha=0.1, linewidth=0)
    axes.set_yticks(range(len(lines)), lines)
    if best is not None:
        axes.get_yticklabels()[lines.index(best)].set_fontweight("bold")
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(axis="x", color="#e4e4e4")
    if len(encoders) > 1:
        for place in range(1, len(lines)):
            axes.axhline(place - 0.5, color="#f0f0f0", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    notes = []
    bands = " and bands" if len(axes.patches) > 1 else " and band" if axes.patches else ""
    if intervals:
        notes.append(f"bars{bands}: 95 % intervals")
    elif any(row["deviation"] for row in table):
        notes.append("bars: ± deviation between seeds")
    if best is not None:
        notes.append("bold: best on the dev set")
    axes.set_xlabel("\n".join([metric, *(["; ".join(notes)] if notes else [])]))
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if baselines or any(encoders):
        columns = 2 if baselines else min(4, len(encoders))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure


def _bar(row, intervals):
    """Returns the lengths of a bar to the left and right of the mean."""
    if not intervals:
        return row["deviation"], row["deviation"]
    interval = row.get("interval")
    low, high = (row["mean"], row["mean"]) if interval is None else interval
    return max(row["mean"] - low, 0.0), max(high - row["mean"], 0.0)


def edge_probing(table: Sequence[Mapping[str, Any]], title: str = "") -> "Figure":
    """Plots what each layer of an encoder adds for several tasks, by edge probes.

    On the left the score of a probe of each layer, with that of a randomly initialised encoder as
    a dashed line. On the right the gain of each layer in the mixes of the layers up to it, with the
    expected layer and the centre of gravity. Rows of one task are seeds; the plot shows their mean.

    Reference: Tenney et al. 2019, arXiv 1905.05950, figures 1 and 2.

    Args:
        table: Rows from `LayerReport.row`, or from the file of `keras-plm edge-probing`.
        title: Title of the plot.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If the table is empty, or its rows have unequal numbers of layers.

    >>> row = {"task": "roles", "layers": [0.5, 0.7], "cumulative": [0.5, 0.7],
    ...        "expected_layer": 1.0, "centre_of_gravity": 0.6}
    >>> len(edge_probing([row]).axes)
    2
    """
    sizes = {len(row["layers"]) for row in table}
    if len(sizes) != 1:
        raise ValueError(
            "A plot of edge probes needs rows of equal numbers of layers. "
            f"Received: {len(table)} rows of {sorted(sizes)} layers"
        )
    places = np.arange(*sizes)
    tasks = list(dict.fromkeys(row["task"] for row in table))
    figure = new_figure(8, 0.9 + 1.5 * len(tasks))
    axes = figure.subplots(len(tasks), 2, squeeze=False, sharex=True)
    for (left, right), task in zip(axes, tasks, strict=True):
        own = [row for row in table if row["task"] == task and not row.get("random")]
        random = [row for row in table if row["task"] == task and row.get("random")]
        for rows, style in ((own, CURVE_STYLES[0]), (random, ("#777777", None))):
            if rows:
                scores = 100 * np.mean([row["layers"] for row in rows], axis=0)
                line = {"linestyle": "--", "label": "random encoder"}
                line = line if rows is random else {"label": "encoder"}
                left.plot(places, scores, color=style[0], marker=style[1], **line)
        left.set_ylabel("F1")
        left.set_title(task.replace("_", " "), loc="left", fontsize=10)
        if random and task == tasks[0]:
            left.legend(fontsize=8, frameon=False)
        if own:
            gains = 100 * np.diff(np.mean([row["cumulative"] for row in own], axis=0))
            right.bar(
                places[1:], gains, width=0.6, color="#aacdeb", label="gain from adding the layer"
            )
            right.axhline(0, color="#333333", linewidth=0.8)
            marks = (("expected_layer", "-", "#d55e00"), ("centre_of_gravity", ":", "#009e73"))
            for name, dashes, colour in marks:
                values, label = [row[name] for row in own], name.replace("_", " ")
                if None in values:  # undefined for a seed, as in the table
                    right.plot([], [], linestyle=dashes, color=colour, label=f"{label}: none")
                else:
                    label = f"{label} {np.mean(values):.1f}"
                    right.axvline(np.mean(values), linestyle=dashes, color=colour, label=label)
            right.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1.05))
        right.set_ylabel("F1 points")
    for axis in axes[-1]:
        axis.set_xlabel("layer (0: embeddings)")
        axis.set_xticks(places)
    figure.suptitle(title)
    return figure


def mixing_weights(
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]],
    layers: Sequence[str] | None = None,
    title: str = "",
) -> "Figure":
    """Plots the weights of layers in learned mixes as heat maps, a panel for each place of a mix.

    As in the paper, weights below 1/3 have horizontal lines and those above 2/3 have dots.

    Reference: Peters et al. 2018, arXiv 1802.05365, figure 2.

    Args:
        rows: A dict from the name of a row, such as a task, to its mixes by place, as from
            `model.mixing_weights()` or the `mixes` of a result. Rows may differ in their number of
            layers.
        layers: Names of the columns, lowest layer first; by default numbers from 0.
        title: Title of the plot.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If there is no mix, a weight is not in [0, 1], or a layer has no name.

    >>> figure = mixing_weights({"names": {"input": {"weights": [0.2, 0.3, 0.5]}}})
    >>> len(figure.axes) >= 1
    True
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    found = [place for mixes in rows.values() for place in mixes]
    places = [place for place in ("input", "output") if place in found]
    if not places:
        raise ValueError(f"There is no mix to draw. Received: {len(rows)} rows without one")
    weights = {
        place: {name: mixes[place]["weights"] for name, mixes in rows.items() if place in mixes}
        for place in places
    }
    for place, name, shares in ((p, n, w) for p in places for n, w in weights[p].items()):
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-3:
            raise ValueError(
                "The weights of a mix must be fractions that sum to 1. "
                f"Received: {list(shares)} of {name!r}, {place}"
            )
    count = max(len(shares) for of_place in weights.values() for shares in of_place.values())
    layers = list(range(count)) if layers is None else as_names(layers, "layers")
    if len(layers) < count:
        raise ValueError(
            f"Every layer needs a name. Received: {len(layers)} names for {count} layers"
        )
    longest = max(len(name) for name in rows)
    figure = new_figure(1.2 + 0.075 * longest + 0.6 * count * len(places), 1.4 + 0.4 * len(rows))
    colours = LinearSegmentedColormap.from_list("weights", WEIGHT_COLOURS)
    panels = figure.subplots(1, len(places), sharey=True, squeeze=False)[0]
    for axes, place in zip(panels, places, strict=True):
        table = np.full((len(rows), count), np.nan)
        for i, name in enumerate(rows):
            shares = weights[place].get(name, ())
            table[i, : len(shares)] = shares
        picture = axes.imshow(table, cmap=colours, vmin=0, vmax=1, aspect="auto")
        for (i, j), share in np.ndenumerate(table):
            if np.isnan(share):
                continue
            hatch = "--" if share < 1 / 3 else ".." if share > 2 / 3 else None
            light = "#8fa9c4" if share < 0.5 else "#ffffff"
            axes.add_patch(
                Rectangle(
                    (j - 0.5, i - 0.5), 1, 1, fill=False, hatch=hatch, edgecolor=light, linewidth=0
                )
            )
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
            axes.text(j, i, f"{share:.2f}", ha="center", va="center", fontsize=8, bbox=box)
        axes.set_title(place, fontsize=9)
        axes.set_xticks(range(count), [str(name) for name in layers[:count]])
        axes.set_yticks(range(len(rows)), list(rows), parse_math=False)
        axes.set_xlabel("layer, the lowest first")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set(color="#999999", linewidth=0.6)
    bar = figure.colorbar(picture, ax=list(panels), label="weight")
    bar.outline.set(color="#999999", linewidth=0.6)
    if title:
        figure.suptitle(title, fontsize=11, x=0.02, ha="left")
    return figure
