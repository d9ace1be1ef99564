"""Commands refuse invalid input with one sentence and code 2, and write nothing."""

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest

from benchmarks.__main__ import main as of_benchmarks
from keras_plm.cli.errors import show_error
from keras_plm.cli.main import main
from keras_plm.datasets.tasks import task_from_file
from keras_plm.experiments.runner import Runner
from tests.helpers.small_runs import FAST, common, result_files

pytestmark = pytest.mark.backend_neutral


@pytest.mark.parametrize(
    "flags, match",
    [
        (["run", "--task", "sst3"], r"Unknown task 'sst3'. Did you mean 'sst"),
        (["run", "--task", "sst5", "--data", "nowhere"], r"No file nowhere/sst/trees/train.txt"),
        (["run", "--task", "wikigold", "--method", "tune"], r"`method` must be one of .*'tune'"),
        (["run", "--task", "wikigold", "--layers", "last"], r"`layers` needs"),
        (["run", "--task", "wikigold", "--units", "5"], r"`units` needs"),
        (["run", "--task", "wikigold", "--penalty", "1"], r"`penalty` needs"),
        (["run", "--task", "wikigold", "--method", "features", "--words", "x"], r"`words` needs"),
        (
            [
                "run",
                "--task",
                "wikigold",
                "--method",
                "features",
                "--reader",
                "bilstm",
                "--placement",
                "output",
            ],
            r"name their folder in `words`",
        ),
        (["run", "--task", "wikigold", "--text", "words"], r"`--text` needs a --task-file"),
        (
            ["run", "--task", "wikigold", "--schedule", "flat"],
            r"`schedule` must be one of .*'flat'",
        ),
        (
            ["run", "--task", "wikigold", "--layer-decay", "2"],
            "`layer_decay` must be a number, above 0 and at most 1",
        ),
        (
            ["run", "--task", "wikigold", "--method", "features", "--layer-decay", ".5"],
            r"`layer_decay` needs",
        ),
        (
            ["run", "--task", "wikigold", "--method", "features", "--text-pool", "max"],
            r"`text_pool` needs",
        ),
        (["run", "--task", "wikigold", "--method", "features", "--layers", "lats"], r"'lats'"),
        (["run", "--task", "wikigold", "--learning-rates", "fast"], r"numbers above 0, separated"),
        (["run", "--task", "wikigold", "--learning-rates", "1,nan"], r"numbers above 0"),
        (
            ["run", "--task", "wikigold", "--train-limit", "-5"],
            r"`train_limit` must be a whole number, 0",
        ),
        (
            ["run", "--task", "wikigold", "--dev-limit", "-5"],
            r"`dev_limit` must be a whole",
        ),
        (["run", "--task", "wikigold", "--seeds", "0"], r"`--seeds` must be 1 or more"),
        (["run", "--task-file", "none.csv"], r"No file none.csv"),
        (["layers", "--task", "wikigold", "--plot", "nowhere/a.png"], r"PNG or SVG file in"),
        (
            ["run", "--task-file", "TABLE", "--document-tokens", "32"],
            r"needs a task of tagged words",
        ),
        (
            ["layers", "--task", "wikigold", "--no-fine-tune", "--precision", "bfloat16"],
            r"`--precision` is for fine-tuning, .* omit it. Received: 'bfloat16'",
        ),
        (
            ["layers", "--task", "wikigold", "--no-fine-tune", "--fine-tuning-rates", "1e-4"],
            r"`--fine-tuning-rates` is for fine-tuning, .* omit it. Received: '1e-4'",
        ),
        (["layers", "--task", "wikigold", "--precision", "half"], r"`precision` must be"),
        (
            ["run", "--task", "wikigold", "--method", "features", "--max-cache-gb", "nan"],
            r"`feature_gb` must be a number, 0 or more",
        ),
    ],
)
def test_bad_input_exits_with_one_line_and_code_2(flags, match, encoder, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("text,label\na b,x\nb c,y\n" + "a b c,x\nb,y\n" * 8)
    flags = [str(tmp_path / "t.csv") if flag == "TABLE" else flag for flag in flags]
    assert main([*flags, *common(encoder, tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.search(match, error) and error.startswith("error: ")
    assert "Traceback" not in error and len(error.strip().splitlines()) == 1


def test_unknown_flags_show_the_usage_of_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["layers", "--task", "wikigold", "--encoder", "e", "--layers", "last"])
    error = capsys.readouterr().err
    assert error.startswith("usage: keras-plm layers [-h]")
    assert error.endswith("error: unrecognized arguments: --layers last\n")


def test_word_vectors_replace_no_other_model(encoder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a b a b\n" * 9)
    command = ["word-vectors", "--corpus", str(tmp_path / "text.txt"), "--min-count", "1"]
    command += ["--dim", "2", "--epochs", "1", "--out"]
    before = sorted((path, path.read_bytes()) for path in Path(encoder).iterdir())
    assert main([*command, encoder]) == 2
    assert "holds another model: choose another folder" in capsys.readouterr().err
    assert sorted((path, path.read_bytes()) for path in Path(encoder).iterdir()) == before
    assert main([*command, str(tmp_path / "words")]) == 0
    assert main([*command, str(tmp_path / "words")]) == 0  # its own folder
    (tmp_path / "words" / "pretraining.json").write_text("{}")
    assert main([*command, str(tmp_path / "words")]) == 2
    assert main([*command, str(tmp_path / "w"), "--seed", "-1"]) == 2
    assert "`--seed` must be" in capsys.readouterr().err


def test_report_names_no_hidden_folder(tmp_path, capsys):
    for name in (".locks", "mine"):
        (tmp_path / name).mkdir()
    assert of_benchmarks(["report", "--results", str(tmp_path)]) == 2
    assert "one of: mine. Received" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, match",
    [
        (
            ["--max-length", "1024"],
            r"`max_length` must be .*at most 512. Received: max_length=1024",
        ),
        (["--first-length", "4"], r"`first_length` must be a whole number, 8 or more"),
        (["--first-fraction", "1.5"], r"`first_fraction` must be a number, above 0 and below 1"),
        (["--sentences", "line"], r"`sentences` must be one of 'split', 'lines'"),
        (["--tokens-per-batch", "0"], r"`tokens_per_batch` must be a whole number, 128 or more"),
        (["--tokens", "inf"], r"`tokens` must be a number, 4096 or more"),
        (["--dropout", "2"], r"`dropout` must be"),
        (["--warmup", "2"], r"`warmup` must be"),
        ([], r"holds an encoder without the state of a run"),
    ],
)
def test_pretrain_refuses_bad_flags_before_writing(flags, match, encoder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a b\n")
    corpus = ["--corpus", str(tmp_path / "text.txt"), "--out", encoder]
    before = sorted(Path(encoder).iterdir())
    assert main(["pretrain", *corpus, *flags]) == 2
    assert re.search(match, capsys.readouterr().err)
    assert sorted(Path(encoder).iterdir()) == before


def test_a_label_that_occurs_once_is_trained_on(encoder, table, tmp_path):
    path = tmp_path / "mine.csv"
    test = task_from_file(path, "sentence", "answer").read(None, "test")
    lines = path.read_text().splitlines()
    number = int(test[0].where.rpartition(":")[2])
    lines[number - 1] = lines[number - 1].rpartition(",")[0] + ",maybe"
    path.write_text("\n".join(lines))
    with pytest.warns(UserWarning, match=rf"'maybe' \(.*mine.csv:{number}\)"):
        assert main(["run", *table, *common(encoder, tmp_path), *FAST, "--seeds", "1"]) == 0
    (file,) = result_files(tmp_path)
    counts = json.loads(file.read_text())["counts"]
    assert counts == {"train": 43, "dev": 9, "test": 8, "labels": 3}


def test_label_unseen_in_training_counts_as_an_error(encoder, table, tmp_path, capsys, monkeypatch):
    path = tmp_path / "mine.csv"
    lines = path.read_text().splitlines()
    known = [line.rpartition(",")[2] for line in lines[-9:]]
    lines[-1] = lines[-1].rpartition(",")[0] + ",maybe"
    path.write_text("\n".join(lines))

    def cut(rows, dev, test, scores):
        return {"train": rows[:42], "dev": rows[42:51], "test": rows[51:]}

    monkeypatch.setattr("keras_plm.datasets.tasks.cut_dev_set", cut)
    monkeypatch.setattr(Runner, "_predict", lambda *arguments: known)
    assert main(["run", *table, *common(encoder, tmp_path), *FAST, "--seeds", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "labels without training examples count as errors: maybe" in shown
    (file,) = result_files(tmp_path)
    assert json.loads(file.read_text())["score"] == pytest.approx(8 / 9)


def test_wrong_folders_and_files_end_with_code_2(encoder, table, tmp_path, capsys):
    def error(flags):
        assert main(flags) == 2
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return text

    places = ["--results", str(tmp_path / "results"), "--feature-cache", str(tmp_path / "f")]
    assert "config.json written by keras_plm.save" in error(
        ["run", *table, "--encoder", str(tmp_path), *places]
    )
    weights = Path(encoder) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    flags = ["run", *table, *common(encoder, tmp_path), "--seeds", "1", *FAST]
    flags += ["--method", "features"]
    assert "is not the file that was written" in error(flags)
    weights.write_bytes(whole)
    assert main(flags) == 0
    (file,) = result_files(tmp_path)
    file.write_text(file.read_text()[:50])
    capsys.readouterr()
    assert "not a complete result file" in error(flags)
    small = [*flags, "--layers", "embeddings", "--max-cache-gb", "0.000000001"]
    shutil.rmtree(tmp_path / "features")
    assert "--max-cache-gb" in error(small)
    (tmp_path / "empty.txt").write_text("")
    corpus = ["pretrain", "--corpus", str(tmp_path / "empty.txt"), "--out", str(tmp_path / "o")]
    assert "files without any" in error(corpus)
    assert "No file" in error(["pretrain", "--corpus", "no.txt", "--out", str(tmp_path / "o")])
    assert "Known models: bert in tiny" in error([*corpus, "--size", "huge"])
    (tmp_path / "r").mkdir()
    assert "No result file below" in error(["report", "--results", str(tmp_path / "r")])


def test_unknown_flags_are_refused_by_the_parser(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["layers", "--task", "sst5"])
    assert stop.value.code == 2


def test_debug_shows_the_traceback(monkeypatch, tmp_path, capsys):
    import benchmarks.demo
    import glue_tasks.__main__ as glue

    report = ["report", "--results", str(tmp_path)]
    for flags in (["--debug", *report], [*report, "--debug"]):
        assert main(flags) == 2
        error = capsys.readouterr().err
        assert "Traceback" in error and "error: No result file below" in error
    assert main(report) == 2
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(benchmarks.demo, "run_demo", lambda flags: {}["wrong"])
    monkeypatch.setattr(glue, "run_show", lambda flags: {}["wrong"])
    for command in (lambda *more: of_benchmarks(["demo", *more]), lambda *more: glue.main([*more])):
        assert command() == 2
        error = capsys.readouterr().err
        assert error == "error: KeyError: 'wrong' (--debug shows the traceback)\n"
        assert command("--debug") == 2
        assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, shown",
    [
        (MemoryError("A step must fit"), "error: A step must fit\n"),
        (MemoryError(), "error: MemoryError:  (--debug shows the traceback)\n"),
    ],
)
def test_memory_errors_are_explained_if_they_have_a_message(error, shown, capsys):
    assert show_error(error, debug=False) == 2
    assert capsys.readouterr().err == shown


def test_warnings_omit_source_location_without_debug(monkeypatch):
    before, shown = warnings.formatwarning, []

    def warned(flags):
        shown.append(warnings.formatwarning("The file is old.", UserWarning, "a.py", 1))

    monkeypatch.setattr("keras_plm.cli.data.run_data", warned)
    assert main(["data"]) == 0 and main(["--debug", "data"]) == 0
    assert shown[0] == "Warning: The file is old.\n" and "a.py:1" in shown[1]
    assert warnings.formatwarning is before
