"""The user's cache folder."""

from pathlib import Path

import platformdirs


def cache_folder(name):
    """Returns a folder of this library in the user's cache folder; it may not exist yet.

    The folder follows the system's rules: `$XDG_CACHE_HOME/keras_plm` or `~/.cache/keras_plm` on
    Linux.

    Args:
        name: Name of the folder, such as `"features"`.

    Returns:
        A `pathlib.Path`.
    """
    return Path(platformdirs.user_cache_dir("keras_plm", appauthor=False)) / name
