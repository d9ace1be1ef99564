"""Recommendation of the command `layers`: layers of an encoder for a task, or fine-tuning."""

import dataclasses

import numpy as np

from keras_plm.experiments.config import summary
from keras_plm.experiments.plan import duration
from keras_plm.experiments.results import result_name
from keras_plm.experiments.statistics import Difference, difference, resampled, score_interval

TUNED = "fine-tuned"  # name of the `Choice` of fine-tuning
LEAST = 0.1  # seconds of a fit: results round to this unit
NAMED = ("task", "encoder", "run", "seed")  # what `result_name` takes
MANY = 3  # a longer list of inseparable choices names the separable ones instead, if these are few


@dataclasses.dataclass(frozen=True)
class Choice:
    """Results of all seeds of a run.

    Attributes:
        name: Name of the layers, or "fine-tuned".
        results: A `Record` for each seed.
        kind, parts: Contributions of the examples to the first metric: a key of `SCORES`, and an
            array (seeds, examples, sums); `None` if they were not stored.
    """

    name: str
    results: tuple
    kind: str | None = None
    parts: np.ndarray | None = None

    @classmethod
    def read(cls, name, results, kept):
        """Creates a choice with the contributions of its examples.

        Args:
            name: Name of the choice.
            results: A `Record` for each seed.
            kept: Result of `ResultFolder.examples` for each seed.
        """
        metric = next(iter(results[0]["metrics"]), None)
        if any(found is None or metric not in found for found in kept):
            return cls(name, tuple(results))
        kinds, parts = zip(*(found[metric] for found in kept), strict=True)
        return cls(name, tuple(results), kinds[0], np.stack(parts))

    @classmethod
    def of(cls, name, results, folder):
        """Creates a choice whose contributions of examples are in a `ResultFolder`."""
        names = [result_name(*(r[key] for key in NAMED)) for r in results]
        kept = [folder.examples(n, r["hash"]) for n, r in zip(names, results, strict=True)]
        return cls.read(name, results, kept)

    @property
    def dev_score(self):
        """Mean score on the dev set."""
        return float(np.mean([result["dev_score"] for result in self.results]))

    @property
    def seconds(self):
        """Median seconds of one training; those of seed 0 are divided by its number of trials."""
        return float(np.median([
            r["seconds"] / (max(len(r["trials"]), 1) if r["seed"] == 0 else 1)
            for r in self.results
        ]))  # fmt: skip

    def above(self, other):
        """Returns the `Difference` to another choice; `None` if examples were not stored."""
        if (
            self.parts is None
            or other.parts is None
            or self.parts.shape[1:] != other.parts.shape[1:]
        ):
            return None
        return difference(self.kind, self.parts, other.parts)


def resampled_scores(choices, resamples=10_000):
    """Resamples the scores of each choice; choices with equally many examples share their draws.

    Args:
        choices: A list of `Choice`.
        resamples: R, the number of draws.

    Returns:
        A list for `statistics.contrast_of`: an array (1 + R, S) for each choice, or `None` for a
        choice without stored examples.
    """
    alike, found = {}, [None] * len(choices)
    for place, choice in enumerate(choices):
        if choice.parts is not None:
            alike.setdefault((choice.kind, choice.parts.shape[1:]), []).append(place)
    for (kind, _), places in alike.items():
        parts = [choices[place].parts for place in places]
        ends = np.cumsum([len(of_choice) for of_choice in parts])[:-1]
        scores = np.split(resampled(kind, np.concatenate(parts), resamples), ends, axis=1)
        for place, of_choice in zip(places, scores, strict=True):
            found[place] = of_choice
    return found


def intervals(choices):
    """Computes the 95 % interval of each choice's score, over seeds and examples.

    Returns:
        A list of `(low, high)`; `None` for a choice without stored examples.
    """
    found = []
    for choice, scores in zip(choices, resampled_scores(choices), strict=True):
        interval = None if scores is None else score_interval(choice.kind, scores)
        found.append(interval and (interval.low, interval.high))
    return found


def ranked(choices):
    """Sorts choices by their mean score on the dev set, the best first.

    The evaluation split does not rank them: the first one's score there is not a best of many.
    """
    return sorted(choices, key=lambda choice: -choice.dev_score)


