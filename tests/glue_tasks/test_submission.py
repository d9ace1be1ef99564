"""The zip file of predictions for the evaluation server, and the score of nine tasks."""

import dataclasses
import re
import zipfile

import numpy as np
import pytest

from glue_tasks import GLUE, glue_score, read_unlabelled, write_predictions, write_submission
from glue_tasks.__main__ import main
from glue_tasks.submission import read_predictions
from keras_plm.heads import Classifier, Regressor
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece

pytestmark = pytest.mark.backend_neutral

FILES = ["CoLA", "SST-2", "MRPC", "QQP", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"]


def predicted(task, rng):
    if task.name == "stsb":
        return rng.uniform(-1, 6, task.rows)  # a regressor's scores may leave the range
    return [task.labels[i] for i in rng.integers(len(task.labels), size=task.rows)]


@pytest.fixture(scope="module")
def predictions(tmp_path_factory):
    """`(folder, predictions by task)` of all tasks except the two largest."""
    folder, rng = tmp_path_factory.mktemp("predictions"), np.random.default_rng(0)
    made = {name: predicted(t, rng) for name, t in GLUE.items() if name not in ("qqp", "ax")}
    for name, of_task in made.items():
        assert write_predictions(folder, GLUE[name], of_task) == folder / f"{name}.tsv"
    return folder, made


def copy(folder, to, *names):
    to.mkdir()
    for name in names:
        (to / f"{name}.tsv").write_bytes((folder / f"{name}.tsv").read_bytes())
    return to


@pytest.mark.full
def test_submission_contains_the_predictions(predictions, tmp_path, capsys):
    folder, made = predictions
    out = tmp_path / "mine.zip"
    flags = ["submission", "--predictions", str(folder), "--out", str(out)]
    assert main(flags) == 2 and not list(tmp_path.iterdir())
    assert re.search(
        r"lacks qqp.tsv.*--fill. Received: no predictions of qqp, ax", capsys.readouterr().err
    )
    assert main([*flags, "--fill"]) == 0
    shown = capsys.readouterr()
    assert "WARNING: no predictions of qqp: all 390,965 rows of QQP.tsv are '0'" in shown.err
    assert "all 1,104 rows of AX.tsv are 'entailment'" in shown.err
    assert shown.err.count("WARNING") == 2 and "mine.zip: CoLA.tsv, SST-2.tsv" in shown.out
    assert [path.name for path in tmp_path.iterdir()] == ["mine.zip"]
    with zipfile.ZipFile(out) as file:
        assert sorted(file.namelist()) == sorted(f"{name}.tsv" for name in FILES)
        texts = {name: file.read(name).decode() for name in file.namelist()}
    for task in GLUE.values():
        header, *rows = texts[task.submission].splitlines()
        assert header == "index\tprediction"
        index, values = zip(*(row.split("\t") for row in rows), strict=True)
        assert index == tuple(map(str, range(task.rows)))
        if task.name in ("qqp", "ax"):
            assert set(values) == {task.majority}
        elif task.name == "stsb":
            assert all(re.fullmatch(r"[0-5]\.\d{3}", value) for value in values)
            clipped = np.clip(made["stsb"], 0, 5)
            np.testing.assert_allclose(np.array(values, "float"), clipped, atol=5.1e-4)
        else:
            assert list(values) == made[task.name]
    before = out.read_bytes()
    assert write_submission(folder, out, fill=True) == ["qqp", "ax"]
    assert out.read_bytes() == before  # equal predictions, equal bytes


def test_complete_folder_needs_no_fill(predictions, tmp_path, monkeypatch):
    small = {name: dataclasses.replace(task, rows=3) for name, task in GLUE.items()}
    monkeypatch.setattr("glue_tasks.submission.GLUE", small)
    for task in small.values():
        write_predictions(tmp_path, task, [task.labels[0]] * 3)
    assert write_submission(tmp_path, tmp_path / "s.zip") == []


@pytest.mark.parametrize(("name", "head"), [("wnli", Classifier), ("stsb", Regressor)])
def test_predictions_on_official_test_file_are_written(name, head, data, tmp_path):
    task, tokenizer = GLUE[name], WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"])
    data(task.files["unlabelled"])
    encoder = BERT(len(tokenizer), num_layers=1, num_heads=1, hidden_dim=2, intermediate_dim=2)
    model = head(encoder, list(task.labels), tokenizer)
    predicted = model.predict(read_unlabelled(task, data("glue").parent))
    write_predictions(tmp_path, task, predicted)
    assert len(read_predictions(tmp_path, task)) == task.rows


def test_scores_are_clipped_and_rounded(tmp_path):
    task, values = GLUE["stsb"], np.full(GLUE["stsb"].rows, 2.0, "float32")
    values[:5] = -1e-9, 5.2, 4.9996, 3.14159, -0.0
    write_predictions(tmp_path, task, values)
    assert read_predictions(tmp_path, task)[:6] == "0.000 5.000 5.000 3.142 0.000 2.000".split()


def test_integer_predictions_are_written_as_labels(tmp_path):
    write_predictions(tmp_path, GLUE["wnli"], np.ones(146, "int64"))
    assert read_predictions(tmp_path, GLUE["wnli"]) == ["1"] * 146


@pytest.mark.full
def test_wrong_predictions_are_refused_before_anything_is_written(predictions, tmp_path):
    folder, made = predictions
    folder = copy(folder, tmp_path / "p", "wnli", "stsb", "rte")
    good = (folder / "wnli.tsv").read_text()
    lines = good.splitlines(keepends=True)
    out = tmp_path / "mine.zip"
    out.write_bytes(b"an older one")

    def refused(name, text, match):
        kept = (folder / name).read_text() if (folder / name).is_file() else None
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=match):
            write_submission(folder, out, fill=True)
        assert out.read_bytes() == b"an older one"
        assert not list(tmp_path.glob("*.tmp"))
        if kept is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(kept)

    count = "Every row of the official test file needs a prediction, 146 for wnli. Received: 14"
    refused("wnli.tsv", "".join(lines[:-1]), f"{count}5")
    refused("wnli.tsv", good + "146\t0\n", f"{count}7")
    swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
    refused("wnli.tsv", "".join(swapped), "wnli.tsv:4: .* order .* this one is 2. Received: '3'")
    refused("wnli.tsv", good.replace("\n0\t", "\n1\t"), "wnli.tsv:2: .* is 0. Received: '1'")
    refused("wnli.tsv", lines[0] + "0\tyes\n", "wnli.tsv:2: The labels of wnli are 0, 1. .*'yes'")
    refused("wnli.tsv", lines[0] + "0\n", "wnli.tsv:2: Every line needs as many fields")
    refused("wnli.tsv", "prediction\n0\n", "A file of .* columns index and prediction.*: pred")
    refused("wnli.tsv", "", "wnli.tsv: The first line must name the columns")
    refused("stsb.tsv", "index\tprediction\n0\tnan\n", "stsb.tsv:2: A score .* a number.*'nan'")
    refused("MNLI-mm.tsv", good, "a task's name. Did you mean mnli_mm.tsv.*Received: .*MNLI-mm")
    refused("notes.tsv", good, "file of predictions must have a task's name. Known: cola")
    with pytest.raises(ValueError, match="lacks cola.tsv.* of cola, sst2, mrpc, qqp, mnli"):
        write_submission(folder, out)
    with pytest.raises(ValueError, match="row 1: The labels of rte are .*Received: 'yes'"):
        write_predictions(folder, GLUE["rte"], ["entailment", "yes"])
    with pytest.raises(ValueError, match="rte: Every row .*3,000 for rte. Received: 1"):
        write_predictions(folder, GLUE["rte"], ["entailment"])
    with pytest.raises(ValueError, match="row 0: A score of stsb is a number. Received: 'high'"):
        write_predictions(folder, GLUE["stsb"], ["high"])
    assert read_predictions(folder, GLUE["rte"]) == made["rte"]
    for name in ("mine.tar", "none/mine.zip"):
        with pytest.raises(ValueError, match="A submission must be a file ending in .zip"):
            write_submission(folder, tmp_path / name, fill=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="a file for each task: cola, .*empty', without any"):
        write_submission(tmp_path / "empty", out, fill=True)


