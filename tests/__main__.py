"""Every test under every backend, then one line of totals: `python -m tests [backend ...]`."""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")


def run(backend, arguments):
    """Runs pytest under a backend.

    Returns:
        Its exit status and the counts of tests, failures and skips.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        # Small tests in two processes of one thread each, not one after another in two threads.
        command += ["-n", "2", "--dist", "worksteal", "-W", "ignore"]
        command += ["--durations", "20", "--durations-min", "5"]  # who takes the time
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TOKENIZERS_PARALLELISM": "false",
            # Compiling is most of the work, as in JAX's own tests; many compile the same models.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        status = subprocess.run(command, env=environment, check=False).returncode
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        if report.is_file():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                for name in counts:
                    counts[name] += int(suite.get(name, 0))
    return status, counts


def main(arguments):
    chosen = [a for a in arguments if a in BACKENDS] or BACKENDS
    options = [a for a in arguments if a not in BACKENDS]
    words, statuses = [], []
    for backend in chosen:
        print(f"== {backend}", flush=True)
        begun = time.monotonic()
        status, counts = run(backend, options)
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
