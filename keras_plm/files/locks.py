"""Locks for one writer at a time of a file or folder, among the processes of a machine."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def one_writer(path, wait=False):
    """Holds the lock of a file or folder during the block.

    The lock is the file `.NAME.lock` next to it, or `.lock` in the folder if its parent cannot be
    written. It is removed at the end. A killed process leaves the file, but no lock: the system
    frees the locks of a process when it ends. A thread that holds the lock may take it again: a
    writer may call another one.

    Args:
        path: The file or folder to write. It need not exist.
        wait: If True, wait for another writer. If False, raise if there is one.

    Raises:
        ValueError: If another process or thread writes it; the message names the holder.
        OSError: If the parent folder cannot be written.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    inside = path.is_dir() and not os.access(path.parent, os.W_OK)
    file = path / ".lock" if inside else path.with_name(f".{path.name}.lock")
    lock = FileLock(file, is_singleton=True)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise ValueError(
            f"{path} must have one writer at a time: wait until the other one ends, or name "
            f"another path. Received: {str(path)!r}, {_holder(file)}"
        ) from error
    try:
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name in it
            file.write_text(json.dumps(holder))
        yield
    finally:
        if lock.lock_counter == 1:
            # Remove the file while the lock is held: a process that opened it before and then
            # gets its lock sees that the file has no name, and retries.
            with contextlib.suppress(OSError):
                file.unlink()
        lock.release()


def _holder(file):
    """Returns a text that names the holder of a lock, from its file."""
    try:
        holder = json.loads(file.read_text())
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
        return f"written by process {holder['process']} on {holder['host']} since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "written by another process"
