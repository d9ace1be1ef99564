"""Models, one paper each."""

from keras_plm.models.bert import BERT, BERT_SIZES
from keras_plm.models.elmo import ELMO_SIZES, ELMo
from keras_plm.models.encoder import Encoder
from keras_plm.models.glove import cooccurrences
from keras_plm.models.gpt import GPT, GPT2, GPT_SIZES
from keras_plm.models.mixture import Mixture
from keras_plm.models.ngram import NGram
from keras_plm.models.nnlm import NNLM
from keras_plm.models.recurrent_lm import RECURRENT_LM_SIZES, RecurrentLM
from keras_plm.models.seq2seq import SEQ2SEQ_SIZES, EncoderDecoder, Seq2Seq
from keras_plm.models.transformer import TRANSFORMER_SIZES, Transformer, TransformerEncoder
from keras_plm.models.word_vectors import FastText, GloVe, Word2Vec, WordVectors

__all__ = [
    "BERT",
    "BERT_SIZES",
    "ELMO_SIZES",
    "GPT",
    "GPT2",
    "GPT_SIZES",
    "NNLM",
    "RECURRENT_LM_SIZES",
    "SEQ2SEQ_SIZES",
    "TRANSFORMER_SIZES",
    "ELMo",
    "Encoder",
    "EncoderDecoder",
    "FastText",
    "GloVe",
    "Mixture",
    "NGram",
    "RecurrentLM",
    "Seq2Seq",
    "Transformer",
    "TransformerEncoder",
    "Word2Vec",
    "WordVectors",
    "cooccurrences",
]
