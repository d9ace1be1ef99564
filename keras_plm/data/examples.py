"""Examples and texts to rows, targets and batches."""

import dataclasses
import hashlib
import json
import re

import keras
import numpy as np

from keras_plm.data.batching import Batches, class_weights, few_lengths, warn_of_cuts
from keras_plm.data.pair_positions import TextPlaces, spans_in, words_in
from keras_plm.data.task import as_examples, check_labelled, place_of
from keras_plm.files.sequences import as_names, as_rows, as_texts, check_whole
from keras_plm.metrics import tag_scheme
from keras_plm.tokenizers.characters import Spelled
from keras_plm.tokenizers.subwords import check_start, check_tokenizer, encode_parts

TYPED = re.compile("[BIESLUM]-.")  # a tag that marks a span, with its type


def batches(
    examples,
    tokenizer=None,
    labels=None,
    *,
    targets=None,
    words=None,
    word_tokenizer=None,
    joint_pairs=None,
    both_orders=False,
    spelled=False,
    text_places=False,
    scores=False,
    max_length=None,
    training=True,
    batch_size=None,
    tokens_per_batch=None,
    class_weight=None,
    **options,
):
    """Examples, texts or arrays as `Batches`, ready for `fit`, `evaluate` and `predict`.

    Args:
        examples: A list of `Example`, of texts or of lists of words; or a dict of arrays, each with
            N rows (lists of unequal arrays are padded with zeros).
        tokenizer: Packs the texts; not needed for arrays.
        labels: The label names in the order of their ids; required where examples have labels.
        targets: With arrays only: (N, ...) targets.
        words: If True, `x` also holds `word_positions` (B, T), where each word begins, -1 at
            padding; by default where examples are lists of words.
        word_tokenizer: A `Words`: `x` also holds `vector_ids` (B, T), the id in its vocabulary of
            each word, 0 at padding.
        joint_pairs: If False, the two texts of an example are packed apart, and every array of a
            model's inputs is (B, 2, T, ...); by default as the tokenizer does it. Words of the
            second text are then counted from T on in `word_positions`.
        both_orders: If True, pairs are packed in both orders, and every array is (B, 2, T).
        spelled: If True, `x` also holds `spellings` (B, T, C), the characters of each word, see
            `tokenizers.characters.spell`.
        text_places: If True, `x` also holds `first_positions` and `second_positions`, which words
            are those of each of two texts, see `pair_positions.TextPlaces`.
        scores: If True, `labels` are the lowest and highest of numbers, and targets shares of this
            range, 0 to 1; without `training` also beyond.
        max_length: Longest row in tokens; texts beyond are cut, sentences of tagged words go in
            windows and lose nothing. At most the encoder's `max_sequence_length`.
        training: If True, shuffle. If False, a label that is not among `labels` has the id -1, by
            which the metrics of heads count it as an error.
        batch_size, tokens_per_batch: See `Batches`; 32 rows when neither is given.
        class_weight: Weight of each class in the loss of training, by name or id.
        **options: Other arguments of `Batches`; by default `fill_last` is False where there are
            no labels.

    Returns:
        `Batches`. For tagged words `y` and the weights are (B, T), a tag per word.

    Raises:
        ValueError: If in training a label is not among `labels`, naming where it stands, or some
            examples have labels and others have none; if tags are of several schemes, see
            `tag_scheme_of`.
    """
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    labels = labels if labels is None else as_names(labels, "labels")
    if isinstance(examples, dict):
        source = _Arrays(examples, targets)
    else:
        source = PackedExamples(
            examples,
            tokenizer,
            labels,
            max_length,
            words,
            word_tokenizer,
            joint_pairs,
            both_orders,
            scores,
            spelled,
            text_places,
            training,
        )
        source.few_shapes = not training
    made = Batches(
        source.lengths,
        source.collate,
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        vocabulary_size=None if tokenizer is None else len(tokenizer),
        **{"fill_last": source.targets is not None, **options},
    )
    made.source = source
    if class_weight is not None:
        if scores or not training:
            raise ValueError(
                "`class_weight` is for training on classes: leave it out. "
                f"Received: class_weight={class_weight}, training={training}, scores={scores}"
            )
        made.class_weight = class_weights(class_weight, labels)
    return made


