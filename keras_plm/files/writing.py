"""Atomic writing of files and folders: under a temporary name, then renamed.

A temporary name ends in the process id, a random part and `.tmp`, and is created exclusively.
Several processes and threads may write the same path, and the last one to finish wins. A reader
never sees a partial file, nor files of two different saves.
"""

import contextlib
import ctypes
import errno
import glob
import json
import os
import re
import shutil
import stat
import time
import uuid
from pathlib import Path

from keras_plm.files.locks import one_writer

# Reasons of the system why a file cannot be written, and the fix of each.
NO_ROOM = {
    errno.ENOSPC: ("the disk is full", "Free some space, or name a path on another disk."),
    errno.EDQUOT: ("the quota is used up", "Free some space, or name a path with a larger quota."),
    errno.EFBIG: ("the file exceeds the size limit", "Raise the limit, see `ulimit -f`."),
    errno.EROFS: ("the file system is read-only", "Name a path that can be written."),
}
PATIENCE = 60  # seconds that a reader waits for a save to end
WHOLE = re.compile(r"save\.[0-9a-f]{32}\.whole")  # a folder of complete files, still to be moved


@contextlib.contextmanager
def replacing(path, suffix="", needed=None):
    """Yields a temporary path, and renames it onto `path` if the block ends without an error.

    On an error or interrupt, the temporary file is removed and `path` does not change. A link stays
    a link: the file it points to is replaced and keeps its mode. The mode of a new file follows the
    umask.

    Args:
        path: The file to write. Its folder is created if needed. An existing path that is not a
            regular file, such as `/dev/stdout`, is written directly.
        suffix: End of the temporary name, for writers that choose the format by it or append it.
        needed: Number of bytes to write if known, for the error of a full disk.

    Raises:
        OSError: If the file cannot be written, with its name and the reason.

    Example:

        with replacing(path, ".npz") as temporary:
            np.savez(temporary, a=a)
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with _with_reader(path):
            yield path
        return
    path = Path(os.path.realpath(path))
    with explaining_no_room(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path, suffix)
        mode = _create(temporary)
        try:
            yield temporary
            temporary.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else mode)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _with_reader(path, seconds=5.0):
    """Waits for the reader of a named pipe; without one, writing would wait forever."""
    if not path.is_fifo():
        yield
        return
    end = time.monotonic() + seconds
    while True:
        try:
            held = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(
                    errno.ENXIO,
                    f"{path} must be a file, or a pipe that a process reads. "
                    "Received: a pipe that no process reads",
                ) from error
        time.sleep(0.02)
    try:
        yield  # while it is open, the reader sees no end of the pipe
    finally:
        os.close(held)


@contextlib.contextmanager
def replacing_files(folder, names):
    """Yields a temporary folder, and moves its files into `folder` together if no error occurs.

    On an error or interrupt in the block, the files in `folder` do not change. `read_whole` finds
    all old files or all new ones, also if the process ends between two moves: one rename completes
    the set, and the next reader or writer moves the remaining files. Writers wait for each other.
    Temporary files of processes that have ended are removed. Modes follow the umask.

    Args:
        folder: The folder of the files. It is created if needed.
        names: The files to move, in this order.

    Raises:
        OSError: If the files cannot be written, with the folder and the reason.
    """
    folder = Path(os.path.realpath(folder))
    with explaining_no_room(folder), one_writer(folder, wait=True):
        folder.mkdir(exist_ok=True)
        _finish(folder)
        remove_leftovers(folder, "save")
        with _temporary_folder(folder / "save") as temporary:
            mode = _create(temporary / ".mode")
            (temporary / ".mode").unlink()
            yield temporary
            kept = temporary / "whole"
            kept.mkdir()
            for name in names:
                (temporary / name).chmod(mode)
                (temporary / name).rename(kept / name)
            os.replace(kept, folder / f"save.{uuid.uuid4().hex}.whole")
        _finish(folder, names)


def read_whole(folder, names, read):
    """Returns the result of `read()` for files of a single `replacing_files`.

    Args:
        folder: The folder of the files.
        names: The files to read; some may be missing.
        read: Function that reads them. It is called again if another process replaces a file.

    Raises:
        ValueError: If a save was interrupted and `folder` is not writable to complete it, or
            another process keeps writing there. Errors of `read` pass.
    """
    folder = Path(os.path.realpath(folder))
    until, tries = time.monotonic() + PATIENCE, 0
    while tries < 3 and not _whole(folder):
        tries += 1
        before = _identities(folder, names)
        try:
            result = read()
        except Exception:
            if not _whole(folder) and _identities(folder, names) == before:
                raise
            continue
        if not _whole(folder) and _identities(folder, names) == before:
            return result
    while True:  # no process writes while this one holds the lock
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(one_writer(folder))
            except ValueError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
                continue
            except OSError as error:
                raise ValueError(
                    f"{folder} holds a save that was interrupted while its files were moved: load "
                    f"it once where the folder can be written. Received: {error.strerror}"
                ) from error
            _finish(folder)
            return read()


@contextlib.contextmanager
def replacing_folder(folder, keep_existing=False):
    """Yields a temporary folder, and renames it to `folder` if the block ends without an error.

    On an error or interrupt, the temporary folder is removed and `folder` does not change. On Linux
    an older folder and the new one are exchanged in one step. Elsewhere, a process that ends
    between two renames leaves the older one in a temporary folder.

    Args:
        folder: The folder to write. Its parent is created if needed.
        keep_existing: If True, keep a `folder` that exists at the end of the block. Use it for
            folders that several processes build at the same time with the same content. If False,
            replace it, and remove temporary folders of processes that have ended.

    Raises:
        OSError: If the folder cannot be written, with its name and the reason.
    """
    folder = Path(folder)
    if not keep_existing:
        remove_leftovers(folder.parent, glob.escape(folder.name))
    with explaining_no_room(folder), _temporary_folder(folder) as temporary:
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        yield new
        if not folder.exists():
            try:
                os.replace(new, folder)
                return
            except OSError:
                if not folder.exists():  # otherwise another process was faster
                    raise
        if keep_existing or _exchange(new, folder):
            return
        os.replace(folder, old)
        try:
            os.replace(new, folder)
        except BaseException:
            os.replace(old, folder)
            raise


class NoRoom(OSError):
    """Error for a file that cannot be written because of a full disk or a limit."""


@contextlib.contextmanager
def explaining_no_room(path, needed=None, kept="Existing files are unchanged."):
    """Adds the file and the free space to errors of a full disk.

    Args:
        path: The file or folder that is written in the block.
        needed: Number of bytes to write, if known.
        kept: A sentence on the files that remain.

    Raises:
        NoRoom: For a full disk, a used quota, a limit on sizes or a read-only file system, with
            the same `errno`; also if HDF5 or safetensors states it only in the message.
    """
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number is None or isinstance(error, NoRoom):
            raise
        reason, fix = NO_ROOM[number]
        folder = Path(path).parent
        free = f"{shutil.disk_usage(folder).free:,} bytes free" if folder.is_dir() else "no folder"
        wanted = "" if needed is None else f"{needed:,} bytes to write, "
        raise NoRoom(
            number,
            f"{path} could not be written: {reason}. {kept} {fix} "
            f"Received: {os.strerror(number)}, {wanted}{free} in {folder}",
        ) from error


def _error_number(error):
    """Returns the number of an error in `NO_ROOM`, also from a library's message; or `None`."""
    number = getattr(error, "errno", None)
    if number is None:
        named = re.search(r"(?:os error |errno = |Errno )(\d+)", str(error))
        number = int(named[1]) if named else None
    return number if number in NO_ROOM else None


