"""Features of a frozen encoder: which layers are read, and the store that holds them."""

import functools
import re
import weakref
from pathlib import Path

import keras
import numpy as np

from keras_plm.data.batching import Batches, few_lengths
from keras_plm.data.examples import (
    PackedExamples,
    Unlabelled,
    check_first,
    check_stateless,
    check_word_vectors,
    fingerprint,
    stack_padded,
    words_of,
)
from keras_plm.data.pair_positions import TextPlaces
from keras_plm.data.passages import MAX_LENGTH, Windows
from keras_plm.files.sequences import as_rows, as_texts
from keras_plm.files.writing import replacing_folder
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.models.encoder import check_encoder
from keras_plm.tokenizers.characters import Spelled
from keras_plm.training.fit import lacks_special_tokens

LAYER_CHOICES = {
    # Devlin et al. 2018, table 7. The paper does not say whether its weighted sums are learned;
    # here they are, with the reader, as ELMo's are.
    "embeddings": LayerChoice(0, 0),
    "second_to_last": LayerChoice(-2, -2),
    "last": LayerChoice(-1, -1),
    "weighted_sum_last_four": LayerChoice(-4, -1, "mix"),
    "concat_last_four": LayerChoice(-4, -1, "concat"),
    "weighted_sum_all": LayerChoice(1, -1, "mix"),
    # Plain averages, with nothing to learn.
    "mean_last_four": LayerChoice(-4, -1, "mean"),
    "mean_all": LayerChoice(1, -1, "mean"),
    # Peters et al. 2018, equation 1: the embeddings too.
    "elmo_mix": LayerChoice(0, -1, "mix"),
}
# Other names of rows: ELMo's paper's own.
ALIASES = {"mix": "elmo_mix", "top": "last"}


def layer_choice(choice):
    """A `LayerChoice` by its name.

    Args:
        choice: A row of `LAYER_CHOICES`; `"mix"`, as `"elmo_mix"`; `"top"`, as `"last"`;
            `"layer_3"`, or the number 3, for a single layer; or a `LayerChoice`.

    Raises:
        ValueError: If the name is unknown.

    >>> layer_choice("layer_3")
    LayerChoice(first=3, last=3, combine='concat', layers=None)
    """
    if isinstance(choice, LayerChoice):
        return choice
    name = choice_name(choice)
    if isinstance(name, str) and name in LAYER_CHOICES:
        return LAYER_CHOICES[name]
    single = re.fullmatch(r"layer_(\d+)", str(name))
    if not single:
        raise ValueError(
            "A choice of layers is one of "
            f"{', '.join((*LAYER_CHOICES, *ALIASES))} or layer_0, layer_1, ... "
            f"Received: {choice!r}"
        )
    return LayerChoice(int(single[1]), int(single[1]))


def choice_name(choice):
    """The one name of a choice that has several: `"elmo_mix"` of `"mix"`, `"layer_3"` of 3."""
    if isinstance(choice, (int, np.integer)) and not isinstance(choice, bool):
        return f"layer_{choice}"
    return ALIASES.get(choice, choice) if isinstance(choice, str) else choice


def every_choice(encoder):
    """Names of all choices for an encoder: the rows of `LAYER_CHOICES`, then each single layer."""
    return [*LAYER_CHOICES, *(f"layer_{i}" for i in range(len(encoder.output["layers"])))]


def distinct_choices(encoder):
    """`every_choice` without those that read the same as one before them.

    In a four-block encoder "the last four" are "all": only the first name is kept.
    """
    count, seen, names = len(encoder.output["layers"]), set(), []
    for name in every_choice(encoder):
        choice = layer_choice(name)
        try:
            layers = tuple(choice.indices(count))
        except ValueError:  # a one-block encoder has no second-to-last
            continue
        read = (layers, choice.combine if len(layers) > 1 else None)
        if read not in seen:
            seen.add(read)
            names.append(name)
    return names


# Of what a store holds. 2: a text behind a text of one word has its first word.
VERSION = 2
PAIRS = "pairs"  # an empty file that says so
PARTS = "parts.npy"
TOKENS = "tokens"  # no pooling: a vector of each token of questions and their passages


