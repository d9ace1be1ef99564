"""The commands `report` (tables, pictures, README's parts, one page of all) and `claims`."""

import sys
from pathlib import Path

from keras_plm.experiments.flags import named

HERE = Path(__file__).parent


def add_report(commands):
    text = "tables and pictures from result files, or all of them as one page"
    parser = commands.add_parser("report", help=text, description=text)
    parser.add_argument(
        "--suite", metavar="NAME", help="(default first; with --html, --markdown, --tables all)"
    )
    parser.add_argument("--scale", metavar="NAME", help="of a suite that has scales")
    parser.add_argument(
        "--results", default=str(HERE / "results"), metavar="DIR", help="where suites are kept"
    )
    parser.add_argument("--readme", action="store_true", help="put the tables in README.md")
    parser.add_argument("--html", metavar="FILE", help="write one page that needs nothing else")
    parser.add_argument("--markdown", metavar="FILE", help="write the same as Markdown")
    parser.add_argument("--tables", metavar="DIR", help="write each table as .csv and .tex")
    parser.add_argument("--pictures", metavar="DIR", help="draw its pictures")
    parser.add_argument(
        "--picture-type", default="png", choices=("png", "svg"), help="(default png)"
    )
    parser.add_argument(
        "--attention", metavar="DIR", help="on the page: where the words of --text look in this "
        "encoder, a BERT or a GPT",
    )  # fmt: skip
    parser.add_argument("--text", metavar="TEXT", help="a sentence for --attention")
    parser.set_defaults(run=run_report)


def run_page(flags):
    """Writes the page, and says what it left out."""
    from benchmarks.report import page_of
    from keras_plm.experiments.progress import silence_ahead
    from keras_plm.experiments.report.page import write

    if flags.readme:
        raise ValueError("README has no page: leave out --readme. Received: --readme")
    silence_ahead("Reading all results, comparing them and drawing, for minutes")
    attention = None if flags.attention is None else (flags.attention, flags.text)
    page = page_of(flags.results, flags.suite, flags.scale, attention)
    write(page, flags.html, flags.markdown, flags.tables, flags.pictures, flags.picture_type)
    print(page.summary())
    for name, why in page.broken.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    for path in (flags.html, flags.markdown, flags.tables, flags.pictures):
        if path:
            print(path)


def pass_over(folder):
    """Names the JSON files of others below a folder of results."""
    from keras_plm.experiments.report.costs import strays

    for path, why in strays(folder).items():
        print(f"{path}: {why}", file=sys.stderr)


def run_report(flags):
    from benchmarks.speed.tables import speed_tables
    from benchmarks.suites import SUITES, compare_encoders, folder
    from keras_plm.experiments.progress import silence_ahead
    from keras_plm.experiments.report.result_tables import (
        into_readme,
        layer_figure,
        markdown,
    )
    from keras_plm.experiments.results import marked, read_results

    root, tables, whole = Path(flags.results), {}, flags.html or flags.markdown or flags.tables
    if (flags.attention is None) != (flags.text is None) or (flags.attention and not whole):
        raise ValueError(
            "Attention is shown on a page, of one text: give --attention, --text, and --html or "
            f"--markdown. Received: --attention {flags.attention}, --text {flags.text}"
        )
    if whole and flags.suite is None:
        return run_page(flags)
    there = [path.name for path in sorted(root.glob("*/"))]
    if flags.suite is None and there and "first" not in there:
        raise ValueError(
            f"--suite names what is shown, here one of: {', '.join(there)}. Received: no --suite"
        )
    flags.suite = flags.suite or "first"
    if flags.scale is not None:
        if flags.suite not in SUITES:
            raise ValueError(
                f"Only a whole --suite has scales: {', '.join(SUITES)}. "
                f"Received: --suite {flags.suite} --scale {flags.scale}"
            )
        named(SUITES[flags.suite].scales, flags.scale, "scale")
    kept = folder(root, flags.suite, flags.scale)
    marks = {"first": "results", "words": "words"}  # where README shows runs of single tasks
    if not kept.is_dir():
        named(dict.fromkeys((*SUITES, *marks, *there)), flags.suite, "suite")
    if flags.readme and flags.suite not in (*marks, *SUITES):
        raise ValueError(
            f"README shows the suites {', '.join((*marks, *SUITES))}. "
            f"Received: --suite {flags.suite} --readme"
        )
    if whole:
        return run_page(flags)
    silence_ahead(f"Reading {kept} and comparing what is there, up to minutes")
    pass_over(kept)
    if flags.suite in SUITES:
        tables[marked(flags.suite, flags.scale)] = SUITES[flags.suite].markdown(kept)
    else:
        results = read_results(kept)
        tables[marks.get(flags.suite, "results")] = markdown(results)
        if flags.readme:
            tables |= speed_tables(root) | {"encoders": compare_encoders.markdown(root)}
    if flags.scale == "test":
        print("Scale test: small models, whose numbers mean nothing.\n")
    for mark, table in tables.items():
        if flags.readme:
            changed = into_readme(mark, table, HERE.parent / "README.md")
            print(f"README.md, {mark}: {'a new table' if changed else 'up to date'}")
        else:
            print(table)
    if flags.pictures:
        if flags.suite in SUITES:
            pictures = SUITES[flags.suite].figures(kept)
        else:
            read = sorted({r["task"] for r in results if r["method"] == "features"})
            pictures = {task: layer_figure(results, task) for task in read}
        Path(flags.pictures).mkdir(parents=True, exist_ok=True)
        for name, figure in pictures.items():
            path = Path(flags.pictures) / f"{name}.{flags.picture_type}"
            figure.savefig(path, dpi=150)
            print(path)


