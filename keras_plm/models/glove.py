"""GloVe: word vectors from the cooccurrence counts of a whole corpus.

Shapes: N ids of a text, P pairs of words, B pairs of a batch, V words, D width.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.layers.embedding import rows_of
from keras_plm.models.word2vec import FitsByAdaGrad


def cooccurrences(
    token_ids: Sequence[int] | np.ndarray,
    vocabulary_size: int,
    window: int = 15,
    symmetric: bool = True,
    end_id: int = 2,
    left_out: Sequence[int] = (0, 1),
    chunk: int = 100_000,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts pairs of words in a window, with weight 1 / d at distance d.

    Memory holds the result, a copy of part of it, and several copies of the text.

    Reference: Pennington et al. 2014, section 4.2 (the weights), and the released program.

    Args:
        token_ids: (N,) ids, such as from `data.read_ids`, with `end_id` after each sentence.
        vocabulary_size: Number of words V.
        window: Largest distance of a pair.
        symmetric: If True, count neighbours on both sides; if False, only the words before.
        end_id: Id at the end of every sentence; windows do not cross it.
        left_out: Ids to remove from the text first, such as the unknown word.
        chunk: Number of neighbours per step; it changes only memory and speed.

    Returns:
        `(rows, columns, counts)`, (P,) int32, int32, float32: words, their neighbours, and the
        counts X above 0, sorted by row, then column.

    Raises:
        ValueError: If `token_ids` are not a flat array of integers in [0, V), no words are
            neighbours, or an argument is out of range.

    >>> rows, columns, counts = cooccurrences([3, 4, 5, 2, 3, 4, 2], vocabulary_size=6, window=2)
    >>> [(int(i), int(j), float(x)) for i, j, x in zip(rows, columns, counts) if i == 3]
    [(3, 4, 2.0), (3, 5, 0.5)]
    """
    token_ids = np.asarray(token_ids)
    if window < 1 or chunk < 1:
        raise ValueError(f"`window` and `chunk` must be 1 or more. Received: {window}, {chunk}")
    _check_ids(token_ids, vocabulary_size)
    _check_ids(np.asarray([end_id]), vocabulary_size, "end_id")
    words = np.ones(vocabulary_size, bool)
    if len(left_out):
        left_out = np.array([*left_out])
        _check_ids(left_out, vocabulary_size, "left_out")
        words[left_out] = False
    words[end_id] = True
    text = token_ids[words[token_ids]].astype(np.int32)
    # `window` end ids after each sentence: no window reaches into the next sentence.
    text = np.repeat(text, np.where(text == end_id, window, 1))
    text = np.pad(text, window, constant_values=end_id)
    distances = np.abs(np.arange(-window, window + 1 if symmetric else 0))
    shares = np.divide(1.0, distances, out=np.zeros(len(distances)), where=distances > 0)
    # windows[t - window] begins `window` before t.
    windows = np.lib.stride_tricks.sliding_window_view(text, len(distances))

    # Starts of the windows, sorted by word.
    places = np.flatnonzero(text != end_id)
    places |= text[places].astype(np.int64) << 32
    places.sort()
    ends = np.searchsorted(places, np.arange(1, vocabulary_size + 1) << 32)  # (V,)
    places &= 2**32 - 1
    places -= window

    step = max(chunk // len(distances), 1)
    tiled = np.tile(shares, step)
    sizes = np.zeros(vocabulary_size, np.int64)
    columns, counts = [], []
    first = start = 0
    while start < len(places):
        after = max(int(np.searchsorted(ends, start + step, side="right")), first + 1)
        stop = ends[after - 1]
        if after == first + 1:  # a frequent word: one sum per possible neighbour
            sums = np.zeros(vocabulary_size)
            for part in range(start, stop, step):
                near = windows[places[part : min(part + step, stop)]].reshape(-1)
                sums += np.bincount(near, tiled[: len(near)], vocabulary_size)
            sums[end_id] = 0.0
            found = np.flatnonzero(sums)
            sums = sums[found]
            sizes[first] = len(found)
        else:  # rare words: sort their neighbours, with the distance in the lowest bits
            near = windows[places[start:stop]]
            row = np.repeat(np.arange(after - first), np.diff(ends[first:after], prepend=start))
            bits = window.bit_length()
            keys = (row[:, None] * vocabulary_size + near) << bits | distances
            keys = np.sort(keys[(near != end_id) & (distances > 0)])
            at = np.flatnonzero(np.diff(keys >> bits, prepend=-1))
            row, found = np.divmod(keys[at] >> bits, vocabulary_size)
            sums = shares[window - (keys & (1 << bits) - 1)]
            sums = np.add.reduceat(sums, at) if len(at) else sums
            sizes[first:after] = np.bincount(row, minlength=after - first)
        columns.append(found.astype(np.int32))
        counts.append(sums.astype(np.float32))
        first, start = after, stop
    if not sizes.any():
        raise ValueError(f"No two words of a text are neighbours. Received: {len(token_ids)} ids")
    del places, windows, text
    columns, counts = np.concatenate(columns), np.concatenate(counts)
    return np.repeat(np.arange(vocabulary_size, dtype=np.int32), sizes), columns, counts


def _check_ids(ids, vocabulary_size, name="token_ids"):
    if ids.ndim != 1 or not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"`{name}` must be a flat array of one or more integers. "
            f"Received: shape {ids.shape}, dtype {ids.dtype}"
        )
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError(
            f"`{name}` must lie in [0, `vocabulary_size`): JAX reads past its table in silence. "
            f"Received: {ids.min()} to {ids.max()}, vocabulary_size={vocabulary_size}"
        )


