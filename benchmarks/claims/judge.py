"""Verdicts on published orderings: reproduced, contradicted, not separable, not run.

With files of examples next to the results, the difference of a claim's two arms is resampled over
seeds and examples (`statistics.contrast`). With three or more seeds of each arm, p values decide.
They are adjusted by Holm's method among the claims of one published table. Without such files only
seeds are compared. With eight or more of each arm, Welch's t test decides in the same way, for
these test examples. With fewer there is no test. The verdict is then descriptive if each arm has
three or more seeds, all seeds of one arm are above all of the other, and Welch's interval excludes
0. Otherwise it is "not separable".
"""

import math
from collections import Counter

import numpy as np

from benchmarks.claims.match import Results, paired
from keras_plm.experiments.config import Run
from keras_plm.experiments.report.views import trained_on
from keras_plm.experiments.statistics import contrast_of, holm, resampled
from keras_plm.files.writing import write_json

RESAMPLES = 10_000
LEVEL = 0.05
OF_TRAINING = ("precision", "schedule", "bias_correction")  # settings of runs that train an encoder
LEAST, SURE = 3, 8  # seeds needed for any verdict, and for a verdict without examples
# A difference of so many standard errors is detected at LEVEL with power 80 %: 1.96 + 0.84.
SEEN = 2.8
DESCRIPTIVE = " (descriptive)"
VERDICTS = ("reproduced", "contradicted", "reproduced" + DESCRIPTIVE, "contradicted" + DESCRIPTIVE,
            "not separable", "not run")  # fmt: skip
LIMIT = (
    "One pre-trained checkpoint of each encoder was used, so a verdict applies to these "
    "checkpoints, not to another pre-training run of the same kind."
)
RULE = (
    "Effects are in points unless another unit is named. Their 95 % intervals are not adjusted for "
    "the number of claims. Those over seeds only leave out the spread of test examples. The "
    "smallest detectable difference is 2.8 standard errors. The standard error is the interval's "
    "width over 3.92. Four of five such experiments would detect a difference of this size in a "
    "single test; a verdict of a table with several claims needs a larger one. Verdicts use the 5 "
    "% level after Holm's correction among the claims of one published table. The test is a "
    "bootstrap over seeds and examples (three seeds or more) or, where examples were not kept, "
    "Welch's t test (eight seeds or more). With fewer seeds and without examples a verdict is at "
    "most descriptive. It then needs three seeds or more of each side, all seeds of one side above "
    "all of the other, and a Welch interval that excludes 0. Up to one in twenty pairs of equal "
    "methods looks like this by chance, and no correction for the number of claims is applied."
)


def judge(claims, results_root, resamples=RESAMPLES, seed=0):
    """Judges each claim by the results below a folder.

    Args:
        claims: `Claim`s.
        results_root: Folder with the results of all suites.
        resamples: Number of resamples of seeds and examples.
        seed: Seed of the resampling.

    Returns:
        A list of dicts with these keys:

        - `name`, `statement`, `task`, `source`, `suites`, `metric`, `note`
        - `verdict`: one of `VERDICTS`; `basis`: data that the verdict rests on
        - `effect`, `low`, `high`: in points, or in `unit`
        - `detectable`: smallest detectable difference, or `None` where unknown
        - `means`: of the seeds of both arms, in points, or perplexities where lower is better
        - `p`, `adjusted`: p values of tested claims
        - `seeds`: numbers of seeds of both arms
        - `trained`: numbers of training examples of both arms, or `None` where unknown
        - `published`, `on`, `verified`, `conclusion`: from the paper
        - `left_out`: why existing results were not read. A result is damaged, comes from another
          program, or disagrees with another result.

    Raises:
        ValueError: If the folder does not exist.
    """
    results = Results(results_root)
    rows = [_measured(claim, results) for claim in claims]
    _resample([(row, examples) for row, examples in rows if examples], resamples, seed)
    found = [row for row, _ in rows]
    for source in dict.fromkeys(row["source"] for row in found):
        tested = [row for row in found if row["source"] == source and row["p"] is not None]
        for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["adjusted"] = adjusted
            if adjusted < LEVEL:
                row["verdict"] = "reproduced" if row["effect"] > 0 else "contradicted"
    return found


def _measured(claim, results):
    """Returns the row of a claim before Holm's correction, and `(kind, terms)` of its examples.

    The second value is `None` if examples were not kept.
    """
    row = _unmeasured(claim)
    try:
        return row, _measure(row, claim, results)
    except ValueError as error:
        damage = {"left_out": str(error), "note": _notes(claim.note, f"left out: {error}")}
        return _unmeasured(claim) | damage, None


