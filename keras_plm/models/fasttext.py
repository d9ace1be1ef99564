"""fastText: word2vec whose words are made of their character n-grams.

Shapes: as in `word2vec.py`; M parts of the different words of a batch.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.data.formats.fasttext import SubwordVectors
from keras_plm.files.sequences import as_names
from keras_plm.layers.embedding import rows_of
from keras_plm.models.word2vec import NeighbourModel, Word2Vec, check_sizes, small_uniform
from keras_plm.tokenizers.character_ngrams import ngram_rows_of
from keras_plm.tokenizers.encoded import ranges


@keras.saving.register_keras_serializable("keras_plm")
class SubwordEmbedding(keras.layers.Layer):
    """Vectors of words as the mean of the rows of their parts, as fastText's.

    Args:
        num_rows: Rows of the table.
        hidden_dim: Width D.

    Call arguments:
        token_ids: (B, T), here numbers among the batch's different words.
        rows: (M,) the rows of those words' parts, one word after the other.
        words: (M,) the number of the word that each row belongs to, -1 where filled up.

    Returns:
        (B, T, D).
    """

    def __init__(self, num_rows, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.num_rows = num_rows
        self.hidden_dim = hidden_dim

    def build(self, token_ids_shape, rows_shape=None, words_shape=None):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_rows, self.hidden_dim),
            initializer=small_uniform(self.hidden_dim),
        )

    def call(self, token_ids, rows, words):
        count = ops.shape(token_ids)[0] * token_ids.shape[1]
        real = ops.cast(words >= 0, self.compute_dtype)
        place = ops.maximum(words, 0)
        vectors = rows_of(self.embeddings, rows) * real[:, None]  # (M, D)
        sums = ops.segment_sum(vectors, place, num_segments=count)
        parts = ops.segment_sum(real, place, num_segments=count)
        means = sums / ops.maximum(parts, 1.0)[:, None]
        return ops.take(means, token_ids, axis=0)

    def compute_output_spec(self, token_ids, rows, words):
        return keras.KerasTensor((*token_ids.shape, self.hidden_dim), dtype=self.compute_dtype)

    def get_config(self):
        sizes = {"num_rows": self.num_rows, "hidden_dim": self.hidden_dim}
        return {**super().get_config(), **sizes}


@keras.saving.register_keras_serializable("keras_plm")
class FastText(NeighbourModel):
    """fastText: word2vec whose word vectors are the mean of the word's and its character n-grams'.

    A word that was never seen has the vectors of its n-grams. Only rows that words of the
    vocabulary use are kept, a third of a million for 50,000 English words, not two million.

    Reference: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2; hash and numbers of the
    released program.

    Differs from the paper: as `Word2Vec`; the mean of the parts, as the released program does,
    not their sum.

    Args:
        vocabulary: The words in order of their ids, as `tokenizers.Words.vocabulary`.
        hidden_dim, architecture, objective, window, row_length, noise_words, counts, name: As
            `Word2Vec`.
        min_n, max_n: Shortest and longest n-grams.
        buckets: What hashes are taken modulo of.

    Call arguments:
        inputs: As `Word2Vec`, where skip-gram's and CBOW's words are read as `part_rows` and
            `part_words` (M,), the parts of the batch's different words, and `word_numbers` (B, T).

    >>> model = FastText(["[PAD]", "[UNK]", "[EOS]", "where", "here"], hidden_dim=4, buckets=100)
    >>> vectors = model.subword_vectors()
    >>> vectors.words, tuple(vectors.vectors(["here", "wherever"]).shape)
    (['where', 'here'], (2, 4))
    """

    rates = dict.fromkeys(Word2Vec.rates, 0.6)  # as `Word2Vec`'s, of 0.3 and 0.6, for skip-gram

    def __init__(
        self,
        vocabulary,
        hidden_dim=100,
        architecture="skip_gram",
        objective="negative_sampling",
        window=5,
        row_length=128,
        noise_words=32,
        min_n=3,
        max_n=6,
        buckets=2_000_000,
        counts=None,
        name=None,
    ):
        vocabulary = as_names(vocabulary, "vocabulary")
        if not 1 <= min_n <= max_n:
            raise ValueError(
                "n-grams have from `min_n` to `max_n` characters, 1 or more. "
                f"Received: min_n={min_n}, max_n={max_n}"
            )
        check_sizes(vocabulary=len(vocabulary), hidden_dim=hidden_dim, row_length=row_length)
        rows, part_counts = ngram_rows_of(vocabulary, min_n, max_n, buckets)
        used, compact = np.unique(rows, return_inverse=True)
        size = len(vocabulary)
        embedding = SubwordEmbedding(size + len(used), hidden_dim, name="words")
        inputs = {
            "token_ids": keras.Input((row_length,), dtype="int32", name="token_ids"),
            "word_numbers": keras.Input((row_length,), dtype="int32", name="word_numbers"),
            "part_rows": keras.Input((), dtype="int32", name="part_rows"),
            "part_words": keras.Input((), dtype="int32", name="part_words"),
        }
        vectors = embedding(inputs["word_numbers"], inputs["part_rows"], inputs["part_words"])
        super().__init__(
            inputs,
            vectors,
            embedding,
            size,
            hidden_dim,
            architecture,
            objective,
            window,
            row_length,
            noise_words,
            counts,
            name,
        )
        self.vocabulary, self.min_n, self.max_n, self.buckets = vocabulary, min_n, max_n, buckets
        # Parts of each word: its own row, then those of its n-grams.
        self.bucket_ids = used
        self._part_counts = part_counts + 1
        starts = np.cumsum(self._part_counts) - self._part_counts
        self._part_starts = starts
        self._parts = np.zeros(int(self._part_counts.sum()), np.int32)
        own = np.zeros(len(self._parts), bool)
        own[starts] = True
        self._parts[own] = np.arange(size)
        self._parts[~own] = size + compact

    def words_of(self, token_ids):
        words, numbers = np.unique(token_ids, return_inverse=True)
        counts = self._part_counts[words]
        rows = self._parts[ranges(self._part_starts[words], counts)]
        # Of few different lengths, because each is compiled for.
        fill = -len(rows) % 16384
        return {
            "token_ids": token_ids,
            "word_numbers": numbers.reshape(token_ids.shape).astype(np.int32),
            "part_rows": np.pad(rows, (0, fill)),
            "part_words": np.pad(
                np.repeat(np.arange(len(words)), counts), (0, fill), constant_values=-1
            ).astype(np.int32),
        }

    @property
    def vectors(self):
        """(V, D) the words' vectors: means of their parts."""
        table = ops.convert_to_numpy(self.embedding.embeddings)
        sums = np.add.reduceat(table[self._parts], self._part_starts)
        return sums / self._part_counts[:, None]

    def subword_vectors(self, special=3):
        """The trained rows as `SubwordVectors`, without the first `special` words.

        These are the three of `Words.vocabulary`; 0 keeps all.
        """
        table = ops.convert_to_numpy(self.embedding.embeddings)
        size = len(self.vocabulary)
        return SubwordVectors(
            self.vocabulary[special:],
            table[special:size],
            table[size:],
            min_n=self.min_n,
            max_n=self.max_n,
            buckets=self.buckets,
            bucket_ids=self.bucket_ids,
        )

    def get_config(self):
        names = ("vocabulary", "min_n", "max_n", "buckets")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
