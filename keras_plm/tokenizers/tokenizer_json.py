"""Files `tokenizer.json` of the package `tokenizers`: their shapes and other checks."""

import contextlib
import json

import tokenizers

from keras_plm.files.arguments import explains
from keras_plm.files.json_files import OneOf, Whole, check_shape, shown
from keras_plm.files.sequences import as_list

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")

# Shapes, see `keras_plm.files.json_files`. Ids are int32.
ID = Whole(most=2**31 - 1)
VOCABULARY = {str: ID}
ADDED_TOKEN = {"content": str, **{f"{flag}?": bool for flag in FLAGS}}


def saved_shape(kind, **model):
    """Returns the shape of a `tokenizer.json` with a kind of model and more keys of the model."""
    return {
        "model": {"type?": OneOf((kind,)), "vocab": VOCABULARY, **model},
        "added_tokens?": ([{**ADDED_TOKEN, "id": ID}], None),
        **{f"{name}?": (dict, None) for name in COMPONENTS},
    }


def check_saved(saved, shape, path):
    """Raises unless the object of a `tokenizer.json` has a shape; it checks the kind first."""
    kind = {key: one for key, one in shape["model"].items() if key in ("type", "type?")}
    check_shape(saved, {"model": kind}, path)
    check_shape(saved, shape, path)


@contextlib.contextmanager
def naming(path):
    """Adds a file's name to the start of errors about arguments from it."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def refused(rule):
    """Converts errors of the package `tokenizers` in the block to a ValueError with `rule`.

    Errors of this library, with `Received: `, pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if explains(error):
            raise
        # The package's errors are plain exceptions. Its panics are not, and their class cannot be
        # imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(rule) from error
        raise


def completed(path, saved):
    """Returns a `tokenizer.json` with all settings of its components; old files omit some.

    Only the components go through the package: it allocates memory for the largest id, and
    renumbers added tokens if their ids do not fit.

    Args:
        path: The file, for errors.
        saved: Its object, with a shape from `saved_shape`.

    Raises:
        ValueError: If the package does not know a component.
    """
    model = saved["model"]
    empty = {**model, "vocab": {}, **({"merges": []} if "merges" in model else {})}
    whole = {}
    for name in ("model", *COMPONENTS):
        part = empty if name == "model" else saved.get(name)
        received = {k: v for k, v in part.items() if k not in ("vocab", "merges")} if part else None
        with refused(
            f"{path}: the component `{name}` must be one that the package `tokenizers` knows. "
            f"Received: {json.dumps(received):.200}"
        ):
            text = json.dumps({"model": empty, name: part})
            whole[name] = json.loads(tokenizers.Tokenizer.from_str(text).to_str())[name]
    whole["model"] = {**model, **whole["model"], "vocab": model["vocab"]}
    if "merges" in model:
        whole["model"]["merges"] = model["merges"]
    return {**whole, "added_tokens": saved.get("added_tokens") or []}


def numbered(vocabulary, special_tokens, kind):
    """Returns a dict from token to id, after checking the tokens."""
    vocabulary = as_list(vocabulary, "vocabulary", "tokens")
    for i, token in enumerate(vocabulary):
        if not isinstance(token, str) or not token:
            raise ValueError(
                f"Every token of a vocabulary must be a text of at least one character. "
                f"Received: {token!r:.60} as token {i}"
            )
    try:
        "".join(vocabulary).encode()
    except UnicodeEncodeError as error:
        half = next(i for i, token in enumerate(vocabulary) if token != _whole(token))
        raise ValueError(
            "Every token of a vocabulary must be text that UTF-8 can write. "
            f"Received: {vocabulary[half]!r:.60} as token {half}"
        ) from error
    ids = {token: i for i, token in enumerate(vocabulary)}
    missing = [token for token in special_tokens if token not in ids]
    if missing:
        raise ValueError(
            f"A {kind} vocabulary must hold {' '.join(special_tokens)}. "
            f"Received: {len(vocabulary)} tokens without {' '.join(missing)}"
        )
    if len(ids) < len(vocabulary):
        double = next(p for i, p in enumerate(vocabulary) if ids[p] != i)
        raise ValueError(
            "Every token of a vocabulary must occur once. "
            f"Received: {double!r} at line {vocabulary.index(double) + 1} "
            f"and line {ids[double] + 1}"
        )
    return ids


