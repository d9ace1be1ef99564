"""Conversion of released GPT and GPT-2 files to our models and back."""

import json
import math
import os
import re
import warnings

import keras
import numpy as np

from keras_plm.checkpoints.download import find_folder
from keras_plm.checkpoints.hugging_face import (
    check_own,
    check_settings,
    mark,
    model_type,
    read_config,
    read_hugging_face_weights,
    warn_of_dropout,
)
from keras_plm.checkpoints.settings import check_weights_of
from keras_plm.checkpoints.tokenizer import tokenizer_settings
from keras_plm.files.arguments import check_whole
from keras_plm.files.arrays import as_weight, assign
from keras_plm.files.json_files import OneOf, Whole, Within, check_shape, read_json
from keras_plm.files.numpy_files import read_npy
from keras_plm.files.writing import read_whole, replacing_files, write_text
from keras_plm.models import GPT
from keras_plm.pretraining import CausalLM
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import check_vocabulary
from keras_plm.transfer.lora import ordinary

ACTIVATIONS = {"gelu": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu"}
# For GPT-2, "gelu" is the exact one in `transformers`.
ACTIVATIONS_2 = {**ACTIVATIONS, "gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu_tanh"}
PLAIN = {  # the only supported values
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
HEADS = ("lm_head.", "score.", "multiple_choice_head.", "classifier.")  # weights of other heads
NUMBERS = (
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "initializer_range",
    "layer_norm_epsilon",
)
SHAPE = {  # of `config.json`; the activation has another key in each kind
    **{name: Whole(1) for name in ("vocab_size", "n_layer", "n_head", "n_embd", "n_positions")},
    "n_inner?": (Whole(1), None),
    **{f"{name}?": Within(0, 1) for name in NUMBERS},
}
SHAPES = [[Whole(1)]]  # of OpenAI's `params_shapes.json`
OURS = ("config.json", "model.safetensors", "vocab.json", "merges.txt", "tokenizer_config.json")
PARTS = {  # our name: the name in the files
    "attention/query_key_value": "attn.c_attn",
    "attention/output": "attn.c_proj",
    "attention_norm": "ln_1",
    "feed_forward/intermediate": "mlp.c_fc",
    "feed_forward/output": "mlp.c_proj",
    "feed_forward_norm": "ln_2",
}


def load_gpt(
    path: str | os.PathLike,
    head: str | None = None,
    num_heads: int = 12,
    dtype: str | keras.DTypePolicy | None = None,
) -> GPT | CausalLM:
    """Loads a GPT or GPT-2 of Hugging Face's `transformers`, or OpenAI's released GPT.

    Args:
        path: A folder, or a released model's name as in `keras_plm.load`, with `config.json` and
            `model.safetensors`, or `pytorch_model.bin`, or shards of either with their index, of
            model type `openai-gpt` or `gpt2`; or with `params_shapes.json` and `params_0.npy` ...
            as in openai/finetune-transformer-lm.
        head: `None` for the encoder, `"pretraining"` for a `CausalLM` with it.
        num_heads: Number of heads for OpenAI's files; they do not contain it.
        dtype: Keras policy of the encoder, such as `"mixed_bfloat16"`; Keras' default when omitted.

    Returns:
        A `GPT`, or a `CausalLM`. Its dropout is the folder's `resid_pdrop`.

    Raises:
        ValueError: If a file is missing, `GPT` lacks a setting, or the weights do not fit.

    >>> import tempfile
    >>> encoder = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt(folder, encoder)
    ...     loaded = load_gpt(folder)
    >>> loaded.num_layers, loaded.hidden_dim
    (1, 8)
    """
    if head not in (None, "pretraining"):
        raise ValueError(f"`head` must be None or 'pretraining'. Received: {head!r}")
    path = find_folder(path)
    if (path / "params_shapes.json").is_file():
        check_whole(num_heads, "num_heads", least=1)
        encoder = _load_slices(path, num_heads, dtype)
    else:
        encoder = read_whole(path, OURS, lambda: _load_folder(path, head, dtype))
    return encoder if head is None else CausalLM(encoder)


def _load_folder(path, head, dtype):
    config = read_config(path, "of a Hugging Face GPT")
    kind = model_type(config)
    file = path / "config.json"
    if kind not in ("openai-gpt", "gpt2"):
        raise ValueError(
            f"{path / 'config.json'} is not that of a GPT or GPT-2 of Hugging Face; load a folder "
            f"of `keras_plm.save` with `keras_plm.load`. Received: model_type={kind!r}"
        )
    second = kind == "gpt2"
    known = ACTIVATIONS_2 if second else ACTIVATIONS
    key = "activation_function?" if second else "afn"
    check_shape(config, {**SHAPE, key: OneOf(tuple(known))}, file)
    activation = config.get("activation_function", "gelu_new") if second else config["afn"]
    plain = {**PLAIN, "n_ctx": (None, config["n_positions"])}
    check_settings(file, config, plain, NUMBERS)
    warn_of_dropout(file, config, NUMBERS[:3])
    arguments = {
        "vocabulary_size": config["vocab_size"],
        "num_layers": config["n_layer"],
        "num_heads": config["n_head"],
        "hidden_dim": config["n_embd"],
        "intermediate_dim": config.get("n_inner") or 4 * config["n_embd"],
        "max_sequence_length": config["n_positions"],
        "dropout": config.get("resid_pdrop", 0.1),
        "activation": known[activation],
        "pre_norm": second,
        "initializer_range": config.get("initializer_range", 0.02),
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
    }
    arrays, weights_file = read_hugging_face_weights(path, _is_mask)
    encoder = _build(arguments, arrays, file, dtype)
    released = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    tied = "wte.weight" if second else "tokens_embed.weight"
    if "lm_head.weight" in released and config.get("tie_word_embeddings", True):
        released.setdefault(tied, released["lm_head.weight"])  # a file may hold one of the two
    table = released.get(tied)
    if head is not None and not np.array_equal(released.get("lm_head.weight", table), table):
        raise ValueError(
            f"{weights_file}: `CausalLM` ties its output to the embeddings; the weights must be "
            "tied. Received: another table as lm_head.weight"
        )
    inside = ("h.", "wte.", "wpe.", "ln_f.", "tokens_embed.", "positions_embed.")
    kept = {name: array for name, array in released.items() if name.startswith(inside)}
    unknown = sorted(name for name in released.keys() - kept if not name.startswith(HEADS))
    if unknown:
        warnings.warn(
            f"{weights_file}: these weights are unknown and are not read: {', '.join(unknown)}",
            stacklevel=4,
        )
    names = {theirs: ours for ours, theirs in _names(encoder).items()}
    weights = {names.get(theirs, theirs): array for theirs, array in kept.items()}
    assign({w.path: w for w in encoder.weights}, weights, weights_file)
    return encoder


def _build(arguments, arrays, file, dtype):
    """Builds a `GPT` from a file's arguments, after a check of its size against the arrays."""
    check_weights_of("GPT", arguments, arrays, file)
    try:
        return GPT(**arguments, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _is_mask(name):
    """Returns True for masks and position numbers, which are not weights."""
    return name.endswith((".attn.bias", ".attn.masked_bias", "position_ids"))


def _names(encoder):
    """Returns a dict from the paths of our weights to their names."""
    tables = ("wte", "wpe") if encoder.pre_norm else ("tokens_embed", "positions_embed")
    names = {
        f"{ours}_embedding/embeddings": f"{theirs}.weight"
        for ours, theirs in zip(("token", "position"), tables, strict=True)
    }
    for i in range(encoder.num_layers):
        for ours, theirs in PARTS.items():
            kinds = ("gamma", "beta") if ours.endswith("norm") else ("kernel", "bias")
            for kind, name in zip(kinds, ("weight", "bias"), strict=True):
                names[f"transformer/block_{i}/{ours}/{kind}"] = f"h.{i}.{theirs}.{name}"
    if encoder.pre_norm:
        names |= {f"transformer/final_norm/{ours}": f"ln_f.{theirs}"
                  for ours, theirs in (("gamma", "weight"), ("beta", "bias"))}  # fmt: skip
    return names


def _load_slices(path, num_heads, dtype):
    """Loads files of openai/finetune-transformer-lm: one flat array in ten files, and shapes."""
    file = path / "params_shapes.json"
    shapes = [tuple(shape) for shape in read_json(file, SHAPES)]
    blocks, rest = divmod(len(shapes) - 2, 12)
    if blocks < 1 or rest or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        raise ValueError(
            f"{file} must hold the shapes of a GPT: positions, tokens, and twelve for each block. "
            f"Received: {len(shapes)} shapes"
        )
    slices = [re.fullmatch(r"params_(\d{1,6})\.npy", p.name) for p in path.iterdir()]
    numbers = sorted(int(found[1]) for found in slices if found)
    if numbers != list(range(len(numbers))) or not numbers:
        raise ValueError(
            f"{path} must hold params_0.npy, params_1.npy, ... without a gap. Received: {numbers}"
        )
    files = [path / f"params_{n}.npy" for n in numbers]
    flat = [as_weight(read_npy(name, "f"), "its values", name).ravel() for name in files]
    sizes = [math.prod(shape) for shape in shapes]
    held = sum(map(len, flat))
    if held != sum(sizes):
        raise ValueError(
            f"{path}: the slices must hold {sum(sizes):,} numbers, as params_shapes.json says. "
            f"Received: {held:,}"
        )
    flat, ends = np.concatenate(flat), np.cumsum(sizes)
    arrays = [a.reshape(s) for a, s in zip(np.split(flat, ends[:-1]), shapes, strict=True)]
    positions, tokens, *blocks_of = arrays
    arguments = {
        "vocabulary_size": tokens.shape[0],
        "num_layers": blocks,
        "num_heads": num_heads,
        "hidden_dim": tokens.shape[1],
        "intermediate_dim": blocks_of[6].shape[-1],
        "max_sequence_length": positions.shape[0],
    }
    encoder = _build(arguments, dict(enumerate(arrays)), file, dtype)
    names = [name for name in _names(encoder) if "embedding" not in name]
    weights = {"token_embedding/embeddings": tokens, "position_embedding/embeddings": positions}
    weights |= {
        name: array[0] if array.ndim == 3 else array
        for name, array in zip(names, blocks_of, strict=True)
    }
    assign({w.path: w for w in encoder.weights}, weights, file)
    return encoder


def save_gpt(
    path: str | os.PathLike, encoder: GPT, tokenizer: SubwordTokenizer | None = None
) -> None:
    """Writes a GPT as a folder for `transformers`, of type `openai-gpt` or `gpt2`.

    Args:
        path: The folder; an earlier save is replaced. Without `tokenizer` its tokenizer stays.
        encoder: A `GPT`; with `pre_norm` it is a GPT-2.
        tokenizer: The encoder's `BytePair`, written as `vocab.json`, `merges.txt` and
            `tokenizer_config.json`: tokens and added tokens, without the special tokens of tasks.
            For a GPT, `transformers` splits contractions and runs of punctuation differently (see
            `BytePair`) and lower-cases all text; upper-case tokens give a warning.

    Raises:
        ValueError: If `encoder` or `tokenizer` is of another type, they do not fit, or the folder
            contains other files.

    >>> import tempfile
    >>> encoder = GPT(13, 1, 2, hidden_dim=8, intermediate_dim=32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt(folder, encoder)
    ...     load_gpt(folder).vocabulary_size
    13
    """
    from safetensors.numpy import save_file

    if not isinstance(encoder, GPT):
        raise ValueError(f"`encoder` must be a GPT. Received: {type(encoder).__name__}")
    encoder = ordinary(encoder)
    second, rate = encoder.pre_norm, encoder.dropout
    known = ACTIVATIONS_2 if second else ACTIVATIONS
    activation = next(
        (theirs for theirs, ours in known.items() if ours == encoder.activation), None
    )
    if activation is None:
        raise ValueError(
            f"`transformers` has no such GPT. Received: activation={encoder.activation!r}"
        )
    config = {
        "model_type": "gpt2" if second else "openai-gpt",
        "architectures": ["GPT2LMHeadModel" if second else "OpenAIGPTLMHeadModel"],
        "activation_function" if second else "afn": activation,
        "vocab_size": encoder.vocabulary_size,
        "n_positions": encoder.max_sequence_length,
        "n_embd": encoder.hidden_dim,
        "n_layer": encoder.num_layers,
        "n_head": encoder.num_heads,
        "resid_pdrop": rate,
        "embd_pdrop": rate,
        "attn_pdrop": rate,
        "layer_norm_epsilon": encoder.norm_epsilon,
        "initializer_range": encoder.initializer_range,
        **mark("save_gpt"),
    }
    if second:
        config["n_inner"] = encoder.intermediate_dim
    elif encoder.intermediate_dim != 4 * encoder.hidden_dim:
        raise ValueError(
            "For a GPT of `transformers`, `intermediate_dim` must be 4 times `hidden_dim`. "
            f"Received: intermediate_dim={encoder.intermediate_dim}"
        )
    files = {"config.json": json.dumps(config, indent=1) + "\n"}
    if tokenizer is not None:
        files |= _tokenizer_files(tokenizer, "gpt2" if second else "gpt")
        if not second and not tokenizer.lowercase:
            warnings.warn(
                "`transformers` lower-cases the texts of a GPT, and this tokenizer has upper case: "
                "give the model ids of this tokenizer instead of texts.",
                stacklevel=2,
            )
        check_vocabulary(encoder, tokenizer.text_size)
    names = _names(encoder)
    arrays = {
        f"transformer.{names[w.path]}": keras.ops.convert_to_numpy(w).astype("float32")
        for w in encoder.weights
    }
    check_own(path, [*files, "model.safetensors"], "save_gpt")
    with replacing_files(path, ("model.safetensors", *files)) as temporary:
        save_file(arrays, temporary / "model.safetensors", metadata={"format": "pt"})
        for name, text in files.items():
            write_text(temporary / name, text)


def _tokenizer_files(tokenizer, scheme):
    """Returns `vocab.json`, `merges.txt` and `tokenizer_config.json` as text."""
    if getattr(tokenizer, "scheme", None) != scheme:
        raise ValueError(
            f"The tokenizer of this model must be a `BytePair` of scheme {scheme!r}. "
            f"Received: {type(tokenizer).__name__}, scheme={getattr(tokenizer, 'scheme', None)!r}"
        )
    tokens = tokenizer.unframed().get_config()["vocabulary"]
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in tokenizer.merges)]
    ids = {token: i for i, token in enumerate(tokens)}
    return {
        "vocab.json": json.dumps(ids, ensure_ascii=False),
        "merges.txt": "\n".join(lines) + "\n",
        "tokenizer_config.json": json.dumps(tokenizer_settings(tokenizer), indent=1) + "\n",
    }
