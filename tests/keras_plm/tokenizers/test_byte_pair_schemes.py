"""Byte pairs of GPT and GPT-2: the released files, training, offsets, inputs of tasks."""

import gzip
import json

import keras
import numpy as np
import pytest

from keras_plm.checkpoints import load_tokenizer
from keras_plm.data.corpus import TokenStream
from keras_plm.tokenizers import BytePair

pytestmark = pytest.mark.backend_neutral

TEXT = [
    "The old man said: “It's Mr. Smith's dog, isn't it?”",
    "He can't—or won't—come at 3.30 p.m. … not now!",
    "They didn't know what the café was, and I'm sure they'd never cared.",
    "Naïve façades, 1,000 of them; the ﬁrst of the U.S. ones",
]


@pytest.fixture
def files(data):
    names = ("openai_gpt_encoder_bpe_40000.json", "openai_gpt_vocab_40000.bpe")
    return [data(f"vocabularies/{name}") for name in names]


@pytest.fixture
def released(files):
    return BytePair.load(*files)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXT * 5) + "\n", encoding="utf-8")
    return path


MICRO = {
    "the president is a very good man .": [481, 4735, 544, 246, 963, 870, 762, 239],
    "embeddings": [32850, 21187],
    "transformer": [2973, 5353],
    "unaffable": [563, 752, 21948],
    "tokenization": [571, 2987, 26922],
    "nlp": [9, 26, 262],
    "\n": [40477],
}


class TestReleasedVocabulary:
    def test_token_ids_equal_the_published_ids(self, released):
        plain = released.unframed()
        for text, ids in MICRO.items():
            assert plain.encode([text]).token_ids.tolist() == ids
        assert (len(released), released.text_size, len(plain)) == (40_482, 40_478, 40_478)
        # The known continuation of the released model, which splits off 'm as a word.
        said = 'the president is a very good man. " \n " i\'m sure he is, " said the'
        ids = [481, 4735, 544, 246, 963, 870, 762, 239, 244, 40477, 244, 249, 719, 881, 487, 544]
        assert plain.encode([said]).token_ids.tolist() == [*ids, 240, 244, 603, 481]
        text = plain.detokenize([*ids, 240, 244, 603, 481])
        assert text == 'the president is a very good man. "\n" i\'m sure he is, " said the'

    @pytest.mark.full
    def test_tokenizer_json_of_transformers_loads_equal(self, released, files, tmp_path):
        transformers = pytest.importorskip("transformers")
        transformers.OpenAIGPTTokenizer(*(str(p) for p in files)).save_pretrained(tmp_path)
        config = load_tokenizer(tmp_path).get_config()
        assert [token["content"] for token in config.pop("added_tokens")] == ["<unk>"]
        assert config == released.get_config()

    def test_special_token_ids_follow_the_vocabulary(self, released):
        packed = released.pack(["a man"], ["embeddings"])
        assert packed["token_ids"].tolist() == [[40478, 246, 762, 40479, 32850, 21187, 40480]]
        assert released.pad_id == 40_481

    @pytest.mark.full
    def test_ids_equal_transformers_for_equal_word_splits(self, released, files):
        transformers = pytest.importorskip("transformers")
        theirs = transformers.OpenAIGPTTokenizer(*(str(path) for path in files))
        plain = released.unframed()
        for text in (
            "The quick brown fox jumps over the lazy dog, and the tokenization is unaffable.",
            "Shall I compare thee to a summer day? Thou art more lovely and more temperate!",
            "In 1984 electroencephalography (of sorts) was transmogrified; no one noticed.",
        ):
            wanted = theirs(text, add_special_tokens=False)["input_ids"]
            assert plain.encode([text]).token_ids.tolist() == wanted


