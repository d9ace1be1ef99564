"""Saving and loading of an encoder and its tokenizer in one folder."""

import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_plm._version import __version__
from keras_plm.checkpoints.bert import load_bert
from keras_plm.checkpoints.download import find_folder, is_handle
from keras_plm.checkpoints.gpt import load_gpt
from keras_plm.checkpoints.hugging_face import model_type, read_config
from keras_plm.checkpoints.keras_hub import HubEncoder, load_hub
from keras_plm.checkpoints.keras_hub_tokenizer import HubTokenizer, load_preset_tokenizer
from keras_plm.checkpoints.settings import check_settings_of, check_weights_of
from keras_plm.checkpoints.tokenizer import read_tokenizer
from keras_plm.files import manifest
from keras_plm.files.arrays import as_weight, assign, read_weights
from keras_plm.files.json_files import check_shape, read_json
from keras_plm.files.opening import read_bytes
from keras_plm.files.saveable import check_model_file, described_error
from keras_plm.files.writing import read_whole, replacing_files, write_json
from keras_plm.models import (
    BERT,
    GPT,
    NNLM,
    ELMo,
    Encoder,
    RecurrentLM,
    Seq2Seq,
    Transformer,
    WordVectors,
)
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import check_vocabulary
from keras_plm.transfer.lora import ordinary

MODELS = {
    kind.__name__: kind
    for kind in (
        BERT,
        ELMo,
        GPT,
        HubEncoder,
        NNLM,
        RecurrentLM,
        Seq2Seq,
        Transformer,
        WordVectors,
    )
}
TOKENIZERS = {
    kind.__name__: kind for kind in (BytePair, Characters, HubTokenizer, WordPiece, Words)
}
PARTS = ("tokenizer.json", "model.safetensors")  # files next to config.json
FILES = (  # all files that our functions write into folders
    "config.json", *PARTS, "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json",
)  # fmt: skip
REPAIR = "Copy it again, or save the encoder again."
SHAPE = {  # of config.json; folders of early versions have no `files`
    "model": str,
    "tokenizer": str,
    "config": dict,
    "files?": manifest.SHAPE,
}

# Files of others that `load` reads before those of `save`.
READ_FIRST = ("params_shapes.json", "encoder_bpe_40000.json", "assets/tokenizer")


