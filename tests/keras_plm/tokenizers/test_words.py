"""Whole words as tokens."""

import json

import numpy as np
import pytest

import keras_plm
from keras_plm.data.corpus import read_ids
from keras_plm.data.examples import batches
from keras_plm.data.task import Example
from keras_plm.tokenizers import Words

pytestmark = pytest.mark.backend_neutral

TEXT = "The low tower, the lower\nlow low\n\nnewer .\n"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_training_selects_the_most_frequent_words(file):
    words = Words.train(file)
    assert words.vocabulary[:4] == ["[PAD]", "[UNK]", "[EOS]", "low"]
    assert set(words.vocabulary[4:]) == {"The", "the", "tower", ",", "lower", "newer", "."}
    small = Words.train(file, 5, lowercase=True)
    assert small.vocabulary == ["[PAD]", "[UNK]", "[EOS]", "low", "the"]
    assert len(small) == 5
    assert Words.train(file, lowercase=True, min_count=2).vocabulary[3:] == ["low", "the"]


def test_split_option_selects_spaces_or_punctuation():
    vocabulary = ["[PAD]", "<unk>", "[EOS]", "a", "@-@", "b", "-", "@", "a@-@b"]
    spaced = Words(vocabulary, split="spaces", unk_token="<unk>")
    assert spaced.tokenize("a @-@ b  <unk> c") == ["a", "@-@", "b", "<unk>", "<unk>"]
    assert spaced.pack(["a <unk>"])["token_ids"].tolist() == [[3, 1]]
    assert Words(vocabulary, unk_token="<unk>").tokenize("a-b") == ["a", "-", "b"]
    # Words of a list stay whole, so that tags keep their words.
    assert spaced.tokenize(["a", "a@-@b", "b c"]) == ["a", "a@-@b", "<unk>"]


def test_pack_returns_word_ids_and_offsets():
    words = Words(["[PAD]", "[UNK]", "[EOS]", "low", "tower"], lowercase=True)
    packed = words.pack(["Low, tower", ""], return_offsets=True)
    assert packed["token_ids"].tolist() == [[3, 1, 4], [0, 0, 0]]
    assert packed["padding_mask"].tolist() == [[True] * 3, [False] * 3]
    assert packed["offsets"][0].tolist() == [[0, 3], [3, 4], [5, 10]]
    packed = words.pack([["Low", "tower"], ["tower"]], max_length=1, return_offsets=True)
    assert packed["token_ids"].tolist() == [[3], [4]]
    assert packed["word_ids"].tolist() == [[0], [0]]
    assert words.detokenize([3, 1, 4, 2, 0]) == "low [UNK] tower"


def test_windows_contain_every_word_from_the_first():
    words = Words(["[PAD]", "[UNK]", "[EOS]", *"abcdefgh"])
    source = batches([Example(list("abcdefgh"), list("ABABABAB")), Example(["h"], ["B"])],
                     words, ["A", "B"], max_length=3)  # fmt: skip
    rows = source.source
    assert rows.lengths.tolist() == [3, 3, 2, 1] and rows.words.tolist() == [3, 3, 2, 1]
    x, y, weights = source.source.collate(np.arange(4), 4, None, 0)
    assert x["word_positions"][:, 0].tolist() == [0, 0, 0, 0]
    assert (x["word_positions"] >= 0).sum() == 9 == weights.sum()


def test_saves_and_loads(file, tmp_path):
    words = Words.train(file, lowercase=True, split="spaces", unk_token="<unk>")
    words.save(tmp_path / "words.json")
    again = Words.load(tmp_path / "words.json")
    assert again.get_config() == words.get_config()
    assert Words.from_config(words.get_config()).tokenize("The low") == ["the", "low"]
    (tmp_path / "tokenizer.json").write_text((tmp_path / "words.json").read_text())
    assert isinstance(keras_plm.checkpoints.load_tokenizer(tmp_path), Words)


