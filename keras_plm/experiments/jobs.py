"""The cells of a suite, done by one process or by several that share a folder of results.

A cell is a task, an encoder and a run; with each seed it becomes one result file. A result that is
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
from keras_plm.experiments import results as records
from keras_plm.experiments.config import Run, file_name
from keras_plm.experiments.runner import Bench

LOCKS = ".locks"  # a folder among the results
WAIT = 2.0  # seconds till what another process is at is asked for again


@dataclasses.dataclass(frozen=True)
class Making:
    """What cells need and takes long to make: a pre-trained encoder, word vectors.

    Attributes:
        name: As it is shown.
        make: `make(progress)` makes it. Stopped, it goes on; done, it does nothing.
    """

    name: str
    make: typing.Callable = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run of a suite, but for its seed.

    Attributes:
        task: A name in `TASKS`.
        encoder: A folder.
        run: A `Run`.
        name: What results call the encoder; by default its folder's name.
        needs: The `Making`s that come first.
        seeds: How many, unless all cells are done with a number that is told.
        stage: Cells of a lower one are done with all their seeds before.
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
class Place:
    """Where cells find their data and leave their results, and are trained, as in `Bench`."""

    data: str
    results: str
    features: str = ".features"
    feature_gb: float = 8.0
    devices: int | None = 1

    def path(self, cell, seed):
        """The result file, as `Bench.path` has it."""
        name = file_name(cell.encoder_name, cell.run.name, seed)
        return Path(self.results) / cell.task / name

    def failure(self, cell, seed):
        """The file that tells why a cell could not be done."""
        return records.failure_of(self.path(cell, seed))

    def lock(self, name):
        """A lock, which raises `Timeout` if another process has it."""
        folder = Path(self.results) / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name.replace('/', '_')}.lock", timeout=0)

    def lock_cell(self, cell, seed):
        return self.lock(f"{cell.task}.{self.path(cell, seed).stem}")


class Worker:
    """Does cells at a place; reads each task and encoder once.

    Args:
        place: A `Place`.
        progress: Called with a line of text when something is done.
        epoch: Called with a line of text about where training is.
    """

    def __init__(self, place, progress, epoch=None):
        self.place, self.progress, self.epoch = place, progress, epoch
        self._benches, self._made = {}, set()

    def bench(self, cell):
        """The `Bench` of a cell."""
        key = cell.task, cell.encoder, cell.encoder_name
        if key not in self._benches:
            place = self.place
            bench = Bench(
                TASKS[cell.task], place.data, cell.encoder, place.results, place.features,
                place.feature_gb, functools.partial(self._say, cell.encoder_name),
                name=cell.encoder_name, epoch=self.epoch, devices=place.devices,
            )  # fmt: skip
            self._benches[key] = bench
        return self._benches[key]

    def _say(self, name, line):
        self.progress(f"{name}  {line}")

    def make(self, making):
        """Makes what is not made yet.

        Raises:
            Timeout: If another process is at it.
        """
        if making not in self._made:
            with self.place.lock(making.name):
                self.progress(f"first, where it is not there: {making.name}")
                making.make(self.progress)
            self._made.add(making)

    def do(self, cell, seed):
        """Does a cell that is not done, with what it needs.

        Raises:
            Timeout: If another process is at it.
        """
        for making in cell.needs:
            self.make(making)
        bench, place = self.bench(cell), self.place
        if seed and bench.result(cell.run, 0) is None:  # whose rate this one takes
            with place.lock_cell(cell, 0):
                pass
        with place.lock_cell(cell, seed):
            bench.run(cell.run, seed)
        place.failure(cell, seed).unlink(missing_ok=True)

    def attempt(self, cell, seed):
        """As `do`, but an error is kept in a file and given back, so that other cells go on.

        Raises:
            Timeout: If another process is at it.
            OSError: If the disk is full.
        """
        try:
            self.do(cell, seed)
        except Timeout:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            path = self.place.path(cell, seed)
            records.write_failure(path, cell.task, cell.encoder_name, cell.run, seed, error)
            self.progress(f"{cell.title(seed)}: failed: {error}")
            return error
        return None


def work(cells, seeds=None):
    """Cells with their seeds, stage by stage, of each all first seeds first: `[(cell, seed)]`.

    Args:
        cells: A list of `Cell`.
        seeds: How many; `None`: each cell's own.
    """
    found = [(cell, seed) for cell in cells for seed in range(seeds or cell.seeds)]
    return sorted(found, key=lambda one: (one[0].stage, one[1]))  # stable: then as they come


def run_cells(cells, place, seeds, progress, epoch=None, finished=None):
    """Does what is not done yet, in the order of `work`.

    What another process is at is left to it, and looked for again in the end.

    Args:
        cells: A list of `Cell`.
        place: A `Place`.
        seeds: How many; `None`: each cell's own.
        progress, epoch: As of `Worker`.
        finished: Called with the number of cells and seeds that are behind.

    Returns:
        `{(cell, seed): error}` of those that failed.

    Raises:
        OSError: If the disk is full.
    """
    worker = Worker(place, progress, epoch)
    todo, failed = work(cells, seeds), {}
    total = len(todo)
    while todo:
        waiting, behind = [], total - len(todo)
        for cell, seed in todo:
            try:
                # The other seeds take the rate that is chosen with the first.
                error = failed.get((cell, 0)) or worker.attempt(cell, seed)
            except Timeout:
                waiting.append((cell, seed))
                continue
            if error is not None:
                failed[cell, seed] = error
            behind += 1
            if finished is not None:
                finished(behind)
        if len(waiting) == len(todo):
            time.sleep(WAIT)
        todo = waiting
    return failed


def check(failed, total):
    """Raises if cells failed: the one error that all have, or how many, and where it is told.

    Args:
        failed: As `run_cells` gives it.
        total: The number of cells and seeds.
    """
    if not failed:
        return
    errors = list(failed.values())
    if len(failed) == total and len({(type(e), str(e)) for e in errors}) == 1:
        raise errors[0]
    (cell, seed), first = next(iter(failed.items()))
    raise ValueError(
        f"{len(failed)} of {total} cells failed and the others are done: call again when what "
        f"stopped them is mended; files that end in .failed, beside the results, tell of each. "
        f"Received: {cell.title(seed)}: {first}"
    )
