"""Loading of tokenizers from folders in the format of `transformers`."""

import os
import re
import warnings
from pathlib import Path

from keras_plm.files.json_files import read_json, shown
from keras_plm.files.opening import read_text
from keras_plm.tokenizers import BytePair, WordPiece, byte_pair, word_piece
from keras_plm.tokenizers.byte_pair_schemes import read_vocabulary
from keras_plm.tokenizers.tokenizer_json import (
    ADDED_TOKEN,
    VOCABULARY,
    added_settings,
    check_added_ids,
    check_saved,
    completed,
    naming,
    token_lines,
)
from keras_plm.tokenizers.word_piece import SPECIAL_TOKENS

CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
WHOLE, MODEL = "tokenizer.json", "config.json"
CLASSES = {"bert": "BertTokenizer", "gpt": "OpenAIGPTTokenizer", "gpt2": "GPT2Tokenizer"}
# Classes that only follow tokenizer.json.
GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
# Keys of tokenizer_config.json that change ids, with the only value that our tokenizers support.
FIXED = {
    "auto_map": None,
    "split_special_tokens": False,
    "truncation_side": "right",
    "add_bos_token": False,
    "add_eos_token": False,
    "do_basic_tokenize": True,
    "clean_text": True,
    "wordpieces_prefix": "##",
    "word_tokenizer_type": None,
    "subword_tokenizer_type": None,
}
TOKEN = (str, ADDED_TOKEN)
NAMED = {
    **{f"{name}_token?": (*TOKEN, None) for name in ("bos", "eos", "unk", "sep", "pad", "cls")},
    "mask_token?": (*TOKEN, None),
    "additional_special_tokens?": ([TOKEN], None),
    "extra_special_tokens?": ([TOKEN], {str: TOKEN}, None),
}
SHAPES = {
    CONFIG: {
        **NAMED,
        "tokenizer_class?": (str, None),
        "do_lower_case?": bool,
        "strip_accents?": (bool, None),
        "tokenize_chinese_chars?": bool,
        "add_prefix_space?": bool,
        "never_split?": ([str], None),
        "model_max_length?": (float, None),
        "added_tokens_decoder?": ({str: ADDED_TOKEN}, None),
    },
    MAP: NAMED,
    ADDED: VOCABULARY,
    WHOLE: {"model": dict},  # checked again with the shape of its kind
    MODEL: {
        "tokenizer_class?": (str, None),
        "max_position_embeddings?": (float, None),
        "n_positions?": (float, None),
    },
}
# Our attribute: the key, and the default of `transformers` if tokenizer_config.json lacks it.
STATED = {
    "bert": {
        "lowercase": ("do_lower_case", True),
        "strip_accents": ("strip_accents", None),
        "split_on_cjk": ("tokenize_chinese_chars", True),
    },
    "gpt": {"lowercase": ("do_lower_case", True)},
    "gpt2": {"add_prefix_space": ("add_prefix_space", False)},
}
NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # as `SPECIAL_TOKENS`
# Special tokens of a class that files need not name.
DEFAULT_NAMES = {"bert": (), "gpt": ("<unk>",), "gpt2": ("<|endoftext|>",)}


