"""Features of a frozen encoder, all layers of all examples, in a memory-mapped store."""

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from keras_plm.data import documents
from keras_plm.data.batching import Batches, few_lengths
from keras_plm.data.packing import stack_padded, words_of
from keras_plm.data.pair_positions import PairPositions
from keras_plm.data.passages import MAX_LENGTH, Windows
from keras_plm.files.arguments import check_number, check_one_of
from keras_plm.files.fingerprint import fingerprint
from keras_plm.files.locks import one_writer
from keras_plm.files.sequences import as_rows, as_texts
from keras_plm.heads.encoded import check_first, check_stateless, check_word_vectors
from keras_plm.layers import POOLINGS, LayerChoice
from keras_plm.models import WordVectors
from keras_plm.models.encoder import Encoder, check_encoder
from keras_plm.tokenizers.characters import CharacterIds, Characters
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import check_vocabulary, lacks_special_tokens
from keras_plm.transfer import _feature_files
from keras_plm.transfer._feature_rows import TOKENS, feature_rows
from keras_plm.transfer.layer_choices import LAYER_CHOICES, layer_choice

# Version of the content of a store.
VERSION = 3


def fitting(tokenizer, encoder):
    """Returns the tokenizer without special tokens that the encoder does not know.

    A GPT that was not fine-tuned has no vectors for the special tokens of a task.
    """
    return tokenizer.unframed() if lacks_special_tokens(encoder, tokenizer) else tokenizer


