"""Reading of a configuration and weights, in safetensors or torch files."""

import warnings
from pathlib import Path

from keras_plm.files.json_files import read_json

# What Hugging Face calls the weights of a folder, the better format first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def read_config(folder, kind):
    """The JSON object `config.json` of a folder; `kind` says of what, for errors."""
    if not folder.is_dir():
        raise ValueError(f"No such folder. Received: {str(folder)!r}")
    return read_object(folder / "config.json", kind)


def read_object(path, description=""):
    """A JSON object of a file."""
    return read_json(path, dict, description=description)


def model_type(config):
    """The `model_type` of a Hugging Face configuration; of old ones without it by their keys."""
    if "model_type" in config or "keras_plm" in config:
        return config.get("model_type")
    if "n_embd" in config:
        return "openai-gpt" if "afn" in config else "gpt2"
    return "bert" if {"hidden_act", "type_vocab_size"} <= config.keys() else None


# What changes a model of Hugging Face whatever its kind, with the values that change nothing.
PLAIN = {
    "auto_map": (None,),
    "quantization_config": (None,),
    "pruned_heads": (None, {}),
    "is_encoder_decoder": (None, False),
    "cross_attention_hidden_size": (None,),
}


def check_settings(path, config, plain, numbers):
    """Raises on settings of a configuration that our model does not have.

    Args:
        path: The configuration's file.
        config: Its object.
        plain: Key -> values that change nothing; those of `PLAIN` are looked at too.
        numbers: Keys of numbers.
    """
    for key, values in {**PLAIN, **plain}.items():
        if key in config and config[key] not in values:
            raise ValueError(
                f"{path}: our model has no such variant: `{key}` must be "
                f"{' or '.join(map(repr, values))}. Received: {key}={config[key]!r}"
            )
    for key in numbers:
        if key in config and type(config[key]) not in (int, float):
            raise ValueError(f"{path}: `{key}` must be a number. Received: {config[key]!r}")


def warn_of_dropout(path, config, keys):
    """Warns unless all dropout rates are equal: our encoders have one, the first."""
    rates = {key: config[key] for key in keys if key in config}
    if len(set(rates.values())) > 1:
        warnings.warn(
            f"{path}: one dropout rate is used for all, {keys[0]}: build the encoder with another "
            f"`dropout` to fine-tune otherwise. Received: {rates}",
            stacklevel=5,
        )


def read_weights(path):
    """The arrays of a safetensors file, float32."""
    import ml_dtypes  # noqa: F401 - with it NumPy knows bfloat16
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"No file {path}. Received: {str(path)!r}")
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name).astype("float32") for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file; was its copy interrupted? Received: {error}"
        ) from error


def read_torch_weights(path):
    """The arrays of a file that `torch.save` wrote, float32; code in it is refused, not run.

    Raises:
        ImportError: If torch is not installed.
        ValueError: If the file is missing, damaged, or holds anything but tensors by name.
    """
    if not path.is_file():
        raise ValueError(f"No file {path}. Received: {str(path)!r}")
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"{path} is one of torch's, which reads it under every backend: pip install torch. Or "
            "let `transformers` write model.safetensors in its place."
        ) from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}
    except Exception as error:  # torch's and pickle's own are many
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"{path} must hold tensors by name and nothing else: code in such a file is never run. "
            f"Received: {type(error).__name__}, {reason}"
        ) from error


def read_hugging_face_weights(folder):
    """The arrays of a folder as Hugging Face keeps them, whole or in shards; and the file's path.

    Read are `model.safetensors`, else `pytorch_model.bin`, else the index of either's shards.

    Raises:
        ImportError: If torch is needed and not installed.
        ValueError: If there are none, a file is missing or damaged, or adapters are next to them.
    """
    if (folder / "adapter_config.json").is_file():
        raise ValueError(
            f"{folder}: adapters must be merged into the weights first, with the package that "
            "trained them. Received: adapter_config.json"
        )
    readers = dict(zip(WEIGHTS, (read_weights, read_torch_weights), strict=True))
    for name, read in readers.items():
        if (folder / name).is_file():
            return _bare(read(folder / name)), folder / name
        index = folder / f"{name}.index.json"
        if index.is_file():
            arrays = {}
            for shard in _shards(index):
                arrays |= read(folder / shard)
            return _bare(arrays), index
    raise ValueError(
        f"No file {folder / WEIGHTS[0]}, nor {WEIGHTS[1]}, nor the index of either's shards. "
        f"Received: {str(folder)!r}"
    )


def _bare(arrays):
    """Arrays without the prefix that torch's wrappers of a whole model put before every name."""
    for prefix in ("module.", "_orig_mod."):
        if arrays and all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return arrays


def _shards(index):
    """The files that an index names, each once."""
    named = read_object(index).get("weight_map")
    shards = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    # An index leads to no file outside its folder.
    if not shards or any(Path(shard).name != shard for shard in shards):
        raise ValueError(
            f"{index} must name files beside it in its `weight_map`. Received: {shards[:3]}"
        )
    return shards


def assign(variables, weights, path):
    """Sets variables after checking all of them, so that a misfit changes nothing."""
    missing = [name for name in variables if name not in weights]
    extra = [name for name in weights if name not in variables]
    if missing or extra:
        raise ValueError(
            f"{path} does not hold the weights of this model. "
            f"Received: missing {missing[:3]}, unknown {extra[:3]}"
        )
    for name, variable in variables.items():
        if tuple(variable.shape) != weights[name].shape:
            raise ValueError(
                f"{path} does not hold the weights of this model. Received: {name} with shape "
                f"{weights[name].shape} instead of {tuple(variable.shape)}"
            )
    for name, variable in variables.items():
        variable.assign(weights[name])
