"""Writing token by token: greedy, sampling and beam search over any model with a step.

A model has a step when it has `start(inputs, max_length) -> (memory, state)` and
`step(token_ids, state, memory, index) -> (logits, state)`, see
`keras_plm.models.EncoderDecoder`. The whole loop is one compiled function per model and shape.

Shapes: B batch, K beams, V vocabulary, U steps that may be written.
"""

import inspect
import math
import numbers
import weakref

import keras
import numpy as np
from keras import ops

from keras_plm.data.batching import Batches
from keras_plm.files.sequences import as_texts, check_whole
from keras_plm.layers._fused import compiled
from keras_plm.tokenizers.subwords import check_start, check_tokenizer
from keras_plm.training.fit import check_outputs, check_vocabulary

IMPOSSIBLE = -1e30  # a score below all others, and finite
EXTRA_STEPS = 50  # Vaswani et al. 2017, section 6.1: at most the source's length + 50


class WithoutCache:
    """A step for any model of `target_ids`: everything written so far is read again each time.

    It is the plain definition of decoding, that `start` and `step` of a model must agree with, and
    takes the square of their time.

    Args:
        model: Maps `inputs` with `target_ids` (B, T) to logits (B, T, V); or an encoder that reads
            from left to right, as `GPT`.
    """

    def __init__(self, model):
        self.model = model
        self.variables = model.variables
        self.max_sequence_length = getattr(model, "max_sequence_length", None)
        self.causal = getattr(model, "causal", False)

    def start(self, inputs, max_length):
        batch = keras.tree.flatten(inputs)[0].shape[0]
        written = ops.zeros((batch, max_length), dtype="int32")
        if not self.causal:
            return inputs, written
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=1)
        prompts = ops.cast(inputs["token_ids"], "int32")
        places = ops.concatenate([prompts, written], axis=1)
        return {"lengths": lengths}, places[:, : self.max_sequence_length]

    def step(self, token_ids, state, memory, index):
        if self.causal:
            lengths = memory["lengths"][:, None] + index  # of what is there to be read
            places = ops.arange(state.shape[1], dtype="int32")
            new = ops.logical_and(index > 0, places == lengths - 1)
            state = ops.where(new, ops.cast(token_ids, "int32")[:, None], state)
            inputs = {"token_ids": state, "padding_mask": places < lengths}
            read = ops.take_along_axis(
                self.model(inputs)["sequence"], lengths[..., None] - 1, axis=1
            )
            return self.model.token_embedding(read, reverse=True)[:, 0], state
        state = ops.slice_update(state, (0, index), ops.cast(token_ids, "int32")[:, None])
        logits = self.model({**memory, "target_ids": state})  # (B, U, V)
        return ops.take(logits, index, axis=1), state


def greedy(model, inputs, start_id, end_id, max_length=None, pad_id=0, cache=True):
    """The likeliest token at every step.

    Args:
        model: A model with a step.
        inputs: What `model.start` reads, arrays with the batch first.
        start_id: Token that stands before the first.
        end_id: Token behind which a row is done.
        max_length: Most tokens of a row, the end token included; by default 50 more than the
            inputs have, of a model that goes on with its inputs 50.
        pad_id: Fills rows behind their end.
        cache: If False, everything is computed anew at each step, see `WithoutCache`.

    Returns:
        `(token_ids, scores)`: (B, U) with the end token where one was written, and (B,), the sum of
        log probabilities. NumPy arrays.

    Raises:
        ValueError: If `max_length` is less than 1 or more than the model's positions, or than are
            left behind the inputs.
    """
    uniform = np.zeros((0, 0), "float32")
    options = {"start_id": start_id, "end_id": end_id, "pad_id": pad_id}
    return _run(_write_rows, model, inputs, max_length, cache, options, lambda b, u: (uniform,))


