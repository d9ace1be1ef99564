"""Jobs of a suite, for one process or for several that share a folder of results.

A job is a task, an encoder and a run; each of its seeds gives one result. Existing results are not
recomputed, and a stopped suite resumes. Locks keep two processes from computing the same result.
The system frees the locks of a dead process.
"""

import dataclasses
import functools
import time
import typing
from pathlib import Path

from filelock import FileLock, Timeout

from keras_plm.checkpoints.packages import model_name
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.config import Run
from keras_plm.experiments.results import LOCKS, failure_of, result_name, write_failure
from keras_plm.experiments.runner import Runner
from keras_plm.files.cache import cache_folder
from keras_plm.files.disk_space import FULL

WAIT = 2.0  # seconds between two attempts at a job that another process holds


@dataclasses.dataclass(frozen=True)
class Prerequisite:
    """An input of jobs that takes long to create: a pre-trained encoder or word vectors.

    Attributes:
        name: Name in lines of progress.
        make: `make(progress)` creates the input. It resumes after a stop, and does nothing if the
            input exists.
    """

    name: str
    make: typing.Callable = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of a suite, without its seed.

    Attributes:
        task: Name of a task in `TASKS`.
        encoder: Folder of an encoder.
        run: A `Run`.
        name: Name of the encoder in results; by default its folder's name.
        needs: `Prerequisite`s of the job.
        seeds: Number of seeds, unless `work` gets a number for all jobs.
        stage: Position in the order of jobs; lower stages run first, with all their seeds.
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
        return self.name or model_name(self.encoder)

    def title(self, seed):
        return f"{self.task}  {self.encoder_name}  {self.run.name} seed {seed}"


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Folders and devices of jobs, with the values that `Runner` takes."""

    data: str
    results: str
    features: str = dataclasses.field(default_factory=lambda: str(cache_folder("features")))
    feature_gb: float = 8.0
    devices: int | None = 1

    def path(self, job, seed):
        """Returns the path of a job's result file before packing."""
        name = result_name(job.task, job.encoder_name, job.run.name, seed)
        return Path(self.results) / name

    def failure(self, job, seed):
        """Returns the path of the file with the error of a failed job."""
        return failure_of(self.path(job, seed))

    def lock(self, name):
        """Returns a lock; acquiring it raises `Timeout` if another process holds it."""
        folder = Path(self.results) / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name.replace('/', '_')}.lock", timeout=0)

    def lock_job(self, job, seed):
        return self.lock(f"{job.task}.{self.path(job, seed).stem}")


class Worker:
    """Runs the jobs of a workspace, and reads each task and encoder once.

    Args:
        workspace: A `Workspace`.
        progress: Called with a line of text after each piece of work.
        epoch: Called with a line of text about the current epoch.
    """

    def __init__(self, workspace, progress, epoch=None):
        self.workspace, self.progress, self.epoch = workspace, progress, epoch
        self._runners, self._made, self._planned = {}, set(), {}

    def runner(self, job):
        """Returns the `Runner` of a job."""
        key = _key(job)
        if key not in self._runners:
            workspace = self.workspace
            runner = Runner(
                TASKS[job.task], workspace.data, job.encoder, workspace.results, workspace.features,
                workspace.feature_gb, functools.partial(self._say, job.encoder_name),
                name=job.encoder_name, epoch=self.epoch, devices=workspace.devices,
            )  # fmt: skip
            runner.plan(self._planned.get(key, ()))
            self._runners[key] = runner
        return self._runners[key]

    def plan(self, todo):
        """Announces the pairs of job and seed that follow, see `Runner.plan`."""
        for job, seed in todo:
            self._planned.setdefault(_key(job), []).append((job.run, seed))

    def _say(self, name, line):
        self.progress(f"{name}  {line}")

    def make(self, prerequisite):
        """Creates a prerequisite unless it exists.

        Raises:
            Timeout: If another process is creating it.
        """
        if prerequisite not in self._made:
            with self.workspace.lock(prerequisite.name):
                self.progress(f"prerequisite: {prerequisite.name}")
                prerequisite.make(self.progress)
            self._made.add(prerequisite)

    def do(self, job, seed):
        """Runs a job that has no result yet, after its prerequisites.

        Raises:
            Timeout: If another process is running the job.
        """
        for prerequisite in job.needs:
            self.make(prerequisite)
        runner, workspace = self.runner(job), self.workspace
        if seed and runner.result(job.run, 0) is None:  # seed 0 chooses the learning rate
            with workspace.lock_job(job, 0):
                pass
        with workspace.lock_job(job, seed):
            runner.run(job.run, seed)
        workspace.failure(job, seed).unlink(missing_ok=True)

    def attempt(self, job, seed):
        """Runs a job like `do`, but writes an error to a file and returns it.

        Raises:
            Timeout: If another process is running the job.
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


def _key(job):
    """What one `Runner` reads for several jobs: a task and an encoder."""
    return job.task, job.encoder, job.encoder_name


def work(jobs, seeds=None):
    """Lists jobs with their seeds by stage, then by seed: `[(job, seed)]`.

    Args:
        jobs: A list of `Job`.
        seeds: Number of seeds; `None` takes each job's own number.
    """
    found = [(job, seed) for job in jobs for seed in range(seeds or job.seeds)]
    return sorted(found, key=lambda one: (one[0].stage, one[1]))  # stable: keeps the given order


def run_jobs(jobs, workspace, seeds, progress, epoch=None, finished=None):
    """Runs the jobs that have no result yet, in the order of `work`.

    It skips a job that another process is running, and tries it again at the end.

    Args:
        jobs: A list of `Job`.
        workspace: A `Workspace`.
        seeds: Number of seeds; `None` takes each job's own number.
        progress, epoch: As in `Worker`.
        finished: Called with the number of finished pairs of job and seed.

    Returns:
        `{(job, seed): error}` of the failed ones.

    Raises:
        OSError: If the disk is full.
    """
    worker = Worker(workspace, progress, epoch)
    todo, failed = work(jobs, seeds), {}
    worker.plan(todo)
    total = len(todo)
    while todo:
        waiting, done = [], total - len(todo)
        for job, seed in todo:
            try:
                # Seed 0 chooses the learning rate of all seeds.
                error = failed.get((job, 0)) or worker.attempt(job, seed)
            except Timeout:
                waiting.append((job, seed))
                continue
            if error is not None:
                failed[job, seed] = error
            done += 1
            if finished is not None:
                finished(done)
        if len(waiting) == len(todo):
            time.sleep(WAIT)
        todo = waiting
    return failed


def check(failed, total):
    """Raises an error if jobs failed: the common error of all jobs, or a count and the first error.

    Args:
        failed: Result of `run_jobs`.
        total: Number of pairs of job and seed.
    """
    if not failed:
        return
    errors = list(failed.values())
    if len(failed) == total and len({(type(e), str(e)) for e in errors}) == 1:
        raise errors[0]
    (job, seed), first = next(iter(failed.items()))
    raise ValueError(
        f"{len(failed)} of {total} jobs failed and the others are done. The .failed files next to "
        "the results state the causes: fix them, and run the command again. "
        f"Received: {job.title(seed)}: {first}"
    )
