"""GLUE's files, splits, labels and test files."""

import random
import re

import pytest

from glue_tasks import GLUE, read_unlabelled
from glue_tasks.__main__ import main
from glue_tasks.tasks import group_phrases, group_shared
from keras_plm.data.task import Example
from keras_plm.heads import Regressor

pytestmark = pytest.mark.backend_neutral

# The columns read from each file, as in the headers of the official archive.
MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
MNLI += "sentence1_parse\tsentence2_parse\tsentence1\tsentence2"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
PAIR = "index\tsentence1\tsentence2\tlabel"


def write(root, name, *lines):
    path = root / "glue" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def mnli_row(i, first, second, *labels):
    return "\t".join([str(i), "7", "7n", "fiction", "(", "(", "(", "(", first, second, *labels])


@pytest.mark.full
def test_sst2_has_its_published_counts_and_no_shared_phrase(data):
    data("glue/SST-2/train.tsv")
    folder = data("glue").parent
    parts = {split: GLUE["sst2"].read(folder, split) for split in ("train", "dev", "test")}
    assert len(parts["train"]) + len(parts["dev"]) == 67_349 and len(parts["test"]) == 872
    assert {e.label for e in parts["test"]} == {"0", "1"}
    texts = {split: {" ".join(e.text.split()) for e in part} for split, part in parts.items()}
    assert not texts["train"] & texts["dev"]
    assert not {e.group for e in parts["train"]} & {e.group for e in parts["dev"]}
    # No sentence of the dev set is part of a longer training sentence.
    longest = sorted(texts["train"], key=lambda t: -len(t))[:300]
    for phrase in list(texts["dev"])[:300]:
        if len(phrase.split()) > 4:
            assert not any(f" {phrase} " in f" {whole} " for whole in longest)


def test_phrases_join_the_group_of_the_longest_containing_text():
    texts = ["a good film", "good film", "film", "a bad play", "bad", "good film and play"]
    groups = [e.group for e in group_phrases([Example(t, "1") for t in texts])]
    assert groups[1] == groups[5] and groups[3] == groups[4] and groups[3] != groups[5]


def _groups_by_search(texts):
    """Returns the result of `group_phrases`, by a search for every run of words."""
    texts = [text.split() for text in texts]
    groups, group_of = [None] * len(texts), {}
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        words = texts[i]
        groups[i] = group_of.get(tuple(words), f"phrase {i}")
        for start in range(len(words)):
            for end in range(start + 1, len(words) + 1):
                if words[start:end] in texts:
                    group_of.setdefault(tuple(words[start:end]), groups[i])
    return groups


def test_group_phrases_equals_brute_force_search():
    rng = random.Random(0)
    for letters in ("a", "ab", "abc") * 20:
        count = rng.randint(1, 20)
        texts = [" ".join(rng.choices(letters, k=rng.randint(0, 6))) for _ in range(count)]
        found = [e.group for e in group_phrases([Example(t, "1") for t in texts])]
        assert found == _groups_by_search(texts), texts


def test_phrases_of_a_very_long_text_are_found_in_one_pass():
    texts = ["a " * 30_000, "a a", "a a " * 10_000]  # a search has billions of runs
    groups = [e.group for e in group_phrases([Example(t, "1") for t in texts])]
    assert groups == ["phrase 0"] * 3


def test_pairs_linked_through_shared_texts_form_one_group():
    pairs = [("a", "b"), ("c", "d"), ("b", "e"), ("f", "g"), ("d", "f"), ("h", "h")]
    groups = [e.group for e in group_shared([Example(a, "0", pair=b) for a, b in pairs])]
    assert groups[0] == groups[2] and groups[1] == groups[3] == groups[4]
    assert len(set(groups)) == 3


def test_empty_questions_of_qqp_are_read(tmp_path):
    """A few questions of the official files are empty."""
    write(tmp_path, "QQP/dev.tsv", QQP, "1\t2\t3\ta?\t\t0", "4\t5\t6\t \tb?\t1")
    write(tmp_path, "QQP/test.tsv", "id\tquestion1\tquestion2", "0\t\tb?")
    labelled = GLUE["qqp"].read(tmp_path, "test")
    assert [(e.text, e.pair, e.label) for e in labelled] == [("a?", "", "0"), (" ", "b?", "1")]
    assert [(e.text, e.pair) for e in read_unlabelled(GLUE["qqp"], tmp_path)] == [("", "b?")]


