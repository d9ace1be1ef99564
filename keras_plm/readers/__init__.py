"""Task networks that read an encoder's vectors: the feature-based school's part of the work."""

from keras_plm.readers.bcn import BCN
from keras_plm.readers.bi_attention import BiAttention
from keras_plm.readers.bidaf import BiDAF
from keras_plm.readers.bilstm import BiLSTM
from keras_plm.readers.esim import ESIM

__all__ = ["BCN", "ESIM", "BiAttention", "BiDAF", "BiLSTM"]
