"""Scores of word vectors, compared with plain loops, gensim and the published files."""

import json
import math
import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from keras_plm.datasets.word_similarity import (
    PAIRS,
    QUESTIONS,
    analogies,
    evaluate,
    neighbours,
    read_pairs,
    read_questions,
    similarity,
    table,
)

pytestmark = pytest.mark.backend_neutral

SECTIONS = {
    "capital-common-countries": 506, "capital-world": 4524, "currency": 866,
    "city-in-state": 2467, "family": 506, "gram1-adjective-to-adverb": 992,
    "gram2-opposite": 812, "gram3-comparative": 1332, "gram4-superlative": 1122,
    "gram5-present-participle": 1056, "gram6-nationality-adjective": 1599,
    "gram7-past-tense": 1560, "gram8-plural": 1332, "gram9-plural-verbs": 870,
}  # fmt: skip
WORDS = [f"w{i}" for i in range(23)]


def made(count=23, width=7, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype("float32")


def cosine(u, v):
    dot = sum(float(a) * float(b) for a, b in zip(u, v, strict=True))
    return dot / math.sqrt(sum(float(a) ** 2 for a in u) * sum(float(b) ** 2 for b in v))


def answer(vectors, a, b, c):
    """Returns the row that 3CosAdd selects, by loops."""
    lengths = [math.sqrt(sum(float(x) ** 2 for x in row)) for row in vectors]
    unit = [[float(x) / n for x in row] for row, n in zip(vectors, lengths, strict=True)]
    best, found = -math.inf, None
    for i, row in enumerate(unit):
        product = sum(
            x * (q - p + r) for x, p, q, r in zip(row, unit[a], unit[b], unit[c], strict=True)
        )
        if i not in (a, b, c) and product > best:
            best, found = product, i
    return found


def asked(vectors, number=101, seed=1):
    """Draws sections of questions; about half have the right answer, which loops count."""
    rng = np.random.default_rng(seed)
    sections, right = {"family": [], "gram1": [], "gram2": []}, dict.fromkeys(range(3), 0)
    for i in range(number):
        a, b, c, d = rng.choice(len(vectors), 4, replace=False).tolist()
        true = answer(vectors, a, b, c)
        d = true if i % 2 else d
        right[i % 3] += d == true
        list(sections.values())[i % 3].append(tuple(f"w{row}" for row in (a, b, c, d)))
    return sections, list(right.values())


def test_similarity_is_rank_correlation_of_cosines():
    vectors = [[1, 0], [3, 0], [1, 1], [0, 2], [-1, 0]]
    pairs = [("a", "b", 9.0), ("a", "c", 5.5), ("a", "d", 2.0), ("a", "e", 1.0)]
    expected = {"spearman": pytest.approx(1), "pairs": 4, "missing": 0}
    assert similarity(list("abcde"), vectors, pairs) == expected
    turned = [(left, right, -score) for left, right, score in pairs]
    assert similarity(list("abcde"), vectors, turned)["spearman"] == pytest.approx(-1)


def test_tied_cosines_and_scores_get_the_mean_rank():
    # Multiples of two vectors, whose cosines differ in their last bits, and a vector of cosine 1.
    scales = np.random.default_rng(6).uniform(0.1, 9, (14, 1))
    vectors = scales * np.array([*7 * [[1, 2, 3]], *6 * [[3, 1, 2]], [1, 2, 3]])
    pairs = [(f"w{i}", f"w{7 + i}", score) for i, score in enumerate([1, 2, 3, 3, 3, 4, 5])]
    ranks = [3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 7], [1, 2, 4, 4, 4, 6, 7]
    expected = np.corrcoef(*ranks)[0, 1]
    assert similarity(WORDS[:14], vectors, pairs)["spearman"] == pytest.approx(expected)


def test_spearman_against_loops():
    vectors, rng = made(), np.random.default_rng(2)
    rows = rng.permutation(list(combinations(range(23), 2)))[:31].tolist()
    scores = rng.permutation(31).tolist()
    cosines = [cosine(vectors[i], vectors[j]) for i, j in rows]
    ranks = [sum(other < value for other in cosines) for value in cosines]
    expected = 1 - 6 * sum((r - s) ** 2 for r, s in zip(ranks, scores, strict=True)) / (31**3 - 31)
    pairs = [(f"w{i}", f"w{j}", s) for (i, j), s in zip(rows, scores, strict=True)]
    assert similarity(WORDS, vectors, pairs)["spearman"] == pytest.approx(expected)


def test_words_are_looked_up_as_written_then_lower_cased():
    words, vectors = ["Mars", "mars", "sun"], [[1, 0], [0, 1], [1, 0.1]]
    found = neighbours(words, vectors, ["Mars", "mars", "MARS", "SUN", "Sol"], count=1)
    assert found["Mars"][0][0] == "sun" and found["SUN"][0][0] == "Mars"
    assert found["MARS"] == found["mars"] and found["Sol"] is None
    pairs = [("Mars", "Sun", 2), ("MARS", "sun", 1), ("Mars", "Venus", 0)]
    expected = {"spearman": pytest.approx(1), "pairs": 3, "missing": 1}
    assert similarity(words, vectors, pairs) == expected
    assert similarity(["SUN", "moon"], made(2), [("sun", "moon", 1)])["missing"] == 1


@pytest.mark.parametrize(
    "pairs",
    [[], [("a", "b", 1)], [("a", "b", 1), ("a", "x", 2)], [("a", "b", 1), ("a", "c", 1)],
     [("a", "b", 1), ("b", "a", 2)]],
)  # fmt: skip
def test_undefined_correlation_is_none(pairs):
    found = similarity(list("abc"), made(3), pairs)
    assert found["spearman"] is None and found["pairs"] == len(pairs)


def test_a_vector_of_zeros_has_the_cosine_zero():
    vectors = np.array([[1.0, 0], [0, 0], [-1, 0], [1, 1]])
    found = neighbours(list("abcd"), vectors, ["a", "b"])
    assert [word for word, _ in found["a"]] == ["d", "b", "c"] and found["a"][1][1] == 0
    assert found["b"] == [("a", 0), ("c", 0), ("d", 0)]
    pairs = [("a", "d", 3), ("a", "b", 2), ("a", "c", 1)]
    assert similarity(list("abcd"), vectors, pairs)["spearman"] == pytest.approx(1)


def test_analogies_against_loops():
    vectors = made() * np.random.default_rng(5).uniform(0.1, 9, (23, 1)).astype("float32")
    sections, right = asked(vectors)
    found = analogies(WORDS, vectors, sections)
    sizes = [34, 34, 33]
    for name, size, hits in zip(sections, sizes, right, strict=True):
        assert 0 < hits < size
        assert found["sections"][name] == {
            "accuracy": hits / size, "accuracy_of_all": hits / size,
            "questions": size, "missing": 0,
        }  # fmt: skip
    assert found["semantic"] == found["sections"]["family"]
    assert found["syntactic"]["accuracy"] == pytest.approx(sum(right[1:]) / 67)
    assert found["total"]["accuracy"] == pytest.approx(sum(right) / 101)
    assert [found[part]["questions"] for part in ("total", "semantic", "syntactic")] == [
        101,
        34,
        67,
    ]


@pytest.mark.parametrize("block", [1, 23, 24, 300, 10**6])
def test_block_size_does_not_change_results(block):
    vectors = made()
    sections, _ = asked(vectors)
    assert analogies(WORDS, vectors, sections, block=block) == analogies(WORDS, vectors, sections)
    queries = [*WORDS[:11], "unknown"]
    found = neighbours(WORDS, vectors, queries, 5, block=block)
    for query, near in neighbours(WORDS, vectors, queries, 5).items():
        if near is None:
            assert found[query] is None
            continue
        assert [word for word, _ in found[query]] == [word for word, _ in near]
        np.testing.assert_allclose(
            [value for _, value in found[query]], [value for _, value in near], rtol=1e-5
        )


def test_question_words_are_excluded_from_answers():
    # b - a + c is nearest to c, then b. Among the others, d is nearest, then e.
    vectors = [[1, 0.1, 0], [1, 0.2, 0], [0, 1, 0], [0.1, 0.9, 0.1], [0, 0.5, 1]]
    found = analogies(list("abcde"), vectors, {"s": [("a", "b", "c", "d"), ("a", "b", "c", "e")]})
    assert found["total"]["accuracy"] == 0.5 and found["syntactic"]["accuracy"] is None
    assert neighbours(list("abcde"), vectors, ["c"])["c"][0][0] == "d"


def test_ties_are_resolved_to_the_more_frequent_word():
    vectors = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0]])
    questions = [("a", "b", "c", "d"), ("a", "b", "c", "e")]
    assert analogies(list("abcde"), vectors, {"s": questions[:1]})["total"]["accuracy"] == 1
    assert analogies(list("abcde"), vectors, {"s": questions[1:]})["total"]["accuracy"] == 0
    for count in (1, 2, 3, 4, 9):
        near = neighbours(list("abcde"), vectors, ["b"], count)["b"]
        assert [word for word, _ in near] == list("deac")[:count]
    assert neighbours(["a"], [[1.0]], ["a"]) == {"a": []}


