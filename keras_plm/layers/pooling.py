"""Reduction of many vectors to one: a learned mix of layers, and pooling over time."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor, as_names
from keras_plm.layers._fused.softmax import wide_dtype


@keras.saving.register_keras_serializable("keras_plm")
class ScalarMix(keras.layers.Layer):
    """A learned weighted mean of layers, `gamma * sum_j softmax(s)_j h_j`.

    In feature-based transfer it learns the layers that a task needs. It has L + 1 parameters.

    Reference: Peters et al. 2018 (ELMo), arXiv 1802.05365, equation 1; the penalty in section
    3.3; the layer norm in section 3.2.

    Args:
        num_layers: Number of layers to mix.
        layer_norm: If True, first normalise each layer by one mean and one variance over all its
            real positions and features, as the released code does.
        penalty: Coefficient λ of the L2 penalty on `s`. Large values keep the mix near the mean.
        trainable_gamma: If False, the scale gamma stays at 1.

    Call arguments:
        inputs: A list of tensors (B, T, D), or one tensor (B, T, L, D).
        padding_mask: (B, T), True at real positions; used by `layer_norm` only. When omitted, the
            mask that Keras attached to the inputs, if any.

    Returns:
        (B, T, D).

    Raises:
        ValueError: If the number of layers received is not `num_layers`.

    >>> import numpy as np
    >>> mix = ScalarMix(num_layers=2)
    >>> mixed = mix([np.ones((1, 2, 3)), 3 * np.ones((1, 2, 3))])
    >>> round(float(mixed[0, 0, 0]), 4)
    2.0
    """

    def __init__(
        self,
        num_layers: int,
        layer_norm: bool = False,
        penalty: float = 0.0,
        trainable_gamma: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_layers = num_layers
        self.layer_norm = layer_norm
        self.penalty = penalty
        self.trainable_gamma = trainable_gamma

    def build(self, inputs_shape):
        regularizer = keras.regularizers.L2(self.penalty) if self.penalty else None
        self.scalars = self.add_weight(
            name="scalars",
            shape=(self.num_layers,),
            initializer="zeros",
            regularizer=regularizer,
            autocast=False,
        )
        self.gamma = self.add_weight(
            name="gamma",
            shape=(),
            initializer="ones",
            trainable=self.trainable_gamma,
            autocast=False,
        )

    def mixing_weights(self) -> np.ndarray:
        """Weight of each layer in the mix, the softmax of `s`: (L,) float32."""
        return ops.convert_to_numpy(ops.softmax(ops.cast(self.scalars, "float32")))

    def call(
        self,
        inputs: Tensor | Sequence[Tensor],
        padding_mask: Tensor | None = None,
        mask: Tensor | Sequence[Tensor] | None = None,
    ) -> Tensor:
        padding_mask = self.compute_mask(inputs, mask) if padding_mask is None else padding_mask
        layers = inputs
        if not isinstance(inputs, (list, tuple)):
            layers = [inputs[:, :, j] for j in range(inputs.shape[2])]
        if len(layers) != self.num_layers:
            raise ValueError(
                "`ScalarMix` needs as many layers as `num_layers`. "
                f"Received: {len(layers)} layers, num_layers={self.num_layers}"
            )
        if self.layer_norm:
            layers = [self._normalise(layer, padding_mask) for layer in layers]
        shares = ops.cast(self.gamma * ops.softmax(self.scalars), self.compute_dtype)
        return sum(shares[j] * layer for j, layer in enumerate(layers))

    def compute_mask(self, inputs, previous_mask):
        layers = isinstance(previous_mask, (list, tuple))
        return previous_mask[0] if layers else previous_mask

    def _normalise(self, layer, padding_mask):
        x = ops.cast(layer, "float32")
        if padding_mask is None:
            mask = ops.ones_like(x[..., :1])
        else:
            mask = ops.cast(padding_mask, "float32")[..., None]  # (B, T, 1)
        count = ops.maximum(ops.sum(mask) * x.shape[-1], 1.0)
        mean = ops.sum(x * mask) / count
        variance = ops.sum(ops.square((x - mean) * mask)) / count
        # 1e-12: bilm-tf's weight_layers.
        return ops.cast((x - mean) * ops.rsqrt(variance + 1e-12), self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "layer_norm": self.layer_norm,
            "penalty": self.penalty,
            "trainable_gamma": self.trainable_gamma,
        }


POOLINGS = ("cls", "mean", "max", "last")


@keras.saving.register_keras_serializable("keras_plm")
class Pooling(keras.layers.Layer):
    """Pooling over time: the vector of one position, or the mean or maximum of real positions.

    Args:
        pool: `"cls"` (the first position), `"mean"`, `"max"` or `"last"` (the last real position).

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions. When omitted, the mask that Keras attached
            to the inputs; all positions without one.

    Returns:
        (B, D). A row without real positions gives zeros, except with `"cls"`.

    Raises:
        ValueError: If `pool` is unknown.

    >>> import numpy as np
    >>> x = np.array([[[1.0], [3.0], [50.0]]])
    >>> float(Pooling("mean")(x, padding_mask=np.array([[True, True, False]]))[0, 0])
    2.0
    """

    def __init__(self, pool: str = "cls", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if pool not in POOLINGS:
            raise ValueError(f"`pool` must be one of {POOLINGS}. Received: {pool!r}")
        self.pool = pool

    def compute_mask(self, inputs, previous_mask):
        return None  # the output has no steps

    def call(
        self, inputs: Tensor, padding_mask: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        padding_mask = mask if padding_mask is None else padding_mask
        if self.pool == "cls":
            return inputs[:, 0]
        # Means need float32 at least: bfloat16 cannot count beyond 256.
        wide = wide_dtype(inputs)
        if padding_mask is None:
            if self.pool == "last":
                return inputs[:, -1]
            if self.pool == "max":
                return ops.max(inputs, axis=1)
            return ops.cast(ops.mean(ops.cast(inputs, wide), axis=1), inputs.dtype)
        if self.pool == "last":
            real = ops.cast(padding_mask, "bool")
            # Counted from the end, because padding may also come before a text.
            padding = ops.argmax(ops.cast(ops.flip(real, axis=1), "int32"), axis=1)  # (B,)
            last = ops.cast(real.shape[1] or ops.shape(real)[1], "int32") - 1
            last = (last - ops.cast(padding, "int32"))[:, None, None]
            found = ops.take_along_axis(inputs, last, axis=1)[:, 0]
            return ops.where(ops.any(real, axis=1)[:, None], found, ops.zeros_like(found))
        mask = ops.cast(padding_mask, "bool")[..., None]  # (B, T, 1)
        if self.pool == "mean":
            real, x = ops.cast(mask, wide), ops.cast(inputs, wide)
            mean = ops.sum(x * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
            return ops.cast(mean, inputs.dtype)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        lowest = ops.cast(-65504.0 if dtype == "float16" else -3e38, dtype)
        highest = ops.max(ops.where(mask, inputs, lowest), axis=1)
        return ops.where(ops.any(mask, axis=1), highest, ops.zeros_like(highest))

    def get_config(self):
        return {**super().get_config(), "pool": self.pool}


@dataclasses.dataclass(frozen=True)
class LayerChoice:
    """Layers of an encoder to read, and their combination into one vector.

    Layers have the numbers of the encoder's output: 0 the embeddings, 1 the first block, -1 the
    last. A range stops at the first block: "the last four" of a two-block encoder are its two
    blocks. Word vectors have only layer 0.

    Args:
        first, last: The first and the last layer to read; the range includes both.
        layers: Distinct layers to read in this order, in place of a range.
        combine: `"concat"`, `"mean"`, or `"mix"` for a learned `ScalarMix`.

    Raises:
        ValueError: If `combine` is unknown. If a range and `layers` are both given or both missing.

    >>> LayerChoice(layers=(-1, 0)).indices(5)
    [4, 0]
    >>> LayerChoice(-4, -1).indices(13), LayerChoice(1, -1).indices(5), LayerChoice(0, 0).indices(5)
    ([9, 10, 11, 12], [1, 2, 3, 4], [0])
    """

    first: int | None = None
    last: int | None = None
    combine: str = "concat"
    layers: tuple[int, ...] | None = None

    def __post_init__(self):
        range_given = [self.first is not None, self.last is not None]
        if range_given != [self.layers is None] * 2:
            raise ValueError(
                "A choice of layers needs `first` and `last`, or a tuple of `layers`. "
                f"Received: first={self.first}, last={self.last}, layers={self.layers}"
            )
        if self.layers is not None:
            layers = tuple(as_names(self.layers, "layers"))
            if not layers or not all(isinstance(layer, int) for layer in layers):
                raise ValueError(f"`layers` must be whole numbers. Received: {self.layers!r}")
            object.__setattr__(self, "layers", layers)
        if self.combine not in ("concat", "mean", "mix"):
            raise ValueError(
                f"`combine` must be 'concat', 'mean' or 'mix'. Received: {self.combine!r}"
            )

    def indices(self, count: int) -> list[int]:
        """Indices of the layers to read, for an encoder with `count` layers including embeddings.

        Raises:
            ValueError: If the encoder is too shallow.
        """
        if self.layers is not None:
            found = [layer + count * (layer < 0) for layer in self.layers]
            if min(found) < 0 or max(found) >= count or len(set(found)) < len(found):
                raise ValueError(
                    "`layers` must be distinct layers of the encoder. "
                    f"Received: layers {self.layers} of {count - 1} blocks"
                )
            return found
        lowest = min(count - 1, 1)
        first = self.first if self.first >= 0 else max(count + self.first, lowest)
        last = self.last if self.last >= 0 else count + self.last
        if self.first == self.last:
            first = last
        if not 0 <= first <= last < count or (self.last < 0 and last < lowest):
            raise ValueError(
                "This encoder has too few layers for this choice: it has "
                f"{f'layer_0 (embeddings) to layer_{count - 1}' if count > 1 else 'one, layer_0'}. "
                f"Received: layers from {self.first} to {self.last}"
            )
        return list(range(first, last + 1))

    def width(self, count: int, hidden_dim: int) -> int:
        """Width of the resulting vector, for an encoder with `count` layers of `hidden_dim`."""
        return hidden_dim * (len(self.indices(count)) if self.combine == "concat" else 1)
