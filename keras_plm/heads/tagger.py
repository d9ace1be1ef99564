"""One tag for each word."""

import keras
import numpy as np

from keras_plm.heads.head import Head, softmax
from keras_plm.metrics import SpanF1, are_spans


@keras.saving.register_keras_serializable("keras_plm")
class Tagger(Head):
    """One tag for each word, read at the word's first token.

    An ordinary Keras model: `compile`, `fit` on `keras_plm.data.batches`, `evaluate`; `predict`
    also takes lists of words and gives lists of tags. Sentences longer than the encoder reads go in
    windows; no word is lost.

    Reference: Devlin et al. 2018, section 5.3.

    Args:
        encoder: Any encoder; fine-tuned in place unless `frozen`.
        labels: The tags, in the order of their ids.
        tokenizer: Needed to predict from words.
        layers: A `LayerChoice`; without it the last layer is read.
        reader: A layer from word vectors to word vectors, as `readers.BiLSTM`.
        dropout: Share dropped before the output layer, in training.
        frozen: If True, only the readout learns; the encoder is made untrainable.
        readout: A trained one from `build_readout`, to put an encoder under it.
        words: A `WordVectors` whose vectors the reader reads too; they stay as they are. Needs a
            reader.
        placement: A `Placement`: where features enter beside them; by default the reader's input.

    Call arguments:
        inputs: The encoder's inputs, and `word_positions` (B, W); with `words` also `vector_ids`
            (B, W), their ids in its vocabulary.

    Returns:
        (B, W, K) logits.

    Raises:
        ValueError: If there are fewer than two tags, or the placement or `words` needs what is not
            there.
    """

    per_word = True

    def __init__(
        self,
        encoder,
        labels,
        tokenizer=None,
        layers=None,
        reader=None,
        dropout=0.1,
        frozen=False,
        readout=None,
        words=None,
        placement=None,
        name="tagger",
    ):
        super().__init__(
            encoder,
            labels,
            tokenizer,
            layers,
            None,
            reader,
            dropout,
            frozen,
            readout,
            words,
            placement,
            name,
        )

    @staticmethod
    def before_output(x, mask, reader, pairs=False):
        """A vector (B, W, D) of each word."""
        return x

    def default_metrics(self):
        if are_spans(self.labels):
            return [SpanF1(self.labels)]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def _as_examples(self, x, pairs, choices=None):
        examples = super()._as_examples(x, pairs, choices)
        for example in examples:
            if isinstance(example.text, str):
                raise ValueError(
                    "A tagger reads lists of words, one tag each: split the text first. "
                    f"Received: {example.text!r}"
                )
        return examples

    @staticmethod
    def decode(labels, logits, source, probabilities=False):
        """Tags of the logits (W, K) of each row, windows of a sentence joined again."""
        count = int(source.examples_of[-1]) + 1
        decoded = [[] for _ in range(count)]
        for row, example in enumerate(source.examples_of):
            scores = logits[row][: source.words[row]]
            if probabilities:
                decoded[example].append(softmax(scores))
            else:
                decoded[example] += [labels[i] for i in scores.argmax(axis=-1)]
        return [np.concatenate(parts) for parts in decoded] if probabilities else decoded