def read_tokenizer(folder, whole=None):
    """Loads the `WordPiece` or `BytePair` of a folder in the format of `transformers`.

    It reads `tokenizer.json` if there is one, otherwise `vocab.txt`, or `vocab.json` with
    `merges.txt`. `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` add
    names of special tokens, added tokens and settings. Contradicting files and unsupported settings
    are errors. Lengths in the files are defaults of `transformers`; `pack` has its own
    `max_length`, and a warning shows the lengths.

    Args:
        folder: The folder.
        whole: The object in its `tokenizer.json`, if already read.

    Raises:
        ValueError: If a file is missing, damaged, contradicts another, or has a setting that our
            tokenizers do not support.
    """
    said = {} if whole is None else {WHOLE: whole}
    for name in SHAPES.keys() - said.keys():
        path = folder / name
        said[name] = read_json(path, SHAPES[name]) if _stands(path) else {}
    kind = _kind(folder, said[WHOLE])
    if said[WHOLE]:
        path = folder / WHOLE
        check_saved(said[WHOLE], (word_piece if kind == "bert" else byte_pair).SHAPE, path)
        said[WHOLE] = completed(path, said[WHOLE])
    generic = _check_class(folder, said, kind)
    for key, value in FIXED.items():
        if said[CONFIG].get(key) not in (None, value):
            raise _unfit(folder / CONFIG, key, value, said[CONFIG][key])
    named = _named(folder, said)
    names = {key: token["content"] for key, token in named.items()}
    options = {"added_tokens": _added_tokens(folder, said, named, kind)}
    if kind == "bert":
        if not set(NAMES).isdisjoint(names):
            defaults = zip(NAMES, SPECIAL_TOKENS, strict=True)
            options["special_tokens"] = [names.get(key, default) for key, default in defaults]
    else:
        if kind == "gpt" and names.get("unk_token", "<unk>") != "<unk>":
            raise _unfit(folder / CONFIG, "unk_token", "<unk>", names["unk_token"])
        padding = said[WHOLE].get("padding") or {}
        options["pad_token"] = names.get("pad_token", padding.get("pad_token"))
        if "eos_token" in names:
            options["end_token"] = names["eos_token"]
    stated = {
        ours: said[CONFIG][key] for ours, (key, _) in STATED[kind].items() if key in said[CONFIG]
    }
    with naming(folder):
        tokenizer = _load(folder, said, kind, options, stated)
    for ours, (key, default) in STATED[kind].items():
        value = said[CONFIG].get(key, default)
        if key in said[CONFIG] or (_stands(folder / CONFIG) and not generic):
            if getattr(tokenizer, ours) != value:
                what = "says" if key in said[CONFIG] else "lacks the key, which means"
                raise ValueError(
                    f"{folder}: the files must agree on `{key}`; state it in {CONFIG}. Received: "
                    f"{getattr(tokenizer, ours)} of the vocabulary, while {CONFIG} {what} {value}"
                )
    check_added_ids(folder, options["added_tokens"], tokenizer._vocabulary)
    never = set(said[CONFIG].get("never_split") or ()) - set(tokenizer.special_tokens)
    never -= {token["content"] for token in tokenizer.added_tokens}
    if never:
        raise _unfit(folder / CONFIG, "never_split", None, sorted(never))
    _warn_of_lengths(folder, said)
    return tokenizer


def _stands(path):
    """Returns whether anything has this name; other things than files are errors, not missing."""
    return os.path.lexists(path)


def _unfit(path, key, value, found):
    return ValueError(f"{path}: `{key}` must be {value!r}. Received: {found!r}")


def _kind(folder, whole):
    """Returns the kind of vocabulary: "bert", "gpt" or "gpt2"."""
    if whole:
        model = whole["model"]
        if model.get("type") == "WordPiece" or "max_input_chars_per_word" in model:
            return "bert"
        if model.get("type") == "BPE" or "merges" in model:
            return "gpt" if model.get("end_of_word_suffix") else "gpt2"
        raise ValueError(
            f"{folder / WHOLE}: the component `model` must be a WordPiece or BPE. "
            f"Received: {shown(model.get('type'))}"
        )
    if _stands(folder / "vocab.txt"):
        return "bert"
    if _stands(folder / "vocab.json") and _stands(folder / "merges.txt"):
        tokens = read_json(folder / "vocab.json", VOCABULARY)
        return "gpt" if any(token.endswith("</w>") for token in tokens) else "gpt2"
    raise ValueError(
        "No tokenizer.json, vocab.txt, or vocab.json with merges.txt in this folder. "
        f"Received: {str(folder)!r}"
    )