def _unmeasured(claim):
    arms = claim.better, claim.worse
    return {
        "name": claim.name, "statement": claim.statement, "task": claim.task,
        "source": claim.source, "verdict": "not run", "effect": None, "low": None, "high": None,
        "p": None, "adjusted": None, "detectable": None, "basis": "", "unit": claim.unit,
        "seeds": (0, 0), "published": claim.published, "on": claim.on,
        "verified": claim.verified, "conclusion": claim.conclusion, "lower": claim.lower,
        "suites": tuple(dict.fromkeys(arm.suite for arm in arms)), "note": claim.note,
        "means": None, "metric": "", "trained": None, "left_out": "",
    }  # fmt: skip


def _measure(row, claim, results):
    """Fills a row from the results.

    Returns:
        `(kind, terms)` of the examples, or `None` if they were not kept.

    Raises:
        ValueError: If a result is damaged, is not from the harness, or disagrees with another.
    """
    arms = claim.better, claim.worse
    scores = [results.scores(arm) for arm in arms]
    row["seeds"], row["metric"] = tuple(map(len, scores)), results.metric(claim.better)
    missing = [arm.label for arm, found in zip(arms, scores, strict=True) if not found]
    if missing:
        row["note"] = _notes(claim.note, f"no result of {' and of '.join(missing)}")
        return None
    row["verdict"] = "not separable"
    drawn = [results.draws(arm) for arm in arms]
    if all(scores is not None for scores in drawn):
        return _by_draws(row, drawn)
    examples = _examples(claim, results)
    by_seed = [100 * np.array(list(found.values())) for found in scores]
    fewest = min(map(len, by_seed))
    means = [float(of_side.mean()) for of_side in by_seed]
    row["means"] = tuple(math.exp(-m / 100) if claim.lower else m for m in means)
    row["trained"], unlike = _terms_of(claim, results)
    notes = [claim.note, *unlike]
    if isinstance(examples, str):
        p = _by_seeds(row, by_seed)
        if fewest >= SURE:
            row["p"], row["basis"] = p, "seeds"
            notes.append(f"of these test examples: {examples}")
        else:
            row["basis"] = "seeds, descriptive" if fewest > 1 else "one run of a side, no interval"
            first, second = by_seed
            for verdict, above, below in (
                ("reproduced", first, second), ("contradicted", second, first),
            ):  # fmt: skip
                if fewest >= LEAST and above.min() > below.max() and p < LEVEL:
                    row["verdict"] = verdict + DESCRIPTIVE
            notes.append(examples)
    elif fewest < LEAST:
        notes.append(f"fewer than {LEAST} seeds: no verdict")
    _see(row)
    row["note"] = _notes(*notes)
    return None if isinstance(examples, str) else examples


def _by_draws(row, drawn):
    """Fills a row from resampled scores of arms with other examples.

    There is no interval and no verdict if a score is undefined, NaN, in some resamples.
    """
    row["means"] = tuple(100 * float(np.nanmean(scores[0])) for scores in drawn)
    row["effect"], row["basis"] = row["means"][0] - row["means"][1], "examples and seeds"
    if any(np.isnan(scores).any() for scores in drawn):
        row["note"] = _notes(row["note"], "a score is undefined in some resamples: no verdict")
    else:
        _contrast(row, contrast_of(list(zip((1, -1), drawn, strict=True))))


def _contrast(row, contrast):
    """Fills a row with a `Difference` over examples and seeds."""
    row["effect"] = 100 * contrast.mean
    row["low"], row["high"] = 100 * contrast.low, 100 * contrast.high
    row["basis"] = "examples and seeds"
    row["p"] = contrast.p if min(contrast.seeds) >= LEAST else None
    _see(row)


def _see(row):
    """Adds the smallest detectable difference of a row's test, without Holm's correction."""
    if row["low"] is not None and row["p"] is not None:
        row["detectable"] = SEEN * (row["high"] - row["low"]) / 3.92


def _resample(rows, resamples, seed):
    """Fills rows with effects, intervals and p values from examples; resamples each arm once."""
    alike = {}  # arrays (S, N, k) to resample together, by their identity
    for _, (kind, terms) in rows:
        for _, parts in terms:
            alike.setdefault((kind, parts.shape[1:]), {})[id(parts)] = parts
    scores = {}
    for (kind, _), of_kind in alike.items():
        found = resampled(kind, np.concatenate(list(of_kind.values())), resamples, seed)
        ends = np.cumsum([len(parts) for parts in of_kind.values()])
        scores |= zip(of_kind, np.split(found, ends[:-1], axis=1), strict=True)
    for row, (_, terms) in rows:
        _contrast(row, contrast_of([(sign, scores[id(parts)]) for sign, parts in terms], seed))


