"""Disk space: reserved or tested before long work, to find a lack of it early."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

# Errors of a full disk, a used quota and a limit on the size of files.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reserve(file, size):
    """Sets the length of an open file to `size` bytes, and reserves disk space for it.

    Raises:
        OSError: If there is no space.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            # These two mean that the file system does not support it.
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    about = os.fstat(file.fileno())
    if shutil.disk_usage(file.fileno()).free + about.st_size < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.truncate(file.fileno(), size)


def try_to_write(folder, size=1 << 20):
    """Raises unless a folder can be written and has room for `size` bytes. No file stays there.

    Args:
        folder: The folder. It is created if needed.
        size: The number of bytes.

    Raises:
        OSError: If the folder cannot be written or has no space; the message names the free space.
    """
    folder, free = Path(folder), ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = f", {shutil.disk_usage(folder).free:,} bytes free"
        with tempfile.TemporaryFile(dir=folder) as file:
            reserve(file, size)
            file.write(b"0" * min(size, 1 << 16))
            file.flush()
    except OSError as error:
        raise OSError(
            error.errno,
            f"{folder} must be a folder with room for {size:,} bytes: free some space, or name "
            f"another one. Nothing was computed. Received: {error.strerror}{free}",
        ) from error