def sample(
    model,
    inputs,
    start_id,
    end_id,
    max_length=None,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=0,
    pad_id=0,
    cache=True,
):
    """A random token at every step, drawn from the model's probabilities.

    One uniform number a token decides among the tokens sorted by probability, so that the same seed
    gives the same text on every backend.

    Reference: top-k: Fan et al. 2018, arXiv 1805.04833, section 5.4; top-p: Holtzman et al. 2020,
    arXiv 1904.09751, section 3.1.

    Args:
        temperature: What logits are divided by: below 1 bolder, above 1 more even.
        top_k: Only so many of the likeliest tokens, or `None` for all.
        top_p: Only the fewest likeliest tokens that hold this share (of what `top_k` leaves), or
            `None` for all.
        seed: Of the random numbers: an integer, or several.
        model, inputs, start_id, end_id, max_length, pad_id, cache: as in `greedy`.

    Returns:
        As `greedy`; scores are those of the model itself, at temperature 1 over all tokens.

    Raises:
        ValueError: If `temperature` is not positive, `top_k` less than 1, `top_p` no share above 0,
            or as in `greedy`.
    """
    if not isinstance(temperature, numbers.Real) or not 0 < temperature < math.inf:
        raise ValueError(f"`temperature` must be above 0. Received: temperature={temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be 1 or more. Received: top_k={top_k}")
    if top_p is not None and not (isinstance(top_p, numbers.Real) and 0 < top_p <= 1):
        raise ValueError(f"`top_p` is a share above 0, up to 1. Received: top_p={top_p}")
    options = {
        "start_id": start_id,
        "end_id": end_id,
        "pad_id": pad_id,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }

    def uniform(batch, steps):
        # A generator a row: its numbers depend neither on the other rows nor on `max_length`.
        rows = [np.random.default_rng([*np.atleast_1d(seed), row]) for row in range(batch)]
        return (np.stack([rng.random(steps, dtype="float32") for rng in rows]),)

    return _run(_write_rows, model, inputs, max_length, cache, options, uniform)


def beam_search(
    model,
    inputs,
    start_id,
    end_id,
    beams=4,
    length_penalty=0.6,
    max_length=None,
    pad_id=0,
    cache=True,
):
    """The best of K partial texts kept side by side.

    A text that ends among the K best of its step is finished; a row is done when K are. Finished
    texts are compared by `log P / ((5 + length) / 6) ** length_penalty`; without the penalty short
    ones win. With one beam it writes what `greedy` writes.

    Reference: length penalty: Wu et al. 2016, arXiv 1609.08144, section 7, equation 14; 4 beams and
    0.6: Vaswani et al. 2017, section 6.1.

    Args:
        beams: Number of beams K.
        length_penalty: Exponent α; 0 compares bare log probabilities.
        model, inputs, start_id, end_id, max_length, pad_id, cache: as in `greedy`.

    Returns:
        `(token_ids, scores)`: (B, K, U) and (B, K), best first; behind the finished texts those
        that reached `max_length` unfinished. NumPy arrays.

    Raises:
        ValueError: If `beams` is no whole number of 1 or more or `length_penalty` negative, or as
            in `greedy`.
    """
    if not isinstance(beams, int | np.integer) or beams < 1:
        raise ValueError(f"`beams` must be 1 or more, a whole number. Received: beams={beams}")
    if not isinstance(length_penalty, numbers.Real) or not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"`length_penalty` must be 0 or more. Received: length_penalty={length_penalty}"
        )
    options = {
        "start_id": start_id,
        "end_id": end_id,
        "pad_id": pad_id,
        "beams": beams,
        "length_penalty": length_penalty,
    }
    token_ids, scores, unfinished, of_unfinished = _run(
        _search_beams, model, inputs, max_length, cache, options, lambda b, u: ()
    )
    # Finished texts first, each kind by its score.
    finished = scores > IMPOSSIBLE / 2
    token_ids = np.concatenate([token_ids, unfinished], axis=1)
    scores = np.concatenate([scores, of_unfinished], axis=1)
    order = np.lexsort((-scores, np.concatenate([~finished, np.full_like(finished, True)], 1)))
    order = order[:, :beams]
    return (
        np.take_along_axis(token_ids, order[..., None], axis=1),
        np.take_along_axis(scores, order, axis=1),
    )


