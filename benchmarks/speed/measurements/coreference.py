"""Coreference next to tagging of the same words with the same encoder.

A tagger needs little more than the encoder. The ratio therefore shows the cost of the spans.
"""

import keras_plm
from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.task import Example
from keras_plm.heads import CoreferenceResolver, Tagger
from keras_plm.transfer import clone

SUITE = Suite("coreference", "Speed: Coreference")
ENCODER = WEIGHTS / "bert_mini"
OURS, TAGGER = "keras_plm", "tagger of the same words"
SENTENCE = 25  # words of a sentence; LitBank's mean


def document(words, text):
    """Returns a document of `words` words with a mention every seven words, in ten clusters."""
    count = words // SENTENCE
    listed = " ".join(text).split()[: count * SENTENCE]
    clusters = [[] for _ in range(10)]
    for place in range(0, len(listed), 7):
        clusters[place % 10].append((place, place + 1))
    return Example(listed, clusters, sentences=[SENTENCE] * count)


def _models():
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    return (
        CoreferenceResolver(encoder, tokenizer=tokenizer),
        Tagger(clone(encoder), ["O", "B-X"], tokenizer=tokenizer),
    )


def _cases(settings):
    return {"documents of 2,000 words": {"words": 2_000}}


@measurement(
    suite=SUITE,
    unit="words",
    cases=lambda s: {f"resolve {n}": a for n, a in _cases(s).items()},
    uses_sentences=True,
)
def resolve(settings, inputs, words):
    """Clusters of a document, including tokenization and decoding."""
    resolver, tagger = _models()
    example = document(words, inputs.sentences)

    return Comparison(
        {
            TAGGER: lambda: lambda: tagger.predict([example.text]),
            OURS: lambda: lambda: resolver.predict([example]),
        },
        len(example.text),
        {OURS: (TAGGER,)},
    )


@measurement(
    suite=SUITE,
    unit="words",
    cases=lambda s: {f"train on {n}": a for n, a in _cases(s).items()},
    uses_sentences=True,
)
def train_resolver(settings, inputs, words):
    """Training steps of encoder and head on one document."""
    resolver, tagger = _models()
    example = document(words, inputs.sentences)
    tags = Example(example.text, (["O", "B-X"] * len(example.text))[: len(example.text)])

    def steps(model, batches):
        model.compile("adam")
        batch = batches[0]
        return lambda: model.train_on_batch(*batch)

    windows = len(tagger.batches([tags], training=False).source.lengths)

    return Comparison(
        {
            TAGGER: lambda: steps(tagger, tagger.batches([tags], batch_size=windows, buckets=1)),
            OURS: lambda: steps(resolver, resolver.batches([example])),
        },
        len(example.text),
        {OURS: (TAGGER,)},
    )
