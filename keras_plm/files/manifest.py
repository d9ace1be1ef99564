"""Sizes and checksums of the files of a folder, which bind them together.

Sizes are compared whenever a folder is opened: a file that is cut short or longer is found at once.
Checksums are compared on demand, because they read every byte.
"""

import hashlib

from keras_plm.files.json_files import Whole
from keras_plm.files.opening import check_file

SHAPE = {str: {"bytes": Whole(), "sha256": str}}


def describe_files(folder, names):
    """The size and the checksum of each of some files.

    Returns:
        `{name: {"bytes": ..., "sha256": ...}}`, for JSON; its shape is `SHAPE`.
    """
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
    }


def file_sha256(path):
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(check_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder, described, checksums=False, repair="Copy or build it again."):
    """Raises unless a folder holds the files that `describe_files` described.

    Args:
        folder: The folder.
        described: What `describe_files` gave, read from a file. A name must have no folder.
        checksums: Whether to compare checksums, too.
        repair: The fix that an error names.

    Raises:
        ValueError: If a file is missing, has another size or other content.
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
