"""Encoder-decoders: their base class, and the recurrent models with and without attention."""

from typing import Any

import keras
from keras import ops

from keras_plm.files.saveable import saved_policy
from keras_plm.files.sequences import Tensor
from keras_plm.layers import (
    AdditiveAttention,
    Attention,
    AttentionDecoder,
    BidirectionalGRU,
    BilinearAttention,
    CosineAttention,
    Dense,
    DotProductAttention,
    Dropout,
    ScaledDotProductAttention,
    TokenEmbedding,
)
from keras_plm.training.fit import FitsBatches
from keras_plm.training.losses import TokenCrossEntropy

# Bahdanau et al. 2015, appendix A.2.3; the smaller sizes are our own.
SEQ2SEQ_SIZES = {
    "tiny": {"embedding_dim": 64, "hidden_dim": 64},
    "small": {"embedding_dim": 128, "hidden_dim": 128},
    "medium": {"embedding_dim": 256, "hidden_dim": 256},
    "original": {"embedding_dim": 620, "hidden_dim": 1000},
}


class EncoderDecoder(FitsBatches, keras.Model):
    """Base class of models that read a source and write a target token by token.

    Train it with teacher forcing: `fit` on `translation_batches`. `keras_plm.decoding` calls two
    methods of a subclass:

    - `prefill(inputs, max_new_tokens) -> (memory, state)` reads the source. Both are structures of
      tensors with the batch first. `memory` is constant. It may also have functions, for all rows,
      with the weights of this call.
    - `decode_step(token_ids, state, memory, index) -> (logits, state)` computes one more token for
      each row, from (B,) ids to (B, V) logits. `index` counts from 0.

    Call arguments:
        inputs: A dict of the source, `token_ids` (B, S) and `padding_mask` (B, S), and the target
            after a start token, `target_ids` (B, T).

    Returns:
        (B, T, V) logits of the token after each of `target_ids`.

    >>> from keras_plm.models import Transformer
    >>> model = Transformer(13, num_layers=1, num_heads=2, hidden_dim=8)
    >>> isinstance(model, EncoderDecoder), sorted(model.input)
    (True, ['padding_mask', 'target_ids', 'token_ids'])
    """

    def compile(
        self, optimizer="adam", loss=None, weighted_metrics=None, label_smoothing=0.0, **kwargs
    ):
        """Configures training as `keras.Model.compile`, with cross-entropy and accuracy by default.

        Args:
            optimizer, loss, weighted_metrics, **kwargs: As in `keras.Model.compile`.
            label_smoothing: Label smoothing of the default loss, from 0 to 1.

        Raises:
            ValueError: If both a `loss` and `label_smoothing` are given.
        """
        if loss is not None and label_smoothing:
            raise ValueError(
                "`label_smoothing` is an argument of the default loss: set it in your own loss. "
                f"Received: label_smoothing={label_smoothing} and loss={loss!r}"
            )
        if loss is None:
            loss = TokenCrossEntropy(label_smoothing=label_smoothing)
        if weighted_metrics is None:
            weighted_metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    @staticmethod
    def make_inputs() -> dict[str, keras.KerasTensor]:
        """Creates the symbolic inputs of a call."""
        return {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
            "target_ids": keras.Input((None,), dtype="int32", name="target_ids"),
        }


def make_attention(name, units, dtype=None):
    """Creates the attention of a recurrent decoder by the name of its score, `None` for none.

    Raises:
        ValueError: If the name is unknown.
    """
    scores = {
        None: lambda **options: None,
        "dot": DotProductAttention,
        "scaled_dot": ScaledDotProductAttention,
        "bilinear": BilinearAttention,
        # Plain cosines give nearly uniform weights; a temperature of 0.1 sharpens them.
        "cosine": lambda **o: CosineAttention(temperature=0.1, learn_temperature=True, **o),
        "additive": lambda **options: AdditiveAttention(units, **options),
    }
    if name not in scores:
        known = ", ".join(repr(score) for score in scores)
        raise ValueError(
            f"`attention` must be a layer or one of {known}. Received: attention={name!r}"
        )
    return scores[name](dtype=dtype, name="attention")


@keras.saving.register_keras_serializable("keras_plm")
class MaxoutScores(keras.layers.Layer):
    """The deep output of Bahdanau's decoder: a maxout over pairs of hidden units.

    Reference: Bahdanau et al. 2015, arXiv 1409.0473, appendix A.2.2; Goodfellow et al. 2013,
    arXiv 1302.4389.

    Args:
        units: Width l after the maxout.
        dropout: Fraction of the outputs dropped in training.

    Call arguments:
        inputs: (B, T, ...), the concatenation of state, embedding and context.

    Returns:
        (B, T, l).
    """

    def __init__(self, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = dropout
        self.hidden = Dense(2 * units, dtype=self.dtype_policy, name="hidden")
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, inputs_shape):
        self.hidden.build(inputs_shape)

    def call(self, inputs, training=None):
        hidden = self.hidden(inputs)
        pairs = ops.reshape(hidden, (*ops.shape(hidden)[:2], self.units, 2))
        best = ops.max(pairs, axis=-1)
        return self.drop(best, training=True) if training else best

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor((*inputs.shape[:-1], self.units), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}


