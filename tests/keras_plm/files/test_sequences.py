"""Sequences that users pass: columns of tables, arrays, generators, and lists of names."""

from types import SimpleNamespace

import numpy as np
import pytest

from keras_plm import plots
from keras_plm.data.documents import join_sentences
from keras_plm.data.examples import batches
from keras_plm.data.formats.tables import read_table
from keras_plm.data.labels import label_names, score_range
from keras_plm.data.task import Example, split_groups
from keras_plm.data.translation import translation_batches
from keras_plm.files import sequences
from keras_plm.files.sequences import as_list
from keras_plm.heads import Classifier, CRFTagger, MultipleChoice, Regressor, SpanFinder, Tagger
from keras_plm.metrics import SpanF1, accuracy, f1, span_f1, squad_f1
from keras_plm.models import WordVectors
from keras_plm.pretraining import MaskedLM
from keras_plm.pretraining.causal_lm import token_losses
from keras_plm.tokenizers import BytePair, Characters
from keras_plm.transfer import FeatureBased, FineTune, compare_layers
from keras_plm.transfer.extraction import FeatureExtractor, extract_features
from keras_plm.transfer.feature_store import FeatureStore
from tests.helpers.small_encoders import (
    LABELS,
    TAGS,
    TOKENIZER,
    classifier,
    encoder,
    sentences,
    texts,
)

pytestmark = pytest.mark.backend_neutral


class Column:
    """A column of a table with labels as its index, like pandas' `Series`."""

    def __init__(self, values, index=None):
        self.values = list(values)
        self.index = list(range(len(self.values)))[::-1] if index is None else index

    def __getitem__(self, label):
        return self.values[self.index.index(label)]

    def __iter__(self):
        return iter(self.values)

    def __len__(self):
        return len(self.values)

    def to_numpy(self):
        return np.array(self.values)

    def tolist(self):
        return list(self.values)


class NAType:
    """Like pandas' `NA`, neither true nor false."""

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other):
        return self

    __hash__ = object.__hash__


def pandas_columns(values):
    """Returns the same texts in every kind of pandas column."""
    pandas = pytest.importorskip("pandas")
    many = len(values)
    yield pandas.Series(values, index=range(many)[::-1])
    yield pandas.Series(values, index=["x"] * many)
    yield pandas.Series(values, index=[f"row {i}" for i in range(many)])
    yield pandas.Index(values)
    yield pandas.Categorical(values)
    yield pandas.Series(values, dtype="string")
    yield pandas.array(values, dtype="string")
    yield pandas.DataFrame({"text": values})["text"]


def same_sequences(values):
    """Returns the same values in every kind of sequence."""
    yield tuple(values)
    yield np.array(values)
    yield np.array(values, dtype=object)
    yield (value for value in values)
    yield Column(values)
    yield Column(values, [f"row {i}" for i in range(len(values))])


FIRST, SECOND = ["a b", "c", "d e f", "g"], ["h", "a", "b c", "d"]


def test_texts_are_read_by_position():
    model = classifier()
    wanted = model.predict(FIRST, probabilities=True)
    paired = model.predict(FIRST, pairs=SECOND, probabilities=True)
    assert np.abs(wanted - paired).max() > 1e-5
    for x, pairs in zip(same_sequences(FIRST), same_sequences(SECOND), strict=True):
        # The batch and its width are the same, so the numbers are too.
        np.testing.assert_array_equal(model.predict(x, probabilities=True), wanted)
        found = model.predict(list(FIRST), pairs=pairs, probabilities=True)
        np.testing.assert_array_equal(found, paired)
    assert model.predict(Column([]), probabilities=True).shape == (0, 2)


@pytest.mark.backend_neutral
def test_as_list_refuses_a_table():
    class Table:
        """Iterates over the names of its columns, like tables of pandas."""

        columns = ["text", "label"]

        def __iter__(self):
            return iter(self.columns)

    with pytest.raises(ValueError, match="one column of a table"):
        as_list(Table(), "texts")


