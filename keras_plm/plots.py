"""Plots as matplotlib figures, for the caller to show or save."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor, as_list, as_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# White to navy in eight equal steps of CIELAB: twice the weight looks twice as dark.
WEIGHT_COLOURS = (
    "#ffffff", "#d5e7f6", "#aacdeb", "#83b1de", "#5e96d2", "#3878bd", "#165699", "#033871",
    "#0b1f4b",
)  # fmt: skip
# A colour and a marker per position. Colour-blind readers can tell the colours apart (Okabe and Ito
# 2008; light colours are darkened for a white page). The markers also work in black and white.
CURVE_STYLES = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#b5568f", "D"),
    ("#333333", "v"),
    ("#c28a00", "P"),
    ("#4aa3d8", "X"),
    ("#7a4a1e", "*"),
)


def _figure(width, height):
    # Without pyplot: it needs no window system, and no figure stays open.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
    intervals = any(row.get("interval") for row in table)
    figure = _figure(7, 1.6 + max(0.32, 0.12 * len(encoders)) * len(lines))
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
    low, high = row.get("interval") or (row["mean"], row["mean"])
    return max(row["mean"] - low, 0.0), max(high - row["mean"], 0.0)


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
    figure = _figure(7, 3.4 + 0.21 * named)
    axes = figure.add_subplot()
    for i, group in enumerate(groups):
        colour, marker = CURVE_STYLES[i % len(CURVE_STYLES)]
        own = [point for point in points if point["group"] == group]
        axes.errorbar(
            [point["cost"] for point in own],
            [100 * point["score"] for point in own],
            yerr=[100 * point["deviation"] for point in own],
            fmt=marker,
            color=colour,
            elinewidth=0.8,
            markersize=5,
            alpha=0.85,
            label=group,
        )
    places = [(point["cost"], 100 * point["score"]) for point in front]
    axes.plot(*zip(*places, strict=True), color="#777777", linewidth=1, linestyle=":", zorder=1)
    for i, (place, name) in enumerate(zip(places, names, strict=True), 1):
        axes.annotate(
            str(i), place, xytext=(-4, 5), textcoords="offset points", ha="right", fontsize=9
        )
        axes.plot([], [], " ", label=f"{i}  {name}")
    _style_curves(axes, range(99), True, False)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.margins(x=0.05)
    axes.set_xlabel(cost)
    axes.set_ylabel(metric)
    axes.set_title(title, fontsize=11, loc="left")
    handles, labels = axes.get_legend_handles_labels()
    # matplotlib lists the groups (error bars) after the numbered names; groups come first here.
    order = sorted(range(len(labels)), key=lambda i: labels[i][:1].isdigit())
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside lower left",
        frameon=False,
        fontsize=9,
        handletextpad=0.4,
    )
    return figure


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
    figure = _figure(8, 0.9 + 1.5 * len(tasks))
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
                values = [row[name] for row in own if row[name] is not None]
                if values:
                    label = f"{name.replace('_', ' ')} {np.mean(values):.1f}"
                    right.axvline(np.mean(values), linestyle=dashes, color=colour, label=label)
            right.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1.05))
        right.set_ylabel("F1 points")
    for axis in axes[-1]:
        axis.set_xlabel("layer (0: embeddings)")
        axis.set_xticks(places)
    figure.suptitle(title)
    return figure


def attention(
    weights: Tensor, query_tokens: Sequence[str], key_tokens: Sequence[str], title: str = ""
) -> "Figure":
    """Plots attention weights as heat maps: darker cells have more weight.

    All panels share one scale from white at 0 to the largest weight. Tokens too small to read are
    not drawn. A space in a token is drawn as ▁. Compare Figure 3 of Bahdanau et al. 2015,
    https://arxiv.org/abs/1409.0473.

    Args:
        weights: Weights of one sentence: `(T, S)` for one panel, `(N, T, S)` for a panel per head,
            `(L, N, T, S)` for a row of panels per layer. Weights of padding are not drawn.
        query_tokens: Tokens of the rows.
        key_tokens: Tokens of the columns.
        title: Title of the plot.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: If the rank is invalid, a token has no weight, there is no token, or a weight is
            negative or not a number.

    >>> figure = attention(np.eye(2), ["das", "Haus"], ["the", "house"])
    >>> len(figure.axes) >= 1
    True
    """
    from matplotlib.colors import LinearSegmentedColormap

    weights = ops.convert_to_numpy(weights)
    sides = {"query_tokens": query_tokens, "key_tokens": key_tokens}
    queries, keys = (
        [token.replace(" ", "▁") for token in as_list(side, name, "tokens")]
        for name, side in sides.items()
    )
    if weights.ndim not in (2, 3, 4):
        raise ValueError(
            "`weights` must be of one sentence: (T, S), (N, T, S) with heads, or (L, N, T, S) with "
            f"layers and heads. Received: shape {weights.shape}"
        )
    height, width = len(queries), len(keys)
    counts = f"Received: {height} query and {width} key tokens, weights of shape {weights.shape}"
    if not height or not width or not weights.size:
        raise ValueError(f"There is nothing to draw. {counts}")
    if height > weights.shape[-2] or width > weights.shape[-1]:
        raise ValueError(f"Every token needs its weight. {counts}")
    weights = weights[..., :height, :width].astype("float32")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            "Attention weights must be numbers of at least 0. "
            f"Received: weights from {weights.min()} to {weights.max()}"
        )

    names = [""]
    if weights.ndim == 3:
        heads = len(weights)
        names = [f"head {i + 1}" for i in range(heads)]
        # Three or four in a row, whichever leaves fewer places empty.
        columns = heads if heads < 5 else min((4, 3), key=lambda n: -heads % n)
    elif weights.ndim == 4:
        layers, columns = weights.shape[:2]
        names = [f"layer {i + 1}, head {j + 1}" for i in range(layers) for j in range(columns)]
    else:
        columns = 1
    panels = weights.reshape(-1, height, width)
    rows = -(-len(panels) // columns)

    # In inches. Labels of 5 points or more are legible; cells are slightly higher.
    widest = 12 if len(panels) == 1 else max(1.6, 9 / columns)
    cell = min(0.3, widest / max(height, width))
    size = min(10, 0.8 * 72 * cell)
    legible = size >= 5
    longest = [legible * 0.0085 * size * max(map(len, tokens)) for tokens in (queries, keys)]
    figure = _figure(
        columns * (width * cell + 0.08) + longest[0] + 1.1,
        rows * (height * cell + 0.28) + longest[1] + (0.4 if title else 0.15),
    )
    figure.set_layout_engine("compressed")
    colours = LinearSegmentedColormap.from_list("weights", WEIGHT_COLOURS)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.remove()
            continue
        picture = axes.imshow(
            panels[place], cmap=colours, vmin=0, vmax=weights.max() or 1, interpolation="nearest"
        )
        axes.set_title(names[place], fontsize=9)
        axes.tick_params(length=0, labelsize=size)
        axes.set_xticks([])
        axes.set_yticks([])
        if legible and place < columns:
            axes.xaxis.tick_top()
            axes.set_xticks(range(width), keys, rotation=90, parse_math=False)
        if legible and place % columns == 0:
            axes.set_yticks(range(height), queries, parse_math=False)
        if legible:
            axes.set_xticks(np.arange(0.5, width - 1), minor=True)
            axes.set_yticks(np.arange(0.5, height - 1), minor=True)
            axes.grid(which="minor", color="#e4e4e4", linewidth=0.4)
            axes.tick_params(which="minor", length=0)
        for spine in axes.spines.values():
            spine.set(color="#999999", linewidth=0.6)
    bar = figure.colorbar(
        picture,
        ax=figure.axes,
        label="weight",
        shrink=min(1, 3 / (rows * height * cell)),
        aspect=25,
        pad=0.15 / figure.get_figwidth(),
    )
    bar.outline.set(color="#999999", linewidth=0.6)
    if title:
        figure.suptitle(title, fontsize=11, x=0.05 / figure.get_figwidth(), ha="left")
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
    figure = _figure(1.2 + 0.075 * longest + 0.6 * count * len(places), 1.4 + 0.4 * len(rows))
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
    figure = _figure(6.5, 4)
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
            line.get_xydata()[-1],
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
    names = sorted(drawn, key=lambda name: -drawn[name].get_ydata()[-1])
    figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside right upper",
        frameon=False,
        fontsize=9,
    )
