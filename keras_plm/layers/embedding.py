"""Embeddings of tokens (with tied output), of positions, and of words by their characters."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dense import Dense, by_rows


def rows_of(table, ids):
    """Looks up rows of a table; the gradient of a row is the sum over its lookups.

    On TensorFlow the gradient of a lookup is a list with one entry per lookup. Keras' optimizers
    square and clip each entry separately: Adam and AdaGrad add g1² + g2² instead of (g1 + g2)². The
    gradient of a reshaped table is dense, as on the other backends.
    """
    return ops.take(ops.reshape(table, table.shape), ids, axis=0)


@keras.saving.register_keras_serializable("keras_plm")
class TokenEmbedding(keras.layers.Layer):
    """A table of token vectors that also scores vectors against the table (tied output).

    GPT, BERT and the Transformer tie their output to their input: one table instead of two. In
    half precision only the rows of a batch are cast, not the whole table.

    Reference: Press and Wolf 2017, arXiv 1608.05859.

    Args:
        vocabulary_size: Number of tokens V.
        hidden_dim: Width D.
        initializer: Initializer of the table.

    Call arguments:
        inputs: (B, T) token ids; with `reverse=True` (..., D) vectors.
        reverse: If True, return the scores of all tokens.

    Returns:
        (B, T, D) vectors; with `reverse=True` (..., V) scores without bias.

    >>> import numpy as np
    >>> layer = TokenEmbedding(vocabulary_size=11, hidden_dim=4)
    >>> vectors = layer(np.array([[1, 2, 3]]))
    >>> tuple(vectors.shape), tuple(layer(vectors, reverse=True).shape)
    ((1, 3, 4), (1, 3, 11))
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        initializer: str | dict | keras.initializers.Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocabulary_size, self.hidden_dim),
            initializer=self.initializer,
            autocast=False,
        )

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return self.scorer()(inputs)
        vectors = rows_of(self.embeddings, ops.cast(inputs, "int32"))
        return ops.cast(vectors, self.compute_dtype)  # (B, T, D)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Returns the function of `reverse=True`; it casts the table once for many calls."""
        table = ops.transpose(ops.cast(self.embeddings, self.compute_dtype))  # (D, V)

        def scores(inputs):
            inputs = ops.cast(inputs, self.compute_dtype)
            return by_rows(lambda rows: ops.matmul(rows, table), inputs, self.vocabulary_size)

        return scores

    def compute_output_spec(self, inputs, reverse=False):
        if reverse:
            shape = (*inputs.shape[:-1], self.vocabulary_size)
        else:
            shape = (*inputs.shape, self.hidden_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable("keras_plm")
class PositionEmbedding(keras.layers.Layer):
    """A table of learned position vectors; the caller adds them.

    The number of positions is limited.

    Reference: Gehring et al. 2017, arXiv 1705.03122, section 3.1; used by GPT and BERT.

    Args:
        max_sequence_length: Number of positions.
        initializer: Initializer of the table.

    Call arguments:
        inputs: (B, T, D); only its shape is used.
        start: Position of the first step, for step-by-step decoding; (B,) if rows differ.

    Returns:
        (T, D) vectors of positions start ... start + T - 1; (B, T, D) if rows differ.

    Raises:
        ValueError: If T is larger than `max_sequence_length`.

    >>> import numpy as np
    >>> tuple(PositionEmbedding(max_sequence_length=8)(np.ones((2, 5, 4))).shape)
    (5, 4)
    """

    def __init__(
        self,
        max_sequence_length: int,
        initializer: str | dict | keras.initializers.Initializer = "uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.max_sequence_length = max_sequence_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_sequence_length, input_shape[-1]),
            initializer=self.initializer,
        )

    def call(self, inputs: Tensor, start: int | Tensor = 0) -> Tensor:
        length = inputs.shape[1]
        if length is not None and length > self.max_sequence_length:
            raise ValueError(
                f"This model reads at most {self.max_sequence_length} positions: truncate the "
                "texts or cut them into windows. "
                f"Received: inputs of length {length}"
            )
        if len(getattr(start, "shape", ())):
            start = start[:, None]
        # `take` of a range, because JAX cannot slice by an unknown length.
        return ops.take(self.embeddings, ops.arange(ops.shape(inputs)[1]) + start, axis=0)

    def compute_mask(self, inputs, previous_mask):
        return None  # vectors of positions belong to no text

    def compute_output_spec(self, inputs, start=0):
        shape = inputs.shape if len(getattr(start, "shape", ())) else inputs.shape[1:]
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "max_sequence_length": self.max_sequence_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable("keras_plm")
class SinePositionEmbedding(keras.layers.Layer):
    """Sines and cosines of the position at D / 2 wavelengths from 2π to 10000 · 2π.

    It has no weights and no largest position.

    Reference: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

    Call arguments:
        inputs: (B, T, D); only its shape is used. D must be even.
        start: Position of the first step, for step-by-step decoding.

    Returns:
        (T, D) vectors of positions start ... start + T - 1, sines at even and cosines at odd
        indices.

    Raises:
        ValueError: If D is odd.

    >>> import numpy as np
    >>> vectors = SinePositionEmbedding()(np.ones((2, 3, 4)))
    >>> [round(float(x), 3) for x in vectors[1]]
    [0.841, 0.54, 0.01, 1.0]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        if input_shape[-1] % 2:
            raise ValueError(
                "Sines and cosines come in pairs: the width must be even. "
                f"Received: inputs.shape={tuple(input_shape)}"
            )

    def call(self, inputs: Tensor, start: int | Tensor = 0) -> Tensor:
        width = inputs.shape[-1]
        positions = ops.cast(ops.arange(ops.shape(inputs)[1]) + start, "float32")
        rates = 10000.0 ** -(np.arange(0, width, 2) / width)  # (D / 2,)
        angles = ops.outer(positions, rates.astype("float32"))  # (T, D / 2)
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (T, D / 2, 2)
        return ops.cast(ops.reshape(pairs, (-1, width)), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask):
        return None  # vectors of positions belong to no text

    def compute_output_spec(self, inputs, start=0):
        return keras.KerasTensor(inputs.shape[1:], dtype=self.compute_dtype)


def check_counts(least, **arguments):
    """Raises unless every argument is a whole number of `least` or more."""
    for name, value in arguments.items():
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(
                f"`{name}` must be a whole number of {least} or more. Received: {value!r}"
            )


@keras.saving.register_keras_serializable("keras_plm")
class CharacterEncoder(keras.layers.Layer):
    """ELMo's token layer: a vector of each word from its characters, without context.

    It applies convolutions of several widths over the characters, a maximum over positions, highway
    layers and a projection:

        g = σ(x W_carry + b_carry),    x <- g relu(x W_transform + b_transform) + (1 - g) x.

    There are no unknown words. A word takes C · sum(width · filters) · character_dim steps, more
    than the LSTMs above it: pass each distinct word of a batch once.

    Reference: Peters et al. 2018, section 3.4; Kim et al. 2016, arXiv 1508.06615, section 2;
    highways: Srivastava et al. 2015, arXiv 1505.00387; allenai/bilm-tf, model.py, where "carry"
    gates the transformed part.

    Args:
        output_dim: Width P.
        filters: `[width, number]` of each convolution.
        character_dim: Width of a character vector.
        num_highway: Number of highway layers.
        activation: Activation of the convolutions, `"relu"` or `"tanh"`.

    Call arguments:
        character_ids: (..., C) ids of `tokenizers.Characters`, 0 for padding. C may be less than
            50 if each word ends in at least as much padding as the widest filter's width minus 1.

    Returns:
        (..., P).

    Raises:
        ValueError: If a size is invalid, the activation is unknown, there is no filter, or C is
            less than the widest filter.

    >>> import numpy as np
    >>> layer = CharacterEncoder(output_dim=5, filters=[[1, 4], [3, 8]], character_dim=2)
    >>> tuple(layer(np.ones((2, 7, 50), "int32")).shape)
    (2, 7, 5)
    """

    NUM_CHARACTERS = 261  # without 0, which has no row: 256 bytes and five marks

    def __init__(
        self,
        output_dim: int,
        filters: Sequence[Sequence[int]],
        character_dim: int = 16,
        num_highway: int = 2,
        activation: str = "relu",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if activation not in ("relu", "tanh"):
            raise ValueError(f"`activation` must be 'relu' or 'tanh'. Received: {activation!r}")
        filters = [list(pair) for pair in filters]
        check_counts(1, output_dim=output_dim, character_dim=character_dim)
        check_counts(0, num_highway=num_highway)
        if not filters or any(len(pair) != 2 or min(pair) < 1 for pair in filters):
            raise ValueError(
                "`filters` must be one or more pairs [width, number], each number 1 or more. "
                f"Received: {filters}"
            )
        self.output_dim = output_dim
        self.filters = filters
        self.character_dim = character_dim
        self.num_highway = num_highway
        self.activation = activation
        width, dtype = sum(number for _, number in filters), self.dtype_policy
        near_zero = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.highways = [
            {
                part: Dense(
                    width,
                    kernel_initializer=keras.initializers.RandomNormal(stddev=width**-0.5),
                    # Initially a word passes mostly unchanged.
                    bias_initializer=keras.initializers.Constant(bias),
                    dtype=dtype,
                    name=f"highway_{i}_{part}",
                )
                for part, bias in (("carry", -2.0), ("transform", 0.0))
            }
            for i in range(num_highway)
        ]
        self.projection = Dense(
            output_dim, kernel_initializer=near_zero, dtype=dtype, name="projection"
        )

    def build(self, character_ids_shape):
        dim = self.character_dim
        self.embeddings = self.add_weight(
            (self.NUM_CHARACTERS, dim), keras.initializers.RandomUniform(-1, 1), name="embeddings"
        )
        self.kernels, self.biases = [], []
        for width, number in self.filters:
            initializer = keras.initializers.RandomUniform(-0.05, 0.05)
            if self.activation == "tanh":
                initializer = keras.initializers.RandomNormal(stddev=(width * dim) ** -0.5)
            name = f"width_{width}"
            self.kernels.append(
                self.add_weight((width, dim, number), initializer, name=f"{name}_kernel")
            )
            self.biases.append(self.add_weight((number,), "zeros", name=f"{name}_bias"))
        total = (None, sum(number for _, number in self.filters))
        for highway in self.highways:
            for part in highway.values():
                part.build(total)
        self.projection.build(total)

    def call(self, character_ids: Tensor) -> Tensor:
        length = character_ids.shape[-1]
        widest = max(width for width, _ in self.filters)
        if length is not None and length < widest:
            raise ValueError(
                "A word with its padding must be at least as long as the widest filter. "
                f"Received: character_ids of {length} characters, a filter of width {widest}"
            )
        *sizes, length = ops.shape(character_ids)
        ids = ops.cast(ops.reshape(character_ids, (-1, length)), "int32")  # (N, C)
        rows = rows_of(ops.cast(self.embeddings, self.compute_dtype), ops.maximum(ids - 1, 0))
        letters = rows * ops.cast(ids > 0, rows.dtype)[..., None]  # (N, C, character_dim)
        found = []
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            kernel, bias = ops.cast(kernel, rows.dtype), ops.cast(bias, rows.dtype)
            highest = ops.max(ops.conv(letters, kernel, padding="valid"), axis=1) + bias
            found.append(ops.relu(highest) if self.activation == "relu" else ops.tanh(highest))
        x = ops.concatenate(found, axis=-1)
        for highway in self.highways:
            gate = ops.sigmoid(highway["carry"](x))
            x = gate * ops.relu(highway["transform"](x)) + (1 - gate) * x
        return ops.reshape(self.projection(x), (*sizes, self.output_dim))

    def compute_output_spec(self, character_ids):
        shape = (*character_ids.shape[:-1], self.output_dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        names = ("output_dim", "filters", "character_dim", "num_highway", "activation")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
