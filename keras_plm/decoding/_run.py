"""Call of a decoding loop: checks of inputs and outputs, and one compilation."""

import math
import weakref
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_plm.decoding.without_cache import without_cache
from keras_plm.files.arguments import check_whole
from keras_plm.files.private_apis import every_layer
from keras_plm.layers._fused.programs import compiled
from keras_plm.training.fit import check_outputs

EXTRA_TOKENS = 50  # Vaswani et al. 2017, section 6.1: at most the source's length + 50


class Decoded(NamedTuple):
    """Result of a decoding strategy, NumPy arrays.

    Args:
        token_ids: (B, U); from `beam_search` (B, K, U).
        scores: (B,); from `beam_search` (B, K).

    >>> import numpy as np
    >>> decoded = Decoded(np.array([[5, 6]]), np.array([-1.5]))
    >>> decoded.token_ids.tolist(), decoded.scores.tolist()
    ([[5, 6]], [-1.5])
    """

    token_ids: np.ndarray
    scores: np.ndarray


def check_inputs(model, inputs, max_new_tokens):
    """Checks the inputs of decoding and the largest number of new tokens.

    Returns:
        `(inputs, max_new_tokens)`: a dict of NumPy arrays, and the number U.

    Raises:
        TypeError: If `inputs` is not a dict of the arrays that the model reads.
        ValueError: If a prompt is empty or has padding before a token, or as
            `check_max_new_tokens`.
    """
    causal = getattr(model, "causal", False)
    needed = {"token_ids", "padding_mask"} if causal else set()
    if not isinstance(inputs, dict) or not needed <= inputs.keys():
        raise TypeError(
            "`inputs` must be a dict of arrays, as from `tokenizer.pack(texts)`; for texts call "
            f"`generate`. Received: inputs={inputs!r:.60} of type {type(inputs).__name__}"
        )
    inputs = {name: np.asarray(array) for name, array in inputs.items() if name != "target_ids"}
    length = keras.tree.flatten(inputs)[0].shape[1]
    if causal:
        real = inputs["padding_mask"].astype("bool")
        lengths = real.sum(axis=1)
        if not lengths.all():
            raise ValueError("A prompt needs 1 token or more. Received: a row of padding only")
        if (real[:, 1:] > real[:, :-1]).any():
            row = int((real[:, 1:] > real[:, :-1]).any(axis=1).argmax())
            raise ValueError(
                "Padding must follow the tokens of a prompt: `tokenizer.pack` puts it there. "
                f"Received: padding before a token in row {row}"
            )
        length = int(lengths.max())
    return inputs, check_max_new_tokens(model, length, max_new_tokens, f"inputs of length {length}")


def check_max_new_tokens(model, length, max_new_tokens, inputs):
    """Returns the number U of new tokens; raises unless it fits.

    The default is 50 more than the inputs of an encoder-decoder, or 50 after a prompt, or fewer if
    the model has fewer positions.

    Args:
        model: The model. A causal model has the same positions for prompt and new tokens; another
            model has its positions for each of them.
        length: Number of tokens of the longest input.
        max_new_tokens: Number U, or `None` for the default.
        inputs: Description of the longest input, for errors.

    Raises:
        TypeError: If U is not a whole number.
        ValueError: If U is less than 1, or there are fewer positions.
    """
    if max_new_tokens is not None:
        check_whole(max_new_tokens, "max_new_tokens")
    limit = getattr(model, "max_sequence_length", None)
    positions = math.inf if limit is None else limit
    causal = getattr(model, "causal", False)
    room = positions - length if causal else positions
    if max_new_tokens is None:
        wanted = EXTRA_TOKENS if causal else length + EXTRA_TOKENS
        max_new_tokens = min(wanted, room)
    if not 1 <= max_new_tokens <= room or length > positions:
        rule = "`max_new_tokens` must be at least 1"
        if limit is not None:
            together = "together" if causal else "each"
            rule += f"; inputs and new tokens {together} fill at most the model's {limit} positions"
        raise ValueError(f"{rule}. Received: max_new_tokens={max_new_tokens}, {inputs}")
    return max_new_tokens


def check_stop_token_ids(stop_token_ids):
    """Returns the ids that end a text as a tuple, from one id or several.

    Raises:
        TypeError: If an id is not a whole number.
    """
    ids = np.asarray(stop_token_ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(
            f"`stop_token_ids` must be an id or a list of ids. Received: {stop_token_ids!r:.60}"
        )
    return tuple(sorted(set(ids.ravel().tolist())))


_LOOPS = weakref.WeakKeyDictionary()  # model -> its compiled loops by options


def run(loop, model, inputs, *arrays, cache, **options):
    """Calls a loop; compiles it once for each model, its variables and the options.

    Args:
        loop: A function of `keras_plm.decoding._loops`.
        model: The model.
        inputs, *arrays: Inputs of the loop, as NumPy arrays.
        cache: If False, use `without_cache`.
        **options: Other arguments of the loop, all hashable.

    Returns:
        `Decoded`.

    Raises:
        FloatingPointError: If a score is not a number.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # needed within a `fit`
    loops = _LOOPS.setdefault(model, {})
    # Other variables, such as those of LoRA, need another function: JAX passes it their values.
    variables = tuple(id(variable) for variable in model.variables)
    key = (loop, cache, variables, *sorted(options.items()))
    if key not in loops:
        # A strong reference would keep the model alive in its own entry.
        reference = weakref.ref(model)

        def decode(inputs, *arrays):
            inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
            arrays = [ops.convert_to_tensor(array) for array in arrays]
            decoding = reference() if cache else without_cache(reference())
            return loop(decoding, inputs, *arrays, **options)

        built = isinstance(model, keras.Model) and all(x.built for x in every_layer(model))
        loops[key] = compiled(decode, model.variables, creates_none=built)
    token_ids, scores = (ops.convert_to_numpy(x) for x in loops[key](inputs, *arrays))
    check_outputs(scores[np.isnan(scores)])
    return Decoded(token_ids, scores)