class FeatureStore:
    """All layers of a frozen encoder for a list of examples, memory-mapped in float16.

    It has one vector per word (its first token), or one pooled vector per text, for every layer.
    Reading computes a choice of layers. The name of the folder is a hash of encoder, tokenizer and
    texts: a store is never stale. A manifest detects changed files. Separate texts of pairs are
    stored once.

    Args:
        folder: A folder that `build` wrote.
        windows, words: Set by `build`.

    Raises:
        ValueError: If the folder is not a complete store, or a file has changed.

    Attributes:
        counts: (N,) number of vectors of each example.
        array: (vectors, L + 1, D) float16.
        parts: (N, 2, 2) start and number of the vectors of the first and the second text of each
            example; `None` for single texts.
        pairs: Whether an example has vectors of two separate texts.
        rows: (R, 3) example, first vector and number of vectors of each row that the encoder read:
            one per example, or one for each window of a long list of words.
        windows: The `Windows` with `pool="tokens"`, which are then the examples of the store.
        pair_positions: `PairPositions` of the two texts of each example, or `None`.

    >>> import numpy as np
    >>> import tempfile
    >>> from keras_plm.models import WordVectors
    >>> encoder = WordVectors.from_vectors(["fine", "dull", "film"], np.eye(3))
    >>> last = layer_choice("last")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = FeatureStore.build(folder, encoder, encoder.tokenizer(), ["fine film", "dull"])
    ...     len(store), store.counts.tolist(), store.vectors(0, last).tolist()
    (2, [2, 1], [[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]])
    """

    def __init__(
        self, folder: str | os.PathLike, windows: Windows | None = None, words: Any = None
    ):
        arrays = _feature_files.read(folder)
        self.array, self.counts = arrays.features, arrays.counts
        self.parts, self.pairs = arrays.parts, arrays.pairs
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = self._whole_rows() if arrays.rows is None else arrays.rows
        self.windows = windows
        self.pair_positions = None if windows is None else windows.pair_positions
        if windows is None and self.parts is not None:
            counts = self.parts[..., 1]
            self.pair_positions = PairPositions(
                self.counts, np.cumsum(counts, axis=1) - counts, counts
            )
        self._words = words
        self.predicates = self.sentences = None  # of each example, set by `build`

    @functools.cached_property
    def word_character_ids(self) -> CharacterIds:
        """The `CharacterIds` of the words, in the order of the vectors.

        Raises:
            ValueError: If the store has no words.
        """
        if self._words is None:
            raise ValueError(
                "Characters need the words of a store: build it with pool=None. "
                "Received: a store without words"
            )
        return CharacterIds([word for words in self._words() for word in words])

    def __len__(self):
        return len(self.counts)

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike,
        encoder: Encoder,
        tokenizer: SubwordTokenizer,
        examples: Iterable[Any],
        pool: str | None = None,
        feature_gb: float = 8.0,
        max_length: int = MAX_LENGTH,
        batch_size: int | None = None,
        verbose: int = 0,
        progress: Callable[[int, int], Any] | None = None,
    ) -> Self:
        """Runs the encoder over the examples, unless `folder` already holds their features.

        It recomputes damaged features, with a warning. Processes that build the same store wait for
        the first one. It removes files that killed processes left.

        Args:
            folder: Folder of the stores, with one folder for each.
            encoder: The frozen encoder.
            tokenizer: The encoder's tokenizer.
            examples: A list of `Example`, of texts or of lists of words.
            pool: `"cls"`, `"mean"`, `"max"` or `"last"` for one vector per text, including special
                tokens; `None` for one per word; `"tokens"` for one per token of questions with
                their passages, in windows.
            feature_gb: Largest size, in gigabytes.
            max_length: Length of the longest window in tokens, at most that of the encoder.
            batch_size: Number of texts per batch; by default as many as fit into 4,096 tokens.
            verbose: 1 shows a progress bar, 2 one line at the end, 0 nothing.
            progress: Function to call after each batch with the number of finished rows and that
                of all rows; a row is a text, a pair or a window.

        Raises:
            ValueError: If `pool` is unknown, or `"cls"` without such a token. If the encoder
                carries states or has another tokenizer, or only some examples have a pair. If a
                feature exceeds float16, or the store exceeds `feature_gb`.
            OSError: If there is not enough space, before the encoder runs.
        """
        check_one_of(pool, "pool", (None, *POOLINGS, TOKENS))
        check_encoder(encoder, tokenizer)
        examples = as_texts(examples, "examples")
        check_first(pool, tokenizer)
        check_stateless(encoder)
        tokenizer = fitting(tokenizer, encoder)
        if not isinstance(tokenizer, Characters):
            check_vocabulary(encoder, len(tokenizer))
        rows = feature_rows(examples, tokenizer, pool, encoder, max_length)
        precision = encoder.compute_dtype
        asked = encoder, tokenizer, rows.texts, pool, precision, VERSION, *rows.settings
        final = Path(folder) / fingerprint(*asked)[:24]
        kind = len(encoder.output["layers"]), encoder.hidden_dim
        predicates, sentences = (
            [getattr(example, name, None) for example in examples]
            for name in ("predicate", "sentences")
        )
        store = cls._open(final, rows, kind)
        if store is not None:
            store.predicates, store.sentences = predicates, sentences
            return store
        content = rows.pack()
        each = [rows.sizes(source) for source in content[0]]
        shape = sum(int(sizes.sum()) for sizes in each), *kind
        _check_size(shape, rows, feature_gb)
        with one_writer(final, wait=True):
            _feature_files.remove_dead(final.parent)
            store = cls._open(final, rows, kind, warn=True)  # another process may have built it
            if store is None:
                shown = verbose, progress
                cls._write(final, encoder, rows, content, each, shape, batch_size, shown)
                store = cls(final, rows.windows, rows.words)
            store.predicates, store.sentences = predicates, sentences
            return store

    @classmethod
    def _open(cls, final, rows, kind, warn=False):
        """Opens the store in a folder; returns `None` if it is missing or damaged."""
        if not final.exists():
            return None
        try:
            store = cls(final, rows.windows, rows.words)
            count = len(rows.texts if rows.windows is None else rows.windows.lengths)
            if len(store) != count or store.array.shape[1:] != kind:
                raise ValueError(
                    f"{final} must hold {count} examples and vectors of shape {kind}. "
                    f"Received: {len(store)} and {store.array.shape[1:]}"
                )
        except ValueError as error:
            if warn:
                warnings.warn(f"Damaged features are recomputed: {error}", stacklevel=3)
            return None
        return store

    @classmethod
    def _write(cls, final, encoder, rows, content, each, shape, batch_size, shown):
        """Writes the store of some `feature_rows` to a folder."""
        sources, counts, parts = content
        pairs, split = rows.pooled_pairs, rows.split
        writing = _feature_files.writing(final, shape, counts, parts, pairs, split)
        with writing as array:
            begin = 0
            for source, sizes in zip(sources, each, strict=True):
                end = begin + int(sizes.sum())
                cls._fill(array[begin:end], sizes, encoder, source, rows, batch_size, shown)
                begin = end

    @classmethod
    def build_words(
        cls,
        folder: str | os.PathLike,
        words: WordVectors,
        encoder: Encoder,
        tokenizer: SubwordTokenizer,
        examples: Iterable[Any],
        feature_gb: float = 8.0,
        pool: str | None = None,
    ) -> Self:
        """Builds a store of word vectors for the words of another store.

        Args:
            words: A `WordVectors`.
            encoder, tokenizer: Encoder and tokenizer of the other store, which define the words.
            pool: Argument of the other store: `None`, or `"tokens"` if its tokens are words.
            folder, examples, feature_gb: As in `build`.

        Raises:
            ValueError: If `words` is not a `WordVectors`, or the store would be too large.
        """
        check_word_vectors(words)
        tokenizer = fitting(tokenizer, encoder)
        own, limit = words.tokenizer(), encoder.max_sequence_length
        if pool == TOKENS:  # windows of as many words, with room for the other's special tokens
            room = min(limit or MAX_LENGTH, MAX_LENGTH) - tokenizer.num_special()
            longest = room + own.num_special()
            return cls.build(folder, words, own, examples, TOKENS, feature_gb, longest)
        found = words_of(examples, tokenizer, limit)
        return cls.build(folder, words, own, found, None, feature_gb)

    @staticmethod
    def _fill(array, sizes, encoder, packed, rows_of, batch_size, shown):
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
            model.clear()  # the weights may have changed
        # Windows of one example follow one another.
        begins = np.cumsum(sizes) - sizes
        verbose, progress = shown
        bar = keras.utils.Progbar(len(source), verbose=verbose) if verbose else None
        finished = 0
        for i in range(len(source)):
            rows, x = source.rows(i), source[i][0]
            positions = x.pop("word_positions", None)
            if set(encoder.input) - set(x):
                raise ValueError(
                    "Encoder and tokenizer must belong together. Received: an encoder that reads "
                    f"{', '.join(encoder.input)}, a tokenizer that returns {', '.join(x)}"
                )
            layers = np.asarray(model.predict_on_batch({k: x[k] for k in encoder.input}))
            for b, row in enumerate(rows):
                if row < 0:
                    continue
                here = None if positions is None else positions[b, : sizes[row]]
                real = layers[b, x["padding_mask"][b]] if here is None else layers[b]
                vectors = rows_of.vectors(real, here)
                highest = np.abs(vectors).max(initial=0)
                if not highest <= np.finfo(array.dtype).max:
                    raise ValueError(
                        "Features must fit into float16, at most 65504: check that the weights are "
                        f"trained. Received: features as large as {highest:g}"
                    )
                array[begins[row] : begins[row] + sizes[row]] = vectors
            finished += int((np.asarray(rows) >= 0).sum())
            if bar is not None:
                bar.update(i + 1)
            if progress is not None:
                progress(finished, len(sizes))
        if hasattr(model, "clear"):
            model.clear()  # frees the memory of its words

    def vectors(self, example: int, choice: LayerChoice) -> np.ndarray:
        """Returns the features of one example for a choice of layers: (W, n, D) float32."""
        return self._held(example, choice).astype("float32")

    def _held(self, example, choice):
        """Returns the same as `vectors`, but in the stored float16, except for means."""
        indices = choice.indices(self.array.shape[1])
        layers = indices
        if indices == list(range(indices[0], indices[-1] + 1)):
            layers = slice(indices[0], indices[-1] + 1)  # without a copy
        parts = [(self.starts[example], self.counts[example])]
        parts = parts if self.parts is None else self.parts[example]
        rows = [self.array[start : start + count, layers] for start, count in parts]
        rows = np.concatenate(rows) if rows[1:] else np.asarray(rows[0])
        if choice.combine == "mean":
            return rows.mean(axis=1, keepdims=True, dtype="float32")
        return rows

    def batches(
        self,
        choice: str | int | LayerChoice,
        targets: Any = None,
        training: bool = True,
        words: "FeatureStore | None" = None,
        word_character_ids: bool = False,
        pair_positions: bool = False,
        predicate_marks: bool = False,
        sentence_ids: bool = False,
        in_windows: bool = False,
        **options,
    ) -> Batches:
        """Creates `Batches` of features for a head's task network.

        Features are float16; the task network casts them.

        Args:
            choice: As in `layer_choice`.
            targets: Label ids of each example.
            training: If True, shuffle.
            words: A store of word vectors of the same words, see `build_words`.
            word_character_ids: If True, `x` also holds characters of words, see `data.batches`.
            pair_positions: If True, `x` also holds positions of two texts, see `data.batches`.
            predicate_marks: If True, `x` also holds marks of predicates, see `data.batches`.
            sentence_ids: If True, `x` also holds the index of each word's sentence, see
                `data.documents.sentence_ids`.
            in_windows: If True, rows are the `rows` of the store, as in the batches of heads;
                otherwise each example is a row.
            **options: Other arguments of `Batches`.

        Raises:
            ValueError: If `words` has other words, or the store lacks the words, the second texts,
                the predicates or the sentences that `x` needs.
        """
        choice = layer_choice(choice)
        targets = None if targets is None else as_rows(targets, "targets")
        if words is not None and not np.array_equal(words.counts, self.counts):
            raise ValueError(
                "Word vectors and features must have the same words: build the word vectors with "
                f"`FeatureStore.build_words`. Received: word vectors of {words.counts.sum()} "
                f"words of {len(words)} examples, features of {self.counts.sum()} of {len(self)}"
            )

        if pair_positions and self.pair_positions is None:
            raise ValueError(
                "A reader of two texts needs the words of both: give examples with a `pair`, and "
                "build the store with pool=None. Received: a store of single or pooled texts"
            )
        if predicate_marks and None in (self.predicates or [None]):
            raise ValueError(
                "Roles belong to a predicate: build the store from `Example(words, tags, "
                "predicate=index)`. Received: examples without a predicate"
            )
        if sentence_ids and None in (self.sentences or [None]):
            raise ValueError(
                "Documents need sentences: build the store from `Example(words, clusters, "
                "sentences=sizes)`. Received: examples without sentences"
            )
        rows = _StoreRows(
            self, choice, targets, words, word_character_ids, pair_positions, not training
        )
        rows.predicates = np.array(self.predicates) if predicate_marks else None
        rows.sentences = self.sentences if sentence_ids else None
        rows.places = self.rows if in_windows else self._whole_rows()
        lengths = rows.places[:, 2]
        if lengths.min() == lengths.max() and (training or lengths.max() <= 2):  # pooled
            options = {"buckets": [int(lengths.max())], **options}
        options = {"fill_last": targets is not None, **options}
        return Batches(lengths, rows.collate, training=training, **options)

    def _whole_rows(self):
        """Returns `rows` with one row for each example."""
        numbers = np.arange(len(self))
        return np.stack([numbers, 0 * numbers, self.counts], axis=1)


