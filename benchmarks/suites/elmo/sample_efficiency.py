"""ELMo and the number of training examples: the suite `sample_efficiency`."""

from benchmarks.suites.elmo.features import (
    EFFICIENCY,
    OPTIONS,
    ROWS,
    SHARES,
    cells,
    jobs_of,
    scales,
    shown,
)
from benchmarks.suites.registry import Suite
from keras_plm.experiments.config import summary
from keras_plm.experiments.results import NoResult
from keras_plm.plots import lines


def curves_of(folder):
    """Returns `{task: (all examples, {row: {examples: results}})}`.

    Only tasks with a run on all training examples are included.
    """
    curves = {}
    for task, found in cells(folder, EFFICIENCY, limited=True).items():
        full = [n for (_, n), rs in found.items() if not rs[0]["settings"]["train_limit"]]
        if full:
            by_row = {row: {} for row in EFFICIENCY}
            for (row, n), results in sorted(found.items(), key=lambda item: item[0][1]):
                by_row[row][n] = results
            curves[task] = max(full), by_row
    if not curves:
        raise NoResult(
            "The folder must hold results on all training examples: `python -m benchmarks suite "
            f"sample_efficiency` writes them. Received: {str(folder)!r}"
        )
    return curves


def markdown(folder):
    """Returns the table of the suite `sample_efficiency`, with a row for each fraction."""
    curves = curves_of(folder)
    head, columns, said = ["training examples"], [], []
    for task, (whole, by_row) in curves.items():
        head += [f"{task}: {ROWS[row][0].split(',')[0]}" for row in EFFICIENCY]
        columns += [
            {_share(n, whole): shown(results) for n, results in by_row[row].items()}
            for row in EFFICIENCY
        ]
        said.append(_reached(task, whole, by_row))
    shares = sorted({share for column in columns for share in column})
    text = [f"| {' | '.join(head)} |", "|---|" + "---:|" * len(columns)]
    for share in shares:
        text.append(f"| {share:g} % | {' | '.join(c.get(share, '') for c in columns)} |")
    said.append(
        "The paper (figure 1; SNLI and SRL): ELMo helps most where training examples are few; on "
        "SRL the reader with ELMo and 1 % of them is about as good as the one without and 10 %."
    )
    return "\n".join(text) + "\n\n" + "\n".join(said) + "\n"


def _share(count, whole):
    return round(100 * count / whole, 0 if count >= whole / 200 else 2)


def _reached(task, whole, by_row):
    """Returns the line "ELMo with x % reaches what the baseline has with all"."""
    base, ours = by_row["baseline"], by_row["mix"]
    if whole not in base or not ours:
        return f"{task}: not all of it was run."
    aim = summary(base[whole])[0]
    if not aim:
        return f"{task}: the baseline finds nothing with all {whole:,} examples."
    enough = next((n for n, results in ours.items() if summary(results)[0] >= aim), None)
    if enough is None:
        return (
            f"{task}: with none of the shares does ELMo reach what the baseline has with all "
            f"{whole:,} examples, {100 * aim:.1f}."
        )
    if enough == whole:
        return (
            f"{task}: ELMo needs all {whole:,} examples to reach what the baseline has with them, "
            f"{100 * aim:.1f}: {shown(ours[enough])}."
        )
    return (
        f"{task}: ELMo with {_share(enough, whole):g} % of the examples ({enough:,}) reaches what "
        f"the baseline has with all {whole:,}, {100 * aim:.1f}: {shown(ours[enough])}."
    )


def figures(folder):
    """Draws the score by number of training examples, a picture for each task."""
    pictures = {}
    for task, (_, by_row) in curves_of(folder).items():
        curves = {}
        for row, found in by_row.items():
            if found:
                of_row = [summary(results) for results in found.values()]
                means, deviations = ([100 * s[i] for s in of_row] for i in (0, 1))
                several = all(s[2] > 1 for s in of_row)
                name = ROWS[row][0].split(",")[0]
                curves[name] = (list(found), means, deviations if several else None)
        metric = next(iter(next(iter(found.values()))[0]["metrics"])).replace("_", " ")
        pictures["sample_efficiency_" + task.replace(", ", "_")] = lines(
            curves, "training examples", metric, f"{task}: the same reader, with ELMo and without",
            log_x=True,
        )  # fmt: skip
    return pictures


SUITES = {
    "sample_efficiency": Suite(
        markdown,
        figures,
        scales(EFFICIENCY, tuple(SHARES)),
        "Peters et al. 2018, figure 1",
        published="2018-02",
        jobs=jobs_of,
        **OPTIONS,
    ),
}
