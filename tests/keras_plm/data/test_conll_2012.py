"""Files of CoNLL-2012: roles, nested mentions, malformed lines, the same documents in two forms."""

import pytest

from keras_plm.data.formats.conll_2012 import (
    conll_2012_documents,
    conll_2012_roles,
    read_conll_2012,
)
from keras_plm.datasets.coreference import read_coreference
from keras_plm.datasets.tasks import TASKS

pytestmark = pytest.mark.backend_neutral

# Columns: word, roles of "said", roles of "sang", mentions.
FIRST = [
    ("Ada", "(ARG0*)", "*", "(0)|(1"),
    ("said", "(V*)", "*", "1)"),
    ("she", "(ARG1*", "(ARG0*)", "(0)"),
    ("often", "*", "(ARGM-TMP*)", "-"),
    ("sang", "*)", "(V*)", "-"),
]
SECOND = [("Bo", "(2"), ("slept", "2)|(0"), ("on", "-"), ("it", "(2)|0)")]


def write(path, *sentences, name="(d); part 000"):
    lines = [f"#begin document {name}"]
    for rows in sentences:
        for i, (word, *others) in enumerate(rows):
            lines.append(" ".join(["d", "0", str(i), word, *["-"] * 7, *others]))
        lines.append("")
    path.write_text("\n".join([*lines, "#end document", ""]))
    return path


def test_roles_and_mentions_of_a_document(tmp_path):
    (document,) = read_conll_2012(write(tmp_path / "a.conll", FIRST, SECOND))
    assert document.name == "(d); part 000" and document.places[1].endswith("a.conll:8")
    assert document.sentences == [[row[0] for row in FIRST], [row[0] for row in SECOND]]
    assert document.predicates == [
        (0, 1, ["B-ARG0", "B-V", "B-ARG1", "I-ARG1", "I-ARG1"]),
        (0, 4, ["O", "O", "B-ARG0", "B-ARGM-TMP", "B-V"]),
    ]
    assert document.clusters == [[(0, 1), (2, 3), (6, 9)], [(0, 2)], [(5, 7), (8, 9)]]
    roles = conll_2012_roles(tmp_path / "a.conll")
    assert [(e.text[e.predicate], e.group) for e in roles] == [
        ("said", "(d); part 000#0"), ("sang", "(d); part 000#0"),
    ]  # fmt: skip
    (example,) = conll_2012_documents(tmp_path / "a.conll")
    assert (example.sentences, example.label) == ([5, 4], document.clusters)


def test_escaped_marks_of_ontonotes_are_read_as_the_marks(tmp_path):
    marks = [("really", "-"), ("/?", "-"), ("/.", "-"), ("/-", "-")]
    (document,) = read_conll_2012(write(tmp_path / "a.conll", marks))
    assert document.sentences == [["really", "?", ".", "/-"]]


@pytest.mark.parametrize(
    "roles, mention, message",
    [
        ("V*", "-", r"must be \(LABEL\*, \* or \*\).*'V\*'"),
        ("*)", "-", r"must begin, by \(LABEL\*, before it ends.*'\*\)'"),
        ("(V*)", "(x)", r"must be \(N, N\) or \(N\)"),
        ("(V*)", "3)", r"must begin before its end. Received: '3\)'"),
        ("(V*)", "(3", r"must end in its document. Received: \(3, without 3\)"),
        ("(V*) *", "-", "as many as the first"),
    ],
)
def test_malformed_lines_are_refused(roles, mention, message, tmp_path):
    rows = [("Ada", "(ARG0*)", "-"), ("sang", *roles.split(), mention)]
    with pytest.raises(ValueError, match=rf"a.conll:3: .*{message}"):
        conll_2012_documents(write(tmp_path / "a.conll", rows))


def test_arguments_inside_others_are_refused(tmp_path):
    rows = [("Ada", "(ARG0*", "-"), ("sang", "(V*)", "-"), ("it", "*)", "-")]
    with pytest.raises(ValueError, match=r"a.conll:3: .*'\(V\*\)' in \(ARG0\* of .*:2"):
        conll_2012_roles(write(tmp_path / "a.conll", rows))


def test_malformed_files_are_refused(tmp_path):
    path = tmp_path / "a.conll"
    open_role = [("Ada", "(V*", "-"), ("sang", "*", "-")]
    for rows, message in (
        ([open_role], r"a.conll:3: An argument must end in its sentence. .*\(V\*"),
        ([[("Ada", "(ARG0*)", "-")]], r"a.conll:2: .*must mark one predicate.*B-ARG0"),
        ([[("Ada", "(V*)", "-"), ("a", "(V*)", "-")]], r"a.conll:2: .*must mark one predicate"),
        ([], "A document must have words"),
        ([[("Ada", "(V*)", "(0)|(0)")]], r"a.conll:2: .*in one cluster, once"),
        ([[("Ada", "(V*)", "-")], [("Bo", "(V*)", "(0)|(1)")]], "a.conll:4: .*once.*'Bo' twice"),
        ([[("Ada", "(V*)", "(0")], [("Bo", "(V*)", "0)")]], "a.conll:4: .*one sentence.*'Ada Bo'"),
    ):
        with pytest.raises(ValueError, match=message):
            conll_2012_documents(write(path, *rows))
    text = write(path, FIRST).read_text()
    for changed, message in (
        ("", "No document in this file"),
        (text.replace("#end document", ""), "a.conll:1: A document must end"),
        (text.replace("#begin document (d); part 000\n", ""), "a.conll:1: A line must be in a doc"),
        (text.replace("#end document", "#begin document (e)"), "must end before the next"),
        ("#end document\n", "must begin before its end"),
        (text + text, "a.conll:9: A part of a document must occur once.*also at .*:1"),
        (text.replace(" 3 often", " 4 often"), "a.conll:5: .*number the words.*'4' instead of 3"),
        (write(path, FIRST, FIRST).read_text().replace("\n\n", "\n", 1), ":7: .*'0' instead of 5"),
    ):
        path.write_text(changed)
        with pytest.raises(ValueError, match=message):
            read_conll_2012(path)
    with pytest.raises(ValueError, match="No predicate in this file"):
        conll_2012_roles(write(path, [("Ada", "-", "-")]))


def test_tasks_read_the_files(tmp_path):
    (tmp_path / "conll2012").mkdir()
    write(tmp_path / "conll2012" / "dev.conll", FIRST, SECOND)
    assert len(TASKS["conll2012_roles"].read(tmp_path, "dev")) == 2
    (document,) = TASKS["conll2012_coreference"].read(tmp_path, "dev")
    assert len(document.text) == 9


@pytest.mark.parametrize("split", ["dev", "test"])
def test_litbank_is_the_same_in_both_forms(split, data):
    folder = data("litbank")

    def content(example):
        return example.text, example.sentences, sorted(map(sorted, example.label))

    found = conll_2012_documents(folder / "conll" / f"{split}.conll.gz")
    expected = read_coreference(folder / f"{split}.jsonl.gz")
    assert list(map(content, found)) == list(map(content, expected))
