"""Extended search: a run with other learning rates takes over the trials of an earlier search."""

import dataclasses

from keras_plm.experiments.runner.trials import best_trial


@dataclasses.dataclass(frozen=True)
class EarlierSearch:
    """Results of a run that differs from a new one in its learning rates only.

    Attributes:
        results: A dict of `(record, examples)` by seed, see `ResultFolder`; empty without results.
    """

    results: dict

    @classmethod
    def of(cls, runner, run):
        """Reads the earlier results of a run, those of seed 0 first."""
        kept, first = runner.kept, runner.result_name(run, 0)
        if first not in kept:
            return cls({})
        rates = kept.record(first)["settings"].get("learning_rates")
        if not rates or rates == run.learning_rates:
            return cls({})
        earlier, results, seed = dataclasses.replace(run, learning_rates=rates), {}, 0
        while (record := runner.result(earlier, seed)) is not None:
            examples = kept.examples(runner.result_name(run, seed), record["hash"])
            results[seed], seed = (record, examples), seed + 1
        return cls(results)

    def trial(self, rate):
        """Returns the trial of a learning rate, or `None`."""
        trials = self.results[0][0]["trials"] if self.results else []
        return next((trial for trial in trials if trial["learning_rate"] == rate), None)

    def chose(self, trials):
        """Returns whether the best of all trials is the one that the earlier search chose."""
        chosen = best_trial(trials)["learning_rate"]
        return bool(self.results) and self.results[0][0]["learning_rate"] == chosen

    def write(self, runner, run, trials):
        """Writes the earlier results as those of the run; returns the record of seed 0.

        Args:
            runner: A `Runner`.
            run: The `Run`.
            trials: Trials of all its learning rates.
        """
        known = [trial for trial in trials if self.trial(trial["learning_rate"]) == trial]
        added = sum(t["seconds"] for t in trials) - sum(t["seconds"] for t in known)
        written = {}
        for seed, (record, examples) in self.results.items():
            written[seed] = dataclasses.replace(
                record,
                settings=run.to_json(),
                trials=trials,
                seconds=round(record["seconds"] + (0 if seed else added), 1),
                hash=runner.key(run, seed),
            )
            runner.kept.write(runner.result_name(run, seed), written[seed], examples)
        return written[0]
