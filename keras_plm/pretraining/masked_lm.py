"""BERT's objective: guess masked tokens, and whether two texts follow each other."""

import itertools
import math

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import check_is_stream
from keras_plm.layers import Dense, LayerNormalization
from keras_plm.layers._fused_layers import add_bias
from keras_plm.layers.transformer_block import ACTIVATIONS
from keras_plm.tokenizers.subwords import check_special
from keras_plm.training.fit import FitsBatches
from keras_plm.training.losses import TokenCrossEntropy


@keras.saving.register_keras_serializable("keras_plm")
class MaskedTokenScores(keras.layers.Layer):
    """BERT's masked-LM head: scores of all tokens, at the masked positions only.

    Dense, GELU and layer norm over the gathered vectors, then the tied table and a bias. At 15 % of
    the positions it costs a seventh of what scoring every position would.

    Reference: Devlin et al. 2018, section 3.1; google-research/bert, run_pretraining.py.

    Args:
        token_embedding: The encoder's `TokenEmbedding`, whose table scores the tokens.
        activation: `"gelu_erf"` or `"gelu_tanh"`, as the encoder.
        norm_epsilon: Added to the variance in the layer norm.
        initializer_range: Standard deviation of the dense kernel.

    Call arguments:
        sequence: (B, T, D).
        positions: (B, P), the masked positions.

    Returns:
        (B, P, V) logits.
    """

    def __init__(
        self,
        token_embedding,
        activation="gelu_erf",
        norm_epsilon=1e-12,
        initializer_range=0.02,
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

    def build(self, sequence_shape, positions_shape):
        self.dense.build(sequence_shape)
        self.norm.build(sequence_shape)
        self.bias = self.add_weight(
            name="bias", shape=(self.token_embedding.vocabulary_size,), initializer="zeros"
        )

    def call(self, sequence, positions):
        masked = ops.take_along_axis(sequence, positions[..., None], axis=1)  # (B, P, D)
        masked = self.norm(self.activation(self.dense(masked)))
        scores = self.token_embedding(masked, reverse=True)  # (B, P, V)
        return add_bias(scores, self.bias)


@keras.saving.register_keras_serializable("keras_plm")
class MaskedLM(FitsBatches, keras.Model):
    """BERT's pre-training: guess masked tokens and, if asked, whether two texts follow each other.

    An ordinary Keras model: `compile(optimizer)` sets the published losses and accuracies, the
    loss is the sum of the two means. Feed it `masked_lm_batches`.

    Reference: Devlin et al. 2018, arXiv 1810.04805, section 3.1 and appendix A.1-A.2.

    Args:
        encoder: An encoder with `token_embedding`, as `BERT`; trained in place.
        next_sentence: If True, also classify pairs: 0 = the second text follows, 1 = random.

    Call arguments:
        inputs: The encoder's inputs and `masked_positions` (B, P).

    Returns:
        A dict: `"masked_lm"` (B, P, V) logits and, if asked for, `"next_sentence"` (B, 2) logits.

    Raises:
        ValueError: If the encoder has no tied token embedding or, with `next_sentence`, no pooled
            output.
    """

    def __init__(self, encoder, next_sentence=True, name=None):
        if getattr(encoder, "token_embedding", None) is None:
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
        """As `keras.Model.compile`, with the published losses and accuracies by default."""
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
    stream,
    tokenizer,
    max_length=128,
    next_sentence=True,
    mask_rate=0.15,
    mask_share=0.8,
    random_share=0.1,
    whole_word=False,
    short_share=0.1,
    part_tokens=2**25,
    left_to_right=False,
    training=True,
    batch_size=None,
    tokens_per_batch=None,
    **options,
):
    """Batches of masked text for `MaskedLM`, drawn anew in every epoch.

    Pairs follow the paper: sentences of a document fill a row; a random cut parts it, and half of
    the second texts are replaced by a random place of another document, the sentences not used
    going back.

    Reference: Devlin et al. 2018, appendix A.1-A.2; google-research/bert,
    create_pretraining_data.py.

    Of a long stream, an epoch is a part of about `part_tokens` tokens, so that what is in memory
    does not grow with the text: parts come in a random order, each once before any comes again, and
    random next sentences are those of the same part.

    Differs from the paper: pairs and masks are drawn in every epoch instead of once for ten
    copies of the data; short rows are drawn by row, not by document; with `whole_word` a row stops
    at the first word that does not fit its number of masks instead of trying others.

    Args:
        stream: A `keras_plm.data.corpus.TokenStream`.
        tokenizer: The one the stream was made with.
        max_length: Longest row T, special tokens included.
        next_sentence: If True, pairs; otherwise one run of text per row.
        mask_rate: Share of a row's tokens, special ones counted, that are guessed.
        mask_share, random_share: Shares of those that are shown as `[MASK]` and as a random token;
            the rest is left as it is.
        whole_word: If True, all pieces of a word are guessed together; for tokenizers whose ids
            tell where a word begins.
        short_share: Share of rows with a random smaller length.
        part_tokens: About how many tokens are an epoch of training.
        left_to_right: If True, nothing is masked and every next token is guessed: rows for
            `CausalLM` over a causal `BERT`, section 5.1's "LTR".
        training: If True, shuffle.
        batch_size, tokens_per_batch, **options: As in `keras_plm.data.batching.Batches`.

    Returns:
        `Batches` of x: `token_ids`, `segment_ids`, `padding_mask` (B, T), `masked_positions`
        (B, P); y and weights: `masked_lm` (B, P) and `next_sentence` (B,). With `left_to_right`
        `target_ids` (B, T) in the place of `masked_positions`, and y and weights (B, T).

    Raises:
        ValueError: If the shares are no shares, the rows are too short, pairs are asked for of a
            stream of one document, or the tokenizer lacks a special token or, for `whole_word`,
            does not tell where words begin.
    """
    check_is_stream(stream, "documents")
    shares = {"mask_share": mask_share, "random_share": random_share, "mask_rate": mask_rate}
    if min(shares.values()) < 0 or mask_share + random_share > 1 or mask_rate >= 1:
        raise ValueError(f"Shares lie between 0 and 1, sums too. Received: {shares}")
    if left_to_right and next_sentence:
        raise ValueError(
            "What reads from left to right guesses no next sentence: next_sentence=False. "
            "Received: left_to_right=True, next_sentence=True"
        )
    needed = ["pad_id", "cls_id", "sep_id", *([] if left_to_right else ["mask_id"])]
    check_special(
        tokenizer,
        needed,
        "Rows of masked text need a tokenizer with the tokens [PAD], [CLS], [SEP] and [MASK], or "
        "others in their place, as `WordPiece`.",
    )
    if whole_word and getattr(tokenizer, "starts_word", None) is None:
        raise ValueError(
            "`whole_word` needs a tokenizer whose ids tell where a word begins (`starts_word`), as "
            f"`WordPiece`; those of byte-level pairs do not. Received: {type(tokenizer).__name__}"
        )
    if max_length < 8:
        raise ValueError(f"Rows need at least 8 tokens. Received: max_length={max_length}")
    if next_sentence and len(stream.documents) < 3:
        raise ValueError(
            "Random next sentences come from another document: part documents by blank lines. "
            f"Received: a stream of {len(stream.documents) - 1} document"
        )
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    source = _MaskedRows(
        stream,
        tokenizer,
        max_length,
        next_sentence,
        mask_rate,
        mask_share,
        random_share,
        whole_word,
        short_share,
        part_tokens if training else math.inf,
        seed=options.get("seed", 0),
        redraw=training,
    )
    return Batches(
        source.lengths,
        source.collate_next if left_to_right else source.collate,
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        **options,
    )