def test_questions_with_missing_words_are_not_wrong():
    vectors = made()
    true = f"w{answer(vectors, 0, 1, 2)}"
    wrong = next(word for word in WORDS[3:] if word != true)
    questions = [
        ("w0", "w1", "w2", true), ("W0", "w1", "W2", wrong), ("w0", "no", "w2", true),
        ("w0", "w1", "w2", "no"), ("w0", "w1", "w2", "W2"),  # the answer is in the question
    ]  # fmt: skip
    found = analogies(WORDS, vectors, {"gram": questions, "s": questions[2:3], "empty": []})
    assert found["sections"]["gram"] == found["syntactic"] == {
        "accuracy": 0.5, "accuracy_of_all": 0.2, "questions": 5, "missing": 3,
    }  # fmt: skip
    nothing = {"accuracy": None, "accuracy_of_all": 0, "questions": 1, "missing": 1}
    assert found["semantic"] == nothing
    assert found["sections"]["empty"] == {
        "accuracy": None, "accuracy_of_all": None, "questions": 0, "missing": 0,
    }  # fmt: skip
    assert analogies(WORDS, vectors, {})["total"]["questions"] == 0


def test_limit_equals_a_truncated_vocabulary():
    vectors = made()
    sections, _ = asked(vectors)
    found = analogies(WORDS, vectors, sections, limit=17)
    assert found == analogies(WORDS[:17], vectors[:17], sections)
    assert 0 < found["total"]["missing"] < 101
    assert analogies(WORDS, vectors, sections, 99) == analogies(WORDS, vectors, sections)
    words = [*WORDS[:22], "W0"]  # "W0" is beyond the limit, so the lookup finds "w0"
    questions = {"s": [("W0", "w1", "w2", f"w{answer(vectors[:22], 0, 1, 2)}")]}
    assert analogies(words, vectors, questions, limit=22)["total"]["accuracy"] == 1


