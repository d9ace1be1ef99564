"""Decoding by its definition: each step reads the whole text again."""

import keras
from keras import ops


def without_cache(model):
    """Returns `prefill` and `decode_step` of a model by its definition; takes quadratic time.

    Args:
        model: A model from `inputs` with `target_ids` (B, T) to logits (B, T, V), or a causal
            encoder such as `GPT`.
    """
    return _Continuing(model) if getattr(model, "causal", False) else _Translating(model)


class _Translating:
    """Decoding with an encoder-decoder: the state is the text so far."""

    def __init__(self, model):
        self.model = model

    def prefill(self, inputs, max_new_tokens):
        batch = keras.tree.flatten(inputs)[0].shape[0]
        return inputs, ops.zeros((batch, max_new_tokens), dtype="int32")

    def decode_step(self, token_ids, state, memory, index):
        state = ops.slice_update(state, (0, index), ops.cast(token_ids, "int32")[:, None])
        inputs = {**memory, "target_ids": state}
        if isinstance(getattr(self.model, "input", None), dict):
            inputs = {name: x for name, x in inputs.items() if name in self.model.input}
        logits = self.model(inputs)  # (B, U, V)
        return ops.take(logits, index, axis=1), state


class _Continuing:
    """Decoding with a causal encoder: the state is the prompt and the text so far."""

    def __init__(self, model):
        self.model = model

    def prefill(self, inputs, max_new_tokens):
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=1)
        prompts = ops.cast(inputs["token_ids"], "int32")
        written = ops.zeros((prompts.shape[0], max_new_tokens), dtype="int32")
        text = ops.concatenate([prompts, written], axis=1)
        return {"lengths": lengths}, text[:, : self.model.max_sequence_length]

    def decode_step(self, token_ids, state, memory, index):
        lengths = memory["lengths"][:, None] + index  # tokens to read
        positions = ops.arange(state.shape[1], dtype="int32")
        new = ops.logical_and(index > 0, positions == lengths - 1)
        state = ops.where(new, ops.cast(token_ids, "int32")[:, None], state)
        sequence = self.model({"token_ids": state, "padding_mask": positions < lengths})["sequence"]
        last = ops.take_along_axis(sequence, lengths[..., None] - 1, axis=1)
        return self.model.token_embedding(last, reverse=True)[:, 0], state
