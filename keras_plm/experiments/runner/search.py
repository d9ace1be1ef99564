"""Search of the learning rate with seed 0; it takes over the trials of an earlier search."""

import dataclasses
import time

from keras_plm.experiments.runner.trials import (
    best_score,
    best_trial,
    diverged,
    line_about,
    trial_of,
)


def search(runner, run, labels, earlier):
    """Trains a run with each of its learning rates, except those that an earlier search has tried.

    Args:
        runner: A `Runner`.
        run: The `Run`.
        labels: Labels of the task.
        earlier: An `EarlierSearch`.

    Returns:
        `(trials, model, log)`: a trial for each rate, and model and log of the best one; these are
        `None` if its trial is an earlier one. The trial of a rate that diverges has no score, and
        is not the best.

    Raises:
        FloatingPointError: If training diverges with every rate.
    """
    trials, best = [], (None, None)
    for rate in run.grid:
        trial, model, log, note = earlier.trial(rate), None, None, ", from an earlier search"
        if trial is None:
            begun, note = time.monotonic(), ""
            try:
                model, log = runner.fit(run, rate, 0, labels)
            except FloatingPointError as error:
                log = {"dev_score": None, "error": str(error)}
            trial = trial_of(rate, log, round(time.monotonic() - begun, 1))
        if trial["dev_score"] is not None and trial["dev_score"] > best_score(trials):
            best = model, log  # the first of equals, like `max`
        trials.append(trial)
        runner.say(line_about(run, trial) + note)
    if all(trial["dev_score"] is None for trial in trials):
        raise diverged(run, trials)
    return trials, *best


@dataclasses.dataclass(frozen=True)
class EarlierSearch:
    """Results of a run that differs from a new one in its learning rates only.

    The hash of a result leaves out backend, device and commit, so its trials may have others.

    Attributes:
        results: A dict of `(record, examples)` by seed, see `ResultFolder`; empty without results.
    """

    results: dict

    @classmethod
    def of(cls, runner, run):
        """Reads the earlier results of a run, those of seed 0 first."""
        earlier, results = _with_its_rates(runner, run), {}
        if earlier is None:
            return cls(results)
        for seed in runner.seeds_in_folder(run):
            if (record := runner.result(earlier, seed)) is not None:
                name = runner.result_name(run, seed)
                results[seed] = record, runner.kept.examples(name, record["hash"])
        return cls(results if 0 in results else {})

    def trial(self, rate):
        """Returns the trial of a learning rate, or `None`."""
        trials = self.results[0][0]["trials"] if self.results else []
        return next((trial for trial in trials if trial["learning_rate"] == rate), None)

    def chose(self, trials):
        """Returns whether the best of all trials is the one that the earlier search chose."""
        chosen = best_trial(trials)["learning_rate"]
        return bool(self.results) and self.results[0][0]["learning_rate"] == chosen

    def seconds(self, trials):
        """Returns the seconds of those of the trials that are earlier ones."""
        known = [trial for trial in trials if self.trial(trial["learning_rate"]) == trial]
        return sum(trial["seconds"] for trial in known)

    def take_over(self, runner, run, trials, seed_0=True):
        """Writes the earlier results as those of the run, seed 0 last.

        A stopped call can be repeated: the results of seed 0 are earlier ones until the end.

        Args:
            runner: A `Runner`.
            run: The `Run`.
            trials: Trials of all its learning rates.
            seed_0: Whether to write seed 0, and to archive what is not taken over.
        """
        with runner.kept.changing():
            for seed in sorted(self.results, reverse=True):
                if seed or seed_0:
                    record, examples = self.results[seed]
                    record = self._taken_over(runner, run, trials, record)
                    runner.kept.write(runner.result_name(run, seed), record, examples)
            kept = runner.archive_older(run) if seed_0 else ""
        if seed_0:
            count = len(self.results)
            runner.say(
                f"{run.name} seed 0: {record.score:.4f} on the evaluation split, from an earlier "
                f"search with the same learning rate ({count} seed{'s' * (count > 1)}){kept}"
            )

    def _taken_over(self, runner, run, trials, record):
        """Returns an earlier record as that of the run."""
        seconds = record["seconds"]
        if record["seed"] == 0:  # those of seed 0 contain the search
            seconds += sum(t["seconds"] for t in trials)
            seconds -= sum(t["seconds"] for t in record["trials"])
        return dataclasses.replace(
            record,
            settings=run.to_json(),
            trials=trials,
            seconds=round(seconds, 1),
            hash=runner.key(run, record["seed"]),
        )


def _with_its_rates(runner, run):
    """Returns the run with the learning rates of the result in its place, or `None`."""
    name = runner.result_name(run, 0)
    if name not in runner.kept:
        return None
    try:
        rates = runner.kept.json(name)["settings"]["learning_rates"]
        earlier = dataclasses.replace(run, learning_rates=rates)
    except (ValueError, TypeError, KeyError, AttributeError):  # not the result of a run
        return None
    return None if earlier == run else earlier
