"""Taggers of words, independent or with a CRF."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_plm.data.labels import check_scheme, scheme_of_labels, tag_scheme_of
from keras_plm.data.passages import Windows
from keras_plm.data.task import Example, place_of
from keras_plm.files.sequences import Tensor, as_names
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.task_network import Placement, TaskNetwork
from keras_plm.layers import CRF, CRFLoss, LayerChoice, allowed_transitions, marginals, viterbi
from keras_plm.metrics import SpanF1
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer


@keras.saving.register_keras_serializable("keras_plm")
class Tagger(Head):
    """Tagging head: one tag for each word, from the vector of its first token.

    It is a Keras model with `compile`, `fit` on `model.batches(examples)`, and `evaluate`.
    `predict` takes lists of words and returns lists of tags. Sentences that are too long for
    the encoder are split into windows without loss of words.

    Reference: Devlin et al. 2018, section 5.3.

    Args:
        encoder: An encoder; it is trained in place unless `frozen`.
        labels: Tags in the order of their ids.
        tokenizer: The encoder's tokenizer; needed for words.
        layers: A `LayerChoice`; by default the last layer.
        reader: A layer from word vectors to word vectors, such as `readers.BiLSTM`.
        dropout: Fraction dropped before the output layer in training.
        frozen: If True, only the task network is trained. This freezes `encoder` itself, also in
            other models that hold it.
        task_network: A trained task network from `build_task_network`, or `None` for a new one.
        words: A `WordVectors` whose frozen vectors the reader also reads; needs a reader.
        placement: A `Placement` of the features; by default the input of the reader.

    Call arguments:
        inputs: The encoder's inputs, and `word_positions` (B, W). With `words` also `vector_ids`
            (B, W), ids in its vocabulary, and with `character_filters` `word_character_ids`
            (B, W, C).

    Returns:
        (B, W, K) logits.

    Raises:
        ValueError: If there are fewer than two tags, or tags are of several schemes, see
            `metrics.tag_scheme`. If a reader or word vectors are missing for the placement or
            `words`.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["Ada", "sings"], np.eye(2))
    >>> model = Tagger(encoder, ["O", "B-PER", "I-PER"], tokenizer=encoder.tokenizer())
    >>> [len(tags) for tags in model.predict([["Ada", "sings"], ["Ada"]])]
    [2, 1]
    """

    kind = "words"
    per_word = True

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer | None = None,
        layers: LayerChoice | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.1,
        frozen: bool = False,
        task_network: TaskNetwork | None = None,
        words: WordVectors | None = None,
        placement: Placement | None = None,
        name: str = "tagger",
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
    def check_labels(labels: Iterable[Any]) -> None:
        Head.check_labels(labels)
        scheme_of_labels(labels)  # raises for tags of several schemes

    @classmethod
    def labels_of(cls, examples: Sequence[Example]) -> list[Any]:
        labels = super().labels_of(examples)
        tag_scheme_of(examples)  # raises for tags of several schemes, naming the place
        return labels

    @classmethod
    def targets(
        cls, examples: Sequence[Example], labels: Iterable[Any], windows: Windows | None = None
    ) -> Any:
        """Returns the ids of the tags; raises unless they mark spans by one scheme."""
        check_scheme(examples, labels)
        return super().targets(examples, labels, windows)

    @staticmethod
    def check_label(example: Example, number: int | None) -> None:
        if not isinstance(example.label, (list, tuple)) or isinstance(example.text, str):
            raise ValueError(
                f"{place_of(example, number)}A `Tagger` learns a tag for each word; one "
                "label per text needs a `Classifier`. "
                f"Received: {example.label!r:.60} for {example.text!r:.60}"
            )

    @staticmethod
    def before_output(
        x: Tensor, mask: Tensor, reader: keras.Layer | None, pairs: bool | str = False
    ) -> Tensor:
        """Returns one vector per word, (B, W, D)."""
        return x

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`."""
        if scheme_of_labels(self.labels) is not None:
            return [SpanF1(self.labels)]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def _as_examples(self, x, pairs, choices=None):
        examples = super()._as_examples(x, pairs, choices)
        for example in examples:
            if isinstance(example.text, str):
                raise ValueError(
                    "A tagger needs lists of words, with one tag per word: split the text first. "
                    f"Received: {example.text!r}"
                )
        return examples

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any] | np.ndarray:
        """Decodes tags from the logits (W, K) of rows and joins the windows of a sentence."""
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
    """Tagging head with a CRF: scores of tags and of transitions between neighbouring tags.

    It is a `Tagger` with one more argument. `predict(..., probabilities=True)` returns marginal
    probabilities of the tags. Windows of a long sentence are tagged separately.

    Reference: Huang et al. 2015, arXiv 1508.01991; the readers of Peters et al. 2018.

    Args:
        encoder, labels, **named: As in `Tagger`.
        scheme: Tag scheme, `"BIO"` (also `"IOB2"`), `"IOB1"`, `"BIOUL"` (also `"BILOU"`),
            `"IOBES"` or `"BMES"`. Predictions contain only transitions that it allows. `None`
            allows all. It may be set later.

    Call arguments:
        inputs: As in `Tagger`.

    Returns:
        (B, W, K, K) scores of each word's tag after the tag of the previous word, see `layers.CRF`.

    Raises:
        ValueError: As `Tagger`; and if a tag does not belong to the scheme.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["Ada", "sings"], np.eye(2))
    >>> tags = ["O", "B-PER", "I-PER"]
    >>> model = CRFTagger(encoder, tags, tokenizer=encoder.tokenizer(), scheme="BIO")
    >>> [len(tags) for tags in model.predict([["Ada", "sings"], ["Ada"]])]
    [2, 1]
    """

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        *arguments,
        scheme: str | None = None,
        name: str = "crf_tagger",
        **named,
    ):
        labels = as_names(labels, "labels")
        if scheme is not None:
            allowed_transitions(labels, scheme)  # raises for other tags
        super().__init__(encoder, labels, *arguments, name=name, **named)
        self.scheme = scheme

    @staticmethod
    def masked(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Computes the scores of the CRF from logits."""
        return CRF(name="crf")(logits, padding_mask=inputs["padding_mask"])

    @staticmethod
    def default_loss() -> keras.losses.Loss:
        """Returns the default loss of `compile`."""
        return CRFLoss()

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`: none."""
        return []  # only `predict` finds the best tags, row by row

    @property
    def decode_options(self) -> dict[str, Any]:
        return {"scheme": self.scheme}

    @staticmethod
    def decode(
        labels: Iterable[Any],
        logits: Any,
        source: Any,
        probabilities: bool = False,
        scheme: str | None = None,
    ) -> list[Any] | np.ndarray:
        """Decodes tags from the scores (W, K, K) of rows and joins the windows of a sentence."""
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
