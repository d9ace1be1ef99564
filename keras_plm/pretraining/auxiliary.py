"""GPT's auxiliary objective: joint training of a language model and a task.

Shapes: B examples, P rows of an example, T tokens, D width.
"""

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.heads.head import Head
from keras_plm.models.encoder import check_causal
from keras_plm.pretraining.causal_lm import TiedLoss
from keras_plm.training.fit import FitsBatches
from keras_plm.training.losses import GivenLoss


@keras.saving.register_keras_serializable("keras_plm")
class TextLoss(keras.layers.Layer):
    """Mean language-model loss of each example's tokens.

    All tokens of a row but the first are predicted, including special ones. An example's loss is
    the mean over its tokens; with several rows, the mean over rows, as in GPT's released code.

    Args:
        token_embedding: A `TokenEmbedding`; its table gives the logits.
        rows: Number of rows P of an example.

    Call arguments:
        hidden: (P B, T, D), the first rows of all examples before the second ones.
        token_ids, padding_mask: (P B, T).

    Returns:
        (B,) float32.
    """

    def __init__(self, token_embedding, rows=1, **kwargs):
        super().__init__(**kwargs)
        self.loss = TiedLoss(token_embedding, dtype=self.dtype_policy, name="tied_loss")
        self.rows = rows

    def build(self, hidden_shape, token_ids_shape=None, padding_mask_shape=None):
        self.loss.build(hidden_shape)

    def call(self, hidden, token_ids, padding_mask):
        losses = self.loss(hidden[:, :-1], token_ids[:, 1:])  # (P B, T - 1)
        real = ops.cast(padding_mask[:, 1:], losses.dtype)
        losses = ops.sum(losses * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
        return ops.mean(ops.reshape(losses, (self.rows, -1)), axis=0)

    def compute_output_spec(self, hidden, token_ids, padding_mask):
        return keras.KerasTensor((None,), dtype="float32")


@keras.saving.register_keras_serializable("keras_plm")
class WithLanguageModel(FitsBatches, keras.Model):
    """Joint training of a head and the language model of its encoder: L3 = L2 + λ L1.

    The head is trained in place. The language model is only used in training.

    Reference: Radford et al. 2018, section 3.2, equation 5.

    Args:
        head: A head over a causal encoder with a `token_embedding`.
        weight: Weight λ of the language model's loss.
        name: Name of the model.

    Call arguments:
        inputs: Inputs of the head.

    Returns:
        A dict: `task`, the outputs of the head, and `language_model`, (B,) losses.

    Raises:
        ValueError: If the encoder cannot predict the next token, or the head reads documents.

    >>> from keras_plm.heads import Classifier
    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> model = WithLanguageModel(Classifier(encoder, labels=["no", "yes"]))
    >>> sorted(model.output)
    ['language_model', 'task']
    """

    def __init__(self, head: Head, weight: float = 0.5, name: str | None = None):
        encoder = head.encoder
        check_causal(encoder, "WithLanguageModel")
        if head.reads_documents:
            raise ValueError(
                "The language model reads texts, not documents in windows: train the head alone. "
                f"Received: a {type(head).__name__}"
            )
        texts, hidden = head.encoded
        shape = head.input["token_ids"].shape
        loss = TextLoss(
            encoder.token_embedding,
            1 if len(shape) == 2 else shape[1],
            dtype=encoder.dtype_policy,
            name="language_model",
        )
        language_model = loss(hidden, texts["token_ids"], texts["padding_mask"])
        outputs = {"task": head.output, "language_model": language_model}
        super().__init__(head.input, outputs, name=name)
        self.head, self.encoder, self.weight = head, encoder, weight

    def compile(self, optimizer="adam", loss=None, **kwargs):
        """Configures training as `keras.Model.compile`, with `loss` for the head."""
        losses = {"task": loss or self.head.default_loss(), "language_model": GivenLoss()}
        weights = {"task": 1.0, "language_model": self.weight}
        super().compile(optimizer=optimizer, loss=losses, loss_weights=weights, **kwargs)

    def _compile_again(self, config):
        config = {name: value for name, value in config.items() if name != "loss_weights"}
        self.compile(**{**config, "loss": config["loss"]["task"]})  # which sets the weights

    def get_config(self):
        head = keras.saving.serialize_keras_object(self.head)
        return {"head": head, "weight": self.weight, "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "head": keras.saving.deserialize_keras_object(config["head"])})

    def batches(self, source: Batches) -> Batches:
        """Adds targets of the language model to `Batches` of the head."""
        collate = source.collate

        def both(rows, length, rng, epoch):
            x, y, weights = collate(rows, length, rng, epoch)
            ones = np.ones(len(rows), "float32")
            weights = np.ones(len(y), "float32") if weights is None else weights
            y = {"task": y, "language_model": np.zeros(len(rows), "float32")}
            return x, y, {"task": weights, "language_model": ones}

        return source.collated_by(both)