def test_read_ids_ends_lines_with_eos(file):
    words = Words.train(file, lowercase=True)
    ids = read_ids(file, words)
    assert ids.dtype == np.int32
    assert words._tokenizer.decode(ids.tolist(), skip_special_tokens=False) == (
        "the low tower , the lower [EOS] low low [EOS] newer . [EOS]"
    )
    assert (read_ids([file, file], words) == np.tile(ids, 2)).all()
    with_blank = read_ids(file, words, blank_lines=True)
    assert (with_blank == words.end_id).sum() == 4


@pytest.mark.parametrize("split, unk_token", [("spaces", "<unk>"), ("spaces", "[UNK]")])
def test_special_words_in_text_get_their_reserved_ids(split, unk_token, tmp_path):
    (tmp_path / "text").write_text(f"the cat saw the dog {unk_token} {unk_token} the [EOS]\n")
    words = Words.train(tmp_path / "text", split=split, unk_token=unk_token)
    assert words.vocabulary == ["[PAD]", unk_token, "[EOS]", "the", "cat", "dog", "saw"]
    ids = read_ids(tmp_path / "text", words).tolist()
    assert ids == [3, 4, 6, 3, 5, 1, 1, 3, 2, 2]
    few = Words.train(tmp_path / "text", 5, split=split, unk_token=unk_token)
    assert few.vocabulary == words.vocabulary[:5]


def test_bad_input(file, tmp_path):
    with pytest.raises(ValueError, match="must be in lower case"):
        Words(["[PAD]", "<UNK>", "[EOS]"], lowercase=True, unk_token="<UNK>")
    with pytest.raises(ValueError, match=r"must be in \[0, 3\). Received: 99"):
        Words(["[PAD]", "[UNK]", "[EOS]"]).detokenize([1, 99])
    with pytest.raises(ValueError, match=r"must hold \[PAD\] <unk> \[EOS\]"):
        Words(["[PAD]", "[UNK]", "[EOS]"], unk_token="<unk>")
    with pytest.raises(ValueError, match="occur once"):
        Words(["[PAD]", "[UNK]", "[EOS]", "a", "a"])
    for call in (Words.train, lambda f, split: Words(["[PAD]", "[UNK]", "[EOS]"], split=split)):
        with pytest.raises(ValueError, match="`split` must be one of"):
            call(file, split="words")
    with pytest.raises(ValueError, match="number of special words, 3"):
        Words.train(file, 3)
    with pytest.raises(ValueError, match="`min_count` must be a whole number, 1 or more"):
        Words.train(file, min_count=0)
    with pytest.raises(ValueError, match="must occur `min_count` times"):
        Words.train(file, min_count=9)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="vocabulary needs text"):
        Words.train(tmp_path / "empty.txt")
    words = Words.train(file)
    with pytest.raises(ValueError, match="There is no text in these files"):
        read_ids(tmp_path / "empty.txt", words)
    with pytest.raises(ValueError, match="packs one text"):
        words.pack(["a"], ["b"])
    with pytest.raises(ValueError, match="all strings or all lists"):
        words.pack([["a"], "b"])
    with pytest.raises(ValueError, match="room for text and 0 special tokens"):
        words.pack(["a"], max_length=0)
    (tmp_path / "other.json").write_text('{"model": {"type": "BPE", "vocab": {}}}')
    with pytest.raises(ValueError, match='other.json: `model.type` must be .*"WordLevel"'):
        Words.load(tmp_path / "other.json")
    Words(["[PAD]", "[UNK]", "[EOS]", "a"]).save(tmp_path / "words.json")
    saved = json.loads((tmp_path / "words.json").read_text())
    for name, theirs in (("pre_tokenizer", "Whitespace"), ("normalizer", "Lowercase")):
        changed = {**saved, name: {"type": theirs}}
        (tmp_path / "other.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=f"other.json: `{name}[.]"):
            Words.load(tmp_path / "other.json")
