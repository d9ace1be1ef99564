"""Hashes of models, tokenizers and settings."""

import hashlib
import json

import keras
import numpy as np

# Arguments of a model that do not change its outputs.
OTHER = ("name", "dtype", "trainable")


def fingerprint(*things):
    """Returns a hash of models, tokenizers and plain values that changes with their behaviour."""
    digest = hashlib.sha256()
    for thing in things:
        config = thing.get_config() if hasattr(thing, "get_config") else thing
        if isinstance(thing, keras.Model):
            config = {name: value for name, value in config.items() if name not in OTHER}
            if config.get("causal") is False:  # keeps the hashes of published results valid
                del config["causal"]
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for weight in getattr(thing, "weights", ()):
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
    return digest.hexdigest()