def markdown(choices, tuned=None):
    """Formats choices as a table, the best first, each compared with the best; then fine-tuning.

    The names are values of `--layers`.

    Args:
        choices: `Choice`s of layers.
        tuned: The `Choice` of fine-tuning, if it was done.
    """
    first, *_ = order = ranked(choices)
    text = [
        "| layers | dev set | evaluation split | first minus this | seconds per fit |",
        "|---|---:|---:|---:|---:|",
    ]
    for choice in [*order, *([] if tuned is None else [tuned])]:
        mean, deviation, n = summary(choice.results)
        spread = f" ± {100 * deviation:.1f}" if n > 1 else ""
        apart = None if choice is first else first.above(choice)
        cells = [
            choice.name,
            f"{100 * choice.dev_score:.1f}",
            f"{100 * mean:.1f}{spread} ({n})",
            "" if apart is None else str(apart),
            f"{choice.seconds:.1f}" if choice.seconds >= LEAST else f"< {LEAST}",
        ]
        text.append(f"| {' | '.join(cells)} |")
    sizes = {choice.results[0].get("feature_bytes", 0) for choice in order}
    if any(sizes):
        text += ["", f"Stored features of all layers: {max(sizes) / 1e6:,.1f} MB"]
    return "\n".join(text) + "\n"


def edges(choices):
    """Advises on searches that chose their largest or smallest learning rate; "" if none did.

    Args:
        choices: `Choice`s of layers or of fine-tuning.
    """
    sentences = []
    for end, word in ((max, "largest"), (min, "smallest")):
        names = [choice.name for choice in choices if _is_at(choice, end)]
        if names:
            rows = ", ".join(names) if len(names) < 3 else f"{len(names)} of {len(choices)} rows"
            wanted = "larger" if end is max else "smaller"
            flags = ["--learning-rates"] if set(names) != {TUNED} else []
            flags += ["--fine-tuning-rates"] if TUNED in names else []
            sentences.append(
                f"The search chose its {word} learning rate for {rows}: give a list with {wanted} "
                f"ones to {' and '.join(flags)}."
            )
    return " ".join(sentences)


def _is_at(choice, end):
    rates = [trial["learning_rate"] for trial in choice.results[0]["trials"]]
    return len(rates) > 1 and choice.results[0].get("learning_rate") == end(rates)


def _inseparable(alike, compared):
    """Returns a sentence on the choices that are not separable from the best one."""
    others = [name for name in compared if name not in alike]
    if not others and len(alike) > 1:
        return "No other choice is separable from it."
    if len(alike) > MANY and len(others) <= MANY and None not in compared.values():
        return f"Not separable from it: all but {', '.join(others)}."
    return f"Not separable from it: {', '.join(alike)}."


def recommendation(frozen, tuned=None):
    """Returns sentences on the layers to use, and on whether fine-tuning is better.

    Args:
        frozen: `Choice`s of layers.
        tuned: The `Choice` of fine-tuning, if it was done.
    """
    best, *others = ranked(frozen)
    apart = {other.name: best.above(other) for other in others}
    unknown = [name for name, found in apart.items() if found is None]
    alike = [n for n, found in apart.items() if found is not None and found.low <= 0 <= found.high]
    higher = [n for n, found in apart.items() if found is not None and found.high < 0]
    words = f"Frozen features: use {best.name}, first on the dev set."
    if higher:
        scores = "scores" if len(higher) == 1 else "score"
        words += (
            f" On the evaluation split {', '.join(higher)} {scores} higher; the interval of the "
            "difference excludes zero. Dev set and evaluation split disagree: a larger dev set "
            "ranks them better."
        )
    if len(unknown) < len(others) and not alike and not higher:
        which = "choice with an interval" if unknown else "choice"
        words += f" Every other {which} scores lower; the interval of the difference excludes zero."
    elif alike:
        words += f" {_inseparable(alike, apart)}"
    if unknown:
        words += (
            f" Without an interval: {', '.join(unknown)}; scores of single examples are missing or "
            "replaced. Repeat the command to compute them."
        )
    single = ["frozen features"] * (min(len(choice.results) for choice in frozen) == 1)
    single += ["fine-tuning"] * (tuned is not None and len(tuned.results) == 1)
    if single:
        words += f" One seed has no spread: run two seeds or more of {' and '.join(single)}."
    if tuned is None:
        return words
    taken = duration(tuned.seconds)
    cost = f"One training takes {taken}, one frozen choice on stored features less than {LEAST} s."
    if best.seconds >= LEAST:
        ratio = tuned.seconds / best.seconds
        shown = f"{ratio:.1f}" if ratio < 10 else f"{float(f'{ratio:.2g}'):,.0f}"
        cost = (
            f"One training takes {taken}, about {shown} times as long as one frozen choice on "
            "stored features."
        )
    apart: Difference | None = best.above(tuned)
    if apart is None:
        gain = 100 * (summary(tuned.results)[0] - summary(best.results)[0])
        return (
            f"{words} Fine-tuning differs from it by {gain:+.1f} points, without an interval. "
            f"{cost}"
        )
    apart = -apart  # the interval of the table, with the other sign
    if apart.low > 0:
        return f"{words} Fine-tuning is better: {apart} points. {cost}"
    if apart.high < 0:
        return f"{words} Fine-tuning is worse: {apart} points. {cost}"
    return (
        f"{words} Fine-tuning is not separable from it: {apart} points. {cost} Frozen features "
        "are the cheaper choice; more labelled examples may separate the two."
    )
