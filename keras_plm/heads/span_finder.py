"""Head that finds the answer to a question in its passage."""

import keras
import numpy as np
from keras import ops

from keras_plm.data.passages import (
    MAX_LENGTH,
    STRIDE,
    Windows,
    check_joint,
    check_tokens_are_words,
)
from keras_plm.data.spans import Span, best_answers
from keras_plm.data.task import as_examples, place_of
from keras_plm.files.arguments import check_whole
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.readers.reading import Spread, texts_of
from keras_plm.layers import Dropout
from keras_plm.metrics import squad_scores
from keras_plm.models.encoder import check_encoder

NO_ANSWER = "no answer"  # a label of heads whose questions may have none
LABELS = ["start", "end"]


@keras.saving.register_keras_serializable("keras_plm")
class SpanFinder(Head):
    """Where in a passage the answer to a question begins and ends, if it has one.

    Question and passage are one row, of which every token has two logits; or they are read apart,
    as ELMo must, and meet in a reader. Long passages are read in windows that overlap, see
    `Windows`. `predict` gives answers as the passage writes them.

    An ordinary Keras model: `compile`, `fit` on `model.batches(examples)`, `evaluate`; examples are
    `Example(question, answers, pair=passage, starts=starts)`, as `data.read_squad` reads them.

    Reference: Devlin et al. 2018, sections 4.2 and 4.3; google-research/bert, run_squad.py.
    Differs from the released code: dropout before the output layer; answers are cut from the
    passage at their tokens' ends, extended to the next space.

    Args:
        encoder: An encoder; fine-tuned in place unless `frozen`. GPT reads the question first.
        labels: `["start", "end"]`, and behind them `"no answer"` where a passage may have none.
        tokenizer: The encoder's; needed for `batches` and to predict.
        layers: A `LayerChoice`; without it the last layer is read.
        reader: A layer from vectors to vectors, as `readers.BiLSTM`, over the row; or
            `readers.BiDAF`, which reads question and passage each by itself and scores both ends;
            what stands for no answer is then the passage's last.
        dropout: Fraction dropped before the output layer, in training.
        frozen: If True, only the task network learns; the encoder is made untrainable.
        task_network: A trained one from `build_task_network`, to put an encoder under it.
        words: A `WordVectors` whose vectors the reader reads too, where the encoder's tokens are
            words and `pairs="words"`; they stay as they are.
        placement: A `Placement` without character filters: where features enter beside them.
        max_length: Longest row in tokens; by default 384, or what the encoder reads if that is
            less.
        stride: Tokens between the beginnings of windows.
        max_answer_length: Of answers found, in tokens; those learned may be longer.
        n_best: How many answers a question has on request.
        null_threshold: With "no answer": there is none where its score is above that of the best
            span by more than this. `choose_threshold` finds a good one.
        pairs: `"words"` where question and passage are read apart; by default as the tokenizer
            does it. It needs a reader.

    Call arguments:
        inputs: The encoder's inputs, and `answer_mask` (B, T), True at the tokens of the passage
            and at what stands for no answer, BERT's [CLS] or GPT's `_classify_`. With
            `pairs="words"` the encoder's inputs are (B, 2, T), and `word_positions` (B, T) tells
            which of the 2 T vectors are the row's; a vector of zeros stands for no answer. With
            `words` also `vector_ids` (B, T), their ids in its vocabulary. Under a reader of two
            texts also `first_positions` and `second_positions`, see `Classifier`.

    Returns:
        (B, 2, T) logits, of start and end; -1e9 where there can be none.

    Raises:
        ValueError: If `labels` are others, an argument has no meaning, the tokenizer puts no two
            texts in one row, or there are word vectors and tokens are no words.
    """

    kind = "answers"
    per_word = True
    per_token = True
    takes_class_weight = False

    def __init__(
        self,
        encoder,
        labels=tuple(LABELS),
        tokenizer=None,
        layers=None,
        reader=None,
        dropout=0.1,
        frozen=False,
        task_network=None,
        words=None,
        placement=None,
        max_length=None,
        stride=STRIDE,
        max_answer_length=30,  # run_squad.py's, as is the next
        n_best=20,
        null_threshold=0.0,
        pairs=None,
        name="span_finder",
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
                f"`max_length` is at most the encoder's {limit} positions. Received: {max_length}"
            )
        if words is not None and tokenizer is not None:
            check_tokens_are_words(tokenizer)
        if pairs is None:
            pairs = _pairs_of(tokenizer, reader)
        if pairs not in (False, "words") or (pairs and reader is None):
            raise ValueError(
                "`pairs` is False, or 'words' under a reader. "
                f"Received: pairs={pairs!r}, reader={reader}"
            )
        if tokenizer is not None and not pairs:
            check_joint(tokenizer)
        if placement is not None and placement.character_filters:
            raise ValueError(
                "Spelling is that of words, and a `SpanFinder` reads tokens: leave "
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
    def check_labels(labels):
        if list(labels) not in (LABELS, [*LABELS, NO_ANSWER]):
            raise ValueError(
                f"The labels of a `SpanFinder` are {LABELS}, and {NO_ANSWER!r} behind them where "
                f"questions may have none. Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples):
        answered = [len(getattr(example, "label", None) or ()) > 0 for example in examples]
        return LABELS if all(answered) else [*LABELS, NO_ANSWER]

    @staticmethod
    def check_label(example, number):
        """Answers are checked with their passages, see `Windows`."""

    @classmethod
    def target(cls, example, labels, training=True, number=None):
        """The answers; raises unless they are such as this head finds."""
        where = place_of(example, number)
        if getattr(example, "starts", None) is None:
            raise ValueError(
                f"{where}A `SpanFinder` learns answers that stand in a passage: "
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
    def targets(cls, examples, labels, windows=None):
        super().targets(examples, labels)
        return windows.targets

    @classmethod
    def features_of(cls, encoded, pool, pairs):
        if not pairs:
            return encoded.tokens()
        features, mask = encoded.words()
        # Zeros stand for no answer, as in a `FeatureStore`.
        return features * ops.cast(mask, features.dtype)[..., None, None], mask

    @classmethod
    def more_inputs(cls, reader, placement):
        mask = keras.Input((None,), dtype="bool", name="answer_mask")
        return {"answer_mask": mask, **super().more_inputs(reader, placement)}

    @staticmethod
    def before_output(x, mask, reader, pairs=False):
        """A vector (B, T, D) of each token."""
        return x

    @staticmethod
    def output_of(x, num_labels, dropout, reader=None, inputs=None):
        if texts_of(reader) is not None:  # (B, 2, S) of the passage
            positions, mask = inputs["second_positions"], inputs["padding_mask"]
            return Spread(name="logits")(x, positions, mask)
        x = Dropout(dropout, name="dropout")(x)
        x = keras.layers.Dense(len(LABELS), dtype="float32", name="logits")(x)  # (B, T, 2)
        return ops.transpose(x, (0, 2, 1))

    @staticmethod
    def masked(logits, inputs):
        return ops.where(inputs["answer_mask"][:, None], logits, -1e9)  # (B, 2, T)

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def batches(self, examples, **options):
        """`Batches` of the windows of examples, `batches.source` the `Windows`.

        Args:
            examples: Questions with their passages.
            **options: `training`, `batch_size` (32 by default) or `tokens_per_batch`, `max_length`,
                and other arguments of `Batches`.

        Raises:
            ValueError: As `Windows`; and if questions have no answer where the head knows of none.
        """
        if isinstance(examples, dict):
            return super().batches(examples, **options)
        max_length = options.pop("max_length", None) or self.max_length
        limit = self.encoder.max_sequence_length
        if limit is not None and max_length > limit:
            raise ValueError(
                f"`max_length` is at most the encoder's {limit} positions. Received: {max_length}"
            )
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
    def decode_options(self):
        return {
            "n_best": self.n_best,
            "max_answer_length": self.max_answer_length,
            "null_threshold": self.null_threshold,
        }

    @staticmethod
    def decode(
        labels,
        logits,
        source,
        probabilities=False,
        n_best=20,
        max_answer_length=30,
        null_threshold=0.0,
    ):
        """Answers of the logits (2, T) of each window.

        Returns:
            A text of each question, `""` for no answer; with `probabilities` a list of the `n_best`
            `Span`s of each, best first, and with "no answer" among the labels one more of it.
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
            spans = {}  # by text: the best of equal ones
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

    def choose_threshold(self, examples):
        """Sets `null_threshold` to where the answers to these examples have the highest F1.

        Of all thresholds that give it, it is 0 if that is one, else the middle between the last
        question that is answered and the first that is not.

        Reference: Devlin et al. 2018, section 4.3.

        Args:
            examples: Questions with and without answers, not those of a test.

        Returns:
            The F1 with it on these examples, in [0, 1].

        Raises:
            ValueError: If the head knows no questions without answer.
        """
        if NO_ANSWER not in self.labels:
            raise ValueError(
                f"A threshold is for a head with {NO_ANSWER!r} among its labels. "
                f"Received: labels={self.labels}"
            )
        examples = as_examples(examples)
        for i, example in enumerate(examples):
            self.target(example, self.labels, number=i)
        found = self.predict(examples, probabilities=True)
        best, self.null_threshold = _threshold(examples, found)
        return best

    @staticmethod
    def settle(labels, examples, predict):
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
    """How question and passage are read: `"words"` if a reader has both from rows of their own."""
    apart = tokenizer is not None and not getattr(tokenizer, "joint_pairs", False)
    return "words" if apart and reader is not None else False


def _threshold(examples, found):
    """The highest F1 of the answers found, and a threshold that gives it."""
    answers, odds = no_answer_odds(found)
    truth = [example.label for example in examples]
    scores = np.array([f1 for _, f1 in squad_scores(truth, answers, version=2)])
    answered = np.array([len(label) > 0 for label in truth])
    # The more likely questions have an answer, the earlier they are answered, none or all at last.
    order = np.argsort(odds, kind="stable")
    gains = np.where(answered, scores, -1.0)[order]
    totals = (~answered).sum() + np.concatenate([[0.0], np.cumsum(gains)])
    odds = np.array(odds, "float64")[order]
    low, high = np.append(-np.inf, odds), np.append(odds, np.inf)
    totals[low == high] = -np.inf  # equal odds are not parted
    best = np.flatnonzero(totals >= totals.max() - 1e-9)
    if (holds_zero := best[(low[best] <= 0) & (0 < high[best])]).size:
        return float(totals[holds_zero[0]] / len(odds)), 0.0
    chosen = best[np.abs(np.clip(0.0, low[best], high[best])).argmin()]  # the nearest to 0
    below, above = low[chosen], high[chosen]
    below = above - 2 if below == -np.inf else below
    above = below + 2 if above == np.inf else above
    return float(totals[chosen] / len(odds)), float((below + above) / 2)


def no_answer_odds(found):
    """The best spans, and how much higher the score of no answer is, as SQuAD 2.0 is evaluated.

    Args:
        found: What `SpanFinder.predict(..., probabilities=True)` gives with "no answer".

    Returns:
        `(texts, odds)`: of each question the best span that is no refusal, and a number that is
        larger the likelier there is no answer.

    Raises:
        ValueError: If there is no score of no answer.
    """
    texts, odds = [], []
    for spans in found:
        null = next((span.score for span in spans if span.text == ""), None)
        if null is None:
            raise ValueError(
                f"These answers are those of a head with {NO_ANSWER!r} among its labels. "
                f"Received: {spans!r:.80}"
            )
        best = next((span for span in spans if span.text != ""), Span("", -1, -np.inf, 0.0))
        texts.append(best.text)
        odds.append(null - best.score)
    return texts, odds
