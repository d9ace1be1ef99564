"""Pre-trained language models on Keras 3: from attention to BERT, one `model.fit` for all.

Subpackages load at their first use; `import keras_plm` takes milliseconds. If Keras is already
loaded, the import also registers every layer, model, head and optimizer for
`keras.saving.load_model`: import Keras first.
"""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

from keras_plm._version import __version__

__all__ = ["__version__", "load", "save"]
_SUBPACKAGES = (
    "attention_maps", "checkpoints", "data", "datasets", "decoding", "experiments", "heads",
    "layers", "metrics", "models", "plots", "pretraining", "tokenizers", "training", "transfer",
)  # fmt: skip
_REGISTERING = ("checkpoints", "heads", "models", "pretraining", "training", "transfer")
_BACKENDS = ("tensorflow", "jax", "torch")


def __getattr__(name):
    if name in ("load", "save"):
        return getattr(importlib.import_module("keras_plm.checkpoints"), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"keras_plm.{name}")
    raise AttributeError(f"module 'keras_plm' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_SUBPACKAGES})


def _configured_backend():
    """Returns the name of Keras' backend by Keras' own rules, without loading Keras."""
    if "keras" in sys.modules:
        return sys.modules["keras"].config.backend()
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"]
    home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    try:
        return json.loads((home / "keras.json").read_text()).get("backend", "tensorflow")
    except (OSError, ValueError):
        return "tensorflow"


def _check_backend():
    """Raises a short ImportError unless Keras runs on a supported backend."""
    backend = _configured_backend()
    named = (
        "Keras uses tensorflow unless the environment variable KERAS_BACKEND or the file "
        "~/.keras/keras.json names another."
    )
    if backend not in _BACKENDS:
        raise ImportError(
            f"keras_plm needs the Keras backend {', '.join(_BACKENDS[:2])} or {_BACKENDS[2]}, in "
            f"lower case. {named} Received: {backend!r}"
        )
    if backend not in sys.modules and importlib.util.find_spec(backend) is None:
        raise ImportError(
            f"Keras is set to use {backend}, which is not installed. Install a backend: "
            "pip install tensorflow, pip install jax or pip install torch. "
            f"{named} Received: no module named {backend}"
        )


try:
    _check_backend()
except ImportError as error:
    if Path(*sys.argv[:1]).stem != "keras-plm" and sys.orig_argv[1:3] != ["-m", "keras_plm.cli"]:
        raise
    # The console command imports this package before it can catch an error.
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)

if "keras" in sys.modules:
    for _name in _REGISTERING:
        importlib.import_module(f"keras_plm.{_name}")
