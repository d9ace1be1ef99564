"""Files `tokenizer.json` of the package `tokenizers`: their shapes and further checks."""

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
    """The shape of a `tokenizer.json` whose model is of a kind and has further keys."""
    return {
        "model": {"type?": OneOf((kind,)), "vocab": VOCABULARY, **model},
        "added_tokens?": ([{**ADDED_TOKEN, "id": ID}], None),
        **{f"{name}?": (dict, None) for name in COMPONENTS},
    }


def check_saved(saved, shape, path):
    """Raises unless the object of a `tokenizer.json` has a shape; another kind is named first."""
    kind = {key: one for key, one in shape["model"].items() if key in ("type", "type?")}
    check_shape(saved, {"model": kind}, path)
    check_shape(saved, shape, path)


@contextlib.contextmanager
def naming(path):
    """Errors about arguments that a file gave begin with its name."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def refused(rule):
    """What the package `tokenizers` raises in the block becomes a ValueError that states a rule.

    An error of this library, which says what was received, stays as it is.
    """
    try:
        yield
    except BaseException as error:
        if explains(error):
            raise
        # Its errors are plain exceptions; its panics are none, and their class has no name to
        # import.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(rule) from error
        raise


def completed(path, saved):
    """A `tokenizer.json` with all settings of its components, which old files leave out.

    The package reads the components only: it allocates memory for the largest id that it is given,
    and numbers added tokens anew where their ids do not fit.

    Args:
        path: The file, for errors.
        saved: Its object, of a shape of `saved_shape`.

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
    """Token -> id, after checking the tokens."""
    vocabulary = as_list(vocabulary, "vocabulary", "tokens")
    for i, token in enumerate(vocabulary):
        if not isinstance(token, str) or not token:
            raise ValueError(
                f"Every token of a vocabulary must be a text of a character or more. "
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
            "Every token of a vocabulary must stand once. "
            f"Received: {double!r} at line {vocabulary.index(double) + 1} "
            f"and line {ids[double] + 1}"
        )
    return ids


def _whole(token):
    """A token without halves of surrogate pairs."""
    return token.encode("utf-8", "ignore").decode()


def saved_vocabulary(path, ids):
    """The tokens of a saved vocabulary in order of their ids.

    Args:
        path: Its file, for errors.
        ids: Token -> id, of the shape `VOCABULARY`.

    Raises:
        ValueError: If it is empty, an id stands twice, or there is a gap.
    """
    tokens = sorted(ids, key=ids.get)
    if not tokens:
        raise ValueError(f"{path}: a vocabulary must hold a token or more. Received: none")
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
    r"""The lines of a list of tokens or merges, which end with LF, CRLF or CR.

    >>> token_lines("a\u2028\r\nb\n")
    ['a\u2028', 'b', '']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def added_settings(tokens, special=False):
    """Content -> all settings of added tokens, which are strings or dicts with some of them.

    Raises:
        ValueError: If one is empty, stands twice, or has an unknown setting.
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


def check_shared(path, saved, tokenizer, expressions=True):
    """Raises unless a `tokenizer.json` cuts text as a tokenizer of the package does.

    Args:
        path: The file, for errors.
        saved: Its object, as `completed` gives it.
        tokenizer: The package's tokenizer.
        expressions: Whether regular expressions must be equal, too.
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
    """A component without its regular expressions."""
    if isinstance(value, list):
        return [_without_expressions(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_expressions(part) for key, part in value.items() if key != "Regex"}


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


def check_added_ids(path, tokens, vocabulary):
    """Raises unless added tokens have the ids that a file gives them."""
    for token in tokens:
        found = vocabulary.get(token["content"])
        if token.get("id", found) != found:
            raise ValueError(
                f"{path}: added tokens must be in the vocabulary, or follow it without a gap. "
                f"Received: {token['id']} for {token['content']!r} instead of {found}"
            )
