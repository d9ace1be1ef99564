"""Head that chooses one of several answers."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.task import Example
from keras_plm.files.sequences import Tensor, as_names, as_texts
from keras_plm.heads.encoded import chosen_pool
from keras_plm.heads.head import Head, softmax
from keras_plm.heads.task_network import TaskNetwork
from keras_plm.layers import LayerChoice
from keras_plm.layers._fused.softmax import wide_dtype
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer


@keras.saving.register_keras_serializable("keras_plm")
class MultipleChoice(Head):
    """Multiple-choice head: a score of each continuation or answer, and a softmax over them.

    Each choice is a row, packed after the text as the second of two texts. For questions about a
    passage the text is passage and question, `f"{passage} {question}"`.

    Reference: Radford et al. 2018, section 3.3, "question answering and commonsense reasoning";
    Devlin et al. 2018, section 4.4.

    Args:
        encoder: An encoder whose tokenizer packs two texts into one row; it is trained in place
            unless `frozen`.
        labels: Numbers of the choices, `range(P)`; every example has P choices.
        tokenizer: The encoder's tokenizer; needed for texts.
        layers, pool, dropout, frozen, task_network: As in `Classifier`. Dropout drops the same
            elements for all choices of an example, as in GPT's released code.

    Call arguments:
        inputs: The encoder's inputs, with an axis of choices: (B, P, T).

    Returns:
        (B, P) logits.

    Raises:
        ValueError: If there are fewer than two choices, or the encoder does not support `pool`. In
            `predict` and `batches`: if an example has another number of choices.

    >>> from keras_plm.models import BERT
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"])
    >>> encoder = BERT(len(tokenizer), 1, 2, hidden_dim=4, intermediate_dim=8)
    >>> model = MultipleChoice(encoder, labels=range(2), tokenizer=tokenizer)
    >>> model.predict(["a"], choices=[["b", "c a"]], probabilities=True).shape
    (1, 2)
    """

    def __init__(
        self,
        encoder: Encoder,
        labels: Iterable[Any],
        tokenizer: SubwordTokenizer | None = None,
        layers: LayerChoice | None = None,
        pool: str | None = None,
        dropout: float = 0.1,
        frozen: bool = False,
        task_network: TaskNetwork | None = None,
        name: str = "multiple_choice",
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
    def check_labels(labels: Iterable[Any]) -> None:
        if len(labels) < 2 or list(labels) != list(range(len(labels))):
            raise ValueError(
                "Labels must be two or more choices numbered from 0, such as labels=range(4). "
                f"Received: labels={labels}"
            )

    @staticmethod
    def labels_of(examples: Sequence[Example]) -> list[Any]:
        return list(range(len(getattr(examples[0], "choices", None) or ())))

    @staticmethod
    def before_output(
        x: Tensor, mask: Tensor, reader: keras.Layer | None, pairs: bool | str = False
    ) -> Tensor:
        """Returns one vector per choice, (B, P, D)."""
        return x

    @staticmethod
    def output_of(
        x: Tensor,
        num_labels: int,
        dropout: float,
        reader: keras.Layer | None = None,
        inputs: dict[str, Tensor] | None = None,
    ) -> Tensor:
        x = keras.layers.SpatialDropout1D(dropout, name="dropout")(x)  # same for all choices
        dense = keras.layers.Dense(1, dtype=wide_dtype(x), name="logits")
        return ops.squeeze(dense(x), axis=-1)  # (B, P)

    def default_metrics(self) -> list[keras.metrics.Metric]:
        """Returns the default metrics of `compile`."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def batches(self, examples: Iterable[Any], **options) -> Batches:
        if not isinstance(examples, dict):
            examples, count = as_texts(examples, "examples"), len(self.labels)
            for i, example in enumerate(examples):
                choices = getattr(example, "choices", None)
                if choices is None or len(choices) != count:
                    raise ValueError(
                        f"Each example needs {count} choices: give `Example(text, label, "
                        "choices=[...])`, or give texts and `choices` to `predict`. "
                        f"Received: example {i} with {choices!r:.80}"
                    )
        return super().batches(examples, **options)

    @staticmethod
    def decode(
        labels: Iterable[Any], logits: Any, source: Any, probabilities: bool = False
    ) -> list[Any] | np.ndarray:
        """Returns the number of the chosen answer of each example."""
        logits = np.stack(logits)
        return softmax(logits) if probabilities else [int(i) for i in logits.argmax(axis=-1)]

    def get_config(self):
        config = {**super().get_config(), "pool": self.pool}
        return {k: v for k, v in config.items() if k not in ("reader", "words", "placement")}
