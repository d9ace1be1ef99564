"""The encoder contract."""

import re

# Weights above the last layer: ours, and KerasHub's.
AT_TOP = re.compile(r"(?:pooler|final_norm|pooled_dense)/|^layer_norm/")
# Weights of the i-th block: ours, and KerasHub's `transformer_layer_<i>` and the like.
BLOCK = re.compile(r"(?:block|layer)_(\d+)/")


def weight_depths(encoder):
    """The depth of each of an encoder's weights, by path.

    It is i + 1 in `block_<i>` or `layer_<i>`, `None` in a pooler and a final norm, and 0 elsewhere
    (embeddings).

    Raises:
        ValueError: If the encoder does not number its blocks in their names.
    """
    depths = {}
    for weight in encoder.weights:
        block = BLOCK.search(weight.path)
        at_top = AT_TOP.search(weight.path)
        depths[weight.path] = None if at_top else int(block[1]) + 1 if block else 0
    found = sorted({depth - 1 for depth in depths.values() if depth})
    output = getattr(encoder, "output", None)
    if isinstance(output, dict) and "layers" in output:
        count = getattr(encoder, "num_blocks", len(output["layers"]) - 1)
    else:
        count = max(len(found), 1)
    if found != list(range(count)):
        names = list(dict.fromkeys(path.rpartition("/")[0] for path in depths))
        names = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise ValueError(
            f"The {count} blocks of an encoder must be layers called `block_0`, `block_1`, ... or "
            f"`layer_0`, `layer_1`, ...: name them so. Received: blocks {found} among {names}"
        )
    return depths