def save(
    folder: str | os.PathLike, encoder: Encoder, tokenizer: SubwordTokenizer, dtype: str = "float32"
) -> None:
    """Writes an encoder and its tokenizer as one folder for every backend.

    The folder holds `config.json`, `model.safetensors` and `tokenizer.json`. `config.json` has the
    sizes and checksums of the other two. If the process ends early, `load` reads the earlier save.
    Several processes may save to one folder. LoRA matrices are merged into their kernels.

    Args:
        folder: The folder; an earlier save is replaced.
        encoder: The encoder.
        tokenizer: The encoder's tokenizer.
        dtype: Type of the stored weights, `"float32"` or `"float16"`.

    Raises:
        ValueError: If `folder` holds another model, encoder and tokenizer do not fit, `load` cannot
            read them, or the encoder is quantized.
        OSError: If the folder cannot be written.

    >>> from pathlib import Path
    >>> import numpy as np
    >>> import tempfile
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "film"], np.eye(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/model", encoder, encoder.tokenizer())
    ...     sorted(path.name for path in Path(folder, "model").iterdir() if path.suffix)
    ['config.json', 'model.safetensors', 'tokenizer.json']
    """
    from safetensors.numpy import save_file

    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(
            "The folder comes first: keras_plm.save(folder, encoder, tokenizer). "
            f"Received: folder={folder!r:.60} of type {type(folder).__name__}"
        )
    if dtype not in ("float32", "float16"):
        raise ValueError(f"`dtype` must be 'float32' or 'float16'. Received: dtype={dtype!r:.60}")
    kind = _name_of(encoder)
    if kind is None:
        raise ValueError(
            f"A folder can hold {', '.join(MODELS)}, or your own `Encoder`, registered with "
            "`keras.saving.register_keras_serializable`. Save other models with "
            "`model.save`, and word vectors as `WordVectors.from_vectors(words, model.vectors)`. "
            f"Received: {type(encoder).__name__}"
        )
    if type(tokenizer).__name__ not in TOKENIZERS:
        raise ValueError(
            f"A folder can hold the tokenizers {', '.join(TOKENIZERS)}. "
            f"Received: {type(tokenizer).__name__}"
        )
    folder = Path(folder)
    config_path = folder / "config.json"
    if config_path.is_file() and b'"keras_plm":' not in read_bytes(config_path):
        raise ValueError(
            f"{folder} holds a model that keras_plm.save did not write: name another folder. "
            f"Received: {str(folder)!r}"
        )
    for name in READ_FIRST:
        if (folder / name).exists():
            raise ValueError(
                f"{folder} holds files of another model, which `load` reads first: name another "
                f"folder. Received: {name} in {str(folder)!r}"
            )
    check_vocabulary(encoder, getattr(tokenizer, "text_size", len(tokenizer)))
    encoder = ordinary(encoder)
    config = encoder.get_config()
    for name in ("dtype", "trainable"):  # not stored: `load` chooses them
        config.pop(name, None)
    if kind not in MODELS:
        _check_paths(encoder, config)
    description = {
        "model": kind,
        "tokenizer": type(tokenizer).__name__,
        "keras_plm": __version__,
        "config": config,
    }
    weights = {}
    for weight in encoder.weights:
        if weight.path in weights:
            raise ValueError(
                "Weights are stored by their paths: give every layer of your encoder a `name` of "
                f"its own. Received: two weights {weight.path!r}"
            )
        with np.errstate(over="ignore"):
            weights[weight.path] = keras.ops.convert_to_numpy(weight).astype(dtype)
        as_weight(weights[weight.path], weight.path, f"As {dtype}")
    with replacing_files(folder, (*PARTS, "config.json")) as temporary:
        save_file(weights, temporary / "model.safetensors")
        tokenizer.save(temporary / "tokenizer.json")
        description["files"] = manifest.describe_files(temporary, PARTS)
        write_json(temporary / "config.json", description)


def load(
    folder: str | os.PathLike, dtype: str | keras.DTypePolicy | None = None, verify: bool = True
) -> tuple[Encoder, SubwordTokenizer]:
    """Loads an encoder and its tokenizer from `save`, a released BERT or GPT, or a preset.

    A preset of KerasHub's `BertBackbone` becomes a `BERT`, other presets a `HubEncoder`.

    Args:
        folder: The folder; or the name of a released model, such as `"bert_base_uncased"` or
            `"organisation/model"`, to find in the cache of `huggingface_hub` or to download; or a
            handle of KerasHub, such as `"kaggle://keras/roberta/keras/roberta_base_en"`.
        dtype: Keras policy of the encoder, such as `"mixed_bfloat16"`; Keras' default when omitted.
        verify: If True, check the checksum of the weights; it takes a second per gigabyte. Sizes
            and the tokenizer's checksum are always checked.

    Returns:
        `(encoder, tokenizer)`.

    Raises:
        ImportError: If a needed package is not installed.
        ValueError: If a file is missing, unreadable, or does not fit the others.

    >>> import numpy as np
    >>> import tempfile
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "film"], np.eye(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/model", encoder, encoder.tokenizer())
    ...     loaded, tokenizer = load(f"{folder}/model")
    >>> loaded.words, tokenizer.tokenize("Fine film")
    (['fine', 'film'], ['fine', 'film'])
    """
    if isinstance(folder, str) and is_handle(folder):
        return load_hub(folder, dtype)
    folder = find_folder(folder)
    if _reader(folder) is load_hub:
        return load_hub(folder, dtype)
    return read_whole(folder, FILES, lambda: _load(folder, dtype, verify))