def test_glue_table_lists_all_tasks_with_their_settings():
    rows = {
        "cola": ("CoLA", 1063), "sst2": ("SST-2", 1821), "mrpc": ("MRPC", 1725),
        "qqp": ("QQP", 390_965), "stsb": ("STS-B", 1379), "mnli": ("MNLI-m", 9796),
        "mnli_mm": ("MNLI-mm", 9847), "qnli": ("QNLI", 5463), "rte": ("RTE", 3000),
        "wnli": ("WNLI", 146), "ax": ("AX", 1104),
    }  # fmt: skip
    found = {name: (t.submission.removesuffix(".tsv"), t.rows) for name, t in GLUE.items()}
    assert found == rows
    metrics = {name: " ".join(task.metrics) for name, task in GLUE.items()}
    assert metrics["ax"] == metrics["cola"] == "matthews_correlation"
    assert metrics["qqp"] == metrics["mrpc"] == "accuracy f1"
    assert metrics["stsb"] == "pearson_correlation spearman_correlation"
    assert {n for n, names in metrics.items() if names == "accuracy"} == {
        "sst2", "mnli", "mnli_mm", "qnli", "rte", "wnli",
    }  # fmt: skip
    assert {n for n, task in GLUE.items() if task.symmetric} == {"mrpc", "qqp", "stsb"}
    assert all(task.head is Regressor or task.majority in task.labels for task in GLUE.values())
    assert GLUE["ax"].labels == GLUE["mnli"].labels == ("entailment", "neutral", "contradiction")
    assert GLUE["ax"].files["train"] == GLUE["mnli_mm"].files["train"] == "glue/MNLI/train.tsv"


@pytest.mark.parametrize("name", [name for name in GLUE if GLUE[name].rows < 300_000])
def test_official_test_files_are_read(name, data):
    task = GLUE[name]
    data(task.files["unlabelled"])
    examples = read_unlabelled(task, data("glue").parent)
    assert len(examples) == task.rows
    assert all(e.label is None and e.group is None and e.text for e in examples)
    assert all((e.pair is None) == (name in ("cola", "sst2")) for e in examples)


@pytest.mark.parametrize(("name", "counts"), {"wnli": (635, 71), "qnli": (None, 5463)}.items())
def test_published_counts(name, counts, data):
    data(f"glue/{name.upper()}/dev.tsv")
    root, task = data("glue").parent, GLUE[name]
    assert len(task.read(root, "test")) == counts[1]
    assert {e.label for e in task.read(root, "test")} == set(task.labels)
    if counts[0] is None:
        with pytest.raises(ValueError, match="No file .*glue/QNLI/train.tsv .*--data"):
            task.read(root, "train")
        return
    train, dev = task.read(root, "train"), task.read(root, "dev")
    assert len(train) + len(dev) == counts[0] and 50 < len(dev) < 80
    texts = [{text for e in part for text in (e.text, e.pair)} for part in (train, dev)]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "rte", "wnli"])
def test_majority_is_the_most_frequent_training_label(name, data):
    data(GLUE[name].files["train"])
    labels = [e.label for e in GLUE[name].read_file(data("glue").parent, "train")]
    if name == "stsb":
        assert f"{sum(labels) / len(labels):.3f}" == GLUE[name].majority
    else:
        assert max(sorted(set(labels)), key=labels.count) == GLUE[name].majority


def test_mnli_columns_are_found_by_name(tmp_path):
    labels = ("entailment", "neutral", "contradiction")
    rows = [mnli_row(i, f"p {i // 3}", f'a "b {i}', "-", labels[i % 3]) for i in range(60)]
    write(tmp_path, "MNLI/train.tsv", f"{MNLI}\tlabel1\tgold_label", *rows)
    votes = "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label"
    for part, gold in (("matched", "neutral"), ("mismatched", "entailment")):
        row = mnli_row(0, "p", part, "contradiction", *[gold] * 5)
        write(tmp_path, f"MNLI/dev_{part}.tsv", f"{MNLI}{votes}", row)
        write(tmp_path, f"MNLI/test_{part}.tsv", MNLI, mnli_row(0, "p", f"{part}?"))
    full = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\t"
    write(tmp_path, "diagnostic/diagnostic-full.tsv", f"{full}Premise\tHypothesis\tLabel",
          "\t\tNegation\t\tArtificial\tThe cat sat.\tIt did not.\tcontradiction")  # fmt: skip
    train, dev = (GLUE["mnli"].read(tmp_path, split) for split in ("train", "dev"))
    assert len(train) + len(dev) == 60 and train[0].pair == 'a "b 0'  # plain quotes
    assert not {e.text for e in train} & {e.text for e in dev}
    assert GLUE["ax"].read(tmp_path, "train") == GLUE["mnli_mm"].read(tmp_path, "train") == train
    for name, pair, label in (
        ("mnli", "matched", "neutral"),
        ("mnli_mm", "mismatched", "entailment"),
        ("ax", "It did not.", "contradiction"),
    ):
        (example,) = GLUE[name].read(tmp_path, "test")
        assert (example.pair, example.label) == (pair, label)
    (example,) = read_unlabelled(GLUE["mnli_mm"], tmp_path)
    assert (example.text, example.pair, example.label) == ("p", "mismatched?", None)


