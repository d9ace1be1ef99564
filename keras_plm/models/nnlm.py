"""The neural probabilistic language model of Bengio et al. 2003."""

import math
import weakref
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.files.saveable import saved_policy
from keras_plm.layers import Dense, Dropout, TokenEmbedding
from keras_plm.layers._fused.programs import compiled
from keras_plm.layers._fused.softmax import token_cross_entropy
from keras_plm.training.fit import FitsBatches, check_outputs
from keras_plm.training.losses import TokenCrossEntropy
from keras_plm.training.optimizers import BertAdamW

BLOCK = 1 << 16  # positions at a time: temporaries stay in the processor's cache
_COMPILED = weakref.WeakKeyDictionary()  # model -> its compiled functions


def contexts(token_ids, order, end_id):
    """Returns the `order - 1` tokens before each token of a stream.

    Every sentence of the stream ends with `end_id`. A context stays within its sentence: `end_id`
    fills the places before the start of the sentence or of the stream.

    Args:
        token_ids: (N,) the stream.
        order: Number of words n: n - 1 of context and the predicted word.
        end_id: Id at the end of every sentence.

    Returns:
        (N, n - 1) int32, the oldest token first.

    Raises:
        ValueError: If `order` is less than 2.

    >>> contexts([5, 6, 7, 2, 8], order=3, end_id=2).tolist()
    [[2, 2], [2, 5], [5, 6], [6, 7], [2, 2]]
    """
    _check_order(order)
    token_ids = np.asarray(token_ids)
    found = np.empty((len(token_ids), order - 1), dtype=np.int32)
    for start in range(0, len(token_ids), BLOCK):
        stop = min(start + BLOCK, len(token_ids))
        found[start:stop] = _contexts_at(token_ids, np.arange(start, stop), order, end_id)
    return found


def _contexts_at(token_ids, positions, order, end_id):
    """Returns the contexts of positions up to the one after the last token: (B, n - 1) int32."""
    found = np.empty((len(positions), order - 1), dtype=np.int32)
    newer = None
    for back in range(1, order):
        places = positions - back
        tokens = np.where(places < 0, end_id, token_ids[np.maximum(places, 0)])
        # `end_id` replaces everything before the end of the previous sentence.
        newer = tokens if newer is None else np.where(newer == end_id, end_id, tokens)
        found[:, -back] = newer
    return found


def _check_order(order):
    if order < 2:
        raise ValueError(
            "`order` must be 2 or more: with 1 there is no context to read. "
            f"Received: order={order}"
        )


