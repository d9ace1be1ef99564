"""Base of the heads: features, task network, `compile` and `predict`.

Shapes: B examples, P rows of an example, T tokens, W words, n layers read, D width, K labels.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.examples import batches
from keras_plm.data.labels import fraction_of_range, label_ids, label_names
from keras_plm.data.pair_positions import POSITION_INPUTS
from keras_plm.data.passages import Windows
from keras_plm.data.task import Example, Unlabelled, place_of
from keras_plm.files.arguments import check_type, check_whole
from keras_plm.files.sequences import (
    Tensor,
    are_texts,
    as_names,
    as_texts,
    is_missing,
)
from keras_plm.heads.checks import (
    as_examples,
    check_pairs,
    check_parts,
    check_settings,
    check_trained_on,
    check_vectors,
)
from keras_plm.heads.encoded import Encoded, Frozen
from keras_plm.heads.readers.reading import check_serves, read, texts_of
from keras_plm.heads.task_network import COMBINES, Combine, Placement, TaskNetwork
from keras_plm.layers import CharacterEncoder, Dropout, LayerChoice
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import FitsBatches, run_on
from keras_plm.training.losses import LabelLoss


class Head(FitsBatches, keras.Model):
    """Base class of the heads; see `Classifier`.

    Attributes:
        kind: Kind of readers that fit: "texts", "words" or "answers".
        per_word: Whether each word has an output and a label.
        per_token: Whether each token of a row has an output, for a question with its passage.
        scores: Whether labels are numbers; `labels` then holds the lowest and the highest.
        marks_predicates: Whether a predicate of each example is an input.
        reads_documents: Whether an example is a document with its sentences.
        trained_on_pairs: Whether it was trained on pairs of texts, the only input of `predict`;
            `None` if unknown.
        encoded: Symbolic tensors of the encoder's inputs (B P, T) and last layer (B P, T, D), for
            additional objectives.
    """

    kind = "texts"
    per_word = False
    per_token = False
    scores = False
    marks_predicates = False
    reads_documents = False
    learns_from = (
        "make batches of examples: model.fit(model.batches([Example(text, label), ...])), and "
        "evaluate(model.batches(examples, training=False))"
    )

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer | None,
        layers: LayerChoice | None,
        pool: str | None,
        reader: keras.Layer | None,
        dropout: float,
        frozen: bool,
        task_network: TaskNetwork | None,
        words: WordVectors | None,
        placement: Placement | None,
        name: str | None,
        pairs: bool | str = False,
        rows: int | None = 1,
        **output_options,
    ):
        labels = as_names(labels, "labels")
        self.check_labels(labels)
        placement = placement or Placement()
        check_type(placement, "placement", Placement, "`Placement('output')`")
        check_parts(type(self), encoder, tokenizer, layers, reader, dropout, frozen, task_network)
        check_vectors(placement, reader, words, task_network, pairs)
        if task_network is not None:
            check_settings(task_network, layers, placement, dropout)

        encoded = Encoded(encoder, layers, frozen, rows=2 if pairs else rows)
        features, real = self.features_of(encoded, pool, pairs)
        more = self.more_inputs(reader, placement)
        inputs = {**encoded.inputs, **more}
        # The vector for no answer need not come from the encoder.
        mask = ops.logical_or(real, more["answer_mask"]) if self.per_token else real
        read_of = {"features": features, "padding_mask": mask, **more}
        width = None
        if words is not None:
            inputs["vector_ids"] = keras.Input((None,), dtype="int32", name="vector_ids")
            asked = {"token_ids": inputs["vector_ids"], "padding_mask": real}
            read_of["words"] = Frozen(words, name="frozen_words")(asked)["sequence"]  # (B, W, D')
            width = words.hidden_dim
        if task_network is None:
            shape = features.shape[-2:]
            task_network = self.build_task_network(
                shape, len(labels), layers, reader, dropout, placement, width, pairs, pool,
                **output_options,
            )  # fmt: skip
        logits = task_network(read_of)
        super().__init__(inputs, logits, name=name)
        self.task_network = task_network
        self.encoder = encoder
        self.encoded = encoded.texts, encoded.outputs["sequence"]
        self.labels = labels
        self.tokenizer = tokenizer
        self.dtype_policy = encoder.dtype_policy  # under float16 Keras then scales the loss
        self.layer_choice = layers
        self.reader = reader
        self.dropout = dropout
        self.frozen = frozen
        self.words = words
        self.placement = placement
        self.pairs = pairs
        self.trained_on_pairs = None
        self._word_tokenizer = None if words is None else words.tokenizer()

    @classmethod
    def features_of(
        cls, encoded: Encoded, pool: str | None, pairs: bool | str
    ) -> tuple[Tensor, Tensor]:
        """Computes the features of the task network, and their mask.

        Args:
            encoded: The `Encoded` examples.
            pool: Pooling of the tokens of a row; `None` for a vector of each word.
            pairs: As in `Classifier`.

        Returns:
            `(features, mask)`: (B, W, n, D) and (B, W).
        """
        return encoded.words() if pool is None else encoded.pooled(pool)

    @classmethod
    def build_task_network(
        cls,
        shape: tuple[int, int],
        num_labels: int,
        layers: LayerChoice | None = None,
        reader: keras.Layer | None = None,
        dropout: float = 0.1,
        placement: Placement | None = None,
        words: int | None = None,
        pairs: bool | str = False,
        pool: str | None = None,  # used by heads of two rows, see `Classifier`
        **output_options,
    ) -> TaskNetwork:
        """Builds the task network from features (B, W, *shape) to logits.

        Args:
            shape: (n, D), number of layers and their width.
            num_labels: Number of labels K.
            layers, reader, dropout: As in the class.
            placement: A `Placement`; by default the features are the reader's input.
            words: Width of the word vectors next to the features, or `None`.
            pairs, pool: As in `Classifier`.
            **output_options: Options of `output_of`.

        Returns:
            A `TaskNetwork` of `features` (B, W, n, D), `padding_mask` (B, W), and on request
            `words` (B, W, D'), `word_character_ids` (B, W, C), `first_positions` and
            `second_positions`.

        Raises:
            ValueError: If the placement needs a reader or word vectors that are missing.
        """
        placement = placement or Placement()
        placement.check(reader, words)
        check_serves(reader, cls)
        features = keras.Input((None, *shape), name="features")
        mask = keras.Input((None,), dtype="bool", name="padding_mask")
        more = cls.more_inputs(reader, placement)
        inputs = {"features": features, "padding_mask": mask, **more}
        vectors = []
        if words is not None:
            inputs["words"] = keras.Input((None, words), name="words")
            vectors.append(inputs["words"])
        if placement.character_filters:
            # Sizes: AllenNLP's tagger.
            count = placement.character_filters
            encoder = CharacterEncoder(count, [[3, count]], num_highway=0, name="character_encoder")
            vectors.append(encoder(inputs["word_character_ids"]))
        vectors += cls.more_vectors(inputs)

        def combined(place):
            combine = Combine(
                layers.combine if layers else "concat",
                placement.penalty,
                placement.mix_norm,
                name=COMBINES[place],
            )
            x = combine(features, padding_mask=mask)
            if placement.feature_dropout:
                x = Dropout(placement.feature_dropout, name=f"feature_dropout_{place}")(x)
            return x

        if placement.place != "output":
            vectors.append(combined("input"))
        x = ops.concatenate(vectors, axis=-1) if vectors[1:] else vectors[0]
        if reader is not None:
            appended = combined("output") if placement.place != "input" else None
            x = read(reader, x, mask, inputs, appended)
        x = cls.before_output(x, mask, reader, pairs)
        logits = cls.output_of(x, num_labels, dropout, reader, inputs, **output_options)
        return TaskNetwork(inputs, cls.masked(logits, inputs), name="task_network")

    @classmethod
    def more_inputs(
        cls, reader: keras.Layer | None, placement: Placement | None
    ) -> dict[str, keras.KerasTensor]:
        """Creates the symbolic inputs other than the encoder's inputs and the features."""
        inputs = {}
        if texts_of(reader) is not None:
            inputs |= {
                name: keras.Input((None,), dtype="int32", name=name) for name in POSITION_INPUTS
            }
        if placement.character_filters:
            inputs["word_character_ids"] = keras.Input(
                (None, None), dtype="int32", name="word_character_ids"
            )
        return inputs

    @staticmethod
    def more_vectors(inputs: dict[str, Tensor]) -> list[Tensor]:
        """Computes vectors of words (B, W, ...) to read next to the features."""
        return []

    @staticmethod
    def masked(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Sets the logits of impossible outputs to a low value."""
        return logits

    @staticmethod
    def output_of(
        x: Tensor,
        num_labels: int,
        dropout: float,
        reader: keras.Layer | None = None,
        inputs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Computes logits with dropout and the output layer."""
        x = Dropout(dropout, name="dropout")(x)
        return keras.layers.Dense(num_labels, dtype=wide_dtype(x), name="logits")(x)

    @staticmethod
    def check_labels(labels: Iterable[Any]) -> None:
        """Raises unless the labels are valid for this head."""
        if len(labels) < 2:
            raise ValueError(f"A head needs two labels or more. Received: labels={labels}")

    @classmethod
    def labels_of(cls, examples: Sequence[Example]) -> list[Any]:
        """Returns the labels of a head for these examples."""
        labels = label_names(examples)
        for i, example in enumerate(examples):
            cls.check_label(example, i)
        return labels

    @staticmethod
    def check_label(example: Example, number: int | None) -> None:
        """Raises unless the label of example `number` is valid for this head."""
        if isinstance(example.label, (list, tuple)):
            raise ValueError(
                f"{place_of(example, number)}A `Tagger` learns a tag for each word; here a text "
                f"has one label. Received: {str(example.label):.60}"
            )

    @classmethod
    def target(
        cls,
        example: Example,
        labels: Iterable[Any],
        training: bool = True,
        number: int | None = None,
    ) -> Any:
        """Returns the target of an example.

        Args:
            example: An `Example`.
            labels: The labels of the head.
            training: If False, a label that is not among `labels` has the id -1, and a score may
                lie outside their range.
            number: Number of the example, for error messages.
        """
        return (fraction_of_range if cls.scores else label_ids)(example, labels, training, number)

    @classmethod
    def targets(
        cls, examples: Sequence[Example], labels: Iterable[Any], windows: Windows | None = None
    ) -> Any:
        """Returns the targets of all rows of examples, or of their `Windows`."""
        return [cls.target(example, labels, number=i) for i, example in enumerate(examples)]

    @staticmethod
    def settle(
        labels: Iterable[Any], examples: Sequence[Example], predict: Callable[[], Any]
    ) -> dict[str, Any]:
        """Chooses options of `decode` for a trained head.

        Args:
            labels: The labels of the head.
            examples: Examples of the dev set.
            predict: Function without arguments that returns their probabilities.
        """
        return {}

    @staticmethod
    def default_loss() -> keras.losses.Loss | dict[str, keras.losses.Loss]:
        """Returns the default loss of `compile`, or one for each output."""
        return LabelLoss()

    def mixing_weights(self) -> dict[str, dict[str, Any]]:
        """Returns the weights of the learned mixes of layers, see `TaskNetwork.mixing_weights`."""
        return self.task_network.mixing_weights()

    def compile(self, optimizer="adam", loss=None, weighted_metrics=None, **kwargs):
        """Configures training as `keras.Model.compile`; loss and metric default to the head's."""
        if loss is None:
            loss = self.default_loss()
        if weighted_metrics is None and kwargs.get("metrics") is None:
            weighted_metrics = self.default_metrics()
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        *,
        pairs: Iterable[Any] | None = None,
        choices: Iterable[Any] | None = None,
        probabilities: bool = False,
    ) -> Any:
        """Predicts labels of texts; on arrays it is `keras.Model.predict`.

        Args:
            x: A list of texts or of `Example`; for a `Tagger`, of lists of words. A column of a
                table or an array of strings also works.
            batch_size: Number of texts per batch; by default as many as fit into 4,096 tokens.
            verbose: 1 shows a progress bar, 2 one line at the end, 0 nothing. `"auto"` is 0 for
                texts, and Keras' default for arrays.
            steps, callbacks: Arguments of `keras.Model.predict`, for arrays.
            pairs: The second texts, or `None`.
            choices: The choices of each text for a `MultipleChoice`, or `None`.
            probabilities: If True, return probabilities of the labels.

        Returns:
            A list of label names, or of lists of tags. With `probabilities` an array (N, K), or a
            list of arrays (words, K).

        Raises:
            TypeError: If `x` is one example and not a list.
            ValueError: If the head has no tokenizer, `x` is `Batches`, or an argument does not
                apply to this kind of `x`.
        """
        if isinstance(x, Batches):
            raise ValueError(
                "`predict` needs examples in their order, but `Batches` are ordered by length: "
                "give the examples themselves, or read rows with "
                "`keras_plm.training.run_on`. Received: Batches"
            )
        if isinstance(x, (Example, Unlabelled)):
            raise TypeError(f"`predict` needs a list: predict([example]). Received: {x!r:.60}")
        texts, x = are_texts(x)
        if not texts:
            if pairs is not None or choices is not None or probabilities:
                raise ValueError(
                    "`pairs`, `choices` and `probabilities` are for texts; arrays give logits. "
                    f"Received: x of type {type(x).__name__}"
                )
            return super().predict(x, batch_size, verbose, steps, callbacks)
        if steps is not None or callbacks is not None:
            raise ValueError(
                "`steps` and `callbacks` are for arrays: leave them out. "
                f"Received: x of type {type(x).__name__}, steps={steps}, callbacks={callbacks}"
            )
        if self.tokenizer is None:
            raise ValueError(
                "To predict from texts, a head needs its tokenizer: "
                f"{type(self).__name__}(encoder, labels, tokenizer=tokenizer). "
                "Received: tokenizer=None"
            )
        examples = self._as_examples(x, pairs, choices)
        check_trained_on(self, examples)
        if not examples:
            as_array = probabilities and not self.per_word
            return np.zeros((0, len(self.labels)), "float32") if as_array else []
        size = {"tokens_per_batch": 4096} if batch_size is None else {"batch_size": batch_size}
        source = self.batches(examples, training=False, **size)
        logits = [None] * len(source.source.lengths)
        for rows, outputs in run_on(self, source, 0 if verbose == "auto" else verbose):
            for row, output in by_row(rows, outputs):
                logits[row] = output
        return self.decode(self.labels, logits, source.source, probabilities, **self.decode_options)

    @property
    def decode_options(self) -> dict[str, Any]:
        """Options for `decode`."""
        return {}

    def _as_examples(self, x, pairs, choices=None):
        return as_examples(self, x, pairs, choices)

    def batches(self, examples: Iterable[Any], **options) -> Batches:
        """Creates `Batches` of examples for this head.

        Args:
            examples: A list of `Example`, of texts or of lists of words.
            **options: Arguments of `keras_plm.data.batches`.

        Raises:
            ValueError: If `max_length` exceeds the encoder's, or the head was not built for such
                examples, pairs or single texts.
        """
        if not isinstance(examples, dict):
            examples = as_texts(examples, "examples", tuples=self.kind == "words")
            check_pairs(self, examples)
            for i, example in enumerate(examples):
                if not is_missing(getattr(example, "label", None)):
                    self.check_label(example, i)
        options = {"max_length": self.encoder.max_sequence_length, **options}
        self.check_length(options["max_length"])
        return batches(
            examples,
            self.tokenizer,
            self.labels,
            words="word_positions" in self.input,
            word_tokenizer=self._word_tokenizer,
            joint_pairs=self.pairs in (False, "both_orders"),
            both_orders=self.pairs == "both_orders",
            word_character_ids="word_character_ids" in self.input,
            pair_positions=texts_of(self.reader) is not None,
            predicate_marks=self.marks_predicates,
            mark_segments=self.marks_predicates and not self.frozen,
            scores=self.scores,
            **{"inputs": self._batch_inputs(), **options},
        )

    def check_length(self, max_length: int | None) -> None:
        """Raises unless the encoder reads rows of `max_length` tokens."""
        if max_length is not None:
            check_whole(max_length, "max_length")
        limit = self.encoder.max_sequence_length
        if limit is not None and (max_length or 0) > limit:
            raise ValueError(
                f"`max_length` must be at most the encoder's {limit} positions. "
                f"Received: {max_length}"
            )

    def _batch_inputs(self):
        """Returns the names of the arrays in batches."""
        return list(self.input)

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "labels": self.labels,
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "layers": dataclasses.asdict(self.layer_choice) if self.layer_choice else None,
            "reader": keras.saving.serialize_keras_object(self.reader),
            "dropout": self.dropout,
            "frozen": self.frozen,
            "words": keras.saving.serialize_keras_object(self.words),
            "placement": dataclasses.asdict(self.placement),
            "trained_on_pairs": self.trained_on_pairs,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        for name in {"encoder", "tokenizer", "reader", "words"} & config.keys():
            config = {**config, name: keras.saving.deserialize_keras_object(config[name])}
        if "placement" in config:
            config["placement"] = Placement(**config["placement"])
        if config["layers"] is not None:
            config["layers"] = LayerChoice(**config["layers"])
        config = dict(config)
        trained_on_pairs = config.pop("trained_on_pairs", None)
        if trained_on_pairs not in (None, True, False):
            raise ValueError(
                "`trained_on_pairs` must be true, false or null. "
                f"Received: {trained_on_pairs!r:.80}"
            )
        encoder = config["encoder"]
        later_frozen = not config["frozen"] and not encoder.trainable
        if later_frozen:  # after the head was created
            encoder.trainable = True
        head = cls(**config)
        if later_frozen:
            encoder.trainable = False
        head.trained_on_pairs = trained_on_pairs
        return head


def by_row(rows, outputs):
    """Pairs the number of each row of a batch with its outputs, an array or a dict of arrays."""
    if isinstance(outputs, dict):
        of_rows = zip(*outputs.values(), strict=True)
        outputs = [dict(zip(outputs, of_row, strict=True)) for of_row in of_rows]
    return zip(rows, outputs, strict=True)


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
