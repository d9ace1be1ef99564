"""A small pre-training with dropout that stops after a given number of steps."""

import keras

from keras_plm.models import BERT
from keras_plm.pretraining import MaskedLM, masked_lm_batches
from keras_plm.tokenizers import WordPiece
from keras_plm.training.optimizers import BertAdamW
from keras_plm.training.resume import set_seed

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])


def start(stream, seed=4):
    """Returns a model with dropout and its batches, in the state of a new process."""
    set_seed(seed)
    size = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    model = MaskedLM(BERT(13, **size, dropout=0.3, max_sequence_length=32))
    model.compile(BertAdamW(1e-3))
    return model, masked_lm_batches(stream, TOKENIZER, 32, batch_size=4, buckets=2)


class Seen(keras.callbacks.Callback):
    """Stops training after a number of steps."""

    def __init__(self, stop):
        super().__init__()
        self.left = stop

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.stop_training = True