def document_parts(stream, part_tokens):
    """`(first document, document behind the last)` of parts of a stream, of about equal length.

    Each has two documents or more, where the stream has.
    """
    if part_tokens < 1:
        raise ValueError(f"`part_tokens` must be 1 or more. Received: {part_tokens}")
    starts = stream.sentences[stream.documents]  # in tokens
    count = max(round(int(starts[-1]) / part_tokens), 1)
    cuts, last = [0], len(starts) - 1
    for cut in np.searchsorted(starts, np.arange(1, count) * (starts[-1] / count)).tolist():
        if cut - cuts[-1] >= 2 and last - cut >= 2:
            cuts.append(cut)
    return list(itertools.pairwise([*cuts, last]))


class _MaskedRows:
    """Rows of one or two runs of a token stream, masked when they are collated."""

    def __init__(
        self,
        stream,
        tokenizer,
        max_length,
        next_sentence,
        mask_rate,
        mask_share,
        random_share,
        whole_word,
        short_share,
        part_tokens,
        seed,
        redraw,
    ):
        self.stream, self.tokenizer = stream, tokenizer
        self.max_length, self.next_sentence = max_length, next_sentence
        self.mask_rate, self.mask_share, self.random_share = mask_rate, mask_share, random_share
        self.whole_word, self.short_share = whole_word, short_share
        self.seed, self.redraw = seed, redraw
        self.parts = document_parts(stream, part_tokens)
        self._rows_of = None
        self.inner = ~tokenizer.starts_word if whole_word else None

    def rows(self, epoch):
        """(N, 5): start and length of the first run, of the second, and 1 if that is random."""
        epoch = epoch if self.redraw else 0
        if self._rows_of is None or self._rows_of[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 0])
            passes, turn = divmod(epoch, len(self.parts))
            order = np.random.default_rng([self.seed, passes, 1]).permutation(len(self.parts))
            self._rows_of = (epoch, self._draw(rng, *self.parts[order[turn]]))
        return self._rows_of[1]

    def lengths(self, epoch):
        rows = self.rows(epoch)
        return rows[:, 1] + rows[:, 3] + (3 if self.next_sentence else 2)

    def _draw(self, rng, first, end):
        """The rows of the documents from `first` up to `end`."""
        special = 3 if self.next_sentence else 2
        room = self.max_length - special
        documents = self.stream.documents[first : end + 1]
        bounds = self.stream.sentences[documents[0] : documents[-1] + 1].tolist()
        documents = (documents - documents[0]).tolist()
        rows = []
        for d in range(len(documents) - 1):
            i, end = documents[d], documents[d + 1]
            while i < end:
                target = room
                if rng.random() < self.short_share:
                    target = int(rng.integers(2, room + 1))
                j = i + 1
                while j < end and bounds[j] - bounds[i] < target:
                    j += 1
                if not self.next_sentence:
                    rows.append((bounds[i], bounds[j] - bounds[i], bounds[j], 0, 0))
                    i = j
                    continue
                cut = i + 1 if j - i < 2 else i + int(rng.integers(1, j - i))
                first = (bounds[i], bounds[cut] - bounds[i])
                if j - i == 1 or rng.random() < 0.5:
                    start, size = self._random_run(rng, d, target - first[1], bounds, documents)
                    rows.append((*first, start, size, 1))
                    i = cut
                else:
                    rows.append((*first, bounds[cut], bounds[j] - bounds[cut], 0))
                    i = j
        rows = np.array(rows, dtype=np.int64)
        return self._cut(rng, rows[rows[:, 1] > 0], room)

    def _random_run(self, rng, document, room, bounds, documents):
        """Start and length of sentences from a random place of another document."""
        other = int(rng.integers(len(documents) - 2))
        other += other >= document
        first = int(rng.integers(documents[other], documents[other + 1]))
        last = first + 1
        while last < documents[other + 1] and bounds[last] - bounds[first] < room:
            last += 1
        return bounds[first], bounds[last] - bounds[first]

    @staticmethod
    def _cut(rng, rows, room):
        """Shortens the longer run to fit, at its front or its back at random."""
        first, second = rows[:, 1].copy(), rows[:, 3].copy()
        excess = np.maximum(first + second - room, 0)
        from_first = np.minimum(np.maximum(first - second, 0), excess)
        from_second = np.minimum(np.maximum(second - first, 0), excess)
        rest = excess - from_first - from_second
        from_first, from_second = from_first + rest // 2, from_second + (rest + 1) // 2
        rows[:, 0] += rng.binomial(from_first, 0.5)
        rows[:, 1] -= from_first
        rows[:, 2] += rng.binomial(from_second, 0.5)
        rows[:, 3] -= from_second
        return rows

    def texts(self, rows, length, epoch):
        """Rows before anything is hidden: `(inputs, where there is text, tokens used)`."""
        rows = self.rows(epoch)[rows]
        tokenizer = self.tokenizer
        steps = np.arange(length)
        first, second = rows[:, 1:2], rows[:, 3:4]  # (B, 1) lengths
        token_ids = np.full((len(rows), length), tokenizer.pad_id, dtype=np.int32)
        in_first = (steps >= 1) & (steps < first + 1)
        in_second = (steps >= first + 2) & (steps < first + 2 + second)
        token_ids[in_first] = self.stream.tokens[(rows[:, 0:1] + steps - 1)[in_first]]
        token_ids[in_second] = self.stream.tokens[(rows[:, 2:3] + steps - first - 2)[in_second]]
        token_ids[:, 0] = tokenizer.cls_id
        token_ids[steps == first + 1] = tokenizer.sep_id
        used = first + 2
        if self.next_sentence:
            token_ids[steps == first + 2 + second] = tokenizer.sep_id
            used = first + second + 3
        inputs = {
            "token_ids": token_ids,
            "segment_ids": ((steps >= first + 2) & (steps < used)).astype(np.int32),
            "padding_mask": steps < used,
        }
        return inputs, in_first | in_second, used[:, 0]

    def collate(self, rows, length, rng, epoch):
        x, text, used = self.texts(rows, length, epoch)
        inputs, positions, targets, weights = self._mask(x["token_ids"], text, used, length, rng)
        x |= {"token_ids": inputs, "masked_positions": positions}
        y = {"masked_lm": targets}
        weights = {"masked_lm": weights}
        if self.next_sentence:
            y["next_sentence"] = self.rows(epoch)[rows, 4].astype(np.int32)
            weights["next_sentence"] = np.ones(len(rows), "float32")
        return x, y, weights

    def collate_next(self, rows, length, rng, epoch):
        """The same rows for `CausalLM`, the token behind each to be guessed."""
        x, _, used = self.texts(rows, length, epoch)
        x["target_ids"] = np.pad(x["token_ids"][:, 1:], ((0, 0), (0, 1)))
        weights = (np.arange(length) < used[:, None] - 1).astype("float32")
        return x, x["target_ids"], weights

    def _mask(self, token_ids, text, used, length, rng):
        """Inputs with masks, and the positions (B, P), targets and weights of what is hidden."""
        most = max(1, round(length * self.mask_rate))
        wanted = np.clip(np.round(used * self.mask_rate), 1, most)  # (B,)
        order = rng.random(token_ids.shape)
        if self.whole_word:
            inner = self.inner[token_ids] & text
            word = np.maximum.accumulate(np.where(inner, 0, np.arange(length)), axis=1)
            order = np.take_along_axis(order, word, axis=1)  # pieces of a word stay together
        order = np.where(text, order, 2.0)
        by_order = np.argsort(order, axis=1, kind="stable")
        if self.whole_word:
            # Back to where a word begins, or to the end of a first word that is too long.
            begins = np.diff(np.take_along_axis(word, by_order, axis=1), axis=1, prepend=-1) != 0
            steps = np.arange(length)
            cut = np.where(begins & (steps <= wanted[:, None]), steps, 0).max(axis=1)
            second = begins[:, 1:].argmax(axis=1) + 1
            wanted = np.minimum(np.where(cut > 0, cut, second), most)
        rank = np.empty_like(by_order)
        np.put_along_axis(rank, by_order, np.arange(length)[None], axis=1)
        hidden = (rank < wanted[:, None]) & text
        count = hidden.sum(axis=1)
        positions = np.argsort(~hidden, axis=1, kind="stable")[:, :most].astype(np.int32)
        weights = (np.arange(most) < count[:, None]).astype("float32")
        positions = np.where(weights > 0, positions, 0).astype(np.int32)
        targets = np.where(weights > 0, np.take_along_axis(token_ids, positions, axis=1), 0)

        inputs = token_ids.copy()
        draw = rng.random(token_ids.shape)
        random_ids = rng.integers(0, len(self.tokenizer), token_ids.shape, dtype=np.int32)
        inputs[hidden & (draw < self.mask_share)] = self.tokenizer.mask_id
        other = hidden & (draw >= self.mask_share) & (draw < self.mask_share + self.random_share)
        inputs[other] = random_ids[other]
        return inputs, positions, targets.astype(np.int32), weights
