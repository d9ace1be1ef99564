"""A user's own encoder: one class that satisfies the contract of `models.Encoder`."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_plm
from keras_plm.data.task import Example
from keras_plm.heads import Classifier
from keras_plm.models import Encoder
from keras_plm.tokenizers import WordPiece
from keras_plm.transfer import FeatureBased, FineTune, clone, extract_features
from tests import ROOT
from tests.helpers.checks import check_encoder

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"])
Embedding = keras.layers.Embedding


@keras.saving.register_keras_serializable("own")
class GRUEncoder(Encoder):
    """Stacked bidirectional GRUs."""

    def __init__(
        self, vocabulary_size, num_layers, hidden_dim, dropout=0.1, trainable=True, dtype=None,
        name=None,
    ):  # fmt: skip
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        embedding = keras.layers.Embedding(vocabulary_size, hidden_dim, dtype=dtype, name="words")
        layers = [embedding(inputs["token_ids"])]  # (B, T, D)
        for i in range(num_layers):
            options = {"return_sequences": True, "dropout": dropout, "name": "gru"}
            gru = keras.layers.GRU(hidden_dim // 2, **options)
            block = keras.layers.Bidirectional(gru, dtype=dtype, name=f"block_{i}")
            layers.append(block(layers[-1], mask=inputs["padding_mask"]))
        super().__init__(inputs, {"sequence": layers[-1], "layers": layers}, name=name)
        self.dtype_policy = embedding.dtype_policy
        self.vocabulary_size, self.num_layers = vocabulary_size, num_layers
        self.dropout, self.trainable = dropout, trainable

    def get_config(self):
        names = ("vocabulary_size", "num_layers", "hidden_dim", "dropout", "trainable", "name")
        return {**{name: getattr(self, name) for name in names}, "dtype": self.dtype_policy.name}


class Twice(keras.layers.Layer):
    """Two layers of one name."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = (keras.layers.Dense(units, name="dense") for _ in range(2))

    def build(self, shape):
        for layer in (self.first, self.second):
            layer.build(shape)

    def call(self, x):
        return self.second(self.first(x))


@keras.saving.register_keras_serializable("own")
class TwiceEncoder(Encoder):
    def __init__(self, vocabulary_size, hidden_dim, dtype=None, name=None):
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        words = Embedding(vocabulary_size, hidden_dim, name="words")(inputs["token_ids"])
        layers = [words, Twice(hidden_dim, name="block_0")(words)]
        super().__init__(inputs, {"sequence": layers[-1], "layers": layers}, name=name)
        self.vocabulary_size = vocabulary_size

    def get_config(self):
        return {"vocabulary_size": self.vocabulary_size, "hidden_dim": self.hidden_dim}


@pytest.mark.backend_neutral
def test_two_weights_of_one_path_are_refused(tmp_path):
    with pytest.raises(ValueError, match="of its own. Received: two weights 'block_0/dense/kernel"):
        keras_plm.save(tmp_path / "m", TwiceEncoder(len(TOKENIZER), 4), TOKENIZER)
    assert not (tmp_path / "m").exists()


def examples(count):
    rng = np.random.default_rng(count)
    texts = [" ".join(rng.choice(list("abcdef"), 4)) for _ in range(count)]
    return [Example(text, "yes" if "a" in text else "no") for text in texts]


@pytest.mark.compiles
def test_keeps_the_encoder_contract(tmp_path):
    check_encoder(GRUEncoder(11, 2, 8), tmp_path, vocabulary_size=11)


@pytest.mark.full
@pytest.mark.backend_neutral
def test_fine_tuning_and_features_accept_own_encoder():
    encoder = GRUEncoder(11, 2, 8)
    options = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-2}
    for method in (FineTune(**options, layer_decay=0.5), FeatureBased(**options, layers="mix")):
        fitted = method.fit(encoder, Classifier, TOKENIZER, examples(8))
        assert set(fitted.predict(["a b", "c d"])) <= {"yes", "no"}
    features = extract_features(encoder, TOKENIZER, ["a b", "c"], layers="mean_all", pool="mean")
    assert features.shape == (2, 8)
    assert clone(encoder, dropout=0.0).dropout == 0.0


@pytest.mark.compiles
def test_is_saved_with_its_tokenizer(tmp_path):
    encoder = GRUEncoder(11, 2, 8)
    keras_plm.save(tmp_path / "own", encoder, TOKENIZER)
    loaded, tokenizer = keras_plm.load(tmp_path / "own")
    assert type(loaded) is GRUEncoder and loaded.get_config() == encoder.get_config()
    inputs = TOKENIZER.pack(["a b c", "d"])
    expected, found = (model.predict_on_batch(inputs)["sequence"] for model in (encoder, loaded))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert config["model"] == "own>GRUEncoder"
    (tmp_path / "own" / "config.json").write_text(json.dumps({**config, "model": "own>Other"}))
    with pytest.raises(ValueError, match="first import the module that defines it.*'own>Other'"):
        keras_plm.load(tmp_path / "own")


