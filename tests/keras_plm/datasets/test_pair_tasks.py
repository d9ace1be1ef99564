"""SciTail, SICK, SWAG, RACE and Story Cloze, from small files in the official formats."""

import csv
import io
import json

import numpy as np
import pytest

import keras_plm
from keras_plm.cli.main import main
from keras_plm.datasets.choices import read_race, read_story_cloze, read_swag
from keras_plm.datasets.pairs import read_scitail, read_sick
from keras_plm.datasets.tasks import TASKS, read_snli
from keras_plm.heads import MultipleChoice, Regressor
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece

pytestmark = pytest.mark.backend_neutral

SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,"
SWAG += "label"
LETTERS = list("abcdefgh")


def write(root, name, *lines):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def swag_row(i, video, first, label, source="gold", endings=("a.", "b.", "c.", "d.")):
    cells = [i, video, i, f"{first} She", first, "She", source, *endings, label]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def test_scitail(tmp_path):
    for split in ("train", "dev", "test"):
        name = f"SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv"
        path = write(tmp_path, name, f'A "leaf is {split}.\tLeaves are.\tentails', "a\tb\tneutral")
    for split in ("train", "dev", "test"):
        first, second = TASKS["scitail"].read(tmp_path, split)
        assert (first.text, first.pair) == (f'A "leaf is {split}.', "Leaves are.")
        assert (first.label, second.label) == ("entails", "neutral")
    write(tmp_path, str(path), "a\tb\tcontradicts")
    with pytest.raises(ValueError, match="test.tsv:1: The labels of this task are entails, neu"):
        read_scitail(path)
    write(tmp_path, str(path), "a\tb\tneutral", "a\tneutral")
    with pytest.raises(ValueError, match="test.tsv:2: Every line needs as many fields"):
        read_scitail(path)


def test_sentences_of_snli_are_texts(tmp_path):
    pair = {"sentence1": ["It", "ran", "."], "sentence2": "It sat .", "gold_label": "neutral"}
    (tmp_path / "s.jsonl").write_text(json.dumps(pair) + "\n")
    with pytest.raises(ValueError, match="s.jsonl:1: `sentence1` and `sentence2` must be texts"):
        read_snli(tmp_path / "s.jsonl")


def test_sick(tmp_path):
    for file in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        path = write(tmp_path, f"SICK/{file}", SICK,
                     f"1\tA dog runs.\t{file}\t4.5\tNEUTRAL", "2\ta\tb\t1\tENTAILMENT",
                     "3\ta\tc\t5.0\tCONTRADICTION")  # fmt: skip
    for split, file in {"train": "train", "dev": "trial", "test": "test_annotated"}.items():
        for name, labels in (
            ("sick_e", ["NEUTRAL", "ENTAILMENT", "CONTRADICTION"]),
            ("sick_r", [4.5, 1.0, 5.0]),
        ):
            examples = TASKS[name].read(tmp_path, split)
            assert [e.label for e in examples] == labels
            assert (examples[0].text, examples[0].pair) == ("A dog runs.", f"SICK_{file}.txt")
    assert TASKS["sick_r"].head is Regressor and TASKS["sick_r"].symmetric
    write(tmp_path, str(path), SICK, "1\ta\tb\t0.5\tneutral")
    with pytest.raises(ValueError, match="annotated.txt:2: A score lies from 1 to 5.*'0.5'"):
        read_sick(path, scores=True)
    with pytest.raises(ValueError, match="The labels of this task are CONTRADICTION.*'neutral'"):
        read_sick(path)
    write(tmp_path, str(path), "pair_ID\tsentence_A\tsentence_B", "1\ta\tb")
    with pytest.raises(ValueError, match="No column 'entailment_judgment'"):
        read_sick(path)


