"""The text of speed measurements, and a folder for their prepared files."""

import functools
import hashlib
from pathlib import Path

from keras_plm.datasets.microworld import World
from keras_plm.datasets.tasks import TASKS


class Inputs:
    """Real text from a data folder, or text of the microworld without one.

    Args:
        folder: Folder for prepared files. Processes that measure peak memory read the same files.
        data: Data folder, with `sst/trees` and `books` for the measurements that need them.
    """

    def __init__(self, folder, data=None):
        self.folder, self.data = Path(folder), data

    @functools.cached_property
    def sentences(self):
        """Sentences of SST, or generated ones."""
        if self.data is None:
            return generated_sentences()
        return [example.text for example in TASKS["sst5"].read(self.data, "train")]

    @property
    def digest(self):
        """Hash of the sentences; equal hashes mean the same sentences."""
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()[:16]


def generated_sentences(count=8192):
    """Returns sentences of the microworld."""
    return [s for document in World().corpus(count // 5) for s in document][:count]