def test_pandas_columns_are_read_by_position():
    model = classifier()
    wanted = model.predict(FIRST, pairs=SECOND, probabilities=True)
    for x, pairs in zip(pandas_columns(FIRST), pandas_columns(SECOND), strict=True):
        found = model.predict(x, pairs=pairs, probabilities=True)
        np.testing.assert_array_equal(found, wanted)
        assert (
            TOKENIZER.pack(x)["token_ids"].tolist() == TOKENIZER.pack(FIRST)["token_ids"].tolist()
        )
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": FIRST, "pair": SECOND})
    with pytest.raises(ValueError, match="one column of a table"):
        model.predict(frame)
    with pytest.raises(ValueError, match="leave rows without a text out.*row 1 of `x`"):
        model.predict(pandas.Series(["a", None], dtype="string"))
    for dtype in ("Int64", "boolean"):
        column = pandas.Series([1, 0, 1], dtype=dtype, index=[2, 1, 0])
        assert accuracy(column, [1, 0, 1]) == 1.0
        assert [Example("a", label).label for label in column] == [1, 0, 1]
        with pytest.raises(ValueError, match="in row 1 of `y_true`"):
            accuracy(pandas.Series([1, None, 1], dtype=dtype), [1, 0, 1])
    made = batches({"x": pandas.Series([1, 2, 3], index=[2, 1, 0])}, training=False)
    assert made[0][0]["x"][:3].tolist() == [1, 2, 3]


def test_targets_and_arrays_are_read_by_position():
    x = {"x": np.arange(3.0)}
    for targets in (Column([0, 1, 2]), (0, 1, 2), np.arange(3)):
        made = batches(x, targets=targets, training=False, batch_size=3)
        assert made[0][1].tolist() == [0, 1, 2]
    assert batches({"x": Column([4, 5])}, training=False)[0][0]["x"].tolist()[:2] == [4, 5]
    with pytest.raises(ValueError, match="row 2 of `targets`|in row 2"):
        batches(x, targets=[0.0, 1.0, float("nan")])


def test_public_functions_accept_columns(tmp_path):
    model, words = encoder(), [["a", "b"], ["c"]]
    column = Column(FIRST)
    for pool in ("mean", None):
        found = extract_features(model, TOKENIZER, column, pool=pool)
        for a, b in zip(found, extract_features(model, TOKENIZER, FIRST, pool=pool), strict=True):
            np.testing.assert_array_equal(a, b)
    extractor = FeatureExtractor(model, TOKENIZER)
    np.testing.assert_array_equal(extractor.transform(column), extractor.transform(FIRST))
    store = FeatureStore.build(tmp_path, model, TOKENIZER, column)
    assert len(store) == 4
    made = store.batches("last", targets=Column([0, 1, 2, 3]), training=False, batch_size=4)
    assert made.rows(0).tolist() == made[0][1].tolist()
    assert TOKENIZER.tokenize(np.array(["ax", "b"])) == ["a", "##x", "b"]
    assert TOKENIZER.tokenize(Column(["ax", "b"])) == ["a", "##x", "b"]
    assert Characters().tokenize(np.array(["ax", "b"])) == ["ax", "b"]
    packed = TOKENIZER.pack([np.array(row) for row in words])["token_ids"]
    assert packed.tolist() == TOKENIZER.pack(words)["token_ids"].tolist()
    packed = TOKENIZER.pack(column, (text for text in SECOND))
    assert packed["token_ids"].tolist() == TOKENIZER.pack(FIRST, SECOND)["token_ids"].tolist()
    vectors = WordVectors.from_vectors(Column(["a", "b"]), np.eye(2))
    assert vectors.words == ["a", "b"] and vectors.most_similar(Column(["a"]), count=1)[0][0] == "b"
    pieces = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *" abcd"]
    source = translation_batches(Column(["a", "b"]), Column(["c", "d"]), BytePair(pieces, []))
    assert len(source.buckets) == 1


