"""Head that finds the answer to a question in its passage."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.passages import (
    MAX_LENGTH,
    STRIDE,
    Windows,
    check_joint,
    check_tokens_are_words,
)
from keras_plm.data.spans import Span, best_answers
from keras_plm.data.task import Example, as_examples, place_of
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import Tensor
from keras_plm.heads.encoded import Encoded
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.readers.reading import Spread, texts_of
from keras_plm.heads.task_network import Placement, TaskNetwork
from keras_plm.layers import Dropout, LayerChoice
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.metrics import normalize_answer, squad_scores
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer

NO_ANSWER = "no answer"  # label of heads whose questions may have no answer
LABELS = ["start", "end"]


@keras.saving.register_keras_serializable("keras_plm")
class SpanFinder(Head):
    """Question-answering head: finds the span of a passage that answers a question.

    Question and passage are one row with two logits per token. Or the encoder reads them
    separately, as ELMo does, and a reader combines them. Long passages are split into overlapping
    windows, see `Windows`. `predict` returns answers as written in the passage.

    It is a Keras model with `compile`, `fit` on `model.batches(examples)`, and `evaluate`. Examples
    are `Example(question, answers, pair=passage, starts=starts)`, as from `data.read_squad`.

    Reference: Devlin et al. 2018, sections 4.2 and 4.3; google-research/bert, run_squad.py.
    Differs from the released code: there is dropout before the output layer; an answer is the
    passage from the start of its first token to the end of its last.

    Args:
        encoder: An encoder; it is trained in place unless `frozen`. GPT reads the question first.
        labels: `["start", "end"]`; also `"no answer"` if questions may have no answer.
        tokenizer: The encoder's tokenizer; needed for `batches` and `predict`.
        layers: A `LayerChoice`; by default the last layer.
        reader: A layer from vectors to vectors, such as `readers.BiLSTM`; or `readers.BiDAF`, which
            reads question and passage separately and scores "no answer" after the passage.
        dropout: Fraction dropped before the output layer in training.
        frozen: If True, only the task network is trained. This freezes `encoder` itself, also in
            other models that hold it.
        task_network: A trained task network from `build_task_network`, or `None` for a new one.
        words: A `WordVectors` whose frozen vectors the reader also reads; only with tokens that are
            words and `pairs="words"`.
        placement: A `Placement` of the features, without character filters.
        max_length: Largest number of tokens of a row; by default 384, or less for a shorter
            encoder.
        stride: Distance between the starts of windows, in tokens.
        max_answer_length: Largest number of tokens of a predicted answer.
        n_best: Number of answers per question with `probabilities=True`.
        null_threshold: Margin for "no answer": `predict` returns no answer if its score exceeds
            that of the best span by more. `choose_threshold` sets it.
        pairs: `"words"` to read question and passage separately, with a reader. By default they are
            separate only if the tokenizer cannot pack both into one row.

    Call arguments:
        inputs: The encoder's inputs, and `answer_mask` (B, T), True at the tokens of the passage
            and at the token for no answer, BERT's [CLS] or GPT's `_classify_`. With
            `pairs="words"` the encoder's inputs are (B, 2, T), and `word_positions` (B, T) are the
            positions of the row's vectors among the 2 T; a vector of zeros means no answer. With
            `words` also `vector_ids` (B, T), ids in its vocabulary. With a reader of two texts also
            `first_positions` and `second_positions`, see `Classifier`.

    Returns:
        (B, 2, T) logits of start and end; -1e9 where `answer_mask` is False.

    Raises:
        ValueError: If `labels` or another argument is invalid, the tokenizer does not pack two
            texts into one row, or there are word vectors for tokens that are not words.

    >>> from keras_plm.data import Example
    >>> from keras_plm.models import BERT
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"])
    >>> encoder = BERT(len(tokenizer), 1, 2, 4, 8, max_sequence_length=16)
    >>> model = SpanFinder(encoder, tokenizer=tokenizer, stride=2)
    >>> (answer,) = model.predict([Example("a", pair="b c d")])
    >>> answer in "b c d"
    True
    """

    kind = "answers"
    per_word = True
    per_token = True
    takes_class_weight = False

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any] = tuple(LABELS),
        tokenizer: SubwordTokenizer | None = None,
        layers: LayerChoice | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.1,
        frozen: bool = False,
        task_network: TaskNetwork | None = None,
        words: WordVectors | None = None,
        placement: Placement | None = None,
        max_length: int | None = None,
        stride: int = STRIDE,
        max_answer_length: int = 30,  # as in run_squad.py, also the next one
        n_best: int = 20,
        null_threshold: float = 0.0,
        pairs: bool | str | None = None,
        name: str = "span_finder",
    ):
        check_encoder(encoder, tokenizer)
        limit = encoder.max_sequence_length
        if max_length is None:
            max_length = min(limit or MAX_LENGTH, MAX_LENGTH)
        for argument, value in (
            ("max_length", max_length),
            ("stride", stride),
            ("max_answer_length", max_answer_length),
            ("n_best", n_best),
        ):
            check_whole(value, argument, least=1)
        if limit is not None and max_length > limit:
            raise ValueError(
                f"`max_length` must be at most the encoder's {limit} positions. "
                f"Received: {max_length}"
            )
        if words is not None and tokenizer is not None:
            check_tokens_are_words(tokenizer)
        if pairs is None:
            pairs = _pairs_of(tokenizer, reader)
        if pairs not in (False, "words") or (pairs and reader is None):
            raise ValueError(
                "`pairs` must be False, or 'words' with a reader. "
                f"Received: pairs={pairs!r}, reader={reader}"
            )
        if tokenizer is not None and not pairs:
            check_joint(tokenizer)
        if placement is not None and placement.character_filters:
            raise ValueError(
                "A `SpanFinder` reads tokens, and only words have characters: leave "
                "`character_filters` out. "
                f"Received: character_filters={placement.character_filters}"
            )
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
            pairs,
        )
        self.max_length, self.stride = max_length, stride
        self.max_answer_length, self.n_best = max_answer_length, n_best
        self.null_threshold = null_threshold

    @staticmethod
    def check_labels(labels: Iterable[Any]) -> None:
        if list(labels) not in (LABELS, [*LABELS, NO_ANSWER]):
            raise ValueError(
                f"The labels of a `SpanFinder` must be {LABELS}, followed by {NO_ANSWER!r} if "
                f"questions may have no answer. Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> list[Any]:
        answered = [len(getattr(example, "label", None) or ()) > 0 for example in examples]
        return LABELS if all(answered) else [*LABELS, NO_ANSWER]

    @staticmethod
    def check_label(example: Example, number: int | None) -> None:
        """Does nothing: `Windows` checks answers with their passages."""

    @classmethod
    def target(
        cls,
        example: Example,
        labels: Iterable[Any],
        training: bool = True,
        number: int | None = None,
    ) -> Any:
        """Returns the answers; raises unless this head can find them."""
        where = place_of(example, number)
        if getattr(example, "starts", None) is None:
            raise ValueError(
                f"{where}A `SpanFinder` needs answers from a passage: give "
                "`Example(question, answers, pair=passage, starts=starts)`. "
                f"Received: {example!r:.100}"
            )
        if not example.label and NO_ANSWER not in labels:
            raise ValueError(
                f"{where}Questions without an answer need a head that knows them: "
                f"labels={[*LABELS, NO_ANSWER]}. Received: labels={list(labels)}"
            )
        return example.label

    @classmethod
    def targets(
        cls, examples: Sequence[Example], labels: Iterable[Any], windows: Windows | None = None
    ) -> Any:
        super().targets(examples, labels)
        return windows.targets

    @classmethod
    def features_of(
        cls, encoded: Encoded, pool: str | None, pairs: bool | str
    ) -> tuple[Tensor, Tensor]:
        if not pairs:
            return encoded.tokens()
        features, mask = encoded.words()
        # Zeros stand for no answer, as in a `FeatureStore`.
        return features * ops.cast(mask, features.dtype)[..., None, None], mask

    @classmethod
    def more_inputs(
        cls, reader: keras.Layer | None, placement: Placement | None
    ) -> dict[str, keras.KerasTensor]:
        mask = keras.Input((None,), dtype="bool", name="answer_mask")
        return {"answer_mask": mask, **super().more_inputs(reader, placement)}

    @staticmethod
    def before_output(
        x: Tensor, mask: Tensor, reader: keras.Layer | None, pairs: bool | str = False
    ) -> Tensor:
        """Returns one vector per token, (B, T, D)."""
        return x

    @staticmethod
    def output_of(
        x: Tensor,
        num_labels: int,
        dropout: float,
        reader: keras.Layer | None = None,
        inputs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        if texts_of(reader) is not None:  # (B, 2, S) of the passage
            positions, mask = inputs["second_positions"], inputs["padding_mask"]
            return Spread(name="logits")(x, positions, mask)
        x = Dropout(dropout, name="dropout")(x)
        x = keras.layers.Dense(len(LABELS), dtype=wide_dtype(x), name="logits")(x)  # (B, T, 2)
        return ops.transpose(x, (0, 2, 1))

    @staticmethod
    def masked(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        return ops.where(inputs["answer_mask"][:, None], logits, -1e9)  # (B, 2, T)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def batches(self, examples: Iterable[Any], **options) -> Batches:
        """Creates `Batches` of the windows of examples; `batches.source` is the `Windows`.

        Args:
            examples: Questions with their passages.
            **options: `training`, `batch_size` (32 by default) or `tokens_per_batch`, `max_length`,
                and other arguments of `Batches`.

        Raises:
            ValueError: As `Windows`. If a question has no answer, but the head has no label for it.
        """
        if isinstance(examples, dict):
            return super().batches(examples, **options)
        max_length = options.pop("max_length", None) or self.max_length
        self.check_length(max_length)
        windows = Windows(
            examples,
            self.tokenizer,
            max_length,
            self.stride,
            bool(self.pairs),
            self._word_tokenizer,
        )
        if windows.targets is not None:
            self.targets(examples, self.labels, windows)
        return windows.batches(pair_positions=texts_of(self.reader) is not None, **options)

    @property
    def decode_options(self) -> dict[str, Any]:
        return {
            "n_best": self.n_best,
            "max_answer_length": self.max_answer_length,
            "null_threshold": self.null_threshold,
        }

    @staticmethod
    def decode(
        labels: Iterable[Any],
        logits: Any,
        source: Any,
        probabilities: bool = False,
        n_best: int = 20,
        max_answer_length: int = 30,
        null_threshold: float | None = 0.0,
    ) -> list[Any] | np.ndarray:
        """Decodes answers from the logits (2, T) of each window.

        Returns:
            A text for each question, `""` for no answer. With `probabilities` a list of the
            `n_best` `Span`s, best first, and one more for the label "no answer".
        """
        count = n_best if probabilities else 1
        scores, first, last, null = best_answers(logits, source, count, max_answer_length)
        begins, ends = source.offsets(np.arange(len(null))[:, None], first, last).tolist()
        refuses = NO_ANSWER in labels
        if not probabilities:
            none = refuses & (null - scores[:, 0] > null_threshold)
            return [
                "" if no else passage[begin[0] : end[0]]
                for no, passage, begin, end in zip(none, source.passages, begins, ends, strict=True)
            ]
        found = []
        for i, passage in enumerate(source.passages):
            spans = {}  # by text; the first one is the best
            for score, begin, end in zip(scores[i].tolist(), begins[i], ends[i], strict=True):
                if score > -np.inf:
                    spans.setdefault(passage[begin:end], (begin, score))
            if refuses:
                spans[""] = (-1, float(null[i]))
            ordered = sorted(spans.items(), key=lambda item: -item[1][1])
            chances = softmax(np.array([score for _, (_, score) in ordered])).tolist()
            found.append(
                [
                    Span(text, start, score, chance)
                    for (text, (start, score)), chance in zip(ordered, chances, strict=True)
                ]
            )
        return found

    def choose_threshold(self, examples: Sequence[Example]) -> float:
        """Sets `null_threshold` to the value with the highest F1 on examples.

        Among several such values it takes 0 if possible, otherwise the middle between the last
        question with an answer and the first without.

        Reference: Devlin et al. 2018, section 4.3.

        Args:
            examples: Questions of a dev set, with and without answers.

        Returns:
            The F1 on these examples, in [0, 1].

        Raises:
            ValueError: If the head has no label "no answer".
        """
        if NO_ANSWER not in self.labels:
            raise ValueError(
                f"A threshold needs a head with {NO_ANSWER!r} among its labels. "
                f"Received: labels={self.labels}"
            )
        examples = as_examples(examples)
        for i, example in enumerate(examples):
            self.target(example, self.labels, number=i)
        found = self.predict(examples, probabilities=True)
        best, self.null_threshold = _threshold(examples, found)
        return best

    @staticmethod
    def settle(
        labels: Iterable[Any], examples: Sequence[Example], predict: Callable[[], Any]
    ) -> dict[str, Any]:
        if NO_ANSWER not in labels:
            return {}
        return {"null_threshold": _threshold(examples, predict())[1]}

    def get_config(self):
        return {
            **super().get_config(),
            **self.decode_options,
            "max_length": self.max_length,
            "stride": self.stride,
            "pairs": self.pairs,
        }


def _pairs_of(tokenizer, reader):
    """Returns `"words"` if a reader combines separate question and passage, otherwise False."""
    apart = tokenizer is not None and not getattr(tokenizer, "joint_pairs", False)
    return "words" if apart and reader is not None else False


def _threshold(examples, found):
    """Returns the highest F1 of the found answers, and a threshold that reaches it."""
    answers, odds = no_answer_odds(found)
    truth = [example.label for example in examples]
    scores = np.array([f1 for _, f1 in squad_scores(truth, answers, version=2)])
    answered = np.array([any(map(normalize_answer, label)) for label in truth])
    # Answers from none to all of the questions, those with the lowest odds of no answer first.
    order = np.argsort(odds, kind="stable")
    gains = np.where(answered, scores, scores - 1)[order]
    totals = (~answered).sum() + np.concatenate([[0.0], np.cumsum(gains)])
    odds = np.array(odds, "float64")[order]
    low, high = np.append(-np.inf, odds), np.append(odds, np.inf)
    totals[low == high] = -np.inf  # no threshold separates equal odds
    best = np.flatnonzero(totals >= totals.max() - 1e-9)
    if (holds_zero := best[(low[best] <= 0) & (0 < high[best])]).size:
        return float(totals[holds_zero[0]] / len(odds)), 0.0
    chosen = best[np.abs(np.clip(0.0, low[best], high[best])).argmin()]  # the nearest to 0
    below, above = low[chosen], high[chosen]
    below = above - 2 if below == -np.inf else below
    above = below + 2 if above == np.inf else above
    return float(totals[chosen] / len(odds)), float((below + above) / 2)


def no_answer_odds(found: Sequence[Sequence[Any]]) -> tuple[list[str], list[float]]:
    """Returns best spans and the odds of no answer, for the evaluation of SQuAD 2.0.

    Args:
        found: Result of `SpanFinder.predict(..., probabilities=True)` with the label "no answer".

    Returns:
        `(texts, odds)`: for each question the best span with text, and the score of no answer minus
        that of this span.

    Raises:
        ValueError: If a question has no score for no answer.

    >>> no_answer_odds([[Span("1882", 7, 2.0, 0.8), Span("", -1, 0.5, 0.2)]])
    (['1882'], [-1.5])
    """
    texts, odds = [], []
    for spans in found:
        null = next((span.score for span in spans if span.text == ""), None)
        if null is None:
            raise ValueError(
                f"The answers must be from a head with {NO_ANSWER!r} among its labels. "
                f"Received: {spans!r:.80}"
            )
        best = next((span for span in spans if span.text != ""), Span("", -1, -np.inf, 0.0))
        texts.append(best.text)
        odds.append(null - best.score)
    return texts, odds
