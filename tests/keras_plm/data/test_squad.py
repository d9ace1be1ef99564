"""SQuAD's files, their evaluation, and the tasks based on them."""

import json

import numpy as np
import pytest

from keras_plm.data.formats.squad import (
    best_threshold,
    evaluate_squad,
    read_predictions,
    read_squad,
    write_predictions,
)
from keras_plm.data.task import Example
from keras_plm.datasets.questions import SQUAD, qnli_pairs, read_squad1, read_squad2
from keras_plm.datasets.tasks import TASKS, write_text_of
from tests.keras_plm.data.squad_files import PASSAGE, question, written

pytestmark = pytest.mark.backend_neutral


class TestReader:
    @pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
    def test_both_versions(self, tmp_path, name):
        none = question("2", "Who?", (), is_impossible=True, plausible_answers=[])
        path = written(tmp_path, question("1", answers=((7, "1882"), (0, "It"))), none, name=name)
        first, second = read_squad(path)
        assert (first.text, first.pair, first.id) == ("When?", PASSAGE, "1")
        assert (first.label, first.starts) == (["1882", "It"], [7, 0])
        assert (second.label, second.starts) == ([], [])
        assert first.group == second.group == f"{path}#0"
        assert first.where == f"{path}: question 1"

    def test_unlabelled(self, tmp_path):
        path = written(tmp_path, {"id": "1", "question": "When?"})
        (example,) = read_squad(path, labelled=False)
        assert example.label is None and example.starts is None
        with pytest.raises(ValueError, match="some.json: question 1: .*a list at 'answers' here"):
            read_squad(path)

    @pytest.mark.parametrize(
        "questions, context, match",
        [
            ([question("7", answers=((8, "1882"),))], PASSAGE,
             r"some.json: question 7: The passage must have each answer at its offset.*"
             r"Received: '1882' at 8, where the passage has '882.'"),
            ([question("7", answers=((-1, "."),))], PASSAGE, r"question 7: .*'.' at -1"),
            ([question("7", answers=((0, ""),))], PASSAGE, r"question 7: An answer must not be"),
            ([question("7", answers=())], PASSAGE,
             r"question 7: A question needs answers, or none and is_impossible=true. Received: 0"),
            ([question("7", is_impossible=True)], PASSAGE, r"Received: 1 answers, is_imp"),
            ([question("7"), question("7")], PASSAGE,
             r"question 7: Every question needs its own id. .*data\[0\].paragraphs\[0\] again"),
            ([question("7")], "  ", r"question 7: A question needs a passage. Received: '  '"),
            ([question("7")], None, r"question 7: .*a string at 'context'.*Received: None"),
            ([{"question": "a"}], PASSAGE, r"paragraphs\[0\].qas\[0\]: .*a string at 'id' here"),
            ([{"id": "7"}], PASSAGE, r"question 7: .*a list at 'answers'"),
            ([question("7", text=None)], PASSAGE, r"question 7: .*a string at 'question'"),
            ([question("7", answers=(("0", "It"),))], PASSAGE, r"a whole number at 'answer_start'"),
            ([5], PASSAGE, r"qas\[0\]: .*'id' here. Received: None in 5"),
            ([], PASSAGE, r"some.json: No question in this file"),
        ],
    )  # fmt: skip
    def test_errors_name_the_file_and_question(self, questions, context, match, tmp_path):
        path = written(tmp_path, *questions, context=context)
        with pytest.raises(ValueError, match=match):
            read_squad(path)

    def test_files_without_squad_data_are_refused(self, tmp_path):
        (tmp_path / "a.json").write_text("{")
        with pytest.raises(ValueError, match="a.json must be JSON"):
            read_squad(tmp_path / "a.json")
        (tmp_path / "a.json").write_text("[]")
        with pytest.raises(ValueError, match=r"a.json: .*a list at 'data' here.*in \[\]"):
            read_squad(tmp_path / "a.json")
        with pytest.raises(ValueError, match="No file"):
            read_squad(tmp_path / "none.json")

    def test_real_files_have_their_counts(self, data):
        for name, count, articles in (("dev-v1.1", 10_570, 48), ("dev-v2.0", 11_873, 35)):
            examples = read_squad(data(f"squad/{name}.json.gz"))
            assert len(examples) == count and len({e.group for e in examples}) == articles
        assert sum(not e.label for e in examples) == 5_945  # published for SQuAD 2.0's dev


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"label": ["b"], "starts": [0]}, r"'b' at 0, where the passage has 'a'"),
        ({"label": ["a"], "starts": [0.0]}, r"'a' at 0.0, where the passage has None"),
        ({"label": ["a"], "starts": []}, r"`label` must list the answers, and `starts`"),
        ({"label": "a", "starts": [0]}, r"`label` must list the answers, and `starts`"),
        ({"label": [], "starts": [], "pair": None}, r"A question needs a passage.*pair=None"),
    ],
)
def test_examples_are_checked(fields, match):
    with pytest.raises(ValueError, match=match):
        Example(**{"text": "q", "pair": "a b", **fields})