def _by_seeds(row, by_seed):
    """Fills a row with the effect and Welch's interval over seeds; returns p, or `None`."""
    from scipy.stats import t as student

    row["effect"] = float(by_seed[0].mean() - by_seed[1].mean())
    if min(map(len, by_seed)) < 2:
        return None
    parts = np.array([scores.var(ddof=1) / len(scores) for scores in by_seed])
    error = math.sqrt(parts.sum())
    if not error:
        row["low"] = row["high"] = row["effect"]
        return float(row["effect"] == 0)
    # Welch-Satterthwaite degrees of freedom
    free = parts.sum() ** 2 / sum(
        part**2 / (len(scores) - 1) for part, scores in zip(parts, by_seed, strict=True)
    )
    half = float(student.ppf(1 - LEVEL / 2, free)) * error
    row["low"], row["high"] = row["effect"] - half, row["effect"] + half
    return float(2 * student.sf(abs(row["effect"]) / error, free))


def _examples(claim, results):
    """Returns `(kind, terms)` of both arms' examples, or the reason why there are none.

    Raises:
        ValueError: If the arms have different examples.
    """
    arms = [results.terms(claim.better, 1), results.terms(claim.worse, -1)]
    for arm in arms:
        if isinstance(arm, str):
            return arm
    (kind, terms), (other, more) = arms
    if kind != other or not paired(kind, terms + more):
        raise ValueError(
            "Both sides of a claim must have the same examples and metric: rerun the older one. "
            f"Received: {claim.name}, {claim.better.label!r} and {claim.worse.label!r} with "
            "different ones"
        )
    return kind, terms + more


def _terms_of(claim, results):
    """Returns the numbers of training examples of both arms, if known, and texts of differences."""
    arms = [arm for arm in (claim.better, claim.worse) if arm.read is None]
    if len(arms) < 2 or any(arm.minus for arm in arms):
        return None, []
    one, two = (next(iter(results.runs(arm).values()))[1] for arm in arms)
    counts = [result.get("counts", {}) for result in (one, two)]
    if counts[0].get("test") != counts[1].get("test"):
        raise ValueError(
            "Both sides of a claim must have the same examples: rerun the older one. "
            f"Received: {claim.name} with {counts[0].get('test')} and {counts[1].get('test')}"
        )
    trained = tuple(count["train"] for count in counts if "train" in count) or None
    if any(arm.where for arm in arms):  # the claim compares such differences
        return trained, []
    unlike = []
    frozen = {"features", "randomly_initialised"} & {one["method"], two["method"]}
    for name in ("learning_rates", "epochs", "batch_size", "dropout", *OF_TRAINING):
        default = getattr(Run, name)  # some settings are stored only if they differ from it
        values = [result["settings"].get(name, default) for result in (one, two)]
        if values[0] != values[1] and not (name in OF_TRAINING and frozen):
            unlike.append(f"unlike terms, {name.replace('_', ' ')}: {values[0]} and {values[1]}")
    return trained, unlike


def _notes(*texts):
    return "; ".join(text for text in texts if text)


def counts(found):
    """Returns `{verdict: count}` for all of `VERDICTS`."""
    counted = Counter(row["verdict"] for row in found)
    return {verdict: counted[verdict] for verdict in VERDICTS}


def counts_line(found):
    """Returns the counts as a sentence."""
    n = counts(found)
    said = [
        f"{name} {n[name]} and descriptively {n[name + DESCRIPTIVE]} more" if name in VERDICTS[:2]
        else f"{name} {n[name]}"
        for name in ("reproduced", "contradicted", "not separable", "not run")
    ]  # fmt: skip
    return f"{len(found)} published orderings: {', '.join(said)}."


def left_out(found):
    """Returns `{reason why results were not read: number of claims}`."""
    return Counter(row["left_out"] for row in found if row["left_out"])


def complete(found):
    """Returns `found` unchanged if all results that it needs were read.

    Raises:
        ValueError: If some results were not read, with the reason.
    """
    if wrong := next(iter(left_out(found)), None):
        raise ValueError(f"Pages show only verdicts of complete results. {wrong}")
    return found


def of_suite(found, suite):
    """Returns the claims that rest on a suite."""
    return [row for row in found if suite in row["suites"]]


