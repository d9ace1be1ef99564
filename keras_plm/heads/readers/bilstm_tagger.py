"""BiLSTM under a CRF, as ELMo tags names."""

import keras

from keras_plm.files.arguments import check_whole
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.layers import CRF, Dense, Dropout


@keras.saving.register_keras_serializable("keras_plm")
class BiLSTMTagger(keras.layers.Layer):
    """Word vectors to the scores of their tags, chosen together: BiLSTM, output layer, CRF.

    For vectors of one's own; trained with `layers.CRFLoss`, decoded by `layers.viterbi`. Over an
    encoder's features the same network is the head `CRFTagger` under the reader "bilstm", which
    also reads word vectors and the spelling of words.

    Reference: Huang et al. 2015, arXiv 1508.01991; sizes: AllenNLP's tagger, with ELMo Peters et
    al. 2018, section 4.

    Args:
        num_labels: Tags K.
        units: Width of each direction of the BiLSTM.
        num_layers: Of the BiLSTM.
        dropout: Fraction dropped before each layer and before the output layer.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: (B, T), True at real words, which come first.

    Returns:
        (B, T, K, K) float32: scores of each word's tag behind that of the word before, see
        `layers.CRF`.

    Raises:
        ValueError: If there are fewer than two tags.

    >>> import numpy as np
    >>> tuple(BiLSTMTagger(num_labels=3, units=2)(np.ones((2, 4, 5))).shape)
    (2, 4, 3, 3)
    """

    def __init__(self, num_labels, units=200, num_layers=2, dropout=0.0, **kwargs):
        check_whole(num_labels, "num_labels", least=2)
        super().__init__(**kwargs)
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

    def call(self, inputs, padding_mask=None, training=None):
        x = self.bilstm(inputs, padding_mask=padding_mask, training=training)
        x = self.logits(self.drop(x, training=training))
        return self.crf(x, padding_mask=padding_mask)

    def compute_output_spec(self, inputs, padding_mask=None, training=None):
        shape = (*inputs.shape[:2], self.num_labels, self.num_labels)
        return keras.KerasTensor(shape, dtype="float32")

    def get_config(self):
        names = ("num_labels", "units", "num_layers", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
