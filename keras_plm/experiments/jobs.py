"""The jobs of a suite, done by one process or by several that share a folder of results.

A job is a task, an encoder and a run; each of its seeds becomes one result. Results that exist are
not computed again, so a stopped suite resumes. Locks keep processes that share a folder from doing
the same job; the system frees the locks of a process that died.
"""

import dataclasses
import functools
import time
import typing
from pathlib import Path

from filelock import FileLock, Timeout

from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.results import LOCKS, failure_of, result_name, write_failure
from keras_plm.experiments.runner import Runner
from keras_plm.files.cache import cache_folder
from keras_plm.files.disk_space import FULL

WAIT = 2.0  # seconds between two looks at a job that another process does


@dataclasses.dataclass(frozen=True)
class Prerequisite:
    """An input of jobs that takes long to make: a pre-trained encoder, word vectors.

    Attributes:
        name: Its name in lines of progress.
        make: `make(progress)` makes it. It resumes where it was stopped, and does nothing if it is
            done.
    """

    name: str
    make: typing.Callable = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of a suite, without its seed.

    Attributes:
        task: A name in `TASKS`.
        encoder: A folder.
        run: A `Run`.
        name: The encoder's name in results; by default its folder's name.
        needs: The `Prerequisite`s that are made first.
        seeds: The number of seeds, unless `work` gets one for all jobs.
        stage: Jobs of a lower stage are done first, with all their seeds.
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
    """The folders and devices of jobs, as `Runner` takes them."""

    data: str
    results: str
    features: str = dataclasses.field(default_factory=lambda: str(cache_folder("features")))
    feature_gb: float = 8.0
    devices: int | None = 1

    def path(self, job, seed):
        """The result file of a job while it is not packed."""
        name = result_name(job.task, job.encoder_name, job.run.name, seed)
        return Path(self.results) / name

    def failure(self, job, seed):
        """The file that states why a job failed."""
        return failure_of(self.path(job, seed))

    def lock(self, name):
        """A lock that raises `Timeout` if another process holds it."""
        folder = Path(self.results) / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name.replace('/', '_')}.lock", timeout=0)

    def lock_job(self, job, seed):
        return self.lock(f"{job.task}.{self.path(job, seed).stem}")


class Worker:
    """Does the jobs of a workspace; reads each task and encoder once.

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
        """Makes a prerequisite that is not made yet.

        Raises:
            Timeout: If another process makes it.
        """
        if prerequisite not in self._made:
            with self.workspace.lock(prerequisite.name):
                self.progress(f"prerequisite: {prerequisite.name}")
                prerequisite.make(self.progress)
            self._made.add(prerequisite)

    def do(self, job, seed):
        """Does a job that is not done, after its prerequisites.

        Raises:
            Timeout: If another process does it.
        """
        for prerequisite in job.needs:
            self.make(prerequisite)
        runner, workspace = self.runner(job), self.workspace
        if seed and runner.result(job.run, 0) is None:  # it chooses the learning rate
            with workspace.lock_job(job, 0):
                pass
        with workspace.lock_job(job, seed):
            runner.run(job.run, seed)
        workspace.failure(job, seed).unlink(missing_ok=True)

    def attempt(self, job, seed):
        """As `do`, but returns an error and writes it to a file, so that other jobs continue.

        Raises:
            Timeout: If another process does it.
            OSError: If the disk is full.
        """
        try:
            self.do(job, seed)
        except Timeout:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            path = self.workspace.path(job, seed)
            write_failure(path, job.task, job.encoder_name, job.run, seed, error)
            self.progress(f"{job.title(seed)}: failed: {error}")
            return error
        return None


def work(jobs, seeds=None):
    """Jobs with their seeds by stage, then by seed: `[(job, seed)]`.

    Args:
        jobs: A list of `Job`.
        seeds: The number of seeds; `None` takes each job's own.
    """
    found = [(job, seed) for job in jobs for seed in range(seeds or job.seeds)]
    return sorted(found, key=lambda one: (one[0].stage, one[1]))  # stable: then in the order given


def run_jobs(jobs, workspace, seeds, progress, epoch=None, finished=None):
    """Does the jobs that are not done yet, in the order of `work`.

    A job that another process does is skipped, and looked at again at the end.

    Args:
        jobs: A list of `Job`.
        workspace: A `Workspace`.
        seeds: The number of seeds; `None` takes each job's own.
        progress, epoch: As in `Worker`.
        finished: Called with the number of jobs and seeds that are finished.

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
                # The other seeds take the learning rate that the first chooses.
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
    """Raises if jobs failed: the error that all share, or their number and the first error.

    Args:
        failed: As `run_jobs` returns it.
        total: The number of jobs and seeds.
    """
    if not failed:
        return
    errors = list(failed.values())
    if len(failed) == total and len({(type(e), str(e)) for e in errors}) == 1:
        raise errors[0]
    (job, seed), first = next(iter(failed.items()))
    raise ValueError(
        f"{len(failed)} of {total} jobs failed and the others are done: fix the causes, which the "
        ".failed files next to the results state, and call again. "
        f"Received: {job.title(seed)}: {first}"
    )
