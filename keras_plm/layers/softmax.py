"""The softmax over a large vocabulary, whole or sampled, in the memory of a few positions.

Shapes: N positions, P width, V words, S words that are summed over, R rows of a chunk.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.layers.embedding import rows_of
from keras_plm.layers.fast import fold

LOGITS = 1 << 21  # at most so many at a time, which stay in the processor's cache


def logsumexp_of_products(x, kernel, bias, logits=LOGITS):
    """`logsumexp(x W^T + b)`, without all N · S products in memory at once.

    The gradient computes them again, chunk by chunk.

    Args:
        x: (N, P).
        kernel: (S, P), W.
        bias: (S,) float32.
        logits: How many products at most at a time; a chunk has one position or more.

    Returns:
        (N,) float32.
    """
    count, size = ops.shape(x)[0], kernel.shape[0]
    rows = max(logits // size, 1)
    if isinstance(count, int):
        rows = min(rows, count)

    def chunks(tensor):
        """(N, ...) as (K, R, ...), filled up with zeros."""
        padding = [[0, -count % rows]] + [[0, 0]] * (len(tensor.shape) - 1)
        tensor = ops.pad(tensor, padding)
        return ops.reshape(tensor, (-1, rows, *tensor.shape[1:]))

    def products(x, kernel, bias, total):
        """x W^T + b - total, (R, S): the sums as two more columns cost no pass of their own."""
        if x.dtype != bias.dtype:  # too coarse for them
            found = ops.cast(ops.matmul(x, ops.transpose(kernel)), "float32")
            return found + bias - total[:, None]
        x = ops.concatenate([x, ops.ones_like(x[:, :1]), -total[:, None]], axis=1)
        kernel = [kernel, bias[:, None], ops.ones_like(bias[:, None])]
        return ops.matmul(x, ops.transpose(ops.concatenate(kernel, axis=1)))

    @ops.custom_gradient
    def run(x, kernel, bias):
        xs = chunks(x)

        def forward(state, inputs):
            found = products(*inputs, kernel, bias, ops.zeros((rows,), bias.dtype))
            return state, (ops.logsumexp(found, axis=-1),)

        sums = fold(forward, (), (xs,))[1][0]  # (K, R)

        def gradient(*upstream, **kwargs):
            wanted = chunks(kwargs.get("upstream", upstream[0] if upstream else None))

            def backward(state, inputs):
                d_kernel, d_bias = state
                x, total, wanted = inputs
                shares = ops.cast(ops.exp(products(x, kernel, bias, total)), x.dtype)
                wanted = ops.cast(wanted, x.dtype)[:, None]
                x = ops.concatenate([x * wanted, wanted], axis=1)
                both = ops.matmul(ops.transpose(shares), x)  # (S, P + 1)
                both = ops.cast(both, d_bias.dtype)  # sums over many chunks lose little in it
                state = d_kernel + both[:, :-1], d_bias + both[:, -1]
                return state, (ops.matmul(shares, kernel) * wanted,)

            start = ops.zeros(kernel.shape, bias.dtype), ops.zeros_like(bias)
            state, (d_x,) = fold(backward, start, (xs, sums, wanted))
            d_kernel, d_bias = state
            d_x = ops.reshape(d_x, (-1, d_x.shape[-1]))[:count]
            return d_x, ops.cast(d_kernel, kernel.dtype), d_bias

        return ops.reshape(sums, (-1,))[:count], gradient

    return run(x, kernel, bias)


def log_uniform_words(rng, vocabulary_size, count):
    """Different random words, the frequent more likely: P(k) = log((k + 2) / (k + 1)) / log(V + 1).

    Reference: `tf.random.log_uniform_candidate_sampler`; Jean et al. 2015, arXiv 1412.2007, section
    3, for what samples are for.

    Args:
        rng: A NumPy generator.
        vocabulary_size: V, words in the order of their frequency.
        count: S, less than V.

    Returns:
        `(ids, counts, tries)`: (S,) int32; (S,) float32, how often each was to be expected; and the
        number of drawings that it took, for `expected_counts` of other words.

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


def expected_counts(ids, vocabulary_size, tries):
    """How likely words are among the different ones of so many log-uniform drawings, float32."""
    ids = np.asarray(ids, "float64")
    shares = np.log((ids + 2) / (ids + 1)) / np.log(vocabulary_size + 1)
    return (-np.expm1(tries * np.log1p(-shares))).astype("float32")


@keras.saving.register_keras_serializable("keras_plm")
class SampledSoftmax(keras.layers.Layer):
    """How unlikely a word is under a softmax over all words, in training over a sample of them.

    Told apart are the true word and the sampled ones. The logarithm of how often a word was to be
    expected is subtracted from its logit, the true word's, too; what is learned is then the same as
    over all words, though the loss is lower. The true word counts once, sampled or not. Memory is
    that of one chunk of positions, time N · S · P, or N · V · P without samples.

    Reference: Jean et al. 2015, arXiv 1412.2007, section 3; Peters et al. 2018 (allenai/bilm-tf,
    training.py): 8,192 samples, all words at test.

    Args:
        vocabulary_size: Number of words V, in the order of their frequency if words are sampled.

    Call arguments:
        inputs: (..., P).
        target_ids: (...) the true words.
        sample_ids: (S,) different words, or `None` for all.
        sample_counts: (S,) how often each was to be expected, see `log_uniform_words`.
        target_counts: (...) the same of the true words.
        target_sampled: (...) True where the true word is among the samples.

    Returns:
        (...) -log p(true word), float32.

    >>> layer = SampledSoftmax(vocabulary_size=7)
    >>> tuple(layer(np.ones((2, 3, 4)), target_ids=np.ones((2, 3), "int32")).shape)
    (2, 3)
    """

    def __init__(self, vocabulary_size, **kwargs):
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
        inputs,
        target_ids,
        sample_ids=None,
        sample_counts=None,
        target_counts=None,
        target_sampled=None,
    ):
        width, sizes = inputs.shape[-1], ops.shape(target_ids)
        x = ops.reshape(ops.cast(inputs, self.compute_dtype), (-1, width))  # (N, P)
        target_ids = ops.cast(ops.reshape(target_ids, (-1,)), "int32")
        kernel, bias = ops.convert_to_tensor(self.kernel), ops.convert_to_tensor(self.bias)
        wanted = ops.cast(rows_of(kernel, target_ids), self.compute_dtype)  # (N, P)
        wanted = ops.cast(ops.sum(x * wanted, axis=-1), "float32")
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
