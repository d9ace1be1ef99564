"""Adapter of KerasHub's backbones to our contract, and its presets."""

import json
import os
import re
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_plm.checkpoints.download import is_handle
from keras_plm.checkpoints.keras_hub_tokenizer import PRESET, HubTokenizer, import_keras_hub
from keras_plm.checkpoints.settings import check_backbone
from keras_plm.files.arrays import as_weight, hdf5_arrays, keras_shapes, open_hdf5
from keras_plm.files.json_files import read_json
from keras_plm.files.opening import read_text
from keras_plm.files.saveable import described_error, saved_policy
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.tokenizer_json import (
    naming,
)

BACKBONE = {"registered_name": str, "config": dict}  # the shape of a preset's `config.json`
BLOCK = re.compile(r"(?:^|_)layer_\d+$")  # KerasHub's names of the blocks of its backbones


def load_hub(
    preset: str | os.PathLike, dtype: str | keras.DTypePolicy | None = None
) -> tuple["HubEncoder", HubTokenizer]:
    """Loads a preset of KerasHub as an encoder and its tokenizer.

    Args:
        preset: Argument of `keras_hub.models.Backbone.from_preset`: a folder, a name such as
            `"roberta_base_en"`, or a handle such as `"kaggle://..."` or `"hf://..."`.
        dtype: Keras policy of the encoder; Keras' default when omitted.

    Returns:
        `(encoder, tokenizer)`, a `HubEncoder` and a `HubTokenizer`.

    Raises:
        ImportError: If keras_hub is not installed.
        ValueError: As `HubEncoder` and `HubTokenizer.of`, or if KerasHub cannot read the preset.

    >>> encoder, tokenizer = load_hub("roberta_base_en")  # doctest: +SKIP
    """
    hub = import_keras_hub()
    preset = str(preset)
    is_handle(preset)
    if Path(preset).is_dir():
        _check_preset(Path(preset))
    dtype = dtype or keras.config.dtype_policy().name
    try:
        backbone = hub.models.Backbone.from_preset(preset, dtype=dtype)
        for weight in backbone.weights:
            as_weight(ops.convert_to_numpy(weight), weight.path, preset)
        tokenizer = hub.tokenizers.Tokenizer.from_preset(preset)
        with naming(preset):
            return from_hub(backbone, tokenizer)
    except ImportError:
        raise
    except Exception as error:  # of KerasHub, Keras, HDF5 or the network: many types
        raise ValueError(f"{preset} is not a readable preset. {_reason(error)}") from error


def _reason(error):
    """Returns the end of a message for an error of KerasHub."""
    if isinstance(error, (UnicodeDecodeError, json.JSONDecodeError)):
        return "Received: a file of its tokenizer that is not UTF-8 text or not JSON"
    found = described_error(error)
    if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
        text = " ".join(str(error).split())
        return text if "Received: " in text[:600] else f"Received: {text[:200]}"
    return found


def _check_preset(folder):
    """Raises unless the files of a local preset are whole, before KerasHub reads them."""
    config = read_json(folder / "config.json", BACKBONE)
    read_json(folder / "tokenizer.json", PRESET)
    for path in (folder / "assets" / "tokenizer").glob("*.txt"):
        read_text(path)
    for path in (folder / "assets" / "tokenizer").glob("*.json"):
        read_json(path)
    shapes = {}
    for path in folder.glob("*.weights.h5"):
        with open_hdf5(path) as file:
            shapes |= keras_shapes(hdf5_arrays(file, path), path)
    if shapes:
        check_backbone(config, shapes, folder / "config.json")


def from_hub(backbone: Any, tokenizer: Any) -> tuple["HubEncoder", HubTokenizer]:
    """Converts a backbone and a tokenizer of KerasHub to an encoder and a tokenizer of keras_plm.

    Args:
        backbone: A `keras_hub.models.Backbone`.
        tokenizer: A `keras_hub.tokenizers.Tokenizer`.

    Returns:
        `(encoder, tokenizer)`, a `HubEncoder` and a `HubTokenizer`.

    Raises:
        ImportError: If keras_hub is not installed.
        ValueError: As `HubEncoder` and `HubTokenizer.of`.

    >>> import keras_hub  # doctest: +SKIP
    >>> backbone = keras_hub.models.Backbone.from_preset("roberta_base_en")  # doctest: +SKIP
    >>> their_tokenizer = keras_hub.tokenizers.Tokenizer.from_preset(  # doctest: +SKIP
    ...     "roberta_base_en"
    ... )
    >>> encoder, tokenizer = from_hub(backbone, their_tokenizer)  # doctest: +SKIP
    """
    encoder = HubEncoder(backbone)
    return encoder, HubTokenizer.of(tokenizer, has_segments="segment_ids" in encoder.input)


