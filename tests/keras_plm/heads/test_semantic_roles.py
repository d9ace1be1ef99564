"""Labelling of semantic roles: marks of the predicate, valid tags, learning, saving."""

import json
from unittest import mock

import keras
import numpy as np
import pytest

from keras_plm.cli.main import main
from keras_plm.data.examples import batches
from keras_plm.data.task import Example
from keras_plm.datasets.semantic_roles import read_roles
from keras_plm.datasets.tasks import TASKS
from keras_plm.experiments.predict import predict, read_inputs
from keras_plm.heads import SemanticRoleLabeler, Tagger
from keras_plm.heads.readers import BiLSTM
from keras_plm.heads.semantic_roles import best_tags
from keras_plm.layers import allowed_transitions, viterbi
from keras_plm.metrics import role_f1, role_scores
from keras_plm.transfer import FeatureBased, FineTune
from tests.helpers.checks import under_torch
from tests.helpers.small_encoders import TOKENIZER, encoder, word_encoder

TAGS = ["O", "B-ARG0", "I-ARG0", "B-ARG1", "B-V"]
# Words of one token, and two of two tokens ("ax", "bx").
VERBS = ["c", "d"]


def sentences(count=96, seed=0):
    """Sentences of two verbs: the word before a verb is its ARG0, the word after it its ARG1.

    Which tags are right depends on the predicate.
    """
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        nouns = rng.choice(["a", "b", "e", "f"], 4)
        first, second = rng.choice(VERBS, 2)
        words = [nouns[0], first, nouns[1], nouns[2], second, nouns[3]]
        for predicate in (1, 4):
            tags = ["O"] * 6
            tags[predicate - 1 : predicate + 2] = ["B-ARG0", "B-V", "B-ARG1"]
            found.append(Example(words, tags, predicate=predicate))
    return found


def model_of(**options):
    return SemanticRoleLabeler(encoder(), TAGS, tokenizer=TOKENIZER, dropout=0.0, **options)


class TestMarks:
    def test_predicate_has_its_own_segment_and_mark(self):
        example = Example(["a", "bx", "c"], ["B-ARG0", "B-V", "B-ARG1"], predicate=1)
        x, y, weights = model_of().batches([example], training=False, batch_size=1)[0]
        assert x["segment_ids"][0, :6].tolist() == [0, 0, 1, 1, 0, 0]  # [CLS] a b ##x c [SEP]
        assert x["predicate_marks"][0, :4].tolist() == [0, 1, 0, 0]
        assert [TAGS[i] for i in y[0, :3]] == list(example.label)
        assert (weights[0, :4] > 0).tolist() == [True, True, True, False]

    def test_frozen_encoder_reads_no_marks(self):
        model = model_of(frozen=True, reader=BiLSTM(4))
        x, *_ = model.batches([Example(["a", "b"], predicate=1)], batch_size=1)[0]
        assert x["segment_ids"].sum() == 0 and x["predicate_marks"][0, :2].tolist() == [0, 1]

    def test_only_the_window_of_the_predicate_has_marks(self):
        words = list("abcdefgh" * 5)
        source = model_of().batches([Example(words, predicate=30)], training=False, batch_size=8)
        rows = [i for i in source.rows(0) if i >= 0]
        x = source[0][0]
        marked = x["predicate_marks"].sum(axis=1)[np.argsort(rows)]
        first = np.concatenate([[0], np.cumsum(source.source.words)[:-1]])
        window = np.searchsorted(first, 30, side="right") - 1
        assert len(rows) > 1 and marked.tolist() == [i == window for i in range(len(rows))]
        assert x["segment_ids"].sum() == 1
        row = int(np.argsort(rows)[window])
        assert x["predicate_marks"][row].argmax() == 30 - first[window]

    def test_missing_predicates_are_refused(self):
        model = model_of()
        for call in (
            lambda: model.batches([Example(["a", "c"], ["O", "B-V"])]),
            lambda: model.predict([["a", "c"]]),
            lambda: batches([["a", "c"]], TOKENIZER, predicate_marks=True),
        ):
            with pytest.raises(ValueError, match="Roles belong to a predicate"):
                call()


