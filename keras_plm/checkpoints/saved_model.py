"""Export of a fine-tuned model with its tokenizer as a SavedModel that takes raw strings."""

import os
from pathlib import Path

import keras

from keras_plm.checkpoints._word_piece_graph import WordPieceGraph
from keras_plm.files.writing import replacing_folder
from keras_plm.heads import Classifier, Regressor
from keras_plm.tokenizers import WordPiece
from keras_plm.tokenizers.word_piece import DEFAULTS


def export(
    model: keras.Model,
    folder: str | os.PathLike,
    pairs: bool = False,
    max_length: int | None = None,
) -> None:
    """Writes a TensorFlow SavedModel from strings to labels or scores.

    The SavedModel needs only TensorFlow and `tensorflow-text`, not Keras or this package. Its
    endpoint `serve` takes (N,) strings, with `pairs` two such tensors. It returns a dict: for a
    `Classifier` `labels` (N,) strings and `probabilities` (N, K), for a `Regressor` `scores` (N,).

    The graph packs texts as `WordPiece`, with two exceptions. It reads special tokens in a text,
    such as "[MASK]", as brackets and letters. Some rare letters and marks of newer Unicode versions
    have other tokens.

    Args:
        model: A fine-tuned `Classifier` or `Regressor` with a `WordPiece` tokenizer.
        folder: The folder, written atomically; an earlier export is replaced.
        pairs: If True, the endpoint takes texts and second texts.
        max_length: Largest number of tokens of a row; by default the encoder's limit.

    Raises:
        ImportError: If `tensorflow-text` is not installed.
        ValueError: If Keras runs on another backend, the model is not supported, or `folder`
            contains other files.

    >>> export(model, "exported")  # doctest: +SKIP
    >>> import tensorflow as tf, tensorflow_text  # doctest: +SKIP
    >>> served = tf.saved_model.load("exported")  # doctest: +SKIP
    >>> served.serve(tf.constant(["a fine film"]))["labels"]  # doctest: +SKIP
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel needs the TensorFlow backend: save the model with `model.save(file)`, "
            "then load and export it under KERAS_BACKEND=tensorflow. "
            f"Received: the backend {keras.backend.backend()}"
        )
    _check_exportable(model, pairs)
    max_length = _row_length(model, pairs, max_length)
    folder = _check_folder(folder)
    import tensorflow as tf

    graph = WordPieceGraph(model.tokenizer, max_length)
    predict = _predictor(model, graph)
    strings = tf.TensorSpec([None], tf.string)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", predict, [strings] * (2 if pairs else 1))
    with replacing_folder(folder) as temporary:
        archive.write_out(str(temporary), verbose=False)


def _predictor(model, graph):
    """Builds a TensorFlow function from texts and second texts to the outputs of `serve`."""
    import tensorflow as tf

    labels = tf.constant([str(label) for label in model.labels])
    names = list(model.encoder.input)

    def inputs(first, second):
        packed = graph.pack(first, second)
        return {name: packed[name] for name in names}

    def predict(texts, second=None):
        first = graph.tokenize(texts)
        second = None if second is None else graph.tokenize(second)
        x = inputs(first, second)
        if model.pairs == "both_orders":
            other = inputs(second, first)
            x = {name: tf.stack([x[name], other[name]], axis=1) for name in names}
        logits = model(x, training=False)
        if isinstance(model, Regressor):
            low, high = model.labels
            return {"scores": low + (high - low) * tf.clip_by_value(logits[:, 0], 0.0, 1.0)}
        chosen = tf.gather(labels, tf.argmax(logits, axis=-1))
        return {"labels": chosen, "probabilities": tf.nn.softmax(logits)}

    return predict


def _check_exportable(model, pairs):
    """Raises unless the graph supports a model and its tokenizer."""
    if type(model) not in (Classifier, Regressor) or type(model.tokenizer) is not WordPiece:
        raise ValueError(
            "An export needs a Classifier or Regressor with a WordPiece tokenizer. Received: "
            f"{type(model).__name__} with {type(getattr(model, 'tokenizer', None)).__name__}"
        )
    for name, value in DEFAULTS.items():
        if getattr(model.tokenizer, name) != value:
            raise ValueError(
                "The graph's tokenizer must be a WordPiece with default settings, except "
                f"`lowercase`. Received: {name}={getattr(model.tokenizer, name)!r}"
            )
    one_row = model.pairs in (False, "both_orders")
    if model.reader is not None or model.words is not None or not one_row:
        raise ValueError(
            "An export needs a head that reads rows of the encoder, without a reader, word vectors "
            f"or separate texts. Received: reader={model.reader}, words={model.words}, "
            f"pairs={model.pairs!r}"
        )
    if model.trained_on_pairs not in (None, pairs):
        read = "pairs of texts" if model.trained_on_pairs else "single texts"
        raise ValueError(
            f"This model was trained on {read}: export it with pairs={model.trained_on_pairs} "
            f"({'with' if model.trained_on_pairs else 'without'} --pairs). Received: pairs={pairs}"
        )
    if model.pairs and not pairs:
        raise ValueError(
            "This model compares two texts: export it with pairs=True (--pairs). "
            "Received: pairs=False"
        )


def _row_length(model, pairs, max_length):
    """Returns the longest row in tokens: `max_length`, or the encoder's limit."""
    limit = model.encoder.max_sequence_length
    max_length, special = max_length or limit, model.tokenizer.num_special(pairs)
    if max_length is None or max_length <= special or max_length > (limit or max_length):
        raise ValueError(
            f"`max_length` must leave room next to {special} special tokens and be at most the "
            f"encoder's {limit} positions. Received: max_length={max_length}"
        )
    return max_length


def _check_folder(folder):
    """Returns the path of a folder; raises if it holds anything but an export."""
    folder = Path(folder)
    older = (folder / "saved_model.pb").is_file()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not older):
        raise ValueError(
            "An export needs a folder of its own, new or with an earlier export. "
            f"Received: {str(folder)!r}"
        )
    return folder
