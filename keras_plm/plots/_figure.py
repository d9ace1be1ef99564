"""Colours and an empty figure for all plots."""

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


def new_figure(width, height):
    # Without pyplot: it needs no window system, and no figure stays open.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
