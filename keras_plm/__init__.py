"""Pre-trained language models on Keras 3: from attention to BERT, one `model.fit` for all."""

__version__ = "0.1.0"

# The heads, readers and optimiser too, so that Keras knows them in `load_model`.
from keras_plm import heads, optimization, readers  # noqa: F401
from keras_plm.checkpoints import load, save

__all__ = ["__version__", "load", "save"]