def _check_size(shape, rows, feature_gb):
    """Raises if features of a shape take more than `feature_gb` gigabytes."""
    check_number(feature_gb, "feature_gb", least=0)
    size = np.prod(shape, dtype=float) * 2 / 1e9
    if size > feature_gb:
        raise ValueError(
            f"The features of {len(rows.texts)} examples would take {size:.1f} GB: pool them "
            "over texts, use fewer examples, or allow more with `feature_gb` "
            f"(--max-cache-gb). Received: feature_gb={feature_gb:g}"
        )


class _StoreRows:
    """Examples of a store with one choice of layers, as rows of `Batches`.

    Args: As in `FeatureStore.batches`; `few_shapes` as in `PackedExamples`.
    """

    def __init__(
        self, store, choice, targets, words, word_character_ids, pair_positions, few_shapes
    ):
        self.store, self.choice, self.targets, self.words = store, choice, targets, words
        self.character_ids = store.word_character_ids if word_character_ids else None
        self.pair_positions = store.pair_positions if pair_positions else None
        self.few_shapes, self.predicates, self.sentences = few_shapes, None, None
        self.places = None  # example, first vector and number of vectors of each row

    def collate(self, rows, length, rng, epoch):
        store, places = self.store, self.places[rows]
        examples, firsts, counts = places.T
        held = [store._held(example, self.choice) for example in examples]
        real = np.arange(length) < counts[:, None]
        x = {"features": self._stacked(held, places, length), "padding_mask": real}
        if self.words is not None:
            held = [self.words._held(example, LAYER_CHOICES["last"])[:, 0] for example in examples]
            x["words"] = self._stacked(held, places, length)
        if self.character_ids is not None:
            begins = store.starts[examples] + firsts
            slices = map(slice, begins, begins + counts)
            x["word_character_ids"] = stack_padded([self.character_ids[s] for s in slices], length)
        if self.predicates is not None:
            marks = np.arange(length) == (self.predicates[examples] - firsts)[:, None]
            x["predicate_marks"] = (marks & real).astype("int32")
        if self.sentences is not None:
            x["sentence_ids"] = documents.sentence_ids(
                [self.sentences[example] for example in examples], length
            )
        if self.pair_positions is not None:
            x |= self.pair_positions.arrays(
                rows, length, few_lengths(length) if self.few_shapes else None
            )
        if store.windows is not None:
            x["answer_mask"] = store.windows.answer_mask(rows, length)
        return x, *self._targets(places, length, real)

    @staticmethod
    def _stacked(arrays, places, length):
        """Returns the vectors of rows from those of their examples, padded."""
        parts = zip(arrays, places, strict=True)
        return stack_padded([array[first:][:count] for array, (_, first, count) in parts], length)

    def _targets(self, places, length, real):
        """Returns `(y, weights)` of some rows."""
        if self.targets is None:
            return None, None
        targets = [self.targets[example] for example, _, _ in places]
        if self.store.windows is not None:
            return np.stack(targets), np.ones((len(targets), len(targets[0])), "float32")
        if np.ndim(targets[0]) == 0:
            return np.array(targets), None
        if np.ndim(targets[0]) == 2:  # of a document
            return documents.document_targets(targets, length), None
        return self._stacked(targets, places, length), real.astype("float32")


_EVERY_LAYER = weakref.WeakKeyDictionary()  # encoder -> ids of its weights, model of all layers


def _every_layer(encoder):
    """Returns an encoder's model of all layers as one tensor (B, T, L + 1, D).

    Later calls reuse the model and its compiled programs. If LoRA or quantization changes the
    encoder's weights, it gets a new model.
    """
    weights = [id(weight) for weight in encoder.weights]
    known, model = _EVERY_LAYER.get(encoder, (None, None))
    if known == weights:
        return model
    model = encoder.stacked_layers()
    _EVERY_LAYER[encoder] = weights, model
    return model
