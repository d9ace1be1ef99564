"""Copies of encoders: unchanged, with fewer pre-trained layers, with more tokens."""

import numbers

import keras
import numpy as np

from keras_plm.files.arguments import check_whole
from keras_plm.models.encoder import Encoder, weight_depths


def clone(encoder: Encoder, **changes) -> Encoder:
    """Creates a trainable copy of an encoder with the same weights.

    Args:
        encoder: The encoder.
        **changes: Arguments of its class to change, such as `dropout` or `dtype`.

    Returns:
        The copy.

    Raises:
        ValueError: If the class has no such argument, or LoRA is enabled in the encoder.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> copy = clone(encoder, dropout=0.3)
    >>> copy.dropout, all(map(np.array_equal, copy.get_weights(), encoder.get_weights()))
    (0.3, True)
    """
    check_merged(encoder)
    config = encoder.get_config()
    unknown = sorted(set(changes) - set(config))
    if unknown:
        raise ValueError(f"{type(encoder).__name__} has no such argument. Received: {unknown}")
    copy = type(encoder).from_config({**config, **changes})
    copy.set_weights(encoder.get_weights())
    copy.trainable = changes.get("trainable", True)
    return copy


def check_merged(encoder):
    """Raises if LoRA is enabled in an encoder: a copy would lose its matrices."""
    thin = [weight.path for weight in encoder.weights if "lora_kernel" in weight.path]
    if thin:
        raise ValueError(
            "An encoder with LoRA enabled cannot be copied: merge its matrices into their kernels "
            f"with `keras_plm.save` and `load`. Received: {thin[0]}"
        )


def keep_pretrained_layers(encoder: Encoder, count: int) -> Encoder:
    """Creates a copy of an encoder with pre-trained lower layers and random upper layers.

    Reference: Radford et al. 2018, section 5, "impact of number of layers transferred", and the
    released code's `n_transfer`; for a BERT's top layers and pooler Zhang et al. 2021, arXiv
    2006.05987, section 5.

    Args:
        encoder: A pre-trained encoder.
        count: Number of pre-trained layers above the embeddings: 0 for only the embeddings, -1 for
            a random encoder. A final norm and a pooler are pre-trained only if all layers are.

    Returns:
        The copy.

    Raises:
        ValueError: If the encoder has fewer layers, its layers share their weights, it does not
            number its blocks in their names, or LoRA is enabled in it.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> copy = keep_pretrained_layers(encoder, 1)
    >>> new = zip(encoder.weights, encoder.get_weights(), copy.get_weights())
    >>> {w.path.split("/")[1] for w, old, x in new if not np.array_equal(old, x)}
    {'block_1'}
    """
    check_merged(encoder)
    layers = len(encoder.output["layers"]) - 1
    if not isinstance(count, numbers.Integral) or not -1 <= count <= layers:
        raise ValueError(
            "`pretrained_layers` must be None for all, or a whole number from -1 to this "
            f"encoder's {layers} layers. Received: {count!r}"
        )
    depths = {} if count == layers else weight_depths(encoder)
    if 0 < count < layers != encoder.num_blocks:
        raise ValueError(
            "The layers of this encoder share their weights: `pretrained_layers` must be None, 0 "
            f"or -1. Received: {count}"
        )
    copy = type(encoder).from_config(encoder.get_config())
    copy.trainable = True
    for new, old in zip(copy.weights, encoder.weights, strict=True):
        depth = depths.get(old.path)
        if (layers if depth is None else depth) <= count:
            new.assign(keras.ops.convert_to_numpy(old))  # JAX would share the array
    return copy


def resize_token_embeddings(encoder: Encoder, vocabulary_size: int, seed: int = 0) -> Encoder:
    """Creates a copy of an encoder with vectors for additional tokens.

    The new vectors follow the others. They are drawn from N(0, 0.02), as for GPT's special tokens:
    Radford et al. 2018, openai/finetune-transformer-lm, train.py.

    Args:
        encoder: An encoder with a `token_embedding`.
        vocabulary_size: Number of tokens of the copy, at least that of the encoder.
        seed: Seed of the new vectors.

    Returns:
        The copy.

    Raises:
        ValueError: If LoRA is enabled in the encoder, or it has more tokens.

    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> resize_token_embeddings(encoder, 16).vocabulary_size
    16
    """
    check_merged(encoder)
    known = encoder.get_config()["vocabulary_size"]
    check_whole(vocabulary_size, "vocabulary_size", least=known)
    copy = type(encoder).from_config({**encoder.get_config(), "vocabulary_size": vocabulary_size})
    copy.trainable = True
    rng = np.random.default_rng(seed)
    for new, old in zip(copy.weights, encoder.weights, strict=True):
        array = keras.ops.convert_to_numpy(old)
        if new.shape != old.shape:
            more = rng.normal(0, 0.02, (vocabulary_size - known, *old.shape[1:]))
            array = np.concatenate([array, more.astype(array.dtype)])
        new.assign(array)
    return copy
