"""Taggers of words, independent or with a CRF."""

import keras
import numpy as np

from keras_plm.data.labels import check_scheme, scheme_of_labels, tag_scheme_of
from keras_plm.data.task import place_of
from keras_plm.files.sequences import as_names
from keras_plm.heads.head import Head, softmax
from keras_plm.layers import CRF, CRFLoss, allowed_transitions, marginals, viterbi
from keras_plm.metrics import SpanF1


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
        dropout: Fraction dropped before the output layer, in training.
        frozen: If True, only the task network learns; the encoder is made untrainable.
        task_network: A trained one from `build_task_network`, to put an encoder under it.
        words: A `WordVectors` whose vectors the reader reads too; they stay as they are. Needs a
            reader.
        placement: A `Placement`: where features enter beside them; by default the reader's input.

    Call arguments:
        inputs: The encoder's inputs, and `word_positions` (B, W); with `words` also `vector_ids`
            (B, W), their ids in its vocabulary, and with `character_filters`
            `word_character_ids` (B, W, C), their characters.

    Returns:
        (B, W, K) logits.

    Raises:
        ValueError: If there are fewer than two tags, tags are of several schemes, see
            `metrics.tag_scheme`, or the placement or `words` needs what is not there.
    """

    kind = "words"
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
        task_network=None,
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
            task_network,
            words,
            placement,
            name,
        )

    @staticmethod
    def check_labels(labels):
        Head.check_labels(labels)
        scheme_of_labels(labels)  # raises for tags of several schemes

    @classmethod
    def labels_of(cls, examples):
        labels = super().labels_of(examples)
        tag_scheme_of(examples)  # raises for tags of several schemes, naming the place
        return labels

    @classmethod
    def targets(cls, examples, labels, windows=None):
        """The ids of the tags; raises unless they mark spans as their scheme says."""
        check_scheme(examples, labels)
        return super().targets(examples, labels, windows)

    @staticmethod
    def check_label(example, number):
        if not isinstance(example.label, (list, tuple)) or isinstance(example.text, str):
            raise ValueError(
                f"{place_of(example, number)}A `Tagger` learns a tag for each word; one "
                "label for a text is learned by a `Classifier`. "
                f"Received: {example.label!r:.60} for {example.text!r:.60}"
            )

    @staticmethod
    def before_output(x, mask, reader, pairs=False):
        """A vector (B, W, D) of each word."""
        return x

    def default_metrics(self):
        if scheme_of_labels(self.labels) is not None:
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


@keras.saving.register_keras_serializable("keras_plm")
class CRFTagger(Tagger):
    """One tag for each word, chosen together: a CRF scores tags and which stand side by side.

    Otherwise as `Tagger`, of the same arguments and one more. `predict(..., probabilities=True)`
    gives the marginal probabilities of each word's tags. Windows of a sentence that is longer than
    the encoder reads are tagged one by one.

    Reference: Huang et al. 2015, arXiv 1508.01991; the readers of Peters et al. 2018.

    Args:
        scheme: How tags mark spans, `"BIO"` (also `"IOB2"`), `"IOB1"`, `"BIOUL"` (also `"BILOU"`),
            `"IOBES"` or `"BMES"`: what this does not allow is never predicted. It may also be set
            later. `None` allows all.

    Returns:
        (B, W, K, K) scores of each word's tag behind that of the word before, see `layers.CRF`.

    Raises:
        ValueError: As `Tagger`; and if the scheme does not fit the tags.
    """

    def __init__(self, encoder, labels, *arguments, scheme=None, name="crf_tagger", **named):
        labels = as_names(labels, "labels")
        if scheme is not None:
            allowed_transitions(labels, scheme)  # says what is wrong
        super().__init__(encoder, labels, *arguments, name=name, **named)
        self.scheme = scheme

    @staticmethod
    def masked(logits, inputs):
        """The logits with the CRF's transitions."""
        return CRF(name="crf")(logits, padding_mask=inputs["padding_mask"])

    @staticmethod
    def default_loss():
        return CRFLoss()

    def default_metrics(self):
        return []  # the best tags are found row by row, in `predict`

    @property
    def decode_options(self):
        return {"scheme": self.scheme}

    @staticmethod
    def decode(labels, logits, source, probabilities=False, scheme=None):
        """Tags of the scores (W, K, K) of each row, windows of a sentence joined again."""
        allowed = None if scheme is None else allowed_transitions(labels, scheme)
        decoded = [[] for _ in range(int(source.examples_of[-1]) + 1)]
        for row, example in enumerate(source.examples_of):
            scores = logits[row][: source.words[row]]
            if not len(scores):
                continue
            if probabilities:
                decoded[example].append(marginals(scores))
            else:
                decoded[example] += [labels[i] for i in viterbi(scores, allowed)[0]]
        if not probabilities:
            return decoded
        none = np.zeros((0, len(labels)))
        return [np.concatenate([none, *parts]) for parts in decoded]

    def get_config(self):
        return {**super().get_config(), "scheme": self.scheme}
