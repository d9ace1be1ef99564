"""The softmax over a large vocabulary, full or sampled, in the memory of a few positions.

Shapes: N positions, P width, V words, S words in the sum, R rows of a chunk.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers._fused.scan import fold
from keras_plm.layers._fused.softmax import row_logsumexp, row_softmax
from keras_plm.layers.embedding import rows_of

LOGITS = 1 << 21  # number of logits that fit the processor's cache
ROWS = 256  # fewer positions would write the kernel's gradient too often


def logsumexp_of_products(x, kernel, bias=None, rows=None):
    """Computes `logsumexp(x W^T + b)` without all N · S products in memory at once.

    The gradient recomputes them, chunk by chunk.

    Args:
        x: (N, P).
        kernel: (S, P), W.
        bias: (S,); zeros when omitted.
        rows: Number of positions of a chunk; by default as many as fit the processor's cache, at
            least 256.

    Returns:
        (N,) float32.
    """
    count = ops.shape(x)[0]
    rows = _rows_of_a_chunk(count, rows or max(LOGITS // kernel.shape[0], ROWS))

    @ops.custom_gradient
    def run(x, kernel, *bias):
        xs, logits = _chunks(x, rows), _Logits(kernel, *bias)
        sums = fold(lambda _, inputs: ((), (row_logsumexp(logits(inputs[0])),)), (), (xs,))[1][0]

        def gradient(*upstream, **kwargs):
            wanted = kwargs.get("upstream", upstream[0] if upstream else None)
            chunks = xs, sums, _chunks(wanted, rows)
            # Recomputed, to free the table of the forward pass.
            d_weights, d_x = _gradients(_Logits(kernel, *bias), chunks)
            d_weights = [
                ops.cast(d, w.dtype) for d, w in zip(d_weights, (kernel, *bias), strict=True)
            ]
            return ops.reshape(d_x, (-1, d_x.shape[-1]))[:count], *d_weights

        return ops.reshape(sums, (-1,))[:count], gradient

    # Tensors, because eager TensorFlow asks a custom gradient for gradients of variables, too.
    weights = ops.cast(x, x.dtype), ops.cast(kernel, kernel.dtype)
    return run(*weights) if bias is None else run(*weights, ops.cast(bias, "float32"))


def _rows_of_a_chunk(count, most):
    """Returns the rows per chunk of `count` rows: few chunks of one size, at most `most` rows."""
    if not isinstance(count, int):
        return most
    return max(-(-count // max(-(-count // most), 1)), 1)


def _chunks(tensor, rows):
    """Splits (N, ...) into (K, R, ...), padded with zeros; one chunk if N is 0."""
    count = ops.shape(tensor)[0]
    missing = rows if isinstance(count, int) and count == 0 else -count % rows
    padding = [[0, missing]] + [[0, 0]] * (len(tensor.shape) - 1)
    return ops.reshape(ops.pad(tensor, padding), (-1, rows, *tensor.shape[1:]))


def _gradients(logits, chunks):
    """Computes gradients for the weights, summed over chunks, and for each chunk's inputs.

    Args:
        logits: The `_Logits`.
        chunks: A tuple of the inputs (K, R, P), their logsumexp (K, R) and its gradient (K, R).
    """
    if chunks[0].shape[0] == 1:  # nothing to sum
        return logits.gradients(*(x[0] for x in chunks))

    def step(state, inputs):
        d_weights, d_x = logits.gradients(*inputs)
        # Sums over many chunks lose little in float32.
        return tuple(s + ops.cast(d, "float32") for s, d in zip(state, d_weights, strict=True)), (
            d_x,
        )

    start = tuple(ops.zeros(weight.shape, "float32") for weight in logits.weights)
    d_weights, (d_x,) = fold(step, start, chunks)
    return d_weights, d_x


class _Logits:
    """`x W^T + b` of a chunk (R, P), its softmax and its gradients.

    If kernel and bias have one type, bias and logsumexp are two more columns of the table. Their
    sums then need no extra pass. A kernel of lower precision would round them.

    Args:
        kernel: (S, P), W.
        bias: (S,), b; zeros when omitted.
    """

    def __init__(self, kernel, bias=None):
        self.kernel, self.bias = kernel, bias
        self.weights = (kernel,) if bias is None else (kernel, bias)
        self.by_columns = bias is not None and kernel.dtype == bias.dtype
        if self.by_columns:
            self.table = ops.concatenate(
                [kernel, bias[:, None], ops.ones_like(bias[:, None])], axis=1
            )

    def __call__(self, x):
        """Computes logits (R, S)."""
        if self.by_columns:
            return self._with_columns(x, ops.zeros_like(x[:, 0]))
        logits = ops.matmul(x, ops.transpose(self.kernel))
        return logits if self.bias is None else ops.cast(logits, "float32") + self.bias

    def probabilities(self, x, total):
        """Computes exp(x W^T + b - total), (R, S) in the type of `x`; `total` is the logsumexp."""
        if self.by_columns:
            return ops.exp(self._with_columns(x, -total))
        return ops.cast(row_softmax(self(x), total), x.dtype)

    def gradients(self, x, total, wanted):
        """Computes gradients for weights and `x` from the logsumexp's gradient `wanted` (R,)."""
        softmax = self.probabilities(x, total)
        wanted = ops.cast(wanted, x.dtype)[:, None]
        # The bias's gradient is one more column of the same product.
        columns = x * wanted if self.bias is None else ops.concatenate([x * wanted, wanted], axis=1)
        both = ops.matmul(ops.transpose(softmax), columns)  # (S, P) or (S, P + 1)
        d_weights = (both,) if self.bias is None else (both[:, :-1], both[:, -1])
        return d_weights, ops.matmul(softmax, self.kernel) * wanted

    def _with_columns(self, x, last):
        x = ops.concatenate([x, ops.ones_like(x[:, :1]), last[:, None]], axis=1)
        return ops.matmul(x, ops.transpose(self.table))


