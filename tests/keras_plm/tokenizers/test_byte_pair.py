"""Byte pairs, compared with the paper's algorithm in plain Python; lossless text; packing."""

import collections
import gzip
import json
import random
import re
import subprocess
import sys
import unicodedata

import keras
import numpy as np
import pytest

from keras_plm.tokenizers import BytePair, WordPiece

pytestmark = pytest.mark.backend_neutral

SPECIAL = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
PIECES = [*SPECIAL, *" .elorw", " l", "ow", " low", "er"]
MERGES = [(" ", "l"), ("o", "w"), (" l", "ow"), ("e", "r")]
CORPUS = """\
The lowest tower is lower than the newest, widest tower.
Lower the flower: the slow, low flow of the river (it follows the well) never widens!
Die größte Blume ist größer als die größeren Blumen, die weißen und die süßen.
"Wie geht's?", fragte der Läufer; er läuft, lief und wird laufen.
"""


@pytest.fixture
def tokenizer():
    return BytePair(PIECES, MERGES)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("byte_pair") / "corpus.txt"
    path.write_text(CORPUS * 2, encoding="utf-8")
    return BytePair.train(path, 200)


def words_of(text):
    return re.findall(r" ?\w+| ?[^\w\s]", " " + text)


def merged(word, pair):
    out = []
    for piece in word:
        # Merges go from left to right. A merged piece has more letters than its first half.
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def learn(text, vocabulary_size):
    """Algorithm 1 of the paper; among equally frequent pairs, the smaller ids are merged first."""
    words = collections.Counter(w for line in text.splitlines() for w in words_of(line))
    words = [(list(word), count) for word, count in words.items()]
    pieces = [*SPECIAL, *sorted({letter for word, _ in words for letter in word})]
    merges = []
    while len(pieces) < vocabulary_size:
        counts = collections.Counter()
        for word, count in words:
            for pair in zip(word, word[1:], strict=False):
                counts[pair] += count
        pair = min(counts, key=lambda p: (-counts[p], pieces.index(p[0]), pieces.index(p[1])))
        if counts[pair] < 2:
            break
        merges.append(pair)
        pieces.append("".join(pair))
        words = [(merged(word, pair), count) for word, count in words]
    return pieces, merges