def test_numpy_labels_become_python_values():
    rows = [Example(np.array(["a", "b"]), np.array(["O", "B-A"])), Example(["c"], Column(["O"]))]
    assert rows[0].label == ["O", "B-A"] and rows[1].label == ["O"]
    assert rows[0].text == ["a", "b"]
    yes = [Example("a", flag) for flag in np.array([True, False])]
    assert [type(example.label) for example in yes] == [bool, bool]
    assert label_names(yes) == [False, True]
    model = Classifier(encoder(), np.array([False, True]), tokenizer=TOKENIZER)
    assert model.labels == [False, True]
    assert model.batches(yes, training=False)[0][1].tolist()[:2] == [1, 0]
    assert set(model.predict(["a", "b"])) <= {False, True}
    numbered = [Example(["a", "b"], np.array([1, 0])), Example(["c"], np.array([1]))]
    fitted = FeatureBased(epochs=1).fit(encoder(), Tagger, TOKENIZER, numbered, numbered)
    assert fitted.labels == [0, 1] and len(fitted.predict([["a", "b"]])[0]) == 2


def test_scores_are_read_by_position():
    for true, pred in zip(same_sequences([1, 0, 1]), same_sequences([1, 1, 1]), strict=True):
        assert accuracy(true, pred) == pytest.approx(2 / 3)
    assert f1(Column([0, 1, 1]), np.array([1, 1, 0])) == 0.5
    tags = [["B-A", "O"], ["O"]]
    assert span_f1(Column(np.array(row) for row in tags), tags) == 1.0
    assert squad_f1(Column([np.array(["x y"])]), Column(["x"])) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="nan in row 1 of `y_pred`"):
        accuracy([1.0, 2.0], [1.0, float("nan")])


@pytest.mark.quick_cases("None")
@pytest.mark.parametrize(
    "missing",
    [None, float("nan"), np.float32("nan"), NAType()],
    ids=["None", "nan", "float32", "NA"],
)
def test_missing_texts_and_labels_are_named(missing):
    assert sequences.is_missing(missing)
    model, where = classifier(), "in row 1 of"
    given = np.empty(2, object)
    given[:] = ["a", missing]
    for x in (given, list(given), Column(given)):
        with pytest.raises(ValueError, match=f"leave rows without a text out.*{where} `x`"):
            model.predict(x)
        with pytest.raises(ValueError, match=f"{where} `pairs`|example 1 without"):
            model.predict(["a", "b"], pairs=x)
        with pytest.raises(ValueError, match=f"{where} `texts`"):
            TOKENIZER.pack(x)
        with pytest.raises(ValueError, match=f"{where} `texts`"):
            extract_features(encoder(), TOKENIZER, x)
        with pytest.raises(ValueError, match=f"{where} `texts`"):
            token_losses(encoder(), TOKENIZER, x)
    with pytest.raises(ValueError, match="word 1"):
        TOKENIZER.pack([["a", missing]])
    rows = [Example("a", "no"), Example("b", "yes"), Example("c", missing)]
    with pytest.raises(ValueError, match="row 2 of"):
        model.batches(rows)
    for method in (FineTune(), FeatureBased()):
        with pytest.raises(ValueError, match="row 2 of `train`"):
            method.fit(encoder(), Classifier, TOKENIZER, rows)
        with pytest.raises(ValueError, match="row 2 of `dev`"):
            method.fit(encoder(), Classifier, TOKENIZER, rows[:2], rows)
        with pytest.raises(ValueError, match="leave rows without a text out.*row 1 of `train`"):
            method.fit(encoder(), Classifier, TOKENIZER, [rows[0], Example(missing, "no")])
    with pytest.raises(ValueError, match="row 0 of.*word 1"):
        tagger = Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
        tagger.batches([Example(["a", "b"], ["O", missing])])


