"""The cells of a suite as tasks of a Ray cluster, whose machines share the folders."""

import os
import time
from pathlib import Path

from filelock import Timeout

from keras_plm.experiments.jobs import WAIT, Worker, work

_WORKERS = {}  # of this process, by place


def _worker(place):
    """This process' worker at a place; it keeps what it has read."""
    if place not in _WORKERS:
        lines = []
        worker = Worker(place, lines.append)
        worker.lines = lines
        _WORKERS[place] = worker
    return _WORKERS[place]


def _until_free(action, *arguments):
    """Calls an action as soon as no other process is at the same."""
    while True:
        try:
            return action(*arguments)
        except Timeout:
            time.sleep(WAIT)


def _make(place, making):
    worker = _worker(place)
    try:
        _until_free(worker.make, making)
    except Exception as error:  # of which the cells that need it tell
        return _said(worker), str(error)
    return _said(worker), None


def _do(place, cell, seed, *before):
    """Does a cell behind what it needs; gives the lines it said, and what went wrong in words."""
    wrong = next((error for _, error in before if error is not None), None)
    if wrong is not None:
        return [], wrong
    worker = _worker(place)
    error = _until_free(worker.attempt, cell, seed)
    return _said(worker), None if error is None else str(error)


def _said(worker):
    lines = list(worker.lines)
    worker.lines.clear()
    return lines


def run_on_ray(cells, place, seeds, progress, finished=None, address="auto", cpus=1.0, gpus=0.0):
    """As `jobs.run_cells`, each cell with a seed as a Ray task.

    Args:
        cells, place, seeds, progress, finished: As there. Every machine of the cluster sees the
            place's folders, and this program's, under the same names.
        address: Of a cluster; `"auto"` is the one of this machine, `"local"` begins one here.
        cpus, gpus: That a task takes; a part of a GPU is shared by several.

    Returns:
        `{(cell, seed): error}` of those that failed.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "`--ray` needs Ray: pip install 'keras-plm[ray]'. Received: no module ray"
        ) from error
    names = ("KERAS_BACKEND", "OMP_NUM_THREADS", "XLA_FLAGS", "HF_HUB_OFFLINE")
    variables = {name: os.environ[name] for name in names if name in os.environ}
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    ray.init(
        address,
        runtime_env={"env_vars": variables},
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    try:
        options = {"num_cpus": cpus, "num_gpus": gpus}
        make, do = (ray.remote(function).options(**options) for function in (_make, _do))
        needs = dict.fromkeys(making for cell in cells for making in cell.needs)
        made = {making: make.remote(place, making) for making in needs}
        first = {
            cell: do.remote(place, cell, 0, *(made[making] for making in cell.needs))
            for cell in cells
        }
        asked = {reference: (cell, 0) for cell, reference in first.items()}
        for cell, seed in work(cells, seeds):
            if seed:  # the first chooses the rate
                asked[do.remote(place, cell, seed, first[cell])] = cell, seed
        left, failed = [*made.values(), *asked], {}
        while left:
            ready, left = ray.wait(left)
            for reference in ready:
                lines, error = ray.get(reference)
                for line in lines:
                    progress(line)
                if error is not None:
                    failed[asked[reference]] = ValueError(error)
                if finished is not None:
                    finished(len(asked) - sum(other in asked for other in left))
        return failed
    finally:
        ray.shutdown()
