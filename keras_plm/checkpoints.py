"""Released files and our own folders <-> models."""

import json
import os
import shutil
from pathlib import Path

import keras
import numpy as np

import keras_plm
from keras_plm.batching import check_vocabulary
from keras_plm.elmo_files import load_elmo, save_elmo
from keras_plm.gpt_files import load_gpt, save_gpt
from keras_plm.models import (
    BERT,
    GPT,
    NNLM,
    ELMo,
    RecurrentLM,
    Seq2Seq,
    Transformer,
    WordVectors,
)
from keras_plm.pretraining import MaskedLM
from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from keras_plm.weight_files import assign, read_config, read_weights

__all__ = [
    "MODELS",
    "TOKENIZERS",
    "average_weights",
    "load",
    "load_bert",
    "load_elmo",
    "load_gpt",
    "load_tokenizer",
    "save",
    "save_elmo",
    "save_gpt",
]

MODELS = {
    kind.__name__: kind
    for kind in (BERT, ELMo, GPT, NNLM, RecurrentLM, Seq2Seq, Transformer, WordVectors)
}
TOKENIZERS = {kind.__name__: kind for kind in (BytePair, Characters, WordPiece, Words)}


def save(folder, encoder, tokenizer, dtype="float32"):
    """Writes an encoder and its tokenizer as one folder that every backend reads.

    The folder holds `config.json`, `model.safetensors` and `tokenizer.json`, each written under a
    temporary name and then put in place.

    Args:
        folder: Where to; an earlier save there is replaced.
        encoder: The encoder.
        tokenizer: Its tokenizer.
        dtype: Type of the stored weights, `"float32"` or `"float16"`.

    Raises:
        ValueError: If `folder` holds a model of others, encoder and tokenizer do not fit, or `load`
            could not read them.
    """
    from safetensors.numpy import save_file

    for what, known in ((encoder, MODELS), (tokenizer, TOKENIZERS)):
        if type(what).__name__ not in known:
            raise ValueError(
                f"A folder can hold {', '.join(known)}. Keep another model with `model.save`, and "
                "word vectors as `WordVectors.from_vectors(words, model.vectors)`. "
                f"Received: {type(what).__name__}"
            )
    folder = Path(folder)
    config_path = folder / "config.json"
    if config_path.is_file() and "keras_plm" not in config_path.read_text():
        raise ValueError(
            f"{folder} holds a model that keras_plm.save did not write: name another folder. "
            f"Received: {str(folder)!r}"
        )
    check_vocabulary(encoder, getattr(tokenizer, "text_size", len(tokenizer)))
    temporary = folder / "save.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    config = encoder.get_config()
    for name in ("dtype", "trainable"):  # the reader's choice, not the writer's
        config.pop(name, None)
    description = {
        "model": type(encoder).__name__,
        "tokenizer": type(tokenizer).__name__,
        "keras_plm": keras_plm.__version__,
        "config": config,
    }
    (temporary / "config.json").write_text(json.dumps(description, indent=1) + "\n")
    weights = {w.path: keras.ops.convert_to_numpy(w).astype(dtype) for w in encoder.weights}
    save_file(weights, temporary / "model.safetensors")
    tokenizer.save(temporary / "tokenizer.json")
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        os.replace(temporary / name, folder / name)
    temporary.rmdir()


def load(folder, dtype=None):
    """Reads what `save` wrote.

    Args:
        folder: The folder.
        dtype: Keras policy of the encoder, as `"mixed_bfloat16"`; by default Keras' own.

    Returns:
        `(encoder, tokenizer)`.

    Raises:
        ValueError: If a file is missing, unreadable, or does not fit the others.
    """
    folder = Path(folder)
    description = read_config(folder, "written by keras_plm.save")
    kind, kind_of_tokenizer = description.get("model"), description.get("tokenizer")
    if kind not in MODELS or kind_of_tokenizer not in TOKENIZERS:
        raise ValueError(
            f"{folder / 'config.json'} was not written by keras_plm.save. "
            f"Received: model={kind!r}, tokenizer={kind_of_tokenizer!r}"
        )
    try:
        config = {k: v for k, v in description["config"].items() if k != "trainable"}
        encoder = MODELS[kind](**config, dtype=dtype)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{folder / 'config.json'} does not describe a {kind}. Received: {error}"
        ) from error
    weights = read_weights(folder / "model.safetensors")
    assign({w.path: w for w in encoder.weights}, weights, folder / "model.safetensors")
    tokenizer = TOKENIZERS[kind_of_tokenizer].load(folder / "tokenizer.json")
    check_vocabulary(encoder, getattr(tokenizer, "text_size", len(tokenizer)))
    return encoder, tokenizer