def _whole(token):
    """Returns a token without halves of surrogate pairs."""
    return token.encode("utf-8", "ignore").decode()


def saved_vocabulary(path, ids):
    """Returns the tokens of a saved vocabulary in the order of their ids.

    Args:
        path: Its file, for errors.
        ids: A dict from token to id, of the shape `VOCABULARY`.

    Raises:
        ValueError: If it is empty, an id occurs twice, or there is a gap.
    """
    tokens = sorted(ids, key=ids.get)
    if not tokens:
        raise ValueError(f"{path}: a vocabulary must hold at least one token. Received: none")
    for i, token in enumerate(tokens):
        if ids[token] != i:
            what = f"{ids[token]} for {shown(token)} instead of {i}"
            if ids[token] < i:
                what = f"{ids[token]} for {shown(tokens[i - 1])} and for {shown(token)}"
            raise ValueError(
                f"{path}: the ids of a vocabulary must run from 0 without a gap, each id once. "
                f"Received: {what}"
            )
    return tokens


def token_lines(text):
    r"""Splits a list of tokens or merges into lines, at LF, CRLF or CR.

    >>> token_lines("a\u2028\r\nb\n")
    ['a\u2028', 'b', '']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def added_settings(tokens, special=False):
    """Returns a dict from the content of each added token to all its settings.

    Args:
        tokens: Strings, or dicts with some of the settings.
        special: Default of the setting `special`.

    Raises:
        ValueError: If a token is empty, occurs twice, or has an unknown setting.
    """
    found = {}
    for token in as_list(tokens, "added_tokens", "tokens"):
        token = {"content": token} if isinstance(token, str) else token
        check_shape(token, ADDED_TOKEN, "an added token")
        token = {key: value for key, value in token.items() if key != "id"}
        special_one = token.get("special", special)
        settings = {**dict.fromkeys(FLAGS, False), "normalized": not special_one, **token}
        settings["special"] = special_one
        content = settings["content"]
        if not content or content in found or len(settings) > len(FLAGS) + 1:
            raise ValueError(
                f"An added token needs its own content, and only the settings {', '.join(FLAGS)}. "
                f"Received: {token}"
            )
        found[content] = settings
    return found


def check_component(path, saved, name, *known):
    """Raises unless a component of a `tokenizer.json` is one of `known`: `None` or components."""
    known = [None if part is None else json.loads(part.__getstate__()) for part in known]
    if saved[name] not in known:
        raise ValueError(
            f"{path}: the component `{name}` must be {' or '.join(map(json.dumps, known))}. "
            f"Received: {json.dumps(saved[name]):.500}"
        )


def check_shared(path, saved, tokenizer, expressions=True):
    """Raises unless a `tokenizer.json` splits text like a tokenizer of the package.

    Args:
        path: The file, for errors.
        saved: Its object, from `completed`.
        tokenizer: The package's tokenizer.
        expressions: Whether also regular expressions must be equal.
    """
    ours = json.loads(tokenizer.to_str())
    for name in ("normalizer", "pre_tokenizer", "model"):
        theirs, known = saved[name], ours[name]
        if name == "model":
            known = {key: value for key, value in known.items() if key not in ("vocab", "merges")}
            theirs = {key: theirs.get(key) or None for key in known}
            known = {key: value or None for key, value in known.items()}
        if not expressions:
            theirs, known = _without_expressions(theirs), _without_expressions(known)
        if theirs != known:
            raise ValueError(
                f"{path}: the component `{name}` must be {json.dumps(known)}. Received: "
                f"{json.dumps(theirs):.500}"
            )


def _without_expressions(value):
    """Returns a component without its regular expressions."""
    if isinstance(value, list):
        return [_without_expressions(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_expressions(part) for key, part in value.items() if key != "Regex"}


def check_lengths(path, saved, pad_id):
    """Raises if a `tokenizer.json` cuts texts at their start, or pads with another token."""
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


def check_added_ids(path, tokens, vocabulary):
    """Raises unless added tokens have the ids from their file."""
    for token in tokens:
        found = vocabulary.get(token["content"])
        if token.get("id", found) != found:
            raise ValueError(
                f"{path}: added tokens must be in the vocabulary, or follow it without a gap. "
                f"Received: {token['id']} for {token['content']!r} instead of {found}"
            )