class TestPredictions:
    examples = [Example("q", pair="a", id=name) for name in ("1", "2")]

    def test_written_predictions_read_back(self, tmp_path):
        path = tmp_path / "predictions.json"
        write_predictions(path, self.examples, ["Łódź", ""])
        assert json.loads(path.read_text()) == {"1": "Łódź", "2": ""} == read_predictions(path)
        assert [p.name for p in tmp_path.iterdir()] == ["predictions.json"]

    def test_bad_predictions_are_refused(self, tmp_path):
        path = tmp_path / "predictions.json"
        with pytest.raises(ValueError, match="2 questions and 1 answers"):
            write_predictions(path, self.examples, ["a"])
        for examples, answers in (
            ([Example("q", pair="a")], ["a"]),
            (self.examples[:1] * 2, ["a", "b"]),
            (self.examples, ["a", None]),
        ):
            with pytest.raises(ValueError, match="string, for a question with its own id"):
                write_predictions(path, examples, answers)
        assert not list(tmp_path.iterdir())
        path.write_text('{"1": 2}')
        with pytest.raises(ValueError, match="predictions.json: .* must "):
            read_predictions(path)


def some(labels):
    passage = "a b c d e"
    return [
        Example("q", list(label), passage, id=str(i), starts=[passage.index(x) for x in label])
        for i, label in enumerate(labels)
    ]


class TestEvaluation:
    """Expected values are computed by hand after evaluate-v1.1.py and evaluate-v2.0.py."""

    def test_version_1(self):
        examples = some(["b", "bc", "d"])
        guesses = {"0": "b", "1": "c", "2": "d e"}
        report = evaluate_squad(examples, guesses, version=1)
        assert report == {
            "exact_match": pytest.approx(200 / 3),
            "f1": pytest.approx(100 * (2 + 2 / 3) / 3),
        }
        with pytest.warns(UserWarning, match="1 questions have no prediction; the first is '2'"):
            report = evaluate_squad(examples, {"0": "b", "1": "c"}, version=1)
        assert report["f1"] == pytest.approx(200 / 3)  # a missing prediction counts 0

    def test_version_2(self):
        examples = some(["b", "", "d", ""])
        report = evaluate_squad(examples, {"0": "b", "1": "", "2": "e", "3": "c"})
        assert report == {
            "exact": 50.0, "f1": 50.0, "total": 4,
            "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2,
            "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
        }  # fmt: skip
        with pytest.warns(UserWarning, match="1 questions have no prediction"):
            report = evaluate_squad(examples, {"0": "b", "1": "", "2": "e"})
        assert report["total"] == 3 and report["exact"] == pytest.approx(200 / 3)
        assert "NoAns_total" not in evaluate_squad(examples[:1], {"0": "b"})

    def test_odds_above_the_threshold_count_as_no_answer(self):
        examples = some(["b", "", "d", ""])
        guesses = {"0": "b", "1": "c", "2": "e", "3": "c"}
        odds = {"0": -3.0, "1": 2.0, "2": 0.0, "3": 1.0}
        report = evaluate_squad(examples, guesses, odds=odds, threshold=1.0)
        assert report["exact"] == 50.0  # 1 is refused correctly; 3 is not above the threshold
        assert report["best_exact"] == 75.0 and report["best_exact_thresh"] == -3.0
        report = evaluate_squad(examples, guesses, odds=odds, threshold=-4.0)
        assert report["exact"] == 50.0 and report["HasAns_exact"] == 0.0
        with pytest.raises(ValueError, match="`predictions` must be a dict by question id.*a list"):
            evaluate_squad(examples, list(guesses.values()))
        with pytest.raises(ValueError, match="`odds` must be a dict by question id.*a tuple"):
            evaluate_squad(examples, guesses, odds=(0.0, 1.0))
        with pytest.raises(ValueError, match="none for '3'"):
            evaluate_squad(examples, guesses, odds={"0": 0.0, "1": 0.0, "2": 0.0})

    def test_best_threshold_equals_that_of_a_linear_scan(self):
        rng = np.random.default_rng(0)
        for _ in range(50):
            count = int(rng.integers(1, 9))
            scores, odds = rng.random(count).round(1), rng.normal(size=count).round(1)
            answered = rng.random(count) < 0.5
            texts = [("", "x")[i] for i in rng.integers(2, size=count)]
            current = best = (~answered).sum()
            threshold = 0.0
            for i in sorted(range(count), key=lambda i: odds[i]):
                if answered[i]:
                    current = current + scores[i]
                elif texts[i]:
                    current = current - 1
                if current > best:
                    best, threshold = current, odds[i]
            found = best_threshold(scores, texts, answered, odds)
            assert found == pytest.approx((best / count, threshold))


