"""Words as the bytes of their spelling, compared with the original's ids."""

import numpy as np
import pytest

from keras_plm.checkpoints import load_tokenizer
from keras_plm.tokenizers import Characters, Words
from keras_plm.tokenizers.characters import encode_characters

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize(
    "word, width, ids",
    [  # bilm-tf, tests/test_data.py, plus 1; AllenNLP, elmo_indexer_test.py
        ("th", 5, [259, 117, 105, 260, 261]),
        ("thhhhh", 5, [259, 117, 105, 105, 260]),
        (chr(256) + "t", 5, [259, 197, 129, 117, 260]),
        ("Second", 10, [259, 84, 102, 100, 112, 111, 101, 260, 261, 261]),
        ("", 4, [259, 260, 261, 261]),
        ("a\ud800b", 5, [259, 98, 99, 260, 261]),
    ],
)
def test_character_ids_equal_the_originals(word, width, ids):
    assert encode_characters([word], width).tolist() == [ids]


def test_long_words_are_cut():
    long = encode_characters(["x" * 47, "x" * 48, "x" * 60])
    assert long.shape == (3, 50)
    assert (long[1] == long[2]).all() and (long[0] != long[1]).any()
    assert long[2].tolist() == [259, *[121] * 48, 260]


def test_pack_adds_sentence_marks_and_padding():
    packed = Characters().pack([["The", "first", "."], ["It"], []])
    ids, mask = packed["character_ids"], packed["padding_mask"]
    assert ids.shape == (3, 5, 50) and ids.dtype == np.int32
    assert mask.sum(axis=1).tolist() == [5, 3, 2]
    assert ids[:, 0, :4].tolist() == [[259, 257, 260, 261]] * 3
    assert ids[0, 4, :4].tolist() == ids[1, 2, :4].tolist() == [259, 258, 260, 261]
    assert not ids[~mask].any() and ids[mask].all()
    assert ids[0, 1, :6].tolist() == [259, 85, 105, 102, 260, 261]


def test_word_splits_equal_the_words_tokenizer():
    tokenizer, text = Characters(), "It's 3.50, \u201cCafé\u201d\t(no?)"
    assert tokenizer.tokenize(text) == "It ' s 3 . 50 , \u201c Café \u201d ( no ? )".split()
    vocabulary = ["[PAD]", "[UNK]", "[EOS]", *dict.fromkeys(tokenizer.tokenize(text))]
    assert tokenizer.tokenize(text) == Words(vocabulary).tokenize(text)
    assert tokenizer.tokenize(["U.S.", "is"]) == ["U.S.", "is"]
    packed = tokenizer.pack([text], return_offsets=True)
    words = packed["word_ids"][0]
    assert words[0] == words[-1] == -1 and words[1:-1].tolist() == list(range(len(words) - 2))
    spans = packed["offsets"][0][1:-1]
    assert [text[a:b] for a, b in spans] == tokenizer.tokenize(text)
    same = tokenizer.pack([tokenizer.tokenize(text)])["character_ids"]
    assert (same == packed["character_ids"]).all()


def test_rows_are_cut_at_max_length():
    packed = Characters().pack([["a", "b", "c", "d"], ["e"]], max_length=4)
    assert packed["padding_mask"].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert packed["character_ids"][0, 3, 1] == 258


def test_detokenize_inverts_pack():
    tokenizer = Characters()
    assert len(tokenizer) == len(tokenizer.vocabulary) == 262
    row = tokenizer.pack([["Grüß", "dich", "\U0001f600"]])["character_ids"][0]
    assert tokenizer.detokenize(row) == "Grüß dich \U0001f600"
    assert tokenizer.detokenize(np.zeros((2, 50), int)) == ""


def test_save_load_round_trip(tmp_path):
    Characters().save(tmp_path / "tokenizer.json")
    assert isinstance(load_tokenizer(tmp_path), Characters)
    with pytest.raises(ValueError, match='words.json: `model.type` must be one of "Characters"'):
        Words(["[PAD]", "[UNK]", "[EOS]"]).save(tmp_path / "words.json")
        Characters.load(tmp_path / "words.json")
    assert Characters.from_config(Characters().get_config()).get_config() == {}


def test_other_objects_than_texts_are_refused():
    with pytest.raises(ValueError, match="put a single one in brackets"):
        Characters().pack("one")
    with pytest.raises(ValueError, match="all strings or all lists"):
        Characters().pack(["one", ["two"]])
    with pytest.raises(ValueError, match="A word must be a string"):
        Characters().pack([["one", 2]])
    for nothing in (None, float("nan"), {"one": 1}, b"one"):
        with pytest.raises(ValueError, match="A text must be a string or a list of words"):
            Characters().pack([nothing])
    with pytest.raises(
        ValueError, match="A word must be a string.*Received: .'two'. of list as word 1"
    ):
        Characters().pack([["one", ["two"]]])
    with pytest.raises(ValueError, match="pack second texts"):
        Characters().pack(["one"], pairs=["two"])
    with pytest.raises(ValueError, match="room for text"):
        Characters().pack(["one"], max_length=2)
