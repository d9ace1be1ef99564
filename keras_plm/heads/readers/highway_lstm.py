"""Alternating highway LSTM, the reader of semantic role labelling.

Shapes: B examples, T words, D width of the input, n units.
"""

import keras
from keras import ops

from keras_plm.files.arguments import check_number, check_whole
from keras_plm.files.sequences import Tensor
from keras_plm.layers import Dense, Dropout, Pooling, reverse_rows
from keras_plm.layers._fused.scan import scan
from keras_plm.layers.lstm import orthogonal
from keras_plm.layers.masks import given_mask

GATES = 5  # input, candidate, forget, output, highway


@keras.saving.register_keras_serializable("keras_plm")
class HighwayLSTM(keras.layers.Layer):
    """An LSTM in one direction with a highway connection from its input to its output.

    The output of a step mixes the LSTM's own output and a projection of the input, by a gate r:

        h = z * (r * o * tanh(c) + (1 - r) * W x)

    In training, the mask z of recurrent dropout is the same at all steps of an example.

    Reference: He et al. 2017, "Deep Semantic Role Labeling", section 2.1, equations 1 to 9; Zhang
    et al. 2016, arXiv 1510.08983; Gal and Ghahramani 2016, arXiv 1512.05287.

    Args:
        units: Width n.
        dropout: Fraction of the output dropped in training, also for the next step.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, n).

    Raises:
        ValueError: If a setting is out of range.

    >>> import numpy as np
    >>> tuple(HighwayLSTM(units=3)(np.ones((2, 5, 4))).shape)
    (2, 5, 3)
    """

    def __init__(self, units: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        check_whole(units, "units", least=1)
        check_number(dropout, "dropout", least=0, below=1)
        self.units, self.dropout = units, dropout
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        # Gates and projection of the input, in one product for all steps.
        self.project = Dense((GATES + 1) * units, dtype=self.dtype_policy, name="input_projection")

    def build(self, inputs_shape):
        n = self.units
        self.project.build(inputs_shape)
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel", shape=(n, GATES * n), initializer=orthogonal
        )

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        n, batch = self.units, ops.shape(inputs)[0]
        projected = ops.transpose(self.project(inputs), (1, 0, 2))  # (T, B, 6 n)
        kernel = ops.cast(self.recurrent_kernel, projected.dtype)
        kept = self.drop(ops.ones((batch, n), projected.dtype), training=training)

        def step(state, inputs):
            h, c = state
            (x,) = inputs
            gates = x[..., : GATES * n] + ops.matmul(h, kernel)
            i, j, f, o, r = (gates[..., k * n : (k + 1) * n] for k in range(GATES))
            c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(j)
            r = ops.sigmoid(r)
            h = r * ops.sigmoid(o) * ops.tanh(c) + (1 - r) * x[..., GATES * n :]
            return h * kept, c

        start = ops.zeros((batch, n), projected.dtype)
        states, _ = scan(step, (start, start), (projected,))
        return ops.transpose(states, (1, 0, 2))

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor((*inputs.shape[:2], self.units), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}


@keras.saving.register_keras_serializable("keras_plm")
class AlternatingLSTM(keras.layers.Layer):
    """A stack of `HighwayLSTM`s that alternate in direction, the first from left to right.

    With 8 layers of 300 units it is the published reader of semantic roles; the head
    `SemanticRoleLabeler` adds the mark of the predicate. Under torch each time step is a Python
    call, so it is slow. The methods of `keras_plm.transfer` choose half the encoder's width as
    `units`, unless they get another width.

    Reference: He et al. 2017, section 2, figure 1 and section 3.2.

    Args:
        units: Width of each layer.
        num_layers: Number of layers.
        dropout: Recurrent dropout of each layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.

    Returns:
        (B, T, units), zero at padding.

    Raises:
        ValueError: If a setting is out of range.

    >>> import numpy as np
    >>> reader = AlternatingLSTM(units=3, num_layers=2)
    >>> tuple(reader(np.ones((2, 4, 5)), padding_mask=np.ones((2, 4), bool)).shape)
    (2, 4, 3)
    """

    def __init__(self, units: int = 300, num_layers: int = 8, dropout: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        check_whole(num_layers, "num_layers", least=1)
        self.units, self.num_layers, self.dropout = units, num_layers, dropout
        options = {"dropout": dropout, "dtype": self.dtype_policy}
        self.layers = [HighwayLSTM(units, name=f"layer_{i}", **options) for i in range(num_layers)]

    def build(self, inputs_shape, padding_mask_shape=None):
        shape = inputs_shape
        for layer in self.layers:
            layer.build(shape)
            shape = (*inputs_shape[:-1], self.units)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        padding_mask = given_mask(padding_mask, mask)
        x = inputs
        for i, layer in enumerate(self.layers):
            if i % 2:
                x = reverse_rows(
                    layer(reverse_rows(x, padding_mask), training=training), padding_mask
                )
            else:
                x = layer(x, training=training)
        if padding_mask is not None:
            x = x * ops.cast(padding_mask, x.dtype)[..., None]
        return x

    def compute_output_spec(self, inputs, padding_mask=None, training=None, mask=None):
        return keras.KerasTensor((*inputs.shape[:2], self.units), dtype=self.compute_dtype)

    def pooling(self) -> keras.Layer:
        """Returns a layer that pools the outputs of a text into one vector: their maximum."""
        return Pooling("max", name="max")

    def get_config(self):
        names = ("units", "num_layers", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
