"""Conversion of released BERTs, with and without heads, to our models and back."""

import dataclasses
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from keras_plm.checkpoints.bert_formats import ACTIVATIONS, SIZES, read_released
from keras_plm.checkpoints.download import find_folder
from keras_plm.checkpoints.hugging_face import check_own, mark
from keras_plm.checkpoints.tokenizer import tokenizer_settings
from keras_plm.files.arguments import check_one_of
from keras_plm.files.writing import read_whole, replacing_files, write_text
from keras_plm.heads import Classifier, SpanFinder, Tagger
from keras_plm.heads.span_finder import LABELS as ENDS
from keras_plm.heads.span_finder import NO_ANSWER
from keras_plm.models import BERT
from keras_plm.pretraining import MaskedLM
from keras_plm.tokenizers import WordPiece
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import check_vocabulary
from keras_plm.transfer.lora import ordinary


@dataclasses.dataclass(frozen=True)
class HeadFiles:
    """A head in the format of released files.

    Attributes:
        architecture: Name of its class in `transformers`.
        names: Dict from our weights to Hugging Face's.
        make: `(encoder, **options) -> model`, with `labels`, `tokenizer` and `dropout` for heads of
            a task.
        pooled: Whether it reads the pooled output.
        labels: Its fixed labels, if any.
        per_label: Hugging Face's weight with a row per label, for heads with labels of their own.
    """

    architecture: str
    names: dict
    make: Callable
    pooled: bool = True
    labels: tuple | None = None
    per_label: str | None = None


MASKED_LM = {
    "masked_lm/dense/kernel": "cls.predictions.transform.dense.weight",
    "masked_lm/dense/bias": "cls.predictions.transform.dense.bias",
    "masked_lm/norm/gamma": "cls.predictions.transform.LayerNorm.weight",
    "masked_lm/norm/beta": "cls.predictions.transform.LayerNorm.bias",
    "masked_lm/bias": "cls.predictions.bias",
}
NEXT_SENTENCE = {"kernel": "cls.seq_relationship.weight", "bias": "cls.seq_relationship.bias"}
LABELS = {"logits/kernel": "classifier.weight", "logits/bias": "classifier.bias"}
SPAN = {"logits/kernel": "qa_outputs.weight", "logits/bias": "qa_outputs.bias"}


def _classifier(encoder, **options):
    return Classifier(encoder, pool="pooled", **options)


HEADS = {
    "pretraining": HeadFiles(
        "BertForPreTraining",
        MASKED_LM | {f"next_sentence/{ours}": theirs for ours, theirs in NEXT_SENTENCE.items()},
        MaskedLM,
    ),
    "masked_lm": HeadFiles(
        "BertForMaskedLM",
        MASKED_LM,
        lambda encoder: MaskedLM(encoder, next_sentence=False),
        pooled=False,
    ),
    "next_sentence": HeadFiles(
        "BertForNextSentencePrediction",
        {f"logits/{ours}": theirs for ours, theirs in NEXT_SENTENCE.items()},
        _classifier,
        labels=("next", "random"),  # 0 = the second text follows
    ),
    "classifier": HeadFiles(
        "BertForSequenceClassification", LABELS, _classifier, per_label="classifier.weight"
    ),
    "tagger": HeadFiles(
        "BertForTokenClassification", LABELS, Tagger, pooled=False, per_label="classifier.weight"
    ),
    "span": HeadFiles(
        "BertForQuestionAnswering", SPAN, SpanFinder, pooled=False, labels=tuple(ENDS)
    ),
    "span_or_none": HeadFiles(
        "BertForQuestionAnswering", SPAN, SpanFinder, pooled=False, labels=(*ENDS, NO_ANSWER)
    ),
}
# Arrays without information: numbers from 0, and copies of tied weights.
IGNORED = (
    "embeddings.position_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
)


