"""ELMo's objective: predict the next word forwards, and the previous word backwards.

Shapes: B rows, T steps, U words of a batch, C characters, P width, V words, S samples. An axis
of 2 has the two directions, forward first.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import TokenStream, check_stream
from keras_plm.layers import (
    CarriedStates,
    Dropout,
    SampledSoftmax,
    expected_counts,
    log_uniform_words,
)
from keras_plm.models.elmo import ELMo, trimmed
from keras_plm.tokenizers.characters import MARKS, WIDTH, encode_characters
from keras_plm.tokenizers.subwords import check_special
from keras_plm.tokenizers.words import Words
from keras_plm.training.fit import FitsBatches
from keras_plm.training.optimizers import AdaGrad


@keras.saving.register_keras_serializable("keras_plm")
class SumOverTime(keras.losses.Loss):
    """Mean of a loss over rows and directions, summed over the steps of a row.

    It has the gradient of the original, whose loss is a mean over all steps, times their number.

    Call arguments:
        y_true: (B, 2, T), unused.
        y_pred: (B, 2, T) losses.
    """

    def __init__(self, name="sum_over_time", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        return ops.sum(ops.mean(y_pred, axis=1), axis=-1)


@keras.saving.register_keras_serializable("keras_plm")
class Perplexity(keras.metrics.Mean):
    """Perplexity of losses (B, 2, T): e to their mean, for one direction or both.

    Args:
        direction: 0 for forward, 1 for backward, `None` for both.
        name: Name of the metric.
        **kwargs: Other arguments of `keras.metrics.Mean`.

    Call arguments:
        y_true: Unused.
        y_pred: (B, 2, T) losses.
        sample_weight: (B,) weights.

    Returns:
        The perplexity so far, a scalar.

    >>> import numpy as np
    >>> metric = Perplexity()
    >>> metric.update_state(None, np.full((1, 2, 3), np.log(5)))
    >>> round(float(metric.result()), 3)
    5.0
    """

    def __init__(self, direction: int | None = None, name: str = "perplexity", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # callbacks read that lower is better
        self.direction = direction

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.direction is not None:
            y_pred = y_pred[:, self.direction]
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1, *[1] * (len(y_pred.shape) - 1)))
            sample_weight = ops.broadcast_to(sample_weight, ops.shape(y_pred))
        super().update_state(y_pred, sample_weight=sample_weight)

    def result(self):
        return ops.exp(super().result())

    def get_config(self):
        return {**super().get_config(), "direction": self.direction}


@keras.saving.register_keras_serializable("keras_plm")
class WordLoss(keras.layers.Layer):
    """Shared softmax of both directions: sampled in training with samples, otherwise full.

    Args:
        vocabulary_size: Number of words V.
        num_sampled: Number of sampled words S; 0 for all words.

    Call arguments:
        hidden: (B, 2, T, P).
        target_ids: (B, 2, T).
        sampled: With samples, a dict of `sample_ids`, `sample_counts` (S,), `target_counts` and
            `target_sampled` (B, 2, T).

    Returns:
        (B, 2, T) -log p(word), float32.
    """

    def __init__(self, vocabulary_size, num_sampled, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False  # counts of samples stay in float32
        self.vocabulary_size = vocabulary_size
        self.num_sampled = num_sampled
        self.softmax = SampledSoftmax(vocabulary_size, dtype=self.dtype_policy, name="softmax")

    def build(self, hidden_shape, **other_shapes):
        self.softmax.build(hidden_shape)

    def call(self, hidden, target_ids, sampled=None, training=None):
        if not (self.num_sampled and training):
            return self.softmax(hidden, target_ids=target_ids)
        of_samples = {  # TensorFlow does not know their size
            name: ops.reshape(sampled[name], (self.num_sampled,))
            for name in ("sample_ids", "sample_counts")
        }
        return self.softmax(hidden, target_ids=target_ids, **{**sampled, **of_samples})

    def compute_output_spec(self, hidden, target_ids, sampled=None, training=None):
        return keras.KerasTensor(hidden.shape[:-1], dtype="float32")

    def get_config(self):
        sizes = {"vocabulary_size": self.vocabulary_size, "num_sampled": self.num_sampled}
        return {**super().get_config(), **sizes}


@keras.saving.register_keras_serializable("keras_plm")
class BiLM(FitsBatches, keras.Model):
    """ELMo's pre-training: a forward and a backward language model with shared word vectors.

    It is a Keras model. `compile()` sets the published loss and optimizer, and the perplexities of
    both directions. `batches` makes the inputs from a stream of sentences. Each batch starts with
    the final states of the previous one, without gradient. The character layer reads each distinct
    word of a batch once.

    Reference: Peters et al. 2018, arXiv 1802.05365, sections 3.1 and 3.4; allenai/bilm-tf,
    training.py.

    Differs from the paper: both directions share the sampled words, and one target word marks the
    begin and the end of a sentence.

    Args:
        encoder: An `ELMo` without carried states; it is trained in place.
        vocabulary_size: Number of predicted words V, the most frequent ones; others are unknown.
        num_sampled: Number of sampled words S in training; 0 for all words.
        batch_size: Number of rows of a batch, each a separate text.
        name: Name of the model.

    Call arguments:
        inputs: A dict from `batches`: `words` (U, C), character ids of each distinct word;
            `word_rows` (B, 2, T), the words in both directions; `target_ids` (B, 2, T), the next
            words; with samples also `sample_ids` and `sample_counts` (S,), `target_counts` and
            `target_sampled` (B, 2, T).

    Returns:
        (B, 2, T) losses -log p(word), over all words except in training. Losses and perplexities
        over samples are lower: compare those of `evaluate`.

    Raises:
        ValueError: If the encoder is not an `ELMo`, or `num_sampled` is not below
            `vocabulary_size`.

    >>> from keras_plm.models import ELMo
    >>> encoder = ELMo(units=6, projection_dim=4, filters=[[1, 2], [2, 3]], character_dim=2)
    >>> model = BiLM(encoder, vocabulary_size=7, num_sampled=0, batch_size=2)
    >>> sorted(model.input)
    ['target_ids', 'word_rows', 'words']
    """

    takes_class_weight = False

    def __init__(
        self,
        encoder: ELMo,
        vocabulary_size: int,
        num_sampled: int = 8192,
        batch_size: int = 128,
        name: str | None = None,
    ):
        if not isinstance(encoder, ELMo) or encoder.carried_rows:
            raise ValueError(
                "`BiLM` needs an `ELMo` without states of its own: build it with carried_rows=0. "
                f"Received: encoder={encoder!r:.60}"
            )
        if not 0 <= num_sampled < vocabulary_size:
            raise ValueError(
                "`num_sampled` must be below `vocabulary_size`; 0 takes all words. "
                f"Received: num_sampled={num_sampled}, vocabulary_size={vocabulary_size}"
            )
        inputs = {
            "words": keras.Input((None,), dtype="int32", name="words"),
            "word_rows": keras.Input((2, None), dtype="int32", name="word_rows"),
            "target_ids": keras.Input((2, None), dtype="int32", name="target_ids"),
        }
        sampled = {}
        if num_sampled:
            sampled = {
                "sample_ids": keras.Input((), dtype="int32", name="sample_ids"),
                "sample_counts": keras.Input((), name="sample_counts"),
                "target_counts": keras.Input((2, None), name="target_counts"),
                "target_sampled": keras.Input((2, None), dtype="bool", name="target_sampled"),
            }
        dtype = encoder.dtype_policy
        vectors = encoder.token_encoder(inputs["words"])  # (U, P)
        x = ops.take(vectors, inputs["word_rows"], axis=0)  # (B, 2, T, P)
        hidden = []
        for direction, stack in enumerate((encoder.forward_lm, encoder.backward_lm)):
            carried = CarriedStates(stack, batch_size, dtype=dtype, name=f"{stack.name}_carried")
            hidden.append(carried(x[:, direction])[-1])
        hidden = ops.stack(hidden, axis=1)  # (B, 2, T, P)
        hidden = Dropout(encoder.dropout, dtype=dtype, name="dropout")(hidden)
        loss = WordLoss(vocabulary_size, num_sampled, dtype=dtype, name="words_loss")
        losses = loss(hidden, inputs["target_ids"], sampled or None)
        super().__init__({**inputs, **sampled}, losses, name=name)
        self.encoder = encoder
        self.vocabulary_size = vocabulary_size
        self.num_sampled = num_sampled
        self.batch_size = batch_size
        self.dtype_policy = dtype

    def compile(self, optimizer=None, loss=None, weighted_metrics=None, **kwargs):
        """Configures training as `keras.Model.compile`, by default with the published settings.

        These are AdaGrad with the learning rate 0.2, an initial accumulator of 1, and a largest
        norm of all gradients of 10.
        """
        if optimizer is None:
            optimizer = AdaGrad(0.2, initial_accumulator_value=1.0, global_clipnorm=10.0)
        if loss is None:
            loss = SumOverTime()
        if weighted_metrics is None:
            weighted_metrics = [
                Perplexity(0, name="forward_perplexity"),
                Perplexity(1, name="backward_perplexity"),
                Perplexity(name="perplexity"),
            ]
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def _carried(self):
        return [layer for layer in self.layers if isinstance(layer, CarriedStates)]

    def reset_states(self) -> None:
        """Sets all states to zero."""
        for layer in self._carried():
            layer.reset()

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluates as `keras.Model.evaluate`, from states of zero; training keeps its states."""
        if hasattr(self, "jax_state_sync"):
            self.jax_state_sync()
        states = [v for layer in self._carried() for v in keras.tree.flatten(layer.states)]
        before = [ops.convert_to_numpy(v).copy() for v in states]
        self.reset_states()
        try:
            return super().evaluate(x, *args, **kwargs)
        finally:
            for variable, value in zip(states, before, strict=True):
                variable.assign(value)

    def batches(
        self,
        stream: TokenStream,
        lexicon: Words,
        unroll_steps: int = 20,
        seed: int = 0,
        training: bool = True,
    ) -> Batches:
        """Creates `bilm_batches` for this model."""
        widest = max(width for width, _ in self.encoder.filters)
        return bilm_batches(
            stream,
            lexicon,
            self.vocabulary_size,
            self.num_sampled,
            self.batch_size,
            unroll_steps,
            seed=seed,
            training=training,
            widest=widest,
        )

    def get_config(self):
        names = ("vocabulary_size", "num_sampled", "batch_size", "name")
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config):
        return cls(
            **{**config, "encoder": keras.saving.deserialize_keras_object(config["encoder"])}
        )


