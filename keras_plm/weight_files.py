"""Folders of a configuration and safetensors weights, read with care."""

import json


def read_config(folder, kind):
    path = folder / "config.json"
    if not folder.is_dir():
        raise ValueError(f"No such folder. Received: {str(folder)!r}")
    if not path.is_file():
        raise ValueError(f"No config.json {kind} in this folder. Received: {str(folder)!r}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON. Received: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object. Received: {type(config).__name__}")
    return config


def read_weights(path):
    """The arrays of a safetensors file, float32."""
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
