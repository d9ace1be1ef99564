"""Attention weights of an encoder of Transformer blocks.

Shapes: B batch, L layers, N heads, T tokens, W words.
"""

from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_plm.files.sequences import Tensor
from keras_plm.layers import TransformerStack
from keras_plm.models.encoder import Encoder
from keras_plm.tokenizers.subwords import SubwordTokenizer
from keras_plm.training.fit import lacks_special_tokens


def attention_weights(encoder: Encoder, inputs: Mapping[str, Tensor]) -> np.ndarray:
    """Computes the attention weights of every layer and head.

    The encoder runs once. Its blocks then run again with an explicit softmax.

    Args:
        encoder: A `BERT`, a `GPT`, or another model with one `TransformerStack`.
        inputs: Inputs of the encoder, as from `tokenizer.pack`, each (B, T).

    Returns:
        (B, L, N, T, T), a NumPy array: weights of all tokens (last axis) for each token. Rows sum
        to 1; those of padding are undefined.

    Raises:
        ValueError: If the encoder is not made of Transformer blocks.

    >>> import numpy as np
    >>> from keras_plm.models import GPT
    >>> encoder = GPT(13, num_layers=3, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> ids = np.array([[2, 5, 6, 3]])
    >>> weights = attention_weights(encoder, {"token_ids": ids, "padding_mask": ids > 0})
    >>> weights.shape, round(float(weights[0, 0, 0, 0, 0]), 3)
    ((1, 3, 2, 4, 4), 1.0)
    """
    stack = _stack(encoder)
    inputs = {name: ops.convert_to_tensor(inputs[name]) for name in encoder.input}
    embedded = encoder(inputs)["layers"][0]  # inputs of the blocks
    # As in the encoder's call: causal blocks need no padding mask, because padding comes last.
    mask = None if encoder.causal else inputs["padding_mask"]
    weights, _ = stack.attention_weights(embedded, padding_mask=mask, causal=encoder.causal)
    weights = [ops.convert_to_numpy(ops.cast(layer, "float32")) for layer in weights]
    return np.stack(weights, axis=1)


def _stack(encoder):
    found = [x for x in getattr(encoder, "layers", ()) if isinstance(x, TransformerStack)]
    if len(found) != 1:
        raise ValueError(
            "Attention weights need an encoder of Transformer blocks, such as BERT or GPT. "
            f"Received: {type(encoder).__name__}"
        )
    return found[0]


def word_attention(
    encoder: Encoder, tokenizer: SubwordTokenizer, text: str
) -> tuple[np.ndarray, list[str]]:
    """Computes attention weights between the words of a text, for `keras_plm.plots.attention`.

    The weights from a word are the mean over its tokens; the weights to a word are the sum. Special
    tokens count as words.

    Reference: Clark et al. 2019, arXiv 1906.04341, section 4.1.

    Args:
        encoder: As in `attention_weights`.
        tokenizer: The encoder's tokenizer.
        text: One text.

    Returns:
        `(weights, words)`: (L, N, W, W), a NumPy array, and W strings.

    Raises:
        ValueError: If the encoder has no Transformer blocks, or the text is not a string, is empty
            or too long.

    >>> from keras_plm.models import BERT
    >>> from keras_plm.tokenizers import WordPiece
    >>> tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do", "it"])
    >>> encoder = BERT(len(tokenizer), 1, 2, hidden_dim=4, intermediate_dim=8)
    >>> weights, words = word_attention(encoder, tokenizer, "undo it")
    >>> weights.shape, words
    ((1, 2, 4, 4), ['[CLS]', 'undo', 'it', '[SEP]'])
    """
    _stack(encoder)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"`text` must be one text with words in it. Received: {text!r}")
    # Before fine-tuning, a GPT has no vectors for the special tokens around a text.
    if lacks_special_tokens(encoder, tokenizer):
        tokenizer = tokenizer.unframed()
    packed = tokenizer.pack([text], return_offsets=True)
    length = packed["token_ids"].shape[1]
    limit = encoder.max_sequence_length
    if limit is not None and length > limit:
        raise ValueError(f"The encoder reads {limit} tokens at most. Received: a text of {length}")
    weights = attention_weights(encoder, packed)[0]  # (L, N, T, T)
    words, owners, last = [], [], -1
    rows = (packed[name][0] for name in ("token_ids", "word_ids", "offsets"))
    for token, word, (start, end) in zip(*rows, strict=True):
        if word < 0:
            words.append(tokenizer.vocabulary[token])
        elif word != last:
            begin = start
            words.append(text[start:end])
        else:
            words[-1] = text[begin:end]
        owners.append(len(words) - 1)
        last = word
    member = np.eye(len(words), dtype="float32")[owners]  # (T, W)
    mean = member / member.sum(axis=0)
    return np.einsum("tw,lntu,uv->lnwv", mean, weights, member), words