def _check_class(folder, said, kind):
    """Raises on an unsupported class of tokenizers; returns whether the class is generic."""
    generic = False
    for name in (MODEL, CONFIG):
        found = said[name].get("tokenizer_class")
        if found is None:
            continue
        plain = found.removesuffix("Fast")
        generic = plain in GENERIC and bool(said[WHOLE])
        if plain != CLASSES[kind] and not generic:
            raise ValueError(
                f"{folder / name}: the `tokenizer_class` of such a vocabulary must be "
                f"{CLASSES[kind]}. Received: {found!r}"
            )
    if generic and kind == "bert" and said[WHOLE].get("post_processor") is None:
        raise ValueError(
            f"{folder / WHOLE}: the component `post_processor` must put special tokens around each "
            "text. Received: none"
        )
    return generic


def _settings(path, token, special):
    """Returns all settings of one added token in the JSON of a file."""
    if isinstance(token, dict):
        token = {key: value for key, value in token.items() if key != "__type"}
    with naming(path):
        (settings,) = added_settings([token], special).values()
    return settings


def _named(folder, said):
    """Returns a dict from keys to settings of the named special tokens; lists number their keys."""
    found = {}
    for file in (CONFIG, MAP):
        tokens = {}
        for key, token in said[file].items():
            if key in ("additional_special_tokens", "extra_special_tokens") and token:
                of_key = token.items() if isinstance(token, dict) else enumerate(token)
                tokens |= {f"{key}[{name}]": one for name, one in of_key}
            elif key.endswith("_token") and isinstance(token, str | dict):
                tokens[key] = token
        for key, token in tokens.items():
            settings = _settings(folder / file, token, special=True)
            before = found.setdefault(key, settings)
            if before["content"] != settings["content"] and "[" not in key:
                raise ValueError(
                    f"{folder}: {CONFIG} and {MAP} must agree on `{key}`. "
                    f"Received: {before['content']!r} and {settings['content']!r}"
                )
            if before["content"] != settings["content"]:
                found[f"{file} {key}"] = settings
    return found


def _added_tokens(folder, said, named, kind):
    """Returns the added tokens: those with ids in the order of the ids, then others."""
    special = {token["content"] for token in named.values()}
    old = said[ADDED].items()
    numbers = said[CONFIG].get("added_tokens_decoder") or {}
    for i in numbers:
        if not re.fullmatch("[0-9]{1,10}", i):
            raise ValueError(
                f"{folder / CONFIG}: a key of `added_tokens_decoder` must be an id. "
                f"Received: {i!r:.60}"
            )
    sources = {
        CONFIG: [{**token, "id": int(i)} for i, token in numbers.items()],
        WHOLE: said[WHOLE].get("added_tokens", []),
        ADDED: [{"content": token, "id": i, "special": token in special} for token, i in old],
    }
    # Without a normalizer `normalized` has no effect.
    compared = ["id", "single_word", "lstrip", "rstrip"] + ["normalized"] * (kind != "gpt2")
    listed = {}
    for file, tokens in sources.items():
        for token in tokens:
            settings = _settings(folder / file, token, special=False) | {"id": token["id"]}
            before, where = listed.setdefault(settings["content"], (settings, file))
            differing = [key for key in compared if before[key] != settings[key]]
            if file == ADDED:  # it holds only ids
                differing = [key for key in differing if key == "id"]
            if differing:
                raise ValueError(
                    f"{folder}: {where} and {file} must agree on the token "
                    f"{settings['content']!r}. Received: {differing[0]}={before[differing[0]]!r} "
                    f"and {settings[differing[0]]!r}"
                )
    for content, (token, file) in listed.items():
        if file != CONFIG and sources[CONFIG]:
            raise ValueError(
                f"{folder}: every added token must be in `added_tokens_decoder` of {CONFIG}, if it "
                f"exists. Received: {content!r} of {file}, id={token['id']!r}"
            )
        token["special"] |= content in special
    tokens = sorted((token for token, _ in listed.values()), key=lambda token: token["id"])
    vocabulary, known = _saved_tokens(folder, said), set(listed)
    for key, token in named.items():
        if token["content"] in known:
            continue
        if token["content"] not in vocabulary:
            raise ValueError(
                f"{folder}: a special token must be in the vocabulary, or have an id in "
                f"`added_tokens_decoder` of {CONFIG}. Received: {key}={token['content']!r}"
            )
        tokens.append(token)
        known.add(token["content"])
    defaults = [name for name in DEFAULT_NAMES[kind] if name in vocabulary and name not in known]
    return tokens + [_settings(folder, name, special=True) for name in defaults]


