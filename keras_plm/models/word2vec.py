"""word2vec: word vectors from a word's neighbours, by skip-gram and CBOW.

Shapes: B rows of T words each, window w, N noise words per row, L inner nodes of a path, D width.
"""

import heapq
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.layers import TokenEmbedding
from keras_plm.training.fit import FitsBatches
from keras_plm.training.losses import LogisticLoss, MeanLoss
from keras_plm.training.optimizers import AdaGrad

ARCHITECTURES = ("skip_gram", "cbow")
OBJECTIVES = ("negative_sampling", "hierarchical_softmax")
NOISE, TREE = OBJECTIVES


@keras.saving.register_keras_serializable("keras_plm")
class Neighbours(keras.layers.Layer):
    """The neighbours at distances 1 to `window` before and after each position.

    Args:
        window: Largest distance w of a neighbour.

    Call arguments:
        inputs: (B, T, D).
        query: (B, T, D) to score the neighbours with, or `None`.
        weights: (B, T, 2 w) to sum the neighbours with, or `None`.

    Returns:
        With `query` the scores (B, T, 2 w) of the neighbours, from w before to w after; with
        `weights` their weighted sum (B, T, D); otherwise the neighbours (B, T, 2 w, D).
        Neighbours outside of the row are zero.
    """

    def __init__(self, window, **kwargs):
        super().__init__(**kwargs)
        self.window = window

    def call(self, inputs, query=None, weights=None):
        w = self.window
        length = inputs.shape[1]
        padded = ops.pad(inputs, ((0, 0), (w, w), (0, 0)))  # (B, T + 2 w, D)
        if query is None and weights is None:
            places = np.arange(length)[:, None] + np.delete(np.arange(2 * w + 1), w)  # (T, 2 w)
            return ops.take(padded, places, axis=1)
        # One product of a row with itself takes T / 2 w times the necessary operations. It is still
        # far faster than 2 w products of single vectors. One more element per row turns the
        # diagonals into columns.
        wide = length + 2 * w
        if query is not None:
            scores = ops.matmul(query, ops.transpose(padded, (0, 2, 1)))  # (B, T, T + 2 w)
            flat = ops.pad(ops.reshape(scores, (-1, length * wide)), ((0, 0), (0, length)))
            band = ops.reshape(flat, (-1, length, wide + 1))[:, :, : 2 * w + 1]
            return ops.concatenate([band[:, :, :w], band[:, :, w + 1 :]], axis=-1)
        middle = ops.zeros_like(weights[:, :, :1])
        band = ops.concatenate([weights[:, :, :w], middle, weights[:, :, w:]], axis=-1)
        flat = ops.pad(band, ((0, 0), (0, 0), (0, wide - 2 * w)))
        flat = ops.reshape(flat, (-1, length * (wide + 1)))[:, : length * wide]
        return ops.matmul(ops.reshape(flat, (-1, length, wide)), padded)  # (B, T, D)

    def compute_output_spec(self, inputs, query=None, weights=None):
        batch, length, width = inputs.shape
        shape = (batch, length, 2 * self.window)
        if query is None:
            shape = (batch, length, width) if weights is not None else (*shape, width)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "window": self.window}


def small_uniform(width):
    return keras.initializers.RandomUniform(-0.5 / width, 0.5 / width)


class FitsByAdaGrad(FitsBatches):
    """Training of word vectors by AdaGrad on a summed loss; `fit` compiles if necessary."""

    default_rate, loss_class, loss_name = 0.3, LogisticLoss, "loss_per_word"

    def compile(self, optimizer=None, loss=None, weighted_metrics=None, **kwargs):
        """Configures training, by default with AdaGrad, the published loss and its mean.

        A number or a schedule as `optimizer` is AdaGrad's learning rate.
        `schedules.WarmupLinearDecay(rate, steps)` decays it to zero, as in word2vec.
        """
        if optimizer is None or not isinstance(optimizer, (str, keras.optimizers.Optimizer)):
            rate = self.default_rate if optimizer is None else optimizer
            optimizer = AdaGrad(rate)
        loss = loss or self.loss_class()
        if weighted_metrics is None:
            weighted_metrics = [MeanLoss(self.loss_class(), name=self.loss_name)]
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def fit(self, *args, **kwargs):
        if not self.compiled:
            self.compile()
        return super().fit(*args, **kwargs)


