"""The encoder contract: the parts that heads, `transfer`, pre-training and the harness use."""

import re
from typing import Any

import keras
from keras import ops

from keras_plm.files.saveable import Saveable
from keras_plm.tokenizers.subwords import check_tokenizer


class Encoder(Saveable, keras.Model):
    """A Keras model from a tokenizer's ids to a vector of every position and layer.

    All encoders of this package are subclasses. Your own subclass works under heads, in
    `keras_plm.transfer`, in pre-training and in the harness if it keeps this contract (B texts, T
    positions, D width, L layers, V tokens, C characters):

    | part | meaning | default |
    |---|---|---|
    | `input` | dict with exactly the keys of the tokenizer's `pack`: `padding_mask` (B, T), True at real positions, with `token_ids` (B, T), `segment_ids` (B, T) or `character_ids` (B, T, C) | |
    | `output["layers"]` | list of L + 1 tensors (B, T, D), the lowest first | |
    | `output["sequence"]` | `layers[-1]`, after any final norm | |
    | `output["pooled"]` | (B, D), one vector of the text | absent |
    | `hidden_dim` | D | of the outputs |
    | `num_blocks` | number of blocks with separate weights | L |
    | `vocabulary_size` | V, or `None` where words enter as characters | `None` |
    | `max_sequence_length` | most positions T, or `None` for any length | `None` |
    | `causal` | True if a position attends only to itself and earlier ones; padding comes last | False |
    | `token_embedding` | `keras_plm.layers.TokenEmbedding` of the ids, for pre-training and generation, or `None`; `token_embedding(sequence, reverse=True)` returns logits | `None` |
    | `carried_rows` | number of rows with states carried to the next batch; 0 for none | 0 |
    | `stacked_layers()` | model from `input` to all layers (B, T, L + 1, D) | of `output` |
    | paths of weights | `block_<i>/` or `layer_<i>/` with i from 0 to L - 1, for learning rates and copies by layer | |
    | names of layers | each layer has a `name`; `keras_plm.save` stores weights by their paths | |
    | `get_config()` | arguments of the class, including `dropout`, `dtype` and `trainable`: copies may change them | |

    Call `super().__init__` with the functional graph, and set attributes after it.

    Args:
        inputs: The dict of `keras.Input`.
        outputs: The dict of symbolic tensors.
        name: Name of the model.
        **kwargs: Other arguments of `keras.Model`.

    Call arguments:
        inputs: A dict with the keys of `input`. Arrays of other keys are not read.

    Returns:
        A dict with the keys of `output`.

    Raises:
        ValueError: If the inputs or outputs lack a part.

    >>> import keras
    >>> @keras.saving.register_keras_serializable("examples")
    ... class BagOfTokens(Encoder):
    ...     def __init__(
    ...         self, vocabulary_size, hidden_dim, dropout=0.1, trainable=True, dtype=None, name=None
    ...     ):
    ...         inputs = {
    ...             "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
    ...             "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
    ...         }
    ...         words = keras.layers.Embedding(
    ...             vocabulary_size, hidden_dim, dtype=dtype, name="words"
    ...         )
    ...         drop = keras.layers.Dropout(dropout, dtype=dtype, name="dropout")
    ...         x = drop(words(inputs["token_ids"]))
    ...         super().__init__(inputs, {"sequence": x, "layers": [x]}, name=name)
    ...         self.dtype_policy = words.dtype_policy
    ...         self.vocabulary_size, self.dropout = vocabulary_size, dropout
    ...         self.trainable = trainable
    ...
    ...     def get_config(self):
    ...         names = ("vocabulary_size", "hidden_dim", "dropout", "trainable", "name")
    ...         config = {name: getattr(self, name) for name in names}
    ...         return {**config, "dtype": self.dtype_policy.name}
    >>> encoder = BagOfTokens(13, 8)
    >>> encoder.hidden_dim, encoder.num_blocks, encoder.causal
    (8, 0, False)
    >>> copy = BagOfTokens.from_config({**encoder.get_config(), "dtype": "mixed_bfloat16"})
    >>> copy.get_config() == {**encoder.get_config(), "dtype": "mixed_bfloat16"}
    True
    """  # noqa: E501

    causal = False
    max_sequence_length = None
    vocabulary_size = None
    carried_rows = 0

    def __init__(
        self,
        inputs: dict[str, keras.KerasTensor],
        outputs: dict[str, Any],
        name: str | None = None,
        **kwargs,
    ):
        missing = _missing(inputs, outputs)
        if missing:
            raise ValueError(
                f"An encoder must have {missing}, see `keras_plm.models.Encoder`. "
                f"Received: inputs={inputs!r:.80}, outputs={outputs!r:.80}"
            )
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.hidden_dim = outputs["sequence"].shape[-1]
        self.num_blocks = len(outputs["layers"]) - 1
        self.token_embedding = None  # not a class attribute: torch would find that first

    def stacked_layers(self) -> keras.Model:
        """Returns a model from the inputs to all layers, one float32 tensor (B, T, L + 1, D)."""
        stacked = ops.stack(self.output["layers"], axis=2)
        return keras.Model(self.input, ops.cast(stacked, "float32"))


