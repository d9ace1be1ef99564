"""Readers: task networks over an encoder's vectors.

A reader is a layer. What heads ask of it beside, all of it optional:

(`BiLSTMTagger` is the whole network from vectors to tags; heads build the same of a `BiLSTM`.)

- `serves`: what it is for, of `"texts"`, `"words"` and `"answers"`, a head's `kind`; by default
  all. Beside it `reads`, what it reads in words.
- `texts`: the names of its two call arguments, where it reads the two texts of an example each by
  itself, `(first, second)`; each has a `padding_mask`, as `first_mask`. It then gives a vector
  (B, D) of an example, or of answers the scores (B, 2, S) of both ends at the second text's S
  positions. Without, it reads `(inputs, padding_mask)` and gives a vector of each position.
  `first_behind` and `second_behind`, where features are also placed at the output, are what it
  puts behind its first layer's vectors of either.
- `pooling()`: a layer that makes one vector of a text's; by default their maximum.
"""

from keras_plm.heads.readers.bcn import BCN
from keras_plm.heads.readers.bi_attention import BiAttention
from keras_plm.heads.readers.bidaf import BiDAF
from keras_plm.heads.readers.bilstm import BiLSTM
from keras_plm.heads.readers.bilstm_tagger import BiLSTMTagger
from keras_plm.heads.readers.esim import ESIM

__all__ = ["BCN", "ESIM", "BiAttention", "BiDAF", "BiLSTM", "BiLSTMTagger"]