def fitting(tokenizer, encoder):
    """The tokenizer as an encoder can read it: without special tokens that it does not know.

    A GPT that was not fine-tuned has no vectors for those of a task.
    """
    return tokenizer.unframed() if lacks_special_tokens(encoder, tokenizer) else tokenizer


def read_apart(examples, tokenizer):
    """Whether examples are pairs that the tokenizer puts in no one row."""
    paired = any(getattr(example, "pair", None) is not None for example in examples)
    return paired and not getattr(tokenizer, "joint_pairs", True)


class FeatureStore:
    """All layers of a frozen encoder for a list of examples, memory-mapped in float16.

    One vector per word (its first token), or one pooled vector per text, for every layer; choices
    of layers are computed on reading. The folder's name is a hash of encoder, tokenizer and
    texts, so that a stale store is never read. Texts that are read apart are read and kept once,
    in however many examples they stand.

    Attributes:
        counts: (N,) vectors of each example.
        array: (vectors, L + 1, D) float16.
        parts: (N, 2, 2) where those of an example's first and second text begin, and how many there
            are; `None` where all are one text's.
        pairs: Whether an example's two vectors are those of two texts that were read apart.
        windows: With `pool="tokens"` the `Windows` that were read: the store's examples are then
            these, of which a question may have several.
        places: `TextPlaces` of an example's two texts; `None` where there is one.
    """

    def __init__(self, folder, windows=None, words=None):
        folder = Path(folder)
        self.array = np.load(folder / "features.npy", mmap_mode="r")
        self.counts = np.load(folder / "counts.npy")
        self.starts = np.cumsum(self.counts) - self.counts
        self.parts = np.load(folder / PARTS) if (folder / PARTS).is_file() else None
        self.pairs = (folder / PAIRS).is_file()
        self.windows = windows
        self.places = None if windows is None else windows.places
        if windows is None and self.parts is not None:
            counts = self.parts[..., 1]
            self.places = TextPlaces(self.counts, np.cumsum(counts, axis=1) - counts, counts)
        self._words = words

    @functools.cached_property
    def spelled(self):
        """The spelling of the words, one after another, as `self.starts` counts them.

        Raises:
            ValueError: If the store does not know its words.
        """
        if self._words is None:
            raise ValueError(
                "Words are spelled where each has a vector, in a store that `FeatureStore.build` "
                "gave with pool=None. Received: a store of something else"
            )
        return Spelled([word for words in self._words() for word in words])

    def __len__(self):
        return len(self.counts)

    @classmethod
    def build(
        cls,
        folder,
        encoder,
        tokenizer,
        examples,
        pool=None,
        feature_gb=8.0,
        max_length=MAX_LENGTH,
        batch_size=None,
        verbose=0,
    ):
        """Runs the encoder over the examples, unless `folder` holds their features already.

        Args:
            folder: Where stores are kept, one folder each.
            encoder: The frozen encoder.
            tokenizer: The encoder's.
            examples: A list of `Example`, of texts or of lists of words.
            pool: `"cls"`, `"mean"` or `"max"` for one vector per text, over all that the tokenizer
                puts in its row, marks too; `None` for one per word; `"tokens"` for one per token of
                questions with their passages, in windows.
            feature_gb: Largest size, in gigabytes.
            max_length: Longest window in tokens, where the encoder reads as many.
            batch_size: Texts that are read together; by default as many as have 4,096 tokens.
            verbose: 1 shows a progress bar, 2 one line at the end, 0 nothing.

        Raises:
            ValueError: If `pool` is unknown or `"cls"` where the tokenizer has none, the encoder
                carries states or is of another tokenizer, some examples have a pair and others
                none, a feature is beyond float16, or the store would be larger, with its size and
                what to do.
        """
        if pool is not None and pool not in (*POOLINGS, TOKENS):
            raise ValueError(f"`pool` must be None or one of {POOLINGS}. Received: {pool!r}")
        check_encoder(encoder, tokenizer)
        examples = as_texts(examples, "examples")
        check_first(pool, tokenizer)
        check_stateless(encoder)
        tokenizer = fitting(tokenizer, encoder)
        limit = encoder.max_sequence_length
        texts = [(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
        windows, settings, words = None, (), None
        paired = any(pair is not None for _, pair in texts)
        apart = paired and not getattr(tokenizer, "joint_pairs", True)
        if pool == TOKENS:
            longest = min(limit or max_length, max_length)
            windows = Windows(examples, tokenizer, longest, apart=apart)
            settings = windows.max_length, windows.stride, *["apart"][: int(apart)]
            settings += () if windows.cut_to is None else (windows.cut_to,)
        elif apart:
            lone = [i for i, (_, pair) in enumerate(texts) if pair is None]
            if lone:
                raise ValueError(
                    f"Either all examples have a pair or none. Received: example {lone[0]} without"
                )
        if pool is None:
            settings = ("texts",) if paired else ()
            words = functools.partial(words_of, examples, tokenizer, limit)
        precision = encoder.compute_dtype
        key = fingerprint(encoder, tokenizer, texts, pool, precision, VERSION, *settings)[:24]
        final = Path(folder) / key
        if (final / "features.npy").is_file():
            return cls(final, windows, words)

        sources, counts, parts = cls._sources(texts, tokenizer, windows, limit, pool, apart)
        each = [cls._sizes(source, pool, windows) for source in sources]
        shape = (sum(int(sizes.sum()) for sizes in each), len(encoder.output["layers"]))
        shape += (encoder.hidden_dim,)
        size = np.prod(shape, dtype=float) * 2 / 1e9
        if size > feature_gb:
            raise ValueError(
                f"The features of {len(examples)} examples would take {size:.1f} GB. Pool them "
                "over texts, take fewer examples, or allow more with `feature_gb` "
                f"(--feature-gb). Received: feature_gb={feature_gb:g}"
            )
        with replacing_folder(final, keep_existing=True) as temporary:
            array = np.lib.format.open_memmap(
                temporary / "features.npy", mode="w+", dtype=np.float16, shape=shape
            )
            begin = 0
            for source, sizes in zip(sources, each, strict=True):
                end = begin + int(sizes.sum())
                cls._fill(array[begin:end], sizes, encoder, source, pool, batch_size, verbose)
                begin = end
            array.flush()
            del array
            np.save(temporary / "counts.npy", counts)
            if parts is not None:
                np.save(temporary / PARTS, parts)
            elif apart:
                (temporary / PAIRS).touch()
        return cls(final, windows, words)

    @classmethod
    def build_words(cls, folder, words, encoder, tokenizer, examples, feature_gb=8.0, pool=None):
        """A store of word vectors that stand beside the words of another store.

        Args:
            words: A `WordVectors`.
            encoder, tokenizer: Of the other store: they say what a word is.
            pool: Of the other store: `None`, or `"tokens"` of an encoder whose tokens are words.
            folder, examples, feature_gb: As in `build`.

        Raises:
            ValueError: If `words` is no `WordVectors`, or the store would be too large.
        """
        check_word_vectors(words)
        own, limit = words.tokenizer(), encoder.max_sequence_length
        if pool == TOKENS:  # windows of as many words, with room for the other's marks
            room = min(limit or MAX_LENGTH, MAX_LENGTH) - tokenizer.num_special()
            longest = room + own.num_special()
            return cls.build(folder, words, own, examples, TOKENS, feature_gb, longest)
        found = words_of(examples, tokenizer, limit)
        return cls.build(folder, words, own, found, None, feature_gb)

    @staticmethod
    def _sources(texts, tokenizer, windows, limit, pool, apart):
        """What the encoder reads, and what becomes of it.

        Returns:
            `(sources, counts, parts)`: a list of packed rows; and the attributes of these names.
        """
        if windows is not None and not apart:
            return [windows], windows.lengths, None
        if windows is not None:
            sources, of_rows = windows.texts()
        elif apart and pool is None:
            numbers = {}
            names = [[x if isinstance(x, str) else tuple(x) for x in both] for both in texts]
            of_rows = [[numbers.setdefault(x, len(numbers)) for x in both] for both in names]
            of_rows = np.array(of_rows)
            rows = [Unlabelled(x if isinstance(x, str) else list(x)) for x in numbers]
            sources = [PackedExamples(rows, tokenizer, max_length=limit, words=True)]
        else:
            rows = [Unlabelled(*text) for text in texts]
            if apart:  # the two of an example one after the other
                rows = [Unlabelled(part) for text in texts for part in text]
            packed = PackedExamples(rows, tokenizer, max_length=limit, words=pool is None)
            if pool is not None:
                return [packed], np.full(len(texts), 2 if apart else 1, dtype=np.int64), None
            counts = np.bincount(packed.examples_of, packed.words).astype(np.int64)
            if texts[0][1] is None:
                return [packed], counts, None
            sizes = packed.words_of_texts
            starts = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
            return [packed], counts, np.stack([starts, sizes], axis=-1)
        sizes = np.concatenate(
            [np.bincount(s.examples_of, s.words) if windows is None else s.words for s in sources]
        ).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        parts = np.stack([starts[of_rows], sizes[of_rows]], axis=-1)  # (N, 2, 2)
        return sources, parts[..., 1].sum(axis=1) if windows is None else windows.lengths, parts

    @staticmethod
    def _sizes(packed, pool, windows):
        """How many vectors of each row of a source are kept."""
        if packed is windows:
            return packed.lengths
        return np.ones(len(packed.lengths), dtype=np.int64) if pool in POOLINGS else packed.words

    @staticmethod
    def _fill(array, sizes, encoder, packed, pool, batch_size, verbose):
        """Fills `array` with `sizes` vectors of each row."""
        size = {"tokens_per_batch": 4096} if batch_size is None else {"batch_size": batch_size}
        source = Batches(
            packed.lengths,
            packed.collate,
            training=False,
            **size,
            longest=encoder.max_sequence_length,
            fill_last=False,
        )
        model = _every_layer(encoder)
        if hasattr(model, "clear"):
            model.clear()  # the weights may be others now
        # Windows of one example follow one another.
        begins = np.cumsum(sizes) - sizes
        bar = keras.utils.Progbar(len(source), verbose=verbose) if verbose else None
        for i in range(len(source)):
            rows, x = source.rows(i), source[i][0]
            positions = x.pop("word_positions", None)
            if set(encoder.input) - set(x):
                raise ValueError(
                    "Encoder and tokenizer must belong together. Received: an encoder of "
                    f"{', '.join(encoder.input)}, a tokenizer that gives {', '.join(x)}"
                )
            layers = np.asarray(model.predict_on_batch({k: x[k] for k in encoder.input}))
            for b, row in enumerate(rows):
                if row < 0:
                    continue
                if positions is not None:
                    vectors = layers[b][positions[b, : sizes[row]]]  # (W, L + 1, D)
                elif pool == TOKENS:
                    vectors = layers[b, : sizes[row]]  # (T, L + 1, D)
                else:
                    vectors = _pool(layers[b, x["padding_mask"][b]], pool)[None]
                highest = np.abs(vectors).max(initial=0)
                if not highest <= np.finfo(array.dtype).max:
                    raise ValueError(
                        "Features are kept in float16, whose largest number is 65504; are these "
                        f"trained weights? Received: features as large as {highest:g}"
                    )
                array[begins[row] : begins[row] + sizes[row]] = vectors
            if bar is not None:
                bar.update(i + 1)
        if hasattr(model, "clear"):
            model.clear()  # its words would stay in memory as long as the encoder

    def vectors(self, example, choice):
        """(W, n, D) features of one example under a choice of layers, float32."""
        return self._held(example, choice).astype("float32")

    def _held(self, example, choice):
        """As `vectors`, in float16 as they are kept, but for means."""
        indices = choice.indices(self.array.shape[1])
        layers = indices
        if indices == list(range(indices[0], indices[-1] + 1)):
            layers = slice(indices[0], indices[-1] + 1)  # which copies nothing
        parts = [(self.starts[example], self.counts[example])]
        parts = parts if self.parts is None else self.parts[example]
        rows = [self.array[start : start + count, layers] for start, count in parts]
        rows = np.concatenate(rows) if rows[1:] else np.asarray(rows[0])
        if choice.combine == "mean":
            return rows.mean(axis=1, keepdims=True, dtype="float32")
        return rows

    def batches(
        self,
        choice,
        targets=None,
        training=True,
        words=None,
        spelled=False,
        text_places=False,
        **options,
    ):
        """`Batches` of features for a head's readout.

        Features are float16, as they are kept: the readout makes them its own type, which takes
        less time where it learns than here.

        Args:
            choice: A choice of layers.
            targets: The label ids of each example.
            training: If True, shuffle.
            words: A store of word vectors of the same words, see `build_words`.
            spelled: Whether `x` also holds the words' `spellings`, see `data.batches`.
            text_places: Whether it also tells where an example's two texts are, see there.
            **options: Other arguments of `Batches`.

        Raises:
            ValueError: If `words` is of other words, the words to spell are not known, or there are
                no two texts.
        """
        choice = layer_choice(choice)
        targets = None if targets is None else as_rows(targets, "targets")
        if words is not None and not np.array_equal(words.counts, self.counts):
            raise ValueError(
                "Word vectors stand beside the same words: make their store with "
                f"`FeatureStore.build_words`. Received: {words.counts.sum()} words of "
                f"{len(words)} examples beside {self.counts.sum()} of {len(self)}"
            )

        if text_places and self.places is None:
            raise ValueError(
                "A reader of two texts needs the words of both: examples with a `pair`, and a store"
                " of pool=None. Received: a store of single texts, or of pooled ones"
            )
        spellings = self.spelled if spelled else None

        def collate(rows, length, rng, epoch):
            features = stack_padded([self._held(row, choice) for row in rows], length)
            real = np.arange(length) < self.counts[rows][:, None]
            x = {"features": features, "padding_mask": real}
            if words is not None:
                vectors = [words._held(row, LAYER_CHOICES["last"])[:, 0] for row in rows]
                x["words"] = stack_padded(vectors, length)
            if spellings is not None:
                ends = self.starts + self.counts
                found = [spellings[self.starts[row] : ends[row]] for row in rows]
                x["spellings"] = stack_padded(found, length)
            if text_places:
                sizes = None if training else few_lengths(length)
                x.update(self.places.arrays(rows, length, sizes))
            if self.windows is not None:
                x["answer_mask"] = self.windows.answer_mask(rows, length)
            if targets is None:
                return x, None, None
            if self.windows is not None:
                y = np.stack([targets[row] for row in rows])
                return x, y, np.ones(y.shape, "float32")
            if np.ndim(targets[0]) == 0:
                return x, np.array([targets[row] for row in rows]), None
            y = stack_padded([targets[row] for row in rows], length)
            return x, y, real.astype("float32")

        alike = self.counts.min() == self.counts.max()
        if alike and (training or self.counts.max() <= 2):  # pooled: a vector of each text
            options = {"buckets": [int(self.counts.max())], **options}
        options = {"fill_last": targets is not None, **options}
        return Batches(self.counts, collate, training=training, **options)


_EVERY_LAYER = weakref.WeakKeyDictionary()  # encoder -> ids of its weights, model of all layers


def _every_layer(encoder):
    """A model that gives all layers as one tensor (B, T, L + 1, D), one for each encoder.

    Later calls reuse its compiled programs. An encoder that gained or lost weights, as by LoRA or
    quantization, gets a new model.
    """
    weights = [id(weight) for weight in encoder.weights]
    known, model = _EVERY_LAYER.get(encoder, (None, None))
    if known == weights:
        return model
    model = encoder.stacked_layers()
    _EVERY_LAYER[encoder] = weights, model
    return model


def _pool(vectors, pool):
    """(L + 1, D) from the real positions (T, L + 1, D) of a text."""
    if pool in ("cls", "last"):
        return vectors[0 if pool == "cls" else -1]
    return vectors.mean(axis=0) if pool == "mean" else vectors.max(axis=0)
