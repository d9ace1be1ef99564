"""Plan of a suite: its jobs, the number of existing results, and an estimate for the others."""

import dataclasses
import functools
import statistics
from pathlib import Path

from rich.table import Table

from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.jobs import Job, Worker
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
    worker, unread = Worker(workspace, lambda line: None), {}
    rows = [_row(job, seeds or job.seeds, worker, known, unread) for job in jobs]
    table = Table("task", "encoder")
    table.add_column("run", overflow="fold")
    table.add_column("seeds done")
    table.add_column("about")
    for row in rows:
        table.add_row(*row.cells())
    return table, "\n".join([_summary(rows, unread), *_reasons(unread)])


@dataclasses.dataclass(frozen=True)
class _Row:
    """Work of one job.

    Attributes:
        job: A `Job`.
        seeds: Number of its seeds.
        times: Estimated seconds of each seed without a result; `None` for one without an estimate.
        note: A remark for the table.
        is_read: Whether the task can be read.
    """

    job: Job
    seeds: int
    times: tuple
    note: str
    is_read: bool

    @property
    def done(self):
        return self.seeds - len(self.times)

    @property
    def seconds(self):
        return sum(seconds for seconds in self.times if seconds is not None)

    def cells(self):
        """Returns the cells of the table."""
        shown = duration(self.seconds) if self.times else ""
        if None in self.times:
            shown = "not known"
        about = "; ".join(words for words in (shown, self.note) if words)
        done = self.done if self.is_read else "?"
        names = self.job.task, self.job.encoder_name, self.job.run.name
        return *names, f"{done} of {self.seeds}", about


def _row(job, seeds, worker, known, unread):
    """Returns the `_Row` of a job; adds a task that cannot be read to `unread`, with the reason."""
    missing = job.needs and not (Path(job.encoder) / "config.json").is_file()
    try:
        if job.task in unread:
            raise ValueError(unread[job.task])
        runner = worker.runner(job)
    except (ValueError, OSError) as error:
        left, examples = range(seeds), job.run.train_limit
        note = "encoder not created yet"
        reason = _unreadable(job.task, worker.workspace.data) if missing else str(error)
        if reason:
            unread[job.task], note = reason, "cannot be read, see below"
    else:
        left = [seed for seed in range(seeds) if runner.result(job.run, seed) is None]
        failed = sum(worker.workspace.failure(job, seed).is_file() for seed in left)
        note = f"{failed} failed before" if failed else ""
        examples = len(runner.train_examples(job.run))
    times = (seconds_of(job, seed, examples, known) if examples else None for seed in left)
    return _Row(job, seeds, tuple(times), note, job.task not in unread)


@functools.cache
def _unreadable(task, data):
    """Returns why a task cannot be read, or `None`."""
    try:
        for split in ("train", "dev", "test"):
            TASKS[task].read(data, split)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def _summary(rows, unread):
    """Returns the numbers of jobs and seeds, their estimated time, and what is created first."""
    times = [seconds for row in rows for seconds in row.times]
    unknown = times.count(None)
    counts = sorted({row.seeds for row in rows})
    each = " or ".join(map(str, counts)) + (" seeds" if counts != [1] else " seed")
    done = sum(row.done for row in rows)
    words = f"{len(rows)} jobs, {each} each: {done} results exist, {len(times)} to do"
    words += " (fewer, if tasks that cannot be read have results)" if unread else ""
    if len(times) > unknown:
        total = duration(sum(row.seconds for row in rows))
        words += f". They take about {total} with one process, estimated from existing "
        words += "results, perhaps of other machines"
    if unknown:
        words += f". {unknown} of them have no estimate"
    first = dict.fromkeys(needed.name for row in rows for needed in row.job.needs)
    if first and times:
        words += f". Created first if missing, not counted: {', '.join(first)}"
    return words


def _reasons(unread):
    """Returns a line for each task that cannot be read."""
    for task, reason in unread.items():
        yield f"{task} cannot be read, its results are not known: {reason}"


def duration(seconds):
    """Formats seconds in a suitable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