class TestSwag:
    def test_second_sentence_precedes_each_ending(self, tmp_path):
        endings = ("waves, then goes.", "sits.", "runs.", "flies.")
        path = write(tmp_path, "swag/val.csv", SWAG,
                     swag_row(0, "v1", "Someone nods, slowly.", 2, endings=endings),
                     swag_row(1, "v2", 'He "sings".', 0, "gen"))  # fmt: skip
        first, second = TASKS["swag"].read(tmp_path, "test")
        assert first.text == "Someone nods, slowly." and first.label == 2
        assert first.choices == ["She waves, then goes.", "She sits.", "She runs.", "She flies."]
        assert second.label == 0 and second.text == 'He "sings".'
        assert second.where.endswith("val.csv:3")
        assert read_swag(path, gold_only=True) == [first]

    def test_train_and_dev_have_no_common_video_or_sentence(self, tmp_path):
        rng = np.random.default_rng(0)
        rows = [
            swag_row(i, f"v{rng.integers(40)}", f"Sentence {i if i % 5 else i % 3}.", i % 4)
            for i in range(300)
        ]
        write(tmp_path, "swag/train.csv", SWAG, *rows)
        train, dev = (TASKS["swag"].read(tmp_path, split) for split in ("train", "dev"))
        assert len(train) + len(dev) == 300 and dev
        assert not {e.text for e in train} & {e.text for e in dev}
        assert not {e.group for e in train} & {e.group for e in dev}

    def test_bad_swag_files_are_refused(self, tmp_path):
        path = write(tmp_path, "val.csv", SWAG, swag_row(0, "v", "A.", 4))
        with pytest.raises(ValueError, match="val.csv:2: The label must be the number .*3. .*'4'"):
            read_swag(path)
        write(tmp_path, "val.csv", SWAG.removesuffix(",label"), swag_row(0, "v", "A.", 1)[:-2])
        with pytest.raises(ValueError, match="val.csv:2: No column 'label'"):
            read_swag(path)
        write(tmp_path, "val.csv", SWAG, swag_row(0, "v", "A.", 1, "gen"))
        with pytest.raises(ValueError, match="No question in this file"):
            read_swag(path, gold_only=True)
        with pytest.raises(ValueError, match="No file .*swag/train.csv .*--data"):
            TASKS["swag"].read(tmp_path, "train")

    @pytest.mark.full
    def test_swag_runs_with_fine_tuning_but_not_features(self, tmp_path, capsys):
        rng = np.random.default_rng(0)
        for file, count in (("train", 60), ("val", 12)):
            rows = [
                swag_row(i, f"v{i}", " ".join(rng.choice(LETTERS, 3)), i % 4,
                         endings=rng.choice(LETTERS, 4))
                for i in range(count)
            ]  # fmt: skip
            write(tmp_path, f"swag/{file}.csv", SWAG, *rows)
        tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "she", *LETTERS])
        model = BERT(len(tokenizer), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12)
        keras_plm.save(tmp_path / "tiny", model, tokenizer)
        flags = ["--task", "swag", "--encoder", str(tmp_path / "tiny"), "--data", str(tmp_path)]
        flags += ["--results", str(tmp_path / "r"), "--feature-cache", str(tmp_path / "f")]
        flags += ["--learning-rates", "1e-2", "--epochs", "1", "--seeds", "1"]
        assert main(["run", *flags]) == 0, capsys.readouterr().err
        (path,) = (tmp_path / "r").glob("**/*.json")
        result = json.loads(path.read_text())
        assert result["task"] == "swag" and 0 <= result["metrics"]["accuracy"] <= 1
        assert result["counts"]["labels"] == 4 and result["counts"]["test"] == 12
        assert main(["run", *flags, "--method", "features"]) == 2
        assert "error: Choices need fine-tuning" in capsys.readouterr().err
        assert TASKS["swag"].head is MultipleChoice


def test_race(tmp_path):
    passage = {
        "article": "A cat sat.", "id": "high3.txt", "questions": ["Who sat?", "It _ ."],
        "options": [["a cat", "a dog", "he", "no one"], ["ran", "sat", "ate", "hid"]],
        "answers": ["A", "B"],
    }  # fmt: skip
    for level, names in (("middle", ["10", "9"]), ("high", ["3"])):
        for name in names:
            path = f"RACE/test/{level}/{name}.txt"
            write(tmp_path, path, json.dumps(passage | {"article": f"{level} {name}."}))
    examples = TASKS["race"].read(tmp_path, "test")
    assert [e.text for e in examples[::2]] == [
        "middle 9. Who sat?", "middle 10. Who sat?", "high 3. Who sat?",
    ]  # fmt: skip
    assert [e.label for e in examples] == [0, 1] * 3
    assert examples[1].choices == ["ran", "sat", "ate", "hid"]
    assert len({e.group for e in examples}) == 3 and examples[0].group == examples[1].group
    assert len(TASKS["race_high"].read(tmp_path, "test")) == 2
    assert len(TASKS["race_middle"].read(tmp_path, "test")) == 4
    with pytest.raises(ValueError, match=r"No passage .*train.middle"):
        TASKS["race"].read(tmp_path, "train")
    for change, match in (
        ({"answers": ["A", "E"]}, '`answers.1.` must be one of .*Received: "E"'),
        ({"answers": ["", "B"]}, '`answers.0.` must be one of .*Received: ""'),
        ({"answers": ["A", "BC"]}, '`answers.1.` must be one of .*Received: "BC"'),
        ({"answers": ["A"]}, "2 questions, 2 options, 1 answers"),
        ({"options": [["a"] * 4, ["a"] * 3]}, "must have 4 options. Received: 3"),
        ({"options": ["abcd", "abcd"]}, "`options.0.` must be a list"),
        ({"article": None}, "`article` must be text. Received: null"),
        ({"questions": [["Who sat?"], "It _ ."]}, "`questions.0.` must be text"),
    ):
        path = write(tmp_path, "RACE/test/high/3.txt", json.dumps(passage | change))
        with pytest.raises(ValueError, match=f"3.txt: .*{match}"):
            read_race(tmp_path / "RACE" / "test", ["high"])
    write(tmp_path, str(path), "{")
    with pytest.raises(ValueError, match="3.txt must be JSON"):
        read_race(tmp_path / "RACE" / "test", ["high"])


