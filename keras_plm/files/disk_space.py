"""Space on a disk: reserved or tried before what takes hours, so that a lack is known at once."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

# A disk, a quota or the limit on the size of files does not allow more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reserve(file, size):
    """Makes an open file so many bytes long, with space on the disk for all of them.

    Raises:
        OSError: If there is no space.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on this file system
                raise
    about = os.fstat(file.fileno())
    if shutil.disk_usage(file.fileno()).free + about.st_size < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.truncate(file.fileno(), size)


def try_to_write(folder, size=1 << 20):
    """Raises unless so many bytes could be written in a folder now. Nothing of it stays.

    Args:
        folder: The folder. It is made if needed.
        size: The number of bytes.

    Raises:
        OSError: If it cannot be written, or there is no space, with how much is free.
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