def generate(model, tokenizer, prompts, strategy=None, batch_size=64, **options):
    """Strings in, strings out: an encoder-decoder's answer, or how a language model goes on.

    Prompts of similar lengths are read together, padded to one of a few lengths.

    Args:
        model: A model with a step that reads `token_ids` and `padding_mask`: a `Seq2Seq`, a
            `Transformer`, a `GPT` or the `CausalLM` around one.
        tokenizer: The model's: for an encoder-decoder one with `start_id` and `end_id`, as
            `BytePair`. A language model's prompts are packed without special tokens; if its
            tokenizer has an `end_id`, as GPT-2's, a text ends there.
        prompts: A list of texts.
        strategy: `greedy`, `sample` or `beam_search`; by default `greedy` for a language model,
            else `beam_search`.
        batch_size: Prompts read together.
        **options: Of the strategy. With `sample` a text depends on the `seed` and on the place of
            its prompt among the others.

    Returns:
        A list of texts, the best for each prompt; of a language model the prompt and what follows.

    Raises:
        ValueError: If `prompts` is one string, a prompt is empty or leaves no room for what is to
            be written, the model reads fewer tokens, or the tokenizer has more ids than it, or one
            of the three is of another kind.
    """
    if not hasattr(model, "step"):
        model = getattr(model, "encoder", model)
    causal = getattr(model, "causal", False)
    if strategy is None:
        strategy = greedy if causal else beam_search
    prompts = as_texts(prompts, "prompts", words=False)
    if not callable(strategy):
        raise ValueError(
            "`strategy` is one of the functions `greedy`, `sample` and `beam_search`, without "
            f"quotes. Received: {strategy!r}"
        )
    _check_options(strategy, options)
    for name in ("max_length", "top_k"):
        if options.get(name) is not None:
            check_whole(options[name], name)
    check_whole(batch_size, "batch_size")
    empty = [i for i, prompt in enumerate(prompts) if not prompt.strip()]
    if empty:
        raise ValueError(f"A prompt must have text. Received: {prompts[empty[0]]!r} at {empty[0]}")
    if not prompts:
        return []
    if causal and hasattr(tokenizer, "unframed"):
        tokenizer = tokenizer.unframed()
    rows = _encode(model, tokenizer, prompts)
    if causal:
        options["max_length"] = _room(model, rows, prompts, options.get("max_length"))
    start_id = getattr(tokenizer, "start_id", 0)  # a language model has its prompt instead
    end_id = getattr(tokenizer, "end_id", -1)

    def collate(chosen, length, rng, epoch):
        token_ids = rows.padded("token_ids", chosen, length, pad=tokenizer.pad_id)
        mask = np.arange(length) < rows.lengths[chosen][:, None]
        return {"token_ids": token_ids, "padding_mask": mask}, None, None

    seed = options.get("seed", 0)
    batches = Batches(
        rows.lengths,
        collate,
        training=False,
        batch_size=min(batch_size, len(prompts)),
        longest=getattr(model, "max_sequence_length", None),
        fill_last=False,
    )
    texts = [""] * len(prompts)
    for i in range(len(batches)):
        if strategy is sample:  # or each batch would be drawn with the same numbers
            options["seed"] = [*np.atleast_1d(seed), i]
        token_ids, _ = strategy(
            model,
            batches[i][0],
            start_id,
            end_id,
            pad_id=tokenizer.pad_id,
            **options,
        )
        best = token_ids[:, 0] if token_ids.ndim == 3 else token_ids
        for row, written in zip(batches.rows(i), best, strict=True):
            if row >= 0:
                written = until_end(written, end_id)
                if causal:
                    before = rows.token_ids[rows.starts[row] :][: rows.lengths[row]]
                    whole = tokenizer.detokenize([*before, *written])
                    texts[row] = prompts[row] + whole[len(tokenizer.detokenize(before)) :]
                else:
                    texts[row] = tokenizer.detokenize(written)
    return texts