class _Arrays:
    """Rows of given arrays, padded to the bucket's length where they vary."""

    def __init__(self, arrays, targets):
        arrays = {name: as_rows(rows, name) for name, rows in arrays.items()}
        targets = None if targets is None else as_rows(targets, "targets")
        self.arrays, self.targets = arrays, targets
        counts = {name: len(rows) for name, rows in arrays.items()}
        if targets is not None:
            counts["targets"] = len(targets)
        if len(set(counts.values())) != 1:
            raise ValueError(f"Arrays must have equally many rows. Received: {counts}")
        self.ragged = {
            name
            for name, rows in arrays.items()
            if np.ndim(rows[0]) > 0 and len({len(row) for row in rows}) > 1
        }
        count = next(iter(counts.values()))
        self.lengths = np.ones(count, dtype=np.int64)
        for name in arrays:
            if np.ndim(arrays[name][0]) > 0:
                lengths = np.array([len(row) for row in arrays[name]])
                self.lengths = np.maximum(self.lengths, lengths)

    def collate(self, rows, length, rng, epoch):
        x = {}
        for name, values in self.arrays.items():
            if name in self.ragged:
                x[name] = stack_padded([np.asarray(values[i]) for i in rows], length)
            else:
                x[name] = np.stack([np.asarray(values[i]) for i in rows])
        y = None if self.targets is None else np.stack([self.targets[i] for i in rows])
        return x, y, None