@pytest.mark.full
def test_lists_of_names_refuse_duplicates_and_strings(tmp_path):
    def heads(labels):
        yield lambda: Classifier(encoder(), labels)
        yield lambda: Tagger(encoder(), labels)
        yield lambda: CRFTagger(encoder(), labels, scheme="BIO")
        yield lambda: Regressor(encoder(), labels)
        yield lambda: MultipleChoice(encoder(), labels)
        yield lambda: SpanF1(labels)
        yield lambda: FineTune().fit(encoder(), Classifier, TOKENIZER, texts(4), labels=labels)
        yield lambda: FeatureBased().fit(encoder(), Classifier, TOKENIZER, texts(4), labels=labels)

    for make in heads(["a", "a", "b"]):
        with pytest.raises(ValueError, match="must be unique. Received: 'a' twice"):
            make()
    for make in heads("ab"):
        with pytest.raises(ValueError, match="Give a list of names as `labels`"):
            make()
    for make in heads(["a", None]):
        with pytest.raises(ValueError, match="must be given. Received: None at 1"):
            make()
    with pytest.raises(ValueError, match="`choices`"):
        compare_layers(encoder(), TOKENIZER, texts(8), Classifier, choices="last")
    with pytest.raises(ValueError, match="'last' twice"):
        compare_layers(encoder(), TOKENIZER, texts(8), Classifier, choices=["last", "last"])
    gpt = ["<unk>", *"low", "w</w>"]
    with pytest.raises(ValueError, match="`special_tokens`"):
        BytePair(gpt, [], scheme="gpt", special_tokens="_start_")
    with pytest.raises(ValueError, match="'_start_' twice"):
        BytePair(gpt, [], scheme="gpt", special_tokens=["_start_", "_start_"])
    file = tmp_path / "table.csv"
    file.write_text("text,text\na,b\n")
    with pytest.raises(ValueError, match="table.csv:1: Every column needs its own name"):
        read_table(file, "text")


def test_labels_may_be_any_sequence():
    for labels in (np.array(LABELS), Column(LABELS), tuple(LABELS)):
        fitted = FeatureBased(epochs=1).fit(
            encoder(), Classifier, TOKENIZER, Column(texts(8)), labels=labels
        )
        assert fitted.labels == LABELS


@pytest.mark.full
def test_methods_refuse_inputs_other_than_examples():
    given, labels = ["a", "b", "c"], ["no", "yes", "no"]
    for method in (FineTune(), FeatureBased()):
        for more in ([labels], []):
            with pytest.raises(TypeError, match=r"`train` must be a list of `Example`.*Example\("):
                method.fit(encoder(), Classifier, TOKENIZER, given, *more)
        with pytest.raises(TypeError, match="`dev` must be a list of `Example`"):
            method.fit(encoder(), Classifier, TOKENIZER, texts(4), labels)
        with pytest.raises(TypeError, match="`head` must be a class of `keras_plm.heads`"):
            method.fit(encoder(), classifier(), TOKENIZER, texts(4))
    for examples in (given, {"train": given, "dev": given, "test": given}):
        with pytest.raises(TypeError, match="must be a list of `Example`"):
            compare_layers(encoder(), TOKENIZER, examples, Classifier)
    with pytest.raises(TypeError, match="must be a list of `Example`"):
        split_groups(given, (0.5, 0.5))


def test_functions_of_examples_refuse_raw_texts():
    for function in (label_names, score_range, lambda x: join_sentences(x, TOKENIZER, 8)):
        with pytest.raises(TypeError, match="must be a list of `Example`"):
            function(["a", "b"])
    model = classifier()
    model.compile("adam")
    for given in (FIRST, np.array(FIRST), Column(FIRST), texts(4), tuple(FIRST)):
        with pytest.raises(TypeError, match=r"model.fit\(model.batches\("):
            model.fit(given, [0, 1, 0, 1])
        with pytest.raises(TypeError, match="evaluate"):
            model.evaluate(given)
    arrays = model.batches(texts(4), batch_size=4)[0]
    assert len(model.fit(*arrays[:2], epochs=1, verbose=0).history["loss"]) == 1
    generator = (batch for batch in [arrays])
    assert model.evaluate(generator, verbose=0, return_dict=True)["loss"] > 0
    with pytest.raises(ValueError, match="Give a list of tags"):
        span_f1(["O"], ["O"])
    with pytest.raises(ValueError, match="`query_tokens`"):
        plots.attention(np.ones((1, 2)), "a", ["b", "c"])