def test_neighbours_against_loops():
    vectors = made()
    found = neighbours(WORDS, vectors, ["w3", "w5"], count=4)
    for i in (3, 5):
        cosines = {f"w{j}": cosine(vectors[i], vectors[j]) for j in range(23) if j != i}
        nearest = sorted(cosines, key=cosines.get, reverse=True)[:4]
        assert [word for word, _ in found[f"w{i}"]] == nearest
        for word, value in found[f"w{i}"]:
            assert value == pytest.approx(cosines[word], abs=1e-6)


def test_block_size_limits_memory():
    words, vectors = [f"w{i}" for i in range(20_000)], made(20_000, 8)
    questions = {"s": [tuple(f"w{4 * i + j}" for j in range(4)) for i in range(400)]}
    tracemalloc.start()
    try:
        analogies(words, vectors, questions, block=1 << 17)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6e6  # all products at once would take 32 MB


def test_files_with_tabs_or_spaces_and_blank_lines(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"tiger\tcat\t7.35\r\n\r\nMars  sun 10\n")
    assert read_pairs(path) == [("tiger", "cat", 7.35), ("Mars", "sun", 10.0)]
    path.write_bytes(b": family\nboy girl\tking queen\n\n:gram1-x y\n a b c d\r\n: empty\n")
    assert read_questions(path) == {
        "family": [("boy", "girl", "king", "queen")], "gram1-x y": [("a", "b", "c", "d")],
        "empty": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["tiger cat", "tiger cat nine", "tiger cat nan", "a tiger cat 7", "tiger 7.35 cat"]
)
def test_a_malformed_pair_is_named(tmp_path, line):
    path = tmp_path / "pairs.txt"
    path.write_text(f"a b 1\n\n{line}\n")
    with pytest.raises(ValueError, match=f"pairs.txt:3: .*two words and a score.*ived: '{line}'"):
        read_pairs(path)


