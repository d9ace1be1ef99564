"""Settings of encoders in files: their shapes, and lower bounds for the number of weights."""

import dataclasses
import math
from collections.abc import Callable

from keras_plm.files.json_files import OneOf, Whole, Within, check_shape, shown

SIZE, FRACTION = Whole(1), Within(0, 1)
ACTIVATION = OneOf(("gelu_erf", "gelu_tanh", "relu"))
ANY = {"name?": (str, None), "trainable?": bool, "dtype?": object}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of an encoder's class in JSON.

    Attributes:
        shape: Their shape, see `files.json_files`.
        least: Function from arguments to a lower bound for the encoder's number of weights.
    """

    shape: dict
    least: Callable


def _stack(s):
    """Counts the weights in the kernels of a stack of Transformer blocks."""
    width = s["hidden_dim"]
    return s["num_layers"] * width * (4 * width + 2 * (s.get("intermediate_dim") or width))


def _elmo(s):
    filters, width, units = sum(pair[-1] for pair in s["filters"]), s["projection_dim"], s["units"]
    convolutions = sum(pair[0] * pair[-1] for pair in s["filters"]) * s.get("character_dim", 16)
    highways = 2 * filters * filters * s.get("num_highway", 2)
    lstms = 2 * s.get("num_layers", 2) * 9 * units * width
    return convolutions + highways + filters * width + lstms


def _word_vectors(s):
    filters = s.get("character_filters", 0)
    return len(s["vocabulary"]) * (s["hidden_dim"] - filters) + 48 * filters


# Arguments of KerasHub's backbones, under the names that most of them use.
BACKBONE = {
    f"{name}?": (SIZE, None)
    for name in (
        "vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim",
        "embedding_dim", "max_sequence_length",
    )
}  # fmt: skip


def _backbone(s):
    width = s.get("hidden_dim") or 1
    # ALBERT has one block for all layers, and token vectors narrower than the blocks.
    of_tokens = (s.get("vocabulary_size") or 1) * (s.get("embedding_dim") or width)
    return of_tokens + width * max(width, s.get("intermediate_dim") or 1)


BLOCKS = {
    "vocabulary_size": SIZE,
    "num_layers": SIZE,
    "num_heads": SIZE,
    "hidden_dim": SIZE,
    "intermediate_dim": SIZE,
    "max_sequence_length?": SIZE,
    "dropout?": FRACTION,
    "activation?": ACTIVATION,
    "pre_norm?": bool,
    "initializer_range?": FRACTION,
    "norm_epsilon?": FRACTION,
}
SETTINGS = {
    "BERT": Settings(
        {**BLOCKS, "num_segments?": SIZE, "causal?": bool},
        lambda s: (
            s["hidden_dim"]
            * (s["vocabulary_size"] + s.get("max_sequence_length", 512) + s.get("num_segments", 2))
            + _stack(s)
        ),
    ),
    "GPT": Settings(
        BLOCKS,
        lambda s: (
            s["hidden_dim"] * (s["vocabulary_size"] + s.get("max_sequence_length", 512)) + _stack(s)
        ),
    ),
    "ELMo": Settings(
        {
            "units": SIZE,
            "projection_dim": SIZE,
            "filters": [[SIZE]],
            "character_dim?": SIZE,
            "num_highway?": Whole(0),
            "activation?": OneOf(("relu", "tanh")),
            "num_layers?": SIZE,
            "cell_clip?": (float, None),
            "projection_clip?": (float, None),
            "use_skip_connections?": bool,
            "dropout?": FRACTION,
            "carried_rows?": Whole(0, 1 << 14),
        },
        _elmo,
    ),
    "NNLM": Settings(
        {
            "vocabulary_size": SIZE,
            "order?": SIZE,
            "embedding_dim?": SIZE,
            "hidden_dim?": Whole(0),
            "direct?": bool,
            "end_id?": Whole(),
            "dropout?": FRACTION,
        },
        lambda s: (
            s["vocabulary_size"] * (s.get("embedding_dim", 60) + s.get("hidden_dim", 50))
            + (s.get("order", 5) - 1) * s.get("embedding_dim", 60) * s.get("hidden_dim", 50)
        ),
    ),
    "RecurrentLM": Settings(
        {
            "vocabulary_size": SIZE,
            "num_layers": SIZE,
            "units": SIZE,
            "hidden_dim": SIZE,
            "dropout?": FRACTION,
            "initializer_range?": FRACTION,
        },
        lambda s: s["hidden_dim"] * (s["vocabulary_size"] + 9 * s["num_layers"] * s["units"]),
    ),
    "Seq2Seq": Settings(
        {
            "vocabulary_size": SIZE,
            "embedding_dim": SIZE,
            "hidden_dim": SIZE,
            "attention?": (str, dict, None),
            "dropout?": FRACTION,
            "share_embeddings?": bool,
        },
        lambda s: (
            s["embedding_dim"] * (s["vocabulary_size"] + 6 * s["hidden_dim"])
            + 6 * s["hidden_dim"] ** 2
        ),
    ),
    "Transformer": Settings(
        {
            "vocabulary_size": SIZE,
            "num_layers": SIZE,
            "num_heads": SIZE,
            "hidden_dim": SIZE,
            "intermediate_dim?": (SIZE, None),
            "max_sequence_length?": (SIZE, None),
            "dropout?": FRACTION,
            "attention_dropout?": float,
            "positions?": str,
            "share_embeddings?": bool,
            "pre_norm?": bool,
        },
        lambda s: s["hidden_dim"] * s["vocabulary_size"] + 2 * _stack(s),
    ),
    "WordVectors": Settings(
        {
            "vocabulary": [str],
            "hidden_dim": SIZE,
            "character_filters?": Whole(0),
            "learns?": bool,
            "dropout?": FRACTION,
        },
        _word_vectors,
    ),
    "HubEncoder": Settings(
        {"backbone": {"registered_name": str, "config": BACKBONE}, "dropout?": (float, None)},
        lambda s: _backbone(s["backbone"]["config"]),
    ),
}


def check_settings_of(kind, settings, where):
    """Raises unless the settings of an encoder have their shape; `where` is for errors."""
    if kind in SETTINGS:
        shape = {**ANY, **SETTINGS[kind].shape}
        check_shape(settings, shape, where)
        unknown = sorted(settings.keys() - {name.removesuffix("?") for name in shape})
        if unknown:
            raise ValueError(f"{where} must be arguments of {kind}. Received: {shown(unknown[0])}")
    pairs = settings.get("filters", ()) if kind == "ELMo" else ()
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise ValueError(
            f"{where}: `filters` must be pairs, width and number. Received: {shown(wrong)}"
        )


def _bound(held):
    """Returns the largest allowed number of weights; later checks name small misfits."""
    return 2 * held + 1_000_000


def check_backbone(config, shapes, where):
    """Applies `check_weights_of` to the configuration of a KerasHub backbone."""
    check_shape(config, {"registered_name": str, "config": BACKBONE}, where)
    check_weights_of("HubEncoder", {"backbone": config}, shapes, where)


def check_weights_of(kind, settings, arrays, where):
    """Raises if settings describe an encoder with many more weights than a file has.

    The check prevents allocations of sizes that the file does not hold.

    Args:
        kind: Name of the encoder's class.
        settings: Its arguments, after a check of their shape.
        arrays: The weights, or their shapes, by name.
        where: Start of error messages.
    """
    if kind not in SETTINGS:
        return
    held = sum(math.prod(getattr(array, "shape", array)) for array in arrays.values())
    least = SETTINGS[kind].least(settings)
    of_layers = settings["backbone"]["config"] if kind == "HubEncoder" else settings
    layers = of_layers.get("num_layers") or 1
    if least > _bound(held) or layers > len(arrays):
        raise ValueError(
            f"{where} describes an encoder with more weights than its file holds. "
            f"Received: {layers:,} layers, {least:,} weights or more, and a file of "
            f"{len(arrays):,} arrays, {held:,} weights"
        )


# Arguments of layers that are lower bounds for their number of weights.
WIDTHS = (
    "units", "filters", "input_dim", "output_dim", "hidden_dim", "intermediate_dim", "num_layers",
    "vocabulary_size", "embedding_dim", "projection_dim", "max_sequence_length", "num_heads",
    "num_segments", "character_dim", "num_highway",
)  # fmt: skip


def check_model_of(config, shapes, where):
    """Applies `check_weights_of` to all parts of a whole model's configuration.

    Args:
        config: Configuration from `keras.saving`: objects with `class_name` and `config`.
        shapes: Shapes of all arrays by name.
        where: Start of error messages.
    """
    held = sum(map(math.prod, shapes.values()))
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        if not isinstance(part, dict):
            continue
        parts += part.values()
        sizes = {name: part[name] for name in WIDTHS if type(part.get(name)) is int}
        wide = [name for name, size in sizes.items() if size > _bound(held)]
        if wide:
            raise ValueError(
                f"{where}: `{wide[0]}` must fit the {held:,} weights in the file. "
                f"Received: {sizes[wide[0]]}"
            )
        kind, settings = part.get("class_name"), part.get("config")
        if isinstance(settings, dict) and str(kind) in SETTINGS and kind != "HubEncoder":
            check_settings_of(kind, settings, f"{where}, {kind}")
            check_weights_of(kind, settings, shapes, f"{where}, {kind}")
