"""Model cards of `benchmarks/weights`: data, licence, compute, limits and hashes of each folder.

A card is made from the files of its folder: sections of README.md, `config.json`, the weights, and
`pretraining.json` where it exists.
"""

import re
from pathlib import Path

from keras_plm.files.arrays import read_weights
from keras_plm.files.json_files import read_json
from keras_plm.files.manifest import file_sha256
from keras_plm.files.opening import read_text

WEIGHTS = Path(__file__).parent / "weights"
SETTINGS = "pretraining.json"
# Files of a card. Your own pre-training run may leave more files in the folder.
FILES = (
    "config.json", "tokenizer.json", "model.safetensors", "objective.safetensors", SETTINGS,
    "log.jsonl",
)  # fmt: skip


def markdown(weights=WEIGHTS):
    """Returns the cards of all folders, sorted by name."""
    folders = [path.parent for path in sorted(Path(weights).glob("*/config.json"))]
    return "\n".join(card(folder) for folder in folders)


def card(folder):
    """Returns the card of a folder.

    Raises:
        ValueError: If its README.md lacks a section.
    """
    text = read_text(folder / "README.md")
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else None
    rows = {
        "Model": _model(folder),
        "Data": _section(text, "Data", folder),
        "Licence": _section(text, "Licence", folder),
        "Compute": _compute(settings) if settings else _section(text, "Compute", folder),
        "Held-out text": _held_out((settings or {}).get("valid", {})),
        "Limits": _section(text, "Limits", folder),
    }
    lines = [f"## {folder.name}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items() if value]
    lines += ["", "| File | Bytes | SHA-256 |", "|---|---:|---|"]
    for path in (folder / name for name in FILES):
        if path.is_file():
            lines.append(f"| `{path.name}` | {path.stat().st_size:,} | `{file_sha256(path)}` |")
    return "\n".join(lines) + "\n"


def _section(text, heading, folder):
    """Returns the text below a heading of README.md, on one line."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError(
            f"The README.md of an encoder needs a section '## {heading}': add it. "
            f"Received: {folder}"
        )
    return " ".join(found[1].split())


def _model(folder):
    config = read_json(folder / "config.json")
    weights = read_weights(folder / "model.safetensors")
    count = sum(array.size for array in weights.values())
    sizes = {
        "num_layers": "layers", "hidden_dim": "wide", "units": "cells", "projection_dim": "wide",
    }  # fmt: skip
    words = [
        f"{config['config'][key]} {of}" for key, of in sizes.items() if key in config["config"]
    ]
    return ", ".join([config["model"], *words, f"{count / 1e6:.1f} M weights"])


def _compute(settings):
    tokens = settings["steps_done"] * settings["tokens_per_batch"]
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    return (
        f"{settings['steps_done']:,} steps, {tokens / 1e6:,.1f} M tokens, "
        f"{settings['seconds']:,.0f} seconds; {settings['device']}; {settings['precision']}, "
        f"seed {settings['seed']}; {versions}; commit {settings['commit']}"
    )


def _held_out(losses):
    percent = ("accuracy", "unknown")
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.1%}" if name.endswith(percent)
        else f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int)
        else f"{name.replace('_', ' ')} {value:.2f}"
        for name, value in losses.items()
    )  # fmt: skip
