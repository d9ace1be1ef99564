"""Common fit: linear heads on features of several runs train together."""

import dataclasses
import time

from keras_plm.data.documents import part_sentences
from keras_plm.experiments.runner.trials import (
    best_score,
    best_trial,
    diverged,
    line_about,
    trial_of,
)
from keras_plm.transfer.probing.probes import can_probe, fit_probes


class CommonFit:
    """Trains a linear head on features in one fit with those of the runs that follow.

    The runs differ in the choice of layers, the learning rate and the seed.

    Args:
        runner: The `Runner` of their task and encoder: reads examples, features and results.
    """

    def __init__(self, runner):
        self.runner, self._planned, self._trained = runner, [], {}

    def plan(self, todo):
        """Announces pairs of run and seed that follow."""
        self._planned = list(todo)

    def takes(self, run, seed, labels):
        """Returns whether a run trains a linear head on features that can share a fit."""
        if not run.reads_features or run.words:
            return False
        runner = self.runner
        method, head = run.build(run.grid[0], seed), run.head(runner.task)
        if method.reader != "linear":
            return False
        store = runner.features.of(run, seed, runner.train_examples(run))
        return can_probe(method, head, labels, store)

    def fit(self, run, seed, labels, searched):
        """Trains the linear head of a run and seed, unless an earlier call has trained it.

        Args:
            run, seed: A `Run` and a seed.
            labels: Labels of the task.
            searched: A `Record` that has chosen the learning rate; `None` to search.

        Returns:
            `(trials, probe, predictions)`: a trial for each learning rate, the `Probe` of the best
            one, and its predictions on the evaluation split.

        Raises:
            FloatingPointError: If training diverges with every learning rate.
        """
        runner = self.runner
        stores = [runner.features.of(run, seed, part) for part in runner.all_examples(run)]
        begun = time.monotonic()
        if (run, seed) not in self._trained:
            self._fit(run, seed, labels, stores)
        trials, probe, predicted = self._trained.pop((run, seed))
        if searched is None:
            for trial in trials:
                runner.say(line_about(run, trial))
        if probe is None:
            raise diverged(run, trials)
        spent = time.monotonic() - begun - sum(trial["seconds"] for trial in trials)
        probe.log |= {
            "feature_bytes": sum(store.array.nbytes for store in stores[:2]),
            "others_seconds": spent,  # below 0 if an earlier call trained this probe
        }
        return (trials if searched is None else searched["trials"]), probe, predicted

    def _fit(self, run, seed, labels, stores):
        """Trains the probes of a run and seed and, in the same fits, of those planned after it."""
        runner = self.runner
        rates, seeds = self._together(run, seed)
        method, head = run.build(run.grid[0], seed), run.head(runner.task)
        counts, metric = runner.parts(run)[1], next(iter(runner.task.metrics.values()))
        examples = runner.train_examples(run), runner.dev_examples(run)
        begun = time.monotonic()
        shown = runner.epoch and (
            lambda count, epoch: runner.epoch(
                f"{count} linear heads on features: epoch {epoch} of {run.epochs}"
            )
        )
        for model, probes in fit_probes(
            method, head, stores[:2], *examples, labels, metric, rates, seeds, shown
        ):
            share = round((time.monotonic() - begun) / len(probes), 3)
            trials, best = {}, {}
            for name, probe in probes.items():
                key, score = (name.layers, name.seed), probe.log["dev_score"]
                if score is not None and score > best_score(trials.get(key, ())):
                    best[key] = name
                trials.setdefault(key, []).append(trial_of(name.learning_rate, probe.log, share))
            predicted = dict.fromkeys(trials)
            found = model.predict_labels(stores[2], labels, list(best.values()))
            predicted |= dict(zip(best, found, strict=True))
            for (layers, number), tried in trials.items():
                answers = predicted[layers, number]
                probe = None if answers is None else probes[best[layers, number]]
                if probe is not None and counts is not None:
                    answers = part_sentences(answers, counts["test"])
                key = dataclasses.replace(run, layers=layers), number
                self._trained[key] = tried, probe, answers
            begun = time.monotonic()

    def _together(self, run, seed):
        """Returns `(rates, seeds)` of the probes to train with those of a run and seed.

        They differ only in the choice of layers and, after seed 0 has chosen the learning rates,
        in the seed.
        """
        result, rates, seeds = self.runner.result, {}, set()
        for other, number in [(run, seed), *self._planned]:
            if _but_layers(other) != _but_layers(run) or (number > 0) != (seed > 0):
                continue
            if run.method == "randomly_initialised" and number != seed:
                continue  # each seed has features of its own
            if (other, number) != (run, seed) and result(other, number) is not None:
                continue
            first = result(other, 0)
            if number and first is None:
                continue  # seed 0 has not chosen a learning rate yet
            chosen = first and [best_trial(first["trials"])["learning_rate"]]
            rates[other.layers] = chosen or other.grid
            seeds.add(number)
        return rates, sorted(seeds)


def _but_layers(run):
    """Returns the settings of a run without its choice of layers."""
    return dataclasses.asdict(run) | {"layers": None}
