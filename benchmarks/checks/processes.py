"""Processes that write at the same time, or are killed at each rename: for tests of lost writes.

One process imports what is needed and forks the others, so that a hundred of them cost little. What
is imported must compute nothing before: threads do not live on in a fork. Not for Windows.
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
    """How a process ended: its exit status, or minus a signal; the last line of its error."""

    status: int
    error: str = ""


def run_together(code, folders, count=2, setup="", before="", after="", longest_delay=0.0):
    """Runs the same code in several processes at the same time.

    Args:
        code: Python text. The name `number` says which process runs it, from 0.
        folders: Working folders, one after another: each is a trial of its own.
        count: Number of processes.
        setup: Python text that runs once, before all of them: imports.
        before, after: Python text that one more process runs in each folder before, and after.
        longest_delay: Seconds that a process waits at most before it begins. How long it waits is
            drawn, the same in each call.

    Returns:
        For each folder a list with the `Outcome` of each process, with `after` of its process, too.
    """
    rng = random.Random(0)
    trials = [
        {"folder": str(folder), "delays": [rng.uniform(0, longest_delay) for _ in range(count)]}
        for folder in folders
    ]
    return _launch(setup=setup, code=code, before=before, after=after, trials=trials, kill=None)


def kill_at_each_call(code, folder, copies, setup="", after="", calls=RENAMES, every=1):
    """Runs code in copies of a folder, killed just before its first rename, its second, and so on.

    The process of the last copy is not killed.

    Args:
        code: Python text.
        folder: What the working folder holds at first.
        copies: Where the copies are put.
        setup: Python text that runs once, before all of them: imports.
        after: Python text that must run without an error in each copy that was left.
        calls: Names of functions of `os` to kill at.
        every: 1 kills at each call, 3 at each third one.

    Returns:
        The copies in order of the calls.

    Raises:
        AssertionError: If the process that was not killed ends with an error, or `after` does.
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
    """Runs a function in a process of its own; gives its id and where its error is read."""
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
    except BaseException as error:  # nothing of the process around it may run on
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
    """One trial: all processes begin when the last one is there."""
    if before:
        begun = _wait(*_fork(lambda: exec(before, names), folder))
        assert begun["status"] == 0, begun
    begin, start = os.pipe()

    def run(number, delay):
        os.close(start)
        os.read(begin, 1)  # nothing comes, but an end for all at once
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
    """Runs killed at one call after another, until one is not killed."""

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
