"""Hashes of models, tokenizers and settings."""

import hashlib
import json

import keras
import numpy as np


def fingerprint(*things):
    """A hash of models, tokenizers and plain values that changes when what they do changes."""
    digest = hashlib.sha256()
    for thing in things:
        config = thing.get_config() if hasattr(thing, "get_config") else thing
        if isinstance(thing, keras.Model):
            # Not how the model is called, computed or trained.
            config = {k: v for k, v in config.items() if k not in ("name", "dtype", "trainable")}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for weight in getattr(thing, "weights", ()):
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
    return digest.hexdigest()