def _saved_tokens(folder, said):
    """Returns the tokens of the vocabulary in any order."""
    if said[WHOLE]:
        return said[WHOLE]["model"]["vocab"].keys()
    if _stands(folder / "vocab.txt"):
        return set(token_lines(read_text(folder / "vocab.txt")))
    return read_json(folder / "vocab.json", VOCABULARY).keys()


def _load(folder, said, kind, options, stated):
    """Loads the tokenizer from `tokenizer.json`, or without it from the vocabulary."""
    if kind == "bert":
        own = "vocab.txt"
        if not said[WHOLE]:
            return WordPiece.load(folder / own, **options, **stated)
        tokenizer = WordPiece.of_saved(folder / WHOLE, said[WHOLE], **options)
        agree = not _stands(folder / own) or (
            WordPiece.load(folder / own, **options).vocabulary == tokenizer.vocabulary
        )
    else:
        files = [folder / "vocab.json", folder / "merges.txt"]
        own = "vocab.json with merges.txt"
        if not said[WHOLE]:
            return BytePair.load(*files, **options, **stated)
        tokenizer = BytePair.of_saved(folder / WHOLE, said[WHOLE], **options)
        agree = True
        if all(map(_stands, files)):
            tokens, merges, _ = read_vocabulary(*files)
            agree = merges == tokenizer.merges and tokens == tokenizer.vocabulary[: len(tokens)]
    if not agree:
        raise ValueError(
            f"{folder}: {WHOLE} and {own} must have the same tokens: remove the wrong one for this "
            "model. Received: others"
        )
    return tokenizer


def _warn_of_lengths(folder, said):
    """Warns if a folder limits texts to fewer tokens than its model reads."""
    positions = said[MODEL].get("max_position_embeddings", said[MODEL].get("n_positions"))
    truncation = said[WHOLE].get("truncation") or {}
    lengths = [said[CONFIG].get("model_max_length"), truncation.get("max_length")]
    shortest = min((length for length in lengths if length is not None), default=None)
    if positions is not None and shortest is not None and shortest < positions:
        warnings.warn(
            f"The tokenizer of {Path(folder).name} limits texts to {shortest} tokens, its model to "
            f"{positions}. Texts are cut at {positions} tokens, or at {shortest} with "
            f"`max_length={shortest}`.",
            stacklevel=4,
        )


def tokenizer_settings(tokenizer):
    """Returns the object of `tokenizer_config.json`: settings missing in the vocabulary."""
    kind = "bert" if isinstance(tokenizer, WordPiece) else tokenizer.scheme
    settings = {"tokenizer_class": CLASSES[kind]}
    settings |= {key: getattr(tokenizer, ours) for ours, (key, _) in STATED[kind].items()}
    if kind == "bert":
        settings |= dict(zip(NAMES, tokenizer.special_tokens, strict=True))
    else:
        settings |= {"pad_token": tokenizer.pad_token} if tokenizer.pad_token else {}
        settings |= {"eos_token": tokenizer.end_token} if hasattr(tokenizer, "end_id") else {}
    if tokenizer.added_tokens:
        ids = tokenizer._vocabulary
        settings["added_tokens_decoder"] = {
            str(ids[token["content"]]): token for token in tokenizer.added_tokens
        }
    return settings
