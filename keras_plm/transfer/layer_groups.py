"""Learning rates by layer, and gradual unfreezing: the fine-tuning methods of ULMFiT."""

import keras

from keras_plm.models.encoder import weight_depths


def layer_groups(
    model: keras.Model, layer_decay: float = 1.0, unfreeze_steps: int = 0
) -> dict[str, tuple[float, int]]:
    """Returns groups of `BertAdamW`: lower layers have a lower learning rate and a later start.

    A weight in the encoder's `block_<i>` or `layer_<i>` has depth i + 1. A pooler and a final norm
    have the depth of the last layer, other weights of the encoder (embeddings) depth 0. Weights of
    a head have the full learning rate from the start.

    Reference: Howard and Ruder 2018 (ULMFiT), arXiv 1801.06146, section 3.2, "discriminative
    fine-tuning", with a factor of 2.6 per layer, and section 3.3, "gradual unfreezing", one layer
    per epoch.

    Args:
        model: A head, or an encoder.
        layer_decay: Ratio of the learning rates of a layer and the next higher one; the last layer
            has the full learning rate.
        unfreeze_steps: Number of steps between the starts of two layers; 0 for all at once.

    Returns:
        A dict from paths to `(factor, start)`, without weights at the full learning rate from the
        start.

    Raises:
        ValueError: If `layer_decay` is not in (0, 1], `unfreeze_steps` is negative, or the encoder
            does not number its blocks in their names.

    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> groups = layer_groups(encoder, layer_decay=0.5)
    >>> sorted({factor for factor, start in groups.values()})  # embeddings, first block
    [0.25, 0.5]
    """
    if not 0 < layer_decay <= 1 or unfreeze_steps < 0:
        raise ValueError(
            "`layer_decay` must lie in (0, 1] and `unfreeze_steps` be 0 or more. "
            f"Received: layer_decay={layer_decay}, unfreeze_steps={unfreeze_steps}"
        )
    encoder = getattr(model, "encoder", model)
    if layer_decay == 1 and not unfreeze_steps:
        return {}  # also for an encoder without blocks
    depths = weight_depths(encoder)
    top = max((depth for depth in depths.values() if depth is not None), default=0)
    learned = [(weight.path, depths[weight.path]) for weight in encoder.trainable_weights]
    groups = {
        path: (layer_decay ** (top - depth), (top - depth) * unfreeze_steps)
        for path, depth in learned
        if depth is not None
    }
    return {path: group for path, group in groups.items() if group != (1, 0)}