@keras.saving.register_keras_serializable("keras_plm")
class HalfSquaredError(keras.losses.Loss):
    """(y - score)² / 2 of each pair, weighted and summed.

    Reference: Pennington et al. 2014, equation 8; halved as in the released program.

    Call arguments:
        y_true, y_pred: (B,).

    Returns:
        The sum over the batch, not a mean: GloVe's steps are per pair, not per batch.

    >>> import numpy as np
    >>> loss = HalfSquaredError()
    >>> float(loss(np.array([1.0, 2.0]), np.array([3.0, 2.0]), sample_weight=np.array([0.5, 1.0])))
    1.0
    """

    def __init__(self, name="half_squared_error", reduction="sum", **kwargs):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        return ops.square(ops.cast(y_true, "float32") - ops.cast(y_pred, "float32")) / 2


@keras.saving.register_keras_serializable("keras_plm")
class PairScores(keras.layers.Layer):
    """Scores w_i · w~_j + b_i + b~_j of pairs of a word and a neighbour.

    Args:
        vocabulary_size: Number of words V.
        hidden_dim: Width D.

    Call arguments:
        rows, columns: (B,) each, words and their neighbours.

    Returns:
        (B,).
    """

    def __init__(self, vocabulary_size, hidden_dim, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim

    def build(self, rows_shape, columns_shape=None):
        size, width = self.vocabulary_size, self.hidden_dim
        limit = 0.5 / (width + 1)  # glove.c: (random - 0.5) / (width + 1)

        def table(name, *shape):
            start = keras.initializers.RandomUniform(-limit, limit)
            return self.add_weight(name=name, shape=shape, initializer=start)

        # Biases have their own tables: splitting rows of vector and bias is a third slower.
        self.words, self.word_biases = table("words", size, width), table("word_biases", size)
        self.contexts = table("contexts", size, width)
        self.context_biases = table("context_biases", size)

    def call(self, rows, columns):
        vectors = rows_of(self.words, rows) * rows_of(self.contexts, columns)  # (B, D)
        biases = rows_of(self.word_biases, rows) + rows_of(self.context_biases, columns)  # (B,)
        return ops.sum(vectors, axis=-1) + biases

    def get_config(self):
        sizes = {"vocabulary_size": self.vocabulary_size, "hidden_dim": self.hidden_dim}
        return {**super().get_config(), **sizes}


@keras.saving.register_keras_serializable("keras_plm")
class GloVe(FitsByAdaGrad, keras.Model):
    """GloVe: word vectors whose products approximate logarithms of cooccurrence counts.

    Count a text once with `cooccurrences`. The time of an epoch grows with the number of distinct
    pairs, not of words. `batches` computes targets and weights.

    Reference: Pennington et al. 2014, aclanthology.org/D14-1162, equation 8; glove.c.

    Differs from the paper: a step follows the sum over a batch of pairs at a higher learning rate,
    and AdaGrad adds a gradient to its accumulator before the step. The released program multiplies
    gradients by its learning rate 0.05 before squaring: `Adagrad(1.0,
    initial_accumulator_value=400.0)`.

    Args:
        vocabulary_size: Number of words V.
        hidden_dim: Width D.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `rows` (B,), words, and `columns` (B,), their neighbours.

    Returns:
        (B,) scores w_i · w~_j + b_i + b~_j, with the targets log X_ij.

    Raises:
        ValueError: If a size is below 1.

    >>> import numpy as np
    >>> text = np.array([3, 4, 5, 2, 3, 4, 2] * 9)
    >>> model = GloVe(6, hidden_dim=4)
    >>> history = model.fit(model.batches(*cooccurrences(text, 6, window=2)), verbose=0)
    >>> tuple(model.vectors.shape)
    (6, 4)
    """

    # Differs from the paper: its 0.05 makes the steps of whole batches too short.
    default_rate, loss_class, loss_name = 0.3, HalfSquaredError, "loss_per_pair"

    def __init__(self, vocabulary_size: int, hidden_dim: int = 100, name: str | None = None):
        if vocabulary_size < 1 or hidden_dim < 1:
            sizes = f"vocabulary_size={vocabulary_size}, hidden_dim={hidden_dim}"
            raise ValueError(f"Sizes must be 1 or more. Received: {sizes}")
        inputs = {key: keras.Input((), dtype="int32", name=key) for key in ("rows", "columns")}
        pair_scores = PairScores(vocabulary_size, hidden_dim, name="pair_scores")
        super().__init__(inputs, pair_scores(**inputs), name=name)
        self.pair_scores = pair_scores
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim

    def batches(
        self,
        rows: Sequence[int] | np.ndarray,
        columns: Sequence[int] | np.ndarray,
        counts: Sequence[float] | np.ndarray,
        x_max: float = 100.0,
        alpha: float = 0.75,
        batch_size: int = 65536,
        seed: int = 0,
        **options,
    ) -> Batches:
        """Returns batches of all pairs, in a new order in each epoch.

        Args:
            rows, columns, counts: (P,) each, the result of `cooccurrences`.
            x_max, alpha: Weight of a pair, min(1, (x / x_max)^alpha). For a text of ten million
                words, `x_max=10` gives better vectors than the paper's 100.
            batch_size: Number of pairs per batch.
            seed, **options: As in `Batches`.

        Raises:
            ValueError: If there are no pairs, or an id, a count or an argument is out of range.
        """
        rows, columns, counts = (np.asarray(array) for array in (rows, columns, counts))
        if not rows.shape == columns.shape == counts.shape:
            shapes = f"{rows.shape}, {columns.shape}, {counts.shape}"
            raise ValueError(f"A pair needs two words and a count. Received: shapes {shapes}")
        _check_ids(rows, self.vocabulary_size, "rows")
        _check_ids(columns, self.vocabulary_size, "columns")
        if not (counts.min() > 0 and math.isfinite(counts.max())):
            raise ValueError(
                "Counts must be finite and above 0: leave out pairs that never cooccur. "
                f"Received: counts from {counts.min()} to {counts.max()}"
            )
        if not (x_max > 0 and alpha >= 0 and batch_size >= 1):
            raise ValueError(
                "`x_max` must be above 0, `alpha` 0 or more, `batch_size` 1 or more. "
                f"Received: {x_max}, {alpha}, {batch_size}"
            )
        return PairBatches(rows, columns, counts, x_max, alpha, batch_size, seed=seed, **options)

    @property
    def vectors(self) -> np.ndarray:
        """Word vectors w + w~ (section 4.2), without the biases: (V, D)."""
        tables = (self.pair_scores.words, self.pair_scores.contexts)
        return sum(ops.convert_to_numpy(table) for table in tables)

    def get_config(self):
        sizes = {"vocabulary_size": self.vocabulary_size, "hidden_dim": self.hidden_dim}
        return {**sizes, "name": self.name}


class PairBatches(Batches):
    """Pairs with log X as target and f(X) as weight: `Batches` for a hundred million short rows.

    An order takes 4 bytes per pair. Weights are not scaled, because the loss is a sum.

    Args:
        rows, columns, counts, x_max, alpha, batch_size, **options: As in `GloVe.batches`.
    """

    def __init__(self, rows, columns, counts, x_max, alpha, batch_size, **options):
        self.x_max, self.alpha = x_max, alpha
        self._pairs = rows, columns, counts
        super().__init__(
            np.broadcast_to(1, len(rows)),
            self._targets,
            batch_size=min(batch_size, len(rows)),
            buckets=[1],
            vocabulary_size=int(max(rows.max(), columns.max())) + 1,
            scale_weights=False,
            **options,
        )

    def _targets(self, chosen, length, rng, epoch):
        rows, columns, counts = (array[chosen] for array in self._pairs)
        x = {"rows": rows.astype(np.int32), "columns": columns.astype(np.int32)}
        weights = np.minimum(counts / self.x_max, 1.0) ** self.alpha  # equation 9
        return x, np.log(counts).astype(np.float32), weights.astype(np.float32)

    def _plan(self, epoch):
        count, size = len(self._pairs[0]), self.batch_size
        order = np.full(-(-count // size) * size, -1, np.int32)
        order[:count] = np.arange(count, dtype=np.int32)
        if (
            self.training and self.shuffle
        ):  # sorting random numbers is three times as fast as `shuffle`
            keys = np.random.default_rng([self.seed, epoch]).integers(0, 2**31, count)
            keys <<= 32
            keys |= order[:count]
            keys.sort()
            order[:count] = keys.astype(np.int32)  # the lower half
        return [(1, rows) for rows in order.reshape(-1, size)]
