"""A SavedModel predicts the same from raw strings as the model in Python."""

import keras
import numpy as np
import pytest

from keras_plm.checkpoints.saved_model import export
from keras_plm.data.formats.tables import read_table
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, Regressor, Tagger
from keras_plm.models import BERT, GPT
from keras_plm.tokenizers import BytePair, WordPiece
from keras_plm.transfer import FineTune
from tests.helpers.checks import assert_close

pytestmark = pytest.mark.each_backend

LETTERS = [*"abcdefgh", *(f"##{c}" for c in "abcdefgh")]
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
SIZE = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
needs_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="TensorFlow writes SavedModels")


@pytest.fixture
def tf():
    pytest.importorskip("tensorflow_text")
    return pytest.importorskip("tensorflow")


def bert(count=None, **options):
    model = BERT(count or len(TOKENIZER), **SIZE, **{"max_sequence_length": 12, **options})
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) * 0.3 for w in model.get_weights()])
    return model


TEXTS = ["ab c", "", "h " * 30, "A B,c!", "xyz abc", "deaf  beef\tcab"]
PAIRS = ["b", "abcdefgh abcdefgh abcdefgh", "g " * 30, "", "a a a a a a", "fade."]


@pytest.mark.compiles
@pytest.mark.quick_cases("False")
@needs_tensorflow
@pytest.mark.parametrize("pairs", [False, True, "both_orders"])
def test_exported_classifier_equals_python_predictions(pairs, tmp_path, tf):
    joint = "both_orders" if pairs == "both_orders" else False
    head = Classifier(bert(), ["no", "yes", "so"], tokenizer=TOKENIZER, pairs=joint)
    export(head, tmp_path / "model", pairs=bool(pairs))
    loaded = tf.saved_model.load(tmp_path / "model")
    given = [tf.constant(x) for x in ((TEXTS, PAIRS) if pairs else (TEXTS,))]
    found = loaded.serve(*given)
    examples = [Example(a, None, b if pairs else None) for a, b in zip(TEXTS, PAIRS, strict=True)]
    assert_close(found["probabilities"], head.predict(examples, probabilities=True), atol=1e-5)
    assert [x.decode() for x in found["labels"].numpy()] == head.predict(examples)
    export(head, tmp_path / "model", pairs=bool(pairs), max_length=8)  # replaces the first one
    assert not list(tmp_path.glob("*.tmp*"))


@pytest.mark.full
@needs_tensorflow
def test_exported_regressor_equals_python_scores(tmp_path, tf):
    train = [Example(t, float(i)) for i, t in enumerate(TEXTS)]
    method = FineTune(learning_rate=1e-2, epochs=1, batch_size=4)
    head = method.fit(bert(), Regressor, TOKENIZER, train)
    export(head, tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    found = loaded.serve(tf.constant(TEXTS))["scores"]
    assert_close(found, np.array(head.predict(TEXTS)), atol=1e-5)


@pytest.mark.full
@needs_tensorflow
@pytest.mark.parametrize("lowercase", [True, False])
def test_exported_model_equals_python_on_real_text(lowercase, tmp_path, tf, data):
    tokenizer = WordPiece.load(data("vocabularies/bert_uncased_vocab.txt"), lowercase)
    cola = {"text": "t", "label": "l", "header": ["s", "l", "x", "t"]}
    rte = {"text": "sentence1", "label": "label"}
    texts = []
    for name, columns in (("CoLA", cola), ("RTE", rte)):
        path = data(f"glue/{name}/dev.tsv")
        texts += [e.text for e in read_table(path, **columns, separator="\t")]
    texts += ["naïve Café — 北京 “so” İstanbul ﬁne\u00a0x\x07y", "Ünïcödé\u200bwörds…"]
    model = bert(len(tokenizer), max_sequence_length=200)
    head = Classifier(model, ["no", "yes"], tokenizer=tokenizer)
    export(head, tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    found = loaded.serve(tf.constant(texts))["probabilities"]
    assert_close(found, head.predict(texts, probabilities=True), atol=1e-5)


@needs_tensorflow
def test_unsupported_models_and_options_are_refused(tmp_path, tf):
    head = Classifier(bert(), ["no", "yes"], tokenizer=TOKENIZER)
    pieces = BytePair(["<unk>", "a</w>"], [], scheme="gpt")
    gpt = GPT(len(pieces), **SIZE, max_sequence_length=8)
    accents = WordPiece(TOKENIZER.vocabulary, lowercase=True, strip_accents=False)
    for model, options, match in (
        (
            Classifier(bert(), ["a", "b"], tokenizer=accents),
            {},
            "default settings, except `lowercase`. Received: strip_accents=False",
        ),
        (Tagger(bert(), ["A", "O"], tokenizer=TOKENIZER), {}, "Received: Tagger with WordPiece"),
        (Classifier(gpt, ["a", "b"], tokenizer=pieces), {}, "Received: Classifier with BytePair"),
        (
            Classifier(bert(), ["a", "b"], tokenizer=TOKENIZER, pairs=True),
            {},
            "without .* separate texts. Received: .*pairs=True",
        ),
        (
            Classifier(bert(), ["a", "b"], tokenizer=TOKENIZER, pairs="both_orders"),
            {},
            "pairs=True",
        ),
        (head, {"max_length": 13}, "at most the encoder's 12 positions"),
        (head, {"max_length": 2}, "leave room next to 2 special tokens"),
    ):
        with pytest.raises(ValueError, match=match):
            export(model, tmp_path / "model", **options)
    for trained, match in ((True, "on pairs of texts.*pairs=True"), (False, "on single texts")):
        head.trained_on_pairs = trained
        with pytest.raises(ValueError, match=match):
            export(head, tmp_path / "model", not trained)
    head.trained_on_pairs = None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match="a folder of its own"):
        export(head, tmp_path / "mine")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(ON_TENSORFLOW, reason="where it is not TensorFlow")
def test_export_on_other_backends_is_refused(tmp_path):
    head = Classifier(bert(), ["no", "yes"], tokenizer=TOKENIZER)
    with pytest.raises(ValueError, match="export it under KERAS_BACKEND=tensorflow"):
        export(head, tmp_path / "model")
