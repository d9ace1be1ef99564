"""Which layers of an encoder suit a task, and is fine-tuning worth it: the answer of `layers`."""

import dataclasses

import numpy as np

from keras_plm.experiments.config import summary
from keras_plm.experiments.plan import duration
from keras_plm.experiments.statistics import Difference, difference, resampled

LEAST = 0.1  # seconds of a fit, as results round them


@dataclasses.dataclass(frozen=True)
class Choice:
    """All seeds of a run.

    Attributes:
        name: Of the layers, or "fine-tuned".
        results: As the result files hold them.
        kind, parts: What each example adds to the first metric: a key of `SCORES`, and an
            array (seeds, examples, sums); `None` if it was not kept.
    """

    name: str
    results: tuple
    kind: str | None = None
    parts: np.ndarray | None = None

    @classmethod
    def read(cls, name, results, kept):
        """A choice with what its examples add.

        Args:
            name: Its name.
            results: A `Record` for each seed.
            kept: `ResultFolder.examples` of each.
        """
        metric = next(iter(results[0]["metrics"]))
        if any(found is None or metric not in found for found in kept):
            return cls(name, tuple(results))
        kinds, parts = zip(*(found[metric] for found in kept), strict=True)
        return cls(name, tuple(results), kinds[0], np.stack(parts))

    @property
    def dev_score(self):
        """The mean score on the dev set."""
        return float(np.mean([result["dev_score"] for result in self.results]))

    @property
    def seconds(self):
        """The median of the seeds; of the first, which searched the rates, one trial's share."""
        return float(np.median([
            r["seconds"] / (len(r["trials"]) if r["seed"] == 0 else 1) for r in self.results
        ]))  # fmt: skip

    def above(self, other):
        """The `Difference` to another choice, `None` if examples were not kept."""
        if (
            self.parts is None
            or other.parts is None
            or self.parts.shape[1:] != other.parts.shape[1:]
        ):
            return None
        return difference(self.kind, self.parts, other.parts)


def resampled_scores(choices, resamples=10_000):
    """`statistics.resampled` of each choice; choices of as many examples share their draws.

    Args:
        choices: A list of `Choice`.
        resamples: R, the number of draws.

    Returns:
        An array (1 + R, S) of each choice for `statistics.contrast_of`, `None` of one whose
        examples were not kept.
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


def ranked(choices):
    """Choices by their mean score on the dev set, the best first.

    The evaluation split does not rank them, so the first one's score there is not a best of many.
    """
    return sorted(choices, key=lambda choice: -choice.dev_score)


def markdown(choices, tuned=None):
    """A table of choices, the best first, each compared with the best; then fine-tuning.

    Names are those that `--layers` takes.

    Args:
        choices: `Choice`s of layers.
        tuned: The `Choice` of fine-tuning, if it was done.
    """
    first, *_ = order = ranked(choices)
    text = [
        "| layers | dev set | evaluation split | first minus this | seconds per fit | features |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for choice in [*order, *([] if tuned is None else [tuned])]:
        mean, deviation, n = summary(choice.results)
        spread = f" ± {100 * deviation:.1f}" if n > 1 else ""
        apart = None if choice is first else first.above(choice)
        size = choice.results[0].get("feature_bytes", 0) / 1e6
        cells = [
            choice.name,
            f"{100 * choice.dev_score:.1f}",
            f"{100 * mean:.1f}{spread} ({n})",
            "" if apart is None else str(apart),
            f"{choice.seconds:.1f}" if choice.seconds >= LEAST else f"< {LEAST}",
            f"{size:,.1f} MB" if size else "",
        ]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def edges(choices):
    """A sentence on searches whose best learning rate is the largest or smallest; "" for none.

    Args:
        choices: `Choice`s, of layers or of fine-tuning.
    """
    sentences = []
    for end, word in ((max, "largest"), (min, "smallest")):
        names = [choice.name for choice in choices if _is_at(choice, end)]
        if names:
            rows = ", ".join(names) if len(names) < 3 else f"{len(names)} of {len(choices)} rows"
            wanted = "larger" if end is max else "smaller"
            sentences.append(
                f"The search chose its {word} learning rate for {rows}: add {wanted} ones to "
                "--learning-rates."
            )
    return " ".join(sentences)


def _is_at(choice, end):
    rates = [trial["learning_rate"] for trial in choice.results[0]["trials"]]
    return len(rates) > 1 and choice.results[0].get("learning_rate") == end(rates)


def recommendation(frozen, tuned=None):
    """Sentences on which layers to use, and whether fine-tuning is better.

    Args:
        frozen: `Choice`s of layers.
        tuned: The `Choice` of fine-tuning, if it was done.
    """
    best, *others = ranked(frozen)
    alike = []
    for other in others:
        apart = best.above(other)
        if apart is None or apart.low <= 0 <= apart.high:
            alike.append(other.name)
    words = f"Frozen features: use {best.name}."
    if others and not alike:
        words += " Every other choice scores lower; the interval of the difference excludes zero."
    elif alike:
        words += f" Not separable from it: {', '.join(alike)}."
    if min(len(choice.results) for choice in frozen) == 1:
        words += " One seed has no spread: run two or more."
    if tuned is None:
        return words
    taken = duration(tuned.seconds)
    cost = f"{taken} for one training, next to less than {LEAST} s"
    if best.seconds >= LEAST:
        cost = f"{tuned.seconds / best.seconds:.1f} times the cost of one training ({taken})"
    apart: Difference | None = tuned.above(best)
    if apart is None:
        gain = 100 * (summary(tuned.results)[0] - summary(best.results)[0])
        return (
            f"{words} Fine-tuning differs from it by {gain:+.1f} points, without an interval, at "
            f"{cost}."
        )
    if apart.low > 0:
        return f"{words} Fine-tuning is better: {apart} points, at {cost}."
    if apart.high < 0:
        return f"{words} Fine-tuning is worse: {apart} points, at {cost}."
    return (
        f"{words} Fine-tuning is not separable from it: {apart} points, at {cost}. Frozen features "
        "are the cheaper choice; more labelled examples may separate the two."
    )
