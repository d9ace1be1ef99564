"""Damaged and foreign tokenizer files: the ids are those of the file, or an error names it."""

import json
import os
import re

import pytest

from keras_plm.tokenizers import BytePair, Characters, WordPiece, Words
from keras_plm.tokenizers.tokenizer_json import refused, token_lines

pytestmark = pytest.mark.backend_neutral

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPACE = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *" low", " l"]
TOKENIZERS = {
    "WordPiece": WordPiece([*SPECIAL, "low", "##er"]),
    "BytePair": BytePair(SPACE, [(" ", "l")]),
    "Words": Words(["[PAD]", "[UNK]", "[EOS]", "low"]),
    "Characters": Characters(),
}


def change(kind, path, changing):
    """Saves a tokenizer and changes its JSON; `changing(object)` may return another object."""
    TOKENIZERS[kind].save(path)
    saved = json.loads(path.read_text())
    other = changing(saved)
    path.write_text(json.dumps(saved) if other is None else other)


def setting(*keys, to):
    """Returns a function that sets a value in nested objects."""

    def set_it(saved):
        for key in keys[:-1]:
            saved = saved[key]
        saved[keys[-1]] = to

    return set_it


def vocab(**ids):
    return lambda saved: saved["model"]["vocab"].update(ids)


EVERY = [
    (lambda saved: "[1, 2]", "it must hold an object. .* a list of 2|without .PAD."),
    (lambda saved: "{}", "`model` must be an object. Received: no such key"),
    (lambda saved: "", "must be JSON. Received: |an empty line"),
    (lambda saved: '{"model": ' + "[" * 100_000, "must be JSON. Received: "),
    (lambda saved: json.dumps(saved)[:-9], "must be JSON"),
    (setting("model", to=3), "`model` must be an object. Received: 3"),
    (setting("model", "type", to=["BPE"]), "`model.type` must be one of .* Received: a list of 1"),
    (setting("model", "type", to="Unigram"), '`model.type` must be one of .* Received: "Unigram"'),
]
WITH_VOCABULARY = [
    (vocab(low=2**31), r"`model.vocab.low` must be a whole number, .* Received: 2147483648"),
    (vocab(low=-2), "`model.vocab.low` must be a whole number, 0 or more.* Received: -2"),
    (vocab(low=1.0), r"`model.vocab.low` must be a whole number.* Received: 1\.0"),
    (vocab(low=True), "`model.vocab.low` must be a whole number.* Received: true"),
    (lambda saved: json.dumps(saved).replace("1", "1" * 5000), "a number of thousands of digits"),
    (vocab(low=1), 'each id once. Received: 1 for "\\[UNK\\]" and for "low"'),
    (vocab(low=77), "from 0 without a gap, .* Received: .* instead of "),
    (setting("model", "vocab", to={}), "a vocabulary must hold at least one token. Received: none"),
    (setting("model", "vocab", to=[["low", 0]]), "`model.vocab` must be an object"),
    (lambda saved: saved["model"].pop("vocab") and None, "`model.vocab` must be .* no such key"),
    (lambda saved: json.dumps(saved).replace('"[PAD]"', '"\\ud800"'), "half of a surrogate pair"),
    (lambda saved: json.dumps(saved).replace('"[PAD]": 0', '"[PAD]": 0, "[PAD]": 0'), "twice"),
    (
        lambda saved: json.dumps(saved).replace('"[UNK]"', '""'),
        "a text of at least one character|its own content",
    ),
    (setting("normalizer", to="lower"), "`normalizer.* must be an object"),
    (setting("normalizer", to={"type": "Nothing"}), "`normalizer.*` must be (one|true)"),
    (setting("truncation", to={"stride": -1}), "`truncation` must be one that the package"),
    (setting("added_tokens", to="low"), "`added_tokens` must be a list"),
    (setting("added_tokens", to=["low"]), r"`added_tokens\[0\]` must be an object"),
    (setting("added_tokens", to=[{"id": 0}]), r"`added_tokens\[0\].content` must be text"),
    (setting("added_tokens", to=[{"id": -2, "content": "a"}]), r"`added_tokens\[0\].id` must be"),
]
OWN = {
    "WordPiece": [
        (setting("model", "special_tokens", to="[PAD]"), "`model.special_tokens` must be a list"),
        (setting("model", "special_tokens", to=["a"]), "five different names"),
        (lambda saved: json.dumps(saved).replace("[MASK]", "[M]"), r"without \[MASK\]"),
        (setting("added_tokens", to=[{"id": 7, "content": "low"}]), "Received: 7 for 'low'"),
        (setting("added_tokens", to=[{"id": 7, "content": ""}]), "its own content"),
        (setting("normalizer", "lowercase", to=[]), "component `normalizer` must be one that"),
    ],
    "BytePair": [
        (setting("model", "merges", to=[["l", "x"]]), r"join two tokens .*merges\[0\]"),
        (setting("model", "merges", to=[["l"]]), r"join two tokens .*merges\[0\]"),
        (setting("model", "merges", to=[3]), r"`model.merges\[0\]` must be a list"),
        (setting("model", "merges", to=None), "`model.merges` must be a list"),
        (setting("model", "unknown", to="None"), "`unknown` must be '.UNK.' or 'error'"),
        (setting("model", "unknown", to=1), "`model.unknown` must be text or null"),
        (setting("model", "unk_token", to=None), "component `model` must be"),
        (setting("model", "dropout", to=0.5), "component `model` must be"),
        (setting("model", "settings", "scheme", to="gpt3"), "`model.settings.scheme` must be one"),
        (setting("model", "settings", "clean", to=1), "`model.settings.clean` must be true or fal"),
        (setting("model", "settings", "more", to=1), "settings that `BytePair` has.*'more'"),
        (lambda saved: saved["model"].pop("settings") and None, "`model.settings` must be an obj"),
        (setting("normalizer", to=None), "component `normalizer` must be"),
        (setting("pre_tokenizer", to={"type": "BertPreTokenizer"}), "component `pre_tokenizer` mu"),
    ],
    "Words": [
        (setting("model", "unk_token", to="<unk>"), "must hold .PAD. <unk> .EOS."),
        (setting("model", "unk_token", to=None), "`model.unk_token` must be text"),
        (setting("normalizer", "lowercase", to=None), "`normalizer.lowercase` must be true or"),
        (setting("added_tokens", to=[{"id": 4, "content": "a"}]), "`added_tokens` must be empty"),
        (setting("post_processor", to={"type": "ByteLevel", "trim_offsets": True,
                                       "add_prefix_space": True}), "component `post_processor`"),
    ],
    "Characters": [(setting("model", "width", to=49), "`model.width` must be one of 50")],
}  # fmt: skip
CASES = [(kind, *case) for kind in TOKENIZERS for case in EVERY]
CASES += [(kind, *case) for kind in ("WordPiece", "BytePair", "Words") for case in WITH_VOCABULARY]
CASES += [(kind, *case) for kind, cases in OWN.items() for case in cases]