def text(found):
    """Returns all verdicts as text for the terminal, by published table, and their counts."""
    lines = []
    for source in dict.fromkeys(row["source"] for row in found):
        lines += ["", source]
        for row in (row for row in found if row["source"] == source):
            lines.append(
                f"  {row['verdict']:26} {row['statement']}  [{row['task']}, {row['name']}]"
            )
            about = [_effect(row), _published(row)]
            about += [row["note"]] if row["note"] else []
            lines.append("      " + "; ".join(part for part in about if part))
    return "\n".join([*lines[1:], "", RULE, LIMIT, "", counts_line(found)])


def _effect(row):
    """Returns the numbers of a claim as text, or "" if it was not run."""
    if row["effect"] is None:
        return ""
    said = f"{_two(row['means'], 1)}: {_signed(row['effect'])} {row['unit']}"
    if row["low"] is not None:
        said += f" ({_signed(row['low'])} to {_signed(row['high'])})"
    if row["detectable"] is not None:
        said += f", detectable: {row['detectable']:.1f}"
    if row["adjusted"] is not None:
        said += f", p {row['adjusted']:.2g} after Holm"
    said += f"; training examples: {trained_on(row)}" if row["trained"] else ""
    return f"{said}; {row['basis']} ({row['seeds'][0]} and {row['seeds'][1]})"


def _two(numbers, digits=0):
    """Formats two numbers with `digits` decimals, by default as many as they need."""
    digits = max([digits] + [len(f"{n:g}".partition(".")[2]) for n in numbers if not digits])
    return " and ".join(f"{number:.{digits}f}" for number in numbers)


def _signed(number):
    """Formats a number with its sign and enough digits to differ from 0."""
    return f"{number:+.1f}" if abs(number) >= 0.05 or not number else f"{number:+.2g}"


def _published(row):
    figures = (
        "no figures" if row["published"] is None else "{:g} and {:g}".format(*row["published"])
    )
    of = f" ({row['on']})" if row["on"] else ""
    lower = ", lower is better" if row["lower"] and row["published"] else ""
    concluded = row["conclusion"] and not row["source"].endswith("conclusion")
    more = ", unverified" * (not row["verified"]) + ", its conclusion too" * concluded
    return f"published: {figures}{of}{lower}{more}"


def markdown(found, brief=False):
    """Returns the counts, a table of the verdicts, the claims that were not run, and the rules.

    Args:
        found: Return value of `judge`.
        brief: Whether to leave claims that are not separable out of the table.
    """
    lines = [f"**{counts_line(found)}**", ""]
    lines += ["| published ordering | task here | trained on | verdict | here | effect (95 %) "
              "| detectable | interval over | published |",
              "|---|---|---:|---|---:|---:|---:|---:|---|"]  # fmt: skip
    for source in dict.fromkeys(row["source"] for row in found):
        rows = [row for row in found if row["source"] == source and row["effect"] is not None]
        rows = [row for row in rows if not (brief and row["verdict"] == "not separable")]
        lines += [f"| **{source}** | | | | | | | | |"] if rows else []
        for row in rows:
            effect, seen = _signed(row["effect"]), ""
            if row["low"] is not None:
                effect += f" ({_signed(row['low'])} to {_signed(row['high'])})"
                seen = "" if row["detectable"] is None else f"{row['detectable']:.1f}"
            effect += "" if row["unit"] == "points" else f" {row['unit']}"
            task = row["task"] + (f" ({row['metric'].replace('_', ' ')})" if row["metric"] else "")
            cells = [row["statement"], task, trained_on(row), row["verdict"]]
            cells += [_two(row["means"], 1), effect, seen]
            over = "{} and {} seeds".format(*row["seeds"])
            cells += [f"examples, {over}" if row["basis"] == "examples and seeds" else over]
            cells += [_published(row).removeprefix("published: ")]
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    absent = Counter(row["source"] for row in found if row["verdict"] == "not run")
    if absent:
        of_all = Counter(row["source"] for row in found)
        said = [f"{source} ({n} of {of_all[source]})" for source, n in absent.items()]
        lines += ["", f"Not run: {'; '.join(said)}."]
    return "\n".join([*lines, "", RULE + " " + LIMIT]) + "\n"


def write(path, found, resamples, seed):
    """Writes the verdicts as JSON, atomically."""
    report = {"counts": counts(found), "rule": RULE, "limit": LIMIT, "resamples": resamples,
              "seed": seed, "claims": found}  # fmt: skip
    write_json(path, report)