def test_predict_takes_the_options_of_keras(capsys):
    model, tagger = classifier(), Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
    rows = [example.text for example in sentences(5)]
    for head, x in ((model, FIRST), (tagger, rows)):
        wanted = head.predict(x, probabilities=True)
        assert capsys.readouterr().out == ""
        for size in (1, 3):
            found = head.predict(x, batch_size=size, verbose=0, probabilities=True)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
        assert head.predict(x, 2, 1) == head.predict(x)
        shown = capsys.readouterr().out
        assert f"{-(-len(x) // 2)}/{-(-len(x) // 2)}" in shown
        with pytest.raises(ValueError, match="`steps` and `callbacks` are for arrays"):
            head.predict(x, steps=1)
    packed = TOKENIZER.pack(FIRST)
    assert model.predict(packed, batch_size=2, verbose=0).shape == (4, 2)
    features = [
        extract_features(encoder(), TOKENIZER, FIRST, pool="mean", batch_size=size, verbose=verbose)
        for size, verbose in ((None, 0), (1, 1))
    ]
    assert features[0].shape == features[1].shape and "4/4" in capsys.readouterr().out


def test_fit_and_evaluate_refuse_texts_and_missing_targets(monkeypatch):
    model = classifier()
    model.compile("adam")
    rows, made = texts(4), model.batches(texts(4), batch_size=4)
    monkeypatch.setattr(model, "train_step", None)  # the error must come before the first step
    for wrong in (rows, FIRST, tuple(FIRST), (FIRST, ["no"] * 4), (rows, None), "a b"):
        with pytest.raises(TypeError, match=r"model.batches\(.*Received: validation_data of type"):
            model.fit(made, validation_data=wrong, verbose=0)
    unlabelled, arrays = model.batches(FIRST, training=False), TOKENIZER.pack(FIRST)
    for x in (unlabelled, model.batches(FIRST), arrays):
        for call in (model.fit, model.evaluate):
            with pytest.raises(ValueError, match="need targets.*its label.*Received: x of type"):
                call(x, verbose=0)
    for wrong in (unlabelled, (arrays,), (arrays, None)):
        with pytest.raises(ValueError, match="need targets.*Received: validation_data of type"):
            model.fit(made, validation_data=wrong, verbose=0)
    for labels in (["no"] * 4, np.array(["no"] * 4), [0, 1, 0, 1]):
        for call in (model.fit, model.evaluate):
            with pytest.raises(TypeError, match="Targets must be arrays of numbers"):
                call(arrays, labels, verbose=0)
        with pytest.raises(TypeError, match="Targets must be arrays of numbers.*validation_data"):
            model.fit(made, validation_data=(arrays, labels), verbose=0)
    for call in (model.fit, model.evaluate, model.predict):
        with pytest.raises(TypeError, match="Received: x of type NoneType"):
            call(None)
    objective = MaskedLM(encoder())
    objective.compile("adam")
    for call in (objective.fit, objective.evaluate, objective.predict):
        with pytest.raises(TypeError, match="masked_lm_batches.*Received: x of type list"):
            call(FIRST)
    with pytest.raises(ValueError, match="You must call `compile"):
        classifier().fit(made)


@pytest.mark.full
def test_ambiguous_text_pairs_are_words_only_for_taggers():
    model, tagger = classifier(), Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
    rows = [["a", "b"], ["c", "d"]]
    table, pairs = np.array(rows), [tuple(row) for row in rows]
    borders = (
        model.predict,
        model.batches,
        TOKENIZER.pack,
        FeatureExtractor(encoder(), TOKENIZER).transform,
        lambda x: extract_features(encoder(), TOKENIZER, x),
    )
    for border in borders:
        for x in (table, table.astype(object), pairs, tuple(pairs)):
            with pytest.raises(ValueError, match="`pairs`.*Example.*tolist.*'b'.* in row 0 of"):
                border(x)
    wanted = model.predict(rows, probabilities=True)
    np.testing.assert_array_equal(model.predict(table.tolist(), probabilities=True), wanted)
    tags = tagger.predict(rows)
    for x in (table, pairs, tuple(pairs)):
        assert tagger.predict(x) == tags
    assert len(tagger.batches([Example(("a", "b"), ("O", "O"))])) == 1


