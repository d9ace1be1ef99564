"""The jobs of a suite, done by one process or by several that share a folder of results.

A job is a task, an encoder and a run; with each seed it becomes one result file. A result that is
there is not made again, so a suite that was stopped goes on where it was. Locks keep processes that
share a folder from doing one thing twice; the system frees those of a process that died.
"""

import dataclasses
import errno
import functools
import time
import typing
from pathlib import Path

from filelock import FileLock, Timeout

from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.results import LOCKS, failure_of, result_name, write_failure
from keras_plm.experiments.runner import Runner

WAIT = 2.0  # seconds till what another process is at is asked for again


@dataclasses.dataclass(frozen=True)
class Prerequisite:
    """What jobs need and takes long to make: a pre-trained encoder, word vectors.

    Attributes:
        name: As it is shown.
        make: `make(progress)` makes it. Stopped, it goes on; done, it does nothing.
    """

    name: str
    make: typing.Callable = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of a suite, but for its seed.

    Attributes:
        task: A name in `TASKS`.
        encoder: A folder.
        run: A `Run`.
        name: What results call the encoder; by default its folder's name.
        needs: The `Prerequisite`s that come first.
        seeds: How many, unless all jobs are done with a number that is told.
        stage: Jobs of a lower one are done with all their seeds before.
    """

    task: str
    encoder: str
    run: Run
    name: str = ""
    needs: tuple = ()
    seeds: int = 3
    stage: int = 0

    @property
    def encoder_name(self):
        return self.name or Path(self.encoder).resolve().name

    def title(self, seed):
        return f"{self.task}  {self.encoder_name}  {self.run.name} seed {seed}"


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Where jobs find their data and leave their results, and are trained, as in `Runner`."""

    data: str
    results: str
    features: str = ".features"
    feature_gb: float = 8.0
    devices: int | None = 1

    def path(self, job, seed):
        """The result file of a job while it is not packed."""
        name = result_name(job.task, job.encoder_name, job.run.name, seed)
        return Path(self.results) / name

    def failure(self, job, seed):
        """The file that tells why a job could not be done."""
        return failure_of(self.path(job, seed))

    def lock(self, name):
        """A lock, which raises `Timeout` if another process has it."""
        folder = Path(self.results) / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name.replace('/', '_')}.lock", timeout=0)

    def lock_job(self, job, seed):
        return self.lock(f"{job.task}.{self.path(job, seed).stem}")


class Worker:
    """Does jobs at a workspace; reads each task and encoder once.

    Args:
        workspace: A `Workspace`.
        progress: Called with a line of text when something is done.
        epoch: Called with a line of text about where training is.
    """

    def __init__(self, workspace, progress, epoch=None):
        self.workspace, self.progress, self.epoch = workspace, progress, epoch
        self._runners, self._made = {}, set()

    def runner(self, job):
        """The `Runner` of a job."""
        key = job.task, job.encoder, job.encoder_name
        if key not in self._runners:
            workspace = self.workspace
            runner = Runner(
                TASKS[job.task], workspace.data, job.encoder, workspace.results, workspace.features,
                workspace.feature_gb, functools.partial(self._say, job.encoder_name),
                name=job.encoder_name, epoch=self.epoch, devices=workspace.devices,
            )  # fmt: skip
            self._runners[key] = runner
        return self._runners[key]

    def _say(self, name, line):
        self.progress(f"{name}  {line}")

    def make(self, prerequisite):
        """Makes what is not made yet.

        Raises:
            Timeout: If another process is at it.
        """
        if prerequisite not in self._made:
            with self.workspace.lock(prerequisite.name):
                self.progress(f"first, where it is not there: {prerequisite.name}")
                prerequisite.make(self.progress)
            self._made.add(prerequisite)

    def do(self, job, seed):
        """Does a job that is not done, with what it needs.

        Raises:
            Timeout: If another process is at it.
        """
        for prerequisite in job.needs:
            self.make(prerequisite)
        runner, workspace = self.runner(job), self.workspace
        if seed and runner.result(job.run, 0) is None:  # whose rate this one takes
            with workspace.lock_job(job, 0):
                pass
        with workspace.lock_job(job, seed):
            runner.run(job.run, seed)
        workspace.failure(job, seed).unlink(missing_ok=True)

    def attempt(self, job, seed):
        """As `do`, but an error is kept in a file and given back, so that other jobs go on.

        Raises:
            Timeout: If another process is at it.
            OSError: If the disk is full.
        """
        try:
            self.do(job, seed)
        except Timeout:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            path = self.workspace.path(job, seed)
            write_failure(path, job.task, job.encoder_name, job.run, seed, error)
            self.progress(f"{job.title(seed)}: failed: {error}")
            return error
        return None


def work(jobs, seeds=None):
    """Jobs with their seeds, stage by stage, of each all first seeds first: `[(job, seed)]`.

    Args:
        jobs: A list of `Job`.
        seeds: How many; `None`: each job's own.
    """
    found = [(job, seed) for job in jobs for seed in range(seeds or job.seeds)]
    return sorted(found, key=lambda one: (one[0].stage, one[1]))  # stable: then as they come


def run_jobs(jobs, workspace, seeds, progress, epoch=None, finished=None):
    """Does what is not done yet, in the order of `work`.

    What another process is at is left to it, and looked for again in the end.

    Args:
        jobs: A list of `Job`.
        workspace: A `Workspace`.
        seeds: How many; `None`: each job's own.
        progress, epoch: As of `Worker`.
        finished: Called with the number of jobs and seeds that are behind.

    Returns:
        `{(job, seed): error}` of those that failed.

    Raises:
        OSError: If the disk is full.
    """
    worker = Worker(workspace, progress, epoch)
    todo, failed = work(jobs, seeds), {}
    total = len(todo)
    while todo:
        waiting, behind = [], total - len(todo)
        for job, seed in todo:
            try:
                # The other seeds take the rate that is chosen with the first.
                error = failed.get((job, 0)) or worker.attempt(job, seed)
            except Timeout:
                waiting.append((job, seed))
                continue
            if error is not None:
                failed[job, seed] = error
            behind += 1
            if finished is not None:
                finished(behind)
        if len(waiting) == len(todo):
            time.sleep(WAIT)
        todo = waiting
    return failed


def check(failed, total):
    """Raises if jobs failed: the one error that all have, or how many, and where it is told.

    Args:
        failed: As `run_jobs` gives it.
        total: The number of jobs and seeds.
    """
    if not failed:
        return
    errors = list(failed.values())
    if len(failed) == total and len({(type(e), str(e)) for e in errors}) == 1:
        raise errors[0]
    (job, seed), first = next(iter(failed.items()))
    raise ValueError(
        f"{len(failed)} of {total} jobs failed and the others are done: call again when what "
        f"stopped them is mended; files that end in .failed, beside the results, tell of each. "
        f"Received: {job.title(seed)}: {first}"
    )
