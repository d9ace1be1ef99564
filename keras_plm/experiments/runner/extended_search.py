"""Extended search: a run with other learning rates takes over the trials of an earlier search."""

import dataclasses

from keras_plm.experiments.runner.trials import best_trial


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

    def write(self, runner, run, trials, but=None):
        """Writes the earlier results as those of the run, seed 0 last.

        A stopped call can be repeated: the results of seed 0 are earlier ones until the end.

        Args:
            runner: A `Runner`.
            run: The `Run`.
            trials: Trials of all its learning rates.
            but: A seed to leave out.
        """
        for seed in sorted(self.results.keys() - {but}, reverse=True):
            record, examples = self.results[seed]
            seconds = record["seconds"]
            if not seed:  # those of seed 0 contain the search
                seconds += sum(t["seconds"] for t in trials)
                seconds -= sum(t["seconds"] for t in record["trials"])
            record = dataclasses.replace(
                record,
                settings=run.to_json(),
                trials=trials,
                seconds=round(seconds, 1),
                hash=runner.key(run, seed),
            )
            runner.kept.write(runner.result_name(run, seed), record, examples)


def _with_its_rates(runner, run):
    """Returns the run with the learning rates of the result in its place, or `None`."""
    name = runner.result_name(run, 0)
    if name not in runner.kept:
        return None
    try:
        rates = runner.kept.json(name)["settings"]["learning_rates"]
        return (
            None if rates == run.learning_rates else dataclasses.replace(run, learning_rates=rates)
        )
    except (ValueError, TypeError, KeyError, AttributeError):  # not the result of a run
        return None
