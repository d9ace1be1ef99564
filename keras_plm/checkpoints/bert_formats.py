"""File formats of released BERTs: Hugging Face's, Google's and KerasHub's."""

import dataclasses
import glob
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from keras_plm.checkpoints.hugging_face import (
    WEIGHTS,
    check_settings,
    model_type,
    read_hugging_face_weights,
    warn_of_dropout,
)
from keras_plm.checkpoints.settings import check_weights_of
from keras_plm.files.arrays import as_weight, read_weights
from keras_plm.files.json_files import OneOf, Whole, Within, check_shape, read_json

# Hugging Face's names of activations, and ours. Its "gelu" is the exact one, as in Google's code of
# the first release.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
SIZES = {  # our name: the name of Hugging Face and Google
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# Keys of Google's configurations with their only supported values.
PLAIN = {
    "directionality": ("bidi",),
    "pooler_type": ("first_token_transform",),
}
NUMBERS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
)


SHAPE = {  # of Hugging Face's and Google's configurations
    **{theirs: Whole(1) for theirs in SIZES.values()},
    **{f"{name}?": Within(0, 1) for name in NUMBERS},
    "hidden_act": OneOf(tuple(ACTIVATIONS)),
    "model_type?": (str, None),
    "id2label?": ({str: str}, None),
    "classifier_dropout?": (float, None),
    "tie_word_embeddings?": (bool, None),
}
SHAPE_OF_PRESET = {"registered_name": str, "config": dict}  # KerasHub's


@dataclasses.dataclass(frozen=True)
class Released:
    """A BERT in the format of its files.

    Attributes:
        config: File of the configuration.
        file: File of the weights.
        arguments: Arguments of `BERT`.
        settings: The whole configuration.
        arrays: Arrays by the names in these files.
        name: Function from a Hugging Face name to the name in these files.
        is_transposed: Function from a name in these files to whether its matrix is (out, in).
    """

    config: Path
    file: Path
    arguments: dict
    settings: dict
    arrays: dict
    name: Callable
    is_transposed: Callable


def read_released(folder):
    """Reads the files of a folder as a `Released`.

    Raises:
        ImportError: If a package that reads them is not installed.
        ValueError: If there are none, one is damaged, or the configuration is not that of a BERT.
    """
    config = next((p for n in CONFIGS if (p := folder / n).is_file()), None)
    if not folder.is_dir():
        raise ValueError(f"No such folder. Received: {str(folder)!r}")
    if config is None:
        raise ValueError(
            "No config.json of a Hugging Face or KerasHub BERT, nor Google's bert_config.json, "
            f"in this folder. Received: {str(folder)!r}"
        )
    settings = read_json(config, dict)
    if "registered_name" in settings:
        released = _read_keras_hub(folder, config, settings)
        check_weights_of("BERT", released.arguments, released.arrays, config)
        return released
    arguments = _arguments(config, settings)
    released = _read_files(folder, config, settings, arguments)
    check_weights_of("BERT", arguments, released.arrays, config)
    return released


def _read_files(folder, config, settings, arguments):
    checkpoints = sorted(folder.glob("*.ckpt*.index"))
    hugging_face = any((folder / f"{n}{end}").is_file() for n in WEIGHTS for end in INDEX)
    if checkpoints and not hugging_face:
        return _read_google(folder, config, settings, arguments, checkpoints)
    arrays, file = read_hugging_face_weights(folder, _is_of_no_weight)
    arrays = {_without_old_names(name): array for name, array in arrays.items()}
    return Released(config, file, arguments, settings, arrays, lambda name: name, lambda name: True)


def _is_of_no_weight(name):
    """Returns True for the position numbers, integers from 0."""
    return name.endswith("embeddings.position_ids")


CONFIGS = ("config.json", "bert_config.json")
INDEX = ("", ".index.json")


def _without_old_names(name):
    """Converts an old name of a weight to Hugging Face's current name in a bare encoder."""
    name = name.removeprefix("bert.")
    for old, new in (("gamma", "weight"), ("beta", "bias")):
        name = name.replace(f"LayerNorm.{old}", f"LayerNorm.{new}")
    return name


def _arguments(config, settings):
    """Converts a configuration of Hugging Face or Google to arguments of `BERT`."""
    positions = settings.get("position_embedding_type", "absolute")
    kind = model_type(settings) or "bert"
    if kind != "bert" or positions != "absolute":
        raise ValueError(
            f"{config} is not that of a BERT with absolute positions. "
            f"Received: model_type={kind!r}, position_embedding_type={positions!r}"
        )
    foreign = [name for name in ("is_decoder", "add_cross_attention") if settings.get(name)]
    if foreign:
        raise ValueError(
            f"{config}: `BERT` attends in both directions, to its own text only. "
            f"Received: {foreign[0]}={settings[foreign[0]]}"
        )
    check_settings(config, settings, PLAIN, NUMBERS)
    check_shape(settings, SHAPE, config)
    warn_of_dropout(config, settings, NUMBERS[:2])
    return {
        **{ours: settings[theirs] for ours, theirs in SIZES.items()},
        "dropout": settings.get("hidden_dropout_prob", 0.1),
        "activation": ACTIVATIONS[settings["hidden_act"]],
        "initializer_range": settings.get("initializer_range", 0.02),
        "norm_epsilon": settings.get("layer_norm_eps", 1e-12),
    }


