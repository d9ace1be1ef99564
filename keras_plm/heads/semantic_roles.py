"""Labelling of semantic roles: the arguments of a given predicate."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_plm.data.task import Example, place_of
from keras_plm.files.sequences import Tensor
from keras_plm.heads.head import softmax
from keras_plm.heads.tagger import Tagger
from keras_plm.heads.task_network import Placement
from keras_plm.layers import allowed_transitions
from keras_plm.models.encoder import Encoder

MARKS = "predicate_marks"
MARK_DIM = 100  # width of the vector that marks the predicate: He et al. 2017, section 2.2


@keras.saving.register_keras_serializable("keras_plm")
class SemanticRoleLabeler(Tagger):
    """Tagging head for the arguments of one predicate per example.

    Examples are `Example(words, tags, predicate=index)`, with tags in BIO such as `"B-ARG0"` and
    `"B-V"`. A learned vector next to the features of each word tells the predicate from other
    words (He et al. 2017, section 2.2). A trained encoder with segments also reads it: the tokens
    of the predicate have segment 1, all others segment 0. Shi and Lin 2019 instead append the
    predicate to the sentence as a second segment. `predict` takes the most probable tags that are
    valid in BIO (He et al. 2017, section 2.3), window by window.

    Args:
        encoder, labels, **named: As in `Tagger`.

    Call arguments:
        inputs: As in `Tagger`, and `predicate_marks` (B, W), 1 at the predicate and 0 elsewhere.

    Returns:
        (B, W, K) logits.

    Raises:
        ValueError: As `Tagger`; if a tag is not in BIO; or if a linear output cannot know the
            predicate: the encoder is frozen or has no segments, and there is no `reader`.

    >>> import numpy as np
    >>> from keras_plm.heads.readers import BiLSTM
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["Ada", "sings"], np.eye(2))
    >>> tokenizer, tags = encoder.tokenizer(), ["O", "B-ARG0", "I-ARG0", "B-V"]
    >>> model = SemanticRoleLabeler(encoder, tags, tokenizer=tokenizer, reader=BiLSTM(4))
    >>> [len(tags) for tags in model.predict([Example(["Ada", "sings"], predicate=1)])]
    [2]
    """

    marks_predicates = True

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        *arguments,
        name: str = "semantic_role_labeler",
        **named,
    ):
        super().__init__(encoder, labels, *arguments, name=name, **named)
        if self.reader is None and (self.frozen or "segment_ids" not in self.input):
            raise ValueError(
                "A linear output cannot know the predicate: give a `reader`, or train an encoder "
                "with segments, such as a BERT. "
                f"Received: frozen={self.frozen}, inputs {', '.join(self.input)}, reader=None"
            )

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`: none."""
        return []  # `metrics.role_f1` scores the output of `predict`, without the predicate itself

    @staticmethod
    def check_labels(labels: Iterable[Any]) -> None:
        Tagger.check_labels(labels)
        allowed_transitions(labels, "BIO")  # raises for other tags

    @staticmethod
    def check_label(example: Example, number: int | None) -> None:
        Tagger.check_label(example, number)
        if getattr(example, "predicate", None) is None:
            raise ValueError(
                f"{place_of(example, number)}Roles belong to a predicate: "
                "`Example(words, tags, predicate=index)`. Received: predicate=None"
            )

    @classmethod
    def more_inputs(
        cls, reader: keras.Layer | None, placement: Placement | None
    ) -> dict[str, keras.KerasTensor]:
        """Creates the symbolic inputs other than the encoder's inputs and the features."""
        marks = keras.Input((None,), dtype="int32", name=MARKS)
        return {**super().more_inputs(reader, placement), MARKS: marks}

    @staticmethod
    def more_vectors(inputs: dict[str, Tensor]) -> list[Tensor]:
        """Computes vectors of words (B, W, ...) to read next to the features."""
        marks = keras.layers.Embedding(2, MARK_DIM, name="predicate_embedding")
        return [marks(inputs[MARKS])]

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any] | np.ndarray:
        """Decodes tags from the logits (W, K) of rows, valid in BIO, and joins the windows."""
        if probabilities:
            return Tagger.decode(labels, logits, source, probabilities)
        allowed = allowed_transitions(labels, "BIO")
        decoded = [[] for _ in range(int(source.examples_of[-1]) + 1)]
        for row, example in enumerate(source.examples_of):
            scores = logits[row][: source.words[row]]
            if len(scores):
                scores = np.log(np.maximum(softmax(scores), 1e-30))
                decoded[example] += [labels[i] for i in best_tags(scores, allowed)]
        return decoded

    def _as_examples(self, x, pairs, choices=None):
        examples = super()._as_examples(x, pairs, choices)
        for number, example in enumerate(examples):
            if example.predicate is None:
                raise ValueError(
                    f"{place_of(example, number)}Roles belong to a predicate: give "
                    "`Example(words, predicate=index)`. Received: predicate=None"
                )
        return examples


def best_tags(scores, allowed):
    """Finds the valid tags with the highest sum of scores, by Viterbi's algorithm.

    It equals `viterbi` of a CRF whose scores do not depend on the previous tag.

    Args:
        scores: (W, K), of at least one word.
        allowed: (K + 2, K + 2), see `allowed_transitions`.

    Returns:
        W ids.
    """
    count = scores.shape[1]
    # `[j, i]`: tag j after tag i, so that the maximum runs along rows.
    barred = np.where(allowed[:count, :count].T, 0.0, -np.inf)
    best, before = np.where(allowed[count, :count], scores[0], -np.inf), []
    for of_word in scores[1:]:
        paths = best + barred
        before.append(paths.argmax(axis=1))
        best = paths.max(axis=1) + of_word
    tags = [int(np.argmax(np.where(allowed[:count, count + 1], best, -np.inf)))]
    for of_word in reversed(before):
        tags.append(int(of_word[tags[-1]]))
    return tags[::-1]
