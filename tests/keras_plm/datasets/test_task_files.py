"""Tasks from files of a user, the list of known data, and the files of known tasks."""

import gzip
import json
import re

import numpy as np
import pytest

from keras_plm.cli.main import main
from keras_plm.data.formats.conll import read_conll
from keras_plm.data.task import Example, Task
from keras_plm.datasets.tasks import TASKS, checksum, read_trees, task_from_file, write_text_of
from keras_plm.experiments.runner import Runner
from keras_plm.heads import Classifier, Tagger

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize("name", ["FILMS.CSV", "films.csv.gz", "Films.Csv.GZ"])
def test_endings_may_be_in_upper_case(name, tmp_path):
    content = ("text,label\n" + "fine,good\ndull,bad\n" * 20).encode()
    packed = name.lower().endswith(".gz")
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    task = task_from_file(tmp_path / name, None, None)
    assert task.name == "films_csv" and task.read(None, "dev")[0].label in ("good", "bad")
    (tmp_path / "TAGS.CONLL").write_text("a B-P\nb O\n\n" * 20)
    assert task_from_file(tmp_path / "TAGS.CONLL", None, None).head is Tagger


def test_text_label_and_pair_are_different_columns(tmp_path):
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "".join(f"film {i},{'ab'[i % 2]}\n" for i in range(40)))
    for columns, parts in ((("text", "text"), "text and the label"),
                           (("text", "label", "label"), "label and the pair")):  # fmt: skip
        with pytest.raises(ValueError, match=f"The {parts} must be different columns"):
            task_from_file(path, *columns)
    assert task_from_file(path, "text", "label", group="text").name == "films_csv"
    (tmp_path / "tags.conll").write_text("B-P B-P\n\n" * 20)
    with pytest.raises(ValueError, match="must be different columns.*Received: 0 for both"):
        task_from_file(tmp_path / "tags.conll", "0", "0")


@pytest.mark.filterwarnings("ignore:The first part must have every label")
def test_training_set_has_every_number_of_a_class(tmp_path):
    rows = [{"text": f"film {i}", "label": float(i % 2 * 2)} for i in range(60)]
    order = np.random.default_rng(0).permutation(62)
    for place in range(62):  # the class 1 occurs twice, at each place of the split
        mixed = [*rows, *({"text": f"rare {i}", "label": 1.0} for i in range(2))]
        mixed = [mixed[i] for i in np.roll(order, place)]
        (tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, mixed)))
        task = task_from_file(tmp_path / "films.jsonl", None, None)
        assert {e.label for e in task.read(None, "train")} == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("names", [["a", "a"], ["a", ""]])
def test_names_of_labels_differ_and_are_not_blank(names, tmp_path):
    (tmp_path / "films.csv").write_text("text,label\n" + "fine,0\ndull,1\n" * 20)
    with pytest.raises(ValueError, match="`label_names` must"):
        task_from_file(tmp_path / "films.csv", None, None, names=names)


def test_text_of_a_task_has_each_sentence_once(tmp_path):
    words, other = ["Ada", "sings"], ["She", "smiles"]
    examples = {
        "roles": [
            Example(words, ["B-ARG0", "B-V"], predicate=1),
            Example(words, ["O", "B-V"], predicate=1),
            Example(other, ["B-ARG0", "B-V"], predicate=1),
        ],
        "documents": [Example([*words, *other], [], sentences=[2, 2]) for _ in range(2)],
    }
    found = {}
    for name, of_task in examples.items():
        task = Task(name, lambda folder, split, e=of_task: e, Classifier, {})
        count = write_text_of(task, None, tmp_path / name)
        found[name] = count, (tmp_path / name).read_text()
    document = "Ada sings\nShe smiles\n"
    assert found == {"roles": (2, document), "documents": (4, f"{document}\n{document}")}


