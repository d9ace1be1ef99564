"""GPT's objective: the next token.

Shapes: B rows, T tokens, D width, V tokens of the vocabulary.
"""

from collections.abc import Iterable, Sequence

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.data.corpus import TokenStream, check_stream
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import as_texts
from keras_plm.layers.embedding import rows_of
from keras_plm.layers.sampled_softmax import logsumexp_of_products, row_products
from keras_plm.models.encoder import Encoder, check_causal
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_tokenizer
from keras_plm.training.fit import FitsBatches, run_on
from keras_plm.training.losses import GivenLoss


@keras.saving.register_keras_serializable("keras_plm")
class TiedLoss(keras.layers.Layer):
    """Loss of tokens under a softmax of products with the embedding table.

    Memory holds the logits of a few positions at a time, for any T · V; the gradient recomputes
    them.

    Reference: Radford et al. 2018, equation 2: P(u) = softmax(h W_e^T).

    Args:
        token_embedding: A `TokenEmbedding`.

    Call arguments:
        hidden: (B, T, D).
        target_ids: (B, T).

    Returns:
        (B, T) -log p(token), float32.
    """

    def __init__(self, token_embedding, **kwargs):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding

    def call(self, hidden, target_ids):
        sizes = ops.shape(target_ids)
        x = ops.reshape(ops.cast(hidden, self.compute_dtype), (-1, hidden.shape[-1]))  # (B T, D)
        table = ops.convert_to_tensor(self.token_embedding.embeddings)
        wanted = rows_of(table, ops.cast(ops.reshape(target_ids, (-1,)), "int32"))
        wanted = row_products(x, wanted)
        total = logsumexp_of_products(x, ops.cast(table, x.dtype))
        return ops.reshape(total - wanted, sizes)

    def compute_output_spec(self, hidden, target_ids):
        return keras.KerasTensor(hidden.shape[:-1], dtype="float32")


@keras.saving.register_keras_serializable("keras_plm")
class TokenPerplexity(keras.metrics.Mean):
    """Perplexity of losses (B, T): e to their mean."""

    def __init__(self, name="perplexity", **kwargs):
        super().__init__(name=name, **kwargs)
        self._direction = "down"  # callbacks read that lower is better

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_pred, sample_weight=sample_weight)

    def result(self):
        return ops.exp(super().result())


@keras.saving.register_keras_serializable("keras_plm")
class CausalLM(FitsBatches, keras.Model):
    """GPT's pre-training: predicts the next token at every position.

    It is a Keras model. `compile(optimizer)` sets the loss and the perplexity per token. Train it
    on `causal_lm_batches`, or a causal `BERT` on `masked_lm_batches(left_to_right=True)`. Memory
    never holds the logits of all tokens.

    Reference: Radford et al. 2018, section 3.1.

    Args:
        encoder: A causal encoder with a `token_embedding`, such as `GPT`; it is trained in place.
        name: Name of the model.

    Call arguments:
        inputs: The encoder's inputs and `target_ids` (B, T), the next token at each position.

    Returns:
        (B, T) float32 losses -log p(token).

    Raises:
        ValueError: If the encoder has no `token_embedding`, or is not causal.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> model = CausalLM(GPT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16))
    >>> ids = np.array([[2, 5, 6, 3]])
    >>> inputs = {"token_ids": ids[:, :3], "padding_mask": ids[:, :3] > 0, "target_ids": ids[:, 1:]}
    >>> tuple(model(inputs).shape)
    (1, 3)
    """

    def __init__(self, encoder: Encoder, name: str | None = None):
        check_causal(encoder, "CausalLM")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        hidden = encoder(encoder.input)["sequence"]
        loss = TiedLoss(encoder.token_embedding, dtype=encoder.dtype_policy, name="tied_loss")
        outputs = loss(hidden, target_ids)
        super().__init__({**encoder.input, "target_ids": target_ids}, outputs, name=name)
        self.encoder = encoder
        self.dtype_policy = encoder.dtype_policy

    def compile(self, optimizer="adam", loss=None, weighted_metrics=None, **kwargs):
        """Configures training as `keras.Model.compile`, with mean loss and perplexity."""
        if loss is None:
            loss = GivenLoss()
        if weighted_metrics is None:
            weighted_metrics = [TokenPerplexity()]
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, "name": self.name}

    @classmethod
    def from_config(cls, config):
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        return cls(**{**config, "encoder": encoder})


