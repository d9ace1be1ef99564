"""Reading files as examples. Errors name every malformed line."""

import csv
import gzip
import json
import warnings

import numpy as np
import pytest

from keras_plm.data.formats.conll import read_conll
from keras_plm.data.formats.parallel import read_parallel
from keras_plm.data.formats.tables import read_table, table_rows
from keras_plm.data.task import Example, split_groups

pytestmark = pytest.mark.backend_neutral


def test_conll_with_documents_and_tabs(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(
        "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n"
        "-DOCSTART- O\n\nBonn\tNNP\tI-NP\tI-LOC\n\t\n"
        "He\tPRP\tI-NP\tO\n"
    )
    examples = read_conll(path)
    assert [list(e.text) for e in examples] == [["EU", "rejects"], ["Bonn"], ["He"]]
    assert [list(e.label) for e in examples] == [["I-ORG", "O"], ["I-LOC"], ["O"]]
    assert [e.group for e in examples] == [f"{path}#1", f"{path}#2", f"{path}#2"]
    assert [e.where for e in examples] == [f"{path}:3", f"{path}:8", f"{path}:10"]
    assert list(read_conll(path, 0, 1)[0].label) == ["NNP", "VBZ"]
    with gzip.open(tmp_path / "b.conll.gz", "wt") as file:
        file.write("a O\n")
    assert read_conll(tmp_path / "b.conll.gz")[0].group is None


def test_sentences_before_first_docstart_form_a_document(tmp_path):
    (tmp_path / "a.conll").write_text("a O\n\nb O\n-DOCSTART- O\n\nc O\n-DOCSTART- O\n")
    groups = [example.group for example in read_conll(tmp_path / "a.conll")]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.full
def test_real_conll_files_have_their_published_counts(data):
    wikigold = read_conll(data("wikigold/wikigold.conll.txt"))
    assert sum(len(e.text) for e in wikigold) == 39_007
    assert len({e.group for e in wikigold}) == 145
    for split, count in {"train": 3394, "dev": 1009, "test": 1287}.items():
        assert len(read_conll(data(f"wnut17/{split}.conll"))) == count


BOM, TIGHT, WIDE = "\ufeff", "\u00a0", "\u3000"
CONLLU = f"""# newdoc id = 1
# sent_id = 1
# text = Im Haus # 1
1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tin\tin\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
3\tHaus\tHaus\tNOUN\tNN\t_\t0\troot\t_\t_
3.1\tist\tsein\tAUX\tVAFIN\t_\t_\t_\t_\t_
4\t#\t#\tSYM\tXY\t_\t3\tdep\t_\t_

# sent_id = 2
1\t1{TIGHT}000\t1000\tNUM\tCARD\t_\t0\troot\t_\t_
"""


class TestCoNLL:
    def written(self, tmp_path, text, name="a.conll"):
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    @pytest.mark.parametrize("name", ["a.conllu", "a.conll", "a.conllu.gz"])
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_universal_dependencies(self, tmp_path, name, end):
        text = (BOM + CONLLU.replace("\n", end)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        first, second = read_conll(tmp_path / name)
        assert (first.text, first.label) == (["in", "dem", "Haus", "#"], "ADP DET NOUN SYM".split())
        assert (second.text, second.label) == ([f"1{TIGHT}000"], ["NUM"])
        assert first.lines == [5, 6, 7, 9] and second.where.endswith(":12")
        assert read_conll(tmp_path / name, tag_column=4)[0].label == "APPR ART NN XY".split()
        assert read_conll(tmp_path / name, 2, 7)[1].text == ["1000"]
        assert read_conll(tmp_path / name, labelled=False)[1].label is None

    def test_conllu_line_without_10_columns_is_refused(self, tmp_path):
        path = self.written(tmp_path, CONLLU + "2 weg ADV\n", "a.conllu")
        with pytest.raises(ValueError, match="a.conllu:13: .*10 columns.*'2 weg ADV'"):
            read_conll(path)

    def test_unicode_spaces_are_part_of_a_word(self, tmp_path):
        path = self.written(tmp_path, f"8{TIGHT}1/2 B-NUM\nfoo{WIDE}bar\tO \n{WIDE} O\n")
        (example,) = read_conll(path)
        assert example.text == [f"8{TIGHT}1/2", f"foo{WIDE}bar", WIDE]
        assert example.label == ["B-NUM", "O", "O"]

    @pytest.mark.parametrize("between", [" ", "\t"])
    def test_comments_before_sentences(self, tmp_path, between):
        words = ["#", "#tag", "a", "#"]
        rows = [f"{word}{between}B-X" for word in words]
        comments = ["# sent_id = 1", "# newdoc", "# free words here"]
        path = self.written(tmp_path, "\n".join([*comments, *rows, "", "# text = b", *rows, ""]))
        first, second = read_conll(path)
        assert first.text == second.text == words and first.lines == [4, 5, 6, 7]

    def test_begin_and_end_marks_of_conll_2012_are_skipped(self, tmp_path):
        rows = "#begin document (a); part 000\na\t0\tThe\t-\n\n#end document\n"
        (example,) = read_conll(self.written(tmp_path, rows), 2)
        assert example.text == ["The"] and example.label == ["-"]

    def test_hash_word_without_tag_is_an_error_not_a_comment(self, tmp_path):
        path = self.written(tmp_path, "a\tO\n\n#tag\n")
        with pytest.raises(ValueError, match="a.conll:3: .*a word and its tag.*'#tag'"):
            read_conll(path)

    @pytest.mark.parametrize("between", [" ", "\t"])
    @pytest.mark.parametrize(
        "rows, line, count, found",
        [
            (["a DET", "b NOUN", "c x NOUN"], 4, 2, 3),
            (["a x DET", "b x NOUN", "c NOUN"], 4, 3, 2),
            (["a x I-X", "b x O", "c O"], 4, 3, 2),
            (["a DET", "", "b x NOUN"], 4, 2, 3),
            (["a DET", "", "#b x NOUN"], 4, 2, 3),
            (["-DOCSTART- -X- O O", "", "a DET", "-DOCSTART-", "", "b x NOUN"], 7, 2, 3),
        ],
    )
    def test_rows_with_other_column_count_are_refused(
        self, tmp_path, rows, line, count, found, between
    ):
        text = "\n".join(["# free words here", *(row.replace(" ", between) for row in rows), ""])
        path = self.written(tmp_path, text)
        match = rf"a.conll:{line}: .* as the first, {count} in line \d. .* of {found} columns"
        for options in ({}, {"labelled": False}, {"tag_column": 1}):
            with pytest.raises(ValueError, match=match):
                read_conll(path, **options)

    def test_predicate_columns_may_differ_by_sentence(self, tmp_path):
        """As in CoNLL-2012, the second sentence has one predicate, and the first has none."""
        rows = [
            "#begin document (a); part 000",
            "a 0 0 It N",
            "",
            "a 0 0 Go V (V*)",
            "a 0 1 on P *",
        ]
        path = self.written(tmp_path, "\n".join([*rows, "", "#end document", ""]))
        first, second = read_conll(path, 3, 4)
        assert (first.label, second.label) == (["N"], ["V", "P"])
        path = self.written(tmp_path, "\n".join([*rows, "a 0 2 . ."]))
        with pytest.raises(ValueError, match="a.conll:6: .*the first, 6 in line 4.*of 5 columns"):
            read_conll(path, 3, 4)

    def test_reads_words_without_tags_on_request(self, tmp_path):
        first, second = read_conll(self.written(tmp_path, "a\n#b\n\nc\n"), labelled=False)
        assert (first.text, first.label, second.text) == (["a", "#b"], None, ["c"])
        with pytest.raises(ValueError, match="a.conll:1: .*a word in its column.*'a'"):
            read_conll(tmp_path / "a.conll", 1, labelled=False)


class TestTables:
    def written(self, tmp_path, name, text):
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_reader_accepts_byte_order_marks_and_all_line_ends(self, tmp_path, end):
        for name, text in (
            ("a.csv", "text,label\ngood,yes\n"),
            ("a.tsv", "text\tlabel\ngood\tyes\n"),
            ("a.jsonl", '{"text": "good", "label": "yes"}\n'),
        ):
            path = self.written(tmp_path, name, BOM + text.replace("\n", end))
            (example,) = read_table(path, "text", "label")
            assert (example.text, example.label) == ("good", "yes")
        path = self.written(tmp_path, "b.tsv", BOM + "good\tyes\n".replace("\n", end))
        ((_, row),) = table_rows(path, header=["text", "label"])
        assert row == {"text": "good", "label": "yes"}

    @pytest.mark.parametrize("name, between", [("a.csv", ","), ("a.tsv", "\t")])
    def test_long_fields(self, tmp_path, name, between):
        text = "word " * 30_000
        path = self.written(tmp_path, name, f"text{between}label\n{text}{between}yes\n")
        limit = csv.field_size_limit()
        assert read_table(path, "text", "label")[0].text == text
        assert csv.field_size_limit() == limit

    @pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    def test_quoted_fields_between_tabs(self, tmp_path, quoting):
        rows = [["text", "label"], ['he said "hi"', "yes"], ["two\nlines\tand a tab", "no"]]
        rows += [["plain", "yes"], ['"all"', "no"]]
        with open(tmp_path / "a.tsv", "w", newline="") as file:
            csv.writer(file, csv.excel_tab, quoting=quoting).writerows(rows)
        examples = read_table(tmp_path / "a.tsv", "text", "label")
        assert [[e.text, e.label] for e in examples] == rows[1:]

    @pytest.mark.parametrize(
        "text",
        [
            '"Hello."',
            'a "b" c',
            '"a" "b"',
            '5" long',
            '"',
            '""Hello""',
            '"a "" b',
            'He said ""no""',
        ],
    )
    def test_quotes_inside_tsv_texts_are_preserved(self, tmp_path, text):
        path = self.written(tmp_path, "a.tsv", f"text\tlabel\n{text}\tyes\nb\tno\n")
        assert [e.text for e in read_table(path, "text", "label")] == [text, "b"]

    def test_label_names_replace_numbered_tags(self, tmp_path):
        path = self.written(tmp_path, "a.jsonl", '{"tokens": ["a", "b"], "ner_tags": [0, 2]}\n')
        names = ["O", "B-PER", "I-PER"]
        (example,) = read_table(path, "tokens", "ner_tags", label_names=names)
        assert example.label == ["O", "I-PER"]
        with pytest.raises(ValueError, match="a.jsonl:1: Tags that are numbers.*`label_names`"):
            read_table(path, "tokens", "ner_tags")
        with pytest.raises(ValueError, match="a.jsonl:1: .*from 0 to 1. Received: 2"):
            read_table(path, "tokens", "ner_tags", label_names=names[:2])
        path = self.written(tmp_path, "a.csv", "text,label\na,1\n")
        assert read_table(path, "text", "label", label_names=["no", "yes"])[0].label == "yes"

    @pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
    @pytest.mark.parametrize(
        "row, match",
        [
            (("", "yes", "1"), "A text must not be empty, .*text=''"),
            ((" \u00a0", "yes", "1"), "A text must not be empty"),
            (("a", "", "1"), "Every example needs a label.*label=''"),
            (("a", "  ", "1"), "Every example needs a label"),
            (("a", "nan", "1"), "A label must not be NaN.*leave the row out.*label='nan'"),
            (("a", "NaN ", "1"), "A label must not be NaN"),
            (("a", "<NA>", "1"), "A label must not be NaN"),
            (("a", "yes", "nan"), "A group must not be NaN.*leave the field empty"),
        ],
    )
    def test_empty_and_missing_values_are_named(self, tmp_path, name, row, match):
        columns, rows = ["text", "label", "doc"], [("good", "yes", "1"), row]
        if name == "a.jsonl":
            lines = [json.dumps(dict(zip(columns, of_row, strict=True))) for of_row in rows]
        else:
            lines = ["\t,"[name == "a.csv"].join(of_row) for of_row in (columns, *rows)]
        path = self.written(tmp_path, name, "\n".join([*lines, ""]))
        with pytest.raises(ValueError, match=rf"{name}:{2 + (name != 'a.jsonl')}: {match}"):
            read_table(path, "text", "label", group="doc")
        if "text" in match:
            with pytest.raises(ValueError, match="A text must not be empty, .*text="):
                read_table(path, "doc", "label", pair="text")
            assert read_table(path, "text", "label", clean=False)[1].text == row[0]

    def test_nan_of_json_is_named(self, tmp_path):
        path = self.written(tmp_path, "a.jsonl", '{"text": "a", "label": NaN}\n')
        with pytest.raises(ValueError, match="a.jsonl:1: A label must not be NaN.*label=nan"):
            read_table(path, "text", "label")

    def test_json_tags_are_stripped_and_must_not_be_empty(self, tmp_path):
        def read(text, label):
            row = json.dumps({"text": text, "label": label})
            return read_table(self.written(tmp_path, "a.jsonl", row + "\n"), "text", "label")

        assert read(["a ", "b"], ["O ", " B-X"])[0].label == ["O", "B-X"]
        assert read(["a ", "b"], ["O", "O"])[0].text == ["a ", "b"]
        for text, label, match in (
            (["a", "b"], ["O", " "], "every word a tag"),
            (["a", "b"], ["O", None], "every word a tag"),
            (["a", "b"], ["O", "nan"], "A label must not be NaN"),
            ([], [], "A text must not be empty"),
            ([" "], ["O"], "A text must not be empty"),
            (["a", ""], ["O", "B-X"], "no word blank: .*text=\\['a', ''\\]"),
        ):
            with pytest.raises(ValueError, match=f"a.jsonl:1: .*{match}"):
                read(text, label)

    def test_spaces_around_labels_are_stripped(self, tmp_path):
        path = self.written(tmp_path, "a.csv", "text,label,doc\n a ,yes ,1\nb, yes,1 \nc,yes,\n")
        examples = read_table(path, "text", "label", group="doc")
        assert [(e.text, e.label, e.group) for e in examples] == [
            (" a ", "yes", "1"), ("b", "yes", "1"), ("c", "yes", None),
        ]  # fmt: skip

    def test_labels_like_na_and_null_are_accepted(self, tmp_path):
        names = ["na", "none", "null", "nano", "-", "0"]
        rows = "".join(f"a,{name}\n" for name in names)
        path = self.written(tmp_path, "a.csv", f"text,label\n{rows}")
        assert [e.label for e in read_table(path, "text", "label")] == names

    def test_json_null_error_differs_from_missing_column(self, tmp_path):
        path = self.written(tmp_path, "a.jsonl", '{"text": "a", "label": null}\n')
        with pytest.raises(ValueError, match="a.jsonl:1: Every example needs a label.*label=None"):
            read_table(path, "text", "label")
        path = self.written(tmp_path, "a.jsonl", '{"text": null, "label": "b"}\n')
        with pytest.raises(ValueError, match="a.jsonl:1: A text must be a string.*text=None"):
            read_table(path, "text", "label")


def test_tables_of_every_format(tmp_path):
    (tmp_path / "a.csv").write_text('text,label,id\n"good, very",yes,1\n"two\nlines",no,2\n')
    (tmp_path / "a.tsv").write_text('text\tlabel\tid\n"quoted "as is\tyes\t1\n')
    (tmp_path / "a.jsonl").write_text('{"text": ["a", "b"], "label": ["O", "B"], "id": "1"}\n\n')
    first, second = read_table(tmp_path / "a.csv", "text", "label", group="id")
    assert (first.text, first.label, first.group) == ("good, very", "yes", "1")
    assert second.text == "two\nlines" and second.where.endswith("a.csv:3")
    assert read_table(tmp_path / "a.tsv", "text", "label")[0].text == '"quoted "as is'
    (example,) = read_table(tmp_path / "a.jsonl", "text", "label")
    assert list(example.text) == ["a", "b"] and list(example.label) == ["O", "B"]
    assert read_table(tmp_path / "a.csv", "text", pair="label")[0].pair == "yes"
    (tmp_path / "b.csv").write_text("text,label,id\na,yes,\nb,no,2\n")
    groups = [
        example.group for example in read_table(tmp_path / "b.csv", "text", "label", None, "id")
    ]
    assert groups == [None, "2"]  # sentences without a group share none


def test_rows_broken_by_ends_of_lines_are_joined_on_request(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\ttext\tlabel\n1\ta\n\n b\n\tyes\n2\tc\tno\n")
    rows = list(table_rows(path, broken=True))
    assert rows == [
        (f"{path}:2", {"id": "1", "text": "a  b ", "label": "yes"}),
        (f"{path}:6", {"id": "2", "text": "c", "label": "no"}),
    ]
    with pytest.raises(ValueError, match="a.tsv:2: Every line needs as many fields.*2 fields"):
        list(table_rows(path))
    path.write_text("id\ttext\n1\ta\n2")
    with pytest.raises(ValueError, match="a.tsv:3: Every line needs as many fields.*1 fields"):
        list(table_rows(path, broken=True))


@pytest.mark.parametrize(
    "name, content, match",
    [
        ("a.conll", "EU B-ORG\nrejects\n", "a.conll:2: .*must hold a word and its tag.*'rejects'"),
        ("a.conll", "\n\n", "No sentence in this file"),
        ("a.csv", "", "first line must name the columns"),
        ("a.csv", "\ntext,label\n", "first line must name the columns"),
        ("a.csv", 'text,"label\n', "a.csv:1: .*must be valid CSV"),
        ("a.csv", "text,label\na,\n", "a.csv:2: Every example needs a label"),
        ("a.csv", "text,label\n", "No example in this file"),
        (
            "a.csv",
            "words,label\na,b\n",
            "a.csv:2: No column 'text'. Received: columns words, label",
        ),
        ("a.csv", "text,label\na,b\nc\n", "a.csv:3: .*as many fields as the header, 2.*1 fields"),
        ("a.csv", 'text,label\n"a"b,c\n', "a.csv:2: .*must be valid CSV"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text"\n', "a.jsonl:2 must be JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: it must hold an object"),
        ("a.jsonl", '{"text": ["a", "b"], "label": ["O"]}\n', "a.jsonl:1: .*2 words and 1 tags"),
        ("a.jsonl", '{"text": 5, "label": "x"}\n', "a.jsonl:1: A text must be a string.*text=5"),
        ("a.conll", "London\t\n", "a.conll:1: .*a word and its tag"),
    ],
)
def test_malformed_files_are_named_with_their_line(name, content, match, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=match):
        if name.endswith("conll"):
            read_conll(path)
        else:
            read_table(path, "text", "label")


def test_undecodable_and_truncated_files_are_refused(tmp_path):
    (tmp_path / "latin.tsv").write_bytes(b"text\tlabel\ncaf\xe9\tyes\n")
    with pytest.raises(ValueError, match="latin.tsv:2:.*not a whole UTF-8 text"):
        read_table(tmp_path / "latin.tsv", "text", "label")
    with gzip.open(tmp_path / "cut.conll.gz", "wt") as file:
        file.write("word O\n" * 5000)
    whole = (tmp_path / "cut.conll.gz").read_bytes()
    (tmp_path / "cut.conll.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cut.conll.gz:.*not a whole UTF-8 text"):
        read_conll(tmp_path / "cut.conll.gz")
    (tmp_path / "two.conll").write_text("EU B-ORG\n")
    with pytest.raises(ValueError, match="two.conll:1: .*must hold a word and its tag"):
        read_conll(tmp_path / "two.conll", tag_column=-5)
    with pytest.raises(ValueError, match="No file .*none.csv"):
        read_table(tmp_path / "none.csv", "text")


def test_words_and_tags_must_agree():
    with pytest.raises(ValueError, match="x:1: Every word needs one tag.*2 words and 1 tags"):
        Example(["a", "b"], ["O"], where="x:1")
    with pytest.raises(ValueError, match="Answers need `starts`.*label=.'Ada'"):
        Example("Who?", ["Ada"], pair="It was Ada.")
    with pytest.raises(ValueError, match="x:1: Tags need a list of words"):
        Example("a b", ["O", "O"], where="x:1")
    assert Example("a b", np.int64(1)).label == 1


def test_split_groups_never_splits_a_group():
    examples = [Example(str(i), "x", group=str(i // 7)) for i in range(200)]
    parts = split_groups(examples, (0.7, 0.15, 0.15))
    assert sorted(int(e.text) for part in parts for e in part) == list(range(200))
    groups = [{e.group for e in part} for part in parts]
    assert not groups[0] & groups[1] and not groups[1] & groups[2] and not groups[0] & groups[2]
    shares = [len(part) / 200 for part in parts]
    assert np.allclose(shares, (0.7, 0.15, 0.15), atol=0.06)
    assert split_groups(examples, (0.5, 0.5))[0] == split_groups(examples, (0.5, 0.5))[0]
    assert split_groups(examples, (0.5, 0.5), seed=1) != split_groups(examples, (0.5, 0.5))
    with pytest.raises(ValueError, match="Each of 3 parts must get an example"):
        split_groups(examples[:7], (0.7, 0.15, 0.15))
    with pytest.raises(ValueError, match="^x/a.tsv: Each of 2 parts must get an example"):
        split_groups([Example("a", "b", where="x/a.tsv:7")], (0.5, 0.5))


def test_an_example_without_a_group_is_a_group_of_its_own():
    numbered = [Example(str(i), "x", group=i) for i in range(20)]
    alone = [Example(str(i), "x") for i in range(20)]
    parts = split_groups([*alone, *numbered], (0.5, 0.5))
    of_texts = [{e.text for e in part if e.group is None} for part in parts]
    of_groups = [{e.text for e in part if e.group is not None} for part in parts]
    assert of_texts[0] & of_groups[1]


class TestParallel:
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
    def test_reader_accepts_byte_order_marks_and_all_line_ends(self, tmp_path, end):
        for name in ("text.en", "text.de"):
            (tmp_path / name).write_bytes(f"\ufeffa\u2028b{end}c{end}".encode())
        texts = read_parallel(tmp_path / "text.en", tmp_path / "text.de")
        assert texts == (["a\u2028b", "c"],) * 2

    def files(self, tmp_path, source, target):
        (tmp_path / "text.en").write_text(source, encoding="utf-8")
        (tmp_path / "text.de").write_text(target, encoding="utf-8")
        return tmp_path / "text.en", tmp_path / "text.de"

    def test_lines_are_paired_by_number(self, tmp_path):
        paths = self.files(tmp_path, "a dog \ntwo men\n", "ein Hund\nzwei Männer")
        assert read_parallel(*paths) == (["a dog", "two men"], ["ein Hund", "zwei Männer"])

    @pytest.mark.parametrize(
        "source, target, match",
        [
            ("a\nb\n", "a\n", r"text.de must translate line n.*Received: 2 lines and 1 lines"),
            ("a\n\nb\n", "a\nb\nc\n", r"text.en:2: Every line must hold a text"),
            ("a\nb\n", "a\n \n", r"text.de:2: Every line must hold a text"),
            ("", "", r"text.en: No text in this file"),
        ],
    )
    def test_mismatched_and_empty_files_are_refused(self, source, target, match, tmp_path):
        with pytest.raises(ValueError, match=match):
            read_parallel(*self.files(tmp_path, source, target))

    def test_real_captions_have_their_published_counts(self, data):
        paths = [data(f"multi30k/val.{language}.gz") for language in ("en", "de")]
        assert len(read_parallel(*paths)[0]) == 1014


class TestRareLabelsInSplits:
    """The only example with a label goes into the first part of every split."""

    SHARES = (0.7, 0.15, 0.15)

    @pytest.mark.parametrize(
        "common, rare", [(["a", "b"], "c"), ([0, 1], 2), ([1.0, 2.0, 3.0], 0.5), ([1.0, 2.0], 9.5)]
    )
    def test_only_text_of_a_label_goes_to_first_part(self, common, rare):
        for odd in range(40):
            examples = [Example(str(i), common[i % len(common)], where=f"f:{i}") for i in range(40)]
            whole = split_groups(examples, self.SHARES)
            examples[odd] = Example(str(odd), rare, where=f"f:{odd}")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                parts = split_groups(examples, self.SHARES)
            in_train = any(e.text == str(odd) for e in whole[0])
            assert rare in {e.label for e in parts[0]}
            assert [f"{rare!r} (f:{odd})" in str(w.message) for w in caught] == [True] * (
                not in_train
            )
            texts = [[e.text for e in part] for part in whole]
            if not in_train:  # no other example moves
                texts = [[t for t in part if t != str(odd)] for part in texts]
                texts[0] = sorted([*texts[0], str(odd)], key=int)
            assert [[e.text for e in part] for part in parts] == texts

    def test_rare_tag_moves_its_whole_document_to_first_part(self):
        examples = [Example(["x", "y"], ["O", "A"], group=str(i // 4)) for i in range(80)]
        for odd in range(80):
            rare = Example(["x", "y"], ["O", "B"], group=str(odd // 4))
            parts = split_groups([*examples[:odd], rare, *examples[odd + 1 :]], self.SHARES)
            assert rare in parts[0] and sum(map(len, parts)) == 80
            assert sum(e.group == rare.group for e in parts[0]) == 4

    def test_answers_do_not_count_as_rare_labels(self):
        asked = [Example("q", [f"a{i}"], pair=f"a{i} b", starts=[0]) for i in range(40)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [len(part) for part in split_groups(asked, self.SHARES)] == [28, 6, 6]

    def test_split_that_empties_a_part_is_refused(self):
        examples = [Example("x", "yn"[i // 2], group=str(i // 2)) for i in range(4)]
        with pytest.raises(ValueError, match="moved to the first part for their labels: '[ny]'"):
            split_groups(examples, (0.5, 0.5))


def test_explicit_columns_allow_sentences_of_other_width(tmp_path):
    """As in CoNLL-2009, each predicate of a sentence has a column."""
    path = tmp_path / "a.txt"
    path.write_text("1 a N _ x\n2 b V _ x\n\n1 c N _\n")
    assert [e.label for e in read_conll(path, 1, 2)] == [["N", "V"], ["N"]]
    with pytest.raises(ValueError, match="a.txt:4: Every line"):
        read_conll(path)
    path.write_text("1 a N _ x\n2 b V _\n")
    with pytest.raises(ValueError, match="a.txt:2: Every line"):
        read_conll(path, 1, 2)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"text": "a", "label": Infinity}', "A label must be a string.*label=inf"),
        ('{"text": "a", "label": 1' + "0" * 400 + "}", "A label must be a string"),
        ('{"text": "a", "label": -1e999}', "A label must be a string.*label=-inf"),
        ('{"text": "a", "label": NaN}', "A label must not be NaN"),
        ('{"text": "a", "text": "b", "label": "x"}', 'the key "text" twice'),
        ("[" * 100_000, "hundreds of nested values"),
        ('{"text": "a", "label": ' + "1" * 5000 + "}", "a number of thousands of digits"),
        (r'{"text": "a\ud800", "label": "x"}', "half of a surrogate pair"),
        ("[1]", "must hold an object. Received: a list of 1"),
    ],
)
def test_invalid_jsonl_lines_are_refused(line, match, tmp_path):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=f"a.jsonl:1: ?.*{match}|a.jsonl:1 must be.*{match}"):
        read_table(tmp_path / "a.jsonl", "text", "label")


def test_nan_label_is_refused_without_cleaning(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": NaN}\n')
    with pytest.raises(ValueError, match="a.jsonl:1: A label must be a string.*label=nan"):
        read_table(tmp_path / "a.jsonl", "text", "label", clean=False)


def test_choices_are_a_list():
    with pytest.raises(ValueError, match="x:1: `choices` must be a list of texts. Received: 'ab'"):
        Example("a", 0, choices="ab", where="x:1")