@keras.saving.register_keras_serializable("keras_plm")
class HubEncoder(Encoder):
    """A backbone of KerasHub as an encoder, with the output of every layer.

    It supports RoBERTa, DeBERTa, ALBERT, ELECTRA, DistilBERT, BERT, GPT-2, OPT and others with
    `token_ids`. Use it like other encoders: under a head to fine-tune, and in `keras_plm.transfer`
    to extract features. It shares the weights of the backbone.

    Args:
        backbone: A `keras_hub.models.Backbone`.
        trainable: If False, the encoder is frozen.
        name: Name of the model.

    Attributes:
        causal: Whether a token attends only to earlier tokens, as in GPT-2.
        num_blocks: Number of blocks with separate weights; less than L for shared weights.

    Call arguments:
        inputs: A dict of `token_ids`, `padding_mask` (True at real tokens) and, if the backbone has
            them, `segment_ids`, each (B, T).

    Returns:
        A dict: `"sequence"` (B, T, D), `"layers"`, a list of L + 1 tensors (B, T, D) with the
        embeddings first and `"sequence"` last, and `"pooled"` (B, D) if the backbone has it.

    Raises:
        ImportError: If keras_hub is not installed.
        ValueError: If `backbone` is of another type, has other inputs, or its blocks are unknown.

    >>> import keras_hub  # doctest: +SKIP
    >>> backbone = keras_hub.models.Backbone.from_preset("roberta_base_en")  # doctest: +SKIP
    >>> HubEncoder(backbone).hidden_dim  # doctest: +SKIP
    768
    """

    def __init__(self, backbone: Any, trainable: bool = True, name: str | None = None):
        if not isinstance(backbone, import_keras_hub().models.Backbone):
            raise ValueError(
                "`backbone` must be a `keras_hub.models.Backbone`; a task has one, "
                "`task.backbone`. "
                f"Received: {type(backbone).__name__}"
            )
        names = sorted(backbone.input) if isinstance(backbone.input, dict) else []
        if not {"token_ids", "padding_mask"} <= set(names) <= {*INPUTS}:
            # FNet mixes padding with the text; other models read two texts or images.
            raise ValueError(
                "An encoder must read `token_ids`, `padding_mask` and optionally `segment_ids`. "
                f"Received: {type(backbone).__name__}, which reads {', '.join(names) or 'no names'}"
            )
        blocks = _blocks(backbone)
        output = backbone.output
        parts = output if isinstance(output, dict) else {"sequence_output": output}
        layers = [blocks[0].input_tensors[0], *(block.outputs[0] for block in blocks)]
        layers[-1] = parts["sequence_output"]  # after a final norm
        pooled = [parts["pooled_output"]] if "pooled_output" in parts else []
        every = keras.Model(backbone.input, [*layers, *pooled], name="backbone")

        inputs = {name: keras.Input((None,), dtype=INPUTS[name], name=name) for name in names}
        cast = {n: ops.cast(x, backbone.input[n].dtype) for n, x in inputs.items()}
        found = every(cast)
        outputs = {"sequence": found[len(blocks)], "layers": found[: len(layers)]}
        if pooled:
            outputs["pooled"] = found[-1]
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone
        self.causal = any("Decoder" in type(block.operation).__name__ for block in blocks)
        self.num_layers = len(blocks)
        self.num_blocks = len({id(block.operation) for block in blocks})  # ALBERT's is one
        config = backbone.get_config()
        self.vocabulary_size = config.get("vocabulary_size", config.get("vocab_size"))
        self.max_sequence_length = config.get("max_sequence_length")
        self.dropout = config.get("dropout", 0.0)
        self.trainable = trainable

    def get_config(self):
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "dropout": self.dropout,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        """Builds an encoder; `dropout` and `dtype` may differ from those of the backbone."""
        import_keras_hub()
        config = dict(config)
        described = config.pop("backbone")
        if not str(described.get("registered_name")).startswith("keras_hub>"):
            raise ValueError(
                "The backbone of a `HubEncoder` must be one of KerasHub's. "
                f"Received: registered_name={described.get('registered_name')!r:.80}"
            )
        inner = {**described["config"], "trainable": True}
        dtype, dropout = config.pop("dtype", None), config.pop("dropout", None)
        if dtype != _name_of(inner.get("dtype")):
            inner["dtype"] = dtype or keras.config.dtype_policy().name
        if "dropout" in inner and dropout is not None:
            inner["dropout"] = dropout
        backbone = keras.saving.deserialize_keras_object({**described, "config": inner})
        return cls(backbone, **config)


INPUTS = {"token_ids": "int32", "segment_ids": "int32", "padding_mask": "bool"}


def _name_of(dtype):
    """Returns the name of a Keras policy in a configuration."""
    return dtype["config"].get("name") if isinstance(dtype, dict) else dtype


def _blocks(backbone):
    """Returns the calls of a backbone's blocks, lowest first; a shared block has several."""
    by_depth = backbone._nodes_by_depth  # Keras' functional graph: inputs lie deepest
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    blocks = [node for node in nodes if BLOCK.search(node.operation.name)]
    shapes = {tuple(node.outputs[0].shape) for node in blocks}
    if not blocks or len(shapes) > 1:
        raise ValueError(
            "The blocks of a backbone must be layers named '..._layer_<i>', with one width for "
            f"all. Received: {type(backbone).__name__} with {len(blocks)} of them"
        )
    return blocks