def stack_padded(rows, length, pad=0):
    """Arrays of unequal first dimension as one, filled up with `pad`."""
    out = np.full((len(rows), length, *rows[0].shape[1:]), pad, rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


class PackedExamples:
    """Examples as packed rows with their targets; long lists of tagged words as windows.

    Attributes:
        encoded: The packed rows, see `keras_plm.tokenizers.Encoded`.
        parts: A list of these: more than one where an example is several rows, its two texts apart,
            their two orders, or its choices.
        lengths: (rows,) tokens of each row, of the longest of several.
        examples_of: (rows,) the example each row came from.
        words: (rows,) number of words of each row; `None` unless asked for or given.
        words_of_texts: (rows, 2) those of the first and of the second text.
        cut: Number of tokens that were cut for `max_length`; a warning gives it.
        few_shapes: Whether the positions of two texts are padded to one of the `few_lengths`.
    """

    few_shapes = False

    def __init__(
        self,
        examples,
        tokenizer,
        labels=None,
        max_length=None,
        words=None,
        word_tokenizer=None,
        joint_pairs=None,
        both_orders=False,
        scores=False,
        spelled=False,
        text_places=False,
        training=True,
    ):
        examples = as_texts(examples, "examples")
        if tokenizer is None:
            raise ValueError("Texts need a `tokenizer`. Received: tokenizer=None")
        check_tokenizer(tokenizer)
        if max_length is not None:
            check_whole(max_length, "max_length")
        if not examples:
            raise ValueError("There is nothing to batch. Received: no examples")
        texts = [getattr(example, "text", example) for example in examples]
        pairs = _all_or_none(examples, "pair", "a pair")
        choices = _all_or_none(examples, "choices", "choices")
        self.tokenizer = tokenizer
        self.examples_of = np.arange(len(examples))
        listed = not isinstance(texts[0], str) and pairs is None
        words = (listed or word_tokenizer is not None) if words is None else words
        if word_tokenizer is not None and not words:
            raise ValueError(
                "Ids of words need words: leave `words` out. Received: words=False beside a "
                "`word_tokenizer`"
            )
        if listed and words:
            texts, self.examples_of, first_words = self._windows(texts, max_length)
        if joint_pairs is None:
            joint_pairs = getattr(tokenizer, "joint_pairs", True)
        if words and (choices is not None or (pairs is not None and both_orders)):
            what = "pairs of texts in both orders" if choices is None else "choices"
            raise ValueError(
                "Words are read one by one in a text, or in the two texts of a pair. "
                f"Received: {what} for {type(tokenizer).__name__}"
            )
        if choices is not None and not getattr(tokenizer, "joint_pairs", True):
            raise ValueError(
                "A choice stands behind its text in one row: use a tokenizer that puts two texts "
                f"in one. Received: {type(tokenizer).__name__}"
            )
        if pairs is not None and not joint_pairs:
            self.parts = [
                tokenizer.encode(part, None, max_length, return_offsets=bool(words))
                for part in (texts, pairs)
            ]
        else:
            self.parts = encode_parts(
                tokenizer, texts, pairs, max_length, words, both_orders and pairs, choices
            )
        self.encoded = self.parts[0]
        self.lengths = np.max([part.lengths for part in self.parts], axis=0)
        cut = np.sum([part.cut for part in self.parts], axis=0)  # of each row
        self.cut = int(cut.sum())
        if self.cut:
            rows = np.unique(self.examples_of[cut > 0])
            warn_of_cuts("texts", examples, rows, self.cut, max_length)
        self.words = None
        self._texts, self._pairs = texts, pairs
        if words:
            self._find_words()
        self._vector_ids = None
        if word_tokenizer is not None:
            # As lists of one word, so that none is split again.
            found = word_tokenizer.encode([[word] for word in self.spelled()])
            self._vector_ids = found.token_ids
        self._spellings = Spelled(self.spelled()) if spelled else None
        self._places = None
        if text_places:
            counts = self.words_of_texts
            begins = np.cumsum(counts, axis=1) - counts
            self._places = TextPlaces(self.lengths, begins, counts)

        found = [getattr(example, "label", None) for example in examples]
        self.targets = None
        if any(label is not None for label in found):
            check_labelled(examples)
            to_id = share_of_range if scores else label_ids
            ids = [to_id(e, labels, training, i) for i, e in enumerate(examples)]
            self.tags = np.ndim(ids[0]) > 0
            check_label_kinds(examples)
            if self.tags and not (listed and words):
                raise ValueError(
                    "A tag per word is learned by a `Tagger`; here a text has one label. "
                    f"Received: {len(ids[0])} tags for {examples[0].text!r}"
                )
            if not self.tags:
                self.targets = np.array(ids)[self.examples_of]
            else:
                check_scheme(examples, labels, training)
                self.targets = [
                    ids[e][f : f + n]
                    for e, f, n in zip(self.examples_of, first_words, self.words, strict=True)
                ]

    def _windows(self, texts, max_length):
        """Lists of words cut so that each fits; where each came from, and its first word."""
        windows, examples, first_words = [], [], []
        pieces = self.tokenizer.encode(texts, return_offsets=True)
        for i, words in enumerate(texts):
            bounds = [0]
            if max_length is not None and pieces.lengths[i] > max_length:
                ids = pieces.word_ids[pieces.starts[i] :][: pieces.lengths[i]]
                room = max_length - np.count_nonzero(ids < 0)
                sizes = np.bincount(ids[ids >= 0], minlength=len(words))
                used = 0
                for j, size in enumerate(np.minimum(sizes, room)):
                    if used + size > room:
                        bounds.append(j)
                        used = 0
                    used += size
            for first, end in zip(bounds, [*bounds[1:], len(words)], strict=True):
                windows.append(words[first:end])
                examples.append(i)
                first_words.append(first)
        return windows, np.array(examples), first_words

    def _find_words(self):
        """Positions of the first token of each word, flat, with the starts of the rows."""
        first, rows, second, ids = words_in(self.parts)
        count = len(self.encoded)
        self.words_of_texts = np.bincount(2 * rows + second, minlength=2 * count).reshape(count, 2)
        self.words = self.words_of_texts.sum(axis=1)
        self._word_positions = first.astype(np.int32)
        self._word_parts = second if len(self.parts) > 1 else 0 * second
        self._word_starts = np.concatenate([[0], np.cumsum(self.words)])
        self._word_names = rows, second, ids

    def spelled(self):
        """The words as the texts write them, all rows one after another; whole where cut."""
        names = [name.tolist() for name in self._word_names]
        spans = {}
        if any(isinstance(text, str) for text in (*self._texts[:1], *(self._pairs or ())[:1])):
            whole = self.parts
            if self.cut:
                of_parts = [(self._texts, self._pairs)]
                if len(whole) > 1:
                    of_parts = [(self._texts, None), (self._pairs, None)]
                whole = [self.tokenizer.encode(*part, return_offsets=True) for part in of_parts]
            spans = spans_in(whole)
        words = []
        for name in zip(*names, strict=True):
            row, of_pair, word = name
            text = (self._pairs if of_pair else self._texts)[row]
            if isinstance(text, str):
                begin, end = spans[name]
                words.append(text[begin:end].strip())
            else:
                words.append(text[word])
        return words

    def collate(self, rows, length, rng, epoch):
        x, *others = (self.tokenizer.arrays(part, rows, length) for part in self.parts)
        if others:
            parts = [x, *others]
            x = {name: np.stack([p[name] for p in parts], axis=1) for name in x}  # (B, P, T, ...)
        if self.words is not None:
            slices = [slice(*self._word_starts[row : row + 2]) for row in rows]
            room = length * len(self.parts)
            positions = [self._word_positions[s] + length * self._word_parts[s] for s in slices]
            x["word_positions"] = stack_padded(positions, room, -1).astype("int32")
            if self._vector_ids is not None:
                x["vector_ids"] = stack_padded([self._vector_ids[s] for s in slices], room)
            if self._spellings is not None:
                x["spellings"] = stack_padded([self._spellings[s] for s in slices], room)
            if self._places is not None:
                sizes = few_lengths(length) if self.few_shapes else None
                x.update(self._places.arrays(rows, length, sizes))
        if self.targets is None:
            return x, None, None
        if not self.tags:
            return x, self.targets[rows], None
        y = stack_padded([self.targets[row] for row in rows], length)
        weights = (np.arange(length) < self.words[rows][:, None]).astype("float32")
        return x, y, weights

    def word_positions(self, row):
        """Where each word of a row begins, in its text where two are packed apart."""
        return self._word_positions[self._word_starts[row] : self._word_starts[row + 1]]


def _all_or_none(examples, name, called):
    """What all examples have in a field, or `None`."""
    found = [getattr(example, name, None) for example in examples]
    if all(of_example is None for of_example in found):
        return None
    if None in found:
        raise ValueError(
            f"Either all examples have {called} or none. "
            f"Received: example {found.index(None)} without"
        )
    return found


def words_of(examples, tokenizer, max_length=None):
    """The words of each example that a reader of words sees, as its text writes them.

    Args:
        examples: A list of `Example`, of texts or of lists of words.
        tokenizer: The encoder's: it says what a word is.
        max_length: Longest row of the encoder in tokens, as in `batches`.

    Returns:
        A list of lists of words, one for each example.
    """
    texts = [Unlabelled(getattr(e, "text", e), getattr(e, "pair", None)) for e in examples]
    packed = PackedExamples(texts, tokenizer, max_length=max_length, words=True)
    counts = np.bincount(packed.examples_of, packed.words, len(texts)).astype(int)
    ends, words = np.cumsum(counts), packed.spelled()
    return [words[end - count : end] for end, count in zip(ends, counts, strict=True)]


def check_word_vectors(words):
    """Raises unless `words` is an encoder of one vector per word."""
    if not callable(getattr(words, "tokenizer", None)):
        raise ValueError(
            "`words` must be an encoder of one vector per word, a `WordVectors`; the command "
            "`python -m benchmarks vectors` makes a folder of one for `keras_plm.load`. "
            f"Received: an object of type {type(words).__name__}"
        )


def check_stateless(encoder):
    """Raises if what `encoder` gives depends on what it read before."""
    if encoder.carried_rows:
        raise ValueError(
            "Texts are sorted by length or shuffled here, and carried states would leak from one "
            "into another: build the encoder with carried_rows=0, or call it yourself, on "
            f"`tokenizer.pack(texts)`, in order. Received: carried_rows={encoder.carried_rows}"
        )


def check_first(pool, tokenizer):
    """Raises if a text's first vector is asked for and no [CLS] stands there."""
    if pool == "cls" and not getattr(tokenizer, "has_cls", True):
        raise ValueError(
            "`pool='cls'` is for encoders that put a [CLS] before a text; take 'mean' or 'max'. "
            f"Received: {type(tokenizer).__name__}"
        )


@dataclasses.dataclass(frozen=True)
class Unlabelled:
    """A text, or a pair of texts, without its label."""

    text: str | list
    pair: str | None = None
    label: None = None
    choices: list | None = None


def check_label_kinds(examples):
    """Raises unless all examples have one label, or all have a tag for each word."""
    listed = [isinstance(example.label, (list, tuple)) for example in examples]
    for i, example in enumerate(examples):
        if listed[i] != listed[0]:
            first, other = ("tags", "a label") if listed[0] else ("a label", "tags")
            raise ValueError(
                f"{place_of(example, i)}Either every example has one label, or every word a tag. "
                f"Received: {example.label!r:.60}, {other}, and {first} of example 0"
            )
        if listed[i] and len(example.label) != len(example.text):
            raise ValueError(
                f"{place_of(example, i)}Every word needs one tag. "
                f"Received: {len(example.text)} words and {len(example.label)} tags"
            )


def label_ids(example, labels, training=True, number=None):
    """The id, or array of ids, of an example's label among the label names.

    Without `training`, the id of a name that is not among them is -1. `number` is that of the
    example among others, for errors.
    """
    label = example.label
    if isinstance(label, float) and labels is None:
        return np.float32(label)
    if labels is None:
        raise ValueError(f"`labels` must list the label names. Received: labels=None, {label!r}")
    names = {name: i for i, name in enumerate(labels)}
    listed = label if isinstance(label, (list, tuple)) else [label]
    for i, name in enumerate(listed):
        if name not in names and training:
            word = i if listed is label else None
            raise ValueError(
                f"{place_of(example, number, word)}This label does not occur in the training "
                f"examples. Received: {name!r}, known: {', '.join(map(str, labels[:20]))}"
                + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
            )
    ids = np.array([names.get(name, -1) for name in listed], dtype=np.int32)
    return ids if listed is label else ids[0]


def share_of_range(example, bounds, training=True, number=None):
    """Where a score lies between the lowest and the highest, 0 to 1; without `training` beyond."""
    score = example.label
    low, high = bounds
    is_number = not isinstance(score, str) and np.isscalar(score) and np.isfinite(score)
    if not is_number or (training and not low <= score <= high):
        place = place_of(example, number)
        raise ValueError(f"{place}A score lies from {low} to {high}. Received: {score!r}")
    return np.float32((score - low) / (high - low))


def score_range(examples):
    """`(lowest, highest)` of the scores of examples.

    Raises:
        ValueError: If a label is no number, or all are the same.
    """
    examples = as_examples(examples)
    for i, example in enumerate(examples):
        if isinstance(example.label, str) or not np.isscalar(example.label):
            raise ValueError(
                f"{place_of(example, i)}A score is a number. Received: {example.label!r}"
            )
    scores = [float(example.label) for example in examples]
    if not min(scores) < max(scores):
        raise ValueError(f"Scores must differ. Received: all {len(scores)} are {scores[0]}")
    return min(scores), max(scores)


def label_names(examples):
    """The labels, or tags, that occur in examples, sorted; "O" first where it occurs.

    Raises:
        ValueError: If a label is a number in one example and the same as a string in another.
    """
    examples = as_examples(examples)
    found = set()
    for example in examples:
        label = example.label
        found.update(label if isinstance(label, (list, tuple)) else [label])
    twice = next((name for name in found if not isinstance(name, str) and str(name) in found), None)
    if twice is not None:
        places = [e.where for e in examples if e.where and e.label in (twice, str(twice))]
        raise ValueError(
            (f"{places[0]}: " if places else "")
            + "A label is either a number in all examples or a string in all. "
            f"Received: both {twice!r} and {str(twice)!r}"
        )
    return sorted(found, key=lambda name: (name != "O", str(name)))


def tag_scheme_of(examples):
    """The scheme by which the tags of examples mark spans, see `metrics.tag_scheme`.

    Raises:
        ValueError: If tags are of several schemes, or a span of IOBES, BILOU or BMES is not whole,
            naming the file and line of the first one that does not fit; without a file the sentence
            and the word.
    """
    tagged = [example for example in examples if isinstance(example.label, (list, tuple))]

    def where(i, j):
        example, word = tagged[i], f"sentence {i}, word {j} ({tagged[i].text[j]!r})"
        if not example.where:
            return word
        if example.lines is None:
            return f"{example.where}, word {j} ({example.text[j]!r})"
        return f"{example.where.rpartition(':')[0]}:{example.lines[j]}"

    return tag_scheme([example.label for example in tagged], where)


def scheme_of_labels(labels):
    """The scheme of label names; `None` where labels as "[CLS]" stand next to tags of spans."""
    typed = [name for name in labels if isinstance(name, str) and TYPED.match(name)]
    if not typed or len(typed) == len(labels) - labels.count("O"):
        return tag_scheme(labels)
    tag_scheme(typed)  # raises for tags of several schemes
    return None


def check_scheme(examples, labels, training=True):
    """Raises as `tag_scheme_of` if the labels of a head mark spans and tags of examples do not.

    Without `training`, examples with tags that are not among the labels pass.
    """
    if scheme_of_labels(list(labels)) is None:
        return
    known = set(labels)
    if training or all(tag in known for example in examples for tag in example.label):
        tag_scheme_of(examples)


def fingerprint(*things):
    """A hash of models, tokenizers and plain values that changes when what they do changes."""
    digest = hashlib.sha256()
    for thing in things:
        config = thing.get_config() if hasattr(thing, "get_config") else thing
        if isinstance(thing, keras.Model):
            # Not how the model is called, computed or trained.
            config = {k: v for k, v in config.items() if k not in ("name", "dtype", "trainable")}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        for weight in getattr(thing, "weights", ()):
            digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
    return digest.hexdigest()


def translation_batches(
    sources,
    targets,
    tokenizer,
    *,
    max_length=None,
    training=True,
    batch_size=None,
    tokens_per_batch=None,
    **options,
):
    """Pairs of texts as `Batches` for an encoder-decoder.

    A pair goes to the bucket that holds the longer of the two.

    Args:
        sources, targets: Two lists of N texts.
        tokenizer: One with `start_id` and an end token behind each text, as `BytePair`.
        max_length: Longest text in tokens, the end token included; by default the longest given.
        training: If True, shuffle.
        batch_size, tokens_per_batch: See `Batches`; tokens are those of one side. 32 rows when
            neither is given.
        **options: Other arguments of `Batches`.

    Returns:
        `Batches` of x: `token_ids` and `padding_mask` (B, T), the source, and `target_ids` (B, T),
        the target behind a start token; y: (B, T), the target with its end token; and weights.

    Raises:
        ValueError: If there are not equally many, if a text is empty or longer than `max_length`,
            with its number, if they are no lists, or the tokenizer has no start token.
    """
    sources = as_texts(sources, "sources", words=False)
    targets = as_texts(targets, "targets", words=False)
    if len(sources) != len(targets):
        raise ValueError(
            "Every source needs one target. "
            f"Received: {len(sources)} sources and {len(targets)} targets"
        )
    check_start(tokenizer)
    if batch_size is None and tokens_per_batch is None:
        batch_size = 32
    encoded = []
    for kind, texts in (("source", sources), ("target", targets)):
        empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            raise ValueError(
                f"Texts must not be empty: leave the pair out. Received: {kind} {empty} is "
                f"{texts[empty]!r}"
            )
        rows = tokenizer.encode(texts)
        if max_length is not None and len(texts) and rows.lengths.max() > max_length:
            longest = int(rows.lengths.argmax())
            raise ValueError(
                f"No text may have more than {max_length} tokens: leave the pair out, part it, or "
                f"raise `max_length`. Received: {kind} {longest} with {rows.lengths[longest]} "
                f"tokens, {texts[longest][:60]!r}"
            )
        encoded.append(rows)
    source, target = encoded

    def collate(rows, length, rng, epoch):
        steps = np.arange(length)
        y = target.padded("token_ids", rows, length, pad=tokenizer.pad_id)
        real = steps < target.lengths[rows][:, None]
        before = np.roll(y, 1, axis=1)
        before[:, 0] = tokenizer.start_id
        x = {
            "token_ids": source.padded("token_ids", rows, length, pad=tokenizer.pad_id),
            "padding_mask": steps < source.lengths[rows][:, None],
            "target_ids": np.where(real, before, tokenizer.pad_id).astype("int32"),
        }
        return x, y, real.astype("float32")

    return Batches(
        np.maximum(source.lengths, target.lengths) if sources else [],
        collate,
        training=training,
        batch_size=batch_size,
        tokens_per_batch=tokens_per_batch,
        longest=max_length,
        vocabulary_size=len(tokenizer),
        **options,
    )
