"""`run` saves a model, which predicts for files of every kind."""

import json
import re
import zipfile

import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.data.formats.squad import read_predictions
from keras_plm.datasets.tasks import task_from_file
from keras_plm.experiments.predict import open_model, predict, read_inputs
from keras_plm.experiments.results import ResultFolder
from keras_plm.experiments.statistics import SCORES
from keras_plm.heads import (
    Classifier,
    CoreferenceResolver,
    MultipleChoice,
    Regressor,
    SpanFinder,
    Tagger,
)
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece

pytestmark = pytest.mark.backend_neutral

LETTERS = list("abcdefgh")
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
SIZE = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}


def bert():
    return BERT(len(TOKENIZER), **SIZE, max_sequence_length=24)


def kept(path, head, labels, **options):
    model = head(bert(), labels, tokenizer=TOKENIZER, **options)
    model.save(path)
    return model


def write_inputs(folder):
    """Writes an encoder, `tiny`, and a table of 40 labelled texts, `mine.csv`."""
    keras_plm.save(folder / "tiny", bert(), TOKENIZER)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(LETTERS, 4)) for _ in range(40)]
    rows = [f"{text},{'yes' if 'a' in text else 'no'}" for text in texts]
    (folder / "mine.csv").write_text("\n".join(["text,label", *rows]))


