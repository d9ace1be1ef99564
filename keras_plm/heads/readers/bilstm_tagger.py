"""BiLSTM under a CRF, the tagger of ELMo's experiments on names."""

import keras

from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import Tensor
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.layers import CRF, Dense, Dropout
from keras_plm.layers.masks import given_mask


@keras.saving.register_keras_serializable("keras_plm")
class BiLSTMTagger(keras.layers.Layer):
    """BiLSTM-CRF tagger: scores of tags from word vectors.

    Use it for your own vectors: train it with `layers.CRFLoss`, decode with `layers.viterbi`. The
    head `CRFTagger` with the reader "bilstm" is the same network over an encoder, and also reads
    word vectors and characters.

    Reference: Huang et al. 2015, arXiv 1508.01991; sizes: AllenNLP's tagger, with ELMo Peters et
    al. 2018, section 4.

    Args:
        num_labels: Number of tags K.
        units: Width of each direction of the BiLSTM.
        num_layers: Number of layers of the BiLSTM.
        dropout: Fraction dropped before each layer and the output layer in training.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real words, which come first. When omitted, the mask that
            Keras attached to the inputs, if any.

    Returns:
        (B, T, K, K) float32 scores of each word's tag after the tag of the previous word, see
        `layers.CRF`.

    Raises:
        ValueError: If there are fewer than two tags.

    >>> import numpy as np
    >>> tuple(BiLSTMTagger(num_labels=3, units=2)(np.ones((2, 4, 5))).shape)
    (2, 4, 3, 3)
    """

    def __init__(
        self, num_labels: int, units: int = 200, num_layers: int = 2, dropout: float = 0.0, **kwargs
    ):
        check_whole(num_labels, "num_labels", least=2)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_labels = num_labels
        self.units = units
        self.num_layers = num_layers
        self.dropout = dropout
        options = {"dtype": self.dtype_policy}
        self.bilstm = BiLSTM(units, num_layers, dropout, name="bilstm", **options)
        self.drop = Dropout(dropout, name="drop", **options)
        self.logits = Dense(num_labels, name="logits", **options)
        self.crf = CRF(name="crf")

    def build(self, inputs_shape, padding_mask_shape=None):
        self.bilstm.build(inputs_shape)
        self.logits.build((*inputs_shape[:-1], 2 * self.units))
        self.crf.build((*inputs_shape[:-1], self.num_labels))

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        padding_mask = given_mask(padding_mask, mask)
        x = self.bilstm(inputs, padding_mask=padding_mask, training=training)
        x = self.logits(self.drop(x, training=training))
        return self.crf(x, padding_mask=padding_mask)

    def compute_output_spec(self, inputs, padding_mask=None, training=None, mask=None):
        shape = (*inputs.shape[:2], self.num_labels, self.num_labels)
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        names = ("num_labels", "units", "num_layers", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
