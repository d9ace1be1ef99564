"""WordPiece: the original's own test cases, the peer's ids, and packing."""

import gzip
import json

import numpy as np
import pytest

from keras_plm.tokenizers import BytePair, WordPiece, open_text

pytestmark = pytest.mark.backend_neutral

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


@pytest.fixture
def tokenizer():
    return WordPiece([*SPECIAL, *PIECES])


@pytest.fixture
def released(data):
    return WordPiece.load(data("vocabularies/bert_uncased_vocab.txt"))


# google-research/bert, tokenization_test.py.
def test_word_piece_passes_the_originals_test_cases(tokenizer):
    # Its vocabulary begins with [UNK] [CLS] [SEP]; ours also has [PAD] and [MASK].
    pieces = tokenizer.tokenize("UNwant\u00e9d,running")
    assert pieces == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert [tokenizer.vocabulary.index(p) - 2 for p in pieces] == [7, 4, 5, 10, 8, 9]
    assert tokenizer.tokenize("unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert tokenizer.tokenize("") == []


@pytest.mark.parametrize(
    "text, lowercase, words",
    [
        ("ah\u535a\u63a8zz", True, ["ah", "\u535a", "\u63a8", "zz"]),
        (" \tHeLLo!how  \n Are yoU?  ", True, ["hello", "!", "how", "are", "you", "?"]),
        (" \tHeLLo!how  \n Are yoU?  ", False, ["HeLLo", "!", "how", "Are", "yoU", "?"]),
        ("H\u00e9llo", True, ["hello"]),
        ("a\u00a0b\rc\u0005d", True, ["a", "b", "cd"]),
        ("$5-`x.", True, ["$", "5", "-", "`", "x", "."]),
        ("\U0001f4a9", True, ["\U0001f4a9"]),  # not a control character
    ],
)
def test_text_is_cleaned_and_split_into_words(text, lowercase, words):
    assert WordPiece([*SPECIAL, *dict.fromkeys(words)], lowercase=lowercase).tokenize(text) == words


def test_lowercase_is_inferred_from_the_vocabulary():
    assert WordPiece([*SPECIAL, "london"]).lowercase
    assert not WordPiece([*SPECIAL, "London"]).lowercase


def test_readme_example_of_the_original(released):
    words = ["John", "Johanson", "'s", "house"]
    assert released.tokenize(words) == ["john", "johan", "##son", "'", "s", "house"]
    packed = released.pack([words], return_offsets=True)
    ids = packed["word_ids"][0].tolist()
    assert [ids.index(i) for i in range(4)] == [1, 2, 4, 6]
    assert ids[0] == ids[-1] == -1


@pytest.mark.full
def test_agrees_with_transformers_on_10000_sentences(released, data):
    transformers = pytest.importorskip("transformers")
    peer = transformers.BertTokenizerFast(str(data("vocabularies/bert_uncased_vocab.txt")))
    texts = []
    with gzip.open(data("books/train-0.txt.gz"), "rt", encoding="utf-8") as file:
        for line in file:
            texts += [s for s in line.strip().split(". ") if s]
            if len(texts) >= 10_000:
                break
    texts = texts[:10_000]
    ours, theirs = released.pack(texts), peer(texts, padding=True, return_tensors="np")
    np.testing.assert_array_equal(ours["token_ids"], theirs["input_ids"])
    np.testing.assert_array_equal(ours["padding_mask"], theirs["attention_mask"])
    for longest in (8, 11, 64):
        ours = released.pack(texts[:2000], texts[2000:4000], max_length=longest)
        theirs = peer(
            texts[:2000],
            texts[2000:4000],
            padding=True,
            truncation="longest_first",
            max_length=longest,
            return_tensors="np",
        )
        np.testing.assert_array_equal(ours["token_ids"], theirs["input_ids"])
        np.testing.assert_array_equal(ours["segment_ids"], theirs["token_type_ids"])


def test_packs_pairs_with_segments(tokenizer):
    packed = tokenizer.pack(["unwanted", "want"], ["running", "wa ,"])
    assert packed["token_ids"].tolist() == [
        [2, 9, 6, 7, 3, 10, 11, 3],
        [2, 5, 3, 8, 12, 3, 0, 0],
    ]
    assert packed["segment_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]]
    assert packed["padding_mask"].sum(axis=1).tolist() == [8, 6]
    assert set(packed) == {"token_ids", "segment_ids", "padding_mask"}


def test_offsets_point_into_the_original_text(tokenizer):
    text = "  UNwant\u00e9d,\trunning"
    packed = tokenizer.pack([text], return_offsets=True)
    spans = [text[a:b] for a, b in packed["offsets"][0]]
    assert spans == ["", "UN", "want", "\u00e9d", ",", "runn", "ing", ""]
    assert packed["word_ids"][0].tolist() == [-1, 0, 0, 0, 1, 2, 2, -1]


@pytest.mark.parametrize(
    "first, second, room, kept",
    [
        ((5), 2, 6, (4, 2)),
        (2, 5, 6, (2, 4)),
        (5, 5, 6, (3, 3)),
        (9, 1, 3, (2, 1)),
        (1, 1, 9, (1, 1)),
    ],
)
def test_truncation_cuts_the_longer_text_first(tokenizer, first, second, room, kept):
    rows = tokenizer.encode(["wa " * first], ["un " * second], max_length=room + 3)
    ids = rows.token_ids.tolist()
    assert (ids.count(8), ids.count(9)) == kept
    assert rows.cut.tolist() == [first + second - sum(kept)]


def test_empty_words_become_unknown_tokens(tokenizer):
    rows = tokenizer.encode([["want", "\u200d", "un", ""]], return_offsets=True)
    assert rows.word_ids.tolist() == [-1, 0, 1, 2, 3, -1]
    assert rows.token_ids.tolist() == [2, 5, 1, 9, 1, 3]


def test_train_save_load_round_trip(tmp_path):
    text = "the cat sat on the mat . the cats sat on mats , the hat fell\n" * 30
    (tmp_path / "a.txt").write_text(text)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write(text.upper())
    files = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    cased = WordPiece.train(files, 120, lowercase=False)
    assert cased.vocabulary == WordPiece.train(files, 120, lowercase=False).vocabulary
    assert cased.vocabulary[:5] == SPECIAL and len(cased) <= 120
    assert "THE" in cased.vocabulary and "the" in cased.vocabulary
    assert "THE" not in WordPiece.train(files, 120).vocabulary

    cased.save(tmp_path / "tokenizer.json")
    for again in (
        WordPiece.load(tmp_path / "tokenizer.json"),
        WordPiece.from_config(cased.get_config()),
    ):
        assert again.vocabulary == cased.vocabulary and again.lowercase is False
        assert again.tokenize("The CATS sat") == cased.tokenize("The CATS sat")
    assert cased.detokenize(cased.pack(["the cats sat"])["token_ids"][0]) == "the cats sat"
    assert not list(tmp_path.glob("*.tmp"))


def test_loads_a_tokenizer_json_of_transformers(released, data, tmp_path):
    transformers = pytest.importorskip("transformers")
    peer = transformers.BertTokenizerFast(str(data("vocabularies/bert_uncased_vocab.txt")))
    peer.save_pretrained(tmp_path)
    ours = WordPiece.load(tmp_path / "tokenizer.json")
    assert ours.vocabulary == released.vocabulary and ours.lowercase


def test_bad_input_is_explained(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"must hold .* without \[MASK\]"):
        WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    with pytest.raises(ValueError, match="'want' at line 6 and line 14"):
        WordPiece([*SPECIAL, *PIECES, "want"])
    with pytest.raises(ValueError, match="put a single one in brackets"):
        tokenizer.pack("want")
    with pytest.raises(ValueError, match="1 texts and 2 pairs"):
        tokenizer.pack(["want"], ["un", "un"])
    with pytest.raises(ValueError, match="room for text and 2"):
        tokenizer.pack(["want"], max_length=2)
    with pytest.raises(ValueError, match="1 strings and 1 lists"):
        tokenizer.pack(["want", ["want"]])
    with pytest.raises(ValueError, match="No file .*missing.txt"):
        WordPiece.load(tmp_path / "missing.txt")
    (tmp_path / "broken.json").write_text('{"model": ')
    with pytest.raises(ValueError, match="broken.json must be JSON"):
        WordPiece.load(tmp_path / "broken.json")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="files without any"):
        WordPiece.train(tmp_path / "empty.txt", 100)
    (tmp_path / "letters.txt").write_text("abcdefghij")
    with pytest.raises(ValueError, match="at least 25 tokens"):
        WordPiece.train(tmp_path / "letters.txt", 20)


def test_empty_batch(tokenizer):
    assert tokenizer.pack([])["token_ids"].shape == (0, 0)


@pytest.mark.parametrize("damage", ["cut", "latin-1"])
def test_errors_name_damaged_text_files(damage, tmp_path):
    path = tmp_path / "text.txt.gz"
    text = "Käse\n" * 1000
    if damage == "cut":
        whole = gzip.compress(text.encode())
        path.write_bytes(whole[: len(whole) // 2])
    else:
        path.write_bytes(gzip.compress(text.encode("latin-1")))
    with pytest.raises(ValueError, match=r"text.txt.gz:\d+: This is not a whole UTF-8 text file"):
        list(open_text(path))
    with pytest.raises(ValueError, match="text.txt.gz:.* not a whole"):
        WordPiece.train(path, 100)


def test_errors_name_the_line_that_is_not_utf8(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("Käse\n".encode() * 499 + "Käse\n".encode("latin-1") + b"more\n" * 500)
    with pytest.raises(ValueError, match="text.txt:500: "):
        list(open_text(path))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_open_text_handles_byte_order_marks_and_line_ends(tmp_path, end):
    path = tmp_path / "text.txt"
    lines = ["a\u2028b", "", "c\u00a0d\u3000"]
    path.write_bytes(b"\xef\xbb\xbf" + end.join(line.encode() for line in lines) + end)
    with open_text(path) as file:
        assert list(file) == [f"{line}\n" for line in lines]
    with open_text(path) as file:
        assert file.read() == "a\u2028b\n\nc\u00a0d\u3000\n"
    path.write_bytes(end.join([b"a", b"b", b"c\xe9"]))
    with pytest.raises(ValueError, match="text.txt:3: This is not a whole UTF-8 text file"):
        open_text(path).read()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabularies_with_a_byte_order_mark_load(tmp_path, end):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    path, merges = tmp_path / "vocab.txt", tmp_path / "merges.txt"
    path.write_bytes(("\ufeff" + end.join(pieces) + end).encode())
    assert WordPiece.load(path).vocabulary == pieces
    text = end.join(["#version: 0.2", "a b</w>", ""])
    ids = {piece: i for i, piece in enumerate(["<unk>", "a", "b</w>", "ab</w>"])}
    path = tmp_path / "vocab.json"
    for mark in ("", "\ufeff"):
        path.write_bytes((mark + json.dumps(ids)).encode())
        merges.write_bytes((mark + text).encode())
        assert BytePair.load(path, merges).tokenize("ab") == ["ab</w>"]
