"""Classifier of a text or a pair of texts."""

import keras
import numpy as np
from keras import ops

from keras_plm.files.arguments import check_one_of
from keras_plm.heads.encoded import chosen_pool
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.readers import BiAttention
from keras_plm.heads.readers.reading import texts_of
from keras_plm.heads.task_network import Combine, TaskNetwork
from keras_plm.layers import Pooling

PAIRS = (False, True, "pooled", "both_orders", "words")


@keras.saving.register_keras_serializable("keras_plm")
class Classifier(Head):
    """One label for a text or a pair of texts.

    An ordinary Keras model: `compile`, `fit` on `keras_plm.data.batches`, `evaluate`; `predict`
    also takes texts and gives label names.

    Reference: Devlin et al. 2018, section 4.1 (dropout and one dense layer over the pooled
    vector); with `layers` and a `reader`, section 5.3.

    Args:
        encoder: Any encoder; fine-tuned in place unless `frozen`.
        labels: The label names, in the order of their ids.
        tokenizer: Needed to predict from texts.
        layers: A `LayerChoice`; without it the last layer is read.
        pool: `"pooled"` (the encoder's own), `"cls"`, `"mean"`, `"max"` or `"last"`, the last
            token. By default, where the encoder learns and no `layers` are chosen, the encoder's
            own if it has one, and `"last"` if it reads from left to right, as GPT at
            `_classify_`; else `"mean"`; with `pairs=True` `"max"`, and never the encoder's own.
            Without meaning under a reader, which sees words.
        reader: A layer from word vectors to word vectors, as `readers.BiLSTM`, whose outputs its
            `pooling()` pools, by default to their maximum; or of pairs one as `readers.ESIM`, from
            the words of both to one vector. Without it the features go straight to the output
            layer.
        dropout: Fraction dropped before the output layer, in training.
        frozen: If True, only the task network learns; the encoder is made untrainable.
        task_network: A trained one from `build_task_network`, to put an encoder under it.
        words: A `WordVectors` whose vectors the reader reads too; they stay as they are. Needs a
            reader.
        placement: A `Placement`: where features enter beside them; by default the reader's input.
        pairs: If False, the two texts of a pair are one row, as BERT's and GPT's. If
            `"both_orders"`, they are two rows, each order one, whose vectors are added: for pairs
            without an order (Radford et al. 2018, section 3.3, "similarity"). If True, the encoder
            reads them apart, as ELMo must, and they meet above it: `readers.BiAttention`, a
            pooling of each text, and the output layer over both (Peters et al. 2019, arXiv
            1903.05987, section 3). If `"pooled"`, each is read apart and pooled, to u and v, and
            the output layer reads u, v, |u - v| and u v (Conneau et al. 2017, arXiv 1705.02364,
            section 3.1): for frozen vectors. If `"words"`, each is read apart, and a reader of two
            texts, `readers.ESIM`, reads the words of both.

    Call arguments:
        inputs: The encoder's inputs, and `word_positions` (B, W) under a reader, with `words` also
            `vector_ids` (B, W), their ids in its vocabulary, with `character_filters`
            `word_character_ids` (B, W, C), their characters; under a reader of two texts
            `first_positions` (B, T) and `second_positions` (B, S), which of the W are each text's.
            With `pairs` other than False the encoder's inputs have a second axis of 2, (B, 2, T).

    Returns:
        (B, K) logits.

    Raises:
        ValueError: If there are fewer than two labels, `pool` does not fit the encoder, the
            placement or `words` needs what is not there, `pairs` is none of these or meets a
            reader.
    """

    def __init__(
        self,
        encoder,
        labels,
        tokenizer=None,
        layers=None,
        pool=None,
        reader=None,
        dropout=0.1,
        frozen=False,
        task_network=None,
        words=None,
        placement=None,
        pairs=False,
        name="classifier",
    ):
        check_one_of(pairs, "pairs", PAIRS)
        if pairs == "words" and texts_of(reader) is None:
            raise ValueError(
                "Words of two texts that are read apart need a reader of two texts, `readers.ESIM`."
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
    def features_of(cls, encoded, pool, pairs):
        if pairs is True:
            return encoded.tokens_by_row()  # (B, 2, T, n, D), (B, 2, T)
        return super().features_of(encoded, pool, pairs)

    @classmethod
    def build_task_network(
        cls,
        shape,
        num_labels,
        layers=None,
        reader=None,
        dropout=0.1,
        placement=None,
        words=None,
        pairs=False,
        pool="max",
    ):
        if pairs is True:
            return cls.build_pair_network(shape, num_labels, layers, pool, dropout)
        return super().build_task_network(
            shape, num_labels, layers, reader, dropout, placement, words, pairs
        )

    @classmethod
    def build_pair_network(cls, shape, num_labels, layers=None, pool="max", dropout=0.1):
        """The part from features (B, 2, T, *shape) of two texts to logits; shape is (n, D)."""
        features = keras.Input((2, None, *shape), name="features")
        mask = keras.Input((2, None), dtype="bool", name="padding_mask")
        combine = Combine(layers.combine if layers else "concat", name="combine")
        masks = [mask[:, i] for i in range(2)]
        first, second = (combine(features[:, i], padding_mask=masks[i]) for i in range(2))
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
    def before_output(x, mask, reader, pairs=False):
        """One vector of an example: as the reader pools, or what was pooled before."""
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

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    @staticmethod
    def decode(labels, logits, source, probabilities=False):
        """Label names of the logits (K,) of each row, the mean where an example has windows."""
        rows, windows = np.stack(logits), np.bincount(source.examples_of)
        logits = np.zeros((len(windows), rows.shape[1]), rows.dtype)
        np.add.at(logits, source.examples_of, rows / windows[source.examples_of, None])
        if probabilities:
            return softmax(logits)
        return [labels[i] for i in logits.argmax(axis=-1)]

    def get_config(self):
        return {**super().get_config(), "pool": self.pool, "pairs": self.pairs}
