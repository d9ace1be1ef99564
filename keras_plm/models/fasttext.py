"""fastText: word2vec with word vectors computed from character n-grams.

Shapes: as in `word2vec.py`; M parts of the distinct words of a batch.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.formats.fasttext import END_OF_SENTENCE, SubwordVectors
from keras_plm.files.sequences import as_names
from keras_plm.layers.embedding import rows_of
from keras_plm.models.word2vec import NeighbourModel, Word2Vec, check_sizes, small_uniform
from keras_plm.tokenizers.character_ngrams import ngram_rows_of
from keras_plm.tokenizers.encoded import ranges


@keras.saving.register_keras_serializable("keras_plm")
class SubwordEmbedding(keras.layers.Layer):
    """fastText's word vectors: the mean over the rows of a word's parts.

    Args:
        num_rows: Number of rows of the table.
        hidden_dim: Width D.

    Call arguments:
        token_ids: (B, T), here indices into the distinct words of the batch.
        rows: (M,) rows of the parts of these words, word by word.
        words: (M,) index of the word of each row, -1 at padding.

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
    """fastText: word2vec with the mean of a word's vector and those of its character n-grams.

    An unknown word has the vector of its n-grams. The table holds only rows that the vocabulary
    uses: a third of a million for 50,000 English words, not two million.

    Reference: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2; hash and numbers of the
    released program.

    Differs from the paper: as `Word2Vec`; the mean of the parts, as in the released program, not
    their sum.

    Args:
        vocabulary: Words in the order of their ids, as `tokenizers.Words.vocabulary`.
        hidden_dim, architecture, objective, window, row_length, noise_words, counts, name: As in
            `Word2Vec`.
        min_n, max_n: Shortest and longest n-grams.
        buckets: Number of hash buckets.

    Call arguments:
        inputs: As in `Word2Vec`, with `part_rows` and `part_words` (M,), the parts of the distinct
            words of the batch, and `word_numbers` (B, T) in place of the words.

    Returns:
        (B, T, K) scores, as `Word2Vec`.

    >>> model = FastText(["[PAD]", "[UNK]", "[EOS]", "where", "here"], hidden_dim=4, buckets=100)
    >>> vectors = model.subword_vectors()
    >>> vectors.words, tuple(vectors.vectors(["here", "wherever"]).shape)
    (['where', 'here'], (2, 4))
    """

    # The better of 0.3 and 0.6 for skip-gram, chosen as in `Word2Vec`.
    rates = dict.fromkeys(Word2Vec.rates, 0.6)

    def __init__(
        self,
        vocabulary: Sequence[str],
        hidden_dim: int = 100,
        architecture: str = "skip_gram",
        objective: str = "negative_sampling",
        window: int = 5,
        row_length: int = 128,
        noise_words: int = 32,
        min_n: int = 3,
        max_n: int = 6,
        buckets: int = 2_000_000,
        counts: Sequence[int] | np.ndarray | None = None,
        name: str | None = None,
    ):
        vocabulary = as_names(vocabulary, "vocabulary")
        if not 1 <= min_n <= max_n:
            raise ValueError(
                "n-grams must have from `min_n` to `max_n` characters, 1 or more. "
                f"Received: min_n={min_n}, max_n={max_n}"
            )
        check_sizes(vocabulary=len(vocabulary), hidden_dim=hidden_dim, row_length=row_length)
        rows, part_counts = ngram_rows_of(vocabulary, min_n, max_n, buckets)
        ends = np.array([word == END_OF_SENTENCE for word in vocabulary])  # without n-grams
        rows = rows[~np.repeat(ends, part_counts)]
        part_counts[ends] = 0
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

    def batches(self, *args, **kwargs) -> Batches:
        """Returns batches as `Word2Vec.batches`, for one device.

        Raises:
            ValueError: If `shard` has several parts. Otherwise as `Word2Vec.batches`.
        """
        found = super().batches(*args, **kwargs)
        found.row_by_row = False
        if found.shard[1] > 1:
            raise ValueError(
                "The parts of all words of a batch are one array: use one device. "
                f"Received: shard={found.shard}"
            )
        return found

    def words_of(self, token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the model's inputs for the words of a batch (B, T)."""
        words, numbers = np.unique(token_ids, return_inverse=True)
        counts = self._part_counts[words]
        rows = self._parts[ranges(self._part_starts[words], counts)]
        # Padded to few distinct lengths, because each length is compiled separately.
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
    def vectors(self) -> np.ndarray:
        """Word vectors, the means of their parts: (V, D)."""
        table = ops.convert_to_numpy(self.embedding.embeddings)
        sums = np.add.reduceat(table[self._parts], self._part_starts)
        return sums / self._part_counts[:, None]

    def subword_vectors(self, special: int = 3) -> SubwordVectors:
        """Returns the trained rows as `SubwordVectors`.

        Args:
            special: Number of words to leave out; the first three of `Words.vocabulary` are
                special.
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
