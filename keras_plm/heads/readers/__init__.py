"""Readers: task networks over an encoder's vectors.

A reader is a layer with these optional attributes, which heads use:

- `serves`: the kinds of heads that it fits, from `"texts"`, `"words"` and `"answers"`; by default
  all. `reads` describes its inputs for error messages.
- `texts`: the names of two call arguments, `(first, second)`, if it reads the two texts of an
  example separately. Each text has a mask, such as `first_mask`. The reader then returns a vector
  (B, D) of an example, or, for answers, the scores (B, 2, S) of both ends at the S positions of the
  second text. A reader without `texts` reads `(inputs, padding_mask)` and returns one vector per
  position. If features are also placed at the output, the reader gets them as `first_after` and
  `second_after`. It appends them to its first layer's vectors of the two texts.
- `pooling()`: a layer that pools a text's vectors into one; by default their maximum.

`BiLSTMTagger` is a complete network from vectors to tags; heads build the same from a `BiLSTM`.
"""

from keras_plm.heads.readers.bcn import BCN
from keras_plm.heads.readers.bi_attention import BiAttention
from keras_plm.heads.readers.bidaf import BiDAF
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.heads.readers.bilstm_tagger import BiLSTMTagger
from keras_plm.heads.readers.esim import ESIM
from keras_plm.heads.readers.highway_lstm import AlternatingLSTM, HighwayLSTM

__all__ = [
    "BCN",
    "ESIM",
    "AlternatingLSTM",
    "BiAttention",
    "BiDAF",
    "BiLSTM",
    "BiLSTMTagger",
    "HighwayLSTM",
]
