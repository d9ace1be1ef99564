"""Hugging Face's configurations and weights: checks of settings, and joining of shards."""

import contextlib
import math
import warnings
from pathlib import Path

import keras_plm
from keras_plm.files.arrays import read_weights
from keras_plm.files.json_files import read_json, shown

# Hugging Face's names of the weights of a folder, the preferred format first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
INDEX = {"weight_map": {str: str}}  # the shape of an index


def read_config(folder, kind):
    """Reads the JSON object `config.json` of a folder; `kind` describes it in errors."""
    if not folder.is_dir():
        raise ValueError(f"No such folder. Received: {str(folder)!r}")
    return read_json(folder / "config.json", dict, description=kind)


MARK = "written_by"  # marks our folders
# Files that `transformers` reads before those of a save.
FIRST_READ = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json")


def mark(writer):
    """Returns the setting of `config.json` that marks the folders of a function."""
    return {MARK: f"keras_plm {keras_plm.__version__} {writer}"}


def check_own(folder, names, writer):
    """Raises if a save would replace files that its function did not write, or contradict them.

    Args:
        folder: The folder.
        names: Names of the files to write.
        writer: Name of the function.
    """
    folder = Path(folder)
    config = folder / "config.json"
    found = {}
    if config.is_file():
        with contextlib.suppress(ValueError):
            found = read_json(config, dict)
    words = str(found.get(MARK)).split()
    own = words[:1] == ["keras_plm"] and (words[2:] or ["save_bert"]) == [writer]
    # `transformers` keeps our mark in the configurations that it writes.
    own = own and "transformers_version" not in found
    foreign = [] if own else [name for name in names if (folder / name).exists()]
    if "tokenizer_config.json" in names:
        foreign += [name for name in FIRST_READ if (folder / name).exists()]
    if foreign:
        raise ValueError(
            f"{folder} holds files without the mark of {writer}: name another folder. "
            f"Received: {foreign[0]} in {str(folder)!r}"
        )


def model_type(config):
    """Returns the `model_type` of a Hugging Face configuration; infers it in old ones."""
    if "model_type" in config or "keras_plm" in config:
        return config.get("model_type")
    if "n_embd" in config:
        return "openai-gpt" if "afn" in config else "gpt2"
    return "bert" if {"hidden_act", "type_vocab_size"} <= config.keys() else None


# Settings of all kinds of Hugging Face models, with their only supported values.
PLAIN = {
    "auto_map": (None,),
    "quantization_config": (None,),
    "pruned_heads": (None, {}),
    "is_encoder_decoder": (None, False),
    "cross_attention_hidden_size": (None,),
}


def check_settings(path, config, plain, numbers):
    """Raises on settings of a configuration that our model does not support.

    Args:
        path: File of the configuration.
        config: JSON object of the configuration.
        plain: Dict from keys to supported values, in addition to `PLAIN`.
        numbers: Keys of numbers.
    """
    for key, values in {**PLAIN, **plain}.items():
        if key in config and config[key] not in values:
            raise ValueError(
                f"{path}: this setting is not supported: `{key}` must be "
                f"{' or '.join(map(repr, values))}. Received: {key}={config[key]!r:.80}"
            )
    for key in numbers:
        if key in config and not _is_number(config[key]):
            raise ValueError(f"{path}: `{key}` must be a number. Received: {shown(config[key])}")


def _is_number(value):
    return type(value) in (int, float) and math.isfinite(value)


def warn_of_dropout(path, config, keys):
    """Warns unless all dropout rates are equal; our encoders use only the first one."""
    rates = {key: config[key] for key in keys if key in config}
    if len(set(rates.values())) > 1:
        warnings.warn(
            f"{path}: one dropout rate is used for all, {keys[0]}: build the encoder with another "
            f"`dropout` for fine-tuning if necessary. Received: {rates}",
            stacklevel=5,
        )


def read_hugging_face_weights(folder, skip=None):
    """Reads the arrays of a Hugging Face folder, whole or in shards; also returns the file's path.

    It reads `model.safetensors`, otherwise `pytorch_model.bin`, otherwise the shards of either.

    Args:
        folder: The folder.
        skip: As in `files.arrays.read_weights`.

    Raises:
        ImportError: If torch is needed and not installed.
        ValueError: If there are none, a file is missing or damaged, two shards hold one weight, or
            the folder has adapters.
    """
    if (folder / "adapter_config.json").is_file():
        raise ValueError(
            f"{folder}: adapters must be merged into the weights first; use the package that "
            "trained them. Received: adapter_config.json"
        )
    for name in WEIGHTS:
        if (folder / name).is_file():
            return _bare(read_weights(folder / name, skip)), folder / name
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _bare(_read_shards(folder, index, skip)), index
    raise ValueError(
        f"No file {folder / WEIGHTS[0]}, nor {WEIGHTS[1]}, nor an index of the shards of either. "
        f"Received: {str(folder)!r}"
    )


def _bare(arrays):
    """Removes the prefix that torch's wrappers of a whole model add to every name."""
    for prefix in ("module.", "_orig_mod."):
        if arrays and all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


def _read_shards(folder, index, skip):
    """Reads the arrays of the files that an index names."""
    named = read_json(index, INDEX)["weight_map"]
    shards = sorted(set(named.values()))
    ending = Path(index.name.removesuffix(".index.json")).suffix
    # An index must not name a file outside its folder.
    wrong = [s for s in shards if Path(s).name != s or "\0" in s or Path(s).suffix != ending]
    if not shards or wrong:
        raise ValueError(
            f"{index} must name files next to it in its `weight_map`, ending in {ending}. "
            f"Received: {(wrong or shards)[:3]!r:.200}"
        )
    arrays = {}
    for shard in shards:
        found = read_weights(folder / shard, skip)
        doubled = sorted(arrays.keys() & found.keys())
        if doubled:
            raise ValueError(
                f"{folder / shard} must not hold weights of another shard. "
                f"Received: {doubled[0]!r:.80}"
            )
        arrays |= found
    wrong = [name for name in named if name not in arrays and not (skip and skip(name))]
    if wrong:
        raise ValueError(
            f"{index}: the shards must hold every weight that it names. "
            f"Received: no {wrong[0]!r:.80}"
        )
    return arrays