class TestTasks:
    @pytest.mark.full
    def test_squad_is_split_by_article(self, data):
        folder = data("squad/train-v1.1.json.gz").parent.parent
        train, dev = (read_squad1(folder, split) for split in ("train", "dev"))
        assert len(train) + len(dev) == 87_346 and 1_500 < len(dev) < 3_000
        assert not {e.group for e in train} & {e.group for e in dev}
        assert len(read_squad1(folder, "test")) == 10_570

    @pytest.mark.full
    def test_squad2_is_split_by_article(self, data, tmp_path):
        folder = data("squad/dev-v2.0.json.gz").parent.parent
        parts = [read_squad2(folder, split) for split in ("train", "dev", "test")]
        assert sum(map(len, parts)) == 11_873
        groups = [{e.group for e in part} for part in parts]
        assert [len(g) for g in groups] == [22, 3, 10] and len(set.union(*groups)) == 35
        for part in parts:
            assert 0.3 < np.mean([not e.label for e in part]) < 0.7
        count = write_text_of(TASKS["squad2"], folder, tmp_path / "text", "dev")
        assert count == len(parts[1]) + len({e.pair for e in parts[1]})

    def test_qnli_pairs_are_labelled_by_contained_answer(self):
        rain, cat, dog = "It rained.", "The cat slept on the mat.", "A dog ran by the cat."
        passage = f"{rain} {cat} {dog}"

        def asked(answer, question="Where did the cat sleep?", pair=passage):
            start = pair.index(answer)
            return Example(question, [answer], pair=pair, starts=[start], group="g")

        found = {
            pair.pair: (pair.label, pair.group)
            for seed in range(20)
            for pair in qnli_pairs([asked("the mat")], seed)
        }
        # Among the others, the one with "the" and "cat".
        assert found == {cat: ("entailment", "g"), dog: ("not_entailment", "g")}
        assert qnli_pairs([asked("mat. A dog"), asked("It", pair=rain)]) == []
        assert qnli_pairs([Example("Who?", [], pair=passage, starts=[])]) == []
        some = [asked(word) for word in ("mat", "dog", "It")]
        labels = [pair.label for pair in qnli_pairs(some * 100)]
        assert 0.4 < np.mean([label == "entailment" for label in labels]) < 0.6

    @pytest.mark.full
    def test_qnli_is_built_from_squad(self, data, tmp_path):
        folder = data("squad/train-v1.1.json.gz").parent.parent
        dev = SQUAD["qnli_squad"].read(folder, "dev")
        asked = {(e.text, e.group): e for e in read_squad1(folder, "dev")}
        assert 0.9 * len(asked) < len(dev) <= len(asked)
        for pair in dev:
            example = asked[pair.text, pair.group]
            assert pair.pair in example.pair and len(pair.pair) < len(example.pair)
            if pair.label == "entailment":
                assert example.label[0] in pair.pair
        data("glue/QNLI/dev.tsv")
        assert len(SQUAD["qnli_squad"].read(folder, "test")) == 5463

    def test_dev_file_with_wrong_article_count_is_refused(self, tmp_path):
        (tmp_path / "squad").mkdir()
        written(tmp_path / "squad", question("1"), name="dev-v2.0.json")
        with pytest.raises(
            ValueError, match="must have 35 articles.*Received: 1 in squad/dev-v2.0.json"
        ):
            read_squad2(tmp_path, "train")

    def test_squad_tasks_score_by_the_rule_of_their_version(self):
        assert TASKS["squad"] is SQUAD["squad"] and list(SQUAD["squad"].metrics)[0] == "f1"
        golds, guesses = [["the"]], ["a"]
        assert SQUAD["squad"].metrics["f1"](golds, guesses) == 0.0
        assert SQUAD["squad2"].metrics["f1"](golds, guesses) == 1.0
        assert SQUAD["squad2"].metrics["exact_match"]([[]], [""]) == 1.0


def test_reader_accepts_number_ids_and_byte_order_mark(tmp_path):
    """As in GermanQuAD."""
    path = written(tmp_path, question(43152), question(7), name="german.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [example.id for example in read_squad(path)] == ["43152", "7"]
    path = written(tmp_path, question(7), question("7"))
    with pytest.raises(ValueError, match="question 7: Every question needs its own id"):
        read_squad(path)
    for name in (True, 1.5, None):
        with pytest.raises(ValueError, match=f"must have a .* at 'id' here. Received: {name}"):
            read_squad(written(tmp_path, question(name)))