@pytest.mark.backend_neutral
class TestDecoding:
    class Source:
        examples_of, words = np.array([0]), np.array([3])

    def decode(self, *rows):
        logits = np.full((1, 3, len(TAGS)), -4.0)
        for word, scores in enumerate(rows):
            for tag, score in scores.items():
                logits[0, word, TAGS.index(tag)] = score
        return SemanticRoleLabeler.decode(TAGS, logits, self.Source)[0]

    def test_best_valid_tags_by_hand(self):
        # I-ARG0 cannot begin: B-ARG0 I-ARG0 (1 + 5) is better than O O (2 + 0).
        found = self.decode({"I-ARG0": 3, "O": 2, "B-ARG0": 1}, {"I-ARG0": 5, "O": 0}, {"B-V": 2})
        assert found == ["B-ARG0", "I-ARG0", "B-V"]
        found = self.decode({"I-ARG0": 3, "O": 2, "B-ARG0": 1}, {"O": 3}, {"B-V": 2})
        assert found == ["O", "O", "B-V"]

    def test_best_tags_equal_those_of_a_crf(self):
        rng, allowed = np.random.default_rng(1), allowed_transitions(TAGS, "BIO")
        for words in (1, 2, 7):
            scores = rng.normal(0, 2, (words, len(TAGS)))
            steps = np.repeat(scores[:, None], len(TAGS), axis=1)
            assert best_tags(scores, allowed) == viterbi(steps, allowed)[0]

    def test_random_scores_give_valid_tags(self):
        logits = np.random.default_rng(0).normal(0, 3, (50, 3, len(TAGS)))
        for row in logits:
            tags = SemanticRoleLabeler.decode(TAGS, row[None], self.Source)[0]
            for before, tag in zip(["O", *tags], tags, strict=False):
                assert not tag.startswith("I-") or before[2:] == tag[2:]


@pytest.mark.full
@pytest.mark.compiles
def test_fine_tuning_learns_roles_of_each_predicate_and_reloads(tmp_path):
    train, dev = sentences(), sentences(24, seed=1)
    method = FineTune(learning_rate=3e-3, epochs=24, dropout=0.0, batch_size=16)
    model = method.fit(encoder(), SemanticRoleLabeler, TOKENIZER, train, dev)
    predicted = model.predict(dev)
    assert role_f1([e.label for e in dev], predicted) > 0.9
    model.save(tmp_path / "roles.keras")
    assert keras.saving.load_model(tmp_path / "roles.keras").predict(dev) == predicted
    probabilities = model.predict(dev[:2], probabilities=True)
    assert [p.shape for p in probabilities] == [(6, 4), (6, 4)]


@pytest.mark.full
@pytest.mark.parametrize(
    "make, reader",
    [
        (word_encoder, "bilstm"),
        under_torch(encoder, "bilstm"),
        under_torch(encoder, "alternating_lstm"),
    ],
)
def test_frozen_features_learn_roles_with_a_reader(make, reader):
    train, dev = sentences(), sentences(24, seed=1)
    frozen = make()
    tokenizer = TOKENIZER if make is encoder else frozen.tokenizer()
    method = FeatureBased(
        learning_rate=1e-2, epochs=12, dropout=0.0, batch_size=16, reader=reader, units=8,
        reader_layers=2,
    )  # fmt: skip
    model = method.fit(frozen, SemanticRoleLabeler, tokenizer, train, dev)
    predicted = model.predict(dev)
    assert model.training_log["dev_score"] == role_f1([e.label for e in dev], predicted) > 0.9