@pytest.mark.parametrize(
    "text, match",
    [
        ("a b c d\n", ":1: Questions need a section.*Received: 'a b c d'"),
        (": s\na b c d\na b c\n", ":3: Each question must be four words.*Received: 'a b c'"),
        (": s\na b c d e\n", ":2: Each question must be four words.*Received: 'a b c d e'"),
        (": s\na b c d\n: s\n", ":3: Each section needs its own name. Received: ': s'"),
        ("\n:\n", ":2: Each section needs its own name. Received: ':'"),
    ],
)
def test_a_malformed_question_is_named(tmp_path, text, match):
    path = tmp_path / "questions.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"questions.txt{match}"):
        read_questions(path)


def test_empty_and_missing_files_are_named(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n")
    for read in (read_pairs, read_questions):
        with pytest.raises(ValueError, match="empty.txt: No line.*an empty file"):
            read(path)
    with pytest.raises(ValueError, match="EN-WS-353-ALL.txt.*--data"):
        evaluate(WORDS, made(), tmp_path)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="one row for each.*23 words.*shape .22, 7."):
        similarity(WORDS, made(22), [])
    with pytest.raises(ValueError, match="one row for each.*2 words and vectors of shape .2,."):
        neighbours(["a", "b"], [1.0, 2.0], [])
    with pytest.raises(ValueError, match="`words` must differ. Received: 'b' more than once"):
        neighbours(list("abcb"), made(4), [])
    with pytest.raises(ValueError, match="`vectors` must be finite"):
        analogies(list("ab"), [[1.0, np.nan], [1, 2]], {})
    with pytest.raises(ValueError, match="`limit` must be at least 1. Received: limit=0"):
        analogies(WORDS, made(), {}, limit=0)
    with pytest.raises(ValueError, match="`count` must be at least 1. Received: count=0"):
        neighbours(WORDS, made(), [], count=0)
    with pytest.raises(ValueError, match="at least one result"):
        table([])


def test_real_files_have_published_counts(data):
    counts = {name: len(read_pairs(data(file))) for name, file in PAIRS.items()}
    assert counts == {"WS-353": 353, "SimLex-999": 999, "MEN": 3000, "RG-65": 65}
    sections = read_questions(data(QUESTIONS))
    assert {name: len(questions) for name, questions in sections.items()} == SECTIONS
    assert sum(SECTIONS.values()) == 19_544
    for questions in sections.values():  # every question has an answer, also in lower case
        assert all(len({word.lower() for word in question}) == 4 for question in questions)


def keyed(words, vectors):
    models = pytest.importorskip("gensim.models")
    found = models.KeyedVectors(vectors.shape[1])
    found.add_vectors(words, vectors)
    return found


