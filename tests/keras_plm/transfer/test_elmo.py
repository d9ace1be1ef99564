"""Tasks with ELMo: placement of features, fine-tuning by depth, pairs, folders."""

import warnings

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.data.task import Example
from keras_plm.heads import Classifier, Tagger
from keras_plm.models import ELMo, WordVectors
from keras_plm.tokenizers import Characters
from keras_plm.transfer import FeatureBased, FineTune, compare_layers, extract_features
from tests.helpers.checks import assert_close, to_numpy, under_torch

TINY = {"units": 7, "projection_dim": 5, "filters": [[1, 3], [2, 2]], "character_dim": 2}
TEXTS = [Example(f"{w} film", label) for w, label in (("good", "+"), ("bad", "-")) for _ in "abcd"]
TAGGED = [Example(["Ann", "saw", "Bo", "."], ["B-PER", "O", "B-PER", "O"]) for _ in range(4)]
TAGGED += [Example(["It", "ran"], ["O", "O"])] * 2
PAIRS = [Example(a, a == b and "same" or "other", b) for a in ("a b", "c") for b in ("a b", "c")]


def elmo(seed=0):
    encoder = ELMo(**TINY, dropout=0.0)
    rng = np.random.default_rng(seed)
    encoder.set_weights([rng.normal(size=w.shape) * 0.5 for w in encoder.get_weights()])
    return encoder


@pytest.mark.compiles
def test_elmo_survives_save_and_load(tmp_path):
    encoder = ELMo(**TINY, num_highway=1, cell_clip=None)
    keras_plm.save(tmp_path / "elmo", encoder, Characters())
    again, tokenizer = keras_plm.load(tmp_path / "elmo")
    packed = tokenizer.pack(["To be"])
    assert_close(again(packed), encoder(packed), atol=0)
    assert again.filters == encoder.filters and again.cell_clip is None


@pytest.mark.full
def test_elmo_fine_tunes_with_gradual_unfreezing(tmp_path):
    method = FineTune(
        learning_rate=5e-2,
        epochs=5,
        batch_size=4,
        schedule="slanted_triangular",
        layer_decay=0.4,
        unfreeze_epochs=1,
        pool="max",
    )
    encoder = elmo()
    before = encoder.get_weights()
    model = method.fit(encoder, Classifier, Characters(), TEXTS, TEXTS)
    assert model.pool == "max" and len(model.predict(["good film", "bad film"])) == 2
    assert model.training_log["loss"][-1] < model.training_log["loss"][0]
    assert_close(encoder.get_weights(), before, atol=0)
    assert any(
        not np.array_equal(a, b) for a, b in zip(model.encoder.get_weights(), before, strict=True)
    )
    model.save(tmp_path / "head.keras")
    again = keras.saving.load_model(tmp_path / "head.keras")
    assert_close(
        again.predict(["a film"], probabilities=True), model.predict(["a film"], probabilities=True)
    )


@pytest.mark.full
def test_fine_tuned_elmo_classifies_pairs():
    method = FineTune(learning_rate=2e-2, epochs=2, batch_size=4, pool="max")
    model = method.fit(elmo(), Classifier, Characters(), PAIRS * 2)
    assert set(model.predict(["a b", "c"], pairs=["a b", "a b"])) <= {"same", "other"}


@pytest.mark.full
@pytest.mark.parametrize(
    "placement",
    [*(under_torch(p) for p in ("input", "output")), "both"],
)
def test_features_combine_with_word_vectors_at_each_placement(placement, tmp_path):
    words = ["Ann", "saw", "Bo", ".", "It"]
    vectors = WordVectors.from_vectors(words, np.random.default_rng(0).normal(size=(5, 4)))
    method = FeatureBased(
        layers="mix",
        reader="bilstm",
        placement=placement,
        penalty=0.001,
        feature_dropout=0.2,
        units=4,
        learning_rate=3e-2,
        epochs=6,
    )
    model = method.fit(elmo(), Tagger, Characters(), TAGGED, words=vectors)
    mixes = model.mixing_weights()
    assert set(mixes) == ({"input", "output"} if placement == "both" else {placement})
    assert all(len(mix["weights"]) == 3 for mix in mixes.values())
    tags = model.predict([["Ann", "saw", "Bo", "."], ["It"]])
    assert [len(row) for row in tags] == [4, 1]
    model.save(tmp_path / "tagger.keras")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Skipping variable loading")
        again = keras.saving.load_model(tmp_path / "tagger.keras")
    assert again.predict([["It", "saw"]]) == model.predict([["It", "saw"]])


@pytest.mark.backend_neutral
def test_encoders_with_carried_states_are_refused():
    carrying, texts = ELMo(**TINY, carried_rows=2), [Example("a b", "no"), Example("c", "yes")]
    for use in (
        lambda: extract_features(carrying, Characters(), ["a b"]),
        lambda: Classifier(carrying, ["no", "yes"]),
        lambda: FineTune().fit(carrying, Classifier, Characters(), texts),
        lambda: FeatureBased().fit(carrying, Classifier, Characters(), texts),
    ):
        with pytest.raises(ValueError, match="carried_rows=0.*Received: carried_rows=2"):
            use()


@pytest.mark.full
def test_compare_layers_accepts_elmo_layer_names():
    table = compare_layers(
        elmo(),
        Characters(),
        {"train": TEXTS, "dev": TEXTS, "test": TEXTS},
        Classifier,
        FeatureBased(layers="mix", epochs=1, penalty=0.01),  # single layers have no penalty
        choices=["embeddings", "layer_1", "top", "mix"],
        seeds=1,
    )
    assert [row["layers"] for row in table] == ["embeddings", "layer_1", "last", "elmo_mix"]


@pytest.mark.compiles
def test_frozen_tagger_scores_each_word():
    encoder = elmo()
    head = Tagger(encoder, ["O", "B-PER"], tokenizer=Characters(), frozen=True)
    batch = head.batches(TAGGED[:1], training=False)[0][0]
    assert batch["word_positions"][0, :4].tolist() == [1, 2, 3, 4]  # begin of the text before
    assert to_numpy(head(batch)).shape[-1] == 2