def test_word_splits_equal_spacy():
    """The expected words are recorded from spaCy 3.8's English tokenizer, after the clean-up."""
    pieces = ["<unk>", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = BytePair(pieces, [], lowercase=False, scheme="gpt")._tokenizer
    wanted = [
        "The|old|man|said|:|\"|It|'s|Mr.|Smith|'s|dog|,|is|n't|it|?|\"",
        "He|ca|n't|-|or|wo|n't|-|come|at|3.30|p.m.|...|not|now|!",
        "They|did|n't|know|what|the|café|was|,|and|I|'m|sure|they|'d|never|cared|.",
        "Naïve|façades|,|1|,|000|of|them|;|the|first|of|the|U.S.|ones",
        "I|can|not|--|will|not|--|say|o'clock|,|'em|,|and|we|'ve|\n|a|**|b|**",
    ]
    more = "I cannot--will not -- say o'clock, 'em, and we've \n\n  a **b**"
    for text, words in zip([*TEXT, more], wanted, strict=True):
        normal = tokenizer.normalizer.normalize_str(text)
        found = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
        assert "|".join(found) == words


def test_clean_up_is_optional():
    pieces = ["<unk>", *"abc-.'\"", *(f"{c}</w>" for c in "abc-'\""), "...", "...</w>", "—</w>"]
    merges = []
    assert BytePair(pieces, merges, scheme="gpt").tokenize("a—b ‘c“") == [
        "a</w>", "-</w>", "b</w>", "'</w>", "c</w>", '"</w>',
    ]  # fmt: skip
    raw = BytePair(pieces, merges, scheme="gpt", clean=False)
    assert raw.tokenize("a—b ‘c") == ["a</w>", "—</w>", "b</w>", "<unk>", "c</w>"]
    with pytest.raises(ValueError, match="every character must be.*Received: '‘' in 'a ‘c'"):
        BytePair(pieces, merges, scheme="gpt", clean=False, unknown="error").tokenize("a ‘c")
    strict = BytePair(pieces, merges, scheme="gpt", unknown="error")
    assert strict.tokenize("a b") == ["a</w>", "b</w>"]


@pytest.mark.parametrize("scheme", ["gpt", "gpt2"])
def test_trained_tokenizer_survives_save_and_load(scheme, corpus, tmp_path):
    size = 350 if scheme == "gpt2" else 160
    tokenizer = BytePair.train(corpus, size, scheme=scheme)
    assert len(tokenizer) == size and tokenizer.text_size == size - 4
    again = BytePair.train(corpus, size, scheme=scheme)
    assert again.get_config() == tokenizer.get_config()
    assert "</w>" in "".join(tokenizer.vocabulary) or scheme == "gpt2"
    tokenizer.save(tmp_path / "tokenizer.json")
    rows = tokenizer.pack(TEXT, TEXT[::-1], max_length=40)
    for other in (
        BytePair.load(tmp_path / "tokenizer.json"),
        load_tokenizer(tmp_path),
        BytePair.from_config(tokenizer.get_config()),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer)),
    ):
        np.testing.assert_array_equal(other.pack(TEXT, TEXT[::-1], max_length=40)["token_ids"],
                                      rows["token_ids"])  # fmt: skip
        assert len(other) == size
    ids = tokenizer.unframed().encode([TEXT[0]]).token_ids
    wanted = (
        TEXT[0] if scheme == "gpt2" else "the old man said: \" it's mr. smith's dog, isn't it? \""
    )
    assert tokenizer.detokenize([tokenizer.start_id, *ids, tokenizer.classify_id]) == wanted


def test_lowercase_false_preserves_case(corpus):
    tokenizer = BytePair.train(corpus, 170, lowercase=False, scheme="gpt")
    assert tokenizer.tokenize("The") != tokenizer.tokenize("the")
    assert BytePair.train(corpus, 170, scheme="gpt").lowercase


def test_offsets_of_added_tokens_that_strip_spaces(corpus):
    config = BytePair.train(corpus, 350, scheme="gpt2").get_config()
    added = [{"content": "<mask>", "lstrip": True}]
    tokenizer = BytePair(**{**config, "added_tokens": added})
    tokens = tokenizer.flat_tokens([["a", "<mask>", "b"]], return_offsets=True)
    mask = tokens.token_ids.tolist().index(tokenizer.vocabulary.index("<mask>"))
    assert tokens.offsets[mask].tolist() == [0, 6] and tokens.offsets.min() == 0