@pytest.mark.full
def test_unknown_label_error_names_its_example_or_line():
    model, tagger = classifier(), Tagger(encoder(), TAGS, tokenizer=TOKENIZER)
    rows, tagged = texts(3), [Example(["a", "b"], ["O", "B-A"])]
    known = "This label does not occur in the training examples. Received: 'maybe', known: no, yes"
    with pytest.raises(ValueError, match=f"^example 3: {known}"):
        model.batches([*rows, Example("a", "maybe")])
    with pytest.raises(ValueError, match=f"^f.csv:7: {known}"):
        model.batches([*rows, Example("a", "maybe", where="f.csv:7")])
    odd = {"text": ["c", "d"], "label": ["O", "B-X"]}
    with pytest.raises(ValueError, match=r"^example 1, word 1 \('d'\): This label.*'B-X'"):
        tagger.batches([*tagged, Example(**odd)])
    with pytest.raises(ValueError, match="^f.conll:9: This label.*'B-X'"):
        tagger.batches([*tagged, Example(**odd, where="f.conll:8", lines=[8, 9])])
    for method in (FineTune(), FeatureBased()):
        with pytest.raises(ValueError, match="^example 1: This label"):
            method.fit(encoder(), Classifier, TOKENIZER, texts(2), labels=["yes", "maybe"])
        scores = [Example("a", 1), Example("b", 2)]
        with pytest.raises(ValueError, match="^example 1: A score must be from 1.0 to 2.0.*'x'"):
            dev = [Example("b", 3), Example("a", "x")]
            method.fit(encoder(), Regressor, TOKENIZER, scores, dev)
    regressor = Regressor(encoder(), (0, 5), tokenizer=TOKENIZER)
    with pytest.raises(ValueError, match="^example 1: A score must be from 0 to 5. Received: 7"):
        regressor.batches([Example("a", 3), Example("b", 7)])
    with pytest.raises(ValueError, match="^example 1: A score must be a number. Received: '7'"):
        score_range([Example("a", 3), Example("b", "7")])
    choice = MultipleChoice(encoder(), range(2), tokenizer=TOKENIZER)
    with pytest.raises(ValueError, match="^example 1: This label.*5, known: 0, 1"):
        choice.batches([Example("a", i, choices=["b", "c"]) for i in (0, 5)])
    finder, passage = SpanFinder(encoder(), tokenizer=TOKENIZER), {"pair": "a b", "starts": []}
    answered = Example("a", ["b"], pair="a b", starts=[2])
    with pytest.raises(ValueError, match="^example 1: Questions without an answer"):
        finder.batches([answered, Example("a", [], **passage)])


def test_unequal_word_and_tag_counts_name_the_example():
    with pytest.raises(ValueError, match=r"Every word needs one tag.*2 words and 1 tags, \['a',"):
        Example(["a", "b"], ["O"])
    tagger, right = Tagger(encoder(), TAGS, tokenizer=TOKENIZER), Example(["a"], ["O"])
    longer = Example(["a"], ["O"])
    longer.text.append("b")
    like_an_example = SimpleNamespace(text=["a", "b"], label=["O"])
    for wrong in (longer, like_an_example):
        for border in (tagger.batches, lambda x: batches(x, TOKENIZER, TAGS)):
            with pytest.raises(
                ValueError, match="^example 1: Every word needs one tag.*2 words and 1"
            ):
                border([right, wrong])
    for wrong in (Example(["a", "b"], "O"), Example("a b", "O")):
        for rows in ([right, wrong], [right, wrong, wrong]):
            with pytest.raises(
                ValueError, match="^example 1: A `Tagger` learns a tag for each word"
            ):
                tagger.batches(rows)
        with pytest.raises(ValueError, match="^example 0: A `Tagger` learns a tag for each word"):
            tagger.batches([wrong, right])
    with pytest.raises(ValueError, match="^f:3: A `Tagger` learns.*here a text has one label"):
        classifier().batches([*texts(2), Example(["a"], ["O"], where="f:3")])
    mixed = [Example(["a", "b"], "O"), Example(["a", "b"], ["O", "O"])]
    with pytest.raises(ValueError, match="^example 1: Either every example needs one label"):
        batches(mixed, TOKENIZER, TAGS)
    with pytest.raises(
        ValueError, match="1 strings and 2 lists; text 2 is the first that differs from text 0"
    ):
        tagger.batches([["a"], ["b"], "a b"])
