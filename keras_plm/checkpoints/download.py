"""Lookup of released models by name in local folders."""

import re
import sys
from pathlib import Path

from keras_plm.checkpoints.packages import PACKAGED, PREFIX, find_package, find_packaged
from keras_plm.files.opening import similar

# Our names, and those of `huggingface_hub`. The four small ones are of Turc et al. 2019.
NAMES = {
    "bert_tiny_uncased": "google/bert_uncased_L-2_H-128_A-2",
    "bert_mini_uncased": "google/bert_uncased_L-4_H-256_A-4",
    "bert_small_uncased": "google/bert_uncased_L-4_H-512_A-8",
    "bert_medium_uncased": "google/bert_uncased_L-8_H-512_A-8",
    "bert_base_uncased": "google-bert/bert-base-uncased",
    "bert_base_cased": "google-bert/bert-base-cased",
    "bert_base_multilingual_cased": "google-bert/bert-base-multilingual-cased",
    "bert_large_uncased": "google-bert/bert-large-uncased",
    "bert_large_cased": "google-bert/bert-large-cased",
    "gpt": "openai-community/openai-gpt",
    "gpt2": "openai-community/gpt2",
}
FILES = [
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "model.weights.h5",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "assets/tokenizer/*",
]
HANDLES = ("kaggle://", "hf://", "modelscope://")  # KerasHub's
# A name of huggingface.co and not of a file: `organisation/model`.
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
ENDINGS = (".safetensors", ".bin", ".h5", ".hdf5", ".keras", ".json", ".txt", ".zip", ".gz", ".npz")
OLD_FILES = [*FILES, "pytorch_model*.bin", "pytorch_model.bin.index.json"]  # if FILES lack weights


def is_handle(path):
    """Returns whether a string is a handle of KerasHub, such as `"hf://organisation/model"`.

    Raises:
        ValueError: If it is another address.
    """
    if path.startswith(HANDLES):
        return True
    if "://" in path:
        raise ValueError(
            "A model must be a local folder, a released model's name or a handle of KerasHub "
            f"({', '.join(HANDLES)}): download its files into a folder first. Received: {path!r}"
        )
    return False


def find_folder(path):
    """Finds the folder of a path, or of a released model's name.

    A name in `PACKAGED`, or `"package:NAME"`, is found in an installed Python distribution. Other
    names are one of `NAMES`; or `"organisation/model"`, if there is neither such a folder nor one
    named `organisation`. The function first searches the cache of `huggingface_hub`. Otherwise it
    prints a line on standard error and downloads the model from huggingface.co.

    Args:
        path: A folder; or a string, one of `NAMES` or `"organisation/model"`.

    Raises:
        ImportError: If it is a name and huggingface_hub is not installed.
        ValueError: If it is neither, or the model cannot be found.
    """
    if isinstance(path, str):
        is_handle(path)
    try:
        folder = Path(path)
        if folder.is_dir():
            return folder
        # A path that begins with an existing folder is not a name.
        meant = folder.exists() or folder.is_symlink() or folder.parent.exists()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise ValueError(f"No such folder. Received: {str(path)!r:.200}") from error
    if isinstance(path, str) and path in PACKAGED:
        return find_packaged(path)
    if isinstance(path, str) and path.startswith(PREFIX):
        return find_package(path)
    is_name = isinstance(path, str) and NAME.fullmatch(path) and not path.endswith(ENDINGS)
    if not (isinstance(path, str) and path in NAMES) and (not is_name or meant):
        known = [*NAMES, *PACKAGED]
        raise ValueError(
            "No such folder, and no released model of this name."
            f"{similar(folder, known, folders=True)} Known: {', '.join(known)}, "
            f"'package:NAME' and 'organisation/model'. Received: {str(path)!r}"
        )
    return _fetch(NAMES.get(path, path))


def _fetch(name):
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}, and finding a released model by its name needs the "
            "package huggingface_hub: pip install huggingface_hub"
        ) from error
    reason = cached = None
    for here in (True, False):
        if not here:
            line = f"No folder {name!r} on disk, nor in the cache"
            if cached is not None:
                line = f"The cache has no tokenizer of {name!r}"
            print(f"{line}: asking huggingface.co for it", file=sys.stderr)
        for files in (FILES, OLD_FILES):
            try:
                found = snapshot_download(name, allow_patterns=files, local_files_only=here)
            except Exception as error:  # of the network, the cache or the name: many types
                reason = error
                break
            if _has_weights(Path(found)):
                if not here or _has_tokenizer(Path(found)):
                    return Path(found)
                cached = Path(found)  # a model may have no tokenizer: ask
                break
            reason = f"neither model.safetensors nor pytorch_model.bin among its files, {found}"
    if cached is not None:
        return cached
    raise ValueError(
        f"There is no folder {name!r} on this machine. A model of this name is not in "
        "huggingface_hub's cache and could not be downloaded from huggingface.co: check the name "
        "and the network, or give the path of a folder with its files. "
        f"Received: {reason}"
    )


def _has_tokenizer(folder):
    files = ("tokenizer.json", "vocab.txt", "merges.txt", "assets/tokenizer")
    return any((folder / name).exists() for name in files)


def _has_weights(folder):
    patterns = ("model*.safetensors", "pytorch_model*.bin", "model.weights.h5")
    return (folder / "config.json").is_file() and any(
        any(folder.glob(pattern)) for pattern in patterns
    )
