"""`FeatureExtractor` as a transformer of scikit-learn; any choice of layers."""

import pickle

import keras
import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from keras_plm.heads import Classifier
from keras_plm.layers import LayerChoice
from keras_plm.transfer import FeatureBased
from keras_plm.transfer.extraction import FeatureExtractor, extract_features
from keras_plm.transfer.feature_store import FeatureStore
from keras_plm.transfer.layer_choices import distinct_choices
from tests.helpers.small_encoders import LABELS, TOKENIZER, encoder, texts

ROWS = ["a b", "c", "d e f", "a"]
# scikit-learn's checks that pass no numbers to the estimator. All others fit 2-D arrays of floats,
# which are not texts. The tests below check the same properties on texts.
CHECKS = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_set_params",
    "check_valid_tag_types",
]


def extractor(**options):
    return FeatureExtractor(encoder(num_layers=3), TOKENIZER, **options)


@pytest.mark.full
@pytest.mark.backend_neutral
@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_passes_the_checks_of_scikit_learn():
    estimator_checks.check_estimator(extractor())  # its tags declare texts, not 2-D arrays
    for name in CHECKS:
        getattr(estimator_checks, name)("FeatureExtractor", extractor())


@pytest.mark.backend_neutral
def test_transform_meets_scikit_learn_conventions():
    model = extractor(layers=LayerChoice(1, -1))
    before = list(ROWS)
    params = model.get_params()
    wanted = model.transform(ROWS)  # without `fit`, as its tags allow
    assert model.fit(ROWS) is model and not [name for name in vars(model) if name.endswith("_")]
    assert before == ROWS
    assert model.get_params() == params
    for given in (model.fit(ROWS).transform(ROWS), model.fit_transform(ROWS, [0, 1, 0, 1])):
        np.testing.assert_array_equal(given, wanted)  # idempotent
    order = [2, 0, 3, 1]
    np.testing.assert_array_equal(model.transform([ROWS[i] for i in order]), wanted[order])
    for i, text in enumerate(ROWS):  # one by one
        np.testing.assert_allclose(model.transform([text])[0], wanted[i], atol=1e-2)
    names = model.get_feature_names_out()
    assert names.tolist() == [f"featureextractor{i}" for i in range(48)]
    assert wanted.shape == (4, 48)
    with pytest.raises(ValueError, match="one column"):
        model.transform(np.array(ROWS)[:, None])


@pytest.mark.backend_neutral
def test_pickled_extractor_returns_equal_features():
    model = extractor()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.transform(ROWS), model.transform(ROWS), atol=1e-3)


@pytest.mark.backend_neutral
def test_extractor_accepts_a_data_frame_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ROWS, "size": [1.0, 2, 3, 4]}, index=[7, 7, 3, 0])
    model = extractor()
    wanted = model.transform(ROWS)
    parts = [("text", model, "text"), ("rest", "passthrough", ["size"])]
    columns = ColumnTransformer(parts)
    found = columns.fit_transform(frame)
    np.testing.assert_allclose(found, np.c_[wanted, frame["size"]], rtol=1e-6)
    named = columns.set_output(transform="pandas").fit_transform(frame)
    assert list(named.columns[:2]) == ["text__featureextractor0", "text__featureextractor1"]
    assert list(named.index) == [7, 7, 3, 0]
    pipeline = make_pipeline(extractor(), LogisticRegression())
    assert len(pipeline.fit(frame["text"], [0, 1, 0, 1]).predict(frame["text"])) == 4
    alone = extractor().set_output(transform="pandas").transform(frame["text"])
    assert list(alone.index) == [7, 7, 3, 0] and alone.shape == (4, 16)
    with pytest.raises(ValueError, match="one column"):
        ColumnTransformer([("text", extractor(), ["text"])]).fit_transform(frame)


@pytest.mark.compiles
@pytest.mark.parametrize("layers", [(0, -1), (-1, 0), (2, 0, 3), (1,), (3, 1)], ids=str)
def test_features_of_any_layers_equal_encoder_outputs(layers, tmp_path):
    """Compares with a computation by hand from the encoder's outputs."""
    model = encoder(num_layers=3)
    texts_given = [["a", "b", "c"], ["d"]]
    packed = TOKENIZER.pack(texts_given)
    every = [keras.ops.convert_to_numpy(x) for x in model(packed)["layers"]]
    words = [np.stack([every[i][0, 1:4] for i in layers], axis=1)]
    words.append(np.stack([every[i][1, 1:2] for i in layers], axis=1))
    store = FeatureStore.build(tmp_path, model, TOKENIZER, texts_given)
    for row, wanted in enumerate(words):  # (W, n, D)
        found = store.vectors(row, LayerChoice(layers=layers))
        np.testing.assert_allclose(found, wanted, atol=2e-3)
        found = store.vectors(row, LayerChoice(layers=layers, combine="mean"))
        np.testing.assert_allclose(found, wanted.mean(axis=1, keepdims=True), atol=2e-3)
    both = extract_features(model, TOKENIZER, texts_given, LayerChoice(layers=layers))
    for found, wanted in zip(both, words, strict=True):
        np.testing.assert_allclose(found, wanted.reshape(len(wanted), -1), atol=2e-3)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_reloaded_heads_have_their_layer_choice(tmp_path):
    rows = texts(16)
    for combine in ("concat", "mean", "mix"):
        choice = LayerChoice(layers=(-1, 0), combine=combine)
        fitted = FeatureBased(layers=choice, epochs=1).fit(
            encoder(num_layers=3), Classifier, TOKENIZER, rows
        )
        wanted = fitted.predict(rows, probabilities=True)
        fitted.save(tmp_path / "head.keras")
        again = keras.saving.load_model(tmp_path / "head.keras")
        assert again.layer_choice == choice and again.labels == LABELS
        np.testing.assert_allclose(again.predict(rows, probabilities=True), wanted, atol=1e-6)
    assert "last" in distinct_choices(fitted.encoder)


@pytest.mark.backend_neutral
def test_invalid_layer_choices_are_refused():
    for wrong in ({}, {"first": 0}, {"first": 0, "last": 1, "layers": (0,)}):
        with pytest.raises(ValueError, match="`first` and `last`, or a tuple of `layers`"):
            LayerChoice(**wrong)
    for layers in ((), ("a",), (1.5,)):
        with pytest.raises(ValueError, match="must be whole numbers"):
            LayerChoice(layers=layers)
    with pytest.raises(ValueError, match="0 twice"):
        LayerChoice(layers=(0, 0))
    for layers in ((0, 5), (0, -5), (4, -1)):
        with pytest.raises(ValueError, match="must be distinct layers of the encoder"):
            LayerChoice(layers=layers).indices(5)