def part_of(words, seed):
    """Returns most of the words in random order, every second one in lower case."""
    words = np.random.default_rng(seed).permutation(sorted(words)).tolist()
    words = [word.lower() if i % 2 else word for i, word in enumerate(words)]
    words = list(dict.fromkeys(words))
    # A word in both cases: gensim takes the first one, we take the one with the same case.
    twice = {word.lower() for word in words if word != word.lower()} & set(words)
    return [word for word in words if word not in twice][: len(words) * 4 // 5]


@pytest.mark.parametrize("name", PAIRS)
def test_similarity_equals_gensim(data, name):
    pairs = read_pairs(data(PAIRS[name]))
    words = part_of({word for pair in pairs for word in pair[:2]}, seed=3)
    vectors = made(len(words), 11)
    _, (expected, _), missing = keyed(words, vectors).evaluate_word_pairs(
        str(data(PAIRS[name])), case_insensitive=True, dummy4unknown=False
    )
    found = similarity(words, vectors, pairs)
    assert found["spearman"] == pytest.approx(expected, abs=1e-5)
    assert 0 < found["missing"] == pytest.approx(missing * len(pairs) / 100)


@pytest.mark.parametrize("limit", [None, 600])
def test_analogies_equal_gensim(data, tmp_path, limit):
    sections = {name: part[::9] for name, part in read_questions(data(QUESTIONS)).items()}
    path = tmp_path / "questions.txt"
    with open(path, "w") as file:
        for name, questions in sections.items():
            file.write("".join([f": {name}\n", *(" ".join(q) + "\n" for q in questions)]))
    words = part_of({word for part in sections.values() for q in part for word in q}, seed=4)
    vectors, rng = made(len(words), 13), np.random.default_rng(7)
    row = {word.lower(): i for i, word in enumerate(words)}
    for questions in sections.values():  # random vectors answer no question
        step = rng.normal(size=13)
        for question in questions:
            left, right = (row.get(word.lower()) for word in question[2:])
            if None not in (left, right):
                vectors[right] = vectors[left] + step + 0.5 * rng.normal(size=13)
    total, expected = keyed(words, vectors).evaluate_word_analogies(
        str(path), restrict_vocab=limit or len(words), case_insensitive=True, dummy4unknown=False
    )
    found = analogies(words, vectors, sections, limit)
    assert found["total"]["accuracy"] == pytest.approx(total) and 0.05 < total < 0.9
    for part in expected[:-1]:
        ours, answered = (
            found["sections"][part["section"]],
            len(part["correct"] + part["incorrect"]),
        )
        assert ours["questions"] - ours["missing"] == answered > 0
        assert ours["accuracy"] == pytest.approx(len(part["correct"]) / answered)
    assert len(expected) == 15 and 0 < found["total"]["missing"]


@pytest.fixture
def folder(tmp_path):
    """A data folder with a few short files."""
    (tmp_path / "word_similarity").mkdir()
    for i, file in enumerate(PAIRS.values()):
        (tmp_path / file).write_text(f"w0 w1 3\nw{i + 2} w3 1\nw5 w7 2.5\nw5 unknown 2\n")
    vectors = made()
    lines = [f"w0 w1 w2 w{answer(vectors, 0, 1, 2)}", "w3 w4 w5 w6", "W3 w4 w5 unknown"]
    text = "\n".join([": family", *lines, ": gram1", *lines])
    (tmp_path / QUESTIONS).write_text(text)
    return tmp_path


def test_evaluate_returns_all_scores_as_json(folder):
    found = evaluate(WORDS, made(), folder, queries=("w1", "France"), count=3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["words"], found["dim"], found["limit"]) == (23, 7, None)
    assert list(found["similarity"]) == list(PAIRS)
    for name, file in PAIRS.items():
        expected = similarity(WORDS, made(), read_pairs(folder / file))
        assert found["similarity"][name] == expected and expected["missing"] == 1
    questions = read_questions(folder / QUESTIONS)
    assert found["analogies"] == analogies(WORDS, made(), questions)
    near = neighbours(WORDS, made(), ["w1"], 3)["w1"]
    assert found["neighbours"]["France"] is None
    assert found["neighbours"]["w1"] == [[word, round(value, 4)] for word, value in near]


def test_everything_runs_on_the_real_files(data):
    folder = data("word_similarity").parent
    data(QUESTIONS), [data(file) for file in PAIRS.values()]
    words = ["king", "queen", "boy", "girl", "sea", "River", "water", "france", "three"]
    found = evaluate(words, made(len(words)), folder)
    assert found["analogies"]["total"]["questions"] == 19_544
    assert found["analogies"]["total"]["missing"] == 19_544 - 2  # boy girl king queen, both ways
    assert found["neighbours"]["France"] and found["neighbours"]["river"] is None


def scored(name, value, seed=0, **more):
    """Returns a result with all scores derived from `value`."""
    tally = {"accuracy": value, "accuracy_of_all": value / 2, "questions": 4000, "missing": 2000}
    return {
        "name": name,
        "seed": seed,
        "scores": {
            "words": 5000, "dim": 50, "limit": None,
            "similarity": {n: {"spearman": value, "pairs": 9, "missing": 2} for n in PAIRS},
            "analogies": dict.fromkeys(("total", "semantic", "syntactic"), tally),
            "neighbours": {"king": [["queen", 0.9], ["a|b", 0.8]], "sea": None},
        },
        **more,
    }  # fmt: skip


def test_table_shows_means_missing_counts_and_neighbours():
    results = [
        scored("skip_gram", 0.4, 0, source="books"),
        scored("skip_gram", 0.6, 1, source="books"),
        scored("GloVe", 0.45),
    ]
    results[2]["scores"]["similarity"]["MEN"]["spearman"] = None
    results[2]["scores"]["words"] = 6000
    text = table(results)
    lines = text.splitlines()
    assert lines[0] == (
        "| vectors | source | WS-353 | SimLex-999 | MEN | RG-65 | "
        "analogies: semantic | syntactic | all | all, missing as wrong |"
    )
    best = "**50.0 ± 14.1 (2)**"
    cells = [rf"skip\_gram | books | {best}", *6 * [best], "**25.0 ± 7.1 (2)**"]
    assert lines[2] == f"| {' | '.join(cells)} |"
    cells = ["45.0 (1)", "45.0 (1)", "", *4 * ["45.0 (1)"], "22.5 (1)"]
    assert lines[3] == f"| GloVe |  | {' | '.join(cells)} |"
    assert lines[5] == (
        r"skip\_gram: 5,000 words, 50 wide; missing: WS-353 2 of 9, SimLex-999 2 of 9, "
        "MEN 2 of 9, RG-65 2 of 9, analogies 2,000 of 4,000."
    )
    assert lines[7].startswith("GloVe: 6,000 words")
    assert text.endswith(
        "| nearest to | king | sea |\n|---|---|---|\n"
        + "".join(rf"| {n} | queen, a\|b | (not known) |" + "\n" for n in (r"skip\_gram", "GloVe"))
    )
    results[2]["scores"]["words"] = 5000
    assert "\nAll: 5,000 words" in table(results)


def test_table_formats_results_of_evaluate(folder):
    results = [
        {"name": "random", "seed": seed, "scores": evaluate(WORDS, made(seed=seed), folder, 20)}
        for seed in range(3)
    ]
    text = table(results)
    assert "(3)" in text and "All: 23 words (analogies of the first 20), 7 wide" in text


def test_table_refuses_seeds_of_different_runs():
    for key, value in (("words", 7), ("limit", 9), ("dim", 3)):
        other = scored("a", 0.5, seed=1)
        other["scores"][key] = value
        with pytest.raises(ValueError, match="Seeds of one name must share.*different ones of a"):
            table([scored("a", 0.5), other])
    with pytest.raises(ValueError, match="Seeds of one name must share.*different ones of a"):
        table([scored("a", 0.5), scored("a", 0.5, seed=1, source="books")])


def test_readers_accept_byte_order_mark_and_unicode_spaces(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("\ufeffNew\u00a0York\u3000\tcity 7\n", encoding="utf-8")
    assert read_pairs(path) == [("New\u00a0York\u3000", "city", 7.0)]
    path.write_text("\ufeff: a\nb c\u00a0c d e\n", encoding="utf-8")
    assert read_questions(path) == {"a": [("b", "c\u00a0c", "d", "e")]}


@pytest.mark.parametrize("score", ["9" * 400, "nan", "inf", "1e3", "\u0664"])
def test_scores_are_finite_numbers(score, tmp_path):
    (tmp_path / "p.txt").write_text(f"tiger cat {score}\n")
    with pytest.raises(ValueError, match="p.txt:1: Each line must be two words and a score"):
        read_pairs(tmp_path / "p.txt")
