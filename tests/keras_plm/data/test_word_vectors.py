"""Files of word vectors: round trips, comparisons with gensim and fastText, damaged files."""

import gzip
import struct
import tracemalloc
import warnings

import numpy as np
import pytest

from keras_plm.data.formats.fasttext import SubwordVectors, read_fasttext
from keras_plm.data.formats.word_vectors import read_vectors, write_vectors
from keras_plm.tokenizers.character_ngrams import ngram_rows

pytestmark = pytest.mark.backend_neutral

WORDS = ["the", "naïve", "日本", "2003", "\u00a0x", "nan", "</s>"]
VECTORS = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
VECTORS[2] = [1e-30, -3e30, 0, 16777216, 1 / 3]


@pytest.fixture
def file(tmp_path):
    """`file(b"the 1 2\\n")` writes a file with these bytes."""

    def write(content, name="vectors"):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def subwords(**settings):
    rng = np.random.default_rng(1)
    settings = {"min_n": 2, "max_n": 4, **settings}
    buckets = rng.normal(size=(101, 5))
    return SubwordVectors(WORDS, VECTORS[:, ::-1] % 7, buckets, range(7, 0, -1), **settings)


def mean_of(vectors, word):
    """Computes a vector like `FastText::getWordVector`, one row after the other."""
    rows = [vectors.word_rows[vectors.words.index(word)]] if word in vectors.words else []
    if word != "</s>":
        numbers = ngram_rows(word, vectors.min_n, vectors.max_n, vectors.buckets)
        rows += [vectors.bucket_rows[number] for number in numbers]
    return np.mean(rows, axis=0) if rows else np.zeros(vectors.dim)


def contents():
    """Returns two words in every text and binary format, written by hand."""
    floats = struct.pack("<4f", 0.5, -2, 3, 1e-5)
    return {
        "glove": b"a 0.5 -2\nb 3 1e-5\n",
        "no newline at the end": b"a 0.5 -2\nb 3 1e-5",
        "as the originals write": b"2 2\na 0.5 -2 \nb 3 1e-5 \n",
        "of Windows": b"2 2\r\na 0.5 -2.\r\nb +3 .1E-4\r\n",
        "binary": b"2 2\na " + floats[:8] + b"b " + floats[8:],
        "binary with newlines": b"2 2\na " + floats[:8] + b"\nb " + floats[8:] + b"\n",
    }


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", contents())
def test_format_is_detected_from_content(kind, zipped, file):
    content = contents()[kind]
    words, vectors = read_vectors(file(gzip.compress(content) if zipped else content))
    assert words == ["a", "b"] and vectors.dtype == "float32"
    np.testing.assert_array_equal(vectors, np.array([[0.5, -2], [3, 1e-5]], "float32"))


def test_spaces_and_byte_order_mark_are_stripped_from_words(file):
    for content in (b"2 2\nking  1 2\n man 3 4\n", b"\xef\xbb\xbfking 1 2\nman  3 4\n",
                    b"\xef\xbb\xbf2 2\nking 1 2\n  man 3 4\n"):  # fmt: skip
        words, vectors = read_vectors(file(content))
        assert words == ["king", "man"] and vectors.tolist() == [[1, 2], [3, 4]]
    assert read_vectors(file(b"\xef\xbb\xbf 1 2\n"))[0] == ["\ufeff"]


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.gz"])
@pytest.mark.parametrize("format", ["word2vec", "binary", "glove"])
def test_written_vectors_read_back_exactly(format, name, tmp_path):
    path = tmp_path / "new" / name
    write_vectors(path, WORDS, VECTORS, format)
    assert [p.name for p in path.parent.iterdir()] == [name]
    first = path.read_bytes()
    assert (first[:2] == b"\x1f\x8b") == (name == "vectors.gz")
    words, vectors = read_vectors(path)
    assert words == WORDS
    np.testing.assert_array_equal(vectors, VECTORS)
    if name == "vectors.txt":
        write_vectors(path, WORDS, VECTORS, format)
        assert path.read_bytes() == first


