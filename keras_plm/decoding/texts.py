"""Decoding of texts: `generate`, and `alignment`, the attention of a translation."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.decoding._run import EXTRA_TOKENS, check_max_new_tokens, check_stop_token_ids
from keras_plm.decoding.strategies import beam_search, greedy, sample
from keras_plm.files.arguments import check_whole
from keras_plm.files.sequences import as_texts
from keras_plm.tokenizers.subwords import SubwordTokenizer, check_start, check_tokenizer
from keras_plm.training.fit import check_vocabulary


def generate(
    model: keras.Model,
    tokenizer: SubwordTokenizer,
    prompts: Iterable[str],
    strategy: Callable[..., Any] | None = None,
    batch_size: int = 64,
    **options,
) -> list[str]:
    """Generates texts: translations of an encoder-decoder, continuations of a language model.

    Batches contain prompts of similar lengths, padded to one of a few lengths.

    Args:
        model: A model with `decode_step` that reads `token_ids` and `padding_mask`: a `Seq2Seq`, a
            `Transformer`, a `GPT` or the `CausalLM` of one.
        tokenizer: The model's tokenizer; for an encoder-decoder with `start_id` and `end_id`, such
            as `BytePair`. Prompts of a language model have no special tokens.
        prompts: A list of texts.
        strategy: `greedy`, `sample` or `beam_search`; by default `greedy` for a language model,
            otherwise `beam_search`.
        batch_size: Number of prompts per batch.
        **options: Options of the strategy. By default a text ends at the tokenizer's `end_id`. With
            `sample` a text depends on the `seed` and on the position of its prompt. Without
            `max_new_tokens`, `beam_search` may choose another text next to longer prompts.

    Returns:
        A list with the best text for each prompt; for a language model the prompt and its
        continuation.

    Raises:
        TypeError: If a number is not a whole number, or the tokenizer is of another kind.
        ValueError: If `prompts` is one string, a prompt is empty or too long, the tokenizer has
            more ids than the model, or the strategy or an option is unknown.

    >>> from keras_plm.models import GPT
    >>> from keras_plm.tokenizers import BytePair
    >>> tokenizer = BytePair(["<unk>", "a</w>", "b</w>", *"ab"], [], scheme="gpt")
    >>> model = GPT(len(tokenizer), 1, 2, hidden_dim=8, intermediate_dim=16)
    >>> texts = generate(model, tokenizer, ["a b", "b"], max_new_tokens=3)
    >>> len(texts), texts[0].startswith("a b")
    (2, True)
    """
    if not hasattr(model, "decode_step"):
        model = getattr(model, "encoder", model)
    causal = getattr(model, "causal", False)
    if strategy is None:
        strategy = greedy if causal else beam_search
    prompts = as_texts(prompts, "prompts", words=False)
    _check_options(strategy, options)
    check_whole(batch_size, "batch_size")
    empty = [i for i, prompt in enumerate(prompts) if not prompt.strip()]
    if empty:
        raise ValueError(f"A prompt must have text. Received: {prompts[empty[0]]!r} at {empty[0]}")
    if not prompts:
        return []
    if causal and hasattr(tokenizer, "unframed"):
        tokenizer = tokenizer.unframed()
    rows = _encode(model, tokenizer, prompts)
    longest, own_length = int(rows.lengths.argmax()), options.get("max_new_tokens") is None
    length = int(rows.lengths[longest])
    named = f"a prompt of length {length}, {prompts[longest][:60]!r}"
    options["max_new_tokens"] = check_max_new_tokens(
        model, length, options.get("max_new_tokens"), named
    )
    options = {
        "start_token_id": getattr(tokenizer, "start_id", 0),
        "stop_token_ids": getattr(tokenizer, "end_id", ()),
        "pad_id": tokenizer.pad_id,
        **options,
    }
    batches = _prompt_batches(rows, min(batch_size, len(prompts)), model, tokenizer.pad_id)
    texts, seed = [""] * len(prompts), options.get("seed", 0)
    for i in range(len(batches)):
        if strategy is sample:  # the numbers of a text depend only on the seed and its position
            options["seed"] = [[*np.atleast_1d(seed), 0, max(row, 0)] for row in batches.rows(i)]
        token_ids, _ = strategy(model, batches[i][0], **options)
        best = token_ids.reshape(len(token_ids), -1, token_ids.shape[-1])[:, 0]
        for row, written in zip(batches.rows(i), best, strict=True):
            if row < 0:  # padding of the batch
                continue
            written = until_stop(written, options["stop_token_ids"])
            if own_length and not causal:  # a longer prompt allows others no more tokens
                written = written[: rows.lengths[row] + EXTRA_TOKENS]
            if causal:
                prompt_ids = rows.token_ids[rows.starts[row] :][: rows.lengths[row]]
                texts[row] = prompts[row] + _continuation(tokenizer, prompt_ids, written)
            else:
                texts[row] = tokenizer.detokenize(written)
    return texts


def _continuation(tokenizer, prompt_ids, written):
    """Returns the text of new tokens, with the space before it, if any."""
    whole = tokenizer.detokenize([*prompt_ids, *written])
    return whole[len(tokenizer.detokenize(prompt_ids)) :]


def _prompt_batches(rows, batch_size, model, pad_id):
    def collate(chosen, length, rng, epoch):
        token_ids = rows.padded("token_ids", chosen, length, pad=pad_id)
        mask = np.arange(length) < rows.lengths[chosen][:, None]
        return {"token_ids": token_ids, "padding_mask": mask}, None, None

    return Batches(
        rows.lengths,
        collate,
        training=False,
        batch_size=batch_size,
        longest=getattr(model, "max_sequence_length", None),
        fill_last=False,
    )


def _check_options(strategy, options):
    """Raises unless a strategy is a function with these options."""
    if not callable(strategy):
        raise ValueError(
            "`strategy` must be one of the functions `greedy`, `sample` and `beam_search`, without "
            f"quotes. Received: {strategy!r}"
        )
    known = {f: set(inspect.signature(f).parameters) for f in (greedy, sample, beam_search)}
    for name in options.keys() - known.get(strategy, options.keys()):
        others = [f"`strategy={f.__name__}`" for f, names in known.items() if name in names]
        hint = f"which needs {' or '.join(others)}" if others else "nor has any other strategy"
        raise ValueError(
            f"`{strategy.__name__}` has no option {name!r}, {hint}. "
            f"Received: {name}={options[name]!r}"
        )
    for name in ("max_new_tokens", "top_k"):
        if options.get(name) is not None:
            check_whole(options[name], name)


def _encode(model, tokenizer, texts):
    """Returns the token ids of texts; raises unless the model can read them."""
    if not hasattr(model, "decode_step"):
        raise ValueError(
            "Texts need a model that decodes token by token: a `Seq2Seq`, a `Transformer`, a `GPT` "
            "or your own with `prefill` and `decode_step`. "
            f"Received: {type(model).__name__}"
        )
    check_tokenizer(tokenizer)
    if not getattr(model, "causal", False):
        check_start(tokenizer)
    check_vocabulary(model, len(tokenizer))
    rows = tokenizer.encode(texts)
    limit = getattr(model, "max_sequence_length", None)
    if limit is not None and rows.lengths.max() > limit:
        longest = int(rows.lengths.argmax())
        raise ValueError(
            f"A text for this model must have at most {limit} tokens: shorten or split it. "
            f"Received: {rows.lengths[longest]} tokens in text {longest}, {texts[longest][:60]!r}"
        )
    return rows


def alignment(
    model: keras.Model,
    tokenizer: SubwordTokenizer,
    source: str,
    target: str | None = None,
    **options,
) -> tuple[np.ndarray, list[str], list[str]]:
    """Computes attention weights of generated text, for `keras_plm.plots.attention`.

    Args:
        model: A `Seq2Seq` with attention or a `Transformer`.
        tokenizer: The model's tokenizer.
        source: One text.
        target: The generated text; by default the best of `beam_search`.
        **options: Options of `beam_search`.

    Returns:
        `(weights, target_tokens, source_tokens)`: a NumPy array (T, S), for a Transformer
        (L, N, T, S), and two lists of strings, including end tokens.

    Raises:
        ValueError: If a text is empty, too long or not a string, the tokenizer has more ids than
            the model, or the model has no attention.

    >>> from keras_plm.models import Seq2Seq
    >>> from keras_plm.tokenizers import BytePair
    >>> tokenizer = BytePair(["[PAD]", "[UNK]", "[BOS]", "[EOS]", " ", "a", "b"], merges=[])
    >>> model = Seq2Seq(len(tokenizer), embedding_dim=4, hidden_dim=6)
    >>> weights, target, source = alignment(model, tokenizer, "a", target="b")
    >>> weights.shape == (len(target), len(source))
    True
    """
    if not isinstance(source, str) or not isinstance(target, str | None):
        raise ValueError(
            f"`source` and `target` must be one text each. Received: {source!r} and {target!r}"
        )
    if not source.strip() or (target is not None and not target.strip()):
        raise ValueError(f"Both texts must have words. Received: {source!r} and {target!r}")
    _encode(model, tokenizer, [source])
    packed = tokenizer.pack([source])
    check_start(tokenizer)
    start_id, end_id = tokenizer.start_id, tokenizer.end_id
    if target is None:
        best = beam_search(model, packed, start_id, end_id, **options).token_ids[0, 0]
        written = best[: len(until_stop(best, end_id)) + 1]
    else:
        written = _encode(model, tokenizer, [target]).token_ids
    inputs = {**packed, "target_ids": np.array([[start_id, *written[:-1]]], "int32")}
    inputs = {name: ops.convert_to_tensor(inputs[name]) for name in model.input}
    weights = model.attention_weights(inputs)
    if isinstance(weights, dict):
        weights = ops.stack(weights["cross"], axis=1)  # (1, L, N, T, S)
    names = tokenizer.vocabulary
    return (
        ops.convert_to_numpy(ops.cast(weights, "float32"))[0],
        [names[i] for i in written],
        [names[i] for i in packed["token_ids"][0]],
    )


def until_stop(
    token_ids: Sequence[int] | np.ndarray, stop_token_ids: int | Sequence[int]
) -> Sequence[int] | np.ndarray:
    """Returns the token ids before the first stop token.

    Args:
        token_ids: Ids of one row.
        stop_token_ids: Id, or several ids, at the end of a text.

    Returns:
        A part of `token_ids`; all of them if there is no stop token.

    >>> until_stop([5, 6, 2, 0], 2)
    [5, 6]
    """
    stops = np.flatnonzero(np.isin(token_ids, check_stop_token_ids(stop_token_ids)))
    return token_ids[: stops[0]] if len(stops) else token_ids
