"""Checks of the parts of a head, and of the examples that it reads."""

import numbers

import keras

from keras_plm.data.task import Unlabelled
from keras_plm.files.arguments import check_type
from keras_plm.files.sequences import as_list, as_text, as_texts
from keras_plm.heads.encoded import check_stateless, check_word_vectors
from keras_plm.heads.readers.reading import check_serves, texts_of
from keras_plm.heads.task_network import COMBINES
from keras_plm.layers import LayerChoice
from keras_plm.models.encoder import check_encoder
from keras_plm.training.fit import check_vocabulary


def check_parts(head, encoder, tokenizer, layers, reader, dropout, frozen, task_network):
    """Raises unless the parts of a head have the right types and belong together."""
    check_encoder(encoder, tokenizer)
    for argument, value, kind, example in (
        ("layers", layers, LayerChoice, "`transfer.layer_choice('last')`"),
        ("reader", reader, keras.layers.Layer, "`readers.BiLSTM(units)`"),
        ("task_network", task_network, keras.Model, "the model from `build_task_network`"),
        ("dropout", dropout, numbers.Real, "0.1"),
    ):
        if value is not None:
            check_type(value, argument, kind, example)
    check_stateless(encoder)
    if tokenizer is not None:
        check_vocabulary(encoder, len(tokenizer))
    if not frozen and not encoder.trainable:
        raise ValueError(
            "An untrainable encoder needs `frozen=True`, which also stops its dropout; "
            "to fine-tune it, set `encoder.trainable = True`. "
            "Received: frozen=False, encoder.trainable=False"
        )
    check_serves(reader, head)


def check_vectors(placement, reader, words, task_network, pairs):
    """Raises unless the task network can read the requested vectors."""
    placement.check(reader, words)
    if words is not None:
        check_word_vectors(words)
    if task_network is not None and ("words" in task_network.input) != (words is not None):
        raise ValueError(
            "A task network that was trained with word vectors needs `words`; another must "
            f"have none. Received: {'no ' if words is None else ''}`words`, "
            f"a task network of {', '.join(sorted(task_network.input))}"
        )
    if pairs and pairs != "words" and (reader is not None or words is not None):
        raise ValueError(
            "Two texts in separate rows are combined without a reader or word vectors: leave "
            "both out, or choose pairs='words' with a reader of two texts. "
            f"Received: pairs={pairs}, reader={reader}, words={words}"
        )


def check_settings(task_network, layers, placement, dropout):
    """Raises unless a task network has the settings of its head, which a saved head restores."""
    mix = {"combine": layers.combine if layers else "concat"}
    if mix["combine"] == "mix":
        mix |= {"penalty": placement.penalty, "layer_norm": placement.mix_norm}
    wanted = {"dropout": {"rate": dropout}}
    for place, name in COMBINES.items():
        wanted[name] = mix
        wanted[f"feature_dropout_{place}"] = {"rate": placement.feature_dropout}
    for layer in task_network.layers:
        for name, value in wanted.get(layer.name, {}).items():
            if (found := getattr(layer, name, value)) != value:
                raise ValueError(
                    "A task network and its head must have the same `layers`, `placement` and "
                    "`dropout`: give the head those of the network. Received: "
                    f"{name}={found!r} in the layer {layer.name!r} of the network, {value!r} in "
                    "the head"
                )


def as_examples(head, x, pairs, choices):
    """Returns the `Unlabelled` examples of the arguments of `Head.predict`.

    Raises:
        ValueError: If the numbers of texts, pairs and choices differ, or an item is no text.
    """
    x = as_texts(x, "x", tuples=head.kind == "words")
    if pairs is not None:
        pairs = as_list(pairs, "pairs", "texts")
        pairs = [  # a later check names the text whose pair is `None`
            pair if pair is None else as_text(pair, f"row {i} of `pairs`")
            for i, pair in enumerate(pairs)
        ]
    if choices is not None:
        choices = as_list(choices, "choices", "lists of choices")
        choices = [as_texts(of_text, f"choices[{i}]") for i, of_text in enumerate(choices)]
    if pairs is not None and len(pairs) != len(x):
        raise ValueError(
            f"Every text needs its pair. Received: {len(x)} texts and {len(pairs)} pairs"
        )
    if choices is not None and len(choices) != len(x):
        raise ValueError(
            f"Every text needs its choices. Received: {len(x)} texts and choices of {len(choices)}"
        )
    examples = []
    for i, item in enumerate(x):
        text, pair = getattr(item, "text", item), getattr(item, "pair", None)
        pair = pair if pairs is None else pairs[i]
        chosen = getattr(item, "choices", None) if choices is None else choices[i]
        place = {"where": getattr(item, "where", ""), "lines": getattr(item, "lines", None)}
        place |= {name: getattr(item, name, None) for name in ("predicate", "sentences")}
        examples.append(Unlabelled(text, pair, choices=chosen, **place))
    return examples


def check_pairs(head, examples):
    """Raises unless each example has as many texts as the head reads, and fits in rows."""
    paired = [getattr(example, "pair", None) is not None for example in examples]
    if (head.pairs or texts_of(head.reader)) and not all(paired):
        what = f"with `pairs={head.pairs!r}`" if head.pairs else "with a reader of two texts"
        raise ValueError(
            f"A head {what} needs two texts per example: give it "
            "`Example(text, label, pair)`, or give texts and `pairs` to `predict`. "
            f"Received: example {paired.index(False)} without a pair"
        )
    if head.kind == "words" and any(paired):
        raise ValueError(
            f"`{type(head).__name__}` labels the words of one text: leave pairs out. "
            f"Received: example {paired.index(True)} with a pair"
        )
    if not (head.pairs or getattr(head.tokenizer, "joint_pairs", True)) and any(paired):
        raise ValueError(
            f"`{type(head.tokenizer).__name__}` cannot put two texts in one row: build the "
            "head with `pairs=True`, or with a reader of two texts and `pairs='words'`. "
            f"Received: example {paired.index(True)} with a pair, pairs=False"
        )


def check_trained_on(head, examples):
    """Raises unless examples are pairs exactly if those of training were."""
    if head.trained_on_pairs is None:
        return
    learned, rule, wrong = "single texts", "leave pairs out", "with"
    if head.trained_on_pairs:
        learned, rule, wrong = "pairs", "give every text its pair", "without"
    for number, example in enumerate(examples):
        if (example.pair is not None) != head.trained_on_pairs:
            raise ValueError(
                f"This head was trained only on {learned}: {rule}. "
                f"Received: example {number} {wrong} a pair"
            )
