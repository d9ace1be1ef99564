"""Plan of a suite: its jobs, the number of existing results, and an estimate for the others."""

import statistics
from pathlib import Path

from rich.table import Table

from keras_plm.experiments.jobs import Worker, work
from keras_plm.experiments.results import SEEDS, folders_below
from keras_plm.files.json_files import Whole, check_shape

# Types of the keys of a result that give the duration of an epoch.
TIMED = {
    "task": str, "encoder": str, "method": str, "seed": Whole(), "seconds": float,
    "trials": list, "counts": {"train": Whole()}, "settings": {"epochs": Whole(), "reader": str},
}  # fmt: skip


def measured(*folders):
    """Collects the seconds per example and epoch from all results below some folders.

    Returns:
        `{key: [seconds]}`, with the keys of `_keys`.
    """
    found = {}
    for folder in folders:
        for kept in folders_below(folder):
            for name in kept.names(SEEDS):
                try:
                    result = kept.json(name)
                    check_shape(result, TIMED, name)
                    settings, trials = result["settings"], result["trials"]
                    fits = 1 if result["seed"] else len(trials)
                    work = fits * settings["epochs"] * result["counts"]["train"]
                    about = result["task"], result["encoder"], result["method"]
                    for key in _keys(*about, settings["reader"]):
                        found.setdefault(key, []).append(result["seconds"] / work)
                except (ValueError, ZeroDivisionError):
                    continue  # a result of another kind, or a damaged one
    return found


def _keys(task, encoder, method, reader):
    """Returns keys that group runs of similar duration, the most specific first."""
    return (task, encoder, method, reader), (task, method, reader), (method, reader)


def seconds_of(job, seed, examples, known):
    """Estimates the seconds of a job with one seed; `None` without a similar result."""
    run = job.run
    fits = len(run.grid) if seed == 0 else 1
    for key in _keys(job.task, job.encoder_name, run.method, run.reader):
        if key in known:
            return statistics.median(known[key]) * fits * run.epochs * examples
    return None


def plan(jobs, workspace, seeds, known):
    """Returns a table of the work to do, and a summary.

    Args:
        jobs: A list of `Job`.
        workspace: A `Workspace`.
        seeds: Number of seeds; `None` takes each job's own number.
        known: Result of `measured`.

    Returns:
        `(table, words)`: a row for each job, and the summary as text.
    """
    worker = Worker(workspace, lambda line: None)
    table = Table("task", "encoder")
    table.add_column("run", overflow="fold")
    table.add_column("seeds done")
    table.add_column("about")
    prerequisites = dict.fromkeys(prerequisite.name for job in jobs for prerequisite in job.needs)
    done, total, unknown, unread = 0, 0.0, 0, {}
    for job in jobs:
        there, note, wanted = 0, "", seeds or job.seeds
        missing = job.needs and not (Path(job.encoder) / "config.json").is_file()
        try:
            if job.task in unread:
                raise ValueError(unread[job.task])
            runner = worker.runner(job)
        except (ValueError, OSError) as error:
            to_do, examples = range(wanted), job.run.train_limit or None
            note = "encoder not created yet"
            if not missing:
                unread[job.task], note = str(error), "cannot be read, see below"
        else:
            to_do = [seed for seed in range(wanted) if runner.result(job.run, seed) is None]
            there, examples = wanted - len(to_do), len(runner.train_examples(job.run))
        times = [seconds_of(job, seed, examples, known) if examples else None for seed in to_do]
        failed = sum(workspace.failure(job, seed).is_file() for seed in to_do)
        note = note or (f"{failed} failed before" if failed else "")
        needed = sum(t for t in times if t is not None)
        unknown += sum(t is None for t in times)
        done, total = done + there, total + needed
        shown = "not known" if times and None in times else duration(needed) if to_do else ""
        about = "; ".join(words for words in (shown, note) if words)
        if job.task in unread:
            there = "?"
        names = job.task, job.encoder_name, job.run.name
        table.add_row(*names, f"{there} of {wanted}", about)
    left = len(work(jobs, seeds)) - done
    counts = sorted({seeds or job.seeds for job in jobs})
    each = " or ".join(map(str, counts)) + (" seeds" if counts != [1] else " seed")
    words = f"{len(jobs)} jobs, {each} each: {done} results exist, {left} to do"
    words += " (fewer, if tasks that cannot be read have results)" if unread else ""
    if left > unknown:
        words += f". They take about {duration(total)} with one process, estimated from existing "
        words += "results, perhaps of other machines"
    if unknown:
        words += f". {unknown} of them have no estimate"
    if prerequisites and left:
        words += f". Created first if missing, not counted: {', '.join(prerequisites)}"
    for task, why in unread.items():
        words += f"\n{task} cannot be read, its results are not known: {why}"
    return table, words


def duration(seconds):
    """Formats seconds in a suitable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