@pytest.mark.backend_neutral
def test_missing_inputs_and_outputs_are_named():
    good = GRUEncoder(11, 1, 8)
    sequence, layers = good.output["sequence"], good.output["layers"]
    no_mask = {"token_ids": good.input["token_ids"]}
    for inputs, outputs, missing in (
        (no_mask, {"sequence": layers[0], "layers": layers[:1]}, "inputs with `padding_mask`"),
        (good.input, sequence, "a dict of outputs"),
        (good.input, {"layers": layers}, "an output `sequence`"),
        (good.input, {"sequence": sequence}, "an output `layers`"),
        (good.input, {"sequence": sequence, "layers": sequence}, "a list of tensors of one shape"),
    ):
        with pytest.raises(ValueError, match=f"An encoder must have .*{missing}"):
            Encoder(inputs, outputs)
        with pytest.raises(TypeError, match=f"`encoder` must be .*Encoder.* without .*{missing}"):
            Classifier(keras.Model(inputs, outputs), ["no", "yes"], TOKENIZER)
    with pytest.raises(TypeError, match="without the base class, which sets its attributes"):
        Classifier(keras.Model(good.input, good.output), ["no", "yes"], TOKENIZER)


@pytest.mark.backend_neutral
def test_weights_without_fixed_paths_are_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.layers, "Embedding", lambda *a, name, **k: Embedding(*a, **k))
    with pytest.raises(ValueError, match="give every layer of your encoder a `name`.*'embedding"):
        keras_plm.save(tmp_path / "own", GRUEncoder(11, 1, 8), TOKENIZER)
    assert not (tmp_path / "own" / "config.json").exists()


MODULE = """
import keras
from keras_plm.models import Encoder

@keras.saving.register_keras_serializable("mine")
class Letters(Encoder):
    def __init__(self, vocabulary_size, hidden_dim, trainable=True, dtype=None, name=None):
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="bool", name="padding_mask"),
        }
        words = keras.layers.Embedding(vocabulary_size, hidden_dim, dtype=dtype, name="words")
        x = words(inputs["token_ids"])
        super().__init__(inputs, {"sequence": x, "layers": [x]}, name=name)
        self.vocabulary_size, self.trainable = vocabulary_size, trainable

    def get_config(self):
        return {name: getattr(self, name) for name in ("vocabulary_size", "hidden_dim", "name")}
"""
SAVE = """
import keras_plm, my_encoder
from keras_plm.tokenizers import WordPiece
tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])
keras_plm.save("letters", my_encoder.Letters(13, 8), tokenizer)
"""


@pytest.mark.full
@pytest.mark.backend_neutral
def test_command_imports_the_class_of_an_own_encoder(table, tmp_path):
    (tmp_path / "my_encoder.py").write_text(MODULE)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    done = run("-c", SAVE)
    assert done.returncode == 0, done.stderr
    command = ["-m", "keras_plm.cli", "run", *table, "--encoder", "letters", "--seeds", "1"]
    command += ["--learning-rates", "1e-2", "--epochs", "1"]
    done = run(*command)
    assert done.returncode == 2 and "first import the module that defines it" in done.stderr
    command += ["--method", "fine_tune", "--save-model", "models", "--import", "my_encoder"]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    (model,) = (tmp_path / "models").glob("*.keras")
    (tmp_path / "new.txt").write_text("a b\n")
    command = ["-m", "keras_plm.cli", "predict", "--model", str(model), str(tmp_path / "new.txt")]
    script = "from keras_plm.cli.main import main; main(" + repr(command[2:]) + ")"
    done = run("-P", "-c", script)  # without the folder of the module
    assert "first import the module that defines it (--import MODULE)" in done.stderr
    done = run(*command, "--import", "my_encoder")
    assert done.returncode == 0 and '{"prediction": ' in done.stdout, done.stderr
    command = ["-m", "benchmarks", "suite", "minilm", "--scale", "test", "--dry-run"]
    command += ["--task", "wikigold", "--encoder", "letters", "--results", "mine"]
    done = run(*command, "--import", "my_encoder")
    assert done.returncode == 0 and "letters" in done.stdout, done.stderr


def test_a_head_reads_the_inputs_of_its_encoder_only():
    """The tokenizer also returns `segment_ids`, which this encoder does not take."""
    encoder = GRUEncoder(len(TOKENIZER), num_layers=1, hidden_dim=8)
    head = Classifier(encoder, ["no", "yes"], tokenizer=TOKENIZER, dropout=0.0)
    first, second = head.predict(["a b c", "d e f"], probabilities=True)
    assert not np.allclose(first, second, rtol=1e-4)
    (x, *_) = head.batches(examples(4))[0]
    assert set(x) == {"token_ids", "padding_mask"}