def write_text(path, text):
    """Writes a text file atomically, in UTF-8 and with the line ends of `text`."""
    content = text.encode()
    with replacing(path, needed=len(content)) as temporary:
        temporary.write_bytes(content)


def write_json(path, value):
    """Writes a JSON file atomically, indented and with a line end."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def remove_leftovers(folder, pattern):
    """Removes temporary files and folders of processes that have ended on this machine.

    Args:
        folder: The folder of the temporary files. It must have no writers on other machines.
        pattern: Glob pattern of their final names.
    """
    for path in Path(folder).glob(f"{pattern}.*.tmp*"):
        named = re.search(r"\.(\d+)\.([0-9a-f]{8})\.tmp(\.\w+)?$", path.name)
        if named is None or named[2] in _OF_THIS_PROCESS:
            continue
        # Another process had this id: in a container ids often repeat after each start.
        if int(named[1]) != os.getpid() and _is_running(int(named[1])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary_folder(path):
    """Yields a new folder under a temporary name of `path`, and removes it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    temporary.mkdir()  # an error if anything is there
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _create(path):
    """Creates an empty file at a new path, and returns its mode, which follows the umask."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return stat.S_IMODE(os.fstat(opened).st_mode)
    finally:
        os.close(opened)


def _whole(folder):
    """Returns the folders of saves whose files are still to be moved."""
    try:
        return [path for path in folder.iterdir() if WHOLE.fullmatch(path.name)]
    except OSError:  # the folder is missing, or must not be listed
        return []


def _finish(folder, names=()):
    """Moves the files of interrupted saves; those in `names` first, in this order."""
    for whole in _whole(folder):
        files = sorted(whole.iterdir(), key=lambda path: (*names, path.name).index(path.name))
        for path in files:
            os.replace(path, folder / path.name)
        whole.rmdir()


def _identities(folder, names):
    """Returns the identity of each file, to detect a replacement."""
    found = {}
    for name in names:
        try:
            about = os.stat(folder / name)
            found[name] = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
        except OSError:
            found[name] = None
    return found


def _exchange(path, other):
    """Exchanges two folders in one step if the system supports it; returns whether it did."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # another system
        return False
    return rename(here, os.fsencode(path), here, os.fsencode(other), exchange) == 0


_OF_THIS_PROCESS = set()  # random parts of its temporary names


def _temporary(path, suffix=""):
    mark = uuid.uuid4().hex[:8]
    _OF_THIS_PROCESS.add(mark)
    return path.with_name(f"{path.name}.{os.getpid()}.{mark}.tmp{suffix}")


def _is_running(process):
    if os.name == "nt":  # on Windows `os.kill` ends the process
        return True
    try:
        os.kill(process, 0)  # sends no signal
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs as another user
        pass
    return True
