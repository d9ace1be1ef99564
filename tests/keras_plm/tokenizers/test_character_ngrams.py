"""Character n-grams and their rows, compared with fastText and explicit loops."""

import numpy as np
import pytest

from keras_plm.tokenizers.character_ngrams import (
    character_ngrams,
    fasttext_hash,
    ngram_rows,
    ngram_rows_of,
)

pytestmark = pytest.mark.backend_neutral

CHARACTERS = list("abc<>") + ["é", "ß", "日", "\u0301", "😀", "\u00a0"]  # of 1 to 4 bytes


def random_words(count):
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(CHARACTERS, rng.integers(0, 9))) for _ in range(count)]


def ngrams_of_bytes(word, min_n, max_n):
    """Follows `Dictionary::computeSubwords` over bytes; 10xxxxxx continues a character."""
    data, found = f"<{word}>".encode(), []
    for i in range(len(data)):
        if data[i] & 0xC0 == 0x80:
            continue
        j, n = i, 1
        while j < len(data) and n <= max_n:
            j += 1
            while j < len(data) and data[j] & 0xC0 == 0x80:
                j += 1
            if n >= min_n and not (n == 1 and (i == 0 or j == len(data))):
                found.append(data[i:j].decode())
            n += 1
    return found


@pytest.mark.parametrize(
    "text, value", [("where", 90969176), ("<wh", 1048167652), ("é", 1023043777), ("", 2166136261)]
)
def test_hash_equals_fasttext(text, value):
    assert fasttext_hash(text) == value


def test_ngrams_equal_the_papers_example():
    assert character_ngrams("where", 3, 3) == ["<wh", "whe", "her", "ere", "re>"]
    assert len(character_ngrams("where")) == 14
    assert ngram_rows("where", 3, 3).tolist() == [167652, 420941, 1473420, 1529033, 867498]


def test_ngrams_are_ordered_by_start_then_length():
    assert character_ngrams("at", 3, 6) == ["<at", "<at>", "at>"]
    assert character_ngrams("", 2, 3) == ["<>"]
    assert character_ngrams("aaa", 2, 2) == ["<a", "aa", "aa", "a>"]


def test_single_boundary_signs_are_left_out():
    assert character_ngrams("é", 1, 2) == ["<é", "é", "é>"]
    assert character_ngrams("é", 0, 1) == ["é"]
    assert character_ngrams("<", 1, 1) == ["<"]


def test_impossible_lengths_return_no_ngrams():
    for lengths in ((3, 0), (0, 0), (4, 3), (8, 9), (10**8, 10**9)):
        assert character_ngrams("where", *lengths) == []
        assert ngram_rows("where", *lengths).shape == (0,)
        rows, counts = ngram_rows_of(["where", "a"], *lengths)
        assert rows.shape == (0,) and counts.tolist() == [0, 0]
    rows, counts = ngram_rows_of([])
    assert rows.dtype == counts.dtype == "int64" and not rows.size and not counts.size


@pytest.mark.parametrize("lengths", [(3, 6), (1, 2), (0, 3), (2, 2), (5, 7), (8, 10**9)])
def test_fast_rows_equal_the_original_byte_loop(lengths, monkeypatch):
    monkeypatch.setattr("keras_plm.tokenizers.character_ngrams.BLOCK", 97)
    words = random_words(300)
    rows, counts = ngram_rows_of(words, *lengths, buckets=10007)
    assert rows.dtype == counts.dtype == "int64"
    parts = np.split(rows, np.cumsum(counts)[:-1])
    for word, part in zip(words, parts, strict=True):
        wanted = ngrams_of_bytes(word, *lengths)
        assert character_ngrams(word, *lengths) == wanted
        assert ngram_rows(word, *lengths, buckets=10007).tolist() == part.tolist()
        assert [fasttext_hash(ngram) % 10007 for ngram in wanted] == part.tolist()


def test_ngram_rows_equal_gensim():
    hashes = pytest.importorskip("gensim.models.fasttext").ft_ngram_hashes
    for word in random_words(50):
        assert ngram_rows(word, 3, 6, 997).tolist() == hashes(word, 3, 6, 997)


@pytest.mark.parametrize("rows", [ngram_rows, lambda word, *rest: ngram_rows_of([word], *rest)])
def test_bad_lengths_and_buckets_are_refused(rows):
    with pytest.raises(ValueError, match="must not be negative. Received: min_n=-1, max_n=3"):
        rows("a", -1, 3)
    with pytest.raises(ValueError, match="must not be negative. Received: min_n=3, max_n=-2"):
        character_ngrams("a", 3, -2)
    with pytest.raises(ValueError, match="`buckets` must be from 1 .* Received: buckets=0"):
        rows("a", 3, 6, 0)
