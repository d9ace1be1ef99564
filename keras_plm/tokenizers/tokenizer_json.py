"""Files `tokenizer.json` of the package `tokenizers`: reading and checks."""

import contextlib
import json

import tokenizers

from keras_plm.files.sequences import as_list


def numbered(vocabulary, special_tokens, kind):
    """Token -> id, after checking the tokens."""
    vocabulary = as_list(vocabulary, "vocabulary", "tokens")
    missing = [token for token in special_tokens if token not in vocabulary]
    if missing:
        raise ValueError(
            f"A {kind} vocabulary must hold {' '.join(special_tokens)}. "
            f"Received: {len(vocabulary)} tokens without {' '.join(missing)}"
        )
    ids = {token: i for i, token in enumerate(vocabulary)}
    if len(ids) < len(vocabulary):
        double = next(p for i, p in enumerate(vocabulary) if ids[p] != i)
        raise ValueError(
            "Every token of a vocabulary must stand once. "
            f"Received: {double!r} at line {vocabulary.index(double) + 1} "
            f"and line {ids[double] + 1}"
        )
    return ids


@contextlib.contextmanager
def naming(path, kind):
    """Errors of a damaged or foreign JSON file name it."""
    try:
        yield
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"A saved tokenizer is a JSON file with a {kind} model. Received: {path} ({error})"
        ) from error


def read_saved(text):
    """The parts of a `tokenizer.json`, each with all its settings.

    Raises:
        TypeError: If it is none of the `tokenizers` package.
    """
    saved = json.loads(text)
    try:
        whole = json.loads(tokenizers.Tokenizer.from_str(text).to_str())
    except Exception as error:  # the package has no kind of its own
        raise TypeError(f"the package `tokenizers` says: {error}") from error
    model = {**saved["model"], **whole["model"]}
    # The package numbers added tokens anew where their ids do not fit.
    return {**whole, "model": model, "added_tokens": saved.get("added_tokens") or []}


def saved_vocabulary(model, kind):
    if model["type"] != kind:
        raise KeyError("type")
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    gap = next((i for i, token in enumerate(tokens) if model["vocab"][token] != i), None)
    if gap is not None:
        raise ValueError(
            "The ids of a saved vocabulary must run from 0 without a gap. "
            f"Received: {model['vocab'][tokens[gap]]} for {tokens[gap]!r} instead of {gap}"
        )
    return tokens


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def added_settings(tokens, special=False):
    """Content -> all settings of added tokens, which are strings or dicts with some of them.

    Raises:
        ValueError: If one is empty, stands twice, or has an unknown setting.
    """
    found = {}
    for token in tokens:
        token = {"content": token} if isinstance(token, str) else dict(token)
        token.pop("id", None)
        special_one = token.get("special", special)
        settings = {**dict.fromkeys(FLAGS, False), "normalized": not special_one, **token}
        settings["special"] = special_one
        content = settings.get("content")
        if not content or content in found or len(settings) > len(FLAGS) + 1:
            raise ValueError(
                f"An added token has a content of its own and the settings {', '.join(FLAGS)}. "
                f"Received: {token}"
            )
        found[content] = settings
    return found


def check_component(path, saved, name, *known):
    """Raises unless a component of a `tokenizer.json` is one of these: `None`, or the package's."""
    known = [None if part is None else json.loads(part.__getstate__()) for part in known]
    if saved[name] not in known:
        raise ValueError(
            f"{path}: the component `{name}` must be {' or '.join(map(json.dumps, known))}. "
            f"Received: {json.dumps(saved[name]):.500}"
        )


def check_shared(path, saved, tokenizer):
    """Raises unless a `tokenizer.json` cuts text as a tokenizer of the package does."""
    ours = json.loads(tokenizer.to_str())
    for name in ("normalizer", "pre_tokenizer", "model"):
        theirs, known = saved[name], ours[name]
        if name == "model":
            known = {key: value for key, value in known.items() if key not in ("vocab", "merges")}
            theirs = {key: theirs.get(key) or None for key in known}
            known = {key: value or None for key, value in known.items()}
        if theirs != known:
            raise ValueError(
                f"{path}: the component `{name}` must be {json.dumps(known)}. Received: "
                f"{json.dumps(theirs):.500}"
            )


def check_lengths(path, saved, pad_id):
    """Raises if a `tokenizer.json` cuts texts at their beginning, or pads with another token."""
    truncation, padding = saved["truncation"] or {}, saved["padding"] or {}
    if truncation.get("direction", "Right") != "Right":
        raise ValueError(
            f"{path}: the component `truncation` must cut a text at its end. "
            f"Received: direction={truncation['direction']!r}"
        )
    if padding and padding["pad_id"] != pad_id:
        raise ValueError(
            f"{path}: the component `padding` must pad with the id {pad_id} of the padding token. "
            f"Received: pad_id={padding['pad_id']}, pad_token={padding['pad_token']!r}"
        )


def check_added_ids(path, tokens, tokenizer):
    """Raises unless added tokens have the ids that a file gives them."""
    for token in tokens:
        found = tokenizer._vocabulary.get(token["content"])
        if token.get("id", found) != found:
            raise ValueError(
                f"{path}: added tokens must be in the vocabulary, or follow it without a gap. "
                f"Received: {token['id']} for {token['content']!r} instead of {found}"
            )
