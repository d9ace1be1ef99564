"""Word vectors of any origin as an encoder, and their neighbours and analogies."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_plm.data.formats.fasttext import as_set
from keras_plm.data.formats.word_vectors import read_vectors, write_vectors
from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import as_list
from keras_plm.layers import Dropout, TokenEmbedding
from keras_plm.layers.embedding import rows_of
from keras_plm.models.encoder import Encoder
from keras_plm.models.fasttext import FastText
from keras_plm.models.glove import GloVe
from keras_plm.models.word2vec import Word2Vec
from keras_plm.tokenizers import Words

__all__ = ["FastText", "GloVe", "Spelling", "Word2Vec", "WordTable", "WordVectors"]

SPECIAL = ("[PAD]", "[UNK]", "[EOS]")

# Names of the unknown word in files of GloVe and of other programs.
UNKNOWN = ("[UNK]", "<unk>", "UNK", "unk")


@keras.saving.register_keras_serializable("keras_plm")
class WordTable(keras.layers.Layer):
    """A table of word vectors, trainable or frozen within a trainable model.

    Args:
        vocabulary_size: Number of words V.
        hidden_dim: Width D.
        learns: If False, the table is not trainable.

    Call arguments:
        token_ids: (B, T).

    Returns:
        (B, T, D).
    """

    def __init__(self, vocabulary_size, hidden_dim, learns=True, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.learns = learns

    def build(self, token_ids_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.hidden_dim),
            # The range of trained vectors: Kim 2014, arXiv 1408.5882, section 3.1.
            initializer=keras.initializers.RandomUniform(-0.25, 0.25),
            trainable=self.learns,
            autocast=False,
        )

    def call(self, token_ids):
        return ops.cast(rows_of(self.embeddings, token_ids), self.compute_dtype)

    def get_config(self):
        sizes = {"vocabulary_size": self.vocabulary_size, "hidden_dim": self.hidden_dim}
        return {**super().get_config(), **sizes, "learns": self.learns}


@keras.saving.register_keras_serializable("keras_plm")
class Spelling(keras.layers.Layer):
    """A word's vector from its characters: a convolution and the maximum over positions.

    Its weights are trained with the task. It holds the characters of every word of the vocabulary;
    its inputs are word ids.

    Reference: Ma and Hovy 2016, arXiv 1603.01354, section 2.1; sizes: AllenNLP's tagger, 16
    dimensions per character, width 3, ReLU.

    Args:
        vocabulary: Words in the order of their ids.
        filters: Width F of the result.
        character_dim: Width of a character's vector.
        kernel_size: Width of a filter in characters.
        max_characters: Largest number of bytes read of a word, including its two end marks.

    Call arguments:
        token_ids: (B, T).

    Returns:
        (B, T, F).
    """

    def __init__(
        self, vocabulary, filters, character_dim=16, kernel_size=3, max_characters=24, **kwargs
    ):
        super().__init__(**kwargs)
        self.vocabulary = list(vocabulary)
        self.filters = filters
        self.character_dim = character_dim
        self.kernel_size = kernel_size
        self.max_characters = max_characters
        # Bytes start at 3; 0 is padding, 1 and 2 are the end marks.
        table = np.zeros((len(self.vocabulary), max_characters), "int32")
        for row, word in zip(table, self.vocabulary, strict=True):
            letters = [byte + 3 for byte in word.encode()[: max_characters - 2]]
            row[: len(letters) + 2] = [1, *letters, 2]
        self.characters = table
        options = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(259, character_dim, "uniform", name="characters", **options)
        self.convolution = keras.layers.Conv1D(
            filters, kernel_size, padding="same", activation="relu", name="convolution", **options
        )

    def build(self, token_ids_shape):
        self.embedding.build((None, self.max_characters))
        self.convolution.build((None, self.max_characters, self.character_dim))

    def call(self, token_ids):
        batch, length = ops.shape(token_ids)
        table = ops.convert_to_tensor(self.characters)
        letters = ops.take(table, ops.reshape(token_ids, (-1,)), axis=0)  # (B T, C)
        real = ops.cast(letters > 0, self.compute_dtype)[..., None]
        found = self.convolution(self.embedding(letters) * real)  # (B T, C, F)
        # ReLU's outputs are at least 0: zeros at padding do not change the maximum.
        return ops.reshape(ops.max(found * real, axis=1), (batch, length, self.filters))

    def compute_output_spec(self, token_ids):
        return keras.KerasTensor((*token_ids.shape, self.filters), dtype=self.compute_dtype)

    def get_config(self):
        names = ("vocabulary", "filters", "character_dim", "kernel_size", "max_characters")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("keras_plm")
class WordVectors(Encoder):
    """Static word vectors: an encoder with one vector per word, without context.

    It is an encoder of one layer for heads, readers and `transfer`, and a table for neighbours and
    analogies. `read` takes files of word2vec, GloVe and fastText; `from_vectors` takes arrays.
    `tokenizer()` splits texts into its words. An unknown word is `[UNK]`, the zero vector unless
    the file has one.

    Args:
        vocabulary: Words in the order of their ids, `[PAD] [UNK] [EOS]` first, as
            `tokenizers.Words.vocabulary`.
        hidden_dim: Width D.
        character_filters: Number of the D features from a convolution over the characters of a
            word (`Spelling`); 0 for no convolution.
        learns: If False, only the convolution is trainable, not the vectors.
        dropout: Fraction of the output dropped in training.
        trainable: If False, the whole encoder is frozen.
        dtype: Keras policy; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `token_ids` and `padding_mask` (True at real words), each (B, T).

    Returns:
        A dict: `"sequence"` (B, T, D), zero at padding, and `"layers"`, a list of this one tensor.

    Raises:
        ValueError: If the vocabulary lacks a special word or has a word twice, or there are as many
            filters as features.

    >>> import numpy as np
    >>> vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
    >>> encoder = WordVectors.from_vectors(["king", "queen", "man", "woman"], vectors)
    >>> encoder.most_similar("king", count=2)
    [('queen', 0.8), ('man', 0.0)]
    >>> encoder.analogy("king", "queen", "man")[0][0]
    'woman'
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        hidden_dim: int,
        character_filters: int = 0,
        learns: bool = True,
        dropout: float = 0.0,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        vocabulary = as_list(vocabulary, "vocabulary", "words")
        Words(vocabulary)  # checks it
        if not 0 <= character_filters < hidden_dim:
            raise ValueError(
                "`character_filters` must be a part of `hidden_dim`, from 0 to below it. "
                f"Received: character_filters={character_filters}, hidden_dim={hidden_dim}"
            )
        table = WordTable(
            len(vocabulary), hidden_dim - character_filters, learns, dtype=dtype, name="words"
        )
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        x = table(inputs["token_ids"])  # (B, T, D - F)
        if character_filters:
            spelling = Spelling(vocabulary, character_filters, dtype=dtype, name="spelling")
            x = ops.concatenate([x, spelling(inputs["token_ids"])], axis=-1)
        x = x * ops.cast(inputs["padding_mask"], x.dtype)[..., None]
        x = Dropout(dropout, dtype=dtype, name="dropout")(x)
        super().__init__(inputs=inputs, outputs={"sequence": x, "layers": [x]}, name=name)
        self.dtype_policy = table.dtype_policy  # a functional model takes none; copies read it
        self.table = table
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.hidden_dim = hidden_dim
        self.character_filters = character_filters
        self.learns = learns
        self.dropout = dropout
        self._ids = {word: i for i, word in enumerate(vocabulary)}
        self.trainable = trainable

    @classmethod
    def from_vectors(
        cls,
        words: Sequence[str],
        vectors: Sequence[Any] | np.ndarray,
        character_filters: int = 0,
        **options,
    ) -> Self:
        """Creates an encoder from words and their vectors.

        Args:
            words: N words, which may include the special words of `Words`.
            vectors: (N, D') array.
            character_filters: F; the encoder's width is D' + F.
            **options: Other arguments of the class.

        Raises:
            ValueError: If the numbers of words and vectors differ, a word occurs twice, or a value
                is not finite.
        """
        words, vectors = as_list(words, "words", "words"), np.asarray(vectors, "float32")
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise ValueError(
                f"Every word needs one vector. Received: {len(words)} words, "
                f"vectors of shape {vectors.shape}"
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise ValueError(
                "Vectors must be finite; did training diverge? Received: another value in that of "
                f"{words[int(finite.argmin())]!r}"
            )
        known = {word: i for i, word in enumerate(words)}
        if len(known) < len(words):
            double = next(word for i, word in enumerate(words) if known[word] != i)
            raise ValueError(f"Every word must occur once. Received: {double!r} twice")
        vocabulary = [*SPECIAL, *(word for word in words if word not in SPECIAL)]
        table = np.zeros((len(vocabulary), vectors.shape[1]), "float32")
        for i, word in enumerate(SPECIAL):
            names = UNKNOWN if word == "[UNK]" else (word,)
            place = next((known[name] for name in names if name in known), None)
            if place is not None:
                table[i] = vectors[place]
        table[len(SPECIAL) :] = vectors[[i for i, w in enumerate(words) if w not in SPECIAL]]
        width = vectors.shape[1] + character_filters
        encoder = cls(vocabulary, width, character_filters=character_filters, **options)
        encoder.table.embeddings.assign(table)
        return encoder

    @classmethod
    def read(
        cls,
        path: str | os.PathLike,
        words: Iterable[str] | None = None,
        limit: int | None = None,
        errors: str = "strict",
        **options,
    ) -> Self:
        """Creates an encoder from a file of vectors, read by `data.read_vectors`.

        Args:
            path: A file of word2vec (text or binary), GloVe or fastText (`.vec` or `.bin`).
            words: Words to keep; memory holds only these. Words that a `.bin` file of fastText
                lacks are left out. `data.read_fasttext` computes their vectors:
                `from_vectors(words, read_fasttext(path).vectors(words))`.
            limit: Number of rows to read from the start of the file.
            errors: Treatment of bytes that are not UTF-8, as in `bytes.decode`.
            **options: As in `from_vectors`.

        Raises:
            ValueError: If the file is missing or malformed, or contains none of the words.
        """
        words = as_set(words)
        found, vectors = read_vectors(path, words, limit, errors=errors)
        if not found:
            asked = "no row" if words is None else f"{len(words)} words, {sorted(words)[:3]}"
            raise ValueError(f"{path} must have a vector of these words. Received: {asked}")
        return cls.from_vectors(found, vectors, **options)

    def with_words(self, words: Sequence[str], **options) -> Self:
        """Creates a copy with ids for more words.

        A task can then train their vectors, or read their characters (`character_filters`). A new
        word has the vector of its lower-case form, otherwise that of the unknown word.

        Args:
            words: A list of words; known words may be among them.
            **options: As in `from_vectors`; by default those of this encoder. The convolution has
                new weights.

        Raises:
            ValueError: If `words` is one string.
        """
        words = as_list(words, "words", "words")
        names = ("character_filters", "learns", "dropout", "trainable")
        options = {**{name: getattr(self, name) for name in names}, **options}
        options.setdefault("dtype", self.dtype_policy)
        new = [word for word in dict.fromkeys(words) if word not in self._ids]
        unknown = self._ids["[UNK]"]
        like = [self._ids.get(word.lower(), unknown) for word in new]
        vectors = np.concatenate([self.vectors, self.vectors[like]])
        return self.from_vectors([*self.vocabulary, *new], vectors, **options)

    def write(self, path: str | os.PathLike, format: str = "word2vec") -> None:
        """Writes all words except the special ones; see `data.write_vectors`."""
        write_vectors(path, self.words, self.vectors[len(SPECIAL) :], format)

    def tokenizer(self, lowercase: bool | None = None, split: str = "punctuation") -> Words:
        """Creates a `Words` tokenizer of this vocabulary.

        Args:
            lowercase: If True, lower-case texts; by default True if no word has upper case.
            split: As in `Words`.
        """
        if lowercase is None:
            lowercase = not any(word != word.lower() for word in self.words)
        return Words(self.vocabulary, lowercase, split)

    @property
    def words(self) -> list[str]:
        """Words without the special words."""
        return self.vocabulary[len(SPECIAL) :]

    @property
    def vectors(self) -> np.ndarray:
        """Word vectors, (V, D), without the features of the characters."""
        return ops.convert_to_numpy(self.table.embeddings)

    def id_of(self, word: str) -> int:
        """Returns the id of a word, otherwise of its lower-case form.

        Raises:
            ValueError: If the word has no vector.
        """
        found = self._ids.get(word, self._ids.get(str(word).lower(), 0))
        if found < len(SPECIAL):
            raise ValueError(
                "Only words of the vocabulary have a vector; `vectors` of fastText's "
                f"`SubwordVectors` computes one for every word. Received: {word!r}"
            )
        return found

    def similarity(self, word: str, other: str) -> float:
        """Computes the cosine of the vectors of two words."""
        return float(np.dot(*self._unit(self.vectors[[self.id_of(word), self.id_of(other)]])))

    def most_similar(
        self, words: str | Sequence[str], unlike: str | Sequence[str] = (), count: int = 10
    ) -> list[tuple[str, float]]:
        """Finds the nearest neighbours of words by the cosine.

        Args:
            words: A word, or a list of words whose unit vectors are added.
            unlike: A word or a list of words whose unit vectors are subtracted.
            count: Number of neighbours.

        Returns:
            A list of `(word, cosine)`, without the given words.

        Raises:
            ValueError: If a word has no vector, or no word is given.
        """
        words, unlike = (
            [w] if isinstance(w, str) else as_list(w, name, "words")
            for name, w in (("words", words), ("unlike", unlike))
        )
        if not words and not unlike:
            raise ValueError("Neighbours need a word or more. Received: none")
        asked = [self.id_of(word) for word in (*words, *unlike)]
        signs = [1.0] * len(words) + [-1.0] * len(unlike)
        unit = self._unit(self.vectors)
        cosines = unit @ self._unit((signs @ unit[asked])[None])[0]
        cosines[[*range(len(SPECIAL)), *asked]] = -np.inf
        nearest = np.argsort(-cosines, kind="stable")[: max(count, 0)]
        nearest = nearest[np.isfinite(cosines[nearest])]
        return [(self.vocabulary[i], round(float(cosines[i]), 4)) for i in nearest]

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[tuple[str, float]]:
        """Solves the analogy a : b = c : ?, by the neighbours of b - a + c.

        Reference: Mikolov et al. 2013, arXiv 1301.3781, section 4.
        """
        return self.most_similar([b, c], unlike=[a], count=count)

    @staticmethod
    def _unit(vectors):
        vectors = np.asarray(vectors, "float32")  # norms overflow in float16
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def get_config(self):
        return {
            "vocabulary": self.vocabulary,
            "hidden_dim": self.hidden_dim,
            "character_filters": self.character_filters,
            "learns": self.learns,
            "dropout": self.dropout,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
        }
