"""The command `claims`: judges published orderings by the results."""

import sys
from pathlib import Path

from benchmarks import RESULTS


def add_claims(commands):
    text = "test which published orderings the results reproduce"
    parser = commands.add_parser("claims", help=text, description=text)
    parser.add_argument("--suite", metavar="NAME", help="judge only claims of this suite")
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="read the results of all suites from this folder (default benchmarks/results)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="also write a JSON file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument(
        "--docs", action="store_true",
        help="update the table in docs/results and claims.md in the folder of results",
    )  # fmt: skip
    parser.add_argument(
        "--resamples",
        type=int,
        default=10_000,
        metavar="N",
        help="resample so often (default 10000)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="resample with this seed (default 0)"
    )
    parser.set_defaults(run=run_claims)


def run_claims(flags):
    from benchmarks.claims import judge
    from benchmarks.claims import verdicts as verdicts_of
    from benchmarks.claims.match import names_of_suites
    from keras_plm.cli.report import print_strays
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.progress import silence_ahead

    if flags.suite is not None:
        named(dict.fromkeys(names_of_suites()), flags.suite, "suite")
        if flags.docs:
            raise ValueError(
                "`--docs` takes the claims of all suites: omit --suite. "
                f"Received: --suite {flags.suite} --docs"
            )
    if flags.resamples < 1000:
        raise ValueError(
            f"`--resamples` must be 1000 or more, for p values. Received: {flags.resamples}"
        )
    if flags.seed < 0:
        raise ValueError(f"`--seed` must be 0 or more. Received: {flags.seed}")
    silence_ahead(
        f"Resampling the results of each claim {flags.resamples:,} times; this takes minutes"
    )
    found = verdicts_of(flags.results, flags.resamples, flags.seed)
    print_strays(flags.results)
    if flags.suite is not None:
        found = judge.of_suite(found, flags.suite)
    if flags.docs:
        print(update_docs(judge.complete(found), flags.results))
    else:
        print(judge.markdown(found) if flags.markdown else judge.text(found))
    for why, count in judge.left_out(found).items():
        claims = "1 claim" if count == 1 else f"{count} claims"
        print(f"results left out, {claims} shown as not run: {why}", file=sys.stderr)
    if flags.out:
        judge.write(flags.out, found, flags.resamples, flags.seed)
        print(f"Verdicts: {flags.out}")


def update_docs(found, results):
    """Updates the short table in `docs/results`, and `claims.md` with the verdicts of all runs.

    Args:
        found: Verdicts.
        results: Folder of results, for `claims.md`.

    Returns:
        A line of text about the changes.
    """
    from benchmarks import pages
    from benchmarks.claims import judge
    from keras_plm.files.writing import write_text

    line = pages.update("claims", judge.markdown(found, brief=True))
    whole = Path(results) / "claims.md"
    write_text(whole, judge.markdown(found))
    return f"{line}; all that were run: {whole}"
