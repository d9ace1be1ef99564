"""Peak memory of this process, and of a process of its own for one piece of work."""

import os
import resource
import subprocess
import sys
from pathlib import Path


def reset_peak_memory():
    """Resets the peak that `peak_memory_mb` returns, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_memory_mb():
    """The largest resident size of this process, in megabytes."""
    try:
        # `getrusage` on Linux includes the process that this one was forked from.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_memory_of(module, *arguments):
    """Peak memory of a new process that runs a module, start and imports included.

    Args:
        module: A module that this process can import. It prints `peak_memory_mb()` as the last
            word of its output.
        arguments: Its arguments on the command line, strings.

    Returns:
        Megabytes, rounded to one decimal.

    Raises:
        RuntimeError: If the process fails.
    """
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    if done.returncode:
        raise RuntimeError(
            f"The process that measures peak memory failed: {' '.join(command[4:7])}. "
            f"Received: {done.stderr[-500:]}"
        )
    return round(float(done.stdout.split()[-1]), 1)