def _load(folder, dtype, verify):
    reader = _reader(folder)
    if reader is None:
        return _load_own(folder, dtype, verify)
    encoder, tokenizer = reader(folder, dtype=dtype), load_tokenizer(folder)
    schemes = {True: "gpt2", False: "gpt"}  # by `pre_norm`; a BERT has none
    scheme = schemes[encoder.pre_norm] if isinstance(encoder, GPT) else None
    if getattr(tokenizer, "scheme", None) != scheme:
        raise ValueError(
            f"{folder}: the tokenizer of a BERT must be a WordPiece, that of a GPT a BytePair "
            f"of its scheme. Received: {type(encoder).__name__} with {type(tokenizer).__name__} "
            f"of scheme {getattr(tokenizer, 'scheme', None)!r}"
        )
    _check_fits(encoder, tokenizer, folder)
    return encoder, tokenizer


def _load_own(folder, dtype, verify):
    """Loads a folder of `save`."""
    file, weights_file = folder / "config.json", folder / "model.safetensors"
    description = read_config(folder, "written by keras_plm.save")
    kind, kind_of_tokenizer = description.get("model"), description.get("tokenizer")
    named = isinstance(kind, str) and isinstance(kind_of_tokenizer, str)
    own = keras.saving.get_registered_object(kind) if named and ">" in kind else None
    if not named or (kind not in MODELS and own is None) or kind_of_tokenizer not in TOKENIZERS:
        raise ValueError(
            f"{file} was not written by keras_plm.save, or its encoder is a "
            "class of your own: first import the module that defines it (--import MODULE). "
            f"Received: model={kind!r:.80}, tokenizer={kind_of_tokenizer!r:.80}"
        )
    check_shape(description, SHAPE, file)
    settings = description["config"]
    check_settings_of(kind, settings, f"{file}, `config`")
    described = description.get("files", {})
    whole = {name: about for name, about in described.items() if verify or name != PARTS[1]}
    manifest.check_files(folder, described, repair=REPAIR)
    manifest.check_files(folder, whole, checksums=True, repair=REPAIR)
    weights = read_weights(weights_file)
    check_weights_of(kind, settings, weights, file)
    try:
        config = {k: v for k, v in settings.items() if k != "trainable"}
        encoder = MODELS.get(kind, own).from_config({**config, "dtype": dtype})
    except Exception as error:  # of Keras, or of a user's class
        raise ValueError(f"{file} does not describe a {kind}. {described_error(error)}") from error
    assign({w.path: w for w in encoder.weights}, weights, weights_file)
    tokenizer = TOKENIZERS[kind_of_tokenizer].load(folder / "tokenizer.json")
    _check_fits(encoder, tokenizer, folder)
    return encoder, tokenizer


def _check_fits(encoder, tokenizer, folder):
    try:
        check_vocabulary(encoder, getattr(tokenizer, "text_size", len(tokenizer)))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _name_of(encoder):
    """Returns the name of a class that a folder can hold, or `None`."""
    kind = type(encoder)
    if MODELS.get(kind.__name__) is kind:
        return kind.__name__
    name = keras.saving.get_registered_name(kind)
    return name if isinstance(encoder, Encoder) and ">" in name else None


def _check_paths(encoder, config):
    """Raises unless a new encoder with the same settings has weights with the same paths."""
    try:  # as in `load`
        again = type(encoder).from_config({**config, "dtype": None})
    except TypeError as error:
        raise ValueError(
            "An encoder's class must take the arguments in its `get_config`, and `dtype`. "
            f"Received: {type(encoder).__name__}, {error}"
        ) from error
    again = {weight.path for weight in again.weights}
    new = [weight.path for weight in encoder.weights if weight.path not in again]
    if new:
        raise ValueError(
            "Weights are stored by their paths: give every layer of your encoder a `name`. "
            f"Received: {new[0]!r}, which differs in a second {type(encoder).__name__}"
        )


def _reader(folder):
    """Returns the function that loads a folder of another library; `None` for our folders."""
    if (folder / "params_shapes.json").is_file():
        return load_gpt
    if not (folder / "config.json").is_file():
        return load_bert if (folder / "bert_config.json").is_file() else None
    config = read_config(folder, "of a model")
    if "registered_name" in config:
        return load_bert if config["registered_name"] == "keras_hub>BertBackbone" else load_hub
    readers = {"bert": load_bert, "gpt2": load_gpt, "openai-gpt": load_gpt}
    kind = model_type(config)
    if kind is not None and "keras_plm" not in config and str(kind) not in readers:
        raise ValueError(
            f"{folder / 'config.json'}: `model_type` must be {', '.join(readers)}; KerasHub reads "
            f"other architectures, from a preset or a handle. Received: {kind!r:.80}"
        )
    return readers.get(str(kind))