def _room(model, rows, prompts, max_length):
    """How many tokens can be written behind the longest prompt."""
    limit, longest = model.max_sequence_length, int(rows.lengths.argmax())
    if limit is None:
        return EXTRA_STEPS if max_length is None else max_length
    left = limit - int(rows.lengths[longest])
    if left < 1 or (max_length is not None and max_length > left):
        raise ValueError(
            f"Prompt and continuation have at most the model's {limit} positions. Received: "
            f"a prompt of length {rows.lengths[longest]}, {prompts[longest][:60]!r}, "
            f"max_length={max_length}"
        )
    return min(left, EXTRA_STEPS) if max_length is None else max_length


def _check_options(strategy, options):
    """Raises for options that a strategy of ours has not, and says which has."""
    known = {f: set(inspect.signature(f).parameters) for f in (greedy, sample, beam_search)}
    for name in options.keys() - known.get(strategy, options.keys()):
        others = [f"`strategy={f.__name__}`" for f, names in known.items() if name in names]
        hint = f"it is of {' and '.join(others)}" if others else "nor have others"
        raise ValueError(
            f"`{strategy.__name__}` has no option {name!r}, {hint}. "
            f"Received: {name}={options[name]!r}"
        )


def _encode(model, tokenizer, texts):
    """Token ids that the model can read."""
    if not hasattr(model, "step"):
        raise ValueError(
            "Only a model that writes token by token goes on with a text: a `Seq2Seq`, a "
            "`Transformer`, a `GPT` or your own with a `step`. "
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
            f"This model reads at most {limit} tokens: shorten or part the text. Received: "
            f"{rows.lengths[longest]} tokens in text {longest}, {texts[longest][:60]!r}"
        )
    return rows


def alignment(model, tokenizer, source, target=None, **options):
    """Where a model looks while it writes: what `keras_plm.plots.attention` draws.

    Args:
        model: A `Seq2Seq` with attention or a `Transformer`.
        tokenizer: Its tokenizer.
        source: One text.
        target: What is written; by default what `beam_search` finds.
        **options: Of `beam_search`.

    Returns:
        `(weights, target_pieces, source_pieces)`: weights (T, S), of a Transformer (L, N, T, S), a
        NumPy array, and two lists of strings, the end tokens included where they were written.

    Raises:
        ValueError: If a text is empty, longer than the model reads or no string, the tokenizer has
            more ids than the model, or the model has no attention.
    """
    if not isinstance(source, str) or not isinstance(target, str | None):
        raise ValueError(
            f"`source` and `target` are one text each. Received: {source!r} and {target!r}"
        )
    if not source.strip() or (target is not None and not target.strip()):
        raise ValueError(f"Both texts must have words. Received: {source!r} and {target!r}")
    _encode(model, tokenizer, [source])
    packed = tokenizer.pack([source])
    check_start(tokenizer)
    start_id, end_id = tokenizer.start_id, tokenizer.end_id
    if target is None:
        best = beam_search(model, packed, start_id, end_id, **options)[0][0, 0]
        written = best[: len(until_end(best, end_id)) + 1]
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


def until_end(token_ids, end_id):
    """The ids before the first `end_id`, all where there is none."""
    ends = np.flatnonzero(np.asarray(token_ids) == end_id)
    return token_ids[: ends[0]] if len(ends) else token_ids


# ---- the loops, of tensors only, so that every backend can compile them ----


def _write_rows(
    model, max_length, inputs, uniform, start_id, end_id, pad_id, temperature=1, top_k=None,
    top_p=None,
):  # fmt: skip
    """One text per row, greedy without random numbers: (B, U) ids and (B,) scores."""
    memory, state = model.start(inputs, max_length)
    batch = keras.tree.flatten(inputs)[0].shape[0]

    def unfinished(index, last, done, *_):
        return ops.logical_and(index < max_length, ops.logical_not(ops.all(done)))

    def write(index, last, done, token_ids, scores, state):
        logits, state = model.step(last, state, memory, index)
        logits = ops.cast(logits, "float32")
        if uniform.shape[0] == 0:
            chosen = ops.argmax(logits, axis=-1)
        else:
            chosen = _draw(logits, ops.take(uniform, index, axis=1), temperature, top_k, top_p)
        chosen = ops.cast(chosen, "int32")  # (B,)
        gained = ops.take_along_axis(ops.log_softmax(logits), chosen[:, None], axis=-1)[:, 0]
        scores = scores + ops.where(done, 0.0, gained)
        chosen = ops.where(done, pad_id, chosen)
        token_ids = ops.slice_update(token_ids, (0, index), chosen[:, None])
        return index + 1, chosen, ops.logical_or(done, chosen == end_id), token_ids, scores, state

    outputs = ops.while_loop(
        unfinished,
        write,
        (
            ops.convert_to_tensor(0, dtype="int32"),
            ops.full((batch,), start_id, dtype="int32"),
            ops.zeros((batch,), dtype="bool"),
            ops.full((batch, max_length), pad_id, dtype="int32"),
            ops.zeros((batch,), dtype="float32"),
            state,
        ),
    )
    return outputs[3], outputs[4]


