"""Choices of an encoder's layers, by name."""

import difflib
import re

import numpy as np

from keras_plm.layers import LayerChoice
from keras_plm.models.encoder import Encoder

LAYER_CHOICES = {
    # Devlin et al. 2018, table 7. The paper does not say whether its weighted sums are learned.
    # Here they are learned with the reader, as in ELMo.
    "embeddings": LayerChoice(0, 0),
    "second_to_last": LayerChoice(-2, -2),
    "last": LayerChoice(-1, -1),
    "weighted_sum_last_four": LayerChoice(-4, -1, "mix"),
    "concat_last_four": LayerChoice(-4, -1, "concat"),
    "weighted_sum_all": LayerChoice(1, -1, "mix"),
    # Plain means without learned weights.
    "mean_last_four": LayerChoice(-4, -1, "mean"),
    "mean_all": LayerChoice(1, -1, "mean"),
    # Peters et al. 2018, equation 1: also the embeddings.
    "elmo_mix": LayerChoice(0, -1, "mix"),
}
# Other names, from ELMo's paper.
ALIASES = {"mix": "elmo_mix", "top": "last"}


def layer_choice(choice: str | int | LayerChoice) -> LayerChoice:
    """Returns the `LayerChoice` of a name.

    Args:
        choice: A name in `LAYER_CHOICES`; `"mix"` for `"elmo_mix"`; `"top"` for `"last"`;
            `"layer_3"`, or the number 3, for a single layer; or a `LayerChoice`.

    Returns:
        A `LayerChoice`.

    Raises:
        ValueError: If the name is unknown.

    >>> layer_choice("layer_3")
    LayerChoice(first=3, last=3, combine='concat', layers=None)
    """
    if isinstance(choice, LayerChoice):
        return choice
    name = choice_name(choice)
    if isinstance(name, str) and name in LAYER_CHOICES:
        return LAYER_CHOICES[name]
    single = re.fullmatch(r"layer_(\d+)", str(name))
    if not single:
        known = (*LAYER_CHOICES, *ALIASES)
        near = difflib.get_close_matches(str(name), known, n=1)
        raise ValueError(
            f"A choice of layers must be one of {', '.join(known)} or layer_0, layer_1, ... "
            f"{f'Did you mean {near[0]!r}? ' if near else ''}Received: {choice!r}"
        )
    return LayerChoice(int(single[1]), int(single[1]))


def choice_name(choice):
    """Returns the main name of a choice: `"elmo_mix"` for `"mix"`, `"layer_3"` for 3."""
    if isinstance(choice, (int, np.integer)) and not isinstance(choice, bool):
        return f"layer_{choice}"
    return ALIASES.get(choice, choice) if isinstance(choice, str) else choice


def every_choice(encoder: Encoder) -> list[str]:
    """Lists the names of all choices for an encoder: `LAYER_CHOICES`, then single layers.

    Args:
        encoder: The encoder.

    Returns:
        A list of names.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> names = every_choice(WordVectors.from_vectors(["fine", "film"], np.eye(2)))
    >>> set(LAYER_CHOICES) <= set(names), names[-1]
    (True, 'layer_0')
    """
    return [*LAYER_CHOICES, *(f"layer_{i}" for i in range(len(encoder.output["layers"])))]


def distinct_choices(encoder: Encoder) -> list[str]:
    """Lists the names of all distinct choices of layers: `every_choice` without repetitions.

    In a four-block encoder "the last four" layers equal "all".

    Args:
        encoder: The encoder.

    Returns:
        A list of names.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> distinct_choices(WordVectors.from_vectors(["fine", "film"], np.eye(2)))
    ['embeddings']
    """
    count, seen, names = len(encoder.output["layers"]), set(), []
    for name in every_choice(encoder):
        choice = layer_choice(name)
        try:
            layers = tuple(choice.indices(count))
        except ValueError:  # a one-block encoder has no second-to-last
            continue
        read = (layers, choice.combine if len(layers) > 1 else None)
        if read not in seen:
            seen.add(read)
            names.append(name)
    return names
