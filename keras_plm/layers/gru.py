"""Gated recurrent networks for translation: a bidirectional encoder, a decoder with attention.

Shapes: B batch, T target steps, S source steps, E embedding width, n units, M memory width.
"""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.dense import Dense
from keras_plm.layers._fused.scan import scan
from keras_plm.layers.attention import Attention
from keras_plm.layers.lstm import orthogonal
from keras_plm.layers.masks import check_masks, combine_masks, given_mask


@keras.saving.register_keras_serializable("keras_plm")
class Orthogonal(keras.initializers.Initializer):
    """Square orthogonal blocks side by side, (..., n, k n): the recurrent kernels of k gates."""

    def __call__(self, shape, dtype=None):
        *outer, rows, columns = shape
        if outer:
            return ops.stack([self((*outer[1:], rows, columns), dtype) for _ in range(outer[0])])
        return ops.concatenate(
            [orthogonal((rows, rows), dtype) for _ in range(columns // rows)], axis=1
        )


def gru_step(state, inputs, gates_kernel, candidate_kernel):
    """Computes one step of a gated recurrent unit, `h' = (1 - z) h + z h̃`.

    Reference: Cho et al. 2014, arXiv 1406.1078, section 2.3; Bahdanau et al. 2015, appendix A.1.1,
    for the convention of z.

    Args:
        state: (..., n).
        inputs: (..., 3 n), the terms of the update gate z, the reset gate r and the candidate h̃
            without the state, including biases.
        gates_kernel: (n, 2 n), of z and r.
        candidate_kernel: (n, n).

    Returns:
        (..., n).
    """
    units = state.shape[-1]
    gates = ops.sigmoid(inputs[..., : 2 * units] + ops.matmul(state, gates_kernel))
    update, reset = gates[..., :units], gates[..., units:]
    candidate = ops.matmul(reset * state, candidate_kernel)
    candidate = ops.tanh(inputs[..., 2 * units :] + candidate)
    return state + update * (candidate - state)


@keras.saving.register_keras_serializable("keras_plm")
class BidirectionalGRU(keras.layers.Layer):
    """A forward and a backward GRU, in one loop.

    One matrix product projects the inputs of all steps. Padding leaves the state unchanged, so the
    backward direction starts at the real end of each text.

    Reference: Bahdanau et al. 2015, arXiv 1409.0473, appendix A.2.1.

    Args:
        units: Width n of each direction.

    Call arguments:
        inputs: (B, S, E).
        padding_mask: (B, S), True at real positions. When omitted, the mask that Keras attached
            to the inputs, if any.

    Returns:
        `(sequence, forward, backward)`: the annotations (B, S, 2 n), forward half first, and the
        last state (B, n) of each direction.

    Raises:
        ValueError: If `units` is less than 1.

    >>> import numpy as np
    >>> sequence, forward, backward = BidirectionalGRU(units=3)(np.ones((2, 5, 4)))
    >>> tuple(sequence.shape), tuple(backward.shape)
    ((2, 5, 6), (2, 3))
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        if units < 1:
            raise ValueError(f"`units` must be 1 or more. Received: units={units}")
        self.units = units

    def build(self, inputs_shape):
        n = self.units
        # Update, reset and candidate of the forward direction, then of the backward direction.
        self.input_projection = Dense(6 * n, dtype=self.dtype_policy, name="input_projection")
        self.input_projection.build(inputs_shape)
        self.gates_kernel = self.add_weight(
            name="gates_kernel", shape=(2, n, 2 * n), initializer=Orthogonal()
        )
        self.candidate_kernel = self.add_weight(
            name="candidate_kernel", shape=(2, n, n), initializer=Orthogonal()
        )

    def call(
        self, inputs: Tensor, padding_mask: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        n = self.units
        padding_mask = given_mask(padding_mask, mask)
        if padding_mask is not None:
            check_masks(padding_mask, None, inputs.shape[0], inputs.shape[1], inputs.shape[1])
        projected = ops.transpose(self.input_projection(inputs), (1, 0, 2))  # (S, B, 6 n)
        ahead, back = projected[..., : 3 * n], ops.flip(projected[..., 3 * n :], axis=0)
        steps = (ops.stack([ahead, back], axis=1),)  # (S, 2, B, 3 n)
        if padding_mask is not None:
            real = ops.transpose(ops.cast(padding_mask, projected.dtype))  # (S, B)
            real = ops.stack([real, ops.flip(real, axis=0)], axis=1)[..., None]  # (S, 2, B, 1)
            steps = (*steps, real)

        def step(state, inputs):
            (old,) = state
            new = gru_step(old, inputs[0], self.gates_kernel, self.candidate_kernel)
            return (old + inputs[1] * (new - old),) if padding_mask is not None else (new,)

        start = ops.zeros((2, ops.shape(inputs)[0], n), dtype=projected.dtype)
        (states,) = scan(step, (start,), steps)  # (S, 2, B, n)
        sequence = ops.concatenate([states[:, 0], ops.flip(states[:, 1], axis=0)], axis=-1)
        return ops.transpose(sequence, (1, 0, 2)), states[-1, 0], states[-1, 1]

    def compute_output_spec(self, inputs, padding_mask=None, mask=None):
        batch, length, _ = inputs.shape
        shapes = ((batch, length, 2 * self.units), (batch, self.units), (batch, self.units))
        return tuple(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("keras_plm")
class AttentionDecoder(keras.layers.Layer):
    """A GRU decoder whose gates read a context vector of the source.

    With attention, the previous state queries the annotations of the source at each step. Without
    it, the context is one vector for all steps. Steps run one after the other; attention adds time
    in T · S.

    Reference: Bahdanau et al. 2015, arXiv 1409.0473, appendix A.1.2 and A.2.2; without attention
    Cho et al. 2014, arXiv 1406.1078, section 2.2.

    Args:
        units: Width n of the state.
        attention: A `keras_plm.layers.Attention` with `dropout=0`, or `None`.

    Call arguments:
        inputs: (B, T, E), the embeddings of the previous tokens.
        state: (B, n), the state before the first step.
        source: (B, S, M) annotations; without attention (B, M), one vector.
        key: (B, S, D_key), the vectors to score; `source` when omitted.
        padding_mask: (B, S), True at real source positions. When omitted, the mask that Keras
            attached to `source`, if any.
        memory: Result of `prepare(source, key, padding_mask)`, in place of these three.

    Returns:
        `(states, contexts)`, (B, T, n) and (B, T, M); with attention also the weights (B, T, S).

    Raises:
        ValueError: If `attention` is of another type, or has dropout.

    >>> import numpy as np
    >>> from keras_plm.layers import AdditiveAttention
    >>> decoder = AttentionDecoder(units=3, attention=AdditiveAttention(units=4))
    >>> states, contexts, weights = decoder(
    ...     np.ones((2, 5, 4)), state=np.zeros((2, 3)), source=np.ones((2, 7, 6))
    ... )
    >>> tuple(states.shape), tuple(contexts.shape), tuple(weights.shape)
    ((2, 5, 3), (2, 5, 6), (2, 5, 7))
    """

    def __init__(self, units: int, attention: Attention | None = None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(attention, Attention | None):
            raise ValueError(
                "`attention` must be of `keras_plm.layers.Attention`'s family, with one score "
                f"for a query and a key, or None. Received: attention={attention!r}"
            )
        if getattr(attention, "dropout", 0):
            raise ValueError(
                "The attention of a recurrent decoder must have no dropout. "
                f"Received: dropout={attention.dropout}"
            )
        self.supports_masking = True
        self.units = units
        self.attention = attention

    def build(self, inputs_shape, state_shape, source_shape, key_shape=None):
        n = self.units

        def dense(name, shape, **options):
            layer = Dense(3 * n, dtype=self.dtype_policy, name=name, **options)
            layer.build(shape)
            return layer

        self.input_projection = dense("input_projection", inputs_shape)
        self.context_projection = dense("context_projection", source_shape, use_bias=False)
        self.gates_kernel = self.add_weight(
            name="gates_kernel", shape=(n, 2 * n), initializer=Orthogonal()
        )
        self.candidate_kernel = self.add_weight(
            name="candidate_kernel", shape=(n, n), initializer=Orthogonal()
        )
        if self.attention is not None and not self.attention.built:
            self.attention.build((state_shape[0], None, n), source_shape, key_shape)

    def prepare(
        self, source: Tensor, key: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Computes the part of every step that depends only on the source: a dict of tensors."""
        if self.attention is None:
            return {"context": source, "gates": self.context_projection(source)}
        key = self.attention.prepare(source if key is None else key)
        memory = {"value": source, "key": key}
        return memory if padding_mask is None else {**memory, "padding_mask": padding_mask}

    def call(
        self,
        inputs: Tensor,
        state: Tensor,
        source: Tensor | None = None,
        key: Tensor | None = None,
        padding_mask: Tensor | None = None,
        memory: dict[str, Tensor] | None = None,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        padding_mask = given_mask(padding_mask, source_mask)
        memory = self.prepare(source, key, padding_mask) if memory is None else memory
        projected = ops.transpose(self.input_projection(inputs), (1, 0, 2))  # (T, B, 3 n)
        kernels = self.gates_kernel, self.candidate_kernel
        if self.attention is None:

            def plain_step(state, inputs):
                return (gru_step(state[0], inputs[0] + memory["gates"], *kernels),)

            (states,) = scan(plain_step, (state,), (projected,))  # (T, B, n)
            states, context = ops.transpose(states, (1, 0, 2)), memory["context"]
            everywhere = (*ops.shape(states)[:2], context.shape[-1])
            return states, ops.broadcast_to(context[:, None], everywhere)

        value, key = memory["value"], memory["key"]
        mask, kind = combine_masks(memory.get("padding_mask")), self.compute_dtype

        def step(state, inputs):
            found = self.attention.attend(state[0][:, None], value, key, mask)
            context, weights = (ops.cast(x[:, 0], kind) for x in found)  # (B, M), (B, S)
            gates = inputs[0] + self.context_projection(context)
            return gru_step(state[0], gates, *kernels), context, weights

        empty = (ops.zeros_like(x, dtype=kind) for x in (value[:, 0], value[:, :, 0]))
        start = (state, *empty)
        outputs = scan(step, start, (projected,))
        return tuple(ops.transpose(x, (1, 0, 2)) for x in outputs)

    def compute_output_spec(
        self, inputs, state, source=None, key=None, padding_mask=None, memory=None, source_mask=None
    ):
        batch, length, _ = inputs.shape
        shapes = [(batch, length, self.units), (batch, length, source.shape[-1])]
        if self.attention is not None:
            shapes.append((batch, length, source.shape[1]))
        return tuple(keras.KerasTensor(shape, dtype=self.compute_dtype) for shape in shapes)

    def get_config(self):
        attention = self.attention and keras.saving.serialize_keras_object(self.attention)
        return {**super().get_config(), "units": self.units, "attention": attention}

    @classmethod
    def from_config(cls, config):
        attention = config["attention"]
        if isinstance(attention, dict):
            attention = keras.saving.deserialize_keras_object(attention)
        return cls(**{**config, "attention": attention})
