"""Long short-term memories: plain, with ELMo's projection and clips, and stacked.

Shapes: T steps, B batch, D width of the input, n cells, P width of the output, L layers.
"""

import types
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dropout import Dropout
from keras_plm.layers._fused.lstm import lstm
from keras_plm.layers.masks import given_mask


def reverse_rows(x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Reverses the real positions of each row; padding keeps its place.

    Args:
        x: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first; all when omitted.

    Returns:
        (B, T, D). A second application restores `x`.

    >>> import numpy as np
    >>> from keras import ops
    >>> x, mask = np.array([[[1], [2], [3], [0]]]), np.array([[True, True, True, False]])
    >>> ops.convert_to_numpy(reverse_rows(x, mask))[0, :, 0].tolist()
    [3, 2, 1, 0]
    """
    if padding_mask is None:
        return ops.flip(x, axis=1)
    rows, length, width = ops.shape(x)
    steps = ops.arange(length, dtype="int32")
    lengths = _lengths(padding_mask)[:, None]
    places = ops.where(steps < lengths, lengths - 1 - steps, steps)  # (B, T)
    places = places + ops.arange(rows, dtype="int32")[:, None] * length
    # One index per vector: one index per number takes several times as long.
    turned = ops.take(ops.reshape(x, (-1, width)), ops.reshape(places, (-1,)), axis=0)
    return ops.reshape(turned, (rows, length, width))


def _lengths(padding_mask):
    return ops.sum(ops.cast(padding_mask, "int32"), axis=1)


def orthogonal(shape, dtype=None):
    """Draws an orthogonal matrix; backends factorise none in half precision."""
    full = "float64" if dtype == "float64" else "float32"
    return ops.cast(keras.initializers.Orthogonal()(shape, full), dtype or full)


@keras.saving.register_keras_serializable("keras_plm")
class LSTM(keras.layers.Layer):
    """A long short-term memory in one direction, with the outputs of all steps.

    It computes `keras.layers.LSTM(units, return_sequences=True)` with the gates in the order i, j,
    f, o. It is faster on CPUs, where Keras has no kernel. It takes no mask: right padding does not
    change earlier outputs.

    Reference: Hochreiter and Schmidhuber 1997; Gers et al. 2000; initial forget bias 1: Jozefowicz
    et al. 2015.

    Args:
        units: Number of cells n.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, n).

    Raises:
        ValueError: If `units` is less than 1.

    >>> import numpy as np
    >>> tuple(LSTM(units=3)(np.ones((2, 5, 4))).shape)
    (2, 5, 3)
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if units < 1:
            raise ValueError(f"`units` must be 1 or more. Received: units={units}")
        self.units = units

    def build(self, inputs_shape):
        n = self.units
        shapes = {"kernel": inputs_shape[-1], "recurrent_kernel": n}
        initializers = {"kernel": "glorot_uniform", "recurrent_kernel": orthogonal}
        for name, rows in shapes.items():
            weight = self.add_weight(name=name, shape=(rows, 4 * n), initializer=initializers[name])
            setattr(self, name, weight)
        self.bias = self.add_weight(name="bias", shape=(4 * n,), initializer=_forget_gate_at_1)

    def call(self, inputs: Tensor) -> Tensor:
        weights = _tensors(self, self.kernel, self.recurrent_kernel, self.bias)
        steps = ops.transpose(ops.cast(inputs, self.compute_dtype), (1, 0, 2))  # (T, B, D)
        batch = ops.shape(inputs)[0]
        state = ops.zeros((batch, self.units), self.compute_dtype)
        ms, _ = lstm(steps, *weights, None, (state, ops.cast(state, "float32")))
        return ops.transpose(ms, (1, 0, 2))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((*inputs.shape[:2], self.units), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def _forget_gate_at_1(shape, dtype=None):
    """Returns the initial bias (4 n,): 1 for the forget gate, 0 for the other gates."""
    return ops.convert_to_tensor(np.repeat([0.0, 0.0, 1.0, 0.0], shape[0] // 4), dtype=dtype)


def _tensors(layer, *weights):
    """Converts weights to tensors of a layer's compute type, for the hand-written gradient."""
    return [ops.convert_to_tensor(weight, dtype=layer.compute_dtype) for weight in weights]


@keras.saving.register_keras_serializable("keras_plm")
class ProjectedLSTM(keras.layers.Layer):
    """ELMo's LSTM: clipped cells and a narrow, clipped projection as output.

    The next step and the next layer read only the projection. Weights have the layout of the
    released files: `kernel` (D, 4 n) above `recurrent_kernel` (P, 4 n) is `W_0`, `bias` (4 n,) is
    `B`, and `projection` (n, P) is `W_P_0`. Columns are the gates i (input), j (candidate), f
    (forget) and o (output).

    Reference: Peters et al. 2018, section 3.4; Sak et al. 2014, arXiv 1402.1128, section 2;
    allenai/bilm-tf, training.py: `LSTMCell` without peepholes.

    Args:
        units: Number of cells n.
        projection_dim: Width P.
        cell_clip, projection_clip: Largest absolute value of a cell and of the projection; `None`
            for no limit.
        forget_bias: Added to the forget gate, not part of its stored bias.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.
        state: `(m, c)` before the first step, (B, P) and (B, n); zeros when omitted.
        return_state: If True, also return `(m, c)` after the last real step of each row, without
            gradient.

    Returns:
        (B, T, P), zero at padding; with `return_state` also `(m, c)`.

    Raises:
        ValueError: If a size or a clip is not positive.

    >>> import numpy as np
    >>> layer = ProjectedLSTM(units=6, projection_dim=3)
    >>> sequence, (m, c) = layer(np.ones((2, 5, 4)), return_state=True)
    >>> tuple(sequence.shape), tuple(m.shape), tuple(c.shape)
    ((2, 5, 3), (2, 3), (2, 6))
    """

    def __init__(
        self,
        units: int,
        projection_dim: int,
        cell_clip: float | None = 3.0,
        projection_clip: float | None = 3.0,
        forget_bias: float = 1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        for name, value in (
            ("units", units),
            ("projection_dim", projection_dim),
            ("cell_clip", cell_clip),
            ("projection_clip", projection_clip),
        ):
            if value is None and name.endswith("clip"):
                continue
            if value is None or value <= 0:
                raise ValueError(f"`{name}` must be above 0. Received: {name}={value}")
        self.units = units
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.forget_bias = forget_bias

    def build(self, inputs_shape, padding_mask_shape=None, state_shape=None):
        n, width, p = self.units, inputs_shape[-1], self.projection_dim
        # Glorot's limit for the two kernels as one matrix, as in `LSTMCell`.
        limit = (6 / (width + p + 4 * n)) ** 0.5
        for name, rows in (("kernel", width), ("recurrent_kernel", p)):
            initializer = keras.initializers.RandomUniform(-limit, limit)
            setattr(self, name, self.add_weight((rows, 4 * n), initializer, name=name))
        self.bias = self.add_weight((4 * n,), "zeros", name="bias")
        self.projection = self.add_weight((n, p), "glorot_uniform", name="projection")
        self.gate_bias = np.repeat([0.0, 0.0, self.forget_bias, 0.0], n).astype("float32")

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        state: tuple[Tensor, Tensor] | None = None,
        return_state: bool = False,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        padding_mask = given_mask(padding_mask, mask, inputs_mask)
        kernel, recurrent_kernel, bias, projection, gate_bias = _tensors(
            self, self.kernel, self.recurrent_kernel, self.bias, self.projection, self.gate_bias
        )
        if state is None:
            batch = ops.shape(inputs)[0]
            state = ops.zeros((batch, self.projection_dim)), ops.zeros((batch, self.units))
        state = ops.cast(state[0], self.compute_dtype), ops.cast(state[1], "float32")
        steps = ops.transpose(ops.cast(inputs, self.compute_dtype), (1, 0, 2))  # (T, B, D)
        clips = self.cell_clip, self.projection_clip
        weights = kernel, recurrent_kernel, bias + gate_bias, projection
        ms, cs = lstm(steps, *weights, state, *clips)
        sequence = ops.transpose(ms, (1, 0, 2))  # (B, T, P)
        if padding_mask is not None:
            sequence = sequence * ops.cast(padding_mask, sequence.dtype)[..., None]
        if not return_state:
            return sequence
        if padding_mask is None:
            last = ms[-1], cs[-1]
        else:
            places = _lengths(padding_mask)[None, :, None]  # (1, B, 1)
            last = [
                ops.where(
                    places[0] > 0,
                    ops.take_along_axis(x, ops.maximum(places - 1, 0), axis=0)[0],
                    first,
                )
                for x, first in zip((ms, cs), state, strict=True)
            ]
        return sequence, tuple(ops.stop_gradient(x) for x in last)

    def compute_output_spec(
        self,
        inputs,
        padding_mask=None,
        state=None,
        return_state=False,
        mask=None,
        inputs_mask=None,
    ):
        batch, length, _ = inputs.shape
        sequence = keras.KerasTensor((batch, length, self.projection_dim), self.compute_dtype)
        if not return_state:
            return sequence
        m = keras.KerasTensor((batch, self.projection_dim), self.compute_dtype)
        return sequence, (m, keras.KerasTensor((batch, self.units), "float32"))

    def get_config(self):
        names = ("units", "projection_dim", "cell_clip", "projection_clip", "forget_bias")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("keras_plm")
class LSTMStack(keras.layers.Layer):
    """A stack of projected LSTMs: one direction of ELMo's biLM.

    From the second layer on, the output is the sum of the LSTM's output and its input. The carried
    state is only that of the LSTM. Dropout applies to the input of each layer, also in the sum.

    Reference: Peters et al. 2018, section 3.4; allenai/bilm-tf, training.py.

    Args:
        num_layers: Number of layers L.
        units, projection_dim, cell_clip, projection_clip: As in `ProjectedLSTM`.
        use_skip_connections: If False, no input is added to an output.
        dropout: Fraction of each layer's input dropped in training.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real positions, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.
        go_backwards: If True, read each row from its end. Outputs keep the order of the inputs.

    Returns:
        A list of L tensors (B, T, P), lowest first, zero at padding.

    Raises:
        ValueError: If `num_layers` is less than 1.

    >>> import numpy as np
    >>> layers = LSTMStack(num_layers=2, units=6, projection_dim=3)(np.ones((2, 5, 3)))
    >>> len(layers), tuple(layers[1].shape)
    (2, (2, 5, 3))
    """

    def __init__(
        self,
        num_layers: int,
        units: int,
        projection_dim: int,
        cell_clip: float | None = 3.0,
        projection_clip: float | None = 3.0,
        use_skip_connections: bool = True,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if num_layers < 1:
            raise ValueError(f"`num_layers` must be 1 or more. Received: num_layers={num_layers}")
        self.num_layers = num_layers
        self.units = units
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.use_skip_connections = use_skip_connections
        self.dropout = dropout
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        self.layers = [
            ProjectedLSTM(
                units,
                projection_dim,
                cell_clip,
                projection_clip,
                dtype=self.dtype_policy,
                name=f"layer_{i}",
            )
            for i in range(num_layers)
        ]

    def build(self, inputs_shape, padding_mask_shape=None):
        shape = inputs_shape
        for layer in self.layers:
            layer.build(shape)
            shape = (*inputs_shape[:-1], self.projection_dim)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        go_backwards: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> list[Tensor]:
        padding_mask = mask if padding_mask is None else padding_mask
        return self.run(inputs, padding_mask, go_backwards, training)[0]

    def run(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        go_backwards: bool = False,
        training: bool | None = None,
        states: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """Computes the outputs of a call, and the states after the last step.

        Args:
            inputs, padding_mask, go_backwards, training: As in a call.
            states: `(m, c)` of each layer before the first step; zeros when omitted. The
                result then has no states.

        Returns:
            `(outputs, states)`.
        """
        x, outputs, after = inputs, [], []
        if go_backwards:
            x = reverse_rows(x, padding_mask)
        for i, layer in enumerate(self.layers):
            x = given = self.drop(x, training=training)
            if states is None:
                x = layer(x, padding_mask=padding_mask)
            else:
                x, state = layer(x, padding_mask=padding_mask, state=states[i], return_state=True)
                after.append(state)
            if i and self.use_skip_connections:
                x = x + given
            outputs.append(reverse_rows(x, padding_mask) if go_backwards else x)
        return outputs, after

    def compute_mask(self, inputs, previous_mask):
        return [previous_mask] * self.num_layers

    def compute_output_spec(
        self, inputs, padding_mask=None, go_backwards=False, training=None, mask=None
    ):
        shape = (*inputs.shape[:2], self.projection_dim)
        return [keras.KerasTensor(shape, dtype=self.compute_dtype) for _ in self.layers]

    def get_config(self):
        names = ("num_layers", "units", "projection_dim", "cell_clip", "projection_clip")
        names += ("use_skip_connections", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("keras_plm")
class CarriedStates(keras.layers.Layer):
    """An `LSTMStack` that starts each row with the final state of the previous batch.

    Each step of `fit` or `predict` updates the states. Files do not contain them. A batch with
    fewer rows leaves the other states unchanged.

    Reference: allenai/bilm-tf, model.py and training.py.

    Args:
        stack: The `LSTMStack`.
        rows: Largest number of rows of a batch.

    Call arguments:
        inputs, padding_mask, go_backwards: As in `LSTMStack`.

    Returns:
        A list of L tensors (B, T, P), as `LSTMStack`.

    Raises:
        ValueError: If `rows` is less than 1, or a batch has more.

    >>> import numpy as np
    >>> from keras import ops
    >>> layer = CarriedStates(LSTMStack(num_layers=1, units=6, projection_dim=3), rows=2)
    >>> first, second = (ops.convert_to_numpy(layer(np.ones((2, 5, 3)))[0]) for _ in range(2))
    >>> bool(np.allclose(first, second))  # the second batch does not start with zeros
    False
    """

    def __init__(self, stack: LSTMStack, rows: int, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if rows < 1:
            raise ValueError(f"`rows` must be 1 or more. Received: rows={rows}")
        self.stack = stack
        self.rows = rows
        # In a box, because Keras would treat the states as weights.
        self._box = types.SimpleNamespace(states=[])

    def build(self, inputs_shape, padding_mask_shape=None):
        if not self.stack.built:
            self.stack.build(inputs_shape)
        sizes = {"m": self.stack.projection_dim, "c": self.stack.units}
        self._box.states = [
            tuple(
                keras.Variable(np.zeros((self.rows, size), "float32"), trainable=False, name=name)
                for name, size in sizes.items()
            )
            for _ in self.stack.layers
        ]

    @property
    def states(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Variables `(m, c)` of each layer, (rows, P) and (rows, n)."""
        return list(self._box.states)

    @property
    def variables(self):
        """Variables that a batch may change: weights, seeds and the states."""
        return [*super().variables, *keras.tree.flatten(self._box.states)]

    def reset(self) -> None:
        """Sets all states to zero."""
        for variable in keras.tree.flatten(self._box.states):
            variable.assign(np.zeros(variable.shape, "float32"))

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        go_backwards: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> list[Tensor]:
        padding_mask = mask if padding_mask is None else padding_mask
        rows = inputs.shape[0]
        if rows is not None and rows > self.rows:
            raise ValueError(
                "A batch must have at most as many rows as states are carried for. "
                f"Received: a batch of {rows} rows, rows={self.rows}"
            )
        rows = ops.shape(inputs)[0]
        # Copies, because torch changes a variable in place before its gradient is computed.
        before = [
            tuple(ops.copy(ops.convert_to_tensor(variable)[:rows]) for variable in pair)
            for pair in self._box.states
        ]
        outputs, after = self.stack.run(inputs, padding_mask, go_backwards, training, before)
        for variable, value in zip(
            keras.tree.flatten(self._box.states), keras.tree.flatten(after), strict=True
        ):
            others = ops.convert_to_tensor(variable)[rows:]
            variable.assign(ops.concatenate([ops.cast(value, "float32"), others], axis=0))
        return outputs

    def compute_mask(self, inputs, previous_mask):
        return self.stack.compute_mask(inputs, previous_mask)

    def compute_output_spec(
        self, inputs, padding_mask=None, go_backwards=False, training=None, mask=None
    ):
        return self.stack.compute_output_spec(inputs)

    def get_config(self):
        stack = keras.saving.serialize_keras_object(self.stack)
        return {**super().get_config(), "stack": stack, "rows": self.rows}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "stack": keras.saving.deserialize_keras_object(config["stack"])})
