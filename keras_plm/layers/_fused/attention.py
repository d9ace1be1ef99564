"""Scores, attention and the cache of keys and values in the fastest form of each backend.

Shapes: B batch, T target steps, S source steps, N heads, H head width.
"""

import keras
from keras import ops

from keras_plm.layers._fused.dense import as_type


def mask_floor(dtype):
    """Returns the score of masked positions. It is finite: a row of -inf gives NaN."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30


def additive_mask(mask, dtype):
    """Converts a mask to a summand of scores: 0 where it is True, elsewhere `mask_floor`.

    A product replaces `where`: Keras would send both numbers of `where` to torch's GPU as tensors
    and wait.
    """
    return ops.cast(ops.logical_not(mask), dtype) * mask_floor(dtype)


def mask_for_blocks(mask, dtype):
    """Converts a mask once for all blocks of a stack, if the backend does not compile the step.

    Args:
        mask: Boolean, or `None`.
        dtype: Type of queries and keys.

    Returns:
        On torch the summand of `additive_mask`, elsewhere the mask itself.
    """
    if mask is None or keras.backend.backend() != "torch":
        return mask
    return additive_mask(mask, dtype)


def _summand(mask, dtype):
    """Returns the summand of a mask, which on torch may be one of `mask_for_blocks` already."""
    floats = "float" in keras.backend.standardize_dtype(mask.dtype)
    ready = floats and keras.backend.backend() == "torch"
    return as_type(mask, dtype) if ready else additive_mask(mask, dtype)


def scaled_scores(query, key, mask=None):
    """Computes scaled dot-product scores, with masked positions at the floor.

    Args:
        query: (B, N, T, H).
        key: (B, N, S, H).
        mask: Broadcastable to (B, N, T, S), True where t may attend to s; `None`; or the result of
            `mask_for_blocks`.

    Returns:
        (B, N, T, S).
    """
    scale = query.shape[-1] ** -0.5
    if mask is not None:
        mask = _summand(mask, query.dtype)
    if mask is None or keras.backend.backend() != "torch":
        query = query * ops.cast(scale, query.dtype)
        scores = ops.matmul(query, ops.swapaxes(key, 2, 3))
        return scores if mask is None else scores + mask
    import torch

    # The scale and the mask within the product: one pass over the scores instead of two.
    batch, heads, steps, width = query.shape
    if mask.shape[:2] == (1, 1):
        mask = mask[0]
    else:
        mask = mask.expand(batch, heads, -1, -1).flatten(0, 1)  # (B * N, 1 or T, S)
    query, key = query.reshape(-1, steps, width), key.reshape(-1, key.shape[2], width)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale)
    return scores.view(batch, heads, steps, -1)


def fused_attention(query, key, value, mask=None, dropout_rate=0.0):
    """Computes scaled dot-product attention with the backend's kernel.

    Args:
        query: (B, T, N, H).
        key, value: (B, S, N, H).
        mask: Broadcastable to (B, N, T, S), True where t may attend to s; `None`; or the result of
            `mask_for_blocks`.
        dropout_rate: Fraction of the attention weights to drop, see `kernel_drops`.

    Returns:
        (B, T, N, H).
    """
    if keras.backend.backend() != "torch":
        if mask is not None:
            shape = (ops.shape(query)[0], 1, ops.shape(query)[1], ops.shape(key)[1])
            mask = ops.broadcast_to(mask, shape)
        return ops.dot_product_attention(query, key, value, mask=mask)
    import torch

    if mask is not None:
        # Keras would copy queries, keys, values and a mask of full size first.
        mask = _summand(mask, query.dtype)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask=mask, dropout_p=dropout_rate).transpose(1, 2)


def kernel_drops(query, seed):
    """Returns whether `fused_attention` can apply dropout to the attention weights.

    torch's kernels for GPUs draw the numbers within the kernel, from the global generator, and
    never store the weights. On a CPU torch has no such kernel; that of JAX takes no dropout.

    Args:
        query: (B, T, N, H).
        seed: Seed of the dropout; on torch, `None` means the global generator.
    """
    on_torch = keras.backend.backend() == "torch"
    return on_torch and seed is None and query.device.type == "cuda"


def fused_is_slow(query, key, training):
    """Returns True if plain matrix products are faster than the fused kernel.

    This is the case if oneDNN computes the products, on a CPU. torch uses it in half precision, and
    in float32 if `torch.set_float32_matmul_precision` allows less than "highest". Up to some 256
    steps torch's kernel of small blocks then takes 1.3 to 4 times as long. In half precision its
    gradient also does so for more steps. Without oneDNN the kernel is 1.1 to 1.7 times as fast,
    forward and backward. On JAX compiled programs have no float16 kernel for CPUs.

    Args:
        query: (B, T, N, H).
        key: (B, S, N, H).
        training: Whether a gradient is needed.
    """
    if keras.backend.backend() == "jax" and query.dtype == "float16":
        import jax

        return jax.default_backend() == "cpu"
    if keras.backend.backend() != "torch" or query.device.type != "cpu":
        return False
    half = query.element_size() == 2
    if not half and _full_float32():
        return False
    return (half and training) or query.shape[1] * key.shape[1] <= 256**2


def _full_float32():
    import torch

    if torch.compiler.is_compiling():  # the compiler fuses plain products with their softmax
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # another precision, set by `torch.backends.mkldnn.matmul`
        return False


def written_part(caches, index, steps):
    """Returns the part of caches up to the last of the next steps.

    Attention then reads no empty positions. Only torch on a CPU has such a part: a GPU would wait
    for the number, and programs of JAX and TensorFlow have fixed shapes.

    Args:
        caches: A list of tensors (B, 2, S_max, N, H).
        index: Number of earlier steps, an integer or a tensor.
        steps: Number of next steps T.

    Returns:
        `(parts, index)`: views (B, 2, `index` + T, N, H) and an integer, or the arguments.
    """
    if keras.backend.backend() != "torch" or caches[0].device.type != "cpu":
        return caches, index
    index = int(index)
    return [cache[:, :, : index + steps] for cache in caches], index


def write_cache(cache, update, index):
    """Writes keys and values after those of earlier steps.

    Args:
        cache: (B, 2, S_max, N, H). On torch it is changed in place: a copy for every step would
            cost more than the step.
        update: (B, 2, T, N, H).
        index: Position of the first of the T steps, an integer or a tensor.

    Returns:
        The updated cache.
    """
    update = as_type(update, cache.dtype)
    if keras.backend.backend() != "torch":
        return ops.slice_update(cache, (0, 0, index, 0, 0), update)
    import torch

    cache = ops.convert_to_tensor(cache)
    with torch.no_grad():
        if isinstance(index, int):
            cache[:, :, index : index + update.shape[2]] = update
        else:  # its number is not read, because a GPU would wait
            places = torch.as_tensor(index, device=cache.device).reshape(1).long()
            if update.shape[2] > 1:
                places = places + torch.arange(update.shape[2], device=cache.device)
            cache.index_copy_(2, places, update)
    return cache
