"""Bidirectional attention flow (BiDAF) with self-attention, for answers in passages."""

import keras
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.heads.readers.bi_attention import BiAttention, SelfAttention
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.layers import Dense


@keras.saving.register_keras_serializable("keras_plm")
class BiDAF(keras.layers.Layer):
    """Reader of a passage and a question: scores of the start and the end of the answer.

        p = BiLSTM(passage), q = BiLSTM(question)        one BiLSTM for both
        x = ReLU(W g(p, q) + v)                          g: see `BiAttention`, of the passage
        h = BiLSTM(x)
        s_t = sum_u softmax_u(S_tu) h_u, u != t          S as in `BiAttention`
        x = x + ReLU(W' [h; s; h * s] + v')
        begins = w . BiLSTM(x),  ends = w' . BiLSTM([x; that BiLSTM's outputs])

    Reference: Clark and Gardner 2018, arXiv 1710.10723, section 3.1, the base of ELMo's
    experiments on SQuAD; attention between the two: Seo et al. 2017 (BiDAF), arXiv 1611.01603.

    Differs from Clark and Gardner: LSTMs replace the GRUs.

    Args:
        units: Width of each direction; 90 in the original.
        dropout: Fraction of the input of each BiLSTM dropped in training, the same features at all
            words ("variational"); 0.2 in the original.

    Call arguments:
        passage: (B, T, D).
        question: (B, S, D).
        passage_mask: (B, T), True at real positions, which come first; by default all are real.
        question_mask: (B, S).
        passage_after, question_after: (B, T, E) and (B, S, E), or `None`: features to append to p
            and q ("ELMo at the output"; Peters et al. 2018, section 5.2).

    Returns:
        (B, 2, T) scores of each position as start and as end of the answer; undefined at padding.

    >>> import numpy as np
    >>> tuple(BiDAF(units=3)(np.ones((2, 4, 5)), question=np.ones((2, 6, 5))).shape)
    (2, 2, 4)
    """

    reads = "questions with their passages"
    serves = ("answers",)
    texts = ("question", "passage")

    def __init__(self, units: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.drop = keras.layers.SpatialDropout1D(dropout, name="drop", **options)
        self.bi_attention = BiAttention(name="bi_attention", **options)
        self.self_attention = SelfAttention(name="self_attention", **options)
        for name in ("encoder", "reader", "begins", "ends"):
            setattr(self, name, BiLSTM(units, num_layers=1, name=name, **options))
        for name in ("attended", "self_attended"):
            setattr(self, name, Dense(2 * units, activation="relu", name=name, **options))
        for name in ("begin_scores", "end_scores"):
            setattr(self, name, Dense(1, name=name, **options))

    def build(
        self,
        passage_shape,
        question_shape=None,
        passage_mask_shape=None,
        question_mask_shape=None,
        passage_after_shape=None,
        question_after_shape=None,
    ):
        def shape(times):
            return (*passage_shape[:-1], times * self.units)

        self.encoder.build(passage_shape)
        width = 2 * self.units + (passage_after_shape[-1] if passage_after_shape else 0)
        self.bi_attention.build((*passage_shape[:-1], width))
        self.attended.build((*passage_shape[:-1], 4 * width))
        self.reader.build(shape(2))
        self.self_attention.build(shape(2))
        self.self_attended.build(shape(6))
        self.begins.build(shape(2))
        self.begin_scores.build(shape(2))
        self.ends.build(shape(4))
        self.end_scores.build(shape(2))

    def call(
        self,
        passage: Tensor,
        question: Tensor,
        passage_mask: Tensor | None = None,
        question_mask: Tensor | None = None,
        passage_after: Tensor | None = None,
        question_after: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        def read(layer, x, mask):
            return layer(self.drop(x, training=training), padding_mask=mask)

        p, q = (
            read(self.encoder, passage, passage_mask),
            read(self.encoder, question, question_mask),
        )
        if passage_after is not None:
            p = ops.concatenate([p, passage_after], axis=-1)
            q = ops.concatenate([q, question_after], axis=-1)
        attended, _ = self.bi_attention(
            p, second=q, first_mask=passage_mask, second_mask=question_mask
        )
        x = self.attended(attended)
        h = read(self.reader, x, passage_mask)
        s = self.self_attention(h, padding_mask=passage_mask)
        x = x + self.self_attended(ops.concatenate([h, s, h * s], axis=-1))
        begins = read(self.begins, x, passage_mask)
        ends = read(self.ends, ops.concatenate([x, begins], axis=-1), passage_mask)
        scores = [self.begin_scores(begins), self.end_scores(ends)]
        return ops.stack([score[..., 0] for score in scores], axis=1)

    def compute_output_spec(
        self,
        passage,
        question,
        passage_mask=None,
        question_mask=None,
        passage_after=None,
        question_after=None,
        training=None,
    ):
        return keras.KerasTensor((passage.shape[0], 2, passage.shape[1]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "dropout": self.dropout}