def read_encoder(folder):
    """`(encoder, tokenizer)` of a folder of `save`, or of a released GPT or BERT.

    Raises:
        ValueError: As `load`, `load_bert` and `load_gpt`.
    """
    folder = Path(folder)
    config = folder / "config.json"
    if (folder / "params_shapes.json").is_file():
        return load_gpt(folder), load_tokenizer(folder)
    if config.is_file() and "keras_plm" not in (text := config.read_text()):
        try:
            kind = json.loads(text).get("model_type")
        except ValueError:
            kind = None  # which `load` explains
        readers = {"bert": load_bert, "gpt2": load_gpt, "openai-gpt": load_gpt}
        if kind in readers:
            return readers[kind](folder), load_tokenizer(folder)
    return load(folder)


def average_weights(model, paths):
    """Gives a model the mean of the weights in several files of it.

    The last few checkpoints of one run average to a better model than the last alone.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 6.1: the last 5 (base) or 20 (big).

    Args:
        model: The model, with its weights made.
        paths: Files that `model.save_weights` or `keras.callbacks.ModelCheckpoint` wrote.

    Raises:
        ValueError: If there is no path, or a file is missing or of another model; the model then
            keeps its weights.
    """
    paths = [Path(path) for path in paths]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(
            f"An average is over at least one file of weights. Received: "
            f"{f'no file {missing[0]}' if missing else 'no paths'}"
        )
    before = model.get_weights()
    mean = [np.zeros(weight.shape, "float64") for weight in before]
    try:
        for path in paths:
            model.load_weights(path)
            for total, weight in zip(mean, model.get_weights(), strict=True):
                total += weight / len(paths)
    except (ValueError, KeyError, OSError) as error:
        model.set_weights(before)
        raise ValueError(
            f"{path} does not hold the weights of this model. Received: {error}"
        ) from error
    model.set_weights([m.astype(w.dtype) for m, w in zip(mean, before, strict=True)])


def load_tokenizer(path):
    """The tokenizer of a folder that we or Hugging Face wrote.

    Args:
        path: A folder with `tokenizer.json`, `vocab.txt`, or `vocab.json` and `merges.txt`; or with
            OpenAI's `encoder_bpe_40000.json` and `vocab_40000.bpe`.

    Raises:
        ValueError: If none of these is there.
    """
    path = Path(path)
    for names in (("vocab.json", "merges.txt"), ("encoder_bpe_40000.json", "vocab_40000.bpe")):
        if all((path / name).is_file() for name in names):
            return BytePair.load(*(path / name for name in names))
    lowercase = None
    if (path / "tokenizer_config.json").is_file():
        settings = json.loads((path / "tokenizer_config.json").read_text())
        lowercase = settings.get("do_lower_case")
    for name in ("vocab.txt", "tokenizer.json"):
        if (path / name).is_file():
            if name == "vocab.txt":
                return WordPiece.load(path / name, lowercase)
            kinds = {"BPE": BytePair, "WordLevel": Words, "Characters": Characters}
            return kinds.get(_model_type(path / name), WordPiece).load(path / name)
    raise ValueError(
        "No tokenizer.json, vocab.txt, or vocab.json with merges.txt in this folder. "
        f"Received: {str(path)!r}"
    )


