"""Head that chooses one of several answers."""

import keras
import numpy as np
from keras import ops

from keras_plm.files.sequences import as_names, as_texts
from keras_plm.heads.encoded import chosen_pool
from keras_plm.heads.head import Head, softmax


@keras.saving.register_keras_serializable("keras_plm")
class MultipleChoice(Head):
    """The right one of several continuations or answers: a score of each, softmax over them.

    Each choice is a row of its own, packed behind the text as the second of two texts. For
    questions about a passage the text is passage and question, `f"{passage} {question}"`.

    Reference: Radford et al. 2018, section 3.3, "question answering and commonsense reasoning";
    Devlin et al. 2018, section 4.4.

    Args:
        encoder: Any encoder whose tokenizer puts two texts in one row; fine-tuned in place unless
            `frozen`.
        labels: The numbers of the choices, `range(P)`: every example has P of them.
        tokenizer: Needed to predict from texts.
        layers, pool, dropout, frozen, task_network: As in `Classifier`. In training the same
            elements are dropped of all choices of an example, as in GPT's released code.

    Call arguments:
        inputs: The encoder's inputs, with an axis of choices: (B, P, T).

    Returns:
        (B, P) logits.

    Raises:
        ValueError: If there are fewer than two choices, or `pool` does not fit the encoder; in
            `predict` and `batches`, if an example has no choices or not as many.
    """

    def __init__(
        self,
        encoder,
        labels,
        tokenizer=None,
        layers=None,
        pool=None,
        dropout=0.1,
        frozen=False,
        task_network=None,
        name="multiple_choice",
    ):
        labels = as_names(labels, "labels")
        pool = chosen_pool(pool, encoder, tokenizer, layers, frozen)
        super().__init__(
            encoder,
            labels,
            tokenizer,
            layers,
            pool,
            None,
            dropout,
            frozen,
            task_network,
            None,
            None,
            name,
            rows=len(labels),
        )
        self.pool = pool

    @staticmethod
    def check_labels(labels):
        if len(labels) < 2 or list(labels) != list(range(len(labels))):
            raise ValueError(
                "Choices are numbered from 0, and there are two or more: labels=range(4). "
                f"Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples):
        return list(range(len(getattr(examples[0], "choices", None) or ())))

    @staticmethod
    def before_output(x, mask, reader, pairs=False):
        """A vector (B, P, D) of each choice."""
        return x

    @staticmethod
    def output_of(x, num_labels, dropout, reader=None, inputs=None):
        x = keras.layers.SpatialDropout1D(dropout, name="dropout")(x)  # alike for all choices
        dense = keras.layers.Dense(1, dtype="float32", name="logits")
        return ops.squeeze(dense(x), axis=-1)  # (B, P)

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def batches(self, examples, **options):
        if not isinstance(examples, dict):
            examples, count = as_texts(examples, "examples"), len(self.labels)
            for i, example in enumerate(examples):
                choices = getattr(example, "choices", None)
                if choices is None or len(choices) != count:
                    raise ValueError(
                        f"Each example has {count} choices here: `Example(text, label, "
                        "choices=[...])`, or to `predict` texts and `choices`. "
                        f"Received: example {i} with {choices!r:.80}"
                    )
        return super().batches(examples, **options)

    @staticmethod
    def decode(labels, logits, source, probabilities=False):
        """The number of the chosen one of each example."""
        logits = np.stack(logits)
        return softmax(logits) if probabilities else [int(i) for i in logits.argmax(axis=-1)]

    def get_config(self):
        config = {**super().get_config(), "pool": self.pool}
        return {k: v for k, v in config.items() if k not in ("reader", "words", "placement")}