@pytest.mark.parametrize("kind, changing, message", CASES)
def test_errors_name_the_damaged_file_and_field(kind, changing, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    change(kind, path, changing)
    with pytest.raises(ValueError, match=message) as caught:
        type(TOKENIZERS[kind]).load(path)
    assert str(caught.value).startswith(str(path))
    quoted = "object is not|attribute|subscriptable|unexpected keyword|NoneType|literal"
    assert not re.search(quoted, str(caught.value))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"vocab.txt:1: .*an empty line"),
        (b"\xff\xfe[\x00P\x00", "vocab.txt:1: the file must be UTF-8 text"),
        (b"[PAD]\n[UNK]\n\xe9\n", "vocab.txt:3: the file must be UTF-8 text"),
        (b"[PAD]\n\n[UNK]\n", "vocab.txt:2: .*an empty line"),
        (b"[PAD]\r\na\r\n[PAD]\r\n", r"vocab.txt:3: .*a token of line 1, '\[PAD\]'"),
        (b"[PAD]\n[UNK]\n" + bytes(100), "vocab.txt:3: .*a null character"),
        (b"[PAD]\n[UNK]\n", r"vocab.txt: .*without \[CLS\] \[SEP\] \[MASK\]"),
        ("\ufeff\ufeff[PAD]\n[UNK]\n".encode(), "vocab.txt: .*without .PAD."),
    ],
)
def test_errors_name_the_damaged_line_of_a_vocabulary(content, message, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordPiece.load(tmp_path / "vocab.txt")


def test_load_refuses_folders_pipes_and_missing_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for tokenizer in TOKENIZERS.values():
        for path in (tmp_path, tmp_path / "pipe", tmp_path / "none"):
            with pytest.raises(ValueError, match=f"{path}.* Received: "):
                type(tokenizer).load(path)


def test_panics_of_the_package_become_value_errors():
    class PanicException(BaseException):
        pass

    for error in (PanicException("src/lib.rs:1"), Exception("at line 1")):
        with pytest.raises(ValueError, match="^here: a rule$"), refused("here: a rule"):
            raise error
    with pytest.raises(KeyboardInterrupt), refused("here: a rule"):
        raise KeyboardInterrupt


def test_token_lines_split_only_at_cr_and_lf():
    assert token_lines("a\rb\r\nc\u2028d\n") == ["a", "b", "c\u2028d", ""]


def test_invalid_tokens_in_a_vocabulary_are_refused():
    for token in ("", "\ud800", 3, None, ["a"]):
        with pytest.raises(ValueError, match="Every token of a vocabulary must be .* as token 5"):
            WordPiece([*SPECIAL, token])


@pytest.mark.parametrize("scheme, size", [("space", 40), ("gpt", 90), ("gpt2", 320)])
def test_byte_pair_training_splits_very_long_words(scheme, size, tmp_path):
    # Without splitting, this would take 100 billion steps.
    (tmp_path / "text.txt").write_text("acgt" * 75_000 + "\n")
    trained = BytePair.train(tmp_path / "text.txt", size, scheme=scheme)
    assert ("a", "c") in trained.merges


def test_word_piece_training_ignores_overlong_words(tmp_path):
    long = "ab" * 51
    (tmp_path / "text.txt").write_text(f"low lower {long}\n" * 3 + "acgt" * 75_000 + "\n")
    trained = WordPiece.train(tmp_path / "text.txt", 60)
    assert trained.tokenize(f"low {long} lower") == ["low", "[UNK]", "lower"]
    assert not {"ab", "##ab", "ac", "##cg"} & set(trained.vocabulary)
    (tmp_path / "text.txt").write_text(f"low lower {'ab' * 50}\n" * 3)
    assert {"##ab"} & set(WordPiece.train(tmp_path / "text.txt", 60).vocabulary)


@pytest.mark.full
def test_long_words_take_linear_time():
    # Each would take billions of steps in quadratic time.
    words = ["low" * 16_000, "." * 50_000, " " * 50_000 + "l\n", "l\u0301" * 25_000]
    gpt = BytePair(["<unk>", *"low.", "w</w>", "lo"], [("l", "o")], scheme="gpt")
    for tokenizer in (*TOKENIZERS.values(), gpt):
        assert all(len(tokenizer.encode([word]).token_ids) < 200_000 for word in words)


def test_gpt_line_breaks_are_tokens_despite_nearby_spaces():
    gpt = BytePair(["<unk>", "a</w>", "b</w>", "\n</w>"], [], scheme="gpt")
    for text in ("a \n b", "a\n\n \n\tb", "\n a\n  b \n", "  a\nb  "):
        expected = [f"{word}</w>" for word in re.sub(r"\s*\n\s*", "|", text).replace(" ", "")]
        assert gpt.tokenize(text) == [word.replace("|", "\n") for word in expected]