@keras.saving.register_keras_serializable("keras_plm")
class NNLM(FitsBatches, keras.Model):
    """A feed-forward language model: predicts a word from the vectors of the n - 1 words before it.

    An n-gram model has a count for every context. The network has a vector for every word and
    generalises to contexts of similar words. With x the concatenation of the n - 1 vectors,

        y = b + W x + U tanh(d + H x),    P(word | context) = softmax(y).

    A step takes B · V · (hidden_dim + (n - 1) · embedding_dim) with the direct connections W, and
    B · V · hidden_dim without them: the softmax over all words takes nearly all of the time. The
    text is one stream of ids, and every sentence ends with `end_id`; see `contexts`.

    Reference: Bengio, Ducharme, Vincent and Jauvin 2003, JMLR 3:1137-1155, section 2, equation 1.

    Differs from the paper: by default it trains in batches with AdamW. The paper's SGD takes one
    word at a time, at the learning rate 1e-3 / (1 + 1e-8 · t), with a weight decay of 1e-4 (Brown)
    or 1e-5 (AP News) on all but the biases. Initial vectors are uniform within 0.05. Initial
    kernels are uniform after Glorot and Bengio 2010, W and U in the range of one matrix. The paper
    has no dropout.

    Args:
        vocabulary_size: Number of words V.
        order: Number of words n: n - 1 of context and the predicted word.
        embedding_dim: Width m of the word vectors.
        hidden_dim: Number of hidden units h; 0 for no hidden layer.
        direct: If True, W connects word vectors to the output directly.
        end_id: Id at the end of every sentence; it also pads contexts at the start of one.
        dropout: Fraction dropped of the word vectors and of the hidden units.
        trainable: If False, the model is frozen.
        dtype: Keras policy, such as `"mixed_bfloat16"`; Keras' default when omitted.
        name: Name of the model.

    Call arguments:
        inputs: A dict of `context_ids` (B, n - 1), the oldest word first.

    Returns:
        (B, V) float32 logits of the next word.

    Raises:
        ValueError: If `order` is less than 2, a size is invalid, `end_id` is not in the
            vocabulary, or there is neither a hidden layer nor direct connections.

    >>> import numpy as np
    >>> model = NNLM(7, order=3, embedding_dim=4, hidden_dim=5, end_id=2)
    >>> tuple(model({"context_ids": np.array([[2, 2], [2, 4]])}).shape)
    (2, 7)
    >>> len(model.batches(np.array([4, 5, 6, 2] * 50), batch_size=20))
    10
    >>> round(float(model.distribution(context=[4]).sum()), 6)
    1.0
    """

    def __init__(
        self,
        vocabulary_size: int,
        order: int = 5,
        embedding_dim: int = 60,
        hidden_dim: int = 50,
        direct: bool = True,
        end_id: int = 2,
        dropout: float = 0.0,
        trainable: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
    ):
        _check_order(order)
        if embedding_dim < 1 or hidden_dim < 0:
            raise ValueError(
                "`embedding_dim` must be 1 or more, `hidden_dim` 0 or more. "
                f"Received: embedding_dim={embedding_dim}, hidden_dim={hidden_dim}"
            )
        if not hidden_dim and not direct:
            raise ValueError(
                "Without a hidden layer the output needs the direct connections: give a "
                "`hidden_dim` or `direct=True`. "
                f"Received: hidden_dim={hidden_dim}, direct={direct}"
            )
        if not 0 <= end_id < vocabulary_size:
            raise ValueError(
                "`end_id` must be one of the `vocabulary_size` words. "
                f"Received: end_id={end_id}, vocabulary_size={vocabulary_size}"
            )

        token_embedding = TokenEmbedding(
            vocabulary_size, embedding_dim, "uniform", dtype=dtype, name="token_embedding"
        )
        inputs = {"context_ids": keras.Input((order - 1,), dtype="int32", name="context_ids")}
        vectors = token_embedding(inputs["context_ids"])  # (B, n - 1, m)
        x = ops.reshape(vectors, (-1, (order - 1) * embedding_dim))
        x = Dropout(dropout, dtype=dtype, name="embedding_dropout")(x)
        parts = [x] if direct else []
        if hidden_dim:
            hidden = Dense(hidden_dim, activation="tanh", dtype=dtype, name="hidden")(x)
            parts.append(Dropout(dropout, dtype=dtype, name="hidden_dropout")(hidden))
        # W x + U h as one product of [x, h]: two products take two more passes over (B, V).
        both = ops.concatenate(parts, axis=-1) if len(parts) == 2 else parts[0]
        logits = Dense(vocabulary_size, dtype=dtype, name="output")(both)
        super().__init__(inputs=inputs, outputs=ops.cast(logits, "float32"), name=name)
        self.dtype_policy = token_embedding.dtype_policy

        self.token_embedding = token_embedding
        self.vocabulary_size = vocabulary_size
        self.order = order
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.direct = direct
        self.end_id = end_id
        self.dropout = dropout
        self.trainable = trainable

    def compile(self, optimizer=None, loss=None, **kwargs):
        """Configures training, by default with `BertAdamW` and cross-entropy."""
        if optimizer is None:
            optimizer = BertAdamW(1e-3, bias_correction=True)
        if loss is None:
            loss = TokenCrossEntropy()
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def start_from_unigrams(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Sets the output biases to the log frequencies of the words of a text, with one added.

        Training then starts at the perplexity of the unigram model.
        """
        counts = np.bincount(self._stream(token_ids), minlength=self.vocabulary_size) + 1.0
        self.get_layer("output").bias.assign(np.log(counts / counts.sum()))

    def batches(
        self,
        token_ids: Sequence[int] | np.ndarray,
        batch_size: int = 512,
        seed: int = 0,
        training: bool = True,
        **options,
    ) -> Batches:
        """Returns batches of every word of a stream with its context, for `fit` or `evaluate`.

        In training, the order of the words depends on `seed` and the number of the epoch.

        Args:
            token_ids: (N,) the stream.
            batch_size: Number of words per batch.
            seed: Seed of the order.
            training: If True, shuffle.
            **options: Other arguments of `Batches`.

        Returns:
            `Batches` of `({"context_ids": (B, n - 1)}, (B,) ids of the next words, weights)`.

        Raises:
            ValueError: If the stream is empty or holds an id outside the vocabulary.
        """
        token_ids = self._stream(token_ids)

        def collate(rows, length, rng, epoch):
            context_ids = _contexts_at(token_ids, rows, self.order, self.end_id)
            return {"context_ids": context_ids}, token_ids[rows].astype("int32"), None

        return Batches(
            np.ones(len(token_ids), "int8"),
            collate,
            training=training,
            batch_size=batch_size,
            buckets=[1],
            seed=seed,
            **options,
        )

    def log_prob(self, token_ids: Sequence[int] | np.ndarray, batch_size: int = 1024) -> np.ndarray:
        """Computes the log-probability of each word of a stream, given the words before it.

        Args:
            token_ids: (N,) the stream; its first word starts a sentence.
            batch_size: Number of words at a time; the logits take `4 * batch_size * V` bytes.

        Returns:
            (N,) float64 natural logarithms.

        Raises:
            ValueError: If the stream is empty or holds an id outside the vocabulary.
        """
        token_ids = self._stream(token_ids)
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be 1 or more. Received: batch_size={batch_size}")
        # A few words need not be padded to thousands of rows.
        size = min(batch_size, 1 << (len(token_ids) - 1).bit_length())
        found = np.empty(len(token_ids))
        for start in range(0, len(token_ids), size):
            stop = min(start + size, len(token_ids))
            rows = np.arange(start, start + size)
            rows[stop - start :] = start  # padding to one shape
            context_ids = _contexts_at(token_ids, rows, self.order, self.end_id)
            next_ids = token_ids[rows].astype("int32")
            found[start:stop] = self._run(_log_prob, context_ids, next_ids)[: stop - start]
        return found

    def perplexity(self, token_ids: Sequence[int] | np.ndarray, batch_size: int = 1024) -> float:
        """Computes the perplexity of a stream: e to the mean of `-log_prob`."""
        return math.exp(-self.log_prob(token_ids, batch_size).mean())

    def distribution(self, context: Sequence[int] | np.ndarray = ()) -> np.ndarray:
        """Computes the probability of every word after a context.

        Args:
            context: Ids of the words before; the last n - 1 count. `()` is the start of a sentence.

        Returns:
            (V,) float64; the sum is 1.

        Raises:
            ValueError: If an id is outside the vocabulary.
        """
        return self._distribution(self._last(context), 1.0)

    def generate(
        self,
        length: int,
        context: Sequence[int] | np.ndarray = (),
        seed: int = 0,
        temperature: float = 1.0,
    ) -> list[int]:
        """Samples words after a context, one after the other.

        Args:
            length: Largest number of words; sampling stops after `end_id`.
            context: As in `distribution`.
            seed: Seed of the random numbers.
            temperature: Divisor of the logits. Below 1 it favours likely words.

        Returns:
            A list of ids.

        Raises:
            ValueError: If `length` is negative, `temperature` not positive, or an id is outside the
                vocabulary.
        """
        if length < 0:
            raise ValueError(f"`length` must be 0 or more. Received: length={length}")
        if not 0 < temperature < math.inf:
            raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
        tokens = self._last(context)
        before = len(tokens)
        for uniform in np.random.default_rng(seed).random(length):
            ends = np.cumsum(self._distribution(tokens, temperature))
            tokens.append(int(np.searchsorted(ends, uniform * ends[-1], side="right")))
            if tokens[-1] == self.end_id:
                break
        return tokens[before:]

    def _distribution(self, tokens, temperature):
        recent = np.array(tokens[1 - self.order :])
        context_ids = _contexts_at(recent, np.array([len(recent)]), self.order, self.end_id)
        logits = self._run(_logits, context_ids)[0].astype("float64") / temperature
        shares = np.exp(logits - logits.max())
        return shares / shares.sum()

    def _last(self, context):
        """Returns a context as a list after `end_id`, which starts a sentence."""
        context = np.asarray(context)
        return [self.end_id, *(self._stream(context).tolist() if context.size else [])]

    def _stream(self, token_ids):
        """Checks a stream, because JAX does not check indices."""
        token_ids = np.asarray(token_ids)
        if token_ids.ndim != 1 or not token_ids.size:
            raise ValueError(
                "A text must be one stream of ids, at least one. "
                f"Received: an array of shape {token_ids.shape}"
            )
        if not np.issubdtype(token_ids.dtype, np.integer):
            raise ValueError(f"Token ids must be integers. Received: dtype={token_ids.dtype}")
        low, high = token_ids.min(), token_ids.max()
        if low < 0 or high >= self.vocabulary_size:
            raise ValueError(
                "Every id must be one of the vocabulary: 0 to `vocabulary_size` - 1. "
                f"Received: ids from {low} to {high}, vocabulary_size={self.vocabulary_size}"
            )
        return token_ids

    def _run(self, function, *arrays):
        """Runs `function(model, *arrays)`, compiled once per set of variables; returns NumPy."""
        if hasattr(self, "jax_state_sync"):
            self.jax_state_sync()  # within a `fit`
        # Other variables, such as LoRA's, need another compiled function.
        known = _COMPILED.setdefault(self, {})
        key = (function, *(id(variable) for variable in self.variables))
        if key not in known:
            model = weakref.proxy(self)  # the model would keep its own entry alive
            known[key] = compiled(lambda *tensors: function(model, *tensors), self.variables)
        found = ops.convert_to_numpy(known[key](*arrays))
        check_outputs(found)
        return found

    def get_config(self):
        return {
            "vocabulary_size": self.vocabulary_size,
            "order": self.order,
            "embedding_dim": self.embedding_dim,
            "hidden_dim": self.hidden_dim,
            "direct": self.direct,
            "end_id": self.end_id,
            "dropout": self.dropout,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": saved_policy(self),
        }


def _logits(model, context_ids):
    return model({"context_ids": context_ids}, training=False)


def _log_prob(model, context_ids, next_ids):
    return -token_cross_entropy(ops.convert_to_tensor(next_ids), _logits(model, context_ids))