def row_products(x, rows):
    """Multiplies each row of `x` (N, P) with its row of `rows` (N, P): (N,) float32.

    `rows` are first rounded to the type of `x`, as in a product with a whole table. The sum is in
    float32, as in matrix products.
    """
    rows = ops.cast(ops.cast(rows, x.dtype), "float32")
    return ops.sum(ops.cast(x, "float32") * rows, axis=-1)


def log_uniform_words(
    rng: np.random.Generator, vocabulary_size: int, count: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Samples distinct words with P(k) = log((k + 2) / (k + 1)) / log(V + 1), frequent words first.

    Reference: `tf.random.log_uniform_candidate_sampler`; Jean et al. 2015, arXiv 1412.2007, section
    3.

    Args:
        rng: A NumPy generator.
        vocabulary_size: Number of words V, sorted by frequency.
        count: Number of samples S, less than V.

    Returns:
        `(ids, counts, tries)`: (S,) int32; (S,) float32, the expected count of each word; and the
        number of draws, for `expected_counts` of other words.

    >>> import numpy as np
    >>> ids, counts, tries = log_uniform_words(np.random.default_rng(0), 1000, 100)
    >>> len(set(ids.tolist())), bool((ids < 10).sum() >= 5)
    (100, True)
    """
    ids = np.zeros(0, np.int64)
    while True:
        drawn = np.exp(rng.random(2 * count) * np.log(vocabulary_size + 1)).astype(np.int64) - 1
        ids = np.concatenate([ids, np.minimum(drawn, vocabulary_size - 1)])
        _, first = np.unique(ids, return_index=True)
        if len(first) >= count:
            first = np.sort(first)[:count]
            tries = int(first[-1]) + 1
            ids = ids[first]
            return ids.astype(np.int32), expected_counts(ids, vocabulary_size, tries), tries


def expected_counts(ids: np.ndarray, vocabulary_size: int, tries: int) -> np.ndarray:
    """Computes the probability that each word is among the samples of `log_uniform_words`.

    Args:
        ids: (...) ids of words.
        vocabulary_size: Number of words V, sorted by frequency.
        tries: Number of draws.

    Returns:
        (...) float32.

    >>> import numpy as np
    >>> [round(float(x), 3) for x in expected_counts(np.array([0, 100]), 1000, tries=100)]
    [1.0, 0.133]
    """
    ids = np.asarray(ids, "float64")
    shares = np.log((ids + 2) / (ids + 1)) / np.log(vocabulary_size + 1)
    return (-np.expm1(tries * np.log1p(-shares))).astype("float32")


@keras.saving.register_keras_serializable("keras_plm")
class SampledSoftmax(keras.layers.Layer):
    """Cross-entropy of words under a softmax over a large vocabulary, full or sampled.

    With samples, the softmax is over the true word and the sampled words. The layer subtracts the
    logarithm of the expected count from each logit. The loss is lower than with all words, the
    optimum is the same. The true word counts once. Memory holds one chunk of positions; time is
    N · S · P, or N · V · P without samples.

    Reference: Jean et al. 2015, arXiv 1412.2007, section 3; Peters et al. 2018 (allenai/bilm-tf,
    training.py): 8,192 samples in training, all words in tests.

    Args:
        vocabulary_size: Number of words V; sorted by frequency for samples.

    Call arguments:
        inputs: (..., P).
        target_ids: (...) ids of the true words.
        sample_ids: (S,) ids of distinct sampled words, or `None` for all words.
        sample_counts: (S,) expected counts of the samples, see `log_uniform_words`.
        target_counts: (...) expected counts of the true words.
        target_sampled: (...) True where the true word is among the samples.

    Returns:
        (...) -log p(true word), float32.

    >>> import numpy as np
    >>> layer = SampledSoftmax(vocabulary_size=7)
    >>> tuple(layer(np.ones((2, 3, 4)), target_ids=np.ones((2, 3), "int32")).shape)
    (2, 3)
    """

    def __init__(self, vocabulary_size: int, **kwargs):
        super().__init__(**kwargs)
        self.autocast = False  # counts and losses stay in float32
        self.vocabulary_size = vocabulary_size

    def build(self, inputs_shape, **other_shapes):
        width = inputs_shape[-1]
        self.kernel = self.add_weight(
            (self.vocabulary_size, width),
            keras.initializers.RandomNormal(stddev=width**-0.5),
            name="kernel",
            autocast=False,
        )
        self.bias = self.add_weight((self.vocabulary_size,), "zeros", name="bias", autocast=False)

    def call(
        self,
        inputs: Tensor,
        target_ids: Tensor,
        sample_ids: Tensor | None = None,
        sample_counts: Tensor | None = None,
        target_counts: Tensor | None = None,
        target_sampled: Tensor | None = None,
    ) -> Tensor:
        width, sizes = inputs.shape[-1], ops.shape(target_ids)
        x = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))  # (N, P)
        target_ids = ops.cast(ops.reshape(target_ids, (-1,)), "int32")
        kernel, bias = ops.convert_to_tensor(self.kernel), ops.cast(self.bias, "float32")
        wanted = row_products(x, rows_of(kernel, target_ids))  # (N,)
        wanted = wanted + rows_of(bias[:, None], target_ids)[:, 0]
        if sample_ids is None:
            total = logsumexp_of_products(x, ops.cast(kernel, x.dtype), bias)
            return ops.reshape(total - wanted, sizes)
        sample_ids = ops.cast(sample_ids, "int32")
        kernel = ops.cast(rows_of(kernel, sample_ids), x.dtype)  # (S, P)
        bias = rows_of(bias[:, None], sample_ids)[:, 0] - ops.log(sample_counts)
        total = logsumexp_of_products(x, kernel, bias)
        wanted = wanted - ops.log(ops.reshape(target_counts, (-1,)))
        sampled = ops.reshape(target_sampled, (-1,))
        total = ops.where(sampled, total, ops.logaddexp(total, wanted))
        return ops.reshape(total - wanted, sizes)

    def compute_output_spec(self, inputs, target_ids, *others, **more):
        return keras.KerasTensor(inputs.shape[:-1], dtype="float32")

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}
