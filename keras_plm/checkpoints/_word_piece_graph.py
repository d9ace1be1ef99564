"""`WordPiece` as a TensorFlow graph from strings to packed rows of token ids."""

# Each punctuation mark and ideograph is a word: google-research/bert, tokenization.py.
_ALONE = (
    r"[!-/:-@\[-`{-~\p{P}"
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}"
    r"\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_CLEANING = ((r"[\t\n\r]", " "), (r"[\p{C}\x{FFFD}]", ""), (r"\p{Z}", " "))


class WordPieceGraph:
    """Cleans, splits and packs strings as a `WordPiece` does, in TensorFlow operations.

    Cleaning has its own rules, because `tf_text.FastBertTokenizer` also decomposes letters such as
    the ligature "fi". BERT keeps them.

    Args:
        tokenizer: A `WordPiece` with default settings, except `lowercase`.
        max_length: Longest row in tokens.

    Raises:
        ImportError: If `tensorflow-text` is not installed.
    """

    def __init__(self, tokenizer, max_length):
        try:
            import tensorflow as tf
            import tensorflow_text as tf_text
        except ImportError as error:
            raise ImportError(
                "A tokenizer inside the graph needs the package tensorflow-text: "
                "pip install tensorflow-text"
            ) from error
        self.tokenizer, self.max_length = tokenizer, max_length
        self._tf, self._tf_text = tf, tf_text
        self._subwords = tf_text.FastWordpieceTokenizer(
            tokenizer.vocabulary,
            token_out_type=tf.int32,
            unknown_token="[UNK]",
            no_pretokenization=True,
            max_bytes_per_word=400,  # `WordPiece` reads 100 characters, up to 4 bytes each
        )

    def tokenize(self, texts):
        """Converts (N,) strings to a ragged tensor (N, T) of ids, without special tokens."""
        tf, tf_text = self._tf, self._tf_text
        words = tf_text.regex_split(self._clean(texts), f" +|{_ALONE}", _ALONE)  # (N, words)
        ids = self._subwords.tokenize(words)  # (N, words, subwords)
        long = tf.strings.length(words, unit="UTF8_CHAR") > 100
        unknown = tf.fill([tf.size(words.flat_values), 1], self.tokenizer.unk_id)
        flat = tf.where(long.flat_values, 1, 0)
        both = tf.stack([ids.values, tf.RaggedTensor.from_tensor(unknown)], axis=0)
        chosen = tf.gather_nd(both, tf.stack([flat, tf.range(tf.size(flat))], axis=1))
        return ids.with_values(chosen).merge_dims(1, 2)

    def _clean(self, texts):
        tf = self._tf
        for pattern, new in _CLEANING:
            texts = tf.strings.regex_replace(texts, pattern, new)
        if not self.tokenizer.lowercase:
            return texts
        texts = self._tf_text.normalize_utf8(texts, "NFD")
        # Letter by letter: a capital sigma has one lower case, also at the end of a word.
        for pattern, new in ((r"\p{Mn}", ""), ("\u03a3", "\u03c3")):
            texts = tf.strings.regex_replace(texts, pattern, new)
        return tf.strings.lower(texts, encoding="utf-8")

    def pack(self, first, second=None):
        """Packs [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]; cuts the longer text first.

        Args:
            first, second: Ragged tensors of ids from `tokenize`.

        Returns:
            A dict of `token_ids`, `segment_ids` and `padding_mask`, each (N, T).
        """
        tf, tokenizer = self._tf, self.tokenizer
        room = self.max_length - tokenizer.num_special(second is not None)
        if second is None:
            first = first[:, :room]
        else:
            first, second = self._cut_longer_first(first, second, room)
        cls, sep = (
            tf.RaggedTensor.from_tensor(tf.fill([first.nrows(), 1], value))
            for value in (tokenizer.cls_id, tokenizer.sep_id)
        )
        parts = [cls, first, sep] if second is None else [cls, first, sep, second, sep]
        ids = tf.concat(parts, axis=1)
        segments = [tf.zeros_like(part) for part in parts[:3]]
        segments += [tf.ones_like(part) for part in parts[3:]]
        return {
            "token_ids": ids.to_tensor(tokenizer.pad_id),
            "segment_ids": tf.concat(segments, axis=1).to_tensor(0),
            "padding_mask": tf.sequence_mask(ids.row_lengths()),
        }

    def _cut_longer_first(self, first, second, room):
        """Cuts two texts as `keras_plm.tokenizers.encoded.cut_longer_first`."""
        tf = self._tf
        lengths = first.row_lengths(), second.row_lengths()
        excess = tf.maximum(lengths[0] + lengths[1] - room, 0)
        from_first = tf.minimum(tf.maximum(lengths[0] - lengths[1], 0), excess)
        from_second = tf.minimum(tf.maximum(lengths[1] - lengths[0], 0), excess)
        rest = excess - from_first - from_second
        more, less = (rest + 1) // 2, rest // 2
        longer = lengths[0] > lengths[1]
        from_first += tf.where(longer, less, more)
        from_second += tf.where(longer, more, less)
        return self._cut(first, lengths[0] - from_first), self._cut(
            second, lengths[1] - from_second
        )

    def _cut(self, rows, lengths):
        """Returns the first tokens of each row."""
        tf = self._tf
        return tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) < lengths[:, None])