@pytest.mark.parametrize("scheme", ["gpt", "gpt2"])
def test_offsets_and_word_ids_point_into_the_text(scheme, corpus):
    tokenizer = BytePair.train(corpus, 350 if scheme == "gpt2" else 160, scheme=scheme)
    text = TEXT[2]
    packed = tokenizer.pack([text], return_offsets=True)
    pieces = [text[a:b] for a, b in packed["offsets"][0]]
    assert pieces[0] == pieces[-1] == ""
    joined = "".join(pieces)
    assert joined == text.replace(" ", "") if scheme == "gpt" else joined
    assert not any(piece != piece.strip() for piece in pieces)
    words = text.split()
    packed = tokenizer.pack([words], return_offsets=True)
    found = {}
    for (a, b), word in zip(packed["offsets"][0], packed["word_ids"][0], strict=True):
        if word >= 0:
            found[word] = found.get(word, "") + words[word][a:b]
    if scheme == "gpt":
        assert [found[i] for i in range(len(words))] == words
    assert sorted(found) == list(range(len(words)))


def test_gpt2_ids_equal_transformers(corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = BytePair.train(corpus, 400, scheme="gpt2")
    vocabulary = {p: i for i, p in enumerate([*ours.unframed().vocabulary, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in ours.merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    theirs = transformers.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    theirs.save_pretrained(tmp_path / "one")
    one = load_tokenizer(tmp_path / "one")
    mine = load_tokenizer(tmp_path)
    assert one.get_config() == mine.get_config()
    assert mine.end_id == len(vocabulary) - 1 and mine.scheme == "gpt2"
    for text in [*TEXT, "  two  spaces\nand\tmore 猫 "]:
        ids = mine.unframed().encode([text]).token_ids.tolist()
        assert ids == theirs(text)["input_ids"]
        assert mine.detokenize([*ids, mine.end_id]) == text


class TestTasks:
    def tokenizer(self, **options):
        return BytePair(["<unk>", *(f"{c}</w>" for c in "abcde")], [], scheme="gpt", **options)

    def test_classification(self):
        packed = self.tokenizer().pack(["a b", "c"])
        assert packed["token_ids"].tolist() == [[6, 1, 2, 8], [6, 3, 8, 9]]
        assert packed["padding_mask"].tolist() == [[True] * 4, [True] * 3 + [False]]

    def test_entailment(self):
        packed = self.tokenizer().pack(["a b", "c"], ["d", "e e"])
        assert packed["token_ids"].tolist() == [[6, 1, 2, 7, 4, 8], [6, 3, 7, 5, 5, 8]]
        cut = self.tokenizer().pack(["a b c d"], ["d e"], max_length=6)
        assert cut["token_ids"].tolist() == [[6, 1, 2, 7, 4, 8]]

    def test_similarity_in_both_orders(self):
        packed = self.tokenizer().pack(["a", "b"], ["d d", "e"], both_orders=True)
        assert packed["token_ids"].tolist() == [
            [[6, 1, 7, 4, 4, 8], [6, 4, 4, 7, 1, 8]],
            [[6, 2, 7, 5, 8, 9], [6, 5, 7, 2, 8, 9]],
        ]
        assert packed["padding_mask"].shape == (2, 2, 6)

    def test_multiple_choice(self):
        packed = self.tokenizer().pack(["a b"], choices=[["c", "d d", "e"]], return_offsets=True)
        assert packed["token_ids"].tolist() == [
            [[6, 1, 2, 7, 3, 8, 9], [6, 1, 2, 7, 4, 4, 8], [6, 1, 2, 7, 5, 8, 9]]
        ]
        assert packed["offsets"].shape == (1, 3, 7, 2)

    def test_invalid_arguments_are_refused(self):
        tokenizer = self.tokenizer()
        with pytest.raises(ValueError, match="the same number of choices.*2 texts"):
            tokenizer.pack(["a", "b"], choices=[["a"], ["b", "c"]])
        with pytest.raises(ValueError, match="Choices replace second texts"):
            tokenizer.pack(["a"], ["b"], choices=[["a", "b"]])
        with pytest.raises(ValueError, match="`both_orders` needs pairs"):
            tokenizer.pack(["a"], both_orders=True)
        with pytest.raises(ValueError, match="Without a delimiter.*packs one text per row"):
            tokenizer.unframed().pack(["a"], ["b"])
        with pytest.raises(
            ValueError, match=r"some of _start_ _delimiter_ _classify_ _pad_.*_end_"
        ):
            self.tokenizer(special_tokens=["_start_", "_end_"])
        with pytest.raises(ValueError, match="`special_tokens` must be some of none here"):
            BytePair(["[PAD]", "[UNK]", "[BOS]", "[EOS]"], [], special_tokens=["_start_"])
        with pytest.raises(ValueError, match="`scheme` must be one of 'space', 'gpt', 'gpt2'"):
            BytePair(["<unk>"], [], scheme="bert")

    def test_other_special_tokens(self):
        tokenizer = self.tokenizer(special_tokens=["_classify_"])
        assert tokenizer.pack(["a b"])["token_ids"].tolist() == [[1, 2, 6]]
        assert len(tokenizer) == 7 and not tokenizer.joint_pairs
        plain = tokenizer.unframed()
        assert plain.pack(["a b"])["token_ids"].tolist() == [[1, 2]]
        assert plain.framed == (False, False) and plain.unframed() is plain


def test_mismatched_vocabulary_and_merges_are_refused(tmp_path):
    encoder, merges = tmp_path / "encoder.json", tmp_path / "vocab.bpe"
    encoder.write_text(json.dumps({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3}))
    merges.write_text("#version: 0.2\na b</w>\na c</w>\n")
    with pytest.raises(ValueError, match=r"vocab.bpe:3: .* two files of one tokenizer.*'a c</w>'"):
        BytePair.load(encoder, merges)
    merges.write_text("#version: 0.2\na b</w>\n\n")
    assert BytePair.load(encoder, merges).tokenize("ab") == ["ab</w>"]
    encoder.write_text(json.dumps({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 4}))
    with pytest.raises(ValueError, match="from 0 without a gap"):
        BytePair.load(encoder, merges)
    encoder.write_text("[1, 2]")
    with pytest.raises(ValueError, match="encoder.json: it must hold an object"):
        BytePair.load(encoder, merges)
    encoder.write_text(json.dumps({"a": 0, "b</w>": 1, "ab</w>": 2}))
    with pytest.raises(ValueError, match="must hold <unk>"):
        BytePair.load(encoder, merges)
    with pytest.raises(ValueError, match="No file .*missing.bpe"):
        BytePair.load(encoder, tmp_path / "missing.bpe")
    with pytest.raises(ValueError, match="has its own settings.* Received: lowercase"):
        BytePair.load(encoder, lowercase=True)


def test_token_stream_ends_lines_with_the_newline_id(tmp_path):
    tokenizer = BytePair(["<unk>", *(f"{c}</w>" for c in "abcde"), "\n</w>"], [], scheme="gpt")
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("a b\nc\n\nd\n")
    end = tokenizer.newline_id
    stream = TokenStream.build(tmp_path / "text.gz", tokenizer, tmp_path / "s", "lines", end_id=end)
    assert stream.tokens[:].tolist() == [1, 2, 6, 3, 6, 4, 6]
    assert stream.sentences.tolist() == [0, 3, 5, 7] and stream.documents.tolist() == [0, 2, 3]
    plain = TokenStream.build(tmp_path / "text.gz", tokenizer, tmp_path / "t", "lines")
    assert plain.tokens[:].tolist() == [1, 2, 3, 4]
