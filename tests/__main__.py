"""Runs the tests: `python -m tests [quick|rest|all|everything] [backend ...] [options]`.

The quick tier is the default. `rest` is the remaining tests, `all` is both. `everything` also runs
each test under each backend. pytest receives the options. The last line counts the tests per
backend.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests import ROOT

BACKENDS = ("tensorflow", "jax", "torch")
TIERS = {
    "quick": ["-m", "not full and not slow"],
    "rest": ["-m", "full and not slow", "--split"],
    "all": ["-m", "not slow", "--split"],
    "everything": ["-m", "not slow"],
}


# Under JAX, compilation takes most of the time, and many tests compile the same functions. The
# flags of XLA save two fifths of the time of tests that compile; they exist in the JAX of
# constraints.txt.
JAX = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".compiled" / "tests"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}


def environment_of(backend):
    """Returns the environment variables with which a backend runs small tests fastest."""
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TOKENIZERS_PARALLELISM": "false",
        **JAX,
    }


def run(backend, tier, options):
    """Runs the tests of a tier under a backend.

    Returns:
        The exit status of pytest and the counts of tests, failures, errors and skips.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", *TIERS[tier], f"--junitxml={report}"]
        # Two processes of one thread each: small tests gain nothing from threads.
        command += ["-n", "2", "--dist", "worksteal", "-W", "ignore"]
        command += ["--durations", "20", "--durations-min", "5", *options]
        status = subprocess.run(command, env=environment_of(backend), check=False).returncode
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        if report.is_file():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                for name in counts:
                    counts[name] += int(suite.get(name, 0))
    return status, counts


def main(arguments):
    tiers = [a for a in arguments if a in TIERS] or ["quick"]
    backends = [a for a in arguments if a in BACKENDS] or BACKENDS
    options = [a for a in arguments if a not in TIERS and a not in BACKENDS]
    words, statuses = [], []
    for tier in tiers:
        for backend in backends:
            print(f"== {tier}, {backend}", flush=True)
            begun = time.monotonic()
            status, counts = run(backend, tier, options)
            failed = counts["failures"] + counts["errors"]
            passed = counts["tests"] - failed - counts["skipped"]
            words.append(
                f"{backend} {passed} passed, {failed} failed, {counts['skipped']} skipped "
                f"in {time.monotonic() - begun:.0f} s"
            )
            statuses.append(status)
    print("TOTAL: " + "; ".join(words))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
