"""The command line: `python -m tests.fuzz --seed 1 --cases 1000 --reader "own_*"`.

`--case 7 --show` repeats one case, prints its traceback and keeps its files.
"""

import argparse
import collections
import fnmatch
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

ENVIRONMENT = {  # before Keras is imported
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "Agg",
}


def flags_of(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], help="run these seeds (default 1)"
    )
    parser.add_argument(
        "--cases", type=int, default=1000, help="run so many cases per seed (default 1000)"
    )
    parser.add_argument(
        "--reader",
        default="*",
        metavar="GLOB",
        help="test these readers, separated by commas (default all)",
    )
    parser.add_argument("--case", type=int, help="run only this case, of one reader")
    parser.add_argument(
        "--show", action="store_true", help="print the traceback and keep the files"
    )
    parser.add_argument("--out", type=Path, help="write counts and failures to this JSON file")
    parser.add_argument(
        "--jobs", type=int, default=2, help="run so many processes at once (default 2)"
    )
    parser.add_argument(
        "--every", type=float, default=15, help="print progress every N seconds (default 15)"
    )
    parser.add_argument("--list", action="store_true", help="list the readers")
    return parser.parse_args(arguments)


def main(arguments=None):
    flags = flags_of(arguments)
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.update(ENVIRONMENT)
    if sys.platform != "linux":
        raise SystemExit("The fuzzer needs Linux, for /proc and memory limits")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        from tests.fuzz.readers import READERS

        chosen = [
            reader
            for reader in READERS
            if any(fnmatch.fnmatch(reader.name, glob) for glob in flags.reader.split(","))
        ]
        if not chosen:
            raise SystemExit(
                f"`--reader` must name a reader, see --list. Received: {flags.reader!r}"
            )
        if flags.list:
            print("\n".join(reader.name for reader in chosen))
            return 0
        if flags.case is not None:
            return repeat(chosen[0], flags.seed[0], flags.case, flags.show, Path(folder))
        return Campaign(flags, chosen).run(Path(folder))


def repeat(reader, seed, number, show, folder):
    """Runs one case in this process and prints the outcome."""
    from tests.fuzz.cases import run_case
    from tests.fuzz.outcomes import ALLOWED, Hang
    from tests.fuzz.workers import make_templates

    def stop(*_):
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    templates = make_templates([reader], folder / "templates")
    work = Path(tempfile.mkdtemp(prefix="fuzz."))
    found = run_case(reader, seed, number, templates[reader.name], work, show=show)
    for name, value in found.items():
        print(f"{name:10} {value}")
    if show:
        print(f"{'files':10} {work / f'{reader.name}.{number}' / 'a' / 'b'}")
    else:
        work.rmdir()
    return found["outcome"] not in ALLOWED


class Campaign:
    """Many cases: progress, counts and failures."""

    def __init__(self, flags, readers):
        self.flags, self.readers = flags, readers
        self.counts = {reader.name: collections.Counter() for reader in readers}
        self.seconds = collections.Counter({reader.name: 0.0 for reader in readers})
        self.failures, self.environment = [], None
        self.begun = self.said = time.monotonic()
        self.stopped = False

    def run(self, folder):
        """Runs the cases; returns the exit status."""
        from tests.fuzz import workers

        for number in (signal.SIGINT, signal.SIGTERM):  # a shell may ignore SIGINT
            signal.signal(number, self.stop)
        workers.run(
            self.readers, self.flags.seed, self.flags.cases, folder, self.flags.jobs, self.add,
            lambda: self.stopped,
        )  # fmt: skip
        self.write()
        print(workers.table(self.counts, self.seconds))
        for line in self.signatures():
            print(line)
        return 130 if self.stopped else int(bool(self.failures))

    def stop(self, *_):
        """Handles a signal: the run ends at its next check, or immediately at the second signal.

        A library may catch an exception that is raised inside it.
        """
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True

    def add(self, found):
        """Records the result of a case."""
        from tests.fuzz.outcomes import ALLOWED

        self.counts[found["reader"]][found["outcome"]] += 1
        self.seconds[found["reader"]] += found["seconds"]
        if found["outcome"] not in ALLOWED:
            self.failures.append(found)
        if time.monotonic() - self.said > self.flags.every:
            self.said = time.monotonic()
            done = sum(sum(counts.values()) for counts in self.counts.values())
            total = len(self.flags.seed) * max(self.flags.cases, len(self.readers))
            print(
                f"{done:,} of {total:,} cases, {len(self.failures):,} failures, "
                f"{self.said - self.begun:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            self.write()

    def write(self):
        """Writes the findings so far, atomically."""
        from keras_plm.experiments.environment import environment
        from keras_plm.files.writing import write_json

        if self.flags.out is None:
            return
        self.environment = self.environment or environment()
        failures = sorted(self.failures, key=lambda f: (f["reader"], f["seed"], f["case"]))
        found = {
            "seeds": self.flags.seed,
            "cases": sum(sum(counts.values()) for counts in self.counts.values()),
            "seconds": round(time.monotonic() - self.begun, 1),
            "outcomes": self.counts,
            "failures": failures,
            **self.environment,
        }
        write_json(self.flags.out, found)

    def signatures(self):
        """Returns a line for each kind of failure, the most frequent of a reader first."""
        kinds = collections.defaultdict(list)
        for found in self.failures:
            kinds[found["reader"], found["outcome"], found["signature"]].append(found)
        for (reader, outcome, signature), all_of in sorted(
            kinds.items(), key=lambda item: (item[0][0], -len(item[1]), item[0])
        ):
            first = min(all_of, key=lambda f: (f["seed"], f["case"]))
            yield (
                f"{outcome:8}{len(all_of):5}  --reader {reader} --seed {first['seed']} "
                f"--case {first['case']}  [{first['damage']}] {signature}"
            )


if __name__ == "__main__":
    sys.exit(main())