def pack_sentences(lengths, batch_size, unroll_steps):
    """Assigns sentences to the rows of a stream until a row has nothing more to read.

    Row after row, batch after batch, a row takes the next sentence at the end of its own.
    Sentences that do not fill a last batch are left out.

    Reference: allenai/bilm-tf, data.py.

    Args:
        lengths: Number of inputs of each sentence, including its begin.
        batch_size: Number of rows B.
        unroll_steps: Number of inputs T of a row in a batch.

    Returns:
        `(sentences, batches)`: a list of sentence numbers for each row, and the number of full
        batches.

    >>> pack_sentences([3, 4, 2, 2], batch_size=2, unroll_steps=3)
    ([[0, 2, 3], [1]], 1)
    """
    lengths = np.asarray(lengths).tolist()
    taken, left, following, batches = [[] for _ in range(batch_size)], [0] * batch_size, 0, 0
    while True:
        for row in range(batch_size):
            missing = unroll_steps - left[row]
            while missing > 0:
                if following == len(lengths):
                    return taken, batches
                taken[row].append(following)
                missing -= lengths[following]
                following += 1
            left[row] = -missing
        batches += 1


def bilm_batches(
    stream: TokenStream,
    lexicon: Words,
    vocabulary_size: int,
    num_sampled: int = 8192,
    batch_size: int = 128,
    unroll_steps: int = 20,
    seed: int = 0,
    training: bool = True,
    widest: int = 7,
) -> Batches:
    """Creates `Batches` for `BiLM`: rows of packed sentences that continue from batch to batch.

    It packs sentences like the original (`pack_sentences`). The backward direction reads each
    sentence from its end, at the same positions. Every epoch has the order of the stream and
    new samples.

    Reference: allenai/bilm-tf, data.py.

    Args:
        stream: A `keras_plm.data.corpus.TokenStream` of words.
        lexicon: The `Words` tokenizer of the stream; its first `vocabulary_size` words are the
            targets.
        vocabulary_size, num_sampled, batch_size: As in `BiLM`.
        unroll_steps: Number of words T of a row in a batch.
        seed: Seed of the samples.
        training: If False, each epoch has the same samples.
        widest: Width of the widest filter, for the padding of words.

    Returns:
        `Batches` for `BiLM`; y is `target_ids`.

    Raises:
        ValueError: If the lexicon is not that of the stream, or has fewer words than
            `vocabulary_size`. If the text does not fill one batch.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_plm.data import TokenStream
    >>> from keras_plm.tokenizers import Words
    >>> lexicon = Words(["[PAD]", "[UNK]", "[EOS]", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "text.txt").write_text("a b a\\nb b\\n" * 20)
    ...     stream = TokenStream.build(f"{folder}/text.txt", lexicon, f"{folder}/stream", "lines")
    ...     found = bilm_batches(stream, lexicon, 5, num_sampled=0, batch_size=2, unroll_steps=4)
    ...     found[0][0]["word_rows"].shape
    (2, 2, 4)
    """
    if min(batch_size, unroll_steps) < 1:
        raise ValueError(
            "`batch_size` and `unroll_steps` must be 1 or more. "
            f"Received: batch_size={batch_size}, unroll_steps={unroll_steps}"
        )
    check_stream(stream, lexicon)
    if vocabulary_size > len(lexicon):
        raise ValueError(
            "The words to predict must be the first of the lexicon: lower `vocabulary_size`. "
            f"Received: vocabulary_size={vocabulary_size}, a lexicon of {len(lexicon)} words"
        )
    source = _PackedSentences(
        stream, lexicon, vocabulary_size, num_sampled, batch_size, unroll_steps, widest
    )
    batches = Batches(
        np.ones(source.batches * batch_size, "int8"),
        source.collate,
        training=training,
        shuffle=False,
        batch_size=batch_size,
        buckets=[1],
        scale_weights=False,
        seed=seed,
    )
    batches.carries_states = True
    batches.any_shape = ("words",)  # batches with a long word have more characters
    return batches