def _draw(logits, uniform, temperature, top_k, top_p):
    """A token of each row: (B, V) logits and (B,) numbers from 0 to 1 to (B,) ids."""
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    best, ids = ops.top_k(logits / temperature, count)  # (B, count), likeliest first
    ends = ops.cumsum(ops.softmax(best, axis=-1), axis=-1)  # where each token's share ends
    last = count - 1
    if top_p is not None:
        # The fewest that hold the share: those that begin below it.
        last = ops.sum(ops.cast(ends[:, :-1] < top_p, "int32"), axis=-1)  # (B,)
        kept = ops.take_along_axis(ends, last[:, None], axis=-1)[:, 0]
    else:
        kept = ends[:, -1]
    place = ops.sum(ops.cast(ends <= (uniform * kept)[:, None], "int32"), axis=-1)
    return ops.take_along_axis(ids, ops.minimum(place, last)[:, None], axis=-1)[:, 0]


def _search_beams(model, max_length, inputs, start_id, end_id, pad_id, beams, length_penalty):
    """Finished texts (B, K, U) with scores (B, K), then the unfinished ones in the same way."""
    batch = keras.tree.flatten(inputs)[0].shape[0]
    # The source is read once; beams of one row stand side by side: (B * K, ...).
    memory, state = model.start(inputs, max_length)
    each = ops.arange(batch * beams) // beams
    memory, state = keras.tree.map_structure(lambda x: ops.take(x, each, axis=0), (memory, state))
    first_of_row = ops.arange(batch, dtype="int32")[:, None] * beams  # (B, 1)
    among_best = ops.arange(2 * beams) < beams

    def penalty(length):
        return ((5 + ops.cast(length, "float32")) / 6) ** length_penalty

    def best_of(scores, count, *columns):
        """The `count` best scores of each row (B, count), and their columns (B, n, ...)."""
        scores, places = ops.top_k(scores, count)
        of_texts = places[..., None]
        return scores, *(
            ops.take_along_axis(c, places if len(c.shape) == 2 else of_texts, axis=1)
            for c in columns
        )

    def unfinished(index, alive, alive_ids, found, found_ids, count, state):
        return ops.logical_and(index < max_length, ops.logical_not(ops.all(count >= beams)))

    def search(index, alive, alive_ids, found, found_ids, count, state):
        before = ops.take(alive_ids, ops.maximum(index - 1, 0), axis=2)  # (B, K)
        before = ops.where(index == 0, start_id, before)
        logits, state = model.step(ops.reshape(before, (-1,)), state, memory, index)
        logs = ops.log_softmax(ops.cast(logits, "float32"))
        vocabulary = logs.shape[-1]
        totals = alive[..., None] + ops.reshape(logs, (batch, beams, vocabulary))
        # Twice as many as beams, so that enough go on if all of the best end here.
        totals, flat = ops.top_k(ops.reshape(totals, (batch, -1)), 2 * beams)
        flat = ops.cast(flat, "int32")
        parents, tokens = flat // vocabulary, flat % vocabulary  # (B, 2 K)
        texts = ops.take_along_axis(alive_ids, parents[..., None], axis=1)  # (B, 2 K, U)
        texts = ops.slice_update(texts, (0, 0, index), tokens[..., None])

        ended = tokens == end_id
        finishes = ops.logical_and(ended, among_best)
        finishes = ops.logical_and(finishes, totals > IMPOSSIBLE / 2)
        finishes = ops.logical_and(finishes, (count < beams)[:, None])
        count = count + ops.sum(ops.cast(finishes, "int32"), axis=-1)
        scores = ops.where(finishes, totals / penalty(index + 1), IMPOSSIBLE)
        found, found_ids = best_of(
            ops.concatenate([found, scores], axis=1),
            beams,
            ops.concatenate([found_ids, texts], axis=1),
        )
        alive, alive_ids, parents = best_of(
            ops.where(ended, IMPOSSIBLE, totals), beams, texts, parents
        )
        rows = ops.reshape(first_of_row + parents, (-1,))
        state = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)
        return index + 1, alive, alive_ids, found, found_ids, count, state

    empty = ops.full((batch, beams, max_length), pad_id, dtype="int32")
    nothing = ops.full((batch, beams), IMPOSSIBLE, dtype="float32")
    # One beam at first: K equal ones would stay equal.
    one = ops.concatenate([ops.zeros((batch, 1)), nothing[:, 1:]], axis=1)
    count = ops.zeros((batch,), dtype="int32")
    index = ops.convert_to_tensor(0, dtype="int32")
    outputs = ops.while_loop(unfinished, search, (index, one, empty, nothing, empty, count, state))
    index, alive, alive_ids, found, found_ids, *_ = outputs
    return found_ids, found, alive_ids, alive / penalty(index)