@pytest.mark.parametrize("format", ["word2vec", "binary", "glove"])
def test_float32_round_trip_is_exact_for_any_block_size(format, tmp_path, monkeypatch):
    bits = np.random.default_rng(2).integers(0, 2**32, 30_000, dtype="uint32")
    numbers = bits.view("float32")
    numbers = numbers[np.isfinite(numbers)][:29_000].reshape(-1, 29)
    words = [f"w{i}" for i in range(1000)]
    monkeypatch.setattr("keras_plm.data.formats.word_vectors.BLOCK", 9999)
    write_vectors(tmp_path / "v", words, numbers, format)
    for size in (1 << 20, 777, 50):  # one block, blocks of several rows, blocks smaller than a row
        monkeypatch.setattr("keras_plm.data.formats.word_vectors.BLOCK", size)
        found, vectors = read_vectors(tmp_path / "v")
        assert found == words
        np.testing.assert_array_equal(vectors, numbers)
    assert read_vectors(tmp_path / "v", limit=901)[0] == words[:901]


def test_a_first_row_longer_than_a_block(tmp_path):
    row = np.ones((2, 70_001))
    write_vectors(tmp_path / "v", ["a", "b"], row, "glove")
    np.testing.assert_array_equal(read_vectors(tmp_path / "v")[1], row)


@pytest.mark.parametrize("format", ["word2vec", "binary", "glove", "bin"])
def test_selected_words_are_returned_in_file_order(format, tmp_path):
    path = tmp_path / "v"
    subwords().save(path) if format == "bin" else write_vectors(path, WORDS, VECTORS, format)
    everything = read_vectors(path)[1]
    words, vectors = read_vectors(path, words=["nan", "unknown", "naïve", "nan"])
    assert words == ["naïve", "nan"]
    np.testing.assert_array_equal(vectors, everything[[1, 5]])
    words, vectors = read_vectors(path, words={"nan", "naïve"}, limit=3, dtype="float64")
    assert words == ["naïve"] and vectors.dtype == "float64"
    words, vectors = read_vectors(path, limit=7)
    assert words == WORDS and vectors.shape == (7, 5)
    assert read_vectors(path, limit=2)[0] == WORDS[:2]
    words, vectors = read_vectors(path, words=[])
    assert words == [] and vectors.shape == (0, 5)


def test_text_words_except_the_first_may_contain_spaces(file):
    path = file(b"the 1 2\n. . . 3 4\nto 2@x.org 5 6\na nan 7 8\n\xc2\xa0 9 1\n")
    words, vectors = read_vectors(path)
    assert words == ["the", ". . .", "to 2@x.org", "a nan", "\u00a0"]
    assert vectors[:, 0].tolist() == [1, 3, 5, 7, 9]
    assert read_vectors(path, words={". . ."})[1].tolist() == [[3, 4]]
    assert read_vectors(file(b"2 2\n. . 1 2\na 3 4\n"))[0] == [". .", "a"]


