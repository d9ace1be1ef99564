"""Low-rank adaptation (LoRA) of an encoder's attention."""

import numbers

import keras

from keras_plm.files.private_apis import every_layer

ADAPTED = ("query_key_value", "query", "value")  # names of layers, ours and KerasHub's


def adapt(encoder, rank):
    """Freezes an encoder and adds two thin matrices to each projection of its attention.

    A matrix W (D, D') becomes W + A B, with A (D, rank) and B (rank, D'). A starts at random
    and B at zero, which keeps the encoder's outputs at first.

    Reference: Hu et al. 2021, arXiv 2106.09685, section 4.1; the matrices of queries and values, as
    in section 4.2.

    Differs from the paper: if queries, keys and values are one matrix, all three are adapted, with
    a common A and a B for each. The product is not scaled, as with the paper's α = r.

    Args:
        encoder: An encoder with attention, such as `BERT`, `GPT` or a `HubEncoder`. It is changed
            in place: give a copy that is in no built or compiled model.
        rank: Width of the thin matrices.

    Raises:
        ValueError: If the encoder has no attention, or the rank is not below its width.
    """
    layers = [layer for layer in _layers(encoder) if layer.name in ADAPTED]
    layers = [layer for layer in layers if hasattr(layer, "enable_lora")]
    if not layers:
        raise ValueError(
            "LoRA adapts the matrices of attention: choose a BERT, a GPT or a backbone of KerasHub "
            f"for `lora_rank`. Received: {type(encoder).__name__}"
        )
    if not isinstance(rank, numbers.Integral) or not 1 <= rank < encoder.hidden_dim:
        raise ValueError(
            "`lora_rank` must be a whole number from 1 to below the encoder's width "
            f"{encoder.hidden_dim}. Received: {rank!r}"
        )
    for weight in encoder.weights:
        weight.trainable = False
    for layer in layers:
        layer.enable_lora(rank)


def merged(head):
    """Returns a copy of a head with each A B added to its W: an ordinary head."""
    copy = type(head).from_config(head.get_config())
    values = {}
    for layer in _layers(head):
        for name in ("kernel", "embeddings"):
            a, b = (getattr(layer, f"lora_{name}_{side}", None) for side in "ab")
            if getattr(layer, "lora_enabled", False) and a is not None:
                path = a.path.replace(f"lora_{name}_a", name)
                whole = next(weight for weight in layer.weights if weight.path == path)
                scale = layer.lora_alpha / layer.lora_rank
                values[a.path] = values[b.path] = None
                values[whole.path] = keras.ops.add(whole, scale * keras.ops.matmul(a, b))
    kept = [weight for weight in head.weights if values.get(weight.path, weight) is not None]
    for new, old in zip(copy.weights, kept, strict=True):
        # Under JAX two models would share an array that is assigned directly.
        new.assign(keras.ops.convert_to_numpy(values.get(old.path, old)))
    return copy


def ordinary(model):
    """Returns a model with only its own weights, for files without LoRA matrices.

    With LoRA it is a `merged` copy, otherwise the model itself.

    Raises:
        ValueError: If the model is quantized.
    """
    quantized = [x for x in _layers(model) if getattr(x, "quantization_mode", None)]
    if quantized:
        raise ValueError(
            "Quantized weights need another format: use `model.save('name.keras')`, or write the "
            f"model before its quantization. Received: {quantized[0].name!r} quantized to "
            f"{quantized[0].quantization_mode!r}"
        )
    if any(getattr(layer, "lora_enabled", False) for layer in _layers(model)):
        return merged(model)
    return model


def _layers(layer):
    """Returns all layers within a layer, at any depth."""
    return every_layer(layer)[1:]