class _PackedSentences:
    """Positions of the words of each batch in a stream."""

    def __init__(
        self, stream, lexicon, vocabulary_size, num_sampled, batch_size, unroll_steps, widest
    ):
        self.tokens, self.starts = stream.tokens, stream.sentences
        self.vocabulary_size, self.num_sampled = vocabulary_size, num_sampled
        self.batch_size, self.unroll_steps, self.widest = batch_size, unroll_steps, widest
        rule = "The words to predict need a tokenizer with an unknown and an end word, as `Words`."
        check_special(lexicon, ("unk_id", "end_id"), rule)
        self.unk_id, self.end_id = lexicon.unk_id, lexicon.end_id
        lengths = np.diff(self.starts) + 1
        taken, self.batches = pack_sentences(lengths, batch_size, unroll_steps)
        if not self.batches:
            raise ValueError(
                "The text must fill a batch: lower `batch_size` or `unroll_steps`. Received: "
                f"{int(lengths.sum())} words and begins, batch_size={batch_size}, "
                f"unroll_steps={unroll_steps}"
            )
        # One ascending array for all rows: row r begins at r * span.
        self.span = self.batches * unroll_steps + int(lengths.max()) + 1
        ends = [np.cumsum(lengths[numbers]) + r * self.span for r, numbers in enumerate(taken)]
        self.ends, self.sentences = np.concatenate(ends), np.concatenate(taken).astype(np.int64)
        self.lengths = lengths
        # The character ids of a sentence's begin and end come after those of the words.
        words = len(lexicon)
        self.spelled = np.concatenate([encode_characters(lexicon.vocabulary), MARKS[1:]]).astype(
            np.int16
        )
        self.begin_row, self.end_row = words, words + 1

    def collate(self, rows, length, rng, epoch):
        steps = np.arange(self.unroll_steps)
        batch, row = np.divmod(rows, self.batch_size)
        places = (row * self.span + batch * self.unroll_steps)[:, None] + steps  # (B, T)
        which = np.searchsorted(self.ends, places, side="right")
        sentence = self.sentences[which]
        size = self.lengths[sentence]  # n + 1
        at = places - (self.ends[which] - size)  # 0 at a sentence's begin
        start = self.starts[sentence]
        ahead, back = start + at - 1, start + size - 1 - at  # positions of the word that is read
        first, last = at == 0, at == size - 1
        inputs = np.stack(
            [
                np.where(first, self.begin_row, self._tokens(ahead)),
                np.where(first, self.end_row, self._tokens(back)),
            ],
            axis=1,
        )
        targets = np.stack(
            [
                np.where(last, self.end_id, self._tokens(ahead + 1)),
                np.where(last, self.end_id, self._tokens(back - 1)),
            ],
            axis=1,
        )
        targets = np.where(targets < self.vocabulary_size, targets, self.unk_id).astype("int32")
        words, word_rows = np.unique(inputs, return_inverse=True)
        # Pads with words without characters to a few sizes, because each shape is compiled.
        unit = max(1 << max((inputs.size // 16).bit_length() - 1, 0), 16)
        spelled = np.zeros((-(-len(words) // unit) * unit, WIDTH), "int32")
        spelled[: len(words)] = self.spelled[words]
        x = {
            "words": trimmed(spelled, self.widest),
            "word_rows": word_rows.reshape(inputs.shape).astype("int32"),
            "target_ids": targets,
        }
        if self.num_sampled:
            ids, counts, tries = log_uniform_words(rng, self.vocabulary_size, self.num_sampled)
            x |= {
                "sample_ids": ids,
                "sample_counts": counts,
                "target_counts": expected_counts(targets, self.vocabulary_size, tries),
                "target_sampled": np.isin(targets, ids),
            }
        return x, targets, None

    def _tokens(self, places):
        return np.asarray(self.tokens[np.clip(places, 0, len(self.tokens) - 1)], np.int64)
