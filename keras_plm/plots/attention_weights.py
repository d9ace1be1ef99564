"""Plots of attention weights."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor, as_list
from keras_plm.plots._figure import WEIGHT_COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    >>> import numpy as np
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
    figure = new_figure(
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
