"""What turns an encoder into a solution of a task: output, loss, decoding.

A head is in two parts. The first runs the encoder and picks features: some layers, at each
word or pooled over the text. The second, `head.readout`, is a Keras model from features to
logits. Fine-tuning trains both; feature-based transfer trains the readout on stored features.

Shapes: B texts, T tokens, W words, n layers read, D width, K labels.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

from keras_plm.batching import Batches, FitsBatches, run_on
from keras_plm.data import batches, check_first, check_stateless, check_word_vectors
from keras_plm.layers import POOLINGS, Dropout, LayerChoice, Pooling
from keras_plm.metrics import SpanF1, are_spans
from keras_plm.readers import BiAttention
from keras_plm.readouts import COMBINES, Combine, Placement, Readout


@keras.saving.register_keras_serializable("keras_plm")
class Frozen(keras.layers.Layer):
    """An encoder that neither learns nor drops, whatever the model around it does.

    `trainable = False` alone is not enough: inside a functional model Keras passes the outer
    model's `training` on, and a frozen encoder's dropout would stay at work.

    Args:
        encoder: Any encoder.

    Call arguments:
        inputs: The encoder's inputs.

    Returns:
        The encoder's outputs, without gradient.
    """

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.encoder.trainable = False

    def call(self, inputs):
        outputs = self.encoder(inputs, training=False)
        return keras.tree.map_structure(ops.stop_gradient, outputs)

    def compute_output_spec(self, inputs):
        return self.encoder.compute_output_spec(inputs)

    def get_config(self):
        config = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": config}

    @classmethod
    def from_config(cls, config):
        encoder = keras.saving.deserialize_keras_object(config.pop("encoder"))
        return cls(encoder, **config)


@keras.saving.register_keras_serializable("keras_plm")
class FirstTokens(keras.layers.Layer):
    """Vectors of each word's first token, of one or more layers.

    Call arguments:
        layers: A list of n tensors (B, T, D).
        word_positions: (B, W), the first token of each word, -1 at padding.

    Returns:
        (B, W, n, D).
    """

    def call(self, layers, word_positions):
        stacked = ops.stack(layers, axis=2) if len(layers) > 1 else layers[0][:, :, None]
        positions = ops.maximum(word_positions, 0)[..., None, None]
        return ops.take_along_axis(stacked, positions, axis=1)


class Head(FitsBatches, keras.Model):
    """What `Classifier` and `Tagger` share; see there."""

    def __init__(
        self,
        encoder,
        labels,
        tokenizer,
        layers,
        pool,
        reader,
        dropout,
        frozen,
        readout,
        words,
        placement,
        name,
        pairs=False,
    ):
        if len(labels) < 2:
            raise ValueError(f"A head needs two labels or more. Received: labels={labels}")
        check_stateless(encoder)
        if not frozen and not encoder.trainable:
            raise ValueError(
                "An untrainable encoder is read with `frozen=True`, which also stops its dropout; "
                "to fine-tune it set `encoder.trainable = True`. "
                "Received: frozen=False, encoder.trainable=False"
            )
        placement = placement or Placement()
        placement.check(reader, words)
        if words is not None:
            check_word_vectors(words)
        if readout is not None and ("words" in readout.input) != (words is not None):
            raise ValueError(
                "A readout that was trained with word vectors needs them, another has no place "
                f"for them. Received: {'no ' if words is None else ''}`words`, "
                f"a readout of {', '.join(sorted(readout.input))}"
            )
        if pairs and (reader is not None or words is not None):
            raise ValueError(
                "Two texts that are read apart meet in a bi-attention, without a reader or word "
                f"vectors: leave both out. Received: pairs=True, reader={reader}, words={words}"
            )
        inputs, texts = dict(encoder.input), dict(encoder.input)
        if pairs:
            inputs, texts = _both_texts(encoder)
        outputs = (Frozen(encoder, name="frozen") if frozen else encoder)(texts)
        every = outputs["layers"]
        chosen = [every[i] for i in layers.indices(len(every))] if layers else every[-1:]
        if layers is not None and layers.combine == "mean":
            chosen = [keras.layers.Average(name="mean_of_layers")(chosen)] if chosen[1:] else chosen
        if pairs:
            features = ops.stack(ops.split(ops.stack(chosen, axis=2), 2, axis=0), axis=1)
            mask = inputs["padding_mask"]
            if readout is None:
                readout = self.build_pair_readout(
                    features.shape[3:], len(labels), layers, pool, dropout
                )
        elif pool is None:
            positions = keras.Input((None,), dtype="int32", name="word_positions")
            inputs["word_positions"] = positions
            features = FirstTokens(name="first_tokens")(chosen, positions)  # (B, W, n, D)
            mask = positions >= 0
        else:
            if pool == "pooled":
                vectors = [outputs["pooled"]]
            else:
                pooling = Pooling(pool, name="pooling")
                vectors = [pooling(x, padding_mask=inputs["padding_mask"]) for x in chosen]
            features = ops.stack(vectors, axis=1)[:, None]  # (B, 1, n, D)
            mask = ops.ones_like(features[:, :, 0, 0], dtype="bool")
        read = {"features": features, "padding_mask": mask}
        if words is not None:
            inputs["vector_ids"] = keras.Input((None,), dtype="int32", name="vector_ids")
            asked = {"token_ids": inputs["vector_ids"], "padding_mask": mask}
            read["words"] = Frozen(words, name="frozen_words")(asked)["sequence"]  # (B, W, D')
        if readout is None:
            width = None if words is None else words.hidden_dim
            readout = self.build_readout(
                features.shape[2:], len(labels), layers, reader, dropout, placement, width
            )
        logits = readout(read)
        super().__init__(inputs, logits, name=name)
        self.readout = readout
        self.encoder = encoder
        self.labels = list(labels)
        self.tokenizer = tokenizer
        self.dtype_policy = encoder.dtype_policy  # under float16 Keras then scales the loss
        self.layer_choice = layers
        self.reader = reader
        self.dropout = dropout
        self.frozen = frozen
        self.words = words
        self.placement = placement
        self.pairs = pairs
        self._word_tokenizer = None if words is None else words.tokenizer()

    @classmethod
    def build_readout(
        cls, shape, num_labels, layers=None, reader=None, dropout=0.1, placement=None, words=None
    ):
        """The part from features (B, W, *shape) to logits.

        Args:
            shape: (n, D), layers read and their width.
            num_labels: K.
            layers, reader, dropout: As in the class.
            placement: A `Placement`; without it the features are the reader's input.
            words: Width of the word vectors beside the features, `None` without.

        Returns:
            A `Readout` of `features` (B, W, n, D), `padding_mask` (B, W) and, if asked for, `words`
            (B, W, D').

        Raises:
            ValueError: If the placement needs a reader or word vectors that are not there.
        """
        placement = placement or Placement()
        placement.check(reader, words)
        features = keras.Input((None, *shape), name="features")
        mask = keras.Input((None,), dtype="bool", name="padding_mask")
        inputs = {"features": features, "padding_mask": mask}
        vectors = []
        if words is not None:
            inputs["words"] = keras.Input((None, words), name="words")
            vectors.append(inputs["words"])

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
            x = reader(x, padding_mask=mask)
        if placement.place != "input":
            x = ops.concatenate([x, combined("output")], axis=-1)
        x = cls.before_output(x, mask, reader)
        x = Dropout(dropout, name="dropout")(x)
        logits = keras.layers.Dense(num_labels, dtype="float32", name="logits")(x)
        return Readout(inputs, logits, name="readout")

    def mixing_weights(self):
        """The learned mixes of layers, see `Readout.mixing_weights`."""
        return self.readout.mixing_weights()

    def compile(self, optimizer="adam", loss=None, weighted_metrics=None, **kwargs):
        """As `keras.Model.compile`, with the head's loss and metric by default."""
        if loss is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if weighted_metrics is None and kwargs.get("metrics") is None:
            weighted_metrics = self.default_metrics()
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def predict(self, x, *args, pairs=None, probabilities=False, **kwargs):
        """Labels of texts; or, given arrays, what `keras.Model.predict` gives.

        Args:
            x: A list of texts or of `Example`; for a `Tagger`, of lists of words.
            pairs: The second texts, or `None`.
            probabilities: If True, give the probability of each label instead.
            *args, **kwargs: Of `keras.Model.predict`, for arrays.

        Returns:
            A list of label names (of lists of tags); or an array (N, K) of probabilities (a list of
            arrays (words, K)).

        Raises:
            ValueError: If the head has no tokenizer, `x` is `Batches`, or an argument does not go
                with what `x` is.
        """
        if isinstance(x, Batches):
            raise ValueError(
                "`Batches` are ordered by length: give the examples themselves to `predict`, or "
                "read rows with `keras_plm.batching.run_on`. Received: Batches"
            )
        if not isinstance(x, (str, list, tuple)):
            if pairs is not None or probabilities:
                raise ValueError(
                    "`pairs` and `probabilities` are for texts; arrays give logits. "
                    f"Received: x of type {type(x).__name__}"
                )
            return super().predict(x, *args, **kwargs)
        if args or kwargs:
            raise ValueError(
                "Texts are predicted in batches of their own: leave out the options of "
                f"`keras.Model.predict`. Received: {args or sorted(kwargs)}"
            )
        if self.tokenizer is None:
            raise ValueError(
                "To predict from texts a head needs its tokenizer: "
                f"{type(self).__name__}(encoder, labels, tokenizer=tokenizer). "
                "Received: tokenizer=None"
            )
        examples = self._as_examples(x, pairs)
        if not examples:
            as_array = probabilities and isinstance(self, Classifier)
            return np.zeros((0, len(self.labels)), "float32") if as_array else []
        source = self.batches(examples, training=False, tokens_per_batch=4096)
        logits = [None] * len(source.source.lengths)
        for rows, outputs in run_on(self, source):
            for row, output in zip(rows, outputs, strict=True):
                logits[row] = output
        return self.decode(self.labels, logits, source.source, probabilities)

    def _as_examples(self, x, pairs):
        if isinstance(x, str):
            raise ValueError(
                f"`predict` takes a list of texts; put a single one in brackets. Received: {x!r}"
            )
        if pairs is not None and len(pairs) != len(x):
            raise ValueError(
                f"Every text needs its pair. Received: {len(x)} texts and {len(pairs)} pairs"
            )
        examples = []
        for i, item in enumerate(x):
            text, pair = getattr(item, "text", item), getattr(item, "pair", None)
            pair = pair if pairs is None else pairs[i]
            examples.append(_Text(text, pair))
        return examples

    def batches(self, examples, **options):
        """`keras_plm.data.batches` of examples as this head takes them.

        Raises:
            ValueError: If `max_length` is longer than the encoder reads, or the head was not built
                for what it gets, pairs or single texts.
        """
        if not isinstance(examples, (str, dict)):
            examples = list(examples)
            self._check_pairs(examples)
        limit = getattr(self.encoder, "max_sequence_length", None)
        options = {"max_length": limit, **options}
        if limit is not None and (options["max_length"] or 0) > limit:
            raise ValueError(
                f"`max_length` is at most the encoder's {limit} positions. "
                f"Received: {options['max_length']}"
            )
        return batches(
            examples,
            self.tokenizer,
            self.labels,
            words="word_positions" in self.input,
            word_tokenizer=self._word_tokenizer,
            joint_pairs=not self.pairs,
            **options,
        )

    def _check_pairs(self, examples):
        paired = [getattr(example, "pair", None) is not None for example in examples]
        if self.pairs and not all(paired):
            raise ValueError(
                "A head with `pairs=True` reads two texts at a time: give it "
                "`Example(text, label, pair)`, or to `predict` texts and `pairs`. "
                f"Received: example {paired.index(False)} without a pair"
            )
        if not (self.pairs or getattr(self.tokenizer, "joint_pairs", True)) and any(paired):
            raise ValueError(
                f"`{type(self.tokenizer).__name__}` puts no two texts in one row: build the head "
                "with `pairs=True`, which reads them apart. "
                f"Received: example {paired.index(True)} with a pair, pairs=False"
            )

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
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        for name in ("encoder", "tokenizer", "reader", "words"):
            config = {**config, name: keras.saving.deserialize_keras_object(config.get(name))}
        config["placement"] = Placement(**config.get("placement", {}))
        if config["layers"] is not None:
            config["layers"] = LayerChoice(**config["layers"])
        return cls(**config)


def _both_texts(encoder):
    """Inputs (B, 2, T, ...) of two texts, and the same as an encoder's (2 B, T, ...).

    The first texts of all rows come before the second ones.
    """
    inputs = {
        name: keras.Input((2, *x.shape[1:]), dtype=x.dtype, name=name)
        for name, x in encoder.input.items()
    }
    return inputs, {name: ops.concatenate([x[:, 0], x[:, 1]]) for name, x in inputs.items()}


@dataclasses.dataclass(frozen=True)
class _Text:
    """A text to predict: an example whose label is ignored."""

    text: str | list
    pair: str | None
    label: None = None


@keras.saving.register_keras_serializable("keras_plm")
class Classifier(Head):
    """One label for a text or a pair of texts.

    An ordinary Keras model: `compile`, `fit` on `keras_plm.data.batches`, `evaluate`; `predict`
    also takes texts and gives label names.

    Reference: Devlin et al. 2018, section 4.1 (dropout and one dense layer over the pooled
    vector); with `layers` and a `reader`, section 5.3.

    Args:
        encoder: Any encoder; fine-tuned in place unless `frozen`.
        labels: The label names, in the order of their ids.
        tokenizer: Needed to predict from texts.
        layers: A `LayerChoice`; without it the last layer is read.
        pool: `"pooled"` (the encoder's own), `"cls"`, `"mean"` or `"max"`. By default the encoder's
            own if it has one, learns, and no `layers` are chosen, else `"mean"`; with `pairs`
            `"max"`, and never the encoder's own. Without meaning under a reader, which sees words.
        reader: A layer from word vectors to word vectors, as `readers.BiLSTM`, whose outputs are
            max-pooled; without it the features go straight to the output layer.
        dropout: Share dropped before the output layer, in training.
        frozen: If True, only the readout learns; the encoder is made untrainable.
        readout: A trained one from `build_readout`, to put an encoder under it.
        words: A `WordVectors` whose vectors the reader reads too; they stay as they are. Needs a
            reader.
        placement: A `Placement`: where features enter beside them; by default the reader's input.
        pairs: If True, the encoder reads the two texts of a pair apart, as ELMo and word vectors
            must, and they meet above it: `readers.BiAttention`, a pooling of each text, and the
            output layer over both (Peters et al. 2019, arXiv 1903.05987, section 3). If False,
            both texts are one row, as BERT's.

    Call arguments:
        inputs: The encoder's inputs, and `word_positions` (B, W) under a reader, with `words` also
            `vector_ids` (B, W), their ids in its vocabulary. With `pairs` the encoder's inputs have
            a second axis of 2, (B, 2, T).

    Returns:
        (B, K) logits.

    Raises:
        ValueError: If there are fewer than two labels, `pool` does not fit the encoder, the
            placement or `words` needs what is not there, or `pairs` meets a reader.
    """

    def __init__(
        self,
        encoder,
        labels,
        tokenizer=None,
        layers=None,
        pool=None,
        reader=None,
        dropout=0.1,
        frozen=False,
        readout=None,
        words=None,
        placement=None,
        pairs=False,
        name="classifier",
    ):
        own = "pooled" in encoder.output and layers is None and not pairs
        if pool is None:
            pool = "max" if pairs else "pooled" if own and not frozen else "mean"
        allowed = POOLINGS
        if own:
            allowed = ("pooled", *POOLINGS)
        if pool not in allowed:
            raise ValueError(f"`pool` must be one of {allowed} here. Received: {pool!r}")
        check_first(pool, tokenizer)
        read_pool = pool if reader is None else None
        super().__init__(
            encoder,
            labels,
            tokenizer,
            layers,
            read_pool,
            reader,
            dropout,
            frozen,
            readout,
            words,
            placement,
            name,
            pairs,
        )
        self.pool = pool

    @staticmethod
    def build_pair_readout(shape, num_labels, layers=None, pool="max", dropout=0.1):
        """The part from features (B, 2, T, *shape) of two texts to logits; shape is (n, D)."""
        features = keras.Input((2, None, *shape), name="features")
        mask = keras.Input((2, None), dtype="bool", name="padding_mask")
        combine = Combine(layers.combine if layers else "concat", name="combine")
        masks = [mask[:, i] for i in range(2)]
        first, second = (combine(features[:, i], padding_mask=masks[i]) for i in range(2))
        both = BiAttention(name="bi_attention")(
            first, second=second, first_mask=masks[0], second_mask=masks[1]
        )
        pooling = Pooling(pool, name="pooling")
        x = [pooling(x, padding_mask=real) for x, real in zip(both, masks, strict=True)]
        x = Dropout(dropout, name="dropout")(ops.concatenate(x, axis=-1))  # (B, 8 n D)
        logits = keras.layers.Dense(num_labels, dtype="float32", name="logits")(x)
        return Readout({"features": features, "padding_mask": mask}, logits, name="readout")

    @staticmethod
    def before_output(x, mask, reader):
        """One vector (B, D) of a text: its words' maximum, or what was pooled before."""
        return x[:, 0] if reader is None else Pooling("max", name="max")(x, padding_mask=mask)

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    @staticmethod
    def decode(labels, logits, source, probabilities=False):
        """Label names of the logits (K,) of each row, the mean where an example has windows."""
        rows, windows = np.stack(logits), np.bincount(source.examples_of)
        logits = np.zeros((len(windows), rows.shape[1]), rows.dtype)
        np.add.at(logits, source.examples_of, rows / windows[source.examples_of, None])
        if probabilities:
            return _softmax(logits)
        return [labels[i] for i in logits.argmax(axis=-1)]

    def get_config(self):
        return {**super().get_config(), "pool": self.pool, "pairs": self.pairs}


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
    def before_output(x, mask, reader):
        """A vector (B, W, D) of each word."""
        return x

    def default_metrics(self):
        if are_spans(self.labels):
            return [SpanF1(self.labels)]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def _as_examples(self, x, pairs):
        examples = super()._as_examples(x, pairs)
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
                decoded[example].append(_softmax(scores))
            else:
                decoded[example] += [labels[i] for i in scores.argmax(axis=-1)]
        return [np.concatenate(parts) for parts in decoded] if probabilities else decoded


def _softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
