"""Rows of a question and its passage, with overlapping windows of long passages.

Shapes: B rows of a batch, N questions, R rows (windows), T tokens of a row.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_plm.data.batching import Batches, few_lengths, warn_of_cuts
from keras_plm.data.pair_positions import PairPositions
from keras_plm.data.task import place_of
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import as_list
from keras_plm.tokenizers import Characters, Words
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_tokenizer

MAX_LENGTH = 384  # google-research/bert, run_squad.py
STRIDE = 128
QUESTION_LENGTH = 64  # tokens of a cut question; run_squad.py, `max_query_length`


class Windows:
    """Rows of a question and its passage, with overlapping windows of long passages.

    A row has two texts, the question first. A passage that exceeds `max_length` tokens is split
    into windows that start `stride` tokens apart. Each passage is tokenised once for all its
    questions; rows are assembled when they are read.

    Reference: google-research/bert, run_squad.py, `convert_examples_to_features`.
    Differences: Windows advance by half of their room if that is less than `stride`; they
    overlap if the room is two tokens or more. A question is cut, with a warning, only if it leaves
    no room for the passage. It then keeps 64 tokens, or half of the row if that is less. Character
    offsets locate the tokens of an answer.

    With `apart=True` an encoder reads question and window separately. A row of vectors then holds
    the vectors of the question, those of the window, and a vector of zeros for no answer. It has
    no vectors of special tokens.

    Args:
        examples: A list of `Example(question, answers, pair=passage, starts=starts)`, without
            answers for prediction. The first of several answers is the target, as in the original.
        tokenizer: A tokenizer with a special token before a pair of texts, such as [CLS], or after
            it, such as GPT's `_classify_`.
        max_length: Largest length T of a row.
        stride: Distance between the starts of windows, in tokens.
        apart: If True, question and passage are separate texts, as for ELMo.
        word_tokenizer: A `Words`, only with `apart` and a tokenizer of words. Rows then also hold
            `vector_ids`, the ids of the tokens in its vocabulary.

    Attributes:
        examples_of: (R,) index of the question of each row, ascending.
        lengths: (R,) number of tokens of each row.
        begins, counts: (R,) index of the first passage token of each row, and the number of
            passage tokens.
        first: (R,) position of the first passage token in the row.
        cut_to: Number of tokens to which questions were cut; `None` if none was cut.
        null: (R,) position of the special token for no answer.
        pair_positions: `PairPositions` of question and passage; the position for no answer is the
            last of the passage.
        targets: (R, 2) first and last position of the answer in each row, both `null` unless the
            row contains the whole answer; `None` without answers.

    Raises:
        ValueError: If there are no examples, a question has no passage, or only some questions have
            answers. If `max_length` leaves no room for a passage token, or an answer has no token.
            If the tokenizer does not pack two texts into one row.

    >>> from keras_plm.data import Example
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])
    >>> windows = Windows([Example("a", ["f"], "b c d e f g h", starts=[8])], tokenizer, 8, 2)
    >>> windows.begins.tolist(), windows.counts.tolist(), windows.targets.tolist()
    ([0, 2, 4], [4, 4, 3], [[0, 0], [5, 5], [3, 3]])
    """

    def __init__(
        self,
        examples: Sequence[Any],
        tokenizer: SubwordTokenizer,
        max_length: int = MAX_LENGTH,
        stride: int = STRIDE,
        apart: bool = False,
        word_tokenizer: Words | None = None,
    ):
        examples = as_list(examples, "examples", "questions with their passages")
        if not examples:
            raise ValueError("Give a list of at least one question with its passage. Received: []")
        check_tokenizer(tokenizer)
        if not apart:
            check_joint(tokenizer)
        check_whole(stride, "stride", least=1)
        self.tokenizer, self.max_length, self.stride = tokenizer, max_length, stride
        self.apart = apart
        self.passages = [_passage_of(example, i) for i, example in enumerate(examples)]
        questions = _unique([example.text for example in examples])
        passages = _unique(self.passages)
        self._questions = tokenizer.flat_tokens(list(questions))
        self._passages = tokenizer.flat_tokens(list(passages), return_offsets=True)
        self._word_ids = None
        if word_tokenizer is not None:
            check_tokens_are_words(tokenizer)
            self._word_ids = [
                word_tokenizer.flat_tokens(list(part)) for part in (questions, passages)
            ]
        question_of = np.array([questions[example.text] for example in examples])
        self._passage_of = np.array([passages[passage] for passage in self.passages])

        # Apart, each text must have room for its own special tokens too.
        special = 1 + tokenizer.num_special() if apart else tokenizer.num_special(paired=True)
        whole = self._questions.lengths
        limit = max(min(QUESTION_LENGTH, (max_length - special) // 2), 1)
        kept = np.where(whole < max_length - special, whole, np.minimum(whole, limit))
        self._questions = self._questions.part(lengths=kept)
        asked = kept[question_of]  # (N,)
        lost = whole[question_of] - asked
        if lost.any():
            rows = np.flatnonzero(lost)
            warn_of_cuts("questions", examples, rows, int(lost.sum()), max_length)
        self.cut_to = limit if lost.any() else None
        total = self._passages.lengths[self._passage_of]
        room = max_length - special - asked
        for wrong, rule in (
            (room < 1, f"A row of max_length={max_length} tokens must have room for the "
                       f"question, the passage and {special} special tokens: raise `max_length`."),
            (total < 1, "A passage must have at least one token."),
        ):  # fmt: skip
            if wrong.any():
                i = int(wrong.argmax())
                raise ValueError(
                    f"{place_of(examples[i], i)}{rule} Received: a question of "
                    f"{whole[question_of[i]]} tokens, a passage of {total[i]}"
                )
        step = np.minimum(stride, (room + 1) // 2)
        windows = 1 + np.maximum(-(-(total - room) // step), 0)
        self.examples_of = np.repeat(np.arange(len(examples)), windows)  # (R,)
        number = np.arange(len(self.examples_of)) - (np.cumsum(windows) - windows)[self.examples_of]
        self.begins = number * step[self.examples_of]
        self.counts = np.minimum(room[self.examples_of], total[self.examples_of] - self.begins)
        self._asked = question_of[self.examples_of]
        self._read = self._passage_of[self.examples_of]
        self.asked = asked[self.examples_of]
        suffix = 1 if apart else int(tokenizer.framed[1])
        self.lengths = self.asked + self.counts + (1 if apart else special)
        self.first = self.lengths - self.counts - suffix
        at_begin = tokenizer.has_cls and not apart
        self.null = np.zeros_like(self.first) if at_begin else self.lengths - 1
        begins = np.stack([0 * self.first if apart else 0 * self.first + tokenizer.framed[0],
                           self.first], axis=1)  # fmt: skip
        counts = np.stack([self.asked, self.counts], axis=1)
        self.pair_positions = PairPositions(self.lengths, begins, counts, last=self.null)
        # The number of windows after a window that still share tokens with it.
        self._reach = int(np.where(windows > 1, -(-room // step) - 1, 0).max())
        self.targets = self._find(examples)

    def __len__(self):
        return len(self.examples_of)

    def _find(self, examples):
        """Finds `targets` from the first answer of each question."""
        known = [getattr(example, "starts", None) is not None for example in examples]
        if not any(known):
            return None
        if not all(known):
            i = known.index(False)
            raise ValueError(
                f"{place_of(examples[i], i)}Either all questions must have answers, or none; "
                f"mark no answer by `starts=[]`. Received: starts=None in example {i}"
            )
        tokens, asked = self._passages, [i for i, e in enumerate(examples) if len(e.label)]
        start = np.array([examples[i].starts[0] for i in asked], dtype=np.int64)
        end = start + np.array([len(examples[i].label[0]) for i in asked], dtype=np.int64)
        # Offsets of all passages on one axis: passage i begins at i * wide.
        wide = 1 + max(len(passage) for passage in self.passages)
        row = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths)
        here = self._passage_of[asked]
        ends = row * wide + tokens.offsets[:, 1]
        begins = row * wide + tokens.offsets[:, 0]
        # The first token that ends after the answer's start, and the last one that begins before
        # its end.
        first = np.searchsorted(ends, here * wide + start, side="right") - tokens.starts[here]
        last = np.searchsorted(begins, here * wide + end, side="left") - 1 - tokens.starts[here]
        if (first > last).any():
            i = asked[int((first > last).argmax())]
            raise ValueError(
                f"{place_of(examples[i], i)}An answer must have at least one token. "
                f"Received: {examples[i].label[0]!r} for {type(self.tokenizer).__name__}"
            )
        spans = np.full((len(examples), 2), -1)
        spans[asked] = np.stack([first, last], axis=1)
        spans = spans[self.examples_of] - self.begins[:, None]  # (R, 2), within each window
        inside = (spans[:, 0] >= 0) & (spans[:, 1] < self.counts)
        return np.where(inside[:, None], spans + self.first[:, None], self.null[:, None])

    def collate(
        self,
        rows: np.ndarray,
        length: int,
        rng: np.random.Generator | None,
        epoch: int,
        pair_positions: bool = False,
        few_shapes: bool = False,
    ) -> tuple[dict[str, Any], Any, Any]:
        """Returns arrays `(x, y, weights)` of rows at a padded length, for `Batches`."""
        asked = self._questions.part(self._asked[rows])
        read = self._passages.part(self._read[rows], self.begins[rows], self.counts[rows])
        join, arrays = self.tokenizer.join, self.tokenizer.arrays
        if self.apart:
            x, second = (arrays(join(texts), length=length) for texts in (asked, read))
            x = {name: np.stack([x[name], second[name]], axis=1) for name in x}  # (B, 2, T, ...)
            x["word_positions"] = self._word_positions(rows, length)
            if self._word_ids is not None:
                x["vector_ids"] = self._vector_ids(rows, length)
        else:
            x = arrays(join(asked, read), length=length)
        if pair_positions:
            x.update(
                self.pair_positions.arrays(
                    rows, length, few_lengths(length) if few_shapes else None
                )
            )
        x["answer_mask"] = self.answer_mask(rows, length)
        if self.targets is None:
            return x, None, None
        return x, self.targets[rows].astype("int32"), np.ones((len(rows), 2), "float32")

    def _word_positions(self, rows, length):
        """Returns (B, T) the index of each token among a row's 2 T vectors; -1 at padding."""
        begin, place = int(self.tokenizer.framed[0]), np.arange(length)
        in_passage = place - self.first[rows][:, None]
        at = np.where(in_passage < 0, begin + place, length + begin + in_passage)
        return np.where(in_passage < self.counts[rows][:, None], at, -1).astype("int32")

    def _vector_ids(self, rows, length):
        """Returns (B, T) the ids of a row's words, 0 at padding."""
        ids, place = np.zeros((len(rows), length), "int32"), np.arange(length)
        for tokens, texts, begin, at, count in (
            (self._word_ids[0], self._asked, 0 * self.begins, 0 * self.first, self.asked),
            (self._word_ids[1], self._read, self.begins, self.first, self.counts),
        ):
            within = place - at[rows][:, None]  # (B, T)
            here = (within >= 0) & (within < count[rows][:, None])
            start = (tokens.starts[texts[rows]] + begin[rows])[:, None]
            ids[here] = tokens.token_ids[(start + within)[here]]
        return ids

    def texts(self) -> tuple[tuple[Any, Any], np.ndarray]:
        """Returns distinct questions and windows, for encoders that read them separately.

        Returns:
            `(sources, of_rows)`: `sources` are two `TextRows`, of questions and of windows.
            `of_rows` (R, 2) holds the two indices of each row; windows count after questions.
        """
        read = np.stack([self._read, self.begins, self.counts], axis=1)
        windows, numbers = np.unique(read, axis=0, return_inverse=True)
        parts = self._questions, self._passages.part(*windows.T)
        first_passage = len(self._questions.lengths)
        of_rows = np.stack([self._asked, first_passage + numbers.reshape(-1)], axis=1)
        return [TextRows(self.tokenizer, part) for part in parts], of_rows

    def batches(
        self,
        training: bool = True,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
        pair_positions: bool = False,
        **options,
    ) -> Batches:
        """Creates `Batches`: `x` holds model inputs and `answer_mask`, `y` (B, 2) the targets.

        With `pair_positions`, `x` also holds the positions of question and passage.
        """
        if batch_size is None and tokens_per_batch is None:
            batch_size = 32
        made = Batches(
            self.lengths,
            functools.partial(self.collate, pair_positions=pair_positions, few_shapes=not training),
            training=training,
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            longest=self.max_length,
            vocabulary_size=len(self.tokenizer),
            **{"fill_last": self.targets is not None, **options},
        )
        made.source = self
        return made

    def passage_mask(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Returns the mask of the passage tokens, (rows, T)."""
        place = np.arange(length) - self.first[rows][:, None]
        return (place >= 0) & (place < self.counts[rows][:, None])

    def answer_mask(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Returns the mask of the positions where an answer may start and end, (rows, T)."""
        mask = self.passage_mask(rows, length)
        mask[np.arange(len(mask)), self.null[rows]] = True
        return mask

    def context_mask(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Returns the mask of the tokens with more context here than in other windows, (rows, T).

        The context of a passage token is the smaller of the numbers of passage tokens to its left
        and right. At ties the longer window wins, then the earlier one.
        """
        own = self.passage_mask(rows, length)
        token = np.arange(length) - self.first[rows][:, None] + self.begins[rows][:, None]
        score = self._context(rows, token)
        for distance in range(1, self._reach + 1):
            for other, earlier in ((rows - distance, True), (rows + distance, False)):
                there = np.clip(other, 0, len(self) - 1)
                same = (other == there) & (self.examples_of[there] == self.examples_of[rows])
                found = np.where(same[:, None], self._context(there, token), -1)
                own &= (found < score) | ((found == score) & (not earlier))
        return own

    def _context(self, rows, token):
        """Returns the context of passage tokens in windows, -1 outside."""
        left = token - self.begins[rows][:, None]
        right = self.counts[rows][:, None] - 1 - left
        context = np.minimum(left, right)
        # The original's min(left, right) + 0.01 * length, times 100.
        return np.where(context < 0, -1, 100 * context + self.counts[rows][:, None])

    def offsets(self, examples: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Returns character offsets of token spans in their passages: (2, ...) starts and ends."""
        starts = self._passages.starts[self._passage_of[examples]]
        offsets = self._passages.offsets
        return np.stack([offsets[starts + first, 0], offsets[starts + last, 1]])


class TextRows:
    """Encoder rows of one text each; the words are the tokens."""

    def __init__(self, tokenizer, tokens):
        self.tokenizer, self.tokens = tokenizer, tokens
        self.words = tokens.lengths
        self.lengths = tokens.lengths + tokenizer.num_special()

    def collate(self, rows, length, rng, epoch):
        x = self.tokenizer.arrays(self.tokenizer.join(self.tokens.part(rows)), length=length)
        place = np.arange(length)
        at = place + self.tokenizer.framed[0]
        x["word_positions"] = np.where(place < self.words[rows][:, None], at, -1)
        return x, None, None


def _unique(texts):
    """Returns a dict from each distinct text to its index."""
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def _passage_of(example, i):
    text, passage = getattr(example, "text", example), getattr(example, "pair", None)
    for name, value in (("question", text), ("passage", passage)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(
                f"{place_of(example, i)}A question and its passage must be texts: give "
                "`Example(question, pair=passage)`, or pass questions and `pairs` to `predict`. "
                f"Received: {value!r:.60} as {name}"
            )
    return passage


def check_tokens_are_words(tokenizer):
    """Raises unless a tokenizer's tokens are words, as word vectors require."""
    if not isinstance(tokenizer, (Characters, Words)):
        raise ValueError(
            "Word vectors for answers need a tokenizer whose tokens are words, such as ELMo's; "
            "with others, leave `words` out. "
            f"Received: `words` for {type(tokenizer).__name__}"
        )


def check_joint(tokenizer):
    """Raises unless a tokenizer packs two texts into a row with a token for no answer."""
    if not getattr(tokenizer, "joint_pairs", False):
        raise ValueError(
            "The tokenizer must pack question and passage into one row: use `WordPiece`, or the "
            "`BytePair` of a fine-tuned GPT with its special tokens. For other tokenizers use the "
            "task network 'bidaf' or 'bilstm'. "
            f"Received: {type(tokenizer).__name__}, which packs one text per row"
        )
    if not (tokenizer.has_cls or tokenizer.framed[1]):
        raise ValueError(
            "A special token before or after the texts stands for no answer: use a tokenizer that "
            "has one. "
            f"Received: {type(tokenizer).__name__} without one"
        )
