"""Sizes and checksums of the files of a folder, to verify that they belong together.

Opening a folder compares sizes: it finds a file that is truncated or longer. Checksums are compared
on demand, because they read every byte.
"""

import hashlib

from keras_plm.files.json_files import Whole
from keras_plm.files.opening import check_file

SHAPE = {str: {"bytes": Whole(), "sha256": str}}


def describe_files(folder, names):
    """Returns the size and the checksum of each file.

    Returns:
        `{name: {"bytes": ..., "sha256": ...}}`, for JSON; its shape is `SHAPE`.
    """
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
    }


def file_sha256(path):
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with open(check_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder, described, checksums=False, repair="Copy or build it again."):
    """Raises unless a folder holds the files that `describe_files` described.

    Args:
        folder: The folder.
        described: A dict from `describe_files`, read from a file. Names must not have a folder.
        checksums: Whether to compare also checksums.
        repair: The fix in an error.

    Raises:
        ValueError: If a file is missing, or has another size or other content.
    """
    for name, about in described.items():
        if name != name.replace("\\", "/").rpartition("/")[2] or name in ("", ".", ".."):
            raise ValueError(
                f"{folder}: files must be in the folder itself. Received: the file name {name!r}"
            )
        path = check_file(folder / name)
        size = path.stat().st_size
        if size != about["bytes"]:
            raise ValueError(
                f"{path} is not the file that was written. {repair} "
                f"Received: {size:,} bytes instead of {about['bytes']:,}"
            )
        if checksums and file_sha256(path) != about["sha256"]:
            raise ValueError(
                f"{path} is not the file that was written. {repair} Received: another SHA-256"
            )