def test_story_cloze(tmp_path):
    head = "InputStoryid," + ",".join(f"InputSentence{i}" for i in range(1, 5))
    head += ",RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding"
    rows = [f'id{i},"He, a.",b.,c.,d.,He won.,He lost.,{1 + i % 2}' for i in range(10)]
    for part in ("val", "test"):
        name = f"StoryCloze/cloze_test_{part}__spring2016 - cloze_test_ALL_{part}.csv"
        path = write(tmp_path, name, head, *rows)
    parts = {
        split: TASKS["story_cloze"].read(tmp_path, split) for split in ("train", "dev", "test")
    }
    assert [len(parts[split]) for split in ("train", "dev", "test")] == [8, 2, 10]
    first, second = parts["test"][:2]
    assert first.text == "He, a. b. c. d." and first.choices == ["He won.", "He lost."]
    assert (first.label, second.label) == (0, 1)
    write(tmp_path, str(path), head, rows[0][:-1] + "3")
    with pytest.raises(
        ValueError, match="test.csv:2: The right ending must be 1 or 2. Received: '3'"
    ):
        read_story_cloze(path)
    write(tmp_path, str(path), head)
    with pytest.raises(ValueError, match="No story in this file"):
        read_story_cloze(path)
    write(tmp_path, str(path), head.replace("AnswerRightEnding", "x"), rows[0])
    with pytest.raises(ValueError, match="No column 'AnswerRightEnding'"):
        read_story_cloze(path)


@pytest.mark.full
def test_sick_regressor_has_score_range_1_to_5(tmp_path, capsys, monkeypatch):
    """The scores of training go from 2 to 4 and those of test from 1 to 5."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(LETTERS, 3)) for _ in range(12)]
    for file, low in (("SICK_train", 2), ("SICK_trial", 2), ("SICK_test_annotated", 1)):
        rows = [f"{i}\t{t}\ta b\t{(low, 3, 6 - low)[i % 3]}\tNEUTRAL" for i, t in enumerate(texts)]
        write(tmp_path, f"SICK/{file}.txt", "\ufeff" + SICK, *rows)
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
    model = BERT(len(tokenizer), 1, 2, 8, 12, max_sequence_length=24)
    keras_plm.save(tmp_path / "tiny", model, tokenizer)
    ranges, original = [], Regressor.__init__

    def init(self, encoder, labels, *arguments, **named):
        ranges.append(tuple(labels))
        original(self, encoder, labels, *arguments, **named)

    monkeypatch.setattr(Regressor, "__init__", init)
    flags = ["run", "--task", "sick_r", "--encoder", str(tmp_path / "tiny"), "--seeds", "1"]
    flags += ["--data", str(tmp_path), "--results", str(tmp_path / "r"), "--epochs", "1"]
    assert main([*flags, "--learning-rates", "1e-3"]) == 0, capsys.readouterr().err
    assert set(ranges) == {(1.0, 5.0)}


def test_a_passage_of_race_may_begin_with_a_byte_order_mark(tmp_path):
    passage = {"article": "A.", "questions": ["b?"], "options": [list("abcd")], "answers": ["C"]}
    path = write(tmp_path, "high/1.txt", "\ufeff" + json.dumps(passage))
    (example,) = read_race(tmp_path, ["high"])
    assert example.label == 2 and example.where == str(path)
