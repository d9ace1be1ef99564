"""Classifier of a text or a pair of texts."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.files.arguments import check_one_of
from keras_plm.files.sequences import Tensor
from keras_plm.heads.encoded import Encoded, chosen_pool
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.readers import BiAttention
from keras_plm.heads.readers.reading import texts_of
from keras_plm.heads.task_network import Combine, Placement, TaskNetwork
from keras_plm.layers import Dropout, LayerChoice, Pooling
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer

PAIRS = (False, True, "pooled", "both_orders", "words")


@keras.saving.register_keras_serializable("keras_plm")
class Classifier(Head):
    """Classification head: one label for a text or a pair of texts.

    It is a Keras model with `compile`, `fit` on `model.batches(examples)`, and `evaluate`.
    `predict` takes texts and returns label names.

    Reference: Devlin et al. 2018, section 4.1 (dropout and one dense layer over the pooled
    vector); with `layers` and a `reader`, section 5.3.

    Args:
        encoder: An encoder; it is trained in place unless `frozen`.
        labels: Label names in the order of their ids.
        tokenizer: The encoder's tokenizer; needed for texts.
        layers: A `LayerChoice`; by default the last layer.
        pool: `"pooled"` (the encoder's own), `"cls"`, `"mean"`, `"max"` or `"last"` (the last
            token). The default for a trained encoder without `layers` is its own pooled output, or
            `"last"` for a causal encoder. Otherwise it is `"mean"`, with `pairs=True` `"max"`.
            Unused with a reader.
        reader: A layer from word vectors to word vectors, such as `readers.BiLSTM`, with a
            `pooling()`, by default the maximum; or a reader of two texts, such as `readers.ESIM`.
            Without it the output layer reads the features.
        dropout: Fraction dropped before the output layer in training.
        frozen: If True, only the task network is trained. This freezes `encoder` itself, also in
            other models that hold it.
        task_network: A trained task network from `build_task_network`, or `None` for a new one.
        words: A `WordVectors` whose frozen vectors the reader also reads; needs a reader.
        placement: A `Placement` of the features; by default the input of the reader.
        pairs: Treatment of pairs of texts. False: one row, as in BERT and GPT. `"both_orders"`: one
            row for each order, for pairs without an order; their vectors are added (Radford et al.
            2018, section 3.3, "similarity"). True: the encoder reads the texts separately, as ELMo
            does, then `readers.BiAttention`, a pooling of each text and the output layer (Peters et
            al. 2019, arXiv 1903.05987, section 3). `"pooled"`: the output layer reads pooled
            vectors u, v, |u - v| and u v (Conneau et al. 2017, arXiv 1705.02364, section 3.1), for
            frozen vectors. `"words"`: a reader of two texts, `readers.ESIM`, reads the words of
            both.

    Call arguments:
        inputs: The encoder's inputs; (B, 2, T) with `pairs` other than False. With a reader also
            `word_positions` (B, W). With `words` also `vector_ids` (B, W), ids in its vocabulary,
            with `character_filters` `word_character_ids` (B, W, C). With a reader of two texts also
            `first_positions` (B, T) and `second_positions` (B, S), the words of each text.

    Returns:
        (B, K) logits.

    Raises:
        ValueError: If there are fewer than two labels, the encoder does not support `pool`, or
            `pairs` is unknown or excludes the reader. If a reader or word vectors are missing for
            the placement or `words`.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> model = Classifier(encoder, labels=["bad", "good"], tokenizer=encoder.tokenizer())
    >>> model.predict(["fine film", "dull"], probabilities=True).shape
    (2, 2)
    """

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer | None = None,
        layers: LayerChoice | None = None,
        pool: str | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.1,
        frozen: bool = False,
        task_network: TaskNetwork | None = None,
        words: WordVectors | None = None,
        placement: Placement | None = None,
        pairs: bool | str = False,
        name: str = "classifier",
    ):
        check_one_of(pairs, "pairs", PAIRS)
        if pairs == "words" and texts_of(reader) is None:
            raise ValueError(
                "pairs='words' needs a reader of two texts: choose `readers.ESIM`."
                f" Received: pairs='words', reader={reader}"
            )
        pool = chosen_pool(pool, encoder, tokenizer, layers, frozen, joint=pairs is not True)
        read_pool = pool if reader is None else None
        super().__init__(
            encoder,
            labels,
            tokenizer,
            layers,
            read_pool,
            reader,
            dropout,
            frozen,
            task_network,
            words,
            placement,
            name,
            pairs,
        )
        self.pool = pool

    @classmethod
    def features_of(
        cls, encoded: Encoded, pool: str | None, pairs: bool | str
    ) -> tuple[Tensor, Tensor]:
        if pairs is True:
            return encoded.tokens_by_row()  # (B, 2, T, n, D), (B, 2, T)
        return super().features_of(encoded, pool, pairs)

    @classmethod
    def build_task_network(
        cls,
        shape: tuple[int, int],
        num_labels: int,
        layers: LayerChoice | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.1,
        placement: Placement | None = None,
        words: int | None = None,
        pairs: bool | str = False,
        pool: str = "max",
    ) -> TaskNetwork:
        if pairs is True:
            return cls.build_pair_network(shape, num_labels, layers, pool, dropout, placement)
        return super().build_task_network(
            shape, num_labels, layers, reader, dropout, placement, words, pairs
        )

    @classmethod
    def build_pair_network(
        cls,
        shape: tuple[int, int],
        num_labels: int,
        layers: LayerChoice | None = None,
        pool: str = "max",
        dropout: float = 0.1,
        placement: Placement | None = None,
    ) -> TaskNetwork:
        """Builds the network from features (B, 2, T, *shape) of two texts to logits."""
        placement = placement or Placement()
        features = keras.Input((2, None, *shape), name="features")
        mask = keras.Input((2, None), dtype="bool", name="padding_mask")
        combine = Combine(
            layers.combine if layers else "concat",
            placement.penalty,
            placement.mix_norm,
            name="combine",
        )
        masks = [mask[:, i] for i in range(2)]
        texts = [combine(features[:, i], padding_mask=masks[i]) for i in range(2)]
        if placement.feature_dropout:
            drop = Dropout(placement.feature_dropout, name="feature_dropout_input")
            texts = [drop(x) for x in texts]
        first, second = texts
        both = BiAttention(name="bi_attention")(
            first, second=second, first_mask=masks[0], second_mask=masks[1]
        )
        pooling = Pooling(pool, name="pooling")
        x = [pooling(x, padding_mask=real) for x, real in zip(both, masks, strict=True)]
        logits = cls.output_of(ops.concatenate(x, axis=-1), num_labels, dropout)  # of (B, 8 n D)
        return TaskNetwork(
            {"features": features, "padding_mask": mask}, logits, name="task_network"
        )

    @staticmethod
    def before_output(
        x: Tensor, mask: Tensor, reader: keras.Layer | None, pairs: bool | str = False
    ) -> Tensor:
        """Returns one vector per example, pooled by the reader."""
        if texts_of(reader) is not None:
            return x
        if reader is not None:
            pooling = reader.pooling() if hasattr(reader, "pooling") else Pooling("max", name="max")
            return pooling(x, padding_mask=mask)
        if pairs == "both_orders":
            return x[:, 0] + x[:, 1]
        if pairs == "pooled":
            u, v = x[:, 0], x[:, 1]
            return ops.concatenate([u, v, ops.abs(u - v), u * v], axis=-1)  # (B, 4 D)
        return x[:, 0]

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any] | np.ndarray:
        """Decodes labels from the logits (K,) of rows, averaged over an example's windows."""
        rows, windows = np.stack(logits), np.bincount(source.examples_of)
        logits = np.zeros((len(windows), rows.shape[1]), rows.dtype)
        np.add.at(logits, source.examples_of, rows / windows[source.examples_of, None])
        if probabilities:
            return softmax(logits)
        return [labels[i] for i in logits.argmax(axis=-1)]

    def get_config(self):
        return {**super().get_config(), "pool": self.pool, "pairs": self.pairs}
