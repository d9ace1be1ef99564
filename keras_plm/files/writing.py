"""Atomic writing of files and folders: under a temporary name, then renamed.

A temporary name ends in the process id, a random part and `.tmp`: several processes and threads may
write the same path, and the last one to finish wins. A reader never sees a partial file.
"""

import contextlib
import errno
import glob
import json
import os
import re
import shutil
import uuid
from pathlib import Path


@contextlib.contextmanager
def replacing(path, suffix=""):
    """A temporary path, renamed onto `path` if the block ends without an error.

    On an error or interrupt, the temporary file is removed and `path` stays as it is. A link stays
    a link, to a new file of the old one's mode.

    Args:
        path: The file to write. Its folder is made if needed. What is there and no regular file,
            as `/dev/stdout`, is written to directly.
        suffix: End of the temporary name, for writers that choose the format by it or append it.

    Example:

        with replacing(path, ".npz") as temporary:
            np.savez(temporary, a=a)
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path, suffix)
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_files(folder, names):
    """A temporary folder, whose files move into `folder` if the block ends without an error.

    On an error or interrupt in the block, the files in `folder` stay as they are. Temporary folders
    of processes that no longer run are removed.

    Args:
        folder: The folder of the files. It is made if needed, and must have one writer at a time.
        names: The files to move, in this order: the last one completes the set.
    """
    folder = Path(folder)
    remove_leftovers(folder, "save")
    with _temporary_folder(folder / "save") as temporary:
        yield temporary
        for name in names:
            os.replace(temporary / name, folder / name)


@contextlib.contextmanager
def replacing_folder(folder, keep_existing=False):
    """A temporary folder, renamed to `folder` if the block ends without an error.

    On an error or interrupt, the temporary folder is removed and `folder` stays as it is.

    Args:
        folder: The folder to write. The folder around it is made if needed.
        keep_existing: Whether a `folder` that is there at the end of the block stays: for folders
            that several processes build at the same time, all with the same content. Otherwise it
            is replaced, and temporary folders of processes that no longer run are removed.
    """
    folder = Path(folder)
    if not keep_existing:
        remove_leftovers(folder.parent, glob.escape(folder.name))
    with _temporary_folder(folder) as temporary:
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        yield new
        if folder.exists():
            if keep_existing:
                return
            os.replace(folder, old)
        try:
            os.replace(new, folder)
        except BaseException:
            if old.exists():
                os.replace(old, folder)
            raise


def write_text(path, text):
    """Writes a text file whole or not at all, as UTF-8 and with the line ends of `text`."""
    content = text.encode()
    with explaining_no_room(path, len(content)), replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path, value):
    """Writes a JSON file whole or not at all, indented and with a line end."""
    write_text(path, json.dumps(value, indent=1) + "\n")


# Why a file could not be written, where it is not its own fault.
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "files must not be so large here",
    errno.EROFS: "the file system is read-only",
}


class NoRoom(OSError):
    """A file that could not be written, because of a full disk or a limit."""


@contextlib.contextmanager
def explaining_no_room(path, needed=None, kept=""):
    """Says in errors of a full disk which file could not be written, and how much is missing.

    Args:
        path: The file or folder that is written in the block.
        needed: How many bytes, where that is known.
        kept: A sentence on what is there now.

    Raises:
        NoRoom: For a full disk, a used quota, a limit on sizes or a read-only file system, with
            the same `errno`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM or isinstance(error, NoRoom):
            raise
        folder = Path(path).parent
        free = f"{shutil.disk_usage(folder).free:,} bytes free" if folder.is_dir() else "no folder"
        wanted = "" if needed is None else f"{needed:,} bytes to write, "
        explained = NoRoom(
            f"{path} could not be written: {_NO_ROOM[error.errno]}. {kept}{' ' * bool(kept)}"
            f"Received: {wanted}{free} in {folder}"
        )
        explained.errno = error.errno
        raise explained from error


def remove_leftovers(folder, pattern):
    """Removes temporary files and folders of processes that no longer run on this machine.

    Args:
        folder: Where they are. It must have no writers on other machines.
        pattern: Glob pattern of the final names that they have temporary names of.
    """
    for path in Path(folder).glob(f"{pattern}.*.tmp*"):
        named = re.search(r"\.(\d+)\.([0-9a-f]{8})\.tmp(\.\w+)?$", path.name)
        if named is None or named[2] in _OF_THIS_PROCESS:
            continue
        # Another process had the same id: in a container often the same after each start.
        if int(named[1]) != os.getpid() and _is_running(int(named[1])):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary_folder(path):
    """A new folder under a temporary name of `path`, removed at the end."""
    temporary = _temporary(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_OF_THIS_PROCESS = set()  # random parts of its temporary names


def _temporary(path, suffix=""):
    mark = uuid.uuid4().hex[:8]
    _OF_THIS_PROCESS.add(mark)
    return path.with_name(f"{path.name}.{os.getpid()}.{mark}.tmp{suffix}")


def _is_running(process):
    if os.name == "nt":  # there `os.kill` ends the process
        return True
    try:
        os.kill(process, 0)  # sends no signal
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs as another user
        pass
    return True