def test_broken_qqp_rows_are_joined(tmp_path):
    rows = [f"{i}\t{i}\t{i}\tWhat is {i}?\tWhich is {i}?\t{i % 2}" for i in range(20)]
    rows[3:3] = ['9\t9\t9\t"Was he real?', "", '"\tWas there a man?\t0']
    write(tmp_path, "QQP/train.tsv", QQP, *rows)
    examples = GLUE["qqp"].read_file(tmp_path, "train")
    assert len(examples) == 21
    assert (examples[3].text, examples[3].pair) == ('"Was he real? "', "Was there a man?")
    assert examples[3].where.endswith("train.tsv:5") and examples[4].where.endswith(":8")
    write(tmp_path, "QQP/dev.tsv", QQP, "9\t9\t9\tWas he real?", rows[0])
    with pytest.raises(ValueError, match="dev.tsv:2: Every line needs as many fields .* 9 fields"):
        GLUE["qqp"].read(tmp_path, "test")
    write(tmp_path, "QQP/test.tsv", "id\tquestion1\tquestion2", "0\ta\tb", "1\tc\td")
    assert [e.pair for e in read_unlabelled(GLUE["qqp"], tmp_path)] == ["b", "d"]


def test_wrong_lines_are_refused_with_their_number(tmp_path):
    def read(name, part="test"):
        return GLUE[name].read_file(tmp_path, part)

    write(tmp_path, "WNLI/dev.tsv", PAIR, "0\ta\tb\t1", "1\ta\tb")
    with pytest.raises(ValueError, match="dev.tsv:3: Every line needs as many fields.*4.* 3 f"):
        read("wnli")
    write(tmp_path, "WNLI/dev.tsv", PAIR, "0\ta\tb\tentailment")
    with pytest.raises(ValueError, match="dev.tsv:2: The labels of .* 0, 1. Received: 'entailm"):
        read("wnli")
    write(tmp_path, "RTE/dev.tsv", PAIR, "0\ta\tb\tneutral")
    with pytest.raises(ValueError, match="entailment, not_entailment. Received: 'neutral'"):
        read("rte")
    write(tmp_path, "STS-B/dev.tsv", "sentence1\tsentence2\tscore", "a\tb\t5.1")
    with pytest.raises(ValueError, match="dev.tsv:2: A score lies from 0 to 5. Received: '5.1'"):
        read("stsb")
    write(tmp_path, "STS-B/dev.tsv", "sentence1\tsentence2\tscore", "a\tb\tnan")
    with pytest.raises(ValueError, match="A score lies from 0 to 5. Received: 'nan'"):
        read("stsb")
    write(tmp_path, "RTE/test.tsv", "index\tsentence1\tsentence2", "0\ta\tb", "2\tc\td")
    with pytest.raises(ValueError, match="test.tsv:3: .*numbered from 0.*this one is 1.*'2'"):
        read_unlabelled(GLUE["rte"], tmp_path)
    write(tmp_path, "RTE/test.tsv", "sentence1\tsentence2", "a\tb")
    with pytest.raises(ValueError, match="test.tsv:2: No column 'index'"):
        read_unlabelled(GLUE["rte"], tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="No file .*glue/SST-2/train.tsv .*--data"):
        GLUE["sst2"].read(tmp_path, "train")
    with pytest.raises(ValueError, match="No file .*glue/CoLA/test.tsv"):
        read_unlabelled(GLUE["cola"], tmp_path)
    with pytest.raises(ValueError, match="No file .*glue/diagnostic/diagnostic-full.tsv"):
        GLUE["ax"].read(tmp_path, "test")


class TestCommand:
    def test_command_lists_existing_and_missing_files(self, tmp_path, monkeypatch, capsys):
        write(tmp_path, "WNLI/dev.tsv", PAIR, "0\ta\tb\t1", "1\ta\tb\t0")
        write(tmp_path, "WNLI/test.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
        monkeypatch.setenv("KERAS_PLM_DATA", str(tmp_path / "none"))
        assert main([]) == 2
        assert "No folder" in capsys.readouterr().err
        assert main(["--data", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert re.search(r"^wnli +missing +2 +1 of 146  accuracy$", out, re.MULTILINE)
        assert re.search(r"^cola( +missing){3}  matthews_correlation$", out, re.MULTILINE)
        assert out.count(f"missing: {tmp_path}") == 31 - 2
        assert out.count("MNLI/train.tsv") == 1  # three tasks share it
        monkeypatch.setenv("KERAS_PLM_DATA", str(tmp_path))
        assert main([]) == 0 and capsys.readouterr().out == out
        write(tmp_path, "WNLI/dev.tsv", PAIR, "0\ta\tb\tx")
        assert main([]) == 2
        assert re.search("error: .*dev.tsv:2: The labels of", capsys.readouterr().err)

    @pytest.mark.full
    def test_command_counts_rows_of_the_real_files(self, data, capsys):
        assert main(["--data", str(data("glue").parent)]) == 0
        out = capsys.readouterr().out
        for row in ("cola 8,551 1,043 1,063 ", "sst2 67,349 872 1,821", "mrpc 3,668 408 1,725",
                    "stsb 5,749 1,500 1,379", "rte 2,490 277 3,000", "wnli 635 71 146",
                    "ax missing missing 1,104", "qnli missing 5,463 5,463"):  # fmt: skip
            assert row in re.sub(" +", " ", out), row
