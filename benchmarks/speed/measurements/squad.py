"""Answers from passages next to `transformers`: packing questions and answering them.

The peer follows the question-answering script of `transformers`. Its fast tokenizer cuts passages
into windows of 384 tokens, 128 apart, in lists of 1,000 questions. The peer pads rows to 384 tokens
and reads eight rows at a time. It tries the twenty best starts and ends of each window. Tuned, it
reads rows in bfloat16, sorted by length, 32 at a time, padded to the longest.
"""

import functools

import numpy as np

from benchmarks.speed.clock import Comparison
from benchmarks.speed.measurements.bert import (
    OURS,
    OURS_HALF,
    PLAIN,
    TUNED,
    peer_config,
    peer_tokenizer,
)
from benchmarks.speed.registry import Suite, measurement
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.formats.squad import read_squad
from keras_plm.data.passages import MAX_LENGTH, STRIDE, Windows
from keras_plm.data.task import Example, find_file
from keras_plm.datasets.questions import DEV
from keras_plm.experiments.flags import policy
from keras_plm.heads import SpanFinder
from keras_plm.models import BERT, BERT_SIZES
from keras_plm.tokenizers import WordPiece

SUITE = Suite("squad", "Speed: Questions and answers")
TOKENIZER = WEIGHTS / "bert_mini" / "tokenizer.json"
LINES = 1000  # questions per list of the peer
N_BEST, LONGEST = 20, 30  # best starts and ends of a window, most tokens of an answer


def questions(count, data=None):
    """Returns questions with their passages: the first of SQuAD's dev file, or generated ones."""
    if data is not None:
        return read_squad(find_file(data, DEV))[:count]
    from keras_plm.datasets.microworld import World

    texts = [sentence for document in World().corpus(400) for sentence in document]
    passages = [" ".join(texts[i : i + 12]) for i in range(0, len(texts) - 12, 12)]
    chosen = [passages[i % len(passages)] for i in range(count)]
    return [
        Example(f"What is said about {passage.split()[0]}?", None, pair=passage)
        for passage in chosen
    ]


@measurement(suite=SUITE, unit="questions", cases=lambda settings: {"squad rows": {}})
def squad_rows(settings, inputs):
    """Packing of questions and passages into arrays."""
    asked = questions(settings.sentences, inputs.data)

    def ours():
        def run():
            tokenizer = WordPiece.load(TOKENIZER)  # its cache of words is empty
            for _ in Windows(asked, tokenizer).batches(training=False, tokens_per_batch=8192):
                pass

        return run

    def theirs():
        tokenizer = _peer_tokenizer()
        return lambda: list(_peer_rows(tokenizer, asked, padding="max_length"))

    return Comparison({PLAIN: theirs, OURS: ours}, len(asked), {OURS: (PLAIN,)})


@measurement(
    suite=SUITE,
    unit="questions",
    cases=lambda settings: {
        f"squad answers {size}": {"size": size} for size in settings.sizes.split(",")
    },
)
def squad_answers(settings, inputs, size):
    """Answering of questions, including tokenization and windows."""
    count = settings.sentences // (4 if size == "mini" else 32)
    asked = questions(max(count, 1), inputs.data)
    vocabulary_size = len(WordPiece.load(TOKENIZER))

    def ours(precision):
        encoder = BERT(vocabulary_size, **BERT_SIZES[size], dtype=policy(precision))
        model = SpanFinder(encoder, tokenizer=WordPiece.load(TOKENIZER))
        return lambda: model.predict(asked)

    def theirs(tuned):
        import torch
        import transformers

        config = peer_config(size)
        config.vocab_size = vocabulary_size
        model = transformers.BertForQuestionAnswering(config).eval()
        tokenizer = _peer_tokenizer()

        def run():
            with torch.autocast("cpu", torch.bfloat16, enabled=tuned):
                return peer_answers(model, tokenizer, asked, tuned)

        return run

    implementations = {
        PLAIN: functools.partial(theirs, False),
        TUNED: functools.partial(theirs, True),
        OURS: functools.partial(ours, "float32"),
        OURS_HALF: functools.partial(ours, "bfloat16"),
    }
    peers = dict.fromkeys((OURS, OURS_HALF), (PLAIN, TUNED))
    half = frozenset({TUNED, OURS_HALF})
    return Comparison(implementations, len(asked), peers, half_precision=half)


def _peer_tokenizer():
    tokenizer = WordPiece.load(TOKENIZER)
    return peer_tokenizer(tokenizer.vocabulary, tokenizer.lowercase)


def _peer_rows(tokenizer, asked, **options):
    """Yields `(number of the first question, encoding)` of each list of questions."""
    for first in range(0, len(asked), LINES):
        part = asked[first : first + LINES]
        yield (
            first,
            tokenizer(
                [example.text.lstrip() for example in part],
                [example.pair for example in part],
                truncation="only_second",
                max_length=MAX_LENGTH,
                stride=MAX_LENGTH - STRIDE,  # tokens that windows share
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                **options,
            ),
        )


def peer_answers(model, tokenizer, asked, tuned):
    """Returns the peer's answer to each question."""
    import torch

    ids, types, offsets, owners = [], [], [], []
    options = {} if tuned else {"padding": "max_length"}
    for first, rows in _peer_rows(tokenizer, asked, **options):
        ids += rows["input_ids"]
        types += rows["token_type_ids"]
        owners += [first + i for i in rows["overflow_to_sample_mapping"]]
        for i, of_row in enumerate(rows["offset_mapping"]):
            inside = rows.sequence_ids(i)
            offsets.append([o if s == 1 else None for o, s in zip(of_row, inside, strict=True)])
    order = sorted(range(len(ids)), key=lambda i: len(ids[i])) if tuned else range(len(ids))
    batch = 32 if tuned else 8
    scores = [None] * len(ids)
    for begin in range(0, len(ids), batch):
        rows = order[begin : begin + batch]
        longest = max(len(ids[i]) for i in rows)

        def filled(lists, rows=rows, longest=longest):
            return torch.tensor([lists[i] + [0] * (longest - len(lists[i])) for i in rows])

        tokens = filled(ids)
        with torch.inference_mode():
            found = model(
                input_ids=tokens, attention_mask=(tokens > 0).long(), token_type_ids=filled(types)
            )
        pairs = zip(
            found.start_logits.float().numpy(), found.end_logits.float().numpy(), strict=True
        )
        for i, pair in zip(rows, pairs, strict=True):
            scores[i] = pair
    best = [(-np.inf, "")] * len(asked)
    for owner, of_row, (starts, ends) in zip(owners, offsets, scores, strict=True):
        starts, ends = starts[: len(of_row)], ends[: len(of_row)]
        for i in np.argsort(starts)[: -N_BEST - 1 : -1].tolist():
            for j in np.argsort(ends)[: -N_BEST - 1 : -1].tolist():
                if of_row[i] is None or of_row[j] is None or not i <= j < i + LONGEST:
                    continue
                score = starts[i] + ends[j]
                if score > best[owner][0]:
                    best[owner] = score, asked[owner].pair[of_row[i][0] : of_row[j][1]]
    return [text for _, text in best]