def test_a_failed_write_leaves_nothing(predictions, tmp_path, monkeypatch):
    folder = copy(predictions[0], tmp_path / "p", "wnli")

    def full(path, tables):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("glue_tasks.submission._write_zip", full)
    flags = ["--predictions", str(folder), "--out", str(tmp_path / "a.zip"), "--fill"]
    assert main(["submission", *flags]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


class TestScore:
    # Turc et al. 2019, from the README of google-research/bert: the score, then CoLA, SST-2,
    # MRPC F1 and accuracy, STS-B Pearson and Spearman, QQP F1 and accuracy, MNLI-m, MNLI-mm,
    # QNLI, RTE, WNLI, AX.
    PUBLISHED = {
        "tiny": (64.2, 0.0, 83.2, 81.1, 71.1, 74.3, 73.6, 62.2, 83.4, 70.2, 70.3, 81.5, 57.2, 62.3,
                 21.0),
        "mini": (65.8, 0.0, 85.9, 81.1, 71.8, 75.4, 73.3, 66.4, 86.2, 74.8, 74.3, 84.1, 57.9, 62.3,
                 26.1),
        "small": (71.2, 27.8, 89.7, 83.4, 76.2, 78.8, 77.0, 68.1, 87.0, 77.6, 77.0, 86.4, 61.8,
                  62.3, 28.6),
        "medium": (73.5, 38.0, 89.6, 86.6, 81.6, 80.4, 78.4, 69.6, 87.9, 80.0, 79.1, 87.7, 62.2,
                   62.3, 30.5),
    }  # fmt: skip

    def scores(self, name):
        cola, sst2, *pairs, mnli, mnli_mm, qnli, rte, wnli, ax = self.PUBLISHED[name][1:]
        mrpc, stsb, qqp = zip(pairs[::2], pairs[1::2], strict=True)
        return {
            "cola": cola, "sst2": sst2, "mrpc": {"f1": mrpc[0], "accuracy": mrpc[1]}, "qqp": qqp,
            "stsb": list(stsb), "mnli": mnli, "mnli_mm": mnli_mm, "qnli": {"accuracy": qnli},
            "rte": rte, "wnli": np.float64(wnli), "ax": ax,
        }  # fmt: skip

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_glue_score_equals_published_score(self, name):
        # The printed numbers and the score are rounded.
        assert glue_score(self.scores(name)) == pytest.approx(self.PUBLISHED[name][0], abs=0.06)

    def test_missing_and_malformed_scores_are_refused(self):
        scores = self.scores("mini")
        without = {name: score for name, score in scores.items() if name != "mnli_mm"}
        with pytest.raises(ValueError, match="needs the tasks cola.*'mnli_mm' is missing"):
            glue_score(without)
        with pytest.raises(ValueError, match="'mnli-mm' is none of them. Received: .*mnli-mm"):
            glue_score(without | {"mnli-mm": 70.0})
        for score in (81.1, {"f1": 81.1}, (1, 2, 3)):
            with pytest.raises(ValueError, match="score of mrpc must be accuracy and f1. Received"):
                glue_score(scores | {"mrpc": score})
        with pytest.raises(ValueError, match="The score of rte must be accuracy. Received: {'f1'"):
            glue_score(scores | {"rte": {"f1": 1.0}})
