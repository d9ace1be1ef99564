"""Pre-trained language models on Keras 3: from attention to BERT, one `model.fit` for all."""


def _check_backend():
    """Raises an ImportError of one sentence unless Keras runs on a backend of this package."""
    import os

    backends = ("tensorflow", "jax", "torch")
    named = (
        "Keras uses tensorflow unless the environment variable KERAS_BACKEND or the file "
        "~/.keras/keras.json names another."
    )
    try:
        import keras

        backend = keras.config.backend()
    except ModuleNotFoundError as error:
        # Keras' NumPy backend fails for want of JAX.
        backend = os.environ.get("KERAS_BACKEND") or error.name
        if backend == error.name and backend in backends:
            raise ImportError(
                f"Keras is set to use {backend}, which is not installed. Install a backend: "
                "pip install 'keras-plm[tensorflow]', 'keras-plm[jax]' or 'keras-plm[torch]'. "
                f"{named} Received: no module named {backend}"
            ) from None
        if backend in backends or error.name not in (*backends, "openvino"):
            raise
    except ValueError as error:  # Keras does not know the name
        rule, _, backend = str(error).partition(" : ")
        if rule != "Unable to import backend":
            raise
    if backend not in backends:
        raise ImportError(
            f"keras_plm needs the Keras backend {', '.join(backends[:2])} or {backends[2]}, in "
            f"lower case. {named} Received: {backend!r}"
        ) from None


_check_backend()

# The heads and the optimizers too, so that Keras knows them in `load_model`.
from keras_plm import heads, training  # noqa: E402, F401
from keras_plm._version import __version__  # noqa: E402
from keras_plm.checkpoints import load, save  # noqa: E402

__all__ = ["__version__", "load", "save"]
