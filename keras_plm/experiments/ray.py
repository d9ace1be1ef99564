"""Jobs of a suite as tasks of a Ray cluster; its machines share the folders."""

import os
import time
from pathlib import Path

from filelock import Timeout

from keras_plm.experiments.jobs import WAIT, Worker, work

_WORKERS = {}  # workers of this process by workspace


def _worker(workspace):
    """Returns the worker of this process for a workspace; it caches tasks and encoders."""
    if workspace not in _WORKERS:
        lines = []
        worker = Worker(workspace, lines.append)
        worker.lines = lines
        _WORKERS[workspace] = worker
    return _WORKERS[workspace]


def _until_free(action, *arguments):
    """Calls an action, and waits while another process holds its lock."""
    while True:
        try:
            return action(*arguments)
        except Timeout:
            time.sleep(WAIT)


def _make(workspace, prerequisite):
    worker = _worker(workspace)
    try:
        _until_free(worker.make, prerequisite)
    except Exception as error:  # reported by the jobs that need the prerequisite
        return _said(worker), str(error)
    return _said(worker), None


def _do(workspace, job, seed, *before):
    """Runs a job after its prerequisites; returns its lines of progress and its error as text."""
    wrong = next((error for _, error in before if error is not None), None)
    if wrong is not None:
        return [], wrong
    worker = _worker(workspace)
    error = _until_free(worker.attempt, job, seed)
    return _said(worker), None if error is None else str(error)


def _said(worker):
    lines = list(worker.lines)
    worker.lines.clear()
    return lines


def run_on_ray(jobs, workspace, seeds, progress, finished=None, address="auto", cpus=1.0, gpus=0.0):
    """Runs jobs like `jobs.run_jobs`, with a Ray task for each pair of job and seed.

    Args:
        jobs, workspace, seeds, progress, finished: As in `jobs.run_jobs`. All machines of the
            cluster must see the folders of the workspace and of this program under the same paths.
        address: Address of a cluster; `"auto"` is the one of this machine, `"local"` starts one.
        cpus, gpus: Number for each task; with a fraction, several tasks share a GPU.

    Returns:
        `{(job, seed): error}` of the failed ones.

    Raises:
        ImportError: If Ray is not installed.
        ConnectionError: If there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("`--ray` needs Ray: pip install ray. Received: no module ray") from error
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
        needs = dict.fromkeys(prerequisite for job in jobs for prerequisite in job.needs)
        made = {prerequisite: make.remote(workspace, prerequisite) for prerequisite in needs}
        first, asked = {}, {}
        for job, seed in work(jobs, seeds):
            # Seed 0 chooses the learning rate.
            after = [first[job]] if seed else [made[prerequisite] for prerequisite in job.needs]
            reference = do.remote(workspace, job, seed, *after)
            asked[reference] = job, seed
            first.setdefault(job, reference)
        left, failed = [*made.values(), *asked], {}
        while left:
            ready, left = ray.wait(left)
            for reference in ready:
                lines, error = ray.get(reference)
                for line in lines:
                    progress(line)
                if error is not None and reference in asked:  # jobs report their prerequisites
                    failed[asked[reference]] = ValueError(error)
                if finished is not None:
                    finished(len(asked) - sum(other in asked for other in left))
        return failed
    finally:
        ray.shutdown()
