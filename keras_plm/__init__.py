"""Pre-trained language models on Keras 3: from attention to BERT, one `model.fit` for all."""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("tensorflow", "jax", "torch"):
        raise
    raise ImportError(
        f"Keras is set to use {error.name}, which is not installed. Install a backend: "
        "pip install 'keras-plm[tensorflow]', 'keras-plm[jax]' or 'keras-plm[torch]'. Keras uses "
        "tensorflow unless the environment variable KERAS_BACKEND or the file "
        f"~/.keras/keras.json names another. Received: no module named {error.name}"
    ) from None

# The heads and the optimizers too, so that Keras knows them in `load_model`.
from keras_plm import heads, training  # noqa: F401
from keras_plm._version import __version__
from keras_plm.checkpoints import load, save

__all__ = ["__version__", "load", "save"]