def check_encoder(encoder, tokenizer=None):
    """Raises unless `encoder` is an `Encoder`, and `tokenizer`, if given, packs texts.

    Raises:
        TypeError: If one of them has another type.
    """
    if not isinstance(encoder, Encoder):
        inputs, outputs = (getattr(encoder, name, None) for name in ("input", "output"))
        missing = _missing(inputs, outputs) or "the base class, which sets its attributes"
        raise TypeError(
            "`encoder` must be a `keras_plm.models.Encoder`, such as `BERT`; "
            "`encoder, tokenizer = keras_plm.load(folder)` loads both. "
            f"Received: encoder={encoder!r:.60} of type {type(encoder).__name__}, "
            f"without {missing}"
        )
    if tokenizer is not None:
        check_tokenizer(tokenizer)


def check_causal(encoder, user):
    """Raises unless an encoder predicts next tokens.

    Args:
        encoder: The encoder.
        user: Name of the class or function that needs it, for errors.

    Raises:
        ValueError: If it is not causal or has no `token_embedding`.
    """
    if not isinstance(encoder, Encoder) or not encoder.causal or encoder.token_embedding is None:
        raise ValueError(
            f"`{user}` needs a causal encoder with a `token_embedding`, such as `GPT`. "
            f"Received: {type(encoder).__name__}"
        )


def _missing(inputs, outputs):
    """Names the first part of the contract that inputs and outputs lack, or returns `None`."""
    if not isinstance(inputs, dict) or "padding_mask" not in inputs:
        return "a dict of inputs with `padding_mask`"
    if not isinstance(outputs, dict):
        return "a dict of outputs"
    for name in ("sequence", "layers"):
        if name not in outputs:
            return f"an output `{name}`"
    layers = outputs["layers"]
    if not isinstance(layers, list | tuple) or len({tuple(x.shape) for x in layers}) != 1:
        return "a list of tensors of one shape (B, T, D) as output `layers`"
    return None


# Names of weights above the last layer, here and in KerasHub.
AT_TOP = re.compile(r"(?:pooler|final_norm|pooled_dense)/|^layer_norm/")
# Names of weights of the i-th block, here and in KerasHub (such as `transformer_layer_<i>`).
BLOCK = re.compile(r"(?:block|layer)_(\d+)/")


def weight_depths(encoder):
    """Returns a dict from the path of each weight of an encoder to its depth.

    The depth is i + 1 in `block_<i>` or `layer_<i>`, `None` in a pooler and a final norm, and 0
    elsewhere (embeddings).

    Raises:
        ValueError: If the encoder does not number its blocks in their names.
    """
    depths = {}
    for weight in encoder.weights:
        block = BLOCK.search(weight.path)
        at_top = AT_TOP.search(weight.path)
        depths[weight.path] = None if at_top else int(block[1]) + 1 if block else 0
    found = sorted({depth - 1 for depth in depths.values() if depth})
    count = encoder.num_blocks if isinstance(encoder, Encoder) else max(len(found), 1)
    if found != list(range(count)):
        names = list(dict.fromkeys(path.rpartition("/")[0] for path in depths))
        names = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise ValueError(
            f"The {count} blocks of an encoder must be layers named `block_0`, `block_1`, ... or "
            f"`layer_0`, `layer_1`, ... Received: blocks {found} among {names}"
        )
    return depths