def cleaned(text):
    """Cleans a text: removes control characters, composes accents, collapses spaces."""
    kept = [c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C"]
    return " ".join(unicodedata.normalize("NFC", "".join(kept)).split())


@pytest.mark.parametrize("vocabulary_size", [61, 97, 131, 1000])
def test_learns_the_papers_merges(corpus, vocabulary_size):
    ours = BytePair.train(corpus, vocabulary_size)
    pieces, merges = learn(CORPUS, vocabulary_size)
    assert ours.vocabulary == pieces
    assert ours.merges == merges
    for text in (CORPUS, "Der Lower-Tower fließt: slowest rivers, größter Läufer."):
        expected = [list(word) for word in words_of(" ".join(text.split()))]
        for merge in merges:
            expected = [merged(word, merge) for word in expected]
        expected = [p if p in pieces else "[UNK]" for word in expected for p in word]
        assert ours.tokenize(text) == expected


def test_lowercase(corpus):
    ours = BytePair.train(corpus, 120, lowercase=True)
    assert ours.vocabulary == learn(CORPUS.lower(), 120)[0]
    assert ours.detokenize(ours.encode(["Größe, LÄUFER"]).token_ids) == "größe, läufer"


@pytest.mark.full
def test_lossless_on_multi30k(data, tmp_path):
    files = [data("multi30k/train.de.gz"), data("multi30k/train.en.gz")]
    tokenizer = BytePair.train(files, 2000)
    assert len(tokenizer) == 2000
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = [line.rstrip("\n") for line in file][:5000]
        rows = tokenizer.encode(texts)
        assert (rows.token_ids != tokenizer.unk_id).all()
        ends = rows.starts + rows.lengths
        found = [
            tokenizer.detokenize(rows.token_ids[a:b])
            for a, b in zip(rows.starts, ends, strict=True)
        ]
        assert found == [cleaned(text) for text in texts]


def test_lossless_on_odd_texts(tmp_path):
    alphabet = (
        "aäßZ\u00e9e\u0301 ..,'\"()[]-_▁Ġ#@</w>5é東京\u0e01\u0e33😀\u200d\u00a0\t\r\u2028\x00"
    )
    choose = random.Random(7)
    texts = ["".join(choose.choices(alphabet, k=choose.randrange(20))) for _ in range(2000)]
    (tmp_path / "odd.txt").write_text("\n".join(texts), encoding="utf-8", newline="\n")
    tokenizer = BytePair.train(tmp_path / "odd.txt", 300)
    tokenizer.unknown = "error"
    for text in texts:
        assert tokenizer.detokenize(tokenizer.encode([text]).token_ids) == cleaned(text)


def test_punctuation_does_not_change_tokens_of_a_word(trained):
    plain, comma = trained.tokenize("der Läufer läuft"), trained.tokenize("der Läufer, läuft.")
    assert [p for p in comma if p not in (",", ".")] == plain


@pytest.mark.full
def test_training_is_deterministic_across_processes(data):
    path = data("multi30k/train.en.gz")
    code = (
        "import sys, hashlib, json; from keras_plm.tokenizers import BytePair;"
        "config = BytePair.train(sys.argv[1], 3000).get_config();"
        "print(hashlib.sha256(json.dumps(config).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(path)]
    hashes = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert hashes[0] == hashes[1] and len(hashes[0]) == 65


def test_pack_appends_the_end_token(tokenizer):
    packed = tokenizer.pack(["low lower.", "low", ""])
    assert packed["token_ids"].tolist() == [[13, 13, 14, 5, 3], [13, 3, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert packed["padding_mask"].sum(axis=1).tolist() == [5, 2, 1]
    assert set(packed) == {"token_ids", "padding_mask"}
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.start_id, tokenizer.end_id)
    assert ids == (0, 1, 2, 3)
    assert tokenizer.pack([])["token_ids"].shape == (0, 0)


def test_truncation_preserves_the_end_token(tokenizer):
    rows = tokenizer.encode(["low lower.", "low"], max_length=3)
    assert rows.token_ids.tolist() == [13, 13, 3, 13, 3]
    assert rows.lengths.tolist() == [3, 2] and rows.cut.tolist() == [2, 0]


def test_offsets_point_into_the_original_text(tokenizer):
    text = "  low\t\u200blower . w"
    packed = tokenizer.pack([text], return_offsets=True)
    pieces = [tokenizer.vocabulary[i] for i in packed["token_ids"][0]]
    spans = [text[a:b] for a, b in packed["offsets"][0]]
    assert pieces == [" low", " low", "er", " ", ".", " ", "w", "[EOS]"]
    assert [span.strip("\u200b") for span in spans] == ["low", "low", "er", "", ".", "", "w", ""]
    assert packed["word_ids"][0].tolist() == [0, 1, 1, 2, 2, 3, 3, -1]


def test_offsets_cover_all_text_except_spaces(trained):
    text = '"Die süßen Blumen?", fragte er; der L\u00e4ufer (low)  im 東 Tower.'
    packed = trained.pack([text], return_offsets=True)
    spans = [text[a:b] for a, b in packed["offsets"][0]]
    assert "".join(spans) == text.replace(" ", "")
    for i, span in zip(packed["token_ids"][0], spans, strict=True):
        piece = trained.vocabulary[i]
        if piece not in SPECIAL:
            assert piece.removeprefix(" ") == unicodedata.normalize("NFC", span)


def test_lists_of_words_get_word_ids_and_offsets(tokenizer):
    rows = tokenizer.encode([["low", "\u200d", "lower.", ""]], return_offsets=True)
    assert rows.token_ids.tolist() == [13, 1, 13, 14, 5, 1, 3]
    assert rows.word_ids.tolist() == [0, 1, 2, 2, 2, 3, -1]
    assert rows.offsets.tolist() == [[0, 3], [0, 0], [0, 3], [3, 5], [5, 6], [0, 0], [0, 0]]
    assert tokenizer.tokenize(["low", "er"]) == [" low", " ", "er"]


def test_unknown_characters_become_unk_or_raise_errors(tokenizer):
    assert tokenizer.tokenize("low東er.") == [" low", "[UNK]", "er", "."]
    strict = BytePair(PIECES, MERGES, unknown="error")
    assert strict.tokenize("low lower.") == tokenizer.tokenize("low lower.")
    for call in (strict.tokenize, lambda t: strict.pack(["low", t]), lambda t: strict.pack([[t]])):
        with pytest.raises(
            ValueError, match="must be in the vocabulary. Received: '東' in .*low東"
        ):
            call("low東er")


def test_special_token_strings_in_text_are_plain_text():
    tokenizer = BytePair([*PIECES, *"[]BDENOPSAUK"], MERGES)
    text = "[EOS] low[EOS][PAD] [UNK] low [BOS]"
    for batch in ([text], [text.split()]):
        ids = tokenizer.encode(batch).token_ids
        assert (ids[:-1] > 3).all() and ids[-1] == 3
        assert tokenizer.detokenize(ids) == text


def test_detokenize_omits_special_tokens(tokenizer):
    assert tokenizer.detokenize(np.array([2, 13, 13, 14, 5, 3, 0, 0])) == "low lower."
    assert tokenizer.detokenize([]) == ""


def test_save_load_round_trip(trained, tmp_path):
    for original in (trained, BytePair(PIECES, MERGES, lowercase=True, unknown="error")):
        original.save(tmp_path / "tokenizer.json")
        config = keras.saving.serialize_keras_object(original)
        for again in (
            BytePair.load(tmp_path / "tokenizer.json"),
            keras.saving.deserialize_keras_object(json.loads(json.dumps(config))),
        ):
            assert again.get_config() == original.get_config() and len(again) == len(original)
            ids = again.encode(["lower low. Lower"]).token_ids
            np.testing.assert_array_equal(ids, original.encode(["lower low. Lower"]).token_ids)
    assert not list(tmp_path.glob("*.tmp"))


def test_saved_file_loads_in_the_tokenizers_package(trained, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    trained.save(tmp_path / "tokenizer.json")
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "Die größte Blume (low)."
    assert peer.encode(text).tokens == trained.tokenize(text)
    assert peer.decode(peer.encode(text).ids) == text


def test_bad_input_is_explained(tokenizer, corpus, tmp_path):
    with pytest.raises(ValueError, match=r"BytePair vocabulary must hold .* without \[EOS\]"):
        BytePair(["[PAD]", "[UNK]", "[BOS]", "a"], [])
    with pytest.raises(ValueError, match="'low' at line 5 and line 6"):
        BytePair([*SPECIAL, "low", "low"], [])
    with pytest.raises(ValueError, match=r"join two tokens .* merges\[1\]=\('l', 'x'\)"):
        BytePair(PIECES, [(" ", "l"), ("l", "x")])
    with pytest.raises(ValueError, match="`unknown` must be .* Received: 'drop'"):
        BytePair(PIECES, MERGES, unknown="drop")
    with pytest.raises(ValueError, match="put a single one in brackets"):
        tokenizer.pack("low")
    with pytest.raises(ValueError, match=r"one text per row.* Received: pairs=\['low'\]"):
        tokenizer.pack(["low"], ["low"])
    with pytest.raises(ValueError, match="room for text and 1 special token. Received.*=1"):
        tokenizer.pack(["low"], max_length=1)
    with pytest.raises(ValueError, match="No file .*missing.txt"):
        BytePair.train([corpus, tmp_path / "missing.txt"], 100)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="files without any"):
        BytePair.train(tmp_path / "empty.txt", 100)
    (tmp_path / "letters.txt").write_text("abcdefghij")
    with pytest.raises(ValueError, match="at least 15 tokens.* Received: vocabulary_size=14"):
        BytePair.train(tmp_path / "letters.txt", 14)
    assert len(BytePair.train(tmp_path / "letters.txt", 15)) == 15


def test_errors_name_damaged_and_foreign_files(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="No file .*tokenizer.json"):
        BytePair.load(path)
    WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]).save(path)
    with pytest.raises(ValueError, match='`model.type` must be .*"BPE".*"WordPiece"'):
        BytePair.load(path)
    tokenizer.save(path)
    with pytest.raises(ValueError, match='`model.type` must be .*"WordPiece".*"BPE"'):
        WordPiece.load(path)
    text = path.read_text()
    for damaged in (text[: len(text) // 2], "[1]", '{"model": 3}', "", text.replace("merges", "m")):
        path.write_text(damaged)
        with pytest.raises(ValueError, match="tokenizer.json"):
            BytePair.load(path)
    path.write_bytes(text.encode() + b"\n\xff")
    with pytest.raises(ValueError, match="tokenizer.json:2: the file must be UTF-8 text"):
        BytePair.load(path)