def load_bert(
    path: str | os.PathLike,
    head: str | None = None,
    tokenizer: SubwordTokenizer | None = None,
    activation: str | None = None,
    dtype: str | keras.DTypePolicy | None = None,
) -> keras.Model:
    """Loads a BERT of Hugging Face, Google or KerasHub, released or saved by their libraries.

    A folder must hold one of:

    - Hugging Face's `config.json` and `model.safetensors`, or `pytorch_model.bin`, or shards of
      either with their index. A `.bin` needs torch and must contain only tensors; code in it is
      never run.
    - Google's `bert_config.json` and `bert_model.ckpt.index` with its data, which needs tensorflow.
    - KerasHub's preset of a `BertBackbone`: `config.json` and `model.weights.h5`, without heads.

    Weights of other heads and of optimizers are skipped. A warning lists unknown weights. Unknown
    weights of the encoder are an error.

    Reference: google-research/bert; Turc et al. 2019, arXiv 1908.08962, for the small ones.

    Args:
        path: The folder; or a name, such as `"bert_base_uncased"` or `"organisation/model"`.
            `huggingface_hub` finds the name in its cache or downloads the files.
        head: `None` for the encoder; `"pretraining"` for a `MaskedLM` with both heads,
            `"masked_lm"` for one without next sentences; `"next_sentence"` for a `Classifier` of
            "next" and "random"; `"classifier"` or `"tagger"` for a `Classifier` or `Tagger` with
            the labels of the configuration's `id2label`; `"span"` for a `SpanFinder` of SQuAD 1.1,
            `"span_or_none"` for one of SQuAD 2.0, where a question may have no answer.
        tokenizer: Tokenizer of the head.
        activation: Activation; by default that of the configuration. Google's "gelu" is the exact
            `"gelu_erf"`, as in `transformers`; models of Google's code since February 2019 use
            `"gelu_tanh"`.
        dtype: Keras policy of the encoder, such as `"mixed_bfloat16"`; Keras' default when omitted.

    Returns:
        A `BERT`, or the model of the head. Its dropout is the configuration's
        `hidden_dropout_prob`. A missing pooler has random weights, unless the head needs it.

    Raises:
        ImportError: If torch, tensorflow or huggingface_hub is needed and not installed.
        ValueError: If a file is missing, `BERT` lacks a setting, or the weights do not fit the
            configuration.

    >>> import tempfile
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> encoder = BERT(len(tokenizer), 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_bert(folder, encoder, tokenizer)
    ...     loaded = load_bert(folder)
    >>> loaded.num_layers, loaded.hidden_dim
    (1, 8)
    """
    check_one_of(head, "head", (None, *HEADS))
    folder = find_folder(path)
    return read_whole(folder, OURS, lambda: _load(folder, head, tokenizer, activation, dtype))


