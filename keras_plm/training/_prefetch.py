"""Batches that torch copies to a GPU while the GPU works."""

import functools

import keras

from keras_plm.data.batching import Batches


def sent_ahead(batches):
    """Returns batches for Keras whose copies to a GPU do not wait for its earlier work.

    Keras copies each array of a batch from pageable memory, and torch then waits until the GPU has
    finished all earlier steps. Copies from page-locked memory are queued like any other work.

    Args:
        batches: `Batches`.

    Returns:
        A `keras.utils.PyDataset`; the same `Batches` on a CPU and for the other backends.
    """
    if keras.backend.backend() != "torch" or _gpu() is None:
        return batches
    return SentAhead(batches)


class SentAhead(keras.utils.PyDataset):
    """Batches as tensors on the GPU."""

    def __init__(self, batches: Batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    @property
    def num_batches(self):
        return len(self)

    def __getitem__(self, index):
        return keras.tree.map_structure(_sent, self.batches[index])

    def on_epoch_begin(self):
        self.batches.on_epoch_begin()

    def on_epoch_end(self):
        self.batches.on_epoch_end()


@functools.cache
def _gpu():
    """Returns the name of torch's GPU, or `None`."""
    import torch

    return "cuda" if torch.cuda.is_available() else None


def _sent(array):
    if array is None:
        return None
    with keras.device("cpu"):
        tensor = keras.ops.convert_to_tensor(array)
    return tensor.pin_memory().to(_gpu(), non_blocking=True)
