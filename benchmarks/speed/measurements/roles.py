"""Semantic roles next to tagging of the same words with the same encoder and labels.

A tagger reads no predicate, and takes the most probable tag of each word alone. The ratio
therefore shows the cost of the predicate's marks and of valid tags.
"""

import keras_plm
from benchmarks.speed.clock import Comparison
from benchmarks.speed.registry import Suite, measurement
from benchmarks.suites.compare_encoders import WEIGHTS
from keras_plm.data.task import Example
from keras_plm.heads import SemanticRoleLabeler, Tagger
from keras_plm.transfer import clone

SUITE = Suite("roles", "Speed: Semantic roles")
ENCODER = WEIGHTS / "bert_mini"
OURS, TAGGER = "keras_plm", "tagger of the same words"
COUNT, WORDS = 256, 25  # predicates, and words of their sentences at most
ROLES = [f"ARG{i}" for i in range(29)]  # as many as the English Web Treebank has
TAGS = ["O", "B-V", "I-V", *(f"{mark}-{role}" for role in ROLES for mark in "BI")]


def predicates(texts):
    """Returns a predicate in the middle of each text, with an argument before and after it."""
    examples = []
    for i, text in enumerate(texts[:COUNT]):
        words = text.split()[:WORDS]
        place = len(words) // 2
        tags = ["O"] * len(words)
        for role, at in (("V", place), (ROLES[i % 29], 0), (ROLES[i % 7], len(words) - 1)):
            tags[at] = f"B-{role}"
        examples.append(Example(words, tags, predicate=place))
    return examples


def _models():
    encoder, tokenizer = keras_plm.load(ENCODER, dtype="float32")
    return (
        SemanticRoleLabeler(encoder, TAGS, tokenizer=tokenizer),
        Tagger(clone(encoder), TAGS, tokenizer=tokenizer),
    )


def _both(inputs, do):
    """Compares `do(model, examples)` of the two models on the same words."""
    model, tagger = _models()
    marked = predicates(inputs.sentences)
    plain = [Example(example.text, example.label) for example in marked]
    implementations = {TAGGER: lambda: do(tagger, plain), OURS: lambda: do(model, marked)}
    return Comparison(implementations, len(marked), {OURS: (TAGGER,)})


@measurement(
    suite=SUITE,
    unit="predicates",
    cases=lambda settings: {f"label roles of {COUNT} predicates": {}},
    uses_sentences=True,
)
def label_roles(settings, inputs):
    """Tags of the arguments of predicates, including tokenization and decoding."""
    return _both(inputs, lambda model, examples: lambda: model.predict(examples))


@measurement(
    suite=SUITE,
    unit="predicates",
    cases=lambda settings: {f"train on {COUNT} predicates": {}},
    uses_sentences=True,
)
def train_roles(settings, inputs):
    """A pass of training of encoder and head."""

    def fit(model, examples):
        model.compile("adam", metrics=[], weighted_metrics=[])
        batches = model.batches(examples, batch_size=32)
        return lambda: model.fit(batches, verbose=0)

    return _both(inputs, fit)
