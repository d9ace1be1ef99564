"""Count-based language models: smoothed n-grams."""

import json
import operator
import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from keras_plm.files.arrays import NUMBERS, read_safetensors
from keras_plm.files.json_files import OneOf, Whole, parse_json
from keras_plm.files.writing import replacing

SMOOTHINGS = ("mle", "add_k", "interpolation", "kneser_ney")

SHAPE = {  # of the settings in a file
    "vocabulary_size": Whole(2),
    "order": Whole(1),
    "smoothing": OneOf(SMOOTHINGS),
    "end_id": Whole(),
    "k": float,
}

# Number of positions scored at a time; the temporaries take some 100 MB.
BLOCK = 1_000_000

# EM iterations for the weights of "interpolation"; on books, 200 lower perplexity by 0.003 % more.
ITERATIONS = 50

# D1, D2, D3+ for a text too small to estimate them, as in KenLM's --discount_fallback.
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)


class NGram:
    """An n-gram language model: probabilities of a word from counts after `order - 1` words.

    It is the baseline of neural language models. It trains in seconds per million words and needs
    no accelerator. Memory grows with the number of distinct n-grams, 12 bytes for each and 12 more
    for each context. It reads ids, not text.

    A text is a stream of ids in which `end_id` ends each sentence. A context starts at the last
    `end_id` or later; the text starts a sentence. With h the last words, h' those without the
    oldest, c counts and c(h •) the sum over all next words, a word w has with `smoothing`:

    - `"mle"`: c(h w) / c(h •). An unknown context is shortened until it is known.
    - `"add_k"`: (c(h w) + k) / (c(h •) + k V), so 1 / V after an unknown context.
    - `"interpolation"`: sum_j α_j(q) p_j, where p_0 = 1 / V and p_j is `"mle"` of order j. The
      weights α are found by EM on held-out text, one set for each bucket q = ceil(-log((1 +
      c(h •)) / T)) of the context's frequency in T tokens. Jelinek & Mercer 1980, as in Bengio et
      al. 2003, JMLR 3, section 4.1. An unknown context has the shorter one's p_j, as in `"mle"`.
    - `"kneser_ney"`: (a(h w) - D) / a(h •) + γ(h) p(w | h'), modified Kneser-Ney, Chen & Goodman
      1998, section 3. The discount D of each order depends on whether a(h w) is 1, 2 or more. γ(h)
      distributes the discounted mass. In the highest order a is c. In lower orders it is the number
      of distinct preceding words; n-grams at the start of a sentence have none and keep c. The
      unigrams are interpolated with 1 / V: every probability is above 0. Prefer this smoothing.

    Differs from the papers: each weight of `"interpolation"` has one pseudo-count in every bucket.
    No weight becomes 0, and a bucket without observations weighs all orders equally. Where the
    discounts of an order cannot be estimated (no n-gram of some count up to four, or a D below 0 or
    above its count), they are 0.5, 1 and 1.5.

    Args:
        vocabulary_size: Number of tokens V.
        order: Number of words n: a word and the `order - 1` before it.
        smoothing: `"mle"`, `"add_k"`, `"interpolation"` or `"kneser_ney"`.
        end_id: The id at the end of every sentence.
        k: Number added to each count by `"add_k"`.

    Attributes:
        discounts: With `"kneser_ney"`, (order, 3): D1, D2, D3+ of each order.
        weights: With `"interpolation"`, (buckets, order + 1): α of the orders 0 to n.

    Raises:
        ValueError: If an argument is out of range, ids are not a flat array of integers in [0, V),
            or the text has no n-gram of this order.

    >>> import numpy as np
    >>> model = NGram(4, order=2, smoothing="mle").fit([0, 1, 2, 0, 0, 2])
    >>> model.num_ngrams, model.distribution([0]).round(3).tolist()
    ([3, 5], [0.333, 0.333, 0.333, 0.0])
    >>> model.generate(5, context=[1])
    [2]
    >>> model = NGram(4, order=2).fit([0, 1, 2, 0, 0, 2])
    >>> round(float(np.exp(model.log_prob([0])[0])), 4)  # 53 / 80
    0.6625
    """

    def __init__(
        self,
        vocabulary_size: int,
        order: int = 3,
        smoothing: str = "kneser_ney",
        end_id: int = 2,
        k: float = 1.0,
    ):
        vocabulary_size, order, end_id = _integers(
            vocabulary_size=vocabulary_size, order=order, end_id=end_id
        )
        if vocabulary_size < 2:
            raise ValueError(
                f"`vocabulary_size` must be at least 2. Received: vocabulary_size={vocabulary_size}"
            )
        if order < 1:
            raise ValueError(f"`order` must be at least 1. Received: order={order}")
        if smoothing not in SMOOTHINGS:
            raise ValueError(f"Unknown smoothing {smoothing!r}. Known: {', '.join(SMOOTHINGS)}")
        if not 0 <= end_id < vocabulary_size:
            raise ValueError(
                "`end_id` must lie in [0, `vocabulary_size`). "
                f"Received: end_id={end_id}, vocabulary_size={vocabulary_size}"
            )
        if not 0 < k < np.inf:
            raise ValueError(f"`k` must be a number above 0. Received: k={k}")
        self.vocabulary_size = vocabulary_size
        self.order = order
        self.smoothing = smoothing
        self.end_id = end_id
        self.k = float(k)
        self.discounts = None
        self.weights = None
        self._keys = None

    def fit(
        self,
        token_ids: Sequence[int] | np.ndarray,
        held_out: Sequence[int] | np.ndarray | None = None,
    ) -> Self:
        """Counts a text and returns the model.

        Args:
            token_ids: (N,) ids of the text.
            held_out: (M,) ids of another text, for the weights of `"interpolation"`.
        """
        if (held_out is not None) != (self.smoothing == "interpolation"):
            raise ValueError(
                "`held_out` fits the weights of smoothing='interpolation': it must be given there "
                f"and only there. Received: smoothing={self.smoothing!r}, "
                f"held_out={'None' if held_out is None else 'a text'}"
            )
        limit = max(self.vocabulary_size, np.size(token_ids))
        if limit * self.vocabulary_size >= 2**63 or np.size(token_ids) >= 2**32:
            raise ValueError(
                "An n-gram's key, `vocabulary_size` times the number of shorter n-grams, must fit "
                "63 bits, and a count 32 bits. Received: "
                f"vocabulary_size={self.vocabulary_size}, {np.size(token_ids)} tokens"
            )
        token_ids = self._checked(token_ids)
        if held_out is not None:
            held_out = self._checked(held_out)
        self._keys, self._counts = self._count(token_ids)
        self._prepare()
        if held_out is not None:
            self.weights = self._interpolation_weights(held_out)
        return self

    def _checked(self, token_ids):
        token_ids = np.asarray(token_ids)
        if token_ids.ndim != 1:
            raise ValueError(
                "A text must be one flat array of token ids, its sentences one after the other. "
                f"Received: shape {token_ids.shape}"
            )
        if not len(token_ids):
            raise ValueError("A text must have at least one token. Received: no token ids")
        if not np.issubdtype(token_ids.dtype, np.integer):
            raise ValueError(f"Token ids must be integers. Received: dtype {token_ids.dtype}")
        if token_ids.min() < 0 or token_ids.max() >= self.vocabulary_size:
            place = np.argmax((token_ids < 0) | (token_ids >= self.vocabulary_size))
            raise ValueError(
                "Token ids must lie in [0, `vocabulary_size`). Received: "
                f"id {token_ids[place]} at position {place}, "
                f"vocabulary_size={self.vocabulary_size}"
            )
        return token_ids

    def _check_fitted(self):
        if self._keys is None:
            raise ValueError("Call `fit` first. Received: an `NGram` that has counted no text")

    def _count(self, token_ids):
        """Returns the keys and counts of each order's distinct n-grams.

        A key is r V + w, with w the last word and r the row of the prefix in the next lower order.
        Keys are sorted: the words after a context are one range, and bisection finds a row. For
        unigrams, row and id are equal; words that never occur have count 0.
        """
        size, end = self.vocabulary_size, self.end_id
        # int32 halves the memory; there are at most as many rows as words or tokens.
        small = np.int32 if max(size, len(token_ids)) < 2**31 - 1 else np.int64
        x = np.empty(len(token_ids) + 1, small)
        x[0], x[1:] = end, token_ids
        keys = [np.arange(size)]
        counts = [np.bincount(x[1:], minlength=size).astype(np.uint32)]
        rows = x  # of the (m-1)-gram that ends at each token, -1 where it would cross a sentence
        starts = [end, end + 1]  # rows of (m-1)-grams that begin with `end_id`
        for m in range(2, self.order + 1):
            followed = rows[:-1] >= 0
            if m > 2:
                followed &= x[:-1] != end
            places = np.flatnonzero(followed) + 1
            if not len(places):
                raise ValueError(
                    f"No sentence is long enough: the longest n-gram has {m - 1} words including "
                    f"the start. Received: order={self.order}, {len(token_ids)} tokens"
                )
            places = places.astype(small)
            ngrams = rows[:-1][followed].astype(np.int64)
            ngrams *= size
            ngrams += x[1:][followed]
            by_key = np.argsort(ngrams)
            ngrams, places = ngrams[by_key], places[by_key]
            del by_key, followed
            new = np.ones(len(ngrams), bool)
            np.not_equal(ngrams[1:], ngrams[:-1], out=new[1:])
            first = np.flatnonzero(new)
            ngrams = ngrams[first]
            count = np.diff(first, append=len(places)).astype(np.uint32)
            if self.smoothing == "kneser_ney":
                # Each distinct m-gram adds one preceding word to its last m-1 words.
                before = np.bincount(rows[places[first]], minlength=len(keys[-1]))
                if m > 2:
                    before[slice(*starts)] = counts[-1][slice(*starts)]
                counts[-1] = before.astype(np.uint32)
                starts = np.searchsorted(ngrams, [starts[0] * size, starts[1] * size])
            del first
            keys.append(ngrams)
            counts.append(count)
            if m < self.order:
                rows = np.full(len(x), -1, small)
                rows[places] = np.cumsum(new, dtype=small) - 1
        return keys, counts

    def _prepare(self):
        """Computes totals and, for Kneser-Ney, discounts and γ from the counts."""
        kneser_ney = self.smoothing == "kneser_ney"
        if kneser_ney:
            self.discounts = np.array([estimate_discounts(counts) for counts in self._counts])
        self._totals, self._shares = [], []
        contexts = 1  # unigrams have one context, the empty one
        for m, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            context = keys // self.vocabulary_size
            total = np.bincount(context, counts, contexts)  # exact: float64 holds 53 bits
            self._totals.append(total.astype(np.uint32))
            if kneser_ney:
                taken = np.bincount(context, self._discount(m, counts), contexts)
                # Without a next word, the shorter context has all the mass.
                self._shares.append(np.divide(taken, total, np.ones(contexts), where=total > 0))
            contexts = len(keys)

    def _discount(self, m, counts):
        return np.concatenate([[0], self.discounts[m]])[np.minimum(counts, 3)]

    def _interpolation_weights(self, held_out):
        parts = [self._estimates(block) for block in self._blocks(held_out)]
        estimates = np.concatenate([np.stack(some, axis=1) for some, _ in parts])  # (M, n+1)
        buckets = np.concatenate([self._bucket(frequency) for _, frequency in parts])  # (M,)
        del parts
        count = int(np.ceil(np.log(self._totals[0][0]))) + 1  # the last: an unknown context
        weights = np.full((count, self.order + 1), 1 / (self.order + 1))
        for _ in range(ITERATIONS):
            shares = weights[buckets] * estimates
            shares /= shares.sum(axis=1, keepdims=True)
            # Differs from the paper: a pseudo-count of 1 for each weight.
            weights = 1 + np.stack([np.bincount(buckets, s, count) for s in shares.T], axis=1)
            weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _bucket(self, frequency):
        return np.ceil(-np.log((1.0 + frequency) / self._totals[0][0])).astype(int).clip(0)

    @property
    def num_ngrams(self) -> list[int]:
        """Number of distinct n-grams of each order, from 1 to `order`."""
        self._check_fitted()
        return [int(np.count_nonzero(counts)) for counts in self._counts]

    def _find(self, m, contexts, words):
        """Returns the rows of m-grams (m from 0), -1 for unknown ones."""
        keys = self._keys[m]
        wanted = contexts * self.vocabulary_size + words  # below 0 for unknown contexts
        by_key = np.argsort(wanted)  # bisection of sorted keys is five times as fast
        rows = np.empty_like(by_key)
        rows[by_key] = np.searchsorted(keys, wanted[by_key])
        rows[rows == len(keys)] = 0  # any row with another key
        return np.where(keys[rows] == wanted, rows, -1)

    def _estimate(self, m, counts, contexts, shorter):
        """Computes probabilities by one order from the shorter one's, and counts of contexts."""
        known = contexts >= 0
        total = np.where(known, self._totals[m][contexts], 0)
        if self.smoothing == "add_k":
            size = self.vocabulary_size
            return (counts + self.k) / (total + self.k * size), total
        if self.smoothing == "kneser_ney":
            counts = counts - self._discount(m, counts)
            share = np.where(known, self._shares[m][contexts], 1)
        else:
            share = total == 0
        return counts / np.maximum(total, 1) + share * shorter, total

    def _estimates(self, block):
        """Computes the estimates by the orders 0 to n, each (count,), and counts of contexts."""
        x, count = block
        before = np.roll(x, 1)
        estimates = [np.full(len(x), 1 / self.vocabulary_size)]
        contexts = np.zeros(len(x), np.int64)
        within = np.ones(len(x), bool)  # False where a context would cross an `end_id`
        frequency = np.zeros(len(x))
        for m in range(self.order):
            rows = self._find(m, contexts, x)
            counts = np.where(rows >= 0, self._counts[m][rows], 0)
            estimate, total = self._estimate(m, counts, contexts, estimates[-1])
            estimates.append(np.where(within, estimate, estimates[-1]))
            frequency = np.where(within, total, frequency)
            within = np.roll(within, 1)
            within[0] = False
            if m:
                within &= before != self.end_id
            contexts = np.where(within, np.roll(rows, 1), -1)
        return [estimate[-count:] for estimate in estimates], frequency[-count:]

    def _blocks(self, token_ids):
        """Yields parts of a text: ids, starting with their context, and the number to score."""
        for begin in range(0, len(token_ids), BLOCK):
            first = begin - (self.order - 1)
            block = token_ids[max(first, 0) : begin + BLOCK].astype(np.int64)
            if first < 0:
                block = np.concatenate([[self.end_id], block])
            yield block, min(BLOCK, len(token_ids) - begin)

    def _mixed(self, estimates, frequency):
        """Combines the estimates of all orders into one probability."""
        if self.smoothing != "interpolation":
            return estimates[-1]
        weights = self.weights[self._bucket(frequency)]  # (..., n+1)
        return sum(weights[..., m] * estimate for m, estimate in enumerate(estimates))

    def log_prob(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Computes log-probabilities of each token given earlier ones: (N,) natural logarithms.

        The first token begins a sentence. The result is float64, -inf for impossible tokens.
        """
        self._check_fitted()
        blocks = self._blocks(self._checked(token_ids))
        found = np.concatenate([self._mixed(*self._estimates(block)) for block in blocks])
        with np.errstate(divide="ignore"):
            return np.log(found)

    def perplexity(self, token_ids: Sequence[int] | np.ndarray) -> float:
        """Computes the perplexity of a text: e to the mean of `-log_prob`."""
        return float(np.exp(-np.mean(self.log_prob(token_ids))))

    def distribution(self, context: Sequence[int] | np.ndarray = ()) -> np.ndarray:
        """Computes probabilities (V,) of the token after a context of ids, the most recent last.

        Ids more than `order - 1` back, or before an `end_id`, have no effect. A context begins a
        sentence, like the text of `log_prob`; `()` is the start of a sentence.
        """
        self._check_fitted()
        context = self._context(context)
        estimates = [np.full(self.vocabulary_size, 1 / self.vocabulary_size)]
        for m in range(len(context) + 1):
            row = np.zeros(1, np.int64)
            for i, word in enumerate(context[len(context) - m :]):
                row = self._find(i, row, word)
            ends = np.append(row, row + 1) * self.vocabulary_size
            known = slice(*np.searchsorted(self._keys[m], ends))
            counts = np.zeros(self.vocabulary_size, np.uint32)
            counts[self._keys[m][known] - ends[0]] = self._counts[m][known]
            estimate, frequency = self._estimate(m, counts, row, estimates[-1])
            estimates.append(estimate)
        # Orders that would cross the start of the sentence repeat the last one that does not.
        estimates += estimates[-1:] * (self.order - len(context) - 1)
        return self._mixed(estimates, frequency[0])

    def _context(self, context):
        context = [self.end_id, *(self._checked(context).tolist() if len(context) else ())]
        context = context[len(context) - min(len(context), self.order - 1) :]
        ends = [i for i, word in enumerate(context) if word == self.end_id]
        return context[ends[-1] :] if ends else context

    def generate(
        self,
        length: int,
        context: Sequence[int] | np.ndarray = (),
        seed: int = 0,
        temperature: float = 1.0,
    ) -> list[int]:
        """Samples a list of ids one by one, until there are `length` or the last is `end_id`.

        A `temperature` below 1 favours likely tokens.
        """
        if length < 0:
            raise ValueError(f"`length` must be 0 or more. Received: length={length}")
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
        rng = np.random.default_rng(seed)
        context, drawn = list(context), []
        while len(drawn) < length and drawn[-1:] != [self.end_id]:
            probabilities = self.distribution(context + drawn)
            # Divided by the largest, because a low temperature could make all of them 0.
            probabilities = (probabilities / probabilities.max()) ** (1 / temperature)
            probabilities /= probabilities.sum()
            drawn.append(int(rng.choice(self.vocabulary_size, p=probabilities)))
        return drawn

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to one safetensors file, atomically."""
        from safetensors.numpy import save_file

        self._check_fitted()
        names = ("vocabulary_size", "order", "smoothing", "end_id", "k")
        arrays = {f"keys_{m}": keys for m, keys in enumerate(self._keys)}
        arrays |= {f"counts_{m}": counts for m, counts in enumerate(self._counts)}
        if self.weights is not None:
            arrays["weights"] = self.weights
        settings = json.dumps({name: getattr(self, name) for name in names})
        with replacing(path) as temporary:
            save_file(arrays, temporary, metadata={"ngram": settings})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a model from a file of `save`.

        Raises:
            ValueError: If the file is missing, damaged or of another kind.
        """
        arrays, metadata = read_safetensors(path, NUMBERS)
        if "ngram" not in metadata:
            raise _not_saved(path, "no settings")
        settings = parse_json(metadata["ngram"], f"{path}, settings", SHAPE)
        try:
            model = cls(**{name: settings[name] for name in SHAPE})
        except ValueError as error:
            raise ValueError(f"{path}, settings: {error}") from error
        names = [f"{part}_{m}" for m in range(min(model.order, 99)) for part in ("keys", "counts")]
        names += ["weights"] if model.smoothing == "interpolation" else []
        if sorted(names) != sorted(arrays):
            raise _not_saved(path, f"the arrays {', '.join(sorted(arrays))[:200]!r}")
        model._keys = [arrays[f"keys_{m}"] for m in range(model.order)]
        model._counts = [arrays[f"counts_{m}"] for m in range(model.order)]
        model._check_counts(path)
        if model.smoothing == "interpolation":
            model.weights = arrays["weights"]
            model._check_weights(path)
        model._prepare()
        return model

    def _check_counts(self, path):
        """Raises unless keys and counts could be a result of `_count`."""
        contexts = 1
        for m, (keys, counts) in enumerate(zip(self._keys, self._counts, strict=True)):
            right = keys.dtype == np.int64 and counts.dtype == np.uint32
            if not right or keys.ndim != 1 or keys.shape != counts.shape or not len(keys):
                raise _not_saved(
                    path,
                    f"keys_{m} of {keys.dtype}, {keys.shape}; counts_{m} of {counts.dtype}, "
                    f"{counts.shape}",
                )
            limit = contexts * self.vocabulary_size
            if m == 0:
                known = len(keys) == limit and np.array_equal(keys, np.arange(limit))
                known = known and counts.any()
            else:
                known = keys[0] >= 0 and keys[-1] < limit and (keys[1:] > keys[:-1]).all()
                known = known and (m + 1 < self.order or counts.min() > 0)
            if not known or counts.sum(dtype=np.uint64) >= 2**32:
                raise _not_saved(path, f"keys_{m} and counts_{m} that no text has")
            contexts = len(keys)

    def _check_weights(self, path):
        """Raises unless the weights of `"interpolation"` are rows that sum to 1."""
        count = int(np.ceil(np.log(self._counts[0].sum(dtype=np.float64)))) + 1
        found = self.weights
        shape = (count, self.order + 1)
        if found.dtype != np.float64 or found.shape != shape:
            raise _not_saved(path, f"weights of {found.dtype}, {found.shape}, not {shape}")
        if not (found > 0).all() or not np.allclose(found.sum(axis=1), 1):
            raise _not_saved(path, "weights that do not sum to 1")


def _not_saved(path, received):
    return ValueError(
        f"{path} is not a whole file that `NGram.save` wrote; was its copy interrupted? "
        f"Received: {received}"
    )


def _integers(**arguments):
    """Converts whole numbers to Python integers, for JSON."""
    try:
        return [operator.index(value) for value in arguments.values()]
    except TypeError:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in arguments)} must be whole numbers. "
            f"Received: {', '.join(f'{n}={v!r}' for n, v in arguments.items())}"
        ) from None


def estimate_discounts(counts):
    """Estimates D1, D2 and D3+ of modified Kneser-Ney from the counts of one order.

    Reference: Chen & Goodman 1998, equation 26; n_r is the number of n-grams with count r.

    >>> estimate_discounts([1, 2, 1, 4])  # no 3
    (0.5, 1.0, 1.5)
    """
    n = np.bincount(np.minimum(counts, 5), minlength=5).tolist()
    if 0 in n[1:5]:
        return FALLBACK_DISCOUNTS
    y = n[1] / (n[1] + 2 * n[2])
    found = tuple(r - (r + 1) * y * n[r + 1] / n[r] for r in (1, 2, 3))
    inside = all(0 <= discount <= r for r, discount in enumerate(found, start=1))
    return found if inside else FALLBACK_DISCOUNTS
