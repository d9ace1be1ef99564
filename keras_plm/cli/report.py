"""The command `report`: tables, plots and one page from result files."""

import sys
from pathlib import Path


def add_report(commands):
    from keras_plm.cli.run import add_import_flag

    text = "make tables, plots or one page from the results of `run` and `layers`"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument(
        "--results", default="results", metavar="DIR", help="folder of results (default results)"
    )
    add_import_flag(parser)
    add_page_flags(parser)
    parser.set_defaults(run=run_report)


def add_page_flags(parser):
    """Adds the flags for the files of a report."""
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")
    parser.add_argument("--markdown", metavar="FILE", help="write the page as Markdown")
    parser.add_argument("--tables", metavar="DIR", help="write each table as .csv and .tex")
    parser.add_argument("--plots", metavar="DIR", help="draw the plots into this folder")
    parser.add_argument(
        "--plot-type", default="png", choices=("png", "svg"), help="type of the plots (default png)"
    )
    parser.add_argument(
        "--attention", metavar="DIR",
        help="show the attention of this encoder, a BERT or a GPT, to the words of --text",
    )  # fmt: skip
    parser.add_argument("--text", metavar="TEXT", help="sentence for --attention")


def check_page_flags(flags):
    """Returns whether the flags ask for a page.

    Raises:
        ValueError: If they ask for attention without a text or without a page.
    """
    page = bool(flags.html or flags.markdown or flags.tables)
    shown = bool(flags.html or flags.markdown)
    if (flags.attention is None) != (flags.text is None) or (flags.attention and not shown):
        raise ValueError(
            "`--attention` needs --text, and --html or --markdown. "
            f"Received: --attention {flags.attention}, --text {flags.text}"
        )
    return page


def write_page(page, flags):
    """Writes the files of a page and prints their names and what the page leaves out."""
    from keras_plm.experiments.report.page import write

    write(page, flags.html, flags.markdown, flags.tables, flags.plots, flags.plot_type)
    print(page.summary())
    for name, why in page.broken.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    for path in (flags.html, flags.markdown, flags.tables, flags.plots):
        if path:
            print(path)


def print_runs(folder, plots=None, plot_type="png"):
    """Prints the table of single runs, and draws a plot of layers for each task.

    Args:
        folder: The folder of results.
        plots: A folder for the plots, or `None`.
        plot_type: "png" or "svg".
    """
    from keras_plm.experiments.report.result_tables import layer_figure, markdown, of_runs
    from keras_plm.experiments.results import read_results

    results, odd = of_runs(read_results(folder))
    print_strays(folder)
    print_odd(odd)
    print(markdown(results))
    if plots:
        read = sorted({r["task"] for r in results if r["method"] == "features"})
        write_plots({task: layer_figure(results, task) for task in read}, plots, plot_type)


def print_strays(folder):
    """Prints the JSON files below a folder of results that are not results, with reasons."""
    from keras_plm.experiments.report.costs import strays

    for path, why in strays(folder).items():
        print(f"{path}: {why}", file=sys.stderr)


def print_odd(odd):
    """Prints the reasons for results that a table leaves out, see `result_tables.of_runs`."""
    for why in odd:
        print(why, file=sys.stderr)


def write_plots(figures, folder, plot_type):
    """Writes `{name: figure}` into a folder and prints the paths."""
    from keras_plm.experiments.report.tables import file_name
    from keras_plm.files.writing import replacing

    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = Path(folder) / f"{file_name(name)}.{plot_type}"
        with replacing(path, f".{plot_type}") as temporary:
            figure.savefig(temporary, dpi=150)
        print(path)


def run_report(flags):
    from keras_plm.experiments.progress import silence_ahead
    from keras_plm.experiments.report.page import Page, looks_of
    from keras_plm.experiments.report.sections import section_of_runs

    page = check_page_flags(flags)
    silence_ahead(f"Reading {flags.results}")
    if not page:
        print_runs(flags.results, flags.plots, flags.plot_type)
        return
    looked = looks_of(flags.attention, flags.text) if flags.attention else None
    write_page(Page(flags.results, [section_of_runs(flags.results)], attention=looked), flags)