def test_first_row_of_a_repeated_word_is_used(file):
    path = file(b"4 1\na 1\nb 2\na 3\na 4\n")
    with pytest.warns(UserWarning, match="2 rows repeat earlier words") as caught:
        words, vectors = read_vectors(path)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert words == ["a", "b"] and vectors.tolist() == [[1], [2]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_vectors(path, words=["b"])[0] == ["b"]


def test_reading_stops_after_the_last_wanted_word(file):
    path = file(b"9 2\na 1 2\nb 3 4\nwrong\n")
    assert read_vectors(path, words=["b", "a"])[0] == ["a", "b"]
    assert read_vectors(path, limit=2)[0] == ["a", "b"]
    binary = file(b"9 1\na \0\0\0\0b \0\0\0\0c")
    assert read_vectors(binary, words=["a"])[0] == read_vectors(binary, limit=1)[0] == ["a"]
    assert read_vectors(file(b"0 3\n"))[1].shape == (0, 3)


@pytest.mark.parametrize("format", ["glove", "binary"])
def test_words_not_in_utf_8_follow_the_errors_option(format, file):
    content = {
        "glove": b"the 1 2\ncaf\xe9 3 4\n\xe9 5 6\n",
        "binary": b"3 1\nthe \0\0\0\0caf\xe9 \0\0\0\0\xe9 \0\0\0\0",
    }[format]
    path = file(content)
    where = r"vectors:2" if format == "glove" else "vectors, row 2 of 3 x 1"
    with pytest.raises(ValueError, match=where + r": .* must be UTF-8.* Received: b'caf\\xe9'"):
        read_vectors(path)
    assert read_vectors(path, errors="replace")[0] == ["the", "caf\ufffd", "\ufffd"]
    assert read_vectors(path, errors="ignore")[0] == ["the", "caf", ""]
    with pytest.raises(ValueError, match="`errors` must be .* Received: errors='skip'"):
        read_vectors(path, errors="skip")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "vectors: This file is empty. Received: 0 bytes"),
        (b"hello\n", "vectors:1: The first line must be a header .* Received: b'hello'"),
        (b"a b 1 2\n", "vectors:1: The 3 fields after the word must be numbers.* Received: b'b'"),
        (b"a 1 2\nb 1 2 3\n", "vectors:2: .* 2 numbers, as the first row has. Received: 4 fields"),
        (b"a 1 2\n\n", "vectors:2: .* Received: 0 fields"),
        (b"a 1 2\nb 1\n", "vectors:2: .* Received: 2 fields"),
        (b"a 1 2\n 1 2\n", "vectors:2: A row must begin with a word"),
        (b"a 1 2\nb 1 x\n", "vectors:2: .* Received: b'x'"),
        (b"a 1 2\nb 1 1_0\n", "vectors:2: .* Received: b'1_0'"),
        (b"a 1 2 3\nb 1  2\n", "vectors:2: .* Received: b''"),
        (b"a 1 2 3\nb 1\t2  3\n", r"vectors:2: .* Received: b'1\\t2'"),
        (
            b"a 1 2\nb 1 nan\n",
            "vectors:2: Vectors must be finite .* Received: nan in the vector of 'b'",
        ),
        (b"a 1 2\nb 1 1e39\n", "finite as float32. .* vector of 'b'"),
        (b"2 2\na 1 2 3\nb 1 2 3\n", "vectors:2: .* 2 numbers, as the header says.* 4 fields"),
        (b"2 4\na 1 2 3\nb 1 2 3\n", "vectors:2: .* 4 numbers, as the header says.* 4 fields"),
        (b"2 3\na 1 ? 3\nb 1 2 3\n", r"vectors:2: .* Received: b'\?'"),
        (b"3 2\na 1 2\nb 1 2\n", "The header must give .* Received: header 3 x 2, 2 rows"),
        (b"1 2\na 1 2\nb 1 2\n", "The header must give .* Received: header 1 x 2, 2 rows"),
        (b"3 2", "Received: header 3 x 2, 0 rows"),
        (b"3 0\na\n", "vectors:1: A header must be the number of rows and their width, from 1"),
        (b"3 99999999999999999999\na 1\n", "vectors:1: A header must be the number of rows"),
        (b"3 9999999999\na 1\n", "vectors:1: A header must be the number of rows"),
        (b"9" * 5000 + b" 2\na 1 2\n", "vectors:1: A header must be the number of rows"),
        (b"3 1\na \0\0\0\0b \0\0\0\0", "Received: header 3 x 1, 2 rows"),
        (b"1 1\na \0\0\0\0b \0\0\0\0", "Received: header 1 x 1, 2 rows"),
        (b"2 1\na \0\0\0\0b \0\0\0", "header 2 x 1, 1 rows and 5 more bytes"),
        (b"1 2\na \0\0\0\0\0\0\xc0\x7f", "finite as float32. .* vector of 'a'"),
        (b"1 1\n \0\0\0\0", "row 1 of 1 x 1: A row must begin with a word"),
        (
            gzip.compress(b"a 1 2\n" * 99, mtime=0)[:-9],
            "vectors: This file is damaged or cut short",
        ),
        (b"\x1f\x8bx", "vectors: This file is damaged or cut short"),
        (gzip.compress(bytes(1 << 25)), "vectors must not expand to more than 50 times its size"),
        (b"2 1\na 1\n" + bytes(1 << 25), "a line must have at most 16,777,216 bytes"),
        (
            b"2 1\na \0\0\0\0" + bytes(1 << 25),
            "row 2 of 2 x 1: a word must have at most",
        ),
    ],
)
def test_a_bad_file_is_named(content, message, file):
    with pytest.raises(ValueError, match=message):
        read_vectors(file(content))


def test_skipped_rows_are_checked_for_field_count_only(file):
    path = file(b"a 1 2\nb 1 x\nc 1 nan\nd 3 4\ne 1\n")
    assert read_vectors(path, words=["a", "d"])[1].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="vectors:5: .* Received: 2 fields"):
        read_vectors(path, words=["d", "unknown"])


