"""fastText's character n-grams of words, and their rows in a hashed table."""

import numpy as np

from keras_plm.files.sequences import as_list

# FNV-1a, 32 bits: the offset basis and the prime of its authors.
FNV_OFFSET, FNV_PRIME = 2166136261, 16777619
# Words hashed at once: 10 characters and 4 lengths each are some 10 MB.
BLOCK = 1 << 15


def fasttext_hash(text):
    """fastText's hash of a string: 32-bit FNV-1a over its UTF-8 bytes, taken as signed.

    Differs from FNV-1a: a byte from 128 on is widened with its sign before the xor, as the released
    code does; all released vectors depend on it.

    Reference: `Dictionary::hash` of fastText; Bojanowski et al. 2017, arXiv 1607.04606, section
    3.2.

    Args:
        text: A string.

    Returns:
        A whole number below 2 ** 32.

    >>> fasttext_hash("where")
    90969176
    """
    value = FNV_OFFSET
    for byte in text.encode():
        signed = byte if byte < 128 else byte | 0xFFFFFF00
        value = ((value ^ signed) * FNV_PRIME) & 0xFFFFFFFF
    return value


def character_ngrams(word, min_n=3, max_n=6):
    """The character n-grams of a word between its boundary signs, in fastText's order.

    They are those of `<word>`, by where they start and then by length; a character is a code point.
    A short word is among its own n-grams, with its boundary signs. Of the single characters, which
    `min_n` of 0 or 1 asks for, `<` and `>` are left out.

    Reference: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2; `Dictionary::computeSubwords`
    of fastText.

    Args:
        word: The word, without boundary signs.
        min_n: Length of the shortest.
        max_n: Length of the longest; 0, or any below `min_n`, gives none.

    Returns:
        A list of strings. One that comes twice in the word is there twice.

    Raises:
        ValueError: If a length is negative.

    >>> character_ngrams("her", 3, 4)
    ['<he', '<her', 'her', 'her>', 'er>']
    """
    _check(min_n, max_n, 1)
    text = f"<{word}>"
    return [
        text[start : start + n]
        for start in range(len(text))
        for n in range(max(min_n, 1), min(max_n, len(text) - start) + 1)
        if not (n == 1 and start in (0, len(text) - 1))
    ]


def ngram_rows(word, min_n=3, max_n=6, buckets=2_000_000):
    """The rows of a hashed table that hold a word's character n-grams.

    Args:
        word: The word, without boundary signs.
        min_n: Length of the shortest n-gram.
        max_n: Length of the longest; 0 gives no row.
        buckets: Rows of the table, which n-grams of one hash share.

    Returns:
        int64 array, one row per n-gram of `character_ngrams`, in its order.

    Raises:
        ValueError: If a length is negative, or there are n-grams but no buckets.

    >>> ngram_rows("where", 3, 3).tolist()
    [167652, 420941, 1473420, 1529033, 867498]
    """
    _check(min_n, max_n, buckets)
    ngrams = character_ngrams(word, min_n, max_n)
    return np.array([fasttext_hash(ngram) % buckets for ngram in ngrams], "int64")


def ngram_rows_of(words, min_n=3, max_n=6, buckets=2_000_000):
    """`ngram_rows` of many words at once, some fifteen times as fast.

    Args:
        words: A sequence of words, without boundary signs.
        min_n: Length of the shortest n-gram.
        max_n: Length of the longest; 0 gives no rows.
        buckets: Rows of the table.

    Returns:
        `(rows, counts)`: the rows of all words one after another, int64, and how many of them each
        word has, int64 (N,).

    Raises:
        ValueError: If a length is negative, or there are n-grams but no buckets.

    >>> rows, counts = ngram_rows_of(["where", "a"], 3, 3)
    >>> rows.tolist(), counts.tolist()
    ([167652, 420941, 1473420, 1529033, 867498, 1087600], [5, 1])
    """
    _check(min_n, max_n, buckets)
    words = as_list(words, "words", "words")
    if max(min_n, 1) > max_n:
        return np.zeros(0, "int64"), np.zeros(len(words), "int64")
    blocks = [
        _rows_of_block(words[start : start + BLOCK], max(min_n, 1), max_n, buckets)
        for start in range(0, len(words), BLOCK)
    ]
    if not blocks:
        return np.zeros(0, "int64"), np.zeros(0, "int64")
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


def _rows_of_block(words, min_n, max_n, buckets):
    """Every character of every word starts its n-grams; all grow together, byte by byte."""
    lengths = np.array([len(word) + 2 for word in words])
    max_n = min(max_n, lengths.max())
    if min_n > max_n:
        return np.zeros(0, "int64"), np.zeros(len(words), "int64")
    data = np.frombuffer("".join([f"<{word}>" for word in words]).encode(), "uint8")
    starts = np.flatnonzero((data & 0xC0) != 0x80)  # (C,) the other bytes continue a character
    widths = np.diff(starts, append=len(data))  # (C,) bytes of each character
    signed = data.view("int8").astype("int32").view("uint32")
    # Characters from each one to the end of its word, itself included.
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(starts))  # (C,)
    hashes = np.full(len(starts), FNV_OFFSET, "uint32")
    rows = np.zeros((len(starts), max_n - min_n + 1), "int64")  # (C, lengths of n-grams)
    there = np.zeros(rows.shape, bool)
    prime, modulus = np.uint32(FNV_PRIME), np.uint32(buckets)
    growing = np.arange(len(starts))
    for n in range(1, max_n + 1):
        growing = growing[left[growing] >= n]
        last = growing + (n - 1)  # the character that is new in each n-gram
        for byte in range(widths[last].max(initial=0)):
            wide = widths[last] > byte
            at = growing[wide]
            hashes[at] = (hashes[at] ^ signed[starts[last[wide]] + byte]) * prime
        if n >= min_n:
            rows[growing, n - min_n] = hashes[growing] % modulus
            there[growing, n - min_n] = True
    if min_n == 1:
        ends = np.cumsum(lengths)
        there[ends - 1, 0] = there[ends - lengths, 0] = False  # the signs alone
    per_character = there.sum(1)
    counts = np.add.reduceat(per_character, np.cumsum(lengths) - lengths)
    return rows[there], counts.astype("int64")


def _check(min_n, max_n, buckets):
    if min_n < 0 or max_n < 0:
        raise ValueError(
            f"`min_n` and `max_n` must not be negative. Received: min_n={min_n}, max_n={max_n}"
        )
    # A hash has 32 bits.
    if max_n and not 1 <= buckets < 2**32:
        raise ValueError(
            f"`buckets` must be from 1 to 2 ** 32 - 1 where there are n-grams. "
            f"Received: buckets={buckets}, max_n={max_n}"
        )
