"""Runs cases in separate processes with limits on memory and time. A crash is an outcome."""

import collections
import json
import os
import random
import resource
import selectors
import shutil
import signal
import time
import traceback
from pathlib import Path

from tests.fuzz.cases import COMPUTING, run_case
from tests.fuzz.damage import damage
from tests.fuzz.outcomes import OUTCOMES, Hang

ADDRESSES = 2 << 30  # bytes of memory that a process may request in addition to its initial memory
ASLEEP = 10  # seconds that a process may sleep without computing
GRACE = 10  # seconds between the request to stop a process and its kill
AT_ONCE, ROUND = 50, 2000  # cases per process, and per pass over all readers


class FuzzerError(Exception):
    """A worker failed before its first case, because of a fault in the fuzzer."""


def shares(readers, cases):
    """Returns `{reader: number of cases}` by weight, at least one each, with sum `cases`."""
    cases, total = max(cases, len(readers)), sum(reader.weight for reader in readers)
    exact = {reader.name: (cases - len(readers)) * reader.weight / total for reader in readers}
    found = {name: 1 + int(share) for name, share in exact.items()}
    rest = sorted(exact, key=lambda name: int(exact[name]) - exact[name])
    for name in rest[: cases - sum(found.values())]:
        found[name] += 1
    return found


