"""Ranking of spans: scores of mentions, pruning, and scores of antecedents.

Shapes: B documents, W words, D width, L widths of spans, M kept spans, K antecedents of a span,
H hidden units, G width of the vector of a span in pairs.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_plm.files.arguments import check_number, check_whole
from keras_plm.files.sequences import Tensor
from keras_plm.layers import Dropout
from keras_plm.layers._fused.softmax import wide_dtype

FEATURE_DIM = 20  # width of the vectors of span widths and distances: Lee et al. 2017, section 7.1
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # first distances of the bins: Clark and Manning 2016
IMPOSSIBLE = -1e9  # score of a span or an antecedent that does not exist


@keras.saving.register_keras_serializable("keras_plm")
class SpanRanking(keras.layers.Layer):
    """Scores of the spans of documents as mentions, and of earlier spans as their antecedents.

    Every span of up to L words in a sentence gets a mention score. The best ones are kept, and each
    kept span gets scores of up to K earlier ones. The vector of a span joins those of its first and
    last word, a mean of its words under learned attention, and a vector of its width. The score of
    antecedent j of span i is

        s(i, j) = s_m(i) + s_m(j) + s_c(i, j) + s_a(i, j)

    with the mention scores s_m, a bilinear coarse score s_c that also chooses the K antecedents,
    and the score s_a of a feed-forward network. Without `coarse_to_fine` there is no s_c, and the
    antecedents are the K nearest kept spans. The score of no antecedent is 0.

    Memory: the scores of all spans take B W L H numbers, those of pairs B M K G. By default these
    are 12 and 41 MB for a document of 2,000 words; training needs several such tensors.

    Reference: Lee et al. 2017, arXiv 1707.07045, sections 3 to 5; Lee et al. 2018, arXiv
    1804.05392, section 4.
    Differs from the papers: kept spans may cross each other; attention reads the vectors of words
    in context; the vectors of spans are projected to G numbers, unless `pair_dim` is `None`; the
    coarse score is divided by G, so that it stays small for large G; the bias of s_a begins at
    -log(K), so that before training "no antecedent" is as probable as K antecedents together;
    there are no features of speaker and genre, and no higher-order inference.

    Args:
        max_span_width: Number L of words of the widest span.
        spans_per_word: Number of kept spans per word of a document, in hundredths. Raise it for
            short documents with many mentions.
        num_antecedents: Largest number K of antecedents of a span.
        hidden_dim: Number H of units of each of two hidden layers.
        pair_dim: Width G of the vectors of spans in pairs; `None` for their full 3 D + 20.
        coarse_to_fine: Whether a bilinear score chooses antecedents.
        dropout: Fraction of hidden units dropped in training.

    Call arguments:
        x: (B, W, D) vectors of words.
        padding_mask: (B, W), True at real words.
        sentence_ids: (B, W), the index of each word's sentence.

    Returns:
        A dict. `links` (B, M, K + 1, 3): scores, first words, and words after the last. Entry 0 of
        a kept span is the span with its mention score, the others are its antecedents. Spans are in
        the order of their first words. `mentions` (B, W, L, 2): of all spans, by first word and
        width, the mention score, and 1 if it is at least the lowest of the kept spans, else 0. A
        score is -1e9 if there is no such span or antecedent.

    Raises:
        ValueError: If a setting is out of range.

    >>> import numpy as np
    >>> layer = SpanRanking(max_span_width=2, spans_per_word=1.0, hidden_dim=4)
    >>> x, mask = np.ones((1, 3, 8), "float32"), np.ones((1, 3), bool)
    >>> outputs = layer(x, mask, np.array([[0, 0, 1]]))
    >>> tuple(outputs["links"].shape), tuple(outputs["mentions"].shape)
    ((1, 3, 4, 3), (1, 3, 2, 2))
    """

    def __init__(
        self,
        max_span_width: int = 10,
        spans_per_word: float = 0.4,
        num_antecedents: int = 50,
        hidden_dim: int = 150,
        pair_dim: int | None = 256,
        coarse_to_fine: bool = True,
        dropout: float = 0.2,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_whole(max_span_width, "max_span_width", least=1)
        check_whole(num_antecedents, "num_antecedents", least=1)
        check_whole(hidden_dim, "hidden_dim", least=1)
        if pair_dim is not None:
            check_whole(pair_dim, "pair_dim", least=1)
        check_number(spans_per_word, "spans_per_word", least=0.01, most=max_span_width)
        check_number(dropout, "dropout", least=0, below=1)
        self.max_span_width, self.num_antecedents = max_span_width, num_antecedents
        self.spans_per_word, self.hidden_dim = spans_per_word, hidden_dim
        self.pair_dim = pair_dim
        self.coarse_to_fine, self.dropout = coarse_to_fine, dropout
        policy = self.dtype_policy

        def dense(name, units=hidden_dim, **options):
            return keras.layers.Dense(units, dtype=policy, name=name, **options)

        def network(name, bias=0.0):
            bias = keras.initializers.Constant(bias)
            return {
                "hidden": dense(f"{name}_hidden", activation="relu"),
                "score": dense(f"{name}_score", 1, bias_initializer=bias),
            }

        def embedding(name, count):
            return keras.layers.Embedding(count, FEATURE_DIM, dtype=policy, name=name)

        self.drop = Dropout(dropout, dtype=policy, name="dropout")
        self.widths = embedding("widths", max_span_width)
        self.distances = embedding("distances", len(DISTANCES))
        # The first layer of each network is a sum over the parts of its input.
        self.attention = network("attention") | {"word": dense("attention_word")}
        self.mention = network("mention") | {
            "start": dense("mention_start"),
            **{p: dense(f"mention_{p}", use_bias=False) for p in ("end", "head", "width")},
        }
        self.pair = network("pair", bias=-math.log(num_antecedents)) | {
            "span": dense("pair_span"),
            **{p: dense(f"pair_{p}", use_bias=False) for p in ("other", "product", "distance")},
        }
        self.project = None if pair_dim is None else dense("projection", pair_dim)
        self.coarse = None

    def build(self, x_shape, padding_mask_shape=None, sentence_ids_shape=None):
        width, hidden = x_shape[-1], self.hidden_dim
        span = 3 * width + FEATURE_DIM
        if self.project is not None:
            self.project.build((None, span))
            span = self.pair_dim
        if self.coarse_to_fine:
            options = {"use_bias": False, "dtype": self.dtype_policy, "name": "coarse"}
            self.coarse = keras.layers.Dense(span, **options)
            self.coarse.build((None, span))
        for name in ("word", "start", "end", "head"):
            network = self.attention if name == "word" else self.mention
            network[name].build((None, width))
        for name in ("span", "other", "product"):
            self.pair[name].build((None, span))
        self.mention["width"].build((None, FEATURE_DIM))
        self.pair["distance"].build((None, FEATURE_DIM))
        for network in (self.attention, self.mention, self.pair):
            network["hidden"].build((None, hidden))
            network["score"].build((None, hidden))
        self.widths.build((None,))
        self.distances.build((None,))

    def call(
        self,
        x: Tensor,
        padding_mask: Tensor,
        sentence_ids: Tensor,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        logits = self._score(self.attention, self.attention["word"](x), training)  # (B, W)
        scores = self._mention_scores(x, logits, padding_mask, sentence_ids, training)
        kept, spans, lowest = self._prune(scores, padding_mask)  # (B, M), (B, M), (B, 1)
        starts, widths = spans // self.max_span_width, spans % self.max_span_width
        vectors = self._span_vectors(x, logits, starts, widths)
        if self.project is not None:
            vectors = self.project(vectors)  # (B, M, G)
        mentions = gather(scores, spans)
        antecedents, coarse = self._antecedents(vectors, mentions, kept)  # (B, M, K)
        fine = coarse + self._pair_scores(vectors, antecedents, training)
        fine = ops.where(coarse > IMPOSSIBLE / 2, fine, IMPOSSIBLE)
        own = ops.where(kept, mentions, IMPOSSIBLE)
        first = ops.concatenate([starts[..., None], gather(starts, antecedents)], axis=-1)
        after = starts + widths + 1
        after = ops.concatenate([after[..., None], gather(after, antecedents)], axis=-1)
        linked = ops.concatenate([own[..., None], fine], axis=-1)
        wide = wide_dtype(linked)  # half precision does not hold the numbers of all words
        links = ops.stack([ops.cast(part, wide) for part in (linked, first, after)], axis=-1)
        ranked = ops.stack([scores, ops.cast(scores >= lowest, scores.dtype)], axis=-1)
        shape = (ops.shape(x)[0], -1, self.max_span_width, 2)
        return {"links": links, "mentions": ops.reshape(ranked, shape)}

    def _score(self, network, hidden, training):
        """Computes scores (...) of a network from the sum of its first layer (..., H)."""
        hidden = self.drop(ops.relu(hidden), training=training)
        hidden = self.drop(network["hidden"](hidden), training=training)
        return network["score"](hidden)[..., 0]

    def _mention_scores(self, x, logits, padding_mask, sentence_ids, training):
        """Computes the mention scores (B, W L) of all spans, word by word."""
        length = ops.shape(x)[1]
        last = ops.arange(length, dtype="int32")[:, None] + ops.arange(
            self.max_span_width, dtype="int32"
        )  # (W, L)
        inside, last = last < length, ops.minimum(last, length - 1)
        same = sentence_ids[..., None] == ops.take(sentence_ids, last, axis=1)
        real = padding_mask[..., None] & ops.take(padding_mask, last, axis=1)
        exists = inside & same & real  # (B, W, L)

        network = self.mention
        # The mean of a span's words under attention: running sums over widths.
        found = ops.where(exists, ops.take(logits, last, axis=1), IMPOSSIBLE)
        highest = ops.max(found, axis=-1, keepdims=True)
        weights = ops.where(exists, ops.exp(ops.maximum(found - highest, -60.0)), 0.0)
        heads = ops.take(network["head"](x), last, axis=1)  # (B, W, L, H)
        heads = ops.cumsum(weights[..., None] * heads, axis=2)
        heads = heads / ops.maximum(ops.cumsum(weights, axis=2), 1e-30)[..., None]
        hidden = network["start"](x)[:, :, None] + ops.take(network["end"](x), last, axis=1)
        hidden = hidden + heads + network["width"](self.widths(ops.arange(self.max_span_width)))
        scores = ops.where(exists, self._score(network, hidden, training), IMPOSSIBLE)
        return ops.reshape(scores, (ops.shape(x)[0], -1))

    @property
    def percent(self) -> int:
        """Number of kept spans per 100 words."""
        return round(100 * self.spans_per_word)

    def _prune(self, scores, padding_mask):
        """Returns `(kept, spans, lowest)`.

        `kept` (B, M) tells whether there is a span, `spans` (B, M) are its indices, ascending, and
        `lowest` (B, 1) is the lowest score of a kept span.
        """
        percent = self.percent
        total = ops.shape(scores)[1]
        count = most(ops.shape(padding_mask)[1] * percent // 100, 1)
        best, spans = ops.top_k(scores, count)
        words = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)
        room = ops.maximum(words * percent // 100, 1)
        kept = (best > IMPOSSIBLE / 2) & (ops.arange(count, dtype="int32") < room)
        lowest = ops.min(ops.where(kept, best, -IMPOSSIBLE), axis=1, keepdims=True)
        spans = ops.sort(ops.where(kept, ops.cast(spans, "int32"), total), axis=1)
        kept = spans < total
        return kept, ops.where(kept, spans, 0), lowest

    def _span_vectors(self, x, logits, starts, widths):
        """Returns the vectors (B, M, 3 D + 20) of spans."""
        places = ops.arange(self.max_span_width, dtype="int32")
        words = ops.minimum(starts[..., None] + places, ops.shape(x)[1] - 1)  # (B, M, L)
        found = ops.where(places <= widths[..., None], gather(logits, words), IMPOSSIBLE)
        heads = ops.sum(ops.softmax(found, axis=-1)[..., None] * gather(x, words), axis=2)
        ends = [gather(x, starts), gather(x, starts + widths)]
        return ops.concatenate([*ends, heads, self.widths(widths)], axis=-1)

    def _antecedents(self, vectors, mentions, kept):
        """Returns the antecedents (B, M, K) of each span, and s_m(i) + s_m(j) + s_c(i, j)."""
        count = ops.shape(mentions)[1]
        place = ops.arange(count, dtype="int32")
        allowed = (place[None] < place[:, None]) & kept[:, None] & kept[:, :, None]
        scores = mentions[:, :, None] + mentions[:, None]  # (B, M, M)
        ranked = ops.cast(place[None] - place[:, None], scores.dtype)[None]
        if self.coarse is not None:
            coarse = self.coarse(vectors) / vectors.shape[-1]
            ranked = scores = scores + ops.matmul(coarse, ops.swapaxes(vectors, 1, 2))
        ranked = ops.where(allowed, ranked, IMPOSSIBLE)
        best, found = ops.top_k(ranked, least(count, self.num_antecedents))
        found = ops.cast(found, "int32")
        # Each span has a row of its own here.
        chosen = ops.take_along_axis(scores, found, axis=2)
        return found, ops.where(best > IMPOSSIBLE / 2, chosen, IMPOSSIBLE)

    def _pair_scores(self, vectors, antecedents, training):
        """Returns the scores s_a (B, M, K) of antecedents."""
        network = self.pair
        place = ops.arange(ops.shape(vectors)[1], dtype="int32")[:, None]
        distance = ops.maximum(place - antecedents, 1)
        bins = ops.sum(
            ops.cast(distance[..., None] >= ops.convert_to_tensor(DISTANCES, "int32"), "int32"),
            axis=-1,
        )
        hidden = network["span"](vectors)[:, :, None]
        hidden = hidden + gather(network["other"](vectors), antecedents)
        product = vectors[:, :, None] * gather(vectors, antecedents)  # (B, M, K, G)
        hidden = hidden + network["product"](product)
        # Distances of the bins, then of the pairs.
        of_bins = network["distance"](self.distances(ops.arange(len(DISTANCES))))
        hidden = hidden + ops.take(of_bins, bins - 1, axis=0)
        return self._score(network, hidden, training)

    def compute_output_spec(self, x, padding_mask, sentence_ids, training=None):
        mentions = (*x.shape[:2], self.max_span_width, 2)
        wide = "float64" if self.compute_dtype == "float64" else "float32"
        return {
            "links": keras.KerasTensor((x.shape[0], None, None, 3), dtype=wide),
            "mentions": keras.KerasTensor(mentions, dtype=self.compute_dtype),
        }

    def get_config(self):
        names = ("max_span_width", "spans_per_word", "num_antecedents", "hidden_dim")
        names += ("pair_dim", "coarse_to_fine", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Returns the entries of x (B, N, ...) at indices (B, ...) of axis 1.

    Unlike `take_along_axis` it makes no index per number.
    """
    shape = ops.shape(x)
    begins = ops.arange(shape[0], dtype="int32") * shape[1]
    begins = ops.reshape(begins, (-1, *[1] * (len(indices.shape) - 1)))
    return ops.take(ops.reshape(x, (-1, *shape[2:])), indices + begins, axis=0)


def least(size: Any, bound: int) -> Any:
    """Returns the smaller of a size and a bound; a size may be a symbolic scalar."""
    return min(size, bound) if isinstance(size, int) else ops.minimum(size, bound)


def most(size: Any, bound: int) -> Any:
    """Returns the larger of a size and a bound; a size may be a symbolic scalar."""
    return max(size, bound) if isinstance(size, int) else ops.maximum(size, bound)
