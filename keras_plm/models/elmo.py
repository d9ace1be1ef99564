"""ELMo: the bidirectional language model of Peters et al. 2018 as an encoder."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import Tensor
from keras_plm.layers import CarriedStates, CharacterEncoder, LSTMStack
from keras_plm.layers.embedding import check_counts
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.characters import PAD, WIDTH


def _size(units, projection_dim, filters, num_highway, **others):
    return {
        "units": units,
        "projection_dim": projection_dim,
        "filters": [list(pair) for pair in filters],
        "num_highway": num_highway,
        **others,
    }


_RELEASED = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))

# The last three are released, with 13.6, 28.0 and 93.6 million weights. Mini and tiny have the
# widths of BERT's mini and tiny.
ELMO_SIZES = {
    "tiny": _size(128, 64, ((1, 16), (2, 16), (3, 32)), 1, character_dim=8),
    "mini": _size(512, 128, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)), 1),
    "small": _size(1024, 128, _RELEASED, 1),
    "medium": _size(2048, 256, _RELEASED, 1),
    "original": _size(4096, 512, _RELEASED, 2),
}


@keras.saving.register_keras_serializable("keras_plm")
class ELMo(Encoder):
    """ELMo's bidirectional language model, with the output of every layer.

    Words enter as their characters. One stack of LSTMs reads them forwards and another backwards.
    A layer is the concatenation of both outputs; the lowest layer is the word vector, twice. Equal
    texts have equal vectors, except with `carried_rows` as in the original. Use it under
    `pretraining.BiLM` to pre-train and in `keras_plm.transfer` to extract features or fine-tune.
    Time grows with T · n · P; steps run one after the other.

    Reference: Peters et al. 2018, arXiv 1802.05365, sections 3.1 and 3.4; allenai/bilm-tf.

    Args:
        units: Number of cells n of each LSTM.
        projection_dim: Width P of a direction; D = 2 P is the width of the encoder.
        filters: `[width, number]` of each convolution over characters.
        character_dim: Width of a character vector.
        num_highway: Number of highway layers over the convolutions.
        activation: Activation of the convolutions, `"relu"` or `"tanh"`.
        num_layers: Number of stacked LSTMs L.
        cell_clip, projection_clip: Largest absolute value of a cell and of its projection.
        use_skip_connections: If True, add the input of each layer above the first to its output.
        dropout: Fraction of each LSTM's input dropped in training.
        carried_rows: If above 0, each row starts with the final state of the previous batch, as
            in the original. This is then the largest number of rows of a batch. `reset_states`
            sets the states to zero. Files do not contain them.
        trainable: If False, the encoder is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `character_ids` (B, T, C) and `padding_mask` (B, T), True at real words,
            which come first, as `tokenizers.Characters` packs them.

    Returns:
        A dict: `"sequence"` (B, T, D) and `"layers"`, a list of L + 1 tensors (B, T, D) with the
        word vectors first and `"sequence"` last. Layers above the first are zero at padding. Word
        i is at position i + 1, between the marks of `Characters`.

    Raises:
        ValueError: If a size is invalid, or a batch has more rows than `carried_rows`.

    >>> from keras_plm.tokenizers import Characters
    >>> encoder = ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    >>> outputs = encoder(Characters().pack(["To be", "or not to be"]))
    >>> tuple(outputs["sequence"].shape), len(outputs["layers"])
    ((2, 6, 8), 3)
    """

    def __init__(
        self,
        units: int,
        projection_dim: int,
        filters: Sequence[Sequence[int]],
        character_dim: int = 16,
        num_highway: int = 2,
        activation: str = "relu",
        num_layers: int = 2,
        cell_clip: float | None = 3.0,
        projection_clip: float | None = 3.0,
        use_skip_connections: bool = True,
        dropout: float = 0.1,
        carried_rows: int = 0,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        check_counts(1, units=units, projection_dim=projection_dim, num_layers=num_layers)
        check_counts(0, carried_rows=carried_rows)
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: {dropout}")
        token_encoder = CharacterEncoder(
            projection_dim,
            filters,
            character_dim,
            num_highway,
            activation,
            dtype=dtype,
            name="token_encoder",
        )
        if max(width for width, _ in token_encoder.filters) > WIDTH:
            raise ValueError(
                f"A filter must be at most {WIDTH} characters wide, the length of a word. "
                f"Received: filters={filters}"
            )
        forward_lm, backward_lm = (
            LSTMStack(
                num_layers,
                units,
                projection_dim,
                cell_clip,
                projection_clip,
                use_skip_connections,
                dropout,
                dtype=dtype,
                name=f"{direction}_lm",
            )
            for direction in ("forward", "backward")
        )
        inputs = {
            "character_ids": keras.Input((None, None), dtype="int32", name="character_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        words = token_encoder(inputs["character_ids"])  # (B, T, P)
        readers = [forward_lm, backward_lm]
        if carried_rows:
            for stack in readers:
                stack.build(words.shape)
            readers = [
                CarriedStates(stack, carried_rows, dtype=dtype, name=f"{stack.name}_carried")
                for stack in readers
            ]
        layers = read_both_ways(words, inputs["padding_mask"], *readers)
        super().__init__(
            inputs=inputs, outputs={"sequence": layers[-1], "layers": layers}, name=name
        )
        self.dtype_policy = forward_lm.dtype_policy  # a functional model takes none
        self.token_encoder = token_encoder
        self.forward_lm = forward_lm
        self.backward_lm = backward_lm
        self.units = units
        self.projection_dim = projection_dim
        self.filters = token_encoder.filters
        self.character_dim = character_dim
        self.num_highway = num_highway
        self.activation = activation
        self.num_layers = num_layers
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.use_skip_connections = use_skip_connections
        self.dropout = dropout
        self.carried_rows = carried_rows
        self.trainable = trainable

    def reset_states(self) -> None:
        """Sets the states that `carried_rows` keeps to zero."""
        for layer in self.layers:
            if isinstance(layer, CarriedStates):
                layer.reset()

    def stacked_layers(self) -> "WordCache":
        """Returns a `WordCache` of this encoder, for inference on text with repeated words."""
        return WordCache(self)

    def get_config(self):
        names = ("units", "projection_dim", "filters", "character_dim", "num_highway")
        names += ("activation", "num_layers", "cell_clip", "projection_clip")
        names += ("use_skip_connections", "dropout", "carried_rows", "name", "trainable")
        config = {name: getattr(self, name) for name in names}
        return {**config, "dtype": saved_policy(self)}


def read_both_ways(words, padding_mask, forward_lm, backward_lm):
    """Computes the L + 1 layers (B, T, 2 P) from the words' vectors (B, T, P)."""
    ahead = forward_lm(words, padding_mask=padding_mask)
    back = backward_lm(words, padding_mask=padding_mask, go_backwards=True)
    pairs = [(words, words), *zip(ahead, back, strict=True)]
    return [ops.concatenate(pair, axis=-1) for pair in pairs]