def add_claims(commands):
    text = "which published orderings the results reproduce, and how sure that is"
    parser = commands.add_parser("claims", help=text, description=text)
    parser.add_argument("--suite", metavar="NAME", help="those that rest on one suite")
    parser.add_argument(
        "--results", default=str(HERE / "results"), metavar="DIR", help="where suites are kept"
    )
    parser.add_argument("--out", metavar="FILE", help="also write a JSON file")
    parser.add_argument("--markdown", action="store_true", help="as README shows them")
    parser.add_argument(
        "--readme", action="store_true", help="put them in README.md, and all in claims.md"
    )
    parser.add_argument(
        "--resamples", type=int, default=10_000, metavar="N", help="(default 10000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    parser.set_defaults(run=run_claims)


def run_claims(flags):
    from benchmarks.claims import judge
    from benchmarks.claims import verdicts as verdicts_of
    from benchmarks.claims.match import names_of_suites
    from keras_plm.experiments.progress import silence_ahead
    from keras_plm.experiments.report.result_tables import into_readme
    from keras_plm.files.writing import write_text

    if flags.suite is not None:
        named(dict.fromkeys(names_of_suites()), flags.suite, "suite")
        if flags.readme:
            raise ValueError(
                f"README shows the claims of all suites. Received: --suite {flags.suite} --readme"
            )
    if flags.resamples < 1000:
        raise ValueError(
            f"`--resamples` must be 1000 or more, for p values. Received: {flags.resamples}"
        )
    if flags.seed < 0:
        raise ValueError(f"`--seed` must be 0 or more. Received: {flags.seed}")
    silence_ahead(f"Resampling {flags.resamples:,} times what each claim rests on, for minutes")
    found = verdicts_of(flags.results, flags.resamples, flags.seed)
    pass_over(flags.results)
    if flags.suite is not None:
        found = judge.of_suite(found, flags.suite)
    if flags.readme and (wrong := next(iter(judge.left_out(found)), None)):
        raise ValueError(f"README takes verdicts of whole results alone. {wrong}")
    if flags.readme:
        brief = judge.markdown(found, brief=True)
        changed = into_readme("claims", brief, HERE.parent / "README.md")
        print(f"README.md, claims: {'a new table' if changed else 'up to date'}")
        whole = Path(flags.results) / "claims.md"
        write_text(whole, judge.markdown(found))
        print(f"{whole}: all that were run")
    else:
        print(judge.markdown(found) if flags.markdown else judge.text(found))
    for why, count in judge.left_out(found).items():
        claims = "1 claim" if count == 1 else f"{count} claims"
        print(f"left out, so that {claims} read as not run: {why}", file=sys.stderr)
    if flags.out:
        judge.write(flags.out, found, flags.resamples, flags.seed)
        print(f"Verdicts: {flags.out}")
