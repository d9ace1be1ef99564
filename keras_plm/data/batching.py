"""Batches of a few static shapes from rows of unequal lengths."""

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_plm.data.class_weight import weights_of
from keras_plm.files.arguments import check_whole

SORTED_BATCHES = 8  # batches of a bucket whose rows are sorted by length together


def bucket_lengths(lengths, buckets=4, multiple=8, longest=None):
    """Chooses the static lengths that pad rows of these lengths least.

    Args:
        lengths: (N,) row lengths.
        buckets: Largest number of lengths; each costs a compilation on JAX.
        multiple: Lengths are multiples of this.
        longest: Upper bound of the lengths; it need not be a multiple. `None` for no bound.

    Returns:
        Ascending lengths; the last holds the longest row, up to `longest`.

    >>> bucket_lengths([5, 6, 7, 8, 30, 31, 60], buckets=3)
    [8, 32, 64]
    """
    units = np.maximum(-(-np.asarray(lengths) // multiple), 1)
    rows = np.bincount(units)  # rows by length in units
    candidates = np.flatnonzero(rows)
    counts = np.cumsum(rows)[candidates]  # rows that fit each candidate
    # cheapest[j]: padded size of all rows up to candidate j if the last bucket ends there.
    cheapest = (counts * candidates).astype(float)
    choices = []
    for _ in range(min(buckets, len(candidates)) - 1):
        added = (counts[:, None] - counts[None, :]) * candidates[:, None]  # from i + 1 to j
        total = np.where(added > 0, cheapest[None, :] + added, np.inf)
        choices.append(np.argmin(total, axis=1))
        cheapest = np.minimum(cheapest, total.min(axis=1))
        choices[-1][cheapest < total.min(axis=1)] = -1
    chosen = [len(candidates) - 1]
    for choice in reversed(choices):
        if choice[chosen[-1]] >= 0:
            chosen.append(int(choice[chosen[-1]]))
    found = [int(candidates[j]) * multiple for j in reversed(chosen)]
    return found if longest is None else sorted({min(length, longest) for length in found})


def few_lengths(longest):
    """Returns the lengths 16, 32, 48, 64, 96, 128, 192, ... up to the first that holds `longest`.

    They do not depend on the texts: JAX compiles few programs over all calls.

    >>> few_lengths(100)
    [16, 32, 48, 64, 96, 128]
    """
    lengths = [16]
    while lengths[-1] < longest:
        last = lengths[-1]
        lengths.append(last + 16 if last < 64 else last * 3 // 2 if last % 3 else last * 4 // 3)
    return lengths


def _sorted_in_parts(rows, lengths, size):
    """Sorts consecutive parts of `size` rows by their lengths."""
    parts = (rows[first : first + size] for first in range(0, len(rows), size))
    return np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])


def _in_steps(lengths):
    """Rounds lengths up to multiples of 8, and above 128 to steps of 12.5 %."""
    octaves = np.ceil(np.log2(np.maximum(lengths, 128))).astype(int)  # (128, 256] is the eighth
    steps = np.maximum(2**octaves // 16, 8)
    return -(-np.asarray(lengths) // steps) * steps


class Batches(keras.utils.PyDataset):
    """Batches of a few static shapes from rows of unequal lengths.

    Each row goes to the shortest bucket that holds it. A bucket forms equal batches, and its
    remaining rows move to the next longer bucket. Only one batch of an epoch is therefore padded
    with rows of weight 0. In training, a batch holds random rows of similar lengths: the rows of
    every eight batches of a bucket are sorted by length.

    In training, the mean weight of every batch is 1, so the loss of a padded batch is the mean over
    its real rows. In evaluation, losses and weighted metrics are means over all real rows or words.
    `scale_weights=False` keeps the weights, for losses that are sums. The logs of `fit` count the
    loss of a padded batch as that of a full one; `evaluate` and weighted metrics of keras_plm's
    models count only real rows.

    Models of keras_plm evaluate training batches like those of `training=False`; a plain Keras
    model raises.

    Order and content are a function of (seed, epoch), for any number of shards. The number of
    batches of an epoch is constant, as Keras requires. Pass `shuffle=False` to the `fit` of a plain
    Keras model; otherwise Keras shuffles the batches again. The heads and objectives of keras_plm
    pass it themselves.

    Args:
        lengths: (N,) row lengths, or a function that returns them for an epoch.
        collate: `collate(rows, length, rng, epoch) -> (x, y, weights)` makes the arrays of rows at
            a padded length; `y` and `weights` may be `None`, one array or a dict.
        training: If True, shuffle rows and batches, in a different order each epoch.
        shuffle: If False, rows keep their order also in training, for carried states.
        batch_size: Number of rows per batch.
        tokens_per_batch: Number of rows times length of a batch, instead of `batch_size`.
        buckets: Ascending static lengths, or the number of lengths to choose, by default 4. In
            evaluation, chosen lengths differ by at most 12.5 %, and the last batch has one of the
            `few_lengths`.
        longest: Largest chosen length: the longest row that the model reads.
        vocabulary_size: Size of the vocabulary of the rows; models of keras_plm with a smaller one
            raise.
        fill_last: If False, fill the last batch only up to a power of two. Use it for outputs, not
            for means over batches: Keras does not weight these on every backend.
        scale_weights: If False, keep the weights of `collate`.
        seed: Seed of everything random.
        shard: `(index, count)`: this process takes the index-th part of every batch.

    Attributes:
        micro_batches: Number of micro-batches per batch, see `in_micro_batches`; these then count
            as batches.
        pad_to_longest: If True and no `buckets` were given, pad a batch to its longest row instead
            of its bucket. `fit` of keras_plm's models sets it under torch, which compiles no shape.
        row_lengths: Function of an epoch that returns the (N,) lengths of its rows.
        step: Number of batches trained on, over all epochs. Set it to resume.
        carries_states: Whether a row continues in the next batch, on the same device.
        any_shape: Names of arrays of `x` whose shape varies between batches of a bucket.
        row_by_row: Whether all arrays have an entry for each row, so that devices can share them.
        evaluation: `(lengths, collate)` of evaluation, if they differ from those of training.

    Raises:
        ValueError: If there are no rows, or a row is longer than the last bucket. Unless exactly
            one of `batch_size` and `tokens_per_batch` is given, 1 or more.

    >>> def collate(rows, length, rng, epoch):
    ...     return {"row": rows}, None, None
    >>> batches = Batches([3, 9, 4, 2, 5], collate, batch_size=2, buckets=[8, 16], seed=1)
    >>> len(batches), [batch[0]["row"].shape for batch in batches]
    (3, [(2,), (2,), (2,)])
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray | Callable[[int], np.ndarray],
        collate: Callable[..., tuple[Any, Any, Any]],
        training: bool = True,
        shuffle: bool = True,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        buckets: int | Sequence[int] | None = None,
        longest: int | None = None,
        vocabulary_size: int | None = None,
        fill_last: bool = True,
        scale_weights: bool = True,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        **kwargs,
    ):
        super().__init__(**kwargs)
        if (batch_size is None) == (tokens_per_batch is None):
            raise ValueError(
                "Give exactly one of `batch_size` and `tokens_per_batch`. "
                f"Received: batch_size={batch_size}, tokens_per_batch={tokens_per_batch}"
            )
        size = "tokens_per_batch" if batch_size is None else "batch_size"
        check_whole(tokens_per_batch if batch_size is None else batch_size, size, least=1)
        self._drawn_anew = callable(lengths)
        self.row_lengths = lengths if callable(lengths) else lambda epoch: np.asarray(lengths)
        self.collate = collate
        self.training = training
        self.shuffle = shuffle
        self.batch_size = batch_size
        self.tokens_per_batch = tokens_per_batch
        self.vocabulary_size = vocabulary_size
        self.fill_last = fill_last
        self.scale_weights = scale_weights
        self.seed = seed
        self.shard = shard
        self.distribution, self.micro_batches = None, 1
        self._rounded_to = shard[1]
        self.class_weight = None
        self.pad_to_longest, self._chosen = False, buckets is None
        self.step, self._begun = 0, False
        self._plans, self._factors, self._has_targets = {}, None, None

        first = self.row_lengths(0)
        if not len(first):
            raise ValueError("There is nothing to batch. Received: no rows")
        if buckets is None and not training:
            full = bucket_lengths(_in_steps(first), 4, longest=longest)
            last = few_lengths(np.max(first))
            last = last if longest is None else sorted({min(n, longest) for n in last})
        else:
            full = buckets
            if buckets is None or isinstance(buckets, int):
                full = bucket_lengths(first, 4 if buckets is None else buckets, longest=longest)
                if callable(lengths) and longest is not None:
                    full[-1] = longest  # rows of a later epoch may be longer
            last = full = sorted(full)
        self._full, self._last = full, last  # lengths of whole batches, and of the last
        self.buckets = sorted({*full, last[-1]})
        for length in self.buckets:
            if self.rows_per_batch(length) % shard[1]:
                raise ValueError(
                    "Every batch must divide evenly among the shards. Received: "
                    f"{self.rows_per_batch(length)} rows of length {length}, shard={shard}"
                )
        self._count = len(self._plan(0))

    def rows_per_batch(self, length: int) -> int:
        """Returns the number of rows per batch of a bucket, over all shards."""
        if self.batch_size is not None:
            return self.batch_size
        count = self._rounded_to
        return max(self.tokens_per_batch // length // count, 1) * count

    carries_states = False
    any_shape = ()
    row_by_row = True
    evaluation = None

    def sharded(self, distribution: Any) -> Self:
        """Splits the batches over the devices of a `training.distribution.Distribution`.

        Every batch keeps its examples. Rows of weight 0 fill it up to a multiple of the devices.

        Returns:
            `Batches` with the part of this process.

        Raises:
            ValueError: If `scale_weights` is False and a batch does not divide evenly: rows of
                weight 0 would lower the loss. If states are carried on several devices, or an array
                is for all rows together.
        """
        count = distribution.num_replicas
        if self.carries_states and count > 1:
            raise ValueError(
                "Rows that continue from batch to batch, such as a biLM's, need one device: "
                f"`distribute(devices=1)`. Received: {count} devices"
            )
        if not self.row_by_row and count > 1:
            raise ValueError(
                "Batches with arrays for all rows together, such as a fastText model's, need one "
                f"device: `distribute(devices=1)`. Received: {count} devices"
            )
        self._check_even(self.micro_batches * count, f"{count} devices")
        return self._changed(distribution=distribution, shard=distribution.part)

    def in_micro_batches(self, count: int) -> Self:
        """Splits the batches into micro-batches for gradient accumulation, to save memory.

        All devices read one micro-batch after the other. With the optimizer's
        `gradient_accumulation_steps=count`, a step equals that of the whole batch: the mean weight
        over its micro-batches is 1. `step` and the length of an epoch count micro-batches.

        Args:
            count: Number of micro-batches per batch.

        Returns:
            `Batches` of micro-batches.

        Raises:
            ValueError: If `count` is below 1, or the batches are split already. If `scale_weights`
                is False: Keras takes the mean over micro-batches, not the sum.
        """
        check_whole(count, "count", least=1)
        if self.micro_batches > 1:
            raise ValueError(
                "Batches can be split into micro-batches only once. "
                f"Received: count={count}, for batches of {self.micro_batches} micro-batches"
            )
        if count > 1 and not self.scale_weights:
            raise ValueError(
                "The accumulated gradient is a mean over micro-batches, but the loss of these "
                f"batches is a sum: choose smaller batches. Received: count={count}"
            )
        return self._changed(micro_batches=count, step=self.step * count)

    def for_evaluation(self) -> Self:
        """Returns batches as with `training=False`: each row once, in order, no class weights."""
        if not self.training and self.class_weight is None:
            return self
        changed = {}
        if self.training and self.evaluation is not None:
            lengths, collate = self.evaluation
            lengths = lengths if callable(lengths) else lambda epoch, n=lengths: n
            changed = {"row_lengths": lengths, "collate": collate}
        changed |= {"training": False, "step": 0, "class_weight": None, "_begun": False}
        found = self._changed(**changed)
        found._count = len(found._plan(0))
        return found

    def collated_by(self, collate: Callable[..., tuple[Any, Any, Any]]) -> Self:
        """Returns batches of the same rows with another `collate`."""
        return self._changed(collate=collate, evaluation=None)

    def _changed(self, **attributes):
        """Returns a copy with other attributes, without the cached plans and factors."""
        made = copy.copy(self)
        vars(made).update(attributes, _plans={}, _factors=None, _has_targets=None)
        return made

    @property
    def multiple(self) -> int:
        """Divisor of the number of rows of a batch: micro-batches times devices."""
        devices = self.shard[1] if self.distribution is None else self.distribution.num_replicas
        return self.micro_batches * devices

    def _check_even(self, count, said):
        """Raises if rows of weight 0 would change a loss that is a sum."""
        for length in () if self.scale_weights else self.buckets:
            if self.rows_per_batch(length) % count:
                raise ValueError(
                    "If the loss is a sum, every batch must divide evenly among the devices: "
                    "choose another batch size. Received: "
                    f"{self.rows_per_batch(length)} rows of length {length}, {said}"
                )

    def plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Returns the batches of an epoch as a list of `(length, rows)`, rows padded with -1."""
        return [(self._length(*batch), batch[-1]) for batch in self._planned(epoch)]

    def _planned(self, epoch):
        """Returns a list of `(bucket, longest row, rows)`."""
        if epoch not in self._plans:
            lengths, plan = np.asarray(self.row_lengths(epoch)), self._plan(epoch)
            plan = [(bucket, int(lengths[rows[rows >= 0]].max()), rows) for bucket, rows in plan]
            # Lengths drawn for each epoch may give a few batches more or less.
            plan = [plan[i % len(plan)] for i in range(self._count)]
            # Keep two plans: after a resume, an epoch of Keras may span two plans.
            recent = list(self._plans.items())[-1:]
            self._plans = {**dict(recent), epoch: plan}
        return self._plans[epoch]

    def _length(self, bucket, longest, rows):
        return longest if self.pad_to_longest and self._chosen else bucket

    def _plan(self, epoch):
        lengths = np.asarray(self.row_lengths(epoch))
        if lengths.max() > self.buckets[-1]:
            raise ValueError(
                "No row may be longer than the last bucket. "
                f"Received: length {lengths.max()}, buckets={self.buckets}"
            )
        rng = np.random.default_rng([self.seed, epoch])
        if not self.shuffle:
            order = np.arange(len(lengths))
        elif self.training:
            order = rng.permutation(len(lengths))
        else:
            order = np.argsort(lengths, kind="stable")
        bucket = np.searchsorted(self._full, lengths[order])
        plan, left = [], np.zeros(0, dtype=np.int64)
        for i, length in enumerate(self._full):
            rows = np.concatenate([left, order[bucket == i]])
            size = self.rows_per_batch(length)
            full = len(rows) // size * size
            left, rows = rows[full:], rows[:full]
            if full and self.training and self.shuffle and np.ptp(lengths[rows]):
                rows = _sorted_in_parts(rows, lengths, size * SORTED_BATCHES)
            plan += [(length, part) for part in rows.reshape(-1, size)]
        if len(left):
            # The shortest length that holds the remaining rows.
            longest = lengths[left].max()
            length = self._last[np.searchsorted(self._last, longest)]
            if len(left) > self.rows_per_batch(length):
                length = self._full[np.searchsorted(self._full, longest)]
            size = self.rows_per_batch(length)
            if not self.fill_last:  # do not pad a single text to 500 rows
                count = self.shard[1]
                size = min(size, count << ((len(left) - 1) // count).bit_length())
            filled = size - len(left)
            plan.append((length, np.pad(left, (0, filled), constant_values=-1)))
        if self.training and self.shuffle:
            plan = [plan[i] for i in rng.permutation(len(plan))]
        # Keras' TensorFlow path infers the signature from the first two batches. Take them from
        # different buckets to show which dimensions vary. (`fit` uses `tf_dataset` instead.)
        other = next((i for i, (length, _) in enumerate(plan) if length != plan[0][0]), None)
        if other is not None:
            plan[1], plan[other] = plan[other], plan[1]
        return plan

    @property
    def has_targets(self) -> bool:
        """Whether batches hold targets, which `fit` and `evaluate` need."""
        if self._has_targets is None:
            epoch, number, _ = self._place(0)
            self._has_targets = self._collate(epoch, number)[1] is not None
        return self._has_targets

    @property
    def num_batches(self):
        return len(self)

    def __len__(self):
        return self._count * self.micro_batches

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def _place(self, index):
        """Returns the epoch, number and micro-batch of batch `index`, counted from `step`."""
        if not 0 <= index < len(self):
            raise IndexError(f"No batch {index}. Received: an epoch of {len(self)} batches")
        epoch, index = divmod(self.step + index, len(self)) if self.training else (0, index)
        return epoch, *divmod(index, self.micro_batches)

    def _own(self, array, part):
        """Returns this shard's part of a micro-batch."""
        shard, count = self.shard
        if self.micro_batches * count == 1:
            return array
        return array.reshape(self.micro_batches, count, -1, *array.shape[1:])[part, shard]

    def rows(self, index: int) -> np.ndarray:
        """Returns the rows of batch `index` of this shard, padded with -1."""
        epoch, number, part = self._place(index)
        rows = self._planned(epoch)[number][-1]
        rows = np.pad(rows, (0, -len(rows) % self.multiple), constant_values=-1)
        return self._own(rows, part)

    def __getitem__(self, index):
        epoch, number, part = self._place(index)
        if self.distribution is not None:
            self.distribution.drawn()
        return self._finish(part, *self._collate(epoch, number))

    def _finish(self, part, x, y, weights):
        """Returns this shard's rows of a micro-batch, as Keras takes them, with scaled weights."""
        if y is not None and self.scale_weights:
            leaves = keras.tree.flatten(weights)
            if self.training:
                leaves = [leaf * (leaf.size / max(leaf.sum(), 1e-9)) for leaf in leaves]
            else:
                # Keras averages over the positions of a batch, then over batches weighted by rows.
                leaves = [
                    leaf * (factor * leaf.size / len(leaf))
                    for leaf, factor in zip(leaves, self._evaluation_factors(), strict=True)
                ]
            weights = keras.tree.pack_sequence_as(weights, leaves)
        if y is not None:
            weights = keras.tree.map_structure(lambda leaf: leaf.astype("float32"), weights)
            if self.class_weight is not None:
                of_classes = weights_of(self.class_weight, y)
                more = np.ndim(of_classes) - np.ndim(weights)
                weights = np.reshape(weights, (*np.shape(weights), *[1] * more)) * of_classes
        batch = (x,) if y is None else (x, y, weights)
        return keras.tree.map_structure(lambda leaf: self._own(leaf, part), batch)

    def _collate(self, epoch, number):
        """Returns a batch of an epoch over all shards, with weight 0 at rows that fill it up."""
        batch = self._planned(epoch)[number]
        length, rows = self._length(*batch), batch[-1]
        rng = np.random.default_rng([self.seed, epoch, number])
        real = rows >= 0
        x, y, weights = self.collate(np.where(real, rows, rows[0]), length, rng, epoch)
        if y is not None:
            if weights is None:
                weights = keras.tree.map_structure(lambda leaf: np.ones(len(leaf)), y)
            weights = keras.tree.map_structure(
                lambda leaf: leaf * real.reshape(-1, *[1] * (np.ndim(leaf) - 1)), weights
            )
        more = -len(rows) % self.multiple
        if not more:
            return x, y, weights
        x, y = (
            keras.tree.map_structure(
                lambda leaf: np.concatenate([leaf, leaf[:1].repeat(more, 0)]), a
            )
            for a in (x, y)
        )
        weights = keras.tree.map_structure(
            lambda leaf: np.concatenate([leaf, np.zeros_like(leaf[:1].repeat(more, 0))]), weights
        )
        return x, y, weights

    def _evaluation_factors(self):
        """Returns the number of rows over the sum of weights, for each array of weights."""
        if self._factors is None:
            rows, sums = 0, 0.0
            for number, (_, of_batch) in enumerate(self.plan(0)):
                rows += len(of_batch) + -len(of_batch) % self.multiple
                leaves = keras.tree.flatten(self._collate(0, number)[2])
                sums = sums + np.array([leaf.sum() for leaf in leaves])
            self._factors = rows / np.maximum(sums, 1e-9)
        return self._factors

    def tf_dataset(self) -> Any:
        """Returns the rest of an epoch as a `tf.data.Dataset` with an explicit signature.

        Keras would infer the signature from the next two batches, but both may be of one bucket.
        An axis is fixed only if it is equal in every bucket.
        """
        import tensorflow as tf

        numbers = {length: number for number, (length, _) in enumerate(self.plan(0))}
        parts = [self._finish(0, *self._collate(0, number)) for number in numbers.values()]

        def spec(*leaves):
            axes = [set(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True)]
            unknown = self._drawn_anew and len(self.buckets) > 1
            shape = [None if unknown or len(sizes) > 1 else sizes.pop() for sizes in axes[1:]]
            return tf.TensorSpec([None, *shape], leaves[0].dtype)

        signature = keras.tree.map_structure(spec, *parts)
        for name in self.any_shape:
            known = signature[0][name]
            signature[0][name] = tf.TensorSpec([None] * len(known.shape), known.dtype)
        dataset = tf.data.Dataset.from_generator(lambda: iter(self), output_signature=signature)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return dataset.with_options(options).prefetch(2)

    def on_epoch_begin(self):
        self._begun = True
        method = _method_that_reads()
        together = self.distribution
        trains = method in ("fit", "evaluate") and together and together.num_replicas > 1
        if trains and not together.is_running:
            raise ValueError(
                "Sharded batches need a model whose `fit` trains on several devices: give your "
                "class `keras_plm.training.FitsBatches` as its first base. "
                f"Received: `{method}` of another Keras model, {together.num_replicas} devices"
            )
        if method == "evaluate" and (self.training or self.class_weight is not None):
            raise ValueError(
                "`evaluate` and validation need weights that are not scaled for training: create "
                "these batches with `training=False` and without `class_weight`. "
                "Received: training batches"
            )
        if method == "predict":
            rows = np.concatenate([self.rows(i) for i in range(len(self))])
            if not np.array_equal(rows, np.arange(len(rows))):
                raise ValueError(
                    "`predict` needs batches in the order of the rows: pass arrays, or use "
                    "`keras_plm.training.run_on`. "
                    "Received: Batches that are shuffled, sorted by length or filled up"
                )

    def on_epoch_end(self):
        # Keras also calls this before the first epoch, without `on_epoch_begin`.
        if self._begun and self.training:
            self.step += len(self)
        self._begun = False


def _method_that_reads():
    """Returns the Keras method that reads: `"fit"`, `"evaluate"`, `"predict"`, or `None`.

    Keras does not pass it; with a plain Keras model only the call stack shows it.
    """
    frame = sys._getframe()
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
        if name in ("fit", "evaluate", "predict") and module.split(".")[0] == "keras":
            return name
        frame = frame.f_back
    return None


def warn_of_cuts(what, examples, rows, tokens, max_length):
    """Warns that texts were cut.

    Args:
        what: Name of the texts, such as "questions".
        examples: All examples.
        rows: Indices of the examples that were cut.
        tokens: Number of tokens that were cut.
        max_length: Largest number of tokens of a row.
    """
    first = getattr(examples[rows[0]], "where", "") or f"example {rows[0]}"
    warnings.warn(
        f"Rows have at most max_length={max_length} tokens: the {what} of {len(rows):,} of "
        f"{len(examples):,} examples were cut, by {tokens:,} tokens in all. The first is {first}",
        stacklevel=2,
    )
