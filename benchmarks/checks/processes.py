"""Runs processes that write at the same time, or are killed at each rename, to find lost writes.

One process imports the modules and forks the others, so that a hundred of them cost little. The
imported modules must not start threads, because threads do not survive a fork. Windows cannot fork.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

RENAMES = ("replace", "rename")


@dataclasses.dataclass
class Outcome:
    """End of a process.

    Attributes:
        status: Exit status, or minus the number of the signal.
        error: Last line of the error.
    """

    status: int
    error: str = ""


def run_together(code, folders, count=2, setup="", before="", after="", longest_delay=0.0):
    """Runs the same code in several processes at the same time.

    Args:
        code: Python code. Its variable `number` is the number of the process, from 0.
        folders: Working folders, one for each trial.
        count: Number of processes.
        setup: Python code that runs once, before all processes: imports.
        before, after: Python code that another process runs in each folder, before and after
            `code`.
        longest_delay: Longest wait of a process before it starts, in seconds. Each process draws
            its wait at random with a fixed seed.

    Returns:
        For each folder, a list with the `Outcome` of each process. With `after`, the last one is
        the outcome of `after`.
    """
    rng = random.Random(0)
    trials = [
        {"folder": str(folder), "delays": [rng.uniform(0, longest_delay) for _ in range(count)]}
        for folder in folders
    ]
    return _launch(setup=setup, code=code, before=before, after=after, trials=trials, kill=None)


def kill_at_each_call(code, folder, copies, setup="", after="", calls=RENAMES, every=1):
    """Runs code in copies of a folder and kills it before its first rename, its second, and so on.

    The process in the last copy is not killed.

    Args:
        code: Python code.
        folder: Folder to copy.
        copies: Folder for the copies.
        setup: Python code that runs once, before all processes: imports.
        after: Python code that must run without an error in each copy afterwards.
        calls: Names of the functions of `os` to kill at.
        every: 1 kills at each call, 3 at every third call.

    Returns:
        The copies in the order of the calls.

    Raises:
        AssertionError: If the last process or `after` ends with an error.
    """
    kill = {"folder": str(folder), "copies": str(copies), "calls": list(calls), "every": every}
    killed, later = _launch(setup=setup, code=code, after=after, kill=kill)
    *killed, last = killed
    assert last.status == 0, last
    assert all(one.status == -signal.SIGKILL for one in killed), killed
    assert all(one.status == 0 for one in later), later
    return [Path(copies) / str(n) for n in range(len(killed) + 1)]


def _launch(**work):
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.checks.processes"],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout.splitlines()[-1])
    return [[Outcome(**one) for one in trial] for trial in trials]


def _fork(run, folder):
    """Runs a function in a new process; returns its id and the file descriptor of its error."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    status = 1
    try:
        os.chdir(folder)
        sys.stdout = sys.stderr
        run()
        status = 0
    except BaseException as error:  # code of the parent process must not run here
        text = traceback.format_exception_only(error)[-1].strip()
        os.write(writing, text.encode()[:60_000])
    finally:
        os._exit(status)


def _wait(process, reading):
    with os.fdopen(reading, "rb") as file:
        error = file.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return {"status": status, "error": error}


def _together(code, before, after, names, folder, delays):
    """Runs one trial: all processes start together, after the last one is ready."""
    if before:
        begun = _wait(*_fork(lambda: exec(before, names), folder))
        assert begun["status"] == 0, begun
    begin, start = os.pipe()

    def run(number, delay):
        os.close(start)
        os.read(begin, 1)  # returns in all processes when the parent closes the pipe
        time.sleep(delay)
        exec(code, names | {"number": number})

    started = [
        _fork(lambda n=number, d=delay: run(n, d), folder) for number, delay in enumerate(delays)
    ]
    os.close(start)
    os.close(begin)
    found = [_wait(*one) for one in started]
    return [*found, _wait(*_fork(lambda: exec(after, names), folder))] if after else found


def _killed(code, names, folder, copies, calls, every):
    """Kills a run at its first call, the next run at its second, until a run ends by itself."""

    def run(number):
        left = number

        def patched(call):
            def count(*args, **kwargs):
                nonlocal left
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return call(*args, **kwargs)

            return count

        for name in calls:
            setattr(os, name, patched(getattr(os, name)))
        exec(code, names)

    outcomes = []
    for number in range(100):
        copy = Path(copies) / str(number)
        shutil.copytree(folder, copy, symlinks=True)
        outcomes.append(_wait(*_fork(lambda n=number * every: run(n), copy)))
        if outcomes[-1]["status"] != -signal.SIGKILL:
            return outcomes
    raise AssertionError("more than 100 calls")


def _main():
    work = json.loads(sys.stdin.read())
    names = {"__name__": "code"}
    exec(work["setup"], names)
    code = compile(work["code"], "code", "exec")
    if work["kill"] is None:
        found = [_together(code, work["before"], work["after"], names, **t) for t in work["trials"]]
    else:
        outcomes = _killed(code, names, **work["kill"])
        copies = [f"{work['kill']['copies']}/{i}" for i in range(len(outcomes))]
        found = [outcomes, [_wait(*_fork(lambda: exec(work["after"], names), c)) for c in copies]]
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
