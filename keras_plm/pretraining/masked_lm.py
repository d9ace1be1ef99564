"""BERT's objective: predict masked tokens, and whether one text follows another."""

import dataclasses
import itertools
import math

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import TokenStream, check_is_stream, check_stream
from keras_plm.files.sequences import Tensor
from keras_plm.layers import Dense, LayerNormalization, TokenEmbedding
from keras_plm.layers._fused.dense import add_bias
from keras_plm.layers.feed_forward import ACTIVATIONS
from keras_plm.models.encoder import Encoder
from keras_plm.pretraining.masked_inputs import (
    choose_positions,
    gather_chosen,
    mask_tokens,
    max_positions,
    pack_segments,
    sentence_pairs,
    sentence_runs,
)
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_special
from keras_plm.training.fit import FitsBatches
from keras_plm.training.losses import TokenCrossEntropy


@keras.saving.register_keras_serializable("keras_plm")
class MaskedTokenScores(keras.layers.Layer):
    """BERT's masked-LM head: logits of all tokens at the masked positions.

    It applies a dense layer, GELU and a layer norm to the vectors of these positions, then the tied
    table and a bias. For 15 % of the positions it takes a seventh of the time for all.

    Reference: Devlin et al. 2018, section 3.1; google-research/bert, run_pretraining.py.

    Args:
        token_embedding: The encoder's `TokenEmbedding`; its table scores the tokens.
        activation: `"gelu_erf"` or `"gelu_tanh"`, as in the encoder.
        norm_epsilon: Constant added to the variance in the layer norm.
        initializer_range: Standard deviation of the initial dense kernel.

    Call arguments:
        sequence: (B, T, D).
        positions: (B, P), the masked positions.

    Returns:
        (B, P, V) logits.

    >>> import numpy as np
    >>> from keras_plm.layers import TokenEmbedding
    >>> table = TokenEmbedding(vocabulary_size=13, hidden_dim=8)
    >>> vectors = table(np.array([[2, 4, 4, 3]]))
    >>> tuple(MaskedTokenScores(table)(vectors, positions=np.array([[1, 2]])).shape)
    (1, 2, 13)
    """

    def __init__(
        self,
        token_embedding: TokenEmbedding,
        activation: str = "gelu_erf",
        norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding
        width = token_embedding.hidden_dim
        self.dense = Dense(
            width,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.norm = LayerNormalization(epsilon=norm_epsilon, dtype=self.dtype_policy, name="norm")
        self.activation = ACTIVATIONS[activation]
        self.options = {
            "activation": activation,
            "norm_epsilon": norm_epsilon,
            "initializer_range": initializer_range,
        }

    def build(self, sequence_shape, positions_shape):
        self.dense.build(sequence_shape)
        self.norm.build(sequence_shape)
        self.bias = self.add_weight(
            name="bias", shape=(self.token_embedding.vocabulary_size,), initializer="zeros"
        )

    def call(self, sequence: Tensor, positions: Tensor) -> Tensor:
        masked = ops.take_along_axis(sequence, positions[..., None], axis=1)  # (B, P, D)
        masked = self.norm(self.activation(self.dense(masked)))
        scores = self.token_embedding(masked, reverse=True)  # (B, P, V)
        return add_bias(scores, self.bias)

    def get_config(self):
        table = keras.saving.serialize_keras_object(self.token_embedding)
        return {**super().get_config(), **self.options, "token_embedding": table}

    @classmethod
    def from_config(cls, config):
        table = keras.saving.deserialize_keras_object(config["token_embedding"])
        return cls(**{**config, "token_embedding": table})


@keras.saving.register_keras_serializable("keras_plm")
class MaskedLM(FitsBatches, keras.Model):
    """BERT's pre-training: predicts masked tokens and, optionally, whether two texts are adjacent.

    It is a Keras model. `compile(optimizer)` sets the published losses and accuracies; the loss is
    the sum of the two means. Train it on `masked_lm_batches`.

    Reference: Devlin et al. 2018, arXiv 1810.04805, section 3.1 and appendix A.1-A.2.

    Args:
        encoder: An encoder with a `token_embedding`, such as `BERT`; it is trained in place.
        next_sentence: If True, also classify pairs: 0 for the next text, 1 for a random text.
        name: Name of the model.

    Call arguments:
        inputs: The encoder's inputs and `masked_positions` (B, P).

    Returns:
        A dict: `"masked_lm"` (B, P, V) logits and, with `next_sentence`, `"next_sentence"` (B, 2)
        logits.

    Raises:
        ValueError: If the encoder has no `token_embedding` or, with `next_sentence`, no pooled
            output.

    >>> import numpy as np
    >>> from keras_plm.models import BERT
    >>> encoder = BERT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> model = MaskedLM(encoder, next_sentence=False)
    >>> ids = np.array([[2, 4, 6, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids > 0}
    >>> tuple(model({**inputs, "masked_positions": np.array([[1]])})["masked_lm"].shape)
    (1, 1, 13)
    """

    def __init__(self, encoder: Encoder, next_sentence: bool = True, name: str | None = None):
        if not isinstance(encoder, Encoder) or encoder.token_embedding is None:
            raise ValueError(
                "`MaskedLM` needs an encoder with a `token_embedding` that scores tokens. "
                f"Received: encoder={encoder!r:.60}"
            )
        positions = keras.Input((None,), dtype="int32", name="masked_positions")
        hidden = encoder(encoder.input)
        if next_sentence and "pooled" not in hidden:
            raise ValueError(
                "`next_sentence` needs an encoder with a pooled output. "
                f"Received: encoder={encoder.name} with outputs {sorted(hidden)}"
            )
        deviation = getattr(encoder, "initializer_range", 0.02)
        scores = MaskedTokenScores(
            encoder.token_embedding,
            activation=getattr(encoder, "activation", "gelu_erf"),
            norm_epsilon=getattr(encoder, "norm_epsilon", 1e-12),
            initializer_range=deviation,
            dtype=encoder.dtype_policy,
            name="masked_lm",
        )
        outputs = {"masked_lm": scores(hidden["sequence"], positions)}
        if next_sentence:
            outputs["next_sentence"] = keras.layers.Dense(
                2,
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=deviation),
                dtype="float32",
                name="next_sentence",
            )(hidden["pooled"])
        super().__init__({**encoder.input, "masked_positions": positions}, outputs, name=name)
        self.encoder = encoder
        self.next_sentence = next_sentence
        self.dtype_policy = encoder.dtype_policy  # under float16 Keras then scales the loss

    def compile(self, optimizer="adam", loss=None, weighted_metrics=None, **kwargs):
        """Configures training as `keras.Model.compile`, by default with losses and accuracies."""
        if loss is None:
            loss = {name: TokenCrossEntropy(name=name) for name in self.output}
        if weighted_metrics is None:
            weighted_metrics = {
                name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
                for name in self.output
            }
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "next_sentence": self.next_sentence,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        return cls(
            **{**config, "encoder": keras.saving.deserialize_keras_object(config["encoder"])}
        )


def masked_lm_batches(
    stream: TokenStream,
    tokenizer: SubwordTokenizer,
    max_length: int = 128,
    next_sentence: bool = True,
    mask_selection_rate: float = 0.15,
    mask_token_rate: float = 0.8,
    random_token_rate: float = 0.1,
    whole_word: bool = False,
    short_sequence_rate: float = 0.1,
    part_tokens: int = 2**25,
    left_to_right: bool = False,
    training: bool = True,
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    **options,
) -> Batches:
    """Creates `Batches` of masked text for `MaskedLM`, with new samples in every epoch.

    The rules are the functions of `keras_plm.pretraining.masked_inputs`: `sentence_pairs`,
    `choose_positions` and `mask_tokens`.

    An epoch is a part of the stream with about `part_tokens` tokens, which bounds memory. Parts
    come in random order, each once before any repeats. Random next sentences are from the same
    part.

    Reference: Devlin et al. 2018, section 3.1 and appendix A.1-A.2; google-research/bert,
    create_pretraining_data.py.

    Differs from the paper: pairs and masks are sampled in every epoch, not once for ten copies of
    the data; short rows are sampled by row, not by document; with `whole_word`, masking stops at
    the first word that exceeds the row's number of masks.

    Args:
        stream: A `keras_plm.data.corpus.TokenStream`.
        tokenizer: The tokenizer of the stream.
        max_length: Length T of the longest row, including special tokens.
        next_sentence: If True, rows are pairs of segments; otherwise contiguous text.
        mask_selection_rate: Fraction of a row's tokens to predict; special tokens count.
        mask_token_rate: Fraction of the predicted tokens that become `[MASK]`.
        random_token_rate: Fraction of the predicted tokens that become a random token. The others
            stay unchanged.
        whole_word: If True, predict all tokens of a word together. The ids of the tokenizer must
            mark the start of a word.
        short_sequence_rate: Fraction of rows with a random smaller length.
        part_tokens: Approximate number of tokens in an epoch of training.
        left_to_right: If True, mask nothing and predict every next token: for `CausalLM` with a
            causal `BERT`, section 5.1's "LTR".
        training: If True, shuffle.
        batch_size, tokens_per_batch, **options: As in `keras_plm.data.batching.Batches`.

    Returns:
        `Batches` of x: `token_ids`, `segment_ids`, `padding_mask` (B, T), `masked_positions`
        (B, P); y and weights: `masked_lm` (B, P) and `next_sentence` (B,). With `left_to_right`
        x has `target_ids` (B, T) and no `masked_positions`; y and weights are (B, T).

    Raises:
        ValueError: If a rate is not between 0 and 1, the rows are too short, or the stream
            needs two documents for pairs. If the tokenizer lacks a special token or, for
            `whole_word`, the starts of words.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_plm.data import TokenStream
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "text.txt").write_text("a b a\\nb b\\n\\nb a b\\n\\n" * 20)
    ...     stream = TokenStream.build(f"{folder}/text.txt", tokenizer, f"{folder}/stream", "lines")
    ...     found = masked_lm_batches(stream, tokenizer, max_length=16, batch_size=2, seed=1)
    ...     x, y, weights = found[0]
    >>> x["token_ids"].shape, x["masked_positions"].shape == y["masked_lm"].shape
    ((2, 16), True)
    """
    check_is_stream(stream, "documents")
    rates = {
        "mask_selection_rate": mask_selection_rate,
        "mask_token_rate": mask_token_rate,
        "random_token_rate": random_token_rate,
        "short_sequence_rate": short_sequence_rate,
    }
    if (
        not all(0 <= rate <= 1 for rate in rates.values())  # also of NaN
        or mask_token_rate + random_token_rate > 1
        or mask_selection_rate == 1
    ):
        raise ValueError(
            "Rates must lie between 0 and 1, and so must `mask_token_rate + random_token_rate`. "
            f"Received: {rates}"
        )
    if left_to_right and next_sentence:
        raise ValueError(
            "A left-to-right model needs rows without a next sentence: set next_sentence=False. "
            "Received: left_to_right=True, next_sentence=True"
        )
    check_special(
        tokenizer,
        ["pad_id", "cls_id", "sep_id", *([] if left_to_right else ["mask_id"])],
        "Rows of masked text need a tokenizer with the tokens [PAD], [CLS], [SEP] and [MASK], or "
        "others in their place, as `WordPiece`.",
    )
    if whole_word and getattr(tokenizer, "starts_word", None) is None:
        raise ValueError(
            "`whole_word` needs a tokenizer whose ids mark where a word begins (`starts_word`), as "
            f"`WordPiece`; byte-level pairs do not. Received: {type(tokenizer).__name__}"
        )
    check_stream(stream, tokenizer)
    if max_length < 8:
        raise ValueError(f"Rows need at least 8 tokens. Received: max_length={max_length}")
    if next_sentence and len(stream.documents) < 3:
        raise ValueError(
            "Next sentences need two documents or more: separate documents by blank lines. "
            f"Received: a stream of {len(stream.documents) - 1} document"
        )
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    source = _MaskedRows(
        stream,
        tokenizer,
        max_length,
        next_sentence,
        mask_selection_rate,
        mask_token_rate,
        random_token_rate,
        whole_word,
        short_sequence_rate,
        part_tokens=part_tokens,
        seed=options.get("seed", 0),
        redraw=True,
    )
    whole = dataclasses.replace(source, part_tokens=math.inf, redraw=False)

    def collate_of(rows):
        return rows.collate_left_to_right if left_to_right else rows.collate

    read = source if training else whole
    found = Batches(
        read.lengths,
        collate_of(read),
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        **{"vocabulary_size": len(tokenizer), **options},
    )
    found.evaluation = whole.lengths, collate_of(whole)
    return found


def document_parts(stream, part_tokens):
    """Cuts a stream between documents into parts of about equal length.

    Each part has at least two documents, if the stream has. Large documents make the parts fewer,
    so that none is more than twice as long as another: an epoch has a constant number of batches.

    Returns:
        A list of `(first document, end)`.
    """
    if part_tokens < 1:
        raise ValueError(f"`part_tokens` must be 1 or more. Received: {part_tokens}")
    starts = stream.sentences[stream.documents]  # in tokens
    last = len(starts) - 1
    for count in range(max(round(int(starts[-1]) / part_tokens), 1), 0, -1):
        cuts = [0]
        for cut in np.searchsorted(starts, np.arange(1, count) * (starts[-1] / count)).tolist():
            if cut - cuts[-1] >= 2 and last - cut >= 2:
                cuts.append(cut)
        lengths = np.diff(starts[[*cuts, last]])
        if lengths.max() <= 2 * lengths.min():
            break
    return list(itertools.pairwise([*cuts, last]))


@dataclasses.dataclass
class _MaskedRows:
    """Rows of a token stream, masked in `collate`; see `masked_lm_batches`."""

    stream: object
    tokenizer: object
    max_length: int
    next_sentence: bool
    mask_selection_rate: float
    mask_token_rate: float
    random_token_rate: float
    whole_word: bool
    short_sequence_rate: float
    part_tokens: float
    seed: int
    redraw: bool

    def __post_init__(self):
        self.parts = document_parts(self.stream, self.part_tokens)
        self.word_starts = self.tokenizer.starts_word if self.whole_word else None
        self.special_tokens = 3 if self.next_sentence else 2
        self._drawn = None, None  # the epoch and its pairs

    def pairs(self, epoch):
        """Returns the pairs (N, 5) of an epoch from `sentence_pairs`, in tokens of the stream."""
        epoch = epoch if self.redraw else 0
        if self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 0])
            passes, turn = divmod(epoch, len(self.parts))
            order = np.random.default_rng([self.seed, passes, 1]).permutation(len(self.parts))
            first, end = self.parts[order[turn]]
            documents = self.stream.documents[first : end + 1]
            starts = self.stream.sentences[documents[0] : documents[-1] + 1]
            draw = sentence_pairs if self.next_sentence else sentence_runs
            room = self.max_length - self.special_tokens
            found = draw(starts, documents - documents[0], room, rng, self.short_sequence_rate)
            self._drawn = epoch, found
        return self._drawn[1]

    def lengths(self, epoch):
        pairs = self.pairs(epoch)
        return pairs[:, 1] + pairs[:, 3] + self.special_tokens

    def pack(self, rows, length, epoch):
        pairs = self.pairs(epoch)[rows]
        return pack_segments(
            self.stream.tokens, pairs, length, self.tokenizer, two_segments=self.next_sentence
        )

    def collate(self, rows, length, rng, epoch):
        x, text = self.pack(rows, length, epoch)
        token_ids, rate = x["token_ids"], self.mask_selection_rate
        word_starts = None if self.word_starts is None else self.word_starts[token_ids] | ~text
        chosen = choose_positions(text, x["padding_mask"].sum(axis=1), rng, rate, word_starts)
        positions, targets, weights = gather_chosen(token_ids, chosen, max_positions(length, rate))
        x["token_ids"] = mask_tokens(
            token_ids,
            chosen,
            self.tokenizer.mask_id,
            len(self.tokenizer),
            rng,
            self.mask_token_rate,
            self.random_token_rate,
        )
        x["masked_positions"] = positions
        y, weights = {"masked_lm": targets}, {"masked_lm": weights}
        if self.next_sentence:
            y["next_sentence"] = self.pairs(epoch)[rows, 4].astype(np.int32)
            weights["next_sentence"] = np.ones(len(rows), "float32")
        return x, y, weights

    def collate_left_to_right(self, rows, length, rng, epoch):
        """Collates the same rows for `CausalLM`, with the next tokens as targets."""
        x, _ = self.pack(rows, length, epoch)
        x["target_ids"] = np.pad(x["token_ids"][:, 1:], ((0, 0), (0, 1)))
        used = x["padding_mask"].sum(axis=1, keepdims=True)
        weights = (np.arange(length) < used - 1).astype("float32")
        return x, x["target_ids"], weights
