"""The command `claims`: published orderings judged by the results."""

import sys
from pathlib import Path

from benchmarks import README, RESULTS


def add_claims(commands):
    text = "test which published orderings the results reproduce"
    parser = commands.add_parser("claims", help=text, description=text)
    parser.add_argument("--suite", metavar="NAME", help="judge only claims of this suite")
    parser.add_argument(
        "--results", default=RESULTS, metavar="DIR",
        help="folder of the results of all suites (default benchmarks/results)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write a JSON file, too")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--readme", action="store_true", help="update README.md and claims.md")
    parser.add_argument(
        "--resamples",
        type=int,
        default=10_000,
        metavar="N",
        help="number of resamples (default 10000)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the resamples (default 0)"
    )
    parser.set_defaults(run=run_claims)


def run_claims(flags):
    from benchmarks.claims import judge
    from benchmarks.claims import verdicts as verdicts_of
    from benchmarks.claims.match import names_of_suites
    from keras_plm.cli.report import print_strays
    from keras_plm.experiments.flags import named
    from keras_plm.experiments.progress import silence_ahead
    from keras_plm.experiments.report.result_tables import into_readme
    from keras_plm.files.writing import write_text

    if flags.suite is not None:
        named(dict.fromkeys(names_of_suites()), flags.suite, "suite")
        if flags.readme:
            raise ValueError(
                "`--readme` takes the claims of all suites. "
                f"Received: --suite {flags.suite} --readme"
            )
    if flags.resamples < 1000:
        raise ValueError(
            f"`--resamples` must be 1000 or more, for p values. Received: {flags.resamples}"
        )
    if flags.seed < 0:
        raise ValueError(f"`--seed` must be 0 or more. Received: {flags.seed}")
    silence_ahead(f"Resampling the results of each claim {flags.resamples:,} times, for minutes")
    found = verdicts_of(flags.results, flags.resamples, flags.seed)
    print_strays(flags.results)
    if flags.suite is not None:
        found = judge.of_suite(found, flags.suite)
    if flags.readme and (wrong := next(iter(judge.left_out(found)), None)):
        raise ValueError(f"README takes only verdicts of complete results. {wrong}")
    if flags.readme:
        brief = judge.markdown(found, brief=True)
        changed = into_readme("claims", brief, README)
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
