"""A fine-tuned model with its tokenizer inside the graph: a SavedModel that takes raw strings."""

from pathlib import Path

import keras

from keras_plm.files.writing import replacing_folder
from keras_plm.heads import Classifier, Regressor
from keras_plm.tokenizers import WordPiece
from keras_plm.tokenizers.word_piece import DEFAULTS

# Punctuation and ideographs, each a word: google-research/bert, tokenization.py.
ALONE = (
    r"[!-/:-@\[-`{-~\p{P}"
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)


def export(model, folder, pairs=False, max_length=None):
    """Writes a TensorFlow SavedModel that reads strings and gives labels, or scores.

    It runs where there is TensorFlow and `tensorflow-text`, without Keras and without this package:

    ```
    import tensorflow as tf, tensorflow_text
    model = tf.saved_model.load(folder)
    model.serve(tf.constant(["a fine film"]))["labels"]
    ```

    The graph cleans, splits and packs texts as `WordPiece` does, but for special tokens that are
    written in a text, as "[MASK]": they are brackets and letters to it.

    Args:
        model: A fine-tuned `Classifier` or `Regressor` of a `WordPiece` encoder.
        folder: Where to; written under a temporary name, then renamed. An earlier export there is
            replaced.
        pairs: If True, the graph takes two tensors of strings, texts and second texts.
        max_length: Longest row, special tokens included; by default what the encoder reads.

    The endpoint `serve` takes (N,) strings, with `pairs` twice, and gives a dict: of a `Classifier`
    `labels` (N,) strings and `probabilities` (N, K), of a `Regressor` `scores` (N,).

    Raises:
        ImportError: If `tensorflow-text` is not installed.
        ValueError: If Keras runs on another backend, the model is none that can be exported, or
            `folder` holds something else.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written by TensorFlow: keep the model with `model.save(file)` and "
            "export it under KERAS_BACKEND=tensorflow, which loads it. "
            f"Received: the backend {keras.backend.backend()}"
        )
    try:
        import tensorflow as tf
        import tensorflow_text as tf_text
    except ImportError as error:
        raise ImportError(
            "A tokenizer inside the graph needs the package tensorflow-text: pip install "
            "'keras-plm[tensorflow]'"
        ) from error
    if type(model) not in (Classifier, Regressor) or type(model.tokenizer) is not WordPiece:
        raise ValueError(
            "Exported are Classifier and Regressor with a WordPiece tokenizer. Received: "
            f"{type(model).__name__} with {type(getattr(model, 'tokenizer', None)).__name__}"
        )
    foreign = [name for name, value in DEFAULTS.items() if getattr(model.tokenizer, name) != value]
    if foreign:
        raise ValueError(
            "The graph's tokenizer must be a WordPiece with default settings, except `lowercase`. "
            f"Received: {foreign[0]}={getattr(model.tokenizer, foreign[0])!r}"
        )
    if model.reader is not None or model.words is not None or model.pairs not in (
        False, "both_orders",
    ):  # fmt: skip
        raise ValueError(
            "Exported are heads that read rows of the encoder, without a reader, word vectors, or "
            f"texts that are read apart. Received: reader={model.reader}, words={model.words}, "
            f"pairs={model.pairs!r}"
        )
    both_orders = model.pairs == "both_orders"
    if both_orders and not pairs:
        raise ValueError("This model compares two texts: export it with pairs=True.")
    limit = model.encoder.max_sequence_length
    max_length = max_length or limit
    special = 3 if pairs else 2
    if max_length is None or max_length <= special or (limit and max_length > limit):
        raise ValueError(
            f"`max_length` must leave room beside {special} special tokens and be at most the "
            f"encoder's {limit} positions. Received: max_length={max_length}"
        )
    folder = Path(folder)
    if folder.is_file() or (
        folder.is_dir() and any(folder.iterdir()) and not (folder / "saved_model.pb").is_file()
    ):
        raise ValueError(
            "An export needs a folder of its own, a new one or that of an older export. "
            f"Received: {str(folder)!r}"
        )

    tokenizer, tokenize = model.tokenizer, _in_graph(tf, tf_text, model.tokenizer)
    labels = tf.constant([str(label) for label in model.labels])

    def inputs(first, second):
        """A row of each text or pair: [CLS] text [SEP] (pair [SEP]), the longer one cut first."""
        before, behind = first.row_lengths(), None if second is None else second.row_lengths()
        if second is None:
            first = first[:, : max_length - special]
        else:
            before, behind = _cut_longer_first(tf, before, behind, max_length - special)
            first, second = _cut(tf, first, before), _cut(tf, second, behind)
        count = first.nrows()
        cls, sep = (
            tf.RaggedTensor.from_tensor(tf.fill([count, 1], value))
            for value in (tokenizer.cls_id, tokenizer.sep_id)
        )
        parts = [cls, first, sep] if second is None else [cls, first, sep, second, sep]
        ids = tf.concat(parts, axis=1)
        of_second = [tf.zeros_like(part) for part in parts[:3]]
        of_second += [tf.ones_like(part) for part in parts[3:]]
        found = {
            "token_ids": ids.to_tensor(tokenizer.pad_id),
            "segment_ids": tf.concat(of_second, axis=1).to_tensor(0),
            "padding_mask": tf.sequence_mask(ids.row_lengths()),
        }
        return {name: found[name] for name in model.encoder.input}

    def answer(texts, second=None):
        first = tokenize(texts)
        second = None if second is None else tokenize(second)
        if both_orders:
            rows = [inputs(first, second), inputs(second, first)]
            x = {name: tf.stack([row[name] for row in rows], axis=1) for name in rows[0]}
        else:
            x = inputs(first, second)
        logits = model(x, training=False)
        if isinstance(model, Regressor):
            low, high = model.labels
            return {"scores": low + (high - low) * tf.clip_by_value(logits[:, 0], 0.0, 1.0)}
        shares = tf.nn.softmax(logits)
        return {"labels": tf.gather(labels, tf.argmax(logits, axis=-1)), "probabilities": shares}

    of_strings = tf.TensorSpec([None], tf.string)
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", answer, [of_strings, of_strings] if pairs else [of_strings])
    with replacing_folder(folder) as temporary:
        archive.write_out(str(temporary), verbose=False)


def _in_graph(tf, tf_text, tokenizer):
    """A function from (N,) strings to a ragged tensor of ids, without special tokens.

    Cleaning is spelled out: that of `tf_text.FastBertTokenizer` also takes letters apart, as the
    ligature "fi", which BERT leaves.
    """
    pieces = tf_text.FastWordpieceTokenizer(
        tokenizer.vocabulary,
        token_out_type=tf.int32,
        unknown_token="[UNK]",
        no_pretokenization=True,
        max_bytes_per_word=400,  # of the 100 characters that `WordPiece` takes for a word
    )
    steps = [(r"[\t\n\r]", " "), (r"[\p{C}\x{FFFD}]", ""), (r"\p{Z}", " ")]

    def tokenize(texts):
        for pattern, new in steps:
            texts = tf.strings.regex_replace(texts, pattern, new)
        if tokenizer.lowercase:
            texts = tf_text.normalize_utf8(texts, "NFD")
            # Letter by letter: a capital sigma is no other at the end of a word.
            for pattern, new in ((r"\p{Mn}", ""), ("\u03a3", "\u03c3")):
                texts = tf.strings.regex_replace(texts, pattern, new)
            texts = tf.strings.lower(texts, encoding="utf-8")
        words = tf_text.regex_split(texts, f" +|{ALONE}", ALONE)  # (N, words)
        ids = pieces.tokenize(words)  # (N, words, pieces)
        long = tf.strings.length(words, unit="UTF8_CHAR") > 100
        unknown = tf.fill([tf.size(words.flat_values), 1], tokenizer.unk_id)
        flat = tf.where(long.flat_values, 1, 0)
        both = tf.stack([ids.values, tf.RaggedTensor.from_tensor(unknown)], axis=0)
        chosen = tf.gather_nd(both, tf.stack([flat, tf.range(tf.size(flat))], axis=1))
        return ids.with_values(chosen).merge_dims(1, 2)

    return tokenize


def _cut_longer_first(tf, first, second, room):
    """As `keras_plm.tokenizers.subwords.cut_longer_first`, in the graph."""
    excess = tf.maximum(first + second - room, 0)
    from_first = tf.minimum(tf.maximum(first - second, 0), excess)
    from_second = tf.minimum(tf.maximum(second - first, 0), excess)
    rest = excess - from_first - from_second
    more, less = (rest + 1) // 2, rest // 2
    longer = first > second
    from_first += tf.where(longer, less, more)
    from_second += tf.where(longer, more, less)
    return first - from_first, second - from_second


def _cut(tf, rows, lengths):
    """The first tokens of each row of a ragged tensor."""
    return tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) < lengths[:, None])