def _read_google(folder, config, settings, arguments, checkpoints):
    """Reads a checkpoint of google-research/bert: `bert_model.ckpt.index` and its data."""
    whole = [path for path in checkpoints if path.name == "bert_model.ckpt.index"] or checkpoints
    if len(whole) > 1:
        raise ValueError(
            f"{folder} must hold one checkpoint: move the others elsewhere. "
            f"Received: {', '.join(path.name for path in checkpoints)}"
        )
    file = whole[0].with_suffix("")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"{file} is a checkpoint of TensorFlow and needs that package under every backend: "
            "pip install tensorflow."
        ) from error
    try:
        reader = tf.train.load_checkpoint(str(file))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        names = [name for name in shapes if not _is_of_training(name)]
        wanted = sum(math.prod(shapes[name]) * types[name].size for name in names)
        data = sum(path.stat().st_size for path in folder.glob(f"{glob.escape(file.name)}.data-*"))
        if wanted > data:
            raise ValueError(f"arrays of {wanted:,} bytes in {data:,} bytes of data")
        arrays = {name: np.asarray(reader.get_tensor(name)) for name in names}
    except Exception as error:  # TensorFlow raises many types
        raise ValueError(
            f"{file} is no whole checkpoint: copy its .index and .data files again. "
            f"Received: {str(error)[:200]}"
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise ValueError(
                f"{file}: {name!r:.80} must be of floating type. Received: {array.dtype}"
            )
        arrays[name] = as_weight(array, name, file)
    return Released(
        config,
        file,
        arguments,
        settings,
        arrays,
        _google_name,
        lambda name: not name.endswith("kernel"),
    )


def _is_of_training(name):
    """Returns True for Adam's slots and the number of steps."""
    return name.endswith(("/adam_m", "/adam_v")) or name == "global_step"


GOOGLES = {  # Hugging Face's name: Google's, for names without a rule
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",  # run_classifier.py
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",  # run_squad.py
    "qa_outputs.bias": "cls/squad/output_bias",
}


def _google_name(name):
    if name in GOOGLES:
        return GOOGLES[name]
    path, kind = name.rsplit(".", 1)
    if path.endswith("LayerNorm"):
        kind = {"weight": "/gamma", "bias": "/beta"}[kind]
    else:
        kind = "" if path.endswith("_embeddings") else {"weight": "/kernel", "bias": "/bias"}[kind]
    path = re.sub(r"\.layer\.(\d+)", r".layer_\1", path).replace(".", "/")
    return f"{'' if path.startswith('cls') else 'bert/'}{path}{kind}"


def _read_keras_hub(folder, config, settings):
    """Reads a preset of KerasHub's `BertBackbone`."""
    check_shape(settings, SHAPE_OF_PRESET, config)
    if settings["registered_name"] != "keras_hub>BertBackbone":
        raise ValueError(
            f"{config} must be that of KerasHub's BertBackbone; load other backbones with "
            f"`keras_plm.checkpoints.keras_hub`. Received: {settings['registered_name']!r}"
        )
    shape = {**{name: Whole(1) for name in SIZES}, "dropout": float}
    check_shape(settings["config"], shape, f"{config}, `config`")
    arguments = {name: settings["config"][name] for name in shape}
    arguments["activation"] = "gelu_tanh"
    file = folder / "model.weights.h5"
    if not file.is_file():
        raise ValueError(f"No file {file}. Received: {str(folder)!r}")
    return Released(
        config,
        file,
        arguments,
        {},
        _read_hdf5(file),
        _keras_hub_name,
        lambda name: False,
    )


def _read_hdf5(path):
    """Reads the arrays of a file of Keras weights by path, and concatenates attention heads."""
    arrays = {}
    for name, array in read_weights(path, lambda name: "seed_generator" in name).items():
        # Files of early versions have other names.
        name = name.replace("_layer_checkpoint_dependencies", "layers").replace("/_", "/")
        if name.endswith("attention_layer/output_dense/vars/0"):
            if array.ndim == 3:  # (N, H, D) -> (N H, D)
                array = array.reshape(math.prod(array.shape[:2]), array.shape[-1])
        elif re.search(r"(query|key|value)_dense/vars/1$", name):
            array = array.reshape(-1)  # (N, H) -> (N H,)
        elif array.ndim == 3:
            array = array.reshape(len(array), math.prod(array.shape[1:]))  # (D, N, H) -> (D, N H)
        arrays[name] = array
    return arrays


KERAS_HUBS = {  # Hugging Face's layer: KerasHub's path in the file
    "embeddings.word_embeddings": "reversible_embedding",
    "embeddings.position_embeddings": "position_embedding",
    "embeddings.token_type_embeddings": "embedding",
    "embeddings.LayerNorm": "layer_normalization",
    "pooler.dense": "dense",
    "attention.self.query": "self_attention_layer/query_dense",
    "attention.self.key": "self_attention_layer/key_dense",
    "attention.self.value": "self_attention_layer/value_dense",
    "attention.output.dense": "self_attention_layer/output_dense",
    "attention.output.LayerNorm": "self_attention_layer_norm",
    "intermediate.dense": "feedforward_intermediate_dense",
    "output.dense": "feedforward_output_dense",
    "output.LayerNorm": "feedforward_layer_norm",
}


def _keras_hub_name(name):
    path, kind = name.rsplit(".", 1)
    block = re.match(r"encoder\.layer\.(\d+)\.", path)
    part = path[block.end() :] if block else path
    if part not in KERAS_HUBS:
        return name  # of a head; a backbone has none
    i = int(block[1]) if block else None
    inside = f"transformer_encoder{f'_{i}' if i else ''}/" if block else ""
    return f"layers/{inside}{KERAS_HUBS[part]}/vars/{('weight', 'bias').index(kind)}"