class WordCache:
    """An ELMo for inference that encodes the characters of each distinct word once.

    Its outputs equal the encoder's while the encoder's weights stay the same. Every distinct word
    takes 4 P bytes.

    Args:
        encoder: An `ELMo`.
    """

    def __init__(self, encoder: ELMo):
        self._widest = max(width for width, _ in encoder.filters)
        words = keras.Input((None,), dtype="int32")
        self._spell = keras.Model(words, encoder.token_encoder(words))
        vectors = keras.Input((None, encoder.projection_dim), dtype=encoder.compute_dtype)
        mask = keras.Input((None,), dtype="bool")
        layers = read_both_ways(vectors, mask, encoder.forward_lm, encoder.backward_lm)
        stacked = ops.cast(ops.stack(layers, axis=2), "float32")
        self._read = keras.Model([vectors, mask], stacked)
        self._width = encoder.projection_dim
        self.clear()

    def __len__(self):
        return len(self._rows)

    def clear(self) -> None:
        """Removes all words; call it after a change of the encoder's weights."""
        self._rows, self._vectors = {}, np.zeros((0, self._width), "float32")

    def predict_on_batch(self, inputs: dict[str, Tensor]) -> np.ndarray:
        """Computes all layers for a batch of inputs: a NumPy array (B, T, L + 1, D) of float32."""
        ids = np.asarray(inputs["character_ids"])
        flat = np.ascontiguousarray(ids.reshape(-1, ids.shape[-1]), np.uint16)
        keys, first, places = np.unique(
            flat.view(f"V{flat.shape[1] * 2}")[:, 0], return_index=True, return_inverse=True
        )
        keys = [key.tobytes() for key in keys]
        new = [i for i, key in enumerate(keys) if key not in self._rows]
        if new:
            known = len(self._rows)
            self._rows.update({keys[i]: known + n for n, i in enumerate(new)})
            found = self._spelled(flat[first[new]])
            self._vectors = np.concatenate([self._vectors[:known], found])
        rows = np.array([self._rows[key] for key in keys])[places]
        vectors = self._vectors[rows].reshape(*ids.shape[:2], -1)
        return np.asarray(self._read.predict_on_batch([vectors, inputs["padding_mask"]]))

    def _spelled(self, words, size=1024):
        """Computes vectors (N, P) of words (N, C), in batches of a few shapes."""
        found = []
        for start in range(0, len(words), size):
            part = words[start : start + size]
            rows = min(max(1 << (len(part) - 1).bit_length(), 16), size)
            padded = np.zeros((rows, words.shape[1]), "int32")
            padded[: len(part)] = part
            padded = trimmed(padded, self._widest)
            found.append(np.asarray(self._spell.predict_on_batch(padded), "float32")[: len(part)])
        return np.concatenate(found)


def trimmed(character_ids, widest, width=32):
    """Cuts words (N, C) to `width` characters, if all words are short enough.

    Padding for the widest filter stays after each word; the vectors do not change.
    """
    used = np.flatnonzero(((character_ids > 0) & (character_ids != PAD)).any(axis=0))
    last = used[-1] + 1 if len(used) else 0
    return character_ids[:, :width] if last + widest <= width else character_ids