def _model_type(path):
    """What a `tokenizer.json` says it is; the tokenizers say what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["model"]["type"]
    except (ValueError, KeyError, TypeError):
        return None


def load_bert(path, head=None):
    """A BERT that Hugging Face's `transformers` saved.

    Args:
        path: A folder with `config.json` and `model.safetensors`.
        head: `None` for the encoder, `"pretraining"` for a `MaskedLM` with both heads.

    Returns:
        A `BERT`, or a `MaskedLM` around it. Its one dropout is the folder's `hidden_dropout_prob`.

    Raises:
        ValueError: If a file is missing, a setting is one that `BERT` has not, or the weights do
            not fit the configuration.
    """
    path = Path(path)
    config = read_config(path, "of a Hugging Face BERT")
    activations = {"gelu": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    activations["relu"] = "relu"
    positions = config.get("position_embedding_type", "absolute")
    if config.get("model_type") != "bert" or positions != "absolute":
        raise ValueError(
            f"{path / 'config.json'} is not that of a BERT with absolute positions. "
            f"Received: model_type={config.get('model_type')!r}, "
            f"position_embedding_type={positions!r}"
        )
    foreign = [name for name in ("is_decoder", "add_cross_attention") if config.get(name)]
    if head == "pretraining" and not config.get("tie_word_embeddings", True):
        foreign.append("tie_word_embeddings")
    if foreign:
        raise ValueError(
            f"{path / 'config.json'}: `BERT` looks both ways, at one text, and ties its output to "
            f"its embeddings. Received: {foreign[0]}={config[foreign[0]]}"
        )
    if config.get("hidden_act") not in activations:
        raise ValueError(
            f"{path / 'config.json'}: `hidden_act` must be one of {sorted(activations)}. "
            f"Received: {config.get('hidden_act')!r}"
        )
    sizes = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size")
    sizes += ("intermediate_size", "max_position_embeddings", "type_vocab_size")
    missing = [name for name in sizes if name not in config]
    if missing:
        raise ValueError(f"{path / 'config.json'} is not whole. Received: no {missing[0]!r}")
    encoder = BERT(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
        num_segments=config["type_vocab_size"],
        dropout=config.get("hidden_dropout_prob", 0.1),
        activation=activations[config["hidden_act"]],
        initializer_range=config.get("initializer_range", 0.02),
        norm_epsilon=config.get("layer_norm_eps", 1e-12),
    )
    file = path / "model.safetensors"
    released = {name.removeprefix("bert."): array for name, array in read_weights(file).items()}
    model, names = encoder, _bert_names(encoder)
    if head == "pretraining":
        model = MaskedLM(encoder, next_sentence=True)
        names |= _pretraining_names()
    elif head is not None:
        raise ValueError(f"`head` must be None or 'pretraining'. Received: {head!r}")
    weights = {}
    for ours, (theirs, convert) in names.items():
        old = [n.replace("LayerNorm.weight", "LayerNorm.gamma") for n in theirs]
        old = [n.replace("LayerNorm.bias", "LayerNorm.beta") for n in old]
        found = theirs if theirs[0] in released else old
        missing = [name for name in found if name not in released]
        if missing:
            if ours.startswith("pooler") and head is None:
                continue  # many checkpoints come without one
            raise ValueError(
                f"{file} does not hold the weights of this BERT. Received: no {missing[0]!r}"
            )
        weights[ours] = convert([released[name] for name in found])
    variables = {w.path: w for w in model.weights if w.path in weights}
    assign(variables, weights, file)
    return model


def _bert_names(encoder):
    """Our weight -> (their weights, how they become ours)."""

    def dense(ours, theirs):
        kernel = ([f"{theirs}.weight"], lambda arrays: arrays[0].T)
        return {f"{ours}/kernel": kernel, f"{ours}/bias": ([f"{theirs}.bias"], _first)}

    def norm(ours, theirs):
        return {
            f"{ours}/gamma": ([f"{theirs}.weight"], _first),
            f"{ours}/beta": ([f"{theirs}.bias"], _first),
        }

    names = {
        f"{ours}_embedding/embeddings": ([f"embeddings.{theirs}_embeddings.weight"], _first)
        for ours, theirs in (
            ("token", "word"),
            ("position", "position"),
            ("segment", "token_type"),
        )
    }
    names |= norm("embedding_norm", "embeddings.LayerNorm")
    for i in range(encoder.num_layers):
        ours, theirs = f"transformer/block_{i}", f"encoder.layer.{i}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        names[f"{ours}/attention/query_key_value/kernel"] = (
            [f"{part}.weight" for part in parts],
            lambda arrays: np.concatenate(arrays, axis=0).T,
        )
        names[f"{ours}/attention/query_key_value/bias"] = (
            [f"{part}.bias" for part in parts],
            np.concatenate,
        )
        names |= dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
        names |= norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
        names |= dense(f"{ours}/feed_forward/intermediate", f"{theirs}.intermediate.dense")
        names |= dense(f"{ours}/feed_forward/output", f"{theirs}.output.dense")
        names |= norm(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm")
    return names | dense("pooler", "pooler.dense")


def _pretraining_names():
    transform = "cls.predictions.transform"
    return {
        "masked_lm/dense/kernel": ([f"{transform}.dense.weight"], lambda arrays: arrays[0].T),
        "masked_lm/dense/bias": ([f"{transform}.dense.bias"], _first),
        "masked_lm/norm/gamma": ([f"{transform}.LayerNorm.weight"], _first),
        "masked_lm/norm/beta": ([f"{transform}.LayerNorm.bias"], _first),
        "masked_lm/bias": (["cls.predictions.bias"], _first),
        "next_sentence/kernel": (["cls.seq_relationship.weight"], lambda arrays: arrays[0].T),
        "next_sentence/bias": (["cls.seq_relationship.bias"], _first),
    }


def _first(arrays):
    return arrays[0]