def test_bad_arguments_are_refused(file, tmp_path):
    with pytest.raises(ValueError, match="No file .*none.txt. Received: '.*none.txt'"):
        read_vectors(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="must be a regular file. Received: a folder"):
        read_vectors(tmp_path)
    path = file(b"a 1 2\n")
    for options, message in (
        ({"words": "the"}, "`words` must be a list or set of words. Received: words='the'"),
        ({"limit": 0}, "`limit` must be a whole number, 1 or more. Received: limit=0"),
        ({"dtype": "int32"}, "`dtype` must be a type of floats. Received: dtype='int32'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_vectors(path, **options)


@pytest.mark.parametrize(
    "words, vectors, format, message",
    [
        (["a"], [[1.0]], "w2v", "`format` must be one of .* Received: format='w2v'"),
        (["a"], [1.0], "glove", r"`vectors` must be \(N, D\).* Received: 1 words, shape \(1,\)"),
        (["a", "b"], [[1.0]], "glove", r"Received: 2 words, shape \(1, 1\)"),
        ([], np.zeros((0, 3)), "glove", "at least one. Received: 0 words"),
        (["a b"], [[1.0]], "glove", "white space. Received: 'a b'"),
        (["a\n"], [[1.0]], "binary", r"white space. Received: 'a\\n'"),
        ([""], [[1.0]], "word2vec", "empty or hold white space. Received: ''"),
        (["a", "a"], [[1.0], [2.0]], "word2vec", "once. Received: 'a' twice"),
        (["a", "b"], [[1.0], [np.inf]], "binary", "finite as float32. .* vector of 'b'"),
        (["a"], [[1e39]], "glove", "finite as float32. .* vector of 'a'"),
    ],
)
def test_failed_write_preserves_the_earlier_file(words, vectors, format, message, tmp_path):
    (tmp_path / "v").write_text("earlier")
    with pytest.raises(ValueError, match=message):
        write_vectors(tmp_path / "v", words, vectors, format)
    assert [p.name for p in tmp_path.iterdir()] == ["v"]
    assert (tmp_path / "v").read_text() == "earlier"


def test_memory_depends_on_selected_words_only(file):
    row = " ".join(["0.123456"] * 50)
    path = file("".join([f"word{i} {row}\n" for i in range(20_000)]).encode())
    assert path.stat().st_size > 9e6
    wanted = {"unknown", *(f"word{i}" for i in range(0, 20_000, 4000))}
    tracemalloc.start()
    try:
        words, vectors = read_vectors(path, words=wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(words) == 5 and vectors.base is None and vectors.shape == (5, 50)
    assert peak < 5e6


def test_glove_sample(data):
    words, vectors = read_vectors(data("word_similarity/glove.6B.100d.sample.txt.gz"))
    assert len(set(words)) == 100 and vectors.shape == (100, 100)
    assert words[0] == "the"
    np.testing.assert_allclose(vectors[0, :3], [-0.038194, -0.24487, 0.72812], rtol=1e-7)


def test_subword_vectors_are_the_mean_of_rows():
    for settings in ({}, {"min_n": 1, "max_n": 2}, {"min_n": 3, "max_n": 0}, {"min_n": 5}):
        vectors = subwords(**settings)
        words = [*WORDS, "unseen", "x", "", "日本語", "the"] * 3
        expected = [mean_of(vectors, word) for word in words]
        np.testing.assert_allclose(vectors.vectors(words), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(vectors.vector("unseen"), vectors.vectors(words)[7])
    assert vectors.vectors([]).shape == (0, 5)
    assert not subwords(min_n=5, max_n=6).vector("x").any()


def test_omitted_buckets_count_as_zeros():
    whole = subwords()
    ids = np.unique(np.concatenate([ngram_rows(w, 2, 4, 101) for w in ("naïve", "unseen")]))
    rows = whole.bucket_rows[ids]
    part = SubwordVectors(
        WORDS, whole.word_rows, rows, min_n=2, max_n=4, buckets=101, bucket_ids=ids
    )
    for word in ("naïve", "unseen"):
        np.testing.assert_array_equal(part.vector(word), whole.vector(word))
    zeros = np.zeros((101, 5))
    zeros[ids] = rows
    filled = SubwordVectors(WORDS, whole.word_rows, zeros, min_n=2, max_n=4)
    words = ["日本", "other", "qqq"]
    np.testing.assert_array_equal(part.vectors(words), filled.vectors(words))
    none = SubwordVectors(["a"], [[6.0]], np.zeros((0, 1)), max_n=3, buckets=9, bucket_ids=[])
    assert none.vector("a").tolist() == [3.0]


def test_subword_files_round_trip(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_plm.data.formats.fasttext.BLOCK", 3)
    vectors, path = subwords(), tmp_path / "v.bin"
    vectors.save(path)
    words = [*WORDS, "unseen"]
    for wanted in (None, words):
        again = read_fasttext(path, wanted)
        assert again.words == WORDS and again.counts.tolist() == list(range(7, 0, -1))
        assert (again.min_n, again.max_n, again.buckets, again.dim) == (2, 4, 101, 5)
        np.testing.assert_array_equal(again.vectors(words), vectors.vectors(words))
    whole = read_fasttext(path)
    np.testing.assert_array_equal(whole.bucket_rows, vectors.bucket_rows)
    assert not whole.bucket_rows.flags.owndata  # memory-mapped
    few = read_fasttext(path, {"naïve"})
    assert few.words == ["naïve"] and len(few.bucket_ids) <= 15
    few.save(tmp_path / "few.bin")
    again = read_fasttext(tmp_path / "few.bin")
    np.testing.assert_array_equal(again.vector("naïve"), vectors.vector("naïve"))
    assert len(again.bucket_rows) == 101
    names, array = read_vectors(path)
    assert names == WORDS
    np.testing.assert_array_equal(array, vectors.vectors(WORDS))
    whole.save(path)  # overwrites the file of its rows
    np.testing.assert_array_equal(read_fasttext(path).word_rows, vectors.word_rows)
    subwords(max_n=0).save(path)
    np.testing.assert_array_equal(read_vectors(path)[1], vectors.word_rows)
    output = np.arange(35, dtype="float32").reshape(7, 5)
    vectors.save(path, output)
    assert path.read_bytes().endswith(output.tobytes())


def test_few_words_of_a_large_table_need_little_memory(tmp_path):
    path = tmp_path / "v.bin"
    table = np.ones((40_000, 100), "float32")
    SubwordVectors(["a", "b"], np.ones((2, 100)), table).save(path)
    for wanted in (["a"], None):
        tracemalloc.start()
        try:
            assert read_fasttext(path, wanted).vector("a")[0] == 1
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 1e6


def test_a_bad_fasttext_file_is_named(tmp_path):
    path = tmp_path / "v.bin"
    subwords().save(path)
    good = path.read_bytes()
    # Offsets: magic and version 8, arguments 56, dictionary 28, entries; then the matrices.
    entries = sum(len(word.encode()) + 10 for word in WORDS)
    matrix = 92 + entries
    patches = {
        (4, struct.pack("<i", 13)): "version must be 11 or 12. Received: 13",
        (8 + 4 * 7, struct.pack("<i", 3)): "Received: a supervised one",
        (84, struct.pack("<q", 5)): "Received: a pruned one",
        (64 - 4 * 6, struct.pack("<i", -1)): "must be valid in fastText. Received: .* bucket=-1",
        (matrix, b"\1"): "Received: a quantised one",
        (8, struct.pack("<i", 6)): r"matrices must fit .* Received: \(108, 5\) instead of",
        (92, b"\xff"): r"v.bin, word 1: .* must be UTF-8.* Received: b'\\xffhe'",
    }
    for (start, patch), message in patches.items():
        path.write_bytes(good[:start] + patch + good[start + len(patch) :])
        with pytest.raises(ValueError, match=message):
            read_vectors(path)
    assert read_fasttext(path, errors="replace").words[0] == "\ufffdhe"
    for size in (50, 100, matrix + 5, matrix + 99, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(ValueError, match=f"cut short. Received: {size} bytes"):
            read_vectors(path)
    path.write_bytes(gzip.compress(good))
    with pytest.raises(ValueError, match=r"Unpack this file first .* Received: a .gz file"):
        read_vectors(path)
    path.write_bytes(b"the 1 2\n")
    with pytest.raises(ValueError, match="This is not a .bin file of fastText. Received: b'the '"):
        read_fasttext(path)
    with pytest.raises(ValueError, match="No file"):
        read_fasttext(tmp_path / "none")


def test_unsupervised_fasttext_file_with_labels_is_read(tmp_path):
    path = tmp_path / "v.bin"
    vectors = subwords()
    vectors.save(path)
    good = path.read_bytes()
    # The dictionary: size, nwords, nlabels. The entry of a label follows those of the words.
    size = len(WORDS)
    end = 92 + sum(len(word.encode()) + 10 for word in WORDS)
    entry = b"__label__x\0" + struct.pack("<qb", 3, 1)
    labelled = good[:64] + struct.pack("<3i", size + 1, size, 1) + good[76:end] + entry + good[end:]
    path.write_bytes(labelled)
    words = [*WORDS, "unseen", "__label__x"]
    for wanted in (None, words):
        again = read_fasttext(path, wanted)
        assert again.words == WORDS and again.counts.tolist() == list(range(7, 0, -1))
        np.testing.assert_array_equal(again.vectors(words), vectors.vectors(words))
    kept = labelled[: end + len(entry) - 1]
    path.write_bytes(kept + b"\0" + labelled[len(kept) + 1 :])
    with pytest.raises(
        ValueError, match="word 8: .* 7 words must come first.*'__label__x' of type 0"
    ):
        read_fasttext(path)


def test_bad_subword_vectors_are_refused(tmp_path):
    rows = np.zeros((3, 2))
    for arguments, options, message in (
        ((["a"], rows[:1], rows[:, :1]), {}, r"shapes \(1, 2\) and \(3, 1\)"),
        ((["a"], rows, rows), {}, "Received: 1 words, 3 rows, 1 counts"),
        ((["a"], rows[:1], rows), {"buckets": 4}, "Received: 3 rows instead of 4"),
        ((["a"], rows[:1], rows), {"bucket_ids": [1]}, "Received: 3 rows instead of 1"),
        ((["a"], rows[:1], rows), {"bucket_ids": [0, 2, 1]}, r"must ascend.* \[0, 2, 1\]"),
        ((["a"], rows[:1], rows), {"bucket_ids": [0, 1, 9], "buckets": 9}, "buckets=9"),
    ):
        with pytest.raises(ValueError, match=message):
            SubwordVectors(*arguments, **options)
    vectors = SubwordVectors(["a b"], rows[:1], rows)
    with pytest.raises(ValueError, match="white space. Received: 'a b'"):
        vectors.save(tmp_path / "v")
    vectors = SubwordVectors(["a"], rows[:1], rows, counts=[0])
    with pytest.raises(ValueError, match="a count of at least 1. Received: 'a' 0 times"):
        vectors.save(tmp_path / "v")
    with pytest.raises(ValueError, match=r"shape of `word_rows`, \(1, 2\). Received: shape \(3, 2"):
        vectors.save(tmp_path / "v", output_rows=rows)
    assert not list(tmp_path.iterdir())


def test_gensim_reads_written_vectors(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    for format, options in (
        ("word2vec", {}),
        ("binary", {"binary": True}),
        ("glove", {"no_header": True}),
    ):
        write_vectors(tmp_path / "v", WORDS, VECTORS, format)
        theirs = keyed.load_word2vec_format(tmp_path / "v", **options)
        assert theirs.index_to_key == WORDS
        np.testing.assert_array_equal(theirs.vectors, VECTORS)


def test_vectors_written_by_gensim_are_read(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors(5)
    keyed.add_vectors(WORDS, VECTORS)
    for binary in (False, True):
        keyed.save_word2vec_format(str(tmp_path / "v"), binary=binary)
        words, vectors = read_vectors(tmp_path / "v")
        assert words == keyed.index_to_key
        np.testing.assert_array_equal(vectors, keyed.vectors)


def test_subword_files_are_compatible_with_gensim(tmp_path):
    fasttext = pytest.importorskip("gensim.models.fasttext")
    path = str(tmp_path / "v.bin")
    ours = subwords()
    ours.save(path)
    theirs = fasttext.load_facebook_vectors(path)
    # gensim uses n-grams of `</s>`, fastText does not.
    for word in [*WORDS[:-1], "unseen", "日本語"]:
        np.testing.assert_allclose(theirs[word], ours.vector(word), rtol=1e-5, atol=1e-6)
    sentences = [["where", "is", "the", "naïve", "café"], ["the", "café", "is", "there"]] * 5
    sizes = {"vector_size": 7, "bucket": 53, "min_n": 2, "max_n": 5}
    model = fasttext.FastText(sentences, min_count=1, workers=1, epochs=2, seed=1, **sizes)
    fasttext.save_facebook_model(model, path)
    read = read_fasttext(path)
    assert read.words == model.wv.index_to_key and (read.min_n, read.max_n) == (2, 5)
    for word in [*read.words, "unseen", "cafés"]:
        np.testing.assert_allclose(read.vector(word), model.wv[word], rtol=1e-5, atol=1e-6)


def test_subword_files_are_compatible_with_fasttext(tmp_path):
    fasttext = pytest.importorskip("fasttext")
    (tmp_path / "text").write_text("where is the naïve café\nthe café is __label__x\n" * 20)
    sizes = {"dim": 7, "bucket": 53, "minn": 2, "maxn": 5, "minCount": 1}
    path = str(tmp_path / "v.bin")
    words = ["where", "café", "the", "</s>", "unseen", "cafés", "x", "__label__x"]
    for training in (sizes, {**sizes, "maxn": 0}, {**sizes, "minn": 1, "maxn": 1}):
        theirs = fasttext.train_unsupervised(
            str(tmp_path / "text"), model="skipgram", thread=1, epoch=2, verbose=0, **training
        )
        theirs.save_model(path)
        for ours in (read_fasttext(path), read_fasttext(path, words)):
            # fastText reads past its table for a label without n-grams.
            for word in words[: None if training["maxn"] else -1]:
                expected = theirs.get_word_vector(word)
                np.testing.assert_allclose(ours.vector(word), expected, rtol=0, atol=1e-6)
        assert read_vectors(path)[0] == read_fasttext(path).words == theirs.words
    ours = subwords()
    ours.save(path)
    theirs = fasttext.load_model(path)
    for word in [*WORDS, "unseen", "日本語"]:
        np.testing.assert_allclose(theirs.get_word_vector(word), ours.vector(word), atol=1e-6)
    theirs = fasttext.train_supervised(
        str(tmp_path / "text"), label="c", thread=1, epoch=1, verbose=0, dim=2
    )
    theirs.save_model(path)
    with pytest.raises(ValueError, match="Received: a supervised one"):
        read_fasttext(path)


def test_word_of_one_space_is_read(file):
    for content in (b"a 1 2\n  3 4\nb 5 6\n", b"3 2\r\na 1 2\r\n  3 4\r\nb 5 6\r\n"):
        words, vectors = read_vectors(file(content))
        assert words == ["a", " ", "b"] and vectors.tolist() == [[1, 2], [3, 4], [5, 6]]


SPACED = ["New York", "a", "of the year", "Zürich"]
NUMBERS = np.random.default_rng(0).normal(size=(4, 50)).astype("<f4")


@pytest.mark.parametrize("last", [b"\n", b""])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]])
def test_words_with_spaces_in_a_binary_of_word2vec(file, order, last):
    rows = [SPACED[i].encode() + b" " + NUMBERS[i].tobytes() for i in order]
    words, vectors = read_vectors(file(b"4 50\n" + b"\n".join(rows) + last))
    assert words == [SPACED[i] for i in order]
    np.testing.assert_array_equal(vectors, NUMBERS[order])
    words, vectors = read_vectors(file(b"4 50\n" + b"\n".join(rows) + last), words=["a"])
    np.testing.assert_array_equal(vectors, NUMBERS[1:2])


def test_words_with_spaces_in_a_binary_of_gensim_are_refused(tmp_path):
    keyed = pytest.importorskip("gensim.models").KeyedVectors(50)
    keyed.add_vectors(["a", "New York"], NUMBERS[:2])
    keyed.save_word2vec_format(str(tmp_path / "v"), binary=True)
    message = r"v, row 2: .* may hold spaces.* Received: 2.9e\+26 after the word 'New'.*b'York'"
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "v", words=["New"])
    assert read_vectors(tmp_path / "v", words=["a"])[0] == ["a"]


def test_binary_row_without_expected_newline_is_refused(file):
    rows = [b"a " + NUMBERS[0].tobytes(), b"b " + NUMBERS[1, :40].tobytes() + bytes(100)]
    with pytest.raises(ValueError, match="row 2 of 2 x 50: A row must be a word.* newline"):
        read_vectors(file(b"2 50\n" + b"\n".join(rows) + b"\n"))