def rezipped(path, **changes):
    """Rewrites a model file with other members; `None` removes a member."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members |= {name.replace("__", "."): content for name, content in changes.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(name, content)
    return path


@pytest.mark.full
def test_a_damaged_model_is_named(tmp_path):
    path = tmp_path / "m.keras"
    kept(path, Classifier, ["a", "b"])
    whole = path.read_bytes()
    config = json.loads(zipfile.ZipFile(path).read("config.json"))

    def refused(message):
        with pytest.raises(ValueError, match=rf"m\.keras.*{message}"):
            open_model(path)
        path.write_bytes(whole)

    for place in range(0, len(whole), len(whole) // 23):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            open_model(path)
        except ValueError as error:
            assert "m.keras" in str(error) and "Received: " in str(error)
        path.write_bytes(whole)
    for content in (b"", b"text", whole[:-30]):
        path.write_bytes(content)
        refused("must be a whole file that `model.save` wrote")
    rezipped(path, model__weights__h5=None)
    refused("no model.weights.h5 in it")
    rezipped(path, config__json=b"{")
    refused("config.json must be JSON")
    rezipped(path, config__json=b"[]")
    refused("must hold an object")
    rezipped(path, model__weights__h5=b"no HDF5")
    refused("model.weights.h5 is not a whole HDF5 file")
    encoder = config["config"]["encoder"]["config"]
    encoder["hidden_dim"] = 10**9
    rezipped(path, config__json=json.dumps(config))
    refused("`hidden_dim` must fit the .* weights in the file|more weights than its file holds")


@pytest.mark.full
def test_run_saves_a_model_that_predicts(tmp_path, capsys):
    write_inputs(tmp_path)
    folders = {"task-file": "mine.csv", "encoder": "tiny", "results": "r", "feature-cache": "f"}
    command = ["run", "--seeds", "2", "--learning-rates", "1e-2", "--epochs", "1"]
    for flag, name in folders.items():
        command += [f"--{flag}", str(tmp_path / name)]
    assert main(command) == 0
    trials = []
    for file in (tmp_path / "r").rglob("*.json"):
        result = json.loads(file.read_text())
        kept, name = ResultFolder(file.parents[1]), f"{file.parent.name}/{file.name}"
        kind, parts = kept.examples(name, result["hash"])["accuracy"]
        assert len(parts) == 6 and SCORES[kind](parts.sum(axis=0)) == result["score"]
        trials.append((result["trials"], result["seconds"]))
    # Only the model of seed 0 is missing.
    assert main([*command, "--save-model", str(tmp_path / "models")]) == 0
    shown = capsys.readouterr().out
    assert "the model is" in shown and " MB)" in shown
    assert shown.count("on the dev set") == 1  # no second search
    results = [json.loads(file.read_text()) for file in (tmp_path / "r").rglob("*.json")]
    assert trials == [(result["trials"], result["seconds"]) for result in results]
    (file,) = (tmp_path / "models").iterdir()
    assert file.name == "mine_csv.tiny.fine_tune.keras"
    assert main([*command, "--save-model", str(tmp_path / "models")]) == 0
    assert "the model is" not in capsys.readouterr().out
    (tmp_path / "new.txt").write_text("a b c\nd d\n\n \n")
    assert main(["predict", "--model", str(file), str(tmp_path / "new.txt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    model = open_model(file)
    wanted = model.predict(["a b c", "d d"])
    assert [json.loads(line)["prediction"] for line in lines] == wanted
    out = ["--out", str(tmp_path / "out.jsonl"), "--probabilities"]
    assert main(["predict", "--model", str(file), str(tmp_path / "mine.csv"), *out]) == 0
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(found) == 40 and sum(found[0]["probabilities"].values()) == pytest.approx(1)
    # Another dropout has the same name.
    before = file.read_bytes()
    other = [*command, "--dropout", "0.3", "--save-model", str(tmp_path / "models")]
    assert main(other) == 0
    (older,) = (path for path in (tmp_path / "models").iterdir() if path != file)
    assert older.read_bytes() == before and older.name.startswith(f"{file.stem}.")
    assert open_model(older).predict(["a b c"]) == wanted[:1]
    assert f"the older model is kept as {older.name}" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("reader", ["linear", "bilstm"])
def test_a_run_on_features_saves_a_model_with_its_encoder(tmp_path, capsys, reader):
    write_inputs(tmp_path)
    folders = {"task-file": "mine.csv", "encoder": "tiny", "results": "r", "feature-cache": "f"}
    command = ["run", "--method", "features", "--layers", "concat_last_four", "--reader", reader]
    command += ["--seeds", "1", "--learning-rates", "1e-2,3e-2", "--epochs", "3"]
    for flag, name in {**folders, "save-model": "models"}.items():
        command += [f"--{flag}", str(tmp_path / name)]
    assert main(command) == 0
    assert "the model with its frozen encoder is" in capsys.readouterr().out
    (result,) = [json.loads(file.read_text()) for file in (tmp_path / "r").rglob("*.json")]
    (file,) = (tmp_path / "models").iterdir()
    test = task_from_file(tmp_path / "mine.csv", "text", "label").read(None, "test")
    predicted = open_model(file).predict([example.text for example in test])
    right = [a == example.label for a, example in zip(predicted, test, strict=True)]
    assert sum(right) / len(right) == result["score"]


@pytest.mark.full
def test_each_head_predicts_for_its_file_formats(tmp_path):
    tagger = kept(tmp_path / "t.keras", Tagger, ["A", "O"])
    (tmp_path / "x.conll").write_text("a O\nb A\n\nc O\n")
    (tmp_path / "x.txt").write_text("a b\nc\n")
    (tmp_path / "x.jsonl").write_text('{"text": ["a", "b"]}\n{"text": "c"}\n')
    wanted = tagger.predict([["a", "b"], ["c"]])
    for name in ("x.conll", "x.txt", "x.jsonl"):
        lines = predict(tagger, read_inputs(tmp_path / name, tagger), probabilities=True)
        found = [json.loads(line) for line in lines.splitlines()]
        assert [row["prediction"] for row in found] == wanted
        assert [len(row["probabilities"]) for row in found] == [2, 1]

    scorer = kept(tmp_path / "r.keras", Regressor, (0, 5))
    (tmp_path / "p.txt").write_text("a b\tc\nd\te\n")
    lines = predict(scorer, read_inputs(tmp_path / "p.txt", scorer), tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == lines
    wanted = scorer.predict(["a b", "d"], pairs=["c", "e"])
    assert [json.loads(line)["prediction"] for line in lines.splitlines()] == wanted

    chooser = kept(tmp_path / "m.keras", MultipleChoice, range(2))
    row = {"text": "a", "choices": ["b", "c d"]}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    lines = predict(chooser, read_inputs(tmp_path / "c.jsonl", chooser))
    assert json.loads(lines)["prediction"] in (0, 1)

    finder = kept(tmp_path / "s.keras", SpanFinder, ["start", "end"])
    qas = [{"id": "q1", "question": "a?"}, {"id": "q2", "question": "b c?"}]
    data = [{"title": "t", "paragraphs": [{"context": "a b c d e", "qas": qas}]}]
    (tmp_path / "s.json").write_text(json.dumps({"version": "1.1", "data": data}))
    asked = read_inputs(tmp_path / "s.json", finder)
    predict(finder, asked, tmp_path / "answers.json")
    answers = read_predictions(tmp_path / "answers.json")
    assert list(answers) == ["q1", "q2"] and all(a in "a b c d e" for a in answers.values())
    best = [json.loads(line) for line in predict(finder, asked, probabilities=True).splitlines()]
    assert best[0]["probabilities"][0]["text"] == best[0]["prediction"] == answers["q1"]


def test_tagger_reads_untagged_files_and_unicode_spaces(tmp_path):
    tagger = kept(tmp_path / "t.keras", Tagger, ["O", "B-A"])
    row = "{}\t{}" + "\t_" * 4 + "\t0" + "\t_" * 3
    files = {
        "one.conll": "a\nb\u00a0c\n\nd\u3000\n",
        "two.conll": "a B-A\nb\u00a0c O\n\nd\u3000 O\n",
        "u.conllu": "\n".join(["# sent_id = 1", row.format(1, "a"), row.format(2, "b\u00a0c"), "",
                               row.format("1-2", "e"), row.format(1, "d\u3000")]) + "\n",
        "words.txt": "a  b\u00a0c\nd\u3000\n",
        "rows.csv": "text\na b\u00a0c\nd\u3000\n",
    }  # fmt: skip
    wanted = [["a", "b\u00a0c"], ["d\u3000"]]
    for name, text in files.items():
        (tmp_path / name).write_bytes(("\ufeff" + text.replace("\n", "\r\n")).encode())
        examples = read_inputs(tmp_path / name, tagger)
        assert [e.text for e in examples] == wanted, name
        assert len(json.loads(predict(tagger, examples).splitlines()[0])["prediction"]) == 2
    (tmp_path / "two.conll").write_text("1 a\n2 b\n")
    assert [e.text for e in read_inputs(tmp_path / "two.conll", tagger, "1")] == [["a", "b"]]


@pytest.mark.parametrize(
    ("kind", "row", "match"),
    [
        (Tagger, '{"text": null}', "'text': it must hold text or a list. Received: null"),
        (Tagger, '{"text": ["a", 7]}', r"'text': `\[1\]` must be text. Received: 7"),
        (Tagger, '{"text": ["a", " "]}', "needs a text"),
        (Tagger, '{"text": []}', "needs a text"),
        (Classifier, '{"text": NaN}', "'text': it must hold text or a list. Received: NaN"),
        (Classifier, '{"text": {"a": 1}}', "Received: an object of 1"),
        (Classifier, '{"text": "a", "text": "b"}', "the key .text. twice"),
        (Classifier, "[" * 5000, "hundreds of nested values"),
        (MultipleChoice, '{"text": "a", "choices": "ab"}', "'choices': it must hold a list"),
        (MultipleChoice, '{"text": "a", "choices": ["b", null]}', r"'choices': `\[1\]` must be"),
        (MultipleChoice, '{"text": "a", "choices": []}', "needs a text.*choices="),
    ],
)
def test_invalid_jsonl_rows_are_refused(kind, row, match, tmp_path):
    model = object.__new__(kind)
    (tmp_path / "x.jsonl").write_text(row + "\n")
    with pytest.raises(ValueError, match=f"x.jsonl:1.*{match}"):
        read_inputs(tmp_path / "x.jsonl", model)


def test_second_text_on_only_some_lines_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match="x.txt:2: All lines must have a second text"):
        read_inputs(tmp_path / "x.txt", object.__new__(Classifier))


def test_endings_of_inputs_may_be_in_upper_case(tmp_path):
    model = object.__new__(Classifier)
    (tmp_path / "A.CSV").write_text("text,label\nfine film,good\n")
    assert [e.text for e in read_inputs(tmp_path / "A.CSV", model)] == ["fine film"]
    model = object.__new__(CoreferenceResolver)
    for name in ("A.CONLL", "a.conll.txt", "a.iob2", "A.CSV"):
        (tmp_path / name).write_text("Ada O\n")
        with pytest.raises(ValueError, match="`CoreferenceResolver` reads .jsonl"):
            read_inputs(tmp_path / name, model)


@pytest.mark.parametrize(
    "name, columns", [("a.txt", {"text": "review"}), ("a.txt", {"pair": "b"}),
                      ("a.conll", {"text": "0", "pair": "1"})],
)  # fmt: skip
def test_columns_of_files_without_columns_are_refused(name, columns, tmp_path):
    (tmp_path / name).write_text("fine\n")
    with pytest.raises(ValueError, match="Only a .csv, .tsv or .jsonl file has a column"):
        read_inputs(tmp_path / name, object.__new__(Tagger), **columns)


def test_requests_that_cannot_be_met_are_refused_before_the_work(tmp_path, monkeypatch, capsys):
    kept(tmp_path / "r.keras", Regressor, (0, 1))
    (tmp_path / "new.txt").write_text("a\n")
    monkeypatch.setattr(Regressor, "predict", lambda *_, **__: pytest.fail("predicted"))
    command = ["predict", str(tmp_path / "new.txt"), "--model", str(tmp_path / "r.keras")]
    for flags, match in (
        (["--probabilities"], "omit --probabilities. Received: a Regressor"),
        (["--out", str(tmp_path)], "`--out` must be a file. Received: the folder"),
        (["--out", "/proc/nothing/x"], "Received"),
    ):
        assert main([*command, *flags]) == 2
        assert match in capsys.readouterr().err


@pytest.mark.full
def test_bad_input_prints_an_error_and_exits_with_2(tmp_path, capsys):
    kept(tmp_path / "c.keras", Classifier, ["no", "yes"])
    kept(tmp_path / "choices.keras", MultipleChoice, range(2))
    (tmp_path / "broken.keras").write_bytes(b"nothing")
    bert().save(tmp_path / "encoder.keras")
    (tmp_path / "ok.txt").write_text("a\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "ok.json").write_text('{"text": "a"}')
    (tmp_path / "gap.txt").write_text("a\n\nb\n")
    (tmp_path / "three.txt").write_text("a\tb\tc\n")
    (tmp_path / "table.csv").write_text("review\na\n")
    (tmp_path / "blank.csv").write_text("text,pair\na,b\nc, \n")
    (tmp_path / "half.txt").write_text("a\tb\nc\t\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "long.txt").write_text("a\n" + "b " * (1 << 23))
    for model, file, match in (
        ("none.keras", "ok.txt", "No file .*none.keras"),
        ("ok.txt", "ok.txt", "a .keras file"),
        ("broken.keras", "ok.txt", "broken.keras must be a whole file"),
        ("encoder.keras", "ok.txt", "a head with its tokenizer"),
        ("c.keras", "none.txt", "No file"),
        ("c.keras", "empty.txt", "must hold a text"),
        ("c.keras", "ok.json", "A .json file must be SQuAD's.*for a Classifier"),
        ("c.keras", "gap.txt", "gap.txt:2: A line must be a text; only the end of the file may"),
        ("c.keras", "three.txt", "three.txt:1: A line must be a text"),
        ("c.keras", "half.txt", "half.txt:2: A line must be a text"),
        ("c.keras", "long.txt", "long.txt:2: A text must have at most 8,388,608 characters"),
        ("c.keras", "blank.csv --pair pair", "blank.csv:3: Every row needs a text.*pair=' '"),
        ("c.keras", "blank.csv --text pair", "blank.csv:3: Every row needs a text.*pair=' '"),
        ("c.keras", "table.csv", "No column 'text'.*review"),
        ("choices.keras", "rows.jsonl", "No column 'choices'"),
    ):
        file, *columns = file.split()
        command = ["predict", "--model", str(tmp_path / model), str(tmp_path / file), *columns]
        assert main(command) == 2, command
        shown = capsys.readouterr().err
        assert re.search(match, shown), (match, shown)
