"""Coreference: clusters of the mentions of a document that name the same entity."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.documents import DocumentRows, sentences_of
from keras_plm.data.task import Example, as_examples, place_of
from keras_plm.files.sequences import Tensor
from keras_plm.heads.head import Head
from keras_plm.heads.span_ranking import IMPOSSIBLE, SpanRanking, gather
from keras_plm.heads.task_network import Placement, TaskNetwork
from keras_plm.layers import LayerChoice
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer

LABELS = ["mention", "antecedent"]
MAX_SPAN_WIDTH = 10  # Lee et al. 2017, section 7.1


@keras.saving.register_keras_serializable("keras_plm")
class CoreferenceLoss(keras.losses.Loss):
    """Marginal likelihood of the right antecedents of the kept spans.

    The loss of a span is -log of the sum of the probabilities of all its right antecedents, or of
    no antecedent if it has none. The loss of a document is the mean over its kept spans.

    Reference: Lee et al. 2017, arXiv 1707.07045, section 6. Differs from the paper: the mean
    instead of the sum.

    Args:
        name: Name of the loss.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, W, L), the cluster of the span from each word with each width, counted from 1;
            0 for no mention.
        y_pred: (B, M, K + 1, 3), `links` of `SpanRanking`.

    Returns:
        The weighted mean over documents, a scalar.

    >>> import numpy as np
    >>> y_true = np.array([[[1], [1]]])  # two words, one cluster
    >>> alone, none = [0.0, 0, 1], [-1e9, 0, 1]
    >>> y_pred = np.array([[[alone, none], [[0.0, 1, 2], [0.0, 0, 1]]]])
    >>> round(float(CoreferenceLoss()(y_true, y_pred)), 4)  # log(2) / 2
    0.3466
    """

    def __init__(self, name: str = "coreference_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        scores, widest = y_pred[..., 0], y_true.shape[2]
        start, after = ops.cast(y_pred[..., 1], "int32"), ops.cast(y_pred[..., 2], "int32")
        width = ops.minimum(after - start, widest)
        clusters = ops.reshape(ops.cast(y_true, "int32"), (ops.shape(y_true)[0], -1))
        cluster = gather(clusters, start * widest + width - 1)
        cluster = ops.where(after - start <= widest, cluster, 0)  # (B, M, K + 1)
        exists, own = scores > IMPOSSIBLE / 2, cluster[..., :1]

        right = exists[..., 1:] & (cluster[..., 1:] == own) & (own > 0)
        none = ops.logical_not(ops.any(right, axis=-1, keepdims=True))
        right = ops.concatenate([none, right], axis=-1)
        logits = ops.concatenate([ops.zeros_like(scores[..., :1]), scores[..., 1:]], axis=-1)
        of_right = ops.where(right, logits, IMPOSSIBLE)
        losses = ops.logsumexp(logits, axis=-1) - ops.logsumexp(of_right, axis=-1)
        kept = ops.cast(exists[..., 0], losses.dtype)
        return ops.sum(kept * losses, axis=-1) / ops.maximum(ops.sum(kept, axis=-1), 1.0)


@keras.saving.register_keras_serializable("keras_plm")
class MentionLoss(keras.losses.Loss):
    """Binary cross-entropy of mention scores, over all mentions and all other kept spans.

    Only kept spans have antecedents, so without this loss a mention that is not kept would have no
    gradient. A cluster of one mention also needs it. The paper has no such loss.

    Args:
        name: Name of the loss.
        **kwargs: Other arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, W, L), as in `CoreferenceLoss`.
        y_pred: (B, W, L, 2), `mentions` of `SpanRanking`.

    Returns:
        The weighted mean over documents, a scalar. The loss of a document is the mean over these
        spans.

    >>> import numpy as np
    >>> y_true, y_pred = np.array([[[1, 0]]]), np.array([[[[0.0, 0], [3.0, 0]]]])
    >>> round(float(MentionLoss()(y_true, y_pred)), 4)  # log(2)
    0.6931
    """

    def __init__(self, name: str = "mention_loss", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        scores, kept = y_pred[..., 0], y_pred[..., 1] > 0
        counted = (scores > IMPOSSIBLE / 2) & ((y_true > 0) | kept)
        logits = ops.where(counted, scores, 0.0)
        losses = ops.softplus(ops.where(y_true > 0, -logits, logits))
        losses = ops.sum(ops.where(counted, losses, 0.0), axis=(1, 2))
        counted = ops.sum(ops.cast(counted, losses.dtype), axis=(1, 2))
        return losses / ops.maximum(counted, 1.0)


@keras.saving.register_keras_serializable("keras_plm")
class CoreferenceResolver(Head):
    """Coreference head: finds the mentions of a document and their clusters.

    It scores spans as mentions, keeps the best, and links each to its most probable earlier span,
    if any, see `SpanRanking`. The encoder reads a document in independent windows of whole
    sentences. Examples are `Example(words, clusters, sentences=sizes)`; `predict` returns the
    clusters of each document. A mention with a positive mention score and no link is a cluster of
    one.

    It is a Keras model with `compile`, `fit` on `model.batches(examples)`, and `evaluate`. A batch
    is one document by default, because a document takes the memory of all its windows and spans.

    Reference: Lee et al. 2017, arXiv 1707.07045; Lee et al. 2018, arXiv 1804.05392; with a
    fine-tuned encoder Joshi et al. 2019, arXiv 1908.09091. See `SpanRanking`, `CoreferenceLoss`
    and `MentionLoss` for differences.

    Args:
        encoder: An encoder; it is trained in place unless `frozen`.
        labels: Fixed: `["mention", "antecedent"]`; leave it out.
        tokenizer: The encoder's tokenizer; needed for words.
        layers, reader, frozen, task_network, words, placement: As in `Tagger`. The papers without a
            trained encoder use a BiLSTM as `reader`.
        dropout: Fraction of the scoring networks' hidden units dropped in training.
        max_length: Largest number of tokens of a window; by default the encoder's. Joshi et al.
            2019 use 128 for BERT-base. An encoder without a limit reads single sentences.
        max_span_width: Number of words of the widest mention. Wider ones are never found, and left
            out of training.
        spans_per_word, num_antecedents, hidden_dim, pair_dim, coarse_to_fine: As in `SpanRanking`.

    Call arguments:
        inputs: The encoder's inputs (B, P, T), P windows of T tokens; `word_positions` (B, W), the
            first token of each word among P T; and `sentence_ids` (B, W). With `words` also
            `vector_ids` (B, W).

    Returns:
        A dict of `links` (B, M, K + 1, 3) and `mentions` (B, W, L, 2), see `SpanRanking`.

    Raises:
        ValueError: If an argument is invalid, or parts do not belong together.

    >>> import numpy as np
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["Ada", "sings", "she"], np.eye(3))
    >>> model = CoreferenceResolver(encoder, tokenizer=encoder.tokenizer(), hidden_dim=4)
    >>> document = Example(["Ada", "sings", "she", "sings"], [[(0, 1), (2, 3)]], sentences=[2, 2])
    >>> clusters = model.predict([document])[0]
    >>> isinstance(clusters, list)
    True
    """

    kind = "words"
    per_word = True
    reads_documents = True
    takes_class_weight = False

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any] = tuple(LABELS),
        tokenizer: SubwordTokenizer | None = None,
        layers: LayerChoice | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.2,
        frozen: bool = False,
        task_network: TaskNetwork | None = None,
        words: WordVectors | None = None,
        placement: Placement | None = None,
        max_length: int | None = None,
        max_span_width: int = MAX_SPAN_WIDTH,
        spans_per_word: float = 0.4,
        num_antecedents: int = 50,
        hidden_dim: int = 150,
        pair_dim: int | None = 256,
        coarse_to_fine: bool = True,
        name: str = "coreference_resolver",
    ):
        check_encoder(encoder, tokenizer)
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
            rows=None,
            max_span_width=max_span_width,
            spans_per_word=spans_per_word,
            num_antecedents=num_antecedents,
            hidden_dim=hidden_dim,
            pair_dim=pair_dim,
            coarse_to_fine=coarse_to_fine,
        )
        self.max_length = encoder.max_sequence_length if max_length is None else max_length
        self.check_length(self.max_length)
        self.ranking = next(x for x in self.task_network.layers if isinstance(x, SpanRanking))

    @staticmethod
    def check_labels(labels: Iterable[Any]) -> None:
        if list(labels) != LABELS:
            raise ValueError(
                f"The labels of a `CoreferenceResolver` must be {LABELS}. Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> list[Any]:
        return LABELS

    @staticmethod
    def check_label(example: Example, number: int | None) -> None:
        sentences_of(example, number)  # raises for one without sentences

    @classmethod
    def target(
        cls,
        example: Example,
        labels: Iterable[Any],
        training: bool = True,
        number: int | None = None,
        max_span_width: int = MAX_SPAN_WIDTH,
    ) -> Any:
        """Returns the cluster of each span, counted from 1: (W, L), 0 for no mention.

        Wider mentions are left out.
        """
        cls.check_label(example, number)
        if example.label is None:
            raise ValueError(
                f"{place_of(example, number)}A document needs its clusters, which may be []. "
                "Received: label=None"
            )
        target = np.zeros((len(example.text), max_span_width), "int32")
        for cluster, mentions in enumerate(example.label, start=1):
            for start, end in mentions:
                if end - start <= max_span_width:
                    target[start, end - start - 1] = cluster
        return target

    @classmethod
    def more_inputs(
        cls, reader: keras.Layer | None, placement: Placement | None
    ) -> dict[str, keras.KerasTensor]:
        """Creates the symbolic inputs other than the encoder's inputs and the features."""
        sentences = keras.Input((None,), dtype="int32", name="sentence_ids")
        return {**super().more_inputs(reader, placement), "sentence_ids": sentences}

    @staticmethod
    def before_output(
        x: Tensor, mask: Tensor, reader: keras.Layer | None, pairs: bool | str = False
    ) -> Tensor:
        """Returns one vector per word, (B, W, D)."""
        return x

    @staticmethod
    def output_of(
        x: Tensor,
        num_labels: int,
        dropout: float,
        reader: keras.Layer | None = None,
        inputs: dict[str, Tensor] | None = None,
        **options,
    ) -> Tensor:
        options = {"max_span_width": MAX_SPAN_WIDTH, **options}
        ranking = SpanRanking(dropout=dropout, dtype=wide_dtype(x), name="span_ranking", **options)
        return ranking(x, inputs["padding_mask"], inputs["sentence_ids"])

    @staticmethod
    def default_loss() -> dict[str, keras.losses.Loss]:
        """Returns the default losses of `compile`."""
        return {"links": CoreferenceLoss(), "mentions": MentionLoss()}

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`: none."""
        return []  # clusters need `predict`

    def batches(self, examples: Iterable[Any], **options) -> Batches:
        """Creates `Batches` of documents; `batches.source` is the `DocumentRows`.

        Args:
            examples: A list of `Example(words, clusters, sentences=sizes)`.
            **options: `training`, `batch_size` (1 by default) or `tokens_per_batch`, `max_length`,
                and other arguments of `Batches`.

        Raises:
            ValueError: If an example is not a document, or only some have clusters.
        """
        if isinstance(examples, dict):
            return super().batches(examples, **options)
        examples = as_examples(examples, "examples", labelled=False)
        max_length = options.pop("max_length", None) or self.max_length
        self.check_length(max_length)
        known = [example.label is not None for example in examples]
        if any(known) and not all(known):
            raise ValueError(
                "Either all documents must have clusters, or none. "
                f"Received: example {known.index(False)} without"
            )
        targets = None
        if any(known):
            widest = self.ranking.max_span_width
            targets = [
                self.target(example, self.labels, number=i, max_span_width=widest)
                for i, example in enumerate(examples)
            ]
            self._warn_of_few_spans(examples, targets)
        rows = DocumentRows(
            examples,
            self.tokenizer,
            max_length,
            targets,
            self._word_tokenizer,
            "word_character_ids" in self.input,
        )
        return rows.batches(inputs=self._batch_inputs(), **options)

    def _warn_of_few_spans(self, examples, targets):
        """Warns if documents have more mentions than the spans that are kept."""
        percent = self.ranking.percent
        few = [
            i
            for i, target in enumerate(targets)
            if np.count_nonzero(target) > max(len(target) * percent // 100, 1)
        ]
        if few:
            warnings.warn(
                f"{len(few):,} of {len(examples):,} documents have more mentions than kept spans, "
                f"{percent} per 100 words: raise `spans_per_word`. The first is "
                f"{examples[few[0]].where or f'example {few[0]}'}",
                stacklevel=3,
            )

    def _as_examples(self, x, pairs, choices=None):
        examples = super()._as_examples(x, pairs, choices)
        for number, example in enumerate(examples):
            sentences_of(example, number)
        return examples

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any]:
        """Decodes the clusters of documents from their outputs.

        Returns:
            A list of clusters for each document, in the order of their first mentions. A mention is
            `(start, end)`: the index of its first word, and of the word after its last.
        """
        if probabilities:
            raise ValueError(
                "Clusters have no probabilities: leave `probabilities` out. "
                "Received: probabilities=True"
            )
        return [_clusters(np.asarray(of_document["links"])) for of_document in logits]

    def get_config(self):
        names = ("max_span_width", "spans_per_word", "num_antecedents", "hidden_dim")
        names += ("pair_dim", "coarse_to_fine")
        settings = {name: getattr(self.ranking, name) for name in names}
        return {**super().get_config(), **settings, "max_length": self.max_length}


def _clusters(scores):
    """Returns the clusters of a document from the scores of its kept spans."""
    links = scores[:, 1:, 0]
    best = links.argmax(axis=1) if links.shape[1] else np.zeros(len(links), int)
    cluster_of, clusters = {}, []
    for number, of_span in enumerate(scores):
        if of_span[0, 0] <= IMPOSSIBLE / 2:
            continue
        mention = tuple(of_span[0, 1:].astype(int).tolist())
        linked = links.shape[1] and links[number, best[number]] > 0
        if not linked and of_span[0, 0] <= 0:
            continue
        target = mention
        if linked:
            target = tuple(of_span[1 + best[number], 1:].astype(int).tolist())
        if target not in cluster_of:
            cluster_of[target] = len(clusters)
            clusters.append([target])
        if target is not mention:
            cluster_of[mention] = cluster_of[target]
            clusters[cluster_of[mention]].append(mention)
    return sorted(sorted(cluster) for cluster in clusters)