class NeighbourModel(FitsByAdaGrad, keras.Model):
    """Base class of `Word2Vec` and `FastText`."""

    def __init__(
        self,
        inputs: dict[str, keras.KerasTensor],
        vectors: keras.KerasTensor,
        embedding: keras.Layer,
        vocabulary_size: int,
        hidden_dim: int,
        architecture: str,
        objective: str,
        window: int,
        row_length: int,
        noise_words: int,
        counts: Sequence[int] | np.ndarray | None,
        name: str | None,
    ):
        """Builds the graph from the words' vectors (B, T, D) to the scores."""
        check_sizes(architecture=architecture, objective=objective)
        if counts is not None:
            counts = np.asarray(counts)
            if counts.shape != (vocabulary_size,) or not np.issubdtype(counts.dtype, np.integer):
                raise ValueError(
                    "`counts` must be one whole number per word of the vocabulary. Received: "
                    f"shape {counts.shape}, dtype {counts.dtype}; {vocabulary_size} words"
                )
            if counts.min() < 0:
                raise ValueError(f"`counts` must be 0 or more. Received: {counts.min()}")
        sizes = {"vocabulary_size": vocabulary_size, "window": window, "noise_words": noise_words}
        check_sizes(**sizes)
        neighbours = Neighbours(window, name="neighbours_of")
        skip_gram, noise = architecture == "skip_gram", objective == NOISE
        # Rows of `output` belong to words, or to the inner nodes of the tree, one fewer.
        output = TokenEmbedding(vocabulary_size, hidden_dim, "zeros", name="output")
        if not skip_gram:
            shares = keras.Input((row_length, 2 * window), name="neighbours")
            inputs["neighbours"] = shares
            vectors = neighbours(vectors, weights=shares)  # (B, T, D)
        if noise:
            drawn = keras.Input((noise_words,), dtype="int32", name="noise_ids")
            inputs["noise_ids"] = drawn
            # One lookup instead of two: the gradient of each has the size of the table.
            both = output(ops.concatenate([inputs["token_ids"], drawn], axis=1))
            words, drawn_words = both[:, :row_length], both[:, row_length:]  # (B, T, D), (B, N, D)
            if skip_gram:
                scores = neighbours(words, query=vectors)  # (B, T, 2 w)
            else:
                scores = ops.sum(vectors * words, axis=-1, keepdims=True)  # (B, T, 1)
            noise_scores = ops.matmul(vectors, ops.transpose(drawn_words, (0, 2, 1)))
            scores = ops.concatenate([scores, noise_scores], axis=-1)
        else:
            nodes = keras.Input((row_length, None), dtype="int32", name="node_ids")
            inputs["node_ids"] = nodes
            paths = output(nodes)  # (B, T, L, D)
            if skip_gram:
                around = ops.transpose(neighbours(vectors), (0, 1, 3, 2))  # (B, T, D, 2 w)
                scores = ops.matmul(paths, around)  # (B, T, L, 2 w)
            else:
                scores = ops.matmul(paths, vectors[..., None])  # (B, T, L, 1)
            scores = keras.layers.Reshape((row_length, -1), name="scores")(scores)
        super().__init__(inputs=inputs, outputs=scores, name=name)
        self.embedding = embedding
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.architecture = architecture
        self.objective = objective
        self.window = window
        self.row_length = row_length
        self.noise_words = noise_words
        self.counts = counts

    @property
    def default_rate(self) -> float:
        """Default learning rate of `compile`, for batches of a few thousand words."""
        return self.rates[self.architecture, self.objective]

    def batches(
        self,
        token_ids: Sequence[int] | np.ndarray,
        negatives: int = 5,
        sample: float | None = 1e-3,
        end_id: int = 2,
        left_out: Sequence[int] = (0, 1),
        tokens_per_batch: int = 8192,
        seed: int = 0,
        **options,
    ) -> Batches:
        """Returns batches of rows of running text, sampled again in each epoch.

        If the model has no `counts`, the first text sets them. They determine the noise, the
        subsampling and the tree. Other texts, such as held-out ones, use the same counts; words
        without a count are left out.

        Args:
            token_ids: (N,) ids, such as from `data.read_ids`, with `end_id` after each sentence.
            negatives: Number of noise words per pair.
            sample: Fraction of the text above which words are subsampled; `None` for no
                subsampling.
            end_id: Id at the end of every sentence; windows do not cross it.
            left_out: Ids to remove from the text first, such as the unknown word.
            tokens_per_batch: Number of words per batch.
            seed, **options: As in `Batches`.

        Raises:
            ValueError: If ids are not a flat array of integers in [0, V), no word is left, or an
                argument is out of range.
        """
        check_sizes(tokens_per_batch=tokens_per_batch)
        source = _RunningText(self, token_ids, negatives, sample, end_id, left_out, seed)
        made = Batches(
            source.lengths,
            source.collate,
            batch_size=max(tokens_per_batch // self.row_length, 1),
            buckets=[self.row_length],
            vocabulary_size=int(np.max(token_ids)) + 1,
            scale_weights=False,  # the loss is a sum
            seed=seed,
            **options,
        )
        self.counts = source.counts  # only now: a refused text sets none
        return made

    def get_config(self):
        return {
            "hidden_dim": self.hidden_dim,
            "architecture": self.architecture,
            "objective": self.objective,
            "window": self.window,
            "row_length": self.row_length,
            "noise_words": self.noise_words,
            "counts": None if self.counts is None else self.counts.tolist(),
            "name": self.name,
        }


@keras.saving.register_keras_serializable("keras_plm")
class Word2Vec(NeighbourModel):
    """word2vec: word vectors trained to distinguish neighbours from other words.

    Skip-gram predicts each neighbour from a word. CBOW predicts the middle word from the mean of
    its neighbours. Negative sampling compares the true word with noise words; the hierarchical
    softmax predicts the turns of its path in a Huffman tree. `batches` gives rows of running text.
    The model forms the pairs, so it reads a word's vector once for all its pairs.

    Reference: Mikolov et al. 2013, arXiv 1301.3781; noise, subsampling: arXiv 1310.4546,
    sections 2.1 to 2.3; the numbers of word2vec.c.

    Differs from the paper: a step takes a batch of rows, with AdaGrad as in GloVe instead of SGD
    word by word; all words of a row share its noise words, weighted to `negatives` per pair;
    windows end with the row; the gradient of CBOW is that of its mean.

    Args:
        vocabulary_size: Number of words V.
        hidden_dim: Width D.
        architecture: `"skip_gram"` or `"cbow"`.
        objective: `"negative_sampling"` or `"hierarchical_softmax"`.
        window: Largest number of neighbours on each side; each position samples its own.
        row_length: Number of words per row T.
        noise_words: Number of noise words per row N.
        counts: (V,) counts of the words; by default of the first text of `batches`.
        name: Name of the model.

    Call arguments:
        inputs: A dict as from `batches`: `token_ids` (B, T), with CBOW `neighbours` (B, T, 2 w),
            and `noise_ids` (B, N) or `node_ids` (B, T, L).

    Returns:
        (B, T, K) scores. With noise: of the neighbours (CBOW: of the word) and of the noise words.
        Otherwise: of the nodes, in skip-gram from each neighbour.

    Raises:
        ValueError: If an argument is out of range.

    >>> import numpy as np
    >>> text = np.array([3, 4, 5, 2] * 50)
    >>> model = Word2Vec(6, hidden_dim=4, window=2, row_length=8, noise_words=2)
    >>> history = model.fit(model.batches(text, tokens_per_batch=32, sample=None), verbose=0)
    >>> tuple(model.vectors.shape)
    (6, 4)
    """

    # Learning rates of the lowest loss on held-out books after four million words, with decay to 0.
    # Candidates: 0.3, 0.6 and, with noise, 1 (skip-gram 0.15, 0.3, 0.6; with the tree 0.15, 0.3).
    rates = {
        ("skip_gram", NOISE): 0.3,
        ("cbow", NOISE): 1.0,
        ("skip_gram", TREE): 0.3,
        ("cbow", TREE): 0.3,
    }

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int = 100,
        architecture: str = "skip_gram",
        objective: str = "negative_sampling",
        window: int = 5,
        row_length: int = 128,
        noise_words: int = 32,
        counts: Sequence[int] | np.ndarray | None = None,
        name: str | None = None,
    ):
        check_sizes(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim, row_length=row_length)
        embedding = TokenEmbedding(
            vocabulary_size, hidden_dim, small_uniform(hidden_dim), name="words"
        )
        tokens = keras.Input((row_length,), dtype="int32", name="token_ids")
        super().__init__(
            {"token_ids": tokens},
            embedding(tokens),
            embedding,
            vocabulary_size,
            hidden_dim,
            architecture,
            objective,
            window,
            row_length,
            noise_words,
            counts,
            name,
        )

    def words_of(self, token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the model's inputs for the words of a batch (B, T)."""
        return {"token_ids": token_ids}

    @property
    def vectors(self) -> np.ndarray:
        """Word vectors, (V, D)."""
        return ops.convert_to_numpy(self.embedding.embeddings)

    def get_config(self):
        return {"vocabulary_size": self.vocabulary_size, **super().get_config()}


def check_sizes(**arguments):
    """Raises unless names are known and sizes are at least 1."""
    known = {"architecture": ARCHITECTURES, "objective": OBJECTIVES}
    for name, value in arguments.items():
        if name in known and value not in known[name]:
            raise ValueError(f"`{name}` must be one of {known[name]}. Received: {value!r}")
        if name not in known and value < 1:
            raise ValueError(f"`{name}` must be 1 or more. Received: {value}")


class _RunningText:
    """Rows of a text for `Word2Vec.batches`, subsampled again in each epoch."""

    def __init__(self, model, token_ids, negatives, sample, end_id, left_out, seed):
        token_ids = np.asarray(token_ids)
        size = model.vocabulary_size
        if token_ids.ndim != 1 or not np.issubdtype(token_ids.dtype, np.integer):
            raise ValueError(
                "A text must be one flat array of integer ids. "
                f"Received: shape {token_ids.shape}, dtype {token_ids.dtype}"
            )
        if not len(token_ids) or token_ids.min() < 0 or token_ids.max() >= size:
            raise ValueError(
                "Token ids must lie in [0, `vocabulary_size`), at least one. Received: "
                f"{len(token_ids)} ids, vocabulary_size={size}"
            )
        if not 0 < negatives < np.inf or not (sample is None or 0 < sample < np.inf):
            raise ValueError(
                f"`negatives` and `sample` must be numbers above 0. Received: {negatives}, {sample}"
            )
        special = np.array([end_id, *left_out])
        whole = np.issubdtype(special.dtype, np.integer)
        if not whole or special.min() < 0 or special.max() >= size:
            raise ValueError(
                "`end_id` and `left_out` must be ids in [0, `vocabulary_size`). Received: "
                f"{end_id}, {tuple(left_out)}, vocabulary_size={size}"
            )
        self.model, self.token_ids, self.negatives = model, token_ids, negatives
        self.end_id, self.seed = end_id, seed
        self.counts = model.counts
        if self.counts is None:
            self.counts = np.bincount(token_ids, minlength=size)
        counts = self.counts.astype(float)
        counts[special] = 0
        shares = counts / max(counts.sum(), 1)
        self.keep = (shares > 0).astype("float32")
        if sample is not None:  # word2vec.c; the paper's equation 5 lacks the second term
            with np.errstate(divide="ignore"):
                kept = np.sqrt(sample / shares) + sample / shares
            self.keep *= np.minimum(kept, 1.0)
        self.keep[end_id] = 1.0
        self.noise = np.cumsum(counts**0.75)  # arXiv 1310.4546, section 2.2
        if model.objective == TREE:
            self.nodes, self.turns = huffman_paths(counts)
        self._texts = {}
        if not len(self.lengths(0)):
            raise ValueError(
                "The text has no words: all are left out. Received: "
                f"{len(token_ids)} ids, left_out={tuple(left_out)}, sample={sample}"
            )

    def text(self, epoch):
        """Returns the words of an epoch, and the sentence and reach (window size) of each.

        They fill whole rows; padding after the last word has reach 0.
        """
        if epoch not in self._texts:
            rng = np.random.default_rng([self.seed, epoch])
            kept = rng.random(len(self.token_ids), "float32") < self.keep[self.token_ids]
            if not (self.token_ids[kept] != self.end_id).any():  # of a very short text
                kept = self.keep[self.token_ids] > 0
            ids = self.token_ids[kept]
            words = ids != self.end_id
            sentences = np.cumsum(~words, dtype=np.int32)[words]
            ids = ids[words].astype(np.int32)
            reach = rng.integers(1, self.model.window + 1, len(ids), dtype=np.int16)
            fill = (0, -len(ids) % self.model.row_length)
            sentences = np.pad(sentences, fill, constant_values=-1)
            ids, reach = np.pad(ids, fill), np.pad(reach, fill)
            recent = list(self._texts.items())[-1:]
            self._texts = {**dict(recent), epoch: (ids, sentences, reach)}
        return self._texts[epoch]

    def lengths(self, epoch):
        length = self.model.row_length
        return np.full(len(self.text(epoch)[0]) // length, length)

    def collate(self, rows, length, rng, epoch):
        model, window = self.model, self.model.window
        places = rows[:, None] * length + np.arange(length)
        ids, sentences, reach = (array[places] for array in self.text(epoch))
        x = model.words_of(ids)
        skip_gram = model.architecture == "skip_gram"
        noise = model.objective == NOISE
        # Skip-gram with noise scores the neighbours whose window contains the word at t. The other
        # models use the words in the window of the word at t.
        pairs = self._pairs(sentences, reach, window, of_neighbour=skip_gram and noise)
        count = pairs.sum(axis=-1, keepdims=True)  # (B, T, 1)
        if not skip_gram:
            x["neighbours"] = pairs / np.maximum(count, 1)
            count = np.minimum(count, 1)
        if noise:
            drawn = rng.random((len(ids), model.noise_words)) * self.noise[-1]
            x["noise_ids"] = np.searchsorted(self.noise, drawn, side="right").astype(np.int32)
            against = -count * (self.negatives / model.noise_words)
            against = np.broadcast_to(against, (*ids.shape, model.noise_words))
            y = np.concatenate([pairs if skip_gram else count, against], axis=-1)
        else:
            nodes, turns = self.nodes[ids], self.turns[ids]  # (B, T, L)
            x["node_ids"] = np.maximum(nodes, 0)
            y = turns * (count if not skip_gram else 1)
            if skip_gram:
                y = (y[..., None] * pairs[:, :, None]).reshape(*ids.shape, -1)
        return x, y.astype("float32"), (reach > 0).astype("float32")

    @staticmethod
    def _pairs(sentences, reach, window, of_neighbour):
        """Returns (B, T, 2 w): 1 for neighbours in the same sentence within reach, otherwise 0."""
        pad = ((0, 0), (window, window))
        sentences_around = np.pad(sentences, pad, constant_values=-1)
        reach_around = np.pad(reach, pad)
        length = sentences.shape[1]
        pairs = np.zeros((*sentences.shape, 2 * window), "float32")
        offsets = [*range(-window, 0), *range(1, window + 1)]
        for i, offset in enumerate(offsets):
            there = slice(window + offset, window + offset + length)
            far = reach_around[:, there] if of_neighbour else reach
            pairs[:, :, i] = (sentences_around[:, there] == sentences) & (far >= abs(offset))
        return pairs


def huffman_paths(counts):
    """Returns the path from the root of a Huffman tree to each word that occurs.

    Args:
        counts: (V,) number of occurrences of each word; a word with none has no path.

    Returns:
        `(nodes, turns)`, (V, L) each, L the longest path: the inner nodes, -1 after the end, and 1
        for a left turn, -1 for a right one, 0 after the end.

    Raises:
        ValueError: If fewer than two words occur.
    """
    words = np.flatnonzero(counts)
    if len(words) < 2:
        raise ValueError(f"A tree needs two words or more. Received: {len(words)} that occur")
    heap = [(counts[word], int(word)) for word in words]
    heapq.heapify(heap)
    parent, turn = {}, {}
    size = len(counts)
    for node in range(len(words) - 1):  # the last is the root
        (left_count, left), (right_count, right) = heapq.heappop(heap), heapq.heappop(heap)
        parent[left] = parent[right] = size + node
        turn[left], turn[right] = 1, -1
        heapq.heappush(heap, (left_count + right_count, size + node))
    root = size + len(words) - 2
    ways = []
    for word in words:
        way, at = [], int(word)
        while at != root:
            way.append((parent[at] - size, turn[at]))
            at = parent[at]
        ways.append(way[::-1])
    longest = max(map(len, ways))
    nodes = np.full((size, longest), -1, np.int32)
    turns = np.zeros((size, longest), np.float32)
    for word, way in zip(words, ways, strict=True):
        nodes[word, : len(way)], turns[word, : len(way)] = zip(*way, strict=True)
    return nodes, turns