def causal_lm_batches(
    stream: TokenStream,
    tokenizer: SubwordTokenizer,
    max_length: int = 128,
    training: bool = True,
    batch_size: int = 32,
    **options,
) -> Batches:
    """Creates `Batches` of contiguous text for `CausalLM`.

    Windows are full and do not overlap.

    Args:
        stream: A `keras_plm.data.corpus.TokenStream`.
        tokenizer: The tokenizer of the stream.
        max_length: Number of tokens T of a window.
        training: If True, shuffle windows, and shift their starts in every epoch.
        batch_size, **options: As in `keras_plm.data.batching.Batches`.

    Returns:
        `Batches` of x: `token_ids`, `padding_mask` and `target_ids` (B, T); y: `target_ids`.

    Raises:
        ValueError: If the tokenizer is not that of the stream, or the text is too short.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_plm.data import TokenStream
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = Path(folder, "text.txt").write_text("a b a\\nb b\\n\\nb a b\\n\\n" * 20)
    ...     stream = TokenStream.build(f"{folder}/text.txt", tokenizer, f"{folder}/stream", "lines")
    ...     found = causal_lm_batches(stream, tokenizer, max_length=8, batch_size=2)
    ...     x, y, weights = found[0]
    >>> x["token_ids"].shape, bool((x["token_ids"][:, 1:] == x["target_ids"][:, :-1]).all())
    ((2, 8), True)
    """
    check_stream(stream, tokenizer)
    tokens, seed = stream.tokens, options.get("seed", 0)
    check_whole(max_length, "max_length", least=1)
    whole = (len(tokens) - 1) // max_length
    count = len(tokens) // max_length - 1 if training else whole  # starts shift by up to a window
    if count < 1:
        raise ValueError(
            "The text must fill two windows in training, otherwise one window and the next token. "
            f"Received: {len(tokens)} tokens, max_length={max_length}, training={training}"
        )

    def shifted(rows, length, rng, epoch):
        start = int(np.random.default_rng([seed, epoch, 1]).integers(max_length))
        return collate(rows, length, rng, epoch, start)

    def collate(rows, length, rng, epoch, offset=0):
        places = offset + rows[:, None] * max_length + np.arange(max_length + 1)
        text = np.asarray(tokens[places], "int32")
        x = {
            "token_ids": text[:, :-1],
            "padding_mask": np.ones((len(rows), max_length), bool),
            "target_ids": text[:, 1:],
        }
        return x, text[:, 1:], np.ones(x["token_ids"].shape, "float32")

    found = Batches(
        np.full(count, max_length),
        shifted if training else collate,
        training=training,
        batch_size=batch_size,
        buckets=[max_length],
        **{"vocabulary_size": getattr(tokenizer, "text_size", len(tokenizer)), **options},
    )
    found.evaluation = np.full(whole, max_length), collate
    return found


def token_losses(
    encoder: Encoder,
    tokenizer: SubwordTokenizer,
    texts: Iterable[str | Sequence[str]],
    contexts: Iterable[str | Sequence[str]] | None = None,
    tokens_per_batch: int = 4096,
) -> list[np.ndarray]:
    """Computes the loss -log p(token) of every token of texts under a causal language model.

    Texts get no special tokens. The first token of a text without a context has no loss. GPT's
    zero-shot heuristics compare the mean losses: Radford et al. 2018, section 5, "zero-shot
    behaviors".

    Args:
        encoder: A `GPT` or another encoder of `CausalLM`.
        tokenizer: The encoder's tokenizer.
        texts: A list of texts.
        contexts: Text before each of `texts`, or `None`.
        tokens_per_batch: Number of rows of a batch times its length.

    Returns:
        A list of arrays (tokens of the text,), without the first token if there is no context.

    Raises:
        ValueError: If there are no texts, a text is empty or too long for the model, or the number
            of contexts differs.

    >>> from keras_plm.models import GPT
    >>> from keras_plm.tokenizers import BytePair
    >>> tokenizer = BytePair(["<unk>", "a</w>", "b</w>", *"ab"], [], scheme="gpt")
    >>> encoder = GPT(len(tokenizer), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> [losses.shape for losses in token_losses(encoder, tokenizer, ["a b", "b a b"])]
    [(1,), (2,)]
    """
    check_tokenizer(tokenizer)
    tokenizer = tokenizer.unframed() if hasattr(tokenizer, "unframed") else tokenizer
    texts = as_texts(texts)
    contexts = None if contexts is None else as_texts(contexts, "contexts")
    check_causal(encoder, "token_losses")
    if contexts is not None and len(contexts) != len(texts):
        raise ValueError(
            f"Every text needs one context. Received: {len(texts)} texts, contexts={contexts!r:.60}"
        )
    rows = tokenizer.encode(texts)
    before = None if contexts is None else tokenizer.encode(contexts)
    ids = [rows.token_ids[a:][:n] for a, n in zip(rows.starts, rows.lengths, strict=True)]
    firsts = [0] * len(ids)
    if before is not None:
        heads = [
            before.token_ids[a:][:n] for a, n in zip(before.starts, before.lengths, strict=True)
        ]
        firsts = [max(len(head) - 1, 0) for head in heads]
        ids = [np.concatenate(pair) for pair in zip(heads, ids, strict=True)]
    lengths = np.array([len(row) - 1 for row in ids])
    limit = encoder.max_sequence_length
    wrong = (rows.lengths < 1) | (lengths < 1) | (lengths > (limit or np.inf))
    if not len(ids) or wrong.any():
        found = texts[int(wrong.argmax())] if len(ids) else texts
        raise ValueError(
            "A text must have a token, or two without a context, and with its context at most "
            f"the model's {limit} positions. Received: {found!r:.60}"
        )

    def collate(chosen, length, rng, epoch):
        x = {
            "token_ids": np.zeros((len(chosen), length), "int32"),
            "target_ids": np.zeros((len(chosen), length), "int32"),
        }
        for i, row in enumerate(chosen):
            x["token_ids"][i, : lengths[row]] = ids[row][:-1]
            x["target_ids"][i, : lengths[row]] = ids[row][1:]
        x["padding_mask"] = np.arange(length) < lengths[chosen][:, None]
        if "segment_ids" in encoder.input:  # of a BERT
            x["segment_ids"] = np.zeros_like(x["token_ids"])
        return x, None, None

    batches = Batches(
        lengths,
        collate,
        training=False,
        tokens_per_batch=tokens_per_batch,
        longest=limit,
        fill_last=False,
    )
    found = [None] * len(ids)
    for chosen, losses in run_on(CausalLM(encoder), batches):
        for row, of_row in zip(chosen, losses, strict=True):
            found[row] = of_row[firsts[row] : lengths[row]]
    return found