@pytest.mark.full
def test_predict_reads_predicates_from_files(tmp_path):
    model = model_of()
    rows = ({"text": ["a", "c", "b"], "predicate": 1}, {"text": "a d", "predicate": 0})
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    (tmp_path / "in.csv").write_text("text,predicate\na c b,1\n")
    examples = read_inputs(path, model)
    assert [(e.text, e.predicate) for e in examples] == [(["a", "c", "b"], 1)]
    assert read_inputs(tmp_path / "in.csv", model)[0].predicate == 1
    (line,) = predict(model, examples).splitlines()
    assert json.loads(line)["prediction"] == model.predict(examples)[0]
    with mock.patch.object(model, "predict", lambda _: [["O", "B-V", "O"]]):
        with pytest.warns(UserWarning, match="no argument of any predicate"):
            predict(model, examples)
    (tmp_path / "in.txt").write_text("a c b\n")
    with pytest.raises(ValueError, match="columns 'text' and 'predicate'.*Received: in.txt"):
        read_inputs(tmp_path / "in.txt", model)
    for predicate, message in ((3, "0 to 2.*Received: 3"), ("x", "'x'"), (None, "None")):
        path.write_text(json.dumps(rows[0] | {"predicate": predicate}))
        with pytest.raises(ValueError, match=f"in.jsonl:1: 'predicate' must be.*{message}"):
            read_inputs(path, model)
    path.write_text(json.dumps({"text": ["a"]}))
    with pytest.raises(ValueError, match="index of its predicate.*'predicate'.*--tagger"):
        read_inputs(path, model)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_predict_reads_the_layout_of_training(tmp_path):
    model, path = model_of(), tmp_path / "in.jsonl"
    words = ["a", "c", "b"]
    with_arguments = {"index": 2, "arguments": [[0, 1, "ARG0"], [2, 3, "V"]]}
    rows = [
        {"id": "s1", "words": words, "predicates": [with_arguments, {"index": 0}]},
        {"words": ["d"], "predicates": []},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_inputs(path, model)
    assert [(e.text, e.predicate, e.where) for e in found] == [
        (words, 2, f"{path}:1"), (words, 0, f"{path}:1"),
    ]  # fmt: skip
    for row, message in (
        ({"words": words, "predicates": [{"index": 3}]}, "in.jsonl:1: 'predicate'.*0 to 2.*: 3"),
        ({"words": ["a", ""], "predicates": [{"index": 0}]}, "in.jsonl:1: .*must have words"),
        ({"predicates": [{"index": 0}]}, "in.jsonl:1: .*words"),
        ({"words": words, "predicates": []}, "No predicate in this file"),
    ):
        path.write_text(json.dumps(row))
        with pytest.raises(ValueError, match=message):
            read_inputs(path, model)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_predict_finds_predicates_with_a_tagger(tmp_path, capsys):
    model, tagger = model_of(), Tagger(encoder(), ["NOUN", "VERB"], tokenizer=TOKENIZER)
    tagger.task_network.get_layer("logits").set_weights(
        [np.zeros((16, 2)), np.array([0.0, 1.0])]  # every word is a verb
    )
    model.save(tmp_path / "roles.keras")
    tagger.save(tmp_path / "tags.keras")
    (tmp_path / "in.txt").write_text("a c b\nd\n")
    flags = ["predict", "--model", str(tmp_path / "roles.keras"), str(tmp_path / "in.txt")]
    assert main([*flags, "--tagger", str(tmp_path / "tags.keras")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(row["words"], row["predicate"]) for row in rows]
    assert found == [(["a", "c", "b"], i) for i in range(3)] + [(["d"], 0)]
    examples = [Example(words, predicate=i) for words, i in found]
    assert [row["prediction"] for row in rows] == model.predict(examples)

    (tmp_path / "in.csv").write_text("text,predicate\na c b,1\n")
    with pytest.raises(ValueError, match="in.csv:2: Predicates come from a tagger or .* both"):
        read_inputs(tmp_path / "in.csv", model, tagger=tagger)
    tagger.predict = lambda sentences: [["NOUN"] * 3, ["VERB"]]
    with pytest.warns(UserWarning, match="no verb in 1 of 2 sentences.*in.txt:1: 'a c b'"):
        assert len(read_inputs(tmp_path / "in.txt", model, tagger=tagger)) == 1

    nouns = Tagger(encoder(), ["NOUN", "VERB"], tokenizer=TOKENIZER)
    nouns.task_network.get_layer("logits").set_weights([np.zeros((16, 2)), np.array([1.0, 0.0])])
    for of_model, wrong, message in (
        (model, nouns, "in.txt: The tagger must find a verb.*no verb in 2 sentences"),
        (model, Tagger(encoder(), ["O", "X"], tokenizer=TOKENIZER), "tag of verbs.*labels O, X"),
        (model, model, "tag of verbs.*SemanticRoleLabeler"),
        (tagger, tagger, "omit it. Received: a Tagger"),
    ):
        with pytest.raises(ValueError, match=message):
            read_inputs(tmp_path / "in.txt", of_model, tagger=wrong)


def test_models_that_cannot_know_the_predicate_are_refused():
    with pytest.raises(ValueError, match="cannot know the predicate.*Received: frozen=True"):
        model_of(frozen=True)
    words = word_encoder()
    with pytest.raises(ValueError, match="Received: frozen=False, inputs"):
        SemanticRoleLabeler(words, TAGS, tokenizer=words.tokenizer())
    method = FeatureBased(learning_rate=1e-2, epochs=1)
    with pytest.raises(ValueError, match="linear output of frozen features cannot know"):
        method.fit(encoder(), SemanticRoleLabeler, TOKENIZER, sentences(2))
    with pytest.raises(ValueError, match="Tags of BIO"):
        SemanticRoleLabeler(encoder(), ["O", "E-ARG0"], tokenizer=TOKENIZER)


@pytest.mark.backend_neutral
class TestReader:
    def write(self, path, **changes):
        row = {"id": "s", "words": ["Ada", "sings"], "predicates": [
            {"index": 1, "sense": "sing.01", "arguments": [[0, 1, "ARG0"], [1, 2, "V"]]}
        ]}  # fmt: skip
        path.write_text(json.dumps({"id": "t", "words": ["Yes"], "predicates": []}) + "\n"
                        + json.dumps(row | changes) + "\n")  # fmt: skip
        return path

    def test_examples_have_tags_and_predicates(self, tmp_path):
        (example,) = read_roles(self.write(tmp_path / "a.jsonl"))
        assert (example.text, example.label) == (["Ada", "sings"], ["B-ARG0", "B-V"])
        assert (example.predicate, example.group) == (1, "s")
        assert example.where.endswith("a.jsonl:2")

    @pytest.mark.parametrize(
        "predicate, message",
        [
            ({"index": 2, "arguments": []}, "index of a predicate.*index=2 of 2 words"),
            ({"index": -1, "arguments": []}, "index"),
            ({"index": 0, "arguments": [[1, 3, "ARG0"]]}, r"part of its sentence.*\[1, 3"),
            ({"index": 0, "arguments": [[1, 1, "ARG0"]]}, "part of its sentence"),
            (
                {"index": 0, "arguments": [[0, 2, "A"], [1, 2, "B"]]},
                r"predicate 0: .*not overlap. Received: \[0, 2, 'A'\] and \[1, 2, 'B'\]",
            ),
            ({"index": 0, "arguments": [[1, 2, "V"]]}, "predicate 0: .*counted from 0.*V at 1"),
            ({"index": 0, "arguments": [[0, 1, "V"], [1, 2, "V"]]}, "V at 0, 1"),
            ({"index": 0, "arguments": [[0, 1, "B-V"]]}, "without B- and I-"),
            ({"index": 0, "arguments": [[0, 1, " "]]}, r"must be \[start, end, label\]"),
            ({"index": 0, "arguments": [[0, 2]]}, r"must be \[start, end, label\]"),
            ({"index": 0, "arguments": [[0, True, "A"]]}, r"must be \[start, end, label\]"),
            ({"index": 0}, "arguments"),
        ],
    )
    def test_invalid_lines_are_refused(self, predicate, message, tmp_path):
        path = self.write(tmp_path / "a.jsonl", predicates=[predicate])
        with pytest.raises(ValueError, match=f"a.jsonl:2.*{message}"):
            read_roles(path)

    @pytest.mark.parametrize("words", [[], ["Ada", " "]])
    def test_sentences_without_words_are_refused(self, words, tmp_path):
        path = self.write(tmp_path / "a.jsonl", words=words, predicates=[])
        with pytest.raises(ValueError, match="a.jsonl:2: A sentence must have words"):
            read_roles(path)

    def test_a_word_is_one_predicate(self, tmp_path):
        twice = [{"index": 1, "arguments": [[1, 2, "V"]]}] * 2
        with pytest.raises(ValueError, match="a.jsonl:2: .*two predicates at index 1"):
            read_roles(self.write(tmp_path / "a.jsonl", predicates=twice))

    def test_files_without_a_predicate_are_refused(self, tmp_path):
        path = self.write(tmp_path / "a.jsonl", predicates=[])
        with pytest.raises(ValueError, match="No predicate in this file"):
            read_roles(path)

    def test_real_data(self, data):
        folder = data("ewt_srl").parent
        examples = TASKS["ewt_srl"].read(folder, "test")
        assert len(examples) == 4795
        tags = [example.label for example in examples]
        assert role_scores(tags, tags)["all"]["f1"] == 1.0
        begins = [e.label[e.predicate] == "B-V" for e in examples]
        assert np.mean(begins) > 0.99


@pytest.mark.backend_neutral
def test_predicates_outside_the_text_are_refused():
    for text, predicate in ((["a"], 1), (["a"], -1), (["a"], 0.5), ("a b", 0)):
        with pytest.raises(ValueError, match="`predicate` must be the index of a word"):
            Example(text, predicate=predicate, where="f:1")