@keras.saving.register_keras_serializable("keras_plm")
class Seq2Seq(EncoderDecoder):
    """The recurrent encoder-decoder, with one context vector or with soft attention.

    A GRU reads the source in both directions. Without attention, the decoder reads only the last
    states of both directions. With attention, each step of the decoder queries all annotations.
    Nothing else differs, so a comparison of the two measures the effect of attention.

    Reference: with attention Bahdanau et al. 2015, arXiv 1409.0473, appendix A ("RNNsearch");
    without Cho et al. 2014, arXiv 1406.1078, section 2.2 ("RNNencdec").

    Differs from the papers: without attention a GRU reads the source in both directions, not
    forward only; the maxout layer has the width of the embeddings; source and target share one
    vocabulary; initializers are Keras' defaults.

    Args:
        vocabulary_size: Number of tokens V of both languages.
        embedding_dim: Width E of the embeddings and of the maxout layer.
        hidden_dim: Width n of the decoder and of each direction of the encoder.
        attention: `None`, a score (`"additive"`, the paper's, `"dot"`, `"scaled_dot"`,
            `"bilinear"`, `"cosine"`) or an `Attention` layer. Dot products and cosines read the sum
            of both directions as keys.
        dropout: Fraction dropped of the embeddings, the annotations and the maxout layer.
        share_embeddings: If True, source, target and output share one table of tokens.
        trainable: If False, the model is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments and returns: As in `EncoderDecoder`.

    Raises:
        ValueError: If the attention is unknown.

    >>> import numpy as np
    >>> model = Seq2Seq(11, embedding_dim=4, hidden_dim=6, attention="additive")
    >>> source, target = np.array([[4, 5, 6, 3]]), np.array([[2, 7, 8]])
    >>> inputs = {"token_ids": source, "padding_mask": source > 0, "target_ids": target}
    >>> tuple(model(inputs).shape)
    (1, 3, 11)
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        attention: str | Attention | None = "additive",
        dropout: float = 0.0,
        share_embeddings: bool = False,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        if isinstance(attention, dict):
            attention = keras.saving.deserialize_keras_object(attention)
        layer = attention
        if attention is None or isinstance(attention, str):
            layer = make_attention(attention, hidden_dim, dtype)

        def embedding(name):
            return TokenEmbedding(vocabulary_size, embedding_dim, dtype=dtype, name=name)

        source_embedding = embedding("token_embedding")
        target_embedding = source_embedding if share_embeddings else embedding("target_embedding")
        output_embedding = source_embedding if share_embeddings else embedding("output_embedding")
        encoder = BidirectionalGRU(hidden_dim, dtype=dtype, name="encoder")
        bridge = Dense(hidden_dim, activation="tanh", dtype=dtype, name="bridge")
        decoder = AttentionDecoder(hidden_dim, layer, dtype=dtype, name="decoder")
        maxout = MaxoutScores(embedding_dim, dropout, dtype=dtype, name="maxout")
        drop_source = Dropout(dropout, dtype=dtype, name="drop_source")
        drop_target = Dropout(dropout, dtype=dtype, name="drop_target")
        drop_annotations = Dropout(dropout, dtype=dtype, name="drop_annotations")

        def read(token_ids, padding_mask):
            """Returns the decoder's arguments for a source, by name, and `s_0`."""
            x = drop_source(source_embedding(token_ids))
            sequence, forward, backward = encoder(x, padding_mask=padding_mask)
            state = bridge(backward)
            if layer is None:
                vector = ops.concatenate([forward, backward], axis=-1)  # (B, 2 n)
                return {"source": drop_annotations(vector)}, state
            given = {"source": drop_annotations(sequence), "padding_mask": padding_mask}
            if isinstance(layer, DotProductAttention):
                # States have width n, annotations 2 n. These scores have no weights: their keys
                # are the sum of both directions.
                ahead, back = ops.split(given["source"], 2, axis=-1)
                given["key"] = ahead + back  # (B, S, n)
            return given, state

        def write(target_ids, state, **source):
            """Returns the logits of the tokens after `target_ids`, the last state, the weights."""
            x = drop_target(target_embedding(target_ids))
            states, contexts, *weights = decoder(x, state=state, **source)
            before = ops.concatenate([state[:, None], states[:, :-1]], axis=1)  # s_(i - 1)
            hidden = maxout(ops.concatenate([before, x, contexts], axis=-1))
            return output_embedding(hidden, reverse=True), states[:, -1], *weights

        inputs = self.make_inputs()
        source, state = read(inputs["token_ids"], inputs["padding_mask"])
        logits, *_ = write(inputs["target_ids"], state, **source)
        super().__init__(inputs=inputs, outputs=logits, name=name)
        self.dtype_policy = encoder.dtype_policy

        self._read, self._write, self._decoder = read, write, decoder
        self.vocabulary_size = vocabulary_size
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.attention = attention
        self.dropout = dropout
        self.share_embeddings = share_embeddings
        self.trainable = trainable

    def prefill(self, inputs: dict[str, Tensor], max_new_tokens: int | None) -> tuple[Any, Any]:
        """See `EncoderDecoder`."""
        source, state = self._read(inputs["token_ids"], inputs["padding_mask"])
        return self._decoder.prepare(**source), state

    def decode_step(
        self, token_ids: Tensor, state: Any, memory: Any, index: int | Tensor
    ) -> tuple[Tensor, Any]:
        """See `EncoderDecoder`."""
        logits, state, *_ = self._write(token_ids[:, None], state, memory=memory)
        return logits[:, 0], state

    def attention_weights(self, inputs: dict[str, Tensor]) -> Tensor:
        """Computes attention weights (B, T, S) of target steps over the source, teacher-forced.

        Raises:
            ValueError: If the model has no attention.
        """
        if self.attention is None:
            raise ValueError(
                "Attention weights need a model with attention. Received: attention=None"
            )
        memory, state = self.prefill(inputs, None)
        return self._write(inputs["target_ids"], state, memory=memory)[2]

    def get_config(self):
        attention = self.attention
        if not (attention is None or isinstance(attention, str)):
            attention = keras.saving.serialize_keras_object(attention)
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "hidden_dim": self.hidden_dim,
            "attention": attention,
            "dropout": self.dropout,
            "share_embeddings": self.share_embeddings,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
        }