_COMPILED = weakref.WeakKeyDictionary()


def _run(function, model, inputs, max_length, cache, options, extra):
    """Calls one of the loops, compiled once for each model and options."""
    needed = {"token_ids", "padding_mask"} if getattr(model, "causal", False) else set()
    if not isinstance(inputs, dict) or not needed <= inputs.keys():
        raise TypeError(
            "`inputs` must be a dict of arrays, as `tokenizer.pack(texts)` gives; for texts call "
            f"`generate`. Received: inputs={inputs!r:.60} of type {type(inputs).__name__}"
        )
    inputs = {name: np.asarray(array) for name, array in inputs.items() if name != "target_ids"}
    batch, length = keras.tree.flatten(inputs)[0].shape[:2]
    limit = getattr(model, "max_sequence_length", None)
    if getattr(model, "causal", False):  # the inputs are the beginning of what is written
        if not inputs["padding_mask"].any(axis=1).all():
            raise ValueError("A prompt has 1 token or more. Received: a row of padding alone")
        length = int(inputs["padding_mask"].sum(axis=1).max())
        max_length = EXTRA_STEPS if max_length is None else max_length
        if max_length < 1 or (limit is not None and max_length + length > limit):
            most = f", and at most what the inputs leave of the model's {limit} positions"
            raise ValueError(
                f"`max_length` is at least 1{most if limit else ''}. "
                f"Received: max_length={max_length}, inputs of length {length}"
            )
    elif max_length is None:
        max_length = length + EXTRA_STEPS if limit is None else min(length + EXTRA_STEPS, limit)
    if max_length < 1 or (limit is not None and max(max_length, length) > limit):
        most = "" if limit is None else f" and at most the model's {limit} positions"
        raise ValueError(
            f"`max_length` and the inputs have at least 1 token{most}. "
            f"Received: max_length={max_length}, inputs of length {length}"
        )
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()  # within a `fit`
    known = _COMPILED.setdefault(model, {})
    # Other variables (LoRA, say) are another function: on JAX it is given their values.
    variables = tuple(id(variable) for variable in model.variables)
    key = (function, max_length, cache, variables, *sorted(options.items()))
    if key not in known:
        # Not `model` itself, which would keep the model alive in its own entry.
        reference = weakref.ref(model)

        def loop(inputs, *arrays):
            inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
            arrays = [ops.convert_to_tensor(array) for array in arrays]
            stepping = reference() if cache else WithoutCache(reference())
            return function(stepping, max_length, inputs, *arrays, **options)

        known[key] = compiled(loop, model.variables)
    outputs = known[key](inputs, *extra(batch, max_length))
    outputs = tuple(ops.convert_to_numpy(x) for x in outputs)
    for array in outputs:
        check_outputs(array[np.isnan(array)])
    return outputs