def average_weights(model: keras.Model, paths: Sequence[str | os.PathLike]) -> None:
    """Sets the weights of a model to the mean over several checkpoints.

    The mean of the last checkpoints of a run is often better than the last one.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 6.1: the last 5 (base) or 20 (big).

    Args:
        model: The built model.
        paths: Files of `model.save_weights` or `keras.callbacks.ModelCheckpoint`.

    Raises:
        ValueError: If there is no path, or a file is missing, damaged, not finite or of another
            model. The model then keeps its original weights.

    >>> import keras
    >>> import numpy as np
    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{number}.weights.h5" for number in (1, 3)]
    ...     for path, number in zip(paths, (1.0, 3.0)):
    ...         model.set_weights([np.array([[number]])])
    ...         model.save_weights(path)
    ...     average_weights(model, paths)
    >>> model.get_weights()[0].tolist()
    [[2.0]]
    """
    paths = [Path(path) for path in paths]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(
            f"An average needs at least one file of weights. Received: "
            f"{f'no file {missing[0]}' if missing else 'no paths'}"
        )
    for path in paths:
        check_model_file(path)
    before = model.get_weights()
    mean = [np.zeros(weight.shape, "float64") for weight in before]
    done = False
    try:
        for path in paths:
            _load_weights(model, path)
            for total, weight in zip(mean, model.get_weights(), strict=True):
                total += weight / len(paths)
        done = True
    finally:
        if not done:
            model.set_weights(before)
    model.set_weights([m.astype(w.dtype) for m, w in zip(mean, before, strict=True)])


def _load_weights(model, path):
    """Calls `model.load_weights`, with errors that name the file."""
    try:
        model.load_weights(path)
    except Exception as error:  # of Keras, HDF5 or ZIP: many types
        raise ValueError(
            f"{path} does not hold the weights of this model. {described_error(error)}"
        ) from error
    for weight in model.weights:
        as_weight(keras.ops.convert_to_numpy(weight), weight.path, path)


def load_tokenizer(path: str | os.PathLike) -> SubwordTokenizer:
    """Loads the tokenizer of a folder or of a released model.

    Args:
        path: A folder, or the name of a released model as in `load`, with `tokenizer.json`,
            `vocab.txt`, or `vocab.json` and `merges.txt`; or with OpenAI's
            `encoder_bpe_40000.json` and `vocab_40000.bpe`; or KerasHub's preset of a BERT.

    Returns:
        The tokenizer.

    Raises:
        ValueError: If the folder has none of these files, or a file is malformed.

    >>> import tempfile
    >>> from keras_plm.tokenizers import Words
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Words(["[PAD]", "[UNK]", "[EOS]", "a"]).save(f"{folder}/tokenizer.json")
    ...     load_tokenizer(folder).tokenize("a b")
    ['a', '[UNK]']
    """
    path = find_folder(path)
    return read_whole(path, FILES, lambda: _load_tokenizer(path))


def _load_tokenizer(path):
    originals = [path / name for name in ("encoder_bpe_40000.json", "vocab_40000.bpe")]
    if all(file.is_file() for file in originals):
        return BytePair.load(*originals)
    if (path / "assets" / "tokenizer").is_dir():
        return load_preset_tokenizer(path)
    file = path / "tokenizer.json"
    if not os.path.lexists(file):
        return read_tokenizer(path)
    whole = read_json(file, {"model": dict})
    own = _own_kind(whole["model"])
    return read_tokenizer(path, whole) if own is None else own.load(file)


def _own_kind(model):
    """Returns our class of tokenizers for a file in our own format, otherwise `None`."""
    kinds = {"WordLevel": Words, "Characters": Characters, "HubTokenizer": HubTokenizer}
    if "unknown" in model:
        kinds["BPE"] = BytePair
    kind = model.get("type")
    return kinds.get(kind) if isinstance(kind, str) else None