def _load(folder, head, tokenizer, activation, dtype):
    released = read_released(folder)
    settings = released.settings
    arguments = {**released.arguments, **({"activation": activation} if activation else {})}
    try:
        encoder = BERT(**arguments, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{released.config}: {error}") from error
    names, model = _names(encoder), encoder
    if head is not None:
        kind = HEADS[head]
        names |= {ours: [theirs] for ours, theirs in kind.names.items()}
        _check_is_there(released, kind, head)
        options = {}
        if kind.labels or kind.per_label:
            options["labels"] = kind.labels or _labels(released, kind.per_label)
            options["tokenizer"] = tokenizer
            dropout = settings.get("classifier_dropout")
            options["dropout"] = arguments["dropout"] if dropout is None else dropout
        try:
            model = kind.make(encoder, **options)
        except ValueError as error:
            raise ValueError(f"{released.config}: {error}") from error
        if "masked_lm/bias" in kind.names:
            _check_tied(released)
    _check_unknown(released, encoder)
    variables = {w.path: w for w in model.weights if w.path in names}
    weights = {}
    pooler = [released.name(n) for ours in variables for n in names[ours] if ours[:7] == "pooler/"]
    pooled = [name for name in pooler if name in released.arrays]
    if pooled and len(pooled) < len(pooler):
        raise ValueError(
            f"{released.file} must hold the whole pooler ({', '.join(pooler)}) or no part of it. "
            f"Received: only {', '.join(pooled)}"
        )
    for ours, variable in variables.items():
        if ours.startswith("pooler/") and not pooled and not (head and HEADS[head].pooled):
            continue  # many checkpoints have no pooler
        weights[ours] = _to_ours(released, names[ours], tuple(variable.shape))
    for ours, array in weights.items():
        variables[ours].assign(array)
    return model


def _check_is_there(released, kind, head):
    theirs = [released.name(name) for name in kind.names.values()]
    missing = [name for name in theirs if name not in released.arrays]
    if missing:
        raise ValueError(
            f"{released.file} does not hold the weights of the head {head!r}; `head=None` "
            f"loads only the encoder. Received: no {missing[0]!r}"
        )


def _check_tied(released):
    """Raises unless the scores of masked tokens come from the table of token embeddings."""
    table = released.arrays.get(released.name("embeddings.word_embeddings.weight"))
    own = released.arrays.get("cls.predictions.decoder.weight", table)
    bias = released.arrays.get("cls.predictions.bias")
    twin = released.arrays.get("cls.predictions.decoder.bias", bias)
    tied = released.settings.get("tie_word_embeddings", True)
    if not tied or not np.array_equal(own, table) or not np.array_equal(twin, bias):
        raise ValueError(
            f"{released.file}: `MaskedLM` ties its output to the embeddings; the weights must be "
            f"tied. Received: tie_word_embeddings={tied}, two tables or biases"
        )


def _labels(released, name):
    """Returns the label names of the configuration, or numbered ones without `id2label`."""
    count = len(released.arrays[released.name(name)])
    labels = released.settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    problem = released.settings.get("problem_type")
    if problem not in (None, "single_label_classification") or count < 2:
        raise ValueError(
            f"{released.config}: a head must choose one of two labels or more. "
            f"Received: {count} outputs, problem_type={problem!r}"
        )
    if sorted(labels) != sorted(map(str, range(count))):
        raise ValueError(
            f"{released.config}: `id2label` must number the {count} outputs of "
            f"{released.file.name} from 0. Received: {sorted(labels)}"
        )
    return [labels[str(i)] for i in range(count)]


def _check_unknown(released, encoder):
    """Raises on weights of another kind of encoder; warns of other unknown weights."""
    known = [name for theirs in _names(encoder).values() for name in theirs]
    known += [name for kind in HEADS.values() for name in kind.names.values()]
    known = {*map(released.name, known), *IGNORED}
    unknown = sorted(set(released.arrays) - known)
    inside = [n for n in unknown if n.startswith(("embeddings.", "encoder.", "pooler.", "bert/"))]
    inside += [n for n in unknown if n.startswith("layers/")]
    if inside:
        raise ValueError(
            f"{released.file} must hold only weights of the BERT of {released.config.name}. "
            f"Received: {', '.join(inside[:3])}{' ...' if inside[3:] else ''}"
        )
    if unknown:
        warnings.warn(
            f"{released.file}: these weights are unknown and are not read: {', '.join(unknown)}",
            stacklevel=5,
        )


def _to_ours(released, names, shape):
    """Builds the array of one of our weights from one or three of theirs."""
    arrays = []
    for name in names:
        theirs = released.name(name)
        if theirs not in released.arrays:
            raise ValueError(
                f"{released.file} does not hold the weights of this BERT. Received: no {theirs!r}"
            )
        array = released.arrays[theirs]
        is_kernel = not name.endswith(("_embeddings.weight", "LayerNorm.weight", "bias"))
        turned = is_kernel and released.is_transposed(theirs)
        wanted = (*shape[:-1], shape[-1] // len(names))
        if array.shape != (wanted[::-1] if turned else wanted):
            raise ValueError(
                f"{released.file} does not fit {released.config.name}. Received: {theirs!r} of "
                f"shape {array.shape} instead of {wanted[::-1] if turned else wanted}"
            )
        arrays.append(array.T if turned else array)
    return np.concatenate(arrays, axis=-1) if arrays[1:] else arrays[0]


def _names(encoder):
    """Returns a dict from our weights to Hugging Face's: one, or the three that we concatenate."""
    tables = {"token": "word", "position": "position", "segment": "token_type"}
    names = {
        f"{ours}_embedding/embeddings": [f"embeddings.{theirs}_embeddings.weight"]
        for ours, theirs in tables.items()
    }
    layers = {"embedding_norm": ["embeddings.LayerNorm"], "pooler": ["pooler.dense"]}
    for i in range(encoder.num_layers):
        ours, theirs = f"transformer/block_{i}", f"encoder.layer.{i}"
        layers |= {
            f"{ours}/attention/query_key_value": [
                f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")
            ],
            f"{ours}/attention/output": [f"{theirs}.attention.output.dense"],
            f"{ours}/attention_norm": [f"{theirs}.attention.output.LayerNorm"],
            f"{ours}/feed_forward/intermediate": [f"{theirs}.intermediate.dense"],
            f"{ours}/feed_forward/output": [f"{theirs}.output.dense"],
            f"{ours}/feed_forward_norm": [f"{theirs}.output.LayerNorm"],
        }
    for ours, theirs in layers.items():
        kinds = ("gamma", "beta") if ours.endswith("norm") else ("kernel", "bias")
        for kind, name in zip(kinds, ("weight", "bias"), strict=True):
            names[f"{ours}/{kind}"] = [f"{layer}.{name}" for layer in theirs]
    return names


def save_bert(
    folder: str | os.PathLike, model: keras.Model, tokenizer: SubwordTokenizer | None = None
) -> None:
    """Writes a BERT as a folder for `transformers`.

    It replaces all files together, atomically.

    Args:
        folder: The folder; an earlier save is replaced. Without `tokenizer` its tokenizer stays.
        model: A `BERT`; or a `MaskedLM`, a `Classifier` of the pooled output, a `Tagger` or a
            `SpanFinder` over one, without reader, chosen layers or word vectors. The folder also
            holds the labels.
        tokenizer: The model's `WordPiece`, written as `vocab.txt`; by default that of the head.

    Raises:
        ValueError: If `transformers` has no such model, the tokenizer does not fit, or `folder`
            contains other files.

    >>> import tempfile
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> encoder = BERT(len(tokenizer), 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_bert(folder, encoder, tokenizer)
    ...     load_bert(folder).vocabulary_size
    7
    """
    from safetensors.numpy import save_file

    kind = _kind(model)
    model = ordinary(model)
    encoder = model if isinstance(model, BERT) else model.encoder
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    files = {}
    if tokenizer is not None:
        files = _tokenizer_files(tokenizer, encoder)
        check_vocabulary(encoder, len(tokenizer))
    files["config.json"] = json.dumps(_settings(encoder, model, kind), indent=1) + "\n"
    names = _names(encoder)
    prefix = "bert." if kind else ""
    names = {ours: [f"{prefix}{name}" for name in theirs] for ours, theirs in names.items()}
    names |= {ours: [theirs] for ours, theirs in kind.names.items()} if kind else {}
    arrays = {}
    for weight in model.weights:
        theirs, array = names[weight.path], keras.ops.convert_to_numpy(weight).astype("float32")
        for name, part in zip(theirs, np.split(array, len(theirs), axis=-1), strict=True):
            is_kernel = weight.path.endswith("kernel")
            arrays[name] = np.ascontiguousarray(part.T if is_kernel else part)
    folder = Path(folder)
    check_own(folder, [*files, "model.safetensors"], "save_bert")
    with replacing_files(folder, ("model.safetensors", *files)) as temporary:
        for name, text in files.items():
            write_text(temporary / name, text)
        save_file(arrays, temporary / "model.safetensors", metadata={"format": "pt"})


def _kind(model):
    """Returns the row of `HEADS` for a model, or `None` for an encoder."""
    encoder = getattr(model, "encoder", model)
    heads = {Classifier: "classifier", Tagger: "tagger", SpanFinder: "span"}
    if type(encoder) is not BERT or type(model) not in (BERT, MaskedLM, *heads):
        over = "" if encoder is model else f" over {type(encoder).__name__}"
        raise ValueError(
            "`save_bert` writes a BERT, or a MaskedLM, Classifier, Tagger or SpanFinder over one. "
            f"Received: {type(model).__name__}{over}"
        )
    for name in ("pre_norm", "causal"):
        if getattr(encoder, name):
            raise ValueError(f"`transformers` has no such BERT. Received: {name}=True")
    if isinstance(model, BERT):
        return None
    if isinstance(model, MaskedLM):
        return HEADS["pretraining" if model.next_sentence else "masked_lm"]
    plain = {"layer_choice": None, "reader": None, "words": None, "pairs": False}
    if isinstance(model, Classifier):
        plain["pool"] = "pooled"
    foreign = [name for name, value in plain.items() if getattr(model, name) != value]
    if foreign:
        raise ValueError(
            "A head of `transformers` reads only the last layer, a classifier the pooled output; "
            "save other heads with `model.save`. "
            f"Received: {foreign[0]}={getattr(model, foreign[0])!r}"
        )
    return HEADS[heads[type(model)]]


OURS = ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json")


def _settings(encoder, model, kind):
    """Returns the contents of `config.json`."""
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    settings = {
        "model_type": "bert",
        "architectures": [kind.architecture if kind else "BertModel"],
        **{theirs: getattr(encoder, ours) for ours, theirs in SIZES.items()},
        "hidden_act": activations[encoder.activation],
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.dropout,
        "initializer_range": encoder.initializer_range,
        "layer_norm_eps": encoder.norm_epsilon,
        **mark("save_bert"),
    }
    if kind and kind.per_label:
        labels = [str(label) for label in model.labels]
        settings["id2label"] = {str(i): label for i, label in enumerate(labels)}
        settings["label2id"] = {label: i for i, label in enumerate(labels)}
        settings["classifier_dropout"] = model.dropout
    return settings


def _tokenizer_files(tokenizer, encoder):
    """Returns `vocab.txt` and `tokenizer_config.json` as text."""
    if type(tokenizer) is not WordPiece or any("\n" in p for p in tokenizer.vocabulary):
        raise ValueError(
            "The tokenizer of a BERT must be a `WordPiece` with tokens without line breaks. "
            f"Received: {type(tokenizer).__name__}"
        )
    settings = {
        **tokenizer_settings(tokenizer),
        "model_max_length": encoder.max_sequence_length,
    }
    return {
        "vocab.txt": "".join(f"{token}\n" for token in tokenizer.get_config()["vocabulary"]),
        "tokenizer_config.json": json.dumps(settings, indent=1) + "\n",
    }