def chunks(readers, seeds, cases):
    """Returns lists of `(reader, seed, case)`, one for each process.

    Neighbouring cases share a reader, so that its models are made once. Long runs make several
    passes over all readers, so that a stopped run has tested each.
    """
    counts, found = shares(readers, cases), []
    rounds = max(1, cases // ROUND)
    for turn in range(rounds):
        of_turn = [
            (reader, seed, number)
            for reader in readers
            for count in [counts[reader.name]]
            for seed in seeds
            for number in range(count * turn // rounds, count * (turn + 1) // rounds)
        ]
        found += [of_turn[i : i + AT_ONCE] for i in range(0, len(of_turn), AT_ONCE)]
    return found


def run(readers, seeds, cases, folder, jobs, report, stopped=lambda: False):
    """Runs the cases and calls `report` with each result, in no fixed order.

    Args:
        readers: A list of `Reader`.
        seeds: A list of numbers.
        cases: Cases of each seed.
        folder: Temporary folder for templates and cases.
        jobs: Number of simultaneous processes.
        report: Called with a dict, see `cases.run_case`.
        stopped: Function that returns True if the run must end early.
    """
    templates = make_templates(readers, folder / "templates", stopped)
    waiting = collections.deque(chunks(readers, seeds, cases))
    selector, running = selectors.DefaultSelector(), set()
    try:
        while (waiting or running) and not stopped():
            while waiting and len(running) < jobs:
                worker = Worker(waiting.popleft(), templates, folder, report)
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
                running.add(worker)
            for key, _ in selector.select(timeout=1):
                key.data.read()
            for worker in list(running):
                worker.watch()
                if worker.ended:
                    selector.unregister(worker.pipe)
                    running.remove(worker)
                    rest = worker.finish()
                    if rest:
                        waiting.appendleft(rest)
    finally:
        for worker in running:
            worker.end()


def make_templates(readers, folder, stopped=lambda: False):
    """Makes the valid inputs; returns `{reader: folder}`."""
    found = {}
    for reader in readers:
        if stopped():
            break
        found[reader.name] = folder / reader.name
        reader.make(found[reader.name])
    return found


class Worker:
    """A process that runs cases one after another.

    Args:
        chunk: A list of `(reader, seed, case)`.
        templates: See `make_templates`.
        folder: Folder for the files of cases.
        report: Called with each result.
    """

    def __init__(self, chunk, templates, folder, report):
        self.chunk, self.templates, self.report = chunk, templates, report
        self.done, self.begun, self.damage = 0, False, ""
        self.asleep, self.stopping, self.killed, self.ended = 0, 0, False, False
        self.computed, self.at_begin, self.checked = None, 0.0, time.monotonic()
        self.buffer, self.fault = b"", ""
        self.pipe, pipe = os.pipe()
        self.folder = folder / f"worker.{random.Random().getrandbits(32):08x}"
        self.folder.mkdir()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self.pipe)
                self._work(pipe)
            except BaseException:
                os.write(pipe, json.dumps({"fault": traceback.format_exc()}).encode() + b"\n")
            finally:
                os._exit(3)
        os.close(pipe)

    def _work(self, pipe):
        """Main function of the process."""

        def stop(*_):
            raise Hang

        def say(**message):
            os.write(pipe, json.dumps(message).encode() + b"\n")

        signal.signal(signal.SIGUSR1, stop)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        addresses = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        limit = addresses + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for reader, seed, number in self.chunk:
            found = run_case(
                reader, seed, number, self.templates[reader.name], self.folder,
                begun=lambda how: say(begun=how),
            )  # fmt: skip
            say(result=found)
            if found["outcome"] in ("memory", "hang"):
                break  # the next cases get a new process
        os._exit(0)

    def read(self):
        """Reads the messages of the process."""
        part = os.read(self.pipe, 1 << 16)
        self.ended = not part
        *lines, self.buffer = (self.buffer + part).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "begun" in message:
                self.begun, self.damage = True, message["begun"]
                self.asleep = self.stopping = 0
                self.at_begin = self._state()[1]
            elif "fault" in message:
                self.fault = message["fault"]
            else:
                self.begun = False
                self.done += 1
                self.report(message["result"])

    def watch(self):
        """Stops a process that waits forever or computes too long. Called once a second.

        Only CPU time counts, and sleep without CPU time, so a busy machine causes no hang.
        """
        now = time.monotonic()
        if now - self.checked < 1 or not self.begun or self.ended:
            return
        self.checked = now
        sleeps, computed = self._state()
        self.asleep = self.asleep + 1 if sleeps and computed == self.computed else 0
        self.computed = computed
        if self.stopping or self.asleep >= ASLEEP:
            self.stopping += 1
        if self.stopping == 1:
            os.kill(self.process, signal.SIGUSR1)
        if self.stopping > GRACE or computed - self.at_begin > 2 * COMPUTING + GRACE:
            self.killed = True
            os.kill(self.process, signal.SIGKILL)

    def _state(self):
        """Returns whether the process sleeps, and its CPU seconds."""
        try:
            text = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False, 0.0
        return text[0] == "S", (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")

    def finish(self):
        """Reports the case in which the process ended, if any; returns the remaining cases."""
        os.close(self.pipe)
        _, status = os.waitpid(self.process, 0)
        if self.begun and not self.fault:
            reader, seed, number = self.chunk[self.done]
            outcome = "hang" if self.killed else "crash"
            signature = f"ended by {describe(status)}, {self.damage.split()[-1]}"
            self.report(
                {"seed": seed, "reader": reader.name, "case": number, "damage": self.damage,
                 "outcome": outcome, "signature": signature, "message": "", "seconds": 0}
            )  # fmt: skip
            self.done += 1
        elif status != 0:
            reader, seed, number = self.chunk[self.done]
            raise FuzzerError(
                f"A worker ended outside of a case, by {describe(status)}. "
                f"Received: {reader.name}, seed {seed}, case {number}\n{self.fault}"
            )
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.chunk[self.done :]

    def end(self):
        """Ends the process immediately."""
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def describe(status):
    """Describes what ended a process."""
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.WEXITSTATUS(status)}"


def table(counts, seconds):
    """Returns the counts of outcomes as text, with a line for each reader.

    Args:
        counts: `{reader: {outcome: number}}`.
        seconds: `{reader: CPU seconds}`.
    """
    total = collections.Counter()
    for found in counts.values():
        total.update(found)
    lines = [f"{'reader':26}{'cases':>7}" + "".join(f"{o:>8}" for o in OUTCOMES) + f"{'s':>6}"]
    for name, found in [*counts.items(), ("all", total)]:
        numbers = "".join(f"{found.get(outcome) or '':>8}" for outcome in OUTCOMES)
        spent = sum(seconds.values()) if name == "all" else seconds[name]
        lines.append(f"{name:26}{sum(found.values()):7}{numbers}{spent:6.0f}")
    return "\n".join(lines)


def damage_once(reader, seed, number, folder):
    """Damages a folder like a case; returns a description."""
    return damage(reader, random.Random(f"{seed}/{reader.name}/{number}"), folder)