def test_tags_without_spans_are_scored_by_word(tmp_path):
    words = "".join(f"{'abc'[i % 3]} {'DET NOUN VERB'.split()[i % 3]}\n\n" for i in range(40))
    (tmp_path / "pos.conll").write_text(words)
    assert list(task_from_file(tmp_path / "pos.conll", None, None).metrics) == ["word_accuracy"]


def test_group_column_for_a_conll_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="-DOCSTART-.*group='2'"):
        task_from_file(tmp_path / "mine.conll", None, None, group="2")


def test_data_command_lists_found_and_missing_files(tmp_path, capsys):
    (tmp_path / "wikigold").mkdir()
    (tmp_path / "wikigold" / "wikigold.conll.txt").write_text("a O\n")
    assert main(["data", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"found +\S+wikigold.conll.txt +sha256 [0-9a-f]{16}", out)
    assert out.count("missing") == 114 and "CC BY 4.0" in out and "multi30k" in out
    (tmp_path / "RACE" / "test").mkdir(parents=True)
    assert main(["data", "--data", str(tmp_path)]) == 0
    assert re.search(r"found +\S+RACE/test", capsys.readouterr().out)
    (tmp_path / "wnut17").mkdir()
    (tmp_path / "wnut17" / "train.conll.gz").write_bytes(gzip.compress(b"a O\n")[:-4])
    assert main(["data", "--data", str(tmp_path)]) == 2
    assert "train.conll.gz is damaged or cut short" in capsys.readouterr().err
    names = "cola sst2 mrpc qqp stsb mnli mnli_mm qnli rte wnli ax sst5 snli cr subj "
    names += "conll2003 wikigold wnut17 ud_english_ewt scitail sick_e sick_r swag "
    names += "race race_middle race_high story_cloze ewt_srl conll2012_roles litbank "
    names += "conll2012_coreference squad squad2 qnli_squad"
    assert list(TASKS) == names.split()


def test_task_from_file_selects_head_from_labels(tmp_path, table):
    (tmp_path / "tags.conll").write_text("".join("a x B-P\nb x O\n\n" for _ in range(20)))
    task = task_from_file(tmp_path / "tags.conll", None, "2")
    assert task.head is Tagger and list(task.read(None, "dev")[0].label) == ["B-P", "O"]
    task = task_from_file(table[1], "sentence", "answer")
    assert task.head is Classifier and task.name == "mine_csv"
    assert [len(task.read(None, s)) for s in ("train", "dev", "test")] == [42, 9, 9]
    rows = [json.dumps({"text": ["a", "b"], "label": ["O", "B"]})] * 20
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    assert task_from_file(tmp_path / "t.jsonl", None, None).head is Tagger
    split = [json.dumps({"text": ["a", "b"], "label": "no"})] * 20
    (tmp_path / "t.jsonl").write_text("\n".join(split))
    assert task_from_file(tmp_path / "t.jsonl", None, None).head is Classifier
    (tmp_path / "t.jsonl").write_text("\n".join(rows + split))
    with pytest.raises(ValueError, match="one label, or every word a tag"):
        task_from_file(tmp_path / "t.jsonl", None, None)
    lines = ["text,label", *(f"a film,{number}" for number in range(30))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="column 'label' with 30 different labels of 30 texts"):
        task_from_file(tmp_path / "t.csv", None, None)


def test_trees_are_read_as_sentences(tmp_path, data):
    (tmp_path / "t.txt").write_text("(4 (2 (2 The) (2 film)) (3 (4 (2 is) (3 fine)) (2 -LRB-)))\n")
    (example,) = read_trees(tmp_path / "t.txt")
    assert (example.text, example.label) == ("The film is fine (", "very positive")
    (tmp_path / "bad.txt").write_text("(2 fine)\n(9 (2 a)\n")
    with pytest.raises(ValueError, match="bad.txt:2: Each line must be a labelled tree"):
        read_trees(tmp_path / "bad.txt")
    folder = data("sst/trees/dev.txt").parent.parent.parent
    sizes = [len(TASKS["sst5"].read(folder, s)) for s in ("train", "dev", "test")]
    assert sizes == [8544, 1101, 2210]


def test_a_file_and_its_gz_have_one_checksum(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(b"abc")
    assert checksum(tmp_path / "a.txt") == checksum(tmp_path / "b.txt.gz")


def rows_of_tags(tags, count=40, between="\t"):
    return "".join(f"{'abc'[i % 3]}{between}{tags[i % len(tags)]}\n" + "\n" * (i % 2)
                   for i in range(count))  # fmt: skip


@pytest.mark.parametrize(
    "tags, scheme",
    [
        (["O", "B-PER", "I-PER"], "IOB2"),
        (["O", "B-PER", "O "], "IOB2"),
        (["O", "B", "I"], "BIO without types"),
        (["B-PER", "L-PER", "U-LOC", "O"], "BILOU"),
        (["DET", "NOUN", "O"], None),
    ],
)
def test_tag_scheme_determines_the_metric(tmp_path, tags, scheme):
    path = tmp_path / "mine.conll"
    path.write_text(f"# sent_id = 1\n{rows_of_tags(tags)}")
    task = task_from_file(path, None, None)
    assert list(task.metrics) == ["word_accuracy" if scheme is None else "span_f1"]
    runner = Runner(task, str(tmp_path), "benchmarks/weights/bert_mini", "", "")
    assert runner.scheme == scheme


def test_mixed_tag_schemes_are_refused(tmp_path):
    path = tmp_path / "mine.conll"
    rows = rows_of_tags(["O", "B-PER", "O"])
    path.write_text(f"# sent_id = 1\n{rows}# text = a\na\tO\nb\tPER\n\n{rows}")
    line = rows.count("\n") + 4
    with pytest.raises(ValueError, match=f"mine.conll:{line}: .*one scheme.*Received: 'PER'"):
        task_from_file(path, None, None)
    parts = {"train": ["O", "S-X", "B-X", "E-X"], "dev": ["O", "S-X"], "test": ["U-X", "O"]}
    for split, tags in parts.items():
        (tmp_path / f"{split}.conll").write_text(rows_of_tags(tags))
    files = {split: f"{split}.conll" for split in parts}
    task = Task("t", lambda d, split: read_conll(tmp_path / files[split]), Tagger, {})
    with pytest.raises(ValueError, match="test.conll:1: .*IOBES.*Received: 'U-X'"):
        Runner(task, str(tmp_path), "benchmarks/weights/bert_mini", "", "")
    row = json.dumps({"text": ["a", "b", "c"], "label": ["O", "B-X", "X"]})
    (tmp_path / "t.jsonl").write_text("\n".join([row.replace('"X"', '"I-X"')] * 20 + [row]))
    with pytest.raises(ValueError, match="t.jsonl:21, word 2 .'c'.: .*Received: 'X'"):
        task_from_file(tmp_path / "t.jsonl", None, None)


def test_a_file_in_iobes_with_sentences_in_iob2_is_refused(tmp_path):
    """IOB2 tags are valid in IOBES, but their spans have no end."""
    path = tmp_path / "mine.conll"
    good = rows_of_tags(["O", "S-PER", "B-PER", "E-PER"])
    path.write_text(f"{good}\na\tB-PER\nb\tO\n\na\tO\nb\tB-LOC\nc\tI-LOC\n")
    line = good.count("\n") + 2
    match = f"mine.conll:{line}: In IOBES .*'B-PER' before 'O', the first of 2 such tags"
    with pytest.raises(ValueError, match=match):
        task_from_file(path, None, None)
    path.write_text(good)
    assert list(task_from_file(path, None, None).metrics) == ["span_f1"]


def test_trees_keep_words_with_other_spaces(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeff(3 (2 8\u00a01\\/2) (2 Mile))\r\n".encode())
    assert read_trees(path)[0].text == "8\u00a01/2 Mile"
